"""hnswlib on the data of a job. run.py calls this in its virtual environment.

    hnsw.py build|search CONFIG.json
"""

import json
import sys
import time

import hnswlib
import numpy

TYPES = {"u8bin": numpy.uint8, "i8bin": numpy.int8, "fbin": numpy.float32, "hbin": numpy.float16}


def vectors(path):
    """A file of vectors as a mapped matrix of its element type."""
    rows, dim = numpy.fromfile(path, "<u4", 2)
    return numpy.memmap(path, TYPES[path.rsplit(".", 1)[1]], "r", offset=8, shape=(rows, dim))


def truth(path):
    """Ids and distances of a ground-truth file; the distances may be missing."""
    queries, k = (int(n) for n in numpy.fromfile(path, "<u4", 2))
    cells = queries * k
    words = numpy.fromfile(path, "<u4", offset=8)
    ids = words[:cells].reshape(queries, k)
    distances = words[cells : 2 * cells].view("<f4").reshape(queries, k) if len(words) >= 2 * cells else None
    return ids, distances


def recall(found, distances, true_ids, true_distances, k):
    """Recall@k. Ties count as hits, as everywhere in this project."""
    hits = numpy.array([numpy.isin(f, t).sum() for f, t in zip(found, true_ids[:, :k])])
    if true_distances is not None:
        limit = true_distances[:, k - 1 : k]
        close = distances <= limit + numpy.abs(limit) * 1e-5
        hits = numpy.maximum(hits, close.sum(axis=1))
    return float(hits.mean() / k)


def build(config):
    base = vectors(config["base"])
    index = hnswlib.Index(space=config["metric"], dim=base.shape[1])
    index.init_index(len(base), ef_construction=config["ef_construction"], M=config["M"])
    # In pieces, since each is converted to 32-bit floats.
    for first in range(0, len(base), 100_000):
        piece = base[first : first + 100_000].astype(numpy.float32)
        index.add_items(piece, numpy.arange(first, first + len(piece)), num_threads=config["build_threads"])
    index.save_index(config["index"])


def search(config):
    queries = vectors(config["queries"]).astype(numpy.float32)
    true_ids, true_distances = truth(config["truth"])
    index = hnswlib.Index(space=config["metric"], dim=queries.shape[1])
    index.load_index(config["index"])
    k, threads = config["k"], config["threads"]
    points = []
    for ef in config["lists"]:
        index.set_ef(ef)
        started = time.perf_counter()
        found, distances = index.knn_query(queries, k=k, num_threads=threads)
        qps = len(queries) / (time.perf_counter() - started)
        if config["metric"] == "ip":
            distances = distances - 1  # hnswlib gives 1 - a.b, the ground truth -(a.b)
        points.append({
            "list": ef,
            "recall": recall(found, distances, true_ids, true_distances, k),
            "qps": qps,
            "reads": None,
            "mean_us": threads * 1e6 / qps,
            "p99_us": None,
        })
    with open(config["output"], "w") as file:
        json.dump(points, file)


if __name__ == "__main__":
    with open(sys.argv[2]) as file:
        {"build": build, "search": search}[sys.argv[1]](json.load(file))
