"""Builds or searches an index of hnswlib on a job's data. run.py calls this script in the virtual
environment that it made: hnsw.py build|search CONFIG.json
"""

import json
import sys
import time

import hnswlib
import numpy
import vectors


def build(config):
    base = vectors.Rows(config["base"])
    index = hnswlib.Index(space=config["metric"], dim=base.dim)
    index.init_index(len(base), ef_construction=config["ef_construction"], M=config["M"])
    for first, piece in base.pieces():
        index.add_items(piece, numpy.arange(first, first + len(piece)), num_threads=config["build_threads"])
    index.save_index(config["index"])


def search(config):
    queries = vectors.Rows(config["queries"]).read().astype(numpy.float32)
    truth = vectors.truth(config["truth"])
    index = hnswlib.Index(space=config["metric"], dim=queries.shape[1])
    index.load_index(config["index"])
    k, threads = config["k"], config["threads"]
    points = []
    for ef in config["lists"]:
        index.set_ef(ef)
        started = time.perf_counter()
        found = index.knn_query(queries, k=k, num_threads=threads)[0].tolist()
        qps = len(queries) / (time.perf_counter() - started)
        points.append({
            "list": ef,
            "recall": sum(vectors.hits(found, *truth, k)) / (k * len(found)),
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
