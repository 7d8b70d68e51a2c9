"""HTTP server of the agents' APIs (uvicorn): a bounded number of connections, deadlines, and TLS.

The console uses the same bounds.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

from broadloom.errors import InputError, missing_extra
from broadloom.mqtt.endpoint import Address, abort_connection, close_server

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise missing_extra("uvicorn", "live", "the HTTP API needs it") from error

IDLE_SECONDS = 15.0  # after which a connection without a request is closed
LARGEST_HEAD = 32_000  # bytes of a request's headers

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]


class ApiServer:
    """HTTP server of the API in the running event loop; it never takes signals.

    Args:
        app: the API.
        address: where to listen.
        tls: the certificate file and the key file; None: plain text.
        connections: the most connections at a time.
        name: what listens, for errors.
        advice: what to do if it cannot listen.
        drop_idle: whether a new connection replaces an idle one if there are too many.
        dropped: called for each connection that is closed because there are too many.

    Attributes:
        port: the port on which it listens.

    Raises:
        InputError: the address cannot be used, or a file cannot be used for TLS.
    """

    def __init__(
        self,
        app: AsgiApp,
        address: Address,
        tls: tuple[str, str] | None,
        connections: int,
        name: str = "the controller",
        advice: str = "give [live] listen in the fleet file",
        drop_idle: bool = False,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        self._socket = _listening(address, name, advice)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=guarded_http(connections, drop_idle, dropped),
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=int(IDLE_SECONDS),
            timeout_graceful_shutdown=2,
            h11_max_incomplete_event_size=LARGEST_HEAD,
        )
        config.load()
        config.ssl = None if tls is None else server_context(*tls)
        self._server = _QuietServer(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to answer."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started and not self._task.done():
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Finish the requests, and end."""
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()

    def close(self) -> None:
        """Close the port of a server that was not started."""
        self._socket.close()


class ClosingServer(uvicorn.Server):
    """Server of uvicorn that leaves no connection open when it ends."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, finish the requests, and end all connections."""
        for server in self.servers:
            await close_server(server)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            abort_connection(connection.transport)  # with TLS, it would wait for the client to end it


class _QuietServer(ClosingServer):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def guarded_http(
    connections: int, drop_idle: bool, dropped: Callable[[], None] = lambda: None
) -> type[asyncio.Protocol]:
    """HTTP connections that are closed if there are too many of them, or if no request comes in time.

    Args:
        connections: the most connections.
        drop_idle: whether to close an idle connection for a new one, and not the new one.
        dropped: called for each connection that is closed because there are too many.
    """

    class GuardedHttp(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._idle_since = self.loop.time()
            self._timer: asyncio.TimerHandle | None = None
            is_too_many = len(self.connections) > connections
            if is_too_many:
                dropped()
            if is_too_many and not (drop_idle and self._drop_oldest()):
                abort_connection(transport)
            else:
                self._guard()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            # What was received must not stay in memory until timers or the collector of garbage end it.
            if self._timer is not None:
                self._timer.cancel()
            self._unset_keepalive_if_required()
            self.cycle = None  # type: ignore[assignment]

        def _drop_oldest(self) -> bool:
            """Close the connection that has been without a request for the longest time."""
            others = [one for one in self.connections if one is not self and isinstance(one, GuardedHttp)]
            idle = [one for one in others if not one.is_busy and not one.transport.is_closing()]
            if idle:
                abort_connection(min(idle, key=lambda one: one._idle_since).transport)
            return bool(idle)

        @property
        def is_busy(self) -> bool:
            """Whether a request is being answered."""
            return self.cycle is not None and not self.cycle.response_complete

        def _guard(self) -> None:
            now = self.loop.time()
            if self.is_busy:
                self._idle_since = now
            if now - self._idle_since > IDLE_SECONDS:
                abort_connection(self.transport)
            elif not self.transport.is_closing():
                self._timer = self.loop.call_later(IDLE_SECONDS / 3, self._guard)

    return GuardedHttp


def _listening(address: Address, name: str, advice: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.hostname else socket.AF_INET
    try:
        made = socket.create_server((address.hostname, address.port), family=family, backlog=128)
        # Accepted sockets inherit it; otherwise the body of each answer waits 40 ms for an acknowledgement.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} cannot listen on {address}: {reason}; {advice}") from error


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """The TLS context of a server.

    Raises:
        InputError: a file cannot be used for TLS.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise InputError(
            f"{certificate}, {key} cannot be used for TLS: {error.strerror or type(error).__name__}"
        ) from error
    return context
