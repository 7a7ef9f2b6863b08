"""Calls the module as the benchmark's runner does. If there is a checkout, the runner itself also
calls the module.
"""

import importlib
import os

import numpy
import pytest
import yaml

N, K = 3_000, 10
RNG = numpy.random.default_rng(2)
ROWS, QUERIES = (RNG.standard_normal((n, 20), dtype=numpy.float32) for n in (N, 40))


def made(metric="euclidean", **parameters):
    return importlib.import_module("ann_benchmarks.algorithms.stratann.module").Stratann(metric, parameters)


def nearest(metric):
    if metric == "angular":
        unit = [rows / numpy.linalg.norm(rows, axis=1, keepdims=True) for rows in (ROWS, QUERIES)]
        far = -unit[1] @ unit[0].T
    else:
        far = ((QUERIES[:, None] - ROWS[None]) ** 2).sum(axis=2)
    return numpy.argsort(far, axis=1)[:, :K]


def recall(found, metric):
    assert all(len(row) == len(set(row)) == K for row in found)
    return numpy.mean([len(set(row) & set(truth)) / K for row, truth in zip(found, nearest(metric).tolist())])


@pytest.mark.parametrize(("metric", "parameters", "effort"), [("angular", {"degree": 32, "memory": "64MiB"}, 80), ("euclidean", {"preset": "spann"}, 64)])
def test_answers(metric, parameters, effort):
    one = made(metric, **parameters)
    one.fit(ROWS.astype(numpy.float64))
    one.set_query_arguments(1)
    worse = recall([one.query(query, K) for query in QUERIES], metric)
    one.set_query_arguments(effort)
    single = [one.query(query, K).tolist() for query in QUERIES]
    assert recall(single, metric) >= 0.95 > worse and str(effort) in str(one)
    one.batch_query(QUERIES, K)
    assert [row.tolist() for row in one.get_batch_results()] == single
    assert len(one.query(QUERIES[0], N + 5)) <= N
    folder = one.folder
    one.done()
    assert not os.path.exists(folder)


def test_other_metrics_are_refused():
    with pytest.raises(ValueError, match="jaccard"):
        made("jaccard")


def test_the_configuration_names_what_there_is(place):
    [given] = yaml.safe_load((place / "ann_benchmarks/algorithms/stratann/config.yml").read_text())["float"]["any"]
    for group in given["run_groups"].values():
        one = made("euclidean", **group["arg_groups"][0])
        one.fit(ROWS[:500])
        for effort in group["query_args"][0]:
            one.set_query_arguments(effort)
            assert len(one.query(QUERIES[0], K)) == K
        one.done()


checkout = pytest.mark.skipif("ANN_BENCHMARKS" not in os.environ, reason="ANN_BENCHMARKS does not say where a checkout is")


@checkout
@pytest.mark.parametrize("batch", [False, True])
def test_the_runner(batch):
    from ann_benchmarks.runner import run_individual_query

    one = made("euclidean", degree=32)
    one.fit(ROWS)
    one.set_query_arguments(80)
    attributes, results = run_individual_query(one, ROWS, QUERIES, "euclidean", K, 1, batch)
    assert attributes["candidates"] == K
    assert recall([[id for id, _ in found] for _, found in results], "euclidean") >= 0.95
    one.done()


@checkout
def test_definitions_are_read(place, monkeypatch):
    from ann_benchmarks import definitions

    monkeypatch.chdir(place)
    found = [one for one in definitions.get_definitions(20, "float", "euclidean", K) if one.algorithm == "stratann"]
    assert len(found) == 3
    for one in found:
        assert definitions.algorithm_status(one) == definitions.InstantiationStatus.AVAILABLE
        definitions.instantiate_algorithm(one)
