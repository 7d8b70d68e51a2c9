"""Load on running brokers: one client per broker that publishes and subscribes, and counts deliveries."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import cycle

from broadloom.mqtt.client_session import ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import FAILED, PUBACK, Connack, Publish, acknowledgement
from broadloom.mqtt.reserved_topics import MESSAGE_ID

IN_FLIGHT = 15  # of one client; a broker of default settings takes 20


class Load(SessionHandler):
    """One client per broker; the payload of a message is its number.

    Args:
        endpoints: the endpoint of each broker.
        wants: the topics that each broker's client subscribes to.

    Attributes:
        wants: the present topics of each broker's client.
        identified: whether messages have ids.
        published: broker and topic of each message, by its number.
        missing: per message, the brokers where it has yet to arrive.
        due: number of expected deliveries.
        got: number of arrivals by broker and message.
    """

    def __init__(self, endpoints: Mapping[str, Endpoint], wants: Mapping[str, Iterable[str]]) -> None:
        self.wants = {broker: set(wants.get(broker, ())) for broker in endpoints}
        self.identified = True
        self.published: list[tuple[str, str]] = []
        self.missing: dict[int, set[str]] = {}
        self.due = 0
        self.got: Counter[tuple[str, int]] = Counter()
        self._open: Counter[str] = Counter()
        self.clients = {
            broker: ClientSession(broker, f"load-{broker}", endpoint, self, fresh=True)
            for broker, endpoint in endpoints.items()
        }
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect and subscribe."""
        for client in self.clients.values():
            client.start()
        for client in self.clients.values():
            await client.up.wait()

    async def stop(self) -> None:
        """Disconnect, and have brokers delete the sessions."""
        await self.pause()
        await asyncio.gather(*(client.stop(forget=True) for client in self.clients.values()))

    def run(self, rate: float) -> None:
        """Publish messages at a rate per second, in turn for each pair of a broker and its topic."""
        self._task = asyncio.create_task(self._publish(rate))

    async def pause(self) -> None:
        """Stop publishing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def move_off(self, broker: str, topics: Iterable[str] | None = None) -> None:
        """Unsubscribe a broker's client from some topics, or from all."""
        gone = set(self.wants[broker] if topics is None else topics)
        self.wants[broker] -= gone
        await self.clients[broker].unsubscribe(sorted(gone))
        for number, brokers in list(self.missing.items()):
            if broker in brokers and self.published[number][1] in gone:
                self.due -= 1
                self._strike(number, broker)

    async def move_to(self, broker: str, topics: Iterable[str]) -> None:
        """Subscribe a broker's client to more topics; messages count from now on."""
        more = sorted(topics)
        await self.clients[broker].subscribe(more, retained=False)
        self.wants[broker].update(more)

    async def _publish(self, rate: float) -> None:
        began, sent, turns = time.monotonic(), 0, cycle(range(1 << 30))
        while True:
            places = [
                (broker, topic) for broker in sorted(self.wants) for topic in sorted(self.wants[broker])
            ]
            behind = int((time.monotonic() - began) * rate) - sent
            for _ in range(min(behind, 4 * len(places)) if places else 0):
                sent += self.publish(*places[next(turns) * 7919 % len(places)])
            await asyncio.sleep(0.002)

    def publish(self, broker: str, topic: str) -> bool:
        """Publish one message, if the broker accepts it now."""
        client = self.clients[broker]
        if not client.up.is_set() or self._open[broker] >= IN_FLIGHT:
            return False
        number = len(self.published)
        self.published.append((broker, topic))
        wanting = {one for one, topics in self.wants.items() if topic in topics}
        wanting.discard(broker)  # clients subscribe to nothing of their own
        self.due += len(wanting)
        if wanting:
            self.missing[number] = wanting
        self._open[broker] += 1
        text = b"%d" % number
        client.publish(topic, text, [(MESSAGE_ID.encode(), b"load-" + text)] if self.identified else ())
        return True

    def counts(self) -> dict[str, int]:
        """Counts of published, expected, lost and duplicated messages."""
        lost = sum(map(len, self.missing.values()))
        doubled = self.got.total() - len(self.got)
        return {"published": len(self.published), "due": self.due, "lost": lost, "doubled": doubled}

    async def settle(self, seconds: float = 60.0, quiet: float = 0.3) -> dict[str, int]:
        """Wait until all messages have arrived, and a little for duplicates; returns the counts."""
        end = time.monotonic() + seconds
        while self.missing and time.monotonic() < end:
            await asyncio.sleep(0.05)
        await asyncio.sleep(quiet)
        return self.counts()

    def _strike(self, number: int, broker: str) -> None:
        """A message is no longer expected at a broker."""
        brokers = self.missing.get(number, set())
        brokers.discard(broker)
        if not brokers:
            self.missing.pop(number, None)

    # Callbacks of sessions.

    async def opened(self, session: ClientSession, connack: Connack) -> None:
        """Subscribe, unless the broker has kept the session."""
        self._open[session.broker] = 0
        if not connack.present:
            await session.subscribe(sorted(self.wants[session.broker]), retained=False)

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """Count a message, and acknowledge it."""
        number = int(message.payload())
        self.got[session.broker, number] += 1
        self._strike(number, session.broker)
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))

    def acknowledged(self, session: ClientSession, kind: int, number: int, reason: int) -> None:
        """A broker has accepted a message."""
        assert (kind, reason >= FAILED) == (PUBACK, False), f"{kind:#x} for {number}: {reason:#x}"
        self._open[session.broker] = max(0, self._open[session.broker] - 1)
