#!/usr/bin/env python3
"""The pages of this tree as a folder that MkDocs makes a site of (`make docs`).

    python3 .ci/site.py FOLDER        makes FOLDER, or replaces one that it made
    python3 .ci/site.py --self-test   proves that it takes the files that pages link to

Pages link to each other, and to files beside `docs/`, by their places in the tree. MkDocs knows only the files below one folder. So each
page, and each file that a page links to, is copied to FOLDER under its own path, and every link stays as it is. A code block that
begins with "```python NAME" loses the name: it says to tests which package the block needs.
"""

import pathlib
import re
import shutil
import sys
import tempfile

import links

# Names a folder that this made, which nothing else is removed for.
MARK = ".pages-of-stratann"

NEEDS = re.compile(r"^(```\w+) \w+$", re.MULTILINE)


def targets(root, page):
    """The local files that a page links to or shows."""
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
            sys.exit(f"error: {folder} holds other files; give a folder that is empty or does not exist yet")
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
