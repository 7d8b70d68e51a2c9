"""Wheel and source distribution: building, checks of their contents, and environments with the wheel.

`tools/release`, `tools/test-pythons` and `tests/test_wheel.py` use this.
"""

import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What the source distribution is built from: a copy of these, so that no cache and no list of files from an
# earlier build gets into the result.
SOURCES = (
    "CHANGELOG.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "packaging",
    "pyproject.toml",
    "report-ui",
    "src",
)
CACHES = shutil.ignore_patterns("__pycache__", "*.egg-info", "node_modules", ".*_cache", ".DS_Store")
DATA = (
    "broadloom/py.typed",
    "broadloom/pipeline/log4j2.properties",
    "broadloom/report/assets/LICENSES.txt",
    "broadloom/report/assets/built.json",
    "broadloom/report/assets/report.css",
    "broadloom/report/assets/report.js",
)
LICENCES = ("LICENSE", "src/broadloom/report/assets/LICENSES.txt")
FOREIGN = re.compile(r"(^|/)(tests?|demo|benchmarks|node_modules|__pycache__|\.[^/]*)/|\.py[cod]$")
SMOKE_TEST = ROOT / "tools" / "smoke_test.py"
PYTHONS = ("3.11", "3.12", "3.13")


def build(folder: Path) -> tuple[Path, Path]:
    """Build the source distribution, and the wheel from it; the same sources give the same bytes.

    Returns:
        The paths of the wheel and of the source distribution, in `folder`.
    """
    copy = folder / "source"
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=CACHES)
        else:
            copy.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    time = source_time()
    environment = {**inherited(), "SOURCE_DATE_EPOCH": str(time)}
    run([sys.executable, "-m", "build", "--no-isolation", "--sdist", "-o", folder, copy], environment)
    shutil.rmtree(copy)
    (sdist,) = folder.glob("broadloom-*.tar.gz")
    _normalize(sdist, time)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    run([sys.executable, "-m", "build", "--no-isolation", "--wheel", "-o", folder, unpacked], environment)
    shutil.rmtree(folder / "unpacked")
    (wheel,) = folder.glob("broadloom-*.whl")
    return wheel, sdist


def source_time() -> int:
    """The time of the last commit, or SOURCE_DATE_EPOCH; 1980, the first of a zip file, without git."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    if shutil.which("git") is None:
        return 315532800
    done = subprocess.run(command, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip() else 315532800


def check_contents(wheel: Path, sdist: Path) -> None:
    """Compare both files with the repository: all that is needed is there, and nothing else.

    Raises:
        SystemExit: something is missing or superfluous; the message names it.
    """
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    information = next(name for name in in_wheel if name.endswith(".dist-info/METADATA")).rpartition("/")[0]
    records = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt")
    expected = {*modules, *DATA, *(f"{information}/{name}" for name in records)}
    expected |= {f"{information}/licenses/{name}" for name in LICENCES}
    _compare(wheel.name, in_wheel, expected)

    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    made = {"PKG-INFO", "setup.cfg"}
    files = {name for name in files if ".egg-info/" not in name} - made
    expected = {name for name in SOURCES if (ROOT / name).is_file()}
    expected |= {f"src/{name}" for name in (*modules, *DATA)}
    for folder in ("packaging", "report-ui"):
        names = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file()}
        expected |= {name for name in names if not FOREIGN.search(name)}
    _compare(sdist.name, files, expected)
    _check_metadata(metadata(wheel))


def metadata(wheel: Path) -> Message:
    """The metadata of a wheel; its payload is the README."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def check_rendering(*files: Path) -> None:
    """Run `twine check --strict`: the index can show the README and accepts the metadata."""
    run([sys.executable, "-m", "twine", "--no-color", "check", "--strict", *files], inherited())


def new_environment(python: str, folder: Path, wheel: Path, locked: bool = False) -> Path:
    """Create an empty virtual environment and install the wheel with its dependencies, without extras.

    Args:
        python: the interpreter.
        folder: the folder of the environment; not in the repository.
        wheel: the wheel.
        locked: install the versions of requirements/dev.txt, not the newest.

    Returns:
        The interpreter of the environment.
    """
    run([python, "-m", "venv", folder], inherited())
    own = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    command = [own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", wheel]
    if locked:
        versions = folder / "versions.txt"
        lines = (ROOT / "requirements" / "dev.txt").read_text().splitlines()
        pinned = [line.removesuffix("\\").strip() for line in lines if not line.startswith(" ")]
        versions.write_text("\n".join(pinned) + "\n")
        command += ["--constraint", versions]
    run(command, inherited())
    return own


def smoke_test(python: Path, wheel: Path, folder: Path, *parts: str) -> str:
    """Run `tools/smoke_test.py` with an environment's interpreter in an empty folder; return what it prints.

    Nothing of this process's environment reaches it: not PYTHONPATH, Java, or caches of kernels.
    """
    folder.mkdir(parents=True)
    script = shutil.copy(SMOKE_TEST, folder / "smoke_test.py")
    kept = {name: value for name in ("SYSTEMROOT", "TEMP") if (value := os.environ.get(name))}
    clean = {**kept, "HOME": str(folder), "LANG": "C.UTF-8", "COLUMNS": "200"}
    clean["PATH"] = os.pathsep.join(
        [str(python.parent), *(["/usr/bin", "/bin"] if os.name == "posix" else [])]
    )
    version = str(metadata(wheel)["Version"])
    return run([python, "-I", script, version, *parts], clean, folder)


def find_python(version: str) -> str | None:
    """An interpreter of a version, such as "3.12", on PATH or of pyenv, that can create environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    names = (sys.executable, shutil.which(f"python{version}"), shutil.which("python3"), *installed)
    for name in filter(None, names):
        check = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([name, "-I", "-c", check], capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.strip() == version:
            return str(name)
    return None


def inherited() -> dict[str, str]:
    """The environment of this process, without what would add modules to another interpreter."""
    ours = ("PYTHONPATH", "PYTHONHOME", "PYTHONOPTIMIZE", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
    return {name: value for name, value in os.environ.items() if name not in ours}


def run(command: list[object], environment: dict[str, str], folder: Path | None = None) -> str:
    """Run a command and return its output.

    Raises:
        SystemExit: it failed; the message has the end of its output.
    """
    words = [str(word) for word in command]
    done = subprocess.run(
        words, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-4000:]}")
    return done.stdout


def _compare(name: str, found: set[str], expected: set[str]) -> None:
    if missing := sorted(expected - found):
        raise SystemExit(f"{name} lacks {', '.join(missing)}")
    if foreign := sorted(found - expected):
        raise SystemExit(f"{name} holds {', '.join(foreign)}, which do not belong to it")


def _check_metadata(found: Message) -> None:
    """Every link of the README is absolute, and each supported Python has a classifier."""
    text = str(found.get_payload())
    links = re.findall(r"\]\(([^)]+)\)", text)
    if relative := [link for link in links if not link.startswith("https://")]:
        raise SystemExit(f"README.md: {relative[0]} is a relative link, which the index cannot show")
    for version in PYTHONS:
        if f"Programming Language :: Python :: {version}" not in found.get_all("Classifier", []):
            raise SystemExit(f"pyproject.toml: no classifier for Python {version}")


def _normalize(sdist: Path, time: int) -> None:
    """Write an archive again, in order, with one time and no owner, so that it is reproducible."""
    with tarfile.open(sdist) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        contents = [archive.extractfile(member) for member in members]
        drawn = io.BytesIO()
        with tarfile.open(fileobj=drawn, mode="w", format=tarfile.PAX_FORMAT) as plain:
            for member, content in zip(members, contents, strict=True):
                member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.pax_headers = {}
                plain.addfile(member, content)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed:
        packed.write(drawn.getvalue())
