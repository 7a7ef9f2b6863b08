"""Each role of an index on a tier: searches read the place, and the index stays complete without
it.
"""

import os

import numpy
import pytest

import stratann


# Best-first results do not depend on the order of reads.
STEADY = {"strategy": "best-first"}


def pages(folder):
    names = [name for name in os.listdir(folder) if name.startswith(("graph-", "packed-", "adjacency-", "vectors-"))]
    return [os.path.join(folder, name) for name in sorted(names)]


def spoil(file):
    """Changes a byte in each page but the first."""
    with open(file, "r+b") as opened:
        size = opened.seek(0, os.SEEK_END)
        for page in range(4096, size, 4096):
            opened.seek(page + 100)
            byte = opened.read(1)[0]
            opened.seek(page + 100)
            opened.write(bytes([byte ^ 64]))


@pytest.fixture
def path(tmp_path, small):
    path = tmp_path / "a.idx"
    stratann.build(small, path, preset="decouplevs", degree=16, build_list=40)
    return path


def both(tier):
    return {"topology": tier, "vectors": tier}


@pytest.mark.parametrize("tier", ["mapped", "ssd"])
def test_copies_in_a_folder_are_read(path, tmp_path, queries, tier):
    right, _ = stratann.open(path).search(queries, 10, **STEADY)
    place = both(f"{tier}:{tmp_path / 'near'}")
    assert stratann.verify(path, place=place)["problems"] == []
    for file in pages(path):
        spoil(file)
    ids, _ = stratann.open(path, place=place).search(queries, 10, **STEADY)
    numpy.testing.assert_array_equal(ids, right)
    with pytest.raises(stratann.DamagedError):
        stratann.open(path).search(queries, 10)
    (copies,) = os.listdir(tmp_path / "near")
    spoil(pages(tmp_path / "near" / copies)[0])
    with pytest.raises(stratann.DamagedError, match=copies):
        stratann.open(path, place=place).search(queries, 10)
    assert stratann.verify(path, place=place)["problems"]


def test_copies_in_memory_are_read(path, queries):
    right, _ = stratann.open(path).search(queries, 10, **STEADY)
    for place in [both("dram"), both("cxl-model"), "topology=dram,vectors=nvm-model"]:
        index = stratann.open(path, place=place)
        for file in pages(path):
            spoil(file)
        index.search(queries, 10, strategy="pipelined")
        ids, _ = index.search(queries, 10, **STEADY)
        numpy.testing.assert_array_equal(ids, right)
        for file in pages(path):
            spoil(file)


def test_build_makes_copies_and_changes_go_home(tmp_path, small, queries):
    path, place = tmp_path / "b.idx", {"topology": f"mapped:{tmp_path / 'near'}"}
    with stratann.build(small[:1000], path, degree=16, build_list=40, place=place) as index:
        assert len(os.listdir(tmp_path / "near")) == 1
        index.insert(small[1000:])
        live = index.search(queries, 10, list_size=100)
    assert stratann.verify(path)["problems"] == []
    stored = stratann.open(path, place=place)
    # The checkpoint of `close` has another graph than memory had.
    truth = stratann.truth(small, queries, 10)
    for found in [live, stratann.open(path).search(queries, 10, list_size=100), stored.search(queries, 10, list_size=100)]:
        assert stratann.recall(found, truth) > 0.97
    assert {1000, 1999} <= {int(stored.search(small[row], 1, list_size=1000)[0][0]) for row in [1000, 1999]}


def test_a_catalog_has_places(path, tmp_path, queries):
    right, _ = stratann.open(path).search(queries, 10, **STEADY)
    catalog = stratann.Catalog(path.parent, place=both(f"mapped:{tmp_path / 'near'}"))
    ids, _ = catalog[path.name].search(queries, 10, **STEADY)
    numpy.testing.assert_array_equal(ids, right)
    assert os.listdir(tmp_path / "near")


@pytest.mark.parametrize(
    "place, error, words",
    [
        ({"topology": "tape"}, ValueError, "tape"),
        ({"codes": "dram"}, ValueError, "no place of their own"),
        ("topology", ValueError, "role=tier"),
        ({"topology": 3}, TypeError, "int"),
        (7, TypeError, "dict"),
    ],
)
def test_what_is_no_place_is_refused(path, place, error, words):
    with pytest.raises(error, match=words):
        stratann.open(path, place=place)
