#!/usr/bin/env python3
"""Kills and restarts a memory server of DistVS while clients search.

    bench/restart.py STRATANN INDEX QUERIES [--list L] [--in-flight N] [--clients C]
                     [--deadline S] [--down S] [--rounds N]

Measures how long throughput takes to recover, and checks the results of all searches. INDEX has the
preset distvs. The script starts a memory server, a storage server and a compute server with one
thread, as processes on this machine that communicate over TCP. Each of C clients (2) repeats all
queries, with N in flight (8). A query may take S seconds (10). In each of --rounds rounds (3) the
script kills the memory server (SIGKILL), and restarts it on the same port after a pause of --down
seconds (1). It reads the number of answers from the metrics of the compute server every 50 ms.

For each round the script prints

- queries a second before the kill;
- seconds from the kill until the new process listens;
- seconds from then until throughput has recovered: until the first half second with at least nine
  tenths of the answers of half a second before the kill.

For all rounds together it prints two counts. The first is the number of passes over all queries
whose results differ from the results before the first kill, in ids or in any bit of a distance. The
second is the number of passes that ended with an error. If the deadline is shorter than the pause,
queries fail by the deadline; otherwise none fail. If a query of a client fails, the client ends its
pass over all queries, and begins the next pass. Needs Linux, Python 3.8 and nothing else.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from servers import metrics, start

EACH = 0.05
ENOUGH = 0.9
WINDOW = 10
MOST = 60


def main():
    words, options = [], {"--list": "40", "--in-flight": "8", "--clients": "2", "--deadline": "10", "--down": "1", "--rounds": "3"}
    given = iter(sys.argv[1:])
    for word in given:
        if word in options:
            options[word] = next(given, "")
        else:
            words.append(word)
    if len(words) != 3:
        sys.exit(__doc__)
    program, index, queries = words
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    memory_words = [program, "memory-server", index, "--quiet", "--listen", f"127.0.0.1:{port}"]
    servers = []
    with tempfile.TemporaryDirectory() as folder:
        try:
            memory = started(memory_words)
            storage = start([program, "storage-server", index, "--threads", "1"])
            compute = start([program, "compute-server", "--memory", f"127.0.0.1:{port}", "--storage", storage[1], "--threads", "1", "--list", options["--list"], "--in-flight", options["--in-flight"]])
            servers += [storage[0], compute[0]]
            ask = [program, "cluster", "search", compute[1], queries, "--in-flight", options["--in-flight"], "--deadline", options["--deadline"], "--quiet", "--json", "--overwrite"]
            right = asked(ask, os.path.join(folder, "right.bin"))
            if right is None:
                sys.exit(f"the servers do not answer: {asked.why}")
            over, ended = threading.Event(), {"asks": 0, "wrong": 0, "failed": 0, "why": set()}
            clients = [threading.Thread(target=client, args=(ask, os.path.join(folder, f"{n}.bin"), right, over, ended)) for n in range(int(options["--clients"]))]
            for one in clients:
                one.start()
            counts = Counts(compute[2])
            print("| round | queries/s before | until it listens, s | until as many again, s |\n|---|---|---|---|")
            for number in range(int(options["--rounds"])):
                time.sleep(3)
                before = counts.rate(2.0)
                memory.send_signal(signal.SIGKILL)
                memory.wait()
                killed = time.monotonic()
                time.sleep(float(options["--down"]))
                memory = started(memory_words)
                ready = time.monotonic()
                back = counts.back(before * ENOUGH, ready)
                print(f"| {number + 1} | {before:.0f} | {ready - killed:.2f} | {f'{back - ready:.2f}' if back else f'not within {MOST}'} |", flush=True)
            over.set()
            for one in clients:
                one.join()
            counts.over.set()
        finally:
            for process in [*servers, memory]:
                process.kill()
                process.wait()
    print(f"\npasses over all queries: {ended['asks']} answered, {ended['failed']} with a query that failed; {ended['wrong']} wrong")
    for why in sorted(ended["why"]):
        print("  " + why)
    if ended["wrong"]:
        sys.exit(1)


def started(words):
    """Starts a memory server, and returns once the server listens."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if "listening on" in line:
            return process
    sys.exit("the memory server did not start")


def asked(ask, path):
    """The results of all queries, as bytes; `None` if a query failed."""
    ran = subprocess.run([*ask, "--out", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if ran.returncode != 0:
        asked.why = ran.stderr.strip().splitlines()[-1][:200] if ran.stderr.strip() else f"status {ran.returncode}"
        return None
    with open(path, "rb") as file:
        return file.read()


def client(ask, path, right, over, ended):
    while not over.is_set():
        found = asked(ask, path)
        if found is None:
            ended["failed"] += 1
            ended["why"].add(asked.why)
        else:
            ended["asks"] += 1
            ended["wrong"] += found != right


class Counts:
    """Samples the number of queries that a compute server has answered, at regular times."""

    def __init__(self, http):
        self.http, self.seen, self.over = http, [], threading.Event()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while not self.over.wait(EACH):
            try:
                self.seen.append((time.monotonic(), metrics(self.http)["stratann_queries_answered_total"]))
            except OSError:
                return

    def rate(self, seconds):
        """Queries a second in the last `seconds` seconds."""
        seen = [one for one in self.seen if one[0] >= time.monotonic() - seconds]
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])

    def back(self, enough, since):
        """The start of the first half second after `since` that has at least this rate of answers.
        """
        while time.monotonic() < since + MOST:
            seen = [one for one in self.seen if one[0] >= since]
            for first, last in zip(seen, seen[WINDOW:]):
                if (last[1] - first[1]) / (last[0] - first[0]) >= enough:
                    return first[0]
            time.sleep(EACH)
        return None


if __name__ == "__main__":
    main()
