"""Guard of performance: small runs of link, assign, maintain, ingest and one hop, as ratios to references.

    python benchmarks/guard.py             # exit code 1 if a ratio is more than twice the recorded one
    python benchmarks/guard.py --record    # record the ratios, after a change that is meant to cost
    python benchmarks/guard.py link hop    # only these

Each ratio is CPU time over the CPU time of a reference in the same run, so a slower or a busy machine changes
both. The references are not ours: SciPy, plain Spark, mosquitto's own bridge. Both sides run in turns, and
the least of their rounds counts. A ratio above its limit gets more rounds before it fails.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

import broadloom as bl
from _common import HERE, Instance, Section, keep, kept
from _tasks import scipy_trees
from _tree import Cost, sample

FACTOR = 2.0
TRIES = 3  # of the rounds of a part, before it fails


class Pair(NamedTuple):
    """A part and its reference.

    Attributes:
        work: the part; it returns CPU seconds.
        reference: the reference; it returns CPU seconds.
        rounds: of both, after one that is not counted.
    """

    work: Callable[[], float]
    reference: Callable[[], float]
    rounds: int = 3


class Part(NamedTuple):
    """A guarded part.

    Attributes:
        what: what it does.
        reference: what it is compared with.
        prepare: a context manager that prepares both.
    """

    what: str
    reference: str
    prepare: Callable[[], Any]


def timed(work: Callable[[], Any]) -> Callable[[], float]:
    """A function that runs the work and returns the CPU seconds of this process."""

    def run() -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return run


def timed_with_children(work: Callable[[], Any]) -> Callable[[], float]:
    """As `timed`, with the CPU seconds of all processes below this one that still run afterwards."""

    def spent() -> float:
        found = Cost()
        sample(os.getpid(), found)
        return found.cpu

    def run() -> float:
        started = spent()
        work()
        return spent() - started

    return run


@contextmanager
def link() -> Iterator[Pair]:
    """Linking by the default algorithm."""
    interest, weights = Instance(400, 400).build()
    yield Pair(timed(lambda: bl.link(interest, weights)), timed(scipy_trees(interest, weights)))


@contextmanager
def assign() -> Iterator[Pair]:
    """Assigning by the default algorithm."""
    problem = bl.workload.subscribers(subscribers=1_000)
    # Not a sort by NumPy, which takes half the time on processors with AVX2.
    costs = np.random.default_rng(0).random((1_500, 1_500))
    yield Pair(timed(lambda: bl.assign(problem)), timed(lambda: linear_sum_assignment(costs)))


@contextmanager
def maintain() -> Iterator[Pair]:
    """Departures of brokers, with the start of maintenance."""
    interest, weights = Instance(400, 400).build()
    plan = bl.link(interest, weights)

    def leave() -> None:
        live = bl.maintain(plan)
        for node in range(150):
            live.leave(node)

    yield Pair(timed(leave), timed(scipy_trees(interest, weights)))


@contextmanager
def ingest() -> Iterator[Pair]:
    """Ingest on a running Spark; of both sides, CPU seconds of the JVM count too."""
    from broadloom.pipeline import session
    from broadloom.pipeline.ingest import ingest as ingested

    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "raw")
        bl.workload.devices(raw, subscriptions=50_000)
        files = [str(file) for file in sorted(raw.glob("subscriptions-*.csv"))]
        with session() as spark:

            def plain() -> None:
                rows = spark.read.csv(files, header=True).dropDuplicates()
                rows.write.mode("overwrite").parquet(f"{folder}/plain")

            def ours() -> None:
                ingested([str(raw)], f"{folder}/tables", spark=spark, overwrite=True)

            yield Pair(timed_with_children(ours), timed_with_children(plain), rounds=2)


@contextmanager
def hop() -> Iterator[Pair]:
    """A backlog over one hop, with the brokers at both its ends."""
    sys.path.append(str(HERE.parent / "tests"))
    from live import hop_scenario

    logging.getLogger("broadloom").setLevel(logging.CRITICAL)  # clients say that brokers do not run yet

    def drained(is_native: bool) -> Callable[[], float]:
        return lambda: asyncio.run(hop_scenario(is_native, 1, 100, 8_000, 20))["CPU us per message"] / 1e6

    yield Pair(drained(False), drained(True), rounds=1)


PARTS = {
    "link": Part("400 brokers, 400 topics", "a minimum spanning tree per topic, SciPy", link),
    "assign": Part("1,000 subscribers", "the cheapest 1,500 pairs of 1,500 and 1,500, SciPy", assign),
    "maintain": Part(
        "150 of 400 brokers leave, one by one", "a minimum spanning tree per topic, SciPy", maintain
    ),
    "ingest": Part(
        "50,000 rows of CSV, checked and grouped", "the same rows without duplicates, plain Spark", ingest
    ),
    "hop": Part("8,000 messages, QoS 1, an agent between two brokers", "mosquitto's own bridge", hop),
}


def measured(name: str, limit: float) -> float:
    """The ratio of a part; more rounds follow while it is above the limit."""
    with PARTS[name].prepare() as pair:
        if pair.rounds > 1:
            pair.work()  # compiles or loads what both need
            pair.reference()
        work, reference = float("inf"), float("inf")
        for _ in range(TRIES):
            for _ in range(pair.rounds):
                work = min(work, pair.work())
                reference = min(reference, pair.reference())
            if work <= limit * reference:
                break
        print(f"  {work:.3g} CPU s, reference {reference:.3g} CPU s", flush=True)
        return work / reference


def main() -> None:
    """Measure the parts, and compare them with the recorded ratios, or record them."""
    is_recording = "--record" in sys.argv
    names = [name for name in sys.argv[1:] if not name.startswith("-")] or list(PARTS)
    recorded = {row["part"]: row["ratio"] for row in kept("guard", "ratios")}
    failed = []
    for name in names:
        limit = float("inf") if is_recording else FACTOR * recorded[name]
        print(f"{name}: {PARTS[name].what}", flush=True)
        ratio = measured(name, limit)
        print(f"  ratio {ratio:.3g}, recorded {recorded.get(name, float('nan')):.3g}", flush=True)
        if is_recording:
            recorded[name] = ratio
        elif ratio > limit:
            failed.append(f"{name} takes {ratio:.3g} times its reference; at most {limit:.3g} is allowed")
    if is_recording:
        section = Section("CPU time as a ratio to a reference in the same run")
        section.rows = [
            {"part": name, "what": part.what, "reference": part.reference, "ratio": recorded[name]}
            for name, part in PARTS.items()
            if name in recorded
        ]
        keep("guard", "ratios", section)
    sys.exit("\n".join(failed) if failed else 0)


if __name__ == "__main__":
    main()
