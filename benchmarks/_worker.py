"""Process that runs tasks on one instance and prints their results and costs as JSON."""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import Instance
from _tasks import TASKS

# A small instance that compiles all kernels of the real run.
WARM_UP = {"nodes": 40, "topics": 100, "sizes": (5, 20)}


def main() -> None:
    """Read the tasks, run them, print the results."""
    work = json.load(sys.stdin)
    parameters = work["instance"]
    tasks = [(TASKS[task["what"]], task["arguments"]) for task in work["tasks"]]
    with contextlib.redirect_stdout(sys.stderr):
        for run in prepared(Instance(**parameters | WARM_UP), tasks):
            run()
        runs = prepared(Instance(**parameters), tasks)
        rounds = [[timed(run) for run in runs] for _ in range(work["rounds"])]
    print(json.dumps([best(of_task) for of_task in zip(*rounds, strict=True)]))


def prepared(instance: Instance, tasks: list[tuple[Callable[..., Any], Any]]) -> list[Callable[[], Any]]:
    """The function to time of each task on the instance."""
    interest, weights = instance.build()
    return [prepare(interest, weights, **arguments) for prepare, arguments in tasks]


def timed(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a run, its CPU and wall seconds, and its peak memory."""
    reset_peak()
    wall_start = time.perf_counter()
    cpu_start = time.process_time()
    result = run()
    cpu = time.process_time() - cpu_start
    wall = time.perf_counter() - wall_start
    return result | {"cpu_s": cpu, "wall_s": wall, "peak_mb": peak_mb()}


def best(rounds: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The first round's result with the least costs of all rounds; all rounds must give the same digest."""
    assert len({one.get("digest") for one in rounds}) == 1, "the same run gave different edges"
    return rounds[0] | {cost: min(one[cost] for one in rounds) for cost in ("cpu_s", "wall_s", "peak_mb")}


def reset_peak() -> None:
    """Measure peak memory from now on, if the operating system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """Peak memory since `reset_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
