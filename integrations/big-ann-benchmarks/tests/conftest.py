"""Makes a copy of the benchmark with the files of this package, as the README describes. If
BIG_ANN_BENCHMARKS names a checkout, the checkout is copied. Without a checkout, stubs of the base
classes and data sets that modules use take its place.

The benchmark is in no registry.
"""

import os
import pathlib
import shutil
import sys
import tempfile

import numpy
import pytest
import scipy.sparse

HERE = pathlib.Path(__file__).resolve().parents[1]
COPY = tempfile.TemporaryDirectory(prefix="big-ann-benchmarks-")
REAL = os.environ.get("BIG_ANN_BENCHMARKS")

BASE = """
class BaseANN:
    def done(self): pass
    def get_results(self): return self.res
    def get_additional(self): return {}
"""
FILTER = """
from benchmark.algorithms.base import BaseANN
class BaseFilterANN(BaseANN):
    def track(self): return "filter"
"""
STREAMING = """
from benchmark.algorithms.base import BaseANN
class BaseStreamingANN(BaseANN):
    def track(self): return "stream"
    def load_index(self, dataset): return False
"""


def pytest_configure():
    copy = pathlib.Path(COPY.name)
    if REAL:
        shutil.copytree(REAL, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git", "results", "data"))
    else:
        for name, text in {
            "benchmark/algorithms/base.py": BASE,
            "benchmark/datasets.py": "DATASETS = {}\n",
            "neurips23/filter/base.py": FILTER,
            "neurips23/streaming/base.py": STREAMING,
        }.items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_text(text)
    for part in ("benchmark", "neurips23", "install"):
        shutil.copytree(HERE / part, copy / part, dirs_exist_ok=True)
    shutil.copy(HERE / "algos-stratann.yaml", copy)
    sys.path.insert(0, str(copy))


def pytest_unconfigure():
    COPY.cleanup()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of the copied benchmark. The working directory is an empty folder, into which
    modules write.
    """
    monkeypatch.chdir(tmp_path)
    return pathlib.Path(COPY.name)


class Random:
    """A data set in the form of the benchmark, of 3,000 vectors with tags. Vector i has tag 0, and
    it has tag 1, 2 or 3 if i + 1 is a multiple of 2, 3 or 4.
    """

    nb, nq, d, dtype = 3_000, 50, 16, "uint8"

    def __init__(self):
        rng = numpy.random.default_rng(5)
        self.rows = rng.integers(0, 255, (self.nb, self.d), numpy.uint8)
        self.queries = rng.integers(0, 255, (self.nq, self.d), numpy.uint8)

    def short_name(self):
        return "random-3000"

    def distance(self):
        return "euclidean"

    def search_type(self):
        return "knn_filtered"

    def get_dataset_fn(self):
        # The benchmark gives such names to cropped files.
        with open("base.u8bin.crop_nb_3000", "wb") as file:
            file.write(numpy.uint32([self.nb, self.d]).tobytes() + self.rows.tobytes())
        return "base.u8bin.crop_nb_3000"

    def get_queries(self):
        return self.queries

    def get_data_in_range(self, start, end):
        return self.rows[start:end]

    def get_dataset_metadata(self):
        return scipy.sparse.csr_matrix([[1, *((at + 1) % tag == 0 for tag in (2, 3, 4))] for at in range(self.nb)])

    def get_queries_metadata(self):
        # Queries ask for tag 0, for tags 0 and 1, for tags 1 and 2, or for no tag.
        wanted = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]]
        return scipy.sparse.csr_matrix([wanted[at % 4] for at in range(self.nq)])


@pytest.fixture
def data(place):
    from benchmark.datasets import DATASETS

    DATASETS["random-3000"] = Random
    return Random()
