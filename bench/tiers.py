#!/usr/bin/env python3
"""Measures the cost of searches in each kind of real memory on one machine.

    bench/tiers.py STRATANN FOLDER [--data ../shared/data] [--cores 1] [--rounds 3] [--json FILE]

The kinds are DRAM, mapped shared memory, and a memory server. The script builds a graph
(`tiered-graph`, R=32) and clusters (`spann`, `tiered-cluster`) of photo-sift-100k and package-text.
FOLDER keeps the indexes for later runs, in 700 MB. The script searches each index with one thread
in

    DRAM         Copies in the process.                            ROLE=dram
    /dev/shm     Copies in a mapped file.                          ROLE=mapped:/dev/shm/..
    TCP          `stratann memory-server` over TCP.                ROLE=remote:127.0.0.1:PORT/..
    ring         The server through a ring in shared memory.       ROLE=remote:shm:/..
    UCX shm      The server through UCX, by its shared memory.     ROLE=remote:ucx:127.0.0.1:PORT/..
    UCX tcp      The server through UCX, over its TCP.             .. with UCX_TLS=tcp

The two kinds with UCX need a STRATANN with the feature `ucx`, and the UCX library. The list size
(for clusters the number of probes) is the smallest one with recall@10 .95 in DRAM. Each index is
measured with eight queries in flight, and with the number that the batch finds best. A batch
repeats the queries, or uses only some of them, so that it lasts about a second. Runs take turns,
and each figure is the median of the rounds. A cell has

- queries a second with eight in flight;
- queries a second with the chosen number in flight, and this number in each round;
- with eight in flight, CPU microseconds per query of the searching process, and of the server if
  there is one (from /proc, whose total has a resolution of 10 ms).

`--cores` are the cores for both searches and servers (a list as for `taskset`; default: all). With
one core, searches and server share it. So queries a second are at most one second divided by the
sum of both CPU times per query. A server on another machine would not use this core.
`--two-threads` measures `spann` on the disk of FOLDER instead, with two threads, at 31 and 61
probes. Needs Python 3.8 and nothing else.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile

IN_FLIGHT = 8
RECALL = "0.95"
# Name, extension of the vectors, and metric of each data set.
DATA = [("photo-sift-100k", "u8bin", "l2"), ("package-text", "fbin", "cosine")]
# Name, options of the build, placed role, and for each data set the number of queries in a batch.
INDEXES = [
    ("tiered-graph", ["--degree", "32", "--build-list", "100"], "topology", [10_000, 4_000]),
    ("spann", [], "vectors", [10_000, 600]),
    ("tiered-cluster", [], "vectors", [2_000, 300]),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stratann", nargs="?")
    parser.add_argument("folder", nargs="?")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--data", default=os.environ.get("STRATANN_DATA", os.path.join(here, "../../shared/data")))
    parser.add_argument("--cores", help="the cores for searches and servers, as for taskset")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="the file for all figures")
    parser.add_argument("--show", metavar="FILE", help="prints the table from a file of --json, and measures nothing")
    parser.add_argument("--two-threads", action="store_true", help="measures only spann, on the disk of FOLDER, with two threads")
    arguments = parser.parse_args()
    if arguments.show:
        with open(arguments.show) as file:
            return show(json.load(file)["runs"])
    if not arguments.folder:
        parser.error("STRATANN and FOLDER are missing")
    # If a signal ends the process, it still removes servers and copies.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.makedirs(arguments.folder, exist_ok=True)
    bench = Bench(arguments)
    results = bench.on_disk() if arguments.two_threads else bench.in_memories()
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"machine": machine(), "cores": arguments.cores, "runs": results}, file, indent=1)


def machine():
    """The processor, cores and kernel of this machine."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{models[0] if models else 'unknown'}, {os.cpu_count()} cores, Linux {os.uname().release}"


def again(body, count):
    """The bytes, repeated up to a length of `count`."""
    return (body * -(-count // len(body)))[:count]


def asked(path, out, count):
    """Writes a file with `count` rows of another file. If the other file has fewer rows, they
    repeat.
    """
    with open(path, "rb") as file:
        rows, width = struct.unpack("<II", file.read(8))
        body = file.read()
    with open(out, "wb") as file:
        file.write(struct.pack("<II", count, width))
        file.write(again(body, len(body) // rows * count))


def asked_truth(path, out, count):
    """Writes the ground truth of a file that `asked` wrote: all ids, then all distances."""
    with open(path, "rb") as file:
        rows, width = struct.unpack("<II", file.read(8))
        ids, distances = file.read(4 * rows * width), file.read(4 * rows * width)
    with open(out, "wb") as file:
        file.write(struct.pack("<II", count, width))
        file.write(again(ids, 4 * width * count))
        file.write(again(distances, 4 * width * count))


class Server:
    """A memory server, which ends with its `with` block."""

    def __init__(self, words, environment, log):
        self.log = open(log, "w")
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": self.log}
        self.process = subprocess.Popen(words, env=environment, text=True, **pipes)
        line = self.process.stdout.readline()
        if "listening" not in line:
            self.process.kill()
            raise RuntimeError(f"the memory server does not start, see {log}: {line}")
        self.line = line

    def port(self):
        """The port of the line `listening on 127.0.0.1:PORT ..`."""
        return self.line.split("127.0.0.1:", 1)[1].split()[0].strip(",;")

    def cpu(self):
        """CPU seconds that the server has used up to now."""
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.terminate()
        self.process.wait()
        self.log.close()


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.words = ["taskset", "-c", arguments.cores] if arguments.cores else []
        self.words.append(arguments.stratann)
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("STRATANN_SECRET", "UCX_"))}
        self.environment = plain
        self.over_tcp = {**plain, "UCX_TLS": "tcp"}

    def path(self, name):
        return os.path.join(self.arguments.folder, name)

    def data(self, name):
        return os.path.join(self.arguments.data, name)

    def run(self, *words, environment=None):
        command = [*self.words, *words]
        done = subprocess.run(command, env=environment or self.environment, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed")
        return done.stdout

    def index(self, data, extension, metric, preset, options):
        """The index of a preset. A missing index is built."""
        index = self.path(f"{data}-{preset}.idx")
        if not os.path.exists(os.path.join(index, "MANIFEST")):
            base = self.data(f"{data}.base.{extension}")
            self.run("build", base, index, "--preset", preset, "--metric", metric, "--quiet", "--overwrite", *options)
        return index

    def search(self, index, queries, truth, width, place, in_flight, environment=None, threads=1):
        words = ["--threads", str(threads), "--truth", truth, "--json", "--quiet", *width]
        if place:
            words += ["--place", place]
        if in_flight:
            words += ["--in-flight", str(in_flight)]
        found = self.run("search", index, queries, *words, environment=environment)
        return [json.loads(line) for line in found.splitlines()]

    def servers(self, scratch):
        """The servers that can start. An entry has a name, the address of the tier (without the
        name of the index), the server, and the environment of its clients.
        """
        ring = os.path.join(scratch, "ring")
        serve = [*self.words, "memory-server", "--bytes", "2GiB", "--listen", "127.0.0.1:0"]
        log = lambda name: self.path(f"server-{name}.log")
        plain = Server([*serve, "--ring", ring], self.environment, log("plain"))
        all_servers = [
            ("TCP", f"remote:127.0.0.1:{plain.port()}", plain, self.environment),
            ("ring", f"remote:shm:{ring}", plain, self.environment),
        ]
        for name, environment in [("UCX shm", self.environment), ("UCX tcp", self.over_tcp)]:
            try:
                server = Server([*serve, "--ucx"], environment, log(name.replace(" ", "-")))
            except RuntimeError as error:
                print(f"without {name}: {error}", file=sys.stderr)
                continue
            all_servers.append((name, f"remote:ucx:127.0.0.1:{server.port()}", server, environment))
        return all_servers

    def in_memories(self):
        scratch = tempfile.mkdtemp(prefix="stratann-tiers-")
        shm = tempfile.mkdtemp(prefix="stratann-tiers-", dir="/dev/shm")
        servers = []
        try:
            servers = self.servers(scratch)
            runs = [run for number in range(len(DATA)) for run in self.planned(number, shm, servers)]
            for turn in range(self.arguments.rounds):
                for run in runs:
                    print(f"round {turn + 1} of {self.arguments.rounds}: {run.name()}", file=sys.stderr)
                    run.measure(self)
        finally:
            for server in {id(server): server for _, _, server, _ in servers}.values():
                server.end()
            shutil.rmtree(scratch)
            shutil.rmtree(shm)
        results = [run.figures() for run in runs]
        show(results)
        return results

    def planned(self, number, shm, servers):
        """All runs of a data set. When the function returns, the copies of all runs exist."""
        data, extension, metric = DATA[number]
        queries, truth = self.data(f"{data}.query.{extension}"), self.data(f"{data}.truth100.bin")
        runs = []
        for preset, options, role, counts in INDEXES:
            index = self.index(data, extension, metric, preset, options)
            many, answers = self.path(f"{data}-{preset}.query.{extension}"), self.path(f"{data}-{preset}.truth.bin")
            rows = counts[number]
            asked(queries, many, rows)
            asked_truth(truth, answers, rows)
            few, answers_of_few = self.path(f"few.query.{extension}"), self.path("few.truth.bin")
            asked(queries, few, 20)
            asked_truth(truth, answers_of_few, 20)
            wanted = self.search(index, queries, truth, ["--find-list", "--recall", RECALL], f"{role}=dram", IN_FLIGHT)[0]
            width = ["--probes" if role == "vectors" else "--list", str(wanted["list"])]
            name = f"{data}-{preset}"
            ways = [("DRAM", "dram", None, None), ("/dev/shm", f"mapped:{shm}", None, None)]
            ways += [(way, f"{address}/{name}", server, environment) for way, address, server, environment in servers]
            for way, tier, server, environment in ways:
                place = f"{role}={tier}"
                # This search makes the copies.
                self.search(index, few, answers_of_few, width, place, IN_FLIGHT, environment)
                for in_flight in (IN_FLIGHT, None):
                    runs.append(Run(data, preset, way, index, many, answers, rows, width, place, in_flight, server, environment))
        return runs

    def on_disk(self):
        data, extension, metric = DATA[0]
        queries, truth = self.data(f"{data}.query.{extension}"), self.data(f"{data}.truth100.bin")
        index = self.index(data, extension, metric, "spann", [])
        many, answers = self.path(f"{data}-disk.query.{extension}"), self.path(f"{data}-disk.truth.bin")
        asked(queries, many, 5_000)
        asked_truth(truth, answers, 5_000)
        turns = []
        for _ in range(self.arguments.rounds):
            turns.append(self.search(index, many, answers, ["--probes", "31,61"], None, None, threads=2))
        results = []
        print("| probes | recall@10 | queries a second | least, most | CPU us |\n|---|---|---|---|---|")
        for points in zip(*turns):
            rates = [point["qps"] for point in points]
            cpu = statistics.median(point["cpu_us"] for point in points)
            print(f"| {points[0]['list']} | {points[0]['recall']:.4f} | {statistics.median(rates):.0f} | {min(rates):.0f}, {max(rates):.0f} | {cpu:.0f} |")
            results.append({"data": data, "preset": "spann", "threads": 2, "points": points})
        return results


class Run:
    """An index in one kind of memory, and the results of its rounds."""

    def __init__(self, data, preset, way, index, queries, truth, rows, width, place, in_flight, server, environment):
        self.data, self.preset, self.way = data, preset, way
        self.words = (index, queries, truth, width, place, in_flight, environment)
        self.width, self.rows, self.in_flight, self.server = width, rows, in_flight, server
        self.points = []

    def name(self):
        return f"{self.data}, {self.preset}, {self.way}, {self.in_flight or 'tuned'}"

    def measure(self, bench):
        before = self.server.cpu() if self.server else 0
        point = bench.search(*self.words)[0]
        taken = self.server.cpu() - before if self.server else 0
        point["server_us"] = taken / self.rows * 1e6
        self.points.append(point)

    def figures(self):
        fields = ("data", "preset", "way", "in_flight", "rows", "points")
        return {field: getattr(self, field) for field in fields}


def show(runs):
    """Prints the table: an index in each column, a kind of memory in each row."""
    columns = list(dict.fromkeys((run["data"], run["preset"]) for run in runs))
    print("| | " + " | ".join(f"{data}, {preset}" for data, preset in columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    first = [next(run["points"][0] for run in runs if (run["data"], run["preset"]) == column) for column in columns]
    recalls = [f"{point['list']}, {point['recall']:.3f}" for point in first]
    print("| list or probes, recall@10 | " + " | ".join(recalls) + " |")
    queries = [point["per_query"] for point in first]
    taken = [f"{one['graph_reads'] + one['vector_reads']:.0f}, {one['bytes_read'] / 1e3:.0f} kB" for one in queries]
    print("| reads | " + " | ".join(taken) + " |")
    for way in dict.fromkeys(run["way"] for run in runs):
        print(f"| {way} | " + " | ".join(cell(runs, way, *column) for column in columns) + " |")
    spreads = sorted(max(rates) / min(rates) - 1 for run in runs if (rates := [point["qps"] for point in run["points"]]))
    print(f"\nqueries a second of {len(runs)} runs differ between rounds by {100 * statistics.median(spreads):.0f} % (median), {100 * spreads[-1]:.0f} % at most")


def cell(runs, way, data, preset):
    """Queries a second with eight in flight, and with the number that the batch found best. With
    eight in flight also the CPU of the search and of the server.
    """
    of_cell = [run for run in runs if (run["way"], run["data"], run["preset"]) == (way, data, preset)]
    fixed, tuned = sorted(of_cell, key=lambda run: run["in_flight"] is None)
    median = lambda run, key: statistics.median(point[key] for point in run["points"])
    chosen = "/".join(str(point["in_flight"]) for point in tuned["points"])
    cpu = f"{median(fixed, 'cpu_us'):.0f}"
    if median(fixed, "server_us"):
        cpu += f" + {median(fixed, 'server_us'):.0f}"
    return f"{median(fixed, 'qps'):.0f}; {median(tuned, 'qps'):.0f} ({chosen}); {cpu} us"


main()
