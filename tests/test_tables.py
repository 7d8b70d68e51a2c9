"""Tables of the documentation: up to date, and in correct Markdown."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import tables  # noqa: E402 (the path is set above)

ROWS = [
    {"name": "a|b", "n": 1200, "x": 0.12345, "ok": True},
    {"name": "c", "n": None, "x": 12345.6, "ok": False},
]


def test_pages_are_up_to_date():
    """Numbers in pages come from the result files; `python benchmarks/tables.py` writes them."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "tables.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_table_in_markdown():
    assert tables.markdown(ROWS).split("\n") == [
        "",
        "| name | n | x | ok |",
        "| --- | ---: | ---: | --- |",
        "| a\\|b | 1,200 | 0.123 | yes |",
        "| c | - | 12,346 | NO |",
        "",
        "",
    ]


def test_a_page_chooses_columns_and_rows(monkeypatch):
    monkeypatch.setitem(tables.LISTS, "mine", lambda: ROWS)
    assert (
        tables.requested_table("mine | x, name | n=1200/7")
        == "\n| x | name |\n| ---: | --- |\n| 0.123 | a\\|b |\n\n"
    )


@pytest.mark.parametrize("name", ["nothing/here", "link/nothing"])
def test_a_missing_result_is_marked_as_not_measured(name):
    assert "Not measured yet" in tables.requested_table(name)


@pytest.mark.parametrize(("stage", "one"), [("link", "`exact`"), ("assign", "`gr*`")])
def test_every_algorithm_is_listed(stage, one):
    names = [row["name"] for row in tables.algorithms(stage)]
    pages = (ROOT / "docs" / "link.md", ROOT / "docs" / "assign.md", ROOT / "docs" / "market.md")
    assert one in names
    assert all(any(name in page.read_text() for page in pages) for name in names)
