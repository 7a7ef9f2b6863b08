"""stratann.MemoryServer, StorageServer and ComputeServer."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy
import pytest

import stratann

SECRET = "a secret of these tests"
SOON = 60.0  # in seconds; the machine may be busy


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small):
    path = tmp_path_factory.mktemp("distvs") / "a.idx"
    stratann.build(small, path, preset="distvs", degree=24, build_list=40)
    return path


def threads():
    """The engine's threads of this process, by name."""
    tasks = f"/proc/{os.getpid()}/task"
    names = []
    for task in os.listdir(tasks):
        try:
            with open(f"{tasks}/{task}/comm") as name:
                names.append(name.read().strip())
        except FileNotFoundError:
            continue
    # The thread that passes log messages on stays until the end.
    return sorted(name for name in names if name.startswith("stratann-") and name != "stratann-loggin")


def until(happens):
    """Waits until a function returns a true value, and returns this value."""
    end = time.monotonic() + SOON
    while time.monotonic() < end:
        found = happens()
        if found:
            return found
        time.sleep(0.05)
    pytest.fail("the awaited event did not occur in time")


def test_answers_are_those_of_the_index_and_no_thread_stays(folder, queries):
    before = threads()
    memory = stratann.MemoryServer(folder)
    with memory, stratann.StorageServer(folder) as storage:
        with stratann.ComputeServer(
            memory.address, storage.address, threads=2, list_size=40, low_memory="1MiB"
        ) as compute:
            assert len(threads()) > len(before)
            with stratann.connect(compute.address, timeout=SOON) as client:
                ids, distances, stats = client.search(queries, k=7, return_stats=True)
            assert stats["list"] == 40
            until(lambda: compute.health()["well"])
            health = compute.health()
            assert health["well"] and health["trouble"] is None and any("memory" in line for line in health["lines"])
            counted = compute.stats()
            assert counted["queries_answered_total"] >= len(queries)
            assert counted["connections"] == {"memory": 1, "storage": 1} and counted["nodes"] == 2000
        assert memory.stats()["nodes"] == 2000 and memory.health()["well"] and storage.health()["well"]
        assert isinstance(memory, stratann.Server) and memory.address in repr(memory)
    assert threads() == before
    expected = stratann.open(folder).search(queries, k=7, list_size=40)
    assert numpy.array_equal(ids, expected[0]) and numpy.array_equal(distances, expected[1])
    memory.close()
    assert "closed" in repr(memory)
    for ask in (memory.health, memory.stats):
        with pytest.raises(ValueError, match=rf"the memory server at {memory.address} is closed"):
            ask()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(memory.address.rsplit(":", 1))


def test_changes_are_followed(folder, small, queries, tmp_path):
    own = tmp_path / "b.idx"
    shutil.copytree(folder, own)
    with stratann.StorageServer(own, changes=True) as storage, stratann.MemoryServer(own, follow=True) as memory:
        with pytest.raises(stratann.InUseError):
            stratann.StorageServer(own, changes=True)
        with stratann.ComputeServer(memory.address, storage.address, threads=1) as compute:
            with stratann.connect(compute.address, timeout=SOON) as client:
                # More than a thousand waiting vectors are merged, and the memory server follows.
                many = numpy.concatenate([queries, small[:1000]])
                ids = numpy.arange(50_000, 50_000 + len(many))
                client.upsert(many, ids)
                assert storage.stats()["vectors"] == len(small) + len(many)
                until(lambda: memory.stats()["nodes"] > len(small))
                found, distances = client.search(queries, k=1)
                assert numpy.array_equal(found[:, 0], ids[: len(queries)]) and not distances.any()
    # The servers are closed, and acknowledged changes are there.
    with stratann.open(own) as index:
        assert len(index) == len(small) + len(many)
        index.delete(ids[:1])


STORAGE = """
import signal, sys, stratann
storage = stratann.StorageServer(sys.argv[1], changes=True)
print(storage.address, flush=True)
signal.pause()
"""

# Ctrl-C ends a change while storage is stopped. The exception is printed in a line.
INTERRUPTED = """
import signal, sys, numpy, stratann
# Who starts the tests may ignore it, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)
with stratann.connect(sys.argv[1], timeout=60) as client:
    rows = numpy.zeros((50_000, client.dim), client.dtype)
    ids = numpy.arange(len(rows)) + 10_000
    print("begins", flush=True)
    sys.stdin.readline()
    print("asks", flush=True)
    try:
        client.upsert(rows, ids) if sys.argv[2] == "upsert" else client.delete(ids)
    except stratann.Interrupted as error:
        print(error.complete, error.done, error.total, error, flush=True)
"""


@pytest.mark.parametrize("what", ["upsert", "delete"])
def test_a_change_that_is_interrupted_does_not_say_that_it_was_made(what, folder, tmp_path):
    own = tmp_path / "a.idx"
    shutil.copytree(folder, own)
    words = [sys.executable, "-c", STORAGE, str(own)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as storage:
        try:
            at = storage.stdout.readline().strip()
            with stratann.ComputeServer("127.0.0.1:1", at, threads=1) as compute:
                words = [sys.executable, "-c", INTERRUPTED, compute.address, what]
                with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
                    assert process.stdout.readline() == "begins\n"
                    asked = lambda: compute.stats()["bytes_received_total"]["clients"]
                    before = asked()
                    storage.send_signal(signal.SIGSTOP)
                    process.stdin.write("\n")
                    process.stdin.flush()
                    assert process.stdout.readline() == "asks\n"
                    # The first part has arrived: the ids, and for upserts also the rows.
                    until(lambda: asked() > before + 100_000)
                    process.send_signal(signal.SIGINT)
                    said = process.stdout.readline()
            assert said.startswith("False 0 50000 the change was interrupted; "), said
        finally:
            storage.kill()


def test_changes_need_no_memory_server(folder, queries, tmp_path):
    own = tmp_path / "b.idx"
    shutil.copytree(folder, own)
    nowhere = "127.0.0.1:1"
    with stratann.StorageServer(own, changes=True) as storage, stratann.ComputeServer(nowhere, storage.address, threads=1) as compute:
        with stratann.connect(compute.address, timeout=SOON) as client:
            assert client.changes and client.dim == queries.shape[1] and len(client) == 2000
            client.upsert(queries[:3], [9000, 9001, 9002])
            assert client.delete([9000, 5_000_000]) == 1
            # The length includes changes since the last merge.
            assert len(client) == 2002 and client
    with stratann.open(own) as index:
        assert len(index) == 2002
    with stratann.StorageServer(folder) as storage, stratann.ComputeServer(nowhere, storage.address, threads=1) as compute:
        with stratann.connect(compute.address, timeout=SOON) as client:
            assert not client.changes
            with pytest.raises(ValueError, match="changes=True.*nothing was changed"):
                client.delete([1])
        # A search waits for the memory server.
        with stratann.connect(compute.address, timeout=SOON) as client:

            def named():
                with pytest.raises(stratann.ServerTimeoutError) as error:
                    client.search(queries[:1], timeout=3)
                # If the answer of the server is late, the error does not have its reason.
                return "memory server" in str(error.value)

            until(named)


def test_health_says_for_whom_a_compute_server_waits(folder, queries):
    storage = stratann.StorageServer(folder)
    memory = stratann.MemoryServer(folder)
    with storage, stratann.ComputeServer(memory.address, storage.address, threads=1) as compute:
        until(lambda: compute.health()["well"])
        memory.close()
        health = until(lambda: (lambda said: None if said["well"] else said)(compute.health()))
        assert f"the memory server at {memory.address}" in health["trouble"], health
        with stratann.MemoryServer(folder, listen=memory.address):
            until(lambda: compute.health()["well"])
            with stratann.connect(compute.address, timeout=SOON) as client:
                assert client.search(queries[:5])[0].shape == (5, 10)


# A memory server in a process that can be stopped.
APART = """
import sys, stratann
with stratann.MemoryServer(sys.argv[1]) as memory:
    print(memory.address, flush=True)
    sys.stdin.read()
"""


def test_health_waits_for_who_is_silent_and_others_run_meanwhile(folder):
    words = [sys.executable, "-c", APART, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as apart:
        address = apart.stdout.readline().strip()
        with stratann.StorageServer(folder) as storage, stratann.ComputeServer(address, storage.address, threads=1) as compute:
            until(lambda: compute.health()["well"])
            apart.send_signal(signal.SIGSTOP)
            said = []

            # Messages in transit at the stop still count as a sign of life.
            def unwell():
                now = compute.health()
                return None if now["well"] else now

            asking = threading.Thread(target=lambda: said.append(until(unwell)))
            turns, begun = 0, time.monotonic()
            asking.start()
            while asking.is_alive():
                turns += 1
                time.sleep(0.001)
            took = time.monotonic() - begun
            apart.send_signal(signal.SIGCONT)
            assert address in said[0]["trouble"], said
            # If the call kept the interpreter, there would have been a turn or two.
            assert took > 0.5 and turns > 20, (took, turns)
            until(lambda: compute.health()["well"])
        apart.stdin.close()
        assert apart.wait(SOON) == 0


def test_a_server_may_be_closed_while_it_is_asked(folder):
    with stratann.StorageServer(folder) as storage, stratann.MemoryServer(folder) as memory:
        compute = stratann.ComputeServer(memory.address, storage.address, threads=1)
        said = []

        def ask():
            while not said:
                try:
                    compute.health()
                except ValueError as error:
                    said.append(str(error))

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        time.sleep(0.05)
        compute.close()
        for thread in asking:
            thread.join(SOON)
        assert all("is closed" in text for text in said) and said


def test_a_secret_is_needed_by_whoever_others_can_reach(folder, queries):
    known = {"secret": SECRET}
    with pytest.raises(ValueError, match="only with a secret"):
        stratann.MemoryServer(folder, listen="0.0.0.0:0")
    with stratann.MemoryServer(folder, listen="0.0.0.0:0", **known) as memory:
        port = memory.address.rsplit(":", 1)[1]
        with stratann.StorageServer(folder, **known) as storage:
            with stratann.ComputeServer(f"127.0.0.1:{port}", storage.address, threads=1, **known) as compute:
                with stratann.connect(compute.address, timeout=SOON, **known) as client:
                    assert client.search(queries[:5])[0].shape == (5, 10)
                with pytest.raises(stratann.ServerError, match="another secret"):
                    stratann.connect(compute.address)


def test_wrong_calls_say_what_would_be_right(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        stratann.MemoryServer(tmp_path / "nowhere")
    with stratann.StorageServer(folder) as storage:
        for start in (stratann.MemoryServer, stratann.StorageServer):
            with pytest.raises(stratann.ServerError, match=f"cannot listen on {storage.address}"):
                start(folder, listen=storage.address)
            with pytest.raises((ValueError, stratann.ServerError), match="HOST:PORT"):
                start(folder, listen="nowhere")
    place = "127.0.0.1:1"
    for wrong, said in [
        ({"threads": 0}, "threads=0"),
        ({"list_size": 0}, "list_size=0"),
        ({"beam": 100_000}, "beam=100000"),
        ({"refine": 0.0}, "refine=0"),
        ({"refine": float("nan")}, "refine"),
        ({"low_list": 0.5}, "low_list=0.5"),
        ({"seeds": 10**6}, "seeds=1000000"),
        ({"threads": 2, "connections": 3}, "connections=3.*1 to 2"),
        ({"low_memory": 0}, "low_memory=0"),
        ({"waiting": 0}, "waiting=0"),
        ({"clients": 0}, "clients=0"),
        ({"secret": "short"}, "shorter than 16"),
    ]:
        with pytest.raises(ValueError, match=said):
            stratann.ComputeServer(place, place, **wrong)
    with pytest.raises(stratann.ServerError, match="HOST:PORT"):
        stratann.ComputeServer("nowhere", place)
    with pytest.raises(TypeError):
        stratann.ComputeServer(place, place, threads="many")


# Servers that are never closed, one of which accepts changes, and a forked process without their
# threads.
LEFT = """
import os, sys, warnings
import numpy, stratann
warnings.simplefilter("ignore")
memory = stratann.MemoryServer(sys.argv[1])
storage = stratann.StorageServer(sys.argv[1], changes=True)
compute = stratann.ComputeServer(memory.address, storage.address, threads=1)
client = stratann.connect(compute.address, timeout=60)
client.upsert(numpy.zeros(128, numpy.uint8), numpy.array([70_000]))
child = os.fork()
if child == 0:
    try:
        compute.health()
    except stratann.StratannError as error:
        print(error, flush=True)
    compute.close()
    del memory, storage, compute
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if hasattr(os, "waitstatus_to_exitcode") else 7)
print(len(client.search(numpy.zeros(128, numpy.uint8), k=1)[0]), compute.health()["well"])
"""


def test_the_end_of_the_interpreter_and_a_forked_process(folder, tmp_path, small):
    own = tmp_path / "c.idx"
    shutil.copytree(folder, own)
    done = subprocess.run([sys.executable, "-c", LEFT, str(own)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    said, status, last = done.stdout.splitlines()
    assert "Start a server here" in said and status == "7" and last == "1 True"
    assert len(stratann.open(own)) == len(small) + 1
