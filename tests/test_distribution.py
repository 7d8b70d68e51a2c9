"""Distribution: extras are named in one way and documented."""

import ast
import re
import tomllib
from pathlib import Path

import broadloom

ROOT = Path(__file__).parents[1]
SOURCE = Path(broadloom.__file__).parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = set(PROJECT["optional-dependencies"])


def _extras_in_source() -> set[str]:
    """The second argument of each call of `missing_extra`, which must be a plain string."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "missing_extra":
                extra = node.args[1]
                assert isinstance(extra, ast.Constant), f"{file}:{node.lineno}: name the extra as a string"
                found.add(extra.value)
    return found


def test_each_extra_of_the_project_is_named_by_an_error_and_no_other():
    assert _extras_in_source() == EXTRAS


def test_only_one_function_writes_how_to_install_an_extra():
    for file in SOURCE.rglob("*.py"):
        if file.name != "errors.py":
            assert "pip install" not in file.read_text(), f"{file}: raise missing_extra(...) instead"


def test_no_message_sends_a_user_of_the_package_to_make():
    for file in SOURCE.rglob("*.py"):
        assert not re.search(r"\bmake (setup|demo|test)\b", file.read_text()), file


def test_each_extra_is_on_the_install_page():
    rows = re.findall(r"^\| `([a-z]+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert set(rows) == EXTRAS
    assert len(rows) == len(EXTRAS)


def test_pages_name_only_extras_that_exist_and_in_the_same_form():
    for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text()
        assert "'broadloom[" not in text, f"{page.name}: use double quotes, as the errors do"
        for names in re.findall(r"broadloom\[([a-z,]+)\]", text):
            assert set(names.split(",")) <= EXTRAS, page.name
