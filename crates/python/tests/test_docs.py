"""Runs every block of Python of the pages for Python users, one after the other, in an empty
folder.
"""

import importlib.util
import pathlib
import re
import shutil

import pytest

import stratann

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
BLOCK = re.compile(r"^```python(?: (?P<needs>\w+))?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_run(path):
    """The number of blocks of a page that ran, and the missing packages of the others."""
    page = path.read_text()
    names, ran, left = {"__name__": "__docs__"}, 0, []
    for block in BLOCK.finditer(page):
        if block["needs"] is not None and importlib.util.find_spec(block["needs"]) is None:
            left.append(block["needs"])
            continue
        line = page.count("\n", 0, block.start("code"))
        # An error names the line of the page.
        exec(compile("\n" * line + block["code"], str(path), "exec"), names)
        ran += 1
    assert ran + len(left) == page.count("```python")
    return ran, left


def test_the_page_for_python_users_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran, left = blocks_run(DOCS / "python.md")
    assert ran >= 10 and set(left) <= {"pandas", "pyarrow"}
    assert "KiB on disk" in capsys.readouterr().out


@pytest.mark.parametrize("page", ["../README.md", "start.md"])
def test_the_first_pages_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran, left = blocks_run(DOCS / page)
    assert ran >= 1 and not left


def recipe(words):
    """The single block of the page with these words."""
    (code,) = (block["code"] for block in BLOCK.finditer((DOCS / "python.md").read_text()) if words in block["code"])
    return code


def test_the_backup_counts_and_removes_its_copies_alone(tmp_path, monkeypatch, small):
    monkeypatch.chdir(tmp_path)
    index = stratann.build(small[:50], "live.idx", degree=8, build_list=16)
    names = {"stratann": stratann, "index": index}
    exec(recipe("def back_up("), names)
    back_up, folder = names["back_up"], pathlib.Path("backups")
    # Two of these earlier copies have the same day.
    first = names["copy"].rename(folder / "2020-01-01T03-00-00Z")
    for old in ("2020-01-02T03-00-00Z", "2020-01-02T20-00-00Z"):
        shutil.copytree(first, folder / old)
    # These are foreign files, and the files of a killed process.
    others = {".DS_Store", "2020-01-01", "photos", "notes.idx", "2020-01-03T03-00-00Z", "2020-01-04T03-00-00Z.new", "zebra"}
    (folder / ".DS_Store").write_text("")
    for other in others - {".DS_Store", "notes.idx", "2020-01-01"}:
        (folder / other).mkdir()
    for other in ("notes.idx", "2020-01-01"):
        shutil.copytree(first, folder / other)
    (folder / "2020-01-03T03-00-00Z" / "SNAPSHOT.new").write_text("")
    there = {path.name for path in folder.iterdir()}
    copy = back_up(index, folder, keep=3)
    assert copy.name not in there and len(stratann.open(copy)) == 50
    now = {path.name for path in folder.iterdir()}
    assert now == others | {copy.name, "2020-01-02T03-00-00Z", "2020-01-02T20-00-00Z"}


def test_every_public_name_is_on_the_page_or_has_its_own():
    pages = "".join((DOCS / name).read_text() for name in ("python.md", "client.md", "ray.md", "cli.md"))
    readme = (DOCS.parent / "README.md").read_text()
    for name in ("build", "open", "plan", "truth", "recall", "write", "verify", "to_pandas", "connect", "Catalog"):
        assert f"stratann.{name}" in pages + readme, name


def test_help_says_what_goes_with_a_recall():
    text = stratann.Index.search.__doc__
    told = text[text.index("recall : float") : text.index("filter : str")]
    for word in ("`probes`", "`stop_early`", "`strategy`", "re-ranking"):
        assert word in told, told


@pytest.mark.parametrize("name", ["search", "search_async", "insert", "get", "ids"])
def test_docstrings_say_shapes(name):
    text = getattr(stratann.Index, name).__doc__
    assert "Returns" in text or "`search`" in text
    assert re.search(r"\(n?q?, |\(n,\)|`search`", text), text
