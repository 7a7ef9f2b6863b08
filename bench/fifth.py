#!/usr/bin/env python3
"""Compares an index after inserting a fifth and deleting a fifth of its rows with a rebuilt index.

    bench/fifth.py STRATANN BASE.u8bin QUERIES.u8bin FOLDER [BUILD OPTIONS..] -- PRESET[:UPDATE]..

For each preset the script builds an index of the first four fifths of BASE. It inserts the last
fifth with the insert strategy UPDATE (default: the preset's; `stratann insert --update`). It
deletes a random fifth of all rows, and merges. After each step it prints recall@10 against brute
force and reads per query, for list sizes of 20, 40 and 80. It also prints bytes on storage (1 MB is
10^6), peak memory, and pages written per insert. Then it measures fresh builds of all rows, and of
the rows that remain after the deletes. Needs Python 3.8 and nothing else. FOLDER takes several times
the size of BASE; later runs use its files again.
"""

import json
import os
import random
import struct
import subprocess
import sys

LISTS = "20,40,80"


def main():
    arguments = sys.argv[1:]
    if "--" not in arguments or arguments.index("--") < 4:
        sys.exit(__doc__)
    end = arguments.index("--")
    program, base, queries, folder = arguments[:4]
    options, presets = arguments[4:end], arguments[end + 1 :]
    os.makedirs(folder, exist_ok=True)
    path = lambda name: os.path.join(folder, name)
    with open(base, "rb") as file:
        rows, dim = struct.unpack("<II", file.read(8))
    row_bytes = (os.path.getsize(base) - 8) // rows
    suffix = os.path.splitext(base)[1]
    built = rows * 4 // 5
    gone = sorted(random.Random(1).sample(range(rows), rows // 5))
    kept = sorted(set(range(rows)) - set(gone))

    def subset(name, numbers):
        """Writes some rows of the base to a separate file."""
        out = path(name + suffix)
        if not os.path.exists(out):
            with open(base, "rb") as source, open(out + ".part", "wb") as file:
                all_rows = source.read()
                file.write(struct.pack("<II", len(numbers), dim))
                for row in numbers:
                    file.write(all_rows[8 + row * row_bytes : 8 + (row + 1) * row_bytes])
            os.rename(out + ".part", out)
        return out

    first = subset("first", range(built))
    later = subset("later", range(built, rows))
    left = subset("left", kept)
    with open(path("gone.txt"), "w") as file:
        file.write("\n".join(map(str, gone)))

    def run(*words):
        done = subprocess.run([program, "--quiet", *words], check=True, stdout=subprocess.PIPE)
        return done.stdout

    def truth(name, vectors, ids=None):
        """Ground truth over some rows, whose numbers in the base are `ids`."""
        out = path(name + ".bin")
        if not os.path.exists(out):
            run("truth", vectors, queries, out + ".part.bin", "--k", "10", "--metric", "l2")
            with open(out + ".part.bin", "rb") as file:
                data = file.read()
            count, k = struct.unpack("<II", data[:8])
            numbers = struct.unpack(f"<{count * k}I", data[8 : 8 + 4 * count * k])
            if ids is not None:
                numbers = [ids[number] for number in numbers]
            with open(out, "wb") as file:
                file.write(data[:8] + struct.pack(f"<{count * k}I", *numbers) + data[8 + 4 * count * k :])
            os.remove(out + ".part.bin")
        return out

    truths = {
        "all": truth("truth-all", base),
        "left": truth("truth-left", left, kept),
        "fresh": truth("truth-fresh", left),
    }
    print(f"{'preset':12} {'what':28} {'recall@10 at list ' + LISTS:28} {'reads':22} {'storage':>9} {'peak':>8}", flush=True)

    def show(preset, what, index, which, report=None):
        lists = run("search", index, queries, "--k", "10", "--list", LISTS, "--truth", truths[which], "--json")
        lists = [json.loads(line) for line in lists.splitlines()]
        recall = " ".join(f"{one['recall']:.4f}" for one in lists)
        reads = [one["per_query"]["graph_reads"] + one["per_query"]["vector_reads"] for one in lists]
        reads = " ".join(f"{one:.1f}" for one in reads)
        size = sum(os.path.getsize(os.path.join(index, name)) for name in os.listdir(index)) / 1e6
        peak = f"{report['peak_rss_bytes'] / 1e6:.0f} MB" if report and "peak_rss_bytes" in report else ""
        print(f"{preset:12} {what:28} {recall:28} {reads:22} {size:6.0f} MB {peak:>8}", flush=True)

    for preset in presets:
        preset, _, update = preset.partition(":")
        update = ["--update", update] if update else []
        index, fresh = path(preset + ".idx"), path(preset + "-fresh.idx")
        build = ["--preset", preset, "--metric", "l2", "--overwrite", "--json", *options]
        run("build", base, fresh, *build)
        show(preset, "built of all rows", fresh, "all")
        run("build", first, index, *build)
        report = json.loads(run("insert", index, later, "--json", *update))
        show(preset, " ".join(["a fifth inserted", *update[1:]]), index, "all", report)
        direct = report["direct"]
        if direct and direct["inserts"]:
            print(f"{preset:12} {direct['pages_written'] / direct['inserts']:.1f} pages written per insert", flush=True)
        report = json.loads(run("delete", index, path("gone.txt"), "--json"))
        show(preset, "a fifth deleted", index, "left", report)
        report = json.loads(run("compact", index, "--json"))
        show(preset, "merged", index, "left", report)
        run("verify", index)
        run("build", left, fresh, *build)
        show(preset, "rebuilt of the same rows", fresh, "fresh")


main()
