#!/usr/bin/env python3
"""Compares StratANN from Python with other packages of PyPI, and with DiskANN's program, on the
vectors of jobs.

    python3 bench/rivals/packages.py JOB.toml.. [--only NAME[,NAME..]] [--steps build,tune,time]
        [--cap MB] [--memory 48MB,256MB] [--repeat N] [--queries N] [--folder rivals-out]
        [--json FILE] [--python PYTHON]

The names for --only:

  stratann-less   StratANN with the smallest `memory` of the job's runs of `stratann`. --memory
                  replaces the sizes of the job.
  stratann-more   StratANN with the largest of these sizes.
  stratann        StratANN without a cap on memory.
  stratann-whole  StratANN with memory for the whole index.
  hnswlib, faiss-hnsw, usearch
                  HNSW in memory.
  faiss-ivf       IVF-PQ, with candidates re-ranked by their vectors.
  qdrant          `qdrant-edge-py`.
  lancedb         IVF_HNSW_SQ.
  diskann         DiskANN's program without a cache, if `run.py` has installed it in the folder.
  diskann-less    DiskANN's program with a cache. The cache has as many nodes as fit if the whole
                  process stays within the cap of stratann-less.
  diskann-more    The same with the cap of stratann-more.

bench/rivals/engines has the settings of each package, and bench/rivals/versions.py the versions.

Each step of an engine runs in a separate process:

  build   Makes the files with two threads. Files that exist already are used again.
  tune    Finds the first setting of the engine's knob with recall@10 of .95, and of .97. It uses
          the queries with even numbers.
  time    Searches at these settings with the queries with odd numbers, and begins with a cold page
          cache. One process searches with one query at a time on one thread. Another process
          searches with all queries on two threads. Figures are medians of N turns (3).

An engine in memory repeats the queries for at least a second. An engine that reads files searches
once with each query.

Memory is VmRSS after opening, and the peak (VmHWM) of the searches. The memory of Python with the
imported package and the queries is subtracted from both. The memory of DiskANN is the peak of its
whole process. DiskANN counts cached nodes as reads, so its reads are counted by the kernel: one
process searches once with each query, and another process twice. The difference is the reads of
one pass.

With --cap, the searches of `time` run in a control group. Its limit is the cap, and the memory of
Python, the package and the queries is outside it. The page cache is inside it. If this user cannot
make a control group, the script prints a message and measures without a cap.

The script writes its measurements to FOLDER/packages. The tables also show earlier measurements
from there. Without --python, the script installs the packages, and StratANN of this tree, into
FOLDER/venv. Needs Python 3.11 or later.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys

import diskann
import process
import versions
from engines import ENGINES, LISTS
from job import Job, size

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGETS = [0.95, 0.97]
STEPS = ["build", "tune", "time"]
# The index of the cap in `Run.memory`. None is no cache.
DISKANN = {"diskann": None, "diskann-less": 0, "diskann-more": 1}
NAMES = [*ENGINES, *DISKANN]
SECONDS = 1800  # the time limit of a step
# The same with --cap, since a search may then read the same pages again and again.
CAPPED_SECONDS = 60


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(NAMES))
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--cap", type=int, metavar="MB")
    parser.add_argument("--memory", type=lambda value: [size(word) for word in value.split(",")], metavar="SIZE,SIZE")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--queries", type=int, default=5_000)
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("rivals-out"))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path)
    arguments = parser.parse_args()
    def named(value, known):
        unknown = set(value.split(",")).difference(known)
        if unknown:
            parser.error(f"{', '.join(sorted(unknown))}; no such name. Choose from {', '.join(known)}")
        return [name for name in known if name in value.split(",")]

    only, steps = named(arguments.only, NAMES), named(arguments.steps, STEPS)
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    python = arguments.python or installed(folder)
    everything = {}
    for path in arguments.jobs:
        run = Run(Job(path), folder, python, arguments)
        for name in only:
            if name in ENGINES:
                run.package(name, steps)
            elif diskann.path_of(folder).is_file():
                run.diskann(name, steps)
            else:
                print(f"{name}: left out, since {diskann.path_of(folder)} does not exist. run.py installs it", file=sys.stderr)
        everything[run.job.name] = run.results()
        show(run.job, everything[run.job.name], arguments.cap)
    if arguments.json:
        arguments.json.write_text(json.dumps({**machine(), "cap_mb": arguments.cap, "jobs": everything}, indent=2) + "\n")


def installed(folder):
    """Installs the packages and StratANN of this tree, and returns the path of their Python."""
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([*pip, *versions.pinned()], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", ROOT], check=True)
    return python


class Run:
    """Measures the engines on one job."""

    def __init__(self, job, folder, python, arguments):
        self.job, self.python, self.arguments = job, python, arguments
        self.shared = folder
        self.folder = folder / "packages" / job.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.memory = arguments.memory or job.caps
        if self.memory is None or len(self.memory) != 2:
            sys.exit(f"error: {job.name}; two caps on memory are needed, from the job's runs of `stratann` or from --memory. Give --memory SIZE,SIZE")
        self.tune, self.time = job.halves(self.folder, arguments.queries)
        self.timed = f"time-{arguments.cap}MB" if arguments.cap else "time"

    def package(self, name, steps):
        """Runs the steps of an engine that has a Python package."""
        if "build" in steps:
            self.write(name, "build", self.step(name, "build", {}))
        if "failed" in (self.read(name, "build") or {}):
            return
        if "tune" in steps:
            self.write(name, "tune", self.step(name, "tune", {**self.tune, "targets": TARGETS}))
        if "time" not in steps:
            return
        tuned = self.read(name, "tune") or {}
        measured = {str(target): tuned for target in TARGETS if "failed" in tuned}
        for target, knob in tuned.get("knobs", {}).items():
            turns = [self.turn(name, knob) for _ in range(self.arguments.repeat)]
            failed = [turn for turn in turns if "failed" in turn]
            measured[target] = failed[0] if failed else medians(turns)
        self.write(name, self.timed, measured)

    def turn(self, name, knob):
        """Searches with one query at a time, and with all queries on two threads, in two new
        processes.
        """
        said = {}
        for step in ("latency", "throughput"):
            limit = self.arguments.cap and self.arguments.cap * 1_000_000
            with process.control_group(limit) if limit else contextlib.nullcontext() as group:
                if limit and group is None:
                    print(f"{name}: measured without the cap, since this user cannot make a control group", file=sys.stderr)
                said = {**self.step(name, step, {**self.time, "knob": knob, "group": group and str(group)}), **said}
            if "failed" in said:
                return said
        return said

    def step(self, name, step, more):
        """Runs a step in a new process. Returns its results, or the reason why it failed."""
        job = self.job
        asked = {
            "engine": name, "step": step, "folder": str(self.folder), "base": str(job.base), "metric": job.metric,
            "dim": job.dim, "memory": self.memory, **more,
        }
        limit = {"build": None, "tune": SECONDS}.get(step, CAPPED_SECONDS if more.get("group") else SECONDS)
        print(f"+ {job.name} {name} {step} {more.get('knob', '')}", file=sys.stderr, flush=True)
        command, failed = [self.python, HERE / "step.py", json.dumps(asked)], None
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as done:
            try:
                said, told = done.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                done.kill()
                said, told = done.communicate()
                failed = f"not done within {limit} s"
        sys.stderr.write(told)
        if done.returncode and not failed:
            last = (told.splitlines() or [f"status {done.returncode}"])[-1]
            failed = "killed" if done.returncode == -9 else last
        # The process prints the engine's name first, so it is known even if the step fails.
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        named = {"title": name, **(lines[0] if lines else {})}
        return {**named, "failed": failed} if failed else {**named, **lines[-1]}

    def diskann(self, name, steps):
        """Runs the steps of DiskANN's program, which measures its own searches."""
        index = diskann.DiskAnn(self.job, self.shared)
        for step in steps:
            if step == "time" and self.arguments.cap:
                continue
            try:
                said = getattr(self, f"diskann_{step}")(index, name)
            except SystemExit as ended:
                failed = {"title": self.diskann_title(name), "failed": str(ended)}
                said = failed if step != "time" else {str(target): failed for target in TARGETS}
            self.write(name, step, said)

    def diskann_build(self, index, name):
        """Builds the index, which all caps share."""
        built = self.read("diskann", "build")
        if not built or "failed" in built:
            cost = index.build()
            storage = sum(file.stat().st_size for file in index.files())
            built = {"version": versions.DISKANN, "storage_bytes": storage, **cost}
            self.write("diskann", "build", {**built, "title": self.diskann_title("diskann")})
        return {**built, "title": self.diskann_title(name)}

    def diskann_title(self, name):
        cap = DISKANN[name]
        return "DiskANN, no cache" if cap is None else f"DiskANN, nodes cached within {self.memory[cap] / 1e6:.0f} MB"

    def diskann_tune(self, index, name):
        """The number of cached nodes for the cap, and the first list size that reaches each recall.
        """
        queries, truth = self.tune["queries"], self.tune["truth"]
        cached, cap = None, DISKANN[name]
        if cap is not None:
            cached, bare = index.nodes_within(self.memory[cap], self.time["queries"], self.time["truth"])
            if cached is None:
                why = f"takes {bare / 1e6:,.0f} MB without a cache"
                return {"title": self.diskann_title(name), "failed": why}
        knobs, tried = {}, []
        for knob in LISTS:
            recall = index.search(queries, truth, [knob], 2, cached)[0][0]["recall"]
            tried.append([knob, recall])
            for target in TARGETS:
                if recall >= target:
                    knobs.setdefault(str(target), knob)
            if len(knobs) == len(TARGETS):
                break
        return {"knobs": knobs, "tried": tried, "cached": cached}

    def diskann_time(self, index, name):
        tuned = self.read(name, "tune") or {}
        measured = {str(target): tuned for target in TARGETS if "failed" in tuned}
        for target, knob in tuned.get("knobs", {}).items():
            measured[target] = medians([self.diskann_turn(index, knob, tuned["cached"]) for _ in range(self.arguments.repeat)])
        return measured

    def diskann_turn(self, index, knob, cached):
        """Searches with one query at a time on one thread, and with all queries on two threads. The
        first process searches once with each query, and the second process twice. The difference
        between their reads is the reads of one pass.
        """
        runs = []
        for lists, threads in (([knob], 1), ([knob, knob], 2)):
            for file in index.files():
                process.drop_cache(file)
            runs.append(index.search(self.time["queries"], self.time["truth"], lists, threads, cached))
        (one, once), (two, twice) = ((points[0], cost) for points, cost in runs)
        reads = (twice["read_bytes"] - once["read_bytes"]) / diskann.READ / self.time["count"]
        return {
            "knob": f"L={knob}", "recall": one["recall"], "mean_us": one["mean_us"], "p99_us": None, "cpu_us": None,
            "peak_bytes": one["memory"], "loaded_bytes": None, "qps": two["qps"], "reads": reads,
            "visited": one["reads"], "cached": cached,
        }

    def write(self, name, step, said):
        (self.folder / f"{name}.{step}.json").write_text(json.dumps(said, indent=2) + "\n")

    def read(self, name, step):
        path = self.folder / f"{name}.{step}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def results(self):
        """The measurements of this call and of earlier calls."""
        found = {}
        for name in NAMES:
            built, timed = self.read(name, "build"), self.read(name, self.timed)
            if built and (timed or "failed" in built):
                found[name] = {"build": built, "tune": self.read(name, "tune"), "time": timed or {}}
        return found


def medians(turns):
    """Merges the turns: the median of each figure, the largest memory, and the first of each text.
    """
    merged = {}
    for key, value in turns[0].items():
        values = [turn[key] for turn in turns]
        if not isinstance(value, (int, float)):
            merged[key] = value
        else:
            merged[key] = max(values) if key.endswith("_bytes") else statistics.median(values)
    return {**merged, "turns": turns}


def machine():
    """The date, the commit, and the processor of this machine."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], stdout=subprocess.PIPE, text=True)
    return {
        "date": datetime.date.today().isoformat(), "commit": commit.stdout.strip(), "processor": model,
        "cores": len(os.sched_getaffinity(0)),
    }


def show(job, results, cap):
    """Prints the table of docs/results/rivals.md, and the shorter table of README.md."""
    under = f", under a cap of {cap} MB" if cap else ""
    print(f"\n{job.name}: {job.rows} rows, recall {' / '.join(map(str, TARGETS))}{under}\n")
    print("| | version | build CPU s, peak MB | storage MB | loaded, peak MB | recall | mean µs, one thread | p99 µs | CPU µs | queries/s, two threads | reads |")
    print("|---" * 11 + "|")
    for result in results.values():
        built = result["build"]
        if "failed" in built:
            print(f"| {built.get('title', '')} | | build: {built['failed']} |" + " |" * 8)
            continue
        points = [result["time"].get(str(target), {}) for target in TARGETS]
        each = lambda key, digits=0: " / ".join(figure(point, key, digits) for point in points)
        print(
            f"| {built['title']} | {built['version']} | {built['cpu_seconds']:,.0f}, {built['peak_bytes'] / 1e6:,.0f} | "
            f"{built['storage_bytes'] / 1e6:,.0f} | {largest(points, 'loaded_bytes')}, {largest(points, 'peak_bytes')} | "
            f"{each('recall', 3)} | {each('mean_us')} | {each('p99_us')} | {each('cpu_us')} | {each('qps')} | {each('reads', 1)} |"
        )
    print("\n| | recall | on storage | memory | reads | mean, one thread | queries a second, two threads |" + "\n" + "|---" * 7 + "|")
    for result in results.values():
        built, point = result["build"], result["time"].get(str(TARGETS[0]), {})
        if "mean_us" in point and "failed" not in built:
            print(
                f"| {built['title']} | {figure(point, 'recall', 3)} | {built['storage_bytes'] / 1e6:,.0f} MB | "
                f"{point['peak_bytes'] / 1e6:,.0f} MB | {figure(point, 'reads', 1)} | {point['mean_us']:,.0f} µs | {point['qps']:,.0f} |"
            )
    sys.stdout.flush()


def figure(point, key, digits):
    """A figure of a point, or "-" if the point has none. If the recall is missing, the reason."""
    if key == "recall" and "recall" not in point:
        return point.get("failed", "not reached")
    value = point.get(key)
    return "-" if value is None else f"{value:,.{digits}f}"


def largest(points, key):
    values = [point[key] for point in points if point.get(key) is not None]
    return f"{max(values) / 1e6:,.0f}" if values else "-"


if __name__ == "__main__":
    main()
