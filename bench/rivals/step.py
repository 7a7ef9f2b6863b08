"""Runs one step of one engine in a separate process. packages.py calls step.py CONFIG, and reads
two lines of JSON: the name of the engine, and the results of the step.

`build` makes the files. `tune` uses half of the queries, and finds the first setting of the knob
that reaches each recall. `latency` and `throughput` search with the other half of the queries at
such a setting, and begin with a cold page cache.
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

AT_LEAST = 1.0  # seconds of searches; an engine in memory repeats all queries until then


def main():
    job = json.loads(sys.argv[1])
    kind = engines.engine(job["engine"])
    path = os.path.join(job["folder"], kind.files)
    engine = kind({**job, "path": path})
    # Printed before the step, so that packages.py has the name even if the step fails.
    print(json.dumps({"title": engine.title, "version": kind.version()}), flush=True)
    print(json.dumps(STEPS[job["step"]](engine, job)))


def build(engine, job):
    """Makes the files, and returns the costs. If the files exist, returns the recorded costs."""
    report = engine.path + ".built.json"
    if os.path.exists(report):
        with open(report) as file:
            return json.load(file)
    for file in process.files(engine.path):  # from an interrupted build
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
    """The first setting that reaches each recall, and the recall of every setting that was tried.
    """
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
    """Searches with one query at a time on one thread. Memory does not include the interpreter, the
    package and the queries.
    """
    queries, truth = asked(job)
    before = opened(engine, job)
    loaded = process.memory("VmRSS") - before
    knob = job["knob"]
    # The first search makes threads and tables, so it is not timed.
    engine.search(queries[-1], knob)
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
    """Searches with all queries on two threads."""
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
    """Opens the files with a cold page cache, and returns the memory of the process before that."""
    process.drop_cache(engine.path)
    if job.get("group"):
        process.enter(job["group"])
    before = process.memory("VmRSS")
    process.reset_peak()
    engine.open()
    return before


def asked(job):
    queries = vectors.Rows(job["queries"]).read()
    # StratANN gets queries in the element type of the file. The other engines get 32-bit floats.
    return queries if job["engine"].startswith("stratann") else queries.astype(numpy.float32), vectors.truth(job["truth"])


def recall_of(found, truth):
    return sum(vectors.hits(found, *truth, engines.K)) / (engines.K * len(found))


STEPS = {"build": build, "tune": tune, "latency": latency, "throughput": throughput}

if __name__ == "__main__":
    main()
