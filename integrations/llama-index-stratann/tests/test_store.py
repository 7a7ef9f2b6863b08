"""Tests the methods of a store, synchronous and asynchronous, and LlamaIndex's index and retrievers
with such a store.
"""

import datetime

import pytest
from llama_index.core import Document, MockEmbedding, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.schema import ImageNode, IndexNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    BasePydanticVectorStore,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from llama_index_stratann import StratannVectorStore


def node(name, embedding, of="d0", **metadata):
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id=of, metadata={"title": of})}
    return TextNode(id_=name, text=f"This is {name}.", embedding=embedding, metadata=metadata, relationships=source)


NODES = [
    node("a", [1.0, 0.0], year=2020, when=datetime.datetime(2024, 2, 29)),
    node("b", [0.0, 1.0], of="d1", year=2022, doc_id="the user's own"),
    node("c", [1.0, 1.0], of="d2", year=2024),
]
RECENT = MetadataFilters(filters=[MetadataFilter(key="year", value=2021, operator=">")])


@pytest.fixture
def store(tmp_path):
    store = StratannVectorStore(tmp_path / "a.idx")
    yield store
    store.close()


def query(store, embedding=(1.0, 0.2), k=2, **kwargs):
    return store.query(VectorStoreQuery(query_embedding=list(embedding), similarity_top_k=k, **kwargs))


def test_before_the_first_and_after_the_last(store):
    assert isinstance(store, BasePydanticVectorStore) and store.client is None
    assert query(store).ids == [] and store.get_nodes() == [] and store.get_nodes(["a"]) == []
    store.delete("d0")
    store.delete_nodes(["a"])
    store.clear()
    assert store.add([]) == [] and store.add(NODES) == ["a", "b", "c"]
    store.clear()
    assert query(store, k=3).ids == [] and len(store.client) == 0
    store.add([node("a", [1.0, 0.0, 0.0])])
    assert query(store, (1.0, 0.0, 0.0)).ids == ["a"]


def test_nodes_come_back_as_they_were(store, tmp_path):
    others = [
        IndexNode(id_="index", text="an index", index_id="other", embedding=[0.5, 0.1]),
        ImageNode(id_="image", text="an image", image_url="http://x.invalid/y.png", embedding=[0.1, 0.5], metadata={"tags": ["x"]}),
    ]
    assert store.add([*NODES, *others]) == ["a", "b", "c", "index", "image"]
    store.close()
    again = StratannVectorStore(tmp_path / "a.idx", memory="64MiB")
    for given, back in zip([*NODES, *others], again.get_nodes(["a", "b", "c", "index", "image"])):
        assert type(back) is type(given) and back.metadata == given.metadata and back.ref_doc_id == given.ref_doc_id
        assert back.to_dict() == {**given.to_dict(), "embedding": pytest.approx(given.embedding)}
    # Filters with these keys find the nodes of a document, even if the metadata has the same keys.
    assert [one.node_id for one in again.get_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="doc_id", value="d1")]))] == ["b"]
    result = query(again, node_ids=["a", "b", "c"])
    assert result.ids == ["a", "c"] and [one.node_id for one in result.nodes] == result.ids
    assert result.similarities == pytest.approx([1 / 1.04**0.5, 1.2 / 2.08**0.5]) and result.nodes[0].embedding is None
    assert StratannVectorStore.from_dict(again.to_dict()).get_nodes(["c"])[0].text == "This is c."


def test_queries(store):
    store.add(NODES)
    assert query(store, k=10).ids == ["a", "c", "b"]
    assert query(store, k=10, filters=RECENT).ids == ["c", "b"]
    assert query(store, k=10, filters=RECENT, node_ids=["a", "b"]).ids == ["b"]
    assert query(store, k=10, doc_ids=["d0", "d1"]).ids == ["a", "b"] and query(store, k=3, node_ids=[], doc_ids=[]).ids == ["a", "c", "b"]
    assert store.query(VectorStoreQuery(query_embedding=[1.0, 0.2], similarity_top_k=1), list_size=20).ids == ["a"]
    with pytest.raises(ValueError, match="no embedding"):
        store.query(VectorStoreQuery(query_str="a"))
    with pytest.raises(ValueError, match="sparse"):
        query(store, mode=VectorStoreQueryMode.SPARSE)


def test_near_and_unlike_each_other(store):
    store.add([*NODES, node("a2", [1.0, 0.01])])
    assert query(store, (1.0, 0.0)).ids == ["a", "a2"]
    assert query(store, (1.0, 0.0), mode=VectorStoreQueryMode.MMR, mmr_threshold=0.1).ids == ["a", "b"]
    assert query(store, (1.0, 0.0), mode=VectorStoreQueryMode.MMR, filters=RECENT).ids == ["c", "b"]


def test_deletes(store):
    store.add([*NODES, node("d", [1.0, 2.0], of="d0", year=2023)])
    store.delete_nodes()
    assert len(store.client) == 4
    store.delete("d0")
    assert sorted(one.node_id for one in store.get_nodes()) == ["b", "c"]
    store.delete_nodes(["a", "b"], filters=MetadataFilters(filters=[MetadataFilter(key="year", value=2024)]))
    assert len(store.client) == 2
    store.delete_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="doc_id", value="2", operator="text_match")]))
    assert [one.node_id for one in store.get_nodes()] == ["b"]
    store.delete_nodes(["b"])
    assert store.get_nodes() == []


def test_a_filter_without_conditions_deletes_nothing(store):
    store.add(NODES)
    empty = MetadataFilters(filters=[])
    for filters in (empty, MetadataFilters(filters=[empty]), MetadataFilters(filters=[*RECENT.filters, empty], condition="or")):
        for ids in (None, ["a"]):
            with pytest.raises(ValueError, match=r"without conditions.*clear\(\)"):
                store.delete_nodes(ids, filters=filters)
    assert len(store.client) == 3


def test_deletes_by_a_key_that_filters_cannot_ask(store, tmp_path):
    def one(key, value, operator):
        return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])

    store.add(NODES)
    for filters in (
        one("colour", 2, "!="),
        one("colour", [2], "nin"),
        one("colour", None, "is_empty"),
        MetadataFilters(filters=one("colour", 2, "==").filters, condition="not"),
        MetadataFilters(filters=one("colour", "red", "text_match").filters, condition="not"),
    ):
        assert len(store.get_nodes(filters=filters)) == 3
        with pytest.raises(ValueError, match="'colour'.*filterable="):
            store.delete_nodes(filters=filters)
    store.delete_nodes(filters=one("colour", 2, "=="))
    assert len(store.client) == 3
    other = StratannVectorStore(tmp_path / "b.idx", filterable=["when"])
    other.add(NODES)
    for ask in (lambda filters: other.get_nodes(filters=filters), lambda filters: other.delete_nodes(filters=filters)):
        for operator, value in (("==", 2020), ("!=", 2020), ("text_match", "2")):
            with pytest.raises(ValueError, match="'year'.*filterable=.*'when'"):
                ask(one("year", value, operator))
    other.delete("d1")
    assert len(other.client) == 2
    other.close()


@pytest.mark.parametrize(("metric", "similarity"), [("ip", 2.0), ("l2", 1 / 3)])
def test_other_metrics(tmp_path, metric, similarity):
    store = StratannVectorStore(tmp_path / "a.idx", metric=metric)
    store.add([node("a", [1.0, 1.0])])
    assert query(store, (2.0, 0.0)).similarities == pytest.approx([similarity])
    store.close()


async def test_async(store):
    assert await store.async_add(NODES) == ["a", "b", "c"]
    found = await store.aquery(VectorStoreQuery(query_embedding=[1.0, 0.2], similarity_top_k=1, filters=RECENT))
    assert found.ids == ["c"]
    await store.adelete("d2")
    await store.adelete_nodes(["a"])
    assert [one.node_id for one in await store.aget_nodes()] == ["b"]
    await store.aclear()
    assert await store.aget_nodes() == []


def test_an_index_of_llama_index(tmp_path):
    model = MockEmbedding(embed_dim=4)
    documents = [Document(id_=f"d{at}", text=f"text {at}", metadata={"at": at}) for at in range(5)]
    store = StratannVectorStore(tmp_path / "a.idx")
    context = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(documents, storage_context=context, embed_model=model)
    last = MetadataFilters(filters=[MetadataFilter(key="at", value=4)])
    assert [one.text for one in index.as_retriever(filters=last).retrieve("text")] == ["text 4"]
    index.insert(Document(id_="d5", text="text 5", metadata={"at": 5}))
    index.delete_ref_doc("d4")
    assert index.as_retriever(filters=last).retrieve("text") == [] and len(store.client) == 5
    context.persist(str(tmp_path / "context"))
    store.close()
    again = VectorStoreIndex.from_vector_store(StratannVectorStore(tmp_path / "a.idx"), embed_model=model)
    assert sorted(one.text for one in again.as_retriever(similarity_top_k=9).retrieve("text")) == [f"text {at}" for at in (0, 1, 2, 3, 5)]
    loaded = StorageContext.from_defaults(vector_store=StratannVectorStore(tmp_path / "a.idx"), persist_dir=str(tmp_path / "context"))
    assert len(load_index_from_storage(loaded, embed_model=model).as_retriever(similarity_top_k=9).retrieve("text")) == 5
