"""Array-like objects are converted wherever vectors or ids are expected, without a loss."""

import functools
import subprocess
import sys
import warnings

import numpy
import pytest

import stratann
from stratann import conversion


@pytest.fixture(scope="module")
def floats(small):
    return small[:300].astype(numpy.float32) + numpy.float32(0.25)


@pytest.fixture(scope="module")
def of_floats(tmp_path_factory, floats):
    path = tmp_path_factory.mktemp("floats") / "i.idx"
    return stratann.build(floats, path, degree=16, build_list=32)


@pytest.fixture
def changing(small, tmp_path):
    return stratann.build(small[:300], tmp_path / "i.idx", degree=16, build_list=32)


def objects(array):
    """An array of arrays, as `numpy.asarray` makes it of a pandas column."""
    out = numpy.empty(len(array), object)
    out[:] = list(array)
    return out


def wide(array):
    """Every other column of an array twice as wide."""
    return numpy.repeat(array, 2, axis=1)[:, ::2]


class Tensor:
    """An object that can become an array, as tensors can."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def pandas_column(array):
    return pytest.importorskip("pandas").Series(list(array), index=range(100, 100 + len(array)))


def pandas_frame(array):
    return pytest.importorskip("pandas").DataFrame(array)


def pandas_frame_of_one(array):
    return pytest.importorskip("pandas").DataFrame({"embedding": list(array)})


def polars_array(array):
    polars = pytest.importorskip("polars")
    return polars.Series("e", array.tolist(), dtype=polars.Array(polars.Float32, array.shape[1]))


def polars_list(array):
    polars = pytest.importorskip("polars")
    return polars.Series("e", array.tolist(), dtype=polars.List(polars.Float64))


def polars_frame(array):
    return pytest.importorskip("polars").DataFrame(array)


def polars_frame_of_one(array):
    return polars_list(array).to_frame()


def arrow_fixed(array):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.ravel()), array.shape[1])


def arrow_sliced(array):
    return arrow_fixed(numpy.concatenate([array[:7], array]))[7:]


def arrow_lists(array):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.array(array.tolist(), type=pyarrow.list_(pyarrow.float64()))[:]


def arrow_chunks(array):
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.chunked_array([arrow_fixed(array[:3]), arrow_fixed(array[3:])])


def arrow_table(array):
    return pytest.importorskip("pyarrow").table({"e": arrow_chunks(array)})


WAYS = [
    lambda a: a.tolist(),
    lambda a: tuple(map(tuple, a.tolist())),
    list,
    Tensor,
    objects,
    lambda a: a.astype(object),
    lambda a: a.astype(numpy.float64),
    lambda a: a.astype(">f4"),
    lambda a: numpy.asfortranarray(a),
    wide,
    lambda a: a[::-1].copy()[::-1],
    lambda a: numpy.ma.masked_array(a),
    lambda a: numpy.ma.masked_array(a, numpy.zeros(a.shape, bool)),
    pandas_column,
    pandas_frame,
    pandas_frame_of_one,
    polars_array,
    polars_list,
    polars_frame,
    polars_frame_of_one,
    arrow_fixed,
    arrow_sliced,
    arrow_lists,
    arrow_chunks,
    arrow_table,
]


@pytest.mark.parametrize("way", WAYS)
def test_vectors_are_converted(way, floats, of_floats, tmp_path):
    rows = floats[:20]
    # Best-first results do not depend on the order in which reads complete.
    expected = of_floats.search(rows, 5, strategy="best-first")
    found = of_floats.search(way(rows), 5, strategy="best-first")
    for ours, theirs in zip(expected, found):
        numpy.testing.assert_array_equal(ours, theirs)
    ids, distances = stratann.truth(way(floats), way(rows), 3)
    numpy.testing.assert_array_equal(ids[:, 0], numpy.arange(20))
    built = stratann.build(way(floats), tmp_path / "i.idx", degree=16, build_list=32, threads=1)
    assert built.dtype == numpy.float32 and len(built) == 300
    built.insert(way(rows + 1000), range(1000, 1020))
    built.upsert(way(rows + 2000), list(range(1000, 1020)))
    ids, distances = built.search(way(rows + 2000), 1)
    numpy.testing.assert_array_equal(ids[:, 0], numpy.arange(1000, 1020))
    assert (distances == 0).all()


@pytest.mark.parametrize(
    "of",
    [
        list,
        tuple,
        lambda ids: (id for id in ids),
        lambda ids: dict.fromkeys(ids).keys(),
        lambda ids: numpy.array(ids, numpy.int32),
        lambda ids: numpy.array(ids, numpy.float64),
        lambda ids: numpy.array(ids, object),
        lambda ids: numpy.ma.masked_array(ids),
        lambda ids: numpy.repeat(ids, 2)[::2],
        lambda ids: numpy.array(ids, ">u4"),
        lambda ids: [numpy.uint64(id) for id in ids],
        lambda ids: pytest.importorskip("pandas").Series(ids, index=reversed(ids)),
        lambda ids: pytest.importorskip("pandas").Series(ids, dtype="Int64"),
        lambda ids: pytest.importorskip("pandas").Index(ids),
        lambda ids: pytest.importorskip("polars").Series(ids),
        lambda ids: pytest.importorskip("pyarrow").array(ids),
        lambda ids: pytest.importorskip("pyarrow").chunked_array([ids[:2], ids[2:]]),
    ],
)
def test_ids_are_converted(of, changing, small):
    ids = [700, 900, 800]
    inserted = changing.insert(small[300:303], of(ids))
    assert inserted.dtype == numpy.uint64 and inserted.tolist() == ids
    changing.upsert(small[400:403], of(ids))
    assert changing.search(small[400:403], 1)[0].ravel().tolist() == ids
    changing.delete(of(ids))
    assert len(changing) == 300


def test_large_ids_in_a_list_are_what_they_are(changing, small):
    """numpy takes a list of small and large integers for floats, which would name other ids."""
    ids = [2**64 - 2, 1000, 2**63 + 1]
    changing.insert(small[300:303], ids)
    assert changing.search(small[300:303], 1)[0].ravel().tolist() == ids


def test_one_id_and_ranges(changing, small):
    assert changing.insert(small[300], 5000).tolist() == [5000]
    changing.delete(numpy.uint64(5000))
    changing.delete(range(10, 20))
    changing.delete(range(2, 0, -1))
    assert len(changing) == 288


def test_one_query_or_many(of_floats, floats):
    for one in [floats[3], floats[3].tolist(), tuple(floats[3]), pytest.importorskip("pandas").Series(floats[3])]:
        ids, distances = of_floats.search(one, 4)
        assert ids.shape == distances.shape == (4,) and ids[0] == 3
    assert of_floats.search([floats[3]], 4)[0].shape == (1, 4)


def test_floats_become_integers_only_where_they_are(changing, small):
    exact = small[:5].astype(numpy.float64)
    search = functools.partial(changing.search, k=3, strategy="best-first")
    for rows in (exact, exact.astype(int).tolist()):
        numpy.testing.assert_array_equal(search(rows)[0], search(small[:5])[0])
    for wrong, words in [
        (0.5, "row 3, column 7 is 0.5, which is no uint8"),
        (-1, "row 3, column 7 is -1.0"),
        (256, "row 3, column 7 is 256.0"),
        (numpy.nan, "row 3, column 7 is nan"),
        (numpy.inf, "row 3, column 7 is inf"),
    ]:
        rows = exact.copy()
        rows[3, 7] = wrong
        for call in [changing.search, changing.insert]:
            with pytest.raises(ValueError, match=words):
                call(rows)
        with pytest.raises(ValueError, match="element 7 is"):
            changing.search(rows[3])
    with pytest.raises(ValueError, match="row 0, column 0 is 300"):
        changing.search(numpy.full((1, 128), 300, numpy.uint16))


def test_what_is_wrong_far_inside_is_found(monkeypatch):
    """Conversion goes block by block, and names a row by its number in all."""
    monkeypatch.setattr(conversion, "_BLOCK", 64)
    rows = numpy.ones((100, 8))
    rows[77, 2] = 0.5
    with pytest.raises(ValueError, match="row 77, column 2 is 0.5"):
        conversion.vectors(rows, "base", "uint8")
    rows[77, 2] = 9
    numpy.testing.assert_array_equal(conversion.vectors(rows, "base", "uint8"), rows)


@pytest.mark.parametrize(
    "of, words",
    [
        (lambda a: pytest.importorskip("pandas").Series([a[0], None, a[1]]), "row 1 is missing"),
        (lambda a: pytest.importorskip("pandas").DataFrame(a).drop(2).reindex(range(5)), "row 2 is missing"),
        (lambda a: pytest.importorskip("pandas").DataFrame({"e": [a[0], a[1][:5]]}), "row 1 has 5 elements and row 0 has 128"),
        (lambda a: pytest.importorskip("polars").Series([a[0].tolist(), None]), "row 1 is null"),
        (lambda a: pytest.importorskip("polars").Series([[1.0, 2.0], [None, 1.0]]), "row 1 is null, or has a null element"),
        (lambda a: pytest.importorskip("polars").Series([[1.0, 2.0], [1.0]]), "row 1 has 1 elements and row 0 has 2"),
        (lambda a: pytest.importorskip("polars").DataFrame({"a": [1.0, None], "b": [1.0, 2.0]}), "row 1 is null"),
        (lambda a: pytest.importorskip("pyarrow").array([[1.0, 2.0], None]), "row 1 is null"),
        (lambda a: pytest.importorskip("pyarrow").array([[1.0, 2.0], [None, 1.0]]), "row 1 is null, or has a null element"),
        (lambda a: pytest.importorskip("pyarrow").array([[1.0, 2.0], [1.0]]), "row 1 has 1 elements and row 0 has 2"),
    ],
)
def test_a_row_that_is_missing_is_named(of, words, of_floats, floats):
    with pytest.raises(ValueError, match=words):
        of_floats.search(of(floats))


def test_a_frame_with_a_column_of_vectors_leads_to_the_column(tmp_path, floats):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    columns = {"name": ["x", "y"], "embedding": [row.tolist() for row in floats[:2]], "year": [1, 2]}
    with pytest.raises(TypeError, match=r"its column 'embedding' has the vectors. Pass this column, base\['embedding'\]"):
        stratann.build(pandas.DataFrame(columns), tmp_path / "a.idx")
    with pytest.raises(TypeError, match=r"its column 'embedding' has lists. Pass one column, base\['embedding'\]"):
        stratann.build(polars.DataFrame(columns).drop("name"), tmp_path / "a.idx")


@pytest.mark.parametrize(
    "of",
    [
        lambda: pytest.importorskip("pandas").Series([1, None]),
        lambda: pytest.importorskip("pandas").Series([1, None], dtype="Int64"),
        lambda: pytest.importorskip("polars").Series([1, None]),
        lambda: pytest.importorskip("pyarrow").array([1, None]),
        lambda: [1, None],
    ],
)
def test_an_id_that_is_missing_is_named(of, changing):
    with pytest.raises(ValueError, match="row 1"):
        changing.delete(of())
    assert len(changing) == 300


def test_columns_that_are_no_numbers_are_named(of_floats):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for frame in [pandas.DataFrame({"a": [1.0], "text": ["x"]}), polars.DataFrame({"a": [1.0], "text": ["x"]})]:
        with pytest.raises(TypeError, match="text"):
            of_floats.search(frame)


def test_a_large_copy_is_told_once_and_who_made_it(monkeypatch, of_floats, floats):
    monkeypatch.setattr(conversion, "LARGE", 1000)
    monkeypatch.setattr(conversion, "_warned", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            of_floats.search(floats.astype(numpy.float64))
            of_floats.search(floats[::2])
            of_floats.search(wide(floats))
            of_floats.search(floats)
            of_floats.search(floats[0].tolist())
    assert [warning.category for warning in caught] == [stratann.CopyWarning] * 2
    assert {warning.filename for warning in caught} == {__file__}
    said = str(caught[0].message)
    assert "queries is float64" in said and "float32" in said
    assert "not C-contiguous" in str(caught[1].message)


def test_what_is_read_in_place_is_not_copied(monkeypatch, floats):
    monkeypatch.setattr(conversion, "LARGE", 0)
    monkeypatch.setattr(conversion, "_warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert conversion.vectors(floats, "base", None) is floats
        fixed = arrow_fixed(floats)
        made = conversion.vectors(fixed, "base", "float32")
    assert made.ctypes.data == fixed.flatten().buffers()[1].address


def test_nothing_is_imported_that_the_caller_has_not_brought():
    program = (
        "import sys, numpy, stratann\n"
        "from stratann import conversion\n"
        "conversion.vectors([[1.0]], 'base', None); conversion.ids([1], 'the vectors')\n"
        "print([name for name in ('pandas', 'polars', 'pyarrow') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_only_looks_like_a_frame_is_none(of_floats):
    kind = type("Series", (), {"__module__": "pandas.core.series"})
    with pytest.raises((TypeError, AttributeError)):
        of_floats.search(kind())


@pytest.mark.parametrize("module, kind", [("pandas", "DataFrame"), ("polars", "DataFrame")])
def test_a_frame_is_no_column_of_ids(module, kind):
    frame = getattr(pytest.importorskip(module), kind)({"id": [1, 2]})
    with pytest.raises(TypeError, match="several columns. Pass one of them"):
        conversion.ids(frame, "the vectors")


def test_a_table_is_no_column_of_ids():
    table = pytest.importorskip("pyarrow").table({"id": [1, 2]})
    with pytest.raises(TypeError, match="several columns. Pass one of them"):
        conversion.ids(table, "the vectors")


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**24 + 1, 2**63 - 1])
def test_an_integer_that_no_float_is_is_refused(number):
    with pytest.raises(ValueError, match=f"row 1, column 0 is {number}, which is no float32"):
        conversion.vectors(numpy.array([[1], [number]], numpy.int64), "vectors", "float32")


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**24, 0])
def test_an_integer_that_is_a_float_is_taken(number):
    assert conversion.vectors(numpy.array([[number]], numpy.int64), "vectors", "float32")[0, 0] == number
