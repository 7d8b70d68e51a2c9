"""Client of the controller: signed requests over HTTP, and the two connections of an agent.

It needs the standard library alone, so that an agent starts quickly. One connection pushes reports, the other
waits for orders (a long poll). If the controller is away, both try again, with growing pauses; the agent goes
on with its last orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import logging
import random
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from broadloom.agents.links.controller_protocol import (
    CODE_HEADER,
    COUNT_HEADER,
    DIGEST_HEADER,
    HELLO_PATH,
    LARGEST_ANSWER,
    NONCE_HEADER,
    PEER_HEADER,
    POLL_SECONDS,
    SESSION_HEADER,
    ProtocolCodes,
    agent_path,
    body_digest,
    epoch_query,
    orders_of,
    same_code,
)
from broadloom.agents.links.route_orders import AgentOrders, AgentReport
from broadloom.agents.monitoring import RateLimitedLog
from broadloom.checks import plain_name
from broadloom.errors import InputError, StorageError, UnreachableError

if TYPE_CHECKING:
    from broadloom.agents.links.stamps import FleetKey
    from broadloom.mqtt.endpoint import Address

LOG = logging.getLogger("broadloom.live")
T = TypeVar("T")
REQUEST_SECONDS = 10.0  # deadline of a request, without the time that it asks the controller to wait
LOOP_SECONDS = 60.0  # deadline of the agent's own work on orders
HEARTBEAT_SECONDS = 2.0  # the longest time between two reports
REPORT_PAUSE_SECONDS = 0.02  # the shortest
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0  # before another try
REFUSED_PAUSE = 5.0
_CHUNK = 1 << 16


class ControllerRefusedError(UnreachableError):
    """The controller refuses a request, or cannot prove that it knows the key of the fleet."""


class ControllerConnection:
    """Connection to the controller for signed requests, one after the other; it connects again when needed.

    Args:
        address: where the controller listens.
        tls: the TLS context; None: plain text.
        key: the key of the fleet.
        peer: the name of the client, for the controller's log.
    """

    def __init__(self, address: Address, tls: ssl.SSLContext | None, key: FleetKey, peer: str) -> None:
        self._address = address
        self._tls = tls
        self._codes = ProtocolCodes(key)
        self._peer = peer
        self._http: http.client.HTTPConnection | None = None
        self._session = ""
        self._count = 0
        self._closed = False

    def request(self, method: str, target: str, value: Any = None, wait: float = 0.0) -> tuple[int, Any]:
        """Send a request, and return the status and the JSON value of the answer; None: without a body.

        Args:
            method: GET or POST.
            target: the path and the query.
            value: the JSON value of the body; None: no body.
            wait: seconds for which the controller can wait before it answers.

        Raises:
            ControllerRefusedError: the key is wrong, on one of the two sides.
            UnreachableError: there is no answer.
        """
        body = b"" if value is None else json.dumps(value, separators=(",", ":")).encode()
        deadline = time.monotonic() + wait + REQUEST_SECONDS
        for is_last in (False, True):
            if not self._session:
                self._hello(deadline)
            status, answer = self._signed(method, target, body, deadline)
            if status != http.HTTPStatus.UNAUTHORIZED or is_last:
                break
            self._session = ""  # the controller was started again, or has forgotten the session
        try:
            return status, json.loads(answer) if answer else None
        except ValueError as error:
            raise UnreachableError(f"the controller at {self._address} does not answer with JSON") from error

    def close(self) -> None:
        """Close the connection for good; any thread can call this, and a request that waits fails."""
        self._closed = True
        connection = self._http
        if connection is not None and (sock := connection.sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._drop()

    def _hello(self, deadline: float) -> None:
        """Begin a session: each side proves that it knows the key."""
        nonce = secrets.token_hex(16)
        headers = {NONCE_HEADER: nonce, CODE_HEADER: self._codes.hello(nonce)}
        status, headers_back, body = self._exchange("POST", HELLO_PATH, b"", headers, deadline)
        if status == http.HTTPStatus.FORBIDDEN:
            raise ControllerRefusedError(
                f"the controller at {self._address} has another key; both need the same key_file"
            )
        if status != http.HTTPStatus.OK:
            raise UnreachableError(f"the controller at {self._address} answers with status {status}")
        try:
            session = str(json.loads(body)["session"])
        except (ValueError, KeyError, TypeError) as error:
            raise UnreachableError(f"there is no controller at {self._address}") from error
        if not same_code(self._codes.welcome(nonce, session), headers_back.get(CODE_HEADER, "")):
            raise ControllerRefusedError(
                f"the controller at {self._address} does not know the key of the fleet"
            )
        self._session = session
        self._count = 0

    def _signed(self, method: str, target: str, body: bytes, deadline: float) -> tuple[int, bytes]:
        self._count += 1
        session = self._session
        count = self._count
        digest = body_digest(body)
        headers = {
            SESSION_HEADER: session,
            COUNT_HEADER: str(count),
            DIGEST_HEADER: digest,
            CODE_HEADER: self._codes.request(method, target, session, count, digest),
        }
        if body:
            headers["content-type"] = "application/json"
        status, headers_back, answer = self._exchange(method, target, body, headers, deadline)
        if status == http.HTTPStatus.UNAUTHORIZED:
            return status, b""  # not signed: there is no session
        code = self._codes.answer(session, count, status, answer)
        if not same_code(code, headers_back.get(CODE_HEADER, "")):
            self._session = ""
            if status in (http.HTTPStatus.FORBIDDEN, http.HTTPStatus.SERVICE_UNAVAILABLE):
                raise UnreachableError(f"the controller at {self._address} answers with status {status}")
            raise ControllerRefusedError(f"an answer of {self._address} is not from the controller")
        return status, answer

    def _exchange(
        self, method: str, target: str, body: bytes, headers: dict[str, str], deadline: float
    ) -> tuple[int, dict[str, str], bytes]:
        """One request and its answer; a connection that the controller has closed is opened again, once."""
        fresh = self._http is None or self._http.sock is None
        for can_retry in (not fresh, False):
            connection = self._http = self._http or self._connection()
            try:
                connection.timeout = max(0.1, deadline - time.monotonic())
                if connection.sock is not None:
                    connection.sock.settimeout(connection.timeout)
                peer = {PEER_HEADER: quote(self._peer, safe="")}
                connection.request(method, target, body or None, headers | peer)
                if self._closed:
                    raise ConnectionAbortedError("closed")
                answer = connection.getresponse()
                content = _bounded(answer, deadline)
                return answer.status, {name.lower(): value for name, value in answer.getheaders()}, content
            except (OSError, http.client.HTTPException, AttributeError, ValueError) as error:
                if not (self._closed or isinstance(error, (OSError, http.client.HTTPException))):
                    raise  # only another thread that closes the connection can cause these
                self._drop()
                gone = isinstance(error, (ConnectionError, http.client.RemoteDisconnected))
                if self._closed or not (can_retry and gone):
                    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                    if (fault := getattr(error, "verify_message", None)) is not None:
                        reason = f"its certificate is not accepted ({fault})"
                    raise UnreachableError(
                        f"the controller at {self._address} does not answer: {reason[:100]}"
                    ) from error
        raise UnreachableError(f"the controller at {self._address} does not answer")

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._address.hostname, self._address.port)
        return http.client.HTTPSConnection(self._address.hostname, self._address.port, context=self._tls)

    def _drop(self) -> None:
        connection = self._http
        self._http = None
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()


def _bounded(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """The body of an answer, if it is not too large and comes in time."""
    parts: list[bytes] = []
    size = 0
    while part := answer.read(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > LARGEST_ANSWER:
            raise http.client.HTTPException(f"an answer has more than {LARGEST_ANSWER:,} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("timed out")
    return b"".join(parts)


class OrderedAgent(Protocol):
    """What a client of the controller needs of an agent; all of it runs in the agent's event loop."""

    @property
    def orders(self) -> AgentOrders:
        """The orders that it follows."""

    def report(self, with_routes: bool = False) -> AgentReport:
        """The present report; with the agent's routes if the controller takes over."""

    def apply(self, orders: AgentOrders) -> None:
        """Store orders, and begin to follow them; raises if a newer controller has given orders."""


class ControllerClient:
    """The two connections of an agent with the controller, each in a thread of its own.

    Args:
        connect: opens one of the two connections.
        broker: the agent's broker.
        agent: the agent.
        heartbeat: seconds between two reports if nothing changes.
    """

    def __init__(
        self,
        connect: Callable[[], ControllerConnection],
        broker: str,
        agent: OrderedAgent,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> None:
        self._broker = broker
        self._agent = agent
        self._heartbeat = heartbeat
        self._log = RateLimitedLog(LOG, most=2)
        self._away_log = RateLimitedLog(LOG, most=1)  # both threads find the controller away
        self._reports = connect()
        self._polls = connect()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = threading.Event()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._sent_filters = (-1, "")  # number and instance of the filters that the controller has
        self._with_routes = False
        self.connected = False

    def start(self) -> None:
        """Start both threads; call it in the agent's event loop."""
        self._loop = asyncio.get_running_loop()
        for name, step in (("reports", self._push), ("orders", self._poll)):
            thread = threading.Thread(
                target=self._repeat, args=(step,), name=f"broadloom-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def changed(self) -> None:
        """Push a report soon; any thread can call this."""
        self._changed.set()

    async def stop(self) -> None:
        """End both threads; a last report is not sent."""
        self._over.set()
        self._changed.set()
        self._reports.close()
        self._polls.close()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, REQUEST_SECONDS)

    def _repeat(self, step: Callable[[], float]) -> None:
        """Run a step until the end, with growing pauses while it fails."""
        pause = FIRST_PAUSE
        while not self._over.is_set():
            try:
                wait = step()
                if not self.connected:
                    self.connected = True
                    LOG.info("connected with the controller")
                pause = FIRST_PAUSE
            except UnreachableError as error:
                if self._over.is_set():
                    return
                self.connected = False
                kind = "refused" if isinstance(error, ControllerRefusedError) else "away"
                self._away_log.warn(kind, "%s; links stay as they are", error)
                wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 (spreads agents over time)
                pause = min(pause * 2, LONGEST_PAUSE)
            except (InputError, StorageError) as error:  # orders that are older, malformed, or not stored
                self._log.warn("orders", "%s", error)
                wait = REFUSED_PAUSE
            except (RuntimeError, TimeoutError, asyncio.CancelledError) as error:
                # The event loop is closed, or too slow.
                self._log.warn("busy", "the agent cannot follow the controller: %s", _reason(error))
                wait = LONGEST_PAUSE
            self._over.wait(wait)

    def _push(self) -> float:
        """Send one report as soon as something has changed."""
        self._changed.wait(self._heartbeat)
        self._changed.clear()
        if self._over.is_set():
            return 0.0
        report = self._in_loop(self._report())
        number, instance = report.filters_number, report.instance
        if (number, instance) == self._sent_filters:
            report = replace(report, filters=None)
        status, answer = self._reports.request("POST", agent_path(self._broker, "report"), report.to_json())
        if status != http.HTTPStatus.OK:
            self._log.warn(
                "report", "the controller refuses a report: %s", plain_name(str(_detail(answer, status)))
            )
            return REFUSED_PAUSE
        has_filters = int(answer.get("filters_number", -1)) == number
        self._sent_filters = (number, instance) if has_filters else (-1, "")
        with_routes = bool(answer.get("routes_wanted"))
        if with_routes != self._with_routes:
            self._with_routes = with_routes
            self._changed.set()
        return REPORT_PAUSE_SECONDS

    def _poll(self) -> float:
        """Wait for orders, and let the agent follow them."""
        known = self._in_loop(self._orders())
        query = epoch_query(known.epoch, known.number, POLL_SECONDS)
        target = f"{agent_path(self._broker, 'orders')}?{query}"
        status, answer = self._polls.request("GET", target, wait=POLL_SECONDS)
        if status == http.HTTPStatus.NO_CONTENT:
            return 0.0
        if status != http.HTTPStatus.OK:
            self._log.warn(
                "orders", "the controller has no orders: %s", plain_name(str(_detail(answer, status)))
            )
            return REFUSED_PAUSE
        self._in_loop(self._apply(orders_of(answer, known)))
        return 0.0

    async def _apply(self, orders: AgentOrders) -> None:
        self._agent.apply(orders)

    async def _orders(self) -> AgentOrders:
        return self._agent.orders

    async def _report(self) -> AgentReport:
        return self._agent.report(self._with_routes)

    def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run some work in the agent's event loop, and wait for it."""
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RuntimeError("the event loop is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(LOOP_SECONDS)


def _reason(error: BaseException) -> str:
    """Why the agent's event loop does not do what it should; these errors often have no text."""
    if isinstance(error, TimeoutError):
        return f"it has no time for orders and reports; no answer in {LOOP_SECONDS:g} s"
    if isinstance(error, asyncio.CancelledError):
        return "it is stopping"
    return str(error) or type(error).__name__


def _detail(answer: Any, status: int) -> str:
    detail = answer.get("detail") if isinstance(answer, dict) else None
    return str(detail or f"status {status}")[:200]
