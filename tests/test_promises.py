"""Each promise of the documentation names tests that exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "promises.md").read_text()
NAMES = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", TEXT)


def names_in(path):
    """The names of a file's tests, those of classes with the name of the class."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def test_each_promise_names_a_test_that_exists():
    assert len(NAMES) > 40
    assert [f"{path}::{name}" for path, name in NAMES if name not in names_in(path)] == []


def test_each_row_has_a_test():
    rows = [
        line
        for line in TEXT.splitlines()
        if line.startswith("| ") and not line.startswith(("| ---", "| promise"))
    ]
    assert [row for row in rows if "`tests/" not in row] == []
