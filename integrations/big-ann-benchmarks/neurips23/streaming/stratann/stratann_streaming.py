"""StratANN for the streaming track. Each insert goes directly into the graph on disk, and is
durable when the call returns.

The index is built from the vectors of the first step, and its codes are trained only on these
vectors. The parameters are the same as in the disk track.
"""

import pathlib
import shutil
import tempfile

import stratann
from benchmark.algorithms.stratann_disk import METRICS, as_results
from neurips23.streaming.base import BaseStreamingANN


class Stratann(BaseStreamingANN):
    def __init__(self, metric, index_params):
        if metric not in METRICS:
            raise ValueError(f"the metric is {metric!r}; StratANN has {', '.join(METRICS)}. Pass one of these")
        self.name = "stratann"
        self.metric = METRICS[metric]
        self.memory = index_params.get("memory")
        self.build_params = {name: value for name, value in index_params.items() if name != "memory"}
        self.query_params = {}
        self.index = None

    def setup(self, dtype, max_pts, ndims):
        folder = pathlib.Path("data", "indices", "stream")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="stratann-", dir=folder))

    def insert(self, X, ids):
        if self.index is not None:
            self.index.insert(X, ids)
            return
        stratann.build(X, self.folder / "index", metric=self.metric, ids=ids, **self.build_params)
        self.index = stratann.open(self.folder / "index", memory=self.memory)

    def delete(self, ids):
        self.index.delete(ids)

    def replace(self, X, tags):
        self.index.upsert(X, tags)

    def set_query_arguments(self, query_args):
        # The benchmark needs no distances, so searches do not read vectors for exact distances.
        self.query_params = {"exact": False, **query_args}

    def query(self, X, k):
        self.res = as_results(self.index.search(X, k, **self.query_params)[0])

    def done(self):
        if self.index is not None:
            self.index.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __str__(self):
        return f"stratann({self.build_params}, {self.query_params})"
