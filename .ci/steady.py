#!/usr/bin/env python3
"""Runs tests many times on a slow machine: two processes keep cores busy, and each sync takes 50 ms more.

usage: steady.py [--runs N] [--sync-ms N] NAME...
A NAME is a part of the name of a Rust test, or FILE.py::NAME of a Python test below crates/python/tests.
"""

import argparse
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

import tests

BUSY = 2
# The standard library of Rust syncs through these functions.
SLOW_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
static void wait_a_while(void) {{
    struct timespec left = {{ {seconds}, {nanoseconds} }};
    while (nanosleep(&left, &left)) {{}}
}}
int fsync(int file) {{ wait_a_while(); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(file); }}
int fdatasync(int file) {{ wait_a_while(); return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(file); }}
"""


def slow_sync(folder, milliseconds):
    source, library = folder / "slow_sync.c", folder / "slow_sync.so"
    text = SLOW_SYNC.format(seconds=milliseconds // 1000, nanoseconds=milliseconds % 1000 * 1_000_000)
    source.write_text(text)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def commands(names):
    """A command, a folder and a label for each program with tests of these names. Exits for a name
    without tests.
    """
    found, unknown = [], []
    rust = [name for name in names if ".py" not in name]
    if rust:
        programs = tests.built(release=False)[0] or sys.exit("error: the tests do not compile")
        lists = [(program, program.tests() or []) for program in programs]
        unknown += [name for name in rust if not any(name in test for _, listed in lists for test in listed)]
        for program, listed in lists:
            chosen = [test for test in listed if any(name in test for name in rust)]
            for test in [test for test in chosen if "by_the_clock::" in test]:
                print(f"skipped, since it measures time: {test}")
                chosen.remove(test)
            if chosen:
                found.append(([program.path, "--exact", "--show-output", *chosen], program.cwd, f"{program.label}: {' '.join(chosen)}"))
    if len(rust) < len(names):
        subprocess.run(["make", "python-package"], cwd=tests.ROOT, check=True)
    for name in names:
        if ".py" in name:
            command = [tests.venv() / "bin" / "python", "-m", "pytest", "-q", "-n", "0", f"crates/python/tests/{name}"]
            listed = subprocess.run([*command, "--collect-only"], cwd=tests.ROOT, capture_output=True)
            unknown += [name] if listed.returncode else []
            found.append((command, tests.ROOT, name))
    if unknown:
        sys.exit(f"error: no test has a name like {' or '.join(unknown)}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--sync-ms", type=int, default=50)
    options = parser.parse_args()
    # A shell lets its background jobs ignore this signal, and their children would ignore it too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = commands(options.names)
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        library = slow_sync(pathlib.Path(folder), options.sync_ms)
        environment = {"LD_PRELOAD": str(library)}
        burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
        try:
            for command, cwd, label in chosen:
                failed = 0
                skipped = 0
                for _ in range(options.runs):
                    status, output = tests.run(command, cwd, environment)
                    failed += status != 0
                    skipped += status == 0 and re.search(r"^skipped(?:: |, )|\d skipped", output, re.MULTILINE) is not None
                failures += failed + skipped
                passed = options.runs - failed - skipped
                print(f"{passed} passed, {failed} failed, {skipped} skipped a test: {label}", flush=True)
        finally:
            for process in burning:
                process.kill()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
