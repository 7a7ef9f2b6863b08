#!/usr/bin/env python3
"""Measures the effect of queries in flight, beam width and number of results on the servers of
DistVS.

    bench/figures.py STRATANN INDEX QUERIES TRUTH [--recall R] [--in-flight 1,2,4,8]
                     [--beams 1,2,4,8,16] [--answers 1,10,50,100] [--asks N]

Prints rounds, bytes, distances and CPU a query, as in Figures 13 (b), 14 and 16 of the paper. INDEX
has the preset distvs. The script starts a memory server, and compute servers with one thread, as
processes on this machine that communicate over TCP. Compute servers re-rank candidates themselves,
as in the paper. One value varies in each table:

    in flight  Queries in flight on the thread (coroutines), and of the client. The beam width is
               8. The list size is the smallest one with which ten results reach the recall (0.95).
    beam       The maximum number of nodes in a round. Eight queries are in flight, with ten results
               each.
    answers    k. Eight queries are in flight, with a beam width of 8.

For `beam` and `answers`, the list size grows until it reaches the recall. The figures are
interpolated between the two list sizes around the recall. "Rounds" are exchanges between compute
server and memory server, and "wire" has the bytes of these exchanges in both directions. Low, high
and full are distances by low codes, high codes and exact vectors. CPU is microseconds per query,
user and system, over N passes (4) over all queries. Queries a second and milliseconds are from the
median pass. These two figures mean little if servers and client share cores with other programs.
Needs Linux, Python 3.8 and nothing else.
"""

import json
import statistics
import subprocess
import sys

from servers import cpu, metrics, start

LISTS = [2, 4, 7, 10, 12, 14, 17, 20, 25, 30, 35, 40, 50, 65, 80, 100, 130, 160, 200, 250, 320, 400]
COUNTS = ["steps", "wire", "low", "high", "full", "reads"]


def main():
    words, options = [], {"--recall": "0.95", "--in-flight": "1,2,4,8", "--beams": "1,2,4,8,16", "--answers": "1,10,50,100", "--asks": "4"}
    given = iter(sys.argv[1:])
    for word in given:
        if word in options:
            options[word] = next(given, "")
        else:
            words.append(word)
    if len(words) != 4:
        sys.exit(__doc__)
    program, index, queries, truth = words
    recall, asks = float(options["--recall"]), int(options["--asks"])
    numbers = lambda name: [int(one) for one in filter(None, options[name].split(","))]
    servers = [start([program, "memory-server", index, "--quiet"])]
    try:

        def compute(in_flight):
            servers.append(start([program, "compute-server", "--quiet", "--memory", servers[0][1], "--index", index, "--threads", "1", "--in-flight", str(in_flight)]))
            ask = [program, "cluster", "search", servers[-1][1], queries, "--truth", truth, "--json", "--in-flight", str(in_flight)]
            subprocess.run(ask, check=True, stdout=subprocess.DEVNULL)

            def measured(size, beam, k):
                look = lambda: (cpu(servers[0][0]), cpu(own[0]), metrics(own[2]))
                before = look()
                said = [json.loads(subprocess.run([*ask, "--list", str(size), "--beam", str(beam), "-k", str(k)], check=True, stdout=subprocess.PIPE).stdout) for _ in range(asks)]
                after = look()
                grown = lambda name: after[2][name] - before[2][name]
                answered, middle = grown("stratann_queries_answered_total") / 1e6, lambda of: statistics.median(map(of, said))
                writes = grown('stratann_messages_sent_total{peer="memory"}') / grown('stratann_writes_total{peer="memory"}')
                times = [(after[0] - before[0]) / answered, (after[1] - before[1]) / answered, writes, middle(lambda one: one["qps"])]
                times += [middle(lambda one, what=what: one["latency_us"][what]) / 1e3 for what in ("mean", "p99")]
                return [said[0]["recall"], size, *(said[0]["per_query"][name] for name in COUNTS), *times]

            own = servers[-1]
            return measured

        def at(measured, beam, k):
            """The costs at the recall, interpolated between the two list sizes around it."""
            before = None
            for size in (size for size in LISTS if size >= k):
                now = measured(size, beam, k)
                if now[0] >= recall:
                    share = (recall - before[0]) / (now[0] - before[0]) if before else 1
                    return [a + share * (b - a) for a, b in zip(before or now, now)]
                before = now
            found = f"with a list size of {before[1]} it is {before[0]:.4f}" if before else f"no list size is at least k = {k}"
            sys.exit(f"--recall {recall}; a beam width of {beam} and k = {k} do not reach it: {found}. Lower --recall, or add larger list sizes to LISTS")

        def show(name, row):
            digits = [4, 1, 1, 0, 0, 0, 0, 1, 0, 0, 1, 0, 2, 2]
            print("| " + " | ".join([name, *(f"{value:.{places}f}" for value, places in zip(row, digits))]) + " |", flush=True)

        print("| | recall | list | rounds | wire | low | high | full | reads | CPU: memory | compute | messages a write | queries/s | mean ms | P99 ms |\n" + "|---" * 15 + "|")
        eight = compute(8)
        size = round(at(eight, 8, 10)[1])
        for in_flight in numbers("--in-flight"):
            show(f"in flight {in_flight}", compute(in_flight)(size, 8, 10))
        for beam in numbers("--beams"):
            show(f"beam {beam}", at(eight, beam, 10))
        for k in numbers("--answers"):
            show(f"answers {k}", at(eight, 8, k))
    finally:
        for process, _, _ in servers:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
