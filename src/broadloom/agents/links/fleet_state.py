"""Journaled state of a fleet's routes: a function of the records in the controller's journal.

Each step of the controller is one record. It is written first, then applied here; after a restart, the same
records give the same state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from broadloom.agents.links.route_orders import NO_EPOCH, Epoch, Route
from broadloom.errors import InputError

Filters = tuple[str, ...]
MOST_REIGNS = 1000  # epochs that a snapshot keeps


class OpeningUnit(NamedTuple):
    """Groups that change together, because old and new ones have topics in common.

    Attributes:
        old: the numbers of the routes that they have.
        new: the numbers of the routes that they get.
    """

    old: tuple[int, ...]
    new: tuple[int, ...]


class FleetState:
    """Routes of a fleet and the changes among them.

    Attributes:
        reigns: the epochs of this journal, the newest last.
        version: the newest version.
        versions: the version that each broker should have.
        routes: all routes by number: opening, in use, or draining.
        opening: units whose new routes are being opened, by number.
        rounds: the closing round of each change that is draining.
        draining: the numbers of the old routes of each such change.
        instances: the agent process of each broker that was seen last.
        addresses: the addresses of brokers that the fleet file does not have.
        removed: the brokers that an operator has removed.
        current: the numbers of the routes in use or being opened, and not being replaced, by filters.
        ending: the numbers of the routes that units being opened replace.
        touched: the filters whose routes have changed; whoever follows them empties it.
        next_number: the next number of a route or unit.
        offset: what is added to positions of the journal in the numbers of orders.
    """

    def __init__(self) -> None:
        self.reigns: list[Epoch] = []
        self.version = 0
        self.versions: dict[str, int] = {}
        self.routes: dict[int, Route] = {}
        self.opening: dict[int, OpeningUnit] = {}
        self.rounds: dict[int, int] = {}
        self.draining: dict[int, set[int]] = {}
        self.instances: dict[str, str] = {}
        self.addresses: dict[str, str] = {}
        self.removed: set[str] = set()
        self.current: dict[Filters, int] = {}
        self.ending: set[int] = set()
        self.touched: set[Filters] = set()
        self.next_number = 1
        self.offset = 0
        self._by_broker = defaultdict[str, dict[int, Route]](dict)
        self._closers: dict[int, set[str]] = {}  # by change, as far as known

    @property
    def epoch(self) -> Epoch:
        """The newest epoch."""
        return self.reigns[-1] if self.reigns else NO_EPOCH

    def routes_of(self, broker: str) -> Mapping[int, Route]:
        """The routes whose trees have a broker, by number."""
        return self._by_broker.get(broker, {})

    def rounds_of(self, broker: str) -> dict[int, int]:
        """The closing rounds of the changes that drain old routes of a broker."""
        own = self._by_broker.get(broker, {}).keys()
        changes = sorted(change for change, numbers in self.draining.items() if not own.isdisjoint(numbers))
        return {change: self.rounds[change] for change in changes}

    def brokers(self) -> set[str]:
        """The brokers of all routes."""
        return {broker for broker, numbers in self._by_broker.items() if numbers}

    def closers(self, change: int) -> set[str]:
        """The brokers with outgoing hops in the old routes of a change."""
        found = self._closers.get(change)
        if found is None:
            numbers = self.draining.get(change, ())
            found = self._closers[change] = {hop[0] for one in numbers for hop in self.routes[one].hops}
        return found

    # Records.

    def apply(self, kind: str, body: Mapping[str, Any]) -> set[str]:
        """Apply a record and return the brokers whose orders it changes.

        Raises:
            InputError: the kind of the record is unknown.
        """
        apply = _RECORDS.get(kind)
        if apply is None:
            raise InputError(
                f"the journal has a record of unknown kind {kind!r:.40}; a newer broadloom wrote it"
            )
        return apply(self, body)

    def _epoch(self, body: Mapping[str, Any]) -> set[str]:
        self.reigns.append(Epoch(body["number"], body["controller"]))
        self.next_number = body["numbers"]
        return self.brokers()

    def _open(self, body: Mapping[str, Any]) -> set[str]:
        touched = set[str]()
        for key, unit in body["units"].items():
            new = [Route.from_json(route) for route in unit["new"]]
            self._set_ending(unit["old"], True)
            for route in new:
                self._put(route)
                touched |= route.brokers()
            self.opening[int(key)] = OpeningUnit(tuple(unit["old"]), tuple(route.number for route in new))
            self.next_number = max(self.next_number, int(key) + 1, *(route.number + 1 for route in new))
        return touched

    def _cancel(self, body: Mapping[str, Any]) -> set[str]:
        units = [self.opening.pop(key) for key in body["units"]]
        touched = self._drop(number for unit in units for number in unit.new)
        for unit in units:
            self._set_ending(unit.old, False)
        return touched

    def _switch(self, body: Mapping[str, Any]) -> set[str]:
        self.version = body["version"]
        touched = set[str]()
        for unit in (self.opening.pop(key) for key in body["units"]):
            self.ending.difference_update(unit.old)
            self.touched.update(self.routes[number].key for number in (*unit.old, *unit.new))
            for number in unit.new:
                self._put(replace(self.routes[number], since=self.version))
                touched |= self.routes[number].brokers()
            for number in unit.old:
                self._put(replace(self.routes[number], until=self.version - 1))
                touched |= self.routes[number].brokers()
        self.versions.update(dict.fromkeys(touched, self.version))
        if self.version in self.draining:
            self.rounds[self.version] = 1
        return touched

    def _raise(self, body: Mapping[str, Any]) -> set[str]:
        self.versions |= body["versions"]
        return set(body["versions"])

    def _agent(self, body: Mapping[str, Any]) -> set[str]:
        self.instances[body["broker"]] = body["instance"]
        touched = set[str]()
        for change, number in body["rounds"].items():
            self.rounds[int(change)] = number
            touched |= self.closers(int(change))
        return touched

    def _closed(self, body: Mapping[str, Any]) -> set[str]:
        return self._drop(body["routes"])

    def _addresses(self, body: Mapping[str, Any]) -> set[str]:
        before, self.addresses = self.addresses, dict(body["addresses"])
        changed = {broker for broker, _ in before.items() ^ self.addresses.items()}
        routes = [route for broker in changed for route in self.routes_of(broker).values()]
        return {broker for route in routes for broker in route.brokers()}

    def _removed(self, body: Mapping[str, Any]) -> set[str]:
        before, self.removed = self.removed, set(body["brokers"])
        return before ^ self.removed

    def _adopt(self, body: Mapping[str, Any]) -> set[str]:
        """Take over routes that agents have from another controller."""
        touched = self._drop(body["dropped"])
        for route in map(Route.from_json, body["routes"]):
            self._put(route)
            touched |= route.brokers()
            self.next_number = max(self.next_number, route.number + 1)
        self.version = body["version"]
        self.versions |= body["versions"]
        self.offset = body["offset"]
        self.rounds |= {change: body["round"] for change in self.draining if change not in self.rounds}
        return touched

    def _snapshot(self, body: Mapping[str, Any]) -> set[str]:
        self.reigns = [Epoch(*one) for one in body["reigns"]]
        self.version = body["version"]
        self.versions = dict(body["versions"])
        self.opening = {
            int(key): OpeningUnit(tuple(old), tuple(new)) for key, (old, new) in body["opening"].items()
        }
        self.ending = {number for unit in self.opening.values() for number in unit.old}
        for route in map(Route.from_json, body["routes"]):
            self._put(route)
            self.touched.add(route.key)
        self.rounds = {int(change): number for change, number in body["rounds"].items()}
        self.instances = dict(body["instances"])
        self.addresses = dict(body["addresses"])
        self.removed = set(body["removed"])
        self.next_number = body["next_number"]
        self.offset = body["offset"]
        return self.brokers()

    def snapshot(self) -> dict[str, Any]:
        """The whole state as the body of one record."""
        return {
            "reigns": [list(one) for one in self.reigns[-MOST_REIGNS:]],
            "version": self.version,
            "versions": self.versions,
            "routes": [route.to_json() for _, route in sorted(self.routes.items())],
            "opening": {str(key): [unit.old, unit.new] for key, unit in self.opening.items()},
            "rounds": {str(change): number for change, number in self.rounds.items()},
            "instances": self.instances,
            "addresses": self.addresses,
            "removed": sorted(self.removed),
            "next_number": self.next_number,
            "offset": self.offset,
        }

    # Routes and their indices.

    def _put(self, route: Route) -> None:
        """Add a route, or replace it by one with other versions."""
        before = self.routes.get(route.number)
        if before is not None and before.hops != route.hops:
            self._remove(route.number)
            before = None
        self.routes[route.number] = route
        for broker in route.brokers():
            self._by_broker[broker][route.number] = route
        if before is not None and before.until is not None and before.until != route.until:
            self._leave_drain(before)
        if route.until is not None:
            self.draining.setdefault(route.until + 1, set()).add(route.number)
            self._closers.pop(route.until + 1, None)
        self._set_current(route)

    def _remove(self, number: int) -> Route:
        route = self.routes.pop(number)
        for broker in route.brokers():
            self._by_broker[broker].pop(number, None)
        if route.until is not None:
            self._leave_drain(route)
        if self.current.get(route.key) == number:
            del self.current[route.key]
            self.touched.add(route.key)
        return route

    def _leave_drain(self, route: Route) -> None:
        change = (route.until or 0) + 1
        self._closers.pop(change, None)
        self.draining[change].discard(route.number)
        if not self.draining[change]:
            del self.draining[change]

    def _set_ending(self, numbers: Iterable[int], is_ending: bool) -> None:
        """Note which routes a unit replaces, or does not replace after all."""
        for number in numbers:
            if is_ending:
                self.ending.add(number)
            else:
                self.ending.discard(number)
            self.touched.add(self.routes[number].key)
            self._set_current(self.routes[number])

    def _set_current(self, route: Route) -> None:
        """Note whether a route is the current one of its filters."""
        key = route.key
        if route.until is None and route.number not in self.ending:
            if self.current.get(key) != route.number:
                self.current[key] = route.number
                self.touched.add(key)
        elif self.current.get(key) == route.number:
            del self.current[key]
            self.touched.add(key)

    def _drop(self, numbers: Iterable[int]) -> set[str]:
        touched = set[str]()
        for number in list(numbers):
            touched |= self._remove(number).brokers()
        self.rounds = {change: number for change, number in self.rounds.items() if change in self.draining}
        return touched


_RECORDS = {
    "epoch": FleetState._epoch,
    "open": FleetState._open,
    "cancel": FleetState._cancel,
    "switch": FleetState._switch,
    "versions": FleetState._raise,
    "agent": FleetState._agent,
    "closed": FleetState._closed,
    "addresses": FleetState._addresses,
    "removed": FleetState._removed,
    "adopt": FleetState._adopt,
    "snapshot": FleetState._snapshot,
}
