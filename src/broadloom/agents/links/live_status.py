"""Status of a running fleet: brokers, agents, hops, what is not carried, and the last changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from broadloom.checks import plain_name

SHOWN_LINES = 10  # of each list in the text


_UNSEEN: dict[str, Any] = {
    "removed": False,
    "away": True,
    "away_s": None,
    "agent": None,
    "broker_up": None,
    "version": None,
    "filters": None,
    "hops": {},
    "counts": {},
    "problems": [],
    "problem_times": [],
}
_PLANNER: dict[str, Any] = {"not_carried": [], "quarantined": [], "proposal": None}


def fleet_status(
    controller: Mapping[str, Any],
    brokers: Iterable[str],
    planner: Mapping[str, Any],
    problems: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The status of a fleet, as JSON values.

    Args:
        controller: the status of the routes, as `FleetController.status` gives it.
        brokers: the brokers of the fleet file.
        planner: what is not carried, refused events, the proposal.
        problems: further problems, and when each began, in seconds since 1970.
    """
    more = problems or {}
    known = controller["brokers"]
    names = [*brokers, *(name for name in known if name not in set(brokers))]
    return {
        **controller,
        **_PLANNER,
        **planner,
        "brokers": {name: _UNSEEN | known.get(name, {}) for name in names},
        "problems": [*controller["problems"], *more],
        "problem_times": {
            **controller.get("problem_times", {}),
            **{text: written_time(at) for text, at in more.items()},
        },
    }


def written_time(at: float) -> str:
    """A time in seconds since 1970, as text.

    Examples:
        >>> written_time(1e9)
        '2001-09-09 01:46:40Z'
    """
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(" ", "seconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return "?"


def is_healthy(status: Mapping[str, Any]) -> bool:
    """Whether all agents, brokers and hops of a status are up, and the controller is obeyed."""
    brokers = status["brokers"].values()
    hops = [hop for one in brokers for hop in one["hops"].values()]
    return (
        status["refused"] is None
        and all(one["removed"] or (one["broker_up"] and not one["away"]) for one in brokers)
        and all(hop["near_up"] and hop["far_up"] for hop in hops)
    )


def status_text(status: Mapping[str, Any]) -> str:
    """A status as text for a terminal."""
    brokers: Mapping[str, Mapping[str, Any]] = status["brokers"]
    hops = [hop for one in brokers.values() for hop in one["hops"].values()]
    up = sum(_hops_up(name, one) for name, one in brokers.items())
    waiting = sum(hop["in_flight_bytes"] for hop in hops)
    kept = [one for one in brokers.values() if not one["removed"]]
    agents = sum(not one["away"] for one in kept)
    number, controller = status["epoch"]
    state = "orders nothing" if status["refused"] else "settled" if status["settled"] else "changing"
    lines = [
        f"controller {plain_name(controller)}, epoch {number}, version {status['version']}: {state}",
        f"{agents:,} of {len(kept):,} agents up; {up:,} of {len(hops):,} hops up; "
        f"{waiting:,} bytes in flight; {status['groups']:,} groups of topics",
        "",
        *_table(("broker", "agent", "broker up", "version", "subscriptions", "hops up"), _rows(brokers)),
    ]
    lines += _section("hops that are down", _down_hops(brokers))
    times = status["problem_times"]
    lines += _section("problems", (f"{times.get(text, '')} {text}".strip() for text in status["problems"]))
    lines += _section("not carried", status["not_carried"])
    lines += _section("events that were refused", status["quarantined"], newest=True)
    lines += _section("opening", map(_pending_text, status["opening"]))
    lines += _section("waiting", map(_pending_text, status["waiting"]))
    lines += _section("draining", map(_draining_text, status["draining"]))
    lines += _section("last changes", map(_change_text, status["changes"]), newest=True)
    if status["proposal"] is not None:
        lines += ["", f"proposal: {_proposal_text(status['proposal'])}"]
    return "\n".join(lines)


def _pending_text(row: Mapping[str, Any]) -> str:
    """A line about groups that are being opened, or wait to be."""
    filters = ", ".join(row["filters"][:3])
    more = f" and more, {row['groups']:,} groups in all" if row["groups"] > 1 else ""
    who = ", ".join(row["waits_for"])
    since = f" for {row['seconds']:g} s" if "seconds" in row else ""
    why = f" ({row['reason']})" if "reason" in row else ""
    return f"{filters}{more}{since}: " + (f"waits for {who}{why}" if who else f"ready{why}")


def _draining_text(row: Mapping[str, Any]) -> str:
    """A line about old trees that are still needed."""
    return (
        f"{row['routes']:,} trees before version {row['version']}, for {row['seconds']:g} s: {row['reason']}"
    )


def _change_text(row: Mapping[str, Any]) -> str:
    """A line about a change of trees."""
    drained = row["drained_s"]
    if row["replaced"] == 0:
        end = "no old tree"
    elif row.get("given_up"):
        end = f"the last of {row['replaced']:,} old trees given up"
    elif drained is None:
        end = f"{row['replaced']:,} old trees still in use for earlier messages"
    else:
        end = f"{row['replaced']:,} old trees finished {drained:g} s later"
    return f"version {row['version']}: {row['groups']:,} new trees, opened in {row['opened_s']:g} s; {end}"


def _proposal_text(row: Mapping[str, Any]) -> str:
    return (
        f"{row['changed_links']:,} links change; the weight of all links is {row['weight']:g} instead of "
        f"{row['present_weight']:g} ({100 * row['saving']:.1f} % less); "
        "move to it with `broadloom status --adopt`"
    )


def _rows(brokers: Mapping[str, Mapping[str, Any]]) -> Iterable[Sequence[str]]:
    for name, one in brokers.items():
        yield (
            plain_name(name),
            _agent(one),
            {True: "yes", False: "no", None: "?"}[one["broker_up"]],
            _or_unknown(one["version"]),
            _or_unknown(one["filters"]),
            f"{_hops_up(name, one)} of {len(one['hops'])}",
        )


def _agent(one: Mapping[str, Any]) -> str:
    if one["removed"]:
        return "removed"
    if one["agent"] is None:
        return "no agent yet"
    return f"away for {one['away_s']:.0f} s" if one["away"] else "up"


def _or_unknown(value: Any) -> str:
    return "?" if value is None else f"{value:,}"


def _hops_up(name: str, one: Mapping[str, Any]) -> int:
    return sum(not hop_problem(name, end, one) for end in one["hops"])


def _down_hops(brokers: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    for start, one in brokers.items():
        for end in one["hops"]:
            if problem := hop_problem(start, end, one):
                yield f"{start} -> {end}: {problem}"


def hop_problem(start: str, end: str, broker: Mapping[str, Any]) -> str:
    """Why a hop is not up, or not known to be; empty if it is up.

    Args:
        start: the broker of the hop's agent.
        end: the neighbour.
        broker: what the status of the fleet has of `start`.
    """
    hop = broker["hops"][end]
    if not (hop["near_up"] and hop["far_up"]):
        side = start if not hop["near_up"] else end
        return f"not connected at {side} {hop['error']}".rstrip()
    return f"{start} is away" if broker["away"] and not broker["removed"] else ""


def _section(title: str, values: Iterable[Any], newest: bool = False) -> list[str]:
    """A titled list, cut to a few lines; nothing if it is empty."""
    texts = [_line(value) for value in values]
    if not texts:
        return []
    shown = texts[-SHOWN_LINES:] if newest else texts[:SHOWN_LINES]
    more = len(texts) - len(shown)
    rest = [f"  and {more:,} more"] if more else []
    return ["", f"{title}:", *(f"  {text}" for text in shown), *rest]


def _line(value: Any) -> str:
    """A value of a list as one line without control characters."""
    text = (
        ", ".join(f"{key} {one}" for key, one in value.items()) if isinstance(value, Mapping) else str(value)
    )
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text[:300])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
