"""Each promise of the documentation names tests that exist, and says which of them `make test` leaves out."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "promises.md").read_text()
NAMES = re.findall(r"(\*?)`(tests/[\w/]+\.py)::([\w:]+)`(\*?)", TEXT)
(TESTS,) = re.findall(r'^TESTS := .*-m "([^"]*)"', (ROOT / "Makefile").read_text(), re.MULTILINE)
LONG = {f"pytest.mark.{name}" for name in re.findall(r"not (\w+)", TESTS)}  # left out of `make test`


@cache
def names_in(path):
    """The names of a file's tests, those of classes with the name of the class, and whether each is long."""
    body = ast.parse((ROOT / path).read_text()).body
    of_all = [mark for node in body if isinstance(node, ast.Assign) for mark in module_marks(node)]
    found = {}
    for node in body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = [*of_all, *map(ast.unparse, node.decorator_list)]
        elif isinstance(node, ast.ClassDef):
            for one in node.body:
                if isinstance(one, ast.FunctionDef):
                    marks = map(ast.unparse, [*node.decorator_list, *one.decorator_list])
                    found[f"{node.name}::{one.name}"] = [*of_all, *marks]
    return {name: not LONG.isdisjoint(marks) for name, marks in found.items()}


def module_marks(node):
    if [ast.unparse(target) for target in node.targets] != ["pytestmark"]:
        return []
    return [
        ast.unparse(mark) for mark in (node.value.elts if isinstance(node.value, ast.List) else [node.value])
    ]


def test_each_promise_names_a_test_that_exists():
    assert len(NAMES) > 40
    assert [f"{path}::{name}" for _, path, name, _ in NAMES if name not in names_in(path)] == []


def test_exactly_the_long_tests_are_in_italics():
    wrong = [
        f"{path}::{name}"
        for before, path, name, after in NAMES
        if bool(before and after) != names_in(path)[name]
    ]
    assert wrong == []


def test_each_row_has_a_test():
    rows = [
        line
        for line in TEXT.splitlines()
        if line.startswith("| ") and not line.startswith(("| ---", "| promise"))
    ]
    assert [row for row in rows if "`tests/" not in row] == []
