"""Catalogs of shards, built by tasks: from files, arrays and datasets, with tasks that die and tasks that fail."""

import fcntl
import json
import threading
import time

import numpy
import pytest
import ray

import stratann
from stratann.ray import Resources, build_shards
from stratann.ray.source import Rows
from stratann.ray.staging import Staging

QUICK = {"degree": 24, "build_list": 40, "code_bytes": 16}


def is_all_of(folder, rows, queries, ids=None):
    """Whether a search of all shards with long lists gives what brute force gives."""
    # Whole-page search may miss a row whatever the list.
    found, distances = stratann.Catalog(folder).search(queries, 10, list_size=len(rows), whole_page=False)
    exact = stratann.truth(rows, queries, 10)
    numpy.testing.assert_array_equal(found, exact[0] if ids is None else ids[exact[0]])
    numpy.testing.assert_array_equal(distances, exact[1])


def nothing_but(*folders):
    """Whether there is nothing beside these folders of one folder: no rest of a build."""
    parent = folders[0].parent
    return sorted(parent.iterdir()) == sorted(folder for folder in folders if folder.exists())


def test_a_file_becomes_a_catalog_of_equal_shards_with_one_codebook(photos, base, queries):
    folder, report, seen = photos
    names = ["shard-00000", "shard-00001", "shard-00002"]
    catalog = stratann.Catalog(folder)
    assert catalog.names() == names
    assert [len(catalog[name]) for name in names] == [6666, 6667, 6667]
    assert {catalog[name].stats()["codebook"] for name in names} == {report["codebook"]}
    assert [(shard["name"], shard["first_row"], shard["vectors"]) for shard in report["shards"]] == [
        ("shard-00000", 0, 6666),
        ("shard-00001", 6666, 6667),
        ("shard-00002", 13333, 6667),
    ]
    assert all(shard["report"]["peak_rss_bytes"] <= 512 << 20 for shard in report["shards"])
    said = json.loads((folder / "shards.json").read_text())
    assert (said["vectors"], said["codebook"], len(said["shards"])) == (20000, report["codebook"], 3)
    assert sorted(path.name for path in folder.iterdir()) == ["codebook", *names, "shards.json"] and nothing_but(folder)
    assert ("building shards", 3, 3) in seen and ("training codes", 1, 1) in seen
    # The shard that has a row is that of its number.
    ids, _ = catalog[names[1]].search(queries, 10, list_size=60)
    assert ids.min() >= 6666 and ids.max() < 13333
    found = catalog.search(queries, 10, list_size=60)
    assert stratann.recall(found, stratann.truth(base, queries, 10)) > 0.97


def test_an_array_and_a_dataset_have_the_ids_that_they_ought_to(tmp_path, small, queries):
    build_shards(small, tmp_path / "array", 2, **QUICK)
    is_all_of(tmp_path / "array", small, queries)
    # Many blocks, from tasks that end in any order; the row's number is its id.
    whole = ray.data.from_numpy([small[first : first + 250] for first in range(0, 2000, 250)])

    def late(batch):
        time.sleep(2 if (batch["data"][0] == small[0]).all() else 0)
        return batch

    build_shards(whole.map_batches(late, batch_size=None), tmp_path / "blocks", 3, **QUICK)
    is_all_of(tmp_path / "blocks", small, queries)
    ids = numpy.arange(2000, dtype=numpy.uint64) * numpy.uint64(3) + numpy.uint64(2**40)
    items = [{"n": int(id), "embedding": row.astype(numpy.float32).tolist(), "text": "?"} for id, row in zip(ids, small)]
    # Lists, as a Parquet file has them, are float64 unless they are converted.
    lists = ray.data.from_items(items)
    columns = {"vector_column": "embedding", "id_column": "n"}
    with pytest.raises(TypeError, match="float64.*astype"):
        build_shards(lists, tmp_path / "lists", 2, **columns, **QUICK)
    floats = lists.map_batches(lambda b: {**b, "embedding": numpy.stack(list(b["embedding"])).astype(numpy.float32)})
    build_shards(floats, tmp_path / "lists", 2, **columns, **QUICK)
    is_all_of(tmp_path / "lists", small.astype(numpy.float32), queries.astype(numpy.float32), ids)
    assert nothing_but(tmp_path / "array", tmp_path / "blocks", tmp_path / "lists")


def test_files_are_read_in_pieces(tmp_path, small, monkeypatch):
    monkeypatch.setattr("stratann.ray.source.PIECE", 50_000)
    for name in ["a.u8bin", "a.npy", "a.bvecs"]:
        stratann.write(tmp_path / name, small)
        read = stratann.ray.read(tmp_path / name).materialize()
        assert read.num_blocks() == (1 if name == "a.bvecs" else 6)
        rows = read.take_all()
        order = numpy.argsort([row["id"] for row in rows])
        numpy.testing.assert_array_equal(numpy.stack([row["vector"] for row in rows])[order], small)
        assert sorted(row["id"] for row in rows) == list(range(2000))
    with pytest.raises(ValueError, match=r"\.parquet.*read_parquet"):
        stratann.ray.read(tmp_path / "a.parquet")
    with pytest.raises(FileNotFoundError, match="missing"):
        stratann.ray.read(tmp_path / "missing.fbin")


def test_a_sample_is_of_all_rows_and_the_same_each_time(base):
    rows = Rows(base, None, None)
    samples = [rows.sample(1000, seed=7).take_all() for _ in range(2)]
    assert 800 < len(samples[0]) < 1200
    numpy.testing.assert_array_equal(*([row["data"] for row in sample] for sample in samples))
    assert rows.sample(20_000, seed=7).count() == 20_000


@pytest.mark.parametrize("fault", ["after-build", "after-place", "refused"])
def test_a_task_that_fails_once_is_done_again(tmp_path, small, queries, faults, fault):
    faults.plan(fault, "shard-00001")
    build_shards(small, tmp_path / "shards", 2, **QUICK)
    is_all_of(tmp_path / "shards", small, queries)
    assert stratann.Catalog(tmp_path / "shards").names() == ["shard-00000", "shard-00001"] and nothing_but(tmp_path / "shards")


def test_a_task_that_fails_for_good_leaves_nothing_and_the_build_can_be_run_again(tmp_path, small, queries, faults):
    folder = tmp_path / "shards"
    faults.plan("refused", "shard-00001", times=2)
    with pytest.raises(OSError, match="the disk says no"):
        build_shards(small, folder, 2, retries=1, **QUICK)
    assert nothing_but(folder) and not folder.exists()
    # What is wrong is not tried again.
    faults.plan("wrong", "shard-00000")
    with pytest.raises(ValueError, match="the rows are wrong"):
        build_shards(small, folder, 2, **QUICK)
    assert nothing_but(folder) and not folder.exists()

    def interrupt(stage, done, total):
        if stage == "building shards":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_shards(small, folder, 2, progress=interrupt, **QUICK)
    assert nothing_but(folder) and not folder.exists()
    build_shards(small, folder, 2, **QUICK)
    is_all_of(folder, small, queries)


def test_nothing_is_seen_before_all_is_there(tmp_path, small, faults):
    """The catalog that is there stays until the new one is whole, and then there is only that."""
    folder = tmp_path / "shards"
    build_shards(small[:300], folder, 1, **QUICK)
    before = (folder / "shards.json").read_text()
    seen = []
    watched = lambda stage, done, total: seen.append((folder / "shards.json").read_text() == before)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        build_shards(small, folder, 2, **QUICK)
    faults.plan("wrong", "shard-00001")
    with pytest.raises(ValueError, match="wrong"):
        build_shards(small, folder, 2, overwrite=True, progress=watched, **QUICK)
    assert len(stratann.Catalog(folder)["shard-00000"]) == 300
    build_shards(small, folder, 2, overwrite=True, progress=watched, **QUICK)
    assert len(seen) > 3 and all(seen)
    assert [len(stratann.Catalog(folder)[name]) for name in stratann.Catalog(folder).names()] == [1000, 1000]
    assert nothing_but(folder)


def test_what_a_process_left_that_died_is_removed_and_what_one_holds_is_not(tmp_path, small):
    folder = tmp_path / "shards"
    left = tmp_path / "shards.building" / "0123" / "catalog" / "shard-00000"
    left.mkdir(parents=True)
    with (tmp_path / "shards.building" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(stratann.InUseError, match="another process"):
            build_shards(small, folder, 1, **QUICK)
    assert left.exists()
    build_shards(small, folder, 1, **QUICK)
    assert nothing_but(folder)


def test_an_exchange_that_was_cut_short_is_put_right(tmp_path):
    folder, old = tmp_path / "shards", tmp_path / "shards.replaced-0123"
    old.mkdir()
    (old / "shards.json").touch()
    # The folder does not exist, so the old folder gets its name back.
    with pytest.raises(FileExistsError, match="overwrite=True"):
        with Staging.begin(folder, overwrite=False):
            pass
    assert nothing_but(folder) and (folder / "shards.json").exists()
    # Both folders exist, so the old one is removed.
    old.mkdir()
    with Staging.begin(folder, overwrite=True) as staging:
        (staging.catalog / "new").touch()
        staging.commit({"shards": []}, overwrite=True)
    assert nothing_but(folder) and sorted(path.name for path in folder.iterdir()) == ["new", "shards.json"]


def test_a_late_task_cannot_take_part(tmp_path):
    """Of two tasks of one shard the first wins; the folder of a task is gone when another has begun."""
    with Staging.begin(tmp_path / "shards", overwrite=False) as staging:
        with staging.attempt("shard-00000") as late:
            (late / "index").mkdir()
            (late / "index" / "of").write_text("late")
            with staging.attempt("shard-00000") as early:
                (early / "index").mkdir()
                (early / "index" / "of").write_text("early")
                staging.place(early / "index", "shard-00000")
            with pytest.raises(FileNotFoundError):
                staging.place(late / "index", "shard-00000")
        with staging.attempt("shard-00000") as again:
            (again / "index").mkdir()
            staging.place(again / "index", "shard-00000")
        assert (staging.catalog / "shard-00000" / "of").read_text() == "early"
    assert list(tmp_path.iterdir()) == []


def test_two_builds_at_once_do_not_both_begin(tmp_path):
    """Whoever comes while another one ends waits for nothing that is gone."""
    held, wrong = [], []

    def run():
        for _ in range(200):
            try:
                with Staging.begin(tmp_path / "shards", overwrite=False) as staging:
                    held.append(1)
                    if len(held) > 1 or not staging.catalog.is_dir():
                        wrong.append(staging.run)
                    held.pop()
            except stratann.InUseError:
                pass

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and list(tmp_path.iterdir()) == []


def test_wrong_calls_are_refused_before_any_work(tmp_path, small):
    folder = tmp_path / "shards"
    two = ray.data.from_items([{"a": [1.0, 2.0], "b": [3.0, 4.0]}])
    for error, match, source, shards, more in [
        (ValueError, "shards is 0", small, 0, {}),
        (ValueError, "there are 5 rows", small[:5], 6, {}),
        (TypeError, "memory is '1GB'.*bytes", small, 1, {"memory": "1GB"}),
        (TypeError, "no argument 'degrees'.*degree", small, 1, {"degrees": 16}),
        (TypeError, "no argument 'ids'", small, 1, {"ids": numpy.arange(2000)}),
        (TypeError, "source is a list", [[1.0]], 1, {}),
        (ValueError, r"shape \(128,\)", small[0], 1, {}),
        (TypeError, "for datasets", small, 1, {"id_column": "id"}),
        (ValueError, "columns a, b.*vector_column", two, 1, {}),
        (ValueError, "vector_column is 'c'.*a, b", two, 1, {"vector_column": "c"}),
        (ValueError, "id_column is 'c'", two, 1, {"id_column": "c"}),
        (ValueError, "no rows", small[:0], 1, {}),
        (ValueError, "metric", small, 1, {"metric": "l3"}),
    ]:
        with pytest.raises(error, match=match):
            build_shards(source, folder, shards, **more)
    assert nothing_but(folder) and not folder.exists()
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileExistsError, match="no folder of shards"):
        build_shards(small, tmp_path / "mine", 1, overwrite=True)
    with pytest.raises(ValueError, match="cpus"):
        Resources(cpus=-1)
    with pytest.raises(ValueError, match="memory"):
        Resources(memory=0)
