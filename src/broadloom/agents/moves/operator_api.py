"""HTTP API for operators: the server on loopback with a token, and its OpenAPI description."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from broadloom._version import VERSION
from broadloom.agents.monitoring import CONTENT_TYPE, Family, exposition, labels
from broadloom.agents.moves.move_agent import MoveAgent
from broadloom.agents.moves.move_registry import MOVING, ORDINARY, MoveState
from broadloom.agents.moves.ordinary_clients import ClientSight, OrdinaryMover
from broadloom.errors import InputError, StorageError, UnreachableError
from broadloom.mqtt.endpoint import LAST_PORT, Address

if TYPE_CHECKING:
    from broadloom.agents.http_server import Receive, Scope, Send

log = logging.getLogger("broadloom.agents.moves")

LOOPBACK = "127.0.0.1"
MOST_BYTES = 64 * 1024
MOST_CONNECTIONS = 64
MOST_AT_ONCE = 8  # requests that are answered at the same time
SECONDS = 15.0  # for the body of a request
PAGE = 1_000  # clients or moves per page
NAMED = 10  # abandoned sessions listed in /health
# Counts the messages of clients for some seconds; returns them with clients and brokers, as JSON values.
Summarize = Callable[[float], dict[str, Any]]
_TEXT, _NUMBER, _COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer"}
_MOVE = {
    "type": "object",
    "required": ["id", "client", "home", "foreign", "state", "since", "until", "key", "note"],
    "properties": {
        **dict.fromkeys(("id", "client", "home", "foreign", "key", "note"), _TEXT),
        **dict.fromkeys(("since", "until"), _NUMBER),
        "state": {"type": "string", "enum": [str(state) for state in MoveState]},
    },
}
_CLIENT = {
    "type": "object",
    "required": ["client", "broker", "filters", "place", "since", "sends", "heard", "kind", "keeps"],
    "properties": {
        "client": _TEXT,
        "broker": _TEXT,
        "filters": {"type": "array", "items": {"type": "array"}},
        "place": {"type": ["array", "null"], "items": _NUMBER},
        "since": _NUMBER,
        "sends": {"type": "array", "items": _TEXT},
        "heard": _NUMBER,
        "kind": {"type": "string", "enum": [MOVING, ORDINARY]},
        "keeps": {"type": ["boolean", "null"]},
    },
}
_COUNTS = {"type": "object", "additionalProperties": _COUNT}
_ABANDONED = {
    "type": "object",
    "required": ["client", "broker", "since", "forward"],
    "properties": {"client": _TEXT, "broker": _TEXT, "since": _NUMBER, "forward": {"type": "boolean"}},
}
_HEALTH = {
    "type": "object",
    "required": [
        *("clients", "strays", "abandoned", "abandoned_last", "moves", "refused", "links_down", "problems"),
        "relayed",
    ],
    "properties": {
        **dict.fromkeys(("clients", "strays", "abandoned"), _COUNT),
        "abandoned_last": {"type": "array", "items": _ABANDONED},
        **dict.fromkeys(("moves", "refused", "relayed"), _COUNTS),
        "links_down": {"type": "array", "items": _TEXT},
        "problems": {"type": "array", "items": _TEXT},
    },
}


class _HttpError(Exception):
    """An error response."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class OperatorApi:
    """Operations of the HTTP API."""

    def __init__(
        self,
        agent: MoveAgent,
        summarize: Summarize,
        down: Callable[[], list[str]] = list,
        families: Callable[[], list[Family]] = list,
        sight: ClientSight | None = None,
        mover: OrdinaryMover | None = None,
    ) -> None:
        self._sight = sight
        self._mover = mover
        self._agent = agent
        self._summarize = summarize
        self._down = down
        self._link_families = families

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Answer a request.

        Args:
            method: GET or POST.
            path: the path of the URL.
            body: the JSON object of a POST, or the query of a GET.

        Returns:
            The status code, and the body: JSON values or a text.
        """
        match (method, *path.strip("/").split("/")):
            case ("GET", "openapi.json"):
                return 200, api_description()
            case ("GET", "health"):
                return 200, self._health()
            case ("GET", "metrics"):
                return 200, exposition(
                    "broadloom_migrate", [*_families(self._health()), *self._link_families()]
                )
            case ("GET", "clients"):
                after, limit = _page(body)
                return 200, self._clients(after, limit)
            case ("GET", "moves"):
                after, limit = _page(body)
                return 200, self._agent.ask(lambda own: _moves(own, after, limit))
            case ("GET", "moves", move):
                return 200, self._agent.ask(lambda own: _move(own, move))
            case ("POST", "moves"):
                client, to, key = _texts(body, "client", "to", "key")
                return 201, asdict(self._agent.ask(lambda own: own.request_to_move(client, to, key)))
            case ("POST", "moves", move, "cancel"):
                return 200, asdict(self._agent.ask(lambda own: own.cancel(move)))
            case ("POST", "summarize"):
                return 200, self._summarize(_seconds(body))
        raise _HttpError(404, f"{method} {path:.80} is not an operation; see /openapi.json")

    def respond(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Answer a request, or say what is wrong with it; never raises."""
        try:
            return self.answer(method, path, body)
        except _HttpError as refused:
            return refused.code, {"error": str(refused)}
        except InputError as error:
            return 400, {"error": str(error)}
        except (UnreachableError, StorageError, TimeoutError) as error:
            return 503, {"error": str(error) or self.problem() or "the agent is busy"}
        except Exception:
            log.exception("a request failed")
            return 500, {"error": "the agent failed; its log says why"}

    def count_dropped(self) -> None:
        """Count a connection that was closed because there are too many."""
        self._agent.refused["connections:"] += 1

    def problem(self) -> str:
        """Why nothing moves at the moment; empty: nothing is wrong."""
        return self._agent.problem

    def _health(self) -> dict[str, Any]:
        health = self._agent.ask(_health) | {"links_down": self._down()}
        health["relayed"] = {}
        if self._mover is not None:
            relayed = {f"relay, {kind}": count for kind, count in self._mover.refused().items()}
            health["refused"] = health["refused"] | relayed
            health["relayed"] = dict(self._mover.done)
        seen = [] if self._sight is None else self._sight.problems()
        return health | {"problems": [*([self._agent.problem] if self._agent.problem else ()), *seen]}

    def _clients(self, after: str, limit: int) -> dict[str, Any]:
        """A page of clients by name; a client that is forgotten meanwhile does not change the next page."""
        known = self._agent.ask(lambda own: dict(own.registry.residents))
        if self._sight is not None:
            for seen in self._sight.clients():
                if seen.client not in known:
                    known[seen.client] = seen.resident()
        names = nsmallest(limit + 1, (name for name in known if name > after))
        page = names[:limit]
        return {"clients": [asdict(known[one]) for one in page], "next": page[-1] if names[limit:] else None}


def _health(agent: MoveAgent) -> dict[str, Any]:
    moves: dict[str, int] = {}
    for move in agent.registry.moves.values():
        moves[move.state] = moves.get(move.state, 0) + 1
    registry = agent.registry
    return {
        "clients": len(registry.residents),
        "strays": len(registry.strays),
        "abandoned": len(registry.abandoned),
        "abandoned_last": [asdict(one) for one in list(registry.abandoned.values())[-NAMED:]],
        "moves": moves,
        "refused": dict(agent.refused),
    }


def _families(health: dict[str, Any]) -> Iterator[Family]:
    """The counts of `/health` as metrics."""
    yield "clients", "gauge", "known clients", [("", health["clients"])]
    yield (
        "strays",
        "gauge",
        "sessions that clients have left and that are not emptied yet",
        [("", health["strays"])],
    )
    yield "abandoned", "gauge", "sessions that could not be emptied", [("", health["abandoned"])]
    moves = [(labels(state=state), count) for state, count in health["moves"].items()]
    yield "moves", "gauge", "moves by state; of ended moves only the last ones", moves
    refused = [(labels(reason=kind.rstrip(":")), count) for kind, count in health["refused"].items()]
    yield "refused_total", "counter", "refused control messages", refused
    down = [(labels(broker=broker), 1) for broker in health["links_down"]]
    yield "links_down", "gauge", "brokers with a link that is down", down


def _page(query: dict[str, Any]) -> tuple[str, int]:
    """The entry after which the requested page begins, and its size."""
    if unknown := sorted(set(query) - {"after", "limit"}):
        raise InputError(f"{unknown[0]!r:.40} is unknown; give after or limit")
    limit = query.get("limit", str(PAGE))
    if not (limit.isdecimal() and len(limit) < 9 and 0 < int(limit) <= PAGE):
        raise InputError(f"limit is {limit!r:.40}; give a whole number from 1 to {PAGE:,}")
    return query.get("after", ""), int(limit)


def _moves(agent: MoveAgent, after: str, limit: int) -> dict[str, Any]:
    """A page of moves, oldest first, and the last id if there is a next page."""
    moves = agent.registry.moves
    if after and after not in moves:
        raise _HttpError(404, f"no move {after!r:.40}")
    rest = islice(moves, list(moves).index(after) + 1 if after else 0, None)
    page = list(islice(rest, limit))
    more = next(rest, None) is not None
    return {"moves": [asdict(moves[one]) for one in page], "next": page[-1] if more else None}


def _move(agent: MoveAgent, move: str) -> dict[str, Any]:
    if move not in agent.registry.moves:
        raise _HttpError(404, f"no move {move!r:.40}")
    return asdict(agent.registry.moves[move])


def _texts(body: dict[str, Any], *names: str) -> list[str]:
    if unknown := sorted(set(body) - set(names)):
        raise InputError(f"{unknown[0]!r:.40} is unknown; give {', '.join(names)}")
    values = [body.get(name, "") for name in names]
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str) or len(value) > 256 or (not value and name != "key"):
            raise InputError(f"{name} is {value!r:.80}; give a text of at most 256 characters")
    return values


def _seconds(body: dict[str, Any]) -> float:
    seconds: Any = body.get("seconds")
    if type(seconds) not in (int, float) or not 0 < seconds <= 3600 or len(body) != 1:
        raise InputError(f"seconds is {seconds!r:.40}; give a number above 0, at most 3600")
    return float(seconds)


class HttpServer:
    """HTTP server of the API on loopback, in a thread; connections, requests and threads are bounded.

    Args:
        api: the operations.
        token: the token of operators.
        port: the port; 0: any free port.

    Raises:
        InputError: the token is empty, or the port cannot be used.
        MissingExtraError: uvicorn is not installed.
    """

    def __init__(self, api: OperatorApi, token: str, port: int = 0) -> None:
        from broadloom.agents.http_server import ApiServer  # clients and planners do without it

        if not token:
            raise InputError("the token is empty; give a random one")
        if not 0 <= port <= LAST_PORT:
            raise InputError(f"the agent cannot listen at port {port}: not a port; give another port")
        self._api = api
        self._token = token.encode()
        self._server = ApiServer(
            self._handle,
            Address(LOOPBACK, port),
            None,
            MOST_CONNECTIONS,
            "the agent",
            "give another port",
            drop_idle=True,
            dropped=api.count_dropped,
        )
        self.server_port = self._server.port
        self._workers = ThreadPoolExecutor(MOST_AT_ONCE, thread_name_prefix="broadloom-api")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="broadloom-http", daemon=True)
        self._is_started = threading.Event()

    def start(self) -> None:
        """Serve in a background thread."""
        self._thread.start()
        self._is_started.wait()

    def shutdown(self) -> None:
        """Stop serving."""
        if self._loop is not None and self._over is not None:
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def server_close(self) -> None:
        """Close the port, if it was never served."""
        self._server.close()
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        try:
            await self._server.start()
        finally:
            self._is_started.set()
        await self._over.wait()
        await self._server.stop()

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: an ASGI application."""
        if scope["type"] != "http":
            return
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._check(headers)
            body = await _read_body(headers, receive)
            path, method = scope["path"], scope["method"]
            if method == "GET":
                body = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
            loop = asyncio.get_running_loop()
            code, answer = await loop.run_in_executor(self._workers, self._api.respond, method, path, body)
        except _HttpError as refused:
            code, answer = refused.code, {"error": str(refused)}
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        kind = CONTENT_TYPE if isinstance(answer, str) else "application/json"
        fields = (("content-type", kind), ("content-length", str(len(data))), ("cache-control", "no-store"))
        pairs = [(name.encode(), value.encode()) for name, value in fields]
        await send({"type": "http.response.start", "status": code, "headers": pairs})
        await send({"type": "http.response.body", "body": data})

    def _check(self, headers: dict[str, str]) -> None:
        """Refuse requests without the token, and those of a foreign web page in a browser on this machine."""
        host = headers.get("host", "").rpartition(":")[0]
        if host not in (LOOPBACK, "localhost"):
            raise _HttpError(403, f"use the host name {LOOPBACK} or localhost")
        token = headers.get("authorization", "").removeprefix("Bearer ").encode("latin-1", "replace")
        if not hmac.compare_digest(token, self._token):
            raise _HttpError(401, "the token is missing or wrong; send Authorization: Bearer TOKEN")


async def _read_body(headers: dict[str, str], receive: Receive) -> dict[str, Any]:
    """The JSON object of a request, empty without one, within a size and a time."""
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 9 or int(length) > MOST_BYTES:
        raise _HttpError(413, f"the body has {length:.20} bytes; send at most {MOST_BYTES:,}")
    data = b""
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                message = await receive()
                data += message.get("body", b"")
                if len(data) > MOST_BYTES:
                    raise _HttpError(413, f"the body is too long; send at most {MOST_BYTES:,} bytes")
                if message["type"] != "http.request" or not message.get("more_body"):
                    break
    except TimeoutError as error:
        raise _HttpError(408, "the body does not come") from error
    if not data:
        return {}
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise _HttpError(400, "the body is not a JSON object")
    return body


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _operation(name: str, text: str, answer: dict[str, Any], code: str = "200") -> dict[str, Any]:
    error = {"$ref": "#/components/responses/Error"}
    return {
        "operationId": name,
        "summary": text,
        "responses": {code: _answer(text, answer), "4XX": error, "5XX": error},
    }


def _body(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _paged(name: str, text: str, item: dict[str, Any]) -> dict[str, Any]:
    page = {
        "type": "object",
        "required": [name, "next"],
        "properties": {name: {"type": "array", "items": item}, "next": {"type": ["string", "null"]}},
    }
    query = [_query("after", _TEXT), _query("limit", _COUNT)]
    return _operation(name, f"{text}; pass `next` as `after` for the next page.", page) | {
        "parameters": query
    }


def api_description() -> dict[str, Any]:
    """The OpenAPI description of the API; a test compares it with the server's responses.

    Examples:
        >>> sorted(api_description()["paths"])[:3]
        ['/clients', '/health', '/metrics']
    """
    move, client = ({"$ref": f"#/components/schemas/{name}"} for name in ("Move", "Client"))
    id_parameter = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
    request_body = _body({"client": _TEXT, "to": _TEXT, "key": _TEXT}, ["client", "to"])
    cancel = _operation("cancel", "Cancel a move whose client has not been told to connect yet.", move)
    metrics = _operation("metrics", "The counts of `/health` in Prometheus' text format.", _TEXT)
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    paths = {
        "/openapi.json": {"get": _operation("describe", "This description.", {"type": "object"})},
        "/health": {
            "get": _operation(
                "health",
                "Counts, abandoned sessions, refused messages, and brokers with a link that is down.",
                _HEALTH,
            )
        },
        "/metrics": {"get": metrics},
        "/clients": {"get": _paged("clients", "Clients with their brokers, by name", client)},
        "/moves": {
            "get": _paged("moves", "Moves, oldest first", move),
            "post": _operation("request_to_move", "Ask a client to move.", move, "201")
            | {"requestBody": request_body},
        },
        "/moves/{id}": {"get": _operation("move", "One move.", move) | {"parameters": id_parameter}},
        "/moves/{id}/cancel": {"post": cancel | {"parameters": id_parameter}},
        "/summarize": {
            "post": _operation(
                "summarize", "Count the messages of clients for some seconds.", {"type": "object"}
            )
            | {"requestBody": _body({"seconds": _NUMBER}, ["seconds"])},
        },
    }
    error = {"type": "object", "required": ["error"], "properties": {"error": _TEXT}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Broadloom migration agent", "version": VERSION},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {"Move": _MOVE, "Client": _CLIENT},
            "responses": {"Error": _answer("The error in one line.", error)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
