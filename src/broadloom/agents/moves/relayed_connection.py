"""Connection of an ordinary client through the relay, to the broker that it moves to."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from broadloom.agents.moves.session_reader import ANSWER_SECONDS, MOST_PACKET
from broadloom.mqtt.endpoint import Address
from broadloom.mqtt.packets import (
    CONNACK,
    DISCONNECT,
    LAST_ID,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    UNSUBACK,
    ProtocolError,
    acknowledgement,
    disconnect,
)
from broadloom.mqtt.relayed_packets import (
    ConnectRequest,
    RelayedPublish,
    number_of,
    read_any_publish,
    read_packet,
    unsubscribe_plainly,
    with_number,
)

CLOSING_SECONDS = 5.0
FENCE_SECONDS = 1.0  # until the first fence of a session has come
QUALITY, AT_LEAST_ONCE = 0x06, 0x02  # flags of PUBLISH
MOST_HELD_BACK = 1_000  # messages before it


class HomeMessages(Protocol):
    """The messages of a client's session at home, and what it has of them."""

    async def next_waiting(self) -> RelayedPublish | None:
        """The next message that waits at home; None: there are no more."""

    def return_waiting(self, messages: list[RelayedPublish]) -> None:
        """Messages from home that the client has not acknowledged."""

    def drop_waiting(self) -> None:
        """The client has begun a new session, so it does not get what waits at home."""

    def acknowledge_home(self, message: RelayedPublish) -> None:
        """The client has a message from home."""

    def home_releases(self) -> list[int]:
        """Packet ids of messages at QoS 2 that the client has received at home, to be released."""

    def complete_home(self, number: int) -> None:
        """The client has answered the release of a message from home."""

    def release(self, number: int) -> None:
        """The client releases a message at QoS 2 that it can have published at home."""

    def is_fence(self, message: RelayedPublish) -> bool:
        """Whether a message of the foreign session is a fence."""

    @property
    def is_fenced(self) -> bool:
        """Whether a fence has come, so that messages can be left out."""

    def is_wanted(self, message: RelayedPublish) -> bool:
        """Whether the client lacks a message of the foreign session."""

    def leave_out(self) -> None:
        """A message of the foreign session is left out."""

    def return_left_out(self, messages: list[RelayedPublish]) -> None:
        """Messages that the client seemed to have, but that were not acknowledged: they come again."""

    def distrust(self) -> None:
        """No fence has come: nothing is left out."""


@dataclass(frozen=True)
class _HeldBack:
    """A message of the foreign session before the first fence."""

    raw: bytes
    message: RelayedPublish
    is_wanted: bool


@dataclass
class _Outgoing:
    """A message to the client that it has not acknowledged: from home, or with its number at the broker.

    `quality` is that of the broker. `is_release`: it is the release of a message that the client has received
    at home.
    """

    message: RelayedPublish | None = None
    number: int = 0
    quality: int = 1
    is_release: bool = False


class RelayedConnection:
    """Connection of a client through the relay: packets in both directions, with packet ids of its own.

    Attributes:
        broker_ended: whether the broker has ended the connection, and not the client.
        is_refused: whether the broker has refused the client, or has ended the connection without an answer.
        over: set when the connection has ended.
    """

    def __init__(
        self,
        home: HomeMessages,
        request: ConnectRequest,
        stream: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.broker_ended = False
        self.is_refused = False
        self.over = asyncio.Event()
        self._home = home
        self._request = request
        self._near, self._to_client = stream, writer
        self._far: asyncio.StreamReader | None = None
        self._to_broker: asyncio.StreamWriter | None = None
        self._out: dict[int, _Outgoing] = {}  # by packet id, as the client has it
        self._left_out: set[int] = (
            set()
        )  # of QoS 2: the broker's packet ids of messages that are finished here
        self._held_back: list[_HeldBack] = []
        self._held_since = 0.0
        self._forwarding = asyncio.Lock()
        self._own: set[int] = set()  # packet ids of the client's messages that the broker has not answered
        self._number = 0
        self._free = asyncio.Event()
        self._is_closing = False

    @property
    def has_home_messages(self) -> bool:
        """Whether the client has yet to acknowledge messages from home."""
        return any(one.message is not None or one.is_release for one in self._out.values())

    @property
    def has_new_releases(self) -> bool:
        """Whether home has released messages of which the client does not know."""
        return any(number not in self._out for number in self._home.home_releases())

    @property
    def is_stuck(self) -> bool:
        """Whether the client does not read or acknowledge; then the broker's end is not noticed."""
        has_unsent = self._to_client.transport.get_write_buffer_size() > 0
        return has_unsent or len(self._out) >= self._window()

    def _window(self) -> int:
        return min(self._request.window, LAST_ID - 1)

    async def open(
        self, address: Address, tls: ssl.SSLContext | None, is_proven: Callable[[], Awaitable[bool]]
    ) -> str:
        """Connect the client to its broker; returns why that fails, or an empty text.

        The client does not learn that its broker refuses it: it would not try again.

        Args:
            address: the broker.
            tls: the TLS context; None: plain text.
            is_proven: whether the broker has given the connection, when it has accepted it, the session of
                the client.
        """
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                self._far, self._to_broker = await asyncio.open_connection(
                    address.hostname, address.port, ssl=tls
                )
                self._to_broker.write(self._request.raw)
                answer = await self._answer_of_broker(self._far)
        except (OSError, TimeoutError) as error:
            return f"the foreign broker does not answer: {error!r:.60}"
        if answer[:1] != bytes((CONNACK,)) or len(answer) < 4 or answer[3]:
            self.is_refused = True
            return f"the foreign broker refuses the client: {answer[3:4].hex() or 'no answer'}"
        self.is_refused = not await is_proven()
        if self.is_refused:
            self._to_broker.write(disconnect())  # no will is published
            self._to_broker.close()
            return "the broker knows its login by another client id"
        self._to_client.write(answer)
        if self._request.clean:
            self._home.drop_waiting()
        elif not answer[2] & 1:
            return "the foreign broker has lost the prepared session"
        return ""

    @staticmethod
    async def _answer_of_broker(stream: asyncio.StreamReader) -> bytes:
        """The first packet of the broker; empty: it ends the connection, as for a malformed CONNECT."""
        try:
            return await read_packet(stream, MOST_PACKET)
        except (asyncio.IncompleteReadError, ConnectionError, ProtocolError):
            return b""

    async def run(self) -> None:
        """Relay until one side ends."""
        tasks = [asyncio.create_task(one) for one in (self._from_client(), self._from_broker())]
        waits = asyncio.create_task(self._wait_for_fence())
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            self.broker_ended = tasks[1] in done and tasks[0] not in done
            for task in done:
                error = task.exception()
                if error is not None and not isinstance(
                    error, (OSError, asyncio.IncompleteReadError, ProtocolError)
                ):
                    raise error
        finally:
            for task in (*tasks, waits):
                task.cancel()
            await asyncio.gather(*tasks, waits, return_exceptions=True)
            self._home.return_left_out([one.message for one in self._held_back if not one.is_wanted])
            self._held_back.clear()
            self._home.return_waiting([one.message for one in self._out.values() if one.message is not None])
            self._out.clear()
            self.over.set()
            self._free.set()  # nothing can be sent any more

    async def finish(self, fence: str) -> None:
        """End the connection when all messages in both directions are acknowledged, or soon after."""
        self._is_closing = True
        if self._to_broker is not None and not self._to_broker.is_closing():
            self._own.add(LAST_ID)
            self._to_broker.write(unsubscribe_plainly(LAST_ID, fence, self._request.version))
        end = time.monotonic() + CLOSING_SECONDS
        while (self._out or self._own) and time.monotonic() < end and not self._to_client.is_closing():
            self._free.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.1):
                    await self._free.wait()
        if self._to_broker is not None and not self._to_broker.is_closing():
            self._to_broker.write(disconnect())  # a normal end: no will is published
        self.close()

    def close(self) -> None:
        """End both connections."""
        for writer in (self._to_client, self._to_broker):
            if writer is not None:
                writer.close()

    async def _from_client(self) -> None:
        if self._to_broker is None:
            return
        while True:
            raw = await read_packet(self._near, MOST_PACKET)
            kind = raw[0] & 0xF0
            if kind in (PUBACK, PUBREC, PUBCOMP):
                translated = self._acknowledged(kind, raw)
                if translated is None:
                    continue
                raw = translated
            elif kind == PUBLISH:
                message = read_any_publish(raw, self._request.version)
                if message.quality:
                    self._own.add(message.number)
            elif kind == PUBREL and number_of(raw)[0] not in self._own:
                self._home.release(number_of(raw)[0])
            self._to_broker.write(raw)
            await self._to_broker.drain()
            if kind == DISCONNECT:
                return

    def _acknowledged(self, kind: int, raw: bytes) -> bytes | None:
        """An acknowledgement of the client as the broker knows it; None: it is not for the broker."""
        number, at = number_of(raw)
        found = self._out.get(number)
        if found is None:
            return None
        if found.is_release != (kind == PUBCOMP):
            return None
        del self._out[number]
        self._free.set()
        if found.is_release:
            self._home.complete_home(number)
        elif found.message is not None:
            self._home.acknowledge_home(found.message)
        elif found.quality == 2:
            self._left_out.add(found.number)
            self._answer(PUBREC, found.number)
        else:
            return with_number(raw, at, found.number)
        return None

    async def _from_broker(self) -> None:
        await self.send_waiting()
        if self._far is None:
            return
        while True:
            raw = await read_packet(self._far, MOST_PACKET)
            kind = raw[0] & 0xF0
            if kind == PUBLISH:
                await self._forward(raw)
                continue
            if kind == UNSUBACK and self._is_closing and number_of(raw)[0] == LAST_ID:
                self._own.discard(LAST_ID)
                self._free.set()
                continue
            if kind in (PUBACK, PUBCOMP, PUBREC):
                number, at = number_of(raw)
                if kind != PUBREC or (len(raw) > at + 2 and raw[at + 2] >= 0x80):
                    self._own.discard(number)
                    self._free.set()
            elif kind == PUBREL:
                number, _ = number_of(raw)
                self._answer(PUBCOMP, number)
                if number in self._left_out:
                    self._left_out.discard(number)
                    continue  # otherwise the client can have received it here before, past the relay
            self._to_client.write(raw)
            await self._to_client.drain()

    async def send_waiting(self) -> None:
        """Send what waits at home, in its order, before anything of the foreign session.

        Releases come first: their packet ids are those of home, and no other message has them then.

        Raises:
            OSError: the connection has ended.
        """
        for number in self._home.home_releases():
            if number not in self._out:
                self._out[number] = _Outgoing(is_release=True)
                self._to_client.write(acknowledgement(PUBREL, number))
        while (message := await self._home.next_waiting()) is not None:
            try:
                number = await self._next_number() if message.quality else 0
            except BaseException:
                self._home.return_waiting([message])
                raise
            if message.quality:
                self._out[number] = _Outgoing(message)
            self._to_client.write(message.encoded(self._request.version, number))
            await self._to_client.drain()
            if not message.quality:
                self._home.acknowledge_home(message)

    async def _forward(self, raw: bytes) -> None:
        if self._is_closing:  # the broker sends it again
            return
        message = read_any_publish(raw, self._request.version)
        if self._home.is_fence(message):
            self._take(message)
            if self._home.is_fenced:
                await self._pass_held_back()
            return
        is_wanted = self._home.is_wanted(message)
        if self._held_back or not (is_wanted or self._home.is_fenced):
            if not self._held_back:
                self._held_since = time.monotonic()
            self._held_back.append(_HeldBack(raw, message, is_wanted))
            if len(self._held_back) >= MOST_HELD_BACK:
                await self._pass_held_back()
        elif is_wanted:
            await self._send(raw, message)
        else:
            self._home.leave_out()
            self._take(message)

    async def _wait_for_fence(self) -> None:
        """Hold messages back that the client seems to have, until a fence shows that this is known."""
        while not self._home.is_fenced:
            await asyncio.sleep(FENCE_SECONDS / 5)
            if self._held_back and time.monotonic() > self._held_since + FENCE_SECONDS:
                with suppress(OSError):  # the client has gone
                    await self._pass_held_back()

    async def _pass_held_back(self) -> None:
        """Send what was held back, in its order: all of it if no fence has come, which can be twice."""
        async with self._forwarding:
            if self._held_back and not self._home.is_fenced:
                self._home.distrust()
            while self._held_back:
                first = self._held_back[0]
                if self._home.is_fenced and not first.is_wanted:
                    self._home.leave_out()
                    self._take(first.message)
                else:
                    await self._send(first.raw, first.message)
                self._held_back.pop(0)

    def _take(self, message: RelayedPublish) -> None:
        """Acknowledge a message that the client does not get."""
        if message.quality == 1:
            self._answer(PUBACK, message.number)
        elif message.quality:
            self._left_out.add(message.number)
            self._answer(PUBREC, message.number)

    async def _send(self, raw: bytes, message: RelayedPublish) -> None:
        if message.quality:
            number = await self._next_number()
            self._out[number] = _Outgoing(number=message.number, quality=message.quality)
            raw = with_number(raw, message.number_at, number)
            if message.quality == 2:  # at QoS 1: the broker does not know the packet id that would release it
                raw = bytes((raw[0] & ~QUALITY | AT_LEAST_ONCE,)) + raw[1:]
        self._to_client.write(raw)
        await self._to_client.drain()

    def _answer(self, kind: int, number: int) -> None:
        if self._to_broker is not None:
            self._to_broker.write(acknowledgement(kind, number))

    async def _next_number(self) -> int:
        """A free packet id, as soon as the client can take another message."""
        while len(self._out) >= self._window():
            self._free.clear()
            await self._free.wait()
        if self.over.is_set():
            raise ConnectionResetError("the connection of the client has ended")
        while True:
            self._number = self._number % LAST_ID + 1
            if self._number not in self._out:
                return self._number
