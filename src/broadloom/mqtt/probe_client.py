"""MQTT client for probes of a broker: one connection, and answers that are awaited one by one, on asyncio."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import NamedTuple, Self

from broadloom.mqtt.endpoint import Address, Login, abort_connection
from broadloom.mqtt.packets import (
    CONNACK,
    DISCONNECT,
    LAST_ID,
    PING,
    PINGRESP,
    PUBACK,
    PUBLISH,
    PUBREC,
    SUBACK,
    Connack,
    PacketReader,
    ProtocolError,
    acknowledgement,
    connack_limits,
    connect,
    connect_311,
    disconnect,
    publish,
    publish_311,
    publish_unreleased,
    read_acknowledgement,
    read_connack,
    read_publish,
    read_reasons,
    subscribe,
)

KEEP_ALIVE = 60
OPEN_SECONDS = 5.0
CLOSE_SECONDS = 1.0
MQTT_5, MQTT_311 = 5, 4  # protocol levels
UNRELEASED = 10  # messages per connection, if the broker allows so many
NOT_AUTHORIZED = 0x87


class ProbeMessage(NamedTuple):
    """A message that a probe has received, and the time of its arrival (seconds since 1970)."""

    topic: str
    payload: bytes
    arrived: float


class ConnectionEndedError(ConnectionError):
    """The broker closed the connection; `reason` is the code of its DISCONNECT, or None."""

    def __init__(self, reason: int | None = None) -> None:
        super().__init__("the broker closed the connection")
        self.reason = reason


async def close_connection(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait until it is closed; a broker that does not read has a second."""
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
            return
    abort_connection(writer.transport)


class ProbeClient:
    """One connection to a broker, as an async context manager that always closes it.

    Args:
        address: the broker's host and port.
        client: the client id.
        login: the user name and password.
        tls: the TLS context; None: plain text.

    Attributes:
        messages: the messages that have arrived so far; QoS 1 is acknowledged at once.
        connack: the broker's answer to CONNECT.
    """

    def __init__(
        self, address: Address, client: str, login: Login | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self._address = address
        self._client = client
        self._login = login
        self._tls = tls
        self._packets = PacketReader()
        self._waiting: dict[tuple[int, int], asyncio.Future[tuple[bytes, int]]] = {}
        self._ended: int | None = None
        self._reader_task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._last_number = 0
        self._error: Exception | None = None
        self.messages: list[ProbeMessage] = []
        self.connack = Connack(False, 0, {})

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(OPEN_SECONDS):
            reader, self._writer = await asyncio.open_connection(
                self._address.hostname, self._address.port, ssl=self._tls
            )
        self._reader_task = asyncio.create_task(self._read(reader))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._reader_task is not None:
            self._reader_task.cancel()
            await asyncio.gather(self._reader_task, return_exceptions=True)
        if self._writer is not None:
            await close_connection(self._writer)

    async def connect(self, clean: bool = True, expiry: int = 0, version: int = MQTT_5) -> Connack:
        """Send CONNECT, and wait for CONNACK, whatever its reason code.

        Raises:
            ConnectionEndedError: the broker closes the connection instead.
        """
        if version == MQTT_5:
            packet = connect(self._client, clean, KEEP_ALIVE, expiry, LAST_ID, self._login)
        else:
            packet = connect_311(self._client, clean, KEEP_ALIVE, self._login)
        raw, head = await self._ask(packet, CONNACK, 0)
        self.connack = read_connack(raw, head)
        return self.connack

    async def ended(self) -> Exception | None:
        """Wait until the broker ends the connection; returns the error, if there is one."""
        if self._reader_task is not None:
            await asyncio.shield(self._reader_task)
        return self._error

    async def disconnect(self, expiry: int | None = None) -> None:
        """Send DISCONNECT; with `expiry`, the broker keeps the session that long."""
        if self._writer is not None:
            self._writer.write(disconnect(expiry))
            await self._writer.drain()

    @property
    def tls_version(self) -> str:
        """The negotiated version of TLS; empty: plain text."""
        connection = None if self._writer is None else self._writer.get_extra_info("ssl_object")
        return "" if connection is None else str(connection.version())

    async def subscribe(self, filters: Sequence[str], retained: bool = True) -> bytes:
        """Subscribe at QoS 1, without this client's own messages; returns one reason code per filter."""
        number = self._next_number()
        raw, head = await self._ask(subscribe(number, filters, retained), SUBACK, number)
        return read_reasons(raw, head)[1]

    async def try_publish(self, topic: str) -> int:
        """The reason code for a message at QoS 2 that is never released; Mosquitto never delivers it."""
        number = self._next_number()
        raw, head = await self._ask(publish_unreleased(topic, number), PUBREC, number)
        return read_acknowledgement(raw, head)[1]

    async def publish(self, topic: str, payload: bytes) -> int:
        """The reason code for a message at QoS 1."""
        number = self._next_number()
        raw, head = await self._ask(publish(topic, payload, number), PUBACK, number)
        return read_acknowledgement(raw, head)[1]

    async def publish_many_311(self, topic: str, count: int) -> None:
        """Send numbered messages at QoS 1 of MQTT 3.1.1, all at once, and wait for all answers."""
        answers = []
        for index in range(count):
            number = self._next_number()
            answers.append(self._send(publish_311(topic, b"%d" % index, number), PUBACK, number))
        await asyncio.gather(*answers)

    async def settle(self) -> None:
        """Wait until the broker has sent everything that it holds for this client.

        A broker handles packets in order: after the acknowledgements of all that has arrived, the answer to a
        ping comes behind the next messages. Two pings without a message between them end the wait.
        """
        quiet = 0
        while quiet < 2:
            before = len(self.messages)
            await self._ask(PING, PINGRESP, 0)
            quiet = quiet + 1 if len(self.messages) == before else 0

    def _next_number(self) -> int:
        self._last_number = self._last_number % LAST_ID + 1
        return self._last_number

    async def _ask(self, packet: bytes, kind: int, number: int) -> tuple[bytes, int]:
        return await self._send(packet, kind, number)

    def _send(self, packet: bytes, kind: int, number: int) -> asyncio.Future[tuple[bytes, int]]:
        """Send a packet; the future gets the answer of this kind and packet id."""
        answer: asyncio.Future[tuple[bytes, int]] = asyncio.get_running_loop().create_future()
        if self._writer is None or self._reader_task is None or self._reader_task.done():
            answer.set_exception(ConnectionEndedError(self._ended))
        else:
            self._waiting[kind, number] = answer
            self._writer.write(packet)
        return answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Read packets until the connection ends, and answer those who wait."""
        try:
            while data := await reader.read(65_536):
                for kind, raw, head in self._packets.feed(data):
                    self._handle(kind, raw, head)
        except (OSError, ProtocolError) as caught:
            self._error = caught if self._ended is None else None
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._error or ConnectionEndedError(self._ended))
                answer.exception()  # retrieved, since the caller can have given up
        self._waiting.clear()

    def _handle(self, kind: int, raw: bytes, head: int) -> None:
        if kind == PUBLISH:
            message = read_publish(raw, head)
            self.messages.append(ProbeMessage(message.topic, message.payload(), time.time()))
            if message.number and self._writer is not None:
                self._writer.write(acknowledgement(PUBACK, message.number))
        elif kind == DISCONNECT:
            self._ended = raw[head] if len(raw) > head else 0
        else:
            number = 0 if kind in (CONNACK, PINGRESP) else read_acknowledgement(raw, head)[0]
            answer = self._waiting.pop((kind, number), None)
            if answer is not None and not answer.done():
                answer.set_result((raw, head))


async def try_writes(client: Callable[[], ProbeClient], topics: Sequence[str]) -> list[bool] | None:
    """Whether a mosquitto broker lets a login write to each topic; None: this cannot be tried.

    Each is tried by a message at QoS 2 that is never released, which mosquitto does not deliver. A broker
    that takes no messages at QoS 2 cannot be tried.

    Args:
        client: makes a client with the login.
        topics: the topics, without wildcards.
    """
    allowed: list[bool] = []
    while len(allowed) < len(topics):
        async with client() as writer:
            at_once, _, best_quality, _ = connack_limits(await writer.connect())
            if best_quality < 2:
                return None
            some = topics[len(allowed) :][: min(at_once, UNRELEASED)]
            allowed += [await writer.try_publish(topic) != NOT_AUTHORIZED for topic in some]
            await writer.disconnect(0)
    return allowed
