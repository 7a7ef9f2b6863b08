"""StratANN for big-ann-benchmarks: the disk track (T2), and the common part of the modules of all
tracks.

- Index parameters: "memory" is the maximum memory of searches. All others are arguments of
  `stratann.build` (preset, degree, build_list, ...).
- Query parameters are arguments of `Index.search` (list_size, recall, beam, threads, in_flight,
  ...).
"""

import os
import pathlib

import numpy
import stratann
from benchmark.algorithms.base import BaseANN
from benchmark.datasets import DATASETS

METRICS = {"euclidean": "l2", "ip": "ip", "angular": "cosine"}
EXTENSIONS = {"float32": ".fbin", "uint8": ".u8bin", "int8": ".i8bin"}
NO_ID = 2**64 - 1


class Stratann(BaseANN):
    """An index on disk, built from the data set's file and searched in batches."""

    def __init__(self, metric, index_params):
        if metric not in METRICS:
            raise ValueError(f"the metric is {metric!r}; StratANN has {', '.join(METRICS)}. Pass one of these")
        self.name = "stratann"
        self.metric = METRICS[metric]
        self.memory = index_params.get("memory")
        self.build_params = {name: value for name, value in index_params.items() if name != "memory"}
        self.query_params = {}
        self.stats = {}
        self.index = None

    def track(self):
        return "T2"

    def folder(self, dataset):
        """The folder for the index of a data set. Its name has the parameters of the build."""
        parameters = "_".join(f"{name}-{value}" for name, value in sorted(self.build_params.items())) or "default"
        return pathlib.Path("data", "indices", self.track(), "stratann", DATASETS[dataset]().short_name(), parameters)

    def fit(self, dataset):
        ds = DATASETS[dataset]()
        folder = self.folder(dataset)
        folder.parent.mkdir(parents=True, exist_ok=True)
        stratann.build(str(self._file(ds, folder)), folder, metric=self.metric, overwrite=True, **self.build_params, **self.beside(ds))
        self.index = stratann.open(folder, memory=self.memory)

    def beside(self, ds):
        """Further arguments of `stratann.build` for a data set."""
        return {}

    @staticmethod
    def _file(ds, folder):
        """The file of the vectors, under a name whose extension gives the element type. The name of
        a cropped file has no such extension, so the result is a link to the file.
        """
        file = pathlib.Path(ds.get_dataset_fn()).absolute()
        if file.suffix in EXTENSIONS.values():
            return file
        link = folder.with_name(folder.name + EXTENSIONS[ds.dtype])
        link.unlink(missing_ok=True)
        link.symlink_to(file)
        return link

    def load_index(self, dataset):
        # An unfinished build leaves no index that can be opened.
        try:
            self.index = stratann.open(self.folder(dataset), memory=self.memory)
        except FileNotFoundError:
            return False
        return True

    def index_files_to_store(self, dataset):
        folder = self.folder(dataset)
        return [str(folder), "", sorted(os.listdir(folder))]

    def set_query_arguments(self, query_args):
        # The benchmark needs no distances, so searches do not read vectors for exact distances.
        self.query_params = {"exact": False, **query_args}

    def query(self, X, k):
        ids, _, stats = self.index.search(X, k, return_stats=True, **self.query_params)
        self.res = as_results(ids)
        per_query = stats["per_query"]
        self.stats = {
            "mean_latency": stats["latency_us"]["mean"],
            "dist_comps": per_query["distance_computations"] * len(X),
            "mean_ssd_ios": per_query["graph_reads"] + per_query["vector_reads"],
        }

    def get_additional(self):
        return self.stats

    def __str__(self):
        return f"stratann({self.build_params}, {self.query_params})"


def as_results(ids):
    """Ids in the benchmark's form: (nq, k) int32, with -1 for a missing result."""
    return numpy.where(ids == NO_ID, -1, ids.astype(numpy.int64)).astype(numpy.int32)
