"""Listener at one broker: who publishes what, who subscribes meanwhile, and what the broker counts itself."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b

from broadloom.deployment import FleetBroker, widest
from broadloom.discovery.subscription_sources import OWN_CLIENT
from broadloom.errors import BroadloomError, UnreachableError
from broadloom.mqtt import ClientSession, FilterIndex, SessionHandler, groups
from broadloom.mqtt.client_session import LOG
from broadloom.mqtt.packets import PUBACK, Publish, acknowledgement

CONNECT_SECONDS = 5.0
MOST_TOPICS = 100_000  # per broker
MOST_LINES = 1_000_000  # of a broker's log
MOST_DIGESTS = 200_000  # of messages, over all brokers
ROUND_TRIPS = 3
EVERYTHING = "#"
COUNTS = "$SYS/broker/+/count"  # one filter, since the broker counts our own subscriptions, too
SUBSCRIPTION_COUNTS = ("$SYS/broker/subscriptions/count", "$SYS/broker/shared_subscriptions/count")
# Mosquitto looks at its counts every `sys_interval` seconds, 10 by default, and publishes its uptime just
# before. A count is published when it changes, and forgotten after a minute.
UPTIME = "$SYS/broker/uptime"
RECOUNT_SECONDS = 15.0
NO_TOPIC = "broadloom/none"  # without messages
# One topic per bridge of a Mosquitto, at both of its ends, unless it has `notifications false`.
BRIDGES, BRIDGE_STATES = "$SYS/broker/connection/", "$SYS/broker/connection/+/state"
# What a Mosquitto with `log_dest topic` publishes: subscriptions, and connections that begin and end.
LOG_TOPICS = ("$SYS/broker/log/M/subscribe", "$SYS/broker/log/M/unsubscribe", "$SYS/broker/log/N")


@dataclass
class TopicTraffic:
    """Messages on one topic at one broker, and their bytes as packets."""

    messages: int = 0
    packet_bytes: int = 0


@dataclass
class Observations:
    """What was observed at one broker.

    Attributes:
        traffic: by topic, in the order of the first message.
        cut: messages on topics beyond the most that are kept.
        lines: lines of the broker's log that it published meanwhile.
        lines_cut: lines beyond the most that are kept.
        counted: the number of subscriptions that the broker counts, shared ones included; None: unknown.
        bridges: the names of bridges to or from the broker.
        rtt_ms: the shortest round trip of a request from this machine.
        seconds: the time for which we listened.
        interruptions: how often the connection was lost while we listened.
        problem: why the broker could not be observed.
    """

    traffic: dict[str, TopicTraffic] = field(default_factory=dict)
    cut: int = 0
    lines: list[str] = field(default_factory=list)
    lines_cut: int = 0
    counted: int | None = None
    bridges: set[str] = field(default_factory=set)
    rtt_ms: float | None = None
    seconds: float = 0.0
    interruptions: int = 0
    problem: str | None = None


class RepeatedMessages:
    """Topics whose messages were seen at several brokers: links or bridges between them exist already.

    Two messages are the same if they have the same id, or else the same topic and payload. The digests of the
    latest messages are kept.
    """

    def __init__(self) -> None:
        self.topics: dict[str, set[str]] = {}
        self._seen: dict[bytes, str] = {}

    def add(self, broker: str, topic: str, content: bytes) -> None:
        """Note a message; `content` is its id, or its payload."""
        digest = blake2b(b"%b\0%b" % (topic.encode(), content), digest_size=8).digest()
        other = self._seen.setdefault(digest, broker)
        if other != broker:
            self.topics.setdefault(topic, set()).update((other, broker))
        elif len(self._seen) > MOST_DIGESTS:
            self._seen = dict(list(self._seen.items())[MOST_DIGESTS // 2 :])


class BrokerListener(SessionHandler):
    """Session at one broker that observes it.

    Args:
        broker: the broker.
        carry: the topic filters whose publications count; empty: none.
        repeated: shared by all listeners.
    """

    def __init__(
        self, broker: FleetBroker, carry: Sequence[str], repeated: RepeatedMessages | None = None
    ) -> None:
        self.found = Observations()
        self._broker = broker
        filters = listened_filters(carry)
        logged = LOG_TOPICS if broker.kind == "mosquitto" and carry else ()
        self._listened = (*filters, *logged)
        self._index = FilterIndex(carry) if set(filters) != set(carry) else None
        self._repeated = repeated or RepeatedMessages()
        self._since: float | None = None
        self._counts: dict[str, int] = {}
        self._counted_again = asyncio.Event()
        self._has_counts = False
        self._session: ClientSession | None = None

    async def open(self) -> None:
        """Connect, ask for the broker's own counts, measure the round trip, and begin to listen.

        A failure becomes the `problem` of what was found.
        """
        try:
            endpoint = self._broker.endpoint()
        except BroadloomError as error:
            self.found.problem = str(error)
            return
        client = f"{OWN_CLIENT}-{os.getpid():x}-{time.monotonic_ns() & 0xFFFFFF:x}"
        self._session = ClientSession(self._broker.name, client, endpoint, self, kept=False)
        self._session.start()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                while not self._session.up.is_set():
                    if self._session.last_error is not None:
                        raise UnreachableError(self._session.last_error)
                    await asyncio.sleep(0.005)
        except TimeoutError:
            self.found.problem = f"{self._broker.address} does not answer within {CONNECT_SECONDS:g} s"
        except UnreachableError as error:
            self.found.problem = f"{self._broker.address}: {error}"

    def doubts(self, shown: int) -> bool:
        """Whether another count can change the verdict on sources that show so many subscriptions."""
        counted = self.found.counted
        return self._has_counts if counted is None else counted > shown

    async def recount(self) -> None:
        """Wait until the broker counts its subscriptions again, and leave out our own.

        The count at the beginning can include clients that have just left, such as an earlier command of
        ours; or a count is missing, because it has not changed for a minute: our own subscriptions change
        both. If the broker does not count again in time, the count at the beginning remains.
        """
        if self._session is None:
            return
        shared = f"$share/{self._session.client}/{NO_TOPIC}"
        with suppress(TimeoutError, ConnectionError, BroadloomError):
            async with asyncio.timeout(RECOUNT_SECONDS):
                await self._session.subscribe((COUNTS,), retained=True)
                await self._session.subscribe((shared, UPTIME), retained=False)
                await self._counted_again.wait()
                # The counts come before the answer.
                await self._session.unsubscribe((COUNTS, shared, UPTIME))
                self._take_counts(own=len(self._listened) + 3)

    def _take_counts(self, own: int) -> None:
        """Note the subscriptions that the broker counts without our own, if both of its counts are known."""
        if len(self._counts) == len(SUBSCRIPTION_COUNTS):
            self.found.counted = sum(self._counts.values()) - own

    async def close(self) -> None:
        """Disconnect."""
        if self._session is not None:
            await self._session.stop()

    def end(self) -> None:
        """Count no longer."""
        if self._since is not None:
            self.found.seconds = time.monotonic() - self._since
        self._since = None

    # Callbacks of the session.

    async def opened(self, session: ClientSession, connack: object) -> None:  # noqa: ARG002
        """Subscribe; the broker answers requests in order, so its counts are here when the next answer is."""
        if self._since is not None:
            self.found.interruptions += 1
        elif self._broker.kind == "mosquitto":
            await session.subscribe((COUNTS, BRIDGE_STATES, UPTIME), retained=True)
            await session.unsubscribe((COUNTS, BRIDGE_STATES, UPTIME))
            self._take_counts(own=0)
            self._has_counts = self._counted_again.is_set()
            self._counted_again.clear()
        for _ in range(0 if self.found.rtt_ms is not None else ROUND_TRIPS):
            start = time.perf_counter()
            await session.unsubscribe((COUNTS,))
            spent = (time.perf_counter() - start) * 1_000
            self.found.rtt_ms = min(spent, self.found.rtt_ms or spent)
        if self._listened:
            self._since = self._since or time.monotonic()
            await session.subscribe(self._listened, retained=False)

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """Count a message."""
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))
        topic = message.topic
        if topic in SUBSCRIPTION_COUNTS:
            text = message.payload()
            if text.isdigit():
                self._counts[topic] = int(text)
        elif topic == UPTIME:
            self._counted_again.set()
        elif topic.startswith(BRIDGES):
            self.found.bridges.add(topic.removeprefix(BRIDGES).rpartition("/")[0])
        elif topic in LOG_TOPICS and len(self.found.lines) >= MOST_LINES:
            self.found.lines_cut += 1
        elif topic in LOG_TOPICS:
            self.found.lines.append(message.payload().decode("utf-8", "replace"))
        elif message.stamp:
            return  # a site agent has brought it from the broker where it was published
        elif self._since is not None and not topic.startswith("$") and self._is_carried(topic):
            count_message(self.found, topic, len(message.raw))
            self._repeated.add(self._broker.name, topic, message.payload())

    def _is_carried(self, topic: str) -> bool:
        return self._index is None or next(self._index.meeting(topic), None) is not None


def count_message(found: Observations, topic: str, size: int) -> None:
    """Count a message of `size` bytes."""
    traffic = found.traffic.get(topic)
    if traffic is None:
        if len(found.traffic) >= MOST_TOPICS:
            found.cut += 1
            return
        traffic = found.traffic[topic] = TopicTraffic()
    traffic.messages += 1
    traffic.packet_bytes += size


def listened_filters(carry: Sequence[str]) -> tuple[str, ...]:
    """The filters to subscribe to: those that are carried, or everything if two of them overlap.

    A broker can send a message once per filter that matches it.

    Examples:
        >>> listened_filters(["a/#", "b/+"]), listened_filters(["a/#", "+/b"])
        (('a/#', 'b/+'), ('#',))
    """
    alone = sorted(widest(set(carry)))
    return tuple(alone) if len(set(groups(alone).values())) == len(alone) else (EVERYTHING,)


@contextmanager
def quiet_sessions() -> Iterator[None]:
    """Leave out what sessions of listeners log; their problems are part of the result."""

    def is_other(record: logging.LogRecord) -> bool:
        return not any(str(value).startswith(OWN_CLIENT) for value in (record.args or ()))

    LOG.addFilter(is_other)
    try:
        yield
    finally:
        LOG.removeFilter(is_other)
