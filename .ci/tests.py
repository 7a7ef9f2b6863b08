#!/usr/bin/env python3
"""Runs all checks and tests, even if some fail. One list at the end has the failed, unsteady and skipped ones.

A failed test is run once more by itself. If it passes then, it is *unsteady*, and its first output is
in the list at the end. A run passes with at most two unsteady tests. Tests in a module `by_the_clock`
measure time. They run after all others, one at a time, with nothing beside them.

usage: tests.py [--release] PART...    PART is check, rust or python
       tests.py [--release] --compile  compiles the programs of the part rust, and runs none
       tests.py --self-test
"""

import contextlib
import io
import itertools
import json
import os
import pathlib
import queue
import re
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import xml.etree.ElementTree as xml

ROOT = pathlib.Path(__file__).resolve().parents[1]
UNSTEADY_AT_MOST = 2
# A program that is silent for this many seconds hangs. `make test-slow` has tests of minutes.
SILENT_AT_MOST = 3600 if os.environ.get("STRATANN_SLOW") else 300
# A child that outlives its program may write for this many seconds more.
OUTLIVED_AT_MOST = 5
# If more tests of a program fail, or do not end, the others are not repeated.
REPEATED_AT_MOST = 6
# `make python-package` uses the same features, so that common crates are compiled once.
PACKAGES = ["--workspace", "--features", "stratann/testing"]
# Most tests keep files in memory, unless tests are slow or little memory is free.
MEMORY = pathlib.Path("/dev/shm")
MEMORY_AT_LEAST = 4 << 30
# Tests of direct reads, synced writes, kills, full disks, or memory keep their files on a disk.
ON_DISK = {
    "cli command": ["direct::", "disk::", "insert::", "linked::", "memory::", "resume::", "snapshot::", "tour::", "update::"],
    "engine engine": ["index::", "submit::"],
    "engine forked": [""],
    "engine trials": [""],
    "tier forked": [""],
    "tier growing": [""],
    "tier tier": [""],
    "tier unit stratann_tier": [""],
}
# More tests than cores run at once, since many wait.
AT_ONCE = [f"--test-threads={2 * (os.cpu_count() or 1)}"]
# Programs without libtest. Their exit status is their outcome.
WITHOUT_A_LIST = ["fuzz"]
# If fewer tests passed, some were not run.
RUST_AT_LEAST, PYTHON_AT_LEAST = 1800, 1100
CHECKS = ["check-format", "check-rules"]
# The compiler with clippy's lints. `cargo clippy` only checks, so that each crate would be read once more.
LINTING = {"RUSTC_WORKSPACE_WRAPPER": str(ROOT / ".ci" / "lint")}
RESULT = re.compile(r"^test (.+?)(?: - should panic)? \.\.\. (?:.* )?(ok|FAILED|ignored(?:, .*)?)$")


class Report:
    """A name for each check and test, and a text for each failed or unsteady one."""

    def __init__(self):
        self.began = time.monotonic()
        self.passed = 0
        self.failed = []
        self.unsteady = []
        self.skipped = []
        self.took = []
        # Whether the Python package is installed; None before the attempt.
        self.packaged = None
        # Functions that judge ended programs, and repeat failed tests.
        self.unjudged = []

    def step(self, name, began):
        self.took.append((time.monotonic() - began, name))

    def settle(self):
        """Nothing runs beside a test that is repeated."""
        while self.unjudged:
            self.unjudged.pop(0)()

    def judged(self, name, text, again):
        """Adds a failed test. `again`: whether it passed by itself."""
        (self.unsteady if again else self.failed).append((name, text))
        if again:
            self.passed += 1

    def verdict(self):
        print("\n=== times")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{used.ru_utime + used.ru_stime:7.0f} s of processors, in {time.monotonic() - self.began:.0f} s")
        for seconds, name in sorted(self.took, reverse=True):
            if seconds >= 5:
                print(f"{seconds:7.0f} s  {name}")
        print("\n=== skipped, with reasons" if self.skipped else "\n=== nothing was skipped")
        for name, why in self.skipped:
            print(f"skipped {name}: {why}")
        for name, text in self.unsteady:
            print(f"\n=== UNSTEADY {name}: it failed, and passed when run by itself. Repair it.\n{text}")
        for name, text in self.failed:
            print(f"\n=== FAILED {name}\n{text}")
        if self.failed or self.unsteady:
            print("\n=== summary")
        for name, _ in self.unsteady:
            print(f"UNSTEADY {name}")
        for name, _ in self.failed:
            print(f"FAILED {name}")
        if self.failed or self.unsteady:
            print('To repeat one on a slow machine: make steady TESTS="NAME", where NAME is the last word of its line')
        many = len(self.unsteady) > UNSTEADY_AT_MOST
        if many:
            print(f"FAILED with {len(self.unsteady)} unsteady tests; at most {UNSTEADY_AT_MOST} are allowed")
        print(f"\n{self.passed} passed, {len(self.failed)} failed, {len(self.skipped)} skipped", flush=True)
        return 1 if self.failed or many else 0


RUNNING = set()
STOPPED = threading.Event()


def stop():
    """Ends all programs. Without this, they would continue after Ctrl-C."""
    STOPPED.set()
    for group in list(RUNNING):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def run(command, cwd=ROOT, environment=None, each_line=None):
    """Shows the output meanwhile. Returns the status (negative: a signal) and the output."""
    if STOPPED.is_set():
        raise InterruptedError("the run was interrupted")
    program = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    RUNNING.add(program.pid)
    heard = time.monotonic()
    lines = queue.SimpleQueue()

    def read():
        for line in program.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    said, ended, killed = [], None, False
    try:
        while True:
            try:
                line = lines.get(timeout=1)
            except queue.Empty:
                line = ""
            now = time.monotonic()
            if line:
                heard = now
                said.append(line)
                sys.stdout.write(line)
                sys.stdout.flush()
                if each_line:
                    each_line(line)
            elif line is None:
                if program.poll() is not None:
                    break
                # The program has closed its output, and goes on.
                lines.put(None)
                time.sleep(0.05)
            # A child that outlives its program keeps the pipe open. The last lines may come just
            # before the end is seen, so only a second silence ends the reading.
            elif ended:
                break
            if program.poll() is not None:
                ended = ended or now
                if now - ended > OUTLIVED_AT_MOST:
                    break
            elif now - heard > SILENT_AT_MOST:
                said.append(f"killed: no output for {SILENT_AT_MOST} s (SILENT_AT_MOST in .ci/tests.py)\n")
                killed = True
                break
    finally:
        # After Ctrl-C too, the program would continue, since it has a session of its own.
        if killed or sys.exc_info()[0] is not None or program.poll() is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(program.pid, signal.SIGKILL)
    status = program.wait()
    RUNNING.discard(program.pid)
    return status, "".join(said)


def in_turn(jobs):
    """Calls each job with an event. A job begins when the one before it has set its event or has
    ended, so that a long test leaves no core idle. At most two jobs run at the same time.
    """
    threads, errors = [], []

    def work(job, almost):
        try:
            job(almost)
        except BaseException as error:
            errors.append(error)
        finally:
            almost.set()

    for job in jobs:
        for earlier in threads[:-1]:
            earlier.join()
        almost = threading.Event()
        threads.append(threading.Thread(target=work, args=(job, almost), daemon=True))
        threads[-1].start()
        almost.wait()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def beside(*series):
    errors = []

    def work(jobs):
        try:
            in_turn(jobs)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(jobs,), daemon=True) for jobs in series]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def free_memory():
    """The free memory of this machine, and of the container, if there is one."""
    table = dict(re.findall(r"^(\w+): +(\d+) kB$", pathlib.Path("/proc/meminfo").read_text(), re.MULTILINE))
    free = [int(table["MemAvailable"]) << 10]
    group = pathlib.Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no container, or no limit
        limit, used = ((group / name).read_text() for name in ("memory.max", "memory.current"))
        free.append(int(limit) - int(used))
    return min(free)


@contextlib.contextmanager
def scratch():
    """The variables that keep files of tests in memory; empty in slow tests, or without enough
    memory.
    """
    if os.environ.get("STRATANN_SLOW"):
        yield {}
        return
    try:
        facts = os.statvfs(MEMORY)
        enough = free_memory() >= MEMORY_AT_LEAST and facts.f_bavail * facts.f_frsize >= MEMORY_AT_LEAST // 2
        folder = tempfile.TemporaryDirectory(prefix="stratann-tests-", dir=MEMORY, ignore_cleanup_errors=True) if enough else None
    except (OSError, KeyError):
        folder = None
    if folder is None:
        print(f"tests keep their files on a disk: {MEMORY} is missing, or too little memory is free", flush=True)
        yield {}
        return
    with folder as path:
        # Some tests act as another user.
        os.chmod(path, 0o1777)
        yield {"TMPDIR": path}


def outcomes(output):
    """The outcome of each test by name, and the output of each test, from the output of libtest."""
    found, texts, current = {}, {}, None
    for line in output.splitlines():
        match = RESULT.match(line)
        if match:
            found[match[1]] = match[2]
        section = re.match(r"^---- (.+) stdout ----$", line)
        if section:
            current = section[1]
            texts[current] = []
        elif line in ("failures:", "successes:"):
            current = None
        elif current:
            texts[current].append(line)
    # A test can write into the line of an outcome. The lists at the end repeat the outcomes.
    for heading, outcome in (("successes:", "ok"), ("failures:", "FAILED")):
        names = output.rpartition(f"\n{heading}\n")[2] if f"\n{heading}\n" in output else ""
        for line in itertools.takewhile(lambda line: line.startswith("    "), names.splitlines()):
            found[line.strip()] = outcome
    return found, {name: "\n".join(lines).strip() for name, lines in texts.items()}


def why_skipped(text):
    match = re.search(r"^skipped(?:: |, )(.+)$", text, re.MULTILINE)
    return match and match[1]


class Program:
    """A program of tests: a label, its file, and the folder where cargo would run it."""

    def __init__(self, label, path, cwd):
        self.label, self.path, self.cwd = label, pathlib.Path(path), pathlib.Path(cwd)
        # Two processes of one program may share files in `target`.
        self.turn = threading.Lock()

    def tests(self):
        """`None` if the program cannot list them."""
        listed = subprocess.run([self.path, "--list"], cwd=self.cwd, capture_output=True, text=True)
        if listed.returncode or not re.search(r"^\d+ tests?, \d+ benchmarks?$", listed.stdout, re.MULTILINE):
            return None
        return [line[: -len(": test")] for line in listed.stdout.splitlines() if line.endswith(": test")]

    def run(self, arguments, environment, each_line=None):
        variables = {"CARGO_MANIFEST_DIR": str(self.cwd), **environment}
        return run([self.path, *arguments], self.cwd, variables, each_line)

    def jobs(self, report, names, memory):
        """Two lists of jobs for `in_turn`: for the named tests of `ON_DISK`, and for the others, in
        `memory`.
        """
        on_disk_always = ON_DISK.get(self.label, [])
        for module in on_disk_always:
            if not any(name.startswith(module) for name in names):
                report.failed.append((f"ON_DISK in .ci/tests.py, {self.label}", f"no test is in {module!r}"))
        modules = tuple(on_disk_always) if memory else ()
        on_disk = [name for name in names if name.startswith(modules)]
        others = [name for name in names if not name.startswith(modules)]
        # Many of these tests wait for syncs, so one program at a time is enough for the disk.
        waiting = [lambda almost: self.test(report, on_disk, {}, ", on a disk", (), None)] if on_disk else []
        return waiting, [lambda almost: self.test(report, others, memory, "", (), almost)] if others else []

    def test(self, report, names, environment, how, options, almost):
        """Sets the event `almost`, if given, when fewer tests are left than there are cores."""
        with self.turn:
            self.test_in_turn(report, names, environment, how, options, almost)

    def test_in_turn(self, report, names, environment, how, options, almost):
        began = time.monotonic()
        print(f"\n--- {self.label}: {len(names)} tests{how}", flush=True)
        left = len(names)

        def count(line):
            nonlocal left
            left -= RESULT.match(line) is not None
            if almost and left < (os.cpu_count() or 1):
                almost.set()

        status, output = self.run(["--show-output", *(options or AT_ONCE), "--exact", *names], environment, count)
        report.step(self.label + how, began)
        report.unjudged.append(lambda: self.judge(report, names, environment, status, output))

    def judge(self, report, names, environment, status, output):
        """Adds the outcomes of the named tests to the report, and repeats each failed test by
        itself.
        """
        found, texts = outcomes(output)
        passed = [name for name in names if found.get(name) == "ok"]
        report.passed += len(passed)
        for name in names:
            outcome, label = found.get(name), f"{self.label} {name}"
            if outcome == "ok":
                why = why_skipped(texts.get(name, ""))
            else:
                why = outcome if outcome and outcome.startswith("ignored") else None
            if why:
                report.skipped.append((label, why))
        suspects = [name for name in names if found.get(name) == "FAILED"]
        silent = [name for name in names if name not in found]
        explained = False
        for number, name in enumerate(suspects + silent):
            label, first = f"{self.label} {name}", texts.get(name) or output[-4000:]
            if STOPPED.is_set() or number >= REPEATED_AT_MOST:
                report.failed.append((label, f"{first}\n(not repeated)"))
                continue
            print(f"--- again, by itself: {name}", flush=True)
            again, said = self.run(["--exact", name, "--test-threads=1", "--show-output"], environment)
            if name in silent and again == 0:
                report.passed += 1
            else:
                explained = explained or again not in (0, 101)
                report.judged(label, texts.get(name) or f"{first}\n--- by itself:\n{said[-4000:]}", again == 0)
        # libtest exits with 101 if a test failed. With another status, the program died. If all
        # tests pass alone, the whole program has failed.
        if (silent or status not in (0, 101) or (status and not suspects)) and not explained and not STOPPED.is_set():
            text = f"exit status {status}; {len(silent)} tests had not ended\n{output[-8000:]}"
            report.failed.append((f"{self.label} (the whole program)", text))

    def test_whole(self, report, environment):
        print(f"\n--- {self.label}", flush=True)
        began = time.monotonic()
        status, output = self.run([], environment)
        why = why_skipped(output)
        if status == 0:
            report.passed += 1
            if why:
                report.skipped.append((self.label, why))
        else:
            report.judged(self.label, output[-8000:], not STOPPED.is_set() and self.run([], environment)[0] == 0)
        report.step(self.label, began)


def optimised(release):
    return ["--profile", "slow"] if release else []


def built(release):
    """The programs, and the warnings of the compiler and of clippy. The programs are `None` if the
    compilation failed.
    """
    command = ["cargo", "test", "--no-run", "--locked", *PACKAGES, "--message-format=json"]
    made = subprocess.run(
        command + optimised(release), cwd=ROOT, stdout=subprocess.PIPE, stderr=None, text=True, env={**os.environ, **LINTING}
    )
    programs, warnings = [], []
    for line in made.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-message":
            text = message["message"]["rendered"]
            if message["message"]["level"] == "warning":
                # A library is compiled twice: for other crates, and with its tests.
                if text not in warnings:
                    warnings.append(text)
            else:
                print(text, file=sys.stderr, flush=True)
        if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            folder = pathlib.Path(message["manifest_path"]).parent
            kind = "" if "test" in message["target"]["kind"] else " unit"
            label = f"{folder.name}{kind} {message['target']['name']}"
            programs.append(Program(label, message["executable"], folder))
    return None if made.returncode else sorted(programs, key=lambda program: program.label), warnings


def rust(report, release, memory, with_python):
    began = time.monotonic()
    programs, warnings = built(release)
    report.step("compiling the tests", began)
    report.failed.extend(("a lint (make check-lints)", text) for text in warnings)
    if programs is None:
        report.failed.append(("the tests do not compile", "the errors of the compiler are above"))
        return
    on_disk, others, timed = [], [], []
    # Programs with tests on a disk come last, since these run beside other tests.
    for program in sorted(programs, key=lambda program: program.label in ON_DISK):
        if program.path.name.startswith(tuple(f"{name}-" for name in WITHOUT_A_LIST)):
            program.test_whole(report, memory)
            continue
        names = program.tests()
        if names is None:
            report.failed.append((program.label, "its tests cannot be listed"))
            continue
        timed_names = [name for name in names if "by_the_clock::" in name]
        if timed_names:
            timed.append((program, timed_names))
        if untimed := [name for name in names if "by_the_clock::" not in name]:
            for jobs, more in zip((on_disk, others), program.jobs(report, untimed, memory)):
                jobs.extend(more)
    # Each of these steps has long stretches on one core, and cargo runs one of them at a time.
    by_cargo = [lambda _: make(report, "check-release"), lambda _: examples(report, release)]
    if with_python:
        by_cargo.append(lambda _: package(report))
    beside(on_disk, others, by_cargo)
    report.settle()
    if report.passed < RUST_AT_LEAST:
        report.failed.append(("the tests of Rust", f"only {report.passed} passed, so some were not run (RUST_AT_LEAST)"))
    for program, names in timed:
        program.test(report, names, {}, ", one at a time", ["--test-threads=1"], None)
    report.settle()


def examples(report, release):
    """Only cargo can run these examples. The same program documents the crates, and finds broken
    links.
    """
    command = ["cargo", "test", "--doc", "--locked", *PACKAGES, *optimised(release)]
    print("\n--- the documentation of the crates, and its examples", flush=True)
    began = time.monotonic()
    environment = {**LINTING, "RUSTDOC": str(ROOT / ".ci" / "rustdoc.py")}
    status, output = run(command + ["--no-fail-fast"], environment=environment)
    found, texts = outcomes(output)
    report.passed += sum(outcome == "ok" for outcome in found.values())
    failed = [name for name, outcome in found.items() if outcome == "FAILED"]
    report.step("the documentation and its examples", began)

    def judge():
        again = not STOPPED.is_set() and run(command, environment=environment)[0] == 0
        for name in failed or ["cargo test --doc (make check-docs)"]:
            report.judged(name, texts.get(name) or output[-4000:], again)

    if status:
        report.unjudged.append(judge)


def junit(path):
    """The texts of failed and of skipped tests, and the names of passed ones."""
    failed, skipped, passed = {}, {}, set()
    for case in xml.parse(path).getroot().iter("testcase"):
        file = case.get("classname", "").rpartition("tests.")[2]
        name = f"{file}.py::{case.get('name')}" if file else case.get("name")
        bad = [found for found in case if found.tag in ("failure", "error")]
        if bad:
            failed[name] = "\n".join(found.text or found.get("message", "") for found in bad)
        elif case.find("skipped") is not None:
            skipped[name] = case.find("skipped").get("message", "")
        else:
            passed.add(name)
    return failed, skipped, passed


def venv():
    return pathlib.Path(os.environ.get("VENV", ROOT / ".venv")).resolve()


def package(report):
    """Installs the Python package, once."""
    if report.packaged is not None:
        return
    began = time.monotonic()
    # A verbose pip shows the compiler's output.
    status, output = run(["make", "python-package"], environment={**LINTING, "PIP_VERBOSE": "1"})
    report.step("the Python package", began)
    if warned := re.search(r"warning: `\S+` .* generated \d+ warning", output):
        report.failed.append(("a lint of the Python package (make check-lints)", output[: warned.end()][-8000:]))
    report.packaged = status == 0
    if status:
        report.failed.append(("the Python package cannot be installed", output[-8000:]))


def python(report, release, memory, with_python):
    package(report)
    if not report.packaged:
        return
    interpreter = venv() / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        first, second = (pathlib.Path(folder) / name for name in ("first.xml", "second.xml"))
        pytest = [interpreter, "-m", "pytest", "crates/python/tests", "-o", f"cache_dir={folder}/cache"]
        # The folders of passed tests are removed at once, so that all tests need little memory.
        pytest += ["-o", "tmp_path_retention_policy=failed"]
        # If a test hangs, the output has its name and the stacks of its threads.
        pytest += ["--verbose", "-o", f"faulthandler_timeout={SILENT_AT_MOST * 2 // 3}"]
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
        command = target / ("slow" if release else "debug") / "stratann"
        environment = {**memory, "STRATANN_COMMAND": str(command)}
        began = time.monotonic()
        status, output = run([*pytest, "-n", "auto", "--dist", "worksteal", f"--junitxml={first}"], environment=environment)
        if not first.exists():
            known = sorted(set(re.findall(r"FAILED (\S+::\S+)", output)))
            report.failed.extend((name, "its text is in the output above") for name in known)
            report.failed.append(("pytest", output[-8000:]))
            return
        failed, skipped, passed = junit(first)
        report.passed += len(passed)
        if len(passed) + len(failed) < PYTHON_AT_LEAST:
            report.failed.append(("the tests of Python", f"only {len(passed)} passed, so some were not run (PYTHON_AT_LEAST)"))
        report.skipped.extend(skipped.items())
        if failed:
            run([*pytest, "--last-failed", "-n", "0", f"--junitxml={second}"], environment=environment)
            again = junit(second)[2] if second.exists() else set()
            for name, text in failed.items():
                report.judged(name, text, name in again)
        # pytest exits with 1 if tests failed, and with another number if it was cut short.
        if status not in (0, 1) or (status and not failed):
            report.failed.append(("pytest", f"exit status {status}\n{output[-8000:]}"))
        report.step("pytest", began)


def make(report, target):
    began = time.monotonic()
    status, output = run(["make", target])
    report.step(target, began)
    if status:
        report.failed.append((f"make {target}", output[-8000:]))
    else:
        report.passed += 1


def check(report, release, memory, with_python):
    for target in CHECKS:
        make(report, target)


def seeded():
    """Seeds the property tests by the commit, so that a commit always fails or always passes. Slow
    tests use new seeds.
    """
    if "PROPTEST_RNG_SEED" in os.environ:
        return
    seed = secrets.randbits(60) if os.environ.get("STRATANN_SLOW") else commit_seed()
    os.environ["PROPTEST_RNG_SEED"] = str(seed)
    print(f"seed of the property tests: PROPTEST_RNG_SEED={seed}", flush=True)


def commit_seed():
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return int(head[:15] or "1", 16)


def self_test():
    folder = pathlib.Path(tempfile.mkdtemp())
    source = folder / "sample.rs"
    source.write_text(
        """
        #[test] fn good() {}
        #[test] fn bad() { panic!("always"); }
        #[test] fn skips() { println!("skipped: no such device"); }
        #[test] fn unsteady() {
            let path = concat!(env!("SAMPLE"), "/unsteady");
            if !std::path::Path::new(path).exists() { std::fs::write(path, "").unwrap(); panic!("once"); }
        }
        #[test] fn dies_of_many() {
            let many = std::env::args().filter(|argument| argument.contains("good") || argument.contains("dies")).count() > 1;
            if many && std::env::var_os("SAMPLE_DIES_OF_MANY").is_some() { std::process::abort(); }
        }
        #[test] fn in_memory() { assert_eq!(std::env::var("TMPDIR").as_deref(), Ok("/in-memory")); }
        mod on_disk { #[test] fn stays() { assert_ne!(std::env::var("TMPDIR").as_deref(), Ok("/in-memory")); } }
        #[test] fn dies() { if std::env::var_os("SAMPLE_DIES").is_some() { std::process::abort(); } }
        mod by_the_clock {
            #[test] fn alone() {}
            #[test] fn noisy() { std::io::Write::write_all(&mut std::io::stderr(), b"a line\\n").unwrap(); }
        }
        """
    )
    memory = {"TMPDIR": "/in-memory"}
    ON_DISK["sample"] = ["on_disk::"]
    said, shown = sys.stdout, io.StringIO()
    sys.stdout = shown
    try:
        environment = {**os.environ, "SAMPLE": str(folder)}
        compiler = ["rustc", "--test", "--edition=2024", str(source), "-o", str(folder / "sample")]
        subprocess.run(compiler, env=environment, check=True)
        program = Program("sample", folder / "sample", folder)
        names = [name for name in program.tests() if "by_the_clock::" not in name]
        assert sorted(names) == ["bad", "dies", "dies_of_many", "good", "in_memory", "on_disk::stays", "skips", "unsteady"], names
        report = Report()
        beside(*program.jobs(report, names, memory))
        timed, options = ["by_the_clock::alone", "by_the_clock::noisy"], ["--test-threads=1"]
        program.test(report, timed, {}, ", one at a time", options, None)
        report.settle()
        assert [name for name, _ in report.failed] == ["sample bad"], report.failed
        assert [name for name, _ in report.unsteady] == ["sample unsteady"], report.unsteady
        assert report.skipped == [("sample skips", "no such device")], report.skipped
        assert report.passed == 9, report.passed
        assert report.verdict() == 1

        os.environ["SAMPLE_DIES"] = "1"
        report = Report()
        beside(*program.jobs(report, names, memory))
        report.settle()
        assert "sample dies" in [name for name, _ in report.failed], report.failed
        assert "sample (the whole program)" not in [name for name, _ in report.failed + report.unsteady]

        assert "sample (the whole program)" not in [name for name, _ in report.failed], report.failed

        # If a program dies, each test passes alone, and the death is a failure.
        os.environ.pop("SAMPLE_DIES")
        os.environ["SAMPLE_DIES_OF_MANY"] = "1"
        report = Report()
        beside(*program.jobs(report, names, memory))
        report.settle()
        assert "sample (the whole program)" in [name for name, _ in report.failed], report.failed

        began = time.monotonic()
        assert run(["sh", "-c", "sleep 60 & echo it goes on"]) == (0, "it goes on\n")
        chatter = "while sleep 0.2; do echo more; done & echo it goes on"
        status, output = run(["sh", "-c", chatter])
        assert status == 0 and output.startswith("it goes on\n")
        assert run(["sh", "-c", "exec >&- 2>&-; sleep 1; exit 3"]) == (3, "")
        assert Program("silent", "/bin/true", folder).tests() is None
        assert time.monotonic() - began < 30

        events, ended = [], threading.Event()

        def first(almost):
            almost.set()
            assert ended.wait(60)
            events.append("first")

        def second(almost):
            ended.set()
            events.append("second")

        in_turn([first, second, lambda almost: events.append("third")])
        other = threading.Event()
        beside([lambda almost: other.wait(60) or events.append("lost")], [lambda almost: other.set()])
        assert sorted(events[:2]) == ["first", "second"] and events[2:] == ["third"], events
        try:
            beside([], [lambda almost: 1 / 0])
            raise AssertionError("an error in a job is lost")
        except ZeroDivisionError:
            pass

        report = Report()
        for number in range(3):
            report.judged(f"unsteady {number}", "", True)
        assert report.verdict() == 1
        report.unsteady.pop()
        assert report.verdict() == 0
    except BaseException:
        said.write(shown.getvalue())
        raise
    finally:
        sys.stdout = said
        os.environ.pop("SAMPLE_DIES", None)
        os.environ.pop("SAMPLE_DIES_OF_MANY", None)
        shutil.rmtree(folder)


def main():
    arguments = [argument for argument in sys.argv[1:] if argument != "--release"]
    release = "--release" in sys.argv
    if arguments == ["--self-test"]:
        return self_test()
    if arguments == ["--compile"]:
        sys.exit(built(release)[0] is None)
    parts = {"check": check, "rust": rust, "python": python}
    if not arguments or any(argument not in parts for argument in arguments):
        sys.exit(__doc__)
    # A limit of time ends this script by SIGTERM. A shell lets its background jobs ignore SIGINT, and
    # their children would ignore it too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seeded()
    report = Report()
    with scratch() as memory:
        try:
            for argument in arguments:
                print(f"\n=== {argument} ({time.strftime('%H:%M:%S', time.gmtime())})", flush=True)
                parts[argument](report, release, memory, "python" in arguments)
        except KeyboardInterrupt:
            stop()
            report.failed.append(("interrupted", "the outcomes until then are above"))
        except Exception:
            report.failed.append((".ci/tests.py", traceback.format_exc()))
        finally:
            stop()
            report.settle()
    sys.exit(report.verdict())


if __name__ == "__main__":
    main()
