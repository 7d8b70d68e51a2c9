"""A real distributed run: a master and workers; some are killed in the middle, and the plan is the same.

The other run has one core behind Spark Connect. Two cores of an embedded Spark are in `test_run`.
"""

import json
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import PATIENCE, cluster, environment, free_port, wait_for

import broadloom as bl
from broadloom import workload
from broadloom.model.instance import read_instance

pytestmark = pytest.mark.cluster

CONFIG = """
sources = ["raw"]
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
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.extraJavaOptions": FAST_START,
    "spark.sql.shuffle.partitions": "2",
}
# All runs in one session, so that the later ones find warm executors to lose.
DRIVER = """
import json, sys
from broadloom.pipeline.config import Config
from broadloom.pipeline.run import run
from broadloom.pipeline.session import Engine, session
with session(Engine(sys.argv[1], conf=json.loads(sys.argv[2]))) as spark:
    for config in sys.argv[3:]:
        run(Config.load(config), spark=spark)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Raw inputs, and a configuration for each run of them."""
    folder = tmp_path_factory.mktemp("cluster")
    workload.devices(folder / "raw", brokers=12, subscriptions=3000, subscribers=40, seed=5)
    for output in ("cluster", "ingest-killed", "link-killed", "connect"):
        (folder / f"{output}.toml").write_text(CONFIG.format(output=output))
    return folder


def test_a_cluster_gives_the_plan_of_one_process_and_so_does_one_that_loses_workers(place, tmp_path):
    """A worker is killed, with its executor, in the second run's ingest, another in the third one's link."""
    outputs = ("cluster", "ingest-killed", "link-killed")
    with cluster(tmp_path, workers=3) as made:
        configs = [str(place / f"{output}.toml") for output in outputs]
        process = start(place, "-c", DRIVER, made.master, json.dumps(SMALL), *configs)
        wait_for_file(process, place / "ingest-killed", ".ingest.*.new/tally.parquet/_temporary")
        made.kill_worker()
        wait_for_file(process, place / "link-killed", "link-*/parts.parquet")
        made.freeze_worker()  # link cannot end without the tasks that it is given meanwhile
        time.sleep(1)
        assert not (place / "link-killed" / "link").exists()
        made.kill_worker()
        finish(place, process)
        wait_for(lambda: made.alive() == 1)
    assert [plan_of(place, output) for output in outputs] == 3 * [plan_of_one_process(place, "cluster")]


def test_one_core_behind_spark_connect_gives_the_same_plan(place):
    """The driver is a Spark Connect server, and the command only its client."""
    pytest.importorskip("grpc")
    with connect_server(place) as remote:
        words = ["-m", "broadloom.cli", "run", str(place / "connect.toml"), "--remote", remote]
        finish(place, start(place, *words))
    assert plan_of(place, "connect") == plan_of_one_process(place, "connect")
    if (place / "cluster" / "plan").exists():
        assert plan_of(place, "connect") == plan_of(place, "cluster")


def plan_of(place, output):
    """The bytes of a plan, and of the tables that it was made from."""
    return {file.name: file.read_bytes() for file in sorted((place / output / "plan").iterdir())}


def plan_of_one_process(place, output):
    """The plan of the in-process dcmaw for the interest of a run."""
    given = read_instance(place / output / "interest")
    plan = bl.link(given.interest, given.weights, "dcmaw")
    replace(plan, nodes=given.nodes).save(place / f"{output}-process" / "plan")
    return plan_of(place, f"{output}-process")


def start(place, *words):
    with (place / "driver.log").open("wb") as log:
        return subprocess.Popen([sys.executable, *words], env=environment(), stdout=log, stderr=log)


def finish(place, process):
    assert process.wait(PATIENCE) == 0, (place / "driver.log").read_text()[-3000:]


def wait_for_file(process, folder, pattern):
    """Wait until a run has written it."""
    wait_for(lambda: process.poll() is not None or any(folder.glob(pattern)))
    assert process.poll() is None, "the run ended before a worker could be killed"


@contextmanager
def connect_server(folder):
    """A Spark Connect server of one core, and its address."""
    port = free_port()
    settings = SMALL | {"spark.connect.grpc.binding.port": str(port), "spark.ui.enabled": "false"}
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    submit = Path(environment()["SPARK_HOME"], "bin", "spark-submit")
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [submit, "--master", "local[1]", "--driver-java-options", FAST_START, *conf, *server],
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
