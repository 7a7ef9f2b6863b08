#!/usr/bin/env python3
"""Compares many calls of one query each, from many threads, with one call for all queries.

    bench/callers.py INDEX QUERIES.(u8bin|i8bin|fbin) [--callers 8] [--list 40] [--rounds 7]
                     [--count 4000]

A server often calls with one query. Needs the Python package (`pip install .`). The single call has
as many queries in flight as there are calling threads, rounded up to a multiple of the threads of
the call. The two methods take turns in one process, on the same open index. Each round has the
ratio of their queries a second, and the script prints the median of these ratios last. While the
clock runs, threads only call: their numpy arrays of one row are made before. A second table has the
same figures for calls with 8 queries each.
"""

import argparse
import os
import statistics
import threading
import time

import numpy as np
import stratann

ELEMENTS = {"u8bin": np.uint8, "i8bin": np.int8, "fbin": np.float32}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index")
    parser.add_argument("queries")
    parser.add_argument("--callers", type=int, default=8, help="threads of the host")
    parser.add_argument("--list", type=int, default=40, help="list size of the searches")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=4000, help="queries in a round")
    arguments = parser.parse_args()
    element = ELEMENTS[arguments.queries.rsplit(".", 1)[1]]
    rows, dim = np.fromfile(arguments.queries, dtype=np.uint32, count=2)
    queries = np.fromfile(arguments.queries, dtype=element, offset=8).reshape(rows, dim)
    queries = np.resize(queries, (arguments.count, dim))
    with stratann.open(arguments.index) as index:
        for batch in (1, 8):
            calls = [queries[at : at + batch] for at in range(0, len(queries), batch)]
            compare(index, queries, calls, batch, arguments)


def compare(index, queries, calls, batch, arguments):
    settings = {"k": 10, "list_size": arguments.list, "in_flight": 1, "exact": False}
    threads = min(arguments.callers, len(os.sched_getaffinity(0)))
    at_once = {"threads": threads, "in_flight": -(-arguments.callers // threads)}
    index.search(queries, **{**settings, **at_once})
    print(f"{arguments.callers} callers, {batch} queries a call")
    print("one call: q/s  callers: q/s  callers / one call")
    ratios = []
    for _ in range(arguments.rounds):
        begun = time.perf_counter()
        index.search(queries, **{**settings, **at_once})
        one = len(queries) / (time.perf_counter() - begun)
        many = len(queries) / called(index, calls, arguments.callers, settings)
        ratios.append(many / one)
        print(f"{one:13.0f}  {many:12.0f}  {ratios[-1]:5.2f}")
    print(f"median ratio {statistics.median(ratios):.2f}\n")


def called(index, calls, callers, settings):
    """Seconds in which the threads make all calls."""
    gate = threading.Barrier(callers + 1)

    def work(first):
        gate.wait()
        for call in calls[first::callers]:
            index.search(call, **settings)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(callers)]
    for thread in threads:
        thread.start()
    gate.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
