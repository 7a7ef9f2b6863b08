"""StratANN for ann-benchmarks: an index on disk. A call searches for one query or for a batch of
queries.

    method_param   arguments of `stratann.build` (preset, degree, build_list, ...), and "memory",
                   the maximum memory of searches
    query_args     the list size, or the number of probes for clusters
"""

import shutil
import tempfile

import numpy
import stratann

from ..base.module import BaseANN

METRICS = {"angular": "cosine", "euclidean": "l2"}
CLUSTERS = ("spann", "tiered-cluster")
NO_ID = 2**64 - 1


class Stratann(BaseANN):
    def __init__(self, metric, method_param):
        if metric not in METRICS:
            raise ValueError(f"the metric is {metric!r}; StratANN has {', '.join(METRICS)}. Pass one of these")
        self.metric = METRICS[metric]
        self.method_param = method_param
        self.name = f"stratann({method_param})"

    def fit(self, X):
        self.folder = tempfile.mkdtemp(prefix="stratann-")
        build = {name: value for name, value in self.method_param.items() if name != "memory"}
        rows = numpy.ascontiguousarray(X, numpy.float32)
        stratann.build(rows, f"{self.folder}/index", metric=self.metric, **build)
        self.index = stratann.open(f"{self.folder}/index", memory=self.method_param.get("memory"))

    def set_query_arguments(self, effort):
        self.effort = effort
        self.name = f"stratann({self.method_param}, {effort})"

    def query(self, q, n):
        return _found(self.index.search(q, n, threads=1, **self._options(n))[0])

    def batch_query(self, X, n):
        self.res = [_found(ids) for ids in self.index.search(X, n, **self._options(n))[0]]

    def _options(self, n):
        if self.method_param.get("preset") in CLUSTERS:
            return {"probes": self.effort}
        # The benchmark needs no distances, so searches do not read vectors for exact distances.
        return {"list_size": max(self.effort, n), "exact": False}

    def done(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def _found(ids):
    return ids[ids != NO_ID]
