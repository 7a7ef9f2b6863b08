#!/usr/bin/env python3
"""Runs published programs on the data of a benchmark job, then StratANN beside them.

    python3 bench/rivals/run.py JOB.toml [--only NAME] [--folder rivals-out] [--stratann PROGRAM]

Installs the programs into the folder, which you can delete afterwards. For each program it writes
NAME.json there, in the form that `stratann bench --with` reads. Needs Python 3.11 or later.
"""

import argparse
import json
import os
import pathlib
import statistics
import struct
import subprocess
import sys
import time

try:
    import tomllib
except ImportError:
    sys.exit("error: Python 3.11 or later is needed (it reads the job with tomllib)")

HERE = pathlib.Path(__file__).resolve().parent
DISKANN = "0.61.0"
# DiskANN's name of the elements, by extension.
ELEMENTS = {".u8bin": "uint8", ".i8bin": "int8", ".fbin": "float32", ".hbin": "float16"}
DISTANCES = {"l2": "squared_l2", "ip": "inner_product", "cosine": "cosine"}


class Job:
    """The parts of a job that the rivals need."""

    def __init__(self, path):
        with open(path, "rb") as file:
            job = tomllib.load(file)
        data, build, search = job["data"], job.get("build", {}), job.get("search", {})
        root = pathlib.Path(os.environ.get("STRATANN_DATA") or path.parent / data.get("root", "."))
        self.name = job["name"]
        self.base, self.queries, self.truth = (
            (root / data[what]).resolve() for what in ("base", "queries", "truth")
        )
        for file in (self.base, self.queries, self.truth):
            if not file.is_file():
                sys.exit(f"error: {file} does not exist. Set STRATANN_DATA to the folder of the data")
        if self.base.suffix not in ELEMENTS:
            sys.exit(f"error: {self.base} has another format than the rivals read. Give one of {', '.join(ELEMENTS)}")
        self.metric = data["metric"]
        if self.metric not in DISTANCES:
            sys.exit(f"error: metric = \"{self.metric}\" is unknown to the rivals. Give one of {', '.join(DISTANCES)}")
        with open(self.base, "rb") as file:
            self.rows, self.dim = struct.unpack("<II", file.read(8))
        self.repeat = job.get("repeat", 3)
        self.degree = build.get("degree", 64)
        self.build_list = build.get("build_list", 100)
        self.code_bytes = build.get("code_bytes", -(-self.dim // 4))
        self.build_threads = build.get("threads", os.cpu_count())
        self.k = search.get("k", 10)
        self.lists = [size for size in search.get("lists", [20, 40, 60, 100]) if size >= self.k]
        self.threads = search.get("threads", 1)
        self.beam = search.get("beam", 4)


def run(command, **options):
    """Runs a command that must succeed. Returns seconds, CPU seconds and peak memory of the
    process."""
    print("+", " ".join(str(word) for word in command), file=sys.stderr, flush=True)
    started = time.monotonic()
    process = subprocess.Popen([str(word) for word in command], **options)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"error: {command[0]} failed with status {process.returncode}; its message is above")
    return {
        "seconds": time.monotonic() - started,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def medians(turns):
    """The median of each figure over rounds of points; of the peak memory the maximum."""
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


def microseconds(value, qps, threads):
    """A latency in microseconds, from one in an unknown unit, which follows from threads / qps."""
    expected = threads * 1e6 / qps
    return min((value * scale for scale in (1e-3, 1.0, 1e3, 1e6)), key=lambda us: abs(us / expected - 1))


def diskann_points(output, threads, memory):
    """The points in the output of diskann-benchmark."""
    with open(output, "rb") as file:
        results = json.load(file)[0]["results"]["search"]["search_results_per_l"]
    points = []
    for result in results:
        recall = result["recall"]
        # Written as a percentage by some versions.
        recall = recall / 100 if recall > 1 else recall
        scale = microseconds(result["mean_latency"], result["qps"], threads) / result["mean_latency"]
        points.append(
            {
                "list": result["search_l"],
                "recall": recall,
                "qps": result["qps"],
                "reads": result["mean_ios"],
                "mean_us": result["mean_latency"] * scale,
                "p95_us": result["p95_latency"] * scale,
                "p99_us": None,
                "p999_us": result["p999_latency"] * scale,
                "memory": memory,
            }
        )
    return points


def diskann(job, folder):
    """DiskANN's own program. It builds once, then loads and searches once for each repeat of the
    job."""
    program = folder / "cargo" / "bin" / "diskann-benchmark"
    if not program.is_file():
        run(["cargo", "install", "diskann-benchmark", "--version", DISKANN, "--features", "disk-index", "--locked",
             "--root", folder / "cargo"])
    element, distance = ELEMENTS[job.base.suffix], DISTANCES[job.metric]
    index = folder / f"diskann-{job.name}"
    search = {
        "queries": str(job.queries), "groundtruth": str(job.truth), "search_list": job.lists, "beam_width": job.beam,
        "recall_at": job.k, "num_threads": job.threads, "is_flat_search": False, "distance": distance,
        "vector_filters_file": None, "num_nodes_to_cache": None, "search_io_limit": None,
    }
    build = {
        "disk-index-source": "Build", "data_type": element, "data": str(job.base), "distance": distance,
        "dim": job.dim, "max_degree": job.degree, "l_build": job.build_list, "num_threads": job.build_threads,
        "build_ram_limit_gb": 16.0, "num_pq_chunks": job.code_bytes, "quantization_type": "FP",
        "save_path": str(index),
    }
    load = {"disk-index-source": "Load", "data_type": element, "load_path": str(index)}

    def step(source, what):
        config, output = folder / f"diskann-{what}.in.json", folder / f"diskann-{what}.out.json"
        output.unlink(missing_ok=True)
        content = {"source": source, "search_phase": search}
        config.write_text(json.dumps({"search_directories": [], "jobs": [{"type": "disk-index", "content": content}]}))
        cost = run([program, "run", "--input-file", config, "--output-file", output], stdout=sys.stderr)
        return output, cost

    _, built = step(build, "build")
    turns = []
    for _ in range(job.repeat):
        output, cost = step(load, "search")
        turns.append(diskann_points(output, job.threads, cost["peak_bytes"]))
    return {
        "name": f"DiskANN {DISKANN}",
        "points": medians(turns),
        "build": built | {"note": "with one search"},
        "index_bytes": sum(file.stat().st_size for file in folder.glob(f"{index.name}*") if file.is_file()),
        "parameters": {"R": job.degree, "L": job.build_list, "W": job.beam, "code_bytes": job.code_bytes,
                       "threads": job.threads},
    }


def hnswlib(job, folder):
    """HNSW in memory, by its authors' Python package."""
    python = folder / "venv" / "bin" / "python"
    if not python.is_file():
        run([sys.executable, "-m", "venv", folder / "venv"])
    if subprocess.run([python, "-c", "import hnswlib, numpy"], stderr=subprocess.DEVNULL).returncode != 0:
        run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "hnswlib", "numpy"])
    index = folder / f"hnswlib-{job.name}.bin"
    config, output = folder / "hnswlib.in.json", folder / "hnswlib.out.json"
    config.write_text(json.dumps({
        "base": str(job.base), "queries": str(job.queries), "truth": str(job.truth), "metric": job.metric,
        "k": job.k, "lists": job.lists, "build_threads": job.build_threads, "threads": job.threads,
        "M": 32, "ef_construction": 100, "index": str(index), "output": str(output),
    }))
    # A separate process searches, since the kernel's peak would else include the build.
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


RIVALS = {"diskann": diskann, "hnswlib": hnswlib}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=RIVALS, help="runs this program only; may be repeated")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("rivals-out"))
    parser.add_argument("--stratann", type=pathlib.Path, help="the StratANN program; built with cargo if absent")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("bench/out"), help="the folder of results")
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
