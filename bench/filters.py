#!/usr/bin/env python3
"""Measures recall, reads and time of filtered searches, with each filter strategy and with the
chosen strategy.

    bench/filters.py STRATANN DATA FOLDER [SET[,SET..]] [--queries N] [--typed]
                     [--build OPTIONS..] [-- SEARCH OPTIONS..]

Filters match from half of all rows to one row in a hundred thousand. SET is a data set in DATA:
photo-sift-100k (default), photo-sift-1m, package-text. The script builds an index in FOLDER, and
reuses files and indexes that exist already.

- photo-sift: each row has a number from 0 to a million, and labels. Each label has a selectivity,
  and its rows are drawn with a seed, independently of their vectors. A row also has the number of
  its cluster, by k-means with 20 and with 100 clusters. A filter on a cluster is used only with
  queries from other clusters, so matching rows are far from these queries.
- photo-sift with `--typed` (another index) has three columns: a text, an integer and a time. The
  text is one of several labels, each with a given share of the rows, or "rest". The integer is the
  cluster of the row, out of a hundred.
- package-text: the tags of a row are the words of its sentence with three letters or more. The
  filter of a query is one or two words of its own sentence. Queries are grouped by the number of
  matching rows. A number from 0 to a million, as for photo-sift, gives broader filters.

Brute force over the matching rows finds the exact answers (`stratann truth` of these rows alone).
recall@10 counts results that are as near as the true tenth. If fewer than ten rows match, it is the
share of the matching rows that were found. "short" is the number of queries with fewer results than
possible. A line is a search without a filter, with a given filter strategy (within or before,
`--way`), or with the chosen strategy. Its columns have reads of pages and vectors, and kB read.
Other columns have CPU of the process and median latency per query, with one query at a time on one
thread. The cost of evaluating the filter, once for all queries, is not included (`--explain` prints
it). If less than .02 of the rows match, `within` gets only every tenth query; below .002, every
hundredth. Distances are always exact (`--out`).

Peak is the largest resident memory of a searching process, including queries, results and the
program. It is the larger of two values: VmHWM of /proc, read every few milliseconds, and
`peak_rss_bytes` of the command. The last column has reads and CPU divided by the values of the best
strategy. Needs Python 3.8 and nothing else.
"""

import array
import datetime
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import time

SETS = {"package-text": ("fbin", 4, "cosine"), "photo-sift-100k": ("u8bin", 1, "l2"), "photo-sift-1m": ("u8bin", 1, "l2")}
SELECTIVITIES = ["0.5", "0.2", "0.1", "0.05", "0.02", "0.01", "0.001", "0.0001", "0.00001"]
# Selectivities of numbers on package-text, where few words match so many rows.
BROAD = ["1.0", "0.8", "0.5", "0.2"]
# Shares of the labels of `--typed`.
SHARES = ["0.5", "0.1", "0.01", "0.001", "0.0001", "0.00001"]
NUMBERS = 1_000_000
SECONDS = 10_000_000
CLUSTERS = {"twentieth": 20, "hundredth": 100}
ASKED = 4
ROUNDS = 6
SAMPLE = 10_000
K = 10
RARE = [(0.002, 100), (0.02, 10)]
WAYS = [("choice", []), ("before", ["--way", "before"]), ("within", ["--way", "within"])]


def main():
    arguments, build, options = sys.argv[1:], [], []
    for word, into in [("--", options), ("--build", build)]:
        if word in arguments:
            at = arguments.index(word)
            into += arguments[at + 1 :]
            del arguments[at:]
    typed = "--typed" in arguments
    arguments = [word for word in arguments if word != "--typed"]
    queries = 500
    if "--queries" in arguments:
        at = arguments.index("--queries")
        queries = int(arguments[at + 1])
        del arguments[at : at + 2]
    if len(arguments) not in (3, 4):
        sys.exit(__doc__)
    program, data, folder = arguments[:3]
    os.makedirs(folder, exist_ok=True)
    for name in (arguments[3] if len(arguments) == 4 else "photo-sift-100k").split(","):
        Bench(program, data, folder, name, queries, typed, build, options).run()


class Vectors:
    """The rows of a file, each as bytes."""

    def __init__(self, path, element):
        with open(path, "rb") as file:
            self.rows, self.dim = struct.unpack("<II", file.read(8))
            self.bytes = file.read()
        self.width = self.dim * element

    def row(self, at):
        return self.bytes[at * self.width : (at + 1) * self.width]

    def write(self, path, rows):
        with open(path, "wb") as out:
            out.write(struct.pack("<II", len(rows), self.dim))
            out.writelines(map(self.row, rows))


class Bench:
    def __init__(self, program, data, folder, name, queries, typed, build, options):
        self.extension, element, self.metric = SETS[name]
        self.program, self.data, self.folder, self.name, self.build, self.options = program, data, folder, name, build, options
        self.base_path = os.path.join(data, f"{name}.base.{self.extension}")
        self.base = Vectors(self.base_path, element)
        self.queries = Vectors(os.path.join(data, f"{name}.query.{self.extension}"), element)
        # The sample is spread over the file, since the file may be sorted.
        self.asked = list(range(0, self.queries.rows, max(1, self.queries.rows // queries)))[:queries]
        self.random = random.Random(17)
        self.typed = typed and name != "package-text"
        self.peak = 0
        # The inputs of the file of exact results.
        self.known = None

    def path(self, part):
        return os.path.join(self.folder, f"{self.name}.{'typed.' if self.typed else ''}{part}")

    def tool(self, *words):
        """The output of the command. `self.peak` becomes its peak memory."""
        self.peak = 0
        with tempfile.TemporaryFile("w+") as out:
            command = subprocess.Popen([self.program, *words, "--quiet"], stdout=out)
            while command.poll() is None:
                self.peak = max(self.peak, peak_of(command.pid))
                time.sleep(0.002)
            if command.returncode:
                sys.exit(f"{self.program} {' '.join(words)} failed")
            out.seek(0)
            return out.read()

    def run(self):
        rows, filters = self.of_words() if self.name == "package-text" else self.three() if self.typed else self.drawn()
        attributes, index = self.path("rows.jsonl"), self.path("idx")
        if not os.path.exists(os.path.join(index, "MANIFEST")):
            with open(attributes, "w") as out:
                out.writelines(json.dumps(row) + "\n" for row in rows)
            columns = ["--attributes", attributes, *(["--times", "taken"] if self.typed else [])]
            self.tool("build", self.base_path, index, "--metric", self.metric, "--overwrite", *columns, *self.build)
            print(f"{self.name}: built with a peak of {self.peak / 1e6:.1f} MB", flush=True)
        files = [(name, os.path.getsize(os.path.join(index, name))) for name in sorted(os.listdir(index))]
        print(f"{self.name}: {sum(size for _, size in files) / 1e6:.1f} MB on storage ({', '.join(f'{name} {size / 1e6:.1f}' for name, size in files)})")
        print(f"\n{self.name}, {self.base.rows} rows, {len(self.asked)} queries\n")
        print("| filter | match | strategy | recall@10 | short | reads | kB | distances | CPU, us | latency, us | peak, MB | reads, CPU of the best strategy |")
        print("|---|---|---|---|---|---|---|---|---|---|---|---|")
        plain = Sums()
        self.search(plain, self.asked, None, range(self.base.rows), [])
        self.show("none", self.base.rows, "", plain, None)
        # Maps the name of a line to filters, each with its rows and its queries.
        for what, parts in filters:
            found = {way: Sums() for way, _ in WAYS}
            for at, (text, matching, queries) in enumerate(parts):
                for way, words in WAYS:
                    # If few rows match, a walk takes long, and the planner never chooses it. So
                    # only a part of the queries uses `within`.
                    step = next((step for share, step in RARE if way == "within" and len(matching) < share * self.base.rows), 1)
                    asked = queries[at % step :: step]
                    if asked:
                        self.search(found[way], asked, text, matching, words)
            match = sum(len(matching) for _, matching, _ in parts) / len(parts)
            alone = [found[way] for way, _ in WAYS[1:] if found[way].queries]
            best = [min(each(sums) for sums in alone) for each in (Sums.mean_reads, Sums.mean_cpu)]
            for way, _ in WAYS:
                self.show(what, match, way, found[way], best)

    def drawn(self):
        """Rows of photo-sift and their filters."""
        rows = [{} for _ in range(self.base.rows)]
        for row in rows:
            row["number"] = self.random.randrange(NUMBERS)
            row["labels"] = [f"p{share}" for share in SELECTIVITIES if self.random.random() < float(share)]
        filters = []
        for share in SELECTIVITIES:
            below = round(float(share) * NUMBERS)
            for what, text, has in [
                (f"number below, {share}", f"number < {below}", lambda row: row["number"] < below),
                (f"label, {share}", f"labels contains 'p{share}'", lambda row: f"p{share}" in row["labels"]),
            ]:
                matching = [at for at, row in enumerate(rows) if has(row)]
                if matching:
                    filters.append((what, [(text, matching, self.asked)]))
        for what, count in CLUSTERS.items():
            of_rows, of_queries = self.clusters(count)
            for row, cluster in zip(rows, of_rows):
                row[what] = cluster
            parts = []
            for cluster in self.random.sample(range(count), ASKED):
                matching = [at for at, other in enumerate(of_rows) if other == cluster]
                queries = [at for at in self.asked if of_queries[at] != cluster][:: ASKED]
                parts.append((f"{what} == {cluster}", matching, queries))
            filters.append((f"other cluster, a {what}", parts))
        return rows, filters

    def three(self):
        """Rows of photo-sift with a text, an integer and a time, and their filters."""
        of_rows, of_queries = self.clusters(100)
        began = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
        moment = lambda second: (began + datetime.timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%SZ")
        labels, seconds = [], []
        for _ in range(self.base.rows):
            drawn = self.random.random()
            for share in SHARES:
                drawn -= float(share)
                if drawn < 0:
                    break
            labels.append(f"p{share}" if drawn < 0 else "rest")
            seconds.append(self.random.randrange(SECONDS))
        rows = ({"label": label, "cluster": cluster, "taken": moment(second)} for label, cluster, second in zip(labels, of_rows, seconds))
        filters = []
        for share in SHARES:
            before = round(float(share) * SECONDS)
            for what, text, matching in [
                (f"label, {share}", f"label == 'p{share}'", [at for at, label in enumerate(labels) if label == f"p{share}"]),
                (f"taken before, {share}", f"taken < '{moment(before)}'", [at for at, second in enumerate(seconds) if second < before]),
            ]:
                if matching:
                    filters.append((what, [(text, matching, self.asked)]))
        for what, count in [("five hundredths", 5), ("a hundredth", 1)]:
            parts = []
            for _ in range(ASKED):
                clusters = set(self.random.sample(range(100), count))
                matching = [at for at, other in enumerate(of_rows) if other in clusters]
                queries = [at for at in self.asked if of_queries[at] not in clusters][:: ASKED]
                parts.append((f"cluster in {sorted(clusters)}" if count > 1 else f"cluster == {min(clusters)}", matching, queries))
            filters.append((f"other cluster, {what}", parts))
        return rows, filters

    def clusters(self, count):
        """The cluster of each row and of each query, by k-means over a sample."""
        sample, means, nearest = self.path("sample." + self.extension), self.path("means." + self.extension), self.path("nearest.bin")
        drawn = self.random.sample(range(self.base.rows), min(SAMPLE, self.base.rows))
        self.base.write(sample, drawn)

        def assigned(vectors):
            self.tool("truth", means, vectors, nearest, "--k", "1", "--overwrite")
            return read_answers(nearest)[0]

        centres = [self.base.row(at) for at in drawn[:count]]
        for _ in range(ROUNDS):
            with open(means, "wb") as out:
                out.write(struct.pack("<II", count, self.base.dim))
                out.writelines(centres)
            sums = [[0] * self.base.dim for _ in range(count)]
            sizes = [0] * count
            for at, cluster in zip(drawn, assigned(sample)):
                sizes[cluster] += 1
                sums[cluster] = [total + value for total, value in zip(sums[cluster], self.base.row(at))]
            centres = [bytes(round(total / size) for total in totals) if size else centre for totals, size, centre in zip(sums, sizes, centres)]
        queries = os.path.join(self.data, f"{self.name}.query.{self.extension}")
        return assigned(self.base_path), assigned(queries)

    def of_words(self):
        """Rows of package-text, and a filter for each query, grouped by the number of matches."""
        words_of = lambda text: sorted(set(re.findall(r"[a-z]{3,}", text.lower())))
        with open(os.path.join(self.data, "package-text.base.tsv"), encoding="utf-8") as file:
            rows = [{"tags": words_of(line), "number": self.random.randrange(NUMBERS)} for line in file]
        with open(os.path.join(self.data, "package-text.query.txt"), encoding="utf-8") as file:
            sentences = [words_of(line) for line in file]
        rows_of = {}
        for at, row in enumerate(rows):
            for word in row["tags"]:
                rows_of.setdefault(word, []).append(at)
        bands = {}
        for query in self.asked:
            known = [word for word in sentences[query] if word in rows_of]
            if not known:
                continue
            words = self.random.sample(known, min(len(known), self.random.choice([1, 2])))
            matching = sorted(set.intersection(*(set(rows_of[word]) for word in words)))
            text = " and ".join(f"tags contains '{word}'" for word in words)
            share = len(matching) / len(rows)
            band = next((f"from {least}" for least in ("0.1", "0.01", "0.001", "0.0001") if share >= float(least)), "fewer" if matching else "none")
            if matching:
                bands.setdefault(band, []).append((text, matching, [query]))
        broad = []
        for share in BROAD:
            below = round(float(share) * NUMBERS)
            matching = [at for at, row in enumerate(rows) if row["number"] < below]
            broad.append((f"number below, {share}", [(f"number < {below}", matching, self.asked)]))
        return rows, broad + sorted(bands.items(), key=lambda band: -sum(len(part[1]) for part in band[1]) / len(band[1]))

    def search(self, sums, queries, text, matching, words):
        """Searches, and adds recall and costs to the sums."""
        asked, truth, out = self.path("asked." + self.extension), self.path("truth.bin"), self.path("found.bin")
        self.queries.write(asked, queries)
        k = min(K, len(matching))
        if self.known != (text, queries):
            subset = self.path("subset." + self.extension)
            self.base.write(subset, matching)
            self.tool("truth", subset, asked, truth, "--k", str(k), "--metric", self.metric, "--overwrite")
            self.known = (text, queries)
        filtered = ["--filter", text, *words] if text else []
        one = ["--threads", "1", "--in-flight", "1", "--json", "--out", out, "--overwrite", "-k", str(K)]
        recall = [] if "--list" in self.options else ["--recall", "0.95"]
        said = json.loads(self.tool("search", self.path("idx"), asked, *filtered, *one, *recall, *self.options).splitlines()[-1])
        (ids, distances), (_, true) = read_answers(out), read_answers(truth)
        allowed = set(matching) if text else None
        for query in range(len(queries)):
            here = [(id, distance) for id, distance in zip(ids[query * K : (query + 1) * K], distances[query * K : (query + 1) * K]) if distance < float("inf")]
            if allowed is not None and any(id not in allowed for id, _ in here):
                sys.exit(f"{text}: an answer does not match its filter: {here}")
            farthest = true[query * k + k - 1]
            slack = abs(farthest) * 1e-6 + 1e-9
            sums.found += sum(distance <= farthest + slack for _, distance in here[:k])
            sums.wanted += k
            sums.short += len(here) < k
        per = said["per_query"]
        sums.queries += len(queries)
        sums.reads += len(queries) * (per["graph_reads"] + per["vector_reads"])
        sums.bytes += len(queries) * per["bytes_read"]
        sums.latency += len(queries) * said["latency_us"]["p50"]
        sums.cpu += len(queries) * said["cpu_us"]
        sums.distances += len(queries) * per["distance_computations"]
        sums.peak = max(sums.peak, self.peak, said["peak_rss_bytes"])
        explained = said.get("filter", {})
        sums.within += len(queries) * (explained.get("way") == "within")

    def show(self, what, match, way, sums, best):
        each = lambda sum: sum / max(1, sums.queries)
        if way == "choice":
            share = each(sums.within)
            way = "choice (" + ("within" if share == 1 else "before" if share == 0 else f"within {share:.0%}") + ")"
        if not sums.queries:
            return
        # An index in memory has no reads.
        ratios = ", ".join(f"{mine / least:.2f}" if least else "–" for mine, least in zip([sums.mean_reads(), sums.mean_cpu()], best)) if best else ""
        print(
            f"| {what} | {match:.0f} | {way} | {sums.found / max(1, sums.wanted):.4f} | {sums.short} | {sums.mean_reads():.1f} | "
            f"{each(sums.bytes) / 1e3:.0f} | {each(sums.distances):.0f} | {sums.mean_cpu():.0f} | {each(sums.latency):.0f} | "
            f"{sums.peak / 1e6:.1f} | {ratios} |",
            flush=True,
        )


class Sums:
    """The measurements of all queries of a line."""

    def __init__(self):
        self.found = self.wanted = self.short = self.queries = self.peak = 0
        self.reads = self.bytes = self.latency = self.cpu = self.distances = self.within = 0.0

    def mean_reads(self):
        return self.reads / max(1, self.queries)

    def mean_cpu(self):
        return self.cpu / max(1, self.queries)


def peak_of(process):
    """The peak memory of a process on Linux up to now; 0 if it is unknown."""
    try:
        with open(f"/proc/{process}/status") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0


def read_answers(path):
    """Ids and distances of all queries, k for each query. Missing results have an infinite distance."""
    with open(path, "rb") as file:
        rows, k = struct.unpack("<II", file.read(8))
        ids, distances = array.array("I"), array.array("f")
        ids.frombytes(file.read(4 * rows * k))
        distances.frombytes(file.read(4 * rows * k))
    return ids, distances


if __name__ == "__main__":
    main()
