"""Relay of ordinary MQTT clients while they move between brokers.

An ordinary client (any library, MQTT 3.1, 3.1.1 or 5) is moved without knowing it. Its session at the foreign
broker exists before it leaves home, so both brokers queue messages for it for a moment. While it moves, the
router sends it to this relay. The relay connects it to the foreign broker with its own CONNECT, sends it what
still waits at home, and leaves out of the foreign session what it has received at home already.

The relay stores nothing. A message from home is acknowledged there when the client has acknowledged it, and
so is one of the foreign broker. If the relay ends, nothing is lost; some messages can arrive twice.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from broadloom.agents.monitoring import RateLimitedLog
from broadloom.agents.moves.broker_sessions import forget, replicate_session
from broadloom.errors import UnreachableError
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.packets import (
    CONNACK,
    DISCONNECT,
    FAILED,
    LAST_ID,
    PING,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
    ProtocolError,
    acknowledgement,
    connect,
    disconnect,
    publish,
)
from broadloom.mqtt.paho import request_once
from broadloom.mqtt.relayed_packets import (
    MQTT_5,
    ConnectRequest,
    RelayedPublish,
    number_of,
    read_any_publish,
    read_connect,
    read_packet,
    subscribe_plainly,
    unsubscribe_plainly,
    with_number,
)
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX, MOVE_AGENT
from broadloom.mqtt.topic_filters import QosFilters

log = logging.getLogger("broadloom.agents.moves")

MOST_PACKET = 16 << 20  # bytes of a packet that is relayed
MOST_CONNECTIONS = 2_000
FIRST_SECONDS = 10.0  # for the CONNECT of a client
ANSWER_SECONDS = 10.0  # for an answer of a broker
CUT_SECONDS = 5.0  # until what waits at home is known
# A client leaves home shortly after a message, or when none has come for a while.
SHORTEST_PAUSE, LONGEST_PAUSE, IDLE_SECONDS, MOST_PAUSE = 0.01, 0.05, 1.5, 3.0
HELD_SECONDS = 30.0  # for which the session at home is held for a client that does not come
CLOSING_SECONDS = 5.0
KEEP_ALIVE = 60
MOST_WAITING = 1_000  # unacknowledged messages of the session at home
FOR_EVER = 0xFFFF_FFFF
EARLY, LAST = b"early", b"last"  # fences in the foreign session
DAY = 24 * 3600


def content_digest(topic: bytes, payload: bytes) -> bytes:
    """The digest of a message; two messages with the same content are interchangeable."""
    return blake2b(payload, digest_size=16, key=blake2b(topic, digest_size=32).digest()).digest()


class KnownContents:
    """The contents that home has handled and that the foreign session has too, to be left out of it.

    A message takes at most `settle` seconds longer to one broker than to the other. So those that reached
    home more than that before the foreign session was prepared are not in it, and those more than that after
    it are. In between that is open. Such a message counts if its content is unique, and only up to the *early
    fence*, twice `settle` after the session was prepared; the client leaves home `settle` after that at the
    earliest. So an equal message before the early fence would have been seen at home, too. An equal message
    that is left open arrives twice, rather than never.

    Args:
        witnessed: digests and times of the messages at home, in order.
        prepared: when the foreign session was prepared.
        settle: the most seconds between the arrivals of a message at the two brokers.

    Examples:
        >>> equal = [(b"on", 0.0), (b"on", 1.9), (b"on", 3.0)]
        >>> known = KnownContents([*equal, (b"a", 1.9), (b"b", 0.5)], prepared=2.0, settle=1.0)
        >>> [known.takes(content) for content in (b"on", b"on", b"a", b"a", b"b")]
        [True, False, True, False, False]
    """

    def __init__(
        self, witnessed: Sequence[tuple[bytes, float]] = (), prepared: float = 0.0, settle: float = 0.0
    ) -> None:
        times = Counter(digest for digest, _ in witnessed)
        self._sure = Counter(digest for digest, at in witnessed if at >= prepared + settle)
        self._open = Counter(
            digest
            for digest, at in witnessed
            if prepared - settle <= at < prepared + settle and times[digest] == 1
        )

    def takes(self, digest: bytes) -> bool:
        """Whether a message of the foreign session is one that home has handled."""
        for counts in (self._sure, self._open):
            if counts[digest] > 0:
                counts[digest] -= 1
                return True
        return False

    def pass_early_fence(self) -> None:
        """The early fence has come."""
        self._open.clear()

    def clear(self) -> None:
        """From now on, the client gets everything of the foreign session."""
        self._sure.clear()
        self._open.clear()


class SessionReader:
    """Connection that reads a session, and acknowledges its messages one by one (MQTT 5).

    Args:
        address: the broker.
        login: the login of the agent.
        client: the client whose session it is.
        clean: whether to begin a new session, which ends with the connection.
        expiry: seconds for which the broker keeps the session afterwards.
        window: the most unacknowledged messages.
        received: called with each message.
    """

    def __init__(
        self,
        address: Address,
        login: Login,
        client: str,
        received: Callable[[RelayedPublish], None],
        clean: bool = False,
        expiry: int = 0,
        window: int = MOST_WAITING,
    ) -> None:
        self._address = address
        self._login = login
        self._connect = connect(client, clean, KEEP_ALIVE, expiry, window, login)
        self._received = received
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._answers: asyncio.Queue[int] = asyncio.Queue()
        self._numbers = 0

    @property
    def is_up(self) -> bool:
        """Whether the connection is open."""
        return self._writer is not None and not self._writer.is_closing()

    async def open(self, pause: Callable[[], Awaitable[None]] | None = None) -> bool:
        """Connect; returns whether the broker had a session of the client.

        Args:
            pause: awaited when the connection is ready, right before the broker is told whose it is.

        Raises:
            UnreachableError: the broker does not answer, or refuses.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                stream, self._writer = await asyncio.open_connection(
                    self._address.hostname, self._address.port, ssl=self._login.tls()
                )
                if pause is not None:
                    await pause()
                self._writer.write(self._connect)
                answer = await read_packet(stream, MOST_PACKET)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ProtocolError) as error:
            self.close()
            raise UnreachableError(f"{self._address} does not answer: {error!r:.80}") from error
        if answer[0] != CONNACK or answer[3]:
            self.close()
            raise UnreachableError(f"{self._address} refuses the agent: {answer[3]:#04x}")
        self._tasks = [asyncio.create_task(self._read(stream)), asyncio.create_task(self._ping())]
        return bool(answer[2] & 1)

    async def subscribe(self, filters: QosFilters) -> None:
        """Subscribe, without retained messages.

        Raises:
            UnreachableError: the broker does not answer, or refuses a filter.
        """
        self._numbers += 1
        self._write(subscribe_plainly(self._numbers, filters))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                worst = await self._answers.get()
        except TimeoutError as error:
            raise UnreachableError(f"{self._address} does not answer a subscription") from error
        if worst >= 0x80:
            raise UnreachableError(f"{self._address} refuses a subscription of the agent: {worst:#04x}")

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a message at QoS 1."""
        self._numbers += 1
        self._write(publish(topic, payload, self._numbers))

    def acknowledge(self, message: RelayedPublish) -> None:
        """Acknowledge a message."""
        if message.quality:
            self._write(acknowledgement(PUBACK if message.quality == 1 else PUBREC, message.number))

    def close(self) -> None:
        """Disconnect; the broker keeps the session as it was requested."""
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            with suppress(OSError, RuntimeError):
                self._writer.write(disconnect())
            self._writer.close()
            self._writer = None

    def _write(self, packet: bytes) -> None:
        if self.is_up and self._writer is not None:
            self._writer.write(packet)

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE / 3)
            self._write(PING)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        try:
            while True:
                raw = await read_packet(stream, MOST_PACKET)
                kind = raw[0] & 0xF0
                if kind == PUBLISH:
                    self._received(read_any_publish(raw, MQTT_5))
                elif kind == PUBREL:
                    self._write(acknowledgement(PUBCOMP, number_of(raw)[0]))
                elif kind == SUBACK:
                    self._answers.put_nowait(max(raw[-1:], default=0x80))
        except (OSError, asyncio.IncompleteReadError, ProtocolError):
            if self._writer is not None:
                self._writer.close()


@dataclass(frozen=True)
class RelayPlan:
    """What the relay needs to know of a move.

    Attributes:
        move: the id of the move.
        client: the client id.
        filters: the topic filters of its session.
        home: the address of its home broker, for the agent.
        foreign: the address of the foreign broker, for the agent.
        foreign_for_clients: the address of the foreign broker, for clients.
        is_permanent: whether brokers keep its session for ever, as those of MQTT 3.1.1.
        is_recovery: whether the agent has restarted, and does not know where the client is.
    """

    move: str
    client: str
    filters: QosFilters
    home: Address
    foreign: Address
    foreign_for_clients: Address
    is_permanent: bool = True
    is_recovery: bool = False


@dataclass
class RelayCounts:
    """Numbers of a relayed move: messages sent from home, and messages left out of the foreign session."""

    from_home: int = 0
    left_out: int = 0
    connections: int = 0


@dataclass
class _Outgoing:
    """A message to the client that it has not acknowledged: from home, or with its number at the broker."""

    message: RelayedPublish | None = None
    number: int = 0


class RelayedMove:
    """One client on its move: its session at home, the messages of both brokers, and its connection.

    Args:
        plan: the move.
        login: the login of the agent.
        ttl: seconds for which the home broker continues to queue messages.
        settle: the most seconds that a message takes between brokers.

    Attributes:
        plan: the move.
        counts: the numbers of its messages.
        report: called with `connected`, `drained` or `failed`, and a note.
    """

    def __init__(
        self,
        plan: RelayPlan,
        login: Login,
        ttl: float,
        settle: float,
    ) -> None:
        self.report: Callable[[str, str], None] = lambda _event, _note: None
        self.plan = plan
        self.counts = RelayCounts()
        self._login = login
        self._ttl = ttl
        self._settle = settle
        self._fence = f"{INTERNAL_PREFIX}to/{plan.move}/fence"
        self._known = KnownContents()
        self._prepared_at = 0.0
        self._witness: SessionReader | None = None
        self._witnessed: list[tuple[bytes, float]] = []
        self._reader: SessionReader | None = None
        self._waiting: deque[RelayedPublish] = deque()
        self._delivered: Counter[bytes] = Counter()  # from home, for a session that is read again
        self._fences: set[str] = set()
        self._progress = asyncio.Event()
        self._is_cut = False
        self._cut_at = 0.0
        self._cutting = asyncio.Lock()
        self._is_drained = False
        self._is_over = False
        self._connection: _RelayedConnection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_finishing = False

    # Before the client leaves.

    async def prepare(self) -> None:
        """Watch what the client receives at home, and open its session at the foreign broker.

        Raises:
            UnreachableError: a broker does not answer, or refuses.
        """
        await self._start_witness()
        await asyncio.sleep(self._settle)  # what reached home before is at the foreign broker by then
        plan = self.plan
        filters = (*plan.filters, (self._fence, 1))
        # What an earlier attempt has queued there, the client has received at home.
        error = await asyncio.to_thread(forget, plan.foreign, plan.client, self._login)
        if not error:
            self._prepared_at = time.monotonic()
            error = await asyncio.to_thread(
                replicate_session, plan.foreign, plan.client, self._login, filters
            )
        if error:
            raise UnreachableError(error)
        await asyncio.sleep(2 * self._settle)
        await self._fence_foreign(EARLY)

    async def _start_witness(self) -> None:
        self.drop_witness()
        witness = SessionReader(
            self.plan.home,
            self._login,
            f"{MOVE_AGENT}-{self.plan.move}",
            self._on_witnessed,
            clean=True,
            window=LAST_ID,
        )
        await witness.open()
        self._witness = witness
        own = tuple((text, min(quality, 1)) for text, quality in self.plan.filters)
        await witness.subscribe((*own, (self._fence, 1)))

    def _on_witnessed(self, message: RelayedPublish) -> None:
        if message.topic == self._fence.encode():
            self._fences.add("witness")
            self._progress.set()
        elif not message.is_retained and not self._is_cut:
            self._witnessed.append((content_digest(message.topic, message.payload), time.monotonic()))
        if self._witness is not None:
            self._witness.acknowledge(message)

    def drop_witness(self) -> None:
        """Stop watching."""
        if self._witness is not None:
            self._witness.close()
            self._witness = None

    # The client leaves.

    async def take_over(self) -> None:
        """Take the session at home over, so that the client is disconnected, and find out what waits there.

        Raises:
            UnreachableError: a broker does not answer, or refuses.
        """
        plan = self.plan
        if plan.is_recovery:  # the client can be at the foreign broker, with messages waiting at home
            await asyncio.to_thread(request_once, plan.foreign, plan.client, self._login, lambda _: None)
        await self._cut()

    async def _pause(self) -> None:
        """Wait for the moment after a message, when none is under way to the client.

        Its acknowledgement would be lost, and the message would arrive twice.
        """
        end = time.monotonic() + MOST_PAUSE
        while self._witnessed and self._witness is not None and time.monotonic() < end:
            recent = [at for _, at in self._witnessed[-20:]]
            gap = (recent[-1] - recent[0]) / max(1, len(recent) - 1)
            pause = min(max(gap / 3, SHORTEST_PAUSE), LONGEST_PAUSE)
            since = time.monotonic() - recent[-1]
            if pause < since < 2 * pause or since > IDLE_SECONDS:
                return
            await asyncio.sleep(max(pause - since, 0.0) + 0.002)

    async def _cut(self) -> None:
        """Read what waits at home, up to a fence; all else that the witness has seen, the client has.

        The fence stays in the session, so that it is found again if the session is read again.
        """
        async with self._cutting:
            if self._is_cut and self._reader is not None and self._reader.is_up:
                return
            self._waiting.clear()
            self._fences.discard("home")
            if self._reader is not None:
                self._reader.close()
            expiry = FOR_EVER if self.plan.is_permanent else DAY
            self._reader = SessionReader(
                self.plan.home, self._login, self.plan.client, self._on_waiting, expiry=expiry
            )
            if await self._reader.open(self._pause):
                await self._reader.subscribe(((self._fence, 1),))
                self._reader.publish(self._fence, b"")
                with suppress(TimeoutError):
                    async with asyncio.timeout(CUT_SECONDS):
                        await self._until_fenced()
            if not self._is_cut:
                self._is_cut = True
                self._cut_at = time.monotonic()
                self._tasks.append(asyncio.create_task(self._fence_last()))
                if self._fences >= {"witness", "home"}:  # otherwise some messages arrive twice
                    self._known = KnownContents(self._witnessed, self._prepared_at, self._settle)
            self.drop_witness()

    async def _fence_last(self) -> None:
        """Mark the end of the messages in the foreign session that home can have handled too."""
        await asyncio.sleep(self._settle)
        with suppress(UnreachableError):  # then the session is not used either
            await self._fence_foreign(LAST)

    async def _fence_foreign(self, kind: bytes) -> None:
        marker = f"{MOVE_AGENT}-{self.plan.move}"
        code, text = await asyncio.to_thread(
            request_once,
            self.plan.foreign,
            marker,
            self._login,
            lambda session: session.publish(self._fence, kind, 1),
            clean=True,
        )
        if code is None or code >= FAILED:
            raise UnreachableError(text)

    async def _until_fenced(self) -> None:
        while not ("home" in self._fences and ("witness" in self._fences or self._witness is None)):
            self._progress.clear()
            if len(self._waiting) >= MOST_WAITING:
                return
            await self._progress.wait()

    def _on_waiting(self, message: RelayedPublish) -> None:
        """A message of the session at home; those behind the fence came with the agent's rights."""
        if message.topic == self._fence.encode():
            self._fences.add("home")
            self._progress.set()
        elif "home" not in self._fences:
            digest = content_digest(message.topic, message.payload)
            if self._delivered[digest] and self._reader is not None:
                self._delivered[digest] -= 1
                self._reader.acknowledge(message)
                return
            self._waiting.append(message)
            self._progress.set()

    # The client arrives.

    async def serve(
        self, request: ConnectRequest, stream: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve a connection of the client until it ends."""
        if self._is_over:
            return  # the router learns that soon
        if self._connection is not None:
            self._connection.close()
        self.counts.connections += 1
        with suppress(UnreachableError):  # then what waits at home follows later
            await self._cut()
        connection = _RelayedConnection(self, request, stream, writer)
        self._connection = connection
        try:
            problem = await connection.open(self.plan.foreign_for_clients, _without_certificate(self._login))
            if problem:
                self.fail(problem)
                return
            self.report("connected", "")
            if not self._is_finishing:
                self._is_finishing = True
                self._tasks.append(asyncio.create_task(self._finish()))
            await connection.run()
            if connection.broker_ended and not self._is_drained and await self._is_down():
                self.fail("the foreign broker is down")
        finally:
            connection.close()
            if self._connection is connection:
                self._connection = None

    async def _is_down(self) -> bool:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                address = self.plan.foreign_for_clients
                _, writer = await asyncio.open_connection(address.hostname, address.port)
                writer.close()
        except (OSError, TimeoutError):
            return True
        return False

    def take_waiting(self) -> RelayedPublish | None:
        """The next message that waits at home."""
        if not self._waiting:
            return None
        self.counts.from_home += 1
        return self._waiting.popleft()

    def drop_waiting(self) -> None:
        """The client has begun a new session, so it does not get what waits at home."""
        self._waiting.clear()

    def return_waiting(self, messages: list[RelayedPublish]) -> None:
        """Messages from home that the client has not acknowledged."""
        self._waiting.extendleft(reversed(messages))

    def acknowledge_home(self, message: RelayedPublish) -> None:
        """The client has a message from home."""
        if self._reader is not None and self._reader.is_up:
            self._reader.acknowledge(message)
        else:
            self._delivered[content_digest(message.topic, message.payload)] += 1

    def is_fence(self, message: RelayedPublish) -> bool:
        """Whether a message is the fence; from then on, the client gets everything of the foreign session."""
        if message.topic != self._fence.encode():
            return False
        if message.payload == EARLY:
            self._known.pass_early_fence()
        else:
            self._known.clear()
        return True

    def is_wanted(self, message: RelayedPublish) -> bool:
        """Whether the client lacks a message of the foreign session."""
        digest = content_digest(message.topic, message.payload)
        if message.is_retained or not self._known.takes(digest):
            return True
        self.counts.left_out += 1
        return False

    async def _finish(self) -> None:
        """After the TTL, end the session at home; then let the client connect to its broker itself."""
        while True:
            remaining = self._cut_at + self._ttl - time.monotonic()
            connection = self._connection
            if not self._is_cut or (connection is not None and not self._has_home()):
                with suppress(UnreachableError):
                    await self._cut()
                if connection is not None and self._waiting:
                    await connection.send_waiting()
                await asyncio.sleep(0.2)
            elif remaining > 0:
                await asyncio.sleep(remaining)
            elif self._waiting or connection is None or connection.has_home_messages:
                await asyncio.sleep(0.05)
            else:
                break
        if self._reader is not None:
            self._reader.close()
        while error := await asyncio.to_thread(forget, self.plan.home, self.plan.client, self._login):
            log.info("move %s: the session at home is not ended yet: %s", self.plan.move, error)
            await asyncio.sleep(1.0)
        self._is_drained = True
        self.report("drained", "")

    def _has_home(self) -> bool:
        """Whether the session at home is held, or is not needed any more."""
        has_read_all = "home" in self._fences and not self._waiting
        held = self._reader is not None and self._reader.is_up
        return held or (
            has_read_all and self._connection is not None and not self._connection.has_home_messages
        )

    async def release(self) -> None:
        """Let the client connect to its broker itself, at a moment when nothing is unacknowledged."""
        await asyncio.sleep(self._settle)
        self._known.clear()
        if self._connection is not None:
            await self._connection.finish(self._fence)
        self.close()

    def fail(self, note: str) -> None:
        """The client cannot be served by the foreign broker; its session at home still has everything."""
        if not self._is_drained and not self._is_over:
            self.close()
            self.report("failed", note)

    def close(self) -> None:
        """End all connections; sessions stay."""
        self._is_over = True
        self.drop_witness()
        if self._reader is not None:
            self._reader.close()
        for task in self._tasks:
            task.cancel()
        if self._connection is not None:
            self._connection.close()

    def drop_home(self) -> None:
        """Stop holding the session at home of a client that does not come."""
        idle = time.monotonic() - self._cut_at > HELD_SECONDS
        if self._is_cut and self._connection is None and idle and self._reader is not None:
            self._reader.close()


def _without_certificate(login: Login) -> ssl.SSLContext | None:
    """TLS as a client has it: not with the agent's certificate."""
    return Login(ca=login.ca).tls()


class _RelayedConnection:
    """Connection of a client through the relay: packets in both directions, with packet ids of its own.

    Attributes:
        broker_ended: whether the broker has ended the connection, and not the client.
    """

    def __init__(
        self,
        move: RelayedMove,
        request: ConnectRequest,
        stream: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.broker_ended = False
        self._move = move
        self._request = request
        self._near, self._to_client = stream, writer
        self._far: asyncio.StreamReader | None = None
        self._to_broker: asyncio.StreamWriter | None = None
        self._out: dict[int, _Outgoing] = {}  # by packet id, as the client has it
        self._released: dict[int, int] = {}  # of QoS 2: the client's packet id by the broker's
        self._left_out: set[int] = set()  # of QoS 2: packet ids of messages that the client does not get
        self._own: set[int] = set()  # packet ids of the client's messages that the broker has not answered
        self._number = 0
        self._free = asyncio.Event()
        self._is_closing = False

    @property
    def has_home_messages(self) -> bool:
        """Whether the client has yet to acknowledge messages from home."""
        return any(one.message is not None for one in self._out.values())

    async def open(self, address: Address, tls: ssl.SSLContext | None) -> str:
        """Connect the client to its broker; returns why the move fails, or an empty text."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._far, self._to_broker = await asyncio.open_connection(
                    address.hostname, address.port, ssl=tls
                )
                self._to_broker.write(self._request.raw)
                answer = await read_packet(self._far, MOST_PACKET)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ProtocolError) as error:
            return f"the foreign broker does not answer: {error!r:.60}"
        self._to_client.write(answer)
        if answer[0] != CONNACK or answer[3]:
            return f"the foreign broker refuses the client: {answer[3]:#04x}"
        if self._request.clean:
            self._move.drop_waiting()
        elif not answer[2] & 1:
            return "the foreign broker has lost the prepared session"
        return ""

    async def run(self) -> None:
        """Relay until one side ends."""
        tasks = [asyncio.create_task(one) for one in (self._from_client(), self._from_broker())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.broker_ended = tasks[1] in done and tasks[0] not in done
            for task in done:
                error = task.exception()
                if error is not None and not isinstance(
                    error, (OSError, asyncio.IncompleteReadError, ProtocolError)
                ):
                    raise error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._move.return_waiting([one.message for one in self._out.values() if one.message is not None])
            self._out.clear()

    async def finish(self, fence: str) -> None:
        """End the connection when all messages in both directions are acknowledged, or soon after."""
        self._is_closing = True
        if self._to_broker is not None and not self._to_broker.is_closing():
            self._own.add(LAST_ID)
            self._to_broker.write(unsubscribe_plainly(LAST_ID, fence, self._request.version))
        end = time.monotonic() + CLOSING_SECONDS
        while (self._out or self._own) and time.monotonic() < end and not self._to_client.is_closing():
            self._free.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._free.wait()
        if self._to_broker is not None and not self._to_broker.is_closing():
            self._to_broker.write(disconnect())  # a normal end: no will is published
        self.close()

    def close(self) -> None:
        """End both connections."""
        for writer in (self._to_client, self._to_broker):
            if writer is not None:
                writer.close()

    async def _from_client(self) -> None:
        if self._to_broker is None:
            return
        while True:
            raw = await read_packet(self._near, MOST_PACKET)
            kind = raw[0] & 0xF0
            if kind in (PUBACK, PUBREC, PUBCOMP):
                translated = self._acknowledged(kind, raw)
                if translated is None:
                    continue
                raw = translated
            elif kind == PUBLISH:
                message = read_any_publish(raw, self._request.version)
                if message.quality:
                    self._own.add(message.number)
            self._to_broker.write(raw)
            await self._to_broker.drain()
            if kind == DISCONNECT:
                return

    def _acknowledged(self, kind: int, raw: bytes) -> bytes | None:
        """An acknowledgement of the client as the broker knows it; None: it is not for the broker."""
        number, at = number_of(raw)
        found = self._out.get(number)
        if found is None:
            return None
        is_refusal = len(raw) > at + 2 and raw[at + 2] >= 0x80
        if kind != PUBREC or is_refusal:
            del self._out[number]
            self._free.set()
        if found.message is not None:
            self._move.acknowledge_home(found.message)
            return None
        if kind == PUBREC and not is_refusal:
            self._released[found.number] = number
        return with_number(raw, at, found.number)

    async def _from_broker(self) -> None:
        await self.send_waiting()
        if self._far is None:
            return
        while True:
            raw = await read_packet(self._far, MOST_PACKET)
            kind = raw[0] & 0xF0
            if kind == PUBLISH:
                await self._forward(raw)
                continue
            if kind == UNSUBACK and self._is_closing and number_of(raw)[0] == LAST_ID:
                self._own.discard(LAST_ID)
                self._free.set()
                continue
            if kind in (PUBACK, PUBCOMP, PUBREC):
                number, at = number_of(raw)
                if kind != PUBREC or (len(raw) > at + 2 and raw[at + 2] >= 0x80):
                    self._own.discard(number)
                    self._free.set()
            elif kind == PUBREL:
                number, at = number_of(raw)
                if number in self._left_out:
                    self._left_out.discard(number)
                    self._answer(PUBCOMP, number)
                    continue
                raw = with_number(raw, at, self._released.pop(number, number))
            self._to_client.write(raw)
            await self._to_client.drain()

    async def send_waiting(self) -> None:
        """Send what waits at home, in its order, before anything of the foreign session."""
        while (message := self._move.take_waiting()) is not None:
            number = await self._next_number() if message.quality else 0
            if message.quality:
                self._out[number] = _Outgoing(message)
            self._to_client.write(message.encoded(self._request.version, number))
            await self._to_client.drain()
            if not message.quality:
                self._move.acknowledge_home(message)

    async def _forward(self, raw: bytes) -> None:
        if self._is_closing:  # the broker sends it again
            return
        message = read_any_publish(raw, self._request.version)
        if self._move.is_fence(message) or not self._move.is_wanted(message):
            if message.quality == 1:
                self._answer(PUBACK, message.number)
            elif message.quality:
                self._left_out.add(message.number)
                self._answer(PUBREC, message.number)
            return
        if message.quality:
            number = await self._next_number()
            self._out[number] = _Outgoing(number=message.number)
            raw = with_number(raw, message.number_at, number)
        self._to_client.write(raw)
        await self._to_client.drain()

    def _answer(self, kind: int, number: int) -> None:
        if self._to_broker is not None:
            self._to_broker.write(acknowledgement(kind, number))

    async def _next_number(self) -> int:
        """A free packet id, as soon as the client can take another message."""
        while len(self._out) >= min(self._request.window, LAST_ID - 1):
            self._free.clear()
            await self._free.wait()
        while True:
            self._number = self._number % LAST_ID + 1
            if self._number not in self._out:
                return self._number


@dataclass
class ClientRelay:
    """Server to which routers send clients while they move.

    Args:
        address: where to listen.
        tls: the TLS context of the server; None: plain text, for routers on this machine.

    Attributes:
        moves: the moves by client.
        refused: connections that were refused, by reason.
    """

    address: Address
    tls: ssl.SSLContext | None = None
    moves: dict[str, RelayedMove] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    _server: asyncio.Server | None = None
    _connections: int = 0
    _warnings: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(log))

    async def start(self) -> None:
        """Start to accept clients.

        Raises:
            OSError: the address cannot be used.
        """
        self._server = await asyncio.start_server(
            self._accept, self.address.hostname, self.address.port, ssl=self.tls, limit=1 << 20
        )

    async def stop(self) -> None:
        """Stop, and end all connections."""
        if self._server is not None:
            self._server.close()
        for move in list(self.moves.values()):
            move.close()
        self.moves.clear()

    async def _accept(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > MOST_CONNECTIONS:
                self._refuse("too many", "more than %d connections", MOST_CONNECTIONS)
                return
            await self._serve(stream, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone, or a router has checked that we are here
        except Exception:
            log.exception("the relay failed")
        finally:
            self._connections -= 1
            with suppress(Exception):
                writer.close()

    async def _serve(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(FIRST_SECONDS):
                request = read_connect(await read_packet(stream, MOST_PACKET))
        except TimeoutError:
            self._refuse("slow", "a client has not sent CONNECT within %d s", int(FIRST_SECONDS))
            return
        except ProtocolError as error:
            self._refuse("malformed", "a client has sent no CONNECT: %s", error)
            return
        move = self.moves.get(request.client)
        if move is None:
            self._refuse("not moving", "client %r came to the relay, but is not moving", request.client[:80])
            return
        await move.serve(request, stream, writer)

    def _refuse(self, kind: str, text: str, *values: Any) -> None:
        self.refused[kind] += 1
        self._warnings.warn(kind, text, *values)
