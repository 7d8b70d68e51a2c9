"""Runs on a real cluster (a master and workers, some of which are killed) and on Spark Connect.

The plan is always the same. Runs on an embedded Spark with two cores are in `test_run`.
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
from cluster import PATIENCE, cluster, environment, logged, wait_for

import broadloom as bl
from broadloom import workload
from broadloom.model import NotCarried, read_link_problem

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
# All runs are in one session, so that later ones have running executors to lose. A run suspends itself at a
# stage, if one is named, until it gets a signal to continue.
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
def folder(tmp_path_factory):
    """Raw inputs, and a configuration for each run of them."""
    folder = tmp_path_factory.mktemp("cluster")
    workload.devices(folder / "raw", brokers=12, subscriptions=3000, subscribers=40, seed=5)
    for output in ("cluster", "ingest-killed", "link-killed", "connect"):
        (folder / f"{output}.toml").write_text(CONFIG.format(output=output))
    return folder


def test_a_cluster_makes_the_plan_of_one_process_even_if_it_loses_workers(folder, tmp_path):
    """A worker is killed, with its executor, in ingest of the second run, another in link of the third."""
    stages = {"cluster": None, "ingest-killed": "ingest subscriptions", "link-killed": "tasks"}
    runs = {str(folder / f"{output}.toml"): stage for output, stage in stages.items()}
    with cluster(tmp_path, workers=3) as made:
        with driver(folder, "-c", DRIVER, made.master, json.dumps(SMALL), json.dumps(runs)) as process:
            for step in (folder / "ingest-killed" / "ingest", folder / "link-killed" / "link"):
                lose_a_worker(made, process, step)
        wait_for(lambda: made.alive() == 1)
    assert [plan_of(folder, output) for output in stages] == 3 * [plan_of_one_process(folder, "cluster")]


def lose_a_worker(made, process, step):
    """Wait until the driver has suspended itself in a step, let it send tasks, and kill a busy worker."""
    how = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
    assert wait_for(lambda: os.waitid(os.P_PID, process.pid, how)).si_code == os.CLD_STOPPED
    with made.frozen():
        process.send_signal(signal.SIGCONT)
        time.sleep(1)
        assert not step.exists(), "the step cannot end while the workers are suspended"
        made.kill_worker()


def test_one_core_behind_spark_connect_makes_the_same_plan(folder):
    """The driver is a Spark Connect server, and the command is only its client."""
    pytest.importorskip("grpc")
    with connect_server(folder) as remote:
        words = ["-m", "broadloom.cli", "run", str(folder / "connect.toml"), "--remote", remote]
        with driver(folder, *words):
            pass
    assert plan_of(folder, "connect") == plan_of_one_process(folder, "connect")
    if (folder / "cluster" / "plan").exists():
        assert plan_of(folder, "connect") == plan_of(folder, "cluster")


def plan_of(folder, output):
    """The bytes of all files of a plan."""
    return {file.name: file.read_bytes() for file in sorted((folder / output / "plan").iterdir())}


def plan_of_one_process(folder, output):
    """The plan of the in-process dcmaw for the interest of a run."""
    problem = read_link_problem(folder / output / "interest")
    plan = bl.link(problem.interest, problem.weights, "dcmaw")
    left_out = NotCarried(problem.not_carried)
    replace(plan, nodes=problem.nodes, not_carried=left_out).save(folder / f"{output}-process" / "plan")
    return plan_of(folder, f"{output}-process")


@contextmanager
def driver(folder, *words):
    """A run in a separate process, which must succeed after the block."""
    with (folder / "driver.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *words], env=environment(), stdout=log, stderr=log)
    try:
        yield process
        assert process.wait(PATIENCE) == 0, (folder / "driver.log").read_text()[-3000:]
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
        address = logged(process, folder / "server.log", "Spark Connect server started at: ")
        yield f"sc://127.0.0.1:{address.rpartition(':')[2]}"
    finally:
        process.kill()
        process.wait()
