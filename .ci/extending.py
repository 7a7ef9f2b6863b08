#!/usr/bin/env python3
"""Compares docs/extending.md with the source tree.

    python3 .ci/extending.py              Every named file exists, and each section names every file that
                                          mentions a variant of its example (NAMES).
    python3 .ci/extending.py --self-test  tests the check itself.

A path may be short: `row.rs` beside `attributes/value.rs` is in the same folder. Of several files
with this name, the nearest to the path before it counts.
"""

import pathlib
import re
import subprocess
import sys

from dependencies import for_tests

PAGE = "docs/extending.md"

# heading -> the expression whose matches the section must know
NAMES = {
    "A metric": r"\b(?:Metric::(?:Cosine|InnerProduct)|Reduction::(?:Normalised|Lifted))\b",
    "An element type": r"\bElement::(?:F32|F16|U8|I8)\b",
    "A tier": r"\bPlaceTier::[A-Z]\w+",
    "A page layout": r"\bLayout::[A-Z][a-z]\w+",
    "A search strategy": r"\bStrategy::[A-Z][a-z]\w+",
    "A strategy for filters": r"(?<!::)\bWay::(?:Within|Before)\b",
    "A kind of index": r"\b(?:IndexKind|Kind)::(?:Graph|Clusters)\b",
    "A kind of file": r"\bFileKind::Recall\b",
    "A role of files": r"\bRole::Columns\b",
    "A type of attribute": r"\b(?:ColumnType|Value)::Timestamp\b",
}

# A file of this kind needs no change for a new variant: it only chooses one.
CHOOSES = re.compile(r"/(?:examples|benches)/")

PATH = re.compile(r"`([\w.-]+(?:/[\w.*-]+)*(?:\.(?:rs|py|md|toml)|/))`|`((?:[\w.-]+/)+[\w-]+)`")


def sections(text):
    for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        yield heading, body


def named(body, files):
    """The files and folders that a section names, and the names that match none."""
    folders = {str(above) for file in files for above in pathlib.PurePath(file).parents}
    found, unknown, before = set(), [], ""
    for match in PATH.finditer(body):
        name = (match[1] or match[2]).removesuffix("/*").removesuffix("/")
        fits = [path for path in [*files, *folders] if path == name or path.endswith(f"/{name}")]
        if not fits:
            unknown.append(name)
            continue
        before = max(sorted(fits), key=lambda path: (path == name, shared(path, before)))
        found.add(before)
    return found, unknown


def shared(path, other):
    """How many folders two paths share."""
    count = 0
    for one, two in zip(path.split("/"), other.split("/")):
        if one != two:
            break
        count += 1
    return count


def production(text):
    """The source of a file without its comments and its tests."""
    return re.sub(r"^\s*//.*$", "", text.split("#[cfg(test)]\nmod tests {")[0], flags=re.MULTILINE)


def faults(page, sources):
    """`sources`: the text of each file, by path."""
    lines, headings = [], set()
    for heading, body in sections(page):
        headings.add(heading)
        listed, unknown = named(body, sorted(sources))
        lines += [f"{PAGE}, {heading}: there is no {name}. Name the file that has its code now" for name in unknown]
        if heading not in NAMES:
            continue
        for path, text in sorted(sources.items()):
            if not text or for_tests(pathlib.Path(path)) or CHOOSES.search(path):
                continue
            if path in listed or any(str(above) in listed for above in pathlib.PurePath(path).parents):
                continue
            if match := re.search(NAMES[heading], production(text)):
                lines.append(f"{PAGE}, {heading}: {path} has {match[0]}. Add the file to the list")
    lines += [f"{PAGE}: the section {heading!r} is missing, but .ci/extending.py has its names" for heading in NAMES if heading not in headings]
    return lines


def self_test():
    page = "".join(f"## {heading}\n\nNone.\n" for heading in NAMES if heading != "A metric")
    page += "## A metric\n\n1. `crates/vector/src/metric.rs`, and `kernel/` beside it.\n2. `row.rs`.\n"
    right = {
        "crates/vector/src/metric.rs": "Metric::Cosine",
        "crates/vector/src/kernel/plain.rs": "Metric::Cosine",
        "crates/vector/src/row.rs": "",
        "crates/layout/src/row.rs": "// Metric::Cosine",
        "crates/layout/src/tests.rs": "Metric::Cosine",
        "crates/layout/src/block.rs": "#[cfg(test)]\nmod tests {\n    Metric::Cosine\n}",
    }
    assert faults(page, right) == [], faults(page, right)
    wrong = {
        "a file that the list lacks": (page, {**right, "crates/layout/src/row.rs": "Metric::Cosine"}),
        "a file that is gone": (page.replace("metric.rs", "metrics.rs"), {**right, "crates/vector/src/metric.rs": ""}),
        "a section that is gone": (page.replace("## A tier", "## A level"), right),
    }
    for fault, (text, sources) in wrong.items():
        assert len(faults(text, sources)) == 1, (fault, faults(text, sources))
    print(f"extending.py: {len(wrong)} faults found, none in a right page")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        sys.exit(__doc__)
    files = subprocess.run(["git", "ls-files"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    sources = {
        path: pathlib.Path(path).read_text() if re.match(r"crates/\w+/src/.*\.rs$", path) else ""
        for path in files
        if pathlib.Path(path).exists()
    }
    lines = faults(pathlib.Path(PAGE).read_text(), sources)
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
