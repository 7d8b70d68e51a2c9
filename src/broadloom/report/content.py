"""Content plans as the page has them: filters over subscriptions, loads against limits, delays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import seeded_generator
from broadloom.errors import InputError
from broadloom.measures.content_measures import delays
from broadloom.plans import AssignmentResult
from broadloom.report.certificate import certificate
from broadloom.report.numbers import short
from broadloom.storage import to_json_value
from broadloom.storage.tables import require_table

# Of more subscriptions than this the page shows a sample, and says so.
MOST_RECTANGLES = 4000
# Delays are counted in so many equal steps.
DELAY_STEPS = 40
LEAST_BANDWIDTH = "no allowed assignment takes a bandwidth of"
LEAST_COST = "no assignment over this core costs"


def content_record(result: AssignmentResult, name: str) -> dict[str, Any]:
    """The result of subscriber assignment."""
    problem = result.problem
    load = np.bincount(result.broker_of, minlength=problem.broker_count)
    shown = _sample(problem.subscriber_count)
    return {
        "kind": "content",
        "name": name,
        "summary": result.summary(),
        "asked": _asked(result.algorithm, result.seed, result.options),
        "metrics": to_json_value(result.metrics()),
        "certificate": certificate(result.bandwidth, result.lower_bound, result.gap, LEAST_BANDWIDTH),
        "brokers": list(problem.broker_ids or map(str, range(problem.broker_count))),
        "parent": problem.broker_parent.tolist(),
        "leaves": problem.leaves.tolist(),
        "load": load.tolist(),
        "fairLoad": short(problem.capacity * problem.subscriber_count),
        "beta": problem.beta,
        "betaMax": problem.beta_max,
        "dimensions": problem.dimensions,
        "filters": [[[short(lo), short(hi)] for lo, hi in boxes] for boxes in result.filters],
        "subscriptions": {
            "lo": [short(row) for row in problem.lo[shown]],
            "hi": [short(row) for row in problem.hi[shown]],
            "broker": result.broker_of[shown].tolist(),
            "inAll": problem.subscriber_count,
        },
        "delays": _delays(result),
    }


def market_record(folder: Path, name: str) -> dict[str, Any]:
    """The result of a market, from its folder: who is where, and what crosses which link.

    Raises:
        InputError: it is damaged.
    """
    record = json.loads((folder / "plan.json").read_text())
    try:
        return _market_record(folder, name, record)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder} is a damaged market: {error} is missing or wrong") from error


def _market_record(folder: Path, name: str, record: dict[str, Any]) -> dict[str, Any]:
    assignment, flows = require_table(folder, "assignment"), require_table(folder, "flows")
    brokers = sorted({*assignment["broker"].to_pylist(), *flows["u"].to_pylist(), *flows["v"].to_pylist()})
    number = {broker: i for i, broker in enumerate(brokers)}
    users = np.bincount([number[b] for b in assignment["broker"].to_pylist()], minlength=len(brokers))
    metrics, gap = record["metrics"], record.get("gap")
    proven = "" if gap is None else f", at most {gap:.1%} above the best possible"
    return {
        "kind": "market",
        "name": name,
        "summary": f"{record['algorithm']}: {assignment.num_rows:,} users on {metrics['brokers_used']:,} "
        f"brokers, cost {metrics['cost']:.6g} (access {metrics['access_cost']:.4g}, "
        f"core {metrics['core_cost']:.4g} by {record['core']}){proven}",
        "asked": _asked(record["algorithm"], record["seed"], record["options"] | {"core": record["core"]}),
        "metrics": to_json_value(metrics),
        "certificate": certificate(metrics["cost"], record.get("lower_bound"), gap, LEAST_COST),
        "brokers": brokers,
        "load": users.tolist(),
        "flows": {
            "u": [number[u] for u in flows["u"].to_pylist()],
            "v": [number[v] for v in flows["v"].to_pylist()],
            "rate": short(flows["rate"].to_numpy()),
        },
    }


def _sample(count: int) -> NDArray[np.int64]:
    """Which subscriptions are shown: all, or some by lot."""
    if count <= MOST_RECTANGLES:
        return np.arange(count)
    return np.sort(seeded_generator(0).choice(count, MOST_RECTANGLES, replace=False))


def _delays(result: AssignmentResult) -> dict[str, Any]:
    """How many subscribers have which delay, in equal steps up to the longest."""
    delay, over = delays(result.problem, result.broker_of)
    finite = delay[np.isfinite(delay)]
    top = max(float(finite.max(initial=0.0)), result.problem.max_delay, 1e-9)
    counts, edges = np.histogram(finite, DELAY_STEPS, (0.0, top))
    return {
        "counts": counts.tolist(),
        "edges": short(edges),
        "over": int(over.sum()),
        "limit": result.problem.max_delay,
        "absolute": result.problem.max_latency is not None,
    }


def _asked(algorithm: str, seed: int, options: Any) -> dict[str, Any]:
    return to_json_value({"algorithm": algorithm, "seed": seed} | dict(options))
