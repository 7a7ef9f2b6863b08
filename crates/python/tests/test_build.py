"""Builds of an index."""

import io
import threading
import time
import warnings

import numpy
import pytest

import stratann
from stratann.progress import Bar

# One thread makes the same graph in every run.
QUICK = {"degree": 24, "build_list": 40, "threads": 1}


def contents(path):
    return {file.name: file.read_bytes() for file in path.iterdir() if file.is_file()}


def test_build_returns_an_open_index_with_a_report(small, tmp_path):
    index = stratann.build(small, tmp_path / "a.idx", **QUICK)
    assert len(index) == 2000
    assert index.build_report["vectors"] == 2000
    assert stratann.open(tmp_path / "a.idx").build_report is None


def test_an_array_and_its_file_give_the_same_index(small, queries, tmp_path):
    file = tmp_path / "small.u8bin"
    stratann.write(file, small)
    one = stratann.build(small, tmp_path / "array.idx", seed=7, **QUICK)
    two = stratann.build(str(file), tmp_path / "file.idx", seed=7, **QUICK)
    # The results of a pipelined search depend on the order of reads.
    for ours, theirs in zip(*(index.search(queries, strategy="best-first") for index in (one, two))):
        numpy.testing.assert_array_equal(ours, theirs)
    ours, theirs = contents(one.path), contents(two.path)
    assert ours.keys() == theirs.keys()
    differ = [name for name in ours if name != "MANIFEST" and ours[name] != theirs[name]]
    assert differ == []


@pytest.mark.parametrize("preset", ["stratann", "diskann", "pipeann", "decouplevs"])
def test_every_preset_finds(preset, small, queries, tmp_path):
    index = stratann.build(small, tmp_path / "a.idx", preset=preset, **QUICK)
    assert index.preset == preset
    found = index.search(queries, 10, list_size=60)
    assert stratann.recall(found, stratann.truth(small, queries, 10)) >= 0.95


@pytest.mark.parametrize("preset", ["spann", "tiered-cluster"])
def test_clusters_are_probed_and_take_changes(preset, small, queries, tmp_path):
    index = stratann.build(small, tmp_path / "a.idx", preset=preset, cluster_size=10, replicas=6)
    assert index.stats()["clusters"]["replicas"] == 6
    truth = stratann.truth(small, queries, 10)
    ids, distances, stats = index.search(queries, 10, probes=20, return_stats=True)
    assert stratann.recall((ids, distances), truth) >= 0.95
    reads = stats["per_query"]["posting_reads"] + stats["per_query"]["group_reads"]
    assert 0 < reads <= 20
    assert (index.search(queries, 10, list_size=20)[0] == ids).all()
    index.insert(queries[:5], ids=numpy.arange(9_000, 9_005))
    index.compact()
    assert index.search(queries[:5], 1, probes=2)[0].ravel().tolist() == list(range(9_000, 9_005))
    assert index.verify()["problems"] == []
    assert index.search(queries, 10, return_stats=True)[2]["per_query"]["hops"] <= 32
    with pytest.raises(ValueError, match="degree"):
        stratann.build(small, tmp_path / "b.idx", preset=preset, degree=16)
    with pytest.raises(ValueError, match="alpha"):
        stratann.build(small, tmp_path / "b.idx", preset=preset, alpha=1.1)
    for option in [{"strategy": "best-first"}, {"whole_page": True}, {"rerank_batch": 5}, {"stop_early": True}]:
        with pytest.raises(ValueError, match="clusters"):
            index.search(queries, **option)


@pytest.mark.parametrize("compression", ["raw", "paper", "best"])
@pytest.mark.parametrize("layout", ["packed", "decoupled"])
def test_every_layout_finds_the_same(layout, compression, small, queries, tmp_path):
    index = stratann.build(small, tmp_path / "a.idx", layout=layout, compression=compression, **QUICK)
    assert index.build_report["layout"] == layout
    stats = index.stats()
    assert stats["layout"] == layout
    assert (stats["vector_ratio"] == 1.0) == (compression == "raw")
    assert index.verify()["problems"] == []
    # With several batches, the first batch without a change would end the ranking.
    found = index.search(queries[:50], 10, list_size=2000, benefit=0.0, rerank_batch=2000)
    exact = stratann.truth(small, queries[:50], 10)
    numpy.testing.assert_array_equal(found[1], exact[1])


def test_the_coupled_layout_compresses_nothing(small, tmp_path):
    index = stratann.build(small, tmp_path / "a.idx", layout="coupled", **QUICK)
    assert index.stats()["layout"] == "coupled" and index.stats()["vector_ratio"] == 1.0
    with pytest.raises(ValueError, match="the coupled layout has no compression. Pass raw"):
        stratann.build(small, tmp_path / "b.idx", layout="coupled", compression="best", **QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["a.idx"]


@pytest.mark.parametrize(("chunk", "segment"), [("16KiB", "64KiB"), (16 << 10, 64 << 10)])
def test_chunks_and_segments_cut_the_vectors(chunk, segment, small, tmp_path):
    index = stratann.build(small, tmp_path / "a.idx", preset="decouplevs", chunk=chunk, segment=segment, **QUICK)
    assert len(list(index.path.glob("vectors-*"))) == 4
    assert index.verify()["problems"] == []


@pytest.mark.parametrize("dtype", [numpy.float32, numpy.float16, numpy.uint8, numpy.int8])
def test_every_dtype_finds(dtype, small, queries, tmp_path):
    shift = 128 if dtype == numpy.int8 else 0
    rows, asked = ((a.astype(numpy.int16) - shift).astype(dtype) for a in (small, queries[:50]))
    index = stratann.build(rows, tmp_path / "a.idx", **QUICK)
    assert index.dtype == dtype
    found = index.search(asked, 10, list_size=60)
    assert stratann.recall(found, stratann.truth(rows, asked, 10)) >= 0.95


@pytest.mark.parametrize("metric", ["cosine", "ip"])
def test_embeddings_find_under_every_metric(metric, fixtures, tmp_path):
    base = stratann.read(fixtures / "package-text-2k.base.fbin")
    queries = stratann.read(fixtures / "package-text-2k.query.fbin")
    truth = stratann.read(fixtures / "package-text-2k.truth100.bin")
    index = stratann.build(base, tmp_path / "a.idx", metric=metric, **QUICK)
    assert index.metric == metric
    ids, distances = index.search(queries, 10, list_size=100)
    if metric == "ip":  # With unit vectors, the truth of cosine holds at another scale.
        distances = distances + 1
        truth = (truth[0], truth[1] + 1e-6)
    assert stratann.recall((ids, distances), truth) >= 0.95


def test_ids_name_the_vectors(small, tmp_path):
    names = numpy.arange(2000, dtype=numpy.uint64) * 3 + 2**40
    index = stratann.build(small, tmp_path / "a.idx", ids=names, **QUICK)
    ids, distances = index.search(small[:100], 1, list_size=40)
    hit = distances[:, 0] == 0
    assert hit.mean() >= 0.95
    same = (small[((ids[hit, 0] - 2**40) // 3).astype(int)] == small[:100][hit]).all(axis=1)
    assert same.all()


@pytest.mark.parametrize(
    ("ids", "error", "text"),
    [
        (numpy.arange(10), ValueError, r"\(10,\)"),
        (numpy.arange(2000) + 0.5, ValueError, "float64"),
        (numpy.arange(2000) - 1, ValueError, "-1"),
        (numpy.zeros(2000, int), ValueError, "0"),
        ([1, 2], ValueError, r"\(2,\)"),
    ],
)
def test_wrong_ids_are_refused(ids, error, text, small, tmp_path):
    with pytest.raises(error, match=text):
        stratann.build(small, tmp_path / "a.idx", ids=ids, **QUICK)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda a: a.astype(bool), TypeError, "bool"),
        (lambda a: a[0], ValueError, r"\(128,\)"),
        (lambda a: a.reshape(20, 100, 128), ValueError, r"\(20, 100, 128\)"),
        (lambda a: a[:, :0], ValueError, r"\(2000, 0\)"),
    ],
)
def test_wrong_arrays_are_refused(change, error, text, small, tmp_path):
    with pytest.raises(error, match=text):
        stratann.build(change(small), tmp_path / "a.idx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [numpy.nan, numpy.inf])
def test_a_number_that_is_none_is_refused(bad, small, tmp_path):
    rows = small.astype(numpy.float32)
    rows[1234, 5] = bad
    with pytest.raises((ValueError, stratann.StratannError), match="1234"):
        stratann.build(rows, tmp_path / "a.idx", **QUICK)
    assert list(tmp_path.iterdir()) == []


def test_a_zero_vector_under_cosine_is_refused(small, tmp_path):
    rows = small.astype(numpy.float32)
    rows[77] = 0
    with pytest.raises((ValueError, stratann.StratannError), match="77"):
        stratann.build(rows, tmp_path / "a.idx", metric="cosine", **QUICK)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "error"),
    [
        ({"metric": "manhattan"}, ValueError),
        ({"preset": "fastest"}, ValueError),
        ({"order": "random"}, ValueError),
        ({"layout": "flat"}, ValueError),
        ({"compression": "zip"}, ValueError),
        ({"chunk": 100}, ValueError),
        ({"chunk": 0}, ValueError),
        ({"chunk": "4 apples"}, ValueError),
        ({"chunk": 1.5}, TypeError),
        ({"segment": 1 << 20}, ValueError),
        ({"segment": -1}, ValueError),
        ({"segment": []}, TypeError),
        ({"degree": 0}, ValueError),
        ({"alpha": 0.5}, ValueError),
        ({"navigation": -1.0}, ValueError),
        ({"code_bytes": 129}, ValueError),
        ({"low_codes": "nested"}, ValueError),
        ({"low_codes": "halves"}, ValueError),
        ({"memory": "2 apples"}, ValueError),
        ({"memory": 0}, ValueError),
        ({"memory": -1}, ValueError),
        ({"memory": 1.5}, TypeError),
        ({"threads": 0}, ValueError),
        ({"progress": "yes"}, TypeError),
    ],
)
def test_wrong_arguments_are_refused(argument, error, small, tmp_path):
    (name,) = argument
    with pytest.raises(error, match=f"{name}|{name.replace('_', '.')}"):
        stratann.build(small, tmp_path / "a.idx", **argument)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("low_codes", [None, "nested", "separate"])
def test_low_codes_find(low_codes, small, queries, tmp_path):
    stratann.train(small, tmp_path / "book", code_bytes=32, low_codes=low_codes or "nested")
    options = {"preset": "distvs", "low_codes": low_codes, "codebook": tmp_path / "book", **QUICK}
    index = stratann.build(small, tmp_path / "a.idx", **options)
    assert index.stats()["code_bytes"] == (48 if low_codes == "separate" else 32)
    asked = queries[:50]
    truth = stratann.truth(small, asked, 10)
    assert stratann.recall(index.search(asked, 10, list_size=60), truth) >= 0.95
    # The search uses high codes alone, from seeds and from the entry node.
    for seeds in (0, 64):
        found = index.search(asked, 10, list_size=60, strategy="best-first", seeds=seeds)
        assert stratann.recall(found, truth) >= 0.95


@pytest.mark.parametrize("memory", ["1GiB", "1GB", " 1024 mib ", "1.5G", 2**30, str(2**30)])
def test_memory_is_bytes_or_text(memory, small, tmp_path):
    assert len(stratann.build(small, tmp_path / "a.idx", memory=memory, **QUICK)) == 2000


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.u8bin"):
        stratann.build(tmp_path / "gone.u8bin", tmp_path / "a.idx")
    assert list(tmp_path.iterdir()) == []


def test_a_cut_file_is_refused(fixtures, tmp_path):
    file = tmp_path / "cut.u8bin"
    file.write_bytes((fixtures / "photo-sift-20k.base.u8bin").read_bytes()[:-1])
    with pytest.raises((ValueError, stratann.StratannError), match=r"cut\.u8bin"):
        stratann.build(file, tmp_path / "a.idx")
    assert list(tmp_path.iterdir()) == [file]


def test_an_index_is_replaced_only_on_demand(small, tmp_path):
    path = tmp_path / "a.idx"
    stratann.build(small, path, **QUICK)
    with pytest.raises(FileExistsError, match="overwrite"):
        stratann.build(small[:1000], path, **QUICK)
    assert len(stratann.open(path)) == 2000
    assert len(stratann.build(small[:1000], path, overwrite=True, **QUICK)) == 1000


def test_progress_tells_every_stage_to_its_end(small, tmp_path):
    calls = []
    stratann.build(small, tmp_path / "a.idx", progress=lambda *call: calls.append(call), **QUICK)
    assert calls
    for stage, done, total in calls:
        assert isinstance(stage, str) and 0 <= done and (done <= total or total == 0)
    complete = [i for i, (_, done, total) in enumerate(calls) if total and done == total]
    assert complete[-1] == len(calls) - 1
    for here, after in zip(complete, complete[1:]):
        assert len({stage for stage, _, _ in calls[here + 1 : after + 1]}) == 1


def test_the_bar_draws_on_a_terminal_and_writes_lines_elsewhere():
    class Stream(io.StringIO):
        def __init__(self, terminal):
            super().__init__()
            self.isatty = lambda: terminal

    calls = [("order", 0, 0), ("order", 7, 7), ("graph", 0, 10), ("graph", 5, 10), ("graph", 10, 10)]
    drawn, written = Stream(True), Stream(False)
    for stream in (drawn, written):
        bar = Bar(stream)
        for call in calls:
            bar(*call)
    assert "50 %" in drawn.getvalue() and "left" in drawn.getvalue() and drawn.getvalue().count("\n") == 2
    lines = written.getvalue().splitlines()
    assert [line.split(" in ")[0] for line in lines] == ["order: begun", "order: done", "graph: begun", "graph: done"]


def test_progress_true_writes_to_standard_error(small, tmp_path, capfd):
    stratann.build(small, tmp_path / "a.idx", progress=True, **QUICK)
    out, err = capfd.readouterr()
    assert out == "" and "done" in err


def test_a_callback_that_raises_stops_the_build(base, tmp_path):
    def refuse(stage, done, total):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        stratann.build(base, tmp_path / "a.idx", progress=refuse)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_the_build_and_leaves_nothing(base, tmp_path, ctrl_c):
    press = ctrl_c(lambda stage, done, total: stage.startswith("graph"))
    with pytest.raises(KeyboardInterrupt) as raised:
        stratann.build(base, tmp_path / "a.idx", degree=64, build_list=400, progress=press)
    assert "nothing was changed" in str(raised.value)
    assert (raised.value.done, raised.value.total, raised.value.complete) == (None, None, False)
    assert list(tmp_path.iterdir()) == []


def stop_in_pass_2(stage, done, total):
    if stage.startswith("graph, pass 2"):
        raise LookupError("enough")


def test_a_build_that_is_stopped_is_resumed_to_the_same_bits(base, tmp_path):
    vectors, options = base[:3000], {"seed": 7, **QUICK}
    whole = stratann.build(vectors, tmp_path / "whole.idx", **options)
    path = tmp_path / "a.idx"
    keeping = {"resume": True, "savepoint_seconds": 0.0, **options}
    with pytest.raises(LookupError, match="enough") as raised:
        stratann.build(vectors, path, progress=stop_in_pass_2, **keeping)
    assert "resume=True" in "".join(getattr(raised.value, "__notes__", ["resume=True"]))
    left = {file.name for file in path.iterdir()}
    assert {"savepoint-order", "savepoint-lists"} <= left
    with pytest.raises(stratann.StratannError, match="no MANIFEST"):
        stratann.open(path)

    resumed = stratann.build(vectors, path, **keeping)
    order, graph = resumed.build_report["resumed"]
    assert order == "order" and graph.startswith("graph, pass ")
    ours, theirs = contents(path), contents(whole.path)
    assert not [name for name in ours if name.startswith("savepoint")]
    # The stopped build may have used the first number of a checkpoint for its files.
    without = lambda files: {name.split("-")[0]: held for name, held in files.items() if name != "MANIFEST"}
    ours, theirs = without(ours), without(theirs)
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []


def test_savepoints_of_other_vectors_are_said_and_not_used(base, tmp_path):
    keeping = {"resume": True, "savepoint_seconds": 0.0, **QUICK}
    with pytest.raises(LookupError):
        stratann.build(base[:3000], tmp_path / "a.idx", progress=stop_in_pass_2, **keeping)
    with pytest.warns(RuntimeWarning, match="other vectors"):
        index = stratann.build(base[1:2000], tmp_path / "a.idx", **keeping)
    assert index.build_report["resumed"] == []
    assert len(index) == 1999


def test_other_threads_run_during_a_build(small, tmp_path):
    laps, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            laps[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    try:
        # A busy machine may give the other thread no time during the first build.
        for turn in range(20):
            before = laps[0]
            stratann.build(small, tmp_path / f"{turn}.idx", threads=1, build_list=100, degree=48)
            counted = laps[0] - before
            if counted > 3:
                break
    finally:
        stop.set()
        thread.join()
    assert counted > 3


def test_a_build_does_not_warn_without_reason(small, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stratann.build(small, tmp_path / "a.idx", **QUICK)


def test_a_folder_that_may_not_be_written_is_refused(small, stranger):
    folder = stranger.folder
    folder.chmod(0o555)
    with stranger, pytest.raises(PermissionError, match="permission denied"):
        stratann.build(small, folder / "a.idx", **QUICK)
    assert list(folder.iterdir()) == []


def test_a_file_that_may_not_be_read_is_refused(small, stranger):
    file = stranger.folder / "secret.u8bin"
    stratann.write(file, small)
    file.chmod(0)
    with stranger, pytest.raises(PermissionError, match=r"secret\.u8bin"):
        stratann.build(file, stranger.folder / "a.idx", **QUICK)
