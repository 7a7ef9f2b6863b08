"""Arguments that a user may get wrong: numbers without bounds, ids that are none, arrays that are not what they seem."""

import numpy
import pytest

import stratann

HUGE = 10**12


@pytest.fixture(scope="module")
def floats(small):
    return small[:300].astype(numpy.float32)


@pytest.fixture
def changing(small, tmp_path):
    """An index that a test may change."""
    return stratann.build(small[:300], tmp_path / "i.idx", degree=16, build_list=32)


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
        ([5], TypeError, ["ids is a list", "numpy.array(ids, dtype=numpy.uint64)"]),
        (5, TypeError, ["ids is an int", "numpy.array([5], dtype=numpy.uint64)"]),
        (5.0, TypeError, ["ids is a float"]),
        (None, TypeError, ["ids is a NoneType"]),
        (numpy.uint64(5), TypeError, ["ids is a uint64", "numpy.array([ids], dtype=numpy.uint64)"]),
        ({5}, TypeError, ["ids is a set", "numpy.fromiter(ids, dtype=numpy.uint64)"]),
        (numpy.array(5), ValueError, ["()", "ids.ravel()"]),
        (numpy.array([[5]]), ValueError, ["(1, 1)", "ids.ravel()"]),
        (numpy.array([-1]), ValueError, ["-1", "2^64 - 2"]),
        (numpy.array([2**64 - 1], numpy.uint64), ValueError, ["18446744073709551615", "2^64 - 2"]),
        (numpy.array([5.0]), TypeError, ["float64", "uint64", "2^53"]),
        (numpy.array([True]), TypeError, ["bool", "numpy.flatnonzero"]),
        (numpy.array(["5"]), TypeError, ["<U1"]),
        (numpy.ma.masked_array([5], [True]), TypeError, ["masked", "filled"]),
    ],
)
def test_ids_that_are_none(ids, error, words, changing, small, tmp_path):
    for call in [
        lambda: changing.delete(ids),
        lambda: changing.upsert(small[:1], ids),
        lambda: stratann.build(small[:1], tmp_path / "other.idx", ids=ids) if ids is not None else changing.delete(ids),
    ]:
        with pytest.raises(error) as caught:
            call()
        for word in words:
            assert word in str(caught.value), str(caught.value)
    assert len(changing) == 300


def test_the_last_id_that_is_one(changing, small):
    last = numpy.array([2**64 - 2], numpy.uint64)
    changing.insert(small[1000:1001], last)
    assert changing.search(small[1000], 1)[0][0] == 2**64 - 2
    changing.delete(last)


class Frame:
    """What pandas calls a column, as far as a message goes."""


Frame.__name__ = "Series"
Frame.__module__ = "pandas.core.series"


@pytest.mark.parametrize(
    "of, error, words",
    [
        (lambda a: numpy.ma.masked_array(a, a > 1), TypeError, ["masked", "filled"]),
        (lambda a: numpy.ma.masked_array(a), TypeError, ["masked"]),
        (lambda a: Frame(), TypeError, ["is a Series", "numpy.stack(base).astype(numpy.float32)"]),
        (lambda a: [[1.0, 2.0], [1.0]], TypeError, ["row 1 has 1 elements and row 0 has 2"]),
        (lambda a: a.tolist(), TypeError, ["numpy.array(base, dtype=numpy.float32)"]),
        (lambda a: tuple(a), TypeError, ["is a tuple", "numpy.array"]),
        (lambda a: 1.5, TypeError, ["is a float"]),
        (lambda a: object(), TypeError, ["is an object"]),
        (lambda a: a.astype(numpy.float64), TypeError, ["float64"]),
        (lambda a: a.astype(numpy.int64), TypeError, ["int64"]),
        (lambda a: a > 1, TypeError, ["bool"]),
        (lambda a: a.astype(">f4"), TypeError, ["big-endian"]),
        (lambda a: a.astype(object), TypeError, ["objects", "astype"]),
        (lambda a: objects(a), TypeError, ["objects", "numpy.stack(base).astype(numpy.float32)"]),
        (lambda a: a[:, ::2], ValueError, ["C-contiguous"]),
        (lambda a: a.T, ValueError, ["C-contiguous"]),
        (lambda a: a[0], ValueError, ["(128,)", "base[None, :]"]),
        (lambda a: a[:0], ValueError, ["zero"]),
        (lambda a: a[:, :0], ValueError, ["without dimensions"]),
        (lambda a: numpy.float32(1), TypeError, ["float32"]),
        (lambda a: numpy.array(1, numpy.float32), ValueError, ["()"]),
    ],
)
def test_arrays_that_are_not_vectors(of, error, words, floats, tmp_path):
    with pytest.raises(error) as caught:
        stratann.build(of(floats), tmp_path / "i.idx")
    for word in words:
        assert word in str(caught.value), str(caught.value)
    assert not (tmp_path / "i.idx").exists()


def objects(array):
    """An array of arrays, which is what `numpy.asarray` makes of a pandas column."""
    out = numpy.empty(len(array), object)
    out[:] = list(array)
    return out


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
