"""Compares metadata filters with LlamaIndex's own store in memory (`SimpleVectorStore`). Both
stores must find the same nodes.
"""

import itertools

import pytest
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
)
from llama_index_stratann import StratannVectorStore
from llama_index_stratann.filters import translate

METADATA = [
    {"weight": 1.0, "rank": "a", "quality": ["medium", "high"], "code": "6FTR78Yun", "part": 1},
    {"weight": 2.0, "rank": "c", "quality": ["medium"], "code": "6FTR78Ygl", "part": 2},
    {"weight": 3, "rank": "c", "quality": ["low", "medium", "high"], "code": "6FTR78Ztl", "numbers": [1, 2]},
    {"weight": -4.5, "rank": "", "quality": [], "code": "none", "numbers": [2, 3]},
    {"rank": "d", "nested": {"a": 1}},
    {},
]
F, O, C = MetadataFilter, FilterOperator, FilterCondition


def nodes():
    return [
        TextNode(id_=f"n{at}", text=f"text {at}", embedding=[1.0, at / 7], metadata=metadata, relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"d{at % 2}")})
        for at, metadata in enumerate(METADATA)
    ]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    ours, theirs = StratannVectorStore(tmp_path_factory.mktemp("filters") / "a.idx"), SimpleVectorStore()
    ours.add(nodes())
    theirs.add(nodes())
    yield ours, theirs
    ours.close()


CASES = [
    F(key="rank", value="c"),
    F(key="weight", value=2),
    F(key="weight", value=2.0),
    F(key="unknown", value="c"),
    F(key="rank", value="c", operator=O.NE),
    F(key="weight", value=3.0, operator=O.NE),
    *(F(key="weight", value=value, operator=operator) for operator in (O.GT, O.GTE, O.LT, O.LTE) for value in (2, 1.5, 3.0)),
    F(key="rank", value=["a", "d", "no"], operator=O.IN),
    F(key="part", value=[2, 3], operator=O.IN),
    F(key="rank", value=["c"], operator=O.NIN),
    F(key="weight", value=[1.0, 3.0], operator=O.NIN),
    F(key="quality", value="high", operator=O.CONTAINS),
    F(key="numbers", value=2, operator=O.CONTAINS),
    F(key="quality", value=["high", "low"], operator=O.ANY),
    F(key="numbers", value=[1, 7], operator=O.ANY),
    F(key="quality", value=["medium", "high"], operator=O.ALL),
    F(key="quality", value=None, operator=O.IS_EMPTY),
    F(key="rank", value=None, operator=O.IS_EMPTY),
    F(key="nested", value=None, operator=O.IS_EMPTY),
    F(key="code", value="6FTR78Y", operator=O.TEXT_MATCH),
    F(key="code", value="6ftr78z", operator=O.TEXT_MATCH_INSENSITIVE),
    F(key="doc_id", value="d1"),
    F(key="ref_doc_id", value=["d0"], operator=O.IN),
]


def found(store, filters):
    query = VectorStoreQuery(query_embedding=[1.0, 0.0], filters=filters, similarity_top_k=10)
    return store.query(query).ids


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("condition", [C.AND, C.NOT])
def test_one_filter_finds_what_llama_index_finds(stores, case, condition):
    ours, theirs = (found(store, MetadataFilters(filters=[case], condition=condition)) for store in stores)
    assert ours == theirs


def test_every_pair_finds_what_llama_index_finds(stores):
    for condition in C:
        for pair in itertools.combinations(CASES, 2):
            filters = MetadataFilters(filters=list(pair), condition=condition)
            ours, theirs = (found(store, filters) for store in stores)
            assert ours == theirs, filters


def test_nested_filters(stores):
    store, _ = stores
    inner = MetadataFilters(filters=[F(key="weight", value=2, operator=O.GT), F(key="rank", value="a")], condition=C.OR)
    outer = MetadataFilters(filters=[inner, F(key="quality", value="high", operator=O.CONTAINS)])
    assert found(store, outer) == ["n0", "n2"]
    text = MetadataFilters(filters=[F(key="code", value="Y", operator=O.TEXT_MATCH), F(key="rank", value="d")], condition=C.OR)
    assert found(store, text) == ["n0", "n1", "n4"]
    assert found(store, MetadataFilters(filters=[text, F(key="weight", value=1, operator=O.GT)])) == ["n1"]
    assert found(store, MetadataFilters(filters=[text], condition=C.NOT)) == ["n2", "n3", "n5"]
    assert found(store, MetadataFilters(filters=[text, F(key="weight", value=0, operator=O.GT)], condition=C.NOT)) == ["n3", "n5"]


def test_only_text_matches_are_looked_for_in_python(stores):
    columns = stores[0]._documents.columns()
    for case in CASES:
        wanted = translate(MetadataFilters(filters=[case]), columns)
        assert (wanted.check is not None) == (case.operator in (O.TEXT_MATCH, O.TEXT_MATCH_INSENSITIVE))
        assert wanted.filter is not None


def test_filters_that_say_nothing_are_told(stores):
    for case, said in [
        (F(key="weight", value="2", operator=O.GT), "only numbers"),
        (F(key="rank", value="c", operator=O.IN), "Pass a list"),
        (F(key="rank", value=["c"]), "'rank' =="),
        (F(key="code", value=7, operator=O.TEXT_MATCH), "the operator is for texts"),
    ]:
        with pytest.raises(TypeError, match=said):
            found(stores[0], MetadataFilters(filters=[case]))
