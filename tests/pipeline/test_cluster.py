"""A real distributed run: a master and workers; some are killed in the middle, and the plan is the same.

The other run has one core behind Spark Connect. Two cores of an embedded Spark are in `test_run`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import PATIENCE, cluster, environment, told, wait_for

import broadloom as bl
from broadloom import workload
from broadloom.model import read_link_problem

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
# All runs in one session, so that the later ones find warm executors to lose. Each stops itself at a stage of
# its work, if one is named, until it is told to go on.
DRIVER = """
import json, os, signal, sys
from broadloom.pipeline import RunConfig, SparkEngine, run_pipeline, session
from broadloom.progress import watched_by

class Stopper:
    def __init__(self, stage):
        self.stage = stage

    def start(self, stage, total):
        if stage == self.stage:
            self.stage = None
            os.kill(os.getpid(), signal.SIGSTOP)

    def done(self, amount): pass

    def end(self): pass

master, conf, runs = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
with session(SparkEngine(master, conf=conf)) as spark:
    for config, stage in runs.items():
        with watched_by(Stopper(stage)):
            run_pipeline(RunConfig.load(config), spark=spark)
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
    stages = {"cluster": None, "ingest-killed": "ingest subscriptions", "link-killed": "tasks"}
    runs = {str(place / f"{output}.toml"): stage for output, stage in stages.items()}
    with cluster(tmp_path, workers=3) as made:
        with driver(place, "-c", DRIVER, made.master, json.dumps(SMALL), json.dumps(runs)) as process:
            for step in (place / "ingest-killed" / "ingest", place / "link-killed" / "link"):
                lose_a_worker(made, process, step)
        wait_for(lambda: made.alive() == 1)
    assert [plan_of(place, output) for output in stages] == 3 * [plan_of_one_process(place, "cluster")]


def lose_a_worker(made, process, step):
    """Wait until the driver has stopped itself in a step, let it hand out tasks, and kill who has some."""
    how = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    assert wait_for(lambda: os.waitid(os.P_PID, process.pid, how)).si_code == os.CLD_STOPPED
    with made.frozen():
        process.send_signal(signal.SIGCONT)
        time.sleep(1)
        assert not step.exists(), "it cannot end without the tasks that it hands out meanwhile"
        made.kill_worker()


def test_one_core_behind_spark_connect_gives_the_same_plan(place):
    """The driver is a Spark Connect server, and the command only its client."""
    pytest.importorskip("grpc")
    with connect_server(place) as remote:
        words = ["-m", "broadloom.cli", "run", str(place / "connect.toml"), "--remote", remote]
        with driver(place, *words):
            pass
    assert plan_of(place, "connect") == plan_of_one_process(place, "connect")
    if (place / "cluster" / "plan").exists():
        assert plan_of(place, "connect") == plan_of(place, "cluster")


def plan_of(place, output):
    """The bytes of a plan, and of the tables that it was made from."""
    return {file.name: file.read_bytes() for file in sorted((place / output / "plan").iterdir())}


def plan_of_one_process(place, output):
    """The plan of the in-process dcmaw for the interest of a run."""
    given = read_link_problem(place / output / "interest")
    plan = bl.link(given.interest, given.weights, "dcmaw")
    replace(plan, nodes=given.nodes).save(place / f"{output}-process" / "plan")
    return plan_of(place, f"{output}-process")


@contextmanager
def driver(place, *words):
    """A run in a process of its own, which must end well after the block."""
    with (place / "driver.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *words], env=environment(), stdout=log, stderr=log)
    try:
        yield process
        assert process.wait(PATIENCE) == 0, (place / "driver.log").read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


@contextmanager
def connect_server(folder):
    """A Spark Connect server of one core, and its address."""
    settings = SMALL | {"spark.connect.grpc.binding.port": "0", "spark.ui.enabled": "false"}
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
        address = told(process, folder / "server.log", "Spark Connect server started at: ")
        yield f"sc://127.0.0.1:{address.rpartition(':')[2]}"
    finally:
        process.kill()
        process.wait()
