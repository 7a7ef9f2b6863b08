"""An index served by actors: its answers against the index, actors that die, changes, placement."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest
import ray
from ray.exceptions import ActorUnavailableError

import stratann
from stratann.ray import Cluster, DeadlineError, Resources
from stratann.ray.cluster import _Compute, _Memory, _Storage

LIGHT = {role: Resources(cpus=0.25) for role in ("memory", "storage", "compute")}
PATIENT = 120.0  # Seconds: the machine of the tests may have other work.


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small):
    path = tmp_path_factory.mktemp("distvs") / "a.idx"
    stratann.build(small, path, preset="distvs", degree=24, build_list=40)
    return path


@pytest.fixture(scope="module")
def expected(folder, queries):
    return stratann.open(folder).search(queries, 10, list_size=40)


def of_actor(cluster, role, function):
    """What an actor says, which may be being started anew."""
    end = time.monotonic() + PATIENT
    while True:
        try:
            return ray.get(cluster._handles[role].__ray_call__.remote(function), timeout=PATIENT)
        except ActorUnavailableError:
            assert time.monotonic() < end
            time.sleep(0.1)


def pid(cluster, role):
    return of_actor(cluster, role, lambda actor: os.getpid())


def node(cluster, role):
    return of_actor(cluster, role, lambda actor: ray.get_runtime_context().get_node_id())


class Load:
    """Searches until it is left; every answer is compared."""

    def __init__(self, cluster, queries, expected):
        self.cluster, self.queries, self.expected = cluster, queries[:50], [part[:50] for part in expected]
        self.answered, self.failed, self._stop = [], [], threading.Event()
        self._thread = threading.Thread(target=self._search)

    def _search(self):
        while not self._stop.is_set():
            try:
                found = self.cluster.search(self.queries, 10, list_size=40, timeout=PATIENT)
                assert all(numpy.array_equal(ours, theirs) for ours, theirs in zip(found, self.expected)), "wrong answers"
            except BaseException as error:
                self.failed.append(error)
                return
            self.answered.append(time.monotonic())

    def more(self, count):
        """Waits for so many answers from now on; how many seconds the first took."""
        begun, had = time.monotonic(), len(self.answered)
        while len(self.answered) < had + count and self._thread.is_alive():
            assert time.monotonic() - begun < PATIENT
            time.sleep(0.01)
        assert self.failed == []
        return self.answered[had] - begun

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        assert self.failed == []


def test_it_answers_as_the_index_does_and_each_role_is_where_it_is_placed(cluster, folder, queries, expected):
    ssd = cluster.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"ssd": 1})
    cluster.wait_for_nodes()
    try:
        own = Resources(cpus=0.25, custom={"own": 1})
        places = {"memory": own, "compute": own, "storage": Resources(cpus=0.25, custom={"ssd": 1})}
        with Cluster(folder, servers=2, timeout=PATIENT, options={"list_size": 40}, **places) as index:
            for ours, theirs in zip(index.search(queries, 10), expected):
                assert ours.dtype == theirs.dtype
                numpy.testing.assert_array_equal(ours, theirs)
            # A list of lists is divided as an array is.
            before = index.stats()
            lists = index.search(queries.tolist(), 10, timeout=PATIENT / 2)
            for ours, theirs in zip(lists, expected):
                numpy.testing.assert_array_equal(ours, theirs)
            after = index.stats()
            for role in ("compute-0", "compute-1"):
                assert after[role]["queries_answered_total"] >= before[role]["queries_answered_total"] + len(queries) // 2
            # One client of each server, whatever time its queries have.
            for timeout in (0.9, 1.1, 1.3):
                index.search(queries, 10, timeout=timeout)
            ours = dict(index._clients)
            for timeout in (0.8, 1.0, 1.2):
                index.search(queries, 10, timeout=timeout)
            assert len(ours) == 2 and index._clients == ours
            one = index.search(queries[0], 3, list_size=40)
            assert one[0].shape == (3,) and one[0].tolist() == expected[0][0, :3].tolist()
            health = index.health()
            assert set(health) == {"memory", "storage", "compute-0", "compute-1"}
            assert all(server["well"] for server in health.values()), health
            counted = index.stats()
            assert counted["memory"]["nodes"] == 2000
            # Both have had their part.
            assert all(counted[f"compute-{number}"]["queries_answered_total"] >= 250 for number in range(2))
            # Of "own" each node has one, and the head of the role's node is no other's.
            nodes = [node(index, role) for role in ("memory", "storage", "compute-0", "compute-1")]
            assert len(set(nodes)) == 4 and nodes[1] == ssd.node_id
            # Nobody gets in without the secret.
            with pytest.raises(stratann.StratannError, match="secret"):
                stratann.connect(index.addresses())
            with stratann.connect(index.addresses()[1], secret=index.secret) as client:
                assert numpy.array_equal(client.search(queries[:5], list_size=40)[0], expected[0][:5])
            with pytest.raises(ValueError, match="changes=True"):
                index.delete(numpy.array([1]))
            with pytest.raises(ValueError, match="list_size=5 is smaller"):
                index.search(queries, 10, list_size=5)
        with pytest.raises(ValueError, match="closed"):
            index.search(queries)
        index.close()
    finally:
        cluster.remove_node(ssd)


def test_a_memory_server_that_is_killed_under_load(folder, queries, expected):
    with Cluster(folder, servers=2, timeout=PATIENT, **LIGHT) as index, Load(index, queries, expected) as load:
        load.more(2)
        before = pid(index, "memory")
        os.kill(before, signal.SIGKILL)
        load.more(5)
        assert pid(index, "memory") != before
        before = pid(index, "storage")
        ray.kill(index._handles["storage"], no_restart=False)
        load.more(5)
        assert pid(index, "storage") != before


def test_compute_servers_that_are_killed_under_load(folder, queries, expected):
    with Cluster(folder, servers=2, timeout=PATIENT, **LIGHT) as index, Load(index, queries, expected) as load:
        load.more(2)
        before = [pid(index, f"compute-{number}") for number in range(2)]
        os.kill(before[0], signal.SIGKILL)
        load.more(5)
        # All of them at once.
        for number in range(2):
            os.kill(pid(index, f"compute-{number}"), signal.SIGKILL)
        load.more(5)
        after = [pid(index, f"compute-{number}") for number in range(2)]
        assert not set(before) & set(after)


def test_servers_of_a_node_that_is_lost_are_found_elsewhere(cluster, folder, queries, expected):
    node = {"num_cpus": 2, "object_store_memory": 80 << 20}
    lost = cluster.add_node(**node, resources={"place": 1})
    cluster.wait_for_nodes()
    spare = None
    try:
        place = Resources(cpus=0.25, custom={"place": 0.1})
        with Cluster(folder, timeout=PATIENT, memory=place, compute=place, storage=LIGHT["storage"]) as index:
            with Load(index, queries, expected) as load:
                load.more(2)
                before = index.addresses(), of_actor(index, "memory", lambda actor: actor.address())
                spare = cluster.add_node(**node, resources={"place": 1})
                cluster.remove_node(lost, allow_graceful=False)
                lost = None
                load.more(5)
            assert index.search(queries[:3])[0].shape == (3, 10), before
    finally:
        for left in (lost, spare):
            if left is not None:
                cluster.remove_node(left)


def test_servers_that_listen_elsewhere_are_looked_up(folder, queries, expected):
    with Cluster(folder, timeout=PATIENT, **LIGHT) as index:
        index.search(queries[:5])

        def moves(actor):
            # The server gets another address, as on another node. Only the actor reports it.
            before, host = actor._server, actor._server.address.rsplit(":", 1)[0]
            actor._server = actor.again(f"{host}:0")
            before.close()
            return before.address, actor._server.address

        def again(role):
            secret = index.secret

            def add(actor):
                if role == "memory":
                    actor.again = lambda listen: stratann.MemoryServer(folder, listen=listen, secret=secret)
                else:
                    actor.again = actor._started

            return add

        for role in ("memory", "compute-0"):
            of_actor(index, role, again(role))
            before, after = of_actor(index, role, moves)
            assert before != after
            begun = time.monotonic()
            found = index.search(queries, 10, list_size=40)
            assert time.monotonic() - begun < 60
            for ours, theirs in zip(found, expected):
                numpy.testing.assert_array_equal(ours, theirs)
        assert index.addresses() == [after]


def test_changes_are_seen_by_all_and_outlive_storage(folder, queries, tmp_path):
    own = tmp_path / "b.idx"
    shutil.copytree(folder, own)
    ids = numpy.arange(50_000, 50_000 + len(queries))
    with Cluster(own, servers=2, changes=True, timeout=PATIENT, **LIGHT) as index:
        index.upsert(queries, ids)
        for address in index.addresses():
            with stratann.connect(address, secret=index.secret, timeout=PATIENT) as client:
                found, distances = client.search(queries, 1)
                assert numpy.array_equal(found[:, 0], ids) and not distances.any()
        os.kill(pid(index, "storage"), signal.SIGKILL)
        assert index.delete(ids[:10]) == 10
        found, distances = index.search(queries, 1)
        assert distances[:10].all() and numpy.array_equal(found[10:, 0], ids[10:])
    # Given back when it was closed.
    with stratann.open(own) as alone:
        alone.delete(ids[10:20])
        assert len(alone) == 2000 + len(queries) - 20


def test_other_tasks_search_with_the_same_servers(folder, queries, expected):
    @ray.remote(num_cpus=0.1)
    def search(index, queries):
        return index.search(queries, 10, list_size=40)

    with Cluster(folder, timeout=PATIENT, **LIGHT) as index:
        for ours, theirs in zip(ray.get(search.remote(index, queries[:20]), timeout=PATIENT), expected):
            numpy.testing.assert_array_equal(ours, theirs[:20])
        assert pickle.loads(ray.cloudpickle.dumps(index)).addresses() == index.addresses()


STARTS = """
import sys
import ray
from stratann.ray import Cluster, Resources
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="error")
light = Resources(cpus=0.25)
Cluster(sys.argv[2], name="photos", detached=True, memory=light, storage=light, compute=light)
"""


def test_one_that_is_detached_outlives_its_program_and_is_found(cluster, folder, queries, expected):
    words = [sys.executable, "-c", STARTS, cluster.address, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=2 * PATIENT)
    assert done.returncode == 0, done.stderr
    found = Cluster.find("photos")
    try:
        for ours, theirs in zip(found.search(queries, 10, list_size=40, timeout=PATIENT), expected):
            numpy.testing.assert_array_equal(ours, theirs)
        with pytest.raises(ValueError, match="photos"):
            Cluster(folder, name="photos", **LIGHT)
        assert all(server["well"] for server in found.health().values())
    finally:
        found.close()
    with pytest.raises(ValueError, match="no cluster 'nobody'"):
        Cluster.find("nobody")


def test_a_role_that_did_not_start_says_why_to_all_who_ask():
    for kind in (_Memory, _Storage, _Compute):
        role = kind.__new__(kind)
        role._lock, role._stopped = threading.Lock(), threading.Event()
        for ask in (role.address, role.health, role.stats):
            with pytest.raises(stratann.ServerError, match="not started yet"):
                ask()
        role._trouble = FileNotFoundError("there is no index here")
        for ask in (role.address, role.health, role.stats):
            with pytest.raises(FileNotFoundError, match="no index here"):
                ask()
        role.stop()


def test_what_cannot_be_started(folder, tmp_path, small):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Cluster(tmp_path / "nowhere", **LIGHT)
    stratann.build(small[:500], tmp_path / "plain", degree=16)
    with pytest.raises(ValueError, match="distvs"):
        Cluster(tmp_path / "plain", **LIGHT)
    with pytest.raises(DeadlineError, match="storage.*1 of 'gold'"):
        Cluster(folder, opening=5, **{**LIGHT, "storage": Resources(cpus=0, custom={"gold": 1})})
    with pytest.raises(ValueError, match="needs a name"):
        Cluster(folder, detached=True)
    with pytest.raises(ValueError, match="servers is 0"):
        Cluster(folder, servers=0)


def test_a_change_that_may_be_made_yet_is_not_asked_for_by_another_client(tmp_path):
    cluster = Cluster.__new__(Cluster)
    cluster._begin({"path": tmp_path, "servers": 1, "changes": True, "timeout": 5.0})
    cluster._handles = {"memory": None}
    asked = []

    def client(number, patience):
        return cluster._clients.setdefault(number, object())

    def ask(client, left):
        asked.append(client)
        error = stratann.ServerTimeoutError("not in time")
        error.yet = len(asked) > 1
        raise error

    cluster._client = client
    # The first was not made, and is asked for anew; the second may be.
    with pytest.raises(stratann.ServerTimeoutError):
        cluster._changed(ask, None)
    assert len(asked) == 2 and asked[0] is not asked[1]
    with pytest.raises(stratann.ServerTimeoutError):
        cluster._changed(ask, None)
    assert len(asked) == 3 and asked[2] is asked[1]
