#!/usr/bin/env python3
"""Checks that every local link of the Markdown files leads to a file or heading.

    python3 .ci/links.py              checks the .md files that git does not ignore.
    python3 .ci/links.py --self-test  tests the check itself.

A link is `[text](target)` or `![text](target)` outside of code. Files, folders and headings
(`#like-this`, as GitHub spells them) are checked. Addresses with a scheme are not checked, since a
check must not need a network.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^(```|~~~).*?^\1[^\n]*$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"!?\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def blank(match):
    return "\n" * match.group().count("\n")


def anchors(text):
    found = set()
    for heading in HEADING.findall(FENCE.sub(blank, text)):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        name, count = plain, 0
        while name in found:
            count += 1
            name = f"{plain}-{count}"
        found.add(name)
    return found


def faults(root, page):
    """`root` and `page` are absolute paths."""
    text = page.read_text(encoding="utf-8")
    bare = CODE.sub("", FENCE.sub(blank, text))
    found = []
    for number, line in enumerate(bare.split("\n"), 1):
        for target in LINK.findall(line):
            if SCHEME.match(target):
                continue
            name, _, anchor = target.partition("#")
            goal = page if not name else (root / name[1:] if name.startswith("/") else page.parent / name)
            where = f"{page.relative_to(root)}:{number}: ({target})"
            if not goal.exists():
                found.append(f"{where}: no such file")
            elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text(encoding="utf-8")):
                found.append(f"{where}: no such heading")
    return found


def pages(root):
    """The .md files that git does not ignore. Without git: all, except in built and hidden folders."""
    git = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.md"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    if git.returncode == 0:
        names = [root / name for name in git.stdout.decode().split("\0") if name]
    else:
        skip = {"target", "rivals-out", "node_modules"}
        names = [
            path
            for path in root.rglob("*.md")
            if not any(part in skip or part.startswith(".") for part in path.relative_to(root).parts)
        ]
    return sorted(path for path in names if path.exists())


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder).resolve()
        (root / "docs").mkdir()
        (root / "docs" / "a.md").write_text("# One: two\n\n## Same\n\n## Same\n")
        page = root / "README.md"
        page.write_text(
            "[a](docs/a.md) [b](docs/a.md#one-two) [c](docs/a.md#same-1) [d](docs/) [e](#top) [f](https://x.invalid/y)\n"
            "`[g](gone)`\n```\n[h](gone)\n```\n# Top\n![i](/docs/a.md \"title\")\n"
        )
        assert faults(root, page) == [], faults(root, page)
        page.write_text("[a](docs/gone.md)\n[b](docs/a.md#three)\n[c](#nowhere)\n![d](gone.svg)\n")
        found = faults(root, page)
        assert len(found) == 4 and [line.split(":")[1] for line in found] == ["1", "2", "3", "4"], found
    print("links.py: 4 broken links found, none in a right page")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        sys.exit(__doc__)
    root = pathlib.Path(__file__).resolve().parent.parent
    lines = [line for page in pages(root) for line in faults(root, page)]
    for line in lines:
        print(f"error: {line}", file=sys.stderr)
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()
