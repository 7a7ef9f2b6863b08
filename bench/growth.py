#!/usr/bin/env python3
"""Measures how build time, memory, bytes and reads grow with the number of rows, and extrapolates.

    bench/growth.py STRATANN BASE QUERIES FOLDER ROWS[,ROWS..] [--recall R] [--metric M]
                    [-- BUILD OPTIONS..]

For each number of rows (for example 100000,1000000,10000000), the script makes a file with this
number of rows, and finds the exact results. It builds an index with `stratann build --resume`. It
searches the index for recall@10 of R (default .97), with one query in flight on one thread. Then it
fits functions of the number of rows: a power to build time and to bytes, a line to memory, and a
logarithm to reads. The line has a constant part for the program itself. The script prints the
predictions of the fits for a hundred million and for a billion rows, and the largest error of each
fit at the measured numbers of rows. Reads are measured with the smallest list size that reaches the recall, so the recall may exceed R a little.
Up to 100,000 rows of 128 dimensions, training the codebook takes the most memory, and this memory
does not grow further. So the fit of memory needs larger numbers of rows.

The script makes the rows beyond BASE from its rows:

  .u8bin  SIFT descriptors (128 bytes). A picture that is turned by quarters and mirrored has the
          same descriptor with its bytes in another order. A lighter or darker picture has rescaled
          bytes. Each pass over BASE applies one symmetry, and one of 16 scales to each row.
  .fbin   Embeddings: sums of two random rows.

Made rows resemble the rows of BASE, but are not real. The extrapolation to a billion rows holds for
a billion rows like the made ones.

The script skips finished steps, so it can be stopped and run again at any time. The build itself
continues from its savepoints. If a build was interrupted, its CPU time is unknown, and the fit of
CPU time leaves it out. FOLDER takes two to three times the size of the rows. Needs Python 3.8 and
nothing else.
"""

import array
import json
import math
import operator
import os
import random
import struct
import subprocess
import sys

SCALES = [0.80 + 0.03 * step for step in range(16)]
BATCH = 4096


def main():
    arguments, options = sys.argv[1:], []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, options = arguments[:at], arguments[at + 1 :]
    said = {"--recall": "0.97", "--metric": "l2"}
    for name in said:
        if name in arguments:
            at = arguments.index(name)
            said[name] = arguments[at + 1]
            del arguments[at : at + 2]
    if len(arguments) != 5:
        sys.exit(__doc__)
    program, base, queries, folder, sizes = arguments
    sizes = sorted({int(size) for size in sizes.split(",")})
    os.makedirs(folder, exist_ok=True)
    check_settings(folder, [base, os.path.getsize(base), queries, said["--metric"], options])
    measured = [Step(program, base, queries, folder, rows, said, options).done() for rows in sizes]
    show(measured, float(said["--recall"]))


def check_settings(folder, settings):
    """Refuses a folder whose finished steps have other settings."""
    path = os.path.join(folder, "settings.json")
    if not os.path.exists(path):
        with open(path, "w") as out:
            json.dump(settings, out)
    with open(path) as said:
        if json.load(said) != settings:
            sys.exit(f"{folder}; its settings.json has other vectors or options. Give another folder")


class Step:
    """One number of rows."""

    def __init__(self, program, base, queries, folder, rows, said, options):
        self.program, self.base, self.queries = program, base, queries
        self.rows, self.said, self.options = rows, said, options
        self.path = lambda name: os.path.join(folder, f"{rows}.{name}")

    def done(self):
        """The measurements for this number of rows."""
        vectors = self.path("base" + os.path.splitext(self.base)[1])
        once(vectors, lambda out: make(self.base, self.rows, out))
        truth = self.path("truth.bin")
        metric = ["--metric", self.said["--metric"]]
        once(truth, lambda out: self.run("truth", vectors, self.queries, out, "--k", "10", *metric), ".bin")
        index, report = self.path("idx"), self.path("build.json")
        build = [vectors, index, *metric, "--overwrite", "--resume", "--json", *self.options]
        once(report, lambda out: write(out, self.run("build", *build)))
        found = self.path(f"search-{self.said['--recall']}.json")
        search = [index, self.queries, "--k", "10", "--truth", truth, "--find-list", "--recall", self.said["--recall"]]
        alone = ["--threads", "1", "--in-flight", "1", "--json"]
        once(found, lambda out: write(out, self.run("search", *search, *alone)))
        with open(report) as file:
            build = json.load(file)
        with open(found) as file:
            search = json.loads(file.read().splitlines()[-1])
        per_query = search["per_query"]
        return {
            "rows": self.rows,
            "cpu": None if build["resumed"] else build["cpu_seconds"],
            "seconds": None if build["resumed"] else build["seconds"],
            "peak": build["peak_rss_bytes"],
            "bytes": build["bytes"],
            "list": search["list"],
            "recall": search["recall"],
            "reads": per_query["graph_reads"] + per_query["vector_reads"],
        }

    def run(self, *words):
        """Runs the command with its progress shown, and returns its output."""
        print("stratann", *words, file=sys.stderr, flush=True)
        return subprocess.run([self.program, *words], check=True, stdout=subprocess.PIPE).stdout


def once(path, work, ending=""):
    """Makes a file, unless the complete file exists."""
    if not os.path.exists(path):
        unfinished = path + ".part" + ending
        work(unfinished)
        os.rename(unfinished, path)


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def symmetries():
    """For each byte of a turned or mirrored SIFT descriptor (4 x 4 fields of 8 directions), the
    byte of the original descriptor.
    """
    all_of_them = []
    for mirrored in (False, True):
        for turns in range(4):
            places = []
            for at in range(128):
                row, column, direction = at // 32, at // 8 % 4, at % 8
                for _ in range(turns):
                    row, column, direction = column, 3 - row, (direction + 2) % 8
                if mirrored:
                    column, direction = 3 - column, (4 - direction) % 8
                places.append(row * 32 + column * 8 + direction)
            all_of_them.append(operator.itemgetter(*places))
    return all_of_them


def make(base, rows, out):
    """Writes `rows` rows: first the rows of the base, then rows made of them."""
    with open(base, "rb") as file:
        there, dim = struct.unpack("<II", file.read(8))
        row_bytes = (os.path.getsize(base) - 8) // there
        made = descriptors if base.endswith(".u8bin") else sums
        if base.endswith(".u8bin") and dim != 128:
            sys.exit(f"{base} has rows of {dim} bytes; BASE of type .u8bin must have SIFT descriptors of 128 bytes. Give such a file, or a .fbin file")
        with open(out, "wb") as new:
            new.write(struct.pack("<II", rows, dim))
            left = min(rows, there) * row_bytes
            while left:
                piece = file.read(min(left, 1 << 22))
                new.write(piece)
                left -= len(piece)
            if rows > there:
                file.seek(8)
                all_rows = file.read()
                batch = []
                for row in made(all_rows, there, row_bytes, rows - there):
                    batch.append(row)
                    if len(batch) == BATCH:
                        new.write(b"".join(batch))
                        batch.clear()
                new.write(b"".join(batch))


def descriptors(all_rows, there, row_bytes, more):
    scaled = [bytes(min(255, round(value * scale)) for value in range(256)) for scale in SCALES]
    draw, turned = random.Random(1), symmetries()
    for number in range(more):
        # The symmetry of the first pass is the identity, so the first rows are the rows of BASE.
        copy, row = 1 + number // there, number % there
        bytes_of_row = all_rows[row * row_bytes : (row + 1) * row_bytes]
        moved = bytes(turned[copy % len(turned)](bytes_of_row))
        yield moved.translate(scaled[draw.randrange(len(scaled))])


def sums(all_rows, there, row_bytes, more):
    draw = random.Random(1)
    floats = memoryview(all_rows).cast("f")
    dim = row_bytes // 4
    for _ in range(more):
        one, other = draw.randrange(there) * dim, draw.randrange(there) * dim
        pair = map(operator.add, floats[one : one + dim], floats[other : other + dim])
        yield array.array("f", pair).tobytes()


def fit(points, of_x, of_y):
    """Fits `of_y(y) = a + b of_x(x)` by least squares."""
    xs = [of_x(x) for x, _ in points]
    ys = [of_y(y) for _, y in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys)) / spread
    return mean_y - slope * mean_x, slope


def show(measured, recall):
    print(f"{'rows':>11} {'build CPU s':>12} {'wall s':>9} {'peak MB':>9} {'MB':>9} {'B a row':>8} {'list':>5} {'recall':>7} {'reads':>7}")
    for one in measured:
        cpu, seconds = (f"{one[key]:.1f}" if one[key] is not None else "resumed" for key in ("cpu", "seconds"))
        print(
            f"{one['rows']:>11,} {cpu:>12} {seconds:>9} {one['peak'] / 1e6:>9.1f} {one['bytes'] / 1e6:>9.1f} "
            f"{one['bytes'] / one['rows']:>8.1f} {one['list']:>5} {one['recall']:>7.4f} {one['reads']:>7.2f}"
        )
    print()
    power, line, logarithm = (math.log, math.log), (float, float), (math.log, float)
    laws = {power: "{a:.3g} n^{b:.3f}", line: "{a:.3g} + {b:.3g} n", logarithm: "{a:.2f} + {b:.3f} ln n"}
    what = [
        ("build CPU", "cpu", "s", 1, power),
        ("build memory", "peak", "GB", 1e9, line),
        ("bytes", "bytes", "GB", 1e9, power),
        (f"reads at {recall:g}", "reads", "", 1, logarithm),
    ]
    for name, key, unit, scale, kind in what:
        points = [(one["rows"], one[key] / scale) for one in measured if one[key] is not None]
        if len(points) < 3:
            print(f"{name}: not fitted, since only {len(points)} numbers of rows were measured. Give at least three")
            continue
        a, b = fit(points, *kind)
        back = math.exp if kind is power else float
        value = lambda n: back(a + b * kind[0](n))
        law = laws[kind].format(a=back(a), b=b)
        off = max(abs(value(n) - y) / y for n, y in points)
        far = ", ".join(f"{n:.0e} rows {value(n):,.4g} {unit}".rstrip() for n in (1e8, 1e9))
        print(f"{name}: {law}, at most {off:.1%} off at {len(points)} measured numbers of rows. {far}")
    most = measured[-1]["rows"]
    print(f"\n1e8 and 1e9 rows are {1e8 / most:,.0f} and {1e9 / most:,.0f} times the largest measured number of rows")


main()
