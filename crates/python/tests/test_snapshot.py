"""Copies of an index during changes."""

import threading

import numpy
import pytest

import stratann


@pytest.fixture
def index(tmp_path, small):
    rows = small[:600]
    return stratann.build(rows, tmp_path / "a.idx", degree=16, build_list=40, attributes={"row": list(range(600))})


def test_a_snapshot_is_an_index_of_its_own(index, small, tmp_path):
    index.insert(small[600:610], ids=range(600, 610))
    index.delete([3])
    steps = []
    report = index.snapshot(tmp_path / "b.idx", progress=lambda stage, done, total: steps.append((stage, done)))
    assert report["files"] > 3 and report["bytes"] > 0 and report["log_records"] == 11
    assert steps and steps[-1][0] == "copying"
    index.delete([4])
    copy = stratann.open(tmp_path / "b.idx")
    assert copy.verify()["problems"] == []
    assert sorted(copy) == [id for id in range(610) if id != 3]
    assert (copy[605] == small[605]).all()
    assert copy.attributes([7]) == [{"row": 7}]
    found = copy.search(small[:50], 5, list_size=100)
    again = stratann.open(tmp_path / "b.idx").search(small[:50], 5, list_size=100)
    assert (found[0] == again[0]).all()
    copy.insert(small[700:701], ids=[700])
    assert 700 in copy and 700 not in index and 4 in copy


def test_a_snapshot_of_what_is_only_searched(index, tmp_path):
    index.close()
    report = stratann.open(tmp_path / "a.idx").snapshot(tmp_path / "b.idx")
    assert report["tries"] == 1
    assert len(stratann.open(tmp_path / "b.idx")) == 600


def test_no_copy_is_made_within_the_index(index, tmp_path):
    path = tmp_path / "a.idx"
    (path / "empty").mkdir()
    (tmp_path / "link").symlink_to(path)
    index.insert(numpy.zeros((1, 128), numpy.uint8))
    for dest in (path / "bk", path / "empty", path / ".." / "a.idx" / "bk", tmp_path / "link" / "bk", tmp_path / "new" / ".." / "a.idx" / "bk"):
        for handle in (index, stratann.open(path)):
            with pytest.raises(ValueError, match=r"the folder of the snapshot is .*; it is in the index .*Name a folder beside the index"):
                handle.snapshot(dest)
    assert not (path / "bk").exists() and not list((path / "empty").iterdir())
    assert index.snapshot(path / ".." / "a.idx.bk")["files"] > 3


def test_what_is_there_is_not_copied_over(index, tmp_path):
    with pytest.raises(FileExistsError, match="a.idx"):
        index.snapshot(tmp_path / "a.idx")
    other = tmp_path / "notes"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="notes.txt"):
        index.snapshot(other)
    assert [path.name for path in other.iterdir()] == ["notes.txt"]


def test_a_callback_that_raises_leaves_nothing(index, tmp_path):
    def stop(stage, done, total):
        raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        index.snapshot(tmp_path / "b.idx", progress=stop)
    # If the signal came too late, the copy is complete.
    assert not (tmp_path / "b.idx").exists() or stratann.verify(tmp_path / "b.idx")["problems"] == []


def test_snapshots_beside_inserts_and_merges_have_what_was_acknowledged(index, small, tmp_path):
    done, stop = [600], threading.Event()

    def insert():
        while not stop.is_set():
            first = done[0]
            index.insert(small[first : first + 2], ids=[first, first + 1])
            done[0] = first + 2
            if first % 100 == 0:
                index.compact()
            if first + 4 > len(small):
                break

    thread = threading.Thread(target=insert)
    thread.start()
    copies = []
    for at in range(3):
        least = done[0]
        index.snapshot(tmp_path / f"copy-{at}")
        copies.append(least)
    stop.set()
    thread.join()
    for at, least in enumerate(copies):
        ids = numpy.array(sorted(stratann.open(tmp_path / f"copy-{at}")))
        assert len(ids) >= least and len(ids) % 2 == 0
        assert (ids == numpy.arange(len(ids))).all()


@pytest.mark.skipif(not hasattr(stratann._stratann, "_restless"), reason="the module has nothing for tests")
def test_an_index_that_changes_too_fast_is_in_use(tmp_path):
    with pytest.raises(stratann.InUseError, match="it changed.*Call again"):
        stratann._stratann._restless(tmp_path)
