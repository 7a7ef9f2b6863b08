#!/usr/bin/env python3
"""Measures the bytes that the servers of DistVS send for a query, on each connection.

    bench/wire.py STRATANN DATA FOLDER [--lists 20,40,60]
                  [--sets photo-sift-100k,photo-sift-384,package-text,photo-sift-1m]

The table also has the bytes at the same recall if compute servers pulled high codes.
"photo-sift-384" has the vectors of photo-sift-100k with each component three times. It has 384
dimensions, the same results, and three times the distances. So any difference comes from the
dimensions alone. The script builds an index of each data set with the preset distvs (high codes of
32 bytes, for package-text of 96) in FOLDER, unless FOLDER has it. Client, compute server, memory
server and storage server are separate processes that communicate over TCP.

    compute <-> memory     Both directions: the query once for each walk, node numbers, and
                           compressed lists. The query is rounded to a byte for each dimension if
                           its elements have more.
    compute <-> storage    The exact query once, node numbers, and the answers.
    client <-> compute     The exact query once, and the results, counted by the sizes of the
                           frames.

Three baselines search by high codes alone (best-first, to the same recall, from the same seeds).
Their bytes include neither frames nor the node numbers of requests:

    all                    Each compared high code is pulled: distances times the bytes of a code,
                           without lists.
    all + lists            Each list too: visited nodes times the mean bytes of a compressed list at
                           the memory server (all its bytes without codes, their corrections and
                           centroids).
    popular                DistVS-H of the paper's §5.3. The compute server has the codes of the
                           half of all nodes with the most incoming links. These codes take as much
                           memory as the low codes of DistVS. The compute server pulls the other
                           codes. The table has this baseline without and with lists.

A search does not report the nodes that it visits. So the share of codes at the compute server is an
estimate. It comes from best-first walks with the same list size for the first 300 queries, by exact
vectors instead of high codes. Walks start at the nearest of 2,048 rows, so that they visit as many
nodes as the search (853 and 844 on photo-sift-100k with a list size of 38). Their graph is an index
of the preset diskann (FOLDER/NAME-coupled), whose lists can be read from its file. This index has
the same options and another order of inserts. "here" is the share of compared nodes whose codes are
at the compute server, and "of links" is the share of all links to such nodes.

Needs Linux, Python 3.8 and nothing else.
"""

import array
import heapq
import json
import math
import os
import struct
import subprocess
import sys

from servers import metrics, start

SETS = {"photo-sift-100k": ("u8bin", "l2", 32, 128), "photo-sift-384": ("u8bin", "l2", 32, 384), "photo-sift-1m": ("u8bin", "l2", 32, 128), "package-text": ("fbin", "cosine", 96, 1536)}
# The bytes of the header of a frame, of a search before its query, of the counters of an answer,
# and of an id with its distance.
HEADER, SEARCH, ANSWERS, ANSWER = 32, 12, 76, 12
# Bytes per node that correct the sums of nested codes. They are no part of a list.
CORRECTION = 2
# List sizes of a search by high codes alone.
SIZES = (10, 12, 14, 17, 20, 25, 30, 40, 50, 65, 80, 100, 130, 160, 200)
# The number of queries whose walks estimate the share of codes at a compute server.
QUERIES = 300


def main():
    words, options = [], {"--lists": "20,40,60", "--sets": ",".join(SETS)}
    given = iter(sys.argv[1:])
    for word in given:
        if word in options:
            options[word] = next(given, "")
        else:
            words.append(word)
    if len(words) != 3:
        sys.exit(__doc__)
    program, data, folder = words
    os.makedirs(folder, exist_ok=True)
    lists = options["--lists"].split(",")
    print("| | list | recall@10 | compute <-> memory | of the first | compute <-> storage | client | steps | high | here, of links | all | + lists | popular | + lists |\n" + "|---" * 14 + "|")
    first = {}
    for name in options["--sets"].split(","):
        ending, metric, code, row = SETS[name]
        base, queries = (stretched(data, folder, part) if name == "photo-sift-384" else os.path.join(data, f"{name}.{part}.{ending}") for part in ("base", "query"))
        truth = os.path.join(data, ("photo-sift-100k" if name == "photo-sift-384" else name) + ".truth100.bin")
        index = os.path.join(folder, f"{name}-nested")
        # The order of distances is unchanged, so the graph is unchanged too.
        like = "photo-sift-100k" if name == "photo-sift-384" else name
        coupled = os.path.join(folder, f"{like}-coupled")
        of_graph = os.path.join(data, f"{like}.base.{ending}")
        for what, path, more in ((base, index, ["--code-bytes", str(code), "--preset", "distvs"]), (of_graph, coupled, ["--preset", "diskann", "--no-calibrate"])):
            if not os.path.exists(os.path.join(path, "MANIFEST")):
                build = [program, "build", what, path, "--overwrite", "--quiet", "--metric", metric, "--degree", "64", "--build-list", "100", "--threads", "1", *more]
                subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        graph = Graph(coupled, os.path.join(data, f"{like}.query.{ending}"))
        for size in lists:
            said, held = through(program, index, queries, truth, size)
            list_bytes = (held["stratann_memory_bytes"] - 2 * 1024 * row // (4 if ending == "fbin" else 1)) / held["stratann_nodes"] - code - CORRECTION
            per = said["per_query"]
            looked, hops, width = by_high_codes(program, index, queries, truth, said["recall"])
            here = graph.here(round(width))
            pulled = [code * looked * share + of_lists for share in (1, 1 - here) for of_lists in (0, hops * list_bytes)]
            first.setdefault(size, per["wire"])
            client = 2 * HEADER + SEARCH + row + ANSWERS + 10 * ANSWER
            cells = [name, size, f"{said['recall']:.4f}", f"{per['wire']:.0f}", f"{per['wire'] / first[size]:.2f}", f"{per['storage_wire']:.0f}", client, f"{per['steps']:.1f}", f"{per['high']:.0f}", f"{here:.2f}, {graph.of_links:.2f}"]
            cells += [f"{one:.0f}, {one / per['wire']:.1f}" for one in pulled]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def stretched(data, folder, part):
    """The vectors of photo-sift-100k with each component three times."""
    path = os.path.join(folder, f"photo-sift-384.{part}.u8bin")
    if not os.path.exists(path):
        with open(os.path.join(data, f"photo-sift-100k.{part}.u8bin"), "rb") as file:
            count, dim = struct.unpack("<II", file.read(8))
            rows = file.read()
        three = bytearray(3 * len(rows))
        for at in range(3):
            three[at::3] = rows
        with open(path, "wb") as file:
            file.write(struct.pack("<II", count, 3 * dim) + three)
    return path


def through(program, index, queries, truth, size):
    """The counts of the servers for all queries, and the sizes of the memory server."""
    servers = []
    try:
        servers.append(start([program, "memory-server", index, "--quiet"]))
        servers.append(start([program, "storage-server", index, "--threads", "1"]))
        servers.append(start([program, "compute-server", "--memory", servers[0][1], "--storage", servers[1][1], "--threads", "1"]))
        search = [program, "cluster", "search", servers[2][1], queries, "--truth", truth, "--json", "--list", size]
        return json.loads(subprocess.run(search, check=True, stdout=subprocess.PIPE).stdout), metrics(servers[0][2])
    finally:
        for process, _, _ in servers:
            process.kill()
            process.wait()


def by_high_codes(program, index, queries, truth, recall):
    """Distances, visited nodes and list size of a search by high codes alone at this recall,
    interpolated between two list sizes.
    """
    before = None
    for size in SIZES:
        search = [program, "search", index, queries, "--truth", truth, "-k", "10", "--threads", "1", "--list", str(size), "--json", "--strategy", "best-first", "--beam", "8", "--rerank-ratio", "0.5", "--no-nav", "--seeds", "64"]
        said = json.loads(subprocess.run(search, check=True, stdout=subprocess.PIPE).stdout)
        per = said["per_query"]
        now = said["recall"], per["distance_computations"] - per["low_computations"] - per["reranked"], per["hops"], size
        if now[0] >= recall:
            share = (recall - before[0]) / (now[0] - before[0]) if before else 1
            return [a + share * (b - a) for a, b in zip((before or now)[1:], now[1:])]
        before = now
    sys.exit(f"{index}: best-first search has recall {before[0]:.4f} with the longest list, {before[-1]}; {recall:.4f} is needed. Add longer lists to SIZES, or give shorter ones with --lists.")


class Graph:
    """The graph of an index of the preset diskann, in the format of `crates/layout/src/coupled.rs`:
    a vector of fewer than 4,096 bytes, then a list."""

    def __init__(self, index, queries):
        with open(os.path.join(index, next(name for name in os.listdir(index) if name.startswith("graph"))), "rb") as file:
            pages = file.read()
        element, dim, degree, count = struct.unpack_from("<IIIQ", pages, 48)
        with open(queries, "rb") as file:
            self.row = os.path.getsize(queries) // struct.unpack("<II", file.read(8))[0]
            rows = file.read()
        form = f"<{dim}{'B' if self.row == dim else 'f'}"
        self.queries = [struct.unpack_from(form, rows, at) for at in range(0, min(QUERIES * self.row, len(rows)), self.row)]
        at_degree = 8 + (self.row + 3) // 4 * 4
        self.vectors, self.lists = [], []
        for page in range(4096, len(pages), 4096):
            for slot in range(struct.unpack_from("<H", pages, page + 4)[0]):
                at = page + 8 + slot * (at_degree + 4 + 4 * degree)
                self.vectors.append(pages[at + 8 : at + 8 + self.row])
                held = struct.unpack_from("<H", pages, at + at_degree)[0]
                self.lists.append(array.array("I", pages[at + at_degree + 4 : at + at_degree + 4 + 4 * held]))
        assert len(self.lists) == count
        self.unpack = struct.Struct(form).unpack
        links = [0] * count
        for one in self.lists:
            for node in one:
                links[node] += 1
        most = sorted(range(count), key=lambda node: -links[node])[: count // 2]
        self.popular, self.of_links = set(most), sum(links[node] for node in most) / sum(links)

    def here(self, size):
        """The share of popular nodes among the nodes that walks with this list size compare."""
        found = [self.walk(query, size) for query in self.queries]
        return sum(len(seen & self.popular) for seen in found) / sum(map(len, found))

    def walk(self, query, size, beam=8):
        """The nodes that a best-first walk compares."""
        far = lambda node: math.dist(query, self.unpack(self.vectors[node]))
        start = min(range(0, len(self.lists), len(self.lists) // 2048), key=far)
        seen, visited, pool = {start}, set(), [(far(start), start)]
        while True:
            next_ones = [node for _, node in pool if node not in visited][:beam]
            if not next_ones:
                return seen - {start}
            visited.update(next_ones)
            new = {node for one in next_ones for node in self.lists[one]} - seen
            seen |= new
            pool = heapq.nsmallest(size, pool + [(far(node), node) for node in new])


if __name__ == "__main__":
    main()
