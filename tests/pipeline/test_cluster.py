"""A real distributed run: a master and two workers; one is killed in the middle, and the plan is the same."""

import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from cluster import PATIENCE, cluster, environment, free_port, wait_for

from broadloom import workload
from broadloom.pipeline.config import Config
from broadloom.pipeline.run import run

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

CONFIG = """
sources = ["raw"]
output = "{output}"
[ingest]
symmetric = "mean"
[link]
algorithm = "dcmaw"
engine = "spark"
"""
SMALL = ("spark.executor.memory=512m", "spark.driver.host=127.0.0.1", "spark.driver.memory=512m")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Raw inputs, and a configuration for each way to run them."""
    folder = tmp_path_factory.mktemp("cluster")
    workload.devices(folder / "raw", brokers=24, subscriptions=20_000, seed=5)
    for output in ("one", "two", "cluster", "killed", "connect"):
        (folder / f"{output}.toml").write_text(CONFIG.format(output=output))
    return folder


def command(place, output, *options):
    conf = [word for setting in SMALL for word in ("--conf", setting) if "--remote" not in options]
    return [sys.executable, "-m", "broadloom.cli", "run", str(place / f"{output}.toml"), *options, *conf]


def start(place, output, *options):
    with (place / f"{output}.log").open("wb") as log:
        return subprocess.Popen(command(place, output, *options), env=environment(), stdout=log, stderr=log)


def finish(place, output, process):
    assert process.wait(PATIENCE * 3) == 0, (place / f"{output}.log").read_text()[-3000:]
    return contents(place / output)


def contents(folder):
    """The bytes of a plan, and of the tables that it was made from."""
    return {file.name: file.read_bytes() for file in sorted((folder / "plan").iterdir())}


@pytest.fixture(scope="module")
def expected(place, spark):
    """The plan of two cores, in the session that all tests share."""
    run(Config.load(place / "two.toml"), spark=spark)
    return contents(place / "two")


def test_one_core_gives_the_same_plan(place, expected):
    assert finish(place, "one", start(place, "one", "--master", "local[1]")) == expected


def test_a_cluster_gives_the_same_plan_and_so_does_one_that_loses_a_worker(place, expected, tmp_path):
    """The worker is killed, with its executor, while tasks of the first step run on it."""
    with cluster(tmp_path) as made:
        assert finish(place, "cluster", start(place, "cluster", "--master", made.master)) == expected
        process = start(place, "killed", "--master", made.master)
        quarantine = ".ingest.*.new/quarantine.parquet/_temporary"
        wait_for(lambda: process.poll() is not None or any((place / "killed").glob(quarantine)))
        made.kill_worker()
        assert finish(place, "killed", process) == expected
        assert made.alive() == 1 or wait_for(lambda: made.alive() == 1)


def test_spark_connect_gives_the_same_plan(place, expected, tmp_path):
    """The driver is a Spark Connect server; the command is only its client."""
    pytest.importorskip("grpc")
    with connect_server(tmp_path) as remote:
        assert finish(place, "connect", start(place, "connect", "--remote", remote)) == expected


@contextmanager
def connect_server(folder):
    """A Spark Connect server of two cores, and its address."""
    port = free_port()
    settings = [f"spark.connect.grpc.binding.port={port}", "spark.ui.enabled=false", *SMALL]
    conf = [word for setting in settings for word in ("--conf", setting)]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    submit = Path(environment()["SPARK_HOME"], "bin", "spark-submit")
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [submit, "--master", "local[2]", *conf, "--class", server, "spark-internal"],
            env=environment() | {"SPARK_DAEMON_MEMORY": "1g"},
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(lambda: process.poll() is not None or listens(port))
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
