"""All that a page shows, as one record: plans of any stage, what they stand on, and the rows of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from broadloom._version import VERSION
from broadloom.errors import InputError
from broadloom.plans import AssignmentResult, Plan, is_assignment
from broadloom.report.content import content_record, market_record
from broadloom.report.overlay import interest_record, overlay_record
from broadloom.report.places import places, site_names, with_places_of
from broadloom.report.rows import rows_record

FORMAT = 1
TITLE = "Broadloom: the plan"


def record_of(plans: Mapping[str, Plan | AssignmentResult], title: str = TITLE) -> dict[str, Any]:
    """The record of plans that are at hand, under the names that the page is to call them.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([[0], [0]]), algorithm="gm")
        >>> record_of({"today": plan})["plans"][0]["summary"]
        'gm: 2 brokers, 1 links, every one of 1 topics connected'
    """
    interests: list[Plan] = []
    shown = [_plan_record(plan, name, interests) for name, plan in plans.items()]
    return _whole(title, interests, shown, None)


def record_of_folders(folders: Sequence[Path], title: str = TITLE) -> dict[str, Any]:
    """The record of plans in folders; of a whole run, also what became of its rows.

    Args:
        folders: of plans, or of runs, whose plan is then meant.
        title: the heading of the page.

    Raises:
        InputError: there is no folder, or one that is not a plan.
    """
    if not folders:
        raise InputError("there is no plan to report on; name at least one folder")
    interests: list[Plan] = []
    shown, rows = [], None
    found = [place for given in folders for place in _plans_in(given)]
    for name, folder in _named(found):
        rows = rows or rows_record(folder.parent / "ingest")
        if _is_market(folder):
            shown.append(market_record(folder, name))
        else:
            plan = AssignmentResult.load(folder) if is_assignment(folder) else Plan.load(folder)
            shown.append(_plan_record(plan, name, interests))
    return _whole(title, interests, shown, rows)


def _whole(
    title: str, interests: list[Plan], plans: list[dict[str, Any]], rows: dict[str, Any] | None
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "broadloom": VERSION,
        "title": title,
        "interests": [interest_record(plan) for plan in interests],
        "plans": plans,
        "rows": rows,
    }


def _plan_record(plan: Plan | AssignmentResult, name: str, interests: list[Plan]) -> dict[str, Any]:
    """A plan's record; plans of the same interest and places share the record of them."""
    if isinstance(plan, AssignmentResult):
        return content_record(plan, name)
    plan = with_places_of(plan, interests)
    for i, other in enumerate(interests):
        if other.interest == plan.interest and _setting(other) == _setting(plan):
            return overlay_record(plan, name, i)
    interests.append(plan)
    return overlay_record(plan, name, len(interests) - 1)


def _setting(plan: Plan) -> tuple[Any, ...]:
    return places(plan), site_names(plan)


def _plans_in(folder: Path) -> list[Path]:
    """The folder itself, or, if it is that of a run, the plan in it and the assignment if there is one."""
    if (folder / "plan.json").exists() or not (folder / "plan" / "plan.json").exists():
        return [folder]
    return [folder / "plan", *([folder / "assign"] if is_assignment(folder / "assign") else [])]


def _named(folders: Sequence[Path]) -> list[tuple[str, Path]]:
    """Names for the plans: the folders' own, with as much of the path as tells them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            return list(zip(names, folders, strict=True))
    raise InputError("the same plan is given twice; name each folder once")


def _is_market(folder: Path) -> bool:
    """Whether a folder holds the result of a market."""
    try:
        record = json.loads((folder / "plan.json").read_text())
    except (OSError, ValueError):
        return False  # whoever reads it next says what is wrong
    return isinstance(record, dict) and record.get("kind") == "market"
