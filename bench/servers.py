#!/usr/bin/env python3
"""Measures CPU, writes and bytes per query of DistVS's servers.

    bench/servers.py STRATANN INDEX QUERIES TRUTH [--list L] [--beam W] [--threads T]
                     [--in-flight N] [--repeat N] [--low-memory B[,B..]] [--beside] [--json FILE]
                     [--systems FILE --data NAME]

The jobs have one, two and four compute servers, one compute server that does not batch messages,
and one compute server for each value of --low-memory. A value is the bytes for low codes, or a
share of all low codes (`50%`). INDEX has the preset distvs. The script starts a memory server, a
storage server and all compute servers as processes on this machine that communicate over TCP. A
compute server has T threads (1), and a client of its own with N queries in flight per thread (8).

In each of --repeat rounds (5), the jobs take turns to answer all queries, so that other work of the
machine slows all jobs alike. The table has the median of the CPU microseconds per query: user and
system time of the whole process, from /proc. Before the measurement, the servers load the low codes
and answer all queries once.

With --beside, compute servers re-rank candidates themselves, as in the paper (§5.1), and no storage
server runs. The paper has two queries in flight on each of eight threads.

--json stores all measurements for `scaling.py`. --systems writes a row for `dollars.py table`: one
memory server, and four machines that each compute and re-rank. Memory is the peak resident memory.
"idle" is the memory of a memory server without an index, which is the memory that any such process
takes. Needs Linux, Python 3.8 and nothing else.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import urllib.request

TICK = os.sysconf("SC_CLK_TCK")
# How many times a round answers all queries.
ASKS = 4


def cpu(process):
    """Seconds of CPU time that a process has used."""
    with open(f"/proc/{process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def start(words):
    """Starts a server. Returns the process, its address, and the address of its metrics."""
    process = subprocess.Popen(words + ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    at = http = None
    for line in process.stdout:
        found = re.search(r"listening on ([^ ,\n]+)", line)
        at = found.group(1) if found else at
        if "http://" in line:
            http = line.split("http://")[1].strip()
            break
    return process, at, http


def metrics(http):
    text = urllib.request.urlopen(f"http://{http}/metrics").read().decode()
    return {words[0]: float(words[1]) for words in (line.split() for line in text.splitlines()) if words[0][0] != "#"}


def memory(process):
    """Peak bytes of memory of a process."""
    with open(f"/proc/{process.pid}/status") as file:
        found = re.search(r"VmHWM:\s+(\d+) kB", file.read())
    return int(found.group(1)) * 1024


def main():
    words, options = [], {"--list": "80", "--beam": "8", "--threads": "1", "--in-flight": "8", "--repeat": "5", "--low-memory": "", "--json": "", "--systems": "", "--data": ""}
    beside = "--beside" in sys.argv
    given = iter(word for word in sys.argv[1:] if word != "--beside")
    for word in given:
        if word in options:
            options[word] = next(given, "")
        else:
            words.append(word)
    if len(words) != 4:
        sys.exit(__doc__)
    program, index, queries, truth = words
    servers = []
    try:
        memory_server = start([program, "memory-server", index, "--quiet"])
        servers.append(memory_server)
        storage = None if beside else start([program, "storage-server", index, "--threads", "1"])
        servers += [storage] if storage else []
        ranker = ["--index", index] if beside else ["--storage", storage[1]]
        reach = ["--memory", memory_server[1], *ranker, "--threads", options["--threads"], "--in-flight", options["--in-flight"]]
        reach += ["--list", options["--list"], "--beam", options["--beam"]]

        def compute(*more):
            server = start([program, "compute-server", *reach, *more])
            servers.append(server)
            return server

        def ask(those):
            line = [program, "cluster", "search"]
            rest = [queries, "--truth", truth, "--json", "--in-flight", str(int(options["--threads"]) * int(options["--in-flight"]))]
            clients = [subprocess.Popen(line + [at] + rest, stdout=subprocess.PIPE) for _, at, _ in those]
            return [json.loads(client.communicate()[0]) for client in clients]

        plain = [compute() for _ in range(4)]
        ask(plain)
        alone = ask(plain[:1])[0]
        jobs = {f"{count}": plain[:count] for count in (1, 2, 4)}
        jobs["1, which does not batch"] = [compute("--no-batch")]
        all_codes = metrics(plain[0][2])["stratann_low_codes"] * low_bytes(index)
        for room in filter(None, options["--low-memory"].split(",")):
            room_bytes = int(all_codes * float(room[:-1]) / 100) if room.endswith("%") else int(room)
            server = compute("--low-memory", str(room_bytes))
            ask([server])
            kept = metrics(server[2])["stratann_low_codes"] / metrics(plain[0][2])["stratann_low_codes"]
            jobs[f"1, {room_bytes} bytes of low codes ({100 * kept:.1f} %)"] = [server]
        ask(jobs["1, which does not batch"])
        found = {name: [] for name in jobs}
        for _ in range(int(options["--repeat"])):
            for name, those in jobs.items():
                found[name].append(measured(memory_server, storage, those, lambda: ask(those)))
        idle = subprocess.Popen([program, "memory-server", "--bytes", "1MiB", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
        servers.append((idle, idle.stdout.readline(), None))
        peaks = {role: memory(one[0]) for role, one in (("memory", memory_server), ("storage", storage), ("compute", plain[0]), ("idle", servers[-1])) if one}
    finally:
        for process, _, _ in servers:
            process.kill()
            process.wait()
    show(found)
    if options["--json"]:
        with open(options["--json"], "w") as file:
            json.dump({"index": index, "list": options["--list"], "jobs": found, "peak_bytes": peaks, "answer": alone}, file, indent=1)
    if options["--systems"]:
        systems(options, index, found["1"], peaks)


def low_bytes(index):
    """Bytes of a low code: half of the bytes of a code in the manifest."""
    with open(os.path.join(index, "MANIFEST"), encoding="utf-8", errors="replace") as file:
        words = re.search(r"\"code_bytes\": (\d+)", file.read())
    return (int(words.group(1)) + 1) // 2


def measured(memory_server, storage, those, ask):
    """The costs of all queries that `ask` sends to these compute servers."""
    roles = [[memory_server[0]], [storage[0]] if storage else [], [process for process, _, _ in those]]
    look = lambda: ([sum(map(cpu, role)) for role in roles], [metrics(http) for _, _, http in those], metrics(storage[2]) if storage else {})
    before, counted, ranked = look()
    # A tick of /proc is 10 ms, which is precise enough for several thousand queries.
    said = [one for _ in range(ASKS) for one in ask()]
    after, now, ranks = look()
    grown = lambda name: sum(b[name] - a[name] for a, b in zip(counted, now))
    answered = grown("stratann_queries_answered_total")
    spent = [(b - a) / answered * 1e6 for a, b in zip(before, after)]
    mean = lambda of: sum(of(one) for one in said) / len(said)
    sent, answered_to = '{peer="memory"}', '{peer="compute"}'
    of_storage = lambda name: ranks.get(name + answered_to, 0) - ranked.get(name + answered_to, 0)
    return {
        "memory_us": spent[0],
        "storage_us": spent[1],
        "compute_us": spent[2],
        "recall": mean(lambda one: one["recall"]),
        "qps": mean(lambda one: one["qps"]) * len(those),
        "steps": mean(lambda one: one["per_query"]["steps"]),
        "wire": mean(lambda one: one["per_query"]["wire"]),
        "per_query": said[0]["per_query"],
        "storage_messages_a_write": of_storage("stratann_messages_sent_total") / max(of_storage("stratann_writes_total"), 1),
        "messages_a_write": grown("stratann_messages_sent_total" + sent) / grown("stratann_writes_total" + sent),
    }


def show(found):
    print("| compute servers | recall | queries/s | CPU µs a query: memory | storage | compute | all | of one | memory / compute | rounds | wire, bytes | messages a write | of storage |")
    print("|---" * 13 + "|")
    middle = lambda rounds, of: statistics.median(of(one) for one in rounds)
    whole = lambda one: one["memory_us"] + one["storage_us"] + one["compute_us"]
    first = middle(found["1"], whole)
    for name, rounds in found.items():
        figures = [
            name,
            f"{middle(rounds, lambda one: one['recall']):.4f}",
            f"{middle(rounds, lambda one: one['qps']):.0f}",
            *(f"{middle(rounds, lambda one: one[role + '_us']):.0f}" for role in ("memory", "storage", "compute")),
            f"{middle(rounds, whole):.0f}",
            f"{middle(rounds, whole) / first:.2f}",
            f"{middle(rounds, lambda one: one['memory_us'] / one['compute_us']):.3f}",
            f"{middle(rounds, lambda one: one['steps']):.1f}",
            f"{middle(rounds, lambda one: one['wire']):.0f}",
            f"{middle(rounds, lambda one: one['messages_a_write']):.1f}",
            f"{middle(rounds, lambda one: one['storage_messages_a_write']):.1f}",
        ]
        print("| " + " | ".join(figures) + " |", flush=True)


def systems(options, index, rounds, peaks):
    """A row for `dollars.py table`. The machines that compute also re-rank, as in the paper, and
    their SSDs store the vectors.
    """
    middle = lambda of: statistics.median(of(one) for one in rounds)
    of_vectors = [name for name in os.listdir(index) if name.startswith(("vectors", "chunks"))]
    disk = sum(os.path.getsize(os.path.join(index, name)) for name in of_vectors)
    whole = sum(os.path.getsize(os.path.join(index, name)) for name in os.listdir(index)) - disk
    per = rounds[0]["per_query"]
    machines = [
        {"kind": "memory", "count": 1, "memory_bytes": peaks["memory"], "disk_bytes": whole, "cpu_us": middle(lambda one: one["memory_us"]), "bytes_read": 0},
        {
            "kind": "compute",
            "count": 4,
            "memory_bytes": peaks["compute"] + peaks.get("storage", 0),
            "disk_bytes": disk,
            "cpu_us": middle(lambda one: one["compute_us"] + one["storage_us"]),
            "bytes_read": per.get("read_bytes", per.get("bytes_read", 0)),
        },
    ]
    row = {"data": options["--data"], "system": "distvs", "list": int(options["--list"]), "recall": middle(lambda one: one["recall"]), "reads": per["reads"], "machines": machines}
    with open(options["--systems"], "w") as file:
        json.dump({"machine": "this one", "systems": [row]}, file, indent=1)


if __name__ == "__main__":
    main()
