#!/usr/bin/env python3
"""Compares filtered searches of StratANN with programs from PyPI, on the same vectors and filters.

    bench/filter_rivals.py DATA FOLDER [SET[,SET..]] [--queries N] [--only NAME[,NAME..]]
                           [--memory SIZE] [--json FILE]

SET is photo-sift-100k (default) or package-text. Rows and filters are the same as in
`bench/filters.py`. A filter of photo-sift matches rows whose number, drawn with a seed, is below a
bound; bounds match shares of .5 to .0001 of the rows. A filter of package-text has words of the
query's own sentence. Queries of package-text are grouped by the number of matching rows. Needs
Python 3.9, and `pip install numpy stratann hnswlib usearch lancedb qdrant-client faiss-cpu`. A
missing package is reported and left out.

Each program runs in its own process. It builds its index in FOLDER, unless FOLDER has it already.
Another process opens the index and searches it, one query at a time, with one thread if the program
has such a setting. For each line of the tables, the script increases the program's knob until
recall@10 is .95 by the exact results. The line has the first setting that reaches this recall, or
else the best setting. StratANN gets only `recall=0.95`, so it is not tuned with exact results.
StratANN has two lines: without a cap, and with `memory=` of SIZE (default 48MB).

- hnswlib: M = 32, ef_construction = 100, 32-bit floats; the knob is `ef`. `filter=` is the fastest
  possible Python function, which looks into a bytearray. hnswlib raises an error if it finds fewer
  results than requested. If fewer than ten rows match, the script requests fewer. A query that
  still fails has no results.
- usearch: the same parameters (connectivity, expansion_add). Its Python package has no filters. The
  script requests more results, and drops results that do not match. The knob is the number of
  requested results.
- faiss: IVFFlat with 4 sqrt(n) lists and an IDSelectorBitmap; the knob is `nprobe`.
- LanceDB: on storage, IVF_PQ with its defaults and refine_factor = 10, with a BTREE or LABEL_LIST
  index of the column. LanceDB filters before it searches; the knob is `nprobes`.
- Qdrant: local mode. It compares the query with all vectors, and the filter with the payload of
  each point in Python. It has no knob.

hnswlib, usearch and faiss get the matching rows as bytes or bits that are made before the clock
starts. LanceDB, Qdrant and StratANN find the matching rows while the clock runs. Memory is VmRSS
after loading, and the peak (VmHWM) of the searches. The memory of Python with the imported package,
the queries and the filters is subtracted from both. recall@10 counts results that are as near as
the true tenth. If fewer than ten rows match, it is the share of the matching rows that were found.
CPU is the CPU time of the process per query, with all its threads. "full" is the number of queries
with min(10, matching) results.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

K = 10
TARGET = 0.95
# If a query takes this long, the script does not increase the knob any more.
SLOW_SECONDS = 0.5
# The number of queries that choose a setting. Programs that compare all vectors (`few`) get only
# these queries.
FEW = 20
SELECTIVITIES = ["0.5", "0.1", "0.01", "0.001", "0.0001"]
LISTS = [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 10240, 20480, 40960]
PROBES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("folder")
    parser.add_argument("sets", nargs="?", default="photo-sift-100k")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--only", default=",".join(SYSTEMS))
    parser.add_argument("--memory", default="48MB", help="the memory cap in the second line of StratANN")
    parser.add_argument("--json", help="stores the measurements in this file, so that several calls can measure different programs. The tables also show programs from this file that --only leaves out")
    if sys.argv[1:2] == ["--one"]:
        return one(json.loads(sys.argv[2]))
    arguments = parser.parse_args()
    os.makedirs(arguments.folder, exist_ok=True)
    everything = {}
    if arguments.json and os.path.exists(arguments.json):
        with open(arguments.json) as file:
            everything = json.load(file)
    for name in arguments.sets.split(","):
        job = prepare(arguments, name)
        known = everything.setdefault(name, {})
        for system in arguments.only.split(","):
            missing = [package for package in SYSTEMS[system].packages if not installed(package)]
            if missing:
                print(f"{system}: left out, since these packages are not installed: {', '.join(missing)}", file=sys.stderr)
                continue
            known[system] = measure(job, system)
            if arguments.json:
                with open(arguments.json, "w") as file:
                    json.dump(everything, file)
        show(job, [known[system] for system in SYSTEMS if system in known])


def show(job, said):
    print(f"\n{job['set']}, {job['rows']} rows, {job['queries']} queries\n")
    print("| filter | match | program | knob | recall@10 | full | CPU, us | latency, us: median, p95 |")
    print("|---|---|---|---|---|---|---|---|")
    for at, line in enumerate(job["lines"]):
        for one_said in said:
            found = one_said["lines"][at]
            print(
                f"| {line['what']} | {line['match']:.0f} | {one_said['title']} | {found['knob']} | {found['recall']:.4f} | "
                f"{found['full']} of {found['queries']} | {found.get('cpu_us', float('nan')):.0f} | {found['p50_us']:.0f}, {found['p95_us']:.0f} |"
            )
    print("\n| program | version | on storage, MB | loaded, MB | peak while it searches, MB | Python and package, MB | build, s of CPU |\n|---|---|---|---|---|---|---|")
    for one_said in said:
        megabytes = lambda key: f"{one_said[key] / 1e6:.1f}"
        print(
            f"| {one_said['title']} | {one_said['version']} | {megabytes('storage')} | {megabytes('loaded')} | {megabytes('peak')} | {megabytes('before')} | {one_said['build_cpu']:.0f} |",
            flush=True,
        )


def prepare(arguments, name):
    """Writes rows, filters, and for each query the ids as near as the true tenth to a file. Each
    system reads them in a process of its own.
    """
    import numpy

    import filters

    bench = filters.Bench(None, arguments.data, arguments.folder, name, arguments.queries, False, [], [])
    if name == "package-text":
        rows, lines = bench.of_words()
        column, kind = "tags", "words"
    else:
        rows = [{} for _ in range(bench.base.rows)]
        for row in rows:
            row["number"] = bench.random.randrange(filters.NUMBERS)
        column, kind = "number", "number"
        lines = []
        for share in SELECTIVITIES:
            below = round(float(share) * filters.NUMBERS)
            matching = [at for at, row in enumerate(rows) if row["number"] < below]
            lines.append((f"number below, {share}", [(below, matching, bench.asked)]))
    base = vectors(bench.base_path).astype(numpy.float32)
    queries = vectors(os.path.join(arguments.data, f"{name}.query.{bench.extension}")).astype(numpy.float32)
    norms = (base * base).sum(axis=1)
    known = os.path.join(arguments.folder, f"{name}.rivals.json")
    described, masks = [], {}
    for what, parts in lines:
        asked, match = [], 0
        for value, matching, numbers in parts:
            if kind == "words":
                value = [word for word in value.split("'")[1::2]]
            match += len(matching)
            matching = numpy.array(matching)
            if json.dumps(value) not in masks:
                masks[json.dumps(value)] = numpy.zeros(len(base), numpy.uint8)
                masks[json.dumps(value)][matching] = 1
            subset, lengths = base[matching], norms[matching]
            for number in numbers:
                product = subset @ queries[number]
                distances = -product if bench.metric == "cosine" else lengths - 2 * product
                kth = numpy.partition(distances, min(K, len(distances)) - 1)[min(K, len(distances)) - 1]
                true = float(kth) if bench.metric == "cosine" else float(kth + (queries[number] ** 2).sum())
                slack = abs(true) * 1e-6 + 1e-6
                near = matching[distances <= kth + slack]
                asked.append({"query": number, "value": value, "near": near.tolist()})
        described.append({"what": what, "match": match / len(parts), "asked": asked})
    with open(known, "w") as file:
        json.dump({"masks": list(masks), "lines": described}, file)
    with open(known + ".values", "w") as file:
        json.dump({"column": column, "values": [row[column] for row in rows]}, file)
    numpy.save(known + ".masks.npy", numpy.stack(list(masks.values())))
    return {
        "set": name, "folder": arguments.folder, "base": bench.base_path, "queries_path": os.path.join(arguments.data, f"{name}.query.{bench.extension}"), "metric": bench.metric,
        "known": known, "rows": bench.base.rows, "queries": len(bench.asked), "memory": arguments.memory,
        "lines": [{"what": line["what"], "match": line["match"]} for line in described],
    }


def measure(job, system):
    """The measurements of a system. One process builds its index, and another process searches it.
    """
    path = os.path.join(job["folder"], f"{job['set']}.{SYSTEMS[system].files}")
    said_path = path + ".build.json"
    call = lambda step: json.loads(subprocess.run([sys.executable, os.path.abspath(__file__), "--one", json.dumps({**job, "system": system, "step": step, "path": path})],
                                                  stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()[-1])
    if not os.path.exists(said_path):
        shutil.rmtree(path, ignore_errors=True)
        built = call("build")
        with open(said_path, "w") as file:
            json.dump(built, file)
    with open(said_path) as file:
        built = json.load(file)
    return {**built, **call("search")}


def one(job):
    """Runs a step of a system in a separate process."""
    import numpy

    system = SYSTEMS[job["system"]](job)
    if job["step"] == "build":
        with open(job["known"] + ".values") as file:
            known = json.load(file)
        base = vectors(job["base"])
        system.prepare()
        begun = cpu()
        system.build(base, known["column"], known["values"])
        print(json.dumps({"build_cpu": cpu() - begun}))
        return
    with open(job["known"]) as file:
        known = json.load(file)
    queries = vectors(job["queries_path"])
    queries = queries.astype(numpy.float32) if system.floats else numpy.array(queries)
    # The masks belong to the caller, so their memory is allocated before memory is measured.
    masks = dict(zip(known["masks"], map(bytearray, numpy.load(job["known"] + ".masks.npy")))) if system.masks else {}
    system.prepare()
    before = memory("VmRSS")
    with open("/proc/self/clear_refs", "w") as file:
        # Resets VmHWM.
        file.write("5")
    system.open()
    loaded = memory("VmRSS")
    lines = [line_of(system, queries, line, masks) for line in known["lines"]]
    print(json.dumps({
        "title": system.title, "version": ", ".join(importlib.metadata.version(package) for package in system.packages),
        "before": before, "loaded": loaded - before, "peak": memory("VmHWM") - before, "storage": bytes_of(job["path"]), "lines": lines,
    }))


def line_of(system, queries, line, masks):
    """The first setting of the knob that reaches the recall, or the last setting that was tried. A
    few queries find a setting, and all queries test it. If the recall of all queries is too low,
    the search continues with the next setting.
    """
    asked = line["asked"]
    few = asked[:: max(1, len(asked) // FEW)][:FEW]
    for knob in system.knobs:
        last = knob == system.knobs[-1]
        here = asked_with(system, queries, few, masks, knob)
        slow = here["p50_us"] > 1e6 * SLOW_SECONDS
        if here["recall"] < TARGET and not last and not slow:
            continue
        if not system.few and not slow:
            here = asked_with(system, queries, asked, masks, knob)
        if here["recall"] >= TARGET or last or slow:
            return here


def asked_with(system, queries, asked, masks, knob):
    """The results and the time with a setting, one query at a time."""
    times, hits, wanted, full, spent = [], 0, 0, 0, 0.0
    for number, one_asked in enumerate(asked):
        near = set(one_asked["near"])
        enough = min(K, len(near))
        mask = masks.get(json.dumps(one_asked["value"]))
        ready = system.ready(mask, one_asked["value"])
        if number == 0:
            system.search(queries[one_asked["query"]], ready, knob)
        begun, used = time.perf_counter(), time.process_time()
        found = system.search(queries[one_asked["query"]], ready, knob)
        spent += time.process_time() - used
        times.append(time.perf_counter() - begun)
        if mask is not None and any(not mask[id] for id in found):
            sys.exit(f"{system.title}: an answer does not match its filter")
        hits += min(enough, len(near.intersection(found)))
        wanted += enough
        full += len(found) >= enough
    times.sort()
    return {
        "knob": system.said(knob), "recall": hits / wanted, "full": full, "queries": len(asked), "p50_us": 1e6 * statistics.median(times), "p95_us": 1e6 * times[int(0.95 * (len(times) - 1))],
        "cpu_us": 1e6 * spent / len(asked),
    }


class System:
    """The name, packages and interface of a program. `knobs` lists settings from the fastest to the
    most exact.
    """

    floats, masks, few = True, True, False
    knobs = [None]

    def __init__(self, job):
        self.job, self.path, self.metric = job, job["path"], job["metric"]

    def prepare(self):
        """Imports the packages, so that their memory can be measured."""

    def ready(self, mask, value):
        """Converts a filter to the program's form, before the clock starts."""
        return mask

    def said(self, knob):
        return str(knob)


class Hnswlib(System):
    title, packages, files, knobs = "hnswlib", ["hnswlib"], "hnswlib", LISTS

    def prepare(self):
        import hnswlib

        self.library = hnswlib

    def build(self, base, column, values):
        import numpy

        index = self.library.Index(space=self.metric, dim=base.shape[1])
        index.init_index(len(base), ef_construction=100, M=32)
        for first in range(0, len(base), 20_000):
            piece = base[first : first + 20_000].astype(numpy.float32)
            index.add_items(piece, numpy.arange(first, first + len(piece)))
        index.save_index(self.path)

    def open(self):
        import numpy

        dim = int(numpy.fromfile(self.job["queries_path"], "<u4", 2)[1])
        self.index = self.library.Index(space=self.metric, dim=dim)
        self.index.load_index(self.path)
        self.index.set_num_threads(1)

    def ready(self, mask, value):
        return mask.__getitem__, min(K, sum(mask))

    def search(self, query, ready, knob):
        matches, most = ready
        self.index.set_ef(knob)
        try:
            return self.index.knn_query(query, k=most, num_threads=1, filter=matches)[0][0].tolist()
        except RuntimeError:
            return []

    def said(self, knob):
        return f"ef={knob}"


class Usearch(System):
    title, packages, files, knobs = "usearch, filtered afterwards", ["usearch"], "usearch", LISTS

    def prepare(self):
        from usearch.index import Index

        self.library = Index

    def made(self, dim):
        return self.library(ndim=dim, metric="l2sq" if self.metric == "l2" else "cos", dtype="f32", connectivity=32, expansion_add=100)

    def build(self, base, column, values):
        import numpy

        index = self.made(base.shape[1])
        index.add(numpy.arange(len(base)), base.astype(numpy.float32), threads=2)
        index.save(self.path)

    def open(self):
        import numpy

        self.index = self.made(int(numpy.fromfile(self.job["queries_path"], "<u4", 2)[1]))
        self.index.load(self.path)

    def search(self, query, ready, knob):
        self.index.expansion_search = knob
        return [id for id in self.index.search(query, knob, threads=1).keys.tolist() if ready[id]][:K]

    def said(self, knob):
        return f"count={knob}"


class Faiss(System):
    title, packages, files, knobs = "faiss IVFFlat, selector", ["faiss-cpu"], "faiss", PROBES

    def prepare(self):
        import faiss

        self.library = faiss

    def build(self, base, column, values):
        import numpy

        metric = self.library.METRIC_L2 if self.metric == "l2" else self.library.METRIC_INNER_PRODUCT
        floats = base.astype(numpy.float32)
        index = self.library.index_factory(base.shape[1], f"IVF{round(4 * len(base) ** 0.5)},Flat", metric)
        index.train(floats)
        index.add(floats)
        self.library.write_index(index, self.path)

    def open(self):
        self.index = self.library.read_index(self.path)
        self.library.omp_set_num_threads(1)

    def ready(self, mask, value):
        import numpy

        return self.library.IDSelectorBitmap(numpy.packbits(numpy.frombuffer(mask, numpy.uint8), bitorder="little"))

    def search(self, query, ready, knob):
        settings = self.library.SearchParametersIVF(sel=ready, nprobe=knob)
        return [id for id in self.index.search(query[None], K, params=settings)[1][0].tolist() if id >= 0]

    def said(self, knob):
        return f"nprobe={knob}"


class Lance(System):
    title, packages, files, masks = "LanceDB IVF_PQ", ["lancedb"], "lance", False
    knobs = [5, 10, 20, 40, 80, 160, 320]

    def prepare(self):
        import lancedb
        import lancedb.index

        self.library = lancedb

    def build(self, base, column, values):
        import numpy
        import pyarrow

        floats = base.astype(numpy.float32)
        rows = pyarrow.table({
            "id": pyarrow.array(numpy.arange(len(base))), column: pyarrow.array(values),
            "vector": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(floats.ravel()), floats.shape[1]),
        })
        table = self.library.connect(self.path).create_table("rows", rows)
        kinds = self.library.index
        table.create_index("vector", config=kinds.IvfPq(distance_type=self.metric))
        table.create_index(column, config=kinds.LabelList() if column == "tags" else kinds.BTree())

    def open(self):
        self.table = self.library.connect(self.path).open_table("rows")

    def ready(self, mask, value):
        if isinstance(value, list):
            return "array_has_all(tags, [" + ", ".join(f"'{word}'" for word in value) + "])"
        return f"number < {value}"

    def search(self, query, ready, knob):
        asked = self.table.search(query).distance_type(self.metric).nprobes(knob).refine_factor(10).where(ready, prefilter=True).select(["id", "_distance"]).limit(K)
        return asked.to_arrow()["id"].to_pylist()

    def said(self, knob):
        return f"nprobes={knob}"


class Qdrant(System):
    title, packages, files, masks, few = "Qdrant, local mode", ["qdrant-client"], "qdrant", False, True

    def prepare(self):
        import qdrant_client

        self.library = qdrant_client

    def build(self, base, column, values):
        import numpy

        models = self.library.models
        client = self.library.QdrantClient(path=self.path)
        distance = models.Distance.EUCLID if self.metric == "l2" else models.Distance.COSINE
        client.create_collection("rows", vectors_config=models.VectorParams(size=base.shape[1], distance=distance))
        client.upload_collection("rows", base.astype(numpy.float32), payload=[{column: value} for value in values], ids=range(len(base)), batch_size=1000)
        client.close()

    def open(self):
        self.client = self.library.QdrantClient(path=self.path)

    def ready(self, mask, value):
        models = self.library.models
        if isinstance(value, list):
            return models.Filter(must=[models.FieldCondition(key="tags", match=models.MatchValue(value=word)) for word in value])
        return models.Filter(must=[models.FieldCondition(key="number", range=models.Range(lt=value))])

    def search(self, query, ready, knob):
        return [point.id for point in self.client.query_points("rows", query=query, query_filter=ready, limit=K, with_payload=False).points]

    def said(self, knob):
        return "exact"


class Stratann(System):
    title, packages, files, masks, floats = "StratANN", ["stratann"], "stratann", False, False
    cap = None

    def prepare(self):
        import stratann

        self.library = stratann

    def build(self, base, column, values):
        self.library.build(base, self.path, metric=self.metric, attributes={column: values}, overwrite=True).close()

    def open(self):
        self.index = self.library.open(self.path, memory=self.cap)

    def ready(self, mask, value):
        return " and ".join(f"tags contains '{word}'" for word in value) if isinstance(value, list) else f"number < {value}"

    def search(self, query, ready, knob):
        ids, distances = self.index.search(query, K, recall=TARGET, filter=ready, threads=1, in_flight=1, exact=False)
        return [id for id in ids.tolist() if id < 1 << 63]

    def said(self, knob):
        return "recall=0.95"


class Capped(Stratann):
    @property
    def cap(self):
        return self.job["memory"]

    @property
    def title(self):
        return f"StratANN, memory={self.cap}"


SYSTEMS = {"stratann": Stratann, "capped": Capped, "hnswlib": Hnswlib, "usearch": Usearch, "faiss": Faiss, "lancedb": Lance, "qdrant": Qdrant}


def vectors(path):
    """The rows of a file, mapped."""
    import numpy

    rows, dim = (int(number) for number in numpy.fromfile(path, "<u4", 2))
    return numpy.memmap(path, {"u8bin": numpy.uint8, "fbin": numpy.float32}[path.rsplit(".", 1)[1]], "r", offset=8, shape=(rows, dim))


def installed(package):
    try:
        importlib.metadata.version(package)
        return True
    except importlib.metadata.PackageNotFoundError:
        return False


def cpu():
    spent = os.times()
    return spent.user + spent.system


def memory(key):
    """A line of /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key + ":"))


def bytes_of(path):
    if os.path.isfile(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names)


if __name__ == "__main__":
    main()
