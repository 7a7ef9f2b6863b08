"""stratann.connect: a client of compute servers."""

import os
import re
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

SECRET = b"a secret of these tests"
SOON = 60.0  # in seconds; the machine may be busy


def connect(servers, **options):
    """A client with enough time on a busy machine."""
    return stratann.connect(servers, **{"timeout": SOON, **options})


def command():
    """The `stratann` command that STRATANN_COMMAND names, or else the one in the PATH."""
    found = os.environ.get("STRATANN_COMMAND") or shutil.which("stratann")
    if not found:
        pytest.fail("no `stratann` command: run `make test-python`, or set STRATANN_COMMAND to one that is built")
    return found


class Servers:
    def __init__(self, folder, *words, secret=None):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("STRATANN_SECRET")}
        if secret:
            environment["STRATANN_SECRET"] = secret.decode()
        words = [command(), "cluster", "up", str(folder), "--listen", "127.0.0.1:0", "--threads", "1", *words]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
        self.addresses = []
        count = int(words[words.index("--servers") + 1]) if "--servers" in words else 1
        while len(self.addresses) < count:
            line = self.process.stdout.readline()
            assert line, "cluster up has ended"
            self.addresses += re.findall(r"compute server listening on (\S+)", line)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small):
    path = tmp_path_factory.mktemp("distvs") / "a.idx"
    stratann.build(small, path, preset="distvs", degree=24, build_list=40)
    return path


@pytest.fixture(scope="module")
def servers(folder):
    servers = Servers(folder, "--servers", "2")
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def address(servers):
    return servers.addresses[0]


def test_answers_are_those_of_the_index(folder, servers, queries):
    own = stratann.open(folder)
    for given in (servers.addresses, ", ".join(servers.addresses), servers.addresses[1]):
        with connect(given) as client:
            ids, distances, stats = client.search(queries, k=7, list_size=40, return_stats=True)
    expected = own.search(queries, k=7, list_size=40)
    assert numpy.array_equal(ids, expected[0]) and numpy.array_equal(distances, expected[1])
    assert ids.dtype == numpy.uint64 and distances.dtype == numpy.float32 and ids.shape == (len(queries), 7)
    assert stats["list"] == 40 and stats["queries"] == len(queries) == len(stats["latencies_us"])
    assert stats["per_query"]["full"] == 20 and stats["per_query"]["wire"] > 0


def test_changes_are_seen_by_whoever_searches_then(folder, queries, small, tmp_path):
    own = tmp_path / "b.idx"
    shutil.copytree(folder, own)
    ids = numpy.arange(50_000, 50_000 + len(queries), dtype=numpy.uint64)
    servers = Servers(own, "--servers", "2", "--changes")
    try:
        with connect(servers.addresses[0]) as one, connect(servers.addresses[1]) as other:
            one.upsert(queries, ids)
            found, distances = other.search(queries, k=1)
            assert numpy.array_equal(found[:, 0], ids) and not distances.any()
            # 20,000 rows are more than a mebibyte, so they go in parts.
            one.upsert(queries[0], numpy.array([7]))
            found, _ = other.search(queries[0], k=2)
            assert set(found.tolist()) == {7, 50_000}
            many = numpy.repeat(small[:1000], 20, axis=0)
            one.upsert(many, numpy.arange(100_000, 120_000))
            assert one.delete(numpy.arange(100_000, 120_001)) == 20_000
            assert other.delete(ids[:10]) == 10 and one.delete(ids[:10]) == 0
            # A merge may leave twenty copies of each row, which need a long list.
            found, distances = one.search(queries[1:], k=1, list_size=400)
            assert numpy.array_equal(found[9:, 0], ids[10:]) and distances[:9].all()
            with pytest.raises(ValueError, match="ids has 7 twice"):
                one.upsert(queries[:2], numpy.array([7, 7]))
            with pytest.raises(ValueError, match=r"ids has the shape \(1,\)"):
                one.upsert(queries[:2], numpy.array([7]))
            with pytest.raises(ValueError, match="row 0, column 0 is .*no uint8"):
                one.upsert(queries[:2] + 0.5, [1, 2])
    finally:
        servers.stop()
    index = stratann.open(own)
    assert len(index) == len(small) + len(queries) - 10
    found, distances = index.search(queries[10:], k=1, list_size=400)
    assert numpy.array_equal(found[:, 0], ids[10:]) and not distances.any()


def test_servers_that_only_read_say_so(address, queries):
    with connect(address) as client, pytest.raises(ValueError, match="takes no changes. Start it .* with --changes"):
        client.delete(numpy.array([1]))


def test_a_client_knows_what_it_searches(address, queries):
    with connect(address) as client:
        assert (client.dim, client.metric, client.dtype, len(client)) == (128, "l2", numpy.uint8, 2000)
        assert client.servers == [address] and address in repr(client)
        one, all_of_them = client.search(queries[0], k=3), client.search(queries[:1], k=3)
        assert one[0].shape == (3,) and numpy.array_equal(one[0], all_of_them[0][0])
        assert client.search(queries[:0], k=3)[0].shape == (0, 3)
        # The server's list is shorter, and is raised to k.
        ids, _, stats = client.search(queries[:2], k=100, return_stats=True)
        assert ids.shape == (2, 100) and stats["list"] == 100


def test_a_wrong_call_is_told_what_would_be_right(address, queries):
    with connect(address) as client:
        with pytest.raises(ValueError, match="no uint8.*astype"):
            client.search(queries.astype(numpy.float32) + numpy.float32(0.5))
        numpy.testing.assert_array_equal(client.search(queries[0].tolist())[0], client.search(queries[0])[0])
        with pytest.raises(ValueError, match="128 dimensions"):
            client.search(queries[:, :64].copy())
        with pytest.raises(ValueError, match="list_size=5 is smaller than k=10"):
            client.search(queries, list_size=5)
        with pytest.raises(ValueError, match="k=0"):
            client.search(queries, k=0)
        with pytest.raises(ValueError, match="at most 8192"):
            client.search(queries[:1], list_size=9000)
        for timeout in (0, -1, float("nan")):
            with pytest.raises(ValueError, match="timeout"):
                client.search(queries, timeout=timeout)
    with pytest.raises(ValueError, match="closed. Call stratann.connect"):
        client.search(queries)
    client.close()
    for wrong, error in ((7, TypeError), ("", ValueError), ([], ValueError), ([address, ""], ValueError)):
        with pytest.raises(error, match="server"):
            stratann.connect(wrong)
    for timeout in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout"):
            stratann.connect(address, timeout=timeout)
    with pytest.raises(ValueError, match="shorter than 16"):
        stratann.connect(address, secret="short")


def test_who_is_not_there_is_named_and_the_next_is_asked(address, queries):
    with pytest.raises(stratann.ServerError, match=r"127\.0\.0\.1:1: the compute server cannot be reached"):
        stratann.connect("127.0.0.1:1")
    with pytest.raises(stratann.ServerError, match="HOST:PORT"):
        stratann.connect("127.0.0.1")
    with connect(["127.0.0.1:1", address]) as client:
        assert client.search(queries[:3])[0].shape == (3, 10)


@pytest.mark.parametrize(
    "name, words",
    [
        ("ucx:127.0.0.1:1", "the Python package never has it"),
        ("UCX:127.0.0.1:1", r"[Dd]id you mean ucx:127\.0\.0\.1:1\?"),
        ("shm:ucx:127.0.0.1:1", r"[Dd]id you mean ucx:127\.0\.0\.1:1\?"),
    ],
)
def test_this_package_has_no_ucx_and_says_so(name, words):
    with pytest.raises(stratann.ServerError, match=words):
        stratann.connect(name)


def test_a_secret_is_asked_for(folder, queries, tmp_path, monkeypatch):
    servers = Servers(folder, secret=SECRET)
    try:
        address = servers.addresses[0]
        with pytest.raises(stratann.ServerError, match="another secret"):
            stratann.connect(address)
        with pytest.raises(stratann.ServerError, match="has another secret"):
            stratann.connect(address, secret=b"another secret of tests")
        file = tmp_path / "secret"
        file.write_bytes(SECRET)
        file.chmod(0o600)
        for known in ({"secret": SECRET}, {"secret": SECRET.decode()}, {"secret_file": file}):
            with connect(address, **known) as client:
                client.search(queries[:2])
        monkeypatch.setenv("STRATANN_SECRET", SECRET.decode())
        connect(address).close()
    finally:
        servers.stop()


def test_threads_search_at_once_and_others_run_meanwhile(address, queries):
    with connect(address) as client:
        expected = client.search(queries, list_size=100)[0]
        found, turns = {}, 0
        threads = [
            threading.Thread(target=lambda at=at: found.update({at: client.search(queries, list_size=100)[0]}))
            for at in range(4)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            turns += 1
            time.sleep(0.0005)
        assert turns > 0 and len(found) == 4
        assert all(numpy.array_equal(ids, expected) for ids in found.values())


def test_a_server_that_goes_costs_its_time_and_another_one_goes_on(folder, queries):
    gone, stays = Servers(folder), Servers(folder)
    try:
        client = connect([gone.addresses[0], stays.addresses[0]])
        alone, hurried = (connect(gone.addresses[0], timeout=timeout) for timeout in (SOON, 10))
        expected = client.search(queries[:5])[0]
        gone.stop()
        assert numpy.array_equal(client.search(queries[:5])[0], expected)
        for search in (lambda: hurried.search(queries[:5]), lambda: alone.search(queries[:5], timeout=0.3)):
            began = time.monotonic()
            with pytest.raises(stratann.ServerTimeoutError, match=r"did not answer within [\d.]+ m?s"):
                search()
            assert time.monotonic() - began < SOON / 2
    finally:
        stays.stop()


# Ctrl-C comes while the client waits for a silent server.
WAITING = """
import signal, sys, stratann
# Who starts the tests may ignore it, and so would this process.
signal.signal(signal.SIGINT, signal.default_int_handler)
print("begins", flush=True)
try:
    stratann.connect(sys.argv[1], timeout=60)
except KeyboardInterrupt as error:
    print(type(error).__name__)
"""


def test_ctrl_c_ends_what_waits(address):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        words = [sys.executable, "-c", WAITING, f"127.0.0.1:{port}"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "begins\n"
            # The client waits for a greeting. A connection that is not kept here would be closed.
            held, _ = silent.accept()
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "Interrupted\n"
            assert time.monotonic() - began < SOON / 2
        held.close()


def test_a_forked_process_is_told_to_connect_itself(address, queries):

    done = subprocess.run(
        [sys.executable, "-c", FORKED, address], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Call stratann.connect here" in done.stdout


FORKED = """
import os, sys, warnings
import numpy, stratann
warnings.simplefilter("ignore")
client = stratann.connect(sys.argv[1], timeout=60)
child = os.fork()
if child == 0:
    try:
        client.search(numpy.zeros(128, numpy.uint8))
    except stratann.StratannError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(child, 0)
client.search(numpy.zeros(128, numpy.uint8))
"""
