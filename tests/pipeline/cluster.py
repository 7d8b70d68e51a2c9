"""A real Spark cluster on loopback, from the installed pyspark: a master and workers."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

import broadloom
from broadloom._java import java_home

PATIENCE = 180.0


def free_port() -> int:
    """A port that nobody uses just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what, patience: float = PATIENCE):
    """Wait until `what()` is true, and return it."""
    limit = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.05)
    return found


def environment() -> dict[str, str]:
    """What processes of a cluster, and drivers on it, need to know."""
    home = Path(pyspark.__file__).parent
    return os.environ | {
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(broadloom.__file__).parents[1]),
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_DAEMON_MEMORY": "256m",
    }


@dataclass
class Cluster:
    """The processes of a cluster; each has a process group of its own, so that it dies with its executors."""

    folder: Path
    port: int = field(default_factory=free_port)
    ui: int = field(default_factory=free_port)
    workers: list[subprocess.Popen] = field(default_factory=list)
    others: list[subprocess.Popen] = field(default_factory=list)

    @property
    def master(self) -> str:
        """The address of the master."""
        return f"spark://127.0.0.1:{self.port}"

    def start(self, name: str, *arguments: str) -> subprocess.Popen:
        """Start one of Spark's classes."""
        program = Path(environment()["SPARK_HOME"], "bin", "spark-class")
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [program, *arguments], env=environment(), stdout=log, stderr=log, start_new_session=True
            )

    def add_worker(self) -> None:
        """Start a worker of one core."""
        number = len(self.workers)
        arguments = ("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0")
        place = ("--work-dir", str(self.folder / f"work-{number}"), self.master)
        worker = "org.apache.spark.deploy.worker.Worker"
        self.workers.append(self.start(f"worker-{number}", worker, *arguments, *place))

    def state(self) -> dict:
        """What the master's page tells."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ui}/json/", timeout=5) as answer:
                return json.load(answer)
        except OSError:
            return {"workers": []}

    def alive(self) -> int:
        """How many workers the master believes to be alive."""
        return sum(worker["state"] == "ALIVE" for worker in self.state()["workers"])

    def freeze_worker(self) -> None:
        """Stop the worker that is to be killed next: the tasks that it is given do not end."""
        os.killpg(self.workers[-1].pid, signal.SIGSTOP)

    def kill_worker(self) -> None:
        """SIGKILL to a worker and the executors that it started."""
        worker = self.workers.pop()
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        """Kill every process that is left."""
        for process in (*self.workers, *self.others):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster for the block."""
    made = Cluster(folder)
    master = ("--host", "127.0.0.1", "--port", str(made.port), "--webui-port", str(made.ui))
    made.others.append(made.start("master", "org.apache.spark.deploy.master.Master", *master))
    try:
        for _ in range(workers):
            made.add_worker()
        wait_for(lambda: made.alive() == workers)
        yield made
    finally:
        made.stop()
