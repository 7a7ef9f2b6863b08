"""Fixtures of all tests."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

import stratann

# A process in the background of a script ignores Ctrl-C, and Python leaves it so.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Servers without a secret store this user's secret here.
STATE = tempfile.TemporaryDirectory()
os.environ["XDG_STATE_HOME"] = STATE.name



def pytest_collection_modifyitems(items):
    """The longest tests come first, so that two workers end at the same time."""
    items.sort(key=lambda item: item.path.name != "test_year.py")


FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "fixtures"


@pytest.fixture(scope="session")
def fixtures():
    return FIXTURES


@pytest.fixture(scope="session")
def base():
    return stratann.read(FIXTURES / "photo-sift-20k.base.u8bin")


@pytest.fixture(scope="session")
def queries():
    return stratann.read(FIXTURES / "photo-sift-20k.query.u8bin")


@pytest.fixture(scope="session")
def truth():
    return stratann.read(FIXTURES / "photo-sift-20k.truth100.bin")


@pytest.fixture(scope="session")
def small(base):
    """Two thousand rows: enough for an index, and quick to build."""
    return base[:2000]


PHOTOS = 6000


@pytest.fixture(scope="session")
def photos(tmp_path_factory, base):
    """The folder of an index of the first rows of photo-sift-20k. Tests must not change it."""
    path = tmp_path_factory.mktemp("photos") / "photos.idx"
    stratann.build(base[:PHOTOS], path)
    return path


@pytest.fixture(scope="session")
def photos_truth(base, queries):
    return stratann.truth(base[:PHOTOS], queries, 100)


class CtrlC:
    """A callback of progress that sends Ctrl-C once, from another thread, when the work has come
    far enough.
    """

    def __init__(self, due):
        self._due, self._seen = due, threading.Event()
        main = threading.main_thread().ident
        self._thread = threading.Thread(target=self._press, args=(main,), daemon=True)
        self._thread.start()

    def _press(self, main):
        self._seen.wait()
        signal.pthread_kill(main, signal.SIGINT)

    def __call__(self, stage, done, total):
        if self._due(stage, done, total):
            self._seen.set()


@pytest.fixture
def ctrl_c():
    return CtrlC


@pytest.fixture(scope="session")
def apart(tmp_path_factory, small):
    """The folder of an index of `small` with lists and vectors apart. Tests must not change it."""
    path = tmp_path_factory.mktemp("apart") / "apart.idx"
    # One thread makes the same graph each time.
    stratann.build(small, path, preset="decouplevs", degree=24, build_list=40, threads=1)
    return path


@pytest.fixture
def index(photos):
    return stratann.open(photos)


@pytest.fixture
def another_process():
    """Runs statements in another process, which has the open `index` and the rows `small`. Returns
    the output.
    """

    def run(path, statements):
        head = (
            "import os, sys, numpy, stratann\n"
            "small = stratann.read(sys.argv[2])[:2000]\n"
            "index = stratann.open(sys.argv[1])\n"
        )
        words = [sys.executable, "-c", head + statements, str(path), str(FIXTURES / "photo-sift-20k.base.u8bin")]
        return subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()

    return run


NOBODY = 65534


class Stranger:
    """While entered, this process is a user without rights."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        self._user = os.geteuid()
        if self._user == 0:
            os.seteuid(NOBODY)

    def __exit__(self, *_):
        if self._user == 0:
            os.seteuid(0)


@pytest.fixture
def stranger():
    """A stranger, and a folder that anyone may read."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="stratann-"))
    folder.chmod(0o755)
    yield Stranger(folder)
    folder.chmod(0o755)
    shutil.rmtree(folder)
