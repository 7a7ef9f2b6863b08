#!/usr/bin/env python3
"""Measures the cost of attributes and a payload in inserts, compared with inserts of the same rows
without them.

    `bench/insert_attributes.py BASE.(u8bin|fbin) FOLDER
     [--presets stratann,odinann,diskann,decouplevs] [--rounds 7] [--rows 1000] [--call 100]
     [--built 50000] [--what both,columns,payload] [--metric l2]`

For each preset, the script builds two indexes of the first rows of BASE. The first index has only
vectors. The second index also has three columns (one of a hundred texts, an integer and a time) and
a payload of 200 bytes. One process opens copies of both indexes (`durability=100`, without
automatic merges). Each round inserts the same next rows into both copies. The two copies take turns
to be the first. A call inserts --call rows, and the time includes a `flush` of the log. `--what`
adds inserts with only columns or only a payload to the rounds, into further copies.

The tables have the medians of the ratios of all rounds. CPU is user and system time of the process,
with all its threads. If inserts wait for a merge (diskann, decouplevs), each round ends with a
merge (`compact`). The merge is measured separately, and together with the inserts. Values are
Python lists that exist before the clock starts. The time includes the package's conversion of these
lists. Needs the Python package and numpy. FOLDER keeps the built indexes.
"""

import argparse
import os
import shutil
import statistics
import time

import numpy
import stratann

ELEMENTS = {"u8bin": numpy.uint8, "fbin": numpy.float32}
MERGED = ("diskann", "decouplevs")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("folder")
    parser.add_argument("--presets", default="stratann,odinann,diskann,decouplevs")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", type=int, default=1000, help="rows to insert in one round")
    parser.add_argument("--call", type=int, default=100, help="rows in one call")
    parser.add_argument("--built", type=int, default=50_000)
    parser.add_argument("--what", default="both", help="inserts to compare with inserts of vectors alone: both, columns, payload")
    parser.add_argument("--metric", default="l2")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    dim = int(numpy.fromfile(arguments.base, "<u4", 2)[1])
    needed = arguments.built + arguments.rounds * arguments.rows
    base = numpy.fromfile(arguments.base, ELEMENTS[arguments.base.rsplit(".", 1)[1]], offset=8).reshape(-1, dim)[:needed]
    if len(base) < needed:
        parser.error(f"{arguments.base} has {len(base)} rows, and {needed} are needed. Lower --built, --rounds or --rows")
    columns, payload = beside(needed)
    names = ["nothing", *arguments.what.split(",")]
    print("| preset | besides the vector | rows a second | divided by the rate without | CPU, us a row | divided by the CPU without | merge, s | with the merge: rows a second | divided by the rate without | CPU divided by the CPU without |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for preset in arguments.presets.split(","):
        folders = {name: built(arguments, preset, name, base, columns, payload) for name in names}
        indexes = {name: stratann.open(folder, durability=100, merges=False) for name, folder in folders.items()}
        rounds = {name: [] for name in names}
        for number in range(arguments.rounds):
            first = arguments.built + number * arguments.rows
            for name in names if number % 2 else names[::-1]:
                rounds[name].append(one_round(arguments, preset, indexes[name], name, base, columns, payload, first))
        for name in names:
            pairs = list(zip(rounds[name], rounds["nothing"]))
            median = lambda of: statistics.median(of)
            ratio = lambda better, key: f"{median([(mine[key] / plain[key]) ** better for mine, plain in pairs]):.2f}"
            rate = lambda key: f"{median([arguments.rows / mine[key] for mine, _ in pairs]):.0f}"
            cpu = f"{median([1e6 * mine['cpu'] / arguments.rows for mine, _ in pairs]):.0f}"
            merged = f"{median([mine['merge'] for mine, _ in pairs]):.2f} | {rate('all')} | {ratio(-1, 'all')} | {ratio(1, 'all cpu')}" if preset in MERGED else " |  |  | "
            spread = sorted((plain["seconds"] / mine["seconds"]) for mine, plain in pairs)
            print(
                f"| `{preset}` | {name} | {rate('seconds')} | {ratio(-1, 'seconds')} ({spread[0]:.2f} to {spread[-1]:.2f}) | {cpu} | {ratio(1, 'cpu')} | {merged} |",
                flush=True,
            )
        for name, index in indexes.items():
            if len(index) != needed:
                raise SystemExit(f"{preset}, {name}: {len(index)} vectors, there should be {needed}")
            index.close()
            shutil.rmtree(folders[name])


def beside(rows):
    """Random columns and a payload of 200 bytes for each row, drawn with a seed."""
    drawn = numpy.random.default_rng(17)
    kinds = [f"kind-{number}" for number in range(100)]
    columns = {
        "kind": [kinds[number] for number in drawn.integers(0, 100, rows)],
        "number": drawn.integers(0, 1_000_000, rows).tolist(),
        "taken": list(numpy.datetime64("2024-01-01T00:00:00", "us") + drawn.integers(0, 10**13, rows).astype("timedelta64[us]")),
    }
    # 198 letters and two quotes.
    return columns, [drawn.bytes(99).hex() for _ in range(rows)]


def given(name, columns, payload, rows):
    """The columns and payloads of these rows."""
    said = {}
    if name in ("both", "columns"):
        said["attributes"] = {column: values[rows] for column, values in columns.items()}
    if name in ("both", "payload"):
        said["payload"] = payload[rows]
    return said


def built(arguments, preset, name, base, columns, payload):
    """Makes a copy of an index of the first rows."""
    kept = os.path.join(arguments.folder, f"{preset}.{name}.{arguments.built}")
    if not os.path.exists(os.path.join(kept, "MANIFEST")):
        rows = slice(arguments.built)
        stratann.build(base[rows], kept, metric=arguments.metric, preset=preset, overwrite=True, **given(name, columns, payload, rows)).close()
    shutil.rmtree(kept + ".copy", ignore_errors=True)
    return shutil.copytree(kept, kept + ".copy")


def one_round(arguments, preset, index, name, base, columns, payload, first):
    """Seconds and CPU seconds of the inserts, and of the merge if there is one."""
    calls = [slice(at, min(at + arguments.call, first + arguments.rows)) for at in range(first, first + arguments.rows, arguments.call)]
    ready = [(base[rows], numpy.arange(rows.start, rows.stop, dtype=numpy.uint64), given(name, columns, payload, rows)) for rows in calls]
    began, spent = time.perf_counter(), cpu()
    for vectors, ids, said in ready:
        index.insert(vectors, ids, **said)
    index.flush()
    inserted, used = time.perf_counter(), cpu()
    if preset in MERGED:
        index.compact()
    end, all_used = time.perf_counter(), cpu()
    return {"seconds": inserted - began, "cpu": used - spent, "merge": end - inserted, "all": end - began, "all cpu": all_used - spent}


def cpu():
    spent = os.times()
    return spent.user + spent.system


if __name__ == "__main__":
    main()
