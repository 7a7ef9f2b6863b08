"""The folder of an index: foreign files, other indexes, and changes of the working directory."""

import logging
import shutil
import subprocess
import sys
import time

import numpy
import pytest

import stratann


@pytest.fixture
def path(tmp_path, small):
    path = tmp_path / "own.idx"
    stratann.build(small[:300], path, degree=16, build_list=32)
    return path


def test_a_relative_path_is_followed_from_where_it_was_given(path, small, tmp_path, monkeypatch):
    monkeypatch.chdir(path.parent)
    index = stratann.open("own.idx")
    reader = stratann.open("own.idx")
    monkeypatch.chdir("/")
    index.insert(small[300:320])
    assert index.is_current()
    assert index.compact()["vectors"] == 320
    assert reader.is_current() and not reader.refresh()
    assert len(reader) == 320
    index.close()
    assert index.search(small[310], list_size=60)[0][0] == 310


@pytest.mark.filterwarnings("ignore:.*no part of the index:RuntimeWarning")
def test_files_of_other_programs_stay_and_stop_nothing(path, small):
    for name in (".DS_Store", ".nfs0000000001", "notes.txt"):
        (path / name).write_text("mine")
    index = stratann.open(path)
    index.insert(small[300:310])
    index.delete(numpy.arange(5))
    assert index.compact()["vectors"] == 305
    index.close()
    assert stratann.verify(path)["problems"] == []
    stratann.build(small[:100], path, overwrite=True, degree=16, build_list=32)
    assert (path / ".DS_Store").read_text() == (path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["build-scratch/keep", "log-000007", "notes.txt", "sub/MANIFEST"])
def test_a_folder_that_is_no_index_is_left_as_it_is(tmp_path, small, name):
    folder = tmp_path / "mine"
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_text("mine")
    with pytest.raises(FileExistsError, match="no part of an index. Give an empty or new directory"):
        stratann.build(small[:100], folder, degree=16, build_list=32)
    assert [entry.name for entry in folder.iterdir()] == [name.split("/")[0]]
    assert (folder / name).read_text() == "mine"


def test_a_reader_knows_that_another_index_has_taken_its_place(path, small):
    reader = stratann.open(path)
    writer = stratann.open(path)
    writer.insert(small[300:301])
    shutil.rmtree(path)
    assert not reader.is_current() and not writer.is_current()
    stratann.build(small[:200], path, degree=16, build_list=32)
    assert not reader.is_current() and not writer.is_current()
    assert reader.refresh() and len(reader) == 200
    with pytest.raises(stratann.OutdatedError, match="Open it again"):
        writer.refresh()
    with pytest.raises(stratann.OutdatedError):
        writer.close()


def test_an_object_changes_no_index_with_other_vectors(path, small, base):
    old = stratann.open(path)
    stratann.build(small[:200, :64], path, metric="cosine", overwrite=True, degree=16, build_list=32)
    for change in (lambda: old.delete([0]), lambda: old.insert(small[300:301]), old.compact, old.refresh):
        with pytest.raises(stratann.OutdatedError, match=r"an index of 64 dimensions, u8, cosine has replaced .* of 128 dimensions, u8, l2"):
            change()
    assert old.dim == 128 and len(stratann.open(path)) == 200
    other = stratann.open(path)
    assert other.insert(small[300, :64]).tolist() == [200]
    for end in (lambda: None, other.close):
        end()
        assert old.dim == 128 and old.metric == "l2" and old.search(small[7], k=1)[0] == [7]
        for change in (lambda: old.delete([0]), lambda: old.insert(small[300:301])):
            with pytest.raises(stratann.OutdatedError, match="has replaced"):
                change()
    assert len(stratann.open(path)) == 201


def test_an_object_that_closed_its_index_changes_no_index_with_other_vectors(path, small, another_process):
    old, memory = stratann.open(path), stratann.open(path, memory="64MiB")
    old.insert(small[300:301])
    old.close()
    another_process(path, "stratann.build(small[:200, :64], sys.argv[1], overwrite=True, degree=16, build_list=32)")
    for index in (old, memory):
        with pytest.raises(stratann.OutdatedError, match="an index of 64 dimensions.* has replaced"):
            index.delete([0])
    assert memory.dim == old.dim == 128 and len(stratann.open(path)) == 200


def test_a_lost_file_of_an_index_is_damage(path):
    (lost,) = path.glob("codes-*")
    lost.unlink()
    with pytest.raises(stratann.DamagedError, match=f"{lost.name}: damaged: the file is missing.*Run `stratann verify`, then `stratann repair`"):
        stratann.open(path)


def test_a_reader_is_told_that_another_object_takes_no_more_changes(path, small, tmp_path):
    """Another index's files are in the folder. Searches use the object that changed it until it is
    closed.
    """
    stratann.build(small[:200], tmp_path / "other.idx", degree=16, build_list=32)
    reader, writer = stratann.open(path), stratann.open(path)
    writer.insert(small[300:301])
    for file in path.iterdir():
        file.unlink()
    shutil.copytree(tmp_path / "other.idx", path, dirs_exist_ok=True)
    assert not reader.is_current()
    for index in (reader, writer):
        with pytest.raises(stratann.OutdatedError):
            index.refresh()
    with pytest.raises(stratann.OutdatedError):
        writer.close()
    assert len(reader) == 200 and reader.is_current()


def test_logging_says_what_the_engine_does(path, caplog):
    with caplog.at_level(logging.DEBUG, logger="stratann"):
        stratann.open(path)
        until = time.monotonic() + 120
        while not any("opened" in line.message for line in caplog.records) and time.monotonic() < until:
            time.sleep(0.01)
    assert any("opened" in line.message and "own.idx" in line.message for line in caplog.records)


def test_a_program_that_ends_while_a_line_is_handed_over_ends_well(path):
    """The thread that passes log lines on must not have the interpreter's lock at its end. No line
    is lost.
    """
    program = (
        "import logging, sys, time, stratann\n"
        "class Slow(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        time.sleep(0.2)\n"
        "        print(record.getMessage(), flush=True)\n"
        "logging.getLogger('stratann').setLevel('DEBUG')\n"
        "logging.getLogger('stratann').addHandler(Slow())\n"
        "for _ in range(3): stratann.open(sys.argv[1])\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("opened") == 3
