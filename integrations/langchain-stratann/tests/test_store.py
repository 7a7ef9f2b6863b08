"""Tests that LangChain's own tests lack: filters, scores, persistence, and asynchronous models."""

import datetime

import pytest
import stratann
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_stratann import StratannVectorStore

MODEL = DeterministicFakeEmbedding(size=16)
DAY = datetime.datetime(2024, 2, 29, tzinfo=datetime.timezone.utc)
DOCUMENTS = [
    Document(id="cat", page_content="A cat sleeps.", metadata={"year": 2020, "kind": "animal", "tags": ["home", "small"]}),
    Document(id="owl", page_content="An owl flies.", metadata={"year": 2022, "kind": "animal", "tags": ["wood"]}),
    Document(id="oak", page_content="An oak stands.", metadata={"year": 2024.5, "kind": "plant", "seen": DAY, "nested": {"a": [1]}}),
    Document(id="sea", page_content="The sea.", metadata={"year": "unknown", "kind": 7}),
]


@pytest.fixture
def store(tmp_path):
    store = StratannVectorStore(MODEL, tmp_path / "a.idx")
    store.add_documents(DOCUMENTS)
    yield store
    store.close()


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (None, "cat oak owl sea"),
        ({}, "cat oak owl sea"),
        ("year >= 2022 and kind == 'animal'", "owl"),
        (stratann.column("tags").contains("home") | stratann.column("year").between(2023, 2025), "cat oak"),
        ({"kind": "animal"}, "cat owl"),
        ({"kind": "animal", "year": 2020}, "cat"),
        ({"kind": ["plant", 7]}, "oak sea"),
        ({"kind": {"$eq": 7}}, "sea"),
        ({"year": {"$ne": 2020}}, "oak owl sea"),
        ({"year": {"$gt": 2020, "$lt": 2024}}, "owl"),
        ({"year": {"$gte": 2022, "$lte": 2024.5}}, "oak owl"),
        ({"year": {"$between": [2020, 2022]}}, "cat owl"),
        ({"year": {"$in": [2020, "unknown"]}}, "cat sea"),
        ({"year": {"$nin": [2020, "unknown"]}}, "oak owl"),
        ({"tags": {"$contains": "wood"}}, "owl"),
        ({"tags": {"$contains_any": ["wood", "home"]}}, "cat owl"),
        ({"tags": {"$contains_all": ["small", "home"]}}, "cat"),
        ({"nested": {"$exists": True}}, "oak"),
        ({"tags": {"$exists": False}}, "oak sea"),
        ({"seen": {"$gte": DAY}}, "oak"),
        ({"$or": [{"kind": 7}, {"$and": [{"year": {"$lt": 2023}}, {"tags": {"$contains": "wood"}}]}]}, "owl sea"),
        ({"$not": {"kind": "animal"}}, "oak sea"),
        ({"colour": "red"}, ""),
    ],
)
def test_filters(store, filter, expected):
    assert " ".join(sorted(one.id for one in store.similarity_search("cat", k=10, filter=filter))) == expected


def test_filters_that_say_nothing_are_told(store):
    for filter, error, said in [
        ({"year": {"$near": 3}}, ValueError, r"'\$near'; there is no such operator.*\$eq"),
        ({"$xor": [{"a": 1}]}, ValueError, r"\$xor"),
        ({"$and": []}, ValueError, r"\$and"),
        ({"year": {}}, ValueError, r"filter\['year'\] is empty"),
        ({"year": {"$gt": "2020"}}, TypeError, "only numbers and times"),
        *(({"year": {"$between": wrong}}, ValueError, r"'year'.*\$between.*smallest and the largest value") for wrong in (5, [1], [1, 2, 3], "ab")),
        ({5: 1}, TypeError, "key 5"),
        ({"$and": [5]}, TypeError, "is 5; it has no conditions"),
        ({"kind": "\ud800"}, ValueError, "ud800.*UTF-8"),
        ({"kind": {"$in": "plant"}}, TypeError, "'kind'.*Pass a list"),
        ({"tags": {"$contains_any": "ab"}}, TypeError, "'tags'.*Pass a list"),
        (7, TypeError, "filter is 7"),
        ("year >", ValueError, "character"),
    ]:
        with pytest.raises(error, match=said):
            store.similarity_search("cat", filter=filter)


def test_all_is_there_when_it_is_opened_again(store, tmp_path):
    store.close()
    again = StratannVectorStore(MODEL, tmp_path / "a.idx", memory="64MiB")
    assert again.get_by_ids(["oak", "none", "cat"]) == [DOCUMENTS[2], DOCUMENTS[0]]
    assert again.similarity_search("An owl flies.", k=1) == [DOCUMENTS[1]]
    assert len(again.documents) == 4


def test_scores(store, tmp_path):
    found = store.similarity_search_with_score("A cat sleeps.", k=4)
    assert found[0] == (DOCUMENTS[0], pytest.approx(0, abs=1e-6)) and [far for _, far in found] == sorted(far for _, far in found)
    assert store.similarity_search_with_relevance_scores("A cat sleeps.", k=1)[0][1] == pytest.approx(1, abs=1e-6)
    assert store.similarity_search_by_vector(MODEL.embed_query("The sea."), k=1) == [DOCUMENTS[3]]
    squared = StratannVectorStore(MODEL, tmp_path / "b.idx", metric="l2")
    squared.add_documents(DOCUMENTS)
    [(_, far)] = squared.similarity_search_with_score("The sea", k=1, filter={"kind": "plant"})
    vectors = MODEL.embed_query("The sea"), MODEL.embed_query("An oak stands.")
    assert far == pytest.approx(sum((a - b) ** 2 for a, b in zip(*vectors)), rel=1e-5)
    assert squared._select_relevance_score_fn()(2.0) == 0 and squared._select_relevance_score_fn()(0.5) == pytest.approx(0.5)


def test_deletes(store):
    assert store.delete(filter={"kind": "animal"}) and len(store.documents) == 2
    with pytest.raises(ValueError, match="ids or a filter"):
        store.delete(["oak"], filter={"kind": 7})
    for empty in ({}, ""):
        with pytest.raises(ValueError, match=r"empty filter.*delete\(\)"):
            store.delete(filter=empty)
    assert store.delete([]) and len(store.documents) == 2
    assert store.delete() and store.similarity_search("cat") == []
    assert store.add_texts(["again"]) and len(store.documents) == 1


def test_one_text_is_no_list(store):
    for call, wrong in (
        (store.delete, "cat"),
        (store.get_by_ids, "cat"),
        (store.add_texts, "cat"),
        (lambda ids: store.add_texts(["a", "b", "c"], ids=ids), "cat"),
        (lambda texts: store.add_texts(["a", "b", "c"], metadatas=texts), "cat"),
    ):
        with pytest.raises(TypeError, match="is 'cat'; each of its characters"):
            call(wrong)
    assert sorted(one.id for one in store.documents.scan()) == ["cat", "oak", "owl", "sea"]


def test_deletes_by_a_key_that_filters_cannot_ask(store, tmp_path):
    for filter in ({"colour": {"$ne": 2}}, {"colour": {"$nin": [2]}}, {"$not": {"colour": 2}}, {"colour": None}, {"colour": {"$exists": False}}):
        assert len(store.similarity_search("cat", k=10, filter=filter)) == 4
        with pytest.raises(ValueError, match="'colour'.*filterable="):
            store.delete(filter=filter)
    assert store.delete(filter={"colour": 2}) and len(store.documents) == 4
    assert store.delete(filter={"nested": {"$exists": False}}) and len(store.documents) == 1
    other = StratannVectorStore(MODEL, tmp_path / "b.idx", filterable=["kind"])
    other.add_documents(DOCUMENTS)
    for ask in (lambda filter: other.similarity_search("cat", filter=filter), lambda filter: other.delete(filter=filter)):
        for filter in ({"year": 2020}, {"year": {"$ne": 2020}}, {"kind": "animal", "yaer": {"$ne": 2020}}):
            with pytest.raises(ValueError, match="'y.*filterable=.*'kind'"):
                ask(filter)
    assert other.delete(filter={"kind": {"$ne": "animal"}}) and len(other.documents) == 2
    other.close()


def test_texts_and_embeddings(tmp_path):
    with pytest.raises(TypeError, match="path="):
        StratannVectorStore.from_texts(["a"], MODEL)
    store = StratannVectorStore.from_texts(["a", "b"], MODEL, [{"n": 1}, {"n": 2}], ids=["x", "y"], path=tmp_path / "a.idx")
    assert store.get_by_ids(["y"]) == [Document(id="y", page_content="b", metadata={"n": 2})]
    assert store.add_embeddings([("c", MODEL.embed_query("c"))], ids=["z"]) == ["z"]
    assert [one.id for one in store.similarity_search("c", k=1)] == ["z"]
    with pytest.raises(ValueError, match="1 metadatas for 2 texts"):
        store.add_texts(["a", "b"], [{}])
    assert StratannVectorStore.from_documents(DOCUMENTS, MODEL, path=tmp_path / "b.idx").get_by_ids(["sea"]) == [DOCUMENTS[3]]
    store.close()


def test_retrievers_and_marginal_relevance(store):
    store.add_documents([Document(id="cat 2", page_content="A cat sleeps.", metadata={"year": 1})])
    assert {one.id for one in store.similarity_search("A cat sleeps.", k=2)} == {"cat", "cat 2"}
    unlike = store.max_marginal_relevance_search("A cat sleeps.", k=2, lambda_mult=0.1)
    assert unlike[0].id.startswith("cat") and not unlike[1].id.startswith("cat")
    retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 1, "filter": {"kind": "plant"}})
    assert [one.id for one in retriever.invoke("cat")] == ["oak"]
    threshold = store.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.99})
    assert {one.id for one in threshold.invoke("A cat sleeps.")} == {"cat", "cat 2"}


class Awaited(Embeddings):
    """A model that has only asynchronous methods."""

    def embed_query(self, text):
        raise AssertionError("the model was not awaited")

    def embed_documents(self, texts):
        raise AssertionError("the model was not awaited")

    async def aembed_query(self, text):
        return MODEL.embed_query(text)

    async def aembed_documents(self, texts):
        return MODEL.embed_documents(texts)


async def test_models_are_awaited(tmp_path):
    store = StratannVectorStore(Awaited(), tmp_path / "a.idx")
    assert await store.aadd_documents(DOCUMENTS) == ["cat", "owl", "oak", "sea"]
    assert await store.asimilarity_search("The sea.", k=1, filter={"kind": 7}) == [DOCUMENTS[3]]
    assert (await store.asimilarity_search_with_score("The sea.", k=1))[0][1] == pytest.approx(0, abs=1e-6)
    assert (await store.amax_marginal_relevance_search("The sea.", k=1)) == [DOCUMENTS[3]]
    assert await store.as_retriever(search_kwargs={"k": 1}).ainvoke("The sea.") == [DOCUMENTS[3]]
    assert await store.aget_by_ids(["owl"]) == [DOCUMENTS[1]] and await store.adelete(["owl"])
    other = await StratannVectorStore.afrom_texts(["a"], Awaited(), path=tmp_path / "b.idx")
    assert len(other.documents) == 1
