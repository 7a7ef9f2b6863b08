"""An index that begins without vectors, and one whose vectors are all deleted."""

import os
import subprocess
import sys

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


def test_an_index_that_is_there_may_be_opened(tmp_path, small):
    path = tmp_path / "live.idx"
    how = {"dimension": 128, "dtype": "uint8", "exist_ok": True}
    index = stratann.create(path, **how)
    assert index.build_report is not None
    with index:
        index.insert(small[:10])
    again = stratann.create(str(path), preset="spann", **how)
    assert len(again) == 10 and again.build_report is None
    assert again.stats()["preset"] == "stratann", "`exist_ok` changed the existing index"
    for other, said in [
        ({"dimension": 64}, r"dimension is 64; the existing index .*live.idx has 128. Give 128, or another path"),
        ({"dtype": "float32"}, "element type is f32; the existing index .* has u8"),
        ({"metric": "cosine"}, "metric is cosine; the existing index .* has l2"),
        ({"overwrite": True}, "both given"),
    ]:
        with pytest.raises(ValueError, match=said):
            stratann.create(path, **{**how, **other})
    with pytest.raises(FileExistsError):
        stratann.create(path, dimension=128, dtype="uint8")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "log-000001").write_text("of somebody else")
    with pytest.raises(FileExistsError):
        stratann.create(tmp_path / "notes", **how)
    assert len(stratann.open(path)) == 10


def test_an_index_is_created_and_opened_with_the_options_of_open(tmp_path, small):
    path, how = tmp_path / "live.idx", {"memory": "40MiB", "durability": "flush", "merges": False}
    made = {"dimension": 128, "dtype": "uint8", "exist_ok": True}
    for there in (False, True):
        with stratann.create(path, **made, **how) as index:
            assert (index.build_report is None) == there
            assert index.stats()["memory"]["budget"] == 40 << 20
            with stratann.open(path, **how) as other:
                first = 20 * there
                index.insert(small[first : first + 10])
                other.insert(small[first + 10 : first + 20])
    assert len(stratann.open(path)) == 40


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"preset": "stratan"}, 'preset="stratan".*did you mean "stratann"'),
        ({"layout": "packet"}, 'did you mean "packed"'),
        ({"memory": "much"}, 'memory="much"'),
        ({"memory": "1MB"}, "memory budget of 1000000 bytes is too small"),
        ({"io": "fast"}, 'io="fast"'),
        ({"durability": "never"}, "durability='never'"),
        ({"cache": "10 percent"}, "cache="),
        ({"cache_entries": "x%"}, "cache_entries='x%'"),
        ({"cache": "1MB", "cache_entries": "1%"}, "Pass one of them"),
    ],
)
def test_a_wrong_choice_is_refused_also_where_the_index_is_there(tmp_path, there, wrong, said):
    path = tmp_path / "live.idx"
    if there:
        stratann.create(path, dimension=8).close()
    with pytest.raises(ValueError, match=said):
        stratann.create(path, dimension=8, exist_ok=True, **wrong)
    assert path.exists() == there
    with pytest.raises(ValueError, match=said):
        stratann.create(path, dimension=4, overwrite=True, **wrong)
    assert path.exists() == there
    if there:
        assert stratann.open(path).stats()["dimension"] == 8


def test_memory_that_does_not_suffice_is_refused_though_there_is_no_temporary_folder(tmp_path, small):
    path = tmp_path / "live.idx"
    stratann.build(small[:50], path).close()
    program = "import sys, stratann; stratann.create(sys.argv[1], dimension=8, overwrite=True, memory='1MB')"
    environment = {**os.environ, "TMPDIR": str(tmp_path / "gone")}
    done = subprocess.run([sys.executable, "-c", program, str(path)], env=environment, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and "too small" in done.stderr
    assert len(stratann.open(path)) == 50


def test_an_index_of_nothing_is_opened_with_a_cache_of_a_share_of_it(tmp_path):
    with stratann.create(tmp_path / "live.idx", dimension=8, cache_entries="1%") as index:
        index.insert(numpy.zeros((3, 8), numpy.float32))
        assert len(index) == 3


def test_of_processes_that_create_at_once_one_does(tmp_path, small):
    path = tmp_path / "live.idx"
    program = (
        "import sys, stratann\n"
        "sys.stdin.readline()\n"
        "index = stratann.create(sys.argv[1], dimension=8, exist_ok=True)\n"
        "print(len(index), index.build_report is not None)\n"
    )
    words = [sys.executable, "-c", program, str(path)]
    all = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for process in all:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate()[0].split() for process in all]
    assert [process.returncode for process in all] == [0] * 4
    assert sorted(said) == [["0", "False"]] * 3 + [["0", "True"]]


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


def test_columns_are_there_before_the_first_row(tmp_path):
    columns = {"year": "integer", "score": "float", "tags": "list of strings"}
    path = tmp_path / "a.idx"
    with stratann.create(path, dimension=4, columns=columns) as index:
        vectors = numpy.eye(4, dtype=numpy.float32)
        assert index.columns == columns and index.count("year > 1") == 0
        assert (index.search(vectors[0], k=2, filter="year > 1 and tags contains 'x'")[0] == 2**64 - 1).all()
        # A whole number may go into a column of floats, and no text into one of integers.
        index.insert(vectors[:1], attributes=[{"score": 3}])
        with pytest.raises(ValueError, match="of type integer"):
            index.insert(vectors[1:2], attributes=[{"year": "2024"}])
        index.insert(vectors[1:], attributes=[{"year": n, "new": "x"} for n in range(3)])
        assert index.count("score == 3.0") == 1 and index.count("year >= 1") == 2 and index.attributes([0]) == [{"score": 3.0}]
        index.compact()
        assert index.columns == {**columns, "new": "string"} and index.count("tags contains 'x'") == 0
    again = stratann.create(path, dimension=4, columns=columns, exist_ok=True)
    assert len(again) == 4
    for other, words in [({"year": "float"}, "of type float; in the existing index .* is of type integer"), ({"yeer": "float"}, "has no such column. Leave the column out: its first value will add it")]:
        with pytest.raises(ValueError, match=words):
            stratann.create(path, dimension=4, columns=other, exist_ok=True)
    assert stratann.create(tmp_path / "b.idx", dimension=4, columns=again.columns, preset="spann").columns == again.columns
    assert stratann.create(tmp_path / "c.idx", dimension=4, columns={}).columns == {}


@pytest.mark.parametrize(
    "columns, error, words",
    [
        ({"year": "int"}, ValueError, 'columns has "year" of type \'int\'; there is no such type (did you mean "integer"?). Use one of: boolean, '),
        ({"year": str}, ValueError, 'there is no such type (did you mean "string"?)'),
        ({"day": "date"}, ValueError, 'there is no such type (did you mean "timestamp"?)'),
        ({"day": "DATETIME64[ns, UTC]"}, ValueError, 'there is no such type (did you mean "timestamp"?)'),
        ({"name": "VARCHAR(20)"}, ValueError, 'there is no such type (did you mean "string"?)'),
        ({"tags": "list[str]"}, ValueError, 'there is no such type (did you mean "list of strings"?)'),
        ({"year": 3}, ValueError, 'columns has "year" of type 3; there is no such type. Use one of'),
        ({"": "float"}, ValueError, "1 to 128 bytes"),
        ({3: "float"}, TypeError, "Pass a dict of names and types"),
        (["year"], TypeError, "Pass a dict of names and types"),
        ({f"c{n}": "float" for n in range(1025)}, ValueError, "at most 1024"),
    ],
)
def test_columns_that_are_none_are_told(columns, error, words, tmp_path):
    with pytest.raises(error) as caught:
        stratann.create(tmp_path / "a.idx", dimension=4, columns=columns)
    assert words in str(caught.value) and not list(tmp_path.iterdir())
