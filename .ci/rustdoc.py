#!/usr/bin/env python3
"""`cargo test --doc` starts this in place of rustdoc (RUSTDOC), once for each crate.

It documents the crate, where a broken link is an error, and then tests the examples in its
documentation. Both use the crates that the tests have compiled; `cargo doc` would check them again.
"""

import subprocess
import sys
import tempfile

# Only the tests have these arguments, each with a value.
OF_TESTS = ("--test-run-directory", "--test-args", "--test-builder", "--test-runtool", "--test-runtool-arg")


def documenting(arguments, folder):
    """The arguments that document a crate, from those that test its examples."""
    kept, values = ["--deny=warnings"], iter(arguments)
    for argument in values:
        if argument in OF_TESTS:
            next(values, None)
        elif argument != "--test" and not argument.startswith(tuple(f"{name}=" for name in OF_TESTS)):
            kept.append(argument)
    return [*kept, "--out-dir", folder]


def main():
    arguments = sys.argv[1:]
    documented = 0
    if "--test" in arguments:
        with tempfile.TemporaryDirectory() as folder:
            documented = subprocess.run(["rustdoc", *documenting(arguments, folder)]).returncode
    tested = subprocess.run(["rustdoc", *arguments]).returncode
    sys.exit(documented or tested)


if __name__ == "__main__":
    main()
