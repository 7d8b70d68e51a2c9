"""Delivery counts of a rehearsal: its MQTT clients, the tally of their messages, and the outcome."""

from __future__ import annotations

import selectors
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from broadloom.deployment.targets.mosquitto_bridges import MESH
from broadloom.deployment.wiring import SampleMessage, Wiring
from broadloom.errors import InputError
from broadloom.mqtt.paho import close_sockets, need_paho
from broadloom.progress import stage

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessageInfo


HOST = "127.0.0.1"
TICK = 0.02
RETRY_SECONDS = 0.1

Heard = Callable[[str, str, bytes], None]


class LabClients:
    """A client at each of some brokers; sessions are kept, so that a restart of a broker loses nothing.

    Args:
        ports: where each broker listens.
        heard: called with the broker, the topic and the payload of each message that comes.
        qos: of subscriptions and messages.
        name: how client ids begin.
    """

    def __init__(self, ports: Mapping[str, int], heard: Heard, qos: int = 1, name: str = "rehearsal") -> None:
        self._paho = need_paho()
        self._ports, self._heard, self._qos, self._name = ports, heard, qos, name
        self._selector = selectors.DefaultSelector()
        self._clients: dict[str, Client] = {}
        self._asleep: dict[str, float] = {}  # clients without a connection, and when to try again
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
        """Connect a client to each broker, subscribe it to what is wanted there, and wait for the answers."""
        for number, (broker, filters) in enumerate(wants.items()):
            self._filters[broker] = [(text, self._qos) for text in filters]
            self._clients[broker] = self._client(broker, f"{self._name}-{number}")
            self._clients[broker].connect(HOST, self._ports[broker])
        if not self.run(lambda: len(self._ready) == len(self._clients), seconds):
            missing = len(self._clients) - len(self._ready)
            raise InputError(
                f"{missing} of {len(self._clients)} clients got no answer from their brokers in "
                f"{seconds:g} s; try again on a machine that is less busy"
            )

    def publish(self, broker: str, topic: str, payload: bytes) -> MQTTMessageInfo:
        """Send a message; while the broker is away it waits. What it gives tells when the broker has it."""
        return self._clients[broker].publish(topic, payload, self._qos)

    def run(self, done: Callable[[], bool], seconds: float) -> bool:
        """Send and receive until something is done; false if it takes longer than that."""
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                return False
            self.turn(TICK)
        return True

    def turn(self, seconds: float) -> None:
        """Send and receive what there is, and wait so long for more."""
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
        for broker in [broker for broker, when in self._asleep.items() if when <= now]:
            self._wake(broker, now)

    def _wake(self, broker: str, now: float) -> None:
        """Connect again; the broker may still be away."""
        del self._asleep[broker]
        try:
            self._clients[broker].reconnect()
        except OSError:
            self._asleep[broker] = now + RETRY_SECONDS

    def _client(self, broker: str, name: str) -> Client:
        client = self._paho.Client(self._paho.CallbackAPIVersion.VERSION2, name, clean_session=False)
        client.max_inflight_messages_set(0)
        client.max_queued_messages_set(0)
        client.on_message = lambda _client, _data, message: self._heard(
            broker, message.topic, message.payload
        )
        client.on_connect = lambda _client, _data, flags, *_: self._subscribe(broker, flags.session_present)
        client.on_subscribe = lambda *_: self._ready.add(broker)
        client.on_disconnect = lambda *_: self._asleep.update({broker: time.monotonic() + RETRY_SECONDS})
        client.on_socket_open = lambda _client, _data, sock: self._watch(broker, sock, selectors.EVENT_READ)
        client.on_socket_close = lambda _client, _data, sock: self._forget(sock)
        both = selectors.EVENT_READ | selectors.EVENT_WRITE
        client.on_socket_register_write = lambda _client, _data, sock: self._watch(broker, sock, both)
        client.on_socket_unregister_write = lambda _client, _data, sock: self._watch(
            broker, sock, selectors.EVENT_READ
        )
        return client

    def _subscribe(self, broker: str, still_known: bool) -> None:
        """Ask for what is wanted, unless the broker remembers it."""
        if still_known or not self._filters[broker]:
            self._ready.add(broker)
        else:
            self._clients[broker].subscribe(self._filters[broker])

    def _watch(self, broker: str, sock: Any, events: int) -> None:
        try:
            self._selector.modify(sock, events, broker)
        except KeyError:
            self._selector.register(sock, events, broker)

    def _forget(self, sock: Any) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(sock)


PAYLOAD_BYTES = 100
# Nothing comes any more after so many seconds without a message.
QUIET_SECONDS = 5.0
SETTLE_SECONDS = 0.3
LONGEST_SECONDS = 120.0


class DeliveryTally:
    """Which message was published where, and which came to which broker how often."""

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self.published: list[SampleMessage] = []
        self.got: Counter[tuple[str, int]] = Counter()
        self.open: set[tuple[str, int]] = set()
        self.strays = 0
        self._asked = 0

    def publish(self, message: SampleMessage) -> int:
        """Note a message; its number."""
        number = len(self.published)
        self.published.append(message)
        self.open.update((broker, number) for broker in self.wiring.wanting(message.topic))
        self._asked += len(self.wiring.wanting(message.topic))
        return number

    def runs_away(self) -> bool:
        """Whether so much has come that messages must be going round."""
        return self.got.total() > 1000 + 20 * self._asked

    def heard(self, broker: str, topic: str, payload: bytes) -> None:
        """Note what a client got; the payload begins with the number of the message."""
        text = payload.split(b" ", 1)[0]
        number = int(text) if text.isdigit() else -1
        known = 0 <= number < len(self.published)
        if known and self.published[number].topic == topic.removeprefix(MESH):
            self.got[broker, number] += 1
            self.open.discard((broker, number))
        else:
            self.strays += 1

    def counts(self, first: int = 0) -> dict[str, int]:
        """What came of the messages from a number on."""
        expected = {
            (broker, number)
            for number in range(first, len(self.published))
            for broker in self.wiring.wanting(self.published[number].topic)
        }
        got = {key: count for key, count in self.got.items() if key[1] >= first}
        return {
            "published": len(self.published) - first,
            "expected": len(expected),
            "missing": len(expected - got.keys()),
            "duplicates": sum(count - 1 for key, count in got.items() if key in expected),
            "unexpected": self.strays + sum(count for key, count in got.items() if key not in expected),
        }


def publish_all(
    clients: LabClients,
    tally: DeliveryTally,
    messages: Mapping[SampleMessage, int],
    size: int = PAYLOAD_BYTES,
) -> None:
    """Publish each message so many times, in turn, so that brokers are busy side by side."""
    rounds = max(messages.values(), default=0)
    with stage("publish", len(messages) * rounds) as done:
        for turn in range(rounds):
            for message in (message for message, count in messages.items() if turn < count):
                number = tally.publish(message)
                clients.publish(message.broker, message.topic, f"{number} ".encode().ljust(size, b"."))
                if number % 50 == 49:
                    clients.turn(0)
                    done(number)


def settle(clients: LabClients, tally: DeliveryTally) -> None:
    """Wait until all has come, or nothing comes any more; and then a little, for what comes twice."""
    with stage("wait for deliveries"):
        wait_quiet(clients, tally, QUIET_SECONDS)
    seen = len(tally.open)
    clients.run(lambda: False, SETTLE_SECONDS)
    if len(tally.open) < seen:
        settle(clients, tally)


def wait_quiet(clients: LabClients, tally: DeliveryTally, seconds: float, left: int = 0) -> None:
    """Send and receive until no more than `left` is missing, or nothing has come for so long."""
    for _ in range(int(LONGEST_SECONDS / seconds)):
        before = tally.got.total()
        done = clients.run(lambda: len(tally.open) <= left or tally.runs_away(), seconds)
        if done or tally.got.total() == before:
            return


@dataclass(frozen=True)
class RehearsalOutcome:
    """What a rehearsal counted.

    Attributes:
        counts: published, expected, missing, duplicates, unexpected.
        uninterested: how often a link brought a message to a broker that does not want its topic.
        links: of each link and direction, how many messages crossed it and how many the plan says.
        bytes: of all packets on links.
        failures: what was lost when brokers and links were killed.
    """

    counts: Mapping[str, int]
    uninterested: int
    links: tuple[Mapping[str, Any], ...]
    bytes: int
    failures: tuple[Mapping[str, Any], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything came once, nowhere else, and over the links that the plan says."""
        return not (
            any(self.counts[key] for key in ("missing", "duplicates", "unexpected"))
            or self.uninterested
            or any(link["messages"] != link["planned"] for link in self.links)
        )

    def record(self) -> dict[str, Any]:
        """The outcome as JSON has it."""
        return {
            "ok": self.ok,
            **self.counts,
            "uninterested": self.uninterested,
            "messages_on_links": sum(link["messages"] for link in self.links),
            "bytes_on_links": self.bytes,
            "links": [dict(link) for link in self.links],
            "failures": [dict(failure) for failure in self.failures],
        }
