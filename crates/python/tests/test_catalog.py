"""Catalogs: a shared codebook, a folder as a mapping, and searches of several indexes as one."""

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest

import stratann

NAMES = ["autumn", "spring", "summer"]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory, small):
    """Three indexes with one codebook: the rows of `small` in turn, by their row numbers."""
    folder = tmp_path_factory.mktemp("shelf")
    code = folder / "code"
    stratann.train(small, code, code_bytes=16)
    for n, name in enumerate(NAMES):
        rows = numpy.arange(n, len(small), 3)
        stratann.build(
            numpy.ascontiguousarray(small[rows]),
            folder / name,
            preset="aisaq",
            degree=24,
            build_list=40,
            codebook=code,
            ids=rows,
        )
    return folder


@pytest.fixture
def catalog(shelf):
    return stratann.Catalog(shelf)


@pytest.fixture
def own(shelf, tmp_path):
    shutil.copytree(shelf, tmp_path / "own")
    return tmp_path / "own"


def test_a_catalog_is_a_mapping_from_names_to_indexes(catalog, shelf, queries):
    assert catalog.names() == list(catalog) == NAMES
    assert len(catalog) == 3 and "spring" in catalog
    assert "winter" not in catalog and 3 not in catalog and "../shelf/spring" not in catalog
    assert catalog.open_count == 0
    index = catalog["spring"]
    assert isinstance(index, stratann.Index) and len(index) == 667
    assert index.path == shelf / "spring" and index.build_report is None
    assert catalog.open_count == 1
    alone = stratann.open(shelf / "spring")
    for ours, theirs in zip(index.search(queries), alone.search(queries)):
        numpy.testing.assert_array_equal(ours, theirs)
    assert index.verify()["problems"] == []
    assert catalog.path == shelf and catalog.memory is None
    text = repr(catalog)
    assert "shelf" in text and "3 indexes, 1 open" in text and "memory=None" in text


def test_a_name_that_is_not_there_is_a_key_error(catalog):
    for name in ["winter", "", "..", "a/b"]:
        with pytest.raises(KeyError, match="autumn, spring, summer"):
            catalog[name]
    with pytest.raises(KeyError, match="winter"):
        catalog.search(numpy.zeros((1, 128), numpy.uint8), names=["spring", "winter"])
    with pytest.raises(TypeError):
        catalog[3]


def test_several_indexes_are_searched_as_one(catalog, small, queries):
    exact = stratann.truth(small, queries, 10)
    found = catalog.search(queries, 10, list_size=700)
    numpy.testing.assert_array_equal(found[0], exact[0])
    numpy.testing.assert_array_equal(found[1], exact[1])
    some = catalog.search(queries, 10, names=("spring", "summer"), list_size=700)
    assert (some[0] % 3 != 0).all()
    one, alone = (
        search(queries, 10, list_size=50, threads=1)
        for search in (lambda *a, **o: catalog.search(*a, names="spring", **o), catalog["spring"].search)
    )
    numpy.testing.assert_array_equal(one[0], alone[0])
    ids, distances = catalog.search(queries[0], 3)
    assert ids.shape == distances.shape == (3,)
    assert catalog.search(queries[:0], 3)[0].shape == (0, 3)
    _, _, stats = catalog.search(queries, 10, list_size=40, return_stats=True)
    assert stats["queries"] == 500 and stats["per_query"]["graph_reads"] > 0


def test_a_budget_is_kept_and_indexes_are_closed(shelf):
    with pytest.raises(ValueError, match="memory budget"):
        stratann.Catalog(shelf, memory=1_000_000)
    catalog = stratann.Catalog(shelf, memory="32MiB")
    assert catalog.memory == 32 << 20 and "memory=33554432" in repr(catalog)
    before = catalog.memory_bytes
    index = catalog["spring"]
    one = catalog.memory_bytes
    assert before < one <= catalog.memory
    catalog["summer"], catalog["autumn"]
    three = catalog.memory_bytes
    # The codebook is in memory once.
    assert three - one < one - before
    assert catalog.close("spring") and not catalog.close("spring") and not catalog.close("winter")
    assert catalog.open_count == 3, "the index was closed although Python has a reference"
    assert len(index) == 667 and index.search(numpy.zeros(128, numpy.uint8), 1)[0].shape == (1,)
    del index
    gc.collect()
    assert catalog.open_count == 2 and catalog.memory_bytes < three


def test_indexes_that_come_change_and_go_are_noticed(own, small):
    catalog = stratann.Catalog(own)
    old = catalog["spring"]
    stratann.build(small[:300], own / "spring", preset="aisaq", degree=16, overwrite=True)
    stratann.build(small[:200], own / "winter", preset="aisaq", degree=16)
    assert (len(old), len(catalog["spring"]), len(catalog["winter"])) == (667, 300, 200)
    assert catalog.names() == sorted([*NAMES, "winter"])
    shutil.rmtree(own / "spring")
    assert "spring" not in catalog
    with pytest.raises(KeyError, match="spring"):
        catalog["spring"]


def test_indexes_that_do_not_fit_together(own):
    floats = numpy.random.default_rng(1).random((200, 16), numpy.float32)
    stratann.build(floats, own / "floats", preset="aisaq", degree=16)
    catalog = stratann.Catalog(own)
    with pytest.raises(ValueError, match="floats.*16 f32"):
        catalog.search(numpy.zeros((1, 128), numpy.uint8))
    assert catalog.search(floats[:2], 1, names=["floats"])[0].tolist() == [[0], [1]]


def test_what_is_no_catalog(shelf, tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        stratann.Catalog(tmp_path / "missing")
    with pytest.raises(ValueError, match="an index"):
        stratann.Catalog(shelf / "spring")
    with pytest.raises(ValueError, match="memory"):
        stratann.Catalog(shelf, memory="3 apples")
    empty = stratann.Catalog(tmp_path)
    assert len(empty) == 0 and list(empty) == []
    with pytest.raises(KeyError, match="stratann build"):
        empty["a"]
    with pytest.raises(ValueError, match="at least one index. Name one or more"):
        empty.search(numpy.zeros((1, 128), numpy.uint8))


def test_a_forked_process_is_told_to_open_the_catalog_itself(catalog, shelf, queries):
    expected = catalog.search(queries, list_size=50)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"nothing"
        try:
            signal.alarm(300)
            try:
                catalog["spring"]
            except stratann.StratannError as error:
                said = str(error).encode()
            assert catalog.names() == NAMES
            # A missing thread may hold the lock.
            for ask in ("memory_bytes", "open_count"):
                with pytest.raises(stratann.StratannError, match="forked"):
                    getattr(catalog, ask)
            assert "opened in another process" in repr(catalog)
            del catalog
            found = stratann.Catalog(shelf).search(queries, list_size=50)
            assert (found[0] == expected[0]).all()
            os.write(writer, said)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert b"stratann.Catalog" in pipe.read()
    assert os.waitpid(child, 0)[1] == 0


def test_a_trained_codebook_is_that_of_the_index(tmp_path, small):
    code = tmp_path / "code"
    seen = []
    facts = stratann.train(small, code, code_bytes=16, progress=lambda *news: seen.append(news))
    assert (facts["dimension"], facts["code_bytes"], len(facts["hash"])) == (128, 16, 64)
    assert ("training codes", 1, 1) in seen
    index = stratann.build(small, tmp_path / "i", degree=16, codebook=code)
    stats = index.stats()
    assert (stats["codebook"], stats["code_bytes"]) == (facts["hash"], 16)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        stratann.train(small, code)
    again = stratann.train(small, str(code), code_bytes=16, threads=1, overwrite=True)
    assert again == facts
    assert stratann.train(small, tmp_path / "b", code_bytes=16, seed=7)["hash"] != facts["hash"]
    assert stratann.train(small, tmp_path / "c")["code_bytes"] == 32


def test_a_codebook_that_does_not_fit(tmp_path, small):
    code = tmp_path / "code"
    stratann.train(small, code, code_bytes=16)
    build = {"path": tmp_path / "i", "degree": 16}
    with pytest.raises(ValueError, match="codebook"):
        stratann.build(small, codebook=code, code_bytes=8, **build)
    with pytest.raises(ValueError, match="the rows have 64"):
        stratann.build(numpy.ascontiguousarray(small[:, :64]), codebook=code, **build)
    with pytest.raises(FileNotFoundError, match="missing"):
        stratann.build(small, codebook=tmp_path / "missing", **build)
    (tmp_path / "broken").write_bytes(code.read_bytes()[:-1])
    with pytest.raises(stratann.StratannError, match="broken"):
        stratann.build(small, codebook=tmp_path / "broken", **build)
    with pytest.raises(ValueError, match="code bytes"):
        stratann.train(small, tmp_path / "x", code_bytes=129)
    with pytest.raises(ValueError, match="metric"):
        stratann.train(small, tmp_path / "x", metric="l3")
    assert not (tmp_path / "i").exists() and not (tmp_path / "x").exists()


def test_few_vectors_leave_places_without_an_answer(tmp_path, small):
    for name in ["a", "b"]:
        stratann.build(small[:100], tmp_path / name, degree=16)
    with stratann.open(tmp_path / "a", merges=False) as index:
        index.delete(numpy.arange(3, 100))
    with stratann.open(tmp_path / "b", merges=False) as index:
        index.delete(numpy.arange(100))
    ids, distances = stratann.Catalog(tmp_path).search(small[:3], k=10, list_size=100)
    assert (numpy.sort(ids[:, :3]) == [0, 1, 2]).all() and numpy.isfinite(distances[:, :3]).all()
    assert (ids[:, 3:] == 2**64 - 1).all() and numpy.isinf(distances[:, 3:]).all()
    truth = stratann.truth(small[:3], small[:3], 3)
    assert stratann.recall((ids[:, :3], distances[:, :3]), truth) == 1.0
    # A missing result is no hit, whatever its distance.
    none = (numpy.full((3, 3), 2**64 - 1, numpy.uint64), numpy.full((3, 3), numpy.inf, numpy.float32))
    assert stratann.recall(none, truth) == 0.0
    assert stratann.recall((ids, distances), (ids, distances)) == 1.0


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files")
@pytest.mark.parametrize("limit", [64, 256])
def test_more_indexes_than_a_process_may_have_files(limit, tmp_path, small):
    built = tmp_path / "many" / "0"
    # Lists, vectors and ids are in separate files.
    stratann.build(small[:40], built, preset="decouplevs", degree=8, build_list=16, ids=numpy.arange(40)[::-1].copy())
    for n in range(1, 300):
        (tmp_path / "many" / str(n)).mkdir()
        for file in built.iterdir():
            os.link(file, tmp_path / "many" / str(n) / file.name)
    program = (
        "import os, resource, sys, numpy, stratann\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]),) * 2)\n"
        "catalog = stratann.Catalog(sys.argv[1])\n"
        "query = numpy.zeros(128, numpy.uint8)\n"
        "for name in catalog: assert len(catalog[name]) == 40\n"
        "ids, _ = catalog.search(query, 5, threads=1)\n"
        "catalog['7'].insert(query, ids=[99])\n"
        "assert catalog.search(query, 1, names=['7', '8'], threads=1)[0].tolist() == [99]\n"
        "print(len(catalog), catalog.open_count)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "many"), str(limit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    there, are_open = map(int, done.stdout.split())
    assert there == 300 and 0 < are_open < limit // 2


def test_a_folder_of_indexes_is_named_as_what_it_is(shelf):
    for call in (stratann.open, stratann.verify):
        with pytest.raises(stratann.StratannError, match=r"a folder of 3 indexes.*autumn.*stratann\.Catalog"):
            call(shelf)


def test_changes_are_within_the_budget(own, small):
    catalog = stratann.Catalog(own, memory="32MiB")
    nothing = catalog.memory_bytes
    index = catalog["spring"]
    reading = catalog.memory_bytes
    index.insert(small[:200], ids=numpy.arange(5000, 5200))
    changing = catalog.memory_bytes
    # The reservation has room for a few changes at a time, and more for a larger index.
    assert reading + (2 << 20) < changing <= catalog.memory
    assert catalog.open_count == 1, "the handle for reading was not released"
    index.delete([1])
    assert len(index) == len(catalog["spring"]) == 667 + 199
    # Two objects of one index share its reservation.
    again, other = catalog["spring"], catalog["summer"]
    again.insert(small[200:201], ids=[6000])
    other.insert(small[201:202], ids=[7000])
    assert changing < catalog.memory_bytes <= catalog.memory
    for each in (index, again, other):
        each.close()
    assert nothing < catalog.memory_bytes < changing, "the index is open and counted after the changes"
    assert len(index) == len(again) == 667 + 200 and len(other) == 666 + 1
    assert index.refresh() is False
    del index, again, other, each
    gc.collect()
    for name in NAMES:
        catalog.close(name)
    assert catalog.open_count == 0 and catalog.memory_bytes <= reading


def test_threads_that_change_small_indexes_are_not_refused(own, small):
    catalog = stratann.Catalog(own, memory="24MiB")

    def change(name):
        for turn in range(3):
            with catalog[name] as index:
                index.upsert(small[:2], ids=[5000 + turn, 6000 + turn])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(change, NAMES))
    for name in NAMES:
        assert 5002 in catalog[name] and 6000 in catalog[name]


def test_a_change_for_which_there_is_no_room_is_refused(own, small):
    with pytest.raises(ValueError) as error:
        stratann.Catalog(own, memory=1_000_000)
    least = int(re.search(r"(\d+) bytes are needed", str(error.value))[1])
    catalog = stratann.Catalog(own, memory=least + 400_000)
    index = catalog["spring"]
    before = catalog.memory_bytes
    for _ in range(2):
        with pytest.raises(ValueError, match=r"a change of the index .*spring alone. Give at least that much"):
            index.insert(small[:1], ids=[5000])
    assert catalog.memory_bytes == before and len(index) == 667
    assert index.search(small[1], 1, list_size=50)[1][0] == 0
    with stratann.Catalog(own, memory="64MiB")["spring"] as enough:
        enough.insert(small[:1], ids=[5000])
    assert len(catalog["spring"]) == 668


@pytest.fixture(scope="module")
def parts(tmp_path_factory, small):
    """Three indexes have the rows of `small` in turn. "autumn" has no attributes, and only "summer"
    has colours.
    """
    folder = tmp_path_factory.mktemp("parts")
    for n, name in enumerate(NAMES):
        rows = numpy.arange(n, len(small), 3)
        columns = {"part": rows % 7}
        if name == "summer":
            columns["colour"] = ["red" if row % 2 else "blue" for row in rows]
        stratann.build(
            numpy.ascontiguousarray(small[rows]),
            folder / name,
            degree=24,
            build_list=40,
            ids=rows,
            attributes=None if name == "autumn" else columns,
        )
    return folder


def test_what_matches_in_all_indexes_is_found(parts, small, queries):
    catalog = stratann.Catalog(parts)
    ids = numpy.arange(len(small))
    has, is_summer = ids % 3 != 0, ids % 3 == 2
    red = is_summer & (ids % 2 == 1)
    for filter, wanted in [
        ("part == 3", has & (ids % 7 == 3)),
        (stratann.column("part") < 5, has & (ids % 7 < 5)),
        ("colour == 'red'", red),
        ("colour != 'red'", ~red),
        ("not exists part or part == 2", ~has | (ids % 7 == 2)),
    ]:
        matching = ids[wanted]
        found, distances, stats = catalog.search(queries[:20], 10, list_size=700, filter=filter, return_stats=True)
        base = small[matching].astype(numpy.int64)
        for row, near, query in zip(found, distances, queries[:20].astype(numpy.int64)):
            exact = ((base - query) ** 2).sum(axis=1)
            assert set(row.tolist()) <= set(matching.tolist())
            numpy.testing.assert_array_equal(near, numpy.sort(exact)[:10])
        assert stats["filter"]["matching"] == len(matching)
        assert sum(stats["filter"]["indexes"].values()) == 3
    none, _ = catalog.search(queries[0], 3, filter="part > 100")
    assert (none == 2**64 - 1).all()
    some, _ = catalog.search(queries[0], 3, names=["spring"], filter="part == 3")
    assert (some % 3 == 1).all()


def test_filters_that_do_not_fit_the_indexes_are_told(parts, queries):
    catalog = stratann.Catalog(parts)
    for filter, said in [
        ("colr == 'red'", 'did you mean "colour"'),
        ("colour == 3", "string"),
        ("part ==", "character"),
    ]:
        with pytest.raises(ValueError, match=said):
            catalog.search(queries[:2], filter=filter)
    with pytest.raises(ValueError, match='index "autumn"'):
        catalog.search(queries[:2], names=["autumn"], filter="part == 3")
    with pytest.raises(TypeError, match="filter"):
        catalog.search(queries[:2], fliter="part == 3")


def test_ctrl_c_ends_a_wait_for_memory(own, small):
    with pytest.raises(ValueError) as refused:
        stratann.Catalog(own, memory=9 << 20)["spring"].insert(small[:1], ids=[9000])
    # The budget suffices for one change, and for two indexes that are open for searches.
    memory = int(re.search(r"(\d+) bytes are needed", str(refused.value))[1]) + (1 << 20)
    catalog = stratann.Catalog(own, memory=memory)
    index, other = catalog["spring"], catalog["summer"]
    index.insert(small[:1], ids=[9000])

    def press(signal_number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, press)
    try:
        while True:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.1)
                other.insert(small[1:2], ids=[9001])
            except stratann.Interrupted:
                break
            except KeyboardInterrupt:
                # The signal came before the wait.
                continue
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert 9001 not in other
    index.close()
    other.insert(small[1:2], ids=[9001])
    assert 9001 in other
    other.close()


def test_a_result_that_two_indexes_may_have_given_has_no_attributes(small, tmp_path):
    for name in ("a", "b"):
        rows = small[:40] if name == "a" else small[40:80]
        stratann.build(numpy.ascontiguousarray(rows), tmp_path / name, attributes=[{"of": name}] * 40)
    catalog = stratann.Catalog(tmp_path)
    with pytest.raises(ValueError, match="is an id in two of them"):
        catalog.search(small[45], 1, filter="of == 'b'", attributes=True)
    ids, _, attributes = catalog.search(small[45], 1, names="b", attributes=True)
    assert (ids.tolist(), attributes) == ([5], [{"of": "b"}])
