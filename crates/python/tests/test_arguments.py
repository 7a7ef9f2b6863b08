"""Arguments that a user may get wrong."""

import inspect
import pickle
import re
import warnings

import numpy
import pytest

import stratann

HUGE = 10**12


@pytest.fixture(scope="module")
def floats(small):
    return small[:300].astype(numpy.float32)


@pytest.fixture
def changing(small, tmp_path):
    return stratann.build(small[:300], tmp_path / "i.idx", degree=16, build_list=32)


@pytest.fixture(scope="module")
def searched(small, tmp_path_factory):
    return stratann.build(small[:300], tmp_path_factory.mktemp("searched") / "i.idx", degree=16, build_list=32)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"list_size": HUGE}, ["list size", "4294967294"]),
        ({"list_size": 2**63}, ["list size", "4294967294"]),
        ({"list_size": 10**30}, ["list_size", "whole number"]),
        ({"list_size": -1}, ["list_size=-1"]),
        ({"k": HUGE}, ["k is", "at most"]),
        ({"k": HUGE, "list_size": HUGE}, ["k is", "at most"]),
        ({"k": -1}, ["k=-1", "whole number"]),
        ({"beam": HUGE}, ["beam", "1024"]),
        ({"threads": 1_000_000}, ["threads", "1024"]),
        ({"threads": -1}, ["threads=-1"]),
        ({"in_flight": HUGE}, ["in flight", "1024"]),
        ({"in_flight": 0}, ["in flight", "at least 1"]),
        ({"benefit": float("nan")}, ["benefit"]),
    ],
)
@pytest.mark.parametrize("count", [0, 3])
def test_numbers_of_a_search_have_bounds(arguments, words, count, index, photos, queries):
    with pytest.raises(ValueError) as caught:
        index.search(queries[:count], **arguments)
    for word in words:
        assert word in str(caught.value)
    if "benefit" not in arguments:
        catalog = stratann.Catalog(photos.parent)
        with pytest.raises(ValueError) as caught:
            catalog.search(queries[:count], **arguments)
        assert words[0] in str(caught.value)


def test_a_list_beyond_the_collection_is_the_collection(changing, queries):
    whole, _ = changing.search(queries[:5], list_size=300)
    more, _ = changing.search(queries[:5], list_size=4294967294, rerank_batch=HUGE)
    numpy.testing.assert_array_equal(whole, more)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"threads": 1_000_000}, ["threads", "1024"]),
        ({"build_list": HUGE}, ["build list", "4294967294"]),
        ({"build_list": -5}, ["build_list=-5"]),
        ({"degree": HUGE}, ["degree", "4096"]),
        ({"degree": -5}, ["degree=-5"]),
        ({"code_bytes": HUGE}, ["code bytes", "128"]),
        ({"seed": -1}, ["seed=-1"]),
        ({"alpha": float("nan")}, ["alpha"]),
        ({"memory": 1}, ["memory"]),
    ],
)
def test_numbers_of_a_build_have_bounds(arguments, words, small, tmp_path):
    with pytest.raises(ValueError) as caught:
        stratann.build(small[:300], tmp_path / "i.idx", **arguments)
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "i.idx").exists()


def test_numbers_of_the_rest_have_bounds(small, tmp_path, photos):
    for call in [
        lambda: stratann.truth(small, small[:5], k=-1),
        lambda: stratann.truth(small, small[:5], k=HUGE),
        lambda: stratann.truth(small, small[:5], k=5, threads=1_000_000),
        lambda: stratann.train(small, tmp_path / "book", threads=1_000_000),
        lambda: stratann.train(small, tmp_path / "book", code_bytes=-1),
        lambda: stratann.repair(photos, threads=1_000_000),
        lambda: stratann.build(numpy.zeros((1, 100_000), numpy.uint8), tmp_path / "wide"),
    ]:
        with pytest.raises(ValueError):
            call()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", [stratann.open, stratann.verify, stratann.repair, stratann.Catalog])
def test_an_empty_path_is_said_to_be_empty(call):
    with pytest.raises(ValueError, match="empty"):
        call("")


def test_nothing_is_built_at_an_empty_path(small):
    for call in [stratann.build, stratann.train]:
        with pytest.raises(ValueError, match="empty"):
            call(small, "")


@pytest.mark.parametrize(
    "ids, error, words",
    [
        ("5", TypeError, ["ids is a str"]),
        ({5: 1}, TypeError, ["ids is a dict"]),
        (object(), TypeError, ["ids is an object"]),
        (True, TypeError, ["ids is a bool"]),
        ([True], TypeError, ["row 0", "bool", "numpy.flatnonzero"]),
        ([-5], ValueError, ["row 0 is -5", "2^64 - 2"]),
        (range(-1, 0), ValueError, ["row 0 is -1"]),
        ([2**64 - 1], ValueError, ["row 0 is 18446744073709551615", "2^64 - 2"]),
        ([10**30], ValueError, ["2^64 - 2"]),
        (["a"], TypeError, ["row 0 is 'a'"]),
        ([None], ValueError, ["row 0 is missing"]),
        ([5.5], ValueError, ["row 0 is 5.5"]),
        (5.5, ValueError, ["row 0 is 5.5"]),
        (numpy.array([[5]]), ValueError, ["(1, 1)", "ids.ravel()"]),
        (numpy.array([-1]), ValueError, ["row 0 is -1", "2^64 - 2"]),
        (numpy.array([2**64 - 1], numpy.uint64), ValueError, ["18446744073709551615", "2^64 - 2"]),
        (numpy.array([5.5]), ValueError, ["row 0 is 5.5", "float64", "9007199254740992"]),
        (numpy.array([2.0**53]), ValueError, ["row 0", "not exact"]),
        (numpy.array([numpy.nan]), ValueError, ["row 0 is nan"]),
        (numpy.array([True]), TypeError, ["bool", "numpy.flatnonzero"]),
        (numpy.array(["5"]), TypeError, ["<U1"]),
        (numpy.ma.masked_array([5], [True]), ValueError, ["row 0 has a masked element", "filled"]),
    ],
)
def test_ids_that_are_none(ids, error, words, changing, small, tmp_path):
    for call in [
        lambda: changing.delete(ids),
        lambda: changing.upsert(small[:1], ids),
        lambda: stratann.build(small[:1], tmp_path / "other.idx", ids=ids),
    ]:
        with pytest.raises(error) as caught:
            call()
        for word in words:
            assert word in str(caught.value), str(caught.value)
    assert len(changing) == 300


def test_no_ids_at_all(changing, small):
    with pytest.raises(TypeError, match="ids is a NoneType"):
        changing.upsert(small[:1], None)
    with pytest.raises(TypeError, match="delete takes ids or a filter"):
        changing.delete(None)
    assert len(changing) == 300


def test_a_set_of_ids_has_no_order(changing, small):
    with pytest.raises(TypeError, match="ids is a set, which has no order"):
        changing.upsert(small[:1], {5})
    for call in (changing.get, changing.attributes, changing.payload, changing.search_like):
        with pytest.raises(TypeError, match="ids is a set, which has no order. Pass a list, in the order of the answers$"):
            call({3, 4})
    with pytest.raises(TypeError, match="ids is a set, which has no order. Pass a list, in the order of the attributes$"):
        changing.set_attributes({3, 4}, [{}, {}])
    changing.delete({5, 6})
    assert len(changing) == 298


@pytest.mark.parametrize("after", [numpy.nan, 3, "next", (1.0, 2)])
def test_where_a_page_begins_is_a_place(after, searched):
    with pytest.raises(TypeError, match=r"^after=.*; it is of another type. Pass `next` of the previous page"):
        searched.search_range(numpy.zeros(searched.dim, searched.dtype), 5.0, after=after)


def test_the_last_id_that_is_one(changing, small):
    last = numpy.array([2**64 - 2], numpy.uint64)
    changing.insert(small[1000:1001], last)
    assert changing.search(small[1000], 1)[0][0] == 2**64 - 2
    changing.delete(last)


def no_rows(array):
    """A masked array with a masked element in row 2."""
    return numpy.ma.masked_array(array, numpy.arange(array.size).reshape(array.shape) == 2 * array.shape[1] + 3)


@pytest.mark.parametrize(
    "of, error, words",
    [
        (no_rows, ValueError, ["base: row 2 has a masked element", "filled"]),
        (lambda a: [[1.0, 2.0], [1.0]], ValueError, ["row 1 has 1 elements and row 0 has 2"]),
        (lambda a: [[1.0, 2.0], None], ValueError, ["row 1 is missing"]),
        (lambda a: [[1.0, 2.0], [None, 1.0]], ValueError, ["row 1: column 0 is missing"]),
        (lambda a: [[1.0, 2.0], 3.0], ValueError, ["row 1 is 3.0"]),
        (lambda a: [["a", "b"]], TypeError, ["base is <U1"]),
        (lambda a: 1.5, TypeError, ["is a float"]),
        (lambda a: object(), TypeError, ["is an object"]),
        (lambda a: {1: 2}, TypeError, ["is a dict"]),
        (lambda a: a > 1, TypeError, ["bool"]),
        (lambda a: a.astype(complex), TypeError, ["complex128"]),
        (lambda a: a.astype("M8[s]"), TypeError, ["datetime64"]),
        (lambda a: a.astype(numpy.float64) * 1e300, ValueError, ["row 0, column", "too large for float32"]),
        (lambda a: a.astype(numpy.int64) + 2**24 + 1, ValueError, ["row 0, column", "is no float32"]),
        (lambda a: a[0], ValueError, ["(128,)", "base[None, :]"]),
        (lambda a: [], ValueError, ["(0,)"]),
        (lambda a: a[:, :0], ValueError, ["at least one element"]),
        (lambda a: numpy.float32(1), ValueError, ["()"]),
        (lambda a: numpy.array(1, numpy.float32), ValueError, ["()"]),
    ],
)
def test_arrays_that_are_not_vectors(of, error, words, floats, tmp_path):
    with pytest.raises(error) as caught:
        stratann.build(of(floats), tmp_path / "i.idx")
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert not (tmp_path / "i.idx").exists()


@pytest.mark.parametrize("metric", ["l2", "ip"])
def test_values_without_a_finite_distance(metric, floats, tmp_path):
    huge = floats.copy()
    huge[17, 3] = 1e30
    with pytest.raises(ValueError, match=r"row 17, column 3 is 1e30.*at most"):
        stratann.build(huge, tmp_path / "i.idx", metric=metric)
    index = stratann.build(floats, tmp_path / "i.idx", metric=metric, degree=16, build_list=32)
    for call in [index.search, index.insert, lambda rows: stratann.truth(floats, rows, 5, metric)]:
        with pytest.raises(ValueError, match="row 17, column 3"):
            call(huge)
    assert len(index) == 300


def test_cosine_does_not_depend_on_lengths(floats, tmp_path):
    index = stratann.build(floats, tmp_path / "i.idx", metric="cosine", degree=16, build_list=32)
    ids, distances = index.search(floats[:20], 5)
    for scale in [1e20, 1e30, 1e-20, 1e-35]:
        scaled = floats[:20] * numpy.float32(scale)
        again, apart = index.search(scaled, 5)
        numpy.testing.assert_allclose(apart, distances, atol=1e-5)
        assert (again[:, 0] == ids[:, 0]).mean() > 0.9


@pytest.mark.parametrize(
    "arguments, meant",
    [
        ({"preset": "stratan"}, "stratann"),
        ({"metric": "cosin"}, "cosine"),
        ({"layout": "packet"}, "packed"),
        ({"order": "localty"}, "locality"),
        ({"compression": "bets"}, "best"),
    ],
)
def test_a_slip_of_the_pen_gets_the_closest_match(arguments, meant, small, tmp_path):
    with pytest.raises(ValueError, match=f'did you mean "{meant}"'):
        stratann.build(small, tmp_path / "x.idx", **arguments)
    with pytest.raises(ValueError) as caught:
        stratann.build(small, tmp_path / "x.idx", preset="zzz")
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    "call, given, meant",
    [
        (stratann.build, "presset", "preset"),
        (stratann.open, "memori", "memory"),
        (stratann.create, "dim", "dimension"),
        (stratann.create, "existok", "exist_ok"),
        (stratann.plan, "metrik", "metric"),
        (stratann.truth, "top_k", "k"),
        (stratann.verify, "progres", "progress"),
        (stratann.open, "zzz", None),
        (stratann.create, "element", "dtype"),
        (stratann.create, "space", "metric"),
        (stratann.build, "M", "degree"),
        (stratann.build, "ef_construction", "build_list"),
        (stratann.build, "metadata", "attributes"),
        (stratann.create, "schema", "columns"),
    ],
)
def test_a_slip_of_the_pen_in_a_name_gets_the_closest_one(call, given, meant, tmp_path):
    with pytest.raises(TypeError) as caught:
        call(tmp_path / "none.idx", **{given: 1})
    suggestion = "" if meant is None else f' (did you mean "{meant}"?)'
    assert str(caught.value) == f'{call.__name__}() has no argument "{given}"{suggestion}'


@pytest.mark.parametrize(
    "method, given, meant",
    [
        ("insert", "id", "ids"),
        ("insert", "metadata", "attributes"),
        ("upsert", "payloads", "payload"),
        ("delete", "filtr", "filter"),
        ("compact", "proges", "progress"),
        ("compact", "forc", None),
        ("search_range", "limit", None),
        ("search_like", "top_k", "k"),
        ("set_attributes", "attribute", "attributes"),
        ("batches", "sise", "size"),
        ("export", "overwrit", "overwrite"),
    ],
)
def test_a_slip_of_the_pen_in_a_name_of_a_method(method, given, meant, changing):
    with pytest.raises(TypeError) as caught:
        getattr(changing, method)(**{given: 1})
    suggestion = "" if meant is None else f' (did you mean "{meant}"?)'
    assert str(caught.value) == f'Index.{method}() has no argument "{given}"{suggestion}'


def test_a_search_knows_names_of_other_libraries(searched, queries):
    for given, meant in [("include", "attributes"), ("with_payload", "payload"), ("top_k", "k"), ("n_results", "k"), ("limit", "k"), ("where", "filter")]:
        with pytest.raises(TypeError, match=rf'Index.search\(\) has no argument "{given}" \(did you mean "{meant}"\?\)'):
            searched.search(queries[0], **{given: 1})


def test_methods_of_other_libraries_are_told_by_their_names_here(searched):
    for name, meant in [("add", "insert"), ("query", "search"), ("remove", "delete"), ("fetch", "get"), ("serch", "search")]:
        with pytest.raises(AttributeError, match=rf'"Index" has no attribute "{name}" \(did you mean "{meant}"\?\)'):
            getattr(searched, name)
    with pytest.raises(AttributeError, match='"Index" has no attribute "xyzzy"$'):
        searched.xyzzy
    assert not hasattr(searched, "__array__") and not hasattr(searched, "_searh")


@pytest.mark.parametrize("given, metric", [("L2", "l2"), ("euclidean", "l2"), ("IP", "ip"), ("dot", "ip"), ("Cosine", "cosine")])
def test_a_metric_has_the_names_of_other_libraries(given, metric, tmp_path):
    assert stratann.create(tmp_path / "a.idx", dimension=3, metric=given).metric == metric


def test_methods_look_at_names_whatever_class(photos):
    with pytest.raises(TypeError, match=r'Catalog.close\(\) has no argument "nam" \(did you mean "name"\?\)'):
        stratann.Catalog(photos.parent).close(nam="photos.idx")
    for kind in (stratann.Index, stratann.Catalog, stratann.Client):
        for name, method in vars(kind).items():
            if not name.startswith("_") and callable(method):
                assert method.__doc__ and list(inspect.signature(method).parameters)[0] == "self", name
                assert pickle.loads(pickle.dumps(method)) is method


def test_a_call_that_looks_at_names_is_the_call():
    for call in (stratann.build, stratann.open, stratann.create):
        assert pickle.loads(pickle.dumps(call)) is call
        assert "path" in inspect.signature(call).parameters and call.__doc__


@pytest.mark.parametrize("call", ["search", "search_async"])
@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"list_sise": 20}, [r"has no argument \"list_sise\" \(did you mean \"list_size\"\?\)"]),
        ({"zzz": 20}, [r"has no argument \"zzz\"$"]),
        ({"top_k": 20}, [r"has no argument \"top_k\" \(did you mean \"k\"\?\)"]),
        ({"ef_search": 20}, [r"did you mean \"list_size\""]),
        ({"n_results": 20}, [r"did you mean \"k\""]),
        ({"where": "a == 1"}, [r"did you mean \"filter\""]),
        ({"names": ["a"]}, ["has no argument \"names\""]),
        ({"strategy": 5}, ["strategy=5; it is of another type. Pass a str"]),
        ({"navigation": "yes"}, ["navigation='yes'; it is of another type. Pass a bool"]),
        ({"exact": None}, ["exact=None; it is of another type. Pass a bool"]),
        ({"recall": "most"}, ["recall='most'; it is of another type. Pass a number"]),
        ({"seeds": 1.5}, ["seeds=1.5; it is of another type. Pass a whole number"]),
        ({"recall": 0.9, "list_size": 20}, ["Pass one of them"]),
    ],
)
def test_what_a_search_takes_by_name_is_checked(call, arguments, words, searched):
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(searched, call)(numpy.zeros((1, searched.dim), searched.dtype), **arguments)
    for word in words:
        assert re.search(word, str(caught.value)), caught.value


def test_signatures_name_all_that_a_search_takes(searched):
    """Help and type checkers go by the signature, the search by its own names."""
    for method in (searched.search, searched.search_async):
        given = {name: field.default for name, field in inspect.signature(method).parameters.items() if name != "queries"}
        assert {"k", "list_size", "recall", "return_stats"} <= given.keys()
        answer = method(numpy.zeros((0, searched.dim), searched.dtype), **given)
        if method == searched.search_async:
            answer.close()


def test_a_plan_says_what_a_build_takes(small, tmp_path):
    plan = stratann.plan(small)
    index = stratann.build(small, tmp_path / "x.idx")
    assert 0.85 < plan["storage"] / index.build_report["bytes"] < 1.15
    assert plan["layout"] == index.stats()["layout"] and plan["degree"] == index.stats()["degree"]
    assert plan["least_memory"] <= plan["memory"] and not plan["in_parts"] and plan["scratch"] == 0
    assert plan["raw_bytes"] == small.nbytes and plan["vectors"] == len(small)
    with pytest.raises(ValueError, match="degree"):
        stratann.plan(small, degree=0)


def test_an_index_in_place_of_its_path_is_told(small, tmp_path):
    index = stratann.build(small, tmp_path / "x.idx")
    for call in (stratann.calibrate, stratann.open, stratann.repair, stratann.verify):
        with pytest.raises(TypeError, match="path is of type Index; it is no path. Pass its path, index.path"):
            call(index)
        with pytest.raises(TypeError, match="path is of type int; it is no path. Pass a str or a pathlib.Path"):
            call(path=5)
    with pytest.raises(TypeError, match="path is of type Index"):
        stratann.build(small, index)
    for name, remedy in [("calibrate", "index.path"), ("repair", "index.path"), ("build", "..")]:
        with pytest.raises(AttributeError) as caught:
            getattr(index, name)
        assert str(caught.value) == f'"Index" has no attribute "{name}"; it is a function of the package. Call stratann.{name}({remedy})'
    with pytest.raises(AttributeError, match='no attribute "serch" .did you mean "search"'):
        index.serch
    with pytest.raises(TypeError, match=r'open\(\) has no argument "progress"; opening shows no progress'):
        stratann.open(index.path, progress=True)


def test_a_folder_that_was_never_an_index_is_told(tmp_path):
    with pytest.raises(stratann.StratannError, match="it is empty. Check the path"):
        stratann.open(tmp_path)
    (tmp_path / "photo.txt").write_text("x")
    with pytest.raises(stratann.StratannError, match="no MANIFEST, and no LOCK, .*Check the path") as caught:
        stratann.open(tmp_path)
    assert "Build the index again" not in str(caught.value)
    (tmp_path / "LOCK").write_text("")
    with pytest.raises(stratann.StratannError, match="no MANIFEST, but the LOCK of a build.*Build the index again"):
        stratann.open(tmp_path)


@pytest.mark.parametrize("preset", ["stratann", "spann"])
def test_a_plan_refuses_a_memory_that_a_build_refuses(preset, small, tmp_path):
    for call in (lambda: stratann.plan(small, preset=preset, memory=10), lambda: stratann.build(small, tmp_path / "x.idx", preset=preset, memory=10)):
        with pytest.raises(ValueError, match="memory budget of 10 bytes is too small; [0-9]+ bytes are needed for .*Give at least that much"):
            call()
    with pytest.raises(ValueError, match="memory budget of 1048576 bytes is too small"):
        stratann.plan(small, preset=preset, payload=["x"] * len(small), memory="1MiB")
    # The process may have grown since.
    enough = stratann.plan(small, preset=preset)["least_memory"] + (8 << 20)
    assert stratann.plan(small, preset=preset, memory=enough)["least_memory"] <= enough


def test_a_plan_counts_attributes_and_payloads(small, tmp_path):
    attributes = {"year": [1900 + row % 100 for row in range(len(small))], "name": [f"photo {row}" for row in range(len(small))]}
    payload = ["x" * (row % 200) for row in range(len(small))]
    rows = {"attributes": attributes, "payload": payload}
    bare, plan = stratann.plan(small), stratann.plan(small, attributes=attributes, payload=payload)
    stratann.build(small, tmp_path / "x.idx", attributes=attributes, payload=payload)
    there = sum(file.stat().st_size for file in (tmp_path / "x.idx").iterdir() if file.name.startswith(("rows-", "columns-")))
    assert 0.98 < plan["attributes"] / there < 1.02 and bare["attributes"] == 0
    assert plan["storage"] == bare["storage"] + plan["attributes"]
    # What is in memory during the build counts, as the build counts it.
    for memory in (1_000, bare["least_memory"]):
        text = r"memory budget of (\d+) bytes is too small; (\d+) bytes are needed for .*, with (\d+) bytes of attributes and payload, "
        named = []
        for call in (lambda: stratann.plan(small, **rows, memory=memory), lambda: stratann.build(small, tmp_path / "y.idx", **rows, memory=memory)):
            with pytest.raises(ValueError, match=text) as refused:
                call()
            given, needed, _ = map(int, re.match(text, str(refused.value)).groups())
            # Given at least that much, a build succeeds: the sum is named. The process has grown since.
            assert given == memory and needed > bare["least_memory"]
            stratann.build(small, tmp_path / "z.idx", **rows, memory=needed + (8 << 20), overwrite=True)
            named.append(needed)
        assert abs(named[0] - named[1]) < 8 << 20
    assert plan["least_memory"] > bare["least_memory"] and plan["memory"] > bare["memory"]
    # The process has grown since.
    least = stratann.plan(small, attributes=attributes, payload=payload)["least_memory"] + (8 << 20)
    stratann.build(small, tmp_path / "y.idx", attributes=attributes, payload=payload, memory=least)
    with pytest.raises(ValueError, match="payload has 1"):
        stratann.plan(small, payload=["x"])


def test_a_warning_is_of_the_line_of_its_caller(tmp_path):
    index = stratann.build(numpy.eye(8, dtype=numpy.float32), tmp_path / "a.idx")
    # A later program wrote this file of inserts. `verify` warns of it.
    (tmp_path / "a.idx" / "INSERTS").write_bytes(b"STRATANN INSERTS 4 94472cb5\n")
    with warnings.catch_warnings(record=True) as caught:
        # Each text once for each line.
        warnings.simplefilter("default")
        index.verify()
        index.verify()
        stratann.verify(tmp_path / "a.idx")
    assert [warning.filename for warning in caught] == [__file__] * 3 and len({warning.lineno for warning in caught}) == 3
