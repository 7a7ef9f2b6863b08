#!/usr/bin/env python3
"""Makes many embeddings from few real embeddings, and measures how well they resemble real ones.

    bench/made_embeddings.py DATA FOLDER [--rows N] [--queries N] [--seed S] [--compare STRATANN]

DATA has package-text.{base,query}.fbin: 40,000 sentence embeddings of 384 floats. FOLDER gets
made-embeddings.{base.fbin,query.fbin,truth100.bin}: 250,000 rows of unit length, 4,000 queries, and
the exact results by the cosine. Random draws depend only on the seed. The last bits of matrix
products depend on the version of numpy and its number of threads. Before you compare results of two
machines, compare the printed SHA-256 of their files.

A made row starts at a random real row. It moves towards two of the nearest neighbours of this row,
and gets noise with the spectrum of the differences between these neighbours. The difference between
two near rows of another region is added to the made row too. A quarter of the real rows is for
queries: each query starts at another row of this quarter, and moves only towards rows of it. Made
base rows use only the other rows. The nearest neighbours within the quarter are farther away, so
the moves of queries are scaled down accordingly.

Two statistics compare made rows with real rows, at the same number of rows. One is the local
intrinsic dimension (maximum likelihood, 100 nearest rows). The other is the distance of the 10th
nearest row divided by the median distance. Each is the median over 2,000 rows. Both are also
printed for all made rows. If made rows formed clouds around the real rows, both statistics would be
lower there. --compare builds indexes of made rows and of real rows with the preset `diskann`, and
prints recall and reads by list size. Needs numpy.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys

import numpy

NEAR = 24  # a made row moves towards two of this many nearest rows
MOVE = 1.4  # the largest sum of the two moves, as shares of the distances
LOCAL = 0.6  # noise along the differences to the nearest rows, as a share of their length
STRAY = 0.25  # noise along the difference of two near rows of another region, as such a share
K, LID, SAMPLE = 10, 100, 2000
BLOCK = 5000
LISTS = [10, 20, 30, 40, 60, 80, 100, 150, 200]
NAME = "made-embeddings"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--queries", type=int, default=4_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare", metavar="STRATANN", help="the `stratann` command, to build and search the indexes")
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    real = unit(read(os.path.join(arguments.data, "package-text.base.fbin")))
    apart = len(real) // 4
    if not LID <= arguments.queries <= apart:
        sys.exit(f"--queries {arguments.queries}; each query starts at another of {apart} real rows. Give {LID} to {apart}")
    if arguments.rows < len(real):
        sys.exit(f"--rows {arguments.rows}; {len(real)} made rows are compared with real rows. Give at least {len(real)}")
    random = numpy.random.default_rng(arguments.seed)
    order = random.permutation(len(real))
    held, kept = real[order[:apart]], real[order[apart:]]
    anchors = random.integers(len(kept), size=arguments.rows)
    base = made(kept, Near(kept, kept), anchors, random)
    queries = made(held, Near(held, kept), numpy.arange(arguments.queries), random)
    path = lambda part: os.path.join(arguments.folder, f"{NAME}.{part}")
    write(path("base.fbin"), base)
    write(path("query.fbin"), queries)
    ids, distances = truth(base, queries, LID)
    with open(path("truth100.bin"), "wb") as file:
        numpy.array(ids.shape, "<u4").tofile(file)
        ids.astype("<u4").tofile(file)
        (distances**2 / 2).astype("<f4").tofile(file)
    for part in ("base.fbin", "query.fbin"):
        print(f"{path(part)}: SHA-256 {digest(path(part))}")
    same = numpy.mean(anchors[ids[:, 1:K]] == anchors[ids[:, :1]])
    print(f"of the 2nd to {K}th answer, {same:.3f} begin at the same real row as the first\n")
    own = unit(read(os.path.join(arguments.data, "package-text.query.fbin")))
    statistics(real, held, kept, own, base, queries)
    if arguments.compare:
        compare(arguments, path, held, kept)


class Near:
    """For each of `rows`, the numbers of its nearest neighbours among `rows`, and the scale of
    moves towards them. The scale says how much nearer the neighbours among `all_rows` are.
    """

    def __init__(self, rows, all_rows):
        self.numbers, far = truth(rows, rows, NEAR, skip_self=True)
        among_all = far if rows is all_rows else truth(all_rows, rows, NEAR)[1]
        self.length = among_all.mean(axis=1).astype(numpy.float32)
        self.scale = self.length / numpy.maximum(far.mean(axis=1), 1e-6).astype(numpy.float32)


def made(rows, near, anchors, random):
    """Makes one row near each row that `anchors` numbers."""
    out = numpy.empty((len(anchors), rows.shape[1]), numpy.float32)
    for first in range(0, len(anchors), BLOCK):
        chosen = anchors[first : first + BLOCK]
        at, count = rows[chosen], len(chosen)
        shares = LOCAL / NEAR**0.5 * random.standard_normal((count, NEAR), dtype=numpy.float32)
        shares -= shares.mean(axis=1, keepdims=True)
        for _ in range(2):
            towards = random.integers(NEAR, size=count)
            shares[numpy.arange(count), towards] += random.random(count, dtype=numpy.float32) * MOVE / 2
        shares *= near.scale[chosen, None]
        moved = numpy.einsum("ij,ijk->ik", shares, rows[near.numbers[chosen]], optimize=True)
        moved += (1 - shares.sum(axis=1, keepdims=True)) * at
        one = random.integers(len(rows), size=count)
        other = near.numbers[one, random.integers(NEAR, size=count)]
        stray = rows[one] - rows[other]
        lengths = numpy.maximum(numpy.linalg.norm(stray, axis=1, keepdims=True), 1e-6)
        moved += STRAY * near.length[chosen, None] / lengths * stray
        out[first : first + count] = unit(moved)
    return out


def truth(base, queries, count, skip_self=False):
    """The nearest rows of `base` for each query: their numbers, and their distances as unit
    vectors.
    """
    ids = numpy.empty((len(queries), count), numpy.int64)
    distances = numpy.empty((len(queries), count), numpy.float32)
    block = max(1, 40_000_000 // len(base))
    for first in range(0, len(queries), block):
        cosines = queries[first : first + block] @ base.T
        rows = numpy.arange(len(cosines))
        if skip_self:
            cosines[rows, first + rows] = -2
        best = numpy.argpartition(-cosines, count, axis=1)[:, :count]
        found = numpy.take_along_axis(cosines, best, axis=1)
        order = numpy.lexsort((best, -found), axis=1)
        ids[first : first + block] = numpy.take_along_axis(best, order, axis=1)
        found = numpy.take_along_axis(found, order, axis=1)
        distances[first : first + block] = numpy.sqrt(numpy.maximum(2 - 2 * found, 0))
    return ids, distances


def statistics(real, held, kept, own, base, queries):
    """Prints two statistics of real and of made vectors: the local intrinsic dimension, and the distance to the 10th neighbour divided by the median distance."""
    few = base[: len(real)]
    print("| vectors | rows | local intrinsic dimension | 10th nearest by median distance |\n|---|---|---|---|")
    line("real rows", real, real[:SAMPLE], True)
    line("made rows", few, few[:SAMPLE], True)
    line("real rows held out, as queries", kept, held[:SAMPLE])
    line("package-text's own queries", real, own)
    line("made queries", few[: len(kept)], queries[:SAMPLE])
    line("made rows, all", base, base[:SAMPLE], True)
    line("made queries, all rows", base, queries[:SAMPLE])


def line(said, base, queries, skip_self=False):
    dimension, tenth = described(base, queries, skip_self)
    shown = lambda values, digits: "{1:.{0}f} ({2:.{0}f} to {3:.{0}f})".format(
        digits, *numpy.percentile(values, [50, 25, 75])
    )
    print(f"| {said} | {len(base)} | {shown(dimension, 1)} | {shown(tenth, 3)} |", flush=True)


def described(base, queries, skip_self):
    """The local intrinsic dimension at each query, and the relative distance of its 10th nearest.
    """
    distances = numpy.maximum(truth(base, queries, LID, skip_self)[1], 1e-4)
    dimension = -1 / numpy.log(distances[:, :-1] / distances[:, -1:]).mean(axis=1)
    some = base[:: max(1, len(base) // 4000)]
    median = numpy.median(numpy.sqrt(numpy.maximum(2 - 2 * queries @ some.T, 0)), axis=1)
    return dimension, distances[:, K - 1] / median


def compare(arguments, path, held, kept):
    """Recall and reads of `diskann` by list size, over as many real rows as made ones."""
    data = lambda part: os.path.join(arguments.data, f"package-text.{part}")
    write(path("few.fbin"), read(path("base.fbin"))[: len(kept) + len(held)])
    write(path("kept.fbin"), kept)
    write(path("held.fbin"), held[: arguments.queries])
    print("\n| rows, queries | " + " | ".join(map(str, LISTS)) + " |\n|---|" + "---|" * len(LISTS))
    for said, base, queries in [
        ("real rows, their own queries", data("base.fbin"), data("query.fbin")),
        ("real rows, rows held out", path("kept.fbin"), path("held.fbin")),
        ("made rows, made queries", path("few.fbin"), path("query.fbin")),
    ]:
        answers, index = path("compared.bin"), path("compared.idx")
        run(arguments.compare, "truth", base, queries, answers, "--k", "10", "--metric", "cosine")
        run(arguments.compare, "build", base, index, "--preset", "diskann", "--metric", "cosine", "--overwrite", "--quiet")
        lists = ",".join(map(str, LISTS))
        found = run(arguments.compare, "search", index, queries, "--truth", answers, "--json", "--list", lists)
        cells = []
        for point in map(json.loads, found.splitlines()):
            reads = point["per_query"]["graph_reads"] + point["per_query"]["vector_reads"]
            cells.append(f"{point['recall']:.3f}, {reads:.1f}")
        print(f"| {said} | " + " | ".join(cells) + " |", flush=True)


def run(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def unit(vectors):
    return vectors / numpy.maximum(numpy.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def read(path):
    rows, dim = (int(number) for number in numpy.fromfile(path, "<u4", 2))
    return numpy.fromfile(path, "<f4", offset=8).reshape(rows, dim)


def write(path, vectors):
    with open(path, "wb") as file:
        numpy.array(vectors.shape, "<u4").tofile(file)
        vectors.astype("<f4").tofile(file)


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


if __name__ == "__main__":
    main()
