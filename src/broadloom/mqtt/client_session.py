"""MQTT 5 client session that reconnects by itself, on asyncio."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

from broadloom.mqtt.endpoint import Endpoint, abort_connection
from broadloom.mqtt.packets import (
    CONNACK,
    DISCONNECT,
    FAILED,
    IDENTIFIERS_AVAILABLE,
    LAST_ID,
    PING,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    SUBACK,
    UNSUBACK,
    Connack,
    PacketReader,
    ProtocolError,
    Publish,
    connect,
    disconnect,
    publish,
    read_acknowledgement,
    read_connack,
    read_publish,
    read_reasons,
    subscribe,
    unsubscribe,
)

LOG = logging.getLogger("broadloom.live")
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds between attempts to connect
SHORT_SECONDS, MOST_SHORT = 2.0, 5  # a short connection; after so many in a row the waits grow, too
CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 20.0  # for the answer to SUBSCRIBE or UNSUBSCRIBE
RETAIN_NOT_SUPPORTED = 0x9A  # reason of CONNACK: the broker retains no messages, so it takes no retained will
TAKEN_OVER = 0x8E  # reason of DISCONNECT: another client of the same name has connected
FILTERS_PER_REQUEST = 200
PROGRESS_BYTES = 1 << 16  # of a packet that is not complete yet: so many are a sign of life
REST_SECONDS = 0.001  # between two reads of a busy session
_ANSWERS = frozenset((PUBACK, PUBREC, PUBCOMP))
TASK_FAILED = "a task of the agent has failed"


class BrokerRefusedError(Exception):
    """A broker refused a connection or a subscription.

    Attributes:
        filters: the topic filters that it refused, after it has accepted all others of the request.
    """

    def __init__(self, text: str, filters: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.filters = tuple(filters)


class SessionHandler:
    """Callbacks of a session; these do nothing, which suits sessions that only send."""

    def connected(self, session: ClientSession, connack: Connack) -> None:
        """The session is connected; messages can arrive from now on."""

    async def opened(self, session: ClientSession, connack: Connack) -> None:
        """Send what a new connection needs before the session is up, such as subscriptions."""

    def closed(self, session: ClientSession) -> None:
        """The connection is lost."""

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """A message has arrived."""

    def acknowledged(self, session: ClientSession, kind: int, number: int, reason: int) -> None:
        """PUBACK, PUBREC or PUBCOMP has arrived."""

    def is_busy(self) -> bool:
        """Whether so much is under way that the session should read more at once, a moment later.

        That saves the agent and the broker most of the work of waking each other.
        """
        return False

    def congested(self, session: ClientSession, full: bool) -> None:
        """The write buffer is full because the broker reads slowly, or no longer full."""

    def disconnected(self, session: ClientSession, reason: int) -> None:
        """DISCONNECT has arrived: the broker ends the connection for a reason."""


class ClientSession(asyncio.Protocol):
    """Session of an MQTT 5 client at one broker, with unlimited attempts to reconnect.

    Args:
        broker: the broker's id.
        client: the client's id.
        endpoint: the broker's endpoint.
        handler: the callbacks.
        kept: whether the broker keeps the session while the client is absent.
        fresh: whether to delete an earlier session first.
        will: the topic and payload of a retained message that the broker publishes if the connection is lost.
        largest: the bytes of the largest packet that the broker has reason to send; None: any size.

    Attributes:
        up: set while the session is connected and `handler.opened` has returned.
        last_error: why the latest attempt to connect failed; None: it has not.
        round_trip: seconds from the latest PINGREQ to its answer; None: not known.
        is_taken_over: whether another client of the same name has taken the session over; then this one does
            not connect again.
        will: as the argument; a change has effect from the next connection on.
    """

    def __init__(
        self,
        broker: str,
        client: str,
        endpoint: Endpoint,
        handler: SessionHandler,
        kept: bool = True,
        fresh: bool = False,
        will: tuple[str, bytes] | None = None,
        largest: int | None = None,
    ) -> None:
        self.broker = broker
        self.client = client
        self.round_trip: float | None = None
        self.is_taken_over = False
        self.will = will
        self._pinged: float | None = None
        self._is_paused = False
        self.up = asyncio.Event()
        self.last_error: str | None = None
        self._endpoint = endpoint
        self._handler = handler
        self._kept = kept
        self._fresh = fresh
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.Event()
        self._out: list[bytes] = []
        self._requests: dict[int, asyncio.Future[bytes]] = {}
        self._connack: asyncio.Future[Connack] | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_received = 0.0
        self._last_id = LAST_ID
        self._has_identifiers = True
        self._takes_will = True
        self._largest = largest
        self._incomplete = 0  # bytes received since the last complete packet, or sign of life

    def start(self) -> None:
        """Start to connect."""
        self._task = watched_task(self._run())

    async def stop(self, forget: bool = False) -> None:
        """Disconnect; the broker keeps the session, or deletes it with `forget`."""
        try:
            if self._transport is not None and self.up.is_set():
                self.send(disconnect(0 if forget else None))
                self._flush()
                self._transport.close()
                with suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._closed.wait()
            if self._task is not None:
                self._task.cancel()
                await asyncio.gather(self._task, return_exceptions=True)
        finally:
            self.abort()

    def abort(self) -> None:
        """End the connection at once, and do not connect again."""
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            abort_connection(self._transport)

    def send(self, packet: bytes) -> None:
        """Write a packet, in one call with all packets of this iteration of the event loop."""
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(packet)

    def publish(
        self,
        topic: str,
        payload: bytes,
        properties: Sequence[tuple[bytes, bytes]] = (),
        retain: bool = False,
    ) -> int:
        """Send a message at QoS 1 without waiting for its acknowledgement; returns its packet id."""
        number = self._next_id()
        self.send(publish(topic, payload, number, properties, retain))
        return number

    def pause(self, paused: bool) -> None:
        """Stop reading from the broker, or go on; the broker keeps what it cannot send."""
        if paused == self._is_paused:
            return
        self._is_paused = paused
        if self._transport is not None and not self._transport.is_closing():
            self._last_received = asyncio.get_running_loop().time()
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    async def subscribe(
        self,
        filters: Iterable[str],
        retained: bool,
        identifiers: Mapping[str, int] | None = None,
        qos: int = 1,
    ) -> None:
        """Subscribe, and wait for the acknowledgement.

        Args:
            filters: the topic filters; those with identifiers are requested one by one, in order.
            retained: whether the broker sends retained messages, if the subscription is new.
            identifiers: the subscription identifiers of some filters, from 1; a broker that has none ignores
                them.
            qos: the highest quality of service of messages for filters without identifiers.

        Raises:
            BrokerRefusedError: the broker refuses some filters; it has accepted the others.
            ConnectionError: the connection is lost.
        """
        known = (identifiers or {}) if self._has_identifiers else {}
        texts = list(filters)
        plain = [text for text in texts if not known.get(text)]
        refused = await self._request(plain, lambda number, some: subscribe(number, some, retained, qos=qos))
        for text in texts:
            if known.get(text):
                packet = partial(subscribe, retained=retained, identifier=known[text])
                refused |= await self._request([text], packet)
        if refused:
            text, reason = next(iter(refused.items()))
            more = f" and {len(refused) - 1} more filters" if len(refused) > 1 else ""
            raise BrokerRefusedError(
                f"broker {self.broker!r} refuses {text!r}{more} to {self.client!r} ({reason:#x})",
                list(refused),
            )

    async def unsubscribe(self, filters: Iterable[str]) -> None:
        """Unsubscribe, and wait for the acknowledgement."""
        await self._request(filters, unsubscribe)

    async def _request(
        self, filters: Iterable[str], packet: Callable[[int, list[str]], bytes]
    ) -> dict[str, int]:
        """Send requests and wait for the answers; returns the refused filters, with the reasons."""
        refused: dict[str, int] = {}
        texts = list(filters)
        for first in range(0, len(texts), FILTERS_PER_REQUEST):
            some = texts[first : first + FILTERS_PER_REQUEST]
            if self._transport is None:
                raise ConnectionResetError(f"broker {self.broker!r} is disconnected")
            number = self._next_id()
            answer = self._requests[number] = asyncio.get_running_loop().create_future()
            self.send(packet(number, some))
            reasons = zip(some, await self._answered(answer), strict=False)
            refused |= {text: reason for text, reason in reasons if reason >= FAILED}
        return refused

    async def _answered(self, answer: asyncio.Future[bytes]) -> bytes:
        """The answer to a request; a broker that gives none in time loses the connection."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):  # wait_for can swallow a cancellation
                return await answer
        except TimeoutError as error:
            if self._transport is not None:
                abort_connection(self._transport)
            raise ConnectionResetError(
                f"broker {self.broker!r} has not answered client {self.client!r} for {REQUEST_SECONDS:g} s"
            ) from error

    def _next_id(self) -> int:
        """A free packet id for a request or a message."""
        for _ in range(LAST_ID):
            self._last_id = self._last_id - 1 if self._last_id > 1 else LAST_ID
            if self._last_id not in self._requests:
                return self._last_id
        raise ConnectionResetError(f"client {self.client!r} has no free packet id at broker {self.broker!r}")

    # The connection.

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        wait = FIRST_WAIT
        short = 0  # connections in a row
        while not self.is_taken_over:
            try:
                if self._fresh:
                    await self._clear_session()
                await self._connect()
                began = loop.time()
                await self._closed.wait()
                short = short + 1 if loop.time() - began < SHORT_SECONDS else 0
                if short < MOST_SHORT:
                    wait = FIRST_WAIT
                else:
                    self._note_error(
                        f"{MOST_SHORT} connections in a row ended within {SHORT_SECONDS:g} s; does another "
                        "client use this client id?"
                    )
            except (OSError, ProtocolError, BrokerRefusedError, TimeoutError) as error:
                self._note_error(_reason(error))
            except Exception:  # a bug in one session must not stop the others
                LOG.exception("broker %r, client %r: internal error; trying again", self.broker, self.client)
            self._reset()
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311
            wait = min(2 * wait, LONGEST_WAIT)

    def _note_error(self, reason: str) -> None:
        if reason != self.last_error:  # each reason once, not each attempt
            LOG.warning("broker %r, client %r: %s", self.broker, self.client, reason)
        self.last_error = reason

    async def _clear_session(self) -> None:
        """Have the broker delete an earlier session, in a separate connection.

        Mosquitto 2.0 loses a session that began with a clean start when it restarts, whatever its expiry.
        """
        await self._open_connection(clean=True, expiry=0)
        self.send(disconnect())
        self._flush()
        if self._transport is not None:  # the broker can have closed the connection already
            self._transport.close()
        async with asyncio.timeout(CONNECT_SECONDS):
            await self._closed.wait()
        self._fresh = False

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        connack = await self._open_connection(not self._kept, self._endpoint.expiry if self._kept else 0)
        self._has_identifiers = connack.properties.get(IDENTIFIERS_AVAILABLE, 1) != 0
        loop.call_later(self._endpoint.keep_alive / 2, self._ping, self._transport)
        await self._handler.opened(self, connack)
        if self.last_error is not None:
            LOG.warning("broker %r, client %r: connected again", self.broker, self.client)
            self.last_error = None
        self.up.set()

    async def _open_connection(self, clean: bool, expiry: int) -> Connack:
        """Open a connection, send CONNECT, and wait for CONNACK."""
        endpoint = self._endpoint
        self._closed.clear()
        self._connack = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(CONNECT_SECONDS):
            await endpoint.open(self)
            window = endpoint.window
            will = self.will if self._takes_will and not self._fresh else None
            self.send(connect(self.client, clean, endpoint.keep_alive, expiry, window, endpoint.login, will))
            connack = await self._connack
        if connack.reason == RETAIN_NOT_SUPPORTED and will is not None:
            self._takes_will = False
            raise BrokerRefusedError("the broker retains no messages; connecting without a will")
        if connack.reason >= FAILED:
            raise BrokerRefusedError(f"the broker refuses the connection ({connack.reason:#x})")
        return connack

    def _ping(self, transport: asyncio.Transport | None) -> None:
        """Send PINGREQ, or end a connection on which nothing was received for too long."""
        if transport is None or transport is not self._transport:
            return
        loop = asyncio.get_running_loop()
        silent = loop.time() - self._last_received
        if silent > 1.5 * self._endpoint.keep_alive and not self._is_paused:
            LOG.warning("broker %r does not answer client %r", self.broker, self.client)
            abort_connection(transport)
            return
        self._pinged = loop.time()
        self.send(PING)
        loop.call_later(self._endpoint.keep_alive / 2, self._ping, transport)

    def _reset(self) -> None:
        """End the connection and fail its pending requests."""
        if self._transport is not None:
            abort_connection(self._transport)
        self._transport = None
        self._out.clear()
        for request in self._requests.values():
            if not request.done():
                request.set_exception(ConnectionResetError(f"broker {self.broker!r} is disconnected"))
                request.exception()  # retrieved, since the caller can be cancelled
        self._requests.clear()

    def _flush(self) -> None:
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open."""
        self._transport = cast("asyncio.Transport", transport)
        self._packets = PacketReader(self._largest)
        self._incomplete = 0
        self._pinged = None
        self._is_paused = False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        if self._connack is not None and not self._connack.done():
            self._connack.set_exception(exc or ConnectionResetError("the broker closed the connection"))
            self._connack.exception()
        self.up.clear()
        self._reset()
        self._handler.closed(self)
        self._closed.set()

    def pause_writing(self) -> None:
        """The write buffer is full."""
        self._handler.congested(self, True)

    def resume_writing(self) -> None:
        """The write buffer is no longer full."""
        self._handler.congested(self, False)

    def data_received(self, data: bytes) -> None:
        """Bytes have arrived."""
        if self._connack is not None and self._connack.cancelled():
            return  # the session stops, or the broker has answered too late
        handler = self._handler
        self._incomplete += len(data)
        if self._incomplete >= PROGRESS_BYTES:
            self._was_alive()
        is_connected = self._is_connected()
        try:
            for kind, raw, head in self._packets.feed(data):
                if self._incomplete:
                    self._was_alive()
                if not is_connected:
                    if kind != CONNACK:
                        raise ProtocolError("a packet precedes CONNACK")
                    is_connected = True
                if kind == PUBLISH:
                    handler.arrived(self, read_publish(raw, head))
                elif kind in _ANSWERS:
                    number, reason = read_acknowledgement(raw, head)
                    handler.acknowledged(self, kind, number, reason)
                else:
                    self._handle(kind, raw, head)
        except ProtocolError as error:
            LOG.error("broker %r violates MQTT: %s; the connection ends", self.broker, error)
            if self._transport is not None:
                abort_connection(self._transport)
        transport = self._transport
        if handler.is_busy() and transport is not None and not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_later(REST_SECONDS, self._read_on, transport)

    def _was_alive(self) -> None:
        """The broker has sent a complete packet, or many bytes of one.

        Bytes alone prove nothing: after a wrong length the rest of the connection would be one packet.
        """
        self._incomplete = 0
        self._last_received = asyncio.get_running_loop().time()

    def _read_on(self, transport: asyncio.Transport) -> None:
        """The rest of a busy session is over."""
        if transport is self._transport and not self._is_paused and not transport.is_closing():
            transport.resume_reading()

    def _is_connected(self) -> bool:
        return self._connack is not None and self._connack.done()

    def _handle(self, kind: int, raw: bytes, head: int) -> None:
        """Handle a packet that has nothing to do with a message."""
        if kind in (SUBACK, UNSUBACK):
            number, reasons = read_reasons(raw, head)
            request = self._requests.pop(number, None)
            if request is not None and not request.done():
                request.set_result(reasons)
        elif kind == CONNACK and self._connack is not None and not self._is_connected():
            connack = read_connack(raw, head)
            self._connack.set_result(connack)
            if connack.reason < FAILED and not self._fresh:
                self._handler.connected(self, connack)
        elif kind == DISCONNECT:
            reason = raw[head] if len(raw) > head else 0
            LOG.warning("broker %r ends the connection of %r (%#x)", self.broker, self.client, reason)
            self.is_taken_over = reason == TAKEN_OVER
            self._handler.disconnected(self, reason)
        elif kind == PINGRESP:
            if self._pinged is not None:
                self.round_trip = asyncio.get_running_loop().time() - self._pinged
        else:
            raise ProtocolError(f"an unexpected packet of kind {kind:#04x}")


async def stop_sessions(*sessions: ClientSession) -> None:
    """Stop sessions; if this is cancelled, even before it has begun, their connections end at once."""
    try:
        await asyncio.gather(*(session.stop() for session in sessions))
    finally:
        for session in sessions:
            session.abort()


def _reason(error: Exception) -> str:
    """Why a connection failed, in one line; asyncio has a long text of its own for a refused connection."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def watched_task(work: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """A task that is not awaited; its failure goes to the event loop's exception handler."""

    def report(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            task.get_loop().call_exception_handler({"message": TASK_FAILED, "exception": error})

    task = asyncio.create_task(work)
    task.add_done_callback(report)
    return task
