"""Tests that Haystack's own tests lack: the retriever, pipelines, persistence, and filters by
fields outside of meta.
"""

import asyncio

import pytest
from haystack import Document, Pipeline
from haystack.dataclasses import ByteStream, SparseEmbedding
from haystack.document_stores.types import DuplicatePolicy
from haystack.errors import FilterError
from haystack_stratann import StratannDocumentStore, StratannEmbeddingRetriever


def of(name, embedding, **meta):
    return Document(id=name, content=f"It is {name}.", meta=meta, embedding=embedding)


DOCUMENTS = [
    of("cat", [1.0, 0.0, 0.0], year=2020, seen="2024-02-29", tags=["home"]),
    of("owl", [0.0, 1.0, 0.0], year=2022, seen="2024-02-29T00:00:00Z", id="inner"),
    of("oak", [0.0, 0.5, 0.5], year=2024.5, seen="2025-01-01T12:00:00+02:00"),
    of("sea", None, year="unknown", nested={"a": 1}),
]


@pytest.fixture
def store(tmp_path):
    store = StratannDocumentStore(tmp_path / "a.idx")
    assert store.write_documents(DOCUMENTS) == 4
    yield store
    store.close()


def names(documents):
    return " ".join(sorted(document.id for document in documents))


def comparison(field, operator, value):
    return {"field": field, "operator": operator, "value": value}


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (comparison("id", "==", "owl"), "owl"),
        (comparison("id", "in", ["owl", "sea", "none"]), "owl sea"),
        (comparison("id", "!=", "owl"), "cat oak sea"),
        (comparison("meta.id", "==", "inner"), "owl"),
        (comparison("year", ">=", 2022), "oak owl"),
        (comparison("meta.year", "in", [2020, "unknown"]), "cat sea"),
        (comparison("meta.seen", "==", "2024-02-29T00:00:00"), "cat owl"),
        (comparison("meta.seen", "!=", "2024-02-29"), "oak sea"),
        (comparison("meta.seen", ">", "2025-01-01T09:59:59Z"), "oak"),
        (comparison("meta.seen", "<=", "2025-01-01T09:59:59Z"), "cat owl"),
        (comparison("meta.nested", "!=", None), "sea"),
        (comparison("meta.tags", "==", None), "oak owl sea"),
        ({"operator": "NOT", "conditions": [{"operator": "OR", "conditions": [comparison("id", "==", "cat"), comparison("year", ">", 2023)]}]}, "owl sea"),
    ],
)
def test_filters(store, filters, expected):
    assert names(store.filter_documents(filters)) == expected
    assert store.count_documents_by_filter(filters) == len(expected.split())


def test_filters_that_say_nothing_are_told(store):
    for filters, said in [
        (comparison("content", "==", "It is cat."), "by the id and by meta"),
        (comparison("meta.year", "~", 1), "operator '~'"),
        (comparison(5, "==", 1), "field 5"),
        (comparison("meta.seen", "==", "\ud800"), "UTF-8"),
        (comparison("meta.tags", "==", ["home"]), "'tags' =="),
        (comparison("meta.year", ">", "soon"), "only numbers and times"),
        ({"operator": "XOR", "conditions": [comparison("id", "==", "cat")]}, "XOR"),
        ({"operator": "AND", "conditions": []}, "AND, OR or NOT"),
        ({"operator": "AND", "conditions": ["id"]}, "Pass a dict"),
    ]:
        with pytest.raises(FilterError, match=said):
            store.filter_documents(filters)


def test_deletes_by_a_key_that_filters_cannot_ask(store, tmp_path):
    for filters in (
        comparison("meta.colour", "!=", 2),
        comparison("meta.colour", "not in", [2]),
        comparison("meta.colour", "==", None),
        {"operator": "NOT", "conditions": [comparison("meta.colour", "==", 2)]},
    ):
        assert len(store.filter_documents(filters)) == 4
        with pytest.raises(FilterError, match="'colour'.*filterable="):
            store.delete_by_filter(filters)
    assert store.delete_by_filter(comparison("meta.colour", "==", 2)) == 0 and store.count_documents() == 4
    for empty in ({}, None):
        with pytest.raises(FilterError, match="empty filter.*delete_all_documents"):
            store.delete_by_filter(empty)
    assert store.count_documents() == 4
    other = StratannDocumentStore(tmp_path / "b.idx", filterable=["year"])
    other.write_documents(DOCUMENTS)
    for ask in (other.filter_documents, other.delete_by_filter):
        for operator in ("==", "!="):
            with pytest.raises(FilterError, match="'seen'.*filterable=.*'year'"):
                ask(comparison("meta.seen", operator, "2024-02-29"))
    assert other.delete_by_filter(comparison("id", "!=", "owl")) == 3
    other.close()


def test_all_is_there_when_it_is_opened_again(store, tmp_path):
    whole = Document(
        content=None, blob=ByteStream(b"\0\xff", {"a": 1}, "image/png"), sparse_embedding=SparseEmbedding([1, 5], [0.5, 2.0]), embedding=[0.0, 0.0, 1.0]
    )
    assert store.write_documents([whole], DuplicatePolicy.SKIP) == 1
    store.close()
    again = StratannDocumentStore.from_dict(store.to_dict())
    assert again.count_documents() == 5
    [back] = again.filter_documents(comparison("id", "==", whole.id))
    assert back == whole
    assert again.write_documents(DOCUMENTS, DuplicatePolicy.OVERWRITE) == 4 and again.count_documents() == 5
    again.close()


def test_the_retriever(store):
    retriever = StratannEmbeddingRetriever(store, top_k=2)
    [first, second] = retriever.run([0.0, 1.0, 0.1])["documents"]
    assert (first.id, second.id) == ("owl", "oak") and first.embedding is None
    assert first.score == pytest.approx(1 / 1.01**0.5) and 0 < second.score < first.score
    # A search never finds a document without an embedding.
    assert names(retriever.run([0.0, 1.0, 0.1], top_k=10)["documents"]) == "cat oak owl"
    assert retriever.run([0.0, 1.0, 0.1], top_k=0)["documents"] == []
    recent = StratannEmbeddingRetriever(
        store, filters=comparison("year", ">", 2021), filter_policy="merge", scale_score=True, return_embedding=True, search={"list_size": 20}
    )
    [only] = recent.run([1.0, 0.0, 0.0], filters=comparison("id", "!=", "owl"))["documents"]
    assert only.id == "oak" and only.score == pytest.approx(0.5) and only.embedding == [0.0, 0.5, 0.5]
    found = asyncio.run(recent.run_async([1.0, 0.0, 0.0]))["documents"]
    assert names(found) == "oak owl"
    for wrong, error in ((lambda: StratannEmbeddingRetriever("a.idx"), TypeError), (lambda: StratannEmbeddingRetriever(store, top_k=0), ValueError)):
        with pytest.raises(error):
            wrong()


def test_a_pipeline_is_written_down_and_read_again(store):
    pipeline = Pipeline()
    pipeline.add_component("retriever", StratannEmbeddingRetriever(store, filters=comparison("year", "==", 2020), filter_policy="merge", search={"list_size": 30}))
    text = pipeline.dumps()
    again = Pipeline.loads(text, allowed_modules=["haystack_stratann.*"])
    assert again.dumps() == text
    found = again.run({"retriever": {"query_embedding": [0.0, 1.0, 0.0]}})["retriever"]["documents"]
    assert names(found) == "cat"


def test_other_metrics_and_their_scores(tmp_path):
    for metric, score, scaled in (("ip", 0.25, 1 / (1 + 2.718281828459045**-0.0025)), ("l2", -0.5, 1 / 1.5)):
        store = StratannDocumentStore(tmp_path / metric, metric=metric, embedding_dim=3)
        store.write_documents([DOCUMENTS[3], DOCUMENTS[2]])
        [found] = store.embedding_retrieval([0.0, 0.5, 0.0] if metric == "ip" else [0.0, 0.0, 0.0], top_k=2)
        assert found.id == "oak" and found.score == pytest.approx(score)
        [found] = store.embedding_retrieval([0.0, 0.5, 0.0] if metric == "ip" else [0.0, 0.0, 0.0], scale_score=True)
        assert found.score == pytest.approx(scaled)
        with pytest.raises(ValueError, match="3"):
            store.write_documents([of("two", [1.0, 2.0])])
        store.close()
