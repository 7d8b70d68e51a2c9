"""Orders of the controller to site agents, and their reports: plain values that travel as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from broadloom.errors import InputError

if TYPE_CHECKING:
    from broadloom.deployment import Hop

T = TypeVar("T")
REMEMBERED_TREES = 50_000  # whose JSON texts are kept


class Epoch(NamedTuple):
    """Reign of one controller process.

    Attributes:
        number: rises with each start of a controller.
        controller: a random id of the process, which tells two controllers of the same number apart.
    """

    number: int = 0
    controller: str = ""

    def yields_to(self, other: Epoch) -> bool:
        """Whether an agent that has seen this epoch obeys a controller of the other one."""
        return other.number > self.number or other == self


NO_EPOCH = Epoch()


@dataclass(frozen=True)
class Route:
    """Tree of a topic group for a range of versions.

    Attributes:
        number: its unique number.
        filters: the topic filters of the group.
        hops: the directed hops of the tree; a broker that only publishes has one hop and receives nothing.
        since: the first version that uses it; None: its hops are being opened.
        until: the last version that uses it; None: it is in use.
        fresh: the brokers that no earlier route of these filters had; they need retained messages.
    """

    number: int
    filters: tuple[str, ...]
    hops: frozenset[Hop]
    since: int | None = None
    until: int | None = None
    fresh: frozenset[str] = frozenset()

    @cached_property
    def key(self) -> tuple[str, ...]:
        """Its filters in their one order."""
        return tuple(sorted(set(self.filters)))

    def brokers(self) -> set[str]:
        """All brokers of the tree."""
        return {broker for hop in self.hops for broker in hop}

    def has_same_tree(self, other: Route) -> bool:
        """Whether another route has the same tree; its versions can differ."""
        mine = (self.number, self.filters, self.hops, self.fresh)
        return mine == (other.number, other.filters, other.hops, other.fresh)

    def is_valid(self, version: int) -> bool:
        """Whether messages of a version travel on this tree."""
        return (
            self.since is not None and self.since <= version and (self.until is None or version <= self.until)
        )

    def to_json(self) -> dict[str, Any]:
        """The route as JSON values."""
        return {
            "number": self.number,
            "filters": list(self.filters),
            "hops": sorted(list(hop) for hop in self.hops),
            "since": self.since,
            "until": self.until,
            "fresh": sorted(self.fresh),
        }

    @cached_property
    def text(self) -> str:
        """The route as JSON text; many agents get the same."""
        values = [json.dumps(one) for one in (self.number, self.filters, self.since, self.until)]
        number, filters, since, until = values
        return (
            f'{{"number":{number},"filters":{filters},"hops":{_hops_text(self.hops)},"since":{since},'
            f'"until":{until},"fresh":{json.dumps(sorted(self.fresh))}}}'
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Route:
        """The route of JSON values.

        Raises:
            InputError: they are not those of a route.
        """
        return _read(
            "a route",
            lambda: cls(
                int(value["number"]),
                tuple(map(str, value["filters"])),
                frozenset((str(start), str(end)) for start, end in value["hops"]),
                _optional(value["since"]),
                _optional(value["until"]),
                frozenset(map(str, value.get("fresh", ()))),
            ),
        )


@dataclass(frozen=True)
class AgentOrders:
    """Orders for the site agent of one broker: a state to reach, not a list of commands.

    Attributes:
        epoch: the controller that orders it.
        number: rises with each order of an epoch.
        version: the version that the broker should have.
        rounds: the closing round of each change that is draining, by the version of the change.
        routes: all routes of the broker, by their numbers.
        addresses: the addresses of brokers that the fleet file does not have.
    """

    epoch: Epoch = NO_EPOCH
    number: int = 0
    version: int = 0
    rounds: Mapping[int, int] = field(default_factory=dict)
    routes: Mapping[int, Route] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The orders as JSON values."""
        return self._head() | {"routes": [route.to_json() for route in self.routes.values()]}

    def to_text(self, more: Mapping[str, Any] | None = None) -> str:
        """The orders as JSON text, with more values; the texts of routes are kept."""
        head = json.dumps(self._head() | dict(more or {}), separators=(",", ":"))
        return f'{head[:-1]},"routes":[{",".join(route.text for route in self.routes.values())}]}}'

    def difference_text(self, before: AgentOrders, more: Mapping[str, Any] | None = None) -> str:
        """What differs from earlier orders, as JSON text.

        It has the changed routes, the new versions of routes that have the same tree, and the numbers of
        dropped ones.
        """
        changed = {}
        versions = []
        for number, route in self.routes.items():
            old = before.routes.get(number)
            if old is route or old == route:
                continue
            if old is not None and old.has_same_tree(route):
                versions.append([number, route.since, route.until])
            else:
                changed[number] = route
        dropped = [number for number in before.routes if number not in self.routes]
        head = {"dropped": dropped, "versions": versions, **(more or {})}
        return replace(self, routes=changed).to_text(head)

    def with_difference(self, value: Mapping[str, Any]) -> AgentOrders:
        """The orders that differ from these by JSON values as of `difference_text`.

        Raises:
            InputError: the values are malformed.
        """
        changed = AgentOrders.from_json(value)

        def routes() -> dict[int, Route]:
            found = dict(self.routes)
            for number in value["dropped"]:
                found.pop(int(number), None)
            for number, since, until in value["versions"]:
                found[int(number)] = replace(
                    found[int(number)], since=_optional(since), until=_optional(until)
                )
            return {**found, **changed.routes}

        return replace(changed, routes=_read("orders", routes))

    def sharing(self, before: AgentOrders) -> AgentOrders:
        """The same orders; routes that are equal to earlier ones are the same objects."""
        known = before.routes
        routes = dict(self.routes)
        for number, route in self.routes.items():
            old = known.get(number)
            if old is not route and old == route:
                routes[number] = old
        return replace(self, routes=routes)

    def _head(self) -> dict[str, Any]:
        return {
            "epoch": list(self.epoch),
            "number": self.number,
            "version": self.version,
            "rounds": {str(change): number for change, number in self.rounds.items()},
            "addresses": dict(self.addresses),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AgentOrders:
        """The orders of JSON values.

        Raises:
            InputError: they are not those of orders.
        """
        return _read(
            "orders",
            lambda: cls(
                _epoch(value["epoch"]),
                int(value["number"]),
                int(value["version"]),
                {int(change): int(number) for change, number in value["rounds"].items()},
                {route.number: route for route in map(Route.from_json, value["routes"])},
                {str(broker): str(address) for broker, address in value["addresses"].items()},
            ),
        )


@dataclass(frozen=True)
class HopReport:
    """State of one outgoing hop.

    Attributes:
        near_up: whether the session at the agent's own broker is connected and subscribed.
        far_up: whether the session at the neighbour is connected.
        version: the version that the hop puts on messages of its own broker.
        in_flight: unfinished messages.
        in_flight_bytes: their size.
        counts: messages, bytes, dropped, ring, other_version, dead_letters, sessions_lost, ... so far.
        error: why it is down; empty: it is up, or not known.
        round_trip_ms: the latest round-trip time to the neighbour; None: not known.
        refused: topic filters that the agent's own broker refuses: their messages do not leave it.
    """

    near_up: bool = False
    far_up: bool = False
    version: int = 0
    in_flight: int = 0
    in_flight_bytes: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    error: str = ""
    round_trip_ms: float | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class AgentReport:
    """State of a site agent.

    Attributes:
        broker: its broker.
        instance: a random id, new after each start and after each loss of a session at its own broker: then
            closing has to begin again.
        epoch: the newest epoch that it has obeyed.
        orders: the number of the orders that it has stored, of that epoch.
        opened: the highest number of orders whose hops are all open and subscribed at its own broker.
        published: the version of the last marker that its broker has accepted.
        version: the lowest version of its hops.
        closed: the round in which each change is closed on all its hops, by the version of the change.
        broker_up: whether its own broker is connected.
        hops: its outgoing hops by neighbour.
        problems: what an operator should know, one sentence each; the newest last.
        filters: the topic filters that clients want at the broker; None: not known (yet).
        filters_number: rises when `filters` changes, so that a report can leave them out.
        round_trips: round-trip times to other brokers in milliseconds.
        counts: counts of the whole agent.
        routes: its routes, if a controller asks for them to take over; None otherwise.
        problem_times: when each of the problems began, in seconds since 1970.
        ending: the neighbours of hops that no route uses, whose sessions are not all deleted yet.
    """

    broker: str
    instance: str
    epoch: Epoch = NO_EPOCH
    orders: int = 0
    opened: int = 0
    published: int = 0
    version: int = 0
    closed: Mapping[int, int] = field(default_factory=dict)
    broker_up: bool = False
    hops: Mapping[str, HopReport] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    filters: tuple[str, ...] | None = None
    filters_number: int = 0
    round_trips: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    routes: tuple[Route, ...] | None = None
    problem_times: tuple[float, ...] = ()
    ending: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        value = {name: getattr(self, name) for name in self.__dataclass_fields__}
        value["epoch"] = list(self.epoch)
        value["closed"] = {str(change): number for change, number in self.closed.items()}
        value["hops"] = {
            name: {key: getattr(hop, key) for key in hop.__dataclass_fields__}
            for name, hop in self.hops.items()
        }
        value["problems"] = list(self.problems)
        value["problem_times"] = list(self.problem_times)
        value["ending"] = list(self.ending)
        value["filters"] = None if self.filters is None else list(self.filters)
        value["routes"] = None if self.routes is None else [route.to_json() for route in self.routes]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AgentReport:
        """The report of JSON values.

        Raises:
            InputError: they are not those of a report.
        """
        return _read("a report", lambda: cls._of(value))

    @classmethod
    def _of(cls, value: Mapping[str, Any]) -> AgentReport:
        filters = value["filters"]
        routes = value["routes"]
        return cls(
            str(value["broker"]),
            str(value["instance"]),
            _epoch(value["epoch"]),
            int(value["orders"]),
            int(value["opened"]),
            int(value["published"]),
            int(value["version"]),
            {int(change): int(number) for change, number in value["closed"].items()},
            bool(value["broker_up"]),
            {str(name): _hop_report(hop) for name, hop in value["hops"].items()},
            tuple(map(str, value["problems"])),
            None if filters is None else tuple(map(str, filters)),
            int(value["filters_number"]),
            {str(name): float(number) for name, number in value["round_trips"].items()},
            {str(name): int(number) for name, number in value["counts"].items()},
            None if routes is None else tuple(map(Route.from_json, routes)),
            tuple(map(float, value["problem_times"])),
            tuple(map(str, value["ending"])),
        )


@lru_cache(REMEMBERED_TREES)
def _hops_text(hops: frozenset[Hop]) -> str:
    return json.dumps(sorted(hops), separators=(",", ":"))


def _epoch(value: Any) -> Epoch:
    number, controller = value
    return Epoch(int(number), str(controller))


def _hop_report(value: Mapping[str, Any]) -> HopReport:
    trip = value["round_trip_ms"]
    return HopReport(
        bool(value["near_up"]),
        bool(value["far_up"]),
        int(value["version"]),
        int(value["in_flight"]),
        int(value["in_flight_bytes"]),
        {str(name): int(number) for name, number in value["counts"].items()},
        str(value["error"]),
        None if trip is None else float(trip),
        tuple(map(str, value["refused"])),
    )


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)


def _read(what: str, make: Callable[[], T]) -> T:
    """Make a value, and turn any error of the shape of its JSON into one sentence."""
    try:
        return make()
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{what} is malformed: {type(error).__name__} {error}"[:200]) from error
