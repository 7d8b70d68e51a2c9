"""Listener at a NATS server, over the client protocol of NATS: who publishes what."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from broadloom._version import VERSION
from broadloom.deployment import FleetBroker
from broadloom.discovery.observed_publications import (
    CONNECT_SECONDS,
    ROUND_TRIPS,
    Observations,
    RepeatedMessages,
    count_message,
)
from broadloom.discovery.subscription_sources import OWN_CLIENT
from broadloom.errors import BroadloomError, UnreachableError
from broadloom.formats.nats_subscriptions import to_mqtt
from broadloom.mqtt import FilterIndex

LONGEST_LINE = 1 << 20
# Subjects of the server itself, and of replies; MQTT clients cannot use them.
_INTERNAL = ("$", "_INBOX.")


class NatsListener:
    """Connection to one NATS server that observes it.

    Args:
        broker: the server.
        carry: the topic filters whose publications count; empty: none.
        repeated: shared by all listeners.
    """

    def __init__(
        self, broker: FleetBroker, carry: Sequence[str], repeated: RepeatedMessages | None = None
    ) -> None:
        self.found = Observations()
        self._broker = broker
        self._index = FilterIndex(carry) if carry else None
        self._repeated = repeated or RepeatedMessages()
        self._since: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self) -> None:
        """Connect, log in, measure the round trip, and begin to listen; a failure becomes the `problem`."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._open()
        except TimeoutError:
            self.found.problem = f"{self._broker.address} does not answer within {CONNECT_SECONDS:g} s"
        except (BroadloomError, OSError, ValueError) as error:
            self.found.problem = f"{self._broker.address}: {str(error) or type(error).__name__}"

    async def close(self) -> None:
        """Disconnect."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()

    def end(self) -> None:
        """Count no longer."""
        if self._since is not None:
            self.found.seconds = time.monotonic() - self._since
        self._since = None

    async def _open(self) -> None:
        address = self._broker.host_and_port()
        reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=LONGEST_LINE)
        self._writer = writer
        first = await reader.readline()
        if not first.startswith(b"INFO "):
            raise UnreachableError("it does not speak the protocol of NATS; is its kind right?")
        info = json.loads(first[5:])
        if context := self._broker.tls_context():
            await writer.start_tls(context, server_hostname=address.hostname)
        elif info.get("tls_required"):
            raise UnreachableError("the server requires TLS; remove tls = false")
        writer.write(f"CONNECT {json.dumps(self._greeting())}\r\n".encode())
        for _ in range(ROUND_TRIPS):
            start = time.perf_counter()
            writer.write(b"PING\r\n")
            await self._wait_for_pong(reader)
            spent = (time.perf_counter() - start) * 1_000
            self.found.rtt_ms = min(spent, self.found.rtt_ms or spent)
        if self._index is not None:
            self._since = time.monotonic()
            writer.write(b"SUB > 1\r\nPING\r\n")
            await self._wait_for_pong(reader)
            self._task = asyncio.create_task(self._listen(reader))

    def _greeting(self) -> dict[str, Any]:
        """The options of CONNECT; without headers, so that messages arrive without them."""
        login = self._broker.mqtt_login()
        names = {"name": f"{OWN_CLIENT}-{os.getpid():x}", "lang": "broadloom", "version": VERSION}
        secrets = {} if login.user is None else {"user": login.user, "pass": login.password or ""}
        return {"verbose": False, "pedantic": False, "protocol": 1, "headers": False, **names, **secrets}

    async def _wait_for_pong(self, reader: asyncio.StreamReader) -> None:
        while await self._read_one(reader) != b"PONG":
            pass

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Count messages until the connection ends."""
        try:
            while True:
                await self._read_one(reader)
        except (OSError, ValueError, asyncio.IncompleteReadError, BroadloomError) as error:
            self.found.interruptions += 1
            self.found.problem = f"the connection ended while listening: {error}"

    async def _read_one(self, reader: asyncio.StreamReader) -> bytes:
        """Read one operation of the server; returns its name."""
        line = await reader.readline()
        if not line.endswith(b"\r\n"):
            raise UnreachableError("the server closed the connection")
        name, *words = line.split()
        if name == b"MSG" and len(words) in (3, 4):
            payload = (await reader.readexactly(int(words[-1]) + 2))[:-2]
            self._count(words[0].decode("utf-8", "replace"), payload, len(line) + len(payload) + 2)
        elif name == b"PING" and self._writer is not None:
            self._writer.write(b"PONG\r\n")
        elif name == b"-ERR":
            raise UnreachableError(line[4:].decode("utf-8", "replace").strip().strip("'"))
        return name

    def _count(self, subject: str, payload: bytes, size: int) -> None:
        if self._since is None or self._index is None or subject.startswith(_INTERNAL):
            return
        topic = to_mqtt(subject)
        if topic is not None and next(self._index.meeting(topic), None) is not None:
            count_message(self.found, topic, size)
            self._repeated.add(self._broker.name, topic, payload)
