"""Threads, and several objects of one folder, that change it together."""

import asyncio
import os
import shutil
import signal
import sys
import threading
import time

import numpy
import pytest

import stratann
from stratann import asynchronous

BUILT = 300


@pytest.fixture(scope="module")
def built(tmp_path_factory, small):
    path = tmp_path_factory.mktemp("built") / "built.idx"
    stratann.build(small[:BUILT], path, degree=16, build_list=32, threads=1)
    return path


@pytest.fixture
def path(built, tmp_path):
    return shutil.copytree(built, tmp_path / "live.idx")


def nearest(index, row):
    """The ids of the results at distance 0."""
    ids, distances = index.search(row, 10, list_size=200)
    return {int(id) for id, distance in zip(ids, distances) if distance == 0}


def at_once(count, work):
    """Runs `work(thread)` on threads that begin together, and raises an error of one of them."""
    barrier, wrong = threading.Barrier(count), []

    def run(thread):
        try:
            barrier.wait()
            work(thread)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in wrong:
        raise error


@pytest.fixture
def elsewhere(another_process):
    """Inserts in another process, and returns "done", or the name of the error."""

    def insert(path, id):
        return another_process(
            path,
            "try:\n"
            f"    index.insert(small[0], ids=[{id}])\n"
            "    index.close()\n"
            "    print('done')\n"
            "except stratann.StratannError as error:\n"
            "    print(type(error).__name__)\n",
        )

    return insert


def test_blocks_in_four_threads_change_one_index(path, small, elsewhere):
    reader = stratann.open(path)

    def work(thread):
        for turn in range(4):
            id = 1000 + 10 * thread + turn
            with stratann.open(path) as index:
                index.insert(small[id], ids=[id])
                index.upsert(small[id + 500], ids=[id + 500])
                index.delete([thread * 10 + turn])
                # Acknowledged changes are found at once, through every object.
                assert id in index and id in reader and id in nearest(reader, small[id])
                assert thread * 10 + turn not in reader
            assert id in index and id in reader and id + 500 in reader

    at_once(4, work)
    assert len(reader) == len(stratann.open(path)) == BUILT + 16
    assert reader.is_current() and reader.refresh() is False
    assert elsewhere(path, 7000) == "done"


def test_threads_share_one_object(path, small, elsewhere):
    index = stratann.open(path)

    def work(thread):
        for turn in range(4):
            with index:
                index.insert(small[1000 + 10 * thread + turn], ids=[1000 + 10 * thread + turn])
            assert 1000 + 10 * thread + turn in index

    at_once(4, work)
    assert len(index) == BUILT + 16
    assert elsewhere(path, 7000) == "done"


def test_upserts_of_one_id_are_put_in_order(path, small):
    own, said = stratann.open(path), []

    def work(thread):
        index = own if thread % 2 else stratann.open(path)
        for turn in range(5):
            index.upsert(small[[1000 + 10 * thread + turn, 5]], ids=[5, 2000])
            said.append(thread)

    at_once(6, work)
    assert len(said) == 30 and len(own) == BUILT + 1
    given = small[[1000 + 10 * thread + turn for thread in range(6) for turn in range(5)]]
    assert (given == own[5]).all(axis=1).any()
    last = own[5].copy()
    own.close()
    del own
    numpy.testing.assert_array_equal(stratann.open(path)[5], last)


def test_the_last_object_gives_the_lock_back(path, small, elsewhere):
    one, two, reader = stratann.open(path), stratann.open(path), stratann.open(path, memory="64MB")
    one.insert(small[1000], ids=[1000])
    two.insert(small[1001], ids=[1001])
    one.close()
    reader.close()
    assert elsewhere(path, 7000) == "InUseError"
    # The object uses the index of the other object now.
    assert {1000, 1001} <= set(one.ids().tolist()) == set(reader.ids().tolist())
    two.delete([1000])
    assert 1000 not in one and 1000 not in reader
    two.close()
    for index in (one, two, reader):
        assert 1000 not in index and 1001 in nearest(index, small[1001]) and len(index) == BUILT + 1
        assert index.is_current()
    assert elsewhere(path, 7000) == "done"
    for index in (one, two, reader):
        assert not index.is_current() and index.refresh() and 7000 in index


def test_an_object_that_nobody_has_any_more_gives_the_lock_back(path, small, elsewhere):
    reader = stratann.open(path)
    one, two = stratann.open(path, durability="flush"), stratann.open(path, durability="flush")
    one.insert(small[1000], ids=[1000])
    two.insert(small[1001], ids=[1001])
    del one
    assert elsewhere(path, 7000) == "InUseError"
    del two
    assert {1000, 1001} <= set(reader.ids().tolist()) and 1001 in nearest(reader, small[1001])
    assert elsewhere(path, 7000) == "done"
    index = stratann.open(path)
    index.insert(small[1002], ids=[1002])
    del index, reader
    assert elsewhere(path, 7001) == "done"
    assert len(stratann.open(path)) == BUILT + 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": "64MB"}, ["memory=64000000", "memory=None"]),
        ({"durability": "flush"}, ['durability="flush"', 'durability="always"']),
        ({"durability": 50}, ["durability=50", 'durability="always"']),
        ({"merges": False}, ["merges=False", "merges=True"]),
        ({"cache": 1 << 20}, ["cache=1048576", "cache=None"]),
        ({"io": "pread"}, ['io="pread"', 'io="auto"']),
        ({"navigation": False}, ["navigation=False", "navigation=None"]),
    ],
)
def test_objects_that_change_it_together_are_opened_alike(options, words, path, small):
    index, other = stratann.open(path), stratann.open(path, **options)
    index.insert(small[1000], ids=[1000])
    with pytest.raises(stratann.InUseError) as error:
        other.insert(small[1001], ids=[1001])
    for word in [*words, "open for changes in this process", "Open both objects with the same options, or close"]:
        assert word in str(error.value)
    # Its searches see all changes.
    assert 1000 in nearest(other, small[1000])
    index.close()
    other.insert(small[1001], ids=[1001])
    assert {1000, 1001} <= set(index.ids().tolist())
    other.close()
    assert len(index) == len(other) == BUILT + 2


def test_a_folder_is_known_by_whatever_path(path, small, tmp_path, monkeypatch, elsewhere):
    (tmp_path / "link").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    opened = [stratann.open(name) for name in (path, "live.idx", tmp_path / "link", "link")]
    for at, index in enumerate(opened):
        index.insert(small[1000 + at], ids=[1000 + at])
    for index in opened:
        assert len(index) == BUILT + 4
        index.close()
    assert elsewhere(path, 7000) == "done"
    # The folder may be moved.
    opened[0].insert(small[1010], ids=[1010])
    path.rename(tmp_path / "moved.idx")
    moved = stratann.open(tmp_path / "moved.idx")
    moved.insert(small[1011], ids=[1011])
    assert 1011 in opened[0] and 1010 in moved
    opened[0].flush()
    del opened, index
    moved.close()
    assert elsewhere(tmp_path / "moved.idx", 7001) == "done"
    (tmp_path / "moved.idx").rename(path)
    # A copy of the folder is another index.
    copy = stratann.open(shutil.copytree(path, tmp_path / "copy.idx"))
    index = stratann.open(path)
    copy.insert(small[1004])
    index.insert(small[1004])
    assert len(copy) == len(index) == BUILT + 9


def test_an_index_of_a_catalog_is_the_same(path, small):
    catalog, index = stratann.Catalog(path.parent), stratann.open(path)
    of_catalog = catalog[path.name]
    of_catalog.insert(small[1000], ids=[1000])
    index.insert(small[1001], ids=[1001])
    assert 1001 in of_catalog and 1000 in index
    ids, distances = catalog.search(small[1000:1002], 1, names=[path.name], list_size=200)
    assert distances.tolist() == [[0.0], [0.0]]
    index.close()
    catalog[path.name].delete([1000])
    of_catalog.close()
    assert 1000 not in index and 1001 in catalog[path.name]


def test_what_closes_in_a_callback_of_another_object(path, small, elsewhere):
    one, two = stratann.open(path), stratann.open(path)
    two.insert(small[1500], ids=[1500])
    said = []

    def close(*_):
        two.close()
        try:
            one.close()
        except stratann.StratannError as error:
            said.append(str(error))

    one.insert(small[1000:1100], progress=close)
    assert said and "is being changed" in said[0]
    one.close()
    assert elsewhere(path, 7000) == "done"


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_process_has_a_writer_of_its_own(path, small):
    index = stratann.open(path)
    index.insert(small[1000], ids=[1000])
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        try:
            signal.alarm(300)
            own = stratann.open(path)
            said.append(str(1000 in own))
            for change in (lambda: own.insert(small[1001], ids=[1001]), lambda: index.insert(small[1002])):
                try:
                    change()
                    said.append("done")
                except stratann.StratannError as error:
                    said.append(type(error).__name__)
            del own
        finally:
            os.write(writer, ",".join(said).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read().decode()
    assert os.waitpid(child, 0)[1] == 0
    assert said == "True,InUseError,StratannError"
    index.insert(small[1001], ids=[1001])
    index.close()
    assert len(index) == BUILT + 2


@pytest.mark.skipif(not hasattr(stratann._stratann, "_while_locked"), reason="the module has nothing for tests")
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("changed", [False, True])
def test_a_forked_process_waits_for_no_lock_of_its_parent(changed, path, small):
    """Here, the thread that forks has all locks, like a thread within a change."""
    index = stratann.open(path)
    if changed:
        index.insert(small[1000], ids=[1000])
    calls = {
        "len": lambda: len(index),
        "dim": lambda: index.dim,
        "repr": lambda: repr(index),
        "stats": index.stats,
        "search": lambda: index.search(small[0]),
        "insert": lambda: index.insert(small[1001], ids=[1001]),
        "delete": lambda: index.delete([1]),
        "flush": index.flush,
        "refresh": index.refresh,
        "snapshot": lambda: index.snapshot(path.parent / "copy"),
        "close": index.close,
    }

    def in_child():
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            said = []
            try:
                # Ends it if it waits.
                signal.alarm(60)
                for call in calls.values():
                    try:
                        call()
                        said.append("done")
                    except stratann.StratannError as error:
                        assert "forked" in str(error)
                        said.append(type(error).__name__)
                own = stratann.open(path)
                said.append(str(len(own)))
                del own
            finally:
                os.write(writer, ",".join(said).encode())
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as pipe:
            said = pipe.read().decode().split(",")
        assert os.waitpid(child, 0)[1] == 0, said
        return dict(zip([*calls, "own"], said))

    found = stratann._stratann._while_locked(index, in_child)
    assert found.pop("own") == str(BUILT + changed)
    assert found.pop("close") == "OutdatedError"
    assert set(found.values()) == {"StratannError"}
    # Without locks, the child knows these facts if nothing is open for changes.
    free = in_child()
    assert free["len"] == free["dim"] == free["repr"] == ("StratannError" if changed else "done")
    assert free["search"] == free["insert"] == free["flush"] == free["stats"] == "StratannError"
    assert free["close"] == ("OutdatedError" if changed else "done")
    index.insert(small[1001], ids=[1001])
    index.close()
    assert len(index) == BUILT + 1 + changed


def test_a_callback_leaves_an_index_that_another_thread_closes(path, small, elsewhere):
    """The close waits for the insert, and the insert for its callback, which must not wait for the
    close.
    """
    one, begun, said = stratann.open(path), threading.Event(), []

    def close():
        begun.set()
        one.close()

    closer = threading.Thread(target=close, daemon=True)

    def look(*_):
        if said:
            return
        said.append("called")
        closer.start()
        begun.wait()
        # Each order is right. After this sleep the other thread mostly waits, which is the order
        # that once hung.
        time.sleep(0.3)
        with stratann.open(path) as two:
            said.append(1000 in two or len(two) >= BUILT)

    inserter = threading.Thread(target=lambda: one.insert(small[1000:1100], progress=look), daemon=True)
    inserter.start()
    inserter.join(120)
    closer.join(120)
    assert not inserter.is_alive() and not closer.is_alive()
    assert said == ["called", True] and len(one) == BUILT + 100
    assert elsewhere(path, 7000) == "done"


def test_what_all_objects_leave_in_the_midst_of_a_change_is_closed_at_its_end(path, small, elsewhere):
    one, others = stratann.open(path), [stratann.open(path)]
    others[0].insert(small[1500], ids=[1500])

    def leave(*_):
        if others:
            # The first object leaves the index to the second, which was freed.
            one.close()
            others.clear()

    one.insert(small[1000:1100], progress=leave)
    assert not others and len(one) == BUILT + 101
    assert elsewhere(path, 7000) == "done"


def test_an_index_of_a_catalog_has_what_an_object_changed_that_is_gone(path, small):
    catalog = stratann.Catalog(path.parent)
    assert 1000 not in catalog[path.name]
    with stratann.open(path) as index:
        index.insert(small[1000], ids=[1000])
    del index
    assert 1000 in catalog[path.name]
    index = stratann.open(path)
    index.insert(small[1001], ids=[1001])
    del index
    assert 1001 in catalog[path.name] and len(catalog[path.name]) == BUILT + 2


@pytest.mark.parametrize(
    "change",
    [
        lambda index, rows: index.insert(rows, progress=5),
        lambda index, rows: index.upsert(rows, range(len(rows)), progress=5),
        lambda index, rows: index.delete(filter="year == 1", progress=5),
        lambda index, rows: index.compact(progress=5),
        lambda index, rows: index.set_attributes([0], [{"year": 1}], progress=5),
    ],
)
def test_a_call_that_is_refused_takes_no_lock(change, path, small, elsewhere):
    index = stratann.open(path)
    with pytest.raises(TypeError, match="progress is of another type. Pass True"):
        change(index, small[1000:1002])
    assert elsewhere(path, 7000) == "done"


def test_an_object_of_other_options_is_told_of_a_call_that_still_reads(path, small, tmp_path):
    one, two = stratann.open(path, durability="flush"), stratann.open(path)
    one.insert(small[1000], ids=[1000])
    said = []

    def change(*_):
        if said:
            return
        one.close()
        with pytest.raises(stratann.InUseError) as error:
            two.insert(small[1001], ids=[1001])
        said.append(str(error.value))

    one.export(tmp_path / "all.npy", progress=change)
    for words in ['durability="always"', 'was closed in this process with durability="flush"', "Call again when"]:
        assert words in said[0]
    two.insert(small[1001], ids=[1001])
    assert {1000, 1001} <= set(one.ids().tolist())


def test_other_threads_go_on_while_an_object_ends_that_nobody_has_any_more(path, small):
    """With this switch interval, another thread continues only if this one releases the
    interpreter.
    """
    went, interval = [], sys.getswitchinterval()
    # A thread that wakes late may miss one turn.
    for turn in range(50):
        index, go = stratann.open(path, durability="flush"), threading.Lock()
        index.insert(small[1000 + turn], ids=[1000 + turn])
        go.acquire()
        thread = threading.Thread(target=lambda go=go: (go.acquire(), went.append(True)))
        thread.start()
        sys.setswitchinterval(1000)
        try:
            go.release()
            del index
            seen = bool(went)
        finally:
            sys.setswitchinterval(interval)
        thread.join()
        went.clear()
        if seen:
            return
    raise AssertionError("no other thread went on")


@pytest.fixture(scope="module")
def described(tmp_path_factory, small):
    """The folder of an index whose vectors have attributes and payloads."""
    path = tmp_path_factory.mktemp("described") / "built.idx"
    numbers = {"attributes": [{"n": n} for n in range(BUILT)], "payload": [str(n) for n in range(BUILT)]}
    stratann.build(small[:BUILT], path, degree=16, build_list=32, threads=1, **numbers)
    return path


async def awaited(index, *arguments, **options):
    return await index.search_async(*arguments, **options)


@pytest.fixture
def changing_the_next_read(monkeypatch):
    """Has another object change and close an index, after the next read of an object has chosen its checkpoint. Returns
    a list with a word for each time that the call reads."""

    def change(index, rows, compact):
        read, ended = [], asynchronous._Loop.ended

        def work():
            read.append("first")
            with stratann.open(index.path, merges=False) as other:
                for turn in range(4):
                    other.insert(rows[BUILT + 20 * turn : BUILT + 20 * (turn + 1)], attributes=[{"n": 1_000}] * 20)
                    other.close()
                if compact:
                    other.compact()
            stratann._stratann._in_next_read(lambda: read.append("again"))

        async def counted(loop, search):
            await ended(loop, search)
            read.append("awaited")

        monkeypatch.setattr(asynchronous._Loop, "ended", counted)
        stratann._stratann._in_next_read(work)
        return read

    yield change
    stratann._stratann._in_next_read(lambda: None)


@pytest.mark.parametrize("compact", [False, True], ids=["inserts", "merge"])
@pytest.mark.parametrize(
    ("call", "read"),
    [
        (lambda index, rows, _: 7 in index.search(rows[7], 10, list_size=300)[0], 2),
        (lambda index, rows, _: len(index.search(rows[:1_200], 10, list_size=300)[0]) == 1_200, 2),
        (lambda index, rows, _: 7 in index.search(rows[7], 10, filter="n < 100")[0], 1),
        (lambda index, rows, _: 7 in asyncio.run(awaited(index, rows[7], 10, list_size=300))[0], 3),
        (lambda index, rows, _: 7 in asyncio.run(awaited(index, rows[7], 10, filter="n < 100", payload=True))[0], 2),
        (lambda index, rows, _: index.search_like([5], 10, list_size=300)[0].shape == (1, 10), 2),
        (lambda index, rows, _: 7 in index.search_range(rows[7], 1e9).ids, 2),
        (lambda index, rows, _: (index.get(range(BUILT)).vectors == rows[:BUILT]).all(), 2),
        (lambda index, rows, _: (index[5] == rows[5]).all(), 1),
        (lambda index, rows, out: index.export(out / "x.u8bin")["vectors"] == BUILT + 80, 2),
        (lambda index, rows, _: 5 in index and len(index.ids()) >= BUILT and index.count("n < 100") == 100, 1),
        (lambda index, rows, _: index.attributes([5]) == [{"n": 5}] and index.payload([6]) == ["6"], 1),
    ],
    ids=["search", "many", "filter", "async", "async filter", "like", "range", "get", "item", "export", "ids", "attributes"],
)
def test_a_read_of_a_checkpoint_that_this_process_replaces_reads_the_later_one(call, read, compact, described, tmp_path, small, changing_the_next_read):
    path = shutil.copytree(described, tmp_path / "live.idx")
    index = stratann.open(path, merges=False)
    times = changing_the_next_read(index, small, compact)
    assert call(index, small, tmp_path)
    # Columns and tables of ids are read from files that no insert changes.
    # A read of all vectors reads a page that was reused. Other reads may miss such pages.
    assert len(times) >= read, times
    assert len(index) == BUILT + 80


def test_a_read_of_a_checkpoint_that_another_process_replaces_is_not_repeated(described, tmp_path, small, another_process):
    path = shutil.copytree(described, tmp_path / "live.idx")
    index, read = stratann.open(path, merges=False), []
    changes = "\n".join(["index = stratann.open(sys.argv[1], merges=False)", "for turn in range(4):", "    index.insert(small[300 + 20 * turn : 320 + 20 * turn])", "    index.close()"])
    stratann._stratann._in_next_read(lambda: (read.append(1), another_process(path, changes)))
    with pytest.raises(stratann.OutdatedError):
        index.search(small[7], 10, list_size=300)
    assert read == [1] and index.refresh() and 7 in index.search(small[7], 10, list_size=300)[0]
