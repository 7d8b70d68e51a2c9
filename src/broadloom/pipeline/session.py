"""The one place where Spark starts: on this machine, on a cluster, or behind Spark Connect."""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from broadloom.errors import InputError
from broadloom.pipeline.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GIB = 2**30
CONNECT_PORT, MASTER_PORT = 15002, 7077

# The first compiler alone, and the plain collector, start fast: better below about 4 million rows.
SHORT_JOB = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# The second compiler pays for what runs often enough: Spark has much code that runs a little.
LONG_JOB = (
    "-XX:+UseSerialGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
LONG_JOB_BYTES = 80_000_000


@dataclass(frozen=True)
class Engine:
    """Where Spark runs, and how.

    Attributes:
        master: a cluster (spark://..., yarn, k8s://...), or local[N]; None: this machine, all its cores.
        remote: a Spark Connect server (sc://host:port) in place of a master.
        conf: Spark's own settings; they win over ours.
        long_job: compile for throughput rather than for a fast start.

    Examples:
        >>> Engine(master="local[2]").is_local
        True
        >>> Engine(master="spark://head:7077").is_local
        False
    """

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    long_job: bool = False

    def __post_init__(self) -> None:
        if self.master and self.remote:
            raise InputError(
                f"both a master ({self.master}) and a remote ({self.remote}) are given; give one"
            )
        if self.remote and not self.remote.startswith("sc://"):
            raise InputError(f"the remote is {self.remote!r}; a Spark Connect address is sc://host:port")

    @property
    def is_local(self) -> bool:
        """Whether the work is done inside this machine's embedded Spark."""
        return self.remote is None and (
            self.master is None or re.match(r"local($|\[)", self.master) is not None
        )

    def sized(self, size: int) -> Engine:
        """This engine, compiled for throughput if so many bytes of input are worth it."""
        return replace(self, long_job=self.long_job or size > LONG_JOB_BYTES)


@contextmanager
def session(engine: Engine | None = None, spark: SparkSession | None = None) -> Iterator[SparkSession]:
    """A Spark session for the block.

    A session that is given, or that is running already, is used as it is: its settings stay as they were and
    it is not stopped. Otherwise one is started, and stopped when the block ends.

    Raises:
        InputError: pyspark or Java is missing, the cluster cannot be reached, or the session that is running
            is another than the engine asks for.
    """
    running = spark or _running()
    if running is not None:
        if spark is None and engine is not None:
            _check_fits(running, engine)
        yield running
        return
    need_spark()
    chosen = engine or Engine()
    with tempfile.TemporaryDirectory(prefix="broadloom-") as folder:  # executors fetch from it until the end
        started = (_connect if chosen.remote else _launch)(chosen, Path(folder))
        logging.root.addFilter(_is_news)
        try:
            yield started
        finally:
            started.stop()
            logging.root.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    """Not the tracebacks that py4j logs when Ctrl-C comes while it waits: it raises what it logs."""
    return not record.getMessage().endswith(" while sending command.")


def need_spark() -> None:
    """Say what is missing, if Spark is not installed."""
    if find_spec("pyspark") is None:
        raise InputError("the pipeline needs Spark, which is not installed: pip install 'broadloom[spark]'")


def parse_conf(given: list[str]) -> dict[str, str]:
    """Spark's settings from words like `spark.executor.memory=4g`.

    Examples:
        >>> parse_conf(["spark.executor.memory=4g"])
        {'spark.executor.memory': '4g'}
    """
    parsed = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name.startswith("spark.") and equals):
            raise InputError(f"conf {text!r} is not of the form spark.name=value")
        parsed[name] = value
    return parsed


def _running() -> SparkSession | None:
    """The session that this process has already, if pyspark was ever imported."""
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def _check_fits(running: SparkSession, engine: Engine) -> None:
    """Refuse a session that is running with other settings than those that are asked for."""
    asked = dict(engine.conf) | ({"spark.master": engine.master} if engine.master else {})
    have = {name: running.conf.get(name, None) for name in asked}
    if engine.remote and "connect" not in type(running).__module__:
        asked["spark.remote"], have["spark.remote"] = engine.remote, None
    other = next((name for name, value in asked.items() if have[name] != value), None)
    if other is not None:
        raise InputError(
            f"a Spark session is running with {other} {have[other] or 'not set'}, and {asked[other]} "
            "is asked for; stop it first, or ask for nothing"
        )


def _check_yarn(engine: Engine) -> None:
    """Refuse YARN without the files that say where it is: Spark itself would say so in a page of Java."""
    named = [os.environ[name] for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR") if os.environ.get(name)]
    if engine.master == "yarn" and not any(Path(place).is_dir() for place in named):
        raise InputError(
            "master yarn needs HADOOP_CONF_DIR, the folder with Hadoop's core-site.xml and yarn-site.xml; "
            + (f"{named[0]} is none" if named else "it is not set")
        )


def _launch(engine: Engine, folder: Path) -> SparkSession:
    """A session whose driver is this process."""
    _check_yarn(engine)
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    settings = _settings(engine) | dict(engine.conf)
    if engine.master and engine.master.startswith("spark://"):
        _check_reachable(engine.master.partition(",")[0], "Spark master", MASTER_PORT)
    if engine.is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName("broadloom").master(engine.master or f"local[{_cores()}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        started = builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        raise InputError(f"Spark does not start: {_first_line(error)}") from error
    if not engine.is_local:
        started.sparkContext.addPyFile(str(package_zip(folder)))
    return started


def _connect(engine: Engine, folder: Path) -> SparkSession:
    """A session on a Spark Connect server."""
    if find_spec("grpc") is None:
        raise InputError("Spark Connect needs more packages: pip install 'pyspark[connect]'")
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    _check_reachable(str(engine.remote), "Spark Connect", CONNECT_PORT)
    try:
        started = SparkSession.builder.remote(engine.remote).getOrCreate()
        for name, value in engine.conf.items():
            started.conf.set(name, value)
        started.addArtifacts(str(package_zip(folder)), pyfile=True)
    except PySparkException as error:
        raise InputError(f"no Spark Connect at {engine.remote}: {_first_line(error)}") from error
    return started


def _check_reachable(place: str, what: str, port: int) -> None:
    """Refuse an address where nobody listens: the client itself would try for minutes."""
    try:
        address = urlsplit(place)
        socket.create_connection((address.hostname or "", address.port or port), timeout=20).close()
    except (OSError, ValueError) as error:
        raise InputError(f"no {what} at {place}: {getattr(error, 'strerror', None) or error}") from error


def _settings(engine: Engine) -> dict[str, str]:
    """Our settings where the user has none; those of a cluster are the cluster's own."""
    shared = {
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        # How long Python may take to fetch a result; 15 seconds by default, too few on a very busy machine.
        "spark.python.authenticate.socketTimeout": "5m",
        "spark.driver.extraJavaOptions": f"{_logging()} {LONG_JOB if engine.long_job else SHORT_JOB}",
    }
    if not engine.is_local:
        return shared
    return shared | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": f"{_memory() // 2**20}m",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": str(2 * _cores()),
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir(), "broadloom-warehouse")),
    }


def package_zip(folder: Path) -> Path:
    """This package as a zip file in `folder`, for executors that may not have it, or have another version.

    What it imports (numpy, numba, pyarrow, pandas, scipy) must be installed where the executors run.
    """
    root = Path(__file__).parents[1]
    place = folder / "broadloom.zip"
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as bundle:
        for file in sorted(root.rglob("*.py")):
            bundle.write(file, Path(root.name) / file.relative_to(root))
    return place


def _logging() -> str:
    return f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties').as_uri()}"


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _memory() -> int:
    """A quarter of the machine's memory, at least 1 GiB and at most 8."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(max(total // 4, GIB), 8 * GIB)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
