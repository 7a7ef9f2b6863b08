"""Repairs of a damaged index."""

import os
import shutil

import numpy
import pytest

import stratann

BUILT = 1000


@pytest.fixture(scope="module")
def built(tmp_path_factory, small):
    """An index of the first thousand rows of `small`. Tests copy it."""
    path = tmp_path_factory.mktemp("built") / "built.idx"
    stratann.build(small[:BUILT], path, preset="diskann", degree=16, build_list=40)
    return path


@pytest.fixture
def path(built, tmp_path):
    return shutil.copytree(built, tmp_path / "a.idx")


def flip(path, kind, place):
    """Flips a bit at a share of the length."""
    (file,) = path.glob(f"{kind}-*")
    data = bytearray(file.read_bytes())
    data[int(len(data) * place)] ^= 0x10
    file.write_bytes(data)
    return file.name


def test_a_whole_index_is_left_alone(path):
    report = stratann.repair(path)
    assert not report["repaired"]
    assert report["lost"] == []
    assert report["vectors"] == BUILT
    # The cap includes the memory that earlier tests left in this process.
    forced = stratann.repair(path, threads=1, memory="4GiB", force=True)
    assert forced["repaired"] and forced["vectors"] == BUILT and forced["vectors_lost"] == 0


def test_what_was_not_hit_is_all_there(path, small):
    names = [flip(path, "graph", 0.5), flip(path, "codes", 0.5)]
    assert stratann.verify(path)["problems"] != []
    report = stratann.repair(path)
    assert report["repaired"]
    assert 0 < report["vectors_lost"] < 50
    assert report["vectors"] + report["vectors_lost"] == BUILT
    assert sum(lost["vectors"] for lost in report["lost"]) == report["vectors_lost"]
    assert [os.path.basename(lost["file"]) for lost in report["lost"]] == names
    assert stratann.verify(path)["problems"] == []
    index = stratann.open(path)
    assert len(index) == report["vectors"]
    ids, distances = index.search(small[:BUILT], 1, list_size=60)
    found = (ids[:, 0] == numpy.arange(BUILT)) | (distances[:, 0] == 0)
    assert BUILT - 50 - BUILT // 50 < found.sum() <= BUILT


def test_the_log_counts(path, small):
    with stratann.open(path) as index:
        index.insert(small[1000:1010])
        index.delete(numpy.arange(10))
    flip(path, "codebook", 0.5)
    report = stratann.repair(path)
    assert report["vectors"] == BUILT and report["from_log"] == 10 and report["vectors_lost"] == 0
    assert len(stratann.open(path)) == BUILT


def test_what_cannot_be_repaired_says_so(path, tmp_path):
    with pytest.raises(FileNotFoundError):
        stratann.repair(tmp_path / "nothing.idx")
    with pytest.raises(ValueError, match="threads"):
        stratann.repair(path, threads=0)
    (path / "MANIFEST").write_bytes(b"STRATANN")
    with pytest.raises(stratann.StratannError, match="cannot be repaired"):
        stratann.repair(path)


def test_damage_has_an_error_of_its_own(path):
    flip(path, "codebook", 0.5)
    with pytest.raises(stratann.DamagedError, match="codebook"):
        stratann.open(path)


def test_columns_without_a_value_are_told_if_they_are_lost(tmp_path, small):
    path = tmp_path / "a.idx"
    with stratann.create(path, dimension=128, dtype="uint8", columns={"year": "integer"}) as index:
        index.insert(small[:200], attributes=[{"n": n} for n in range(200)])
        index.compact()
        assert list(index.columns) == ["n", "year"]
    name = flip(path, "columns", 0)
    report = stratann.repair(path)
    said = [lost["what"] for lost in report["lost"] if os.path.basename(lost["file"]) == name]
    assert len(said) == 1 and "columns without any value" in said[0], report
    again = stratann.open(path)
    assert list(again.columns) == ["n"] and again.count("n >= 0") == 200
