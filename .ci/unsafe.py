#!/usr/bin/env python3
"""Checks that only two crates use `unsafe`, and all others forbid it.

    python3 .ci/unsafe.py              checks crates/* and fuzz.
    python3 .ci/unsafe.py --self-test  tests the check itself.

`vector` needs `unsafe` for SIMD, `tier` for io_uring, mapped memory and buffers that the kernel fills.
In every other crate each root (src/lib.rs, src/main.rs, src/bin/*) has `#![forbid(unsafe_code)]`, and
no file has the keyword, tests included. The same holds for fuzz/, which is a test of the engine.
"""

import pathlib
import re
import sys

MAY = {"vector", "tier"}

# Comments, strings and characters (not lifetimes) do not count.
QUIET = re.compile(
    r"//[^\n]*|/\*.*?\*/|b?r(#*)\".*?\"\1|b?\"(?:\\.|[^\"\\])*\"|b?'(?:\\.|[^'\\])'", re.DOTALL
)
KEYWORD = re.compile(r"\bunsafe\b")


def keyword_lines(text):
    bare = QUIET.sub(lambda m: "\n" * m.group().count("\n"), text)
    return [number for number, line in enumerate(bare.split("\n"), 1) if KEYWORD.search(line)]


def is_root(path):
    """`path` is relative to the crate."""
    parts = path.parts
    return parts in (("src", "lib.rs"), ("src", "main.rs")) or parts[:2] == ("src", "bin")


def faults(crate, path, text):
    """`path` is relative to the crate."""
    if crate in MAY:
        return []
    where = f"crates/{crate}/{path}"
    found = [
        f"{where}:{number}: `unsafe` is allowed only in {' and '.join(sorted(MAY))}. Move the code behind a safe interface there"
        for number in keyword_lines(text)
    ]
    if is_root(path) and "#![forbid(unsafe_code)]" not in text:
        found.append(f"{where}: add #![forbid(unsafe_code)]")
    return found


def self_test():
    root, inner = pathlib.Path("src/lib.rs"), pathlib.Path("src/a/b.rs")
    forbid = "#![forbid(unsafe_code)]\n"
    assert faults("engine", root, forbid) == []
    assert faults("engine", inner, "fn f() {}") == []
    assert faults("tier", inner, "unsafe { f() }") == []
    quiet = "// unsafe\n/* unsafe\n */ let s = \"unsafe \\\" unsafe\"; let r = r#\"unsafe\"#; let c = '\"'; unsafely();"
    assert faults("engine", inner, quiet) == [], faults("engine", inner, quiet)
    wrong = {
        "a root that does not forbid it": faults("engine", root, "//! a crate"),
        "a block": faults("engine", inner, "fn f<'a>(x: &'a u8) {\n unsafe { g() } }"),
        "a block after a string": faults("layout", inner, "let a = \"//\"; unsafe { g() }"),
        "a command that forbids nothing": faults("cli", pathlib.Path("src/bin/b.rs"), "//! a crate"),
    }
    for what, lines in wrong.items():
        assert len(lines) == 1, f"{what}: {lines}"
    assert ":2:" in wrong["a block"][0], wrong["a block"]
    print(f"unsafe.py: {len(wrong)} faults found, none in right files")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        sys.exit(__doc__)
    crates = pathlib.Path(__file__).resolve().parent.parent / "crates"
    lines = [
        line
        for crate in sorted(path for path in crates.iterdir() if (path / "Cargo.toml").exists())
        for file in sorted(crate.rglob("*.rs"))
        for line in faults(crate.name, file.relative_to(crate), file.read_text(encoding="utf-8"))
    ]
    for file in sorted((crates.parent / "fuzz").rglob("*.rs")):
        root = pathlib.Path("src", file.name if file.name == "main.rs" else f"fuzz/{file.name}")
        lines += faults("fuzz", root, file.read_text(encoding="utf-8"))
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
