"""Running fleet of the console: the status and the plan of a controller, which are only read."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadloom.agents.links.agent_service import controller_connection
from broadloom.agents.links.controller_client import ControllerConnection
from broadloom.agents.links.controller_protocol import PLAN_PATH, STATUS_PATH
from broadloom.agents.links.live_status import hop_problem
from broadloom.agents.links.plan_message import plan_of_message
from broadloom.agents.links.stamps import FleetKey
from broadloom.errors import BroadloomError, UnreachableError
from broadloom.model import Interest, LeftOutSubscription, NotCarried, Overlay, Weights
from broadloom.plans import Plan

if TYPE_CHECKING:
    import pyarrow as pa

    from broadloom.deployment import Fleet

POLL_SECONDS = 1.0
# Rows of each list that a page gets.
MOST_ROWS = 200
# Characters of each row.
LONGEST = 300


class RunningFleet:
    """What the controller of a fleet knows, as it was when the controller last answered.

    Args:
        fleet: the fleet; its section `live` says where the controller is and which key it has.
        path: the fleet file, for the commands that a page shows.

    Raises:
        InputError: the fleet has no key.

    Attributes:
        plan: the controller's plan; before its first answer, the brokers of the fleet file without links.
    """

    def __init__(self, fleet: Fleet, path: Path) -> None:
        self.path = path
        self._fleet = fleet
        self._connection: ControllerConnection = controller_connection(
            fleet, FleetKey(fleet.live.key()), "console"
        )
        self.plan = _without_links(fleet)
        self._status: Mapping[str, Any] | None = None
        self._plan_mark: tuple[Any, ...] | None = None
        self._away = "it has not answered yet"
        self._away_since = time.time()
        self._answered: float | None = None
        self._number = 0
        self._content: dict[str, Any] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """The address of the controller."""
        return str(self._fleet.live.address())

    def start(self, changed: Callable[[], None]) -> None:
        """Follow the controller in a thread, and call `changed` there after each change."""

        def follow() -> None:
            while not self._over.is_set():
                if self.refresh():
                    changed()
                self._over.wait(POLL_SECONDS)

        self._thread = threading.Thread(target=follow, name="broadloom-console-fleet", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the connection."""
        self._over.set()
        self._connection.close()
        if self._thread is not None:
            self._thread.join()

    def refresh(self) -> bool:
        """Ask the controller; returns whether something has changed."""
        try:
            status = self._read(STATUS_PATH)
            mark = (*status["epoch"], status.get("plan_number"))
            if mark != self._plan_mark:
                self.plan = self._known_plan(self._read(PLAN_PATH), status)
                self._plan_mark = mark
            self._status = status
            self._answered = time.time()
            self._away = ""
        except BroadloomError as error:
            if not self._away:
                self._away_since = time.time()
            self._away = str(error)
        content = self._state()
        if content == self._content:
            return False
        self._content = content
        self._number += 1
        return True

    def record(self, after: int = -1) -> dict[str, Any]:
        """The state as JSON; only its number if that is not higher than `after`."""
        if self._number == after:
            return {"number": self._number}
        return {"number": self._number} | self._content

    def apply_commands(self, source: str) -> list[str]:
        """Commands that give the controller a plan."""
        fleet = shlex.quote(str(self.path))
        return [
            "# Stop the controller; messages flow on without it. Then start it with the plan,",
            "# with the options that it has now:",
            f"broadloom controller {fleet} --state state --plan {shlex.quote(source)}",
        ]

    def _read(self, target: str) -> dict[str, Any]:
        code, answer = self._connection.request("GET", target)
        if code != 200 or not isinstance(answer, dict):
            raise UnreachableError(f"the controller at {self.address} answers with status {code}")
        return answer

    def _known_plan(self, message: Mapping[str, Any], status: Mapping[str, Any]) -> Plan:
        """The controller's plan with what the fleet file says of its brokers; the last one if it is equal."""
        plan = plan_of_message(message)
        names = plan.interest.node_ids
        joined = {name: one.get("address") for name, one in status["brokers"].items()}
        rows = [
            LeftOutSubscription(row["broker"], row["filter"], row["reason"]) for row in status["not_carried"]
        ]
        left_out = NotCarried([row for row in rows if row.node in set(names)])
        plan = replace(plan, nodes=_nodes_table(self._fleet, names, joined), not_carried=left_out)
        return self.plan if plan == self.plan else plan

    def _state(self) -> dict[str, Any]:
        """The state of the fleet for a page."""
        away = None
        if self._away:
            away = {"reason": self._away, "since": _clock_time(self._away_since)}
        known = {
            "controller": self.address,
            "file": str(self.path),
            "away": away,
            "adopt": f"broadloom status {shlex.quote(str(self.path))} --adopt",
            "known": self._status is not None,
        }
        if self._status is None:
            return known
        return known | _status_record(self._status)


def _status_record(status: Mapping[str, Any]) -> dict[str, Any]:
    """What a page shows of a controller's status."""
    brokers = status["brokers"]
    hops = [
        [
            start,
            end,
            not hop_problem(start, end, one),
            hop["in_flight_bytes"],
            hop_problem(start, end, one)[:LONGEST],
        ]
        for start, one in brokers.items()
        for end, hop in one["hops"].items()
    ]
    times = status.get("problem_times", {})
    state = "orders nothing" if status["refused"] else "settled" if status["settled"] else "changing"
    return {
        "state": state,
        "refused": status["refused"],
        "version": status["version"],
        "groups": status["groups"],
        "brokers": [
            [name, _agent_state(one), one["broker_up"], one["filters"]] for name, one in brokers.items()
        ],
        "hops": hops,
        "bytes": sum(hop[3] for hop in hops),
        "problems": _lines(
            f"{text} ({times[text]})" if text in times else text for text in status["problems"]
        ),
        "notCarried": _lines(status["not_carried"]),
        "notCarriedCount": status.get("not_carried_count", len(status["not_carried"])),
        "quarantined": _lines(reversed(status["quarantined"])),
        "underWay": _lines(
            _under_way(name, one) for name in ("opening", "waiting", "draining") for one in status[name]
        ),
        "changes": _lines(map(_change, reversed(status["changes"]))),
        "proposal": status["proposal"] and _line(status["proposal"]),
    }


def _agent_state(one: Mapping[str, Any]) -> str:
    if one["removed"]:
        return "removed"
    if one["agent"] is None:
        return "no agent yet"
    return "away" if one["away"] else "up"


def _under_way(name: str, one: Mapping[str, Any]) -> str:
    """A change that is not complete, as a sentence."""
    what = ", ".join(one["filters"]) if "filters" in one else f"version {one['version']}"
    waits = one["waits_for"]
    others = ", ".join(map(str, waits if isinstance(waits, list) else [waits])) if waits else ""
    return "; ".join(filter(None, [f"{name}: {what}", others and f"waits for {others}", one.get("reason")]))


def _change(entry: Mapping[str, Any]) -> str:
    """A change of trees as a sentence."""
    drained = entry["drained_s"]
    end = "being drained" if drained is None else f"drained in {drained:.3g} s"
    given_up = "; messages under way were given up" if entry.get("given_up") else ""
    groups = f"{entry['groups']:,} new groups of topics, {entry['replaced']:,} replaced"
    return f"version {entry['version']}: {groups}, opened in {entry['opened_s']:.3g} s, {end}{given_up}"


def _lines(values: Iterable[Any]) -> list[str]:
    texts = [_line(value) for value in values]
    more = len(texts) - MOST_ROWS
    return [*texts[:MOST_ROWS], f"and {more:,} more"] if more > 0 else texts


def _line(value: Any) -> str:
    """A value of a status as one line of text."""
    if not isinstance(value, Mapping):
        return str(value)[:LONGEST]
    parts = [f"{key.replace('_', ' ')} {_value(one)}" for key, one in value.items() if one not in (None, [])]
    return ", ".join(parts)[:LONGEST]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _clock_time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _without_links(fleet: Fleet) -> Plan:
    """The brokers of a fleet file without topics and links."""
    names = list(fleet.brokers)
    interest = Interest.from_lists([[] for _ in names], node_ids=names)
    nothing = Overlay.from_edges(len(names), [])
    return Plan(
        interest,
        Weights.uniform(len(names)),
        nothing,
        "controller",
        nodes=_nodes_table(fleet, names, {}),
    )


def _nodes_table(fleet: Fleet, names: Sequence[str], joined: Mapping[str, str | None]) -> pa.Table:
    """The table of nodes: what the fleet file says of them, and the addresses of those that joined."""
    import pyarrow as pa

    index = {name: row for row, name in enumerate(fleet.brokers)}
    known = fleet.nodes_table().take(pa.array([index.get(name) for name in names], pa.int64()))
    addresses = [
        address or joined.get(name)
        for name, address in zip(names, known.column("address").to_pylist(), strict=True)
    ]
    for name, column in (("node", list(names)), ("address", addresses)):
        known = known.set_column(known.column_names.index(name), name, pa.array(column, pa.string()))
    return known
