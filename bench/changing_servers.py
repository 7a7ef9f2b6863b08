#!/usr/bin/env python3
"""Searches through servers of DistVS during inserts, deletes and merges through them.

    bench/changing_servers.py STRATANN INDEX ROWS QUERIES [--seconds S] [--window S] [--upserts N]
                              [--deletes N] [--list L] [--in-flight N]

Measures throughput, latency, recall, wrong answers, and the time until servers use a merged index. INDEX
has the preset distvs, and was built from the first rows of the file ROWS, which has more rows, all
uint8 (for example photo-sift-100k, and the rows of photo-sift-1m). The script changes a copy of
INDEX. It starts a memory server that loads each new checkpoint, a storage server that accepts changes, and a
compute server with one thread. They are processes on this machine that communicate over TCP. For S
seconds (120), one client repeats all queries, with N in flight (8). Another client inserts the next
rows and deletes the oldest rows, by default 400 and 200 a second. Each second, it runs one command
for all inserts, and one for all deletes. The first window has no changes.

A line for each window (10 s) has

- queries answered a second;
- of the passes over all queries that ended in the window, the median P50 and the largest P99;
- recall@10;
- rows that wait for a merge, and merges.

Recall counts only rows whose state is certain. It takes the ten nearest of all rows that existed at
any time during a pass, and counts each of the ten that existed during the whole pass. A result is
wrong if its row was deleted before the pass began, was never inserted, or has another distance.
After each change, the script searches with the inserted and the deleted rows as queries. It counts
inserted rows that their own queries do not find while they wait for a merge, and deleted rows in
any result. At the end, the script searches again with every tenth inserted row, and with every
tenth deleted row. By then, a merge has included most of the inserted rows.

For each merge, the script prints the seconds from the commit (the time of the file MANIFEST) until
each of three events. The memory server has the new checkpoint, the compute server has the new low
codes, and the storage server has dropped the older checkpoint. Needs Linux, Python 3.8 and nothing
else.
"""

import array
import json
import math
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

from servers import metrics, start

K = 10
# The number of true neighbours per query. With so many, at least ten are live, whichever rows have
# been deleted.
TRUTH = 400


def main():
    words, options = [], {"--seconds": "120", "--window": "10", "--upserts": "400", "--deletes": "200", "--list": "40", "--in-flight": "8"}
    given = iter(sys.argv[1:])
    for word in given:
        if word in options:
            options[word] = next(given, "")
        else:
            words.append(word)
    if len(words) != 4:
        sys.exit(__doc__)
    program, index, rows, queries = words
    seconds, window, upserts, deletes = (int(options[name]) for name in ("--seconds", "--window", "--upserts", "--deletes"))
    servers = []
    with tempfile.TemporaryDirectory(dir=os.path.dirname(os.path.abspath(index))) as folder:
        copy = os.path.join(folder, "index")
        shutil.copytree(index, copy)
        first = json.loads(subprocess.run([program, "stats", copy, "--json"], check=True, stdout=subprocess.PIPE).stdout)["vectors"]
        known = Rows(rows, first + upserts * seconds, os.path.join(folder, "rows.u8bin"))
        truth = os.path.join(folder, "truth.bin")
        subprocess.run([program, "truth", known.path, queries, truth, "-k", str(TRUTH), "--quiet"], check=True, stdout=subprocess.DEVNULL)
        try:
            servers.append(start([program, "memory-server", copy, "--quiet", "--follow"]))
            servers.append(start([program, "storage-server", copy, "--threads", "1", "--changes"]))
            reach = ["--memory", servers[0][1], "--storage", servers[1][1], "--threads", "1", "--list", options["--list"], "--in-flight", options["--in-flight"]]
            servers.append(start([program, "compute-server", *reach]))
            ask = [program, "cluster", "search", servers[2][1], "--in-flight", options["--in-flight"], "--quiet", "--json", "--overwrite"]
            run(known, first, servers, copy, folder, truth, ask, queries, seconds, window, upserts, deletes)
        finally:
            for process, _, _ in servers:
                process.kill()
                process.wait()


class Rows:
    """The first rows of a file, in a separate file."""

    def __init__(self, whole, count, path):
        with open(whole, "rb") as file:
            held, self.dim = struct.unpack("<II", file.read(8))
            self.bytes = file.read(count * self.dim)
        if held < count:
            sys.exit(f"{whole}; it has {held} rows, and {count} are needed. Lower --upserts or --seconds")
        self.path = path
        self.write(range(count), path)

    def write(self, those, path):
        with open(path, "wb") as file:
            file.write(struct.pack("<II", len(those), self.dim) + b"".join(map(self.row, those)))

    def row(self, at):
        return self.bytes[at * self.dim : (at + 1) * self.dim]


def answers(path):
    """Ids and distances of all queries in a truth file."""
    with open(path, "rb") as file:
        count, k = struct.unpack("<II", file.read(8))
        ids, far = array.array("I", file.read(4 * count * k)), array.array("f", file.read(4 * count * k))
    return [(ids[at : at + k], far[at : at + k]) for at in range(0, count * k, k)]


def run(known, first, servers, copy, folder, truth, ask, queries, seconds, window, upserts, deletes):
    nearest = [ids for ids, _ in answers(truth)]
    with open(queries, "rb") as file:
        count, dim = struct.unpack("<II", file.read(8))
        asked_rows = [file.read(dim) for _ in range(count)]
    out, found_self = os.path.join(folder, "found.bin"), os.path.join(folder, "self.bin")
    # Rows [gone, put) are certainly live, and rows [gone_done, put_sent) may be.
    at = {"gone": 0, "gone_done": 0, "put": first, "put_sent": first}
    said = {"not found": 0, "put in": 0, "came back": 0, "deleted": 0, "failed": 0, "wrong": 0}
    asks, over, begun = [], threading.Event(), time.monotonic()

    def missed(path, those):
        """Searches with the rows of a file as queries. Returns the number of rows that their own
        queries do not find, and the number of rows in the file.
        """
        if subprocess.run([*ask[:4], path, *ask[4:], "--out", found_self], stdout=subprocess.DEVNULL).returncode:
            said["failed"] += 1
            return 0, 0
        found = answers(found_self)
        said["came back"] += sum(one < at["gone_done"] for ids, _ in found for one in ids)
        return sum(row not in ids for row, (ids, _) in zip(those, found)), len(found)

    def change():
        files = [os.path.join(folder, name) for name in ("put.u8bin", "put.ids", "gone.u8bin", "gone.ids")]
        over.wait(window)
        for second in range(window, seconds):
            over.wait(max(0, begun + second - time.monotonic()))
            if over.is_set():
                return
            put, gone = (at["put"], at["put"] + upserts), (at["gone"], at["gone"] + deletes)
            known.write(range(*put), files[0])
            known.write(range(*gone), files[2])
            for path, those in ((files[1], put), (files[3], gone)):
                with open(path, "w") as file:
                    file.write("\n".join(map(str, range(*those))))
            at["put_sent"] = put[1]
            done = subprocess.run([*ask[:2], "upsert", ask[3], files[0], "--ids", files[1], "--quiet"], stdout=subprocess.DEVNULL).returncode
            at["put"], said["put in"] = put[1], said["put in"] + upserts
            at["gone"] = gone[1]
            done |= subprocess.run([*ask[:2], "delete", ask[3], files[3], "--quiet"], stdout=subprocess.DEVNULL).returncode
            at["gone_done"], said["deleted"] = gone[1], said["deleted"] + deletes
            said["failed"] += done != 0
            for path, those in ((files[0], put), (files[2], gone)):
                said["not found"] += missed(path, range(*those))[0] * (those is put)

    def search():
        while not over.is_set():
            before, since = dict(at), time.monotonic()
            done = subprocess.run([*ask[:4], queries, *ask[4:], "--out", out], stdout=subprocess.PIPE)
            if done.returncode:
                said["failed"] += 1
                continue
            ended, after, told, found = time.monotonic(), dict(at), json.loads(done.stdout), answers(out)
            sure = hit = 0
            for query, (ids, far), near in zip(asked_rows, found, nearest):
                ever = [one for one in near if before["gone_done"] <= one < after["put_sent"]][:K]
                certain = {one for one in ever if after["gone"] <= one < before["put"]}
                sure, hit = sure + len(certain), hit + len(certain.intersection(ids))
                for one, distance in zip(ids, far):
                    is_live = before["gone_done"] <= one < after["put_sent"]
                    said["wrong"] += not is_live or round(math.dist(query, known.row(one)) ** 2) != round(distance)
            asks.append((ended - begun, count, ended - since, told["latency_us"], hit / sure))

    merges = Merges(servers, copy, over)
    threads = [threading.Thread(target=one) for one in (change, search, merges.watch)]
    for one in threads:
        one.start()
    print("| seconds | queries/s | P50, ms | P99, ms | recall@10 | wait for a merge | merges |\n|---|---|---|---|---|---|---|")
    answered = metrics(servers[2][2])["stratann_queries_answered_total"]
    for end in range(window, seconds + 1, window):
        time.sleep(max(0, begun + end - time.monotonic()))
        told = metrics(servers[1][2])
        now = metrics(servers[2][2])["stratann_queries_answered_total"]
        own = [one for one in asks if end - window <= one[0] < end]
        middle = lambda of: statistics.median(map(of, own)) if own else math.nan
        worst = max((one[3]["p99"] for one in own), default=math.nan)
        cells = [f"{end - window} to {end}", f"{(now - answered) / window:.0f}", f"{middle(lambda one: one[3]['p50']) / 1e3:.1f}", f"{worst / 1e3:.1f}"]
        cells += [f"{middle(lambda one: one[4]):.4f}", f"{told['stratann_vectors_waiting']:.0f}", f"{told['stratann_merges_total']:.0f}"]
        print("| " + " | ".join(cells) + " |", flush=True)
        answered = now
    over.set()
    for one in threads:
        one.join()
    again, tenths = [], os.path.join(folder, "tenths.u8bin")
    for those in (range(first, at["put"], 10), range(0, at["gone_done"], 10)):
        known.write(those, tenths)
        again.append(missed(tenths, those))
    print(f"\n{len(asks)} passes over all queries, {said['failed']} commands failed, {said['wrong']} wrong answers")
    print(f"{said['put in']} rows inserted, {said['not found']} of them not found; at the end {again[0][0]} of {again[0][1]} not found. {said['deleted']} rows deleted, found {said['came back']} times")
    print("\n| merge | memory server, s | low codes, s | no older checkpoint, s |\n|---|---|---|---|")
    for number, one in enumerate(merges.found, 1):
        print(f"| {number} | " + " | ".join(f"{one[what] - one['commit']:.2f}" if what in one else "not yet" for what in ("memory", "low codes", "alone")) + " |")
    if said["wrong"] or said["came back"] or said["failed"]:
        sys.exit(1)


class Merges:
    """The time of each merge's commit, and the times when servers used it."""

    def __init__(self, servers, copy, over):
        self.servers, self.manifest, self.over, self.found = servers, os.path.join(copy, "MANIFEST"), over, []

    def states(self):
        """The checkpoints of the memory server and of the low codes in the compute server's
        /health."""
        try:
            text = urllib.request.urlopen(f"http://{self.servers[2][2]}/health").read().decode()
        except urllib.error.HTTPError as error:
            text = error.read().decode()
        state = lambda what: next((line.split("state ")[1].split(",")[0] for line in text.splitlines() if line.startswith(what) and "state " in line), None)
        return state("the memory server"), state("low codes")

    def watch(self):
        old, merged = self.states(), 0
        while not self.over.wait(0.05):
            told, now = metrics(self.servers[1][2]), self.states()
            if told["stratann_merges_total"] > merged:
                merged = told["stratann_merges_total"]
                self.found.append({"commit": os.stat(self.manifest).st_mtime, "before": old})
            if not self.found:
                continue
            one, clock = self.found[-1], time.time()
            for what, at, state in zip(("memory", "low codes"), (0, 1), now):
                if state and state != one["before"][at]:
                    one.setdefault(what, clock)
            if told["stratann_state_before_kept"] == 0 and "low codes" in one:
                one.setdefault("alone", clock)
            old = now


if __name__ == "__main__":
    main()
