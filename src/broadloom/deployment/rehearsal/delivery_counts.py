"""Delivery counts of a rehearsal: its MQTT clients, the tally of their messages, and the outcome."""

from __future__ import annotations

import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from broadloom.deployment.targets.mosquitto_bridges import MESH
from broadloom.deployment.wiring import SampleMessage, Wiring
from broadloom.errors import UnreachableError
from broadloom.mqtt.paho import close_sockets, need_paho
from broadloom.progress import stage

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessageInfo

HOST = "127.0.0.1"
POLL_SECONDS = 0.02
RETRY_SECONDS = 0.1
PAYLOAD_BYTES = 100
# After this time without a message, no more messages are expected.
QUIET_SECONDS = 5.0
SETTLE_SECONDS = 0.3
LONGEST_SECONDS = 120.0
ACKNOWLEDGED_SECONDS = 0.1  # in which a client acknowledges a message, on a busy machine

OnMessage = Callable[[str, str, bytes], None]


class LabClients:
    """One MQTT client per broker, all in one thread; their sessions survive a restart of a broker.

    Args:
        ports: the port of each broker.
        on_message: called with the broker, the topic and the payload of each received message.
        qos: quality of service of subscriptions and messages.
        name: prefix of client ids.
    """

    def __init__(
        self, ports: Mapping[str, int], on_message: OnMessage, qos: int = 1, name: str = "rehearsal"
    ) -> None:
        self._paho = need_paho()
        self._ports = ports
        self._on_message = on_message
        self._qos = qos
        self._name = name
        self._selector = selectors.DefaultSelector()
        self._clients: dict[str, Client] = {}
        self._retry_at: dict[str, float] = {}  # brokers of clients without a connection
        self._filters: dict[str, list[tuple[str, int]]] = {}
        self._ready: set[str] = set()
        self._last_misc = 0.0

    def __enter__(self) -> LabClients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients.values():
            client.on_disconnect = None
            client.disconnect()
            client.loop_write()
            client.on_socket_close = client.on_socket_unregister_write = None
            close_sockets(client)
        self._selector.close()

    def subscribe(self, wants: Mapping[str, Iterable[str]], seconds: float = 60.0) -> None:
        """Connect a client to each broker, subscribe to its topic filters, and wait for the answers."""
        for number, (broker, filters) in enumerate(wants.items()):
            self._filters[broker] = [(text, self._qos) for text in filters]
            self._clients[broker] = self._client(broker, f"{self._name}-{number}")
            self._clients[broker].connect(HOST, self._ports[broker])
        if not self.run(lambda: len(self._ready) == len(self._clients), seconds):
            missing = len(self._clients) - len(self._ready)
            raise UnreachableError(
                f"{missing} of {len(self._clients)} clients got no answer from their brokers in "
                f"{seconds:g} s; try again on a machine that is less busy"
            )

    def publish(self, broker: str, topic: str, payload: bytes) -> MQTTMessageInfo:
        """Publish a message, later if the broker is down; the result says when the broker has it."""
        return self._clients[broker].publish(topic, payload, self._qos)

    def run(self, done: Callable[[], bool], seconds: float) -> bool:
        """Send and receive until a condition holds; false if it does not within some seconds."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                return False
            self.poll(POLL_SECONDS)
        return True

    def poll(self, seconds: float) -> None:
        """Send and receive packets that are ready; wait for them at most some seconds."""
        for key, events in self._selector.select(seconds):
            client = self._clients[key.data]
            if events & selectors.EVENT_READ:
                client.loop_read()
            if events & selectors.EVENT_WRITE:
                client.loop_write()
        now = time.monotonic()
        if now - self._last_misc > 1:
            self._last_misc = now
            for client in self._clients.values():
                client.loop_misc()
        for broker in [broker for broker, when in self._retry_at.items() if when <= now]:
            self._reconnect(broker, now)

    def _reconnect(self, broker: str, now: float) -> None:
        """Connect again; the broker can still be down."""
        del self._retry_at[broker]
        try:
            self._clients[broker].reconnect()
        except OSError:
            self._retry_at[broker] = now + RETRY_SECONDS

    def _client(self, broker: str, name: str) -> Client:
        client = self._paho.Client(self._paho.CallbackAPIVersion.VERSION2, name, clean_session=False)
        client.max_inflight_messages_set(0)
        client.max_queued_messages_set(0)
        client.on_message = lambda _client, _data, message: self._on_message(
            broker, message.topic, message.payload
        )
        client.on_connect = lambda _client, _data, flags, *_: self._subscribe(broker, flags.session_present)
        client.on_subscribe = lambda *_: self._ready.add(broker)
        client.on_disconnect = lambda *_: self._retry_at.update({broker: time.monotonic() + RETRY_SECONDS})
        client.on_socket_open = lambda _client, _data, sock: self._watch(broker, sock, selectors.EVENT_READ)
        client.on_socket_close = lambda _client, _data, sock: self._unwatch(sock)
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        client.on_socket_register_write = lambda _client, _data, sock: self._watch(broker, sock, both)
        client.on_socket_unregister_write = lambda _client, _data, sock: self._watch(
            broker, sock, selectors.EVENT_READ
        )
        return client

    def _subscribe(self, broker: str, session_present: bool) -> None:
        """Subscribe, unless the broker has kept the session."""
        if session_present or not self._filters[broker]:
            self._ready.add(broker)
        else:
            self._clients[broker].subscribe(self._filters[broker])

    def _watch(self, broker: str, sock: Any, events: int) -> None:
        try:
            self._selector.modify(sock, events, broker)
        except KeyError:
            self._selector.register(sock, events, broker)

    def _unwatch(self, sock: Any) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(sock)


class DeliveryTally:
    """The messages that were published, and how often each arrived at each broker.

    Attributes:
        wiring: the wiring, from which the expected deliveries follow.
        published: the messages, by number.
        arrived: how often each message arrived at each broker, by broker and number.
        missing: the deliveries that are still expected, by broker and number.
        unknown: how many messages arrived that were never published.
        published_at: when each message was published, in seconds of a monotonic clock.
        delivered_at: when each message arrived last at a broker that did not have it yet.
    """

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.published: list[SampleMessage] = []
        self.arrived: Counter[tuple[str, int]] = Counter()
        self.missing: set[tuple[str, int]] = set()
        self.unknown = 0
        self.published_at: list[float] = []
        self.delivered_at: dict[int, float] = {}
        self._expected = 0

    def publish(self, message: SampleMessage) -> int:
        """Record a message; returns its number."""
        number = len(self.published)
        self.published.append(message)
        self.published_at.append(time.monotonic())
        wanting = self.wiring.wanting(message.topic)
        self.missing.update((broker, number) for broker in wanting)
        self._expected += len(wanting)
        return number

    def is_looping(self) -> bool:
        """Whether so many messages arrived that some must loop."""
        return self.arrived.total() > 1000 + 20 * self._expected

    def receive(self, broker: str, topic: str, payload: bytes) -> None:
        """Record a message that a client received; its payload begins with its number."""
        text = payload.split(b" ", 1)[0]
        number = int(text) if text.isdigit() else -1
        known = 0 <= number < len(self.published)
        if known and self.published[number].topic == topic.removeprefix(MESH):
            self.arrived[broker, number] += 1
            if (broker, number) in self.missing:
                self.missing.discard((broker, number))
                self.delivered_at[number] = time.monotonic()
        else:
            self.unknown += 1

    def counts(self, first: int = 0) -> dict[str, int]:
        """Published, expected, missing, duplicate and unexpected messages, from a number on."""
        expected = {
            (broker, number)
            for number in range(first, len(self.published))
            for broker in self.wiring.wanting(self.published[number].topic)
        }
        arrived = {key: count for key, count in self.arrived.items() if key[1] >= first}
        return {
            "published": len(self.published) - first,
            "expected": len(expected),
            "missing": len(expected - arrived.keys()),
            "duplicates": sum(count - 1 for key, count in arrived.items() if key in expected),
            "unexpected": self.unknown + sum(count for key, count in arrived.items() if key not in expected),
        }

    def in_flight(self, spans: Sequence[tuple[float, float]]) -> dict[str, int]:
        """The deliveries of messages that were in flight at some time of some spans, and doubled others.

        A message is in flight from its publication until it has arrived at all brokers that want it, and
        their clients have acknowledged it.
        """
        flying = {
            number
            for number, start in enumerate(self.published_at)
            if any(
                start <= end and self.delivered_at.get(number, start) + ACKNOWLEDGED_SECONDS >= begin
                for begin, end in spans
            )
        }
        wanted = sum(len(self.wiring.wanting(self.published[number].topic)) for number in flying)
        others = sum(count - 1 for (_, number), count in self.arrived.items() if number not in flying)
        return {"in_flight": wanted, "doubled_otherwise": others}


@dataclass(frozen=True)
class RehearsalOutcome:
    """The counts of a rehearsal.

    Attributes:
        counts: published, expected, missing, duplicates, unexpected.
        uninterested: how often a link brought a message to a broker that does not want its topic.
        links: the messages that crossed each hop, and how many the plan predicts.
        bytes: size of all packets on links.
        failures: the counts of each failure of a broker or link.
        relayed: how often that must happen, because a broker forwards what its group of topic filters
            matches, and it wants only some of these.
    """

    counts: Mapping[str, int]
    uninterested: int
    links: tuple[Mapping[str, Any], ...]
    bytes: int
    failures: tuple[Mapping[str, Any], ...] = ()
    relayed: int = 0

    @property
    def ok(self) -> bool:
        """Whether every message arrived once, nowhere else, and over the links of the plan."""
        return not (
            any(self.counts[key] for key in ("missing", "duplicates", "unexpected"))
            or self.uninterested != self.relayed
            or any(link["messages"] != link["planned"] for link in self.links)
        )

    def record(self) -> dict[str, Any]:
        """The outcome, ready for JSON."""
        return {
            "ok": self.ok,
            **self.counts,
            "uninterested": self.uninterested,
            "relayed": self.relayed,
            "messages_on_links": sum(link["messages"] for link in self.links),
            "bytes_on_links": self.bytes,
            "links": [dict(link) for link in self.links],
            "failures": [dict(failure) for failure in self.failures],
        }


def publish_all(
    clients: LabClients,
    tally: DeliveryTally,
    messages: Mapping[SampleMessage, int],
    size: int = PAYLOAD_BYTES,
) -> None:
    """Publish each message as often as its count, in rounds over all messages: all brokers are busy."""
    rounds = max(messages.values(), default=0)
    with stage("publish", len(messages) * rounds) as done:
        for turn in range(rounds):
            for message in (message for message, count in messages.items() if turn < count):
                number = publish_one(clients, tally, message, size)
                if number % 50 == 49:
                    clients.poll(0)
                    done(number)


def publish_one(
    clients: LabClients, tally: DeliveryTally, message: SampleMessage, size: int = PAYLOAD_BYTES
) -> int:
    """Publish a message with its number in the payload; returns the number."""
    number = tally.publish(message)
    clients.publish(message.broker, message.topic, f"{number} ".encode().ljust(size, b"."))
    return number


def settle(clients: LabClients, tally: DeliveryTally) -> None:
    """Wait until all messages arrived or no more arrive, and a moment longer, for duplicates."""
    with stage("wait for deliveries"):
        wait_until_quiet(clients, tally, QUIET_SECONDS)
    before = len(tally.missing)
    clients.run(lambda: False, SETTLE_SECONDS)
    if len(tally.missing) < before:
        settle(clients, tally)


def wait_until_quiet(clients: LabClients, tally: DeliveryTally, seconds: float, missing: int = 0) -> None:
    """Send and receive until at most `missing` deliveries are missing, or none arrived for some seconds."""
    for _ in range(int(LONGEST_SECONDS / seconds)):
        before = tally.arrived.total()
        done = clients.run(lambda: len(tally.missing) <= missing or tally.is_looping(), seconds)
        if done or tally.arrived.total() == before:
            return
