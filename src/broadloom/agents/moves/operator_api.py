"""The HTTP API for operators: on loopback only, and only for who has the token."""

from __future__ import annotations

import hmac
import http.client
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from heapq import nsmallest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from broadloom._version import VERSION
from broadloom.agents.monitoring import KIND, Family, exposition, labels
from broadloom.agents.moves.move_agent import MoveAgent
from broadloom.agents.moves.move_plans import MoveRefusedError
from broadloom.agents.moves.move_registry import MoveState, Resident, resident_of
from broadloom.agents.moves.traffic_summary import AwayError, SentTraffic, Site
from broadloom.errors import InputError

log = logging.getLogger("broadloom.agents.moves")

LOOPBACK = "127.0.0.1"
MOST_BYTES = 64 * 1024
SECONDS = 30.0
PAGE = 1_000  # clients or moves
NAMED = 10  # of the sessions that were given up
# What clients sent in so many seconds, with who is where and where brokers are.
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
    "required": ["client", "broker", "filters", "place", "since", "sends", "heard"],
    "properties": {
        "client": _TEXT,
        "broker": _TEXT,
        "filters": {"type": "array", "items": {"type": "array"}},
        "place": {"type": ["array", "null"], "items": _NUMBER},
        "since": _NUMBER,
        "sends": {"type": "array", "items": _TEXT},
        "heard": _NUMBER,
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
    "required": ["clients", "strays", "abandoned", "abandoned_last", "moves", "refused", "links_down"],
    "properties": {
        **dict.fromkeys(("clients", "strays", "abandoned"), _COUNT),
        "abandoned_last": {"type": "array", "items": _ABANDONED},
        **dict.fromkeys(("moves", "refused"), _COUNTS),
        "links_down": {"type": "array", "items": _TEXT},
    },
}
ANSWER_SECONDS, AGAIN_SECONDS, PATIENCE = 30.0, 0.2, 10.0
REFUSALS = (400, 409)  # of what was asked for; any other error is not about the client


class _HttpError(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class OperatorApi:
    """What operators may ask; each method is one operation."""

    def __init__(self, agent: MoveAgent, summarize: Summarize, down: Callable[[], list[str]] = list) -> None:
        self._agent, self._summarize, self._down = agent, summarize, down

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """The code of an answer, and what is told as JSON, or a text; the body of a GET is its query."""
        match (method, *path.strip("/").split("/")):
            case ("GET", "openapi.json"):
                return 200, api_description()
            case ("GET", "health"):
                return 200, self._health()
            case ("GET", "metrics"):
                return 200, exposition("broadloom_migrate", _families(self._health()))
            case ("GET", "clients"):
                after, limit = _page(body)
                return 200, self._agent.ask(lambda own: _clients(own, after, limit))
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
        raise _HttpError(404, f"no {method} {path:.80}; see /openapi.json")

    def _health(self) -> dict[str, Any]:
        return self._agent.ask(_health) | {"links_down": self._down()}


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
    """What `/health` counts, as Prometheus reads it."""
    yield "clients", "gauge", "clients that are known", [("", health["clients"])]
    yield "strays", "gauge", "sessions that are to be emptied", [("", health["strays"])]
    yield "abandoned", "gauge", "sessions that could not be emptied", [("", health["abandoned"])]
    moves = [(labels(state=state), count) for state, count in health["moves"].items()]
    yield "moves", "gauge", "moves, of those that are over the last ones", moves
    refused = [(labels(reason=kind.rstrip(":")), count) for kind, count in health["refused"].items()]
    yield "refused_total", "counter", "control messages that were refused", refused
    down = [(labels(broker=broker), 1) for broker in health["links_down"]]
    yield "links_down", "gauge", "brokers at which a link is down", down


def _page(query: dict[str, Any]) -> tuple[str, int]:
    """After which one, and how many."""
    if unknown := sorted(set(query) - {"after", "limit"}):
        raise InputError(f"{unknown[0]!r:.40} is not known; there are after and limit")
    limit = query.get("limit", str(PAGE))
    if not (limit.isdecimal() and len(limit) < 9 and 0 < int(limit) <= PAGE):
        raise InputError(f"limit is {limit!r:.40}; give a whole number from 1 to {PAGE:,}")
    return query.get("after", ""), int(limit)


def _clients(agent: MoveAgent, after: str, limit: int) -> dict[str, Any]:
    """A page of clients by their names; one that is forgotten meanwhile changes nothing for the next page."""
    residents = agent.registry.residents
    names = nsmallest(limit + 1, (name for name in residents if name > after))
    page = names[:limit]
    return {"clients": [asdict(residents[one]) for one in page], "next": page[-1] if names[limit:] else None}


def _moves(agent: MoveAgent, after: str, limit: int) -> dict[str, Any]:
    """A page of moves, oldest first, and after which one the next page begins, if there is one."""
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
        raise InputError(f"{unknown[0]!r:.40} is not known; there are {', '.join(names)}")
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


class _ApiHandler(BaseHTTPRequestHandler):
    """Checks who asks, reads what, and writes the answer."""

    server: HttpServer
    server_version, sys_version = "broadloom", ""
    timeout = SECONDS

    def do_GET(self) -> None:
        """Answer a question."""
        self._do("GET")

    def do_POST(self) -> None:
        """Answer a command."""
        self._do("POST")

    def _do(self, method: str) -> None:
        try:
            self._check_host()
            self._check_token()
            path, _, query = self.path.partition("?")
            body = self._body(method)
            asked = dict(parse_qsl(query, keep_blank_values=True)) if method == "GET" else body
            code, answer = self.server.api.answer(method, path, asked)
        except _HttpError as refused:
            code, answer = refused.code, {"error": str(refused)}
        except InputError as error:
            code, answer = 503 if isinstance(error, AwayError) else 400, {"error": str(error)}
        except Exception:
            log.exception("a request failed")
            code, answer = 500, {"error": "the agent failed; its log says why"}
        self._write(code, answer)

    def _check_host(self) -> None:
        """Refuse pages of other sites that a browser on this machine was tricked into asking from."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (LOOPBACK, "localhost"):
            raise _HttpError(403, f"ask by the name {LOOPBACK} or localhost")

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if not hmac.compare_digest(given, self.server.token):
            raise _HttpError(401, "no token, or a wrong one; send Authorization: Bearer TOKEN")

    def _body(self, method: str) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or len(length) > 9 or int(length) > MOST_BYTES:
            raise _HttpError(413, f"a body of {length:.20} bytes; send at most {MOST_BYTES:,}")
        data = self.rfile.read(int(length))
        if method == "GET" or not data:
            return {}
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise _HttpError(400, "the body is no JSON object")
        return body

    def _write(self, code: int, answer: Any) -> None:
        data = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
        self.send_response(code)
        self.send_header("Content-Type", KIND if isinstance(answer, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *values: Any) -> None:  # noqa: A002
        """Requests, without headers, for who wants to see them."""
        log.debug(format, *values)


class HttpServer(ThreadingHTTPServer):
    """The API at a port of loopback.

    Args:
        api: what answers.
        token: what operators must show.
        port: 0: any that is free.
    """

    daemon_threads = True

    def __init__(self, api: OperatorApi, token: str, port: int = 0) -> None:
        if not token:
            raise InputError("the token is empty; give one that nobody can guess")
        self.api, self.token = api, token.encode()
        super().__init__((LOOPBACK, port), _ApiHandler)

    def start(self) -> None:
        """Answer in a thread of its own."""
        threading.Thread(target=self.serve_forever, name="broadloom-http", daemon=True).start()


def _answer(words: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": words, "content": {"application/json": {"schema": schema}}}


def _operation(name: str, words: str, answer: dict[str, Any], code: str = "200") -> dict[str, Any]:
    error = {"$ref": "#/components/responses/Error"}
    return {
        "operationId": name,
        "summary": words,
        "responses": {code: _answer(words, answer), "4XX": error, "5XX": error},
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


def _paged(name: str, words: str, item: dict[str, Any]) -> dict[str, Any]:
    page = {
        "type": "object",
        "required": [name, "next"],
        "properties": {name: {"type": "array", "items": item}, "next": {"type": ["string", "null"]}},
    }
    query = [_query("after", _TEXT), _query("limit", _COUNT)]
    return _operation(name, f"{words}; `next` goes into `after`.", page) | {"parameters": query}


def api_description() -> dict[str, Any]:
    """The whole description.

    Examples:
        >>> sorted(api_description()["paths"])[:3]
        ['/clients', '/health', '/metrics']
    """
    move, client = ({"$ref": f"#/components/schemas/{name}"} for name in ("Move", "Client"))
    one_of_them = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
    ask = _body({"client": _TEXT, "to": _TEXT, "key": _TEXT}, ["client", "to"])
    cancel = _operation("cancel", "Give up a move whose client has not been told to go yet.", move)
    metrics = _operation("metrics", "The counts of `/health`, as Prometheus reads them.", _TEXT)
    metrics["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    paths = {
        "/openapi.json": {"get": _operation("describe", "This description.", {"type": "object"})},
        "/health": {
            "get": _operation(
                "health",
                "Counts, sessions given up, messages refused, brokers at which a link is down.",
                _HEALTH,
            )
        },
        "/metrics": {"get": metrics},
        "/clients": {"get": _paged("clients", "Who is where, by name", client)},
        "/moves": {
            "get": _paged("moves", "Moves, oldest first", move),
            "post": _operation("request_to_move", "Ask a client to move.", move, "201")
            | {"requestBody": ask},
        },
        "/moves/{id}": {"get": _operation("move", "One move.", move) | {"parameters": one_of_them}},
        "/moves/{id}/cancel": {"post": cancel | {"parameters": one_of_them}},
        "/summarize": {
            "post": _operation("summarize", "Count for some seconds what clients send.", {"type": "object"})
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
            "responses": {"Error": _answer("What is wrong, in one line.", error)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


class Operator:
    """Asks an agent.

    Args:
        url: as `http://127.0.0.1:8780`.
        token: the agent's.
        patience: how many seconds an agent that does not answer is waited for.
    """

    def __init__(self, url: str, token: str, patience: float | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.username:
            raise InputError(f"agent {parts.hostname or url:.80}; give http://HOST:PORT, without a login")
        self._host, self._port, self._token = parts.hostname, parts.port, token
        self._patience = PATIENCE if patience is None else patience

    def clients(self) -> list[dict[str, Any]]:
        """Who is where, by name."""
        return self._pages("clients")

    def moves(self) -> list[dict[str, Any]]:
        """All moves, oldest first."""
        return self._pages("moves")

    def move(self, move: str) -> dict[str, Any]:
        """One move."""
        return self._ask("GET", f"/moves/{quote(move, safe='')}")

    def health(self) -> dict[str, Any]:
        """Counts."""
        return self._ask("GET", "/health")

    def request_to_move(self, client: str, to: str, key: str = "") -> dict[str, Any]:
        """Ask a client to move."""
        return self._ask("POST", "/moves", {"client": client, "to": to, "key": key})

    def cancel(self, move: str) -> dict[str, Any]:
        """Give up a move."""
        return self._ask("POST", f"/moves/{quote(move, safe='')}/cancel")

    def summarize(self, seconds: float) -> tuple[list[Resident], list[SentTraffic], dict[str, Site]]:
        """Who is where, what they sent in so many seconds, and where brokers are."""
        told = self._ask("POST", "/summarize", {"seconds": seconds}, wait=seconds)
        return (
            [resident_of(one) for one in told["clients"]],
            [SentTraffic(*one) for one in told["sent"]],
            {name: Site(tuple(place), capacity) for name, (place, capacity) in told["sites"].items()},
        )

    def _pages(self, name: str) -> list[dict[str, Any]]:
        """All of a kind, as many pages as there are."""
        found: list[dict[str, Any]] = []
        query = ""
        while True:
            page = self._ask("GET", f"/{name}{query}")
            found += page[name]
            if page["next"] is None:
                return found
            query = f"?after={quote(page['next'], safe='')}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, wait: float = 0.0) -> Any:
        """An answer; an agent that is just being restarted is waited for."""
        end = time.monotonic() + self._patience
        while True:
            try:
                status, told = self._ask_once(method, path, body, ANSWER_SECONDS + wait)
                break
            except (OSError, http.client.HTTPException, ValueError) as error:
                if time.monotonic() > end:
                    words = getattr(error, "strerror", None) or error.__class__.__name__
                    where = f"{self._host}:{self._port}"
                    raise InputError(f"the agent at {where} does not answer: {words}") from error
                time.sleep(AGAIN_SECONDS)
        if status >= 400:
            kind = MoveRefusedError if status in REFUSALS else InputError
            raise kind(f"the agent says: {told.get('error', status) if isinstance(told, dict) else status}")
        return told

    def _ask_once(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            connection.request(method, path, json.dumps(body or {}).encode(), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()
