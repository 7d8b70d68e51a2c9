"""HTTP API of the controller (FastAPI, uvicorn): requests of agents and operators, status and metrics.

Requests and answers are signed with the key of the fleet (see `controller_protocol`). `/metrics` is open to
this machine; with the read token (`broadloom status --token`), it and the status are open to others.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from broadloom._version import VERSION
from broadloom.agents.http_server import AsgiApp, Receive, Scope, Send
from broadloom.agents.links.controller_protocol import (
    CODE_HEADER,
    COUNT_HEADER,
    DIGEST_HEADER,
    HELLO_PATH,
    LARGEST_REPORT,
    METRICS_PATH,
    MOVES_PATH,
    NONCE_HEADER,
    PEER_HEADER,
    PLAN_PATH,
    POLL_SECONDS,
    PROPOSAL_PATH,
    SESSION_HEADER,
    STATUS_PATH,
    ProtocolCodes,
    body_digest,
    orders_message,
    same_code,
)
from broadloom.agents.links.route_orders import NO_EPOCH, AgentOrders, AgentReport, Epoch
from broadloom.agents.monitoring import RateLimitedLog
from broadloom.checks import plain_name
from broadloom.deployment.fleet_file import is_loopback
from broadloom.errors import InputError, missing_extra

try:
    from fastapi import Body, FastAPI, HTTPException, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import PlainTextResponse
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
    from pydantic import BaseModel
except ImportError as error:
    raise missing_extra("fastapi, uvicorn or prometheus-client", "live", "the controller needs it") from error

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from broadloom.agents.links.stamps import FleetKey

LOG = logging.getLogger("broadloom.live")
HEALTH_PATH, SCHEMA_PATH = "/health", "/v1/openapi.json"
CHALLENGE_SECONDS = 60.0  # for the first request of a session
SESSION_SECONDS = 600.0  # for which an idle session is remembered
BODY_SECONDS = 15.0  # deadline of a request's body
MOST_POLLS = 2  # waiting requests for orders per broker
REMEMBERED_ORDERS = 4  # per broker, as the base of differences
SPARE_CONNECTIONS = 64  # beside those of agents


class StaleControllerError(Exception):
    """An agent obeys a newer controller than this one."""


class ReportAnswer(BaseModel):
    """Answer to a report.

    Attributes:
        epoch: number and id of this controller.
        filters_number: the number of the filters that it has of this agent.
        routes_wanted: whether reports should have the agent's routes.
    """

    epoch: tuple[int, str]
    filters_number: int
    routes_wanted: bool


class ProposalAnswer(BaseModel):
    """Answer to a request to adopt the proposed plan.

    Attributes:
        adopted: whether there was a proposal.
        note: what it changes.
    """

    adopted: bool
    note: str


class ControllerBackend(Protocol):
    """What the API needs of the controller; all of it runs in the event loop."""

    def receive(self, report: AgentReport) -> ReportAnswer:
        """Take the report of an agent."""

    async def orders_after(self, broker: str, epoch: Epoch, number: int, wait: float) -> str | None:
        """Orders later than a number of an epoch; None: there are none yet."""

    def status(self) -> dict[str, Any]:
        """The status of the fleet."""

    async def adopt(self) -> ProposalAnswer:
        """Move to the proposed plan."""

    async def present_plan(self) -> dict[str, Any]:
        """The present plan, as `plan_message` writes it."""


# Answers a request to the API of moves: method, path, and body or query; returns the status and the answer.
RespondMoves = Callable[[str, str, dict[str, Any]], tuple[int, Any]]


def controller_app(
    backend: ControllerBackend, key: FleetKey, moves: RespondMoves | None = None
) -> SignedTraffic:
    """The API of a controller.

    Args:
        backend: the controller.
        key: the key of the fleet.
        moves: answers requests about moves of clients; None: clients are not moved.
    """
    app = FastAPI(
        title="Broadloom controller", version=VERSION, openapi_url=SCHEMA_PATH, docs_url=None, redoc_url=None
    )
    signed = SignedTraffic(app, key)

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Request, error: RequestValidationError) -> Response:
        """Say what is wrong; FastAPI's own answer repeats the input, and fails if that is not text."""
        faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:5]]
        return Response(_detail("; ".join(faults)), 422, media_type="application/json")

    @app.post("/v1/agents/{broker:path}/report", tags=["agents"])
    async def take_report(broker: str, report: dict[str, Any] = Body()) -> ReportAnswer:  # noqa: B008
        """Take the report of the agent of a broker."""
        try:
            received = AgentReport.from_json(report)
            if received.broker != broker:
                raise InputError(f"the report is of broker {plain_name(received.broker)}")
            return backend.receive(received)
        except InputError as error:
            raise HTTPException(422, str(error)) from error

    @app.get(
        "/v1/agents/{broker:path}/orders",
        tags=["agents"],
        responses={
            204: {"description": "No later orders."},
            409: {"description": "The agent is newer."},
        },
    )
    async def wait_for_orders(
        broker: str,
        epoch: int = Query(0, ge=0, le=2**62),
        controller: str = Query("", max_length=100),
        number: int = Query(-1, ge=-1, le=2**62),
        wait: float = Query(0.0, ge=0.0, le=POLL_SECONDS),
    ) -> Response:
        """Wait for orders that are later than those that the agent has."""
        try:
            message = await backend.orders_after(broker, Epoch(epoch, controller), number, wait)
        except StaleControllerError as error:
            raise HTTPException(409, str(error)) from error
        except InputError as error:
            raise HTTPException(404, str(error)) from error
        if message is None:
            return Response(status_code=204)
        return Response(message, media_type="application/json")

    @app.get(STATUS_PATH, tags=["operators"])
    async def read_status() -> dict[str, Any]:
        """The status of the fleet, as `broadloom status --json` prints it."""
        return backend.status() | {"requests": dict(signed.counts)}

    @app.get(PLAN_PATH, tags=["operators"])
    async def read_plan() -> Response:
        """The present plan: subscriptions, links and weights."""
        body = json.dumps(await backend.present_plan(), separators=(",", ":"))
        return Response(body, media_type="application/json")

    @app.post(PROPOSAL_PATH, tags=["operators"])
    async def adopt_proposal() -> ProposalAnswer:
        """Move to the plan that the controller proposes."""
        return await backend.adopt()

    async def ask_moves(method: str, path: str, body: dict[str, Any]) -> Response:
        if moves is None:
            raise HTTPException(404, "this controller moves no clients; start it with --moves")
        code, answer = await asyncio.to_thread(moves, method, f"/{path}", body)
        return Response(json.dumps(answer), code, media_type="application/json")

    @app.get(f"{MOVES_PATH}/{{path:path}}", tags=["moves"])
    async def read_moves(path: str, request: Request) -> Response:
        """Clients, moves and counts, as the API of `broadloom migrate agent` has them."""
        return await ask_moves("GET", path, dict(request.query_params))

    @app.post(f"{MOVES_PATH}/{{path:path}}", tags=["moves"])
    async def change_moves(path: str, body: dict[str, Any] = Body({})) -> Response:  # noqa: B008
        """Request or cancel a move, or summarize the traffic of clients."""
        return await ask_moves("POST", path, body)

    @app.get(METRICS_PATH, tags=["operators"], response_class=PlainTextResponse)
    async def read_metrics() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(
            fleet_metrics(backend.status(), signed.counts), media_type="text/plain; version=0.0.4"
        )

    @app.get(HEALTH_PATH, tags=["operators"])
    async def read_health() -> dict[str, str]:
        """Whether the controller answers."""
        return {"status": "ok"}

    return signed


class SignedTraffic:
    """ASGI layer that verifies the codes of requests before it reads their bodies, and signs the answers.

    Args:
        app: the API.
        key: the key of the fleet.
        clock: the time in seconds.

    Attributes:
        counts: refused requests by reason.
    """

    def __init__(self, app: AsgiApp, key: FleetKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._codes = ProtocolCodes(key)
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._counts_of: OrderedDict[str, tuple[int, float]] = OrderedDict()  # by session: count, last use
        self._log = RateLimitedLog(LOG, most=1)
        self.counts: dict[str, int] = defaultdict(int)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"]
        if path == HELLO_PATH:
            await self._welcome(scope, headers, send)
        elif path in (HEALTH_PATH, SCHEMA_PATH) or self._can_read(scope, headers):
            await self._app(scope, _no_body(receive), send)
        else:
            await self._check_and_answer(scope, headers, receive, send)

    def _can_read(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Whether a request without a code can read status or metrics."""
        if scope["method"] != "GET" or scope["path"] not in (METRICS_PATH, STATUS_PATH):
            return False
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            return same_code(self._codes.read_token(), token.strip())
        return scope["path"] == METRICS_PATH and is_loopback((scope.get("client") or ("",))[0])

    async def _welcome(self, scope: Scope, headers: Mapping[str, str], send: Send) -> None:
        nonce = headers.get(NONCE_HEADER, "")
        known = same_code(self._codes.hello(nonce), headers.get(CODE_HEADER, ""))
        if scope["method"] != "POST" or not 16 <= len(nonce) <= 100 or not known:
            await self._refuse(scope, headers, send, 403, "the key is another one")
            return
        session = self._new_session()
        body = json.dumps({"session": session, "version": VERSION}).encode()
        await _respond(send, 200, body, self._codes.welcome(nonce, session))

    async def _check_and_answer(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        session = headers.get(SESSION_HEADER, "")
        count = _count(headers.get(COUNT_HEADER, ""))
        digest = headers.get(DIGEST_HEADER, "")
        target = scope["raw_path"].decode("latin-1")
        if scope["query_string"]:
            target += "?" + scope["query_string"].decode("latin-1")
        code = self._codes.request(scope["method"], target, session, count, digest)
        if not same_code(code, headers.get(CODE_HEADER, "")):
            await self._refuse(scope, headers, send, 403, "the code is wrong")
            return
        if not self._is_next(session, count):
            self.counts["sessions"] += 1
            await _respond(send, 401, _detail("say hello first"))
            return
        body = await self._body(headers, receive)
        if isinstance(body, int):
            self.counts["bodies"] += 1
            content = _detail("the body is too large, too slow, or another one than was signed")
            await _respond(send, body, content, self._codes.answer(session, count, body, content))
            return
        status, kind, content = await self._answer(scope, receive, body)
        code = self._codes.answer(session, count, status, content)
        await _respond(send, status, content, code, kind)

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes | int:
        """The body of a request, or the status of its refusal."""
        if _count(headers.get("content-length", "0")) > LARGEST_REPORT:
            return 413
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return 400
                    part = message.get("body", b"")
                    parts.append(part)
                    size += len(part)
                    if size > LARGEST_REPORT:
                        return 413
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            return 408
        body = b"".join(parts)
        return body if same_code(body_digest(body), headers.get(DIGEST_HEADER, "")) else 400

    async def _answer(self, scope: Scope, receive: Receive, body: bytes) -> tuple[int, bytes, bytes]:
        """Status, content type and body of the API's answer."""
        status = 500
        kind = b"application/json"
        parts: list[bytes] = []

        async def collect(message: MutableMapping[str, Any]) -> None:
            nonlocal status, kind
            if message["type"] == "http.response.start":
                status = message["status"]
                kind = dict(message.get("headers", ())).get(b"content-type", b"")
            elif message["type"] == "http.response.body":
                parts.append(message.get("body", b""))

        await self._app(scope, _with_body(body, receive), collect)
        return status, kind, b"".join(parts)

    async def _refuse(
        self, scope: Scope, headers: Mapping[str, str], send: Send, status: int, reason: str
    ) -> None:
        self.counts["keys"] += 1
        peer = (scope.get("client") or ("?",))[0]
        name = plain_name(unquote(headers.get(PEER_HEADER, "?"))[:100])
        self._log.warn("key", "a request from %s (%s) is refused: %s", peer, name, reason)
        await _respond(send, status, _detail(reason))

    def _new_session(self) -> str:
        """A session that only this process can have made, and that must be used soon."""
        text = f"{self._clock() + CHALLENGE_SECONDS:.3f}/{secrets.token_hex(16)}"
        return f"{text}/{self._mark(text)}"

    def _mark(self, text: str) -> str:
        return blake2b(text.encode(), key=self._secret, digest_size=16).hexdigest()

    def _is_next(self, session: str, count: int) -> bool:
        """Whether a session is one of this process, and the count is higher than all before."""
        now = self._clock()
        known = self._counts_of.get(session)
        if known is None:
            text, _, mark = session.rpartition("/")
            if not same_code(self._mark(text), mark) or float(text.partition("/")[0]) < now:
                return False
            known = (0, now)
        if count <= known[0]:
            return False
        self._counts_of[session] = (count, now)
        self._counts_of.move_to_end(session)
        while self._counts_of and next(iter(self._counts_of.values()))[1] < now - SESSION_SECONDS:
            self._counts_of.popitem(last=False)
        return True


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else 0


def _detail(text: str) -> bytes:
    return json.dumps({"detail": text}).encode()


def _no_body(receive: Receive) -> Receive:
    """The messages of a request whose body is left unread."""
    return _with_body(b"", receive)


def _with_body(body: bytes, receive: Receive) -> Receive:
    """The messages of a request with a body that is complete."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def messages() -> MutableMapping[str, Any]:
        return waiting.pop() if waiting else await receive()

    return messages


async def _respond(
    send: Send, status: int, body: bytes, code: str = "", kind: bytes = b"application/json"
) -> None:
    headers = [(b"content-length", str(len(body)).encode())] if status != 204 else []
    if kind and body:
        headers.append((b"content-type", kind))
    if code:
        headers.append((CODE_HEADER.encode(), code.encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class OrderBoard:
    """Orders of all agents: answers requests for later orders, with what has changed since.

    Args:
        orders_for: the complete orders of a broker.
    """

    def __init__(self, orders_for: Callable[[str], AgentOrders]) -> None:
        self._orders_for = orders_for
        self._sent: dict[str, deque[AgentOrders]] = defaultdict(lambda: deque(maxlen=REMEMBERED_ORDERS))
        self._waiting: dict[str, deque[asyncio.Future[None]]] = defaultdict(deque)
        self._closed = False

    def announce(self, brokers: Iterable[str]) -> None:
        """Answer those who wait for orders of these brokers."""
        for broker in brokers:
            for future in self._waiting.pop(broker, ()):
                if not future.done():
                    future.set_result(None)

    def close(self) -> None:
        """Answer all who wait, and let nobody wait any longer."""
        self._closed = True
        self.announce(list(self._waiting))

    async def after(self, broker: str, epoch: Epoch, number: int, wait: float) -> str | None:
        """Orders that differ from the orders with this number of an epoch; None: none within the wait."""
        orders = self._orders_for(broker)
        if _is_nothing_new(orders, epoch, number) and wait > 0 and not self._closed:
            await self._changed(broker, wait)
            orders = self._orders_for(broker)
        if _is_nothing_new(orders, epoch, number):
            return None
        sent = self._sent[broker]
        before = next((one for one in sent if (one.epoch, one.number) == (epoch, number)), None)
        if orders not in sent:
            sent.append(orders)
        return orders_message(orders, before)

    async def _changed(self, broker: str, wait: float) -> None:
        waiting = self._waiting[broker]
        while len(waiting) >= MOST_POLLS:  # of connections that are gone
            oldest = waiting.popleft()
            if not oldest.done():
                oldest.set_result(None)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(future)
        try:
            await asyncio.wait_for(future, wait)
        except TimeoutError:
            pass
        finally:
            if future in waiting:
                waiting.remove(future)


def _is_nothing_new(orders: AgentOrders, epoch: Epoch, number: int) -> bool:
    """Whether an agent has these orders, or they are those of a controller that orders nothing."""
    return orders.epoch == NO_EPOCH or (orders.epoch, orders.number) == (epoch, number)


# Metrics.


def fleet_metrics(status: Mapping[str, Any], refused: Mapping[str, int]) -> bytes:
    """The metrics of a status in Prometheus' text format.

    Args:
        status: the status of the fleet, as `ControllerBackend.status` gives it.
        refused: numbers of refused requests by reason.
    """
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status, refused))
    return generate_latest(registry)


class _StatusCollector(Collector):
    def __init__(self, status: Mapping[str, Any], refused: Mapping[str, int]) -> None:
        self._status = status
        self._refused = refused

    def collect(self) -> Iterable[Metric]:
        status = self._status
        yield GaugeMetricFamily("broadloom_epoch", "number of the controller's epoch", status["epoch"][0])
        yield GaugeMetricFamily("broadloom_version", "version of the trees", status["version"])
        yield GaugeMetricFamily("broadloom_groups", "groups of topics with links", status["groups"])
        yield GaugeMetricFamily(
            "broadloom_obeyed", "whether agents obey this controller", float(status["refused"] is None)
        )
        yield GaugeMetricFamily(
            "broadloom_settled", "whether no change is under way", float(status["settled"])
        )
        for name, meaning in _LENGTHS.items():
            yield GaugeMetricFamily(f"broadloom_{name}", meaning, len(status[name]))
        refused = CounterMetricFamily("broadloom_refused_requests", "requests refused", labels=["reason"])
        for reason, count in sorted(self._refused.items()):
            refused.add_metric([reason], count)
        yield refused
        yield from self._agents()
        yield from self._hops()

    def _agents(self) -> Iterable[Metric]:
        brokers = self._status["brokers"]
        for name, (meaning, value_of) in _BROKER_GAUGES.items():
            family = GaugeMetricFamily(f"broadloom_{name}", meaning, labels=["broker"])
            for broker, one in brokers.items():
                if (value := value_of(one)) is not None:
                    family.add_metric([broker], float(value))
            yield family
        values = [((broker,), one["counts"]) for broker, one in brokers.items()]
        yield from _counters("broadloom_agent", ["broker"], values, _AGENT_COUNTS)

    def _hops(self) -> Iterable[Metric]:
        hops = [
            ((start, end), hop)
            for start, one in self._status["brokers"].items()
            for end, hop in one["hops"].items()
        ]
        for name, meaning in _HOP_GAUGES.items():
            family = GaugeMetricFamily(f"broadloom_hop_{name}", meaning, labels=["start", "end"])
            for labels, hop in hops:
                if hop[name] is not None:
                    family.add_metric(labels, float(hop[name]))
            yield family
        yield from _counters(
            "broadloom_hop", ["start", "end"], [(labels, hop["counts"]) for labels, hop in hops], _HOP_COUNTS
        )


_LENGTHS = {
    "opening": "changes whose hops are being opened",
    "waiting": "changes that wait for a broker",
    "draining": "changes whose old trees are still used",
    "left_out": "brokers that trees go on without",
    "not_carried": "subscriptions that links do not carry",
    "quarantined": "events that were refused",
    "problems": "problems",
}
_BROKER_GAUGES: dict[str, tuple[str, Callable[[Mapping[str, Any]], float | None]]] = {
    "agent_up": ("whether the agent reports", lambda one: not one["away"]),
    "broker_up": ("whether the agent is connected with its broker", lambda one: one["broker_up"]),
    "agent_version": ("lowest version of the agent's hops", lambda one: one["version"]),
    "subscriptions": ("topic filters that clients want", lambda one: one["filters"]),
}
_HOP_GAUGES = {
    "near_up": "whether the hop is connected and subscribed at its own broker",
    "far_up": "whether the hop is connected at the neighbour",
    "version": "version that the hop puts on messages",
    "in_flight": "unfinished messages",
    "in_flight_bytes": "bytes of unfinished messages",
    "round_trip_ms": "round-trip time to the neighbour in milliseconds",
}


# Counters that are 0 until an agent counts: Prometheus does not see a rise from "missing" to 1.
_AGENT_COUNTS = ("sessions_rolled_back",)
_HOP_COUNTS = ("bytes", "dead_letters", "forged", "messages", "qos0_dropped", "sessions_lost")


def _counters(
    prefix: str,
    labels: list[str],
    values: Sequence[tuple[Sequence[str], Mapping[str, int]]],
    always: Sequence[str],
) -> Iterable[Metric]:
    """One counter per name; the names are those that agents count, and those of `always`."""
    names = sorted({name for _, counts in values for name in counts if name.isidentifier()} | set(always))
    for name in names:
        family = CounterMetricFamily(f"{prefix}_{name}", f"{name.replace('_', ' ')} so far", labels=labels)
        for label, counts in values:
            if name in counts or name in always:
                family.add_metric(label, counts.get(name, 0))
        yield family
