"""Relay to which routers send ordinary MQTT clients while they move between brokers: the server."""

from __future__ import annotations

import asyncio
import logging
import ssl
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from broadloom.agents.monitoring import RateLimitedLog
from broadloom.agents.moves.relayed_move import RelayedMove
from broadloom.mqtt.endpoint import Address, abort_connection, close_server
from broadloom.mqtt.packets import ProtocolError
from broadloom.mqtt.relayed_packets import read_connect, read_packet

log = logging.getLogger("broadloom.agents.moves")

MOST_CONNECTIONS = 2_000
# Those of the client, of its sessions at both brokers, and of the agent in its name, for a moment.
FILES_PER_CONNECTION = 4
MOST_CONNECT = 128 << 10  # bytes of a CONNECT
FIRST_SECONDS = 10.0  # for the TLS handshake and the CONNECT of a client
CLOSING_SECONDS = 5.0  # for what a client has yet to read when its connection ends


def connection_limit() -> int:
    """The most connections, so that the process can still open files for all else."""
    if sys.platform == "win32":
        return MOST_CONNECTIONS
    import resource

    most_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most_files == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, most_files // FILES_PER_CONNECTION))


@dataclass
class ClientRelay:
    """Server to which routers send clients while they move.

    Args:
        address: where to listen.
        tls: the TLS context of the server; None: plain text, for routers on this machine.

    Attributes:
        moves: the moves by client.
        refused: connections that were refused, by reason.
    """

    address: Address
    tls: ssl.SSLContext | None = None
    moves: dict[str, RelayedMove] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    _server: asyncio.Server | None = None
    # All open connections; the time limit of those that have not sent CONNECT.
    _connections: dict[asyncio.StreamWriter, asyncio.Timeout | None] = field(default_factory=dict)
    _most: int = MOST_CONNECTIONS
    _warnings: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(log))

    async def start(self) -> None:
        """Start to accept clients.

        Raises:
            OSError: the address cannot be used.
        """
        self._most = connection_limit()
        self._server = await asyncio.start_server(
            self._accept, self.address.hostname, self.address.port, limit=1 << 20
        )

    async def stop(self) -> None:
        """Stop, and end all connections."""
        if self._server is not None:
            await close_server(self._server)
        for move in list(self.moves.values()):
            move.close()
        self.moves.clear()
        for writer, first in list(self._connections.items()):
            if first is None:
                writer.close()
            else:
                self._drop(writer, first)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                while self._connections:
                    await asyncio.sleep(0.01)

    async def _accept(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection; it counts until it is closed, and from before its TLS handshake."""
        if len(self._connections) >= self._most and not self._drop_slowest():
            self._refuse("too many", "more than %d connections", self._most)
            writer.close()
            return
        first = asyncio.timeout(FIRST_SECONDS)
        self._connections[writer] = first
        try:
            await self._serve(stream, writer, first)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone, or a router has checked that we are here
        except Exception:
            log.exception("the relay failed")
        finally:
            if self._connections.get(writer, first) is None:
                with suppress(Exception):
                    writer.close()
                    async with asyncio.timeout(CLOSING_SECONDS):
                        await writer.wait_closed()
            abort_connection(writer.transport)
            self._connections.pop(writer, None)

    def _drop_slowest(self) -> bool:
        """End the oldest connection that has not sent CONNECT, for a new one; false: all have sent it."""
        for writer, first in self._connections.items():
            if first is not None:
                self._refuse("slow", "a client has not sent CONNECT yet, and others come")
                self._drop(writer, first)
                return True
        return False

    def _drop(self, writer: asyncio.StreamWriter, first: asyncio.Timeout) -> None:
        """End a connection that has not sent CONNECT: its time is over."""
        del self._connections[writer]
        if not first.expired():
            first.reschedule(asyncio.get_running_loop().time())

    async def _serve(
        self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter, first: asyncio.Timeout
    ) -> None:
        try:
            async with first:
                if self.tls is not None:
                    await writer.start_tls(self.tls)
                request = read_connect(await read_packet(stream, MOST_CONNECT))
                if writer not in self._connections:
                    return  # it was dropped at the same moment
                self._connections[writer] = None
        except TimeoutError:
            if writer in self._connections:  # otherwise others have come
                self._refuse("slow", "a client has not sent CONNECT within %d s", int(FIRST_SECONDS))
            return
        except ProtocolError as error:
            self._refuse("malformed", "a client has sent no CONNECT: %s", error)
            return
        move = self.moves.get(request.client)
        if move is None or not move.is_leaving:
            self._refuse("not moving", "client %r came to the relay, but is not moving", request.client[:80])
            return
        problem = await move.serve(request, stream, writer)
        if problem:
            self._refuse("not authorized", "client %r was refused: %s", request.client[:80], problem)

    def _refuse(self, kind: str, text: str, *values: Any) -> None:
        self.refused[kind] += 1
        self._warnings.warn(kind, text, *values)
