#!/usr/bin/env python3
"""Compares searches with a target recall with searches with the best fixed list size.

    bench/recall.py STRATANN DATA FOLDER [SET[,SET..]] [--preset NAME] [-- SEARCH OPTIONS..]

The sets are data sets in DATA (default: package-text,photo-sift-100k). The script leaves 1,000
random rows of each set out of the build. So calibration has seen neither these rows nor the queries
of the set. The script builds an index of the other rows in FOLDER, with the default preset or with
--preset. For clusters, it varies the number of probes instead of the list size. It reuses an index
and ground truth that exist already. It searches with target recalls of .90, .95 and .99 for the ten
nearest, and prints the reached recall and the reads per query. Beside them it prints the reads of
searches with a fixed list size at the same recall, interpolated between the two list sizes around
it. Needs Python 3.8 and nothing else.
"""

import json
import os
import random
import struct
import subprocess
import sys

SETS = {"package-text": ("fbin", 4, "cosine"), "photo-sift-100k": ("u8bin", 1, "l2"), "photo-sift-1m": ("u8bin", 1, "l2")}
CLUSTERS = ["spann", "tiered-cluster"]
HELD = 1000
LISTS = [10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22, 24, 27, 30, 35, 40, 50, 60, 70, 85, 100, 120, 150, 200, 300]


def main():
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1 :]
    preset = []
    if "--preset" in arguments:
        at = arguments.index("--preset")
        preset = arguments[at : at + 2]
        del arguments[at : at + 2]
    if len(arguments) not in (3, 4):
        sys.exit(__doc__)
    program, data, folder = arguments[:3]
    os.makedirs(folder, exist_ok=True)
    print("| data, queries | target recall | recall | reads | reads of the fixed list size with this recall | ratio |")
    print("|---|---|---|---|---|---|")
    for name in (arguments[3] if len(arguments) == 4 else "package-text,photo-sift-100k").split(","):
        extension, element, metric = SETS[name]
        path = lambda part: os.path.join(folder, f"{name}.{part}")
        rest, held, index = path(f"rest.{extension}"), path(f"held.{extension}"), path("-".join(["idx", *preset[1:]]))
        if not os.path.exists(held):
            split(os.path.join(data, f"{name}.base.{extension}"), rest, held, element)
        if not os.path.exists(os.path.join(index, "MANIFEST")):
            run(program, "build", rest, index, "--metric", metric, "--overwrite", "--quiet", *preset)
        for what, queries in [("queries", os.path.join(data, f"{name}.query.{extension}")), ("rows held out", held)]:
            truth = path(f"{what.replace(' ', '-')}.truth.bin")
            if not os.path.exists(truth):
                run(program, "truth", rest, queries, truth, "--k", "10", "--metric", metric)
            search = [program, "search", index, queries, "--truth", truth, "--json", *options]
            clusters = preset and preset[1] in CLUSTERS
            lists = [1, 2, 3, 4, 5, 6, 8, *LISTS] if clusters else LISTS
            width = "--probes" if clusters else "--list"
            fixed = [point(line) for line in run(*search, width, ",".join(map(str, lists))).splitlines()]
            for asked in ["0.90", "0.95", "0.99"]:
                found, reads = point(run(*search, "--recall", asked).splitlines()[-1])
                least = reads_of(fixed, found)
                beside = f"{least:.1f} | {reads / least:.2f}" if least else f"over {fixed[-1][1]:.1f} | "
                print(f"| {name}, {what} | {asked[1:]} | {found:.4f} | {reads:.1f} | {beside} |", flush=True)


def split(base, rest, held, element):
    """Writes random rows of `base` to `held`, and the other rows to `rest`. `held` is written last:
    if it exists, both files are complete.
    """
    with open(base, "rb") as file:
        rows, dim = struct.unpack("<II", file.read(8))
        drawn = set(random.Random(1).sample(range(rows), HELD))
        with open(rest, "wb") as others, open(held + ".new", "wb") as out:
            others.write(struct.pack("<II", rows - HELD, dim))
            out.write(struct.pack("<II", HELD, dim))
            for row in range(rows):
                (out if row in drawn else others).write(file.read(dim * element))
    os.rename(held + ".new", held)


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed")
    return done.stdout


def point(line):
    """The recall, and the reads per query."""
    said = json.loads(line)
    return said["recall"], said["per_query"]["graph_reads"] + said["per_query"]["vector_reads"]


def reads_of(fixed, recall):
    """The reads of searches with a fixed list size at this recall."""
    for (less, few), (more, many) in zip(fixed, fixed[1:]):
        if less <= recall <= more and more > less:
            return few + (many - few) * (recall - less) / (more - less)
    return None


if __name__ == "__main__":
    main()
