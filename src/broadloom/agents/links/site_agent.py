"""Site agent: holds the outgoing hops of one broker, next to it, and carries out the controller's orders.

It keeps its orders on the disk and forwards on when the controller is away. Orders are a state to reach: open
the hops of all routes, then publish a marker if the version or a closing round is new.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import secrets
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from broadloom.agents.links.agent_files import OrdersFile, private, read_checked, write_checked
from broadloom.agents.links.copy_observer import CopyObserver
from broadloom.agents.links.hop_forwarder import ByteBudget, DeadLetter
from broadloom.agents.links.hop_routing import MARKER, Marker
from broadloom.agents.links.ring_guard import RingGuard
from broadloom.agents.links.route_orders import AgentOrders, AgentReport, Route
from broadloom.agents.links.site_hop import FORGET_SECONDS, HopContext, SiteHop, end_session, hop_client
from broadloom.agents.links.stamps import FleetKey
from broadloom.errors import InputError, StorageError, UnreachableError
from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession, SessionHandler, watched_task
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import FAILED, PUBACK, RETAIN_AVAILABLE, Connack, Publish, acknowledgement
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX
from broadloom.storage import lock_private_folder

LOG = logging.getLogger("broadloom.live")
PRESENCE = f"{INTERNAL_PREFIX}agent"
ASK, ANSWER = f"{PRESENCE}/ask", f"{PRESENCE}/answer"
START_SECONDS, ANSWER_SECONDS, RETRY_SECONDS, MARKER_SECONDS, STOP_SECONDS = 10.0, 1.0, 0.5, 5.0, 2.0
MOST_PROBLEMS = 50
RETAINED_ROUTES = 500  # whose retained messages are sent together
DEAD_LETTERS, MOST_DEAD_BYTES = "dead-letters.jsonl", 64 << 20
STATE = "agent.json"
_CODE = 32

EndpointOf = Callable[[str, "str | None"], Endpoint]


class StaleEpochError(InputError):
    """Orders of a controller that another one has replaced."""


class TakenOverError(UnreachableError):
    """Another agent of the same broker has taken over a session."""


@dataclass(frozen=True)
class AgentSettings:
    """Limits of a site agent.

    Attributes:
        hop_bytes: the most bytes in flight of one hop; a single larger message still passes.
        total_bytes: the most bytes in flight of all hops together.
    """

    hop_bytes: int = 16 << 20
    total_bytes: int = 96 << 20


class SiteAgent:
    """Agent that holds the outgoing hops of one broker.

    Args:
        broker: the broker.
        endpoint: the endpoint of a broker; its second argument is the address in the orders, or None.
        folder: the folder of its state.
        key: the key of the fleet.
        settings: its limits.

    Attributes:
        on_change: called when its report has changed.
        failed: done with an error when the agent has to end, because another one has taken over.
        filters: the topic filters that clients want at the broker; None: not known yet.
        round_trips: round-trip times to other brokers, in milliseconds.
        guard: stops copies that bridges made by hand bring.
        before_subscribing: awaited when the agent is connected to its broker, before it subscribes; None:
            nothing is.
    """

    def __init__(
        self,
        broker: str,
        endpoint: EndpointOf,
        folder: Path,
        key: FleetKey,
        settings: AgentSettings | None = None,
    ) -> None:
        limits = settings or AgentSettings()
        self.broker = broker
        self.on_change: Callable[[], None] = lambda: None
        self.before_subscribing: Callable[[], Awaitable[None]] | None = None
        self.instance = secrets.token_hex(8)
        self.counts: Counter[str] = Counter()
        self.filters: tuple[str, ...] | None = None
        self.round_trips: dict[str, float] = {}
        self._clients: tuple[str, ...] | None = None  # the filters of clients
        self._filters_number = 0
        self._endpoint = endpoint
        self._folder = folder
        self._key = key
        self._hops: dict[str, SiteHop] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._dying: set[SiteHop] = set()  # hops of these tasks
        self._sending: set[asyncio.Task[None]] = set()
        self._problems: dict[str, float] = {}  # when each began, in seconds since 1970
        self._unsaved = ""  # the problem of a state that could not be written
        self._failures: set[str] = set()  # problems that end when the orders are carried out
        self._left: set[tuple[str, str]] = set()  # sessions that could not be removed yet: broker, client
        self._addresses: dict[str, str | None] = {}  # of the neighbours that have or had a hop
        self._wake = asyncio.Event()
        self._lock: int | None = None
        self._file = OrdersFile(folder)
        self._orders = AgentOrders()
        self._wanted: dict[str, dict[int, Route]] = defaultdict(dict)  # routes by neighbour
        self._old: dict[int, set[str]] = {}  # neighbours of the old routes of each change
        self._opened = 0
        self._published = 0
        self._marked: Mapping[int, int] = {}  # rounds of the last marker
        self._marker_due = False
        self._marker_time = 0.0
        self._generation = 0  # of what the hops know about closing
        self._adopts = False
        self._state: dict[str, Any] = {}
        self._control = _Control(self)
        self._task: asyncio.Task[None] | None = None
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        clock = asyncio.get_running_loop().time
        self.guard = RingGuard(broker, clock, self.problem, self.solved, self._guard_changed)
        self._observer: CopyObserver | None = None
        self._context = HopContext(
            key,
            folder,
            self.problem,
            self.solved,
            self._progressed,
            self._set_aside,
            self._taken_over,
            lambda: self._published,
            self._session_lost,
            self.guard,
            ByteBudget(limits.hop_bytes, limits.total_bytes),
        )

    # Life.

    async def start(self, take_over: bool = False) -> None:
        """Continue from the state on the disk, once no other agent serves the broker.

        Args:
            take_over: whether to replace another agent, whose state is not in this folder.

        Raises:
            InputError: another agent serves the broker, or the state is damaged or in use.
            StorageError: the state cannot be read or written.
            UnreachableError: another agent has taken over meanwhile.
        """
        self._lock = lock_private_folder(self._folder)
        self._state = read_checked(self._folder / STATE)
        stored = self._file.load()
        if stored is not None:
            self._take(stored)
        self._published = int(self._state.get("published", 0))
        self._control.start(self._endpoint(self.broker, None))
        await self._control.check_presence(self._state.get("instance"), take_over)
        self._adopts = take_over and stored is None
        self._addresses = dict(self._state.get("neighbours", {}))
        self._save_state()
        for neighbour in self._addresses:
            if not (self._folder / f"{hop_client((self.broker, neighbour))}.hop").exists():
                self._ending[neighbour] = watched_task(self._end_sessions(neighbour, None))
        self._task = watched_task(self._reconcile())
        self._wake.set()

    async def stop(self) -> None:
        """Finish the messages in flight, and disconnect; brokers keep the sessions, so nothing is lost."""
        await self._cancel()
        hops = self._hops.values()
        await asyncio.gather(*(hop.drain(STOP_SECONDS) for hop in hops))
        await asyncio.gather(*(hop.stop() for hop in (*hops, *self._dying)))
        await self._control.stop()
        self._unlock()

    async def forget(self, seconds: float = FORGET_SECONDS) -> list[tuple[str, str]]:
        """End all sessions at brokers; returns those that could not be removed: broker and client.

        Args:
            seconds: how long to wait for brokers that are away.
        """
        dying = {hop.hop[1]: hop for hop in self._dying}
        await self._cancel()
        hops = list({**dying, **self._hops}.values())
        left = await asyncio.gather(*(hop.forget(seconds) for hop in hops))
        for hop, brokers in zip(hops, left, strict=True):
            self._left |= {(broker, hop_client(hop.hop)) for broker in brokers}
        self._hops.clear()
        await self._control.stop()
        self._unlock()
        return sorted(self._left)

    async def _cancel(self) -> None:
        tasks = [task for task in (self._task, *self._sending, *self._ending.values()) if task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._observer is not None:
            await self._observer.stop()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Orders and reports.

    def apply(self, orders: AgentOrders) -> None:
        """Store orders, and begin to carry them out.

        Raises:
            StaleEpochError: a newer controller, or another one of the same number, has given orders before.
            StorageError: the orders cannot be stored; the agent goes on with those that it has.
        """
        seen = self._orders.epoch
        if not seen.yields_to(orders.epoch):
            self.counts["stale_orders"] += 1
            raise StaleEpochError(
                f"orders of controller {orders.epoch.controller} (epoch {orders.epoch.number}) are refused: "
                f"agent {self.broker!r} obeys {seen.controller} (epoch {seen.number})"
            )
        if orders.epoch == seen and orders.number <= self._orders.number:
            return
        orders = orders.sharing(self._orders)
        self._file.store(orders)
        self._take(orders)
        if self.guard.is_active:
            self.set_filters(self._clients)
        self._wake.set()

    def _take(self, orders: AgentOrders) -> None:
        """Take over orders; work for thousands of routes that stay as they are would hold up messages."""
        before = self._orders.routes
        for number, route in before.items():
            if orders.routes.get(number) is not route:
                for neighbour in self._ends_of(route):
                    del self._wanted[neighbour][number]
        for number, route in orders.routes.items():
            if before.get(number) is not route:
                for neighbour in self._ends_of(route):
                    self._wanted[neighbour][number] = route
        self._old = defaultdict(set)
        for route in orders.routes.values():
            if route.until is not None:
                self._old[route.until + 1].update(self._ends_of(route))
        self._orders = orders

    def _ends_of(self, route: Route) -> list[str]:
        """The neighbours to which this broker has a hop of a route."""
        return [end for start, end in route.hops if start == self.broker]

    def report(self, with_routes: bool = False) -> AgentReport:
        """The state of the agent."""
        orders = self._orders
        return AgentReport(
            self.broker,
            f"{self.instance}.{self._generation}",
            orders.epoch,
            orders.number,
            self._opened,
            self._published,
            min((hop.store.version for hop in self._hops.values()), default=self._published),
            {change: number for change, number in orders.rounds.items() if self._is_closed(change, number)},
            self._control.session.up.is_set(),
            {neighbour: hop.report() for neighbour, hop in self._hops.items()},
            tuple(self._problems),
            self.filters,
            self._filters_number,
            dict(self.round_trips),
            dict(self.counts),
            tuple(orders.routes.values()) if with_routes else None,
            tuple(self._problems.values()),
            tuple(sorted(self._ending)),
        )

    @property
    def orders(self) -> AgentOrders:
        """The orders that it carries out."""
        return self._orders

    def set_filters(self, filters: tuple[str, ...] | None) -> None:
        """Take over what clients want at the broker; None: not known yet.

        While a bridge made by hand brings copies, the broker wants all topics of its routes too: a copy is
        recognised by the message itself, which a broker that only publishes would not get.
        """
        self._clients = filters
        if filters is None:
            return
        if self.guard.is_active:
            routes = [route for route in self._orders.routes.values() if route.until is None]
            filters = tuple(sorted({*filters, *(text for route in routes for text in route.filters)}))
        if filters != self.filters:
            self.filters = filters
            self._filters_number += 1
            self.on_change()

    def set_round_trips(self, found: Mapping[str, float]) -> None:
        """Take over round-trip times to other brokers, in milliseconds."""
        self.round_trips.update(found)
        self.on_change()

    def _guard_changed(self) -> None:
        self.set_filters(self._clients)
        self._progressed()

    def set_foreign_bridges(self, names: Collection[str]) -> None:
        """Take over the bridges made by hand that the broker has; they can bring messages back."""
        self.guard.set_bridges(names)

    def problem(self, text: str) -> None:
        """Report a problem to the operator: one log line, one line in the status."""
        self.counts["problems"] += 1
        if text not in self._problems:
            LOG.warning("%s", text)
            self._problems[text] = round(time.time(), 3)
            if len(self._problems) > MOST_PROBLEMS:
                del self._problems[next(iter(self._problems))]
            self.on_change()

    def solved(self, text: str) -> None:
        """Remove a problem from the status, because it has ended."""
        if self._problems.pop(text, None) is not None:
            LOG.info("solved: %s", text)
            self.on_change()

    def _is_closed(self, change: int, number: int) -> bool:
        """Whether no message of the trees before a change can leave this broker any more."""
        if self._published < change:
            return False
        hops = [self._hops.get(neighbour) for neighbour in self._old.get(change, ())]
        return all(hop is not None and hop.is_closed(change, number) for hop in hops)

    def _session_lost(self) -> None:
        """A session without its markers: publish one more, and have closing begin again."""
        self._generation += 1
        self._marker_due = True
        self._progressed()

    def _progressed(self) -> None:
        if self._task is not None:
            self._wake.set()
        self.on_change()

    # Carrying out orders.

    async def _reconcile(self) -> None:
        """Carry out the orders whenever something has changed."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(MARKER_SECONDS):  # wait_for can swallow a cancellation
                    await self._wake.wait()
            self._wake.clear()
            self.guard.check()
            try:
                await self._reach(self._orders)
                if self._file.is_long:
                    await self._file.compact()
                while self._failures:
                    self.solved(self._failures.pop())
            except (OSError, BrokerRefusedError, TimeoutError, StorageError, InputError) as error:
                if not isinstance(error, ConnectionError):
                    text = f"orders of agent {self.broker!r} cannot be carried out: {error}"
                    self.problem(text)
                    self._failures = (self._failures & self._problems.keys()) | {text}
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _reach(self, orders: AgentOrders) -> None:
        wanted = {neighbour: dict(routes) for neighbour, routes in self._wanted.items() if routes}
        for neighbour in self._hops.keys() - wanted.keys():
            self._end_hop(neighbour)
        failures: list[BaseException] = []  # of some hops, after all others are open
        for neighbour in sorted(wanted.keys() - self._hops.keys()):
            try:
                await self._open_hop(neighbour, orders.addresses.get(neighbour))
            except (InputError, StorageError) as error:
                failures.append(error)
        await self._control.session.up.wait()
        hops = [(self._hops[neighbour], wanted[neighbour]) for neighbour in wanted.keys() & self._hops.keys()]
        results = await asyncio.gather(
            *(hop.set_routes(routes, orders) for hop, routes in hops), return_exceptions=True
        )
        failures += [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]
        if self._opened != orders.number:
            self._opened = orders.number
            self.on_change()
        if orders.version > self._published or self._is_marker_due(orders):
            await self._publish_marker(orders)
        for hop in self._hops.values():
            self._send_retained(hop)
        await self._observe(orders)

    async def _observe(self, orders: AgentOrders) -> None:
        """See all messages of the routes at once, while the guard is active."""
        if self._observer is None:
            if not self.guard.is_active:
                return
            endpoint = self._endpoint(self.broker, None)
            self._observer = CopyObserver(self.broker, endpoint, self.guard, self._context.stamps)
        filters = {text for route in orders.routes.values() for text in route.filters}
        await self._observer.observe(filters if self.guard.is_active else ())

    async def _open_hop(self, neighbour: str, address: str | None) -> None:
        ending = self._ending.pop(neighbour, None)
        if ending is not None:
            await _end_task(ending)  # a new hop deletes what an earlier one has left
            for earlier in [hop for hop in self._dying if hop.hop[1] == neighbour]:
                await earlier.stop()  # it would take over the sessions of the new hop
                self._dying.discard(earlier)
        near = self._endpoint(self.broker, None)
        far = self._endpoint(neighbour, address)
        hop = SiteHop((self.broker, neighbour), near, far, self._context, self._adopts)
        self._hops[neighbour] = hop
        self._addresses[neighbour] = address
        self._save_state()
        hop.start()

    def _end_hop(self, neighbour: str) -> None:
        """End a hop that no route uses, in the background."""
        hop = self._hops.pop(neighbour)
        self._dying.add(hop)
        self._ending[neighbour] = watched_task(self._end_sessions(neighbour, hop))

    async def _end_sessions(self, neighbour: str, hop: SiteHop | None) -> None:
        """Have both brokers of a hop delete its sessions, however long one of them is away."""
        ends = {self.broker: None, neighbour: self._addresses.get(neighbour)}
        client = hop_client((self.broker, neighbour))
        left = list(ends)
        if hop is not None:
            left = await hop.forget()
            self._dying.discard(hop)
        for broker in left:
            self._left.add((broker, client))
            text = f"session {client} is still at broker {broker!r}, which does not answer"
            self.problem(text)
            await end_session(broker, client, self._endpoint(broker, ends[broker]))
            self.solved(text)
            self._left.discard((broker, client))
        self._ending.pop(neighbour, None)
        self._addresses.pop(neighbour, None)
        self._save_state()
        self.on_change()

    def _is_marker_due(self, orders: AgentOrders) -> bool:
        """Whether a round has no marker yet, or a marker seems lost on a hop that works."""
        if self._marker_due:
            return True
        rounds = {change: number for change, number in orders.rounds.items() if change <= self._published}
        if any(self._marked.get(change) != number for change, number in rounds.items()):
            return True
        if asyncio.get_running_loop().time() - self._marker_time < MARKER_SECONDS:
            return False
        for hop in self._hops.values():
            state = hop.report()
            if state.near_up and state.far_up and state.version < self._published:
                return True
        return any(not self._is_closed(change, number) for change, number in rounds.items())

    async def _publish_marker(self, orders: AgentOrders) -> None:
        """Publish a marker at the own broker; its version counts once the broker has accepted it."""
        self._marker_due = False
        marker = Marker(self.broker, max(orders.version, self._published), orders.rounds)
        await self._control.publish(MARKER, marker.write(self._key))
        self._marker_time = asyncio.get_running_loop().time()
        self._marked = dict(orders.rounds)
        if marker.version > self._published:
            self._published = marker.version
            self._save_state()
        self.on_change()

    def _send_retained(self, hop: SiteHop) -> None:
        """Send retained messages to a neighbour that is new in a tree, in the background."""
        name = hop.hop[1]
        if hop.retained_due() and name not in {task.get_name() for task in self._sending}:
            task = asyncio.create_task(self._send_retained_over(hop), name=name)
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send_retained_over(self, hop: SiteHop) -> None:
        """Send what is due, many routes at a time; a route that a broker refuses is left out."""
        most = RETAINED_ROUTES
        failures: set[str] = set()
        while hop is self._hops.get(hop.hop[1]) and (due := hop.retained_due()[:most]):
            try:
                await hop.send_retained(due)
                while failures:
                    self.solved(failures.pop())
            except BrokerRefusedError as error:
                if len(due) == 1:
                    self.problem(f"retained messages do not reach broker {hop.hop[1]!r}: {error}")
                    hop.skip_retained(due)
                most = max(1, len(due) // 2)
            except (OSError, TimeoutError) as error:
                reason = str(error) or "no answer"
                text = f"retained messages do not reach broker {hop.hop[1]!r} yet: {reason}"
                failures.add(text)
                self.problem(text)
                await asyncio.sleep(RETRY_SECONDS * 10)

    # What goes wrong.

    def _taken_over(self, broker: str, client: str) -> None:
        text = (
            f"another client has taken over session {client} at broker {broker!r}: a second agent of broker "
            f"{self.broker!r} runs somewhere, so this one ends"
        )
        self.counts["taken_over"] += 1
        LOG.error("%s", text)
        if not self.failed.done():
            self.failed.set_exception(TakenOverError(text))
            self.failed.exception()

    def _broker_crashed(self) -> None:
        """The own broker has ended without publishing the will of the agent's connection: it was killed."""
        incoming = {
            start for route in self._orders.routes.values() for start, end in route.hops if end == self.broker
        }
        sessions = len(self._hops) + len(incoming)
        self.counts["broker_crashes"] += 1
        self.counts["sessions_rolled_back"] += sessions
        self.problem(
            f"broker {self.broker!r} was killed or has crashed (crash {self.counts['broker_crashes']} since "
            f"its agent started) and is back with the state that it saved last: {sessions} sessions of hops "
            "there can have lost messages, or bring some a second time"
        )

    def _set_aside(self, neighbour: str, letter: DeadLetter) -> None:
        """Keep a message that a neighbour does not take."""
        self.problem(
            f"broker {neighbour!r} does not take a message: {letter.reason}; it is in {DEAD_LETTERS}"
        )
        record = {
            "to": neighbour,
            "topic": letter.topic,
            "reason": letter.reason,
            "packet": base64.b64encode(letter.packet).decode(),
        }
        line = json.dumps(record) + "\n"
        path = self._folder / DEAD_LETTERS
        try:
            size = path.stat().st_size if path.exists() else 0
            if size + len(line) > MOST_DEAD_BYTES:
                raise OSError(None, f"it has {size:,} bytes already")
            with open(path, "a", encoding="utf-8", opener=private) as file:
                file.write(line)
        except OSError as error:
            self.counts["dead_letters_lost"] += 1
            self.problem(f"{DEAD_LETTERS} cannot take a message, which is lost: {error.strerror}")

    def _save_state(self) -> None:
        self._state = {
            "instance": self.instance,
            "published": self._published,
            "neighbours": self._addresses,
        }
        try:
            write_checked(self._folder / STATE, self._state)
            self.solved(self._unsaved)
        except StorageError as error:
            self._unsaved = f"{error}; the agent goes on"
            self.problem(self._unsaved)


class _Control(SessionHandler):
    """Session of an agent at its own broker, for markers and for its presence."""

    def __init__(self, agent: SiteAgent) -> None:
        self._agent = agent
        self._acknowledgements: dict[int, asyncio.Future[int]] = {}
        self._present: dict[str, Any] | None = None
        self._question = ""
        self._is_answered = False
        self._serves = False
        self._retains = True  # whether the broker keeps retained messages
        self._connection = 0  # the number of the present connection, or of the next one
        self._accepted = 0  # the last one that the broker has accepted
        self._has_started = False
        self._check: asyncio.Task[None] | None = None  # whether an agent that has just started takes over
        self.session: ClientSession

    def start(self, endpoint: Endpoint) -> None:
        """Start to connect, under a name that no other agent uses until this one is alone."""
        agent = self._agent
        self._has_started = True
        self.session = ClientSession(
            agent.broker,
            f"broadloom-agent-{_safe(agent.broker)}-{agent.instance}",
            replace(endpoint, keep_alive=min(endpoint.keep_alive, 5)),
            self,
            kept=False,
            will=(PRESENCE, self._presence("offline")),
        )
        self.session.start()

    async def stop(self) -> None:
        """Say that the agent has stopped, and disconnect; nothing if its state was refused at the start."""
        if not self._has_started:
            return
        if self._check is not None:
            await _end_task(self._check)
        if self.session.up.is_set() and self._is_mine():
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.publish(PRESENCE, self._presence("offline"), retain=self._retains)
        await self.session.stop()

    async def publish(self, topic: str, payload: bytes, retain: bool = False) -> None:
        """Publish, and wait until the broker has the message.

        Raises:
            ConnectionError: the connection is lost.
            BrokerRefusedError: the broker refuses it.
        """
        number = self.session.publish(topic, payload, retain=retain)
        answer = self._acknowledgements[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(START_SECONDS):
                reason = await answer
        finally:
            self._acknowledgements.pop(number, None)
        if reason >= FAILED:
            raise BrokerRefusedError(
                f"broker {self._agent.broker!r} refuses topic {topic} ({reason:#x}); "
                f"give the agent's login the right to read and write {INTERNAL_PREFIX}#"
            )

    async def check_presence(self, last: str | None, take_over: bool) -> None:
        """Make sure that no other agent serves the broker, then say that this one does.

        Raises:
            InputError: another agent serves it, or has served it since this state was written.
        """
        try:
            async with asyncio.timeout(START_SECONDS):
                await self.session.up.wait()
        except TimeoutError:
            # The broker is away, so nobody serves it now; the check is made up when it is back.
            text = (
                f"broker {self._agent.broker!r} does not answer ({self.session.last_error}); waiting for it"
            )
            self._agent.problem(text)
            await self.session.up.wait()
            self._agent.solved(text)
        found = self._present
        if found is not None and found.get("instance") != self._agent.instance and not take_over:
            if found.get("state") == "online":
                await self._ask(found)
            if found.get("instance") != last:
                raise InputError(
                    f"another agent ({found.get('where')}) has served broker {self._agent.broker!r} since "
                    f"the state in {self._agent._folder} was written; use that agent's state, or --take-over"
                )
        await self.publish(PRESENCE, self._presence("online"), retain=self._retains)
        self._accepted = self._connection
        self._serves = True
        self._present = None

    async def _ask(self, found: Mapping[str, Any]) -> None:
        """Ask an agent that seems to be there; an answer to this very question means that it is."""
        self._question = secrets.token_hex(16)
        self._is_answered = False
        await self.publish(ASK, self._presence("ask", self._question))
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                while not self._is_answered:
                    await asyncio.sleep(0.01)
        if self._is_answered:
            raise InputError(
                f"another agent ({found.get('where')}) serves broker {self._agent.broker!r}; stop it first"
            )

    def _presence(self, state: str, question: str = "") -> bytes:
        where = f"{socket.gethostname()}, process {os.getpid()}"
        value = {
            "state": state,
            "broker": self._agent.broker,
            "question": question,
            "instance": self._agent.instance,
            "where": where,
            "connection": self._connection,
        }
        text = json.dumps(value).encode()
        return self._agent._key.mac(b"agent", text) + text

    def _is_mine(self) -> bool:
        return self._present is None or self._present.get("instance") == self._agent.instance

    # Callbacks of the session.

    async def opened(self, session: ClientSession, connack: Connack) -> None:
        """Read the presence of other agents; after a lost connection, say again that this one serves."""
        self._retains = connack.properties.get(RETAIN_AVAILABLE, 1) != 0
        if not self._retains:
            self._agent.problem(
                f"broker {session.broker!r} retains no messages, so a second agent is noticed only when it "
                "takes over a session"
            )
        if self._agent.before_subscribing is not None:
            await self._agent.before_subscribing()
        self._present = None
        await session.subscribe([PRESENCE], retained=True)
        await session.subscribe([ASK, ANSWER], retained=False)
        if self._serves:
            if await self._is_taken_over():
                self._agent._taken_over(session.broker, session.client)
                return
            if self._retains and not self._has_ended_orderly():
                self._agent._broker_crashed()
            self._accepted = self._connection
            session.publish(PRESENCE, self._presence("online"), retain=self._retains)
        self._agent._progressed()

    def _has_ended_orderly(self) -> bool:
        """Whether the broker knows of the end of the last connection: it has published its will."""
        found = self._present
        return (
            found is not None
            and self._is_mine()
            and found["state"] == "offline"
            and found.get("connection", 0) >= self._accepted
        )

    async def _is_taken_over(self) -> bool:
        """Whether another agent serves the broker; a broker that was killed can tell of an old one."""
        found = self._present
        if found is None or self._is_mine() or found["state"] != "online":
            return False
        try:
            await self._ask(found)
        except InputError:
            return True
        return False

    async def _end_if_taken_over(self) -> None:
        """End this agent if another one, started with `take_over`, serves the broker."""
        checked: dict[str, Any] | None = None
        try:
            while checked is not self._present:  # others can start during the check
                checked = self._present
                if await self._is_taken_over():
                    self._agent._taken_over(self.session.broker, self.session.client)
                    return
        except BrokerRefusedError as error:
            self._agent.problem(str(error))
        except (OSError, TimeoutError):
            pass  # the check is made up when the connection is back

    def closed(self, session: ClientSession) -> None:
        """The connection is lost: nothing is known of what was on its way."""
        self._connection += 1
        session.will = (PRESENCE, self._presence("offline"))
        for answer in self._acknowledgements.values():
            if not answer.done():
                answer.set_exception(ConnectionResetError(f"broker {session.broker!r} is disconnected"))
                answer.exception()
        self._agent._progressed()

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """A message of another agent of this broker, or of this one; those of other brokers are copies."""
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))
        payload = message.payload()
        text = payload[_CODE:]
        if not self._agent._key.verifies(b"agent", text, payload[:_CODE]):
            return
        value = json.loads(text)
        if value.get("broker") != self._agent.broker:
            return
        if message.topic == PRESENCE:
            self._present = value
            # At the start of a connection, `opened` looks at what the broker has kept.
            is_new = session.up.is_set() and value["state"] == "online"
            is_checking = self._check is not None and not self._check.done()
            if self._serves and is_new and not is_checking and not self._is_mine():
                self._check = asyncio.create_task(self._end_if_taken_over())
        elif message.topic == ASK and value["instance"] != self._agent.instance:
            self._agent.counts["asked"] += 1
            session.publish(ANSWER, self._presence("online", value["question"]))
        elif message.topic == ANSWER and value["instance"] != self._agent.instance:
            self._is_answered |= value["question"] == self._question

    def acknowledged(self, session: ClientSession, kind: int, number: int, reason: int) -> None:
        """The broker has a message."""
        answer = self._acknowledgements.get(number)
        if session is self.session and kind == PUBACK and answer is not None and not answer.done():
            answer.set_result(reason)


async def _end_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", name)[:24]
