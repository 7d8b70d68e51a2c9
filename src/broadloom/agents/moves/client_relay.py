"""Relay to which routers send ordinary MQTT clients while they move between brokers: the server."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from broadloom.agents.monitoring import RateLimitedLog
from broadloom.agents.moves.relayed_move import RelayedMove
from broadloom.mqtt.endpoint import Address
from broadloom.mqtt.packets import ProtocolError
from broadloom.mqtt.relayed_packets import read_connect, read_packet

log = logging.getLogger("broadloom.agents.moves")

MOST_CONNECTIONS = 2_000
MOST_CONNECT = 128 << 10  # bytes of a CONNECT
FIRST_SECONDS = 10.0  # for the CONNECT of a client


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
    _connections: dict[asyncio.StreamWriter, bool] = field(
        default_factory=dict
    )  # whether it has sent CONNECT
    _warnings: RateLimitedLog = field(default_factory=lambda: RateLimitedLog(log))

    async def start(self) -> None:
        """Start to accept clients.

        Raises:
            OSError: the address cannot be used.
        """
        self._server = await asyncio.start_server(
            self._accept, self.address.hostname, self.address.port, ssl=self.tls, limit=1 << 20
        )

    async def stop(self) -> None:
        """Stop, and end all connections."""
        if self._server is not None:
            self._server.close()
        for move in list(self.moves.values()):
            move.close()
        self.moves.clear()

    async def _accept(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= MOST_CONNECTIONS and not self._drop_slowest():
            self._refuse("too many", "more than %d connections", MOST_CONNECTIONS)
            writer.close()
            return
        self._connections[writer] = False
        try:
            await self._serve(stream, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone, or a router has checked that we are here
        except Exception:
            log.exception("the relay failed")
        finally:
            self._connections.pop(writer, None)
            with suppress(Exception):
                writer.close()

    def _drop_slowest(self) -> bool:
        """End the oldest connection that has not sent CONNECT, for a new one; false: all have sent it."""
        slowest = next((one for one, has_connected in self._connections.items() if not has_connected), None)
        if slowest is None:
            return False
        self._refuse("slow", "a client has not sent CONNECT yet, and others come")
        del self._connections[slowest]
        slowest.close()
        return True

    async def _serve(self, stream: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(FIRST_SECONDS):
                request = read_connect(await read_packet(stream, MOST_CONNECT))
        except TimeoutError:
            self._refuse("slow", "a client has not sent CONNECT within %d s", int(FIRST_SECONDS))
            return
        except ProtocolError as error:
            self._refuse("malformed", "a client has sent no CONNECT: %s", error)
            return
        if writer in self._connections:
            self._connections[writer] = True
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
