#!/usr/bin/env python3
"""Measures the storage of indexes beyond the compressed vectors, for vectors of several widths.

    bench/widths.py STRATANN EMBEDDINGS.fbin FOLDER [WIDTH[,WIDTH..]] [--rows N]
                    [-- BUILD OPTIONS..]

For each width (default: 768,1024,1536,3072) the script makes N rows (5,000) of floats. A row is
made of random rows of EMBEDDINGS, put side by side and cut to the width. So it has the entropy of
real embeddings. The script builds an index, and prints sizes from `stratann stats`: raw vectors,
compressed vectors, lists, codes with the codebook, and the whole index. The remaining bytes are
headers, space at the ends of pages, external ids and the navigation graph, which has raw vectors.
Needs Python 3.8 and nothing else.
"""

import json
import os
import random
import struct
import subprocess
import sys


def main():
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1 :]
    rows = 5000
    if "--rows" in arguments:
        at = arguments.index("--rows")
        rows = int(arguments[at + 1])
        del arguments[at : at + 2]
    if len(arguments) not in (3, 4):
        sys.exit(__doc__)
    program, source, folder = arguments[:3]
    widths = [int(width) for width in (arguments[3] if len(arguments) == 4 else "768,1024,1536,3072").split(",")]
    os.makedirs(folder, exist_ok=True)
    print("| floats | layout | raw, MB | compressed, MB | lists, MB | codes, MB | index, MB | index without lists and codes, of the compressed |")
    print("|---|---|---|---|---|---|---|---|")
    for width in widths:
        path = os.path.join(folder, f"{width}.fbin")
        make(source, path, rows, width)
        index = os.path.join(folder, f"{width}.idx")
        command = [program, "build", path, index, "--overwrite", "--quiet", "--metric", "cosine", *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        said = json.loads(subprocess.run([program, "stats", index, "--json"], check=True, stdout=subprocess.PIPE).stdout)
        took = said["bytes"]
        # Codes include the codebook.
        beyond = took["total"] - took["graph"] - took["codes"]
        show = [rows * width * 4, took["vectors"], took["graph"], took["codes"], took["total"]]
        figures = " | ".join(f"{bytes / 1e6:.2f}" for bytes in show)
        print(f"| {width} | {said['layout']} | {figures} | {beyond / took['vectors']:.3f} |", flush=True)


def make(source, path, rows, width):
    """Writes rows of `width` floats."""
    with open(source, "rb") as file:
        count, dim = struct.unpack("<II", file.read(8))
        data = file.read()
    drawn = random.Random(width)
    with open(path + ".new", "wb") as out:
        out.write(struct.pack("<II", rows, width))
        for _ in range(rows):
            row = b""
            while len(row) < 4 * width:
                at = drawn.randrange(count) * dim * 4
                row += data[at : at + dim * 4]
            out.write(row[: 4 * width])
    os.replace(path + ".new", path)


if __name__ == "__main__":
    main()
