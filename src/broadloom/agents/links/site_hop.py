"""One outgoing hop of a site agent: a session at its own broker, one at a neighbour, and what is between."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from broadloom.agents.links.hop_forwarder import ByteBudget, DeadLetter, FarLimits, RouteForwarder
from broadloom.agents.links.hop_routing import CLOSED, MARKER, RoutePolicy
from broadloom.agents.links.hop_store import FAR, NEAR, HopStore
from broadloom.agents.links.ring_guard import EchoQueue, RingGuard
from broadloom.agents.links.route_orders import AgentOrders, HopReport, Route
from broadloom.agents.links.stamps import FleetKey, Stamp, Stamps
from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession, SessionHandler, stop_sessions
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import FAILED, PUBACK, PUBCOMP, PUBREC, Connack, Publish, acknowledgement
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX, ROUTE_STAMP
from broadloom.mqtt.topic_filters import FilterIndex, is_wild

if TYPE_CHECKING:
    from broadloom.deployment import Hop

LOG = logging.getLogger("broadloom.live")
MOST_IDENTIFIER = 268_435_455  # of a subscription
FORGET_SECONDS, OPEN_SECONDS, DELETE_SECONDS = 5.0, 2.0, 1.0
RETAINED_SECONDS = 30.0  # without any answer
BUSY = 100  # messages in flight
MOST_REFUSED = 1000  # filters that are reported
MOST_RETAINED_BYTES = 4 << 20  # of retained messages that wait in memory
MOST_NOTED = 1000  # superfluous lines in the file of filters
FENCE = f"{INTERNAL_PREFIX}fence"
LARGEST_ANSWER = 1 << 20  # bytes of a packet of a far broker, which sends acknowledgements only


@dataclass
class HopContext:
    """What all hops of one agent share.

    Attributes:
        key: the key of the fleet.
        stamps: writes and reads stamps.
        guard: stops what bridges made by hand bring back.
        budget: the bytes in flight.
        folder: the folder of the agent's state; None: nothing is kept.
        problem: called with a sentence that an operator should know.
        solved: called with the same sentence when that has ended.
        progressed: called when the report of a hop has changed.
        set_aside: keeps a message that a neighbour does not take.
        taken_over: called when another client takes over a session, with its broker and name.
        published: returns the version of the last marker that the broker has accepted.
        session_lost: called when the own broker has no session of a hop, and so no marker waits in it.
    """

    key: FleetKey
    folder: Path | None
    problem: Callable[[str], None]
    solved: Callable[[str], None]
    progressed: Callable[[], None]
    set_aside: Callable[[str, DeadLetter], None]
    taken_over: Callable[[str, str], None]
    published: Callable[[], int]
    session_lost: Callable[[], None]
    guard: RingGuard
    budget: ByteBudget = field(default_factory=ByteBudget)
    stamps: Stamps = field(init=False)

    def __post_init__(self) -> None:
        self.stamps = Stamps(self.key)


class SiteHop(SessionHandler):
    """Hop from an agent's own broker to a neighbour.

    Args:
        hop: the own broker and the neighbour.
        near: the endpoint of the own broker.
        far: the endpoint of the neighbour.
        context: what all hops share.
        adopts: whether to take over the sessions of an agent whose state is lost, if there are any; otherwise
            a new hop deletes what an earlier one has left.
    """

    def __init__(
        self, hop: Hop, near: Endpoint, far: Endpoint, context: HopContext, adopts: bool = False
    ) -> None:
        self.hop = hop
        self._context = context
        self._ends = (near, far)
        name = hop_client(hop)
        path = None if context.folder is None else context.folder / f"{name}.hop"
        self._filters_path = None if path is None else path.with_suffix(".filters")
        self.store = HopStore(path)
        if self.store.is_new:
            self.store.version = context.published()
        is_left = {end: not (adopts or self.store.has_begun(end)) for end in (NEAR, FAR)}
        self._forgotten: set[str] = set()  # brokers that have deleted the session
        self._near = ClientSession(hop[0], name, near, self, fresh=is_left[NEAR])
        self._far = ClientSession(hop[1], name, far, self, fresh=is_left[FAR], largest=LARGEST_ANSWER)
        counts: Counter[str] = Counter()
        self.policy = RoutePolicy(
            hop, self.store, context.key, context.stamps, counts, context.progressed, context.guard
        )
        self.forwarder = RouteForwarder(
            self.store,
            self.policy,
            counts,
            context.budget,
            self._near.pause,
            partial(context.set_aside, hop[1]),
            asyncio.get_running_loop().call_later,
        )
        self._echoes = EchoQueue(
            hop, context.guard, context.stamps, self.forwarder.arrive, asyncio.get_running_loop().call_later
        )
        self._guard = context.guard
        self._held = self._echoes.waiting
        self._routes: dict[int, Route] = {}
        self._ordered = -1
        self._wanted: dict[str, int] = {}
        self._subscribed: dict[str, int] = {}
        self._refused: set[str] = set()  # of these, those that the own broker refuses
        self._is_subscribed = False
        self._strays = _read_filters(self._filters_path)
        self._noted = len(self._strays)  # lines in the file of filters, at least
        self._index = FilterIndex(self._strays)  # of all subscriptions; strays can stay in it
        self._compared: set[str] = set()  # those that were compared with the others
        self._lock = asyncio.Lock()
        self._retained: set[int] = set()  # routes whose retained messages are to be sent

    def start(self) -> None:
        """Start to connect."""
        self._near.start()
        self._far.start()

    async def stop(self) -> None:
        """Disconnect; the brokers keep the sessions."""
        try:
            await stop_sessions(self._near, self._far)
        finally:
            self.forwarder.release_budget()
            self.store.close()

    async def drain(self, seconds: float) -> None:
        """Take no more messages, and finish those in flight if that does not take too long."""
        self.forwarder.closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.forwarder.in_flight:
                    await asyncio.sleep(0.005)

    async def forget(self, seconds: float = FORGET_SECONDS) -> list[str]:
        """End both sessions at the brokers; returns the brokers that could not be reached in these seconds.

        The files go first: if the process is killed meanwhile, what it left is not taken for a hop in use.
        """
        sessions = (self._near, self._far)
        try:
            await self._delete_files()
            await asyncio.gather(*(self._forget(session, seconds) for session in sessions))
        finally:
            await self.stop()
        return [session.broker for session in sessions if session.broker not in self._forgotten]

    async def _delete_files(self) -> None:
        """Delete the files of the hop, however long the disk refuses it."""
        text = f"files of the ended hop to {self.hop[1]!r} cannot be deleted, so its sessions stay for now"
        while True:
            try:
                self.store.delete()
                if self._filters_path is not None:
                    self._filters_path.unlink(missing_ok=True)
            except OSError:
                self._context.problem(text)
                await asyncio.sleep(DELETE_SECONDS)
            else:
                self._context.solved(text)
                return

    async def _forget(self, session: ClientSession, seconds: float) -> None:
        """End one session at its broker, unless the broker does not answer in time."""
        if session.broker in self._forgotten:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await session.up.wait()
        if session.up.is_set():
            await session.stop(forget=True)
            self._forgotten.add(session.broker)

    def is_closed(self, change: int, number: int) -> bool:
        """Whether all old routes of a change are closed in a round, and the neighbour has their messages."""
        return self.policy.closing.is_closed(change, number) and not self._is_finishing()

    def _is_finishing(self) -> bool:
        """Whether messages are in flight that came before the last route was closed."""
        if self.policy.closed_at and self.forwarder.has_finished(self.policy.closed_at):
            self.policy.closed_at = 0
        return self.policy.closed_at > 0

    def report(self) -> HopReport:
        """The state of the hop."""
        errors = [one.last_error for one in (self._near, self._far) if not one.up.is_set()]
        trip = self._far.round_trip
        return HopReport(
            self._near.up.is_set(),
            self._far.up.is_set(),
            self.store.version,
            len(self.forwarder.in_flight),
            self.forwarder.size,
            dict(self.forwarder.counts),
            next((text for text in errors if text), ""),
            None if trip is None else 1000 * trip,
            tuple(sorted(self._refused)[:MOST_REFUSED]),
        )

    # Routes and subscriptions.

    async def set_routes(self, routes: Mapping[int, Route], orders: AgentOrders) -> None:
        """Take over the routes that have this hop, and subscribe to their filters.

        Args:
            routes: these routes.
            orders: the orders of the agent.

        Raises:
            ConnectionError: the own broker is not connected.
        """
        if routes != self._routes or orders.version != self._ordered:
            self._note_retained(routes)
            self._routes = dict(routes)
            self._ordered = orders.version
            self.policy.set_routes(routes, orders.routes.keys(), orders.version)
            self._wanted = {text: _identifier(text) for route in routes.values() for text in route.filters}
            self._is_subscribed = False
            self.policy.has_overlaps |= self._adds_overlaps()
            self.forwarder.advance()
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._near.up.wait()
        except TimeoutError as error:
            raise ConnectionResetError(f"broker {self.hop[0]!r} is not connected") from error
        await self._subscribe()

    def _adds_overlaps(self) -> bool:
        """Whether a new subscription of the own broker's session can match a topic of another one."""
        new = self._wanted.keys() - self._compared
        for text in new:
            self._index.add(text)
        self._compared |= new
        return any(len(list(islice(self._index.meeting(text), 2))) > 1 for text in new)

    async def _subscribe(self) -> None:
        """Subscribe to what is wanted, then unsubscribe from the rest."""
        async with self._lock:
            if self._is_subscribed:
                return
            wanted = self._wanted
            missing = {text: number for text, number in wanted.items() if text not in self._subscribed}
            extra = [text for text in {*self._subscribed, *self._strays} if text not in wanted]
            if missing:
                self._remember_filters(missing)
                self._refused -= missing.keys()
                try:
                    await self._near.subscribe(missing, retained=False, identifiers=missing)
                except BrokerRefusedError as error:  # the other filters go on
                    self._refused.update(error.filters)
                    self._context.problem(f"messages do not leave {self.hop[0]!r}: {error}; allow it there")
                self._subscribed.update(missing)
            if extra:
                await self._near.unsubscribe(extra)
                for text in extra:
                    self._subscribed.pop(text, None)
                self._refused.difference_update(extra)
                self._strays = set()
                for text in self._compared.intersection(extra) - self._wanted.keys():
                    self._index.discard(text)
                    self._compared.discard(text)
            if self._noted > 2 * len(self._subscribed) + MOST_NOTED:
                self._noted = 0
                self._remember_filters(self._subscribed)
            self._is_subscribed = wanted is self._wanted

    def _remember_filters(self, filters: Collection[str]) -> None:
        """Add to what the session can be subscribed to, so that a restarted agent can end the rest."""
        if self._filters_path is None:
            return
        lines = "".join(f"{json.dumps(text)}\n" for text in filters)
        try:
            if self._noted:
                with self._filters_path.open("a", encoding="utf-8") as file:
                    file.write(lines)
            else:
                draft = self._filters_path.with_suffix(".new")
                draft.write_text(lines, encoding="utf-8")
                draft.replace(self._filters_path)
            self._noted += len(filters)
        except OSError as error:  # a subscription that nobody wants is dropped at this hop
            self._context.problem(f"{self._filters_path.name} cannot be written: {error.strerror}")

    def _note_retained(self, routes: Mapping[int, Route]) -> None:
        """Note the new routes for which this hop has to send retained messages."""
        self._retained = {number for number in self._retained if number in routes}
        for number in routes.keys() - self._routes.keys():
            if self._sends_retained(routes[number]):
                self._retained.add(number)

    def retained_due(self) -> list[Route]:
        """The routes in use for which this hop has to send retained messages to the neighbour."""
        routes = [self._routes[number] for number in sorted(self._retained)]
        version = self.store.version
        return [
            route
            for route in routes
            if route.until is None and route.since is not None and route.since <= version
        ]

    def _sends_retained(self, route: Route) -> bool:
        """Whether the neighbour is new in a route, and this hop is the one that brings it what is retained.

        Brokers that receive the route's messages all have the same, so one of them sends; one that only
        publishes sends its own. If all are new, each one sends its own.
        """
        start, end = self.hop
        if end not in route.fresh:
            return False
        if start in route.fresh:
            return all(broker in route.fresh for _, broker in route.hops)
        receiving = {w for w, u in route.hops if u == end and (end, w) in route.hops and w not in route.fresh}
        return start not in receiving or start == min(receiving)

    async def send_retained(self, routes: Sequence[Route]) -> None:
        """Send the retained messages of the topics of some routes to a neighbour that is new in them.

        Raises as `RetainedSender.run`.
        """
        near, far = self._ends
        route_of = {text: route for route in routes for text in route.filters}
        index = FilterIndex(route_of)
        stamps: dict[int, bytes] = {}

        def stamp_of(message: Publish) -> bytes | None:
            route = route_of[next(index.meeting(message.topic))]
            if self.hop[0] in route.fresh and self._comes_from(message, route):
                return None
            if route.number not in stamps:
                is_last = self.policy.ends_at(route)
                stamp = Stamp(self.hop[0], self.store.version, route.number, self.hop[1], True, is_last)
                stamps[route.number] = self._context.stamps.write(stamp)
            return stamps[route.number]

        sender = RetainedSender(self.hop, near, far, stamp_of)
        self.forwarder.counts["retained"] += await sender.run(route_of)
        if sender.left_out:
            self.forwarder.counts["retained_left_out"] += sender.left_out
            self._context.problem(
                f"broker {self.hop[1]!r} does not take {sender.left_out:,} retained messages of "
                f"{self.hop[0]!r}: they are too large, or it retains nothing"
            )
        self.skip_retained(routes)

    def skip_retained(self, routes: Iterable[Route]) -> None:
        """Send no more retained messages of some routes."""
        self._retained.difference_update(route.number for route in routes)

    def _comes_from(self, message: Publish, route: Route) -> bool:
        """Whether a retained message comes from another broker of a route, which sends it itself."""
        stamp = self._context.stamps.read(message.stamp) if message.stamp else None
        return stamp is not None and stamp.origin != self.hop[0] and stamp.origin in route.brokers()

    # Callbacks of the sessions.

    def connected(self, session: ClientSession, connack: Connack) -> None:
        """A session is connected."""
        if session is not self._near:
            return
        if not connack.present:
            self._subscribed.clear()
            self._is_subscribed = False
            self._strays = set()
            # Like a new hop: the markers so far are gone with the session.
            self.policy.raise_version(self._context.published())
            if self.store.has_begun(NEAR):
                self._context.session_lost()
        self.forwarder.near_opens(session.send, connack.present)

    async def opened(self, session: ClientSession, connack: Connack) -> None:
        """Subscribe at the own broker; let the hop send to the neighbour."""
        end = NEAR if session is self._near else FAR
        if not connack.present and self.store.has_begun(end):
            self._report_lost_session(session)
        self.store.begin(end)
        if session is self._near:
            await session.subscribe([MARKER, CLOSED], retained=False)
            self._subscribed.clear()  # a repeated subscription changes nothing
            self._is_subscribed = False
            await self._subscribe()
        else:
            self.forwarder.far_opens(session.send, connack)
        self._context.progressed()

    def closed(self, session: ClientSession) -> None:
        """A session has lost its connection."""
        if session is self._near:
            self._echoes.clear()
            self.forwarder.near_closes()
        else:
            self.forwarder.far_closes()
        self._context.progressed()

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """A message has arrived from the own broker."""
        if session is not self._near:
            return
        if self._guard.is_active or self._held:
            self._echoes.arrive(message)
        else:
            self.forwarder.arrive(message)

    def acknowledged(self, session: ClientSession, kind: int, number: int, reason: int) -> None:
        """The neighbour has acknowledged a message."""
        if session is not self._far:
            return
        if kind == PUBREC:
            self.forwarder.stored(number, reason)
        elif kind == PUBCOMP:
            self.forwarder.completed(number)
        elif kind == PUBACK:
            self.forwarder.acknowledged(number, reason)
        if self.policy.closed_at and not self._is_finishing():
            self._context.progressed()

    def is_busy(self) -> bool:
        """Whether many messages are in flight."""
        return len(self.forwarder.in_flight) >= BUSY

    def congested(self, session: ClientSession, full: bool) -> None:
        """The neighbour reads too slowly, or no longer."""
        if session is self._far:
            self.forwarder.set_congested(full)

    def disconnected(self, session: ClientSession, reason: int) -> None:
        """A broker ends a connection for a reason."""
        if session.is_taken_over:
            self._context.taken_over(session.broker, session.client)
        elif session is self._far:
            self.forwarder.far_blames(reason)

    def _report_lost_session(self, session: ClientSession) -> None:
        self.forwarder.counts["sessions_lost"] += 1
        what = (
            "what waited there is lost"
            if session is self._near
            else "messages in flight can arrive twice, or be lost there"
        )
        self._context.problem(
            f"broker {session.broker!r} no longer has the session of hop {self.hop[0]!r} to {self.hop[1]!r}: "
            f"{what}"
        )


async def end_session(broker: str, client: str, endpoint: Endpoint) -> None:
    """Have a broker delete a session, as soon as it can be reached."""
    session = ClientSession(broker, client, endpoint, SessionHandler(), kept=False, fresh=True)
    session.start()
    try:
        await session.up.wait()
    finally:
        await session.stop(forget=True)


class RetainedSender(SessionHandler):
    """Copies retained messages from one broker to another, for topics where the other one has none.

    Args:
        hop: the two brokers.
        near: the endpoint of the first one.
        far: the endpoint of the second one.
        stamp_of: the stamp of a message; None: it is not copied.
    """

    def __init__(
        self, hop: Hop, near: Endpoint, far: Endpoint, stamp_of: Callable[[Publish], bytes | None]
    ) -> None:
        client = hop_client(hop).replace("broadloom-", "broadloom-retained-", 1)
        self._near = ClientSession(hop[0], client, near, self, kept=False)
        self._far = ClientSession(hop[1], client, far, self, kept=False, largest=LARGEST_ANSWER)
        self._stamp_of = stamp_of
        self._topics: set[str] = set()  # that the second broker has, or gets now
        self._limits = FarLimits()
        self._waiting: deque[Publish] = deque()
        self._unfinished: dict[int, int] = {}  # packet ids, and bytes
        self._count = 0
        self.left_out = 0  # that the second broker does not take
        self._size = 0  # bytes of waiting and unfinished messages
        self._deadline: asyncio.Timeout | None = None

    async def run(self, filters: Iterable[str]) -> int:
        """Copy all retained messages of some filters; returns their number.

        Raises:
            TimeoutError: a broker does not answer in time.
            ConnectionError: a connection is lost.
            BrokerRefusedError: a broker refuses a subscription.
        """
        self._near.start()
        self._far.start()
        try:
            async with asyncio.timeout(RETAINED_SECONDS) as self._deadline:
                for session in (self._far, self._near):
                    await session.up.wait()
                    await session.subscribe(filters, retained=True)
                    # Brokers answer in order: when this is acknowledged, all retained messages have arrived.
                    await session.subscribe([FENCE], retained=False)
                while self._unfinished or self._waiting:
                    await asyncio.sleep(0.01)
        finally:
            self._deadline = None
            await stop_sessions(self._near, self._far)
        return self._count

    async def opened(self, session: ClientSession, connack: Connack) -> None:
        """Note what the second broker accepts."""
        if session is self._far:
            self._limits = FarLimits.of(connack)

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """A message has arrived; those that are not retained come by the hop itself."""
        self._progressed()
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))
        if not message.is_retained or message.topic.startswith("$") or message.topic in self._topics:
            return
        self._topics.add(message.topic)
        if session is self._near:
            self._waiting.append(message)
            self._size += len(message.raw)
            self._send()

    def acknowledged(self, session: ClientSession, kind: int, number: int, reason: int) -> None:
        """The second broker has a message, or refuses it."""
        self._progressed()
        if session is self._far and kind == PUBACK and number in self._unfinished:
            self._size -= self._unfinished.pop(number)
            self._count += reason < FAILED
            self.left_out += reason >= FAILED
            self._send()

    def _send(self) -> None:
        """Send as much as the second broker accepts at once; it retains nothing if it says so."""
        limits = self._limits
        while self._waiting and len(self._unfinished) < limits.quota:
            message = self._waiting.popleft()
            size = len(message.raw)
            stamp = self._stamp_of(message)
            if stamp is None:
                self._size -= size
                continue
            fits = size + 2 * len(stamp) < limits.largest
            if limits.retain and limits.quality and fits:
                properties = ((ROUTE_STAMP.encode(), stamp),)
                number = self._far.publish(message.topic, message.payload(), properties, retain=True)
                self._unfinished[number] = size
            else:
                self._size -= size
                self.left_out += 1
        self._near.pause(self._size > MOST_RETAINED_BYTES)

    def _progressed(self) -> None:
        """Give the brokers more time, while they answer."""
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(asyncio.get_running_loop().time() + RETAINED_SECONDS)


def hop_client(hop: Hop) -> str:
    """The client id of a hop's sessions, which is also the name of its files.

    Examples:
        >>> hop_client(("rome", "são paulo"))
        'broadloom-hop-rome-s_o_paulo-54b667ac1d'
    """
    names = "-".join(re.sub(r"[^A-Za-z0-9_.]", "_", name)[:24] for name in hop)
    digest = blake2b(json.dumps(hop).encode(), digest_size=5).hexdigest()
    return f"broadloom-hop-{names}-{digest}"


@lru_cache(1 << 17)
def _identifier(text: str) -> int:
    """The subscription identifier of a filter, which never changes; a topic without wildcards has none.

    A broker sends a message once per matching subscription. The identifiers tell these copies from equal
    messages: two filters that match one topic never have the same one, or none.
    """
    return 1 + crc32(text.encode()) % (MOST_IDENTIFIER - 1) if is_wild(text) else 0


def _read_filters(path: Path | None) -> set[str]:
    """The filters that the session of an earlier process can have, without a line that a crash has cut."""
    found = set[str]()
    try:
        lines = [] if path is None else path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, ValueError):
        return found
    for line in lines:
        with suppress(ValueError):
            found.add(str(json.loads(line)))
    return found
