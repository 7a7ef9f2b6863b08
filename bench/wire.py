#!/usr/bin/env python3
"""What a query of DistVS's servers takes on each wire, and what it would take if compute servers pulled high codes: bytes a query at the same list sizes.

    bench/wire.py STRATANN DATA FOLDER [--lists 20,40,60] [--sets photo-sift-100k,photo-sift-384,package-text]

"photo-sift-384" are the vectors of photo-sift-100k with each component three times, so 384 dimensions of the same distances (three times as far) and the same answers: what it takes more
is for the dimensions alone. Each data set is built with the preset distvs (high codes of 32 bytes, package-text of 96) in FOLDER unless it is there, and searched through `cluster up`'s
servers as separate processes: the client, a compute, a memory and a storage server, over TCP.

    compute <-> memory     both directions: the query once for each walk, rounded to a byte for each dimension where elements have more; node numbers; compressed lists
    compute <-> storage    the exact row once, node numbers, the answers
    client <-> compute     the exact row once, and the answers: counted from the sizes of those frames
    pulled                 high codes that a compute server would fetch which searches by them alone (DistVS-H of the paper's §5.3): distances of best-first search by high codes at the same
                           recall, from the same seeds, times the bytes of a code; without the lists, which it would fetch as well

Needs Linux, Python 3.8 and nothing else.
"""

import json
import os
import struct
import subprocess
import sys

from servers import start

SETS = {"photo-sift-100k": ("u8bin", "l2", 32, 128), "photo-sift-384": ("u8bin", "l2", 32, 384), "package-text": ("fbin", "cosine", 96, 1536)}
# Bytes of a frame's header, of a search before the row, and of an answer's counters, count, and of each id and distance.
HEADER, SEARCH, ANSWERS, ANSWER = 32, 12, 76, 12


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
    print("| | list | recall@10 | compute <-> memory | of the first | compute <-> storage | client | steps | high codes looked at | pulled | times |\n" + "|---" * 11 + "|")
    first = {}
    for name in options["--sets"].split(","):
        ending, metric, code, row = SETS[name]
        base, queries = (stretched(data, folder, part) if name == "photo-sift-384" else os.path.join(data, f"{name}.{part}.{ending}") for part in ("base", "query"))
        truth = os.path.join(data, ("photo-sift-100k" if name == "photo-sift-384" else name) + ".truth100.bin")
        index = os.path.join(folder, f"{name}-nested")
        if not os.path.exists(os.path.join(index, "MANIFEST")):
            build = [program, "build", base, index, "--overwrite", "--quiet", "--metric", metric, "--degree", "64", "--build-list", "100", "--threads", "1", "--code-bytes", str(code), "--preset", "distvs"]
            subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        for size in lists:
            said = through(program, index, queries, truth, size)
            per = said["per_query"]
            pulled = code * by_high_codes(program, index, queries, truth, said["recall"])
            first.setdefault(size, per["wire"])
            client = 2 * HEADER + SEARCH + row + ANSWERS + 10 * ANSWER
            cells = [name, size, f"{said['recall']:.4f}", f"{per['wire']:.0f}", f"{per['wire'] / first[size]:.2f}", f"{per['storage_wire']:.0f}", client, f"{per['steps']:.1f}", f"{per['high']:.0f}", f"{pulled:.0f}", f"{pulled / per['wire']:.1f}"]
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
    """What servers say of all queries."""
    servers = []
    try:
        servers.append(start([program, "memory-server", index, "--quiet"]))
        servers.append(start([program, "storage-server", index, "--threads", "1"]))
        servers.append(start([program, "compute-server", "--memory", servers[0][1], "--storage", servers[1][1], "--threads", "1"]))
        search = [program, "cluster", "search", servers[2][1], queries, "--truth", truth, "--json", "--list", size]
        return json.loads(subprocess.run(search, check=True, stdout=subprocess.PIPE).stdout)
    finally:
        for process, _, _ in servers:
            process.kill()
            process.wait()


def by_high_codes(program, index, queries, truth, recall):
    """Distances of a search by high codes alone that finds as much, between two lists."""
    before = None
    for size in (10, 12, 14, 17, 20, 25, 30, 40, 50, 65, 80, 100, 130, 160, 200):
        search = [program, "search", index, queries, "--truth", truth, "-k", "10", "--threads", "1", "--list", str(size), "--json", "--strategy", "best-first", "--beam", "8", "--rerank-ratio", "0.5", "--no-nav", "--seeds", "64"]
        said = json.loads(subprocess.run(search, check=True, stdout=subprocess.PIPE).stdout)
        per = said["per_query"]
        now = said["recall"], per["distance_computations"] - per["low_computations"] - per["reranked"]
        if now[0] >= recall:
            share = (recall - before[0]) / (now[0] - before[0]) if before else 1
            return (before or now)[1] + share * (now[1] - (before or now)[1])
        before = now
    return before[1]


if __name__ == "__main__":
    main()
