"""Low-precision codes of PRESS, made in three ways.

- A residual, as in vector/src/paired.rs: "high, nested", whose low part is "low, apart".
- The upper four bits of each byte: "low, nested", rejected.
- Codes that are trained by themselves.

A sketch behind a choice, in numpy. `python3 press_codes.py package-text 96,32 [FOLDER OF DATA
SETS]` takes float32, and `photo-sift-100k 32` takes uint8. For each number of bytes of a high code
it prints a share of the ten nearest, for 200 queries: the share among the first 10, 20, 40, 100 and
200 by code. It does so for three codes: the high code, its upper half in groups of near centroids,
and separate codes of half the bytes. There are two kinds of separate codes: 8 bits for each of half
as many chunks, and 4 bits for each of as many chunks.
"""
import sys

import numpy as np

rng = np.random.default_rng(1)
name, folder = sys.argv[1], (sys.argv[3] if len(sys.argv) > 3 else "../../../shared/data") + "/"


def load(part):
    for ending, kind in ((".fbin", "<f4"), (".u8bin", "u1")):
        try:
            with open(folder + name + part + ending, "rb") as file:
                n, d = (int(x) for x in np.fromfile(file, "<u4", 2))
                return np.fromfile(file, kind, n * d).reshape(n, d).astype("f4")
        except FileNotFoundError:
            pass
    sys.exit("no data set is at " + folder + name)


base, queries = load(".base"), load(".query")[:200]
sample = base[rng.permutation(len(base))[:10000]]
dim = base.shape[1]
nearest = np.argsort((base * base).sum(1)[None] - 2 * queries @ base.T, axis=1)[:, :10]


def kmeans(points, k, rounds=8):
    centers = points[rng.permutation(len(points))[:k]].copy()
    for _ in range(rounds):
        which = np.argmin((centers * centers).sum(1) - 2 * points @ centers.T, axis=1)
        count = np.bincount(which, minlength=k)
        for j in range(points.shape[1]):
            sums = np.bincount(which, weights=points[:, j], minlength=k)
            centers[:, j] = np.where(count > 0, sums / np.maximum(count, 1), centers[:, j])
    return centers


def chunks(m):
    return np.array_split(np.arange(dim), m)


def codes(points, book, m):
    return np.stack([np.argmin((c * c).sum(1) - 2 * points[:, at] @ c.T, axis=1) for c, at in zip(book, chunks(m))], 1)


def grouped(centers):
    """Divides 256 centroids into groups of sixteen near ones. Returns the group of each, and the
    means of the groups."""
    means = kmeans(centers, 16, 12)
    for _ in range(12):
        far = ((centers[:, None] - means[None]) ** 2).sum(2)
        ranked = np.sort(far, 1)
        group, room = np.zeros(256, int), np.full(16, 16)
        for i in np.argsort(ranked[:, 0] - ranked[:, 1]):
            group[i] = next(g for g in np.argsort(far[i]) if room[g] > 0)
            room[group[i]] -= 1
        means = np.stack([centers[group == g].mean(0) for g in range(16)])
    return group, means


def show(what, book, code, m, spreads=None):
    """Ranks by the sum of tables. The spread of the vectors around a centroid may be added."""
    estimate = np.zeros((len(queries), len(base)), "f4")
    for i, (c, at) in enumerate(zip(book, chunks(m))):
        table = ((queries[:, at][:, None] - c[None]) ** 2).sum(2)
        estimate += (table if spreads is None else table + spreads[i])[:, code[:, i]]
    order = np.argsort(estimate, axis=1)[:, :200]
    shares = [np.mean([len(set(o[:t]) & set(n)) for o, n in zip(order, nearest)]) / 10 for t in (10, 20, 40, 100, 200)]
    print(f"{name} {what}: " + " ".join(f"{share:.3f}" for share in shares), flush=True)


for m in (int(m) for m in sys.argv[2].split(",")):
    book = [kmeans(sample[:, at], 256) for at in chunks(m)]
    code = codes(base, book, m)
    show(f"high, {m} bytes", book, code, m)
    groups = [grouped(c) for c in book]
    upper = np.stack([g[code[:, i]] for i, (g, _) in enumerate(groups)], 1)
    means = [mean for _, mean in groups]
    spreads = [np.array([((c[g == j] - mean[j]) ** 2).sum(1).mean() for j in range(16)]) for c, (g, mean) in zip(book, groups)]
    show(f"low, nested, {m / 2:g} bytes", means, upper, m)
    show("the same with spreads", means, upper, m, spreads)
    half = [kmeans(sample[:, at], 256) for at in chunks(m // 2)]
    show(f"low, apart, {m // 2} bytes of 8 bits", half, codes(base, half, m // 2), m // 2)
    left = [sample[:, at] - c[np.argmin((c * c).sum(1) - 2 * sample[:, at] @ c.T, axis=1)] for c, at in zip(half, chunks(m // 2))]
    rest = [kmeans(points, 256) for points in left]
    first = codes(base, half, m // 2)
    estimate = np.zeros((len(queries), len(base)), "f4")
    for i, (c, r, at) in enumerate(zip(half, rest, chunks(m // 2))):
        residual = base[:, at] - c[first[:, i]]
        second = np.argmin((r * r).sum(1) - 2 * residual @ r.T, axis=1)
        decoded = c[first[:, i]] + r[second]
        estimate += (decoded * decoded).sum(1)[None] - 2 * queries[:, at] @ decoded.T
    order = np.argsort(estimate, axis=1)[:, :200]
    shares = [np.mean([len(set(o[:t]) & set(n)) for o, n in zip(order, nearest)]) / 10 for t in (10, 20, 40, 100, 200)]
    print(f"{name} high, nested: codes of {m // 2} bytes, and codes of {m // 2} bytes for their residuals: " + " ".join(f"{share:.3f}" for share in shares), flush=True)
    four = [kmeans(sample[:, at], 16) for at in chunks(m)]
    show(f"low, apart, {m} halves of 4 bits", four, codes(base, four, m), m)
