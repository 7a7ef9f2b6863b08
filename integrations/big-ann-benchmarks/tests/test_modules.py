"""Calls the modules of the three tracks as the benchmark's runners do. If there is a checkout, the
runners themselves also call the modules.
"""

import importlib
import os

import numpy
import pytest
import yaml

K = 10


def modules(track, name):
    return importlib.import_module(f"neurips23.{track}.stratann.stratann_{track}" if track else name).Stratann


def nearest(data, query, rows):
    far = ((data.rows[rows].astype(numpy.int64) - query.astype(numpy.int64)) ** 2).sum(axis=1)
    return set(rows[numpy.argsort(far, kind="stable")[:K]].tolist())


def recall(data, found, rows_of):
    assert found.shape == (data.nq, K) and found.dtype == numpy.int32
    hits = 0
    for at, row in enumerate(found.tolist()):
        rows = rows_of(at)
        assert set(row) <= set(rows.tolist())
        hits += len(set(row) & nearest(data, data.queries[at], rows))
    return hits / found.size


def every(data):
    return lambda at: numpy.arange(data.nb)


def test_disk(data):
    made = modules(None, "benchmark.algorithms.stratann_disk")("euclidean", {"degree": 32, "memory": "64MiB"})
    assert made.track() == "T2" and not made.load_index("random-3000")
    made.fit("random-3000")
    made.set_query_arguments({"list_size": 60})
    made.query(data.get_queries(), K)
    assert recall(data, made.get_results(), every(data)) >= 0.95
    assert made.get_additional()["mean_ssd_ios"] == 0  # memory has space for the whole index
    again = modules(None, "benchmark.algorithms.stratann_disk")("euclidean", {"degree": 32})
    assert again.load_index("random-3000")
    again.query(data.get_queries(), K)
    more = again.get_additional()
    assert more["mean_ssd_ios"] > 0 and more["dist_comps"] > data.nq and more["mean_latency"] > 0
    folder, prefix, parts = again.index_files_to_store("random-3000")
    assert "MANIFEST" in parts and all(os.path.exists(f"{folder}/{prefix}{part}") for part in parts)
    assert "degree" in str(again)
    with pytest.raises(ValueError, match="hamming"):
        modules(None, "benchmark.algorithms.stratann_disk")("hamming", {})


def test_fewer_answers_than_were_asked_for(data):
    disk = importlib.import_module("benchmark.algorithms.stratann_disk")
    assert disk.as_results(numpy.array([[3, 2**64 - 1]], numpy.uint64)).tolist() == [[3, -1]]


def wanted_rows(data):
    base, queries = data.get_dataset_metadata().toarray(), data.get_queries_metadata().toarray()
    return lambda at: numpy.flatnonzero((base >= queries[at]).all(axis=1))


def test_filter(data):
    made = modules("filter", None)("euclidean", {"workers": 4})
    assert made.track() == "filter"
    made.fit("random-3000")
    made.set_query_arguments({"list_size": 60})
    made.filtered_query(data.get_queries(), data.get_queries_metadata(), K)
    assert recall(data, made.get_results(), wanted_rows(data)) >= 0.95
    made.query(data.get_queries(), K)
    assert recall(data, made.get_results(), every(data)) >= 0.95


RUNBOOK = [
    {"operation": "insert", "start": 0, "end": 1_000},
    {"operation": "search"},
    {"operation": "insert", "start": 1_000, "end": 2_500},
    {"operation": "delete", "start": 200, "end": 700},
    {"operation": "search"},
    {"operation": "replace", "tags_start": 0, "tags_end": 100, "ids_start": 2_500, "ids_end": 2_600},
    {"operation": "search"},
]


def test_streaming(data):
    made = modules("streaming", None)("euclidean", {"degree": 32})
    made.setup(data.dtype, 3_000, data.d)
    made.set_query_arguments({"list_size": 60})
    results = []
    for step in RUNBOOK:
        if step["operation"] == "insert":
            made.insert(data.rows[step["start"] : step["end"]], numpy.arange(step["start"], step["end"], dtype=numpy.uint32))
        elif step["operation"] == "delete":
            made.delete(numpy.arange(step["start"], step["end"], dtype=numpy.uint32))
        elif step["operation"] == "replace":
            made.replace(data.rows[step["ids_start"] : step["ids_end"]], numpy.arange(step["tags_start"], step["tags_end"], dtype=numpy.uint32))
        else:
            made.query(data.get_queries(), K)
            results.append(made.get_results())
    check_streaming(data, results)
    made.done()
    assert not os.path.exists(made.folder)


def check_streaming(data, results):
    alive = numpy.concatenate([numpy.arange(200), numpy.arange(700, 2_500)])
    assert recall(data, results[0], lambda at: numpy.arange(1_000)) >= 0.95
    assert recall(data, results[1], lambda at: alive) >= 0.95
    data.rows[:100] = data.rows[2_500:2_600]
    assert recall(data, results[2], lambda at: alive) >= 0.95


def test_configurations_name_what_there_is(place):
    files = [("algos-stratann.yaml", None), ("neurips23/filter/stratann/config.yaml", "filter"), ("neurips23/streaming/stratann/config.yaml", "streaming")]
    for name, _ in files:
        for algorithms in yaml.safe_load((place / name).read_text()).values():
            given = algorithms["stratann"]
            group = given["run-groups"]["base"]
            for arguments in yaml.safe_load(group["args"]):
                made = getattr(importlib.import_module(given["module"]), given["constructor"])("euclidean", arguments)
                for query in yaml.safe_load(group["query-args"]):
                    made.set_query_arguments(query)


checkout = pytest.mark.skipif("BIG_ANN_BENCHMARKS" not in os.environ, reason="BIG_ANN_BENCHMARKS does not say where a checkout is")


@checkout
def test_the_runner_of_the_disk_track(data):
    from benchmark.algorithms.base_runner import BaseRunner

    made = modules(None, "benchmark.algorithms.stratann_disk")("euclidean", {"degree": 32})
    assert BaseRunner.build(made, "random-3000") > 0
    attributes, results = BaseRunner.run_task(made, data, "euclidean", K, 2, "knn", False)
    assert recall(data, results, every(data)) >= 0.95 and attributes["mean_ssd_ios"] > 0


@checkout
def test_the_runner_of_the_filter_track(data):
    from neurips23.filter.run import FilterRunner

    made = modules("filter", None)("euclidean", {})
    FilterRunner.build(made, "random-3000")
    attributes, results = FilterRunner.run_task(made, data, "euclidean", K, 1, "knn_filtered", False)
    assert recall(data, results, wanted_rows(data)) >= 0.95 and attributes["type"] == "knn_filtered"


@checkout
def test_the_runner_of_the_streaming_track(data):
    from neurips23.streaming.run import StreamingRunner

    made = modules("streaming", None)("euclidean", {})
    StreamingRunner.build(made, "random-3000", 3_000)
    attributes, results = StreamingRunner.run_task(made, data, "euclidean", K, 1, "knn", False, RUNBOOK)
    check_streaming(data, results)
    assert attributes["num_searches"] == 3


@checkout
def test_definitions_are_read(place, monkeypatch):
    from benchmark.algorithms import definitions

    monkeypatch.chdir(place)
    found = definitions.get_definitions("algos-stratann.yaml", 16, "random-xs")
    found += [one for one in definitions.get_all_definitions("neurips23/filter", 192, "yfcc-10M", "euclidean", 10) if one.algorithm == "stratann"]
    found += [one for one in definitions.get_all_definitions("neurips23/streaming", 100, "msturing-10M", "euclidean", 10) if one.algorithm == "stratann"]
    assert len(found) == 3
    for definition in found:
        assert definitions.algorithm_status(definition) == definitions.InstantiationStatus.AVAILABLE
        assert definitions.instantiate_algorithm(definition).name == "stratann"
