"""What the documentation shows works: examples run, the Python in pages runs, and lists match the code."""

import doctest
import runpy
from pathlib import Path

import pytest

import broadloom as bl

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example, capsys):
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_python_in_pages_runs(page):
    failed, _ = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_python_in_the_readme_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "plan" / "plan.json").exists()


def test_the_readme_shows_both_commands():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_every_public_name_is_on_the_api_page():
    text = (ROOT / "docs" / "api.md").read_text()
    for name in bl.__all__:
        assert f"broadloom.{name}" in text, name
