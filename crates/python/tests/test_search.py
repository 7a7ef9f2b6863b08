"""Opening and searching an index."""

import asyncio
import os
import shutil
import signal
import threading
import time
import warnings

import numpy
import pytest

import stratann
from conftest import PHOTOS


def test_search_finds_what_is_near(index, queries, photos_truth):
    ids, distances = index.search(queries, k=10)
    assert ids.dtype == numpy.uint64 and distances.dtype == numpy.float32
    assert ids.shape == distances.shape == (500, 10)
    assert (numpy.diff(distances, axis=1) >= 0).all()
    assert stratann.recall((ids, distances), photos_truth) >= 0.95


def test_distances_are_exact(index, base, queries):
    ids, distances = index.search(queries, k=10)
    rows = base[ids.astype(numpy.int64)].astype(numpy.float64)
    exact = ((rows - queries[:, None, :]) ** 2).sum(axis=2)
    numpy.testing.assert_array_equal(distances, exact.astype(numpy.float32))


def test_a_longer_list_finds_no_less(index, queries, photos_truth):
    short, long = (stratann.recall(index.search(queries, 10, list_size=size), photos_truth) for size in (10, 100))
    assert short <= long
    assert long >= 0.98


@pytest.mark.parametrize("k", [1, 10, 100])
def test_k_is_the_width(k, index, queries, photos_truth):
    found = index.search(queries, k, list_size=200)
    assert found[0].shape == (500, k)
    assert stratann.recall(found, photos_truth) >= 0.95


def test_one_query_gives_one_row(index, queries):
    # The results of a pipelined search depend on the order of reads.
    many = index.search(queries[:1], 5, strategy="best-first")
    one = index.search(queries[0], 5, strategy="best-first")
    assert one[0].shape == one[1].shape == (5,)
    for row, table in zip(one, many):
        numpy.testing.assert_array_equal(row, table[0])


def test_no_query_gives_no_row(index, queries):
    ids, distances = index.search(queries[:0], 5)
    assert ids.shape == distances.shape == (0, 5)


@pytest.mark.parametrize("strategy", ["best-first", "pipelined", None])
@pytest.mark.parametrize("navigation", [True, False, None])
@pytest.mark.parametrize("whole_page", [True, False, None])
def test_every_way_of_searching_finds(strategy, navigation, whole_page, index, queries, photos_truth):
    found = index.search(
        queries, 10, list_size=60, strategy=strategy, navigation=navigation, whole_page=whole_page
    )
    assert stratann.recall(found, photos_truth) >= 0.95


def mean(index, queries, **options):
    """The mean costs of a query, and the results."""
    ids, distances, stats = index.search(queries, 10, threads=1, return_stats=True, **options)
    return stats["per_query"], (ids, distances)


def test_a_search_stops_early_if_it_is_told_to(index, queries, photos_truth):
    options = {"list_size": 100, "strategy": "best-first"}
    late, _ = mean(index, queries, **options)
    early, found = mean(index, queries, stop_early=True, **options)
    assert early["hops"] < late["hops"]
    assert early["graph_reads"] < late["graph_reads"]
    pipelined = index.search(queries, 10, list_size=100, strategy="pipelined", stop_early=True)
    for found in [found, pipelined]:
        assert stratann.recall(found, photos_truth) >= 0.95


def test_re_ranking_reads_as_much_as_it_is_told_to(apart, queries):
    index = stratann.open(apart)
    options = {"list_size": 100, "strategy": "best-first"}
    all_of_them, exact = mean(index, queries, benefit=0.0, **options)
    for less in [
        {"benefit": 1.0},
        {"benefit": 1, "rerank_batch": 1},
        {"rerank": "estimate"},
        {"rerank": "batches", "rerank_batch": 10, "benefit": 0.01},
    ]:
        cost, found = mean(index, queries, **less, **options)
        assert 10 <= cost["vector_reads"] <= all_of_them["vector_reads"], less
        assert stratann.recall(found, exact) >= 0.9, less
    cost, found = mean(index, queries, rerank_batch=2**63, **options)
    assert cost["vector_reads"] == all_of_them["vector_reads"]
    numpy.testing.assert_array_equal(found[0], exact[0])


def test_exact_distances_are_those_of_whole_vectors(tmp_path, small, queries):
    index = stratann.build(small, tmp_path / "layered", layout="layered", threads=1)
    options = {"list_size": 60, "strategy": "best-first"}
    near, (ids, distances) = mean(index, queries, exact=False, **options)
    exact, (exact_ids, exact_distances) = mean(index, queries, **options)
    assert near["reranked"] < exact["reranked"] and near["vector_reads"] < exact["vector_reads"]
    wide = small.astype(numpy.float64)
    right = ((wide[exact_ids.astype(int)] - queries[:, None].astype(numpy.float64)) ** 2).sum(axis=2)
    numpy.testing.assert_array_equal(exact_distances, right.astype(numpy.float32))
    # An inexact distance does not show whether another vector is as near, so only ids are compared.
    assert stratann.recall((ids, distances), (exact_ids, None)) >= 0.97
    off = numpy.abs(numpy.sort(distances) / exact_distances - 1)
    assert 0 < off.mean() < 0.1
    with pytest.raises(TypeError):
        index.search(queries, exact="very")


@pytest.mark.parametrize(
    "cache", [{"cache": "8MB"}, {"cache": 8 << 20}, {"cache_entries": 2000}, {"cache_entries": "100%"}]
)
def test_a_cache_saves_reads_and_finds_the_same(cache, apart, queries):
    bare, cached = stratann.open(apart), stratann.open(apart, **cache)
    steady = {"strategy": "best-first"}
    without, expected = mean(bare, queries, list_size=60, **steady)
    with_cache, found = mean(cached, queries, list_size=60, **steady)
    assert without["cache_hits"] == 0 and with_cache["cache_hits"] > 0
    assert with_cache["graph_reads"] < without["graph_reads"]
    assert stratann.recall(found, expected) >= 0.99
    # Cached nodes are expanded without a wait, so only a whole list gives the same results.
    whole = {"list_size": 2000, "benefit": 0.0, **steady}
    (_, expected), (cost, found) = mean(bare, queries[:50], **whole), mean(cached, queries[:50], **whole)
    assert cost["cache_hits"] > 1000
    for ours, theirs in zip(expected, found):
        numpy.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ({"cache": 0}, ValueError),
        ({"cache": "3 apples"}, ValueError),
        ({"cache": 1.5}, TypeError),
        ({"cache_entries": 0}, ValueError),
        ({"cache_entries": -1}, ValueError),
        ({"cache_entries": True}, TypeError),
        ({"cache_entries": 1.5}, TypeError),
        ({"cache_entries": "1"}, ValueError),
        ({"cache_entries": "0%"}, ValueError),
        ({"cache_entries": "101%"}, ValueError),
        ({"cache_entries": "nan%"}, ValueError),
        ({"cache_entries": "1%", "cache": "1MB"}, ValueError),
    ],
)
def test_wrong_caches_are_refused(argument, error, apart):
    with pytest.raises(error, match=next(iter(argument))):
        stratann.open(apart, **argument)


def test_threads_and_queries_in_flight_do_not_change_answers(index, queries):
    options = {"list_size": 60, "strategy": "best-first"}
    alone = index.search(queries, threads=1, in_flight=1, **options)
    for threads, in_flight in [(2, 1), (1, 8), (3, 4)]:
        crowd = index.search(queries, threads=threads, in_flight=in_flight, **options)
        for ours, theirs in zip(alone, crowd):
            numpy.testing.assert_array_equal(ours, theirs)


def test_one_index_serves_many_python_threads(index, queries):
    expected = index.search(queries, threads=1, strategy="best-first")
    found = [None] * 4

    def work(i):
        found[i] = index.search(queries, threads=1, strategy="best-first")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for ids, distances in found:
        numpy.testing.assert_array_equal(ids, expected[0])
        numpy.testing.assert_array_equal(distances, expected[1])


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_forked_process_is_told_to_open_the_index_itself(photos, queries):
    index = stratann.open(photos)
    expected = index.search(queries, strategy="best-first")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"nothing"
        try:
            signal.alarm(300)
            try:
                index.search(queries)
            except stratann.StratannError as error:
                said = str(error).encode()
            assert len(index) == PHOTOS
            del index
            found = stratann.open(photos).search(queries, strategy="best-first")
            assert (found[0] == expected[0]).all()
            os.write(writer, said)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert b"stratann.open" in pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    numpy.testing.assert_array_equal(index.search(queries, strategy="best-first")[0], expected[0])


def test_other_threads_run_during_a_search(index, queries):
    laps, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            laps[0] += 1
            time.sleep(0.001)

    many = numpy.tile(queries, (4, 1))
    thread = threading.Thread(target=count)
    thread.start()
    try:
        # A busy machine may give the other thread no time during the first search.
        for _ in range(20):
            before = laps[0]
            index.search(many, 10, list_size=100, threads=1)
            counted = laps[0] - before
            if counted > 3:
                break
    finally:
        stop.set()
        thread.join()
    assert counted > 3


def test_results_own_their_memory(index, queries):
    ids, distances = index.search(queries, 10)
    copies = ids.copy(), distances.copy()
    assert ids.flags.writeable and ids.flags.c_contiguous
    for _ in range(3):
        index.search(queries[::-1].copy(), 10)
    numpy.testing.assert_array_equal(ids, copies[0])
    numpy.testing.assert_array_equal(distances, copies[1])
    ids[0, 0] = 7


def test_read_only_queries_are_read(index, queries, fixtures):
    mapped = stratann.read(fixtures / "photo-sift-20k.query.u8bin", mmap=True)
    assert not mapped.flags.writeable
    mine, theirs = (index.search(rows, strategy="best-first")[0] for rows in (queries, mapped))
    numpy.testing.assert_array_equal(mine, theirs)


def test_stats_of_a_search_count(index, queries):
    ids, _, stats = index.search(queries, 10, list_size=50, return_stats=True)
    assert ids.shape == (500, 10)
    assert {"list", "k", "qps", "latency_us", "per_query", "threads", "peak_rss_bytes"} <= stats.keys()
    assert stats["k"] == 10 and stats["list"] == 50 and stats["queries"] == 500
    assert stats["qps"] == pytest.approx(500 / stats["seconds"])
    latencies, latency = stats["latencies_us"], stats["latency_us"]
    assert latencies.shape == (500,) and (latencies > 0).all()
    assert latencies.min() <= latency["p50"] <= latency["p90"] <= latency["p99"] <= latencies.max()
    assert latency["p50"] == numpy.sort(latencies)[249] and latency["p99"] == numpy.sort(latencies)[494]
    assert latency["mean"] == pytest.approx(latencies.mean(), rel=1e-4)
    assert set(stats["per_query"]) == {
        "hops", "graph_reads", "vector_reads", "prefetched", "reranked", "bytes_read", "cache_hits",
        "distance_computations", "low_computations", "posting_reads", "group_reads", "stray_reads",
    }  # fmt: skip
    assert 1 <= stats["per_query"]["graph_reads"] <= stats["per_query"]["bytes_read"] / 4096


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda q: q + 0.5, ValueError, r"is no uint8\. .*pass queries\.astype\(numpy\.uint8\)"),
        (lambda q: None, TypeError, "None"),
        (lambda q: q[:, :64].copy(), ValueError, r"\(500, 64\).*128"),
        (lambda q: q[0, :64].copy(), ValueError, r"\(64,\).*128"),
        (lambda q: q[None], ValueError, r"\(1, 500, 128\)"),
        (lambda q: q[:, ::2], ValueError, r"\(500, 64\).*128"),
        (lambda q: numpy.uint8(3), ValueError, r"\(\)"),
    ],
)
def test_wrong_queries_are_refused(change, error, text, index, queries):
    with pytest.raises(error, match=text):
        index.search(change(queries))


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ({"k": 0}, ValueError),
        ({"k": 65_537}, ValueError),
        ({"k": -1}, (ValueError, OverflowError)),
        ({"k": "ten"}, TypeError),
        ({"k": 10, "list_size": 5}, ValueError),
        ({"beam": 0}, ValueError),
        ({"in_flight": 0}, ValueError),
        ({"threads": 0}, ValueError),
        ({"strategy": "guess"}, ValueError),
        ({"rerank_batch": 0}, ValueError),
        ({"rerank_batch": -1}, (ValueError, OverflowError)),
        ({"benefit": 1.5}, ValueError),
        ({"benefit": -0.1}, ValueError),
        ({"benefit": float("nan")}, ValueError),
        ({"benefit": "much"}, TypeError),
        ({"rerank": "estimates"}, ValueError),
    ],
)
def test_wrong_search_arguments_are_refused(argument, error, index, queries):
    with pytest.raises(error):
        index.search(queries, **argument)


def test_what_an_index_says_of_itself(index, photos):
    assert len(index) == PHOTOS
    assert index.dim == 128
    assert index.metric == "l2"
    assert index.dtype == numpy.uint8
    assert index.preset == "stratann"
    assert index.path == photos
    text = repr(index)
    for word in ("photos.idx", str(PHOTOS), "128", "uint8", "l2", "stratann"):
        assert word in text


def test_stats_have_the_keys_of_the_command_line(index):
    stats = index.stats()
    assert stats["vectors"] == PHOTOS and stats["dimension"] == 128
    assert {
        "preset", "element", "metric", "degree_mean", "degree_max", "bytes", "bits_per_edge", "vector_ratio",
        "deleted", "format_version",
    } <= stats.keys()  # fmt: skip
    sizes = stats["bytes"]
    assert {"graph", "vectors", "codes", "ids", "other", "total"} <= sizes.keys()
    assert sizes["total"] == sum(size for name, size in sizes.items() if name != "total")


@pytest.mark.parametrize("io", ["auto", "pread"])
def test_every_way_of_reading_finds(io, photos, queries, photos_truth):
    index = stratann.open(photos, io=io)
    assert stratann.recall(index.search(queries), photos_truth) >= 0.95


def test_open_takes_paths_and_text(photos):
    assert len(stratann.open(str(photos))) == len(stratann.open(photos)) == PHOTOS


def test_a_user_who_may_only_read_gets_the_same_answers(photos, index, queries, stranger):
    copy = stranger.folder / "photos.idx"
    shutil.copytree(photos, copy)
    for file in copy.iterdir():
        file.chmod(0o444)
    copy.chmod(0o555)
    expected = index.search(queries, strategy="best-first")
    with stranger:
        found = stratann.open(copy).search(queries, strategy="best-first")
        assert stratann.verify(copy)["problems"] == []
    copy.chmod(0o755)
    for ours, theirs in zip(expected, found):
        numpy.testing.assert_array_equal(ours, theirs)


def test_a_budget_is_divided_with_or_without_the_navigation_graph(photos, queries):
    without = stratann.open(photos, memory="64MiB", navigation=False)
    with pytest.raises(ValueError, match="budget"):
        without.search(queries[:1], navigation=True)
    within = stratann.open(photos, memory="64MiB", navigation=True)
    assert within.search(queries[:1], navigation=True)[0].shape == (1, 10)


def test_open_under_a_budget(photos, queries, photos_truth):
    index = stratann.open(photos, memory="64MiB")
    assert stratann.recall(index.search(queries), photos_truth) >= 0.95


def test_open_under_too_small_a_budget_is_refused(photos):
    with pytest.raises((ValueError, stratann.StratannError), match="memory"):
        stratann.open(photos, memory=1)


def test_open_with_an_unknown_io_is_refused(photos):
    with pytest.raises(ValueError, match="io"):
        stratann.open(photos, io="magic")


def test_a_missing_index_is_not_found(tmp_path):
    for function in (stratann.open, stratann.verify):
        with pytest.raises(FileNotFoundError, match=r"gone\.idx"):
            function(tmp_path / "gone.idx")


def test_a_folder_that_is_no_index_is_refused(tmp_path):
    with pytest.raises((ValueError, FileNotFoundError, stratann.StratannError), match=str(tmp_path)):
        stratann.open(tmp_path)


def test_a_file_that_is_no_index_is_refused(fixtures):
    with pytest.raises((ValueError, OSError, stratann.StratannError), match="README"):
        stratann.open(fixtures / "README.md")


def test_a_cut_file_is_refused(photos, queries, tmp_path):
    for name in sorted(file.name for file in photos.iterdir() if file.stat().st_size > 1):
        if name.startswith(("ids-", "recall-")):
            continue
        copy = tmp_path / f"{name}.idx"
        cut_in_half(photos, copy, name)
        with pytest.raises((stratann.StratannError, ValueError), match=name):
            # Opening loads the data that every search needs, and under a budget the data that is
            # read most. The first search loads the rest. An index with a cache is not unpacked, so
            # it needs the counts of reads.
            stratann.open(copy, memory="64MiB", cache="64KiB").search(queries[:1], recall=0.9)


def test_few_vectors_are_all_looked_at_without_a_cut_file_of_recall(photos, photos_truth, queries, tmp_path):
    (name,) = (file.name for file in photos.iterdir() if file.name.startswith("recall-"))
    copy = tmp_path / "a.idx"
    cut_in_half(photos, copy, name)
    found = stratann.open(copy).search(queries[:30], recall=0.9)
    assert stratann.recall(found, tuple(each[:30] for each in photos_truth), 10) == 1
    assert any(name in problem for problem in map(str, stratann.verify(copy)["problems"]))


def test_a_recall_beyond_the_measurement_brings_a_warning(photos, queries):
    index = stratann.open(photos)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.search(queries, recall=0.95)
    beyond = "recall is 1; the measurement of this index reached at most 0.99.*give a list size above"
    for some in (queries[0], queries[:1], queries):
        with pytest.warns(RuntimeWarning, match=beyond) as told:
            found = index.search(some, recall=1)
        assert len(told) == 1 and told[0].filename == __file__
        assert found[0].shape == (*some.shape[:-1], 10)
    with pytest.warns(RuntimeWarning, match=beyond):
        asyncio.run(ended(index, queries[:1]))
    with pytest.warns(RuntimeWarning, match=beyond):
        index.search_like([3, 4], recall=1)
    catalog = stratann.Catalog(photos.parent)
    with pytest.warns(RuntimeWarning, match=f"{photos.name}: {beyond}"):
        catalog.search(queries[:1], recall=1, names=[photos.name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match=beyond):
            index.search(queries[:1], recall=1)


async def ended(index, query, **options):
    return await index.search_async(query, **{"recall": 1, **options})


def test_the_stats_have_the_list_size_that_reaches_the_recall(photos, queries):
    index = stratann.open(photos)
    _, _, stats = index.search(queries[:2], recall=0.5, return_stats=True)
    _, _, default = index.search(queries[:2], return_stats=True)
    assert stats["list"] != default["list"]
    _, _, awaited = asyncio.run(ended(index, queries[:2], recall=0.5, return_stats=True))
    _, _, like = index.search_like([3, 4], recall=0.5, return_stats=True)
    assert awaited["list"] == like["list"] == stats["list"]


def test_look_ups_do_without_a_cut_file_of_ids(photos, base, tmp_path, caplog):
    (name,) = (file.name for file in photos.iterdir() if file.name.startswith("ids-"))
    copy = tmp_path / "a.idx"
    cut_in_half(photos, copy, name)
    with caplog.at_level("WARNING", "stratann"):
        index = stratann.open(copy)
        assert (index[7] == base[7]).all() and 20_000 not in index
    assert name in caplog.text and "stratann compact" in caplog.text
    assert any(name in problem for problem in map(str, index.verify()["problems"]))


def cut_in_half(index, copy, name):
    """Copies an index, and cuts the file of this name in half."""
    shutil.copytree(index, copy)
    file = copy / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_verify_of_a_whole_index_is_clean(photos, index):
    assert stratann.verify(photos)["problems"] == []
    assert index.verify()["problems"] == []


def test_verify_finds_a_flipped_bit_in_any_file(photos, tmp_path):
    names = sorted(file.name for file in photos.iterdir() if file.stat().st_size > 1)
    assert names
    for name in names:
        copy = tmp_path / f"{name}.idx"
        shutil.copytree(photos, copy)
        file = copy / name
        data = bytearray(file.read_bytes())
        data[len(data) * 2 // 3] ^= 0x10
        file.write_bytes(data)
        try:
            problems = stratann.verify(copy)["problems"]
        except stratann.StratannError as error:
            assert name in str(error)
        else:
            assert problems and name in str(problems), name


def test_damage_is_found_by_search_too(photos, queries, tmp_path):
    copy = tmp_path / "a.idx"
    shutil.copytree(photos, copy)
    largest = max(copy.iterdir(), key=lambda file: file.stat().st_size)
    data = bytearray(largest.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page + 100] ^= 1
    largest.write_bytes(data)
    with pytest.raises(stratann.StratannError, match=largest.name):
        stratann.open(copy).search(queries)


@pytest.fixture(scope="module")
def texts(fixtures):
    return stratann.read(fixtures / "package-text-2k.base.fbin")[:600]


@pytest.fixture(scope="module", params=["l2", "cosine"])
def embedded(request, tmp_path_factory, texts):
    """An index of embeddings, with vectors in two parts, and its metric."""
    path = tmp_path_factory.mktemp("embedded") / request.param
    stratann.build(texts, path, metric=request.param, layout="layered", degree=24, build_list=40, calibrate=False, threads=1)
    return path, request.param


def test_distances_of_embeddings_are_exact_unless_others_are_asked_for(embedded, texts):
    path, metric = embedded
    # A catalog of one index needs no exact distances, unlike one of several.
    index, catalog = stratann.open(path), stratann.Catalog(path.parent)
    queries = texts[:100]
    wide = texts.astype(numpy.float64)
    awaited = asyncio.run(awaiting(index, queries))
    for found in [
        index.search(queries, 10),
        awaited,
        catalog.search(queries, 10, names=[path.name]),
        index.search_like(numpy.arange(100), 10),
        index.search(queries, 10, exact=True),
    ]:
        ids, distances = found
        rows, asked = wide[ids.astype(int)], wide[:100, None]
        products = (rows * asked).sum(axis=2)
        lengths = numpy.linalg.norm(rows, axis=2) * numpy.linalg.norm(asked, axis=2)
        right = ((rows - asked) ** 2).sum(axis=2) if metric == "l2" else 1 - products / lengths
        numpy.testing.assert_allclose(distances, right, atol=1e-6)
        assert (numpy.diff(distances, axis=1) >= 0).all()
    ids, distances = index.search(queries, 10)
    assert (ids[:, 0] == numpy.arange(100)).mean() > 0.99 and (distances[:, 0] < 1e-6).all()


async def awaiting(index, queries):
    return await index.search_async(queries, 10)


def test_no_estimate_is_nearer_than_nothing(embedded, texts):
    index = stratann.open(embedded[0])
    estimates = [index.search(texts, k, list_size=60, strategy="best-first", exact=False) for k in (1, 2, 10)]
    for ids, distances in estimates:
        assert (distances >= 0).all() and (numpy.diff(distances, axis=1) >= 0).all()
        # Of equal distances, the smaller id comes first.
        tied = numpy.diff(distances, axis=1) == 0
        assert (numpy.diff(ids.astype(numpy.int64), axis=1)[tied] > 0).all()
    exact = index.search(texts, 10, list_size=60, strategy="best-first")
    assert (estimates[-1][1] != exact[1]).any()
