"""One step of one engine, in a process of its own: packages.py calls step.py CONFIG, and reads two
lines of JSON: the name of the engine, and what the step found.

`build` makes the files. `tune` finds the first setting of the knob that reaches each recall, with
half of the queries. `latency` and `throughput` search for the other half at such a setting, from a
cold page cache.
"""

import json
import os
import shutil
import sys
import time

import engines
import numpy
import process
import vectors

AT_LEAST = 1.0  # seconds of searches, by turns over the queries, of an engine that has all in memory


def main():
    job = json.loads(sys.argv[1])
    kind = engines.engine(job["engine"])
    path = os.path.join(job["folder"], kind.files)
    engine = kind({**job, "path": path})
    # A line before the step: one that fails has a name as well.
    print(json.dumps({"title": engine.title, "version": kind.version()}), flush=True)
    print(json.dumps(STEPS[job["step"]](engine, job)))


def build(engine, job):
    """What the files cost; they are made once."""
    report = engine.path + ".built.json"
    if os.path.exists(report):
        with open(report) as file:
            return json.load(file)
    for file in process.files(engine.path):  # of a build that was stopped
        os.remove(file)
    shutil.rmtree(engine.path, ignore_errors=True)
    base = vectors.Rows(job["base"])
    before = process.memory("VmRSS")
    process.reset_peak()
    used, begun = process.cpu(), time.perf_counter()
    engine.build(base)
    built = {
        "cpu_seconds": process.cpu() - used,
        "seconds": time.perf_counter() - begun,
        "peak_bytes": process.memory("VmHWM") - before,
        "storage_bytes": process.size(engine.path),
    }
    with open(report, "w") as file:
        json.dump(built, file)
    return built


def tune(engine, job):
    """For each recall the first setting that reaches it, and what each that was tried finds."""
    queries, truth = asked(job)
    engine.open()
    knobs, tried = {}, []
    for knob in engine.knobs:
        recall = recall_of(engine.search_all(queries, knob), truth)
        tried.append([knob, recall])
        for target in job["targets"]:
            if recall >= target:
                knobs.setdefault(str(target), knob)
        if len(knobs) == len(job["targets"]):
            break
    return {"knobs": knobs, "tried": tried}


def latency(engine, job):
    """One query at a time on one thread; memory above that of the interpreter, package and queries."""
    queries, truth = asked(job)
    before = opened(engine, job)
    loaded = process.memory("VmRSS") - before
    knob = job["knob"]
    engine.search(queries[-1], knob)  # threads and tables that the first search makes
    times, found = [], None
    used = process.cpu()
    while found is None or not (engine.on_storage or sum(times) >= AT_LEAST):
        answers = []
        for query in queries:
            begun = time.perf_counter()
            answers.append(engine.search(query, knob))
            times.append(time.perf_counter() - begun)
        found = found or answers
    return {
        "knob": engine.said(knob),
        "recall": recall_of(found, truth),
        "cpu_us": 1e6 * (process.cpu() - used) / len(times),
        "mean_us": 1e6 * sum(times) / len(times),
        "p99_us": 1e6 * float(numpy.percentile(times, 99)),
        "loaded_bytes": loaded,
        "peak_bytes": process.memory("VmHWM") - before,
    }


def throughput(engine, job):
    """All queries on two threads."""
    queries, truth = asked(job)
    opened(engine, job)
    knob = job["knob"]
    engine.search(queries[-1], knob)
    begun, turns = time.perf_counter(), 0
    while turns == 0 or not (engine.on_storage or time.perf_counter() - begun >= AT_LEAST):
        found = engine.search_all(queries, knob)
        turns += 1
    seconds = time.perf_counter() - begun
    return {
        "qps": turns * len(queries) / seconds,
        "reads": engine.reads(),
        "recall": recall_of(found, truth),
    }


def opened(engine, job):
    """Opens the files, none of which is in the page cache; the memory before."""
    process.drop_cache(engine.path)
    if job.get("group"):
        process.enter(job["group"])
    before = process.memory("VmRSS")
    process.reset_peak()
    engine.open()
    return before


def asked(job):
    queries = vectors.Rows(job["queries"]).read()
    # StratANN takes the elements as they are; the others have searches by 32-bit floats.
    return queries if job["engine"].startswith("stratann") else queries.astype(numpy.float32), vectors.truth(job["truth"])


def recall_of(found, truth):
    return sum(vectors.hits(found, *truth, engines.K)) / (engines.K * len(found))


STEPS = {"build": build, "tune": tune, "latency": latency, "throughput": throughput}

if __name__ == "__main__":
    main()
