"""Spark sessions: errors in one line, and a running session that is used as it is."""

import fcntl
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from py4j.protocol import Py4JError

from broadloom import InputError, MissingExtraError, StorageError, UnreachableError
from broadloom.pipeline import class_archive
from broadloom.pipeline import spark_session as module
from broadloom.pipeline.spark_session import SparkEngine, package_zip, parse_conf, session, table_paths


@pytest.mark.spark
def test_a_session_of_the_caller_is_used_and_not_stopped(spark):
    with session(SparkEngine(master="spark://nowhere:1"), spark) as used:
        assert used is spark
    assert spark.range(3).count() == 3


@pytest.mark.spark
def test_a_running_session_with_other_settings_is_refused_in_one_line(spark):
    """An engine with settings must fit the running session; no engine takes the running session."""
    with (
        session() as used,
        session(SparkEngine(master="local[2]", conf={"spark.driver.memory": "1g"})) as same,
    ):
        assert used.sparkContext is same.sparkContext is spark.sparkContext
    for engine, words in (
        (SparkEngine(master="yarn"), r"with spark\.master local\[2\], not yarn"),
        (
            SparkEngine(conf={"spark.driver.memory": "9g"}),
            r"with spark\.driver\.memory 1g, not 9g",
        ),
        (SparkEngine(conf={"spark.x": "1"}), r"with spark\.x not set"),
        (SparkEngine(remote="sc://host"), "not set, not sc://host"),
    ):
        with pytest.raises(InputError, match=words) as error, session(engine):
            pass
        assert "\n" not in str(error.value)


def test_yarn_without_its_configuration_is_refused_in_one_line(monkeypatch, tmp_path):
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=r"needs HADOOP_CONF_DIR.*it is not set"):
        module._launch(SparkEngine(master="yarn"), {})
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="nowhere is not a folder"):
        module._launch(SparkEngine(master="yarn"), {})


def test_spark_gets_absolute_paths_of_tables(monkeypatch, tmp_path):
    """A Spark Connect server has a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    assert table_paths(Path("tables/users.parquet")) == [str(tmp_path / "tables/users.parquet")]


def test_master_and_remote_exclude_each_other():
    with pytest.raises(InputError, match="give one"):
        SparkEngine(master="yarn", remote="sc://host")
    with pytest.raises(InputError, match="sc://host:port"):
        SparkEngine(remote="host")


def test_a_wrong_master_or_size_of_memory_is_refused_before_the_start():
    for master in ("lokal[2]", "yarns", "http://head:7077"):
        with pytest.raises(InputError, match=r"the master is .*; give local"):
            SparkEngine(master=master)
    for memory in ("abc", "4gb", "-1g", ""):
        with pytest.raises(InputError, match=r"spark\.driver\.memory is .*; give a size"):
            SparkEngine(conf={"spark.driver.memory": memory})
    SparkEngine(conf={"spark.driver.memory": "4096M", "spark.executor.memory": "4gb"})


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (
            "Job aborted (executor driver): java.io.IOException: No space left on device\n\tat x",
            "file: No space left on device",
        ),
        (
            "Task failed.\nCaused by: java.io.FileNotFoundException: /out/a (Permission denied)",
            r"file: /out/a \(Permission denied\)",
        ),
    ],
)
def test_a_disk_that_fails_under_spark_is_a_storage_error(trace, words):
    error = module.storage_error(Py4JError(trace))
    assert isinstance(error, StorageError)
    assert re.search(words + "$", str(error))


def test_other_errors_are_not_storage_errors():
    assert module.storage_error(Py4JError("java.io.IOException: incorrect header check")) is None
    assert module.storage_error(ValueError("No space left on device")) is None


def test_a_python_that_executors_lack_is_named():
    trace = (
        "Job aborted due to stage failure: Task 1 in stage 3.0 failed 4 times: java.io.IOException: "
        'Cannot run program "./environment/bin/python": error=2, No such file or directory\n\tat x'
    )
    error = module.python_error(Py4JError(trace))
    assert isinstance(error, InputError)
    assert "no program ./environment/bin/python; set PYSPARK_PYTHON" in str(error)
    assert module.python_error(Py4JError("java.io.IOException: incorrect header check")) is None
    assert module.python_error(ValueError(trace)) is None


def test_errors_of_spark_are_classified_by_their_cause():
    call = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "
    for trace, kind, reason in (
        ("java.lang.IllegalArgumentException: spark.x should be int", InputError, "spark.x should be int"),
        (
            "java.lang.IllegalStateException: stopped\n\tat y\nCaused by: java.net.ConnectException: refused",
            UnreachableError,
            "refused",
        ),
    ):
        error = module.spark_error("Spark does not start", Py4JError(call + trace))
        assert type(error) is kind
        assert str(error) == f"Spark does not start: {reason}"


def test_an_address_where_nothing_listens_is_refused_at_once():
    with pytest.raises(UnreachableError, match=r"no Spark Connect at sc://127\.0\.0\.1:1"):
        module._check_reachable("sc://127.0.0.1:1", "Spark Connect", 15002)
    with pytest.raises(UnreachableError, match=r"no Spark master at spark://127\.0\.0\.1:1: "):
        module._launch(SparkEngine(), {"spark.master": "spark://127.0.0.1:1"})


def test_settings_are_texts_with_an_equals_sign():
    assert parse_conf(["spark.a.b=c=d"]) == {"spark.a.b": "c=d"}
    with pytest.raises(InputError, match=r"spark\.name=value"):
        parse_conf(["memory=4g"])


def test_missing_spark_is_an_error_in_one_line(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(
        MissingExtraError, match=r'^pyspark is not installed; run: pip install "broadloom\[spark\]"$'
    ):
        module.need_spark()


def test_executors_get_the_package_as_a_zip(tmp_path):
    """The zip has all modules."""
    path = package_zip(tmp_path)
    names = zipfile.ZipFile(path).namelist()
    assert "broadloom/__init__.py" in names
    assert "broadloom/pipeline/ingest/raw_rows.py" in names


def test_local_settings_fit_the_machine():
    settings = module._settings(SparkEngine(), {})
    assert int(settings["spark.driver.memory"].removesuffix("m")) >= 1024
    assert "spark.driver.memory" not in module._settings(SparkEngine(master="yarn"), {}, local=False)


def test_settings_of_the_user_take_precedence_over_ours(tmp_path, monkeypatch):
    """Those of the engine come first, then PYSPARK_SUBMIT_ARGS, then spark-defaults.conf."""
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\nspark.master spark://head:7077\nspark.driver.extraJavaOptions=-XX:+UseG1GC -Da=b\n"
        "spark.sql.session.timeZone : CET\nspark.driver.memory\t3g\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 4g --conf spark.x=1 pyspark-shell")
    user = module.user_settings()
    assert user == {
        "spark.master": "spark://head:7077",
        "spark.driver.extraJavaOptions": "-XX:+UseG1GC -Da=b",
        "spark.sql.session.timeZone": "CET",
        "spark.driver.memory": "4g",
        "spark.x": "1",
    }
    settings = module._settings(SparkEngine(conf={"spark.x": "2"}), user)
    assert not settings.keys() & {"spark.master", "spark.driver.memory", "spark.sql.session.timeZone"}
    assert settings["spark.x"] == "2"
    options = settings["spark.driver.extraJavaOptions"]
    assert options.endswith(" -XX:+UseG1GC -Da=b")
    assert "SerialGC" not in options
    (tmp_path / "log4j2.properties").touch()
    assert module._settings(SparkEngine(), user)["spark.driver.extraJavaOptions"] == "-XX:+UseG1GC -Da=b"


def test_the_master_of_spark_defaults_is_used(tmp_path, monkeypatch):
    (tmp_path / "spark-defaults.conf").write_text("spark.master spark://127.0.0.1:1\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with pytest.raises(UnreachableError, match=r"no Spark master at spark://127\.0\.0\.1:1: "):
        module._start(SparkEngine())
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    with pytest.raises(UnreachableError, match=r"no Spark Connect at sc://127\.0\.0\.1:1"):
        module._start(SparkEngine())


class Elsewhere:
    """A substitute for a session of the caller on a cluster."""

    def __init__(self):
        self.sparkContext = self
        self.master = "spark://head:7077"
        self.applicationId = "app-1"
        self.files = []

    def addPyFile(self, path):  # noqa: N802
        """Note the file."""
        self.files.append(path)


def test_the_package_travels_with_a_session_of_the_caller_once():
    elsewhere = Elsewhere()
    for _ in range(2):
        with session(spark=elsewhere):
            pass
    [path] = elsewhere.files
    assert "broadloom/pipeline/run.py" in zipfile.ZipFile(path).namelist()


KILLED_JVM = """
import os, signal
from broadloom import UnreachableError
from broadloom.pipeline import SparkEngine, session
try:
    with session(SparkEngine(master="local[1]", conf={"spark.driver.memory": "1g"})) as spark:
        os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
        spark.range(3).count()
except UnreachableError as error:
    print(error)
"""


def test_a_jvm_that_dies_is_an_error_in_one_line():
    done = subprocess.run([sys.executable, "-c", KILLED_JVM], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("the connection to Spark is lost: ")
    assert done.stdout.count("\n") == 1


def test_a_command_prints_no_warnings_of_java_and_the_address_of_the_web_page(tmp_path):
    (tmp_path / "subscriptions.csv").write_text("node,topic\nrome,t/1\n")
    command = [sys.executable, "-m", "broadloom.cli", "ingest", str(tmp_path), "-o", str(tmp_path / "out")]
    command += ["--ui", "--master", "local[1]", "--conf", "spark.driver.memory=1g"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"Spark: http://127\.0\.0\.1:\d+\n", done.stderr)


WRONG_SETTING = """
import sys
from broadloom import InputError
from broadloom.pipeline import SparkEngine, session
from broadloom.pipeline.spark_session import parse_conf
try:
    with session(SparkEngine(master=sys.argv[1], conf=parse_conf(sys.argv[2:]))):
        pass
except InputError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["local[x]"], "Could not parse Master URL: 'local[x]'"),
        (["local[1]", "spark.sql.shuffle.partitions=abc"], "spark.sql.shuffle.partitions"),
    ],
)
def test_a_setting_that_spark_refuses_is_a_wrong_input(arguments, words):
    command = [sys.executable, "-c", WRONG_SETTING, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Spark does not start: ")
    assert words in done.stdout
    assert done.stdout.count("\n") == 1


def test_an_archive_of_classes_is_used_only_if_it_is_complete(tmp_path, monkeypatch):
    """Java crashes on a truncated archive, so its size is part of its name."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = tmp_path / "java"
    assert class_archive.archive_options(home) == ""
    folder = tmp_path / "broadloom"
    folder.mkdir()
    archive = folder / f"{class_archive._name(home)}-10.jsa"
    archive.write_bytes(b"0123456789")
    options = class_archive.archive_options(home)
    assert f"-XX:SharedArchiveFile={archive} " in options
    assert class_archive.archive_options(tmp_path / "other") == "", "each Java has its own"
    settings = module._settings(SparkEngine(), {}, archive=options)
    assert options in settings["spark.driver.extraJavaOptions"]
    theirs = {"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}
    assert (
        "SharedArchive"
        not in module._settings(SparkEngine(conf=theirs), {}, archive=options)[next(iter(theirs))]
    )
    archive.write_bytes(b"01234")
    assert class_archive.archive_options(home) == ""


def test_the_archive_that_java_writes_is_opened_for_reading_only(tmp_path, monkeypatch):
    """Java writes it without the right to write, so only root could open it for writing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "broadloom").mkdir()
    modes = []

    def run(command, **_):
        draft = Path(command[-1])
        draft.write_bytes(b"0123456789")
        draft.chmod(0o444)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(class_archive.subprocess, "run", run)
    monkeypatch.setattr(
        class_archive.os, "fsync", lambda file: modes.append(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE)
    )
    home = tmp_path / "java"
    path = class_archive._make(home, tmp_path)
    assert modes == [os.O_RDONLY]
    assert path.name.endswith("-10.jsa")
    assert str(path) in class_archive.archive_options(home)
