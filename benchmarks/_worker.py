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
        measured = prepared(Instance(**given | WARM_UP), tasks)
        for run in measured:
            run()
        runs = prepared(Instance(**given), tasks)
        rounds = [[timed(run) for run in runs] for _ in range(work["rounds"])]
    print(json.dumps([best(of_task) for of_task in zip(*rounds, strict=True)]))


def prepared(instance: Instance, tasks: list[tuple[Callable[..., Any], Any]]) -> list[Callable[[], Any]]:
    """What is to be timed of each task on the instance."""
    interest, weights = instance.build()
    return [prepare(interest, weights, **arguments) for prepare, arguments in tasks]


def timed(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a run gives, its CPU and wall seconds, and how far the process grew."""
    before = forget_peak()
    wall, cpu = time.perf_counter(), time.process_time()
    result = run()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return result | {"cpu_s": cpu, "wall_s": wall, "peak_mb": peak(), "grew_mb": peak() - before}


def best(rounds: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The result of the first round with the least times of all; rounds must agree on what they give."""
    costs = ("cpu_s", "wall_s", "peak_mb", "grew_mb")
    return rounds[0] | {cost: min(result[cost] for result in rounds) for cost in costs}


def forget_peak() -> float:
    """Start a new peak of memory; how much is in use now, in MB."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    """The most memory in use since the last `forget_peak`, in MB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
