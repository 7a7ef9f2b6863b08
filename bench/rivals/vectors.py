"""Reads files of vectors and of exact results, and computes recall, in the measuring processes."""

import numpy

TYPES = {"u8bin": numpy.uint8, "i8bin": numpy.int8, "fbin": numpy.float32, "hbin": numpy.float16}


class Rows:
    """A file of vectors. It is read in pieces, since a mapped file would count as memory of this
    process.
    """

    def __init__(self, path):
        self.path, self.type = path, numpy.dtype(TYPES[path.rsplit(".", 1)[1]])
        self.count, self.dim = (int(number) for number in numpy.fromfile(path, "<u4", 2))

    def __len__(self):
        return self.count

    def read(self, first=0, count=None):
        """`count` rows from row `first` on, in the element type of the file."""
        count = min(self.count - first, self.count if count is None else count)
        start = 8 + first * self.dim * self.type.itemsize
        return numpy.fromfile(self.path, self.type, count * self.dim, offset=start).reshape(count, self.dim)

    def pieces(self, count=20_000):
        """All rows as 32-bit floats, in pieces: (number of the first row, `count` rows)."""
        for first in range(0, self.count, count):
            yield first, self.read(first, count).astype(numpy.float32)

    def sample(self, count):
        """About `count` rows as 32-bit floats, from a hundred positions of the file."""
        step = max(1, self.count // 100)
        each = min(step, -(-count // 100))
        parts = [self.read(first, each) for first in range(0, self.count, step)]
        return numpy.concatenate(parts).astype(numpy.float32)


def truth(path):
    """The ids and distances in a file of exact results. The distances are None if the file has
    none.
    """
    queries, k = (int(number) for number in numpy.fromfile(path, "<u4", 2))
    cells = queries * k
    words = numpy.fromfile(path, "<u4", offset=8)
    ids = words[:cells].reshape(queries, k)
    distances = words[cells : 2 * cells].view("<f4").reshape(queries, k) if len(words) >= 2 * cells else None
    return ids, distances


def hits(found, true_ids, true_distances, k):
    """Counts, for each query, the results that are no farther than the true k-th neighbour, at most k."""
    if true_distances is None:
        right = [set(row[:k].tolist()) for row in true_ids]
    else:
        limits = true_distances[:, k - 1]
        limits = limits + numpy.abs(limits) * 1e-5
        right = [set(row[near <= limit].tolist()) for row, near, limit in zip(true_ids, true_distances, limits)]
    return [min(k, len(near.intersection(answers))) for near, answers in zip(right, found)]
