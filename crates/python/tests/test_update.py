"""Changes of an index: insert, upsert, delete, flush, compact and close."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

import stratann

BUILT = 1000


@pytest.fixture(scope="module")
def built(tmp_path_factory, small):
    """An index of the first thousand rows of `small`. Tests copy it."""
    path = tmp_path_factory.mktemp("built") / "built.idx"
    stratann.build(small[:BUILT], path, degree=16, build_list=40, threads=1)
    return path


@pytest.fixture
def path(built, tmp_path):
    return shutil.copytree(built, tmp_path / "live.idx")


@pytest.fixture
def index(path):
    return stratann.open(path)


def nearest(index, row):
    """The ids of the results at distance 0."""
    ids, distances = index.search(row, 10, list_size=400)
    return {int(id) for id, distance in zip(ids, distances) if distance == 0}


def logs(path):
    return sorted(name for name in os.listdir(path) if name.startswith("log-"))


def test_insert_counts_on(index, small):
    ids = index.insert(small[1000:1200])
    assert ids.dtype == numpy.uint64
    numpy.testing.assert_array_equal(ids, numpy.arange(1000, 1200))
    assert len(index) == 1200
    for id, row in zip(ids[::20], small[1000:1200:20]):
        assert int(id) in nearest(index, row)
    assert "1200 vectors" in repr(index)


def test_insert_with_ids_of_ones_own(index, small):
    mine = numpy.array([7_000, 2**40, 2**64 - 2], numpy.uint64)
    numpy.testing.assert_array_equal(index.insert(small[1000:1003], mine), mine)
    for id, row in zip(mine, small[1000:1003]):
        assert int(id) in nearest(index, row)
    signed = index.insert(small[1003:1004], numpy.array([8_000], numpy.int32))
    assert signed.dtype == numpy.uint64 and signed.tolist() == [8_000]


def test_a_single_vector_has_one_id(index, small):
    ids = index.insert(small[1000])
    assert ids.shape == (1,) and ids.tolist() == [1000]
    assert 1000 in nearest(index, small[1000])


def test_no_vectors_change_nothing(index, small):
    assert index.insert(small[:0]).tolist() == index.insert(small[:0], []).tolist() == []
    assert index.upsert(small[:0], []) is None
    with pytest.raises(ValueError, match="ids"):
        index.upsert(small[:0], [1])
    index.delete(numpy.array([], numpy.uint64))
    assert len(index) == BUILT


def test_upsert_replaces(index, small):
    index.insert(small[1000:1002])
    replaced = numpy.array([5, 1001, 6_000])
    assert index.upsert(small[1500:1503], replaced) is None
    assert len(index) == BUILT + 2 + 1
    for id, row in zip(replaced, small[1500:1503]):
        assert id in nearest(index, row)
    assert 5 not in nearest(index, small[5])
    assert 1001 not in nearest(index, small[1001])
    assert 1000 in nearest(index, small[1000])


def test_deleted_ids_are_not_answered(index, small):
    index.insert(small[1000:1010])
    gone = numpy.array([0, 999, 1000, 1009])
    assert index.delete(gone) is None
    assert len(index) == 1006
    for id in gone:
        ids, _ = index.search(small[id], 10, list_size=100)
        assert not set(gone.tolist()) & set(ids.tolist())
    index.insert(small[0], numpy.array([0]))
    assert 0 in nearest(index, small[0])


def test_stats_count_what_changed(path, small):
    # While a merge runs in the background, inserted vectors wait in memory.
    index = stratann.open(path, merges=False)
    assert (index.stats()["logged"], index.stats()["deleted"]) == (0, 0)
    index.insert(small[1000:1050])
    index.delete(numpy.array([1, 2, 1049]))
    index.upsert(small[1100:1101], numpy.array([3]))
    stats = index.stats()
    # Three were deleted and one replaced.
    assert (stats["vectors"], stats["logged"], stats["deleted"]) == (BUILT + 51, 0, 4)
    assert stats["direct"]["inserts"] == 51
    assert stats["direct"]["changes"] > 51
    assert stats["memory"]["changes"] > 0
    assert len(index) == 1047


@pytest.mark.parametrize("preset, direct", [("stratann", True), ("odinann", True), ("pipeann", False)])
def test_the_preset_says_how_vectors_get_in(preset, direct, tmp_path, small):
    index = stratann.build(small[:500], tmp_path / "i", preset=preset, degree=16, build_list=40)
    assert index.stats()["direct"] is None
    index.insert(small[500:520])
    stats = index.stats()
    assert (stats["vectors"], stats["logged"]) == ((520, 0) if direct else (500, 20))
    if direct:
        assert stats["direct"]["inserts"] == 20
    else:
        assert stats["direct"] is None
    assert all(id in nearest(index, row) for id, row in zip(range(500, 520), small[500:520]))
    # `close` writes a checkpoint, so that no later process reads the log.
    index.close()
    again = stratann.open(tmp_path / "i")
    assert len(again) == 520
    assert again.stats()["logged"] == (0 if direct else 20)
    assert again.verify()["log_records"] == (0 if direct else 20)
    assert all(id in nearest(again, row) for id, row in zip(range(500, 520), small[500:520]))


@pytest.fixture
def two_thousand(tmp_path, small):
    """An index that is large enough for a merge."""
    path = tmp_path / "more.idx"
    stratann.build(small, path, degree=16, build_list=40, threads=1)
    return path


def test_a_merge_begins_by_itself_when_a_tenth_is_deleted(two_thousand, small):
    index = stratann.open(two_thousand)
    index.delete(numpy.arange(399))
    time.sleep(1.5)
    assert index.stats()["deleted"] == 399, "fewer than 1,000 deleted vectors cause a merge only if they are a fifth of all vectors"
    index.delete(numpy.arange(399, 1010))
    until = time.monotonic() + 300
    while index.stats()["deleted"] > 0 and time.monotonic() < until:
        assert 1500 in nearest(index, small[1500])
        time.sleep(0.05)
    stats = index.stats()
    assert (stats["vectors"], stats["deleted"]) == (990, 0)
    assert len(index) == 990
    assert 5 not in nearest(index, small[5]) and 1500 in nearest(index, small[1500])
    assert index.insert(small[5]).tolist() == [2000]
    assert index.verify()["problems"] == []
    index.close()
    assert len(stratann.open(two_thousand)) == 991


def test_no_merge_begins_where_none_is_wanted(two_thousand):
    with stratann.open(two_thousand, merges=False) as index:
        index.delete(numpy.arange(1500))
        time.sleep(1.5)
        stats = index.stats()
        assert (stats["vectors"], stats["deleted"]) == (2000, 1500)
        assert index.compact()["removed"] == 1500


def test_close_ends_a_merge_in_the_background(two_thousand):
    index = stratann.open(two_thousand)
    index.delete(numpy.arange(1500))
    time.sleep(0.6)
    index.close()
    other = stratann.open(two_thousand)
    assert len(other) == 500
    assert other.verify()["problems"] == []


def bytes_of(path):
    return sum(file.stat().st_size for file in path.iterdir())


def test_nightly_upserts_take_no_more_room_and_leave_few_deleted(two_thousand, small):
    built, ids = bytes_of(two_thousand), numpy.arange(1500)
    for night in range(4):
        with stratann.open(two_thousand) as index:
            index.upsert(small[night : 1500 + night], ids)
        # The few remaining deletes are no reason for a merge, which is due from a thousand on.
        stats = stratann.open(two_thousand).stats()
        assert stats["vectors"] - stats["deleted"] == 2000 and stats["deleted"] < 1000
        assert bytes_of(two_thousand) < 2.5 * built


def test_close_never_goes_back_in_time(two_thousand, small):
    index = stratann.open(two_thousand, merges=False)
    wrong, inserted, done = [], [], threading.Event()

    def search():
        while not done.is_set():
            last = len(inserted)
            ids, _ = index.search(small[7], 10, list_size=400)
            if 7 in ids:
                wrong.append("a deleted vector is an answer")
            if last and inserted[last - 1] not in index:
                wrong.append("an inserted vector is gone")

    def insert():
        for turn in range(60):
            inserted.append(int(index.insert(small[turn], ids=[10_000 + turn])[0]))

    index.delete([7])
    threads = [threading.Thread(target=search), threading.Thread(target=insert)]
    for thread in threads:
        thread.start()
    while threads[1].is_alive():
        index.close()
    threads[1].join()
    index.close()
    done.set()
    threads[0].join()
    assert wrong == []
    assert all(id in index for id in inserted) and len(inserted) == 60


def test_what_cannot_be_opened_again_stays_open_for_changes(path, small, tmp_path):
    index = stratann.open(path)
    index.insert(small[1000:1010])
    path.rename(tmp_path / "away")
    with pytest.raises((OSError, stratann.StratannError)):
        index.close()
    assert 1005 in nearest(index, small[1005]) and len(index) == BUILT + 10
    (tmp_path / "away").rename(path)
    index.close()
    assert 1005 in nearest(index, small[1005]) and len(index) == BUILT + 10
    stratann.open(path).insert(small[1010])


def test_a_callback_cannot_close_what_it_is_called_from(path, small):
    index, said = stratann.open(path), []

    def close(*_):
        try:
            index.close()
        except stratann.StratannError as error:
            said.append(str(error))

    def close_and_change(*_):
        close()
        index.delete([5]) if 5 in index else None

    index.insert(small[1000:1100], progress=close_and_change)
    assert said and "is being changed" in said[0] and 5 not in index
    # While another thread closes the index, a call from within a change may still change it.
    began, closer = threading.Event(), threading.Thread(target=index.close)

    def change(*_):
        if not began.is_set():
            began.set()
            closer.start()
            time.sleep(0.2)
            index.delete([6])

    index.insert(small[1100:1200], progress=change)
    closer.join()
    assert 6 not in index and len(index) == BUILT + 198


def test_a_handler_of_a_signal_cannot_close_what_it_interrupts(path, small):
    index, said = stratann.open(path), []

    def close(*_):
        with pytest.raises(stratann.StratannError, match="is being changed"):
            index.close()
        said.append("closed later")
        raise SystemExit

    before = signal.signal(signal.SIGUSR1, close)
    try:
        with pytest.raises(SystemExit):
            index.insert(small[1000:2000], progress=lambda *_: os.kill(os.getpid(), signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert said == ["closed later"]
    index.close()


def test_an_index_that_was_replaced_is_closed_and_shown(path, small):
    index = stratann.open(path)
    index.insert(small[1000:1010])
    shutil.rmtree(path)
    stratann.build(small[:50], path, degree=16, build_list=40, threads=1)
    with pytest.raises(stratann.OutdatedError):
        index.close()
    index.close()
    assert len(index) == 50 and index.insert(small[1000]).tolist() == [50]


def test_refresh_shows_what_another_one_changed(path, small, another_process):
    reader = stratann.open(path)
    assert reader.is_current() and reader.refresh() is False
    another_process(path, "index.insert(small[1000:1100]); index.delete([7]); index.flush(); os._exit(0)")
    assert not reader.is_current()
    assert 1042 not in nearest(reader, small[1042]) and 7 in nearest(reader, small[7])
    assert reader.refresh() is True
    assert reader.is_current() and reader.refresh() is False
    assert len(reader) == BUILT + 99
    assert 1042 in nearest(reader, small[1042]) and 7 not in nearest(reader, small[7])
    # Checkpoints and merges are changes as well.
    another_process(path, "index.insert(small[1000:1001], ids=[5000]); index.delete([5000]); index.close()")
    assert not reader.is_current() and reader.refresh() is True
    assert 1042 in nearest(reader, small[1042]) and len(reader) == BUILT + 99
    # The close of so small an index merges it, so there must be more to merge.
    another_process(path, "index.delete([9]); index.compact(); index.close()")
    assert not reader.is_current() and reader.refresh() is True
    assert 1042 in nearest(reader, small[1042]) and len(reader) == BUILT + 98
    # All objects of this process see the changes of each other.
    writer = stratann.open(path)
    writer.delete([8])
    assert writer.is_current() and writer.refresh() is False
    assert reader.is_current() and reader.refresh() is False and 8 not in reader


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_process_merges_nothing(two_thousand, small):
    index = stratann.open(two_thousand)
    index.delete(numpy.arange(500))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        try:
            # This process has no thread that merges, and must not wait for one.
            signal.alarm(300)
            with pytest.raises(stratann.OutdatedError, match="forked.*open the index again"):
                index.close()
            del index
            said = str(len(stratann.open(two_thousand)))
        except BaseException as error:
            said = repr(error)
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    assert said == "1500"
    index.delete(numpy.arange(500, 1000))
    until = time.monotonic() + 300
    while index.stats()["deleted"] > 0 and time.monotonic() < until:
        time.sleep(0.05)
    assert (len(index), index.stats()["deleted"]) == (1000, 0)


@pytest.mark.parametrize("upserted", [False, True])
def test_ctrl_c_says_how_many_rows_are_in(upserted, path, base, ctrl_c):
    index = stratann.open(path, durability="flush")
    rows = base[2000:5000]
    press = ctrl_c(lambda stage, done, total: done > 0)
    with pytest.raises(KeyboardInterrupt) as raised:
        if upserted:
            index.upsert(rows, numpy.arange(2000, 5_000), progress=press)
        else:
            index.insert(rows, progress=press)
    interrupted = raised.value
    assert isinstance(interrupted, stratann.Interrupted)
    assert interrupted.total == len(rows) and not interrupted.complete
    done = interrupted.done
    assert 0 < done < interrupted.total
    assert f"the first {done} of {len(rows)} rows are in" in str(interrupted)
    assert len(index) == BUILT + done
    first = 2000 if upserted else BUILT
    assert first in nearest(index, rows[0])
    if not upserted:
        # The ids of the call that the error names continue after the first rows.
        first_missing, behind = BUILT + done, BUILT + len(rows)
        assert f"Insert the others, vectors[{done}:], with ids=range({first_missing}, {behind}), and with the attributes" in str(interrupted)
        with pytest.raises(ValueError, match="all missing rows"):
            index.insert(rows[done : done + 5], ids=range(first_missing, first_missing + 5))
        index.insert(rows[done:], ids=range(first_missing, behind))
        done = len(rows)
    index.close()
    assert len(stratann.open(path)) == BUILT + done


def test_what_a_callback_raises_says_how_many_rows_are_in(path, base):
    def refuse(stage, done, total):
        raise LookupError("enough")

    index = stratann.open(path, durability="flush")
    with pytest.raises(LookupError, match="enough") as raised:
        index.insert(base[2000:], progress=refuse)
    notes = getattr(raised.value, "__notes__", None)
    assert sys.version_info < (3, 11) or "rows are in" in notes[0] or "nothing was changed" in notes[0]


def test_compact_merges(path, small):
    # On a slow machine, a background merge could end before the call.
    index = stratann.open(path, merges=False)
    index.insert(small[1000:1100])
    index.delete(numpy.arange(10))
    before = logs(path)
    stages = []
    report = index.compact(progress=lambda stage, done, total: stages.append(stage))
    assert set(report) == {
        "vectors",
        "merged",
        "direct",
        "removed",
        "segments_kept",
        "segments_rewritten",
        "vectors_rewritten",
        "codebook",
        "clusters_written",
        "clusters_split",
        "clusters_merged",
        "reassigned",
        "bytes_before",
        "bytes_after",
        "seconds",
    }
    # No vector waited for the merge.
    counts = ("vectors", "merged", "direct", "removed")
    assert tuple(report[name] for name in counts) == (1090, 0, 100, 10)
    assert report["seconds"] > 0 and report["bytes_after"] > 0
    assert stages, "the merge reports its progress"
    stats = index.stats()
    assert (stats["vectors"], stats["logged"], stats["deleted"]) == (1090, 0, 0)
    assert len(index) == 1090
    assert not set(before) & set(logs(path))
    assert index.verify()["problems"] == []
    assert 1050 in nearest(index, small[1050])
    assert 5 not in nearest(index, small[5])
    assert index.insert(small[1100]).tolist() == [1100]
    assert len(index) == 1091


def test_compact_of_nothing_does_nothing(index, path):
    manifest = (path / "MANIFEST").read_bytes()
    report = index.compact()
    assert (report["vectors"], report["merged"], report["removed"]) == (BUILT, 0, 0)
    assert (path / "MANIFEST").read_bytes() == manifest


def test_compact_of_an_index_of_which_nothing_is_left(index):
    index.delete(numpy.arange(BUILT))
    assert len(index) == 0
    report = index.compact()
    assert (report["vectors"], report["removed"]) == (0, BUILT)
    assert (len(index), index.stats()["deleted"]) == (0, 0)


def test_a_block_gives_the_lock_back(path, small, another_process):
    with stratann.open(path) as index:
        index.insert(small[1000])
        said = another_process(
            path,
            "print(len(index))\n"
            "try: index.insert(small[1001])\n"
            "except stratann.InUseError as error: print(error)\n",
        )
        vectors, refused = said.split("\n")
        assert re.search("wait.*LOCK.*Searches need no lock", refused)
        assert vectors == str(BUILT + 1), "a reader needs no lock, and sees the changes that were logged when it was opened"
    assert stratann.open(path).insert(small[1001]).tolist() == [1001]
    # Its searches include the other object's changes.
    assert len(index) == BUILT + 2
    assert 1000 in nearest(index, small[1000])


def test_the_block_gives_it_back_after_an_error_too(path, small):
    with pytest.raises(ZeroDivisionError):
        with stratann.open(path) as index:
            index.insert(small[1000])
            1 / 0
    assert stratann.open(path).insert(small[1001]).tolist() == [1001]


def test_close_may_be_followed_by_more(path, small):
    index = stratann.open(path)
    index.close()
    index.insert(small[1000])
    index.close()
    index.close()
    assert index.insert(small[1001]).tolist() == [1001]
    assert len(index) == BUILT + 2


def test_who_opens_the_index_sees_the_changes(path, small, another_process):
    early = stratann.open(path)
    another_process(path, "index.insert(small[1000:1100]); index.delete([7]); index.flush(); os._exit(0)")
    late = stratann.open(path)
    assert (len(early), len(late)) == (BUILT, BUILT + 99)
    assert 1042 in nearest(late, small[1042]) and 7 not in nearest(late, small[7])
    assert 1042 not in nearest(early, small[1042]) and 7 in nearest(early, small[7])
    # A reader that is open continues with the replaced files.
    another_process(path, "index.compact(); index.close()")
    assert 7 in nearest(early, small[7])
    assert 1042 in nearest(late, small[1042])
    assert len(stratann.open(path)) == BUILT + 99


@pytest.mark.parametrize("preset", ["diskann", "decouplevs", "aisaq"])
def test_every_layout_takes_changes(preset, tmp_path, small):
    index = stratann.build(small[:500], tmp_path / "i", preset=preset, degree=16, build_list=40)
    ids = index.insert(small[500:520])
    index.delete(numpy.array([3]))
    for _ in range(2):
        assert all(int(id) in nearest(index, row) for id, row in zip(ids, small[500:520]))
        assert 3 not in nearest(index, small[3])
        index.compact()
    assert index.stats()["vectors"] == 519


def test_searches_go_on_while_another_thread_changes(path, small):
    index = stratann.open(path, durability="flush")
    stop, failed = threading.Event(), []
    acknowledged = [BUILT]

    def change():
        try:
            for first in range(1000, 2000, 20):
                index.insert(small[first : first + 20])
                acknowledged[0] = first + 20
                if first == 1500:
                    index.compact()
        except BaseException as error:
            failed.append(error)
        finally:
            stop.set()

    thread = threading.Thread(target=change)
    thread.start()
    searches = 0
    try:
        while not stop.is_set():
            there = acknowledged[0]
            # The last row whose insert had returned is there, and so is an old row.
            assert there - 1 in nearest(index, small[there - 1])
            assert 17 in nearest(index, small[17])
            searches += 1
    finally:
        thread.join()
    assert not failed, failed
    assert searches > 0
    assert len(index) == 2000
    index.flush()
    assert index.verify()["problems"] == []
    assert len(stratann.open(path)) == 2000


@pytest.mark.parametrize(
    "rows, error, words",
    [
        (numpy.full((2, 128), 0.5, numpy.float32), ValueError, "uint8"),
        (numpy.zeros((2, 64), numpy.uint8), ValueError, "128 dimensions"),
        (numpy.zeros(64, numpy.uint8), ValueError, "128 dimensions"),
        (numpy.zeros((2, 2, 128), numpy.uint8), ValueError, "shape"),
        ([[0] * 127 + [256]], ValueError, "column 127 is 256"),
    ],
)
def test_vectors_that_do_not_fit_are_refused(rows, error, words, index):
    for change in [lambda: index.insert(rows), lambda: index.upsert(rows, numpy.array([1, 2]))]:
        with pytest.raises(error, match=words):
            change()
    assert len(index) == BUILT


@pytest.mark.parametrize(
    "ids, error, words",
    [
        (numpy.array([5_000, 999], numpy.uint64), ValueError, "999.*upsert"),
        (numpy.array([5_000, 5_000]), ValueError, "the id 5000 is given twice"),
        (numpy.array([5_000]), ValueError, "shape"),
        (numpy.array([[5_000, 5_001]]), ValueError, "shape"),
        (numpy.array([5_000.0, 5_000.5]), ValueError, "5000.5"),
        (numpy.array([5_000, -1]), ValueError, "-1"),
        (numpy.array([5_000, 2**64 - 1], numpy.uint64), ValueError, "18446744073709551615"),
        (["5_000", 5_001], TypeError, "5_000"),
    ],
)
def test_ids_that_are_wrong_are_refused(ids, error, words, index, small):
    with pytest.raises(error, match=words):
        index.insert(small[1000:1002], ids)
    assert len(index) == BUILT
    assert 5_000 not in nearest(index, small[1000])


@pytest.mark.parametrize(
    "ids, error, words",
    [
        (numpy.array([0, 1000]), ValueError, "1000"),
        (numpy.array([4, 4]), ValueError, "the id 4 is given twice"),
        (numpy.array([0.5]), ValueError, "0.5"),
    ],
)
def test_deleting_what_is_not_there_deletes_nothing(ids, error, words, index, small):
    with pytest.raises(error, match=words):
        index.delete(ids)
    assert len(index) == BUILT
    assert 0 in nearest(index, small[0])


def test_rows_that_are_no_vectors_are_refused_before_the_first_is_in(tmp_path):
    rows = numpy.random.default_rng(1).random((300, 16), numpy.float32)
    index = stratann.build(rows, tmp_path / "i", degree=8)
    more = rows + 1
    more[299, 3] = numpy.nan
    with pytest.raises(ValueError, match="299"):
        index.insert(more)
    assert len(index) == 300


@pytest.mark.parametrize("durability", ["always", "flush", 0, 50, None])
def test_durability(durability, path, small):
    with stratann.open(path, durability=durability) as index:
        index.insert(small[1000:1300])
        index.flush()
        index.delete(numpy.array([1]))
    assert len(stratann.open(path)) == BUILT + 299


@pytest.mark.parametrize("durability", ["sometimes", -1, True, 1.5, ""])
def test_another_durability_is_refused(durability, path):
    with pytest.raises((ValueError, TypeError, OverflowError)) as caught:
        stratann.open(path, durability=durability)
    assert "durability" in str(caught.value) or durability == -1


def test_flush_without_changes_is_nothing(index, path):
    index.flush()
    assert logs(path) == []


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_process_is_told_to_open_the_index_itself(path, small):
    index = stratann.open(path)
    index.insert(small[1000:1010])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        try:
            signal.alarm(300)
            for change in [
                lambda: index.insert(small[1010]),
                lambda: index.upsert(small[1010], numpy.array([1])),
                lambda: index.delete(numpy.array([1])),
                lambda: index.compact(),
                lambda: index.flush(),
                lambda: index.search(small[1000]),
            ]:
                try:
                    change()
                    said.append("nothing")
                except stratann.StratannError as error:
                    said.append("stratann.open" if "stratann.open" in str(error) else str(error))
            said.append(str(len(stratann.open(path))))
            os.write(writer, ",".join(said).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.read().decode().split(",") == ["stratann.open"] * 6 + ["1010"]
    assert os.waitpid(child, 0)[1] == 0
    assert index.insert(small[1010]).tolist() == [1010]
    assert 1010 in nearest(index, small[1010])


def test_an_index_that_merges_only_by_hand_says_that_its_codes_say_little_of_what_came(tmp_path):
    random = numpy.random.default_rng(1)
    rows = random.normal(size=(1_500, 16)).astype(numpy.float32)
    stratann.build(rows[:1_000], tmp_path / "drift.idx").close()
    with stratann.open(tmp_path / "drift.idx", merges=False) as index:
        assert index.stats()["trouble"] is None
        # Many rows at once would be merged.
        for first in range(1_000, 1_500, 100):
            index.insert(rows[first : first + 100] + 30)
        stats = index.stats()
        assert stats["health"]["drifted"] > 0.3 and "compact" in stats["trouble"], stats
        index.compact()
        assert index.stats()["trouble"] is None


KILLED = """
import os, signal, sys
import numpy, stratann

path, rows, first, beside = sys.argv[1], numpy.load(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "True"
ids = range(first, first + len(rows)) if first else None
attributes = {"part": numpy.arange(len(rows))} if beside else None

def kill(stage, done, total):
    if done > 0:
        os.kill(os.getpid(), signal.SIGKILL)

stratann.open(path, merges=False).insert(rows, ids, attributes=attributes, progress=kill)
"""


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_an_insert_that_was_killed_goes_on(given, beside, path, base, tmp_path):
    rows = base[2000:4500]
    numpy.save(tmp_path / "rows.npy", rows)
    ids = range(50_000, 50_000 + len(rows)) if given else None
    attributes = {"part": numpy.arange(len(rows))} if beside else None
    told = [str(50_000 if given else 0), str(beside)]
    words = [sys.executable, "-c", KILLED, path, tmp_path / "rows.npy", *told]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    with stratann.open(path) as index:
        before = len(index) - BUILT
        assert 0 < before < len(rows)
        if not given:
            # All of these rows would be in the index twice.
            with pytest.raises(FileExistsError, match=f"first {before} of {len(rows)} are in.*resume=True"):
                index.insert(rows, attributes=attributes)
        inserted = index.insert(rows, ids, attributes=attributes, resume=True)
        first = 50_000 if given else BUILT
        numpy.testing.assert_array_equal(inserted, numpy.arange(first, first + len(rows)))
        assert len(index) == BUILT + len(rows)
        numpy.testing.assert_array_equal(index.get(inserted).vectors, rows)
        if beside:
            assert index.count(f"part >= {before}") == len(rows) - before
        numpy.testing.assert_array_equal(index.insert(rows, ids, attributes=attributes, resume=True), inserted)
        assert len(index) == BUILT + len(rows)
        assert index.forget_cut_off() == 0


def test_an_insert_that_was_interrupted_goes_on_or_is_forgotten(path, base, ctrl_c):
    index = stratann.open(path, merges=False)
    rows = base[2000:6000]
    with pytest.raises(stratann.Interrupted) as raised:
        index.insert(rows, progress=ctrl_c(lambda stage, done, total: done > 0))
    done = raised.value.done
    assert 0 < done < len(rows)
    other = index.insert(base[6000:6002])
    assert other[0] == BUILT + len(rows)
    ids = index.insert(rows, resume=True)
    assert (ids[0], len(ids), len(index)) == (BUILT, len(rows), BUILT + len(rows) + 2)
    index.close()
    index = stratann.open(path, merges=False)
    with pytest.raises(stratann.Interrupted):
        index.insert(rows[::-1].copy(), progress=ctrl_c(lambda stage, done, total: done > 0))
    there = len(index)
    assert index.forget_cut_off() == 1
    with pytest.raises(ValueError, match="not known to this index"):
        index.insert(rows[::-1].copy(), resume=True)
    assert len(index) == there


def test_an_interrupted_insert_goes_on_as_its_exception_says_in_another_object(path, base, ctrl_c):
    rows = base[2000:6000]
    with stratann.open(path, merges=False) as index, pytest.raises(stratann.Interrupted) as raised:
        index.insert(rows, progress=ctrl_c(lambda stage, done, total: done > 0))
    done = raised.value.done
    ids = range(BUILT + done, BUILT + len(rows))
    assert f"vectors[{done}:], with ids=range({ids.start}, {ids.stop})" in str(raised.value)
    with stratann.open(path, merges=False) as index:
        index.upsert(rows[:1], [BUILT])
        with pytest.raises(ValueError, match="was cut off or is still running, and it uses the ids from"):
            index.upsert(rows[-1:], [ids[-1]])
        with pytest.raises(ValueError):
            index.insert(rows, range(BUILT, ids.stop))
        with pytest.raises(FileExistsError):
            index.insert(rows)
        index.insert(rows[done:], ids=ids)
        assert len(index) == BUILT + len(rows) and index.forget_cut_off() == 0
        numpy.testing.assert_array_equal(index.get(range(BUILT, ids.stop)).vectors, rows)


def test_what_is_known_again_is_an_insert_of_many_rows(index, small):
    index.insert(small[1000:1010])
    with pytest.raises(ValueError, match="not known to this index"):
        index.insert(small[1000:1010], resume=True)
    assert len(index) == BUILT + 10
    # The ids identify the insert from the beginning.
    ids = [7_000, 8_000, 9_000]
    for _ in range(2):
        index.insert(small[1010:1013], ids, resume=True)
    assert len(index) == BUILT + 13
