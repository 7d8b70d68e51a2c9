"""Sessions of ordinary clients as the relay reads them: their messages, and the moment to take one over."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise

from broadloom.errors import UnreachableError
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.packets import (
    CONNACK,
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
from broadloom.mqtt.relayed_packets import (
    MQTT_5,
    RelayedPublish,
    number_of,
    read_any_publish,
    read_packet,
    subscribe_plainly,
    unsubscribe_plainly,
)
from broadloom.mqtt.topic_filters import QosFilters

MOST_PACKET = 16 << 20  # bytes of a packet that is relayed
ANSWER_SECONDS = 10.0  # for an answer of a broker
KEEP_ALIVE = 60
MOST_WAITING = 1_000  # unacknowledged messages of a session
FULL_SECONDS = 0.02  # between checks whether there is room for more messages
# Seconds between a message and the moment after it in which a client leaves home.
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
FIRST_NUMBER = 0xF000  # of our packets, since the client's own messages at QoS 2 have small numbers
RECENT = 20  # messages by whose times that moment is chosen


def tls_of(login: Login) -> ssl.SSLContext | None:
    """The TLS context of a login; it takes long to make, so it is kept for a minute."""
    return _tls_of(login, int(time.monotonic() / 60))


@lru_cache(maxsize=8)
def _tls_of(login: Login, _minute: int) -> ssl.SSLContext | None:
    return login.tls()


def seconds_until_pause(times: Sequence[float], now: float, patience: float = 1.0) -> float:
    """Seconds to wait for the moment between two messages in which none is under way to the client.

    A message whose acknowledgement is under way when a session is taken over arrives twice. The moment is the
    middle of the long gaps between messages: then the last one is acknowledged, and the next one is far.

    Args:
        times: when the last messages came, in order.
        now: the time.
        patience: from 1 to 0: the less, the shorter the gap that is good enough.

    Returns:
        0: now is the moment; otherwise ask again after so many seconds.

    Examples:
        >>> seconds_until_pause([0.0, 1.0, 2.0], now=2.1)
        0.4
        >>> seconds_until_pause([0.0, 1.0, 2.0], now=2.5)
        0.0
        >>> seconds_until_pause([0.0, 1.0, 2.0], now=2.9)
        0.35
        >>> seconds_until_pause([], now=0.0)
        0.0
    """
    recent = times[-RECENT:]
    if not recent:
        return 0.0
    gaps = sorted(later - before for before, later in pairwise(recent))
    usual = gaps[int(0.9 * len(gaps))] if gaps else 2 * LONGEST_PAUSE
    pause = max(min(usual / 2, LONGEST_PAUSE) * patience, SHORTEST_PAUSE)
    since = now - recent[-1]
    if since < pause:
        return round(pause - since, 6)
    margin = min(usual / 4, LONGEST_PAUSE / 2)
    is_late = abs(since - usual) < margin  # the next message is due
    return round(max(usual + margin - since, SHORTEST_PAUSE), 6) if is_late else 0.0


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

    def give_back(self, digests: Iterable[bytes]) -> None:
        """Messages that were taken come again; before the early fence only, since they may be open."""
        self._open.update(digests)

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
        is_full: whether no more messages can be read at the moment.
        released: called with the packet id of a message at QoS 2 that the client has received before, and
            that the broker releases now; `complete` answers it. None: it is answered at once.
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
        is_full: Callable[[], bool] = lambda: False,
        released: Callable[[int], None] | None = None,
    ) -> None:
        self._address = address
        self._login = login
        self._connect = connect(client, clean, KEEP_ALIVE, expiry, window, login)
        self._received = received
        self._is_full = is_full
        self._released = released
        self._taken: set[int] = set()  # packet ids of messages at QoS 2 that were acknowledged here
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._answers: asyncio.Queue[int] = asyncio.Queue()
        self._numbers = FIRST_NUMBER
        self._filters = 1  # of the last SUBSCRIBE; its answer ends with a code for each
        self._unsubscribed = asyncio.Event()

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
                    self._address.hostname, self._address.port, ssl=tls_of(self._login)
                )
                if pause is not None:
                    await pause()
                self._writer.write(self._connect)
                answer = await read_packet(stream, MOST_PACKET)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ProtocolError) as error:
            self.close()
            raise UnreachableError(f"{self._address} does not answer: {error!r:.80}") from error
        except asyncio.CancelledError:
            self.close()
            raise
        if answer[0] != CONNACK or answer[3]:
            self.close()
            raise UnreachableError(f"{self._address} refuses the agent: {answer[3]:#04x}")
        self._tasks = [asyncio.create_task(self._read(stream)), asyncio.create_task(self._ping())]
        return bool(answer[2] & 1)

    def subscribe_soon(self, filters: QosFilters) -> None:
        """Subscribe, without retained messages; what is sent later, the broker processes later."""
        self._numbers += 1
        self._filters = len(filters)
        self._write(subscribe_plainly(self._numbers, filters))

    async def subscribe(self, filters: QosFilters) -> None:
        """Subscribe, without retained messages.

        Raises:
            UnreachableError: the broker does not answer, or refuses a filter.
        """
        self.subscribe_soon(filters)
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

    def release(self, number: int) -> None:
        """Release a message at QoS 2 that the client has published in this session."""
        self._write(acknowledgement(PUBREL, number))

    async def unsubscribe(self, text: str) -> None:
        """Unsubscribe from a filter, and wait for the answer for a moment."""
        self._numbers += 1
        self._write(unsubscribe_plainly(self._numbers, text, MQTT_5))
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._unsubscribed.wait()

    def acknowledge(self, message: RelayedPublish) -> None:
        """Acknowledge a message."""
        if message.quality == 2:
            self._taken.add(message.number)
        if message.quality:
            self._write(acknowledgement(PUBACK if message.quality == 1 else PUBREC, message.number))

    def complete(self, number: int) -> None:
        """The client has a message at QoS 2 that the broker has released."""
        self._write(acknowledgement(PUBCOMP, number))

    def close(self) -> None:
        """Disconnect; the broker keeps the session as it was requested."""
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            if not self._writer.is_closing():  # with TLS, a closed one cannot be written to
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

    def _take_release(self, number: int) -> None:
        if self._released is None or number in self._taken:
            self._taken.discard(number)
            self.complete(number)
        else:
            self._released(number)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        try:
            while True:
                while self._is_full():
                    await asyncio.sleep(FULL_SECONDS)
                raw = await read_packet(stream, MOST_PACKET)
                kind = raw[0] & 0xF0
                if kind == PUBLISH:
                    self._received(read_any_publish(raw, MQTT_5))
                elif kind == PUBREL:
                    self._take_release(number_of(raw)[0])
                elif kind == UNSUBACK:
                    self._unsubscribed.set()
                elif kind == SUBACK:
                    self._answers.put_nowait(max(raw[-self._filters :], default=0x80))
        except (OSError, asyncio.IncompleteReadError, ProtocolError):
            self._unsubscribed.set()
            if self._writer is not None:
                self._writer.close()
