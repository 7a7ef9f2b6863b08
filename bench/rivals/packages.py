#!/usr/bin/env python3
"""Packages that pip installs, StratANN from Python and DiskANN's program, side by side on the vectors of jobs.

    python3 bench/rivals/packages.py JOB.toml.. [--only NAME[,NAME..]] [--steps build,tune,time] [--cap MB]
        [--memory 48MB,256MB] [--repeat N] [--queries N] [--folder rivals-out] [--json FILE] [--python PYTHON]

Engines: stratann-less, stratann-more (with the least and the most `memory` that the job gives its runs of
`stratann`, or that --memory says), stratann (without a cap) and stratann-whole (with memory for the whole
index); hnswlib, faiss-hnsw, faiss-ivf (IVF-PQ, ranked again by the vectors), usearch, qdrant
(`qdrant-edge-py`), lancedb (IVF_HNSW_SQ). diskann is DiskANN's program without a cache, where `run.py` has left it in the folder. diskann-less and diskann-more cache as many nodes as
the same two caps hold, the whole process included. bench/rivals/engines has the settings of each, and
bench/rivals/versions.py the versions.

Each step of an engine is a process of its own:
  build   with two threads. The files stay in the folder, and are not made again.
  tune    the first setting of the engine's knob whose recall@10 is .95, and .97, on the queries of even number.
  time    the queries of odd number at that setting, from a cold page cache: one query at a time on one thread,
          and, in another process, all of them on two threads. Medians of N turns, three if none is said.
An engine that has all in memory goes over the queries for a second at least; the others go over them once.

Memory is VmRSS after opening, and the peak (VmHWM) of the searches, less what Python takes with the package
imported and the queries there. DiskANN's is the peak of its process. Its reads are those of the kernel, since
it counts cached nodes as reads: a second turn over the queries in one process says how many a turn takes. With
--cap the steps of `time` run in a control group of so many megabytes beyond that, so that the page cache counts
too; where this user may make no group, it says so and goes on. Results stay in FOLDER/packages, and the tables have all that are there.

Installs into FOLDER/venv, StratANN from this tree, or runs with a PYTHON that has everything. Python 3.11.
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
DISKANN = {"diskann": None, "diskann-less": 0, "diskann-more": 1}  # the cap of each, by its place among the two
NAMES = [*ENGINES, *DISKANN]
SECONDS = 1800  # a step that takes longer is ended
CAPPED_SECONDS = 60  # the same under a cap, where a search may read forever


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
            parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}")
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
                print(f"{name}: left out, {diskann.path_of(folder)} is not there (run.py makes it)", file=sys.stderr)
        everything[run.job.name] = run.results()
        show(run.job, everything[run.job.name], arguments.cap)
    if arguments.json:
        arguments.json.write_text(json.dumps({**machine(), "cap_mb": arguments.cap, "jobs": everything}, indent=2) + "\n")


def installed(folder):
    """A Python that has the packages, and StratANN of this tree."""
    python = folder / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if not python.is_file():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    subprocess.run([*pip, *versions.pinned()], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", ROOT], check=True)
    return python


class Run:
    """The engines on one job."""

    def __init__(self, job, folder, python, arguments):
        self.job, self.python, self.arguments = job, python, arguments
        self.shared = folder
        self.folder = folder / "packages" / job.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.memory = arguments.memory or job.caps
        if self.memory is None or len(self.memory) != 2:
            sys.exit(f"error: {job.name} has no two runs of `stratann` with `memory`, and two caps are needed. Give --memory.")
        self.tune, self.time = job.halves(self.folder, arguments.queries)
        self.timed = f"time-{arguments.cap}MB" if arguments.cap else "time"

    def package(self, name, steps):
        """An engine driven from Python."""
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
        """One query at a time, and all on two threads, each in a fresh process."""
        said = {}
        for step in ("latency", "throughput"):
            limit = self.arguments.cap and self.arguments.cap * 1_000_000
            with process.control_group(limit) if limit else contextlib.nullcontext() as group:
                if limit and group is None:
                    print(f"{name}: this user may make no control group, so there is no cap", file=sys.stderr)
                said = {**self.step(name, step, {**self.time, "knob": knob, "group": group and str(group)}), **said}
            if "failed" in said:
                return said
        return said

    def step(self, name, step, more):
        """What a process says of itself, or why it says nothing."""
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
        # The first line has the engine's name, also if the step failed.
        lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
        named = {"title": name, **(lines[0] if lines else {})}
        return {**named, "failed": failed} if failed else {**named, **lines[-1]}

    def diskann(self, name, steps):
        """DiskANN's program, which measures itself."""
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
        """All caps have one index."""
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
        """The nodes that its cap holds, and the first list that reaches each recall."""
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
        """One query at a time on one thread, and all on two threads. The second process goes over the queries
        twice: by how much it reads more is what one turn over them reads."""
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
        """All that was measured, also in earlier calls."""
        found = {}
        for name in NAMES:
            built, timed = self.read(name, "build"), self.read(name, self.timed)
            if built and (timed or "failed" in built):
                found[name] = {"build": built, "tune": self.read(name, "tune"), "time": timed or {}}
        return found


def medians(turns):
    """The median of each figure; the largest memory, and what is no number as it is."""
    merged = {}
    for key, value in turns[0].items():
        values = [turn[key] for turn in turns]
        if not isinstance(value, (int, float)):
            merged[key] = value
        else:
            merged[key] = max(values) if key.endswith("_bytes") else statistics.median(values)
    return {**merged, "turns": turns}


def machine():
    """Where and when, and of which commit."""
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "unknown")
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=8", "HEAD"], stdout=subprocess.PIPE, text=True)
    return {
        "date": datetime.date.today().isoformat(), "commit": commit.stdout.strip(), "processor": model,
        "cores": len(os.sched_getaffinity(0)),
    }


def show(job, results, cap):
    """The table of docs/results/rivals.md, and the shorter one of README.md."""
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
    """A figure of a point, or "-"; in place of the recall, why there is none."""
    if key == "recall" and "recall" not in point:
        return point.get("failed", "not reached")
    value = point.get(key)
    return "-" if value is None else f"{value:,.{digits}f}"


def largest(points, key):
    values = [point[key] for point in points if point.get(key) is not None]
    return f"{max(values) / 1e6:,.0f}" if values else "-"


if __name__ == "__main__":
    main()
