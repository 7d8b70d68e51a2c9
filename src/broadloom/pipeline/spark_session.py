"""Spark sessions: embedded in this process, on a cluster, or on a Spark Connect server.

This is the only module that starts Spark. Importing it does not import pyspark. What the user has set takes
precedence, in this order: the engine, `spark-submit` or `PYSPARK_SUBMIT_ARGS`, and `spark-defaults.conf`;
our own settings apply only to names that none of these has.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from broadloom.errors import BroadloomError, InputError, StorageError, UnreachableError, missing_extra
from broadloom.pipeline.class_archive import archive_options
from broadloom.pipeline.java import quiet_java_home
from broadloom.storage import RemotePath, as_path, scratch_folder, share_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GIB = 2**30
CONNECT_PORT = 15002
MASTER_PORT = 7077
TASKS_PER_CORE = 4

# Only the first JIT compiler, and the serial collector: a fast start, better below about 4 million rows.
SHORT_JOB = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The second JIT compiler only for code that runs for each of millions of rows; most of Spark's code runs more
# rarely, and takes more time to compile than it saves. Few objects outlive their row, so that a small part of
# the heap is enough for new ones.
LONG_JOB = (
    "-XX:+UseSerialGC -Xmn192m -XX:Tier4InvocationThreshold=200000 -XX:Tier4MinInvocationThreshold=24000 "
    "-XX:Tier4CompileThreshold=600000 -XX:Tier4BackEdgeThreshold=1600000"
)
# Inputs above this size are long jobs.
LONG_JOB_BYTES = 80_000_000

# Masters and sizes of memory that make the JVM end at its start, with a reason only on stderr.
_MASTER = re.compile(r"yarn$|spark://|k8s://|local")
_MEMORY = {
    "spark.driver.memory": re.compile(r"\d+[kmgt]?", re.IGNORECASE),
    "spark.executor.memory": re.compile(r"\d+([kmgtp]?b|[kmgtp])?", re.IGNORECASE),
}

# Parts of a Java stack trace.
_CAUSE = re.compile(r"^(?:: |Caused by: )[\w.$]+: (.+)$", re.MULTILINE)
_WRONG_SETTING = re.compile(
    r"^: (?:[\w.]*(?:IllegalArgument|NumberFormat|Analysis)Exception: "
    r"|.*Could not parse Master URL|.*Invalid master URL)",
    re.MULTILINE,
)
_STORAGE_FAULT = re.compile(
    r"[^:\n]*(?:No space left on device|Disk quota exceeded|Read-only file system|Input/output error"
    r"|Permission denied)\)?"
)
_MISSING_PYTHON = re.compile(r'Cannot run program "([^"\n]+)": .*No such file or directory')


@dataclass(frozen=True)
class SparkEngine:
    """Choice of the Spark that does the work, and its settings.

    Attributes:
        master: a cluster (spark://..., yarn, k8s://...), or local[N]; None: what spark-submit or
            spark-defaults.conf say, else this machine, all its cores.
        remote: a Spark Connect server (sc://host:port) instead of a master; None: SPARK_REMOTE, if it is set.
        conf: settings of Spark; they take precedence over all others.
        long_job: compile for throughput instead of a fast start.

    Examples:
        >>> SparkEngine(master="local[2]").is_local
        True
        >>> SparkEngine(master="spark://head:7077").is_local
        False
    """

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    long_job: bool = False

    def __post_init__(self) -> None:
        if self.master and self.remote:
            raise InputError(
                f"the engine has both a master ({self.master}) and a remote ({self.remote}); give one of them"
            )
        if self.remote and not self.remote.startswith("sc://"):
            raise InputError(f"the remote is {self.remote!r}; give a Spark Connect address, sc://host:port")
        if self.master and not _MASTER.match(self.master):
            raise InputError(
                f"the master is {self.master!r}; give local[N], spark://host:port, yarn or k8s://..."
            )
        for name, pattern in _MEMORY.items():
            if name in self.conf and not pattern.fullmatch(self.conf[name]):
                raise InputError(f"{name} is {self.conf[name]!r}; give a size like 4g")

    @property
    def is_local(self) -> bool:
        """Whether Spark is embedded in this process."""
        return self.remote is None and (self.master is None or _is_local(self.master))

    def sized(self, size: int) -> SparkEngine:
        """This engine; as a long job if the input, of `size` bytes, is large enough."""
        return replace(self, long_job=self.long_job or size > LONG_JOB_BYTES)


@contextmanager
def session(engine: SparkEngine | None = None, spark: SparkSession | None = None) -> Iterator[SparkSession]:
    """A Spark session for the block; its executors have this package.

    The session in `spark`, or one that is running already, is used as it is: its settings do not change and
    it is not stopped. Otherwise a session is started, and stopped when the block ends.

    Raises:
        InputError: a session is running with other settings than the engine's, Spark refuses a setting, or
            PYSPARK_PYTHON names a program that the executors do not have.
        MissingExtraError: pyspark or Java is not installed.
        StorageError: Spark cannot read or write a file, for example because a disk is full.
        UnreachableError: the cluster does not answer, or the JVM does not start or dies.
    """
    running = spark or _running()
    if running is not None:
        if spark is None and engine is not None:
            _check_fits(running, engine)
        _ship(running)
        yield running
        return
    need_spark()
    wanted = engine or SparkEngine()
    started = _start(wanted)
    if wanted.conf.get("spark.ui.enabled") == "true" and not is_connect(started):
        print(f"Spark: {started.sparkContext.uiWebUrl}", file=sys.stderr)
    logging.root.addFilter(_is_not_py4j_noise)
    try:
        _check_settings(started)
        yield started
    except BroadloomError:
        raise
    except Exception as error:
        fault = storage_error(error) or python_error(error)
        if fault is not None:
            raise fault from error
        if _answers(started):
            raise
        raise UnreachableError(f"the connection to Spark is lost: {_first_line(error)}") from error
    finally:
        _stop(started)
        logging.root.removeFilter(_is_not_py4j_noise)


def _is_not_py4j_noise(record: logging.LogRecord) -> bool:
    """Whether to keep a log record: py4j logs tracebacks on Ctrl-C, although it also raises the error."""
    return not record.getMessage().endswith(" while sending command.")


def _answers(spark: SparkSession) -> bool:
    """Whether the JVM, or the Spark Connect server, still answers."""
    try:
        return bool(spark.version)
    except Exception:
        return False


def _stop(spark: SparkSession) -> None:
    """Stop a session; errors are ignored if it does not answer any more."""
    try:
        spark.stop()
    except Exception:
        if _answers(spark):
            raise


def _check_settings(spark: SparkSession) -> None:
    """Raise if a setting of Spark SQL is wrong; Spark itself checks them only at the first query."""
    from pyspark.errors import IllegalArgumentException

    try:
        spark.conf.get("spark.sql.session.timeZone")
    except IllegalArgumentException as error:
        raise spark_error("Spark does not start", error) from error


def spark_error(action: str, error: Exception) -> InputError | StorageError | UnreachableError:
    """Convert an error of Spark to one with the message "<action>: <reason>".

    Returns:
        An `InputError` if the master or a setting is wrong, a `StorageError` if a disk failed, otherwise an
        `UnreachableError`.
    """
    from pyspark.errors import AnalysisException, IllegalArgumentException, PySparkValueError

    fault = storage_error(error)
    if fault is not None:
        return fault
    trace = _java_trace(error)
    causes = _CAUSE.findall(trace)
    wrong = isinstance(error, (AnalysisException, IllegalArgumentException, PySparkValueError))
    kind = InputError if wrong or _WRONG_SETTING.search(trace) else UnreachableError
    return kind(f"{action}: {causes[-1] if causes else _first_line(error)}")


def storage_error(error: Exception) -> StorageError | None:
    """A `StorageError` if Spark failed because of a disk, for example a full one; otherwise None."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, (PySparkException, Py4JError)):
        return None
    found = _STORAGE_FAULT.search(_java_trace(error))
    return StorageError(f"Spark cannot read or write a file: {found[0].strip()}") if found else None


def python_error(error: Exception) -> InputError | None:
    """An `InputError` if executors do not have the Python that PYSPARK_PYTHON names; otherwise None."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    if not isinstance(error, (PySparkException, Py4JError)):
        return None
    found = _MISSING_PYTHON.search(_java_trace(error))
    if found is None:
        return None
    return InputError(
        f"the executors have no program {found[1]}; set PYSPARK_PYTHON to the Python that they have"
    )


def _java_trace(error: Exception) -> str:
    """The text of an error with its causes in Java, which pyspark keeps in a private attribute."""
    return f"{error}\n{getattr(error, '_stackTrace', '')}"


def need_spark() -> None:
    """Raise `MissingExtraError` if pyspark is not installed."""
    if find_spec("pyspark") is None:
        raise missing_extra("pyspark", "spark")


def task_count(spark: SparkSession, parts: int) -> int:
    """The number of tasks for some parts: a few per core, so that slow parts even out; at most `parts`."""
    cores = int(spark.conf.get("spark.sql.shuffle.partitions", "8") or 8)
    return max(1, min(parts, TASKS_PER_CORE * cores))


def parse_conf(settings: list[str]) -> dict[str, str]:
    """Settings of Spark from texts like `spark.executor.memory=4g`.

    Examples:
        >>> parse_conf(["spark.executor.memory=4g"])
        {'spark.executor.memory': '4g'}
    """
    parsed = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not (name.startswith("spark.") and equals):
            raise InputError(f"conf {text!r} is not a setting of Spark; give spark.name=value")
        parsed[name] = value
    return parsed


def _running() -> SparkSession | None:
    """The active session of this process, if there is one."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _check_fits(running: SparkSession, engine: SparkEngine) -> None:
    """Raise if the settings of the running session differ from those of the engine."""
    wanted = dict(engine.conf) | ({"spark.master": engine.master} if engine.master else {})
    actual = {name: running.conf.get(name, None) for name in wanted}
    if engine.remote and not is_connect(running):
        wanted["spark.remote"] = engine.remote
        actual["spark.remote"] = None
    different = next((name for name, value in wanted.items() if actual[name] != value), None)
    if different is not None:
        raise InputError(
            f"a Spark session is running with {different} {actual[different] or 'not set'}, "
            f"not {wanted[different]}; "
            "stop it first, or leave this setting out"
        )


def _check_yarn(master: str) -> None:
    """Raise if YARN has no configuration files; Spark would only print a long Java traceback."""
    named = [os.environ[name] for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR") if os.environ.get(name)]
    if master == "yarn" and not any(Path(folder).is_dir() for folder in named):
        raise InputError(
            "master yarn needs HADOOP_CONF_DIR, the folder with Hadoop's core-site.xml and yarn-site.xml; "
            + (f"{named[0]} is not a folder" if named else "it is not set")
        )


def _start(engine: SparkEngine) -> SparkSession:
    """A new session of the engine, or of what the user has set."""
    user = {} if engine.remote else user_settings()
    remote = engine.remote
    if remote is None and engine.master is None:
        remote = os.environ.get("SPARK_REMOTE") or user.get("spark.remote")
    if remote:
        return _connect(replace(engine, remote=remote))
    return _launch(engine, user)


def user_settings() -> dict[str, str]:
    """The settings of Spark that the user has made outside of this process.

    They are those of the JVM if `spark-submit` has started it, else those of `PYSPARK_SUBMIT_ARGS` and of
    `spark-defaults.conf`, which the JVM will read when it starts.
    """
    if _has_gateway():
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()  # connects to the JVM; SparkConf is empty before
        return dict(SparkConf().getAll())
    submitted = _submit_settings(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    file = submitted.pop("", None)
    folder = configuration_folder()
    default = None if folder is None else folder / "spark-defaults.conf"
    path = Path(file) if file else default
    return (_properties(path) if path is not None else {}) | submitted


def hadoop_settings(engine: SparkEngine, spark: SparkSession | None = None) -> dict[str, str]:
    """The settings of a session that this process needs to reach the same remote stores."""
    running = spark or _running()
    if running is None:
        return user_settings() | dict(engine.conf)
    if is_connect(running):
        return dict(engine.conf)
    return dict(running.sparkContext.getConf().getAll()) | dict(engine.conf)


def _has_gateway() -> bool:
    """Whether spark-submit has started the JVM and this process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def configuration_folder() -> Path | None:
    """The folder of Spark's configuration files, which need not exist."""
    if os.environ.get("SPARK_CONF_DIR"):
        return Path(os.environ["SPARK_CONF_DIR"])
    if os.environ.get("SPARK_HOME"):
        return Path(os.environ["SPARK_HOME"], "conf")
    found = find_spec("pyspark")
    return Path(found.origin).parent / "conf" if found is not None and found.origin else None


# Options of spark-submit that are settings under another name; that of "" is the file of settings.
_SUBMIT_OPTIONS = {
    "--master": "spark.master",
    "--remote": "spark.remote",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--executor-memory": "spark.executor.memory",
    "--name": "spark.app.name",
    "--properties-file": "",
}


def _submit_settings(arguments: str) -> dict[str, str]:
    """The settings among the arguments of spark-submit.

    Examples:
        >>> _submit_settings("--master yarn --conf spark.ui.enabled=true pyspark-shell")
        {'spark.master': 'yarn', 'spark.ui.enabled': 'true'}
    """
    words = shlex.split(arguments)
    found = {}
    for number, word in enumerate(words):
        option, equals, inline = word.partition("=")
        value = inline if equals else words[number + 1] if number + 1 < len(words) else ""
        if option in ("--conf", "-c"):
            name, _, text = value.partition("=")
            found[name] = text
        elif option in _SUBMIT_OPTIONS:
            found[_SUBMIT_OPTIONS[option]] = value
    return found


def _properties(path: Path) -> dict[str, str]:
    """The settings of a file such as spark-defaults.conf; empty if there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    found = {}
    for line in lines:
        match = re.fullmatch(r"\s*(spark\.[^\s=:]+)\s*[=:]?\s*(.*?)\s*", line)
        if match:
            found[match[1]] = match[2]
    return found


def _launch(engine: SparkEngine, user: Mapping[str, str]) -> SparkSession:
    """A session whose driver is this process, or that `spark-submit` has prepared."""
    master = engine.master or user.get("spark.master") or f"local[{_cores()}]"
    _check_yarn(master)
    if master.startswith("spark://"):
        _check_reachable(master.partition(",")[0], "Spark master", MASTER_PORT)
    if not user.keys() & {"spark.pyspark.python", "spark.pyspark.driver.python"}:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if _is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master)
    home = None if _has_gateway() else quiet_java_home()
    archive = "" if home is None else archive_options(home)
    for name, value in _settings(engine, user, _is_local(master), archive).items():
        builder = builder.config(name, value)
    try:
        with _java(home):
            started = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise spark_error("Spark does not start", error) from error
    _ship(started)
    return started


@contextmanager
def _java(home: Path | None) -> Iterator[None]:
    """Let Spark find Java, unless its JVM runs already; other libraries keep their JAVA_HOME."""
    if home is None:
        yield
        return
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before


def _connect(engine: SparkEngine) -> SparkSession:
    """A session on a Spark Connect server."""
    if find_spec("grpc") is None:
        raise missing_extra("grpcio", "spark", "Spark Connect needs it")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _check_reachable(str(engine.remote), "Spark Connect", CONNECT_PORT)
    try:
        started = SparkSession.builder.remote(engine.remote).getOrCreate()
        for name, value in engine.conf.items():
            started.conf.set(name, value)
        _ship(started)
    except PySparkException as error:
        raise spark_error(f"Spark Connect at {engine.remote} does not start a session", error) from error
    return started


_shipped: set[str] = set()


def _ship(spark: SparkSession) -> None:
    """Send this package to the executors of a session, unless they run on this machine or have it already."""
    if is_connect(spark):
        name = str(spark.session_id)
        if name not in _shipped:
            spark.addArtifacts(str(_process_zip()), pyfile=True)
            _shipped.add(name)
        return
    context = spark.sparkContext
    name = str(context.applicationId)
    if name not in _shipped and not _is_local(context.master):
        context.addPyFile(str(_process_zip()))
        _shipped.add(name)


def is_connect(spark: SparkSession) -> bool:
    """Whether the session is a client of a Spark Connect server."""
    return "connect" in type(spark).__module__


def executors_are_elsewhere(spark: SparkSession) -> bool:
    """Whether tasks can run outside of this process's JVM, on other machines or as another user."""
    return is_connect(spark) or not _is_local(spark.sparkContext.master)


def _is_local(master: str) -> bool:
    return re.match(r"local($|\[)", master) is not None


@contextmanager
def shared_scratch(spark: SparkSession, parent: str | Path | None, name: str) -> Iterator[Path]:
    """A folder for intermediate files, for the block, that the executors can read and write.

    It is in `parent`, which the executors see under the same path; None: a temporary folder, which is enough
    on one machine. A folder that a killed process left behind is removed by the next one.
    """
    where = Path(tempfile.gettempdir()) if parent is None else as_path(parent)
    with scratch_folder(where, f"broadloom-{name}") as folder:
        if executors_are_elsewhere(spark):
            share_folder(folder)
        yield folder


# Hadoop gives new folders the rights 755, whatever they inherit; these options leave them as they are.
_SHARED_WRITE = {"fs.permissions.umask-mode": "000", "fs.file.impl.disable.cache": "true"}


def write_frame(rows: DataFrame, path: Path, append: bool = False) -> None:
    """Write a frame as Parquet; below a shared folder also if the executors run as another user."""
    writer = rows.write.mode("append" if append else "error")
    if executors_are_elsewhere(rows.sparkSession) and not isinstance(as_path(path), RemotePath):
        writer = writer.options(**_SHARED_WRITE)
    writer.parquet(str(path))


def table_paths(path: Path) -> list[str]:
    """The paths by which Spark reads a table: the files of a manifest, or the path itself.

    A local path is absolute, because the working folder of a Spark Connect server is another one.
    """
    if not isinstance(path, RemotePath):
        return [str(path.absolute())]
    if path.listing is not None:
        return [str(one) for one in path.files()]
    return [str(path)]


@cache
def _process_zip() -> Path:
    """This package as a zip file, which exists until this process ends: executors fetch it late."""
    folder = tempfile.mkdtemp(prefix="broadloom-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return package_zip(Path(folder))


def _check_reachable(address: str, what: str, default_port: int) -> None:
    """Raise if nothing listens at an address; Spark's own client would retry for minutes."""
    try:
        parts = urlsplit(address)
        endpoint = parts.hostname or "", parts.port or default_port
    except ValueError as error:
        raise InputError(f"{what} {address}: {error}") from error
    try:
        socket.create_connection(endpoint, timeout=20).close()
    except (OSError, ValueError) as error:
        raise UnreachableError(
            f"no {what} at {address}: {getattr(error, 'strerror', None) or error}"
        ) from error


def _settings(
    engine: SparkEngine, user: Mapping[str, str], local: bool = True, archive: str = ""
) -> dict[str, str]:
    """The settings of a new session: our own for names that the user has not set, and those of the engine.

    On a cluster there are only a few of our own, so that the cluster's own defaults apply. `archive` are the
    options of the JVM for its archive of classes.
    """
    compiler = LONG_JOB if engine.long_job else SHORT_JOB
    own = {
        "spark.app.name": "broadloom",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # The time limit for Python to fetch a result; Spark's 15 seconds are too short on a busy machine.
        "spark.python.authenticate.socketTimeout": "5m",
        "spark.driver.extraJavaOptions": f"{quiet_log()} {compiler} {archive}".strip(),
    }
    if local:
        own |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": f"{_memory() // 2**20}m",
            "spark.ui.enabled": "false",
            # The pages of hash tables; Spark's own, of 32 MiB at 2 GiB, take 180 MB more for the same time.
            "spark.buffer.pageSize": "2m",
            "spark.sql.shuffle.partitions": str(2 * _cores()),
            "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "broadloom-warehouse")),
        }
    if _has_gateway():
        for name in ("spark.driver.extraJavaOptions", "spark.driver.memory"):  # too late: the JVM is running
            own.pop(name, None)
    theirs = {**user, **engine.conf}
    chosen = {name: value for name, value in own.items() if name not in theirs} | dict(engine.conf)
    options = theirs.get("spark.driver.extraJavaOptions")
    if (
        options is not None and "log4j" not in options and not _has_gateway()
    ):  # their compiler and collector, our quiet log
        chosen["spark.driver.extraJavaOptions"] = f"{quiet_log()} {options}".strip()
    return chosen


def package_zip(folder: Path) -> Path:
    """Write this package as a zip file, for executors without it or with another version; return its path.

    Its requirements (numpy, numba, pyarrow, pandas, scipy) must be installed where the executors run.
    """
    root = Path(__file__).parents[1]
    path = folder / "broadloom.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in sorted(root.rglob("*.py")):
            bundle.write(file, Path(root.name) / file.relative_to(root))
    return path


def quiet_log() -> str:
    """The option of the JVM for a quiet log; empty if the user has a log configuration."""
    folder = configuration_folder()
    if folder is not None and any(file.suffix != ".template" for file in folder.glob("log4j2*")):
        return ""
    return f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int:
    """A quarter of the machine's memory, at least 1 GiB and at most 8 GiB; 2 GiB if it is unknown."""
    if not hasattr(os, "sysconf"):  # Windows
        return 2 * GIB
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(total // 4, GIB), 8 * GIB)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
