#!/usr/bin/env python3
"""Measures the accuracy of `stratann advise`: whether it names the fastest preset, and the errors
of its estimates.

    bench/advise.py STRATANN RESULTS.json.. [--recall 0.9] [--data ../shared/data] [--cores 0]

RESULTS are the results of `second-tier.toml`, `second-tier-text.toml` and `second-tier-1m.toml`
(bench/out/second-tier.json ..). For each result, and each device of the study (DRAM, NVM, CXL,
RDMA, SSD), the script runs `stratann advise` on the vectors and queries of the job. The call has
one thread and the job's number of queries in flight. The script compares the first candidate with
the fastest run at the recall, interpolated between the two list sizes around this recall. A
candidate counts if the study has its preset, even with another number of neighbours or copies.

A line names the fastest measured preset, the advised preset, and the measured queries a second of
both. `near` means that the advised preset is slower, but within the spread of the two measurements.
The lines below have all candidates, with expected and measured figures. Needs Python 3.8 and
nothing else.
"""

import argparse
import json
import os
import subprocess
import sys

DEVICES = ["DRAM", "NVM", "CXL", "RDMA", "SSD"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stratann")
    parser.add_argument("results", nargs="+")
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--data", default=os.environ.get("STRATANN_DATA", os.path.join(here, "../../shared/data")))
    parser.add_argument("--recall", type=float, default=0.9)
    parser.add_argument("--cores", help="cores to run `stratann advise` on, as for taskset")
    arguments = parser.parse_args()
    lines, details, right, near = [], [], 0, 0
    for path in arguments.results:
        with open(path) as file:
            job = json.load(file)
        for device in DEVICES:
            measured = at_recall(job, device, arguments.recall)
            if not measured:
                continue
            expected = advice(arguments, job, device)
            verdict, line, detail = compare(job, device, measured, expected)
            lines.append(line)
            details += detail
            right += verdict == "right"
            near += verdict == "near"
    print("| data | device | fastest | q/s | named | q/s, measured | q/s, expected | |\n|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))
    print(f"\n{right} of {len(lines)} right, {near} more within the spread\n")
    print("| data | device | candidate | q/s, expected | measured |\n|---|---|---|---|---|")
    print("\n".join(details))


def name_of(preset, degree, replicas):
    """The key by which a candidate and a run match."""
    if preset.startswith("tiered-cluster"):
        return f"{preset}, {replicas} copies"
    return preset if preset == "spann" else f"{preset} R={degree}"


def at_recall(job, device, recall):
    """For each run of the study on a device that reaches the recall: queries a second at this
    recall, and their spread as a share.
    """
    found = {}
    for run in job["runs"]:
        name, _, on = run["name"].rpartition(", ")
        search = run["search"]
        # Compared runs have the same number of queries in flight, and read as their preset does.
        if on != device or search["in_flight"] != 8 or search["beam"] is not None or run["preset"] == "tiered-cluster" and "grouped" not in name:
            continue
        points = run["points"]
        for shorter, longer in zip(points, points[1:]):
            if shorter["recall"] <= recall <= longer["recall"]:
                share = (recall - shorter["recall"]) / (longer["recall"] - shorter["recall"])
                between = lambda key: shorter[key] + share * (longer[key] - shorter[key])
                build = run["build"]
                called = name_of(run["preset"], build["degree"] or run["index"]["stats"]["degree"], build.get("replicas"))
                found[called] = (between("qps"), between("qps_max") / between("qps_min") - 1, between("cpu_us"))
                break
        else:
            if points[0]["recall"] > recall:
                point, build = points[0], run["build"]
                called = name_of(run["preset"], build["degree"] or run["index"]["stats"]["degree"], build.get("replicas"))
                found[called] = (point["qps"], point["qps_max"] / point["qps_min"] - 1, point["cpu_us"])
    return found


def advice(arguments, job, device):
    """All candidates, the best first."""
    data = lambda name: os.path.join(arguments.data, os.path.basename(job["data"][name]))
    words = [arguments.stratann, "advise", data("base"), "--queries", data("queries"), "--metric", job["data"]["metric"]]
    words += ["--device", device.lower(), "--recall", str(arguments.recall), "--threads", "1", "--in-flight", "8", "--json", "--quiet"]
    if arguments.cores:
        words = ["taskset", "-c", arguments.cores, *words]
    print(f"{job['job']}, {device}", file=sys.stderr)
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(job, device, measured, expected):
    """The verdict (right, near or wrong), its line, and the lines of all candidates."""
    first = max(measured, key=lambda name: measured[name][0])
    # The fastest measurement of each preset.
    best = {}
    for name, (qps, spread, _) in measured.items():
        preset = name.split(",")[0].split(" R=")[0]
        best[preset] = max(best.get(preset, (0, 0, "")), (qps, spread, name))
    known = [one for one in expected if one["fits"] and one["preset"] in best]
    named = known[0]["preset"]
    right = first.split(",")[0].split(" R=")[0]
    (most, spread, _), (qps, other, _) = best[right], best[named]
    verdict = "right" if named == right else "near" if most / qps - 1 <= max(spread, other) else "wrong"
    data = os.path.basename(job["data"]["base"]).split(".")[0]
    line = f"| {data} | {device} | {first} | {most:.0f} | {named} | {qps:.0f} | {known[0]['throughput']:.0f} | {verdict} |"
    detail = []
    for one in expected:
        name = name_of(one["preset"], one["degree"], one["replicas"])
        found = f"{measured[name][0]:.0f}" if name in measured else "–"
        detail.append(f"| {data} | {device} | {name} | {one['throughput']:.0f} | {found} |")
    return verdict, line, detail


main()
