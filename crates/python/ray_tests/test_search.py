"""Shards in actors: their answers against brute force, actors that die, are stopped, or never start."""

import os
import pathlib
import shutil
import signal
import threading
import time

import numpy
import pytest
import ray

import stratann
from stratann.ray import ActorsError, DeadlineError, Resources, ShardedIndex, build_shards

LIGHT = Resources(cpus=0.5)
PATIENT = 120.0  # Seconds: the machine of the tests may have other work.
# Which answers a pipelined search finds goes by which read comes first; these are always the same.
STEADY = {"list_size": 60, "strategy": "best-first"}
WHOLE = {"strategy": "best-first", "whole_page": False}


@pytest.fixture(scope="module")
def index(photos):
    with ShardedIndex(photos[0], resources=LIGHT, timeout=PATIENT) as index:
        yield index


def pids(index):
    """The processes of its actors."""
    handles = index._actors.handles().values()
    return ray.get([handle.__ray_call__.remote(lambda actor: os.getpid()) for handle in handles])


def test_it_answers_as_brute_force_does(index, photos, base, queries):
    exact = stratann.truth(base, queries, 10)
    ids, distances, stats = index.search(queries, 10, return_stats=True, **STEADY)
    assert ids.shape == (500, 10) and ids.dtype == numpy.uint64 and distances.dtype == numpy.float32
    assert stratann.recall((ids, distances), exact) > 0.97
    # It is what the catalog finds in one process, and the counters are the sums.
    alone = stratann.Catalog(photos[0]).search(queries, 10, return_stats=True, **STEADY)
    numpy.testing.assert_array_equal(ids, alone[0])
    numpy.testing.assert_array_equal(distances, alone[1])
    assert stats["queries"] == 500 and list(stats["shards"]) == list(index.shards)
    assert stats["per_query"]["distance_computations"] == pytest.approx(alone[2]["per_query"]["distance_computations"])
    assert stats["cpu_us"] > 0 and stats["seconds"] > 0
    one = index.search(queries[0], 3, **STEADY)
    assert one[0].tolist() == ids[0, :3].tolist() and one[1].shape == (3,)
    assert index.search(queries[:0], 3)[0].shape == (0, 3)
    assert (len(index), index.dim, index.metric, index.dtype) == (20000, 128, "l2", numpy.uint8)
    assert "3 shards, 3 actors" in repr(index)
    facts = index.stats()
    assert facts["vectors"] == 20000 and facts["shards"]["shard-00001"]["vectors"] == 6667


def test_actors_are_on_different_nodes_and_may_have_several_shards(photos, base, queries, index):
    # Of this each node has one.
    with ShardedIndex(photos[0], resources=Resources(cpus=0.25, custom={"own": 1}), timeout=PATIENT) as apart:
        handles = apart._actors.handles().values()
        nodes = [handle.__ray_call__.remote(lambda actor: ray.get_runtime_context().get_node_id()) for handle in handles]
        assert len(set(ray.get(nodes))) == 3
    with ShardedIndex(photos[0], actors=2, resources=LIGHT, timeout=PATIENT) as two:
        assert len(two._actors.handles()) == 2
        for ours, theirs in zip(two.search(queries, **STEADY), index.search(queries, **STEADY)):
            numpy.testing.assert_array_equal(ours, theirs)
    with pytest.raises(ValueError, match="closed"):
        two.search(queries)
    two.close()
    with ShardedIndex(photos[0], actors=1, memory=64 << 20, resources=LIGHT, timeout=PATIENT) as one:
        # Which pages are in memory has a say in which answers are found.
        assert stratann.recall(one.search(queries, **STEADY), stratann.truth(base, queries, 10)) > 0.95
    with pytest.raises(ValueError, match="Pass 1 to 3"):
        ShardedIndex(photos[0], actors=4)


def test_an_actor_that_is_killed_under_search_comes_back_and_answers_stay_right(photos, queries):
    with ShardedIndex(photos[0], resources=LIGHT, timeout=PATIENT) as index:
        expected = index.search(queries, 10, **STEADY)
        before = pids(index)
        wrong, searches, stop = [], [], threading.Event()

        def search():
            while not stop.is_set():
                found = index.search(queries, 10, **STEADY)
                searches.append(time.monotonic())
                if not all((ours == theirs).all() for ours, theirs in zip(found, expected)):
                    wrong.append(found)

        searching = threading.Thread(target=search)
        searching.start()
        handles = list(index._actors.handles().values())
        try:
            while len(searches) < 2:
                time.sleep(0.01)
            # Once by Ray, once as the kernel does when there is no memory left.
            ray.kill(handles[0], no_restart=False)
            os.kill(before[1], signal.SIGKILL)
            killed = len(searches)
            while len(searches) < killed + 3 and searching.is_alive():
                time.sleep(0.01)
        finally:
            stop.set()
            searching.join()
        assert wrong == [] and len(searches) >= killed + 3
        after = pids(index)
        assert after[0] != before[0] and after[1] != before[1] and after[2] == before[2]


def test_the_actor_of_a_node_that_is_lost_is_started_on_another(cluster, few, small, queries):
    node = cluster.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"lost": 1, "any": 1})
    spare = cluster.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"any": 1})
    cluster.wait_for_nodes()
    try:
        resources = Resources(cpus=0.25, custom={"any": 0.1})
        with ShardedIndex(few, resources=resources, timeout=PATIENT) as index:
            expected = index.search(queries, 10, list_size=700, **WHOLE)
            numpy.testing.assert_array_equal(expected[0], stratann.truth(small, queries, 10)[0])
            cluster.remove_node(node, allow_graceful=False)
            for ours, theirs in zip(index.search(queries, 10, list_size=700, **WHOLE), expected):
                numpy.testing.assert_array_equal(ours, theirs)
    finally:
        cluster.remove_node(spare)


def test_an_actor_that_does_not_answer_is_told_by_the_deadline(few, queries):
    with ShardedIndex(few, resources=LIGHT, timeout=PATIENT) as index:
        stopped = pids(index)[1]
        os.kill(stopped, signal.SIGSTOP)
        try:
            begun = time.monotonic()
            with pytest.raises(DeadlineError, match="shard-00001.*within 2 s") as raised:
                index.search(queries, timeout=2)
            assert raised.value.names == ("shard-00001",) and time.monotonic() - begun < 10
            assert isinstance(raised.value, (TimeoutError, stratann.StratannError))
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert index.search(queries, list_size=50)[0].shape == (500, 10)


def test_what_no_node_has_is_told_by_the_deadline_of_opening(few):
    with pytest.raises(DeadlineError, match="1 of 'gold'.*ray status"):
        ShardedIndex(few, resources=Resources(custom={"gold": 1}), opening=2)


def test_an_actor_that_is_dead_for_good_is_an_error(few, queries):
    with ShardedIndex(few, resources=LIGHT, timeout=PATIENT, restarts=0) as index:
        os.kill(pids(index)[2], signal.SIGKILL)
        with pytest.raises(ActorsError, match="shard-00002 has died for good"):
            index.search(queries)


def test_a_catalog_that_was_replaced_is_not_mixed_with_the_old_one(tmp_path, small, queries):
    quick = {"degree": 24, "build_list": 40, "code_bytes": 16}
    build_shards(small, tmp_path / "shards", 2, **quick)
    with ShardedIndex(tmp_path / "shards", resources=LIGHT, timeout=PATIENT) as index:
        expected = index.search(queries, list_size=700, **WHOLE)
        build_shards(small[:500], tmp_path / "shards", 2, overwrite=True, **quick)
        for ours, theirs in zip(index.search(queries, list_size=700, **WHOLE), expected):
            numpy.testing.assert_array_equal(ours, theirs)
        ray.kill(list(index._actors.handles().values())[0], no_restart=False)
        with pytest.raises(ActorsError, match="was replaced"):
            index.search(queries, list_size=700, **WHOLE)
    with ShardedIndex(tmp_path / "shards", resources=LIGHT, timeout=PATIENT) as index:
        assert len(index) == 500


def test_wrong_calls_are_those_of_an_index(index, queries):
    alone = stratann.Catalog(index.path)["shard-00000"]
    for arguments in [{"list_size": 5}, {"probes": 3}, {"strategy": "best"}, {"k": 0}, {"k": 70_000}]:
        for one in (alone, index):
            with pytest.raises(ValueError, match=next(iter(arguments)).split("_")[0]):
                one.search(queries, **arguments)
    for wrong in [queries[:, :64].copy(), queries.astype(numpy.float32)]:
        with pytest.raises(Exception) as ours:
            index.search(wrong)
        with pytest.raises(type(ours.value)) as theirs:
            alone.search(wrong)
        assert str(ours.value) == str(theirs.value)


def test_fewer_than_k_in_a_shard_and_the_same_vector_in_two(tmp_path, small):
    folder = tmp_path / "mine"
    # Any folder of indexes will do. Rows 0 to 9 are in both, under the same ids; 20 to 25 with the ids of 10 to 15 as well.
    stratann.build(small[:20], folder / "a", degree=16)
    twice = numpy.concatenate([small[:10], small[10:16]])
    stratann.build(twice, folder / "b", degree=16, ids=numpy.array([*range(10), *range(20, 26)]))
    with ShardedIndex(folder, resources=LIGHT, timeout=PATIENT) as index:
        assert len(index) == 36
        ids, distances = index.search(small[:3], 40)
        for query in range(3):
            exact = ((small[:20].astype(int) - small[query].astype(int)) ** 2).sum(axis=1)
            rows = sorted([(exact[id], id) for id in range(20)] + [(exact[id - 10], id) for id in range(20, 26)])
            assert [int(id) for id in ids[query, :26]] == [id for _, id in rows]
            assert [float(distance) for distance in distances[query, :26]] == [float(distance) for distance, _ in rows]
        assert (ids[:, 26:] == 2**64 - 1).all() and numpy.isinf(distances[:, 26:]).all()
    with stratann.open(folder / "b", merges=False) as b:
        b.delete(numpy.array([*range(10), *range(20, 26)]))
    with ShardedIndex(folder, resources=LIGHT, timeout=PATIENT) as index:
        ids, _, stats = index.search(small[:3], 20, return_stats=True)
        assert (numpy.sort(ids) == numpy.arange(20)).all() and list(stats["shards"]) == ["a"] and stats["queries"] == 3


def test_other_tasks_search_with_the_same_actors(index, queries):
    @ray.remote(num_cpus=0.1)
    def search(index, queries):
        return index.search(queries, 5, **STEADY)

    for ours, theirs in zip(ray.get(search.remote(index, queries[:20])), index.search(queries[:20], 5, **STEADY)):
        numpy.testing.assert_array_equal(ours, theirs)


def test_what_is_no_folder_of_shards(tmp_path, few, small):
    with pytest.raises(FileNotFoundError, match="missing"):
        ShardedIndex(tmp_path / "missing")
    with pytest.raises(ValueError, match="build_shards"):
        ShardedIndex(tmp_path)
    shutil.copytree(few, tmp_path / "some")
    shutil.rmtree(tmp_path / "some" / "shard-00001")
    with pytest.raises(FileNotFoundError, match="shard-00001.*missing"):
        ShardedIndex(tmp_path / "some")
    (tmp_path / "some" / "shards.json").write_text("{")
    with pytest.raises(ValueError, match="shards.json.*damaged"):
        ShardedIndex(tmp_path / "some")
    stratann.build(small.astype(numpy.float32), tmp_path / "mixed" / "a", degree=16)
    stratann.build(small, tmp_path / "mixed" / "b", degree=16)
    with pytest.raises(ValueError, match="cannot be searched as one"):
        ShardedIndex(pathlib.Path(tmp_path / "mixed"), resources=LIGHT, timeout=PATIENT)
