"""Archive of Spark's classes: Java loads and verifies them once, and later starts of Spark map the file.

A short run of Spark takes a third of its CPU time to load classes. `broadloom compile` makes the archive by a
small ingest. It is in the user's cache, for one Java and one Spark; Java itself ignores an archive of other
jars, and then loads the classes as usual.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from broadloom.errors import MissingExtraError, StorageError
from broadloom.pipeline.java import cache_folder, quiet_java_home

# The rows of the ingest that loads the classes: enough for the path of larger inputs.
ROWS = 100_000
_MINUTES = 10


def archive_options(home: Path) -> str:
    """The options by which the Java at `home` uses the archive; empty if there is none.

    An archive with another size than its name says is not used: Java would crash on a truncated one.
    """
    for path in _archives(home):
        if path.stat().st_size == int(path.stem.rpartition("-")[2]):
            return f"{shlex.quote(f'-XX:SharedArchiveFile={path}')} -Xshare:auto -Xlog:cds*=off"
    return ""


def make_archive() -> Path | None:
    """Make the archive for the Java and the Spark that a session would use, unless it is there.

    Returns:
        Its path; None if Spark or Java is not installed, or this Java cannot make one.

    Raises:
        StorageError: the archive cannot be written.
    """
    try:
        home = quiet_java_home()
    except MissingExtraError:
        return None
    if os.name != "posix" or _jars() is None:
        return None
    if archive_options(home):
        return _archives(home)[0]
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as folder:
            return _make(home, Path(folder))
    except OSError as error:
        raise StorageError(f"cannot write to {cache_folder()}: {error}") from error


def _make(home: Path, folder: Path) -> Path | None:
    """Run the ingest in a process of its own, whose JVM writes the archive when it ends."""
    draft = folder / "draft.jsa"
    # The same session as that of a user who has made no settings.
    alone = {name: value for name, value in os.environ.items() if name not in _OF_OTHER_SESSIONS}
    done = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "broadloom.pipeline.class_archive", str(draft)],
        env=alone | {"TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=60 * _MINUTES,
        check=False,
    )
    if done.returncode or not draft.exists():
        return None
    for old in _archives(home):
        old.unlink(missing_ok=True)
    with draft.open("rb") as file:  # Java writes a file that only root can open for writing
        os.fsync(file.fileno())
    path = cache_folder() / f"{_name(home)}-{draft.stat().st_size}.jsa"
    draft.replace(path)
    return path


_OF_OTHER_SESSIONS = ("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_REMOTE")


def _archives(home: Path) -> list[Path]:
    return sorted(cache_folder().glob(f"{_name(home)}-*.jsa"))


def _name(home: Path) -> str:
    """The name of the archive for one Java and one Spark."""
    parts = (home, _jars(), os.environ.get("SPARK_CONF_DIR"))
    return f"classes-{hashlib.sha256(repr(list(map(str, parts))).encode()).hexdigest()[:12]}"


def _jars() -> Path | None:
    """The folder of Spark's classes; None if Spark is not installed."""
    if os.environ.get("SPARK_HOME"):
        return Path(os.environ["SPARK_HOME"], "jars")
    found = find_spec("pyspark")
    return Path(found.origin).parent / "jars" if found is not None and found.origin else None


def _load_classes(draft: Path) -> None:
    """Load the classes by an ingest, and wait until the JVM has ended, which then writes them to `draft`."""
    from pyspark import SparkContext

    from broadloom import workload
    from broadloom.pipeline.ingest import ingest
    from broadloom.pipeline.spark_session import SHORT_JOB, SparkEngine, quiet_log

    options = f"{quiet_log()} {SHORT_JOB} {shlex.quote(f'-XX:ArchiveClassesAtExit={draft}')} -Xlog:cds*=off"
    engine = SparkEngine(master="local[2]", conf={"spark.driver.extraJavaOptions": options})
    with tempfile.TemporaryDirectory() as folder:
        workload.devices(Path(folder, "raw"), subscriptions=ROWS, subscribers=1_000)
        ingest([str(Path(folder, "raw"))], Path(folder, "tables"), "match", "mean", engine)
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    _load_classes(Path(sys.argv[1]))
