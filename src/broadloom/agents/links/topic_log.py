"""Session that reads a Mosquitto's log on its topics `$SYS/broker/log/...`, without a gap where possible.

Mosquitto drops messages of QoS 1 to a client that has 1,000 waiting, as in a storm of subscriptions; it drops
none of QoS 0 to a client that is connected. It keeps log lines for an absent client at QoS 1 only, and for 20
seconds. So the session subscribes twice: the lines at QoS 1 close the gap after it was away, up to a marker;
from the marker on, it follows the lines at QoS 0. The marker is the line of a subscription of its own.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Protocol

from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession, SessionHandler, watched_task
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import PUBACK, Connack, Publish, acknowledgement
from broadloom.mqtt.reserved_topics import INTERNAL_PREFIX

SUBSCRIBE, UNSUBSCRIBE, NOTICE = "subscribe", "unsubscribe", "notice"
UPTIME, COUNT, SHARED_COUNT = "uptime", "count", "shared count"
RELIABLE = {
    "$SYS/broker/log/M/subscribe": SUBSCRIBE,
    "$SYS/broker/log/M/unsubscribe": UNSUBSCRIBE,
    "$SYS/broker/log/N": NOTICE,
    "$SYS/broker/uptime": UPTIME,
}
COUNTS = {"$SYS/broker/subscriptions/count": COUNT, "$SYS/broker/shared_subscriptions/count": SHARED_COUNT}
QUICK = ("$SYS/broker/log/M/#", "$SYS/broker/log/N/#", "$SYS/broker/uptime/#")  # the same at QoS 0
MARKER_SECONDS = 3.0
KEPT_SECONDS = 15.0  # for which a broker keeps log lines for us; Mosquitto says 20
FULL_QUEUE = 900  # waiting messages that suggest that others were dropped; Mosquitto says 1,000
_LARGEST = 4_096  # bytes of a payload that are read


class LogReader(Protocol):
    """What a topic log reports to."""

    def topic_line(self, kind: str, event: str) -> None:
        """A line without its time."""

    def topic_restart(self) -> None:
        """The broker has started at this point of the lines."""

    def topic_gap(self) -> None:
        """Lines are missing at this point."""

    def topic_tick(self) -> None:
        """The broker looks at its counts at this point of the lines."""

    def topic_count(self, kind: str, number: int) -> None:
        """A count of the broker has changed."""

    def topic_answered(self) -> None:
        """The broker publishes its lines to this session from now on, or refuses to."""

    def topic_probe(self, text: str) -> None:
        """A line of this text is to appear in the log now."""

    def topic_state(self, seen: frozenset[str]) -> None:
        """Which kinds of lines the broker publishes; empty: it publishes no log."""


class TopicLog(SessionHandler):
    """Kept session at a Mosquitto that follows its log.

    Args:
        broker: the broker's name.
        client: the id of the session's client.
        endpoint: the broker's endpoint.
        reader: what is told about lines.
        last_alive: the time, in seconds since 1970, at which an earlier run was last connected; None: never.

    Attributes:
        session: the session.
        last_alive: the time at which this session was last connected.
    """

    def __init__(
        self, broker: str, client: str, endpoint: Endpoint, reader: LogReader, last_alive: float | None
    ) -> None:
        self.session = ClientSession(broker, client, endpoint, self)
        self.last_alive = last_alive
        self._endpoint = endpoint
        self._reader = reader
        self._check: asyncio.Task[None] | None = None
        self._words: int | None = None  # in the time before a line; None: unknown
        self._uptime = 0
        self._reset()

    def _reset(self) -> None:
        self._marker = ""
        self._gap: list[tuple[str, str]] | None = []  # lines at QoS 1 before the marker; None: it was seen
        self._quick: list[tuple[str, str]] | None = None  # lines at QoS 0 after the marker; None: not seen
        self._is_live = False
        self._is_single = False
        self._seen: set[str] = set()

    def start(self) -> None:
        """Start to connect."""
        self.session.start()

    async def stop(self, forget: bool = False) -> None:
        """Disconnect; the broker keeps the session and what it logs meanwhile, or deletes it."""
        self._cancel()
        await self.session.stop(forget)

    # Callbacks of the session.

    def connected(self, session: ClientSession, connack: Connack) -> None:  # noqa: ARG002
        """Prepare for the lines that the broker has kept."""
        self._cancel()
        self._reset()
        away = None if self.last_alive is None else time.time() - self.last_alive
        if not connack.present or away is None or not -1.0 <= away <= KEPT_SECONDS:
            self._uptime = 0
            self._reader.topic_gap()

    async def opened(self, session: ClientSession, connack: Connack) -> None:  # noqa: ARG002
        """Subscribe to the log, and make a line of our own appear in it."""
        name = f"{INTERNAL_PREFIX}watch/{secrets.token_hex(6)}"
        self._marker = f"{session.client} 1 {name}"
        try:
            await session.subscribe(RELIABLE, retained=False)
            self._reader.topic_answered()
            await session.unsubscribe(COUNTS)  # so that the broker sends its present counts
            await session.subscribe((*QUICK, *COUNTS), retained=True, qos=0)
            self._reader.topic_probe(self._marker)
            await session.subscribe([name], retained=False)
            await session.unsubscribe([name])
        except BrokerRefusedError:
            self._reader.topic_answered()
            self._reader.topic_state(frozenset())
            raise
        self.last_alive = time.time()
        self._check = watched_task(self._run_checks())

    def closed(self, session: ClientSession) -> None:  # noqa: ARG002
        """Count the time of absence from now on."""
        if self._marker:
            self.last_alive = time.time()
        self._cancel()

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """Take a line, or a count."""
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))
        kind = RELIABLE.get(message.topic) or COUNTS.get(message.topic)
        if kind is None:
            return
        text = message.payload()[:_LARGEST].decode("utf-8", "replace")
        if self._marker and kind == SUBSCRIBE and text.endswith(self._marker):
            self._take_marker(text, reliable=bool(message.number))
        elif kind in (COUNT, SHARED_COUNT) and not self._is_live and self._quick is None:
            self._take(kind, text)  # retained: the broker sends no other one until the count changes
        elif message.number and self._gap is not None:
            self._gap.append((kind, text))
        elif not message.number and self._quick is not None and not self._is_live:
            self._quick.append((kind, text))
        elif bool(message.number) == self._is_single and self._is_live:
            self._take(kind, text)

    # The marker.

    def _take_marker(self, text: str, reliable: bool) -> None:
        self._words = text.removesuffix(self._marker).count(" ")
        self._seen.add(SUBSCRIBE)
        if reliable:
            self._end_gap()
        elif self._quick is None:
            self._quick = []
        if self._gap is None and self._quick is not None:
            self._go_live()

    def _end_gap(self) -> None:
        gap = self._gap or []
        self._gap = None
        if len(gap) >= FULL_QUEUE:
            self._reader.topic_gap()
        for kind, text in gap:
            self._take(kind, text)

    def _go_live(self) -> None:
        self._is_live = True
        for kind, text in self._quick or ():
            self._take(kind, text)
        self._quick = None

    async def _run_checks(self) -> None:
        """Find out which kinds of lines the broker publishes; end a gap whose marker was dropped."""
        end = asyncio.get_running_loop().time() + MARKER_SECONDS
        await self._probe_connection()
        while not self._is_complete() and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
        if not self._is_live and self._quick is not None:  # the marker at QoS 1 was dropped: so were others
            self._end_gap()
            self._reader.topic_gap()
            self._go_live()
        elif not self._is_live and self._gap is None:  # a broker that sends one copy of each message
            self._is_single = True
            self._is_live = True
        self._reader.topic_state(frozenset(self._seen))
        while True:
            await asyncio.sleep(1.0)
            self.last_alive = time.time()

    def _is_complete(self) -> bool:
        return self._is_live and self._seen >= {SUBSCRIBE, UNSUBSCRIBE, NOTICE}

    async def _probe_connection(self) -> None:
        """Connect and disconnect, which a broker logs as a notice."""
        try:
            async with asyncio.timeout(MARKER_SECONDS):
                _, writer = await asyncio.open_connection(self._endpoint.host, self._endpoint.port)
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            return

    def _cancel(self) -> None:
        if self._check is not None:
            self._check.cancel()
        self._check = None

    # Lines in order.

    def _take(self, kind: str, text: str) -> None:
        if kind in (COUNT, SHARED_COUNT):
            if text.isascii() and text.isdigit() and len(text) < 12:
                self._reader.topic_count(kind, int(text))
            return
        if kind == UPTIME:
            number = text.partition(" ")[0]
            uptime = int(number) if number.isascii() and number.isdigit() and len(number) < 12 else 0
            if not self._is_live and (uptime < self._uptime or uptime == 0):
                self._reader.topic_restart()
            self._uptime = uptime
            if self._is_live:  # the counts of an earlier tick were not kept
                self._reader.topic_tick()
            return
        self._seen.add(kind)
        words = self._words or 0
        event = text.split(" ", words)[-1] if words else text
        self._reader.topic_line(kind, event)


def watch_client(broker: str) -> str:
    """The client id of the session that follows the log of a broker.

    Examples:
        >>> watch_client("rome")
        'broadloom-watch-rome'
    """
    return f"broadloom-watch-{broker}"
