"""Exports of an index."""

import json

import numpy
import pytest

import stratann


@pytest.fixture
def index(tmp_path, small):
    rows = small[:500]
    index = stratann.build(rows, tmp_path / "a.idx", degree=16, build_list=40, attributes={"row": list(range(500))}, payload=[{"n": n} for n in range(500)])
    index.insert(small[500:520], ids=numpy.arange(520, 540, dtype=numpy.uint64) + 2**40)
    index.delete([0, 7])
    return index


@pytest.mark.parametrize("name", ["rows.npy", "rows.u8bin"])
def test_an_export_has_all_that_lives(index, small, tmp_path, name):
    report = index.export(tmp_path / name)
    assert report["vectors"] == len(index) == 518
    assert report["payload"] == "payload" and report["times"] == []
    rows = stratann.read(tmp_path / name)
    ids = numpy.load(report["ids"]) if name == "rows.npy" else numpy.loadtxt(report["ids"], dtype=numpy.uint64)
    with open(report["attributes"], encoding="utf-8") as lines:
        beside = [json.loads(line) for line in lines]
    assert len(rows) == len(ids) == len(beside) == 518
    assert sorted(ids.tolist()) == list(index)
    for at in range(518):
        assert (rows[at] == index[int(ids[at])]).all()
        id = int(ids[at])
        assert beside[at] == ({"row": id, "payload": {"n": id}} if id < 500 else {})
    attributes = {"row": [line.get("row") for line in beside]}
    again = stratann.build(tmp_path / name, tmp_path / "b.idx", ids=ids, degree=16, build_list=40, attributes=attributes)
    queries = small[:40]
    # The list has all vectors, so the results are exact.
    for found, expected in zip(again.search(queries, 5, list_size=600), index.search(queries, 5, list_size=600)):
        assert (found == expected).all()
    # An index that is open only for searches is exported as well.
    index.close()
    assert stratann.open(tmp_path / "a.idx").export(tmp_path / name, overwrite=True)["vectors"] == 518


def test_an_export_replaces_nothing_unasked(index, tmp_path):
    index.export(tmp_path / "rows.npy", ids=tmp_path / "ids.txt", attributes=tmp_path / "beside.jsonl")
    with pytest.raises(FileExistsError, match="rows.npy"):
        index.export(tmp_path / "rows.npy")
    with pytest.raises(ValueError, match=".npy .u8bin"):
        index.export(tmp_path / "rows.fbin")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"a.idx", "rows.npy", "ids.txt", "beside.jsonl"}
