"""The HTTP API for operators: on loopback only, and only for who has the token."""

from __future__ import annotations

import hmac
import json
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from heapq import nsmallest
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from typing import Any
from urllib.parse import parse_qsl

from broadloom.agents.moves.agent import Agent
from broadloom.agents.moves.openapi import document
from broadloom.agents.moves.summary import AwayError
from broadloom.agents.prometheus import KIND, Family, exposition, labels
from broadloom.errors import InputError

log = logging.getLogger("broadloom.agents.moves")

LOOPBACK = "127.0.0.1"
MOST_BYTES = 64 * 1024
SECONDS = 30.0
PAGE = 1_000  # clients or moves
NAMED = 10  # of the sessions that were given up
# What clients sent in so many seconds, with who is where and where brokers are.
Summarize = Callable[[float], dict[str, Any]]


class _RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code


class Api:
    """What operators may ask; each method is one operation."""

    def __init__(self, agent: Agent, summarize: Summarize, down: Callable[[], list[str]] = list) -> None:
        self._agent, self._summarize, self._down = agent, summarize, down

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """The code of an answer, and what is told as JSON, or a text; the body of a GET is its query."""
        match (method, *path.strip("/").split("/")):
            case ("GET", "openapi.json"):
                return 200, document()
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
        raise _RefusedError(404, f"no {method} {path:.80}; see /openapi.json")

    def _health(self) -> dict[str, Any]:
        return self._agent.ask(_health) | {"links_down": self._down()}


def _health(agent: Agent) -> dict[str, Any]:
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


def _clients(agent: Agent, after: str, limit: int) -> dict[str, Any]:
    """A page of clients by their names; one that is forgotten meanwhile changes nothing for the next page."""
    residents = agent.registry.residents
    names = nsmallest(limit + 1, (name for name in residents if name > after))
    page = names[:limit]
    return {"clients": [asdict(residents[one]) for one in page], "next": page[-1] if names[limit:] else None}


def _moves(agent: Agent, after: str, limit: int) -> dict[str, Any]:
    """A page of moves, oldest first, and after which one the next page begins, if there is one."""
    moves = agent.registry.moves
    if after and after not in moves:
        raise _RefusedError(404, f"no move {after!r:.40}")
    rest = islice(moves, list(moves).index(after) + 1 if after else 0, None)
    page = list(islice(rest, limit))
    more = next(rest, None) is not None
    return {"moves": [asdict(moves[one]) for one in page], "next": page[-1] if more else None}


def _move(agent: Agent, move: str) -> dict[str, Any]:
    if move not in agent.registry.moves:
        raise _RefusedError(404, f"no move {move!r:.40}")
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


class _Handler(BaseHTTPRequestHandler):
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
        except _RefusedError as refused:
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
            raise _RefusedError(403, f"ask by the name {LOOPBACK} or localhost")

    def _check_token(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if not hmac.compare_digest(given, self.server.token):
            raise _RefusedError(401, "no token, or a wrong one; send Authorization: Bearer TOKEN")

    def _body(self, method: str) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or len(length) > 9 or int(length) > MOST_BYTES:
            raise _RefusedError(413, f"a body of {length:.20} bytes; send at most {MOST_BYTES:,}")
        data = self.rfile.read(int(length))
        if method == "GET" or not data:
            return {}
        try:
            body = json.loads(data)
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            raise _RefusedError(400, "the body is no JSON object")
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

    def __init__(self, api: Api, token: str, port: int = 0) -> None:
        if not token:
            raise InputError("the token is empty; give one that nobody can guess")
        self.api, self.token = api, token.encode()
        super().__init__((LOOPBACK, port), _Handler)

    def start(self) -> None:
        """Answer in a thread of its own."""
        threading.Thread(target=self.serve_forever, name="broadloom-http", daemon=True).start()
