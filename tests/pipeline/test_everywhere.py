"""The same run gives the same bytes on every Spark and at every location, also after kills.

`make test-everywhere` runs these. Those with an object store need the server of moto: BROADLOOM_MOTO is the
path of `moto_server`. Those with two users need root.
"""

import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyspark
import pytest
from cluster import cluster, environment, wait_for

import broadloom
from broadloom import workload
from broadloom.storage import (
    as_path,
    committed,
    copy_remote,
    locations,
    new_folder,
    use_store_settings,
)
from broadloom.storage.tables import read_parquet, write_parquet

pytestmark = pytest.mark.everywhere

STEPS = ("ingest", "assign", "interest", "link", "verify", "measure", "plan", "report")
CONFIG = """
sources = ["{raw}"]
output = "{output}"
[ingest]
symmetric = "mean"
[assign]
algorithm = "gr*"
max_delay = 3.0
[link]
algorithm = "dcmaw"
engine = "spark"
"""
FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": FAST,
    "spark.sql.shuffle.partitions": "2",
}
# The whole program of `spark-submit`.
SUBMITTED = "from broadloom.cli import main\n\nmain()\n"
OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
from broadloom.pipeline import RunConfig, run_pipeline

builder = SparkSession.builder.master(sys.argv[1])
for pair in sys.argv[3:]:
    builder = builder.config(*pair.split("=", 1))
spark = builder.getOrCreate()
run_pipeline(RunConfig.load(sys.argv[2]))  # the active session
assert spark.range(3).count() == 3, "it is not stopped"
spark.stop()
"""
# A run that kills itself in a step, after the step has written its files.
KILLED = """
import os, signal, sys
from broadloom.pipeline import RunConfig, SparkEngine
from broadloom.pipeline import run as module
from broadloom.pipeline.spark_session import parse_conf

config, step, *conf = sys.argv[1:]
steps = module._Run._steps

def dying(self):
    def last(work, folder):
        work(folder)
        os.kill(os.getpid(), signal.SIGKILL)

    return [
        (name, options, (lambda folder, work=work: last(work, folder)) if name == step else work)
        for name, options, work in steps(self)
    ]

module._Run._steps = dying
module.run_pipeline(RunConfig.load(config), SparkEngine("local[2]", conf=parse_conf(conf)))
"""


@pytest.fixture(scope="module")
def folder():
    """A folder that all users can read, with raw inputs and the run of an embedded Spark."""
    path = Path(tempfile.mkdtemp(prefix="everywhere-"))
    path.chmod(0o777)
    # More than 4 MiB, so that executors write files in ingest, too.
    workload.devices(path / "raw", brokers=12, subscriptions=90_000, subscribers=40, seed=5)
    call(config(path, "local", "raw"), "--master", "local[2]", *conf_words({"spark.driver.memory": "1g"}))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def store(folder):
    """A server of S3, the settings by which Spark and this process reach it, and its folder for the runs."""
    program = os.environ.get("BROADLOOM_MOTO")
    if program is None:
        pytest.skip("BROADLOOM_MOTO is not set to the path of moto_server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (folder / "moto.log").open("wb") as log:
        server = subprocess.Popen([program, "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log)
    settings = {
        "spark.jars": str(store_jar(folder)),
        "spark.hadoop.fs.s3a.impl": "ObjectStore",
        "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
        ".checkpointing.FileSystemBasedCheckpointFileManager",
        "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{port}",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.access.key": "x",
        "spark.hadoop.fs.s3a.secret.key": "x",
        "spark.driver.memory": "1g",
    }
    try:
        wait_for(lambda: server.poll() is not None or answers(port))
        assert server.poll() is None, (folder / "moto.log").read_text()
        use_store_settings(settings)
        from pyarrow import fs

        options = locations.s3_options(locations._settings)
        fs.S3FileSystem(**options, allow_bucket_creation=True).create_dir("loom")
        for one in (folder / "raw").iterdir():
            (as_path("s3a://loom/raw") / one.name).write_bytes(one.read_bytes())
        yield settings
    finally:
        server.kill()
        server.wait()


def answers(port):
    """Whether a server listens at a port of this machine."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def store_jar(folder):
    """Compile Hadoop's file system of the tests, and pack it."""
    jars = Path(pyspark.__file__).parent / "jars"
    classes = folder / "classes"
    source = Path(__file__).parent / "java" / "ObjectStore.java"
    paths = os.pathsep.join(map(str, jars.glob("hadoop-client-*.jar")))
    subprocess.run(["javac", "-nowarn", "-cp", paths, "-d", classes, source], check=True)
    with zipfile.ZipFile(folder / "store.jar", "w") as jar:
        for one in classes.iterdir():
            jar.write(one, one.name)
    return folder / "store.jar"


def config(folder, output, raw, name=None):
    path = folder / f"{name or output}.toml"
    path.write_text(CONFIG.format(raw=raw, output=output))
    return path


def conf_words(settings):
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def call(path, *words):
    """`broadloom run` in a process of its own."""
    broadloom_command("run", path, *words)


def broadloom_command(*words):
    """A command in a process of its own, which must print nothing."""
    command = [sys.executable, "-m", "broadloom.cli", *map(str, words), "--quiet"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr, "nothing but errors"


def digests(folder, but=()):
    """The digest of each file of a run, of those that do not name the run or its sources."""
    named = ("report/report.html", *but)
    files = {str(file.relative_to(folder)): file for step in STEPS for file in (folder / step).rglob("*")}
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest()
        for name, file in files.items()
        if file.is_file() and name not in named and not file.name.startswith((".", "_"))
    }


def copied(uri, target):
    """A local copy of a run in a store."""
    for step in STEPS:
        copy_remote(committed(f"{uri}/{step}"), target / step)
    return target


def test_a_file_uri_is_a_local_path(folder):
    call(config(folder, f"file://{folder}/file", f"file://{folder}/raw", "file"), "--master", "local[2]")
    assert digests(folder / "file") == digests(folder / "local")
    assert {path.name for path in folder.iterdir()} & {"file:", "s3a:"} == set()


def test_a_run_in_an_object_store_has_the_same_bytes(folder, store, tmp_path):
    """Only the quarantine differs, which names the file of each row."""
    call(
        config(folder, "s3a://loom/out", "s3a://loom/raw", "s3a"), "--master", "local[2]", *conf_words(store)
    )
    quarantine = (
        "ingest/quarantine.parquet/subscriptions.parquet",
        "ingest/quarantine.parquet/latency.parquet",
    )
    assert digests(copied("s3a://loom/out", tmp_path), quarantine) == digests(folder / "local", quarantine)


def test_a_driver_that_is_killed_in_each_step_of_a_run_in_a_store_loses_nothing(folder, store, tmp_path):
    killed_in_each_step(config(folder, "s3a://loom/killed", "raw", "s3a-killed"), store)
    assert digests(copied("s3a://loom/killed", tmp_path)) == digests(folder / "local")
    for step in STEPS:
        assert (
            sum(one.name.startswith("data-") for one in as_path(f"s3a://loom/killed/{step}").iterdir()) == 1
        )


def test_a_stream_writes_its_versions_to_a_store(store, tmp_path):
    """In two runs; the second continues where the first ended. Its events are in the store, too."""
    interest = workload.interest(nodes=20, topics=8, sizes=(2, 4), seed=0)
    broadloom.link(interest, algorithm="gm").save(tmp_path / "plan")
    events = workload.events_table(interest, workload.churn(interest, rounds=20, seed=1)).to_pylist()
    (tmp_path / "events").mkdir()
    for number, rows in enumerate((events[:10], events[10:])):
        lines = "".join(f"{json.dumps(row)}\n" for row in rows)
        (tmp_path / "events" / f"{number}.jsonl").write_text(lines)
        as_path(f"s3a://loom/events/{number}.jsonl").write_text(lines)
        for root, settings in (("s3a://loom", store), (tmp_path, {})):
            output = f"{root}/stream"
            words = ["maintain", "--plan", tmp_path / "plan", "--events", f"{root}/events"]
            words += ["--stream", "--once", "--master", "local[2]", *conf_words(settings)]
            broadloom_command(*words, "-o", output)
    remote, local = as_path("s3a://loom/stream"), tmp_path / "stream"
    versions = [one.name for one in (remote / "versions").iterdir()]
    assert versions == sorted(one.name for one in (local / "versions").iterdir())
    assert len(versions) == 3
    newest = [broadloom.Plan.load(one / "versions" / versions[-1]) for one in (remote, local)]
    assert newest[0] == newest[1]
    files = [sorted((one / "links.parquet").iterdir()) for one in (remote, local)]
    assert [one.read_bytes() for one in files[0]] == [one.read_bytes() for one in files[1]]


def test_a_market_in_a_store_is_the_local_one(store, tmp_path):
    rng = np.random.default_rng(4)
    users = [f"u{number}" for number in range(20)]
    lo = rng.random((20, 1)) / 2
    tables = {
        "subscribers": {"subscriber": users, "place": rng.random((20, 2)).tolist()}
        | {"lo": lo.tolist(), "hi": (lo + 0.3).tolist()},
        "brokers": {"broker": ["a", "b", "c"], "place": rng.random((3, 2)).tolist()},
        "messages": {"publisher": rng.choice(users, 300), "at": rng.integers(0, 10**9, 300)}
        | {"bytes": rng.integers(1, 1000, 300), "point": rng.random((300, 1)).tolist()},
    }
    for place in (tmp_path / "market", as_path("s3a://loom/market")):
        with new_folder(place) as draft:
            for name, columns in tables.items():
                rows = pa.table(columns)
                if name == "messages":
                    rows = rows.set_column(1, "at", rows["at"].cast(pa.timestamp("us")))
                write_parquet(rows, draft / f"{name}.parquet")
    words = ["--algorithm", "steiner-mixing", "-o"]
    broadloom_command("market", tmp_path / "market", *words, tmp_path / "out")
    spark = ["--master", "local[2]", *conf_words(store)]
    broadloom_command("market", "s3a://loom/market", *words, "s3a://loom/prices", *spark)
    for name in ("assignment", "flows"):
        remote = read_parquet(committed("s3a://loom/prices") / f"{name}.parquet")
        assert remote == read_parquet(tmp_path / "out" / f"{name}.parquet")
    entries = {one.name for one in as_path("s3a://loom").iterdir()}
    assert not any(name.startswith("_") for name in entries), "intermediate files are removed"


def test_a_driver_that_is_killed_in_each_step_leaves_nothing_behind(folder):
    killed_in_each_step(config(folder, "killed", "raw"), {"spark.driver.memory": "1g"})
    assert digests(folder / "killed") == digests(folder / "local")
    assert {path.name for path in (folder / "killed").iterdir()} == {*STEPS, "run.json"}


def killed_in_each_step(path, settings):
    for step in STEPS:
        words = [f"{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-c", KILLED, str(path), step, *words]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, (step, done.stderr[-3000:])
    call(path, "--master", "local[2]", *conf_words(settings))


def test_spark_submit_defaults_and_an_active_session_decide_which_spark_runs(folder, tmp_path):
    """On a standalone cluster, whose executors have no Broadloom; each run uses it without --master."""
    (folder / "submit.py").write_text(SUBMITTED)
    with cluster(tmp_path) as made:
        conf = tmp_path / "conf"
        conf.mkdir()
        lines = [f"{name} {value}" for name, value in (SMALL | {"spark.master": made.master}).items()]
        (conf / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
        submit = [str(Path(environment()["SPARK_HOME"], "bin", "spark-submit")), "--master", made.master]
        paths = {name: str(config(folder, name, "raw")) for name in ("submitted", "defaults", "active")}
        python = [sys.executable, "-m", "broadloom.cli"]
        for name, words, more in (
            ("submitted", [*submit, *conf_words(SMALL), folder / "submit.py", "run", paths["submitted"]], {}),
            ("defaults", [*python, "run", paths["defaults"]], {"SPARK_CONF_DIR": str(conf)}),
            (
                "active",
                [sys.executable, "-c", OWN_SESSION, made.master, paths["active"]]
                + [f"{name}={value}" for name, value in SMALL.items()],
                {},
            ),
        ):
            done = subprocess.run(words, env=environment() | more, capture_output=True, text=True)
            assert done.returncode == 0, (name, done.stderr[-3000:])
            assert digests(folder / name) == digests(folder / "local"), name
        assert len(made.state()["completedapps"]) == 3, "all of them ran on the cluster"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="starts processes of two other users")
def test_executors_and_driver_can_be_two_users(folder, monkeypatch):
    """Workers run as one user and the driver as another; neither is root."""
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    if python is None:
        pytest.skip("no Python of this version that other users can run")
    packages = f"{Path(broadloom.__file__).parents[1]}:{Path(pyspark.__file__).parents[1]}"
    logs = Path(tempfile.mkdtemp(prefix="everywhere-users-"))
    logs.chmod(0o777)
    output = folder / "two-users"
    output.mkdir()
    shutil.chown(output, "daemon", "daemon")
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: popen(*a, **k, user="nobody", group=65534))
    path = config(folder, "two-users", "raw")
    own = {
        "PYSPARK_PYTHON": python,
        "PYTHONPATH": packages,
        "HOME": str(logs),
        "BROADLOOM_KERNEL_CACHE": "0",
        "SPARK_LOCAL_DIRS": str(logs),
        "TMPDIR": str(logs),
    }
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(logs))
    monkeypatch.setenv("HOME", str(logs))
    try:
        with cluster(logs, workers=1) as made:
            words = [
                "run",
                str(path),
                "--quiet",
                "--master",
                made.master,
                *conf_words(SMALL | {"spark.executorEnv.PYTHONPATH": packages}),
            ]
            done = popen(
                [python, "-m", "broadloom.cli", *words],
                env=environment() | own,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                user="daemon",
                group="daemon",
                umask=0o022,
            )
            text = done.communicate()[0].decode()
        assert done.returncode == 0, text[-3000:]
    finally:
        shutil.rmtree(logs)
    assert digests(output) == digests(folder / "local")
    modes = {file.stat().st_mode & 0o022 for file in output.rglob("*") if file.is_dir()}
    assert modes == {0}, "the folders are closed to other users at the end"
    assert json.loads((output / "run.json").read_text()).keys() == set(STEPS)
