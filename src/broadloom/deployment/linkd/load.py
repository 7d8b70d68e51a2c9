"""Load on running brokers: a client at each that publishes and subscribes, and counts what came how often."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle

from broadloom.deployment.linkd.packets import FAILED, ID, PUBACK, Publish, Welcome, answer
from broadloom.deployment.linkd.session import Door, Session

IN_FLIGHT = 15  # of one client; a broker of default settings takes 20


class Load:
    """Clients with ids on their messages; the payload is the message's number.

    Args:
        doors: how to reach each broker.
        wants: the topics that are subscribed to at each.
        identified: whether messages have ids.

    Attributes:
        published: broker and topic of each message, by its number.
        due: at which brokers each message has to come.
        got: how often a message came to a broker.
    """

    def __init__(
        self, doors: Mapping[str, Door], wants: Mapping[str, Sequence[str]], identified: bool = True
    ) -> None:
        self.wants, self._identified = {broker: set(topics) for broker, topics in wants.items()}, identified
        self.published: list[tuple[str, str]] = []
        self.due: list[frozenset[str]] = []
        self.got: Counter[tuple[str, int]] = Counter()
        self._open: Counter[str] = Counter()
        self.clients = {
            broker: Session(broker, f"load-{broker}", door, self, fresh=True)
            for broker, door in doors.items()
        }
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect and subscribe."""
        for client in self.clients.values():
            client.start()
        for client in self.clients.values():
            await client.up.wait()

    async def stop(self) -> None:
        """Disconnect, and have brokers forget the clients."""
        await self.pause()
        await asyncio.gather(*(client.stop(forget=True) for client in self.clients.values()))

    def run(self, rate: float) -> None:
        """Publish so many messages a second, each topic at each broker that wants it in turn."""
        self._task = asyncio.create_task(self._publish(rate))

    async def pause(self) -> None:
        """Publish no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def move_off(self, broker: str) -> None:
        """The clients of a broker are there no longer."""
        topics = self.wants.pop(broker)
        await self.clients[broker].unsubscribe(topics)
        self.due = [due - {broker} for due in self.due]

    async def move_to(self, broker: str, topics: Sequence[str]) -> None:
        """Clients come to a broker; messages count from now on."""
        await self.clients[broker].subscribe(topics, retained=False)
        self.wants[broker] = set(topics)

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
        """Publish one message, if the broker takes it now."""
        client = self.clients[broker]
        if not client.up.is_set() or self._open[broker] >= IN_FLIGHT:
            return False
        number = len(self.published)
        self.published.append((broker, topic))
        wanting = (one for one, topics in self.wants.items() if topic in topics)
        self.due.append(frozenset(wanting) - {broker})  # clients subscribe to nothing of their own
        self._open[broker] += 1
        text = b"%d" % number
        client.publish(topic, text, [(ID, b"load-" + text)] if self._identified else ())
        return True

    def counts(self) -> dict[str, int]:
        """What came of all messages so far."""
        due = {(broker, number) for number, brokers in enumerate(self.due) for broker in brokers}
        came = {key for key in due if self.got[key]}
        doubled = sum(self.got[key] - 1 for key in came)
        return {
            "published": len(self.published),
            "due": len(due),
            "lost": len(due - came),
            "doubled": doubled,
        }

    async def settle(self, seconds: float = 10.0, quiet: float = 0.3) -> dict[str, int]:
        """Wait until all has come, and a little for what comes twice; the counts then."""
        end = time.monotonic() + seconds
        while self.counts()["lost"] and time.monotonic() < end:
            await asyncio.sleep(0.05)
        await asyncio.sleep(quiet)
        return self.counts()

    # What sessions call.

    def welcomed(self, session: Session, welcome: Welcome) -> None:
        """It subscribes next."""

    async def opened(self, session: Session, welcome: Welcome) -> None:
        """A client subscribes, unless its broker remembers."""
        self._open[session.broker] = 0
        if not welcome.present:
            await session.subscribe(sorted(self.wants.get(session.broker, ())), retained=False)

    def closed(self, session: Session) -> None:
        """It connects again by itself."""

    def arrived(self, session: Session, message: Publish) -> None:
        """A message has come."""
        self.got[session.broker, int(message.payload())] += 1
        if message.number:
            session.send(answer(PUBACK, message.number))

    def answered(self, session: Session, kind: int, number: int, reason: int) -> None:
        """A broker has taken a message."""
        assert (kind, reason >= FAILED) == (PUBACK, False), f"{kind:#x} for {number}: {reason:#x}"
        self._open[session.broker] = max(0, self._open[session.broker] - 1)

    def clogged(self, session: Session, full: bool) -> None:
        """Its answers come later."""
