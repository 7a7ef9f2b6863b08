"""The names, types and docstrings of the package."""

import importlib.metadata
import importlib.util
import pathlib
import subprocess
import sys

import pytest

import stratann


def test_the_version_is_the_packages():
    assert stratann.__version__ == importlib.metadata.version("stratann")


def test_every_public_name_is_there_and_documented():
    for name in stratann.__all__:
        assert hasattr(stratann, name)
        if not name.startswith("__"):
            assert getattr(stratann, name).__doc__, name
    for kind in (stratann.Index, stratann.Catalog):
        for name in vars(kind):
            if not name.startswith("_"):
                assert getattr(kind, name).__doc__, name


def test_signatures_are_readable():
    import inspect

    parameters = inspect.signature(stratann.build).parameters
    assert parameters["metric"].default == "l2"
    assert parameters["degree"].kind is inspect.Parameter.KEYWORD_ONLY
    assert list(inspect.signature(stratann.Index.search).parameters)[:3] == ["self", "queries", "k"]


def test_failures_are_runtime_errors():
    assert issubclass(stratann.StratannError, RuntimeError)
    assert stratann.StratannError.__module__ == "stratann"
    for kind in (stratann.DamagedError, stratann.InUseError, stratann.OutdatedError, stratann.NoSpaceError):
        assert issubclass(kind, stratann.StratannError) and kind.__module__ == "stratann"
    assert issubclass(stratann.Interrupted, KeyboardInterrupt)
    assert not issubclass(stratann.Interrupted, Exception)


def test_the_package_is_typed():
    folder = pathlib.Path(stratann.__file__).parent
    assert (folder / "py.typed").exists() and (folder / "_stratann.pyi").exists()


def test_what_needs_ray_says_what_to_install():
    program = "import sys; sys.modules['ray'] = None; import stratann\ntry: import stratann.ray\nexcept ImportError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'stratann[ray]'" in done.stdout


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_the_stubs_are_what_the_module_is():
    done = subprocess.run(
        [sys.executable, "-m", "mypy.stubtest", "stratann._stratann", "--ignore-disjoint-bases"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_a_users_program_type_checks(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy, stratann\n"
        "queries = numpy.zeros((3, 8), numpy.float32)\n"
        "index: stratann.Index = stratann.build(queries, 'a.idx', memory='1GiB', layout='packed', chunk=2**20)\n"
        "index = stratann.open('a.idx', cache_entries='1%')\n"
        "ids, distances = index.search(queries, k=2, rerank='estimate', rerank_batch=5)\n"
        "i, d, stats = index.search(queries, return_stats=True)\n"
        "share: float = stratann.recall((ids, distances), stratann.truth(queries, queries, 2))\n"
        "print(len(index), index.dim, stats['qps'], ids.dtype)\n"
        "hash: str = stratann.train(queries, 'code', code_bytes=4)['hash']\n"
        "catalog = stratann.Catalog('shelf', memory='64MiB')\n"
        "for name in catalog:\n"
        "    ids, distances = catalog[name].search(queries)\n"
        "ids, distances = catalog.search(queries, names=catalog.names())\n"
        "vector = index[3]\n"
        "for rows in index.batches(100):\n"
        "    print(rows.ids.dtype, [id + 1 for id, _ in rows], 3 in index)\n"
        "async def answer() -> None:\n"
        "    ids, distances = await index.search_async(queries, timeout=1.0)\n"
        "    i, d, stats = await index.search_async(queries, return_stats=True)\n"
        "print(stratann.plan(queries)['memory'], sum(index))\n"
        "print(len(catalog), 'a' in catalog, catalog.close('a'), catalog.memory_bytes)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
