"""Status of a running fleet: brokers, agents, hops, what is not carried, and the last changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broadloom.agents.links.route_orders import AgentReport
from broadloom.checks import plain_name

AWAY_SECONDS = 10.0  # after which an agent without a report counts as away
SHOWN_LINES = 10  # of each list in the text
NO_AGENT = "no agent yet"


@dataclass(frozen=True)
class SeenAgent:
    """Last report of an agent, and when it came.

    Attributes:
        report: the report.
        seen: its time, by the controller's clock.
    """

    report: AgentReport
    seen: float


def broker_status(seen: SeenAgent | None, now: float) -> dict[str, Any]:
    """The status of one broker, as JSON values."""
    if seen is None:
        return {
            "agent_up": False,
            "broker_up": None,
            "report_age_seconds": None,
            "epoch": None,
            "orders": None,
            "agent_version": None,
            "subscriptions": None,
            "hops": {},
            "counts": {},
            "round_trips": {},
            "problems": [],
        }
    report = seen.report
    age = max(0.0, now - seen.seen)
    return {
        "agent_up": age <= AWAY_SECONDS,
        "broker_up": report.broker_up,
        "report_age_seconds": round(age, 3),
        "epoch": list(report.epoch),
        "orders": report.orders,
        "agent_version": report.version,
        "subscriptions": None if report.filters is None else len(report.filters),
        "hops": {
            name: {key: getattr(hop, key) for key in hop.__dataclass_fields__}
            for name, hop in sorted(report.hops.items())
        },
        "counts": dict(report.counts),
        "round_trips": dict(report.round_trips),
        "problems": list(report.problems),
    }


def is_healthy(status: Mapping[str, Any]) -> bool:
    """Whether all agents, brokers and hops of a status are up, and nothing waits for an operator."""
    brokers = status["brokers"].values()
    hops = [hop for one in brokers for hop in one["hops"].values()]
    return (
        all(one["agent_up"] and one["broker_up"] for one in brokers)
        and all(hop["near_up"] and hop["far_up"] for hop in hops)
        and not status["problems"]
    )


def status_text(status: Mapping[str, Any]) -> str:
    """A status as text for a terminal."""
    brokers: Mapping[str, Mapping[str, Any]] = status["brokers"]
    hops = [hop for one in brokers.values() for hop in one["hops"].values()]
    up = sum(bool(hop["near_up"] and hop["far_up"]) for hop in hops)
    waiting = sum(hop["in_flight_bytes"] for hop in hops)
    agents = sum(bool(one["agent_up"]) for one in brokers.values())
    number, controller = status["epoch"]
    lines = [
        f"controller {plain_name(controller)}, epoch {number}, version {status['version']}: "
        f"{'settled' if status['settled'] else 'changing'}",
        f"{agents:,} of {len(brokers):,} agents up; {up:,} of {len(hops):,} hops up; "
        f"{waiting:,} bytes in flight",
        "",
        *_table(("broker", "agent", "broker up", "version", "subscriptions", "hops"), _rows(brokers)),
    ]
    down = list(_down_hops(brokers))
    lines += _section("hops that are down", down)
    lines += _section("problems", [*status["problems"], *_agent_problems(brokers)], newest=True)
    lines += _section("away", status["absent"])
    lines += _section("not carried", status["not_carried"])
    lines += _section("events that were refused", status["quarantined"], newest=True)
    lines += _section("changes under way", status["changing"])
    lines += _section("last changes", status["changes"], newest=True)
    if status["proposal"] is not None:
        lines += ["", f"proposal: {plain_name(str(status['proposal']))}"]
    return "\n".join(lines)


def _rows(brokers: Mapping[str, Mapping[str, Any]]) -> Iterable[Sequence[str]]:
    for name, one in brokers.items():
        age = one["report_age_seconds"]
        agent = NO_AGENT if age is None else "up" if one["agent_up"] else f"away for {age:.0f} s"
        hops = one["hops"].values()
        up = sum(bool(hop["near_up"] and hop["far_up"]) for hop in hops)
        yield (
            plain_name(name),
            agent,
            {True: "yes", False: "no", None: "?"}[one["broker_up"]],
            _or_unknown(one["agent_version"]),
            _or_unknown(one["subscriptions"]),
            f"{up} of {len(hops)}",
        )


def _or_unknown(value: Any) -> str:
    return "?" if value is None else f"{value:,}"


def _down_hops(brokers: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    for start, one in brokers.items():
        for end, hop in one["hops"].items():
            if not (hop["near_up"] and hop["far_up"]):
                side = start if not hop["near_up"] else end
                yield f"{start} -> {end}: not connected at {side} {hop['error']}".rstrip()


def _agent_problems(brokers: Mapping[str, Mapping[str, Any]]) -> Iterable[str]:
    return (f"{name}: {text}" for name, one in brokers.items() for text in one["problems"])


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
