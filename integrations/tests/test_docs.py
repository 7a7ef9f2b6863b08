"""Runs every Python block of docs/integrations.md and of the packages' READMEs, page by page, in an
empty folder.
"""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = sorted(file.parent for file in (ROOT / "integrations").glob("*/pyproject.toml"))
PAGES = [ROOT / "docs" / "integrations.md", *(package / "README.md" for package in PACKAGES)]
BLOCK = re.compile(r"^```python(?: (?P<needs>\w+))?\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_a_page_runs(page, tmp_path, monkeypatch):
    text = page.read_text()
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__docs__"}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) == text.count("```python") >= 1
    for block in blocks:
        needs = block["needs"]
        assert needs is None or importlib.util.find_spec(needs) is not None, f"{needs} is not installed"
        line = text.count("\n", 0, block.start("code"))
        exec(compile("\n" * line + block["code"], str(page), "exec"), names)
