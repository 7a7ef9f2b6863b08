"""What the pages for Python users say is run: every block of Python of a page, one after the other, in an empty folder."""

import importlib.util
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"
BLOCK = re.compile(r"^```python(?: (?P<needs>\w+))?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_for_python_users_runs(tmp_path, monkeypatch, capsys):
    page = (DOCS / "python.md").read_text()
    monkeypatch.chdir(tmp_path)
    names, ran, left = {"__name__": "__docs__"}, 0, []
    for block in BLOCK.finditer(page):
        if block["needs"] is not None and importlib.util.find_spec(block["needs"]) is None:
            left.append(block["needs"])
            continue
        line = page.count("\n", 0, block.start("code"))
        # As many empty lines before it as there are on the page: an error names the line of the page.
        exec(compile("\n" * line + block["code"], str(DOCS / "python.md"), "exec"), names)
        ran += 1
    assert ran + len(left) == page.count("```python") and ran >= 10
    assert set(left) <= {"pandas", "pyarrow"}
    assert "KiB on disk" in capsys.readouterr().out


def test_every_public_name_is_on_the_page_or_has_its_own():
    pages = "".join((DOCS / name).read_text() for name in ("python.md", "client.md", "ray.md", "cli.md"))
    readme = (DOCS.parent / "README.md").read_text()
    for name in ("build", "open", "plan", "truth", "recall", "write", "verify", "to_pandas", "connect", "Catalog"):
        assert f"stratann.{name}" in pages + readme, name


@pytest.mark.parametrize("name", ["search", "search_async", "insert", "get", "ids"])
def test_docstrings_say_shapes(name):
    import stratann

    text = getattr(stratann.Index, name).__doc__
    assert "Returns" in text or "`search`" in text
    assert re.search(r"\(n?q?, |\(n,\)|`search`", text), text
