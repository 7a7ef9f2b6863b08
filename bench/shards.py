#!/usr/bin/env python3
"""Measures the cost of dividing a collection into independent shards that are all searched.

    bench/shards.py FOLDER [--data ../shared/data] [--sets photo-sift-100k,package-text]
                    [--shards 1,2,4,8,16] [--rounds 3] [--json FILE]

This is DistVS §5.2, "Comparing with distributed Milvus". For each data set and each system, the
script builds one index (1 shard), and 2 to 16 shards that share a codebook. FOLDER keeps the
indexes for later runs. The script searches with one thread and one query in flight. All data is in
memory, so that reads do not matter. At recall@10 .90 and .95, it prints two figures: the number of
distances (by code and exact), and CPU microseconds per query. Both are sums over the shards, and
are compared with the figures of one index. `--sets photo-sift-1m` takes a quarter of an hour to
build for each system, and 10 GB.

All shards are searched with the same list size, from 1 to 400. A shard returns as many results as
its list size, and at most 10. The results of the shards are merged as in `stratann.ray`. Figures at
a recall are interpolated between the two list sizes around it. If the smallest list size with ten
results in total exceeds the recall, the script prints the figures of this list size, with its
recall in brackets. CPU is the CPU time of the searches, as the median of the rounds. The merge is
listed separately, since NumPy does it here.

`--assign` chooses the rows of a shard. `contiguous` takes consecutive rows, as
`stratann.ray.build_shards` does. `dealt` takes every S-th row, so that each shard is a fair sample,
as with a hash of the id.

The table SYSTEMS has the systems; a new row adds a system. "press" is PRESS in one process, on one
index as the servers of DistVS search it, and on shards. Needs the Python package.
"""

import argparse
import collections
import json
import os
import pathlib
import statistics
import time

import numpy

import stratann
from stratann.merging import nearest

K = 10
TARGETS = [0.90, 0.95]
ENOUGH = 0.96
LISTS = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 50, 60, 80, 100, 120, 150, 200, 250, 300, 400]
METRICS = {"photo-sift-100k": "l2", "photo-sift-1m": "l2", "package-text": "cosine"}

# A system: options of the codebook, of the build, of opening, and of searches.
System = collections.namedtuple("System", "codebook build open search")
SYSTEMS = {
    "graph": System({}, {"preset": "tiered-graph", "degree": 64, "build_list": 100}, {"place": "topology=dram"}, {}),
    # PRESS as the servers of DistVS search, in one process: lists in memory, and half of L_high
    # ranked by vectors in memory.
    "press": System({"low_codes": "nested"}, {"preset": "distvs", "degree": 64, "build_list": 100, "navigation": 0.0}, {"place": "topology=dram,vectors=dram"}, {}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--data", type=pathlib.Path, default=os.environ.get("STRATANN_DATA", os.path.join(here, "../../shared/data")))
    parser.add_argument("--sets", default="photo-sift-100k,package-text")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--shards", default="1,2,4,8,16")
    parser.add_argument("--assign", choices=["contiguous", "dealt"], default="contiguous")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="the file for all points")
    parser.add_argument("--show", metavar="FILE", help="prints the tables from a file of --json, and measures nothing")
    arguments = parser.parse_args()
    if arguments.show:
        with open(arguments.show) as file:
            return show(json.load(file)["points"])
    if arguments.folder is None:
        parser.error("FOLDER is missing")
    numbers = [int(number) for number in arguments.shards.split(",")]
    points = []
    for data in arguments.sets.split(","):
        base, queries, truth = vectors(arguments.data, data)
        for system in arguments.systems.split(","):
            for count in numbers:
                folder = built(arguments.folder, base, data, system, count, arguments.assign)
                points += measured(folder, queries, truth, arguments.rounds, data=data, system=system, shards=count, assign=arguments.assign)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump({"machine": machine(), "k": K, "rounds": arguments.rounds, "points": points}, file, indent=1)
    show(points)


def machine():
    """The processor, cores and kernel of this machine."""
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    return f"{models[0] if models else 'unknown'}, {os.cpu_count()} cores, Linux {os.uname().release}"


def vectors(folder, data):
    """Rows, queries and ground truth of a data set."""
    extension = "fbin" if METRICS[data] == "cosine" else "u8bin"
    read = [stratann.read(folder / f"{data}.{part}.{extension}", mmap=part == "base") for part in ("base", "query")]
    return (*read, stratann.read(folder / f"{data}.truth100.bin"))


def built(folder, base, data, system, count, assign):
    """The folder of the shards of a system. Missing shards are built."""
    options = {"metric": METRICS[data], **SYSTEMS[system].build}
    name = f"{data}-{system}-{count}" + ("" if count == 1 or assign == "contiguous" else f"-{assign}")
    # The codebook is trained on the collection, so that one index and its shards have the same.
    codebook = folder / ("-".join([data, *SYSTEMS[system].codebook.values()]) + ".codebook")
    if not codebook.exists():
        folder.mkdir(parents=True, exist_ok=True)
        stratann.train(base, codebook, metric=METRICS[data], **SYSTEMS[system].codebook)
    for shard in range(count):
        index = folder / name / f"shard-{shard:05}"
        if (index / "MANIFEST").exists():
            continue
        first, end = len(base) * shard // count, len(base) * (shard + 1) // count
        ids = numpy.arange(first, end) if assign == "contiguous" else numpy.arange(shard, len(base), count)
        stratann.build(numpy.ascontiguousarray(base[ids]), index, codebook=codebook, ids=ids, threads=1, **options)
    return folder / name


def measured(folder, queries, truth, rounds, **what):
    """A point for each list size, until the recall suffices."""
    system = SYSTEMS[what["system"]]
    indexes = [stratann.open(folder / name, **system.open) for name in stratann.Catalog(folder).names()]
    points = []
    for width in LISTS:
        if width * len(indexes) < K:
            continue
        costs, merges = [], []
        for _ in range(rounds):
            options = {"list_size": width, "threads": 1, "in_flight": 1, "return_stats": True, "exact": False, **system.search}
            found = [index.search(queries, min(K, width), **options) for index in indexes]
            begun = time.process_time()
            answers = nearest([each[:2] for each in found], K) if len(found) > 1 else found[0][:2]
            merges.append((time.process_time() - begun) * 1e6 / len(queries))
            costs.append(sum(each[2]["cpu_us"] for each in found))
        point = {
            **what,
            "list": width,
            "recall": stratann.recall(answers, truth, K),
            "distances": sum(each[2]["per_query"]["distance_computations"] for each in found),
            "hops": sum(each[2]["per_query"]["hops"] for each in found),
            "reads": sum(each[2]["per_query"]["graph_reads"] + each[2]["per_query"]["vector_reads"] for each in found),
            "cpu_us": statistics.median(costs),
            "cpu_us_of_rounds": costs,
            "merge_us": statistics.median(merges),
        }
        points.append(point)
        print(
            f"{point['data']}, {point['system']}, {point['shards']} shards, list {width}: recall {point['recall']:.4f}, "
            f"{point['distances']:.0f} distances, {point['cpu_us']:.0f} us + {point['merge_us']:.0f}",
            flush=True,
        )
        if point["recall"] >= ENOUGH:
            break
    return points


def at(points, target, key):
    """A figure at a recall, interpolated between the two list sizes around it, and its recall. If
    the first list size exceeds the recall, the figure belongs to the first list size.
    """
    before = None
    for point in sorted(points, key=lambda point: point["list"]):
        if point["recall"] >= target:
            if before is None:
                return point[key], point["recall"]
            share = (target - before["recall"]) / (point["recall"] - before["recall"])
            return before[key] + share * (point[key] - before[key]), target
        before = point
    return None, None


def show(points):
    """A table for each data set and each value of `--assign`."""
    groups = collections.defaultdict(list)
    for point in points:
        groups[point["data"], point["assign"]].append(point)
    for (data, assign), of_group in groups.items():
        print(f"\n{data}, {assign} shards\n")
        heads = [f"{what} at {target:.2f}" for target in TARGETS for what in ("list", "distances", "CPU us")]
        print("| | shards | " + " | ".join(heads) + " | spread | merge |")
        print("|---" * (len(heads) + 4) + "|")
        for system in dict.fromkeys(point["system"] for point in of_group):
            one = [point for point in of_group if point["system"] == system and point["shards"] == 1]
            for count in dict.fromkeys(point["shards"] for point in of_group if point["system"] == system):
                own = [point for point in of_group if point["system"] == system and point["shards"] == count]
                cells = [cell(own, one, target, key) for target in TARGETS for key in ("list", "distances", "cpu_us")]
                spreads = [max(point["cpu_us_of_rounds"]) / min(point["cpu_us_of_rounds"]) - 1 for point in own]
                merge = statistics.median(point["merge_us"] for point in own)
                print(f"| {system} | {count} | " + " | ".join(cells) + f" | {100 * statistics.median(spreads):.0f} % | {merge:.0f} us |")


def cell(own, one, target, key):
    """A figure, and its ratio to the figure of one index."""
    value, recall = at(own, target, key)
    if value is None:
        return "not reached"
    text = f"{value:.1f}" if key == "list" else f"{value:.0f}"
    if recall != target:
        text += f" ({recall:.3f})"
    whole, of_recall = at(one, target, key) if one else (None, None)
    if key != "list" and own is not one and whole and one[0]["shards"] != own[0]["shards"]:
        # If one of them has another recall, the recall is printed in place of the ratio.
        text += f", {value / whole:.2f} x" if recall == of_recall else ""
    return text


if __name__ == "__main__":
    main()
