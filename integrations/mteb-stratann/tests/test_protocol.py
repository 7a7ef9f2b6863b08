"""Uses the index as MTEB's wrapper of encoders does. If torch is installed, also runs MTEB's own
mock tasks with the index. MTEB runs no task without torch.
"""

import inspect
import types

import numpy
import pytest
import stratann
from mteb.models.model_meta import ScoringFunction
from mteb.models.search_encoder_index import IndexEncoderSearchProtocol
from mteb_stratann import StratannSearchIndex

RNG = numpy.random.default_rng(4)
CORPUS, QUERIES = (RNG.standard_normal((n, 24), dtype=numpy.float32) for n in (1_500, 30))
IDS = [f"d{at}" for at in range(len(CORPUS))]
SIMILARITIES = [ScoringFunction.COSINE, ScoringFunction.DOT_PRODUCT, ScoringFunction.EUCLIDEAN]


def model(similarity):
    return types.SimpleNamespace(mteb_model_meta=types.SimpleNamespace(similarity_fn_name=similarity))


def exact(similarity, queries, corpus):
    if similarity == ScoringFunction.EUCLIDEAN:
        return -numpy.linalg.norm(queries[:, None] - corpus[None], axis=2)
    if similarity == ScoringFunction.COSINE:
        queries, corpus = (rows / numpy.linalg.norm(rows, axis=1, keepdims=True) for rows in (queries, corpus))
    return queries @ corpus.T


def asked_for(similarity):
    raise AssertionError("the similarity was asked")


def test_it_has_the_methods_of_the_protocol():
    for name in ("add_documents", "search", "clear"):
        theirs, ours = (inspect.signature(getattr(one, name)).parameters for one in (IndexEncoderSearchProtocol, StratannSearchIndex))
        assert list(ours) == list(theirs) and [one.default for one in ours.values()] == [one.default for one in theirs.values()]


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_the_corpus_is_searched(similarity, tmp_path):
    index = StratannSearchIndex(model(similarity), tmp_path / "here", memory="64MiB", list_size=100)
    index.add_documents(CORPUS[:1_000], IDS[:1_000])
    index.add_documents(CORPUS[1_000:].astype(numpy.float64), IDS[1_000:])
    scores, places = index.search(QUERIES, 10, asked_for)
    expected = exact(similarity, QUERIES, CORPUS)
    hits = 0
    for row, (got, where) in enumerate(zip(scores, places)):
        assert len(got) == len(where) == 10 and got == sorted(got, reverse=True)
        assert all(type(one) is int for one in where) and got == pytest.approx(expected[row][where], rel=1e-4, abs=1e-5)
        hits += len(set(where) & set(numpy.argsort(-expected[row])[:10].tolist()))
    assert hits >= 0.95 * 300
    # The search asks for more documents than the index has, and than the list size.
    assert [len(where) for where in index.search(QUERIES[:2], 5_000, asked_for)[1]] == [1_500, 1_500]
    index.clear()
    assert not (tmp_path / "here").exists()
    index.add_documents(CORPUS[:5], IDS[:5])
    assert sorted(index.search(QUERIES[:1], 10, asked_for)[1][0]) == list(range(5))
    index.clear()


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_ranked_documents_are_ranked_anew(similarity):
    index = StratannSearchIndex(model(similarity))
    index.add_documents(CORPUS, IDS)
    ranked = {f"q{row}": [IDS[at] for at in RNG.permutation(len(IDS))[:40]] for row in range(len(QUERIES))}
    scores, places = index.search(QUERIES, 7, asked_for, ranked, {row: f"q{row}" for row in range(len(QUERIES))})
    for row, (got, where) in enumerate(zip(scores, places)):
        expected = exact(similarity, QUERIES[row : row + 1], CORPUS[[IDS.index(id) for id in ranked[f"q{row}"]]])[0]
        assert where == numpy.argsort(-expected, kind="stable")[:7].tolist() and got == pytest.approx(expected[where], rel=1e-4, abs=1e-5)
    with pytest.warns(UserWarning, match="no documents of the query 'q0'"):
        assert index.search(QUERIES[:1], 7, asked_for, {}, {0: "q0"}) == ([[]], [[]])
    with pytest.raises(ValueError, match="query_idx_to_id"):
        index.search(QUERIES, 7, asked_for, ranked)
    index.clear()


def test_answers_of_the_default_are_the_exact_ones():
    index = StratannSearchIndex(model(ScoringFunction.COSINE))
    index.add_documents(CORPUS, IDS)
    expected = exact(ScoringFunction.COSINE, QUERIES, CORPUS)
    assert index.search(QUERIES, 10, asked_for)[1] == numpy.argsort(-expected, axis=1)[:, :10].tolist()
    index.clear()


def test_wrong_calls_are_told():
    with pytest.raises(ValueError, match="MaxSim"):
        StratannSearchIndex(model(ScoringFunction.MAX_SIM))
    index = StratannSearchIndex(model(ScoringFunction.COSINE))
    with pytest.raises(ValueError, match="Call add_documents first"):
        index.search(QUERIES, 10, asked_for)
    with pytest.raises(ValueError, match="5 embeddings and 4 ids"):
        index.add_documents(CORPUS[:5], IDS[:4])


def test_tasks_of_mteb(monkeypatch):
    pytest.importorskip("sentence_transformers", reason="MTEB runs no task without torch and sentence-transformers")
    import mteb
    from mteb.mocks.mock_tasks import retrieval
    from mteb.models.search_wrappers import SearchEncoderWrapper

    encoder = mteb.get_model("mteb/baseline-random-encoder")
    searches = []
    search = StratannSearchIndex.search
    monkeypatch.setattr(StratannSearchIndex, "search", lambda self, *given, **named: searches.append(given) or search(self, *given, **named))
    for task in (retrieval.MockRetrievalTask, retrieval.MockMultilingualRetrievalTask, retrieval.MockInstructionRetrieval):
        found = [
            mteb.evaluate(SearchEncoderWrapper(encoder, index_backend=backend), task(), cache=None, overwrite_strategy="always")[0]
            for backend in (None, StratannSearchIndex(encoder))
        ]
        scores = [
            {split: [{name: value for name, value in one.items() if "time" not in name} for one in rows] for split, rows in result.scores.items()}
            for result in found
        ]
        assert scores[0] == scores[1]
    assert len(searches) >= 3 and stratann.__version__
