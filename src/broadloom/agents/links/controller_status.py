"""Status of a controller of routes, for `broadloom status`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from broadloom.agents.links.live_status import written_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broadloom.agents.links.fleet_controller import FleetController

SHOWN_FILTERS = 20  # of each row


def controller_status(controller: FleetController) -> dict[str, Any]:
    """Everything that an operator should see, as JSON values."""
    state = controller._state
    controller._lacking.clear()
    brokers = sorted(state.brokers() | controller._agents.keys() | state.removed)
    hops = [hop for view in controller._agents.values() for hop in view.report.hops.values()]
    up = sum(
        hop.near_up and hop.far_up
        for name, view in controller._agents.items()
        if name in state.removed or not controller._views.is_lost(name)
        for hop in view.report.hops.values()
    )
    return {
        "epoch": list(controller.epoch),
        "refused": controller.refused,
        "version": state.version,
        "settled": controller.settled(),
        "groups": sum(route.since is not None and route.until is None for route in state.routes.values()),
        "hops_up": up,
        "hops_down": len(hops) - up,
        "bytes_waiting": sum(hop.in_flight_bytes for hop in hops),
        "brokers": {name: _broker_status(controller, name) for name in brokers},
        "opening": _opening_status(controller),
        "waiting": _waiting_status(controller),
        "draining": [_draining_status(controller, change) for change in sorted(state.draining)],
        "left_out": {
            name: sorted(texts)[:SHOWN_FILTERS] for name, texts in sorted(controller._left_out.items())
        },
        "problems": list(problems := _all_problems(controller)),
        "problem_times": {text: written_time(at) for text, at in problems.items() if at is not None},
        "changes": list(controller._history),
    }


def _broker_status(controller: FleetController, name: str) -> dict[str, Any]:
    view = controller._agents.get(name)
    is_lost = controller._views.is_lost(name)
    ordered = {
        "removed": name in controller._state.removed,
        "away": is_lost,
        "away_s": round(controller._now() - controller._views.away_since(name), 1) if is_lost else 0.0,
        "ordered": controller._numbers.get(name, 0),
        "ordered_version": controller._state.versions.get(name, 0),
        "address": controller._state.addresses.get(name),
    }
    if view is None:
        return ordered | {"agent": None}
    report = view.report.to_json()
    leave_out = ("broker", "filters", "routes", "instance")
    known = {key: value for key, value in report.items() if key not in leave_out}
    filters = view.report.filters
    return (
        ordered
        | known
        | {"agent": view.report.instance, "filters": None if filters is None else len(filters)}
    )


def _opening_status(controller: FleetController) -> list[dict[str, Any]]:
    """The groups that are being opened, together if they wait for the same brokers."""
    state = controller._state
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, unit in state.opening.items():
        waits = tuple(sorted(controller._unopened(key)))
        seconds = round(controller._now() - controller._opened_at[key][1], 1)
        row = rows.setdefault(waits, {"filters": [], "groups": 0, "seconds": 0.0, "waits_for": list(waits)})
        row["groups"] += len(unit.new)
        row["seconds"] = max(row["seconds"], seconds)
        _add_filters(row["filters"], (state.routes[number].filters for number in unit.new))
    return list(rows.values())


def _waiting_status(controller: FleetController) -> list[dict[str, Any]]:
    """The groups that wait to be opened, together if they wait for the same brokers."""
    routes = controller._state.routes
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for unit in controller._changes.units():
        away = [name for name in unit.senders if not controller._views.is_available(name)]
        why = "an earlier change of these filters is being opened" if unit.is_behind else "away or not ready"
        key = (*sorted(away), why)
        row = rows.setdefault(key, {"filters": [], "groups": 0, "waits_for": sorted(away), "reason": why})
        row["groups"] += len(unit.new) or len(unit.old)
        _add_filters(row["filters"], [*unit.new, *(routes[number].filters for number in unit.old)])
    return list(rows.values())


def _add_filters(listed: list[str], groups: Iterable[Iterable[str]]) -> None:
    """Add filters to a list, up to a number that a reader can take in."""
    for filters in groups:
        listed += [text for text in filters if text not in listed][: SHOWN_FILTERS - len(listed)]


def _draining_status(controller: FleetController, change: int) -> dict[str, Any]:
    return {
        "version": change,
        "round": controller._state.rounds[change],
        "routes": len(controller._state.draining[change]),
        "seconds": round(controller._now() - controller._switched_at.get(change, controller._start), 1),
        "waits_for": controller._unclosed(change),
        "reason": controller._why_draining(change),
    }


def _all_problems(controller: FleetController) -> dict[str, float | None]:
    """All problems, and when each began, in seconds since 1970; None: not known."""
    shift = time.time() - controller._now()
    times = controller._problem_times
    found: dict[str, float | None] = dict.fromkeys(controller._refusals.values())
    found |= {text: times[name][0] + shift for name, text in controller._problems.items()}
    if not controller._has_majority():
        text = "most agents have not followed this controller yet; until then nothing changes"
        found[text] = controller._start + shift
    for name in sorted(controller._state.brokers() | controller._agents.keys()):
        view = controller._agents.get(name)
        if controller._views.is_lost(name) and name not in controller._state.removed:
            down = view is not None and view.down_since is not None
            text = f"broker {name} is down" if down else f"the agent of {name} does not report"
            found[text] = controller._views.away_since(name) + shift
        if view is not None:
            began = (*view.report.problem_times, *(None for _ in view.report.problems))
            found |= {f"{name}: {text}": at for text, at in zip(view.report.problems, began, strict=False)}
    for name, texts in sorted(controller._left_out.items()):
        text = f"{len(texts)} filters are carried without {name}, which is away"
        found[text] = controller._views.away_since(name) + shift
    return found
