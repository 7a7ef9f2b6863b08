#!/usr/bin/env python3
"""Copies the pages of this tree to a folder, from which MkDocs builds the site (`make docs`).

    python3 .ci/site.py FOLDER        makes FOLDER, or replaces one that it made before.
    python3 .ci/site.py --self-test   tests that it copies the files that pages link to.

Pages link to each other, and to files outside `docs/`, by paths in the tree. MkDocs reads only files
below one folder. So each page, and each file that a page links to, is copied to FOLDER under its own
path, and the links stay unchanged. In a code block that begins with "```python NAME", the name tells
tests which package the block needs. It is removed from the copy.
"""

import pathlib
import re
import shutil
import sys
import tempfile

import links

# A folder without this file is not replaced.
MARK = ".pages-of-stratann"

NEEDS = re.compile(r"^(```\w+) \w+$", re.MULTILINE)


def targets(root, page):
    bare = links.CODE.sub("", links.FENCE.sub(links.blank, page.read_text(encoding="utf-8")))
    for target in links.LINK.findall(bare):
        name = target.partition("#")[0]
        if name and not links.SCHEME.match(target):
            goal = root / name[1:] if name.startswith("/") else page.parent / name
            if goal.is_file():
                yield goal.resolve()


def copy(root, folder):
    if folder.exists():
        if any(folder.iterdir()) and not (folder / MARK).exists():
            sys.exit(f"error: {folder} has other files. Name a folder that is empty or does not exist")
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    pages = links.pages(root)
    for source in sorted({*pages, *(goal for page in pages for goal in targets(root, page))}):
        goal = folder / source.relative_to(root)
        goal.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".md":
            goal.write_text(NEEDS.sub(r"\1", source.read_text(encoding="utf-8")), encoding="utf-8")
        else:
            shutil.copyfile(source, goal)


def self_test():
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name).resolve() / "tree"
        folder = root.parent / "site"
        (root / "docs").mkdir(parents=True)
        (root / "job.toml").write_text("")
        (root / "unlinked.toml").write_text("")
        (root / "docs" / "a.md").write_text("[job](../job.toml) [up](../README.md#x) `[no](../unlinked.toml)`\n```python pandas\n```\n")
        (root / "README.md").write_text("[a](docs/a.md) [folder](docs) [web](https://x.invalid/unlinked.toml)\n")
        for _ in range(2):
            copy(root, folder)
        found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        assert found == [MARK, "README.md", "docs/a.md", "job.toml"], found
        try:
            copy(root, root)
            raise AssertionError("it replaced a folder that it had not made")
        except SystemExit:
            assert (root / "README.md").exists()
        assert "```python\n" in (folder / "docs" / "a.md").read_text()
    print("site.py: pages and the files that they link to, and no others")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    copy(pathlib.Path(__file__).resolve().parent.parent, pathlib.Path(sys.argv[1]))


if __name__ == "__main__":
    main()
