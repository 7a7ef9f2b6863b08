"""Makes a copy of the installed package with the client of this folder, as the README describes."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parents[1]
COPY = tempfile.TemporaryDirectory(prefix="vectordbbench-")


def pytest_configure():
    installed = pathlib.Path(importlib.util.find_spec("vectordb_bench").origin).parent
    copy = pathlib.Path(COPY.name)
    shutil.copytree(installed, copy / "vectordb_bench", ignore=shutil.ignore_patterns("__pycache__"))
    with (HERE / "register.patch").open() as patch:
        subprocess.run(["patch", "-p1"], cwd=copy, stdin=patch, check=True)
    shutil.copytree(HERE / "vectordb_bench", copy / "vectordb_bench", dirs_exist_ok=True)
    sys.path.insert(0, str(copy))
    os.environ["LOG_FILE"] = str(copy / "log")


def pytest_unconfigure():
    COPY.cleanup()
