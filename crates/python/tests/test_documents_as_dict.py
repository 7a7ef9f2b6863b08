"""Documents as a dict by id, and arguments of the wrong form."""

import copy
import dataclasses
import pickle
import uuid

import numpy
import pytest

import stratann
import stratann.documents
from stratann.documents import UNREAD, Document, Documents, UnreadVectorError

D = 8
SOME = uuid.UUID(int=7)


def vector(number):
    return numpy.random.default_rng(number).standard_normal(D).astype(numpy.float32)


def document(number, **metadata):
    return Document(f"id {number}", f"text {number}", metadata, vector(number))


@pytest.fixture
def documents(tmp_path):
    with Documents(tmp_path / "a.idx") as documents:
        yield documents


def refused(error, call, *words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value), str(caught.value)
    return str(caught.value)


def test_keys_items_and_values_are_those_of_a_dict(documents):
    assert list(documents.keys()) == list(documents.items()) == list(documents.values()) == [] and dict(documents) == {}
    documents.put([document(n, n=n) for n in range(5)] + [Document(SOME, "a uuid")])
    ids = sorted([*(f"id {n}" for n in range(5)), str(SOME)])
    assert sorted(documents.keys()) == ids and len(documents.keys()) == 6 and "id 1" in documents.keys() and "id 9" not in documents.keys()
    assert SOME in documents.keys() and documents.keys() & {"id 1", "no"} == {"id 1"}
    everything = {one.id: one for one in documents.scan()}
    assert dict(documents) == {**documents} == dict(documents.items()) == everything and list(documents.keys()) == list(everything)
    assert list(documents.values()) == list(everything.values()) and len(documents.values()) == len(documents.items()) == 6
    assert ("id 1", everything["id 1"]) in documents.items() and ("id 1", everything["id 2"]) not in documents.items()
    assert everything["id 1"] in documents.values()
    keys = documents.keys()
    documents.delete(["id 1"])
    assert len(keys) == 5 and "id 1" not in keys and "id 1" not in list(keys)


def test_items_and_values_compare_as_those_of_a_dict(documents):
    documents.put([document(1, n=1), Document("bare", "text")])
    full, other = documents.get(["id 1"], vectors=True)[0], document(1, n=2)
    unread, bare = documents["id 1"], documents["bare"]
    for within, without in [
        ([full, unread, document(1, n=1), dataclasses.replace(full, vector=full.vector.tolist())], [other, 5, None]),
        ([], [dataclasses.replace(full, vector=wrong) for wrong in (vector(2), vector(1)[:3], "text", [[1], [1, 2]])]),
        ([bare, Document("bare", "text")], [dataclasses.replace(bare, vector=vector(1)), dataclasses.replace(full, vector=None)]),
    ]:
        for one in within:
            assert one in documents.values() and (one.id, one) in documents.items()
        for one in without:
            assert one not in documents.values() and ("id 1", one) not in documents.items()
    for pair in [(5, full), ("no", full), ("bare", full), (["id 1"], full), (None, None), ("id 1",), ("id 1", full, full), 5, None, "id 1", ["id 1", full]]:
        assert pair not in documents.items()
    assert full == document(1, n=1) != other and full != "id 1" and documents.items() == {one.id: one for one in documents.values()}.items()


def test_a_vector_that_was_not_read_is_not_stored_as_none(documents, tmp_path):
    documents.put([document(1), document(2), Document("bare", "text")])
    with Documents(tmp_path / "copy.idx") as other:
        for read in (lambda: documents.values(), lambda: documents.scan(), lambda: documents.get(["id 1", "id 2", "bare"]), lambda: dict(documents.items()).values()):
            with pytest.raises(UnreadVectorError) as caught:
                other.put(read())
            assert sorted(caught.value.ids) == ["id 1", "id 2"] and isinstance(caught.value, ValueError)
            for word in ("'id 1'", "were not read", "vectors=True", "vector=None"):
                assert word in str(caught.value)
        assert len(other) == 0
        # As does a document that was changed in between, or put back into its own store.
        changed = dataclasses.replace(documents["id 1"], content="other")
        for store in (other, documents):
            with pytest.raises(UnreadVectorError, match="'id 1'"):
                store.put([document(3), changed])
        for found in (documents.search(vector(1), 1), other.search(vector(1), 1)):
            assert [one.id for one, _ in found] == ["id 1"] * len(found)
        # If a document has no vector, each way of reading says so.
        bare = [documents["bare"], documents.get(["bare"], vectors=True)[0], next(one for one in documents.values() if one.id == "bare")]
        assert all(one.vector is None for one in bare) and len(other.put(bare, existing="replace")) == 1
        other.put(documents.scan(vectors=True))
        assert sorted(one.id for one, _ in other.search(vector(1), 9)) == ["id 1", "id 2"] and len(other) == 3


def test_an_unread_vector_is_no_vector(documents):
    documents.put([document(1)])
    unread = documents["id 1"].vector
    assert unread is UNREAD is pickle.loads(pickle.dumps(unread)) is copy.deepcopy(unread) and repr(unread) == "UNREAD" and not unread
    refused(AttributeError, lambda: unread.tolist(), "was not read", "'tolist'", "vectors=True")
    for use in (lambda: numpy.asarray(unread), lambda: documents.search(unread), lambda: numpy.dot(unread, vector(1))):
        refused(TypeError, use, "was not read", "vectors=True")
    [(found, _)] = documents.search(vector(1), 1)
    assert found.vector is UNREAD and documents.update(None, lambda one: dataclasses.replace(one, content="new")) == 1
    numpy.testing.assert_array_equal(documents.get(["id 1"], vectors=True)[0].vector, vector(1))


def test_a_document_that_is_deleted_between_two_reads_is_not_returned_without_its_vector(documents, monkeypatch):
    documents.put([document(1), document(2)])
    read = Documents._read

    def late(self, index, ids, vectors):
        monkeypatch.setattr(Documents, "_read", read)
        self.delete(["id 1"])
        return read(self, index, ids, vectors)

    monkeypatch.setattr(Documents, "_read", late)
    assert [one.id for one in documents.scan(vectors=True)] == ["id 2"]


def test_items_and_values_read_each_document_once(documents, monkeypatch):
    documents.put([document(n) for n in range(20)])
    reads = []
    monkeypatch.setattr(Documents, "__getitem__", lambda self, id: reads.append(id))
    assert len(list(documents.items())) == len(list(documents.values())) == 20 and not reads


def test_an_id_is_deleted_as_from_a_dict(documents):
    with pytest.raises(KeyError, match="id 1"):
        del documents["id 1"]
    documents.put([document(1), document(2), Document(SOME, "a uuid")])
    del documents["id 1"]
    del documents[SOME]
    assert list(documents) == ["id 2"]
    with pytest.raises(KeyError, match="id 1"):
        del documents["id 1"]
    with pytest.raises(TypeError, match="an id is a text"):
        del documents[5]


def test_a_value_of_another_type_is_the_id_of_no_document(documents):
    for written in (False, True):
        for value in (5, None, 1.5, b"id 1", ("id 1",), ["id 1"]):
            assert value not in documents and value not in documents.keys()
        if not written:
            documents.put([document(1)])
    assert "id 1" in documents


def test_what_a_dict_can_do_and_a_store_cannot_has_an_explanation(documents):
    documents.put([document(1)])

    def assign():
        documents["id 2"] = document(2)

    refused(TypeError, lambda: reversed(documents), "no order", "reversed(list(documents))")
    refused(TypeError, assign, "put([")
    assert documents.put([document(2)]) == ["id 2"]
    refused(AttributeError, lambda: documents.pop, 'did you mean "delete"')


@pytest.mark.parametrize(
    ("call", "given", "instead"),
    [
        ("delete", "filter", "delete_matching"),
        ("delete", "where", "delete_matching"),
        ("get", "filter", "scan"),
        ("scan", "ids", "get"),
        ("delete_matching", "ids", "delete"),
    ],
)
def test_an_argument_of_a_sibling_leads_to_it(call, given, instead, documents):
    text = refused(TypeError, lambda: getattr(documents, call)(**{given: ["x"]}), f'Documents.{call}() has no argument "{given}"', f"Call {instead}(")
    assert "did you mean" not in text


def test_metadata_of_none_is_no_metadata(documents):
    documents.put([Document("a", "text", None, vector(1)), Document("b", "text", [("x", 1)], vector(2))])
    assert documents["a"].metadata == {} and documents["b"].metadata == {"x": 1} and documents.count({"x": 1}) == 1
    assert documents.update("x == 1", lambda one: Document(one.id, one.content, None)) == 1 and documents["b"].metadata == {}
    for wrong in (5, "text", ["a", "b"]):
        refused(TypeError, lambda: Document("c", "text", wrong), "the metadata of 'c' is ", "Pass a dict")


@pytest.mark.parametrize("kind", [stratann.documents.Documents, stratann.Index, stratann.Catalog, stratann.Client], ids=lambda kind: kind.__name__)
def test_methods_can_be_pickled(kind):
    for name in dir(kind):
        method = getattr(kind, name)
        if not name.startswith("_") and callable(method):
            assert pickle.loads(pickle.dumps(method)) is method, name


def test_functions_can_be_pickled():
    for name in stratann.__all__:
        if callable(getattr(stratann, name)):
            assert pickle.loads(pickle.dumps(getattr(stratann, name))) is getattr(stratann, name)


def test_the_remedy_for_a_single_value_is_a_call_that_works(documents):
    documents.put([Document(id, f"text {id}", {}, vector(1)) for id in ("5", "12")])
    assert "get(['12'])" in refused(TypeError, lambda: documents.get("12"))
    assert "delete(['5'])" in refused(TypeError, lambda: documents.delete(5), "ids is 5; ")
    assert "delete(['5'])" in refused(TypeError, lambda: documents.delete(b"5"), "ids is b'5'; ")
    assert f"delete(['{SOME}'])" in refused(TypeError, lambda: documents.delete(SOME))
    for wrong in (None, 5, "12", document(1)):
        assert "put([Document(id, content, metadata, vector)])" in refused(TypeError, lambda: documents.put(wrong), "documents is ")
    assert "delete([..])" in refused(TypeError, lambda: documents.delete("1" * 80))


def test_scalars_of_numpy_are_single_values(documents):
    text, number = numpy.array("12"), numpy.array(5)
    for put in ([], [Document(numpy.str_("12"), numpy.str_("text"), {"n": numpy.int64(5), "x": numpy.float32(2.5)}, vector(1))]):
        for id in documents.put(put):
            assert (type(id), id) == (str, "12")
        for wrong, shown in ((text, "['12']"), (number, "['5']"), (numpy.str_("12"), "['12']"), (numpy.int64(5), "['5']")):
            assert f"get({shown})" in refused(TypeError, lambda wrong=wrong: documents.get(wrong), "ids is ")
            assert f"delete({shown})" in refused(TypeError, lambda wrong=wrong: documents.delete(wrong), "ids is ")
            assert "put([Document(" in refused(TypeError, lambda wrong=wrong: documents.put(wrong), "documents is ")
        assert documents.get(numpy.array(["12"]))[0] == documents.get([numpy.str_("12")])[0]
    assert documents.count({"n": numpy.int64(5)}) == documents.count({"n": {"$in": [number]}}) == documents.count({"x": numpy.float32(2.5)}) == 1


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda v: [v, v], ["vector has the shape (2, 8); ", "one vector, (d,)", "Call search for each"]),
        (lambda v: numpy.array([v, v]), ["vector has the shape (2, 8)"]),
        (lambda v: v[None, :], ["vector has the shape (1, 8)", "Pass vector[0]"]),
        (lambda v: numpy.empty((0, D), numpy.float32), ["vector has the shape (0, 8)"]),
        (lambda v: v.reshape(2, 2, 2), ["vector has the shape (2, 2, 2)"]),
        (lambda v: [], ["vector has the shape (0,); a vector has at least one element. Pass a vector, (d,)"]),
        (lambda v: numpy.float32(1), ["vector has the shape (); a search has one vector, (d,). Pass an array, (d,), or a list"]),
        (lambda v: "a text", ["vector is a str", "(d,)"]),
        (lambda v: None, ["vector is a NoneType", "(d,)"]),
    ],
)
def test_a_search_has_one_vector(wrong, words, documents):
    for given in ([], [Document("bare", "without a vector")], [document(1), document(2)]):
        documents.put(given)
        refused((TypeError, ValueError), lambda: documents.search(wrong(vector(1))), *words)
    assert [one.id for one, _ in documents.search(list(map(float, vector(1))), 1)] == ["id 1"]
    refused(ValueError, lambda: documents.search(numpy.ones(3)), "vector has 3 dimensions", "have 8", "Pass a vector of 8 dimensions")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda v: v[None, :], ["the vector of 'id 1' has the shape (1, 8); ", "one vector, (d,)"]),
        (lambda v: [v, v], ["the vector of 'id 1' has the shape (2, 8)"]),
        (lambda v: [], ["the vector of 'id 1' has the shape (0,); a vector has at least one element"]),
        (lambda v: 1.5, ["the vector of 'id 1' is a float"]),
        (lambda v: "a text", ["the vector of 'id 1' is a str"]),
    ],
)
def test_a_document_has_one_vector(wrong, words, documents):
    for given in ([], [document(2)]):
        documents.put(given)
        refused((TypeError, ValueError), lambda: documents.put([Document("id 1", "text", {}, wrong(vector(1)))]), *words)
        assert documents.get(["id 1"]) == [None]


@pytest.mark.parametrize("empty", [[], numpy.empty((0,), numpy.float32), numpy.empty((3, 0), numpy.float32)], ids=["list", "(0,)", "(3, 0)"])
def test_vectors_without_elements_are_told_with_the_remedy(empty, tmp_path):
    index = stratann.build(numpy.eye(D, dtype=numpy.float32), tmp_path / "i.idx", degree=4, build_list=8)
    refused(ValueError, lambda: index.search(empty), "queries has the shape ", "; the index has 8 dimensions. Pass vectors of 8 dimensions")
    refused(ValueError, lambda: stratann.truth(numpy.eye(D, dtype=numpy.float32), numpy.empty((2, 0), numpy.float32), 1), "a vector has at least one element")
