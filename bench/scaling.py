#!/usr/bin/env python3
"""Models the throughput of N compute servers of DistVS, from the output of `servers.py --json`.

    bench/scaling.py FILE.json [--cores 8] [--gbit 100] [--messages 10e6] [--compute 1,2,4,8,16]
                     [--job 1]

The model also names the resource that limits throughput. Each compute server and the memory server
have --cores cores. The machines of compute servers also re-rank. A query takes

- a core of a compute server, for the CPU time of compute and storage;
- a core of the memory server, for the CPU time of the memory server;
- the network card of the memory server, for the bytes (--gbit in each direction) and the writes.
  With several queries in flight, a write has several messages.

The scarcest resource limits the queries a second:

    compute   N x cores / (CPU of compute and storage)      It grows with N.
    memory    cores / CPU of memory                         It is constant.
    network   Gbit/s / bytes of the larger direction        It is constant.
    writes    writes a second of a card / writes a query    It is constant.

"from 1" is the rate divided by N times the rate of one server. DistVS's Figure 13 (a) is linear up
to four servers. The model ignores latency, contention for memory bandwidth, and skew. So it is an
upper bound by CPU and network. CPU was measured with one compute server. As a check, the script
also prints the CPU with two and four compute servers on one machine. The last table has the
throughput of four compute servers for each measured budget of low codes (Figure 17), by CPU alone.
Needs Python 3.8 and nothing else.
"""

import json
import statistics
import sys


def main():
    words, options = [], {"--cores": "8", "--gbit": "100", "--messages": "10e6", "--compute": "1,2,4,8,16", "--job": "1"}
    given = iter(sys.argv[1:])
    for word in given:
        if word in options:
            options[word] = next(given, "")
        else:
            words.append(word)
    if len(words) != 1 or words[0].startswith("--"):
        sys.exit(__doc__)
    with open(words[0]) as file:
        jobs = json.load(file)["jobs"]
    rounds = next(rounds for name, rounds in jobs.items() if name == options["--job"] or name.startswith(options["--job"] + ","))
    middle = lambda rounds, of: statistics.median(one[of] for one in rounds)
    cores, bits, writes = float(options["--cores"]), float(options["--gbit"]) * 1e9, float(options["--messages"])
    memory, compute, storage = (middle(rounds, f"{role}_us") for role in ("memory", "compute", "storage"))
    # A step is one message in each direction. Nearly all bytes are lists, from memory server to
    # compute server. The bytes of both directions together are a safe bound.
    messages = 2 * middle(rounds, "steps") / middle(rounds, "messages_a_write")
    limits = {"memory": cores / memory * 1e6, "network": bits / 8 / middle(rounds, "wire"), "writes": writes / messages}
    print(f"CPU a query: compute {compute:.0f} µs, storage {storage:.0f}, memory {memory:.0f}; {middle(rounds, 'wire'):.0f} bytes and {messages:.1f} writes between compute and memory")
    print(f"one memory server feeds {limits['memory'] / (cores / (compute + storage) * 1e6):.1f} compute servers of as many cores ({compute / memory:.1f} without ranking)")
    for name, limit in limits.items():
        print(f"  {name} alone would do {limit:.0f} queries/s")
    print("\n| compute servers | queries/s | from 1 | stopped by | CPU of the memory server | its network |\n|---|---|---|---|---|---|")
    first = None
    for count in map(int, options["--compute"].split(",")):
        allowed = {"compute": count * cores / (compute + storage) * 1e6, **limits}
        stopper = min(allowed, key=allowed.get)
        rate = allowed[stopper]
        first = first or rate / count
        cells = [count, f"{rate:.0f}", f"{rate / (first * count):.2f}", stopper, f"{100 * rate / limits['memory']:.0f} %", f"{100 * rate / limits['network']:.1f} %"]
        print("| " + " | ".join(map(str, cells)) + " |")
    rate_of_four = lambda rounds: min(4 * cores / (middle(rounds, "compute_us") + middle(rounds, "storage_us")), cores / middle(rounds, "memory_us")) * 1e6
    for name, offloaded in jobs.items():
        if "low codes" in name:
            print(f"\nfour with {name.removeprefix('1, ')} each: {rate_of_four(offloaded):.0f} queries/s, {rate_of_four(offloaded) / rate_of_four(rounds):.2f} of the rate with all low codes")
    whole = lambda rounds: statistics.median(one["memory_us"] + one["compute_us"] + one["storage_us"] for one in rounds)
    print("\nmeasured on one machine, CPU of all a query beside one compute server: " + ", ".join(f"{name}: {whole(jobs[name]) / whole(jobs['1']):.2f}" for name in ("1", "2", "4") if name in jobs))


main()
