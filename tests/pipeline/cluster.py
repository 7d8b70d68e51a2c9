"""A real Spark cluster on loopback, from the installed pyspark: a master and workers."""

import json
import os
import re
import signal
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
from broadloom.pipeline.java import java_home

PATIENCE = 900.0  # an upper bound for work that takes seconds on an idle machine


def wait_for(what, patience: float = PATIENCE):
    """Wait until `what()` returns a true value, and return that."""
    limit = time.monotonic() + patience
    while not (found := what()):
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.05)
    return found


def logged(server: subprocess.Popen, log: Path, words: str) -> str:
    """The text that follows `words` in the log of a server, such as its address."""

    def found() -> re.Match | None:
        ended = server.poll() is not None
        match = re.search(rf"{words}(\S+)\n", log.read_text(errors="replace"))
        assert match or not ended, log.read_text(errors="replace")[-3000:]
        return match

    return wait_for(found)[1]


def environment() -> dict[str, str]:
    """The environment of the processes of a cluster and of its drivers."""
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
    """The processes of a cluster, each in its own process group, so that a kill includes its executors."""

    folder: Path
    master: str = ""
    page: str = ""
    workers: list[subprocess.Popen] = field(default_factory=list)
    others: list[subprocess.Popen] = field(default_factory=list)

    def start_master(self) -> None:
        """Start the master on free ports, and read its address and that of its page from the log."""
        arguments = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        server = self.start("master", "org.apache.spark.deploy.master.Master", *arguments)
        self.others.append(server)
        self.master = logged(server, self.folder / "master.log", "Starting Spark master at ")
        self.page = logged(server, self.folder / "master.log", "Bound MasterWebUI to .*, and started at ")

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
        options = ("--work-dir", str(self.folder / f"work-{number}"), self.master)
        worker = "org.apache.spark.deploy.worker.Worker"
        self.workers.append(self.start(f"worker-{number}", worker, *arguments, *options))

    def state(self) -> dict:
        """The status of the cluster, from the master's page."""
        try:
            with urllib.request.urlopen(f"{self.page}/json/", timeout=30) as answer:
                return json.load(answer)
        except OSError:
            return {"workers": []}

    def alive(self) -> int:
        """The number of workers that the master believes to be alive."""
        return sum(worker["state"] == "ALIVE" for worker in self.state()["workers"])

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend all workers during the block, so that no task ends in it."""
        for worker in self.workers:
            os.killpg(worker.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for worker in self.workers:
                os.killpg(worker.pid, signal.SIGCONT)

    def kill_worker(self) -> None:
        """Kill a worker and the executors that it started, by SIGKILL."""
        worker = self.workers.pop()
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()

    def stop(self) -> None:
        """Kill all remaining processes."""
        for process in (*self.workers, *self.others):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A cluster for the block."""
    started = Cluster(folder)
    try:
        started.start_master()
        for _ in range(workers):
            started.add_worker()
        wait_for(lambda: started.alive() == workers)
        yield started
    finally:
        started.stop()
