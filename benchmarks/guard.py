"""Guard of performance: small runs of link, assign, maintain, ingest and one hop, as ratios to references.

    python benchmarks/guard.py             # exit code 1 if a ratio is more than twice the recorded one
    python benchmarks/guard.py --record    # record the ratios, after a change that is meant to cost

Each ratio is CPU time over the CPU time of a reference in the same run, so a slower machine changes both. The
references are not ours: SciPy, NumPy, plain Python, mosquitto's own bridge.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import broadloom as bl
from _common import HERE, RESULTS, Instance
from _tasks import scipy_trees
from _tree import cost

FILE = RESULTS / "guard.json"
FACTOR = 2.0
ROUNDS = 3
ROWS = 20_000


def best(work: Callable[[], Any]) -> float:
    """The least CPU seconds of some rounds, after one that compiles kernels."""
    work()
    spent = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return min(spent)


def link() -> float:
    """Linking 400 brokers by the default algorithm; reference: a minimum spanning tree per topic, SciPy."""
    interest, weights = Instance(400, 400).build()
    return best(lambda: bl.link(interest, weights)) / best(scipy_trees(interest, weights))


def assign() -> float:
    """Assigning 20,000 subscribers by default; reference: all distances to brokers, sorted, by NumPy."""
    problem = bl.workload.subscribers(subscribers=20_000)
    rng = np.random.default_rng(0)
    places, brokers = rng.random((20_000, 2)), rng.random((100, 2))

    def reference() -> None:
        np.argsort(((places[:, None] - brokers) ** 2).sum(axis=2), axis=1)

    return best(lambda: bl.assign(problem)) / best(reference)


def maintain() -> float:
    """Fifty brokers leave a plan of 400; reference: a minimum spanning tree per topic, SciPy."""
    interest, weights = Instance(400, 400).build()
    plan = bl.link(interest, weights)

    def leave() -> None:
        live = bl.maintain(plan)
        for node in range(50):
            live.leave(node)

    return best(leave) / best(scipy_trees(interest, weights))


def ingest() -> float:
    """Ingesting 20,000 rows on Spark, its start included; reference: plain Python over 2 million rows."""
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "raw")
        bl.workload.devices(raw, subscriptions=ROWS)
        command = [
            sys.executable,
            "-m",
            "broadloom.cli",
            "ingest",
            str(raw),
            "-o",
            f"{folder}/tables",
            "--quiet",
        ]
        spent = min(cost(command).cpu for _ in range(2))
        lines = next(raw.glob("subscriptions-*.csv")).read_text().splitlines()

        def reference() -> None:
            for _ in range(2_000_000 // len(lines)):
                dict.fromkeys(tuple(line.split(",")) for line in lines)

        return spent / best(reference)


def hop() -> float:
    """One hop with the brokers at both its ends; reference: the same over mosquitto's own bridge."""
    sys.path.append(str(HERE.parent / "tests"))
    from live import hop_scenario

    spent = {
        is_native: min(
            asyncio.run(hop_scenario(is_native, 1, 100, 10_000))["CPU us per message"] for _ in range(2)
        )
        for is_native in (True, False)
    }
    return spent[False] / spent[True]


PARTS = {"link": link, "assign": assign, "maintain": maintain, "ingest": ingest, "hop": hop}


def main() -> None:
    """Measure all parts, and compare them with the recorded ratios."""
    chosen = [name for name in sys.argv[1:] if not name.startswith("-")] or list(PARTS)
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    failed = []
    for name in chosen:
        found = PARTS[name]()
        limit = FACTOR * recorded.get(name, float("inf"))
        print(
            f"{name}: {found:.3g} of its reference (recorded {recorded.get(name, float('nan')):.3g})",
            flush=True,
        )
        if "--record" in sys.argv:
            recorded[name] = round(found, 4)
        elif found > limit:
            failed.append(f"{name} takes {found:.3g} of its reference; at most {limit:.3g} is allowed")
    if "--record" in sys.argv:
        FILE.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
    sys.exit("\n".join(failed) if failed else 0)


if __name__ == "__main__":
    main()
