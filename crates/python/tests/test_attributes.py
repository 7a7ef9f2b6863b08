"""Attributes and payloads beside vectors, and filters."""

import asyncio
import collections
import datetime
import json
import pickle
import re
import warnings

import numpy
import pytest

import stratann
from stratann.attributes import several, table, text

BUILT = 1000
UTC = datetime.timezone.utc
DAY = datetime.datetime(2024, 2, 29, 12, tzinfo=UTC)


def attributes(ids):
    """The attributes of a vector follow from its id. One vector in seven has none."""
    return [
        None
        if id % 7 == 0
        else {
            "price": id / 4,
            "tags": [f"t{id % 5}", "all"],
            "made": DAY + datetime.timedelta(hours=id),
            "sold": id % 2 == 0,
            "stock": id,
        }
        for id in ids
    ]


def matches(id):
    return id % 7 != 0 and id % 5 == 3 and id < 400


FILTER = "price < 100 and tags contains 't3'"


@pytest.fixture(params=["stratann", "decouplevs", "spann"])
def index(request, tmp_path, small):
    options = {} if request.param == "spann" else {"degree": 16, "build_list": 40}
    rows, ids = attributes(range(BUILT)), range(BUILT)
    payload = [None if id % 3 else {"id": id, "text": "ü"} for id in ids]
    with stratann.build(
        small[:BUILT], tmp_path / "a.idx", preset=request.param, attributes=rows, payload=payload, **options
    ) as index:
        yield index


def recall(found, base, queries, ids):
    """The recall of the nearest 10 of `ids`. All results must be in `ids`."""
    base = base.astype(numpy.int64)
    share = 0
    for row, query in zip(found, queries.astype(numpy.int64)):
        assert set(row.tolist()) <= set(ids)
        nearest = ids[numpy.argsort(((base[ids] - query) ** 2).sum(axis=1), kind="stable")[:10]]
        share += len(set(row.tolist()) & set(nearest.tolist()))
    return share / found.size


def test_answers_match_and_are_the_nearest_that_do(index, small, queries, request):
    # Best-first results do not depend on the order in which reads complete; clusters have no
    # strategy.
    way = {} if request.node.callspec.params["index"] == "spann" else {"strategy": "best-first"}
    ids = numpy.array([id for id in range(BUILT) if matches(id)])
    text = index.search(queries[:50], filter=FILTER, **way)
    assert recall(text[0], small[:BUILT], queries[:50], ids) >= 0.95
    objects = (stratann.column("price") < 100) & stratann.column("tags").contains("t3")
    for found, expected in zip(index.search(queries[:50], filter=objects, **way), text):
        numpy.testing.assert_array_equal(found, expected)
    found, distances = index.search(queries[0], 10, filter="price between 10 and 11")
    assert sorted(found.tolist()) == [40, 41, 43, 44] + [2**64 - 1] * 6
    assert numpy.isfinite(distances[:4]).all() and numpy.isinf(distances[4:]).all()
    assert (index.search(queries[0], filter="price > 1e9")[0] == 2**64 - 1).all()
    made = stratann.column("made") >= DAY + datetime.timedelta(hours=990)
    assert index.ids(filter=made).tolist() == [990, 991, 992, 993, 995, 996, 997, 998, 999]


def test_rows_come_back_by_their_ids(index):
    assert index.columns == {
        "made": "timestamp",
        "price": "float",
        "sold": "boolean",
        "stock": "integer",
        "tags": "list of strings",
    }
    rows = index.attributes([8, 7, 5_000])
    assert rows == [*attributes([8]), {}, None]
    assert rows[0]["made"].tzinfo is UTC and type(rows[0]["stock"]) is int and rows[0]["sold"] is True
    assert index.payload([3, 4, 5_000, 0]) == [{"id": 3, "text": "ü"}, None, None, {"id": 0, "text": "ü"}]
    ids = [id for id in range(BUILT) if matches(id)]
    assert index.count() == BUILT and index.count(FILTER) == len(ids)
    assert index.ids(filter=FILTER).tolist() == ids
    assert index.ids(ids[3], 5, filter=FILTER).tolist() == ids[4:9]
    assert index.count("not exists stock") == index.count(stratann.column("stock").missing()) == 143


def test_what_changes_is_what_is_asked(index, small, tmp_path, queries):
    def check(handle):
        assert handle.attributes([1_500, 11, 12, 13]) == [{"stock": 7}, {"stock": -1}, {}, {"colour": "red"}]
        assert handle.payload([1_500, 13]) == ["one", [1, None]]
        assert handle.count("stock == 7") == 1 and handle.count("colour == 'red'") == 1
        assert handle.count("made < timestamp(0)") == 0
        assert handle.count(FILTER) == 0 and handle.attributes([8]) == [None]
        assert handle.search(queries[0], 1, filter="stock == 7")[0][0] == 1_500

    index.insert(small[1_500], [1_500], attributes={"stock": 7}, payload="one")
    index.upsert(small[1_100:1_102], [11, 12], attributes=[{"stock": -1}, None])
    index.set_attributes(13, {"colour": "red"}, payload=[1, None])
    assert index.delete(filter=FILTER) == len([id for id in range(BUILT) if matches(id) and id not in (13,)])
    check(index)
    index.flush()
    check(stratann.open(tmp_path / "a.idx"))
    index.compact()
    check(index)
    assert index.verify()["problems"] == []
    index.upsert(small[:1], [1_500])
    assert index.attributes([1_500]) == [{}] and index.payload([1_500]) == [None]
    assert index.delete([1_500]) is None and 1_500 not in index


def test_columns_come_as_people_have_them(tmp_path, small):
    nan, nat = float("nan"), numpy.datetime64("NaT")
    given = {
        "flag": numpy.array([True, False, True]),
        "number": [1, None, 2.5],
        "whole": numpy.array([-(2**63), 2**63 - 1, 0]),
        "gap": numpy.array([1.5, nan, numpy.inf], numpy.float32),
        "text": ("a", "", None),
        "when": numpy.array(["2024-02-29T12", "1969-12-31T23:59:59.999999", nat], "datetime64[ns]"),
        "day": [datetime.date(1970, 1, 2), None, datetime.datetime(2000, 1, 1)],
        "words": [["x"], [], {"y"}],
        "numbers": [numpy.array([1, 2]), None, [numpy.int8(3)]],
        "nothing": [None, None, None],
    }
    index = stratann.build(small[:3], tmp_path / "a.idx", attributes=given)
    assert index.attributes(range(3)) == [
        {
            "flag": True,
            "number": 1.0,
            "whole": -(2**63),
            "gap": 1.5,
            "text": "a",
            "when": DAY,
            "day": datetime.datetime(1970, 1, 2, tzinfo=UTC),
            "words": ["x"],
            "numbers": [1, 2],
        },
        {
            "flag": False,
            "whole": 2**63 - 1,
            "text": "",
            "when": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        },
        {
            "flag": True,
            "number": 2.5,
            "whole": 0,
            "gap": numpy.inf,
            "day": datetime.datetime(2000, 1, 1, tzinfo=UTC),
            "words": ["y"],
            "numbers": [3],
        },
    ]
    far = stratann.build(small[:1], tmp_path / "b.idx", attributes={"t": numpy.array(["20000-01-01"], "datetime64[us]")})
    assert far.attributes(0) == [{"t": numpy.datetime64("20000-01-01", "us")}]


def test_tables_of_other_packages(tmp_path, small):
    expected = [{"a": 1, "s": "x", "t": DAY}, {"a": 2, "t": DAY}, {"s": "z"}]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "a": pandas.array([1, 2, None], "Int64"),
            "s": ["x", None, "z"],
            "t": pandas.to_datetime(["2024-02-29T12:00Z", "2024-02-29T12:00Z", None]),
        }
    )
    index = stratann.build(small[:3], tmp_path / "pandas.idx", attributes=frame, payload=frame["s"])
    assert index.attributes(range(3)) == expected and index.payload(range(3)) == ["x", None, "z"]
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(
        {"a": [1, 2, None], "s": ["x", None, "z"], "t": pyarrow.array([DAY, DAY, None], pyarrow.timestamp("us", "UTC"))}
    )
    index = stratann.build(small[:3], tmp_path / "arrow.idx", attributes=table)
    assert index.attributes(range(3)) == expected
    polars = pytest.importorskip("polars")
    index = stratann.build(small[:3], tmp_path / "polars.idx", attributes=polars.from_arrow(table))
    assert index.attributes(range(3)) == expected


def test_whole_floats_of_arrays_go_where_integers_are():
    nan = float("nan")
    whole, half = numpy.array([1.0, nan, -3.0]), numpy.array([1.0, nan, 2.5])

    def made(given, types):
        return table({"a": given}, None, len(given), False, types)[0]["a"][:2]

    assert made(whole, {"a": "integer"}) == ("integer", [1, None, -3])
    assert made(numpy.float32([nan]), {"a": "integer"}) == ("none", [None])
    for given, types in ((whole, {"a": "float"}), (whole, None), (half, {"a": "integer"}), (whole.tolist(), {"a": "integer"})):
        assert made(given, types)[0] == "float"
    # Beyond this number, a float stands for several integers.
    assert made(numpy.array([2.0**53 - 1]), {"a": "integer"}) == ("integer", [2**53 - 1])
    for far in (numpy.array([2.0**53]), numpy.array([numpy.inf]), numpy.float32([2.0**24])):
        assert made(far, {"a": "integer"})[0] == "float"
    pandas = pytest.importorskip("pandas")
    for series in (pandas.Series([1, None, -3]), pandas.array([1, None, -3], "Float64")):
        assert made(series, {"a": "integer"}) == ("integer", [1, None, -3])


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1])
def test_a_whole_number_that_no_float_is_stays_out_of_floats(tmp_path, small, number):
    for given in ([number, 7, 0.5], [0.5, 7, number], [0.5, None, number]):
        with pytest.raises(ValueError, match=rf"attributes\['n'\]: row {given.index(number)} is {number}, .*exactly"):
            stratann.build(small[:3], tmp_path / "a.idx", attributes={"n": given})
    index = stratann.build(small[:3], tmp_path / "a.idx", attributes={"n": [2**53, -(2**53), 0.5], "m": [number, 7, None]})
    assert index.attributes([0, 1]) == [{"n": 2.0**53, "m": number}, {"n": -(2.0**53), "m": 7}]
    with pytest.raises(ValueError, match="row 1 is .*exactly"):
        index.set_attributes([1, 2], [{"n": 0.5}, {"n": number}])
    with pytest.raises(ValueError, match="exactly"):
        index.set_attributes([1], [{"n": number}])
    assert index.attributes([1]) == [{"n": -(2.0**53), "m": 7}]


def test_an_integer_column_takes_whole_floats_of_pandas(tmp_path, small):
    pandas = pytest.importorskip("pandas")
    index = stratann.build(small[:3], tmp_path / "a.idx", attributes={"a": [1, 2, 3]})
    gap = pandas.DataFrame({"a": [7, None]})
    index.insert(small[3:5], [3, 4], attributes=gap)
    index.upsert(small[3:5], [5, 6], attributes=gap)
    index.set_attributes([0, 1], gap)
    assert index.attributes(range(7)) == [{"a": 7}, {}, {"a": 3}, {"a": 7}, {}, {"a": 7}, {}]
    with pytest.raises(ValueError, match="of type float"):
        index.insert(small[5:6], attributes=pandas.DataFrame({"a": [1.5]}))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"a": [1, 2]}, ValueError, r"attributes\['a'\] has 2 values; it must have 3"),
        ([{"a": 1}], ValueError, "attributes has 1 rows; it must have 3"),
        ([{"a": 1}, 2, None], TypeError, "row 1 is 2"),
        ({"a": [1, "x", 2]}, TypeError, "row 1 is 'x', of type string, and row 0 is of type integer"),
        ({"a": [1, 2, {}]}, TypeError, "row 2 is {}.*payload"),
        ({"a": [[1], ["x"], [1, "x"]]}, TypeError, "row 1 is"),
        ({"a": [[0.5] * 384] * 3}, TypeError, r"row 0 is \[0.5, 0.5, 0.5, 0.5\].. \(384 items\); .*If these are vectors, .* pass it as vectors"),
        ({"a": [1, 2, collections.namedtuple("P", "a b c d e")(1, 2, "x", 4, 5)]}, TypeError, r"row 2 is \[1, 2, 'x', 4\].. \(5 items\)"),
        ({"a": [1, 2, {"b": "x" * 999}]}, TypeError, "row 2 is {'b': 'x{193}... Pass"),
        ({"a": [1, 2, 2**63]}, ValueError, "row 2 is 9223372036854775808"),
        ({"a": "xyz"}, TypeError, "a value for each vector"),
        ({3: [1, 2, 3]}, TypeError, "named 3"),
        ({"a": ["x", "y", "z" * 40_000]}, ValueError, "32768"),
        ({"a\n": [1, 2, 3]}, ValueError, "control"),
        ({f"c{n}": [n] * 3 for n in range(1_025)}, ValueError, "1024"),
        (7, TypeError, "dict of columns"),
        ({"a": ["x", "y\ud800", None]}, ValueError, r"attributes\['a'\]: row 1 is 'y\\ud800'.*UTF-8"),
        ({"a": [None, None, ["x", "\ud800"]]}, ValueError, r"attributes\['a'\]: row 2 is '\\ud800'.*UTF-8"),
        ([{"a\ud800": 1}, {}, {}], ValueError, r"name of a column of attributes is 'a\\ud800'.*UTF-8"),
    ],
)
def test_attributes_that_are_none_are_told(tmp_path, small, given, error, said):
    with pytest.raises(error, match=said):
        stratann.build(small[:3], tmp_path / "a.idx", attributes=given)
    assert not (tmp_path / "a.idx").exists()


def test_payloads_that_are_none_are_told(tmp_path, small):
    for given, error, said in [
        ([1, 2], ValueError, "payload has 2 values"),
        ([1, 2, {3}], TypeError, "payload: row 2"),
        ([1, [float("nan")], 3], ValueError, "payload: row 1"),
        (["x" * 70_000, None, None], ValueError, "65536"),
        ({"a": 1}, TypeError, "payload is a dict"),
        ([1, {"a": "\ud800"}, 2], ValueError, "payload: row 1 .*UTF-8"),
    ]:
        with pytest.raises(error, match=said):
            stratann.build(small[:3], tmp_path / "a.idx", payload=given)
    assert not (tmp_path / "a.idx").exists()


def test_filters_that_do_not_fit_are_told(index, small, queries):
    for text, said in [
        ("price <", "character"),
        ("prize < 3", '"prize"'),
        ("price == 'x'", "float"),
        ("tags == 'x'", "tags"),
        ("stock < 'x'; drop table", "character"),
    ]:
        for asked in (lambda: index.search(queries[0], filter=text), lambda: index.count(text)):
            with pytest.raises(ValueError, match=said):
                asked()
    with pytest.raises(TypeError, match="filter=3"):
        index.count(3)
    with pytest.raises(ValueError, match="of type float"):
        index.insert(small[1_200], attributes={"price": "dear"})
    with pytest.raises(ValueError, match="8888"):
        index.set_attributes([1, 8_888], [{}, {}])
    with pytest.raises(TypeError, match="set"):
        index.set_attributes({2, 1}, [{"stock": 1}, {"stock": 2}])
    for wrong in (lambda: index.delete(), lambda: index.delete([1], filter=FILTER), lambda: index.set_attributes([1])):
        with pytest.raises(TypeError):
            wrong()
    assert index.count() == BUILT


def test_an_infinite_number_is_asked_for_as_it_is_exported(small, tmp_path):
    prices = [1.5, float("inf"), float("-inf")]
    index = stratann.build(small[:3], tmp_path / "i.idx", attributes={"price": prices})
    index.export(tmp_path / "out.u8bin")
    written = (tmp_path / "out.jsonl").read_text()
    assert "1e999" in written and [json.loads(line)["price"] for line in written.splitlines()] == prices
    for text, same, ids in (("1e999", "inf", [1]), ("-1e999", "-inf", [2])):
        assert index.ids(filter=f"price == {text}").tolist() == index.ids(filter=f"price == {same}").tolist() == ids
    assert index.count("price < 1e999") == 2


def test_a_deletion_by_filter_says_how_far_it_is(index):
    told = []
    matching = index.count(FILTER)
    assert index.delete(filter=FILTER, progress=lambda *news: told.append(news)) == matching
    assert told[-1] == ("deleting", matching, matching)
    assert index.count() == BUILT - matching and index.delete(filter=FILTER) == 0

    def enough(stage, done, total):
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough") as raised:
        index.delete(filter="stock > 500", progress=enough)
    # The work was done at that time.
    if hasattr(raised.value, "__notes__"):
        assert "done already" in raised.value.__notes__[0] or "are deleted" in raised.value.__notes__[0]


def test_a_text_is_not_several_values():
    for wrong in ("bash", b"bash", 5):
        with pytest.raises(TypeError, match=re.escape(f"is_in([{wrong!r}])")):
            several(wrong, "is_in")
    assert several({"a"}, "is_in") == several(iter(["a"]), "is_in") == several(numpy.array(["a"]), "is_in") == ["a"]


def test_columns_take_no_text_for_several_values():
    asked = stratann.column("x")
    for method in ("is_in", "not_in", "contains_any", "contains_all"):
        for wrong in ("bash", b"bash", 5):
            with pytest.raises(TypeError, match="Pass a list.*" + re.escape(f"{method}([{wrong!r}])")):
                getattr(asked, method)(wrong)


def test_what_is_no_text_is_told():
    assert text("é", "a") == "é"
    with pytest.raises(TypeError, match="a is 5; it is no text. Pass a str"):
        text(5, "a")
    with pytest.raises(ValueError, match=r"a is 'x\\ud800', with the half .* at 1, .*UTF-8"):
        text("x\ud800", "a")


def test_names_and_filters_are_text(index):
    for make, what in (
        (stratann.column, "the name of a column"),
        (stratann.Filter, "the text of a filter"),
    ):
        with pytest.raises(TypeError, match=f"{what} is 5; it is no text. Pass a str"):
            make(5)
        with pytest.raises(ValueError, match=rf"{what} is '\\ud800'.*UTF-8"):
            make("\ud800")
    with pytest.raises(ValueError, match=r"filter is '\\ud800'.*UTF-8"):
        index.count("\ud800")


def test_filters_are_put_together():
    column = stratann.column
    price, tags = column("price"), column("tags")
    for built, text in [
        (price == 3, "price == 3"),
        (price != 3.0, "price != 3.0"),
        (price == None, "price == null"),  # noqa: E711
        (price != None, "exists price"),  # noqa: E711
        ((price >= 1) & (price <= 2) | ~(price > 5), "price >= 1 and price <= 2 or not price > 5"),
        (price.between(1, 2) & ((price < 1) | tags.exists()), "price between 1 and 2 and (price < 1 or exists tags)"),
        (price.is_in([1, 2]) & price.not_in({3}), "price in [1, 2] and price not in [3]"),
        (tags.contains_any(["a", 'b"']) & tags.contains_all(["c"]), 'tags contains any ["a", "b\\""] and tags contains all ["c"]'),
        (column("or") == True, "`or` == true"),  # noqa: E712
        (column("t") == DAY, "t == timestamp(1709208000000000)"),
    ]:
        assert str(built) == text
        again = stratann.Filter(text)
        assert again == built and hash(again) == hash(built) and again != stratann.Filter("true")
        assert pickle.loads(pickle.dumps(built)) == built
        assert repr(built).startswith("stratann.Filter(")
    for wrong in ("\ud800", ["a", "\ud800"]):
        with pytest.raises(ValueError, match=r"value .*ud800.* of a filter is '\\ud800'.*UTF-8"):
            tags.contains(wrong)
    with pytest.raises(TypeError, match="&"):
        price == 3 and tags.exists()
    with pytest.raises(TypeError, match="missing"):
        price < None
    with pytest.raises(ValueError, match="character"):
        stratann.Filter("price <")


def test_rows_count_in_the_memory_of_a_build(tmp_path):
    vectors = numpy.arange(2_000, dtype=numpy.uint8).repeat(2).reshape(500, 8)
    def build(name, memory):
        payload = ["x" * 60_000] * 500
        return stratann.build(
            vectors, tmp_path / name, degree=8, build_list=12, calibrate=False,
            attributes={"a": list(range(500))}, payload=payload, memory=memory,
        )
    # Thirty megabytes of them are held.
    with pytest.raises(ValueError, match="with 3[0-9]{7} bytes of attributes and payload"):
        build("small", "25MB")
    with build("large", "2GB") as index:
        assert index.count("a < 10") == 10


def test_what_is_within_a_distance_comes_page_by_page(index, small, queries):
    base, query = small[:BUILT].astype(numpy.int64), queries[0]
    distances = ((base - query.astype(numpy.int64)) ** 2).sum(axis=1)
    distance = float(numpy.sort(distances)[60])
    found, after, pages = [], None, 0
    while True:
        page = index.search_range(query, distance, most=25, after=after)
        numpy.testing.assert_array_equal(page.distances, distances[page.ids.astype(int)])
        assert len(page) <= 25 and page.ids.dtype == numpy.uint64
        found += page.ids.tolist()
        pages, after = pages + 1, page.next
        if after is None:
            break
    wanted = set(numpy.flatnonzero(distances <= distance).tolist())
    assert len(found) == len(set(found)) and set(found) <= wanted
    assert len(found) >= 0.95 * len(wanted) and pages >= 2
    assert sorted(found, key=lambda id: (distances[id], id)) == found

    page = index.search_range(query, 1e30, filter=FILTER)
    assert sorted(page.ids.tolist()) == [id for id in range(BUILT) if matches(id)]
    assert page.complete and page.next is None
    index.insert(query[None], ids=[7000], attributes=[{"price": 1, "tags": ["t3"]}])
    assert index.search_range(query, 0, filter=FILTER).ids.tolist() == [7000]
    assert index.search_range(query, 0, filter=FILTER, without=7000).ids.tolist() == []
    nowhere = {"distance": 1, "after": (float("nan"), 0, 0)}
    for wrong, message in [({"distance": float("nan")}, "distance"), ({"distance": 1, "most": 0}, "at least 1"), (nowhere, "after")]:
        with pytest.raises(ValueError, match=message):
            index.search_range(query, **wrong)
    with pytest.raises(TypeError, match="most"):
        index.search_range(query, 1, most=2.5)
    with pytest.raises(ValueError, match="one vector"):
        index.search_range(queries, 1)


def test_more_like_some_ids(index, small):
    base = small[:BUILT].astype(numpy.int64)
    ids, distances = index.search_like([8, 13], 10, filter=FILTER, list_size=100)
    assert ids.shape == distances.shape == (2, 10)
    right = 0
    for own, row in zip([8, 13], ids.tolist()):
        assert own not in row and all(matches(id) for id in row)
        others = numpy.array([id for id in range(BUILT) if matches(id) and id != own])
        nearest = others[numpy.argsort(((base[others] - base[own]) ** 2).sum(axis=1), kind="stable")[:10]]
        right += len(set(row) & set(nearest.tolist()))
    assert right >= 18
    one, _, stats = index.search_like(8, 3, filter=FILTER, return_stats=True)
    assert one.shape == (3,) and stats["filter"]["matching"] == sum(map(matches, range(BUILT)))
    assert 8 not in index.search_like(8)[0]
    with pytest.raises(ValueError, match="4711"):
        index.search_like([8, 4711])


def test_a_search_says_how_it_found_what_matches(index, queries):
    _, _, stats = index.search(queries, filter=FILTER, return_stats=True)
    said = stats["filter"]
    assert said["matching"] == index.count(FILTER) and said["way"] in ["within", "before"]
    assert set(said["estimates"]) == {"within", "before"} and min(said["estimates"].values()) > 0
    assert said["column_reads"] > 0 and said["column_bytes"] >= 4096
    assert (said["dry"], said["wider"]) == (0, 0)
    # A repeated filter reads no columns.
    again = index.search(queries, filter=FILTER, return_stats=True)[2]["filter"]
    assert again["column_reads"] == 0 and again["matching"] == said["matching"]
    assert "filter" not in index.search(queries, return_stats=True)[2]


def test_a_filter_is_checked_though_nothing_is_asked(index, queries):
    ids, _ = index.search(queries[:0], filter=FILTER)
    assert ids.shape == (0, 10)
    with pytest.raises(ValueError, match="prize"):
        index.search(queries[:0], filter="prize < 3")


def test_a_new_column_whose_name_is_nearly_that_of_another_is_warned_of(small, tmp_path):
    rows = [{"colour": "red", "stock": n} for n in range(50)]
    with stratann.build(small[:50], tmp_path / "a.idx", attributes=rows) as index:
        with pytest.warns(RuntimeWarning, match='column "color" is new; did you mean "colour"'):
            index.update_attributes([3], [{"color": "blue"}])
        assert index.attributes([3]) == [{"colour": "red", "stock": 3, "color": "blue"}]
        # The column exists now, and these names have other meanings.
        index.update_attributes([4], [{"color": "blue", "stock2": 1, "size": 3}])
        assert index.attributes([4])[0]["color"] == "blue"


def test_an_insert_or_upsert_warns_once_of_such_a_column(small, tmp_path):
    rows = [{"colour": "red", "stock": n} for n in range(50)]
    with stratann.build(small[:50], tmp_path / "a.idx", attributes=rows) as index:

        def warned(call, *arguments, **named):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                call(*arguments, **named)
            return [re.match(r'column "(\w+)" is new; did you mean "(\w+)"', str(one.message)).groups() for one in caught]

        new = [{"color": "blue"}] * 3
        assert warned(index.insert, small[50:53], [50, 51, 52], attributes=new) == [("color", "colour")]
        assert warned(index.insert, small[53:56], attributes=new) == []
        assert warned(index.upsert, small[:2], [0, 1], attributes={"stok": [1, 2]}) == [("stok", "stock")]
        assert warned(index.upsert, small[:2], [0, 1], attributes={"stok": [1, 2]}) == []
        assert warned(index.insert, small[60:62], [60, 61], attributes={"stocks": [1, 2]}, resume=True) == [("stocks", "stock")]
        assert warned(index.insert, small[60:62], [60, 61], attributes={"stocks": [1, 2]}, resume=True) == []
        with pytest.raises(ValueError, match="50"):
            warned(index.insert, small[50:51], [50], attributes=[{"colours": "red"}])
        assert "colours" not in index.columns
        many = {"colours": ["red"] * 1000}
        assert warned(index.insert, small[100:1100], attributes=many) == [("colours", "colour")]


def test_nothing_is_written_if_the_warning_of_a_column_is_an_error(small, tmp_path):
    rows = [{"colour": "red"}] * 50
    with stratann.build(small[:50], tmp_path / "a.idx", attributes=rows) as index:
        before = [row.tolist() for row in index.get(range(50)).vectors]
        new = [{"color": "blue"}] * 3
        for change in (
            lambda: index.insert(small[50:53], attributes=new),
            lambda: index.insert(small[50:53], [90, 91, 92], attributes=new),
            lambda: index.insert(small[50:53], [90, 91, 92], attributes=new, resume=True),
            lambda: index.insert(small[100:1200], attributes={"color": ["blue"] * 1100}),
            lambda: index.upsert(small[50:53], [0, 1, 2], attributes=new),
            lambda: index.set_attributes([0, 1, 2], new),
            lambda: index.update_attributes([0, 1, 2], new),
        ):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with pytest.raises(RuntimeWarning, match='column "color" is new') as caught:
                    change()
            # Python before 3.11 has no notes.
            assert "Nothing was written" in [*getattr(caught.value, "__notes__", []), str(caught.value)][0]
            assert len(index) == 50 and list(index.columns) == ["colour"]
        assert [row.tolist() for row in index.get(range(50)).vectors] == before
        assert index.attributes(range(50)) == rows


def test_an_error_after_the_last_row_names_the_ids(small, tmp_path):
    def fail(stage, done, total):
        # This stage ends with the last row, so nothing is left to interrupt.
        if (stage, done) == ("inserting", total):
            raise RuntimeError("no")

    with stratann.build(small[:50], tmp_path / "a.idx") as index:
        with pytest.raises(RuntimeError, match="no") as raised:
            index.insert(small[50:60], progress=fail)
        assert len(index) == 60
        # Python before 3.11 has no notes.
        notes = getattr(raised.value, "__notes__", ["The rows are written. Their ids: 50, 51, 52, 53, 54, .. (10 in all)"])
        assert notes[-1] == "The rows are written. Their ids: 50, 51, 52, 53, 54, .. (10 in all)"


DICTS = [
    ({"stock": 3}, "stock == 3"),
    ({"stock": {"$eq": 3}}, "stock == 3"),
    ({"stock": {"$ne": 3}}, "stock != 3"),
    ({"stock": {"$gte": 3, "$lt": 9}}, "stock >= 3 and stock < 9"),
    ({"stock": {"$gt": 3}, "sold": True}, "stock > 3 and sold == true"),
    ({"stock": {"$lte": 3}}, "stock <= 3"),
    ({"stock": {"$in": [1, 2]}}, "stock in [1, 2]"),
    ({"stock": {"$nin": [1, 2]}}, "stock not in [1, 2]"),
    ({"tags": {"$contains": "t3"}}, "tags contains 't3'"),
    ({"stock": {"$exists": True}}, "exists stock"),
    ({"stock": {"$exists": False}}, "stock == null"),
    ({"stock": None}, "stock == null"),
    ({"stock": {"$ne": None}}, "exists stock"),
    ({"$or": [{"stock": 1}, {"stock": 2, "sold": True}]}, "stock == 1 or (stock == 2 and sold == true)"),
    ({"$and": [{"stock": 1}, {"sold": True}]}, "stock == 1 and sold == true"),
    ({"$not": {"stock": 1}}, "not stock == 1"),
    ({"stock": {"$not": {"$gte": 3}}}, "not stock >= 3"),
    ({"made": {"$lt": DAY}}, "made < timestamp(1709208000000000)"),
]


@pytest.mark.parametrize("given, text", DICTS)
def test_a_dict_is_a_filter(given, text):
    assert stratann.Filter(given) == stratann.Filter(text)


def test_a_dict_goes_wherever_a_filter_goes(index, small, queries):
    given, text = {"price": {"$lt": 100}, "tags": {"$contains": "t3"}}, FILTER
    numpy.testing.assert_array_equal(index.search(queries[:3], filter=given)[0], index.search(queries[:3], filter=text)[0])
    numpy.testing.assert_array_equal(index.search_like(3, filter=given)[0], index.search_like(3, filter=text)[0])
    found, wanted = (index.search_range(queries[0], 1e12, filter=one, most=5).ids for one in (given, text))
    numpy.testing.assert_array_equal(found, wanted)
    assert index.count(given) == index.count(text) == len(index.ids(filter=given))
    assert index.delete(filter=given) and index.count(text) == 0
    with pytest.raises(ValueError, match='no column "prize"'):
        index.count({"prize": 3})


@pytest.mark.parametrize(
    "given, error, words",
    [
        ({}, ValueError, "filter is empty; it has no condition"),
        ({"$or": []}, ValueError, "filter['$or'] is empty"),
        ({"a": {}}, ValueError, "filter['a'] is empty"),
        ({"a": {"$gte ": 1}}, ValueError, "filter['a'] has '$gte '; there is no such operator (did you mean '$gte'?). Use one of $eq, "),
        ({"a": {"b": 1}}, ValueError, "filter['a'] has 'b'; there is no such operator. Use one of"),
        ({"$nor": [{"a": 1}]}, ValueError, "filter has '$nor'; there is no such operator (did you mean '$not'?). Use one of $and, $or, $not here"),
        ({"$gte": 3}, ValueError, "filter has '$gte' without the name of a column"),
        ({"$and": {"a": 1}}, TypeError, "filter['$and'] is {'a': 1}; $and takes several conditions. Pass a list of dicts"),
        ({"$or": [{"a": 1}, "b"]}, TypeError, "filter['$or'][1] is 'b'; it has no conditions. Pass a dict"),
        ({"$not": [1]}, TypeError, "filter['$not'] is [1]"),
        ({"a": {"$not": 1}}, TypeError, "filter['a'] has $not with 1; it negates operators"),
        ({"a": [1, 2]}, TypeError, "filter['a'] is [1, 2]; a list can mean several things"),
        ({"a": {"$in": "xy"}}, TypeError, "filter['a']: $in('xy') would ask for each character"),
        ({"a": {"$exists": 1}}, TypeError, "filter['a'] has $exists with 1; it takes a bool"),
        ({"a": {"$lt": None}}, TypeError, "filter['a'] has $lt with None"),
        ({"a": object}, TypeError, "of a filter"),
        ({3: 1}, TypeError, "filter has the key 3; a key is the name of a column"),
    ],
)
def test_dicts_that_are_no_filter_are_told(given, error, words):
    with pytest.raises(error) as caught:
        stratann.Filter(given)
    assert words in str(caught.value)


def test_a_search_returns_attributes_and_payloads(index, queries):
    ids, distances = index.search(queries[:3], k=4)
    again, distances_again, attributes, payload = index.search(queries[:3], k=4, attributes=True, payload=True)
    numpy.testing.assert_array_equal(again, ids)
    numpy.testing.assert_array_equal(distances_again, distances)
    assert attributes == [index.attributes(row) for row in ids] and payload == [index.payload(row) for row in ids]
    _, _, few, stats = index.search(queries[0], k=4, attributes=["stock", "tags"], return_stats=True)
    wanted = [{name: value for name, value in row.items() if name in ("stock", "tags")} for row in attributes[0]]
    assert few == wanted and stats["k"] == 4
    assert len(index.search(queries[0], attributes=False)) == 2 and len(index.search(queries[0], attributes=None, payload=False)) == 2
    _, _, payload = index.search_like([3, 4], k=2, payload=True)
    assert payload == [index.payload(row) for row in index.search_like([3, 4], k=2)[0]]
    _, _, like = index.search_like(3, k=2, attributes=["stock"])
    assert [row.get("stock") for row in like] == [row.get("stock") for row in index.attributes(index.search_like(3, k=2)[0])]
    assert index.search(queries[0], attributes="stock")[2] == index.search(queries[0], attributes=["stock"])[2]
    ids, _, rows = index.search(queries[0], k=5, filter="stock in [1, 2]", attributes=["stock"])
    assert sorted(row["stock"] for row in rows[:2]) == [1, 2] and rows[2:] == [None] * 3
    assert index.search(queries[:0], attributes=True)[2] == []
    for wrong, error, words in [
        (["stok"], ValueError, r'attributes has "stok"; the index has no such column \(did you mean "stock"\?\)'),
        ("stok", ValueError, r'attributes has "stok"; the index has no such column \(did you mean "stock"\?\)'),
        (3, TypeError, "attributes"),
    ]:
        for call in (index.search, index.search_like):
            with pytest.raises(error, match=words):
                call(queries[0] if call == index.search else 3, attributes=wrong)
    with pytest.raises(TypeError, match="payload=3"):
        index.search(queries[0], payload=3)


def test_an_update_keeps_what_it_is_not_given(small, tmp_path):
    rows = [{"colour": "red", "stock": n} for n in range(50)]
    with stratann.build(small[:50], tmp_path / "a.idx", attributes=rows, payload=[{"n": n} for n in range(50)]) as index:
        index.update_attributes([3, 4], [{"stock": 7}, {"colour": None, "price": 1.5}])
        assert index.attributes([3, 4]) == [{"colour": "red", "stock": 7}, {"stock": 4, "price": 1.5}]
        assert index.payload([3, 4]) == [{"n": 3}, {"n": 4}]
        index.update_attributes(3, {"colour": "blue"})
        index.update_attributes([3], payload=["other"])
        index.compact()
        assert index.attributes([3]) == [{"colour": "blue", "stock": 7}] and index.payload([3]) == ["other"]
        assert index.ids(filter="colour == 'blue' and stock == 7").tolist() == [3]
        with pytest.raises(ValueError, match="8888"):
            index.update_attributes([3, 8_888], [{"stock": 1}, {"stock": 1}])
        with pytest.raises(TypeError, match="attributes, a payload, or both"):
            index.update_attributes([3])
        assert index.attributes([3]) == [{"colour": "blue", "stock": 7}]
        index.update_attributes([5, 6], [{"colour": []}, None], payload=[None, "new"])
        assert index.attributes([5, 6]) == [{"stock": 5}, {"colour": "red", "stock": 6}]
        assert index.payload([5, 6]) == [None, "new"]
        # A table names all of its columns.
        index.update_attributes([7, 8], {"stock": [70, None], "size": [1.0, numpy.nan]})
        assert index.attributes([7, 8]) == [{"colour": "red", "stock": 70, "size": 1.0}, {"colour": "red"}]
        index.update_attributes([9], {"colour": [None], "never": [None]})
        assert index.attributes([9]) == [{"stock": 9}] and "never" not in index.columns
    assert stratann.open(tmp_path / "a.idx").attributes([4, 5, 9]) == [{"stock": 4, "price": 1.5}, {"stock": 5}, {"stock": 9}]


def test_every_search_returns_attributes_and_payloads(tmp_path, small, queries):
    rows = attributes(range(60))
    payload = [None if id % 3 else {"id": id} for id in range(60)]
    for name, ids in [("a", range(40)), ("b", range(40, 60))]:
        stratann.build(
            small[ids[0] : ids[-1] + 1], tmp_path / name, degree=8, build_list=16, ids=list(ids),
            attributes=[{"both": id, **({"only": "b"} if name == "b" else {})} for id in ids], payload=[payload[id] for id in ids],
        )
    index = stratann.open(tmp_path / "a")

    async def awaited():
        found = await index.search_async(queries[:2], 3, attributes=True, payload=True, return_stats=True, strategy="best-first")
        return found, await index.search_async(queries[0], 3, attributes=["both"]), await index.search_async(queries[:0], 3, payload=True)

    (ids, distances, held, bodies, stats), one, none = asyncio.run(awaited())
    expected = index.search(queries[:2], 3, attributes=True, payload=True, strategy="best-first")
    numpy.testing.assert_array_equal(ids, expected[0])
    assert [held, bodies] == list(expected[2:]) and stats["queries"] == 2
    assert one[2] == [{"both": int(id)} for id in one[0]] and none[2] == []

    page = index.search_range(queries[0], 1e12, most=5, attributes=["both"], payload=True)
    assert page.attributes == [{"both": int(id)} for id in page.ids] and page.payload == [payload[id] for id in page.ids]
    bare = index.search_range(queries[0], 1e12, most=5)
    assert bare.attributes is None and bare.payload is None

    catalog = stratann.Catalog(tmp_path)
    ids, _, held, bodies, stats = catalog.search(queries[:2], 60, attributes=True, payload=True, return_stats=True)
    assert sorted(ids[0].tolist()) == list(range(60)) and stats["queries"] == 2
    assert held == [[{"both": id, "only": "b"} if id >= 40 else {"both": id} for id in row] for row in ids.tolist()]
    assert bodies == [[payload[id] for id in row] for row in ids.tolist()]
    assert [row.get("only") for row in catalog.search(small[50], 1, attributes=["only"])[2]] == ["b"]
    for call in (lambda **more: catalog.search(queries, **more), lambda **more: index.search_range(queries[0], 1, **more), lambda **more: index.search_async(queries, **more)):
        with pytest.raises(ValueError, match='attributes has "bothh"'):
            call(attributes=["bothh"])


def test_tables_and_lists_take_all_parts_of_a_result(tmp_path, small, queries):
    pandas = pytest.importorskip("pandas")
    rows = [{"year": id, "id": f"text {id}"} if id else None for id in range(3)]
    index = stratann.build(small[:3], tmp_path / "a.idx", attributes=rows, payload=[[id] for id in range(3)])
    found = index.search(small[:2], k=4, attributes=True, payload=True, return_stats=True)
    ids, distances = found[:2]

    lists = stratann.to_lists(*found)
    assert lists[1][0] == (1, 0.0, {"year": 1, "id": "text 1"}, [1]) and [len(row) for row in lists] == [3, 3]
    assert stratann.to_lists(*index.search(small[0], k=1, attributes=True, return_stats=True)) == [(0, 0.0, {})]

    frame = stratann.to_pandas(*found)
    assert list(frame.columns) == ["query", "rank", "id", "distance", "payload", "attribute_id", "year"] and len(frame) == 6
    of_one = frame[frame["id"] == 1]
    assert of_one["year"].tolist() == [1, 1] and of_one["attribute_id"].tolist() == ["text 1"] * 2 and of_one["payload"].tolist() == [[1]] * 2
    assert pandas.isna(frame[frame["id"] == 0]["year"]).all()
    with_stats = stratann.to_pandas(*index.search(small[0], k=4, attributes=["year"], return_stats=True))
    assert list(with_stats.columns) == ["query", "rank", "id", "distance", "year"]
    assert list(stratann.to_pandas(*index.search(small[0], return_stats=True)).columns) == ["query", "rank", "id", "distance"]
    bodies = index.search(small[0], k=4, payload=True)
    with pytest.raises(TypeError, match="pass them as payload="):
        stratann.to_pandas(*bodies[:2], list(bodies[2]))
    assert stratann.to_pandas(*bodies[:2], payload=bodies[2])["payload"].tolist()[0] == [0]

    # Large integers stay exact beside a missing value, and no attribute replaces another.
    large = [{"user": 2**60 + row, "id": row, "attribute_id": -row} for row in range(2)] + [{}]
    of_large = stratann.build(small[:3], tmp_path / "b.idx", attributes=large)
    frame = stratann.to_pandas(*of_large.search(small[0], k=3, attributes=True)).set_index("id")
    assert [int(frame["user"][row]) for row in range(2)] == [2**60, 2**60 + 1] and pandas.isna(frame["user"][2])
    assert frame["attribute_id"][1] == -1 and frame["attribute_attribute_id"][1] == 1

    pytest.importorskip("pyarrow")
    table = stratann.to_arrow(*found)
    assert table["payload"].to_pylist()[:1] == ["[0]"] and table["year"].null_count == 2

    truth = stratann.truth(small[:3], small[:2], 3)
    best = index.search(small[:2], k=3, attributes=True, return_stats=True)
    assert stratann.recall(best, truth) == stratann.recall(best[:2], truth) == 1.0
    with pytest.raises(TypeError, match="found is of type list; it is no tuple of ids and distances"):
        stratann.recall([ids, distances], truth)


def test_a_table_tells_payloads_from_attributes(tmp_path, small):
    pandas = pytest.importorskip("pandas")
    rows = [{"year": 1}, {}, {}]
    index = stratann.build(small[:3], tmp_path / "a.idx", attributes=rows, payload=[{"text": f"t{id}"} for id in range(3)])
    base = ["query", "rank", "id", "distance"]
    for queries in (small[1], small[1:3]):
        for stats in (False, True):
            found = index.search(queries, k=2, payload=True, return_stats=stats)
            frame = stratann.to_pandas(*found)
            assert list(frame.columns) == [*base, "payload"] and frame["payload"][0] == {"text": "t1"}
            assert stratann.to_lists(*found) == stratann.to_lists(found[0], found[1], found[2])
    for ids, distances, payload in zip(*index.search(small[1:3], k=2, payload=True)):
        assert list(stratann.to_pandas(ids, distances, payload).columns) == [*base, "payload"]
    for asked in (True, ["year"], "year"):
        frame = stratann.to_pandas(*index.search(small[1], k=1, attributes=asked))
        assert list(frame.columns) == [*base, "year"] and pandas.isna(frame["year"]).all() and len(frame) == 1
    assert list(stratann.to_pandas(*index.search(small[:0], k=1, attributes=["year"])).columns) == [*base, "year"]
    found = index.search(small[1], k=1, attributes=["year"], payload=True)
    swapped = stratann.to_pandas(found[0], found[1], found[3], found[2])
    assert list(swapped.columns) == [*base, "payload", "year"]
    assert pickle.loads(pickle.dumps(found[2])).names == ("year",) and json.loads(json.dumps(found[3])) == found[3]
    with pytest.raises(TypeError, match="two lists of the same kind"):
        stratann.to_pandas(found[0], found[1], found[3], found[3])


def test_a_table_refuses_parts_without_a_list_for_each_query(tmp_path, small):
    pytest.importorskip("pandas")
    index = stratann.build(small[:3], tmp_path / "a.idx", payload=["first", "second", "third"])
    ids, distances = index.search(small[:2], k=2)
    for flat in (["first", "second"], index.payload(ids.ravel())):
        for call in (lambda: stratann.to_pandas(ids, distances, payload=flat), lambda: stratann.to_lists(ids, distances, flat)):
            with pytest.raises(ValueError, match="Pass a list for each query|Pass the parts that one search returned"):
                call()


def test_dicts_ask_for_ranges_and_for_several_items(small, tmp_path):
    rows = [{"year": 2000 + n, "tags": [f"t{n % 3}", f"u{n % 2}"]} for n in range(12)]
    index = stratann.build(small[:12], tmp_path / "a.idx", attributes=rows)
    for filter, expected in [
        ({"year": {"$between": [2003, 2005]}}, [3, 4, 5]),
        ({"tags": {"$contains_any": ["t1", "u1"]}}, [n for n in range(12) if n % 3 == 1 or n % 2]),
        ({"tags": {"$contains_all": ["t1", "u1"]}}, [1, 7]),
    ]:
        assert index.ids(filter=filter).tolist() == expected
    for wrong in (5, [1], [1, 2, 3], "ab", [None, 3]):
        with pytest.raises(ValueError, match=r"filter\['year'\] has \$between.*smallest and the largest value"):
            stratann.Filter({"year": {"$between": wrong}})
    for operator in ("$in", "$contains_any", "$contains_all"):
        with pytest.raises(TypeError, match=r"filter\['tags'\]: \$.*would ask for each character"):
            stratann.Filter({"tags": {operator: "ab"}})
