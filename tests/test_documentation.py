"""What the documentation shows works: examples run, the Python in pages runs, and lists match the code."""

import doctest
import re
import runpy
from pathlib import Path

import pytest
import yaml

import broadloom as bl
import cli_reference
from broadloom.cli import main

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
WITH_PYTHON = [page for page in PAGES if ">>> " in page.read_text()]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_examples_run(example, capsys):
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda path: str(path.relative_to(ROOT / "docs")))
def test_python_in_pages_runs(page):
    failed, _ = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_python_in_the_readme_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "example" / "plan.json").exists()


def test_the_readme_shows_both_commands():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_every_public_name_has_a_page_of_the_api():
    text = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    for name in bl.__all__:
        assert f"::: broadloom.{name}" in text, name


def test_pages_of_the_command_line_are_up_to_date():
    """`make cli-reference` writes them."""
    folder = ROOT / "docs" / "cli"
    assert {page.name: page.read_text() for page in folder.glob("*.md")} == cli_reference.pages()


@pytest.mark.parametrize("name", [name for name, _ in cli_reference.commands()])
def test_the_page_of_a_command_equals_its_help(name, capsys):
    command = dict(cli_reference.commands())[name]
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    parts = cli_reference.parts(name, command)
    rows = [*parts["argument"], *parts["option"], ("--help", "Show this message and exit.")]
    blocks = [f"Usage: {parts['usage']}", *parts["paragraphs"], "Arguments:" if parts["argument"] else ""]
    blocks += [_words(row) for row in parts["argument"]]
    blocks += ["Options:", *(_words(row) for row in rows[len(parts["argument"]) :])]
    assert _joined(printed) == _joined(" ".join(blocks))


def _words(row):
    return " ".join(" ".join(row).split())


def _joined(text):
    """Text without spaces: help breaks lines also after hyphens and slashes."""
    return "".join(text.split())


def test_navigation_has_every_page_once():
    """Zensical does not say which pages the navigation lacks, or which of its pages are missing."""

    def listed(entry):
        if isinstance(entry, str):
            return [entry]
        return [
            page for one in (entry.values() if isinstance(entry, dict) else entry) for page in listed(one)
        ]

    pages = listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(pages) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "packaging/systemd"])
def test_links_into_the_repository_exist(name):
    """Zensical checks links between pages; other files link to pages by their address on GitHub."""
    files = [ROOT / name] if (ROOT / name).is_file() else sorted((ROOT / name).iterdir())
    text = "".join(file.read_text() for file in files)
    for path in re.findall(r"broadloom/(?:blob/)?main/([\w./-]+)", text):
        assert (ROOT / path).exists(), path


def test_pictures_exist_and_are_described():
    for page in PAGES:
        for words, path in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
            assert words, (page, path)
            assert (page.parent / path).exists(), (page, path)


def test_each_concept_has_a_drawing():
    sections = (ROOT / "docs" / "concepts.md").read_text().split("\n## ")[1:]
    paths = [path for text in sections for path in re.findall(r"\((drawings/\w+\.svg)\)", text)]
    assert len(paths) == len(sections) == 5


def test_all_drawings_have_a_title_and_colours_for_dark_pages():
    for path in (ROOT / "docs" / "drawings").glob("*.svg"):
        text = path.read_text()
        assert "<title>" in text, path
        assert "prefers-color-scheme: dark" in text, path
