#!/usr/bin/env python3
"""Queries per dollar of measured systems, at the prices of DistVS's Table 5.

    bench/dollars.py check
        Tests whether the model reproduces the paper's own figures.
    bench/dollars.py measure STRATANN FOLDER SYSTEMS.json [--data ../shared/data]
            [--sets photo-sift-1m,package-text] [--cores 1] [--in-flight 8]
            [--memory-of DISTVS.json[,DISTVS.json ..]]
        Measures the baselines, and writes them to SYSTEMS.json.
    bench/dollars.py table SYSTEMS.json [SYSTEMS.json ..]
        Prints queries per dollar of the systems in these files.

`measure` builds an index in DiskANN's layout. It searches the index with the options of `diskann`,
and with the options of `pipeann` and its navigation graph, at recall@10 .95. One thread has
`--in-flight` queries in flight. A row has CPU per query (the median of `--rounds`), bytes read per
query, peak memory of the process, and bytes on storage. The memory includes a few thousand queries
and their ground truth. `--memory-of` names files of `servers.py --systems`. Each system is then
measured a second time, with a cache of hot nodes. The size of the cache gives the five machines
together the memory of the row with the same data. `--cores` are the cores to run on, as for
`taskset` (default: all).

Any benchmark may write SYSTEMS.json: `{"machine": .., "systems": [..]}`. A system is

    {"data": "photo-sift-1m", "system": "diskann", "recall": 0.95, "machines": [
        {"kind": "server", "count": 5, "memory_bytes": .., "disk_bytes": .., "cpu_us": ..,
         "bytes_read": ..}]}

A query takes `cpu_us` and reads `bytes_read` on one machine of each kind. `memory_bytes` and
`disk_bytes` are per machine. The busiest kind of machine limits the queries a second:

    cores x count / cpu_us                        By CPU alone.
    disk_bytes_per_second x count / bytes_read    By the SSD of the paper's machines, if less.

Queries per dollar are queries a second divided by the price per second of all machines
(`prices/dollars.toml`). The model ignores memory bandwidth, network, and waiting cores. Sizes are
the sizes of the measured data set. For a small data set, memory and disk cost almost nothing
compared with the cores, so the model mainly compares CPU. Needs Python 3.11 and nothing else.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
# For each data set: the extension of the vectors, and the metric.
DATA = {"photo-sift-100k": ("u8bin", "l2"), "photo-sift-1m": ("u8bin", "l2"), "package-text": ("fbin", "cosine")}
# Options of searches. Both systems have the same pages and the same graph, so one index serves
# both.
SYSTEMS = {"diskann": [], "pipeann": ["--preset", "pipeann", "--nav"]}
MACHINES = 5
RECALL = "0.95"


def main():
    with open(os.path.join(HERE, "prices", "dollars.toml"), "rb") as file:
        job = tomllib.load(file)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("check")
    measuring = tasks.add_parser("measure")
    measuring.add_argument("stratann")
    measuring.add_argument("folder")
    measuring.add_argument("systems")
    measuring.add_argument("--data", default=os.environ.get("STRATANN_DATA", os.path.join(HERE, "../../shared/data")))
    measuring.add_argument("--sets", default="photo-sift-1m,package-text")
    measuring.add_argument("--cores")
    measuring.add_argument("--rounds", type=int, default=5)
    measuring.add_argument("--in-flight", default="8")
    measuring.add_argument("--memory-of", default="")
    tasks.add_parser("table").add_argument("systems", nargs="+")
    arguments = parser.parse_args()
    if arguments.task == "check":
        check(job)
    elif arguments.task == "measure":
        measure(arguments)
    else:
        table(job, [row for path in arguments.systems for row in read_systems(path)])


def read_systems(path):
    with open(path) as file:
        return json.load(file)["systems"]


def memory_of(row):
    """Bytes of memory of all machines of a system."""
    return sum(kind["count"] * kind["memory_bytes"] for kind in row["machines"])


def dollars_a_month(price, cores, memory_gb, disk_gb):
    return cores * price["core"] + memory_gb * price["memory_gb"] + disk_gb * price["disk_gb"]


def queries_a_dollar(price, queries_a_second, a_month):
    return queries_a_second * price["month_hours"] * 3600 / a_month


def check(job):
    """Whether the model computes the paper's figures from the paper's measurements, to the last
    printed digit or to half a percent.
    """
    paper, price = job["paper"], job["price"]
    wrong = 0
    for one in paper["sets"]:
        for system, disks in paper["machines_with_disk"].items():
            rate, memory, printed = one[system]
            cores = paper["machines"] * job["machine"]["cores"]
            computed = queries_a_dollar(price, rate, dollars_a_month(price, cores, memory, disks * one["gb"])) / 1e6
            fits = abs(computed - printed) <= max(0.01, 0.005 * printed)
            wrong += not fits
            print(f"{one['name']:10} {system:9} {computed:6.2f} and in the paper {printed:6.2f}{'' if fits else '   NOT THE SAME'}")
    if wrong:
        sys.exit(f"{wrong} figures differ from the paper's")


def measure(arguments):
    """Writes the costs of the baselines to SYSTEMS.json."""
    os.makedirs(arguments.folder, exist_ok=True)
    words = ["taskset", "-c", arguments.cores] if arguments.cores else []

    def run(*command):
        done = subprocess.run([*words, arguments.stratann, *command, "--quiet"], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed")
        return done.stdout

    equal = {row["data"]: memory_of(row) / MACHINES for path in filter(None, arguments.memory_of.split(",")) for row in read_systems(path)}
    systems = []
    for data in arguments.sets.split(","):
        extension, metric = DATA[data]
        base, queries = (os.path.join(arguments.data, f"{data}.{part}.{extension}") for part in ("base", "query"))
        index = os.path.join(arguments.folder, f"{data}-diskann")
        if not os.path.exists(os.path.join(index, "MANIFEST")):
            run("build", base, index, "--preset", "diskann", "--metric", metric, "--overwrite")
        of_search = ["--truth", os.path.join(arguments.data, f"{data}.truth100.bin"), "--json", "-T", "1", "--in-flight", arguments.in_flight]

        def searched(system, *more):
            options = [*of_search, *SYSTEMS[system], *more]
            width = json.loads(run("search", index, queries, "--find-list", "--recall", RECALL, *options).splitlines()[-1])["list"]
            rounds = [json.loads(run("search", index, queries, "--list", str(width), *options)) for _ in range(arguments.rounds)]
            found = rounds[0]
            of_machine = {
                "kind": "server",
                "count": MACHINES,
                "memory_bytes": found["peak_rss_bytes"],
                "disk_bytes": sum(os.path.getsize(os.path.join(index, name)) for name in os.listdir(index)),
                "cpu_us": statistics.median(one["cpu_us"] for one in rounds),
                "cpu_us_of_rounds": [one["cpu_us"] for one in rounds],
                "bytes_read": found["per_query"]["bytes_read"],
            }
            reads = found["per_query"]["graph_reads"] + found["per_query"]["vector_reads"]
            return {"data": data, "list": width, "recall": found["recall"], "reads": reads, "machines": [of_machine]}

        for system in SYSTEMS:
            systems.append({"system": system, **searched(system)})
            room = int(equal.get(data, 0) - systems[-1]["machines"][0]["memory_bytes"])
            if room > 0:
                systems.append({"system": f"{system}, {room / 1e6:.1f} MB of hot nodes", **searched(system, "--cache", str(room))})
    with open("/proc/cpuinfo") as file:
        models = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    with open(arguments.systems, "w") as file:
        json.dump({"machine": models[0] if models else "unknown", "systems": systems}, file, indent=1)


def table(job, systems):
    """Queries per dollar of the systems, by CPU alone and with the paper's SSD."""
    price, machine = job["price"], job["machine"]
    print("| | | recall@10 | CPU us | kB read | memory of all | on storage of all | $ a month | q/s by CPU | M queries a $ | q/s with the SSD | M queries a $ |")
    print("|---" * 12 + "|")
    for system in systems:
        kinds = system["machines"]
        cores = machine["cores"] * sum(kind["count"] for kind in kinds)
        memory, disk = (sum(kind["count"] * kind[of] for kind in kinds) / 1e9 for of in ("memory_bytes", "disk_bytes"))
        a_month = dollars_a_month(price, cores, memory, disk)
        by_cpu = min(machine["cores"] * kind["count"] / kind["cpu_us"] * 1e6 for kind in kinds if kind["cpu_us"])
        by_disk = [machine["disk_bytes_per_second"] * kind["count"] / kind["bytes_read"] for kind in kinds if kind["bytes_read"]]
        rates = [by_cpu, min([by_cpu, *by_disk])]
        cells = [f"{rate:.0f} | {queries_a_dollar(price, rate, a_month) / 1e6:.1f}" for rate in rates]
        cpu, read = (" + ".join(f"{kind[of] / unit:.0f}" for kind in kinds) for of, unit in (("cpu_us", 1), ("bytes_read", 1e3)))
        facts = [system["data"], system["system"], f"{system['recall']:.3f}", cpu, read, f"{memory * 1e3:.0f} MB", f"{disk * 1e3:.0f} MB", f"{a_month:.0f}"]
        print("| " + " | ".join([*facts, *cells]) + " |")


main()
