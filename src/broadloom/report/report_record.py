"""Record of a report, as JSON for the page: plans of any stage, their interest, and row counts of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom._version import VERSION
from broadloom.checks import seeded_generator
from broadloom.errors import InputError
from broadloom.measures.content_measures import delays
from broadloom.model import LEDGER_FILE, RowLedger
from broadloom.plans import AssignmentResult, Plan, is_assignment, site_names
from broadloom.report.overlay_record import (
    interest_record,
    overlay_record,
    positions,
    with_positions_of,
)
from broadloom.report.record_values import certificate, short
from broadloom.storage import to_json_value

FORMAT = 1
TITLE = "Broadloom: the plan"
# The largest number of rectangles in a page; of more subscriptions the page shows a sample, and says so.
MOST_RECTANGLES = 4000
# Number of bins of the delay histogram.
DELAY_STEPS = 40
LEAST_BANDWIDTH = "no allowed assignment takes a bandwidth of"
LEAST_COST = "no assignment over this core costs"
# Quarantined rows shown per table and reason.
EXAMPLES = 3
# Characters shown per quarantined row.
LONGEST = 200


def record_of(
    plans: Mapping[str, Plan | AssignmentResult], title: str = TITLE, unit: str = "", repairs: bool = True
) -> dict[str, Any]:
    """The record of plans in memory; `plans` maps the names that the page shows to the plans.

    Args:
        plans: the plans, by the names that the page shows for them.
        title: the heading of the page.
        unit: the unit of the weights, as "ms"; empty if it is not known.
        repairs: whether the repairs of failures, and backups, are computed.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([[0], [0]]), algorithm="gm")
        >>> record_of({"today": plan})["plans"][0]["summary"]
        'gm: 2 brokers, 1 links, every one of 1 topics connected'
    """
    interests: list[Plan] = []
    shown = [_plan_record(plan, name, interests, repairs) for name, plan in plans.items()]
    return _page_record(title, unit, interests, shown, None)


def record_of_folders(
    folders: Sequence[Path], title: str = TITLE, unit: str = "", dated: bool = False
) -> dict[str, Any]:
    """The record of plans in folders, with the row counts if a folder is that of a run.

    Args:
        folders: folders of plans, or of runs, whose plan is used.
        title: the heading of the page.
        unit: the unit of the weights, as "ms"; empty if it is not known.
        dated: whether the page says when each plan was written, by the time of its file.

    Raises:
        InputError: there is no folder, a plan occurs twice, or a folder is not a plan.
    """
    if not folders:
        raise InputError("there is no plan to report on; give at least one folder")
    interests: list[Plan] = []
    shown = []
    rows = None
    found = [plan_folder for folder in folders for plan_folder in _plans_in(folder)]
    for name, folder in _named(found):
        rows = rows or rows_record(folder.parent / "ingest")
        if _is_market(folder):
            shown.append(market_record(folder, name))
        else:
            plan = AssignmentResult.load(folder) if is_assignment(folder) else Plan.load(folder)
            shown.append(_plan_record(plan, name, interests))
        shown[-1] |= _origin(folder, dated)
    return _page_record(title, unit, interests, shown, rows)


def _origin(folder: Path, dated: bool) -> dict[str, Any]:
    """Where a plan is from, and when it was written, in UTC."""
    written = datetime.fromtimestamp((folder / "plan.json").stat().st_mtime, UTC) if dated else None
    return {"source": str(folder), "written": written and f"{written:%Y-%m-%d %H:%M} UTC"}


def _page_record(
    title: str, unit: str, interests: list[Plan], plans: list[dict[str, Any]], rows: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "broadloom": VERSION,
        "title": title,
        "unit": unit,
        "interests": [interest_record(plan) for plan in interests],
        "plans": plans,
        "rows": rows,
    }


def _plan_record(
    plan: Plan | AssignmentResult, name: str, interests: list[Plan], repairs: bool = True
) -> dict[str, Any]:
    """A plan's record; plans with the same interest and positions share one interest record."""
    memory = {"source": None, "written": None}
    if isinstance(plan, AssignmentResult):
        return content_record(plan, name) | memory
    plan = with_positions_of(plan, interests)
    for i, other in enumerate(interests):
        if other.interest == plan.interest and _locations(other) == _locations(plan):
            return overlay_record(plan, name, i, repairs) | memory
    interests.append(plan)
    return overlay_record(plan, name, len(interests) - 1, repairs) | memory


def _locations(plan: Plan) -> tuple[Any, ...]:
    return positions(plan), site_names(plan)


def _plans_in(folder: Path) -> list[Path]:
    """The folder itself, or, if it is that of a run, the folders of its plan and its assignment."""
    if (folder / "plan.json").exists() or not (folder / "plan" / "plan.json").exists():
        return [folder]
    return [folder / "plan", *([folder / "assign"] if is_assignment(folder / "assign") else [])]


def _named(folders: Sequence[Path]) -> list[tuple[str, Path]]:
    """The folders with names for the page: as many last parts of their paths as make the names unique."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return list(zip(names, folders, strict=True))
    raise InputError("the same plan is given twice; give each folder once")


def _is_market(folder: Path) -> bool:
    """Whether a folder holds the result of a market."""
    try:
        record = json.loads((folder / "plan.json").read_text())
    except (OSError, ValueError):
        return False  # `Plan.load` then raises the error
    return isinstance(record, dict) and record.get("kind") == "market"


def content_record(result: AssignmentResult, name: str) -> dict[str, Any]:
    """The record of a subscriber assignment."""
    problem = result.problem
    load = np.bincount(result.broker_of, minlength=problem.broker_count)
    shown = _sample(problem.subscriber_count)
    return {
        "kind": "content",
        "name": name,
        "summary": result.summary(),
        "asked": _settings(result.algorithm, result.seed, result.options),
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
    """The record of a market result, from its folder: users per broker, and the rate on each core link.

    Raises:
        InputError: the folder is damaged.
    """
    record = json.loads((folder / "plan.json").read_text())
    try:
        return _market_record(folder, name, record)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder} is the result of a market but damaged: {error} is missing or wrong"
        ) from error


def _market_record(folder: Path, name: str, record: dict[str, Any]) -> dict[str, Any]:
    from broadloom.storage.tables import require_table

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
        "asked": _settings(record["algorithm"], record["seed"], record["options"] | {"core": record["core"]}),
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
    """The subscriptions that are shown: all, or a random sample."""
    if count <= MOST_RECTANGLES:
        return np.arange(count)
    return np.sort(seeded_generator(0).choice(count, MOST_RECTANGLES, replace=False))


def _delays(result: AssignmentResult) -> dict[str, Any]:
    """The histogram of delays, in equal bins up to the longest."""
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


def _settings(algorithm: str, seed: int, options: Any) -> dict[str, Any]:
    return to_json_value({"algorithm": algorithm, "seed": seed} | dict(options))


def rows_record(folder: Path) -> dict[str, Any] | None:
    """The row counts of a folder that `ingest` wrote; None without a ledger."""
    if not (folder / LEDGER_FILE).exists():
        return None
    ledger = RowLedger.load(folder)
    return ledger.record() | {"words": ledger.summary(), "examples": _examples(folder)}


def _examples(folder: Path) -> list[dict[str, str]]:
    """A few quarantined rows per table and reason, sorted."""
    import pyarrow.compute as pc

    from broadloom.storage.tables import read_table

    table = read_table(folder, "quarantine")
    if table is None:
        return []
    shown = []
    for group in table.group_by(["table", "reason"]).aggregate([]).to_pylist():
        same = pc.and_(*(pc.equal(table[name], group[name]) for name in ("table", "reason")))
        rows = table.filter(same).slice(0, EXAMPLES).column("row").to_pylist()
        shown += [group | {"row": (row or "")[:LONGEST]} for row in rows]
    return sorted(shown, key=lambda one: (one["table"], one["reason"], one["row"]))
