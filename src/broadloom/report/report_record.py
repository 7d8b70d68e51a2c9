"""Record of a report, as JSON for the page: plans of any stage, their interest, and row counts of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom._version import VERSION
from broadloom.checks import seeded_generator
from broadloom.errors import InputError
from broadloom.measures.content_measures import delays
from broadloom.model import LEDGER_FILE, AssignmentProblem, ContentFilter, RowLedger
from broadloom.plans import (
    AssignedBlock,
    AssignmentResult,
    Plan,
    SavedAssignment,
    is_assignment,
    site_names,
)
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
    folders: Sequence[Path],
    title: str = TITLE,
    unit: str = "",
    dated: bool = False,
    loaded: Mapping[str, Plan] | None = None,
) -> dict[str, Any]:
    """The record of plans in folders, with the row counts if a folder is that of a run.

    Args:
        folders: folders of plans, or of runs, whose plan is used.
        title: the heading of the page.
        unit: the unit of the weights, as "ms"; empty if it is not known.
        dated: whether the page says when each plan was written, by the time of its file.
        loaded: plans that are in memory already, by the names of their folders.

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
        elif is_assignment(folder):
            shown.append(saved_content_record(folder, name))
        else:
            plan = (loaded or {}).get(folder.name) or Plan.load(folder)
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
    facts = {
        "summary": result.summary(),
        "asked": _settings(result.algorithm, result.seed, result.options),
        "metrics": to_json_value(result.metrics()),
        "certificate": certificate(result.bandwidth, result.lower_bound, result.gap, LEAST_BANDWIDTH),
    }
    block = AssignedBlock(result.problem, result.broker_of)
    return _content_record(name, facts, result.problem, result.filters, lambda: iter([block]))


def saved_content_record(folder: Path, name: str) -> dict[str, Any]:
    """The record of a saved subscriber assignment, of which only some blocks are in memory at a time."""
    saved = SavedAssignment(folder)
    record = saved.record
    metrics = record["metrics"]
    bound = record["lower_bound"]
    facts = {
        "summary": saved.summary(),
        "asked": _settings(record["algorithm"], record["seed"], record["options"]),
        "metrics": to_json_value(metrics),
        "certificate": certificate(metrics["bandwidth"], bound, record.get("gap"), LEAST_BANDWIDTH),
    }
    return _content_record(name, facts, saved.first, saved.filters, saved.blocks)


def _content_record(
    name: str,
    facts: dict[str, Any],
    problem: AssignmentProblem,
    filters: Sequence[ContentFilter],
    blocks: Callable[[], Iterator[AssignedBlock]],
) -> dict[str, Any]:
    """The record of an assignment from two passes over the blocks of its subscribers."""
    load = np.zeros(problem.broker_count, np.int64)
    longest = 0.0
    for block in blocks():
        load += np.bincount(block.broker_of, minlength=problem.broker_count)
        delay, _ = delays(*block)
        longest = max(longest, float(delay[np.isfinite(delay)].max(initial=0.0)))
    count = int(load.sum())
    shown = _sample(count)
    lo, hi, broker = [], [], []
    histogram = _DelayHistogram(max(longest, problem.max_delay, 1e-9))
    first = 0
    for block in blocks():
        last = first + len(block.broker_of)
        mine = shown[(shown >= first) & (shown < last)] - first
        lo += [short(row) for row in block.problem.lo[mine]]
        hi += [short(row) for row in block.problem.hi[mine]]
        broker += block.broker_of[mine].tolist()
        histogram.add(block)
        first = last
    return {
        "kind": "content",
        "name": name,
        **facts,
        "brokers": list(problem.broker_ids or map(str, range(problem.broker_count))),
        "parent": problem.broker_parent.tolist(),
        "leaves": problem.leaves.tolist(),
        "load": load.tolist(),
        "fairLoad": short(problem.capacity * count),
        "beta": problem.beta,
        "betaMax": problem.beta_max,
        "dimensions": problem.dimensions,
        "filters": [[[short(low), short(high)] for low, high in boxes] for boxes in filters],
        "subscriptions": {"lo": lo, "hi": hi, "broker": broker, "inAll": count},
        "delays": histogram.record(problem),
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


class _DelayHistogram:
    """Histogram of delays, in equal bins up to `top`, and the number of latencies above their bounds."""

    def __init__(self, top: float) -> None:
        self._range = (0.0, top)
        self._counts = np.zeros(DELAY_STEPS, np.int64)
        self._over = 0

    def add(self, block: AssignedBlock) -> None:
        """Count the subscribers of a block."""
        delay, over = delays(*block)
        self._counts += np.histogram(delay[np.isfinite(delay)], DELAY_STEPS, self._range)[0]
        self._over += int(over.sum())

    def record(self, problem: AssignmentProblem) -> dict[str, Any]:
        """The histogram in the types of JSON."""
        return {
            "counts": self._counts.tolist(),
            "edges": short(np.histogram_bin_edges([], DELAY_STEPS, self._range)),
            "over": self._over,
            "limit": problem.max_delay,
            "absolute": problem.max_latency is not None,
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
    """A few quarantined rows per table and reason, the first in the order of the rows, sorted."""
    from broadloom.storage.tables import parquet_dataset

    path = folder / "quarantine.parquet"
    found: dict[tuple[str, str], list[str]] = {}
    batches = parquet_dataset(path).to_batches(columns=["table", "reason", "row"]) if path.exists() else ()
    for batch in batches:
        keys = zip(batch["table"].to_pylist(), batch["reason"].to_pylist(), strict=True)
        for number, key in enumerate(keys):
            rows = found.setdefault(key, [])
            if len(rows) < EXAMPLES:
                rows.append((batch["row"][number].as_py() or "")[:LONGEST])
    shown = [
        {"table": table, "reason": reason, "row": row}
        for (table, reason), rows in found.items()
        for row in rows
    ]
    return sorted(shown, key=lambda one: (one["table"], one["reason"], one["row"]))
