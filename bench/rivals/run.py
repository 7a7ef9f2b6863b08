#!/usr/bin/env python3
"""Measures DiskANN's program and hnswlib on the data of a benchmark job, and then StratANN.

    python3 bench/rivals/run.py JOB.toml [--only NAME] [--folder rivals-out] [--stratann PROGRAM]

The script installs both programs into the folder of --folder, which you may delete afterwards. For
each program, it writes NAME-JOB.json into this folder, in the form that `stratann bench --with`
reads. Needs Python 3.11 or later, and the tools that bench/rivals/README.md lists.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import diskann
import versions
from diskann import run
from job import Job

HERE = pathlib.Path(__file__).resolve().parent


def medians(turns):
    """Merges the points of all turns: the median of each figure, and the largest peak memory."""
    merged = []
    for points in zip(*turns, strict=True):
        point = {}
        for key in points[0]:
            values = [one[key] for one in points]
            if any(value is None for value in values):
                point[key] = None
            elif key == "memory":
                point[key] = max(values)
            elif key == "list":
                point[key] = values[0]
            else:
                point[key] = statistics.median(values)
        merged.append(point)
    return merged


def by_diskann(job, folder):
    """DiskANN's own program. It builds one index, and loads and searches it `repeat` times."""
    diskann.install(folder)
    index = diskann.DiskAnn(job, folder)
    built = index.build()
    turns = [index.search(job.queries, job.truth, job.lists, job.threads)[0] for _ in range(job.repeat)]
    return {
        "name": f"DiskANN {versions.DISKANN}",
        "points": medians(turns),
        "build": built,
        "index_bytes": sum(file.stat().st_size for file in index.files()),
        "parameters": {"R": job.degree, "L": job.build_list, "W": job.beam, "code_bytes": job.code_bytes,
                       "threads": job.threads},
    }


def hnswlib(job, folder):
    """HNSW in memory, from the Python package of HNSW's authors."""
    python = folder / "venv" / "bin" / "python"
    if not python.is_file():
        run([sys.executable, "-m", "venv", folder / "venv"])
    if subprocess.run([python, "-c", "import hnswlib, numpy"], stderr=subprocess.DEVNULL).returncode != 0:
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             *versions.pinned("hnswlib", "numpy")])
    index = folder / f"hnswlib-{job.name}.bin"
    config, output = folder / "hnswlib.in.json", folder / "hnswlib.out.json"
    config.write_text(json.dumps({
        "base": str(job.base), "queries": str(job.queries), "truth": str(job.truth), "metric": job.metric,
        "k": job.k, "lists": job.lists, "build_threads": job.build_threads, "threads": job.threads,
        "M": 32, "ef_construction": 100, "index": str(index), "output": str(output),
    }))
    # Each search is a separate process, since the peak memory of a process includes its build.
    built = run([python, HERE / "hnsw.py", "build", config])
    turns = []
    for _ in range(job.repeat):
        cost = run([python, HERE / "hnsw.py", "search", config])
        points = json.loads(output.read_text())
        turns.append([point | {"memory": cost["peak_bytes"]} for point in points])
    return {
        "name": "hnswlib (all in RAM)",
        "points": medians(turns),
        "build": built,
        "index_bytes": index.stat().st_size,
        "parameters": {"M": 32, "ef_construction": 100, "threads": job.threads},
    }


RIVALS = {"diskann": by_diskann, "hnswlib": hnswlib}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=RIVALS, help="measures only this program; several --only are possible")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("rivals-out"), help="for programs, indexes and measurements")
    parser.add_argument("--stratann", type=pathlib.Path, help="the `stratann` command; if not given, cargo builds it")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/out"), help="the folder for the results of `stratann bench`")
    arguments = parser.parse_args()
    job = Job(arguments.job)
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    words = []
    for name in arguments.only or RIVALS:
        result = RIVALS[name](job, folder)
        path = folder / f"{name}-{job.name}.json"
        path.write_text(json.dumps(result, indent=2) + "\n")
        words += ["--with", path]
    program = arguments.stratann
    if program is None:
        run(["cargo", "build", "--release", "--locked", "--package", "stratann-cli"])
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target"))
        program = target / "release" / "stratann"
    run([program, "bench", arguments.job, "--out", arguments.out, *words])


if __name__ == "__main__":
    main()
