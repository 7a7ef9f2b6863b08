"""Documents by their ids, and by filters."""

import datetime
import decimal
import inspect
import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
import warnings

import numpy
import pytest

import stratann
from stratann.documents import Document, Documents, DuplicateError, IdCollisionError, store

UTC = datetime.timezone.utc
DAY = datetime.datetime(2024, 1, 1, tzinfo=UTC)
D = 8


def vector(number):
    return numpy.random.default_rng(number).standard_normal(D).astype(numpy.float32)


def document(number, **metadata):
    return Document(f"id {number}", f"text {number}", metadata, vector(number))


@pytest.fixture
def documents(tmp_path):
    with Documents(tmp_path / "a.idx") as documents:
        yield documents


def found(documents, filter):
    return sorted(one.id for one in documents.scan(filter))


def test_before_the_first_and_after_the_last(documents, tmp_path):
    assert len(documents) == 0 and documents.count("x == 1") == 0 and documents.index() is None
    assert documents.get(["id 1"]) == [None] and documents.search(vector(1)) == [] and list(documents.scan()) == []
    assert documents.delete(["id 1"]) == 0 and documents.clear() == 0 and documents.put([]) == []
    assert not list(tmp_path.iterdir())
    assert documents.put([document(1, x=1)]) == ["id 1"]
    assert documents.delete(["id 1", "id 2"]) == 1 and len(documents) == 0 and documents.search(vector(1)) == []
    documents.put([Document("b", "text", {"x": "one"}, numpy.ones(3))])
    assert documents.search(numpy.ones(3))[0][0].metadata == {"x": "one"} and documents.index().columns["x"] == "string"
    assert documents.delete_matching("x == 'one'") == 1 and len(documents) == 0


def test_all_is_there_when_it_is_opened_again(tmp_path):
    with Documents(tmp_path / "a.idx", metric="l2") as documents:
        documents.put(document(n, n=n) for n in range(50))
        documents.put(document(n, n=-n) for n in range(40, 60))
    again = Documents(tmp_path / "a.idx", metric="l2")
    assert len(again) == 60
    for n in (0, 45, 59):
        [(nearest, distance)] = again.search(vector(n), 1, vectors=True)
        assert (nearest.id, nearest.content, distance) == (f"id {n}", f"text {n}", 0)
        numpy.testing.assert_array_equal(nearest.vector, vector(n))
    assert found(again, "n < 0") == sorted(f"id {n}" for n in range(40, 60))
    assert again.get(["id 59", "no", "id 3"])[1] is None and again.get(["id 59"])[0].metadata == {"n": -59}
    with pytest.raises(ValueError, match="metric='l2'"):
        Documents(tmp_path / "a.idx")


def test_metadata_comes_back_as_it_was(documents):
    metadata = {
        "none": None,
        "float": 1.0,
        "nan": float("inf"),
        "whole": 2**70,
        "large": 2**60,
        "when": datetime.datetime(2024, 2, 29, 12, tzinfo=UTC),
        "day": datetime.date(2024, 2, 29),
        "bytes": b"\0\xff",
        "nested": {"$date": 1, "a": [1, None, {"b": (1, 2)}]},
        "numbered": {1: "one", (2, 3): {"four"}},
        "id": uuid.UUID(int=5),
        "price": decimal.Decimal("1.10"),
        "text": "ü\U0001f600",
        "": "no name",
        "mixed": [1, "a", 2.5],
        "empty": [],
    }
    documents.put([Document("a", {"any": ["thing"]}, metadata, vector(1))])
    [back] = documents.get(["a"])
    assert back.metadata == metadata and list(back.metadata) == list(metadata) and back.content == {"any": ["thing"]}
    assert type(back.metadata["float"]) is float and type(back.metadata["nested"]["a"][2]["b"]) is tuple
    documents.put([Document("b", None, {"n": numpy.int64(3), "x": numpy.arange(3), "f": numpy.float32(0.5)}, vector(2))])
    assert documents.get(["b"])[0].metadata == {"n": 3, "x": [0, 1, 2], "f": 0.5}
    with pytest.raises(TypeError, match=r"the metadata of 'c'\['x'\] is <object"):
        documents.put([document(3), Document("c", "text", {"x": object()}, vector(3))])
    assert len(documents) == 2


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"memry": "64MiB"}, TypeError, 'Documents() has no argument "memry" (did you mean "memory"?)'),
        ({"dimention": 3}, TypeError, 'Documents() has no argument "dimention" (did you mean "dimension"?)'),
        ({"M": 16}, TypeError, 'Documents() has no argument "M" (did you mean "degree"?)'),
        ({"ids": [1]}, TypeError, 'Documents() has no argument "ids"'),
        ({"preset": "x"}, ValueError, 'preset="x"; there is no such preset. Use one of: '),
        ({"metric": "cosin"}, ValueError, '(did you mean "cosine"?)'),
        ({"layout": "packet"}, ValueError, '(did you mean "packed"?)'),
        ({"memory": "lots"}, ValueError, 'memory="lots"'),
        ({"memory": "1MB"}, ValueError, "memory budget of 1000000 bytes is too small"),
        ({"degree": 10**12, "dimension": 8}, ValueError, "degree"),
        ({"degree": "many"}, TypeError, "degree='many'"),
        ({"dimension": 0}, ValueError, "dimension is 0"),
        ({"dimension": 3.5}, TypeError, "dimension is 3.5"),
        ({"dimension": "3"}, TypeError, "dimension is '3'"),
    ],
)
def test_wrong_arguments_are_told_before_anything_is_embedded(arguments, error, words, tmp_path):
    with pytest.raises(error) as caught:
        Documents(tmp_path / "a.idx", **arguments)
    assert words in str(caught.value) and not list(tmp_path.iterdir())


def test_another_dimension_than_the_documents_have_is_refused(documents, tmp_path):
    path = tmp_path / "a.idx"
    documents.put([Document("a", "without a vector")])
    assert len(Documents(path, dimension=7)) == 1
    documents.put([document(1)])
    with pytest.raises(ValueError, match=rf"dimension is 7; the documents in .*a.idx have vectors of {D} dimensions. Pass dimension={D}, or leave it out"):
        Documents(path, dimension=7)
    assert len(Documents(path, dimension=D)) == 2
    assert documents.clear() == 2
    assert len(Documents(path, dimension=7)) == 0


def test_what_only_a_build_needs_is_left_to_it(documents, tmp_path):
    documents.put([document(1)])
    documents.close()
    with Documents(tmp_path / "a.idx", codebook=tmp_path / "gone", query_log=tmp_path / "gone") as again:
        again.put([document(2)])
    for dimension in (None, D):
        with Documents(tmp_path / f"{dimension}.idx", dimension=dimension, space="10MB") as small:
            small.put(document(n) for n in range(30))
            assert len(small) == 30
    with pytest.raises(FileNotFoundError, match="gone"):
        Documents(tmp_path / "c.idx", codebook=tmp_path / "gone").put([document(1)])


def built_with(path):
    return {name: stratann.open(path)._built_with[name] for name in ("preset", "degree", "alpha", "layout", "seed")}


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "decouplevs", "degree": 32, "alpha": 1.3, "seed": 7},
        {"layout": "coupled", "degree": 20, "chunk": "1MiB"},
        {"preset": "spann", "cluster_size": 6},
        {"preset": "distvs", "code_bytes": 4},
    ],
)
def test_a_store_that_is_opened_again_grows_with_the_options_of_its_first_build(options, tmp_path):
    path = tmp_path / "a.idx"
    with Documents(path, **options) as documents:
        documents.put([document(1)])
    before = built_with(path)
    with Documents(path) as documents:
        documents.put(document(n) for n in range(20))
    with Documents(path, **options) as documents:
        documents.put(document(n) for n in range(200))
    assert built_with(path) == before and len(Documents(path)) == 200
    again = stratann.open(path)._built_with
    for name, value in options.items():
        assert again[name] == (1 << 20 if value == "1MiB" else value)


def test_options_of_another_build_are_refused(tmp_path):
    path = tmp_path / "a.idx"
    with Documents(path, preset="decouplevs", alpha=1.3) as documents:
        documents.put(document(n) for n in range(9))
        again = Documents(path, preset="decouplevs", degree=64, alpha=1.3, layout=None, code_bytes=2)
        assert len(again) == 9
    for options, words in [
        ({"preset": "stratann"}, "its preset is 'decouplevs', not 'stratann'. Pass preset='decouplevs', or leave it out"),
        ({"degree": 32}, "its degree is 64, not 32"),
        ({"alpha": 1.2}, "its alpha is 1.3, not 1.2"),
        ({"code_bytes": 4}, "its code_bytes is 2, not 4"),
        ({"compression": "raw"}, "compression is 'raw'; the index was built without it .preset 'decouplevs'.. Leave it out"),
        ({"low_codes": "nested"}, "low_codes is 'nested'; the index was built without it"),
        ({"replicas": 2}, "replicas is 2; the index was built without it"),
    ]:
        with pytest.raises(ValueError, match=words):
            Documents(path, **options)
    path = tmp_path / "b.idx"
    with Documents(path, preset="spann", compression="raw") as documents:
        documents.put([document(1)])
        Documents(path, preset="spann", compression="raw")
    for options, words in [
        ({"degree": 32}, "degree is 32; the index was built without it .preset 'spann'"),
        ({"code_bytes": 4}, "code_bytes is 4; the index was built without it"),
        ({"compression": "best"}, "compression is 'best'; the index was built without it"),
    ]:
        with pytest.raises(ValueError, match=words):
            Documents(path, **options)
    path = tmp_path / "c.idx"
    with Documents(path, preset="decouplevs", compression="best") as documents:
        documents.put([document(1)])
        Documents(path, compression="best")
        with pytest.raises(ValueError, match="its compression is 'best', not 'raw'"):
            Documents(path, compression="raw")


def test_options_stay_when_no_document_has_a_vector(tmp_path):
    path = tmp_path / "a.idx"
    with Documents(path, preset="decouplevs", degree=32) as documents:
        documents.put([Document("a", "without a vector")])
    Documents(path, code_bytes=2)
    with Documents(path) as documents:
        documents.put([document(1)])
    assert stratann.open(path)._built_with["degree"] == 32 and stratann.open(path).preset == "decouplevs"


def test_a_store_whose_space_decides_the_degree_grows(tmp_path):
    path = tmp_path / "a.idx"
    for count in (1, 30):
        with Documents(path, space="10MB") as documents:
            documents.put(document(n) for n in range(count))
    assert len(Documents(path)) == 30


def test_other_names_of_a_metric(tmp_path):
    with Documents(tmp_path / "a.idx", metric="L2") as documents:
        documents.put([document(1)])
        assert documents.search(vector(1), 1)[0][1] == 0
    with pytest.raises(ValueError, match="its metric is 'l2', not 'cosine'"):
        Documents(tmp_path / "a.idx")


def test_vectors_that_documents_did_not_write_are_told(tmp_path):
    vectors = numpy.stack([vector(n) for n in range(20)])
    stratann.build(vectors, tmp_path / "a.idx", metric="cosine", attributes=[{"year": 1}] * 20)
    with pytest.raises(ValueError, match=r"a.idx: it is an index of 20 vectors without documents, .*Pass the path of another folder"):
        Documents(tmp_path / "a.idx")
    stratann.create(tmp_path / "b.idx", dimension=D, metric="cosine", preset="decouplevs")
    with Documents(tmp_path / "b.idx") as documents:
        documents.put([document(1)])
    with stratann.open(tmp_path / "b.idx") as index:
        index.insert(vectors, ids=range(20))
        assert index.preset == "decouplevs"
    documents = Documents(tmp_path / "b.idx")
    [known, unknown] = documents.get(["id 1", "id 2"])
    assert known.id == "id 1" and unknown is None
    for read in (lambda: documents.search(vector(5)), lambda: list(documents.scan())):
        with pytest.raises(stratann.StratannError, match="has no document, .*not exists _stratann_id"):
            read()
    documents.close()
    with stratann.open(tmp_path / "b.idx") as index:
        assert index.delete(filter="not exists _stratann_id") == 20
    assert [found.id for found, _ in Documents(tmp_path / "b.idx").search(vector(5))] == ["id 1"]


def test_a_dict_is_a_filter_over_values_of_all_kinds(documents):
    documents.put([document(1, lang="en", year=2024), document(2, lang="de", year="unknown"), document(3, lang="en", year=2**60, tags=["a", "b"])])
    for filter, ids in [
        ({"lang": "en"}, [1, 3]),
        ({"lang": "en", "year": {"$gte": 2020}}, [1, 3]),
        ({"year": {"$gte": 2020, "$lt": 3000}}, [1]),
        ({"year": "unknown"}, [2]),
        ({"year": {"$in": [2024, "unknown"]}}, [1, 2]),
        ({"lang": {"$ne": "en"}}, [2]),
        ({"$or": [{"lang": "de"}, {"tags": {"$contains": "a"}}]}, [2, 3]),
        ({"$not": {"lang": "en"}}, [2]),
        ({"tags": {"$exists": False}}, [1, 2]),
        ({"nothing": 1}, []),
    ]:
        names = [f"id {n}" for n in ids]
        assert found(documents, filter) == names and documents.count(filter) == len(ids), filter
        assert sorted(one.id for one, _ in documents.search(vector(1), filter=filter)) == names
    documents.put([Document("bare", "without a vector", {"lang": "en"})])
    assert sorted(one.id for one, _ in documents.search(vector(1), filter={"lang": "en"})) == ["id 1", "id 3"]
    assert documents.update({"lang": "de"}, lambda one: one) == 1
    with pytest.raises(ValueError, match="the key 'lung'"):
        documents.delete_matching({"lung": {"$ne": "en"}})
    with pytest.raises(ValueError, match="the key 'lung'"):
        documents.update({"lung": {"$ne": "en"}}, lambda one: one)
    with pytest.raises(ValueError, match="filter is empty"):
        documents.delete_matching({})
    assert documents.delete_matching({"lang": {"$nin": ["en"]}}) == 1 and len(documents) == 3


@pytest.mark.parametrize("name", ["attributes", "payload", "return_stats"])
def test_a_search_returns_documents_and_nothing_else(name, documents):
    documents.put([document(1)])
    with pytest.raises(TypeError, match=f'search.. has no argument "{name}"; results are pairs'):
        documents.search(vector(1), **{name: True})


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        ("search", "filtr", "filter"),
        ("search", "vector_", "vector"),
        ("search", "list_sise", "list_size"),
        ("search", "chek", "check"),
        ("get", "vectrs", "vectors"),
        ("count", "where", "filter"),
        ("put", "existng", "existing"),
        ("scan", "filtr", "filter"),
        ("update", "chnge", "change"),
        ("delete", "idz", "ids"),
        ("delete_matching", "filtr", "filter"),
        ("columns", "deletng", "deleting"),
    ],
)
def test_an_unknown_argument_of_a_method_leads_to_the_right_one(call, given, meant, documents):
    arguments = {"search": [vector(1)], "get": [["id 1"]], "put": [[]]}.get(call, [])
    with pytest.raises(TypeError, match=rf'Documents.{call}\(\) has no argument "{given}" \(did you mean "{meant}"\?\)'):
        getattr(documents, call)(*arguments, **{given: None})


def test_documents_are_looked_up_as_in_a_dict(documents):
    assert "id 1" not in documents and list(documents) == [] and len(documents) == 0
    with pytest.raises(KeyError, match="id 1"):
        documents["id 1"]
    documents.put([document(1, year=1), document(2), Document(uuid.UUID(int=7), "a uuid")])
    assert "id 1" in documents and "id 3" not in documents
    assert documents["id 2"].content == "text 2" and documents[uuid.UUID(int=7)].content == "a uuid"
    assert uuid.UUID(int=7) in documents
    assert sorted(documents) == sorted(["id 1", "id 2", str(uuid.UUID(int=7))]) and len(documents) == 3
    with pytest.raises(KeyError, match="id 3"):
        documents["id 3"]
    with pytest.raises(TypeError, match="an id is a text"):
        documents[3]
    documents.delete(["id 1"])
    assert "id 1" not in documents and "id 1" not in list(documents)


def test_a_misspelt_key_of_a_filter_leads_to_the_right_one(documents, tmp_path):
    assert documents.count({"yaer": 1}) == 0  # before the first document
    documents.put([document(1, year=1, nested={"a": 1}), document(2, year=2, colour="red"), document(3, old="x")])
    for call in (
        lambda filter: documents.search(vector(1), filter=filter),
        documents.count,
        lambda filter: list(documents.scan(filter)),
        lambda filter: documents.update(filter, lambda one: one),
        documents.delete_matching,
    ):
        for filter in ({"yaer": 1}, {"color": {"$in": ["red"]}}, {"yaer": {"$gt": 0}}, {"$not": {"$not": {"yaer": 1}}}):
            with pytest.warns(RuntimeWarning, match="which no document has .did you mean '(year|colour)'"):
                call(filter)
    for filter in ({"color": {"$exists": False}}, {"color": {"$ne": "red"}}):
        with pytest.warns(RuntimeWarning, match="did you mean 'colour'"):
            assert documents.count(filter) == 3
    assert len(documents) == 3
    # Keys of a few documents, keys without a column, and keys that resemble no other.
    assert documents.count({"colour": "red"}) == 1 and documents.count({"nested": {"$exists": True}}) == 1
    assert documents.count({"author": "me"}) == 0 and documents.count({"author": {"$ne": "me"}}) == 3
    # A declared key is not misspelt.
    with Documents(tmp_path / "b.idx", filterable=["year", "years"]) as declared:
        declared.put([document(1, year=1)])
        assert declared.count({"years": 1}) == 0


@pytest.mark.parametrize(
    "values, filter",
    [
        ([[1, "a"]], {"tags": {"$ne": "a"}}),
        ([[1.5, 2.5]], {"tags": {"$nin": [1.5]}}),
        ([{"y": 1}], {"$not": {"tags": 1}}),
        ([[1, 2], [1.0, 2.5]], {"tags": {"$ne": 1}}),
        ([[1, 2], [1.0, 2.5]], "not (tags contains 1)"),
    ],
)
def test_a_deletion_spares_values_that_filters_cannot_compare(values, filter, documents):
    documents.put([document(number, tags=value) for number, value in enumerate(values)])
    with pytest.raises(ValueError, match="'tags'; some documents have values under this key that filters cannot compare"):
        documents.delete_matching(filter)
    assert len(documents) == len(values)
    # Whether there is a value is known.
    assert documents.delete_matching({"tags": {"$exists": False}}) == 0


def test_calls_of_a_store_that_cannot_be_say_how_to_go_on(documents):
    documents.put([document(1, year=2020)])
    for change, words in (({"year": 1}, "change is of type dict"), (lambda one: {"year": 1}, "change returned an object of type dict")):
        with pytest.raises(TypeError, match=words):
            documents.update({"year": 2020}, change)
    with pytest.raises(TypeError, match="filter is 5; it is no filter"):
        documents.search(vector(1), filter=5)
    with pytest.raises(AttributeError, match=r"its index has. Use index\(\).export"):
        documents.export
    with pytest.raises(ValueError, match="the path of the store is empty"):
        Documents("")


def test_a_warning_is_of_the_line_that_called(documents):
    documents.put([document(1, lang="en")])
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="did you mean 'lang'") as warned:
            documents.search(vector(1), filter={"lung": "en"})
        assert [one.filename for one in warned] == [__file__]


def test_names_of_other_libraries_lead_to_methods_of_documents(documents):
    for name, meant in [("add", "put"), ("upsert", "put"), ("query", "search"), ("remove", "delete"), ("serch", "search")]:
        with pytest.raises(AttributeError, match=f'"Documents" has no attribute "{name}" .did you mean "{meant}"'):
            getattr(documents, name)
    with pytest.raises(AttributeError, match='no attribute "xyzzy"$'):
        documents.xyzzy
    assert not hasattr(documents, "__array__")


def test_every_choice_of_a_build_is_one_of_documents(tmp_path):
    """A store checks the options of a build by a signature with the same options."""
    checks = {name: field.default for name, field in inspect.signature(stratann._stratann.check_build).parameters.items()}
    assert set(store._OF_BUILD) | {"metric", "dimension", "memory", "watch_recall"} == set(checks)
    of_build = inspect.signature(stratann.build).parameters
    assert {name: of_build[name].default for name in store._OF_BUILD} == {name: checks[name] for name in store._OF_BUILD}


def test_one_text_is_no_list_of_ids(documents, tmp_path):
    documents.put([Document(id, f"text {id}", {}, vector(1)) for id in ("1", "2", "12")])
    for wrong, remedy in (("12", "['12']"), (b"12", "['12']"), (12, "['12']")):
        for call in (documents.delete, documents.get):
            with pytest.raises(TypeError) as caught:
                call(wrong)
            assert str(caught.value).startswith("ids is ") and f"{call.__name__}({remedy})" in str(caught.value)
    assert sorted(one.id for one in documents.scan()) == ["1", "12", "2"]
    assert documents.delete(iter(["12"])) == 1 and [one and one.id for one in documents.get(iter(["12", "2"]))] == [None, "2"]
    for wrong in ("12", document(12)):
        with pytest.raises(TypeError, match="documents is .*Pass a list, put"):
            documents.put(wrong)
    with pytest.raises(TypeError, match="documents has '1'; put writes stratann.documents.Document"):
        documents.put(["1", "2"])
    with pytest.raises(TypeError, match=r"filterable is 'year'.*Pass a list, filterable=\['year'\]"):
        Documents(tmp_path / "b.idx", filterable="year")


def test_an_id_may_be_a_uuid(documents):
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    documents.put([Document(id, "one", {}, vector(0)) for id in (first, str(second))])
    assert [document.id for document in documents.get([str(first), second])] == [str(first), str(second)]
    assert documents.delete([first]) == 1 and documents.get([first, second])[0] is None
    with pytest.raises(TypeError, match=r"row 0 is UUID.*stratann\.documents\.Documents"):
        stratann.build(numpy.zeros((1, 4), numpy.float32), "unused.idx", ids=[first])


def test_a_key_that_is_nearly_another_is_warned_of(documents):
    documents.put([document(1, colour="red")])
    with pytest.warns(RuntimeWarning, match='column "color" is new; did you mean "colour"') as caught:
        documents.put([document(2, color="red"), document(3, color="blue")])
    assert len(caught) == 1 and caught[0].filename == __file__
    # So many documents cause another build.
    with pytest.warns(RuntimeWarning, match='column "colours" is new; did you mean "colour"') as caught:
        documents.put([document(n, colours="red") for n in range(4, 20)])
    assert len(caught) == 1 and caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # A key of several kinds has columns with almost equal names.
        for tag in (1.5, "x", ["x"]):
            documents.put([document(1, tag=tag)])
        for documents_given in ([document(50, colur="red")], [document(n, colur="red") for n in range(50, 150)]):
            with pytest.raises(RuntimeWarning, match='column "colur" is new'):
                documents.put(documents_given)
        assert "colur" not in documents.index().columns and documents.get(["id 50"]) == [None]


def test_what_is_there_is_replaced_skipped_or_refused(documents):
    documents.put([document(1, x=1), document(2, x=1)])
    assert documents.put([document(2, x=2), document(3, x=2)], existing="skip") == ["id 3"]
    with pytest.raises(DuplicateError, match="'id 3'") as error:
        documents.put([document(4), document(3)], existing="refuse")
    assert error.value.ids == ["id 3"] and len(documents) == 3 and found(documents, "x == 2") == ["id 3"]
    assert documents.put([document(2, x=3), document(2, x=4)]) == ["id 2"]
    assert documents.get(["id 2"])[0].metadata == {"x": 4} and len(documents) == 3
    with pytest.raises(DuplicateError):
        documents.put([document(5), document(5)], existing="refuse")
    with pytest.raises(ValueError, match="existing is 'replaced'"):
        documents.put([document(5)], existing="replaced")


def test_two_ids_of_one_hash_are_refused(documents, monkeypatch):
    documents.put([document(1)])
    real = store.hash_of
    monkeypatch.setattr(store, "hash_of", lambda id: real("id 1") if id == "id 2" else real(id))
    assert documents.get(["id 2"]) == [None] and documents.delete(["id 2"]) == 0
    for given in ([document(2)], [document(3), document(2)]):
        with pytest.raises(IdCollisionError, match="'id 2' and 'id 1'"):
            documents.put(given)
    assert len(documents) == 1
    documents.delete(["id 1"])
    documents.put([document(2)])
    assert documents.get(["id 2"])[0].content == "text 2"


def test_a_key_has_values_of_many_kinds(documents):
    moment = datetime.datetime(2024, 1, 1, tzinfo=UTC)
    given = [1, 2.5, 2**60, True, "one", moment, ["a", "b"], [1, 2], {"a": 1}, [], None, -(2**60), "", [1, "a"]]
    for at in range(0, len(given), 5):
        documents.put(document(n, x=value) for n, value in enumerate(given[at : at + 5], at))
    assert documents.index().columns["x"] == "float"

    def matches(filter):
        return [n for n in range(len(given)) if f"id {n}" in found(documents, filter)]

    columns = documents.columns()
    for n in (1, 2, 3, 4, 5, 11, 12):
        assert matches(columns.equal("x", given[n])) == [n]
    assert matches(columns.equal("x", 1)) == [0, 7] and matches(columns.equal("x", "b")) == [6]
    assert matches(columns.is_in("x", [1.0, "one", 2**60, None, "none"])) == [0, 2, 4, 7, 10]
    assert matches(columns.order("x", ">", 1)) == [1, 2] and matches(columns.order("x", "<=", 2.5)) == [0, 1, 11]
    assert matches(columns.order("x", ">=", 2**60)) == [2] and matches(columns.order("x", "<", 2.0**60)) == [0, 1, 11]
    assert matches(columns.order("x", "<", float("inf"))) == [0, 1, 2, 11] and matches(columns.order("x", "<", -(10.0**30))) == []
    assert matches(columns.order("x", ">=", moment)) == [5]
    assert matches(columns.contains("x", ["a"], every=True)) == matches(columns.contains("x", ["a", 7], every=False)) == [6]
    assert matches(columns.contains("x", [2, 1.0], every=True)) == [7] and matches(columns.contains("x", ["a", 1], every=True)) == []
    assert matches(columns.missing("x")) == [10] and matches(~columns.exists("x")) == [10]
    assert matches(columns.empty("x")) == [9, 10, 12]
    assert matches(columns.equal("y", 1)) == [] and matches(columns.missing("y")) == list(range(len(given)))
    assert matches("x <= 2.5") == [0, 1]
    for wrong in (
        lambda: columns.order("x", "<", "two"),
        lambda: columns.equal("x", [1]),
        lambda: columns.is_in("x", [{}]),
        lambda: columns.contains("x", [1.5, {}], every=True),
    ):
        with pytest.raises(TypeError, match="'x'"):
            wrong()
    assert columns.keys() == ["x"] and set(columns.kinds("x")) == {"number", "integer", "boolean", "string", "time", "strings", "integers"}


def test_a_whole_number_is_compared_with_floats_as_it_is(documents):
    documents.put([document(1, x=2.0**60), document(2, x=0.5)])
    columns = documents.columns()
    assert found(documents, columns.order("x", "<", 2**60 + 1)) == ["id 1", "id 2"] and found(documents, columns.order("x", ">=", 2**60 + 1)) == []
    assert found(documents, columns.order("x", ">", 2**60 - 1)) == ["id 1"] and found(documents, columns.order("x", "<=", 2**60 - 1)) == ["id 2"]


def test_texts_are_times_where_that_is_asked_for(tmp_path):
    with Documents(tmp_path / "a.idx", moments=True) as documents:
        times = ["2024-01-01", "2024-01-01T00:00:00Z", "2023-12-31T23:30:00-01:00", "yesterday", datetime.datetime(2025, 1, 1)]
        documents.put(document(n, t=value) for n, value in enumerate(times))
        columns = documents.columns()
        after = columns.order("t", ">=", "2024-01-01T00:00:00", moments=True)
        assert found(documents, after) == ["id 0", "id 1", "id 2", "id 4"]
        assert found(documents, columns.order("t", "<", datetime.date(2024, 1, 1), moments=True)) == []
        assert found(documents, columns.equal("t", "yesterday")) == ["id 3"]


def test_only_some_keys_are_filterable(tmp_path):
    with Documents(tmp_path / "a.idx", filterable=["year"]) as documents:
        documents.put([document(n, year=n, **{f"key {n * 100 + m}": m for m in range(100)}) for n in range(15)])
        assert found(documents, "year > 12") == ["id 13", "id 14"]
        assert documents.columns().keys() == ["year"] and len(documents.get(["id 3"])[0].metadata) == 101


def test_keys_beyond_the_columns_of_an_index_are_told(tmp_path):
    def many(number, begin, end):
        return document(number, year=number, **{f"key {n}": n for n in range(begin, end)})

    said = "take 1[0-9]{3} columns; an index has at most 1024.*filterable="
    with Documents(tmp_path / "a.idx") as documents:
        with pytest.raises(ValueError, match=said):
            documents.put([many(1, 0, 600), many(2, 600, 1100)])
        assert len(documents) == 0 and not (tmp_path / "a.idx").exists()
        documents.put([many(n, 0, 1000) for n in range(3)])
        # The documents come in a put, in a build and in a change.
        for refused in (
            lambda: documents.put([many(3, 1000, 1030)]),
            lambda: documents.put([many(n, 1000, 1030) for n in range(3, 30)]),
            lambda: documents.update("year == 1", lambda one: many(1, 1000, 1030)),
        ):
            with pytest.raises(ValueError, match=said):
                refused()
            assert len(documents) == 3 and documents.get(["id 1"])[0].metadata == many(1, 0, 1000).metadata
    with Documents(tmp_path / "a.idx", filterable=["year"]) as documents:
        documents.put([many(3, 1000, 1030)])
        assert documents.get(["id 3"])[0].metadata == many(3, 1000, 1030).metadata and found(documents, "year == 3") == ["id 3"]


def test_keys_that_filters_cannot_ask_are_told_from_those_that_nothing_has(tmp_path):
    with Documents(tmp_path / "a.idx", filterable=["year"]) as documents:
        documents.put(document(n, year=n, note=f"{n}", **{"x" * 200: 1}) for n in range(3))
        for ask in (
            lambda columns: columns.equal("note", "1"),
            lambda columns: columns.equal("note", None),
            lambda columns: columns.is_in("note", []),
            lambda columns: columns.order("note", "<", 1),
            lambda columns: columns.contains("note", ["a"], every=True),
            lambda columns: columns.exists("note"),
            lambda columns: columns.empty("note"),
        ):
            with pytest.raises(ValueError, match="'note'.*filterable=.*'year'"):
                ask(documents.columns())
        assert found(documents, documents.columns(deleting=True).negated(lambda: documents.columns().equal("year", 1))) == ["id 0", "id 2"]
    # A store that was opened without `filterable` finds the keys in the files.
    with Documents(tmp_path / "a.idx") as documents:
        with pytest.raises(ValueError, match="'note'.*filterable="):
            documents.columns().equal("note", "1")
        assert found(documents, documents.columns().missing("colour")) == ["id 0", "id 1", "id 2"]
        documents.put([document(3, year=3, note="3")])
        assert found(documents, documents.columns().equal("note", "3")) == ["id 3"]
        with pytest.raises(ValueError, match="'note'.*filterable="):
            documents.columns(deleting=True).equal("note", "3")
        documents.put(document(n, year=n, note=f"{n}") for n in range(3))
        assert found(documents, documents.columns(deleting=True).equal("note", "0")) == ["id 0"]


def test_a_text_is_not_several_values(documents):
    documents.put([document(1, s="bash", tags=["a", "b"])])
    columns = documents.columns()
    for ask, said in (
        (lambda values: columns.is_in("s", values), "'s': is_in"),
        (lambda values: columns.contains("tags", values, every=False), "'tags': contains_any"),
        (lambda values: columns.contains("tags", values, every=True), "'tags': contains_all"),
    ):
        for wrong in ("ab", b"ab", 5):
            with pytest.raises(TypeError, match=f"{said}.*Pass a list"):
                ask(wrong)
    assert found(documents, columns.is_in("s", ["bash"])) == ["id 1"]


def test_a_deletion_does_not_deny_a_key_that_nothing_has(documents):
    documents.put([document(1, year=1, nested={"a": 1}), document(2, year=2, tags=[])])

    def columns():
        return documents.columns(deleting=True)

    for ask in (
        lambda: columns().missing("colour"),
        lambda: columns().empty("colour"),
        lambda: columns().equal("colour", None),
        lambda: _denied(columns(), "colour"),
    ):
        with pytest.raises(ValueError, match="'colour'.*misspelt.*'year'"):
            ask()
    assert columns().equal("colour", "red") == columns().NOTHING
    twice = columns()
    assert found(documents, twice.negated(lambda: twice.negated(lambda: twice.equal("colour", 1)))) == []
    # No column has the values of these keys.
    assert found(documents, columns().missing("nested")) == ["id 2"]
    assert found(documents, columns().missing("tags")) == ["id 1"]
    assert documents.delete_matching(_denied(columns(), "year")) == 1


def test_a_deletion_does_not_deny_values_of_a_kind_that_no_document_has(documents):
    documents.put([document(at, year=2000 + at, tags=["a", "b"]) for at in range(1, 6)])
    for filter in (
        {"year": {"$ne": "2005"}},
        {"year": {"$nin": [2001, "2005"]}},
        {"year": {"$not": {"$eq": "2005"}}},
        {"tags": {"$ne": 3}},
        {"$not": {"tags": 2.5}},
        {"$not": {"tags": {"$gt": 3}}},
        {"$not": {"year": {"$contains": "a"}}},
        {"year": {"$ne": 2**60}},
    ):
        with pytest.raises(ValueError, match="have another type"):
            documents.delete_matching(filter)
        assert len(documents) == 5
    assert documents.count({"year": {"$ne": 2**60}}) == 5
    assert documents.delete_matching({"year": {"$nin": [2001, 2002]}}) == 3


def test_a_value_of_the_wrong_type_is_refused_and_one_of_a_list_is_found(documents):
    documents.put([document(at, year=2000 + at, tags=["a", f"t{at}"], marks=[at, 9], name="n", day=DAY) for at in range(1, 4)])
    for filter, expected in [
        ({"tags": "a"}, [1, 2, 3]),
        ({"tags": "t2"}, [2]),
        ({"tags": "t9"}, []),
        ({"tags": {"$in": ["t1", "t3"]}}, [1, 3]),
        ({"tags": {"$ne": "t1"}}, [2, 3]),
        ({"tags": {"$nin": ["t1", "t2"]}}, [3]),
        ({"marks": 2}, [2]),
        ({"marks": {"$in": [1, 3.0]}}, [1, 3]),
        ({"year": 2**60}, []),
    ]:
        assert found(documents, filter) == [f"id {n}" for n in expected], filter
    for filter, said in [
        ({"year": "2005"}, r"the key 'year' with '2005'; its values in the documents have another type \(float\)\. Pass a value of that type"),
        ({"year": {"$in": [2001, "2002"]}}, r"'2002'.*\(float\)"),
        ({"year": True}, r"\(float\)"),
        ({"year": {"$gt": DAY}}, r"\(float\)"),
        ({"year": {"$contains": 2001}}, r"\(float\)"),
        ({"name": 5}, r"\(string\)"),
        ({"name": {"$lt": 5}}, r"\(string\)"),
        ({"tags": 5}, r"\(list of strings\)"),
        ({"day": "2024-01-01"}, r"\(timestamp\)"),
    ]:
        for call in (documents.count, lambda filter: documents.search(vector(1), 3, filter=filter), lambda filter: list(documents.scan(filter))):
            with pytest.raises(ValueError, match=said):
                call(filter)


def _denied(columns, key):
    return columns.negated(lambda: columns.equal(key, 2))


def test_documents_without_a_vector(tmp_path):
    with Documents(tmp_path / "a.idx") as documents:
        documents.put([Document("bare", "text", {"x": 1}), Document("too", "text", {"x": "two"})])
        assert len(documents) == 2 and documents.search(vector(1)) == []
        documents.put([document(1, x=1), Document("third", "text", {"x": 1})])
        for metric_search in (documents.search(vector(1), 10), documents.search(vector(1), 10, filter="x == 1")):
            assert [one.id for one, _ in metric_search] == ["id 1"]
        assert found(documents, "x == 1") == ["bare", "id 1", "third"]
        assert {one.id: one.vector is None for one in documents.scan(vectors=True)} == {
            "bare": True, "too": True, "third": True, "id 1": False,
        }  # fmt: skip
        documents.put([Document("bare", "text", {}, vector(2))])
        assert documents.search(vector(2), 1)[0][0].id == "bare"
        documents.update("x == 1", lambda one: Document(one.id, one.content, {**one.metadata, "seen": True}))
        assert [one.id for one, _ in documents.search(vector(1), 10, filter="seen == true")] == ["id 1"]


def test_what_no_filter_can_say_is_checked(documents):
    documents.put(document(n, n=n) for n in range(300))
    odd = documents.search(vector(7), 5, check=lambda one: one.metadata["n"] % 100 == 99)
    assert sorted(one.metadata["n"] for one, _ in odd) == [99, 199, 299]
    assert [far for _, far in odd] == sorted(far for _, far in odd)
    assert documents.search(vector(7), 5, check=lambda one: False) == []


def test_changes_of_what_matches(documents):
    documents.put(document(n, n=n, even=n % 2 == 0) for n in range(2_500))
    assert documents.update("n < 2400", lambda one: Document("other", one.content + "!", {**one.metadata, "n": one.metadata["n"] + 1})) == 2_400
    assert documents.count("n >= 2400") == 101 and documents.get(["id 0"])[0].content == "text 0!"
    assert documents.search(vector(17), 1)[0][0].metadata == {"n": 18, "even": False}
    assert documents.delete_matching("even == true") == 1_250 and len(documents) == 1_250
    assert len(list(documents.scan())) == 1_250


def test_errors_leave_all_as_it_was(documents):
    documents.put([document(1, x=1)])
    for given, error, said in [
        (Document("a", "x" * 70_000, {}, vector(2)), ValueError, "'a' takes .* bytes .*at most 65536"),
        (Document("a", "text", {"_stratann_id": 1}, vector(2)), ValueError, "_stratann_id"),
        (Document("a", "text", {}, numpy.ones(D + 1)), ValueError, "has 9 dimensions; the vectors in .* have 8. Pass vectors"),
        (Document("a", "text", {}, numpy.zeros(D)), ValueError, "length 0"),
        (Document("", "text", {}, vector(2)), TypeError, "Pass a str that is not empty"),
        (Document(7, "text", {}, vector(2)), TypeError, "Pass a str that is not empty"),
    ]:
        with pytest.raises(error, match=said):
            documents.put([given])
        with pytest.raises(error):
            documents.put([document(3), given])
        assert len(documents) == 1
    for empty in ("", {}):
        with pytest.raises((TypeError, ValueError)):
            documents.delete_matching(empty)
    with pytest.raises(TypeError, match=r"filter is None; .* call clear\(\)"):
        documents.delete_matching(None)
    assert len(documents) == 1
    for wrong, said in ((lambda: documents.search(vector(1), 0), "k is 0"), (lambda: documents.count("y == 1"), '"y"')):
        with pytest.raises(ValueError, match=said):
            wrong()
    with pytest.raises(TypeError, match="k='3'; it is of another type. Pass a whole number"):
        documents.search(vector(1), "3")
    with pytest.raises(ValueError, match="dimension is 0"):
        Documents("b.idx", dimension=0)


def test_an_index_that_began_with_one_document_finds_as_others_do(documents):
    rng = numpy.random.default_rng(3)
    spread, near = rng.standard_normal((16, 64)), rng.standard_normal((50, 16))

    def some(count):
        return ((near[rng.integers(0, 50, count)] + 0.7 * rng.standard_normal((count, 16))) @ spread).astype(numpy.float32)

    rows, queries = some(2_000), some(50)
    documents.put([Document("0", None, {"n": 0}, rows[0])])
    for begin in range(1, len(rows), 250):
        documents.put(Document(str(n), None, {"n": n}, rows[n]) for n in range(begin, min(begin + 250, len(rows))))
    truth, _ = stratann.truth(rows, queries, 10, "cosine")
    hits = sum(int(one.id) in row for query, row in zip(queries, truth.tolist()) for one, _ in documents.search(query, 10))
    assert hits >= 0.95 * truth.size
    assert documents.count("n >= 0") == len(documents) == 2_000


def test_two_stores_of_a_process_share_what_they_see(tmp_path):
    first, second = Documents(tmp_path / "a.idx"), Documents(tmp_path / "b" / ".." / "a.idx")
    (tmp_path / "b").mkdir()
    first.put([document(1)])
    second.put([document(2)])
    assert len(first) == len(second) == 2
    first.close()
    second.put([document(3)])
    assert len(first) == 3
    first.close()


@pytest.mark.parametrize("closed", [True, False])
def test_a_folder_that_is_removed_is_an_empty_store(tmp_path, closed):
    # A notebook whose cells run again removes the folder of an open store.
    folder = tmp_path / "a.idx"
    old = Documents(folder)
    old.put([document(1)])
    if closed:
        old.close()
    shutil.rmtree(folder)
    new = Documents(folder)
    assert len(new) == len(old) == 0 and new.get(["id 1"]) == [None] and new.search(vector(1)) == []
    new.put([document(2)])
    assert [one.id for one in old.scan()] == ["id 2"]
    # Another index, which this process has not built, takes its place.
    new.close()
    shutil.rmtree(folder)
    with child(tmp_path, "documents.put([document(3)]); documents.close()") as other:
        other.communicate()
    assert [one.id for one in old.scan()] == [one.id for one in new.scan()] == ["id 3"]
    old.put([document(4)])
    assert len(new) == 2
    new.close()


class Meanwhile:
    """A callback that once, during a build, lets another thread read, and waits for the result."""

    def __init__(self):
        self.read = None
        self.answers = []

    def __call__(self, stage, done, total):
        if self.read is None:
            return
        read, self.read = self.read, None
        thread = threading.Thread(target=lambda: self.answers.append(read()), daemon=True)
        thread.start()
        # Far longer than a read; without a result, the reader waits for the build.
        thread.join(60)


def test_readers_do_not_wait_for_writers(tmp_path):
    meanwhile = Meanwhile()

    def read():
        nearest = [one.content for one, _ in documents.search(vector(1), 1)]
        counts = (len(documents), documents.count(), len(list(documents.scan())))
        return nearest, documents.get(["id 1", "id 9"]), counts, documents.columns().keys()

    # The callback may come before or after the new index takes its place.
    with Documents(tmp_path / "a.idx", progress=meanwhile) as documents:
        meanwhile.read = read
        documents.put([document(n, n=n) for n in range(3)])
        [(nearest, _, counts, keys)] = meanwhile.answers
        assert nearest in ([], ["text 1"]) and set(counts) <= {0, 3} and keys in ([], ["n"])
        # With more than four times as many documents, the index is built anew.
        meanwhile.read = read
        documents.put([document(n, n=-n) for n in range(20)])
        [_, (nearest, [one, other], counts, keys)] = meanwhile.answers
        assert nearest == ["text 1"] and set(counts) <= {3, 20} and keys == ["n"]
        assert one.metadata in ({"n": 1}, {"n": -1}) and (other is None or other.metadata == {"n": -9})
        assert len(documents) == 20 and documents.get(["id 1"])[0].metadata == {"n": -1}


def test_a_scan_goes_on_when_the_index_is_built_anew(documents, monkeypatch):
    monkeypatch.setattr(store, "_BATCH", 16)
    documents.put(document(n, n=n) for n in range(40))
    scan = documents.scan("n >= 0", vectors=True)
    seen = [next(scan) for _ in range(20)]
    documents.put(document(n, n=n) for n in range(40, 300))
    seen.extend(scan)
    assert len({one.id for one in seen}) == len(seen) >= 40 and {f"id {n}" for n in range(40)} <= {one.id for one in seen}
    for one in seen:
        assert one.content == f"text {one.metadata['n']}"
        numpy.testing.assert_array_equal(one.vector, vector(one.metadata["n"]))


@pytest.mark.parametrize("process", ["this", "another"])
@pytest.mark.parametrize("call", ["get", "scan", "search", "count", "ask"])
def test_a_read_is_of_the_new_index_where_one_is_built_meanwhile(tmp_path, monkeypatch, process, call):
    with Documents(tmp_path / "a.idx", filterable=["n"]) as documents:
        documents.put(document(n, n=n, note="") for n in range(20))
    taken = documents._handle.index

    def build():
        if process == "this":
            documents.put(document(n, n=n, note="") for n in range(20, 200))
            documents.close()
        else:
            with child(tmp_path, "documents.put(document(n, n=n, note='') for n in range(20, 200)); documents.close()") as other:
                other.communicate()
            assert other.returncode == 0

    def index():
        # Another index takes the place of the one that is being read.
        monkeypatch.undo()
        index = taken()
        build()
        return index

    asked = Documents(tmp_path / "a.idx").columns() if call == "ask" else None
    monkeypatch.setattr(documents._handle, "index", index)
    if call == "get":
        assert documents.get(["id 3"], vectors=True)[0].content == "text 3"
    elif call == "scan":
        assert {f"id {n}" for n in range(20)} <= {one.id for one in documents.scan()}
    elif call == "search":
        assert [one.content for one, _ in documents.search(vector(3), 1, filter="n < 20", vectors=True)] == ["text 3"]
    elif call == "count":
        assert documents.count("n < 20") == 20
    else:
        with pytest.raises(ValueError, match="'note'.*filterable="):
            asked.equal("note", "")
    assert len(documents) == 200


def test_a_store_stays_where_it_is_when_the_process_goes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Documents("a.idx") as documents:
        (tmp_path / "other").mkdir()
        monkeypatch.chdir(tmp_path / "other")
        documents.put([document(1)])
        assert len(documents) == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.idx", "a.idx.lock", "other"] and not any((tmp_path / "other").iterdir())


def test_an_index_that_lacks_a_file_is_not_an_empty_store(tmp_path):
    with Documents(tmp_path / "a.idx") as documents:
        documents.put([document(1)])
    del documents
    [codes] = (tmp_path / "a.idx").glob("codes-*")
    codes.rename(tmp_path / "codes")
    with pytest.raises(stratann.DamagedError, match="codes-.*the file is missing"):
        Documents(tmp_path / "a.idx")
    (tmp_path / "codes").rename(codes)
    assert len(Documents(tmp_path / "a.idx")) == 1


def test_the_size_of_memory_that_is_given_last_counts_for_all_stores_of_a_folder(tmp_path):
    def size(store):
        [_, (_, options)] = store.index().__reduce__()
        return options.get("memory")

    first = Documents(tmp_path / "a.idx")
    first.put([document(1)])
    with pytest.raises(ValueError, match="memory is '64MiB'; .*open for changes, with memory=None.*Close"):
        Documents(tmp_path / "a.idx", memory="64MiB")
    assert size(first) is None and len(Documents(tmp_path / "a.idx")) == 1
    first.close()
    second = Documents(tmp_path / "a.idx", memory="64MiB")
    assert size(first) == size(second) == size(Documents(tmp_path / "a.idx")) == "64MiB"
    with pytest.raises(ValueError, match="too small"):
        Documents(tmp_path / "a.idx", memory=1)
    assert size(first) == "64MiB"
    first.put([document(2)])
    assert len(Documents(tmp_path / "a.idx", memory="64MiB")) == 2
    first.close()


def test_searches_are_sampled_by_watch_recall_which_stores_of_a_folder_share(tmp_path):
    with pytest.raises(ValueError, match="queries of watch_recall"):
        Documents(tmp_path / "a.idx", watch_recall=0)
    first = Documents(tmp_path / "a.idx", watch_recall=8)
    first.put([document(number) for number in range(20)])
    second = Documents(tmp_path / "a.idx")
    for number in range(3):
        first.search(document(number).vector, 2)
        second.search(document(number).vector, 2)
    assert second.index().stats()["live_recall"]["waiting"] == 6
    told = first.index().measure_recall()
    assert (told["last"]["queries"], told["last"]["found"], told["sample"]) == (6, 1.0, 8)
    with pytest.raises(ValueError, match="watch_recall is 9; .*open for changes, with watch_recall=8.*Close"):
        Documents(tmp_path / "a.idx", watch_recall=9)
    first.close()
    assert Documents(tmp_path / "a.idx", watch_recall=9).index().stats()["live_recall"]["sample"] == 9
    assert first.index().stats()["live_recall"]["sample"] == 9


CHILD = """
import sys
sys.path.insert(0, {folder!r})
from test_documents import document
from stratann.documents import Documents
documents = Documents({path!r})
{work}
"""


def child(tmp_path, work):
    code = CHILD.format(folder=os.path.dirname(__file__), path=str(tmp_path / "a.idx"), work=work)
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_another_process_reads_and_waits_for_its_turn_to_write(tmp_path):
    here = Documents(tmp_path / "a.idx")
    with child(tmp_path, "documents.put([document(1)]); print('in', flush=True); input(); documents.close(); print('out', flush=True); input()") as other:
        assert other.stdout.readline() == "in\n"
        assert len(here) == 1 and here.search(vector(1), 1)[0][0].id == "id 1"
        for change in (lambda: here.put([document(2)]), lambda: here.delete(["id 1"])):
            with pytest.raises(stratann.InUseError, match="another process"):
                change()
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == "out\n"
        here.put([document(2)])
        assert len(here) == 2
        here.close()
        other.communicate("\n")


@pytest.mark.parametrize("calls", [0, 1, 6, 29])
def test_a_process_that_is_killed_leaves_no_half_of_a_document(tmp_path, calls):
    work = """
print("go", flush=True)
for at in range(0, 100_000, 7):
    documents.put(document(n, n=n, tags=[str(n)]) for n in range(at, at + 7))
    print("put", flush=True)
"""
    with child(tmp_path, work) as other:
        assert other.stdout.readline() == "go\n"
        for _ in range(calls):
            assert other.stdout.readline() == "put\n"
        other.send_signal(signal.SIGKILL)
    with Documents(tmp_path / "a.idx") as documents:
        there = list(documents.scan(vectors=True))
        assert len(there) == len(documents)
        numbers = sorted(one.metadata["n"] for one in there)
        assert numbers == list(range(len(numbers)))  # in the order of each call
        assert len(numbers) >= 7 * calls
        for one in there:
            n = one.metadata["n"]
            assert (one.id, one.content, one.metadata) == (f"id {n}", f"text {n}", {"n": n, "tags": [str(n)]})
            numpy.testing.assert_array_equal(one.vector, vector(n))
        for n in numbers[:: max(1, len(numbers) // 10)]:
            assert found(documents, f"tags contains '{n}' and n == {n}") == [f"id {n}"]
        documents.put([document(100_001)])
        assert documents.search(vector(100_001), 1)[0][0].id == "id 100001"


def test_a_filter_text_for_a_key_with_values_of_several_kinds_warns_and_deletes_nothing(documents):
    documents.put([document(n, ts=ts) for n, ts in enumerate([0, 1760000000000000001, 1760000000000000002])])
    with pytest.warns(RuntimeWarning, match=r"the key 'ts', which has values of several types \(float, integer\); .* Pass a dict"):
        assert documents.count("ts >= 1000") == 0
    with pytest.warns(RuntimeWarning, match="'ts'"):
        documents.search(vector(1), filter="ts >= 1000")
    assert documents.count({"ts": {"$gte": 1000}}) == 2
    with pytest.raises(ValueError, match="'ts', which has values of several types"):
        documents.delete_matching("not ts > 100")
    assert len(documents) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert documents.count("_stratann_id == 'ts'") == 0
        assert documents.count('_stratann_id == "about ts"') == 0
        assert documents.count("ts >= 1000 or `_stratann_integer:ts` >= 1000") == 2
    with pytest.warns(RuntimeWarning, match="'ts'"):
        assert documents.delete_matching("ts < 0 and exists ts") == 0


@pytest.mark.skipif(not hasattr(stratann._stratann, "_in_next_read"), reason="the module has nothing for tests")
@pytest.mark.parametrize("changed", [False, True], ids=["closed", "open for changes"])
@pytest.mark.parametrize("late", [vector(5), None], ids=["vector", "bare"])
def test_a_document_that_is_replaced_while_it_is_read_is_no_mixture(tmp_path, late, changed):
    states = Document("id 1", "old", {"n": 1}, vector(1)), Document("id 1", "new", {"n": 2}, late)
    documents = Documents(tmp_path / "a.idx")
    documents.put([states[0], document(2)])
    if changed:
        documents.put([document(3)])
    else:
        documents.close()
    then = stratann._stratann._in_next_read
    # Between the first and the second read of the call, if it reads twice.
    then(lambda: then(lambda: documents.put([states[1]])))
    try:
        (found,) = documents.get(["id 1"], vectors=True)
    finally:
        then(lambda: None)
    assert found in states
    documents.put([states[1]])
    assert documents.get(["id 1"], vectors=True) == [states[1]]
    documents.close()
