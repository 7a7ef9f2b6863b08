#!/usr/bin/env python3
"""Checks that the dependencies between the crates point one way, and that only tests use code for tests.

    python3 .ci/dependencies.py              reads `cargo metadata` of this workspace.
    python3 .ci/dependencies.py --self-test  tests the check itself.

    vector ─┐
    codec ──┼─> layout ─┐
            │     tier ─┼─> engine ─> terminal ─> bench ─> cli
            └───────│───┘      │                            │
                    └──────────┴──────> node ──┬────────────┘
                                               └──> python

A new crate gets a row in ALLOWED before it gets a dependency.
"""

import json
import pathlib
import re
import subprocess
import sys

# crate -> the crates that it may depend on, also in tests and build scripts
ENGINE = {"stratann"}
ALLOWED = {
    "stratann-vector": set(),
    "stratann-codec": set(),
    "stratann-tier": set(),
    "stratann-layout": {"stratann-vector", "stratann-codec"},
    "stratann": {"stratann-vector", "stratann-codec", "stratann-layout", "stratann-tier"},
    "stratann-terminal": ENGINE,
    "stratann-bench": ENGINE | {"stratann-terminal"},
    "stratann-node": ENGINE | {"stratann-tier"},
    "stratann-cli": ENGINE | {"stratann-terminal", "stratann-bench", "stratann-node"},
    "stratann-python": ENGINE | {"stratann-node"},
}

# Each dependency has the crates that may use it outside of tests, and the reason.
RESERVED = {
    "io-uring": ({"stratann-tier"}, "only a tier reads and writes"),
    "memmap2": ({"stratann-tier"}, "only a tier maps memory"),
    "libc": ({"stratann-tier"}, "only a tier makes system calls"),
    "rustix": ({"stratann-tier"}, "only a tier makes system calls"),
    "pyo3": ({"stratann-python"}, "the engine knows nothing of Python"),
    "numpy": ({"stratann-python"}, "the engine knows nothing of Python"),
    "clap": ({"stratann-cli"}, "the engine and the benchmarks know nothing of command lines"),
    "indicatif": ({"stratann-terminal"}, "one crate decides how progress is shown"),
}

# Code that only tests need, such as volumes that crash.
TESTING = "testing"


def faults(packages):
    """`packages`: name, and dependencies as (name, kind, features..)."""
    members = {name for name, _ in packages}
    found = []
    for name, dependencies in sorted(packages):
        if name not in ALLOWED:
            found.append(f"crate {name} has no row in ALLOWED of .ci/dependencies.py. Add the crates that it may depend on")
            continue
        for other, kind, *features in sorted(dependencies):
            edge = f"crate {name} depends on {other}" + (f" ({kind})" if kind != "normal" else "")
            if TESTING in features and kind == "normal":
                found.append(f"{edge} with the feature {TESTING}, which is for tests. Move the feature to [dev-dependencies]")
            elif other in members and other != name and other not in ALLOWED[name]:
                may = ", ".join(sorted(ALLOWED[name])) or "no crate of this workspace"
                found.append(f"{edge}; it may depend on {may}")
            elif other in RESERVED and kind == "normal" and name not in RESERVED[other][0]:
                owners, why = RESERVED[other]
                found.append(f"{edge}; {why}. It belongs to {', '.join(sorted(owners))}")
    return found


def turned_on(name, features):
    """The uses of the feature `testing` by other features of a crate, as edges of its dependencies."""
    return {
        (entry.rpartition("/")[0].rstrip("?") or name, "normal", TESTING)
        for feature, entries in features.items()
        for entry in entries
        if feature != TESTING and entry.rpartition("/")[2] == TESTING
    }


def for_tests(path):
    """Whether only tests compile this file: by its name, or since a module above it is `cfg(test)`."""
    parts = path.parts
    if "tests" in parts or path.name == "tests.rs":
        return True
    module = path.parent if path.name in ("mod.rs", "lib.rs", "main.rs") else path.with_suffix("")
    if module.name == "src":
        return False
    above = module.parent
    for parent in (above / "mod.rs", above / "lib.rs", above / "main.rs", above.with_suffix(".rs")):
        if parent.exists() and re.search(rf"^(?:pub(?:\(.*?\))? )?mod {module.name};", parent.read_text(), re.MULTILINE):
            gated = re.search(rf"#\[cfg\(test\)\]\n(?:pub(?:\(.*?\))? )?mod {module.name};", parent.read_text())
            return bool(gated) or for_tests(parent)
    return False


def hooks(path, text):
    """Uses of `stratann_tier::testing` outside of tests. Without the feature, they would not compile."""
    return [
        f"{path}:{text[: found.start()].count(chr(10)) + 1}: stratann_tier::testing is for tests. Use it below #[cfg(test)]"
        for found in re.finditer(r"^(?!\s*//).*tier::testing\b", text, re.MULTILINE)
        if "#[cfg(test)]" not in text[: found.start()]
    ]


def uses_of_hooks():
    files = (path for path in pathlib.Path("crates").glob("*/src/**/*.rs") if path.parts[1] != "tier")
    return [line for path in sorted(files) if not for_tests(path) for line in hooks(path, path.read_text())]


def workspace():
    text = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--no-deps"], check=True, stdout=subprocess.PIPE
    ).stdout
    return [
        (
            package["name"],
            {(d["name"], d["kind"] or "normal", *d["features"]) for d in package["dependencies"]}
            | turned_on(package["name"], package["features"]),
        )
        for package in json.loads(text)["packages"]
    ]


def self_test():
    right = [
        ("stratann-vector", {("half", "normal")}),
        ("stratann-tier", {("io-uring", "normal"), ("proptest", "dev")}),
        ("stratann-layout", {("stratann-vector", "normal")}),
        (
            "stratann",
            {
                ("stratann-layout", "normal"),
                ("stratann-tier", "normal"),
                ("stratann-tier", "dev", "testing"),
                ("libc", "dev"),
            },
        ),
        ("stratann-python", {("stratann", "normal"), ("pyo3", "normal")}),
    ]
    assert faults(right) == [], faults(right)
    wrong = {
        "an edge that points back": ("stratann-vector", ("stratann-tier", "normal")),
        "a test that points back": ("stratann-layout", ("stratann", "dev")),
        "a layer that is skipped": ("stratann-python", ("stratann-tier", "normal")),
        "a reserved dependency": ("stratann", ("io-uring", "normal")),
        "hooks of tests in a release": ("stratann", ("stratann-tier", "normal", "testing")),
        "an unknown crate": ("stratann-utils", ("half", "normal")),
    }
    for what, (crate, dependency) in wrong.items():
        packages = [(n, d) for n, d in right if n != crate] + [(crate, {dependency})]
        lines = faults(packages)
        assert len(lines) == 1 and crate in lines[0], f"{what}: {lines}"
        assert dependency[0] in lines[0] or crate not in ALLOWED, f"{what}: {lines}"
    assert turned_on("stratann", {"testing": ["stratann-tier/testing"], "ucx": ["stratann-tier/ucx"]}) == set()
    edge = {("stratann-tier", "normal", "testing")}
    assert turned_on("stratann", {"default": ["stratann-tier/testing"]}) == edge
    assert turned_on("stratann-tier", {"default": ["testing"]}) == edge
    use = "use stratann_tier::testing::SimVolume;\n"
    assert len(hooks("a.rs", f"//! Text.\n{use}")) == 1
    assert hooks("a.rs", f"#[cfg(test)]\nmod tests {{\n    {use}}}\n") == hooks("a.rs", f"// {use}") == []
    print(f"dependencies.py: {len(wrong)} wrong edges found, none in a right tree")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        sys.exit(__doc__)
    lines = faults(workspace()) + uses_of_hooks()
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
