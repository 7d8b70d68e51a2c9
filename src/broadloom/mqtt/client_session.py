"""MQTT 5 client session that reconnects for ever."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress

from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import (
    CONNACK,
    DISCONNECT,
    FAILED,
    LARGEST,
    LAST_ID,
    MAXIMUM_PACKET,
    PING,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    RECEIVE_MAXIMUM,
    SUBACK,
    UNSUBACK,
    Connack,
    PacketReader,
    ProtocolError,
    Publish,
    connect,
    disconnect,
    publish,
    read_connack,
    read_number,
    read_publish,
    read_reasons,
    subscribe,
    unsubscribe,
)

LOG = logging.getLogger("broadloom.live")
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
CONNECT_SECONDS = 10.0
FILTERS_AT_A_TIME = 200
PART_FAILED = "a part of the agent has failed"


class BrokerRefusedError(Exception):
    """A broker does not allow what a link needs."""


class SessionHandler:
    """Who is told what comes; this one does not care, as that of sessions which only send."""

    def welcomed(self, session: ClientSession, welcome: Connack) -> None:
        """A connection is there; messages may come from now on."""

    async def opened(self, session: ClientSession, welcome: Connack) -> None:
        """What there is to ask for on a new connection, before the session is up."""

    def closed(self, session: ClientSession) -> None:
        """It is gone."""

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """A message has come."""

    def answered(self, session: ClientSession, kind: int, number: int, reason: int) -> None:
        """PUBACK, PUBREC or PUBCOMP has come."""

    def clogged(self, session: ClientSession, full: bool) -> None:
        """The broker reads slower than we write, or no longer so."""


class ClientSession(asyncio.Protocol):
    """A client of one broker that connects again for ever.

    Args:
        broker: the broker's id.
        client: the client's id.
        door: how to reach the broker.
        owner: who is told.
        kept: whether the broker keeps the session while we are away.
        fresh: whether a session of before, if there is one, is of no use.
    """

    def __init__(
        self,
        broker: str,
        client: str,
        door: Endpoint,
        owner: SessionHandler,
        kept: bool = True,
        fresh: bool = False,
    ) -> None:
        self.broker, self.client, self._door, self._owner, self._kept = broker, client, door, owner, kept
        self._fresh = fresh
        self.up = asyncio.Event()  # connected, and the owner is ready
        self.connects = 0
        self.taken: Callable[[int], bool] = lambda _: False  # packet ids that somebody else sends under
        self._transport: asyncio.Transport | None = None
        self._gone = asyncio.Event()
        self._out: list[bytes] = []
        self._requests: dict[int, asyncio.Future[bytes]] = {}
        self._welcome: asyncio.Future[Connack] | None = None
        self._task: asyncio.Task[None] | None = None
        self._heard = 0.0
        self._away_since: float | None = None
        self._next = LAST_ID

    # From outside.

    def start(self) -> None:
        """Begin to connect."""
        self._away_since = asyncio.get_running_loop().time()
        self._task = watched_task(self._run())

    async def stop(self, forget: bool = False) -> None:
        """Disconnect; the broker keeps the session, or forgets it."""
        if self._transport is not None and self.up.is_set():
            self.send(disconnect(0 if forget else None))
            self._flush()
            self._transport.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._gone.wait(), 1.0)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._transport is not None:
            self._transport.abort()

    def away(self) -> float:
        """For how many seconds it has not been connected."""
        return 0.0 if self._away_since is None else asyncio.get_running_loop().time() - self._away_since

    def send(self, packet: bytes) -> None:
        """Write a packet, together with all that is written in this turn of the loop."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(packet)

    def publish(self, topic: str, payload: bytes, properties: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Send a message at QoS 1; its answer is not awaited."""
        self.send(publish(topic, payload, self._number(), properties))

    async def subscribe(self, filters: Iterable[str], retained: bool) -> None:
        """Subscribe, and wait for the answer.

        Raises:
            BrokerRefusedError: the broker does not allow it.
            ConnectionError: the connection is lost meanwhile.
        """
        await self._ask(filters, lambda number, some: subscribe(number, some, retained))

    async def unsubscribe(self, filters: Iterable[str]) -> None:
        """Unsubscribe, and wait for the answer."""
        await self._ask(filters, unsubscribe)

    async def _ask(self, filters: Iterable[str], packet: Callable[[int, list[str]], bytes]) -> None:
        texts = list(filters)
        for first in range(0, len(texts), FILTERS_AT_A_TIME):
            some = texts[first : first + FILTERS_AT_A_TIME]
            if self._transport is None:
                raise ConnectionResetError(f"broker {self.broker!r} is gone")
            number = self._number()
            answer = self._requests[number] = asyncio.get_running_loop().create_future()
            self.send(packet(number, some))
            for text, reason in zip(some, await answer, strict=False):
                if reason >= FAILED:
                    raise BrokerRefusedError(
                        f"broker {self.broker!r} refuses {text!r} to {self.client!r} ({reason:#x})"
                    )

    def _number(self) -> int:
        """A packet id for a request; those of messages grow from the other end."""
        while True:
            self._next = self._next - 1 if self._next > 1 else LAST_ID
            if self._next not in self._requests and not self.taken(self._next):
                return self._next

    # The connection.

    async def _run(self) -> None:
        wait = FIRST_WAIT
        while True:
            try:
                if self._fresh:
                    await self._wipe()
                await self._connect()
                wait = FIRST_WAIT
                await self._gone.wait()
            except (OSError, ProtocolError, BrokerRefusedError, TimeoutError) as error:
                told = str(error) or type(error).__name__
                LOG.warning("broker %r, client %r: %s", self.broker, self.client, told)
            except Exception:  # whatever it is, the other links shall not suffer
                LOG.exception("broker %r, client %r: a fault of ours; trying again", self.broker, self.client)
            self._drop()
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311
            wait = min(2 * wait, LONGEST_WAIT)

    async def _wipe(self) -> None:
        """Have the broker forget an earlier session, by a connection of its own.

        Mosquitto 2.0 keeps no session over its restart that began with a clean start, whatever its expiry.
        """
        await self._greet(clean=True, expiry=0)
        self.send(disconnect())
        self._flush()
        if self._transport is not None:  # it may have hung up at once
            self._transport.close()
        await asyncio.wait_for(self._gone.wait(), CONNECT_SECONDS)
        self._fresh = False

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        welcome = await self._greet(not self._kept, self._door.expiry if self._kept else 0)
        self.connects += 1
        loop.call_later(self._door.keep_alive / 2, self._beat, self._transport)
        await self._owner.opened(self, welcome)
        self._away_since = None
        self.up.set()

    async def _greet(self, clean: bool, expiry: int) -> Connack:
        """Open a connection, and say who we are."""
        door = self._door
        self._gone.clear()
        self._welcome = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(CONNECT_SECONDS):
            await door.open(self)
            self.send(connect(self.client, clean, door.keep_alive, expiry, door.window, door.login))
            welcome = await self._welcome
        if welcome.reason >= FAILED:
            raise BrokerRefusedError(f"it refuses the connection ({welcome.reason:#x})")
        return welcome

    def _beat(self, transport: asyncio.Transport | None) -> None:
        """See whether the broker is still there."""
        if transport is None or transport is not self._transport:
            return
        loop = asyncio.get_running_loop()
        if loop.time() - self._heard > 1.5 * self._door.keep_alive:
            LOG.warning("broker %r does not answer client %r", self.broker, self.client)
            transport.abort()
            return
        self.send(PING)
        loop.call_later(self._door.keep_alive / 2, self._beat, transport)

    def _drop(self) -> None:
        """Whatever was under way on a connection ends with it."""
        if self._transport is not None:
            self._transport.abort()
        self._transport = None
        self._out.clear()
        for request in self._requests.values():
            if not request.done():
                request.set_exception(ConnectionResetError(f"broker {self.broker!r} is gone"))
                request.exception()  # who asked may be gone too
        self._requests.clear()

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._packets = transport, PacketReader()

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._welcome is not None and not self._welcome.done():
            self._welcome.set_exception(exc or ConnectionResetError("it closed the connection"))
            self._welcome.exception()
        if self.up.is_set():
            self._away_since = asyncio.get_running_loop().time()
        self.up.clear()
        self._drop()
        self._owner.closed(self)
        self._gone.set()

    def pause_writing(self) -> None:
        """The broker reads slower than we write."""
        self._owner.clogged(self, True)

    def resume_writing(self) -> None:
        """No longer so."""
        self._owner.clogged(self, False)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        self._heard = asyncio.get_running_loop().time()
        try:
            for kind, raw, head in self._packets.feed(data):
                if kind != CONNACK and not self._welcomed():
                    raise ProtocolError("a packet before the answer to CONNECT")
                if kind == PUBLISH:
                    self._owner.arrived(self, read_publish(raw, head))
                else:
                    self._take(kind, raw, head)
        except ProtocolError as error:
            LOG.error("broker %r sent what is no MQTT: %s; the connection ends", self.broker, error)
            assert self._transport is not None
            self._transport.abort()

    def _welcomed(self) -> bool:
        return self._welcome is not None and self._welcome.done()

    def _take(self, kind: int, raw: bytes, head: int) -> None:
        if kind in (PUBACK, PUBREC, PUBCOMP):
            self._owner.answered(self, kind, *read_number(raw, head))
        elif kind in (SUBACK, UNSUBACK):
            number, reasons = read_reasons(raw, head)
            request = self._requests.pop(number, None)
            if request is not None and not request.done():
                request.set_result(reasons)
        elif kind == CONNACK and self._welcome is not None and not self._welcomed():
            welcome = read_connack(raw, head)
            self._welcome.set_result(welcome)
            if welcome.reason < FAILED and not self._fresh:
                self._owner.welcomed(self, welcome)
        elif kind == DISCONNECT:
            reason = raw[head] if len(raw) > head else 0
            LOG.warning("broker %r ends the connection of %r (%#x)", self.broker, self.client, reason)
        elif kind != PINGRESP:
            raise ProtocolError(f"a packet of kind {kind:#04x} that was not asked for")


def watched_task(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """A task whose faults are told to the loop's exception handler, since nobody waits for it."""

    def tell(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (fault := task.exception()):
            task.get_loop().call_exception_handler({"message": PART_FAILED, "exception": fault})

    task = asyncio.create_task(work)
    task.add_done_callback(tell)
    return task


def broker_limits(welcome: Connack) -> tuple[int, int]:
    """How many unfinished messages a broker takes, and how long a packet."""
    return welcome.properties.get(RECEIVE_MAXIMUM, LAST_ID), welcome.properties.get(MAXIMUM_PACKET, LARGEST)
