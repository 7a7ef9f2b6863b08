"""Vectors by their ids, batches, handles in other processes, and conversions for other packages."""

import multiprocessing
import pickle
import shutil
import sys
import threading

import numpy
import pytest

import stratann

BUILT = 1000
HUGE = 2**64 - 2


@pytest.fixture(scope="module", params=["stratann", "decouplevs", "aisaq", "spann"])
def built(request, tmp_path_factory, small):
    """An index of the first thousand rows of `small`. Tests copy it."""
    path = tmp_path_factory.mktemp("built") / "built.idx"
    options = {} if request.param == "spann" else {"degree": 16, "build_list": 40}
    stratann.build(small[:BUILT], path, preset=request.param, **options)
    return path


@pytest.fixture
def path(built, tmp_path):
    return shutil.copytree(built, tmp_path / "live.idx")


@pytest.fixture(params=[None, "64MiB"])
def index(path, request):
    return stratann.open(path, memory=request.param)


def test_vectors_come_by_their_ids(index, small):
    numpy.testing.assert_array_equal(index[17], small[17])
    assert index[17].dtype == numpy.uint8 and index[numpy.uint64(3)].shape == (128,)
    rows = index.get([900, 3, 3, 5_000])
    numpy.testing.assert_array_equal(rows.ids, [900, 3, 3])
    numpy.testing.assert_array_equal(rows.vectors, small[[900, 3, 3]])
    numpy.testing.assert_array_equal(rows.missing, [5_000])
    assert rows.ids.dtype == rows.missing.dtype == numpy.uint64
    assert len(rows) == 3 and [id for id, _ in rows] == [900, 3, 3]
    numpy.testing.assert_array_equal(dict(rows)[900], small[900])
    assert index.get([]).vectors.shape == (0, 128)
    assert index.get(7).ids.tolist() == [7]
    assert 999 in index and 1000 not in index and -1 not in index and 2**70 not in index
    assert "7" not in index and None not in index and 7.0 not in index
    for missing in (1000, -1, 2**70, 2**64 - 1):
        with pytest.raises(KeyError, match=str(missing)):
            index[missing]
    for wrong in ("7", 7.0, None, [1, 2], True):
        with pytest.raises(TypeError, match="index.get"):
            index[wrong]


def test_what_changed_is_what_is_looked_up(path, small):
    index = stratann.open(path)
    index.insert(small[1000:1003], ids=[5_000, 2**40, HUGE])
    index.upsert(small[1100:1102], ids=[7, 5_000])
    index.delete([3, 2**40])
    for handle in (index, stratann.open(path)):
        assert 3 not in handle and HUGE in handle and 2**40 not in handle
        numpy.testing.assert_array_equal(handle[7], small[1100])
        numpy.testing.assert_array_equal(handle[5_000], small[1101])
        numpy.testing.assert_array_equal(handle[HUGE], small[1002])
        assert handle.get([3, 2**40, 4]).missing.tolist() == [3, 2**40]
        ids = handle.ids()
        numpy.testing.assert_array_equal(ids, [id for id in range(BUILT) if id != 3] + [5_000, HUGE])
        assert list(handle) == ids.tolist() and len(ids) == len(handle)
    index.compact()
    numpy.testing.assert_array_equal(index[7], small[1100])
    numpy.testing.assert_array_equal(index[HUGE], small[1002])
    index.close()


def test_all_rows_come_in_batches(index, small):
    ids, vectors = [], []
    for rows in index.batches(300):
        assert len(rows) == (300 if rows.ids[0] < 900 else 100) and len(rows.missing) == 0
        ids.append(rows.ids)
        vectors.append(rows.vectors)
    numpy.testing.assert_array_equal(numpy.concatenate(ids), numpy.arange(BUILT))
    numpy.testing.assert_array_equal(numpy.concatenate(vectors), small[:BUILT])
    numpy.testing.assert_array_equal(index.ids(996, 2), [997, 998])
    numpy.testing.assert_array_equal(index.ids(after=999), [])
    with pytest.raises(ValueError, match="size=0"):
        index.batches(0)
    with pytest.raises(TypeError, match="count="):
        index.ids(count="all")


def test_look_ups_beside_upserts_miss_nothing(path, small):
    index = stratann.open(path)
    ids = list(range(0, 200, 4))
    missed, stop = [], threading.Event()

    def look_up():
        while not stop.is_set():
            rows = index.get(ids)
            missed.extend(rows.missing.tolist())
            missed.extend(set(ids) - set(index.ids(count=200).tolist()))

    threads = [threading.Thread(target=look_up) for _ in range(2)]
    for thread in threads:
        thread.start()
    for version in range(4):
        index.upsert(small[1200 + version : 1200 + version + len(ids)], ids)
    index.compact()
    stop.set()
    for thread in threads:
        thread.join()
    assert missed == []
    numpy.testing.assert_array_equal(index.get(ids).vectors, small[1203 : 1203 + len(ids)])
    index.close()


def searched(index, queries, k):
    """Searches in a worker process with a pickled handle. Best-first results do not depend on the
    order of reads.
    """
    strategy = None if index.preset == "spann" else "best-first"
    return index.search(queries, k, strategy=strategy)


def test_a_handle_goes_to_worker_processes(path, small, queries):
    index = stratann.open(path, memory="64MiB", durability="flush")
    index.insert(small[1000:1001], ids=[77_777])
    index.flush()
    again = pickle.loads(pickle.dumps(index))
    assert again.path == index.path and 77_777 in again
    assert again.stats()["memory"]["budget"] == 64 << 20
    expected = searched(index, queries[:20], 5)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.starmap(searched, [(index, queries[:20], 5)] * 2)
    for ids, distances in found:
        numpy.testing.assert_array_equal(ids, expected[0])
        numpy.testing.assert_array_equal(distances, expected[1])
    index.close()


def test_an_index_of_a_catalog_is_not_pickled(built):
    catalog = stratann.Catalog(built.parent)
    with pytest.raises(TypeError, match="catalog"):
        pickle.dumps(catalog["built.idx"])


def test_a_small_index_answers_what_it_has(small, tmp_path):
    index = stratann.build(small[:5], tmp_path / "five.idx")
    ids, distances = index.search(small[:2], k=8)
    assert sorted(ids[0, :5].tolist()) == list(range(5))
    assert (ids[:, 5:] == 2**64 - 1).all() and numpy.isinf(distances[:, 5:]).all()
    assert numpy.isfinite(distances[:, :5]).all()


def test_pandas_gets_tables(index, small, queries):
    pandas = pytest.importorskip("pandas")
    frame = index.get([5, 900]).to_pandas()
    assert frame.index.tolist() == [5, 900] and frame.index.name == "id"
    numpy.testing.assert_array_equal(frame.loc[900, "vector"], small[900])
    ids, distances = index.search(queries[:3], 4, list_size=40)
    frame = stratann.to_pandas(ids, distances)
    assert list(frame.columns) == ["query", "rank", "id", "distance"] and len(frame) == 12
    numpy.testing.assert_array_equal(frame["id"], ids.reshape(-1))
    assert isinstance(frame, pandas.DataFrame) and frame["id"].dtype == numpy.uint64


def test_pyarrow_gets_tables(index, small, queries):
    pyarrow = pytest.importorskip("pyarrow")
    table = index.get([5, 900]).to_arrow()
    assert table.schema.field("vector").type == pyarrow.list_(pyarrow.uint8(), 128)
    numpy.testing.assert_array_equal(table["vector"][1].as_py(), small[900])
    ids, distances = index.search(queries[:3], 4, list_size=40)
    table = stratann.to_arrow(ids, distances)
    assert table["rank"].to_pylist() == [0, 1, 2, 3] * 3
    assert index.search(index.get([5, 900]).to_arrow()["vector"], 1)[0].shape == (2, 1)


def test_answers_become_columns_without_empty_places():
    from stratann.rows import _columns

    nothing = 2**64 - 1
    columns = _columns(
        numpy.array([[4, nothing], [6, HUGE]], numpy.uint64), numpy.array([[1, numpy.inf], [2, 3]], numpy.float32)
    )
    assert columns["query"].tolist() == [0, 1, 1] and columns["id"].tolist() == [4, 6, HUGE]
    assert _columns(numpy.array([5], numpy.uint64), numpy.array([1], numpy.float32))["rank"].tolist() == [0]
    with pytest.raises(ValueError, match="that a search returned"):
        _columns(numpy.zeros((2, 3), numpy.uint64), numpy.zeros((2, 4), numpy.float32))


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_forked_process_is_told_to_open_the_index(path):
    index = stratann.open(path)
    index[5]
    queue = multiprocessing.get_context("fork").SimpleQueue()

    def child():
        try:
            index[5]
        except Exception as error:
            queue.put(str(error))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert "stratann.open" in queue.get()
