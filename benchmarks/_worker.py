"""Runs tasks on one instance and tells on standard output, as JSON, what they gave and what they cost."""

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _common import Instance
from _tasks import TASKS

# Of every kind of thing a little, so that all that the real run compiles is compiled.
WARM_UP = {"nodes": 40, "topics": 100, "sizes": (5, 20)}


def main() -> None:
    """Read the work, do it, print the results."""
    work = json.load(sys.stdin)
    given = work["instance"]
    tasks = [(TASKS[task["what"]], task["arguments"]) for task in work["tasks"]]
    with contextlib.redirect_stdout(sys.stderr):
        for run in prepared(Instance(**given | WARM_UP), tasks):
            run()
        runs = prepared(Instance(**given), tasks)
        rounds = [[timed(run) for run in runs] for _ in range(work["rounds"])]
    print(json.dumps([best(of_task) for of_task in zip(*rounds, strict=True)]))


def prepared(instance: Instance, tasks: list[tuple[Callable[..., Any], Any]]) -> list[Callable[[], Any]]:
    """What is to be timed of each task on the instance."""
    interest, weights = instance.build()
    return [prepare(interest, weights, **arguments) for prepare, arguments in tasks]


def timed(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a run gives, its CPU and wall seconds, and the most memory in use during it."""
    forget_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return result | {"cpu_s": cpu, "wall_s": wall, "peak_mb": peak_mb()}


def best(rounds: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The first round with the least costs of all; all rounds must have built the same."""
    assert len({one.get("digest") for one in rounds}) == 1, "the same run gave different edges"
    return rounds[0] | {cost: min(one[cost] for one in rounds) for cost in ("cpu_s", "wall_s", "peak_mb")}


def forget_peak() -> None:
    """Measure the peak of memory from now on, where the system lets us."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    """The most memory in use since `forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
