"""Routing of one hop: which messages it forwards, by the trees of their versions (SPEC, versioned trees).

A message of the agent's own broker has no stamp yet: its origin is u, and the hop's version chooses the tree
(route) of its topic. Agents hear of a change at different times, so the stamp names the route, and every
further hop uses just that one. Hop (u, v) forwards a message of origin p if and only if (u, v) is a hop of
the route and p lies on u's side of it. Everything else is acknowledged and dropped. A marker in the stream of
messages changes the version of a hop; `closed` messages tell when no message of an old route can come any
more.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from broadloom.agents.links.hop_forwarder import Hold
from broadloom.agents.links.hop_store import HopStore
from broadloom.agents.links.ring_guard import LONGEST_HOLD, MOST_REMEMBERED, RingGuard, content_hash
from broadloom.agents.links.route_orders import Route
from broadloom.agents.links.stamps import FleetKey, Stamp, Stamps
from broadloom.mqtt.packets import Publish, replaced_publish
from broadloom.mqtt.reserved_topics import CONTROL_ROOT, INTERNAL_PREFIX
from broadloom.mqtt.topic_filters import FilterIndex

if TYPE_CHECKING:
    from collections import Counter

    from broadloom.deployment import Hop

MARKER = f"{INTERNAL_PREFIX}marker"
CLOSED = f"{INTERNAL_PREFIX}closed"
# Prefixes of the topics that no hop carries: a broker's internal topics, and control topics.
NOT_CARRIED = ("$", f"{CONTROL_ROOT}/")
# Between two copies of a message: the second one can be behind a full window of messages that wait.
COPIES_SECONDS = 2 * LONGEST_HOLD + 1.0
MOST_TOPICS, LONGEST_CACHED = 100_000, 256  # topics whose routes are remembered, and characters of each
_CODE = 32  # bytes


class Marker(NamedTuple):
    """Boundary between two versions in the messages of a broker.

    Attributes:
        broker: the broker at which it is published.
        version: the version of all later messages of this broker.
        rounds: the closing round of each change that is draining.
    """

    broker: str
    version: int
    rounds: Mapping[int, int]

    def write(self, key: FleetKey) -> bytes:
        """The payload of the marker's message."""
        rounds = {str(change): number for change, number in self.rounds.items()}
        return _signed(key, {"broker": self.broker, "version": self.version, "rounds": rounds})

    @classmethod
    def read(cls, key: FleetKey, payload: bytes) -> Marker | None:
        """The marker of a payload; None: it is not authentic."""
        value = _verified(key, payload)
        if value is None or "rounds" not in value:
            return None
        rounds = {int(change): number for change, number in value["rounds"].items()}
        return cls(value["broker"], value["version"], rounds)


class ClosedRoutes(NamedTuple):
    """Routes of one change for which a hop has nothing more to forward, in one closing round."""

    change: int
    round: int
    routes: tuple[int, ...]


class HopClosing:
    """Finds out when a hop has forwarded the last message of each old route.

    A hop (u, v) is closed for an old route when the marker of its own broker has passed it, and the `closed`
    messages of all other hops (w, u) of the route. Each began behind the last old message of its hop.

    Args:
        hop: the hop.
    """

    def __init__(self, hop: Hop) -> None:
        self._hop = hop
        self._needs: dict[int, dict[int, frozenset[str]]] = {}  # change -> route -> senders
        self._round: dict[int, int] = {}  # of the last marker that has passed
        self._received: dict[tuple[int, int], dict[int, set[str]]] = {}
        self._closed: dict[int, set[int]] = {}  # change -> routes, in the round of the marker

    def set_routes(self, routes: Iterable[Route], version: int) -> None:
        """Take over the routes of the hop, which has a version."""
        start, end = self._hop
        needs: dict[int, dict[int, frozenset[str]]] = defaultdict(dict)
        for route in routes:
            if route.until is not None:
                senders = {w for w, u in route.hops if u == start and w != end}
                needs[route.until + 1][route.number] = frozenset(senders)
        self._needs = dict(needs)
        for change in set(self._round) - set(needs):
            self._round.pop(change)
            self._closed.pop(change, None)
        # Other agents can have heard of a later change before this one.
        self._received = {
            key: found for key, found in self._received.items() if key[0] in needs or key[0] > version
        }

    def pass_marker(self, marker: Marker) -> list[ClosedRoutes]:
        """The marker of the hop's own broker has passed; returns what is closed now."""
        found = []
        for change, number in marker.rounds.items():
            if change > marker.version or change not in self._needs:
                continue
            if self._round.get(change) != number:
                self._round[change] = number
                self._closed[change] = set()
                self._received = {
                    key: value
                    for key, value in self._received.items()
                    if key[0] != change or key[1] >= number
                }
            found += self._newly_closed(change, self._needs[change])
        return found

    def pass_closed(self, sender: str, closed: ClosedRoutes) -> list[ClosedRoutes]:
        """A `closed` message of hop (sender, u) has passed; returns what is closed now."""
        if closed.round < self._round.get(closed.change, 0):
            return []
        received = self._received.setdefault((closed.change, closed.round), defaultdict(set))
        for route in closed.routes:
            received[route].add(sender)
        return self._newly_closed(closed.change, closed.routes)

    def is_closed(self, change: int, number: int) -> bool:
        """Whether all routes of a change are closed in a round."""
        needs = self._needs.get(change, {})
        return self._round.get(change) == number and self._closed.get(change, set()) >= needs.keys()

    def _newly_closed(self, change: int, routes: Iterable[int]) -> list[ClosedRoutes]:
        number = self._round.get(change)
        if number is None or change not in self._needs:
            return []
        needs = self._needs[change]
        received = self._received.get((change, number), {})
        done = self._closed[change]
        new = [
            route
            for route in routes
            if route in needs and route not in done and needs[route] <= received.get(route, set())
        ]
        done.update(new)
        return [ClosedRoutes(change, number, tuple(sorted(new)))] if new else []


class RoutePolicy:
    """Decides what hop (u, v) forwards.

    Args:
        hop: the hop.
        store: its memory, with its version.
        key: the key of the fleet.
        stamps: writes and reads stamps.
        counts: counts of what is not forwarded, and why.
        progressed: called when the version has changed, or when a route is closed.
        guard: stops what bridges made by hand bring back.

    Attributes:
        has_overlaps: whether some subscriptions of the near session overlap, or have done so.
        closed_at: the number of the message that closed a route last; 0: none.
    """

    def __init__(
        self,
        hop: Hop,
        store: HopStore,
        key: FleetKey,
        stamps: Stamps,
        counts: Counter[str],
        progressed: Callable[[], None],
        guard: RingGuard,
    ) -> None:
        self.hop = hop
        self._guard = guard
        self.has_overlaps = False
        self.closed_at = 0
        self._progressed = progressed
        self.closing = HopClosing(hop)
        self._store = store
        self._key = key
        self._stamps = stamps
        self._counts = counts
        self._routes: dict[int, Route] = {}
        self._known: Collection[int] = ()
        self._ordered = 0
        self._index = FilterIndex(())
        self._routes_of: dict[str, list[int]] = {}  # by filter
        self._near_side: dict[int, frozenset[str]] = {}  # by route
        self._by_topic: dict[str, list[Route]] = {}
        self._runs: dict[tuple[bytes, int], tuple[float, tuple[int, ...]]] = {}  # by stamp and digest
        self._runs_until = 0.0  # when the last of them is old
        self._ready: dict[tuple[bytes, str], bytes] = {}  # stamp of the next hop by received stamp and topic

    def set_routes(self, routes: Mapping[int, Route], known: Collection[int], ordered: int) -> None:
        """Take over orders.

        Args:
            routes: the routes that have this hop.
            known: the numbers of all routes of the agent.
            ordered: the version that the agent should have.
        """
        old = self._routes
        self._known = known
        self._ordered = ordered
        for number in old.keys() - routes.keys():
            for text in old[number].filters:
                self._routes_of[text].remove(number)
                if not self._routes_of[text]:
                    del self._routes_of[text]
                    self._index.discard(text)
            self._near_side.pop(number, None)
        for number in routes.keys() - old.keys():
            for text in routes[number].filters:
                if text not in self._routes_of:
                    self._index.add(text)
                    self._routes_of[text] = []
                self._routes_of[text].append(number)
        self._routes = dict(routes)
        self._by_topic.clear()
        self._ready.clear()
        self.closing.set_routes(routes.values(), self._store.version)

    def raise_version(self, version: int) -> None:
        """Later messages of the hop's own broker have this version, or the one so far if it is higher."""
        self._store.version = max(self._store.version, version)
        self._ready.clear()

    def routes(self) -> Iterable[Route]:
        """The routes that have this hop."""
        return self._routes.values()

    # HopPolicy.

    def decide(self, message: Publish, digest: int) -> bytes | Hold | None:
        """The packet to forward; None: drop the message. The digest is 0 for a message of QoS 0."""
        is_checked = self.has_overlaps or self._guard.is_active
        if not is_checked and (ready := self._ready.get((message.stamp, message.topic))) is not None:
            return message.with_stamp(ready)
        if message.topic.startswith("$"):
            return self._decide_control(message)
        if self.has_overlaps and digest and self._is_copy(message, digest):
            return None
        stamp = self._stamps.read(message.stamp) if message.stamp else None
        content = content_hash(message) if self._guard.is_active else 0
        if stamp is not None and stamp.at != self.hop[0]:
            self._counts["ring"] += 1
            self._guard.found_ring(stamp)
            return None
        if content and self._is_echo(content, stamp):
            self._counts["echoes"] += 1
            return None
        if stamp is None:
            forwarded = self._first_stamp(message.topic)
        elif stamp.route not in self._known and stamp.version > self._ordered:
            return None if stamp.is_last else Hold.ORDERS
        else:
            forwarded = self._next_stamp(message.topic, stamp)
        if forwarded is None:
            return None
        if content and stamp is None:
            self._guard.saw_leave(content, self.hop)
        ready = self._stamps.write(forwarded)
        if (stamp is not None or not message.stamp) and len(message.topic) <= LONGEST_CACHED:
            if len(self._ready) >= MOST_TOPICS:
                self._ready.clear()
            self._ready[message.stamp, message.topic] = ready
        return message.with_stamp(ready)

    def pass_barrier(self, message: Publish) -> bytes | None:
        """Everything before this marker is finished: later messages have its version."""
        marker = Marker.read(self._key, message.payload())
        if marker is None:
            return None
        self.raise_version(marker.version)
        self._progressed()
        return self._closed_packet(message, self.closing.pass_marker(marker))

    # Messages of clients.

    def _first_stamp(self, topic: str) -> Stamp | None:
        """The stamp of a message of the hop's own broker; None: it does not leave over this hop."""
        start, end = self.hop
        version = self._store.version
        routes = self._by_topic.get(topic)
        if routes is None:
            routes = self._find(topic)
        for route in routes:
            if route.is_valid(version):
                return Stamp(start, version, route.number, end, is_last=self.ends_at(route))
        self._counts["other_version" if routes else "unrouted"] += 1
        return None

    def _next_stamp(self, topic: str, stamp: Stamp) -> Stamp | None:
        """The stamp of a message of another broker; None: it does not go on over this hop."""
        route = self._routes.get(stamp.route)
        if route is None:
            self._counts["other_hop" if stamp.route in self._known else "late"] += 1
            return None
        if stamp.origin not in self._side(route) or (stamp.retained and self.hop[1] not in route.fresh):
            return None
        routes = self._by_topic.get(topic)
        if routes is None:
            routes = self._find(topic)
        if route not in routes:
            self._counts["forged"] += 1  # the stamp is that of another message
            return None
        return stamp._replace(at=self.hop[1], is_last=self.ends_at(route))

    def _is_echo(self, content: int, stamp: Stamp | None) -> bool:
        """Whether a bridge made by hand has brought a copy of a message."""
        if stamp is None:
            is_copy = self._guard.is_copy(content, self.hop, is_stamped=False)
            if is_copy:
                self._guard.found_copy(content, self.hop)
            return is_copy
        if stamp.retained:
            return False
        self._guard.saw_stamped(content)
        is_copy = self._guard.is_copy(content, self.hop, is_stamped=True)
        if is_copy:
            self._guard.found_late(stamp.origin)
        return is_copy

    def _find(self, topic: str) -> list[Route]:
        """The routes of a topic, the newest first."""
        if len(self._by_topic) >= MOST_TOPICS:
            self._by_topic.clear()
        if topic.startswith(NOT_CARRIED):
            numbers = set[int]()
        else:
            numbers = {number for text in self._index.meeting(topic) for number in self._routes_of[text]}
        found = [self._routes[number] for number in sorted(numbers, reverse=True)]
        if len(topic) <= LONGEST_CACHED:
            self._by_topic[topic] = found
        return found

    def ends_at(self, route: Route) -> bool:
        """Whether the far broker sends the messages of a route to nobody else."""
        start, end = self.hop
        return not any(one == end and other != start for one, other in route.hops)

    def _side(self, route: Route) -> frozenset[str]:
        """The brokers on the hop's near side of a route's tree."""
        found = self._near_side.get(route.number)
        if found is None:
            found = self._near_side[route.number] = near_side(route.hops, self.hop)
        return found

    def _is_copy(self, message: Publish, digest: int) -> bool:
        """Whether it is another copy of the last message, sent for an overlapping subscription.

        A broker sends one copy per matching subscription, one after the other, with different identifiers.
        So equal messages in a row are copies of one, until an identifier repeats. A repetition of a copy that
        an earlier process has seen is still a copy. While the guard is active, messages with a stamp pass
        others that wait, so their copies need not be in a row. The guard can begin or end between two copies.
        """
        identifiers = message.identifiers or (0,)
        last, seen = self._store.run()
        if message.stamp and (self._guard.is_active or self._runs):
            key = (message.stamp, digest)
            if self._guard.is_active or self._has_recent(key):
                return self._is_recent_copy(key, identifiers, seen if digest == last else ())
        if digest == last and seen:
            is_again = message.dup and set(identifiers) <= set(seen[1:])
            if is_again or not set(seen).intersection(identifiers):
                self._store.record_run(digest, (*seen, *identifiers))
                self._counts["copies"] += 1
                return True
        self._store.record_run(digest, identifiers)
        return False

    def _has_recent(self, key: tuple[bytes, int]) -> bool:
        """Whether the first copy came while the guard was active; drop memories that are old."""
        if self._guard.now() >= self._runs_until:
            self._runs.clear()
        return key in self._runs

    def _is_recent_copy(
        self, key: tuple[bytes, int], identifiers: tuple[int, ...], before: tuple[int, ...]
    ) -> bool:
        """Whether an equal message with the same stamp came a moment ago, for other subscriptions.

        Args:
            key: the stamp and the digest of the message.
            identifiers: the subscriptions for which it came.
            before: those of equal messages directly before it that came when the guard was not active.
        """
        now = self._guard.now()
        until, seen = self._runs.get(key, (now + COPIES_SECONDS, before))
        if until > now and seen and not set(seen).intersection(identifiers):
            self._runs[key] = (until, (*seen, *identifiers))
            self._runs_until = max(self._runs_until, until)
            self._counts["copies"] += 1
            return True
        if len(self._runs) >= MOST_REMEMBERED:
            self._runs.clear()
        self._runs_until = now + COPIES_SECONDS
        self._runs[key] = (self._runs_until, identifiers)
        return False

    # Messages of agents.

    def _decide_control(self, message: Publish) -> bytes | Hold | None:
        if not message.number:
            return None  # agents publish at QoS 1
        if message.topic == MARKER:
            marker = Marker.read(self._key, message.payload())
            if marker is None or marker.broker != self.hop[0]:
                self._counts["forged"] += 1
                return None
            if marker.version > self._store.version:
                return Hold.BARRIER
            return self._closed_packet(message, self.closing.pass_marker(marker))
        if message.topic == CLOSED:
            value = _verified(self._key, message.payload())
            if value is None or value.get("to") != self.hop[0]:
                self._counts["forged"] += 1
                return None
            found = [
                one
                for change, number, routes in value["closed"]
                for one in self.closing.pass_closed(
                    value["from"], ClosedRoutes(change, number, tuple(routes))
                )
            ]
            return self._closed_packet(message, found)
        return None

    def _closed_packet(self, message: Publish, closed: list[ClosedRoutes]) -> bytes | None:
        """The packet that tells the far broker's hops what is closed on this one."""
        if not closed:
            return None
        self.closed_at = self._store.received + 1
        self._progressed()
        start, end = self.hop
        value = {"from": start, "to": end, "closed": [list(one) for one in closed]}
        return replaced_publish(message, CLOSED, _signed(self._key, value))


def near_side(hops: Iterable[Hop], hop: Hop) -> frozenset[str]:
    """The brokers on the near side of a hop, in the tree of these hops; empty if the hop is not one of them.

    Examples:
        >>> sorted(near_side({("a", "b"), ("b", "a"), ("b", "c")}, ("b", "c")))
        ['a', 'b']
    """
    start, end = hop
    neighbours: dict[str, set[str]] = defaultdict(set)
    is_known = False
    for one, other in hops:
        neighbours[one].add(other)
        neighbours[other].add(one)
        is_known = is_known or (one, other) == hop
    if not is_known:
        return frozenset()
    seen = {start, end}
    todo = [start]
    for broker in todo:
        fresh = neighbours[broker] - seen
        seen |= fresh
        todo += fresh
    return frozenset(seen - {end})


def _signed(key: FleetKey, value: Mapping[str, Any]) -> bytes:
    text = json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
    return key.mac(b"route", text) + text


def _verified(key: FleetKey, payload: bytes) -> dict[str, Any] | None:
    """The value of an authentic payload; None: it is not one of this fleet."""
    code, text = payload[:_CODE], payload[_CODE:]
    if not key.verifies(b"route", text, code):
        return None
    value: dict[str, Any] = json.loads(text)
    return value
