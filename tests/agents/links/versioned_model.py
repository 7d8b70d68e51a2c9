"""Model of the live plane: brokers, site agents and a controller that change trees while parts fail.

It is written from the description of the protocol, not from the code of the agents. Time is a sequence of
small random steps: a packet goes one way, an agent writes one thing to its disk, an order arrives, a process
dies. What a process has in memory is lost when it dies; what it has on disk and what brokers hold for its
sessions is not.

    broker      queues per session, in one order for all sessions; packets that its clients have sent at QoS 2
    agent       on disk: epoch, orders, published version, and per hop its version and packet store
                in memory: messages in flight, what has been closed
    controller  a journal; everything else is in memory

Run this file to search many seeds: python versioned_model.py 20000 [first seed].
"""

from __future__ import annotations

import copy
import random
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from broadloom.agents.links.route_orders import NO_EPOCH, AgentOrders, AgentReport, Epoch, Route

Hop = tuple[str, str]
Filters = tuple[str, ...]
Targets = dict[Filters, frozenset[Hop]]

WINDOW = 3  # messages that a broker sends without acknowledgement
TOPICS = ("a", "b", "c", "d")
FAULTS = (
    *("kill", "kill", "kill", "connection", "connection"),
    *("stop", "broker", "link", "session", "controller", "second"),
)
SENT, RECORDED, DELIVERED, FINISHED = 1, 2, 3, 4  # of a message in flight; 0: taken


@dataclass(frozen=True)
class Rules:
    """Rules of the protocol; a model without one of them finds a failure.

    Attributes:
        barrier: a hop finishes all that is before a marker, and takes nothing after it until the marker is
            acknowledged.
        route_in_stamp: the stamp has the route's number; without it, each agent looks for the route of the
            topic and the version in its own orders.
        wait_for_orders: a hop waits if it does not know the route of a message and its orders are older.
        in_turn: an agent opens hops and publishes markers one after the other.
        finished_close: a hop is closed when the far broker has the closing message, not when it is sent.
        version_after_loss: a hop whose session its broker has lost continues with the published version.
        rounds: a restarted agent makes the controller begin another round.
        drops_recorded: the packet store has the messages that were dropped as well.
        clean_far: a new hop begins with a new session at the far broker.
        majority: a controller orders nothing before it has heard from most agents, and knew their orders.
        same_base: an agent takes the first orders of a new controller only if that knew its last orders.
        check_at: a message with the stamp of another broker is dropped.
    """

    barrier: bool = True
    route_in_stamp: bool = True
    wait_for_orders: bool = True
    in_turn: bool = True
    finished_close: bool = True
    version_after_loss: bool = True
    rounds: bool = True
    drops_recorded: bool = True
    clean_far: bool = True
    majority: bool = True
    same_base: bool = True
    check_at: bool = True


ALL_RULES = Rules()


class Stamp(NamedTuple):
    """Origin, version and route of a message, and the broker that it was sent to."""

    origin: str
    version: int
    route: int
    at: str


class Message(NamedTuple):
    """Message of a client; `copied`: something else than an agent has published it again."""

    number: int
    topic: str
    stamp: Stamp | None = None
    copied: bool = False


class Marker(NamedTuple):
    """Start of a version at one broker."""

    broker: str
    version: int
    rounds: tuple[tuple[int, int], ...]


class Closed(NamedTuple):
    """Routes on which a hop from a broker sends nothing more, by change and round."""

    broker: str
    parts: tuple[tuple[int, int, tuple[int, ...]], ...]


Item = Message | Marker | Closed


class Session:
    """Queue of a broker for one hop; what is not acknowledged is sent again over a new connection."""

    def __init__(self) -> None:
        self.queue: deque[tuple[int, Item]] = deque()
        self.filters: set[str] = set()
        self.last = 0
        self.sent = 0  # of the queue, over this connection
        self.acks: deque[int] = deque()  # on their way to the broker

    def disconnect(self) -> None:
        """The connection is lost, with all that is on its way."""
        self.sent = 0
        self.acks.clear()


class ModelBroker:
    """A broker: its sessions and the packets that it holds for clients (QoS 2)."""

    def __init__(self) -> None:
        self.up = True
        self.sessions: dict[str, Session] = {}  # by the far broker of the hop
        self.held: dict[str, dict[int, Item]] = {}  # by the near broker of the hop
        self.version = 0  # of the last marker
        self.lost: set[str] = set()  # sessions that it has lost and that are not back

    def publish(self, item: Item) -> None:
        """Queue an item for all sessions that want it, in one step."""
        if isinstance(item, Marker):
            self.version = max(self.version, item.version)
        for session in self.sessions.values():
            if not isinstance(item, Message) or item.topic in session.filters:
                session.last += 1
                session.queue.append((session.last, item))


@dataclass
class HopDisk:
    """What a hop has on disk."""

    version: int
    opened: bool = False
    far_begun: bool = False
    stored: set[int] = field(default_factory=set)  # the packet store: delivered or dropped


class HopMemory:
    """What a hop has in memory."""

    def __init__(self) -> None:
        self.flight: dict[int, list[Any]] = {}  # by number: what to send (None: nothing), its state
        self.arrived: deque[int] = deque()  # over this connection, not yet acknowledged
        self.barrier: int | None = None  # the number of a marker that is not acknowledged yet
        self.passed: dict[int, int] = {}  # the round of each change, of own markers
        self.heard: dict[tuple[int, int], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.sending: dict[
            tuple[int, int, int], int
        ] = {}  # route, change, round: number of the closing message
        self.closed: set[tuple[int, int, int]] = set()


class Agent:
    """The site agent of one broker."""

    def __init__(self, model: Model, broker: str) -> None:
        self.model = model
        self.broker = broker
        self.orders = AgentOrders()
        self.epoch = NO_EPOCH
        self.published = 0
        self.disks: dict[str, HopDisk] = {}
        self.up = False
        self.linked = True  # to the controller

    def start(self) -> None:
        """Start the process."""
        self.up = True
        self.instance = f"{self.model.rng.getrandbits(40):x}"
        self.hops = {far: HopMemory() for far in self.disks}
        self.outstanding: Marker | None = None
        self.announced: dict[int, int] = {}
        self.opened = 0

    def kill(self) -> None:
        """End the process at once."""
        self.up = False
        for session in self.model.brokers[self.broker].sessions.values():
            session.disconnect()

    # Orders and reports.

    def receive(self, orders: AgentOrders, base: tuple[Epoch, int]) -> None:
        """Store orders, unless they are older, or those of a new controller that knew other orders here."""
        if not self.up or not self.epoch.yields_to(orders.epoch):
            return
        if orders.epoch == self.epoch and orders.number < self.orders.number:
            return
        if orders.epoch != self.epoch:
            if self.model.rules.same_base and base != (self.epoch, self.orders.number):
                return
            self.opened = 0
        self.epoch = orders.epoch
        self.orders = orders

    def report(self) -> AgentReport:
        """The state of the agent."""
        return AgentReport(
            self.broker,
            self.instance,
            self.epoch,
            self.orders.number,
            self.opened,
            self.published,
            closed={
                change: number
                for change, number in self.orders.rounds.items()
                if all(self._is_closed(far, route, change, number) for far, route in self._old_hops(change))
            },
            broker_up=self.model.brokers[self.broker].up,
        )

    def _old_hops(self, change: int) -> Iterable[tuple[str, int]]:
        for route in self.orders.routes.values():
            if route.until == change - 1:
                yield from ((far, route.number) for near, far in route.hops if near == self.broker)

    def _is_closed(self, far: str, route: int, change: int, number: int) -> bool:
        memory = self.hops.get(far)
        if memory is None:
            return False
        key = (route, change, number)
        return key in (memory.closed if self.model.rules.finished_close else memory.sending)

    # Work on its own broker, one step at a time.

    def wanted(self) -> dict[str, set[str]]:
        """The filters of each hop that a route has."""
        found: dict[str, set[str]] = defaultdict(set)
        for route in self.orders.routes.values():
            for near, far in route.hops:
                if near == self.broker:
                    found[far].update(route.filters)
        return dict(sorted(found.items()))

    def work(self) -> bool:
        """Do one step towards the orders; returns whether there was one."""
        broker = self.model.brokers[self.broker]
        if not self.up or not broker.up:
            return False
        wanted = self.wanted()
        steps: list[Callable[[], None]] = []
        half_open = [far for far, disk in self.disks.items() if not disk.opened and far in wanted]
        lost = [
            far
            for far, disk in self.disks.items()
            if disk.opened and far in wanted and far not in broker.sessions
        ]
        new = [far for far in wanted if far not in self.disks]
        marker = self.orders.version > self.published or any(
            self.announced.get(change) != number for change, number in self.orders.rounds.items()
        )
        if self.outstanding is not None:
            steps.append(self._accepted)
        if not self.model.rules.in_turn:
            steps += [lambda: self._open(half_open[0])] if half_open else []
            steps += [lambda: self._reopen(lost[0])] if lost else []
            steps += [lambda: self._begin(new[0])] if new else []
            steps += [self._publish] if marker and self.outstanding is None else []
        unlike = [
            far
            for far, disk in self.disks.items()
            if far in wanted
            and disk.opened
            and far in broker.sessions
            and broker.sessions[far].filters != wanted[far]
        ]
        if self.model.rules.in_turn and self.outstanding is None:
            # All hops first: a leaf that was away gets its new hop and the version at once.
            if half_open:
                steps.append(lambda: self._open(half_open[0]))
            elif new:
                steps.append(lambda: self._begin(new[0]))
            elif lost and self.orders.version > self.published:
                steps.append(
                    self._publish
                )  # it can have been accepted before: no session is replaced until it has been
            elif lost:
                steps.append(lambda: self._reopen(lost[0]))
            elif marker and not unlike:
                steps.append(self._publish)
        steps += [lambda far=far: self._subscribe(far, wanted[far]) for far in unlike]
        steps += [lambda far=far: self._end(far) for far in list(self.disks) if far not in wanted]
        if not steps:
            if self.opened < self.orders.number:
                self.opened = self.orders.number
                return True
            return False
        self.model.rng.choice(steps)()
        return True

    def _begin(self, far: str) -> None:
        self.disks[far] = HopDisk(self.published)
        self.hops[far] = HopMemory()

    def _open(self, far: str) -> None:
        broker = self.model.brokers[self.broker]
        if far not in broker.sessions or self.model.rng.random() < 0.5:  # clean start, once or again
            broker.sessions[far] = Session()
            broker.sessions[far].last = (
                max(self.disks[far].stored | self.hops[far].flight.keys(), default=0) + 100
            )
            self.hops[far] = HopMemory()
        broker.sessions[far].filters = self.wanted()[far]
        if self.model.rng.random() < 0.7:  # else the agent dies before it knows, or is slow
            self.disks[far].opened = True
            # A new hop of an old route needs a marker too: agents repeat it while something is not closed.
            self.announced = {}

    def _reopen(self, far: str) -> None:
        """The broker has lost the session: packet numbers begin anew."""
        if self.model.rules.version_after_loss:
            self.disks[far].version = max(self.published, self.disks[far].version)
        session = self.model.brokers[self.broker].sessions[far] = Session()
        session.last = max(self.disks[far].stored | self.hops[far].flight.keys(), default=0) + 100
        session.filters = self.wanted()[far]
        memory = self.hops[far]
        memory.arrived.clear()
        memory.barrier = None
        if self.model.rules.version_after_loss:
            self.announced = {}
            self.instance = f"{self.model.rng.getrandbits(40):x}"

    def _subscribe(self, far: str, filters: set[str]) -> None:
        self.model.brokers[self.broker].sessions[far].filters = filters

    def _end(self, far: str) -> None:
        broker = self.model.brokers[self.broker]
        if far in broker.sessions:
            del broker.sessions[far]
            if self.model.brokers[far].up:
                self.model.brokers[far].held.pop(self.broker, None)
            return
        del self.disks[far], self.hops[far]

    def _publish(self) -> None:
        self.outstanding = Marker(self.broker, self.orders.version, tuple(sorted(self.orders.rounds.items())))
        self.model.brokers[self.broker].publish(self.outstanding)

    def _accepted(self) -> None:
        marker = self.outstanding
        assert marker is not None
        self.outstanding = None
        self.published = max(self.published, marker.version)
        self.announced = dict(marker.rounds)

    # Hops.

    def take(self, far: str) -> bool:
        """Take the next message of a hop from the broker; returns whether there was one."""
        broker = self.model.brokers[self.broker]
        session = broker.sessions.get(far)
        disk, memory = self.disks.get(far), self.hops.get(far) if self.up else None
        if session is None or disk is None or memory is None or not broker.up:
            return False
        if session.sent >= min(len(session.queue), WINDOW):
            return False
        number, item = session.queue[session.sent]
        if number in memory.flight:  # sent again over a new connection
            session.sent += 1
            memory.arrived.append(number)
            return True
        if self.model.rules.barrier:
            if memory.barrier is not None and number > memory.barrier:
                return False  # an earlier one is a repetition whose acknowledgement was lost
            if isinstance(item, Marker) and any(entry[1] < FINISHED for entry in memory.flight.values()):
                return False
        out: Item | None = None
        if number in disk.stored:
            state = RECORDED  # the far broker can still hold it
        elif isinstance(item, Message):
            found = self._routed(far, disk, item)
            if found == "wait":
                return False
            out = found
            state = 0 if out is not None else RECORDED
        else:
            if isinstance(item, Marker) and item.broker == self.broker:
                disk.version = max(disk.version, item.version)
                memory.passed.update(dict(item.rounds))
            elif isinstance(item, Closed):
                for change, round_, routes in item.parts:
                    for route in routes:
                        memory.heard[change, round_][route].add(item.broker)
            out = self._closing(far, memory, number)
            state = 0 if out is not None else RECORDED
        if state == RECORDED and self.model.rules.drops_recorded:
            disk.stored.add(number)
        session.sent += 1
        memory.arrived.append(number)
        memory.flight[number] = [out, state]
        if isinstance(item, Marker):
            memory.barrier = number
        return True

    def _routed(self, far: str, disk: HopDisk, message: Message) -> Message | str | None:
        """What the hop forwards of a message; None: nothing; "wait": the orders are too old to know."""
        rules = self.model.rules
        stamp = message.stamp
        own = stamp is None
        if stamp is None:
            stamp = Stamp(self.broker, disk.version, -1, self.broker)
        elif rules.check_at and stamp.at != self.broker:
            return None
        if own or not rules.route_in_stamp:
            route = next(
                (
                    route
                    for route in self.orders.routes.values()
                    if message.topic in route.filters and route.is_valid(stamp.version)
                ),
                None,
            )
        else:
            route = self.orders.routes.get(stamp.route)
        is_newer = not own and stamp.version > self.orders.version
        if is_newer and rules.wait_for_orders and (route is None or not rules.route_in_stamp):
            return "wait"
        if route is None or (self.broker, far) not in route.hops:
            return None
        if stamp.origin not in self.model.side(route, self.broker, far):
            return None
        return message._replace(stamp=Stamp(stamp.origin, stamp.version, route.number, far))

    def _closing(self, far: str, memory: HopMemory, number: int) -> Closed | None:
        """The closing message for all routes that have nothing more to send over the hop."""
        parts: dict[tuple[int, int], list[int]] = defaultdict(list)
        for route in self.orders.routes.values():
            if route.until is None or (self.broker, far) not in route.hops:
                continue
            change = route.until + 1
            round_ = memory.passed.get(change)
            if round_ is None or (route.number, change, round_) in memory.sending:
                continue
            behind = {near for near, end in route.hops if end == self.broker and near != far}
            if behind <= memory.heard[change, round_][route.number]:
                parts[change, round_].append(route.number)
                memory.sending[route.number, change, round_] = number
        if not parts:
            return None
        return Closed(self.broker, tuple((*key, tuple(routes)) for key, routes in sorted(parts.items())))

    def advance(self, far: str) -> bool:
        """One packet to or from the far broker of a hop."""
        disk, memory = self.disks.get(far), self.hops.get(far) if self.up else None
        there = self.model.brokers[far]
        if disk is None or memory is None or not there.up or not memory.flight:
            return False
        if not disk.far_begun:
            if self.model.rules.clean_far:
                there.held.pop(self.broker, None)
            disk.far_begun = True
            return True
        held = there.held.setdefault(self.broker, {})
        before = FINISHED
        able = []
        for number, entry in memory.flight.items():
            if entry[1] < FINISHED and entry[1] < before:
                able.append((number, entry))
            before = min(before, entry[1])
        if not able:
            return False
        number, entry = self.model.rng.choice(able)
        if entry[1] == 0:
            held.setdefault(number, entry[0])  # a repeated packet changes nothing
            entry[1] = SENT
        elif entry[1] == SENT:
            disk.stored.add(number)
            entry[1] = RECORDED
        elif entry[1] == RECORDED:
            item = held.pop(number, None)
            if item is not None:
                self.model.deliver(far, item)
            entry[1] = DELIVERED
        else:
            entry[1] = FINISHED
            for key, closing in memory.sending.items():
                if closing == number:
                    memory.closed.add(key)
            if number not in memory.arrived:  # not sent again over this connection yet
                self._forget_orphans(far, memory)
        return True

    def _forget_orphans(self, far: str, memory: HopMemory) -> None:
        """Finished messages that the broker will never send again: it has lost the session."""
        session = self.model.brokers[self.broker].sessions.get(far)
        known = {number for number, _ in session.queue} if session else set()
        for number in [n for n, entry in memory.flight.items() if entry[1] == FINISHED and n not in known]:
            del memory.flight[number]

    def acknowledge(self, far: str) -> bool:
        """Send the acknowledgement of the oldest message of a hop, if it is finished."""
        broker = self.model.brokers[self.broker]
        memory = self.hops.get(far) if self.up else None
        session = broker.sessions.get(far)
        if memory is None or session is None or not broker.up or not memory.arrived:
            return False
        number = memory.arrived[0]
        if number in memory.flight and memory.flight[number][1] < FINISHED:
            return False
        memory.arrived.popleft()
        memory.flight.pop(number, None)
        if memory.barrier == number:
            memory.barrier = None
        session.acks.append(number)
        return True

    def lose_connection(self, far: str) -> None:
        """The connection of a hop's near session is lost."""
        session = self.model.brokers[self.broker].sessions.get(far)
        if session is not None:
            session.disconnect()
        if self.up and far in self.hops:
            memory = self.hops[far]
            memory.arrived.clear()
            # A finished message is taken from the packet store when it is sent again.
            for number in [number for number, entry in memory.flight.items() if entry[1] == FINISHED]:
                del memory.flight[number]
                if memory.barrier == number:
                    memory.barrier = None


class ModelController:
    """A controller that makes changes one at a time, and drains any number of them.

    Args:
        journal: what it has on disk; a plain dictionary.
        agents: the brokers of the fleet.
        is_absent: whether a broker's agent has not been heard of.
        name: the id of the process.
    """

    def __init__(
        self,
        journal: dict[str, Any],
        agents: Collection[str],
        is_absent: Callable[[str], bool],
        name: str,
        rules: Rules,
    ) -> None:
        self.disk = journal
        self.rules = rules
        self._agents = agents
        self._is_absent = is_absent
        self.refused = False
        self._unique = int(name, 16)
        journal["epoch"] += 1
        self.epoch = Epoch(journal["epoch"], name)
        self._numbers: dict[str, int] = dict.fromkeys(agents, 0)
        self._known: set[str] = set()
        self._reports: dict[str, AgentReport] = {}
        self._touch(agents)
        for change in journal["changes"].values():
            change["round"] += 1

    @staticmethod
    def new_journal() -> dict[str, Any]:
        """The journal of a controller that has never run."""
        return {
            "epoch": 0,
            "version": 0,
            "routes": {},
            "changes": {},
            "target": {},
            "versions": {},
            "next": 1,
            "count": 0,
            "lineage": {NO_EPOCH: 0},
        }

    def set_target(self, target: Targets) -> None:
        """Change what the trees should be."""
        self.disk["target"] = dict(target)
        self.tick()

    def receive(self, report: AgentReport) -> None:
        """Read the report of an agent."""
        if self.refused:
            return
        known = self.disk["lineage"].get(report.epoch, -1)
        if not report.epoch.yields_to(self.epoch) or (self.rules.majority and report.orders > known):
            self.refused = True
            return
        self._known.add(report.broker)
        before = self._reports.get(report.broker)
        self._reports[report.broker] = report
        if before is not None and before.instance != report.instance and self.rules.rounds:
            for change in self.disk["changes"].values():
                if report.broker in change["agents"]:
                    change["round"] += 1
                    self._touch(change["agents"])
        self.tick()

    def _touch(self, brokers: Iterable[str]) -> None:
        number = self.disk["lineage"][self.epoch] = self.disk["lineage"].get(self.epoch, 0) + 1
        for broker in brokers:
            self._numbers[broker] = number

    def orders_for(self, broker: str) -> AgentOrders | None:
        """The orders of one agent."""
        if self.refused:
            return None
        if self.rules.majority and (broker not in self._known or len(self._known) * 2 <= len(self._agents)):
            return None
        disk = self.disk
        return AgentOrders(
            self.epoch,
            self._numbers[broker],
            disk["versions"].get(broker, 0),
            {c: change["round"] for c, change in disk["changes"].items() if broker in change["agents"]},
            {number: route for number, route in disk["routes"].items() if broker in route.brokers()},
        )

    def base_of(self, broker: str) -> tuple[Epoch, int]:
        """The last orders that an agent is known to have."""
        report = self._reports.get(broker)
        return (report.epoch, report.orders) if report else (NO_EPOCH, 0)

    def tick(self) -> None:
        """Go on with changes as far as possible."""
        if self.refused or (self.rules.majority and len(self._known) * 2 <= len(self._agents)):
            return
        self._finish()
        self._plan()
        self._switch()

    def _current(self) -> dict[int, Route]:
        return {number: route for number, route in self.disk["routes"].items() if route.until is None}

    def _plan(self) -> None:
        """Open what the target needs and no absent broker prevents."""
        routes: dict[int, Route] = self.disk["routes"]
        used = {n: r for n, r in self._current().items() if r.since is not None}
        opening = {n: r for n, r in routes.items() if r.since is None}
        wanted = {(filters, hops) for filters, hops in self.disk["target"].items() if hops}
        have = {(route.filters, route.hops) for route in used.values()}
        fresh = wanted - have
        gone = [route for route in used.values() if (route.filters, route.hops) not in wanted]
        fresh = self._possible(fresh, gone)
        if {(r.filters, r.hops) for r in opening.values()} == fresh:
            return
        # A half-made change is given up: its routes were never used.
        touched = set[str]()
        for number, route in opening.items():
            if (route.filters, route.hops) not in fresh:
                touched |= route.brokers()
                del routes[number]
        present = {(r.filters, r.hops) for r in routes.values() if r.since is None}
        for filters, hops in sorted(fresh - present, key=repr):
            number = self._unique * 1000 + self.disk["next"]
            self.disk["next"] += 1
            routes[number] = Route(number, filters, hops)
            touched |= routes[number].brokers()
        self._touch(touched)

    def _possible(self, fresh: set[tuple[Filters, frozenset[Hop]]], gone: list[Route]) -> set[Any]:
        """The new trees whose component (of trees that share filters) needs nothing of an absent broker."""
        blocked: set[str] = set()
        for filters, hops in fresh:
            if any(self._is_absent(near) and self._needs(near, far, filters) for near, far in hops):
                blocked.update(filters)
        grown = True
        while grown:
            grown = False
            for filters in [f for f, _ in fresh] + [route.filters for route in gone]:
                if blocked & set(filters) and not set(filters) <= blocked:
                    blocked.update(filters)
                    grown = True
        self._blocked = blocked
        return {(filters, hops) for filters, hops in fresh if not blocked & set(filters)}

    def _needs(self, near: str, far: str, filters: Filters) -> bool:
        """Whether a tree needs a new hop, or new filters on a hop."""
        had: set[str] = set()
        for route in self.disk["routes"].values():
            if (near, far) in route.hops and route.since is not None:
                had.update(route.filters)
        return not set(filters) <= had

    def _switch(self) -> None:
        disk = self.disk
        opening = [route for route in disk["routes"].values() if route.since is None]
        wanted = {(filters, hops) for filters, hops in disk["target"].items() if hops}
        gone = [
            route
            for route in self._current().values()
            if route.since is not None
            and (route.filters, route.hops) not in wanted
            and not set(route.filters) & self._blocked
        ]
        if not opening and not gone:
            return
        for route in opening:
            for near, far in route.hops:
                if self._needs(near, far, route.filters):
                    report = self._reports.get(near)
                    if report is None or report.epoch != self.epoch or report.opened < self._numbers[near]:
                        return
        version = disk["version"] = max(
            disk["version"] + 1, self.epoch.number * 1000
        )  # of no other controller
        disk["count"] += 1
        involved = set[str]()
        for route in opening:
            disk["routes"][route.number] = Route(route.number, route.filters, route.hops, version)
            involved |= route.brokers()
        old = set[str]()
        for route in gone:
            disk["routes"][route.number] = Route(
                route.number, route.filters, route.hops, route.since, version - 1
            )
            old |= route.brokers()
        if gone:
            disk["changes"][version] = {"round": 1, "agents": old}
        for broker in involved | old:
            disk["versions"][broker] = version
        self._touch(involved | old)

    def _finish(self) -> None:
        for version, change in list(self.disk["changes"].items()):
            reports = [self._reports.get(broker) for broker in change["agents"]]
            if all(r is not None and r.closed.get(version) == change["round"] for r in reports):
                del self.disk["changes"][version]
                for number, route in list(self.disk["routes"].items()):
                    if route.until == version - 1:
                        del self.disk["routes"][number]
                self._touch(change["agents"])

    def settled(self) -> bool:
        """Whether the trees are those of the target, and nothing drains."""
        have = {
            (route.filters, route.hops) for route in self.disk["routes"].values() if route.since is not None
        }
        wanted = {(filters, hops) for filters, hops in self.disk["target"].items() if hops}
        return not self.refused and have == wanted and not self.disk["changes"]


class ProtocolError(Exception):
    """The protocol has failed."""


class SplitError(Exception):
    """Agents obey two controllers that know nothing of each other; an operator must choose."""


class Model:
    """One run of random steps.

    Args:
        seed: of all choices.
        rules: the rules of the protocol.
        faults: the kinds of what fails.
        messages: how many messages clients publish.
    """

    def __init__(
        self, seed: int, rules: Rules = ALL_RULES, faults: Collection[str] = FAULTS, messages: int = 80
    ) -> None:
        self.rng = random.Random(seed)
        self.rules = rules
        self.kinds = faults
        self.messages = messages
        self.names = [f"b{index}" for index in range(self.rng.randint(2, 6))]
        self.brokers = {name: ModelBroker() for name in self.names}
        self.agents = {name: Agent(self, name) for name in self.names}
        self.got: Counter[tuple[int, str]] = Counter()
        self.copies: list[tuple[int, str]] = []
        self.sent: list[tuple[str, str, int]] = []  # broker, topic, version
        self._ordered: list[Mapping[int, Route]] = []  # the orders of the broker's agent at that time
        self.excused: set[int] = set()  # messages that a broker has lost with a session
        self.history: dict[int, Route] = {}
        self.counts: Counter[str] = Counter()
        self._sides: dict[tuple[int, str, str], frozenset[str]] = {}
        self._wire: list[tuple[str, Any]] = []
        self.late = set(self.rng.sample(self.names, self.rng.randint(0, 1)))
        for name, agent in self.agents.items():
            if name not in self.late:
                agent.start()
        self.journal = self.new_journal()
        self.controllers: list[Any] = [self.new_controller(self.journal, "1")]
        self._left = self.rng.randint(2, 7)  # changes of the target
        self._faults_left = self.rng.randint(0, 25) if faults else 0

    # The controller; a subclass runs another one.

    def new_journal(self) -> Any:
        """The journal of a new controller."""
        return ModelController.new_journal()

    def copy_journal(self, journal: Any) -> Any:
        """An old copy of a journal."""
        return copy.deepcopy(journal)

    def new_controller(self, journal: Any, name: str) -> Any:
        """Start a controller."""
        return ModelController(journal, self.names, self.is_absent, name, self.rules)

    def is_absent(self, broker: str) -> bool:
        """Whether the controller misses an agent or its broker."""
        agent = self.agents[broker]
        return not agent.up or not agent.linked or not self.brokers[broker].up

    def versions(self) -> int:
        """The number of changes that the controller has made."""
        return self.controllers[0].disk["count"]

    def learn(self) -> None:
        """Note the routes of the first controller, to know what must arrive where."""
        for controller in self.controllers:
            for route in controller.disk["routes"].values():
                known = self.history.get(route.number, route)
                if (known.since is None, known.until is None) >= (route.since is None, route.until is None):
                    self.history[route.number] = route  # an old copy knows less

    # Messages.

    def side(self, route: Route, near: str, far: str) -> frozenset[str]:
        """The brokers on the near side of an edge of a tree."""
        key = (route.number, near, far)
        if key not in self._sides:
            self._sides[key] = reachable(
                {hop for hop in route.hops if set(hop) != {near, far}}
                | {(b, a) for a, b in route.hops if {a, b} != {near, far}},
                near,
            )
        return self._sides[key]

    def publish(self, broker: str, topic: str) -> None:
        """A client publishes a message."""
        number = len(self.sent)
        self.sent.append((broker, topic, self.brokers[broker].version))
        self._ordered.append(self.agents[broker].orders.routes)
        self._excuse(broker, number)
        self.brokers[broker].publish(Message(number, topic))

    def deliver(self, broker: str, item: Item) -> None:
        """A far broker releases what a hop has sent."""
        if isinstance(item, Message):
            if item.copied:
                raise ProtocolError(
                    f"message {item.number} was forwarded from where something else had copied it to"
                )
            self.got[item.number, broker] += 1
            self._excuse(broker, item.number)
            if self.got[item.number, broker] > 1:
                raise ProtocolError(
                    f"message {item.number} of {self.sent[item.number]} came to {broker} twice"
                )
            if self.kinds and self.rng.random() < 0.02:
                elsewhere = self.rng.choice([name for name in self.names if name != broker])
                if self.brokers[elsewhere].up:
                    self.brokers[elsewhere].publish(item._replace(copied=True))
                    self.counts["copies"] += 1
        self.brokers[broker].publish(item)

    def _excuse(self, broker: str, number: int) -> None:
        """What comes while a broker has lost a session is lost with it."""
        there = self.brokers[broker]
        there.lost = {
            far for far in there.lost if far not in there.sessions and far in self.agents[broker].disks
        }
        if there.lost:
            self.excused.add(number)

    def expected(self, number: int) -> set[str]:
        """The brokers where a message must arrive."""
        broker, topic, version = self.sent[number]
        # With two controllers, a journal can have what no agent was ever told.
        routes = self._ordered[number] if self.counts["second"] else self.history
        for route in routes.values():
            if topic in route.filters and route.is_valid(version):
                return set(reachable(route.hops, broker)) - {broker}
        return set()

    # Steps.

    def run(self) -> Counter[str]:
        """Run all steps and check; returns how often what happened.

        Raises:
            ProtocolError: a message was lost or doubled, or a change hangs.
        """
        rng = self.rng
        steps = 0
        while (len(self.sent) < self.messages or self._left) and steps < 20_000:
            steps += 1
            chance = rng.random()
            if chance < 0.012 and len(self.sent) < self.messages:
                self._publish_some()
            elif chance < 0.015:
                self._change_target()
            elif chance < 0.03 and self._faults_left and (steps > 500 or chance < 0.016):
                if not self.controllers[0].settled() or chance < 0.02:
                    self._fault()
            else:
                self._step()
            self.learn()
        try:
            self._heal()
        except SplitError:
            self.counts["split"] += 1
            return self.counts
        self._settle()
        self._check()
        self.counts["steps"] += steps
        self.counts["messages"] += len(self.sent)
        self.counts["deliveries"] += len(self.got)
        self.counts["versions"] += self.versions()
        return self.counts

    def _publish_some(self) -> None:
        """Clients publish a few messages at one broker, mostly where a route takes them away."""
        rng = self.rng
        name, topic = rng.choice(self.names), rng.choice(TOPICS)
        routes = list(self.agents[name].orders.routes.values())
        if routes and rng.random() < 0.8:
            topic = rng.choice(rng.choice(routes).filters)
        for _ in range(rng.randint(1, 4)):
            if self.brokers[name].up:
                self.publish(name, topic)

    def _step(self) -> bool:
        """One step of a random kind."""
        rng = self.rng
        kind = rng.random()
        name = rng.choice(self.names)
        agent = self.agents[name]
        if kind < 0.12:
            return agent.work()
        if kind < 0.3:
            return self._talk(name)
        sessions = self.brokers[name].sessions
        far = rng.choice(list(sessions)) if sessions else None
        if agent.up and agent.disks and (far is None or rng.random() < 0.2):
            far = rng.choice(list(agent.disks))
        if far is None:
            return False
        if kind < 0.45:
            return agent.take(far)
        if kind < 0.75:
            return agent.advance(far)
        if kind < 0.88:
            return agent.acknowledge(far)
        session = sessions.get(far)
        if session is not None and session.acks and self.brokers[name].up:
            number = session.acks.popleft()
            if session.queue[0][0] != number:
                raise ProtocolError(f"{name} -> {far} acknowledges {number} out of order")
            session.queue.popleft()
            session.sent -= 1
            return True
        return False

    def _talk(self, name: str) -> bool:
        """A report or orders begin or end their way."""
        agent = self.agents[name]
        if self._wire and self.rng.random() < 0.6:
            to, what = self._wire.pop(self.rng.randrange(min(len(self._wire), 4)))
            self._receive(to, what)
            return True
        if not agent.up or not agent.linked or len(self._wire) > 30:
            return False
        for controller in self.controllers:
            if self.rng.random() < 0.5:
                self._wire.append((controller.epoch, agent.report()))
            else:
                orders = controller.orders_for(name)
                if orders is not None:
                    self._wire.append((name, (orders, controller.base_of(name))))
        return True

    def _receive(self, to: Any, what: Any) -> None:
        if isinstance(what, tuple):
            if self.agents[to].up and self.agents[to].linked:
                self.agents[to].receive(*what)
            return
        for controller in self.controllers:
            if controller.epoch == to:
                controller.receive(what)

    def _change_target(self) -> None:
        if self._left and (self.rng.random() < 0.15 or self.controllers[0].settled()):
            self._left -= 1
            self.target = random_target(self.rng, self.names, getattr(self, "target", {}))
            self.controllers[0].set_target(self.target)
            self.counts["changes"] += 1

    def _fault(self) -> None:
        """Something fails, or comes back."""
        rng = self.rng
        self._faults_left -= 1
        name = rng.choice(self.names)
        agent, broker = self.agents[name], self.brokers[name]
        down = [
            n
            for n in self.names
            if not self.agents[n].up or not self.brokers[n].up or not self.agents[n].linked
        ]
        if down and rng.random() < 0.4:
            self._restore(rng.choice(down))
            return
        kind = rng.choice(self.kinds)
        self.counts[kind] += 1
        if kind == "kill" and agent.up:
            agent.kill()
            agent.start()
        elif kind == "stop" and agent.up:
            agent.kill()
        elif kind == "broker" and broker.up:
            broker.up = False
            for far in list(broker.sessions):
                agent.lose_connection(far)
        elif kind == "link":
            agent.linked = False
        elif kind == "connection":
            for far in list(broker.sessions):
                agent.lose_connection(far)
        elif kind == "session" and broker.sessions:
            far = rng.choice(list(broker.sessions))
            agent.lose_connection(far)
            lost = broker.sessions.pop(far)
            self.excused |= {item.number for _, item in lost.queue if isinstance(item, Message)}
            broker.lost.add(far)
        elif kind == "controller":
            self.controllers[0] = self.new_controller(self.journal, f"{rng.getrandbits(40):x}")
        elif kind == "second":
            self._second_controller()

    def _second_controller(self) -> None:
        """A controller on an old copy of the journal begins, or ends."""
        rng = self.rng
        if len(self.controllers) > 1:
            del self.controllers[1:]
        elif not hasattr(self, "_copy"):
            self._copy = self.copy_journal(self.journal)
        else:
            second = self.new_controller(self._copy, f"{rng.getrandbits(40):x}")
            self.controllers.append(second)
            second.set_target(random_target(rng, self.names, {}))

    def _restore(self, name: str) -> None:
        if not self.agents[name].up:
            self.agents[name].start()
        self.agents[name].linked = True
        self.brokers[name].up = True

    def _heal(self) -> None:
        """Everything is up, and one controller is left: the first, or the one that took its place."""
        for name in self.names:
            self._restore(name)
        self._wire.clear()
        journals = [self.journal] + [controller.disk for controller in self.controllers[1:]]
        for journal in journals:
            for _ in range(50):
                if all(journal["epoch"] >= agent.epoch.number for agent in self.agents.values()):
                    break
                journal["epoch"] += 1  # it starts once more
            self.controllers = [self.new_controller(journal, f"{self.rng.getrandbits(40):x}")]
            for name in self.names:
                self.controllers[0].receive(self.agents[name].report())
            if not self.controllers[0].refused:
                return
        raise SplitError

    def _settle(self) -> None:
        """Go on until nothing moves."""
        idle = 0
        for _ in range(400):
            moved = False
            for name in self.names:
                agent = self.agents[name]
                orders = self.controllers[0].orders_for(name)
                if orders is not None:
                    agent.receive(orders, self.controllers[0].base_of(name))
                for _ in range(4):
                    moved |= agent.work()
                for far in list(agent.disks):
                    for _ in range(4):
                        moved |= agent.take(far)
                        moved |= agent.advance(far)
                        moved |= agent.advance(far)
                        moved |= agent.acknowledge(far)
                    session = self.brokers[name].sessions.get(far)
                    while session is not None and session.acks:
                        session.acks.popleft()
                        session.queue.popleft()
                        session.sent -= 1
                        moved = True
                self.controllers[0].receive(agent.report())
            self.controllers[0].tick()
            self.learn()
            idle = 0 if moved else idle + 1
            if idle > 3:
                return
        raise ProtocolError("it never comes to rest")

    def _check(self) -> None:
        if not self.controllers[0].settled():
            raise ProtocolError(f"a change hangs: {self.describe()}")
        for name, agent in self.agents.items():
            if set(agent.disks) != set(agent.wanted()):
                raise ProtocolError(f"{name} has hops that no route needs")
            for far, session in self.brokers[name].sessions.items():
                if session.queue:
                    raise ProtocolError(f"{name} -> {far} holds {len(session.queue)} messages for ever")
        for number in range(len(self.sent)):
            expected = self.expected(number)
            for name in self.names:
                count = self.got[number, name]
                if name in expected and count == 0 and number not in self.excused:
                    raise ProtocolError(f"message {number} of {self.sent[number]} is lost at {name}")
                if name not in expected and count:
                    raise ProtocolError(f"message {number} of {self.sent[number]} leaked to {name}")

    def describe(self) -> str:
        """The state of the controller, for a failure."""
        return str(self.controllers[0].disk)[:600]


def reachable(hops: Iterable[Hop], start: str) -> frozenset[str]:
    """The brokers that directed hops lead to from a broker, and itself."""
    following: dict[str, list[str]] = defaultdict(list)
    for near, far in hops:
        following[near].append(far)
    seen, stack = {start}, [start]
    while stack:
        for far in following[stack.pop()]:
            if far not in seen:
                seen.add(far)
                stack.append(far)
    return frozenset(seen)


def random_tree(rng: random.Random, names: list[str]) -> frozenset[Hop]:
    """A random tree over some brokers; some of its leaves only publish."""
    order = rng.sample(names, rng.randint(2, len(names)))
    hops: set[Hop] = set()
    degree: Counter[str] = Counter()
    for index in range(1, len(order)):
        ends = order[index], order[rng.randrange(index)]
        hops |= {ends, ends[::-1]}
        degree.update(ends)
    for leaf in [name for name in order if degree[name] == 1]:
        (parent,) = [far for near, far in hops if near == leaf]
        if degree[parent] > 1 and rng.random() < 0.25:
            hops.discard((parent, leaf))
    return frozenset(hops)


def random_target(rng: random.Random, names: list[str], before: Mapping[Filters, frozenset[Hop]]) -> Targets:
    """Other trees: all anew, or groups that merge, split, appear, vanish or get another tree."""
    if not before or rng.random() < 0.2:
        groups: dict[int, list[str]] = defaultdict(list)
        for topic in TOPICS:
            groups[rng.randrange(4)].append(topic)
        return {
            tuple(sorted(group)): random_tree(rng, names) for group in groups.values() if rng.random() < 0.85
        }
    target = dict(before)
    kind = rng.random()
    filters = rng.choice(sorted(target))
    hops = target.pop(filters)
    if kind < 0.35:
        target[filters] = random_tree(rng, names)
    elif kind < 0.55 and target:
        other = rng.choice(sorted(target))
        target.pop(other)
        target[tuple(sorted(filters + other))] = random_tree(rng, names)
    elif kind < 0.75 and len(filters) > 1:
        cut = rng.randint(1, len(filters) - 1)
        target[filters[:cut]] = hops if rng.random() < 0.5 else random_tree(rng, names)
        target[filters[cut:]] = random_tree(rng, names)
    elif kind < 0.85:
        pass  # it vanishes
    else:
        target[filters] = hops
        used = {topic for group in target for topic in group}
        free = sorted(set(TOPICS) - used)
        if free:
            target[(rng.choice(free),)] = random_tree(rng, names)
    return target


def search(
    seeds: Iterable[int], rules: Rules = ALL_RULES, make: Callable[..., Model] = Model, **options: Any
) -> tuple[Counter[str], list[str]]:
    """Run many seeds; returns what happened, and the failures with their seeds."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    for seed in seeds:
        try:
            counts += make(seed, rules, **options).run()
            counts["runs"] += 1
        except ProtocolError as failure:
            failures.append(f"seed {seed}: {failure}")
    return counts, failures


if __name__ == "__main__":
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    weakened = Rules(**dict.fromkeys(sys.argv[3:], False))
    totals, failed = search(range(first, first + int(sys.argv[1])), weakened)
    print(dict(totals), len(failed), "failed", *failed[:5], sep="\n")
