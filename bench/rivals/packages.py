#!/usr/bin/env python3
"""Packages that pip installs, StratANN from Python and DiskANN's program, side by side on the vectors of jobs.

    python3 bench/rivals/packages.py JOB.toml.. [--only NAME[,NAME..]] [--steps build,tune,time] [--cap MB]
        [--memory SIZE,SIZE] [--repeat N] [--queries N] [--folder rivals-out] [--json FILE] [--python PYTHON]

Engines: stratann-less and stratann-more (with `memory=` of each SIZE: 12% and 21% of the bytes of the base, or
two others such as 48MB,256MB), stratann (without a cap), hnswlib, faiss-hnsw, faiss-ivf (IVF-PQ, ranked again by the vectors), usearch, qdrant (`qdrant-edge-py`),
lancedb (IVF_HNSW_SQ), and diskann where `run.py` has left the program in the folder. bench/rivals/engines has
the settings of each, and bench/rivals/versions.py the versions.

Each step of an engine is a process of its own:
  build   with two threads. The files stay in the folder, and are not made again.
  tune    the first setting of the engine's knob whose recall@10 is .95, and .97, on the queries of even number.
  time    the queries of odd number at that setting, from a cold page cache: one query at a time on one thread,
          and, in another process, all of them on two threads. Medians of N turns, three if none is said.
An engine that has all in memory goes over the queries for a second at least; the others go over them once.

Memory is VmRSS after opening, and the peak (VmHWM) of the searches, less what Python takes with the package
imported and the queries there. DiskANN's is the peak of its process. With --cap the steps of `time` run in a
control group of so many megabytes beyond that, so that the page cache counts too; where this user may make no
group, it says so and goes on. Results stay in FOLDER/packages, and the tables have all that are there.

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
from job import Job

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGETS = [0.95, 0.97]
STEPS = ["build", "tune", "time"]
SECONDS = 1800  # a step that takes longer is ended
CAPPED_SECONDS = 60  # the same under a cap, where a search may read forever


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", type=pathlib.Path)
    parser.add_argument("--only", default=",".join([*ENGINES, "diskann"]))
    parser.add_argument("--steps", default=",".join(STEPS))
    parser.add_argument("--cap", type=int, metavar="MB")
    parser.add_argument("--memory", default="12%,21%", type=caps, metavar="SIZE,SIZE")
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

    only, steps = named(arguments.only, [*ENGINES, "diskann"]), named(arguments.steps, STEPS)
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    python = arguments.python or installed(folder)
    everything = {}
    for path in arguments.jobs:
        run = Run(Job(path), folder, python, arguments)
        for name in only:
            if name != "diskann":
                run.package(name, steps)
            elif diskann.path_of(folder).is_file():
                run.diskann(steps)
            else:
                print(f"diskann: left out, {diskann.path_of(folder)} is not there (run.py makes it)", file=sys.stderr)
        everything[run.job.name] = run.results()
        show(run.job, everything[run.job.name], arguments.cap)
    if arguments.json:
        arguments.json.write_text(json.dumps({**machine(), "cap_mb": arguments.cap, "jobs": everything}, indent=2) + "\n")


def caps(value):
    """Two caps, each as a factor and whether it counts in bytes of the base."""
    said = []
    for word in value.split(","):
        unit = {"%": 0.01, "MB": 1e6}.get(word.lstrip("0123456789."))
        if unit is None:
            raise ValueError(value)
        said.append((float(word.rstrip("%MB")) * unit, word.endswith("%")))
    if len(said) != 2:
        raise ValueError(value)
    return said


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
        self.tune, self.time = halves(job, self.folder, arguments.queries)
        self.timed = f"time-{arguments.cap}MB" if arguments.cap else "time"

    def package(self, name, steps):
        """An engine driven from Python."""
        if "build" in steps:
            self.write(name, "build", self.step(name, "build", {}))
        if "tune" in steps:
            self.write(name, "tune", self.step(name, "tune", {**self.tune, "targets": TARGETS}))
        if "time" not in steps:
            return
        tuned = self.read(name, "tune") or {}
        measured = {str(target): {"failed": tuned["failed"]} for target in TARGETS if "failed" in tuned}
        for target, knob in self.knobs(name).items():
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
        size = job.base.stat().st_size - 8
        memory = [round(factor * (size if of_base else 1)) for factor, of_base in self.arguments.memory]
        asked = {
            "engine": name, "step": step, "folder": str(self.folder), "base": str(job.base), "metric": job.metric,
            "dim": job.dim, "memory": memory, **more,
        }
        limit = {"build": None, "tune": SECONDS}.get(step, CAPPED_SECONDS if more.get("group") else SECONDS)
        print(f"+ {job.name} {name} {step} {more.get('knob', '')}", file=sys.stderr, flush=True)
        try:
            done = subprocess.run(
                [self.python, HERE / "step.py", json.dumps(asked)], capture_output=True, text=True, timeout=limit
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not done within {limit} s"}
        sys.stderr.write(done.stderr)
        if done.returncode:
            last = (done.stderr.splitlines() or [f"status {done.returncode}"])[-1]
            return {"failed": "killed" if done.returncode == -9 else last}
        return json.loads(done.stdout.splitlines()[-1])

    def diskann(self, steps):
        """DiskANN's program: it measures itself, and counts its reads."""
        index = diskann.DiskAnn(self.job, self.shared)
        if "build" in steps and not self.read("diskann", "build"):
            built = index.build()
            storage = sum(file.stat().st_size for file in index.files())
            title = {"title": f"DiskANN {versions.DISKANN}", "version": versions.DISKANN}
            self.write("diskann", "build", {**built, **title, "storage_bytes": storage})
        if "tune" in steps:
            tried = [
                (point["list"], point["recall"])
                for point in index.search(self.tune["queries"], self.tune["truth"], LISTS, 2)[0]
            ]
            found = {str(goal): [size for size, recall in tried if recall >= goal][:1] for goal in TARGETS}
            knobs = {goal: sizes[0] for goal, sizes in found.items() if sizes}
            self.write("diskann", "tune", {"knobs": knobs, "tried": tried})
        if "time" in steps and not self.arguments.cap:
            asked = lambda knob, threads: index.search(self.time["queries"], self.time["truth"], [knob], threads)[0][0]
            measured = {}
            for target, knob in self.knobs("diskann").items():
                turns = []
                for _ in range(self.arguments.repeat):
                    for file in index.files():
                        process.drop_cache(file)
                    one, two = asked(knob, 1), asked(knob, 2)
                    turns.append({
                        "knob": f"L={knob}", "recall": one["recall"], "mean_us": one["mean_us"], "p99_us": None, "cpu_us": None,
                        "peak_bytes": one["memory"], "loaded_bytes": None, "qps": two["qps"], "reads": one["reads"],
                    })
                measured[target] = medians(turns)
            self.write("diskann", "time", measured)

    def knobs(self, name):
        return (self.read(name, "tune") or {}).get("knobs", {})

    def write(self, name, step, said):
        (self.folder / f"{name}.{step}.json").write_text(json.dumps(said, indent=2) + "\n")

    def read(self, name, step):
        path = self.folder / f"{name}.{step}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def results(self):
        """All that was measured, also in earlier calls."""
        found = {}
        for name in [*ENGINES, "diskann"]:
            built, timed = self.read(name, "build"), self.read(name, self.timed)
            if built and timed:
                found[name] = {"build": built, "tune": self.read(name, "tune"), "time": timed}
        return found


def halves(job, folder, most):
    """Queries and answers of even and odd number, in files of their own, as two sets of arguments of a step."""
    sets = []
    for first, name in enumerate(["tune", "time"]):
        queries, truth = folder / f"{name}.query{job.queries.suffix}", folder / f"{name}.truth.bin"
        rows, count, _ = rows_of(job.queries)
        numbers = range(first, min(most, count), 2)
        write_rows(queries, [rows], numbers)
        ids, answered, k = rows_of(job.truth)
        if answered < count:
            sys.exit(f"error: {job.truth} has answers to {answered} of {count} queries. Make it with `stratann truth`.")
        # Behind all ids may be all distances.
        with open(job.truth, "rb") as file:
            file.seek(8 + answered * k * 4)
            distances = file.read(answered * k * 4)
        write_rows(truth, [ids, (distances, k * 4)] if distances else [ids], numbers)
        sets.append({"queries": str(queries), "truth": str(truth)})
    return sets


def rows_of(path):
    """The bytes of the rows of a file and the bytes of one, how many there are, and their length."""
    content = path.read_bytes()
    count, length = (int.from_bytes(content[at : at + 4], "little") for at in (0, 4))
    element = {".u8bin": 1, ".i8bin": 1, ".hbin": 2}.get(path.suffix, 4)
    return (content[8 : 8 + count * length * element], length * element), count, length


def write_rows(path, blocks, numbers):
    """A file of these rows of each block; its second number is the elements of a row, as in the first block."""
    element = {".u8bin": 1, ".i8bin": 1, ".hbin": 2}.get(path.suffix, 4)
    with open(path, "wb") as file:
        file.write(len(numbers).to_bytes(4, "little") + (blocks[0][1] // element).to_bytes(4, "little"))
        for content, size in blocks:
            file.writelines(content[number * size : (number + 1) * size] for number in numbers)


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
    print("\n| | on storage | memory | mean, one thread | queries a second, two threads |\n|---|---|---|---|---|")
    for result in results.values():
        built, point = result["build"], result["time"].get(str(TARGETS[0]), {})
        if "mean_us" in point and "failed" not in built:
            print(
                f"| {built['title']} | {built['storage_bytes'] / 1e6:,.0f} MB | {point['peak_bytes'] / 1e6:,.0f} MB | "
                f"{point['mean_us']:,.0f} µs | {point['qps']:,.0f} |"
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
