"""Uses the client as VectorDBBench does, with the classes of the real package and its runner of
searches.
"""

import concurrent.futures
import copy
import multiprocessing
import pickle

import numpy
import pytest
from click.testing import CliRunner
from vectordb_bench.backend.clients import DB, MetricType
from vectordb_bench.backend.filter import IntFilter, LabelFilter, non_filter
from vectordb_bench.backend.runner.serial_runner import SerialSearchRunner
from vectordb_bench.cli.vectordbbench import cli

N, D = 2_000, 16
ROWS = numpy.random.default_rng(1).standard_normal((N, D), dtype=numpy.float32)
LABELS = [f"label_{(1, 5, 20)[at % 3]}p" for at in range(N)]


def client(path, **kwargs):
    case = DB.Stratann.case_config_cls()(metric_type=MetricType.COSINE, list_size=60, memory="64MiB")
    config = DB.Stratann.config_cls(path=str(path)).to_dict()
    return DB.Stratann.init_cls(dim=D, db_config=config, db_case_config=case, with_scalar_labels=True, **kwargs)


@pytest.fixture
def loaded(tmp_path):
    made = client(tmp_path, drop_old=True)
    with made.init():
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            batches = [range(at, at + 100) for at in range(0, N, 100)]
            done = list(pool.map(lambda ids: made.insert_embeddings(ROWS[ids].tolist(), list(ids), [LABELS[at] for at in ids]), batches))
        assert done == [(100, None)] * len(batches)
        made.optimize()
    return made


def nearest(query, ids):
    cosine = ROWS[ids] @ query / numpy.linalg.norm(ROWS[ids], axis=1)
    return {int(ids[at]) for at in numpy.argsort(-cosine)[:10]}


@pytest.mark.parametrize(
    ("wanted", "ids"),
    [
        (non_filter, numpy.arange(N)),
        (IntFilter(filter_rate=0.9, int_value=1_800), numpy.arange(1_800, N)),
        (LabelFilter(label_percentage=0.05), numpy.arange(1, N, 3)),
    ],
)
def test_answers(loaded, wanted, ids):
    assert loaded.filter_supported(wanted)
    hits = 0
    with loaded.init():
        loaded.prepare_filter(wanted)
        for query in ROWS[:50] + numpy.float32(0.3):
            found = loaded.search_embedding(query.tolist(), 10)
            assert len(found) == 10 and set(found) <= set(ids.tolist()) and type(found[0]) is int
            hits += len(set(found) & nearest(query, ids))
    assert hits >= 0.95 * 500


def test_the_runner_of_searches(loaded):
    queries = (ROWS[:20] + numpy.float32(0.3)).tolist()
    truth = [sorted(nearest(numpy.float32(query), numpy.arange(N))) for query in queries]
    (recall, *_), _ = SerialSearchRunner(loaded, queries, truth, k=10).run()
    assert recall >= 0.95


def search_there(db):
    with db.init():
        return db.search_embedding(ROWS[7].tolist(), 3)


def test_other_processes_search(loaded):
    with loaded.init():
        expected = loaded.search_embedding(ROWS[7].tolist(), 3)
        assert expected[0] == 7
        assert search_there(copy.deepcopy(loaded)) == expected
        assert pickle.loads(pickle.dumps(loaded)).index is None
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(search_there, [loaded] * 4) == [expected] * 4


def test_it_is_there_until_it_is_dropped(loaded, tmp_path):
    again = client(tmp_path)
    with again.init():
        assert again.search_embedding(ROWS[3].tolist(), 1) == [3]
        assert again.insert_embeddings([[1.0] * D], [N], ["label_1p"]) == (1, None)
        assert again.search_embedding([1.0] * D, 1) == [N]
        again.optimize()
        count, error = again.insert_embeddings([[1.0] * D], [N], ["label_1p"])
        assert count == 0 and isinstance(error, ValueError)
    empty = client(tmp_path, drop_old=True)
    with empty.init():
        with pytest.raises(RuntimeError, match="no index yet"):
            empty.search_embedding(ROWS[3].tolist(), 1)
        with pytest.raises(RuntimeError, match="no vectors were inserted"):
            empty.optimize()


def test_configurations():
    made = DB.Stratann.case_config_cls()
    assert made(metric_type=MetricType.L2, degree=32).index_param() == {"metric": "l2", "preset": "stratann", "build_list": 100, "degree": 32}
    assert made(metric_type=MetricType.DP, recall=0.9).search_param() == {"recall": 0.9, "exact": False}
    with pytest.raises(ValueError, match="HAMMING"):
        made(metric_type=MetricType.HAMMING).index_param()


def test_the_command():
    found = CliRunner().invoke(cli, ["stratann", "--help"])
    assert found.exit_code == 0 and "--list-size" in found.output
