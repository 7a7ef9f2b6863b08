"""Makes a copy of ann-benchmarks with the files of this package, as the README describes. If
ANN_BENCHMARKS names a checkout, the checkout is copied. Otherwise the copy has only the interface
of the benchmark.

The benchmark is in no registry. The interface is its base class, with the names that a module uses.
"""

import os
import pathlib
import shutil
import sys
import tempfile

import pytest

HERE = pathlib.Path(__file__).resolve().parents[1]
COPY = tempfile.TemporaryDirectory(prefix="ann-benchmarks-")
BASE = """
class BaseANN:
    def done(self): pass
    def get_batch_results(self): return self.res
    def __str__(self): return self.name
"""


def pytest_configure():
    copy = pathlib.Path(COPY.name)
    real = os.environ.get("ANN_BENCHMARKS")
    if real:
        shutil.copytree(real, copy, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".git", "results", "data"))
    else:
        base = copy / "ann_benchmarks" / "algorithms" / "base" / "module.py"
        base.parent.mkdir(parents=True)
        base.write_text(BASE)
    shutil.copytree(HERE / "ann_benchmarks", copy / "ann_benchmarks", dirs_exist_ok=True)
    sys.path.insert(0, str(copy))


def pytest_unconfigure():
    COPY.cleanup()


@pytest.fixture
def place():
    """The folder of the copied benchmark."""
    return pathlib.Path(COPY.name)
