"""Stores of documents in forked processes, and after the end of killed processes."""

import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading

import numpy
import pytest
from test_documents import child, document, vector

import stratann
from stratann.documents import Document, Documents

pytestmark = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")


class Forked:
    """A forked process that makes named calls, and returns their results or errors as text."""

    def __init__(self, **calls):
        self._calls = calls

    def __enter__(self):
        here, there = socket.socketpair()
        self._process = os.fork()
        if self._process == 0:
            try:
                here.close()
                # Ends it if it waits for a lock.
                signal.alarm(60)
                with there.makefile("rw") as told:
                    for name in iter(told.readline, ""):
                        try:
                            said = self._calls[name.strip()]()
                        except stratann.StratannError as error:
                            said = type(error).__name__
                        told.write(f"{said}\n")
                        told.flush()
            finally:
                os._exit(0)
        there.close()
        self._told = here.makefile("rw")
        here.close()
        return self

    def __call__(self, name):
        self._told.write(f"{name}\n")
        self._told.flush()
        return self._told.readline().strip()

    def __exit__(self, kind, error, trace):
        self._told.close()
        ended = os.waitpid(self._process, 0)[1]
        assert kind is not None or ended == 0


def calls(documents, n):
    """The calls of a forked process with an inherited store."""
    return {
        "len": lambda: len(documents),
        "get": lambda: documents.get(["id 1"])[0].content,
        "search": lambda: documents.search(vector(1), 1)[0][0].id,
        "put": lambda: documents.put([document(n)]),
        "update": lambda: documents.update(None, lambda one: one),
        "delete": lambda: documents.delete([f"id {n}"]),
        "close": documents.close,
    }


def test_a_forked_process_takes_a_lock_of_its_own(tmp_path):
    documents = Documents(tmp_path / "a.idx")
    documents.put([document(1)])
    with Forked(**calls(documents, 2), other=lambda: len(Documents(tmp_path / "a.idx"))) as worker:
        # The parent has the store open for changes.
        assert [worker(name) for name in ("len", "get", "search", "other")] == ["1", "text 1", "id 1", "1"]
        assert [worker(name) for name in ("put", "update")] == ["InUseError"] * 2
        # The process closes only its own handles, which the parent does not use.
        assert worker("close") == "None"
        documents.put([document(3)])
        assert worker("put") == "InUseError"
        documents.close()
        assert worker("put") == "['id 2']" and worker("len") == worker("other") == "3"
        with pytest.raises(stratann.InUseError):
            documents.put([document(4)])
        assert len(documents) == 3
        worker("close")
        documents.put([document(4)])
        assert worker("len") == "4" and worker("delete") == "InUseError"
        documents.close()
        assert worker("delete") == "1"
    documents.put([document(5)])
    assert sorted(one.id for one in documents.scan()) == ["id 1", "id 3", "id 4", "id 5"]
    documents.close()


def test_a_process_that_was_forked_from_a_forked_one(tmp_path):
    documents = Documents(tmp_path / "a.idx")
    documents.put([document(1)])

    def grandchild():
        said = []

        def fork():
            with Forked(**calls(documents, 3)) as worker:
                said.extend([worker("len"), worker("put")])

        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        return said

    with Forked(**calls(documents, 2), grandchild=grandchild) as worker:
        assert worker("grandchild") == "['1', 'InUseError']"
        documents.close()
        assert worker("put") == "['id 2']"
        assert worker("grandchild") == "['2', 'InUseError']"
        worker("close")
        assert worker("grandchild") == "['2', \"['id 3']\"]"
    assert len(documents) == 3


def test_a_forked_process_does_not_keep_the_lock_of_its_parent(tmp_path):
    documents = Documents(tmp_path / "a.idx")
    documents.put([document(1)])
    with Forked():
        documents.close()
        with child(tmp_path, "documents.put([document(2)])") as other:
            other.communicate()
        assert other.returncode == 0
        documents.put([document(3)])
    assert len(documents) == 3
    documents.close()


def test_a_forked_process_does_not_keep_the_lock_of_a_parent_that_is_killed(tmp_path):
    work = """
import os
documents.put([document(1)])
# A forked process gives the inherited lock back before its `fork` returns.
# One write for each line, since the lines of two processes would mix.
os.write(1, b"parent\\n" if os.fork() else b"forked\\n")
# Both wait for the end of this.
sys.stdin.read()
"""
    with child(tmp_path, work) as other:
        assert sorted([other.stdout.readline(), other.stdout.readline()]) == ["forked\n", "parent\n"]
        other.send_signal(signal.SIGKILL)
        other.wait()
        with Documents(tmp_path / "a.idx") as documents:
            documents.put([document(2)])
            assert len(documents) == 2


@pytest.mark.parametrize("built", [False, True])
def test_a_forked_process_waits_for_no_thread_that_puts(tmp_path, built):
    """The thread is within a build, and holds all locks of the store."""
    begun, go_on = threading.Event(), threading.Event()
    if built:
        with Documents(tmp_path / "a.idx") as documents:
            documents.put([document(1)])

    def progress(*_):
        begun.set()
        go_on.wait()

    documents = Documents(tmp_path / "a.idx", progress=progress)
    thread = threading.Thread(target=lambda: documents.put(document(n) for n in range(1, 20)))
    thread.start()
    begun.wait()
    try:
        with Forked(**calls(documents, 30)) as worker:
            found = {name: worker(name) for name in ("len", "put", "update", "close")}
    finally:
        go_on.set()
        thread.join()
    # The new index may be in its place before the thread continues.
    assert found.pop("len") in (str(int(built)), "19")
    assert found == {"put": "InUseError", "update": "InUseError", "close": "None"}
    assert len(documents) == 19
    documents.close()


def test_a_change_that_was_begun_before_the_fork_is_not_made_by_the_forked_process(tmp_path):
    documents = Documents(tmp_path / "a.idx")

    class Metadata(dict):
        """Forks when it is read, in the middle of a call that holds the lock."""

        def items(self):
            self.process = os.fork()
            return super().items()

    metadata = Metadata(n=1)
    parent = os.getpid()
    try:
        signal.alarm(60)
        documents.put([stratann.documents.Document("id 1", "text 1", metadata, vector(1))])
    except stratann.StratannError as error:
        assert os.getpid() != parent
        os._exit(7 if "forked" in str(error) else 1)
    finally:
        if os.getpid() != parent:
            os._exit(2)
        signal.alarm(0)
    assert os.waitstatus_to_exitcode(os.waitpid(metadata.process, 0)[1]) == 7
    assert len(documents) == 1
    documents.close()


def test_a_lock_that_cannot_be_taken_is_not_one_that_another_process_has(tmp_path, monkeypatch):
    def refuse(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    documents = Documents(tmp_path / "a.idx")
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(stratann.StratannError, match="a.idx.lock: it cannot be locked; No locks") as error:
        documents.put([document(1)])
    assert not isinstance(error.value, stratann.InUseError)
    monkeypatch.undo()
    documents.put([document(1)])
    documents.close()


def test_an_empty_folder_is_an_empty_store(tmp_path):
    (tmp_path / "a.idx").mkdir()
    with Documents(tmp_path / "a.idx") as documents:
        assert len(documents) == 0 and documents.search(vector(1)) == []
        documents.put([document(1)])
        assert len(documents) == 1


@pytest.fixture
def unfinished(tmp_path):
    """The folder of a first build without its manifest, as it is just before the commit."""
    path = tmp_path / "a.idx"
    stratann.build(numpy.stack([vector(n) for n in range(300)]), path, metric="cosine", attributes={"_stratann_id": [f"id {n}" for n in range(300)]})
    (path / "MANIFEST").rename(path / "MANIFEST.new")
    (path / "build-scratch").mkdir()
    (path / "build-scratch" / "0").write_text("of no use")
    assert (path / "LOCK").exists()
    (tmp_path / "a.idx.lock").write_text("building\n")
    return path


def test_a_first_put_that_was_killed_is_made_again(tmp_path, unfinished):
    here = Documents(unfinished)
    assert len(here) == here.count() == 0 and here.get(["id 1"]) == [None] and here.search(vector(1)) == [] and list(here.scan()) == []
    with child(tmp_path, "documents.put([document(1), document(2)]); print(len(documents))") as other:
        assert other.communicate()[0] == "2\n"
    # Readers see the change.
    assert len(here) == 2
    here.put([document(3)])
    here.close()
    assert len(Documents(unfinished)) == 3


def test_a_first_index_that_comes_while_it_is_opened_is_opened(unfinished, monkeypatch):
    look = stratann._stratann.is_vacant

    def come(path):
        (unfinished / "MANIFEST.new").rename(unfinished / "MANIFEST")
        monkeypatch.undo()
        return look(path)

    monkeypatch.setattr(stratann._stratann, "is_vacant", come)
    assert len(Documents(unfinished)) == 300


def test_a_first_put_may_be_killed_at_any_time(tmp_path):
    # The position depends on the machine; each is right.
    work = f"""
import os, signal
documents = Documents({str(tmp_path / "a.idx")!r}, progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
documents.put(document(n) for n in range(1000))
"""
    with child(tmp_path, work) as other:
        other.communicate()
    assert other.returncode == -signal.SIGKILL
    with Documents(tmp_path / "a.idx") as documents:
        assert len(documents) in (0, 1000)
        documents.put([document(1001)])
        assert documents.get(["id 1001"])[0].content == "text 1001"


def test_a_first_put_that_fails_leaves_nothing_that_is_said_of_what_comes_later(tmp_path):
    def stop(*_):
        raise RuntimeError("stopped")

    with Documents(tmp_path / "a.idx") as documents:
        documents.put([document(n) for n in range(20)])
    # The signal may come before or after the commit.
    with pytest.raises(RuntimeError, match="stopped"):
        Documents(tmp_path / "c.idx", progress=stop).put([document(n) for n in range(20)])
    assert (tmp_path / "c.idx.lock").read_bytes() == b""
    copied = Documents(tmp_path / "b.idx")
    with pytest.raises(ValueError, match="NaN"):
        copied.put([Document("of no number", "text", {}, numpy.full(3, numpy.nan))])
    copied.close()
    del copied
    assert (tmp_path / "b.idx.lock").read_bytes() == b"" and not (tmp_path / "b.idx").exists()
    # Another program copies an index, and its MANIFEST comes last.
    shutil.copytree(tmp_path / "a.idx", tmp_path / "b.idx", ignore=shutil.ignore_patterns("MANIFEST"))
    with pytest.raises(stratann.StratannError, match="wait for it.*put its MANIFEST back"):
        Documents(tmp_path / "b.idx")
    shutil.copy(tmp_path / "a.idx" / "MANIFEST", tmp_path / "b.idx")
    assert len(Documents(tmp_path / "b.idx")) == 20


def test_a_first_put_that_cannot_be_noted_is_made_again(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    here = Documents(tmp_path / "a.idx")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        here.put([document(1)])
    monkeypatch.undo()
    here.close()
    with child(tmp_path, "documents.put([document(1), document(2)])") as other:
        other.communicate()
    assert len(here) == 2
    here.put([document(3)])
    assert len(here) == 3


def test_a_store_has_one_lock_by_whatever_path(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with Documents(tmp_path / "link") as documents:
        documents.put([document(1)])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "real", "real.lock"]
    assert len(Documents(tmp_path / "real")) == 1


def test_an_index_whose_manifest_is_away_is_not_an_empty_store(tmp_path):
    with Documents(tmp_path / "a.idx") as documents:
        documents.put([document(1)])
        documents.put([document(2)])
    del documents
    shutil.move(tmp_path / "a.idx" / "MANIFEST", tmp_path / "MANIFEST")
    with pytest.raises(stratann.StratannError, match="no MANIFEST"):
        Documents(tmp_path / "a.idx")
    shutil.move(tmp_path / "MANIFEST", tmp_path / "a.idx" / "MANIFEST")
    assert len(Documents(tmp_path / "a.idx")) == 2
    # One put built this store, so it has no log.
    with Documents(tmp_path / "b.idx") as documents:
        documents.put([document(n) for n in range(20)])
    assert (tmp_path / "b.idx.lock").read_bytes() == b""
    del documents
    shutil.copytree(tmp_path / "b.idx", tmp_path / "c.idx", ignore=shutil.ignore_patterns("MANIFEST"))
    for path in (tmp_path / "b.idx", tmp_path / "c.idx"):
        (path / "MANIFEST").unlink(missing_ok=True)
        with pytest.raises(stratann.StratannError, match="no MANIFEST"):
            Documents(path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("of somebody")
    with pytest.raises(stratann.StratannError, match="no MANIFEST"):
        Documents(tmp_path / "a")


def test_a_store_that_cannot_be_closed_keeps_its_lock(tmp_path):
    path = tmp_path / "a.idx"
    documents = Documents(path)
    documents.put([document(1)])
    documents.put([document(2)])
    path.rename(tmp_path / "away")
    with pytest.raises((OSError, stratann.StratannError)):
        documents.close()
    (tmp_path / "away").rename(path)
    # So many documents that the other process would build the index again, and replace this one.
    put = (
        "import sys, numpy, stratann\n"
        "from stratann.documents import Document, Documents\n"
        "try:\n"
        "    Documents(sys.argv[1]).put([Document(f'other {n}', None, {}, numpy.eye(8)[n % 8]) for n in range(40)])\n"
        "    print('put')\n"
        "except stratann.InUseError as error:\n"
        "    print(error)\n"
    )

    def other():
        return subprocess.run([sys.executable, "-c", put, str(path)], stdout=subprocess.PIPE, text=True, check=True).stdout

    assert "another process changes these documents" in other()
    documents.put([document(3)])
    documents.close()
    assert other() == "put\n" and len(documents) == 43
