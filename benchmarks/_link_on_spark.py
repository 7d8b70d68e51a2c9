"""Link one instance, in this process or on Spark, and print the cost of each stage as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager

import broadloom as bl
from _tree import Cost, sample
from broadloom import workload
from broadloom.progress import watched_by


class Stages:
    """Total wall and CPU seconds of each stage, of this process and its child processes."""

    def __init__(self) -> None:
        self.open: list[tuple[str, float, float]] = []
        self.seconds: dict[str, tuple[float, float]] = {}
        self.tree = Cost()

    def cpu(self) -> float:
        sample(os.getpid(), self.tree)
        return self.tree.cpu

    def start(self, stage: str, total: float | None) -> None:  # noqa: ARG002
        self.open.append((stage, time.monotonic(), self.cpu()))

    def done(self, amount: float) -> None:
        pass

    def end(self) -> None:
        stage, wall, cpu = self.open.pop()
        walls, cpus = self.seconds.get(stage, (0.0, 0.0))
        self.seconds[stage] = walls + time.monotonic() - wall, cpus + self.cpu() - cpu

    @contextmanager
    def of(self, stage: str):
        self.start(stage, None)
        try:
            yield
        finally:
            self.end()


def main() -> None:
    """Build the instance, link it, print."""
    nodes, topics, site = map(int, sys.argv[1:4])
    where = sys.argv[4]
    stages = Stages()
    with stages.of("build"):
        interest = workload.interest(nodes=nodes, topics=topics, sizes=(20, 100), seed=0)
        weights = bl.Weights.sites([node // site for node in range(nodes)])
    warm = workload.interest(nodes=50, topics=topics, seed=0)
    bl.link(warm, bl.Weights.sites([node // 10 for node in range(50)]), "dcmaw")
    with watched_by(stages):
        if where in ("process", "grmaw"):
            with stages.of("all"):
                plan = bl.link(interest, weights, "grmaw" if where == "grmaw" else "dcmaw")
        else:
            plan = on_spark(stages, interest, weights)
    result = {"edges": len(plan.edges), "weight": plan.total_weight, "stages": stages.seconds}
    print(json.dumps(result))


def on_spark(stages: Stages, interest: bl.Interest, weights: bl.Weights) -> bl.Plan:
    """Link on an embedded session."""
    from broadloom.pipeline import SparkEngine, link_on_spark, session

    with stages.of("start"):
        started = session(SparkEngine(conf={"spark.driver.memory": "2g"}))
        spark = started.__enter__()
        spark.range(1).count()
    try:
        with stages.of("all"):
            return link_on_spark(interest, weights, spark=spark)
    finally:
        started.__exit__(None, None, None)


if __name__ == "__main__":
    main()
