"""An index that begins with nothing, and one of which nothing is left."""

import numpy
import pytest

import stratann

PRESETS = ["stratann", "decouplevs", "odinann", "aisaq", "diskann", "spann", "distvs"]


@pytest.mark.parametrize("preset", PRESETS)
def test_create_insert_delete_and_insert_again(tmp_path, small, preset):
    index = stratann.create(tmp_path / "live.idx", dimension=128, dtype="uint8", preset=preset)
    assert len(index) == 0 and index.build_report["vectors"] == 0
    assert (index.dim, index.dtype, index.metric) == (128, numpy.uint8, "l2")
    assert index.stats()["vectors"] == 0
    ids, distances = index.search(small[:2], 3)
    assert (ids == numpy.uint64(2**64 - 1)).all() and numpy.isinf(distances).all()
    assert 0 not in index and list(index.batches()) == []
    numpy.testing.assert_array_equal(index.insert(small[:300]), numpy.arange(300))
    assert len(index) == 300
    ids, distances = index.search(small[7], 1, list_size=100)
    assert (ids[0], distances[0]) == (7, 0)
    index.delete(numpy.arange(300))
    assert len(index) == 0
    report = index.compact()
    assert report["vectors"] == 0
    assert index.stats()["trouble"] is None
    index.upsert(small[:300], numpy.arange(300))
    assert len(index) == 300
    index.compact()
    index.close()
    assert stratann.verify(tmp_path / "live.idx")["problems"] == []
    with stratann.open(tmp_path / "live.idx") as again:
        assert len(again) == 300


def test_attributes_come_with_the_first_vectors(tmp_path, small):
    index = stratann.create(tmp_path / "live.idx", dimension=128, dtype="uint8")
    with pytest.raises(ValueError, match="year"):
        index.search(small[0], 3, filter="year >= 2020")
    index.insert(small[:4], attributes={"year": [2019, 2020, 2021, 2022]})
    ids, _ = index.search(small[0], 2, filter="year >= 2021")
    assert sorted(ids.tolist()) == [2, 3]
    assert index.count("year >= 2020") == 3


def test_an_array_of_no_rows_is_built_of(tmp_path):
    index = stratann.build(numpy.empty((0, 7), numpy.float32), tmp_path / "none.idx", metric="cosine")
    assert (len(index), index.dim, index.metric) == (0, 7, "cosine")
    assert stratann.plan(numpy.empty((0, 7), numpy.float32))["vectors"] == 0


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"dimension": 0}, ValueError, "dimension is 0"),
        ({"dimension": 70_000}, ValueError, "65535"),
        ({"dimension": 2.5}, TypeError, "dimension is a float"),
        ({"dimension": 4, "dtype": "float64"}, ValueError, "float64"),
        ({"dimension": 4, "dtype": "nothing"}, ValueError, "nothing"),
        ({"dimension": 4, "metric": "far"}, ValueError, "far"),
    ],
)
def test_wrong_calls(tmp_path, arguments, error, text):
    with pytest.raises(error, match=text):
        stratann.create(tmp_path / "none.idx", **arguments)
    assert not (tmp_path / "none.idx").exists()
