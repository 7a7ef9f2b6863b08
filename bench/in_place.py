#!/usr/bin/env python3
"""Compares inserts into a cluster index with a build of all rows.

    bench/in_place.py STRATANN BASE.u8bin QUERIES.u8bin TRUTH.bin FOLDER [--built N] [--]
                      PRESET[:UPDATE] [BUILD OPTIONS..]

Builds an index of the first N rows of BASE (default: three fifths) with the preset. It inserts the
other rows with the insert strategy UPDATE (default: the preset's). It prints CPU seconds, bytes on
storage and peak memory of each process. It also prints recall@10 at 10, 16, 31 and 61 probes
against TRUTH, the ground truth of all rows. Then it prints the same figures of a build of all rows.
Every process has one thread. Needs Python 3.8 and nothing else. FOLDER takes several times the size
of BASE, and is overwritten.
"""

import json
import os
import struct
import subprocess
import sys
import time

PROBES = "10,16,31,61"


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--"]
    share = None
    if "--built" in arguments:
        at = arguments.index("--built")
        share = int(arguments[at + 1])
        del arguments[at : at + 2]
    if len(arguments) < 6:
        sys.exit(__doc__)
    program, base, queries, truth, folder, preset = arguments[:6]
    options = arguments[6:]
    preset, _, update = preset.partition(":")
    update = ["--update", update] if update else []
    os.makedirs(folder, exist_ok=True)
    with open(base, "rb") as file:
        rows, dim = struct.unpack("<II", file.read(8))
        row_bytes = (os.path.getsize(base) - 8) // rows
        built = share if share is not None else rows * 3 // 5
        suffix = os.path.splitext(base)[1]
        parts = {"first": built, "later": rows - built}
        for name, count in parts.items():
            path = parts[name] = os.path.join(folder, name + suffix)
            with open(path, "wb") as out:
                out.write(struct.pack("<II", count, dim))
                out.write(file.read(count * row_bytes))

    def run(*words):
        """The JSON output of a process, and its CPU seconds, wall-clock seconds and peak
        megabytes."""
        start = time.monotonic()
        process = subprocess.Popen([program, *words, "--quiet"], stdout=subprocess.PIPE)
        printed = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{' '.join(words)} failed with exit status {process.returncode}")
        return printed, used.ru_utime + used.ru_stime, time.monotonic() - start, used.ru_maxrss / 1024

    def show(what, index, cpu, wall, peak):
        printed, *_ = run("search", index, queries, "--k", "10", "--probes", PROBES, "--truth", truth, "--json", "-T", "1")
        found = [json.loads(line) for line in printed.splitlines()]
        recall = " ".join(f"{one['recall']:.4f}" for one in found)
        reads = " ".join(f"{one['per_query']['graph_reads'] + one['per_query']['vector_reads']:.0f}" for one in found)
        size = sum(os.path.getsize(os.path.join(index, name)) for name in os.listdir(index)) / 1e6
        print(f"{preset:15} {what:16} {cpu:7.2f} CPU-s {wall:7.2f} s {peak:6.0f} MiB {size:7.1f} MB  recall {recall}  reads {reads}", flush=True)

    build = ["--preset", preset, "--metric", "l2", "--overwrite", "-T", "1", *options]
    index, anew = os.path.join(folder, "in-place.idx"), os.path.join(folder, "anew.idx")
    _, *used = run("build", base, anew, *build)
    show("built anew", anew, *used)
    run("build", parts["first"], index, *build)
    _, *used = run("insert", index, parts["later"], "-T", "1", *update)
    show("inserted", index, *used)
    run("verify", index)


main()
