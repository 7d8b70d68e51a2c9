"""Session that sees all messages of a broker at once, while bridges made by hand bring copies.

A hop has at most its window of messages that are not finished. While these wait, further ones are in the
broker's queue, and with them the message with a stamp that tells that one of them is a copy. This session
gets all of them at QoS 0, which no window limits. So the time that a message has spent in the queue counts
as waiting, and the window does not limit how much clients can publish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from broadloom.agents.links.ring_guard import RingGuard, content_hash
from broadloom.agents.links.stamps import Stamps
from broadloom.mqtt.client_session import ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import PUBACK, Connack, Publish, acknowledgement

OPEN_SECONDS = 2.0


class CopyObserver(SessionHandler):
    """Tells the guard of a broker when messages arrive there.

    Args:
        broker: the broker.
        endpoint: its endpoint.
        guard: its guard.
        stamps: reads stamps.
    """

    def __init__(self, broker: str, endpoint: Endpoint, guard: RingGuard, stamps: Stamps) -> None:
        self._broker = broker
        self._endpoint = endpoint
        self._guard = guard
        self._stamps = stamps
        self._session: ClientSession | None = None
        self._wanted: set[str] = set()
        self._subscribed: set[str] = set()

    async def observe(self, filters: Collection[str]) -> None:
        """See the messages of some filters; none: end the session.

        Raises:
            ConnectionError: the broker is not connected.
            BrokerRefusedError: it refuses a filter.
        """
        self._wanted = set(filters)
        if not self._wanted:
            await self.stop()
            return
        if self._session is None:
            client = f"broadloom-guard-{self._broker}"
            self._session = ClientSession(self._broker, client, self._endpoint, self, kept=False)
            self._session.start()
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await self._session.up.wait()
        except TimeoutError as error:
            raise ConnectionResetError(f"broker {self._broker!r} is not connected") from error
        await self._subscribe(self._session)

    async def stop(self) -> None:
        """End the session."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.stop()
            self._subscribed.clear()

    async def _subscribe(self, session: ClientSession) -> None:
        wanted = set(self._wanted)
        if missing := wanted - self._subscribed:
            await session.subscribe(sorted(missing), retained=False, qos=0)
            self._subscribed |= missing
        if extra := self._subscribed - wanted:
            await session.unsubscribe(sorted(extra))
            self._subscribed -= extra

    # Callbacks of the session.

    async def opened(self, session: ClientSession, connack: Connack) -> None:  # noqa: ARG002
        """Subscribe again."""
        self._subscribed.clear()
        await self._subscribe(session)

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """A message has arrived at the broker."""
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))
        stamp = self._stamps.read(message.stamp) if message.stamp else None
        if stamp is None:
            self._guard.saw_arrive(content_hash(message))
        elif stamp.at == self._broker and not stamp.retained:
            self._guard.saw_stamped(content_hash(message))
