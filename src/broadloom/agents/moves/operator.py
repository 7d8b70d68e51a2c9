"""An operator's side of the HTTP API."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any
from urllib.parse import quote, urlsplit

from broadloom.agents.moves.registry import Resident, resident_of
from broadloom.agents.moves.running import RefusedError
from broadloom.agents.moves.summary import Sent, Site
from broadloom.errors import InputError

SECONDS, AGAIN_SECONDS, PATIENCE = 30.0, 0.2, 10.0
REFUSALS = (400, 409)  # of what was asked for; any other error is not about the client


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

    def summarize(self, seconds: float) -> tuple[list[Resident], list[Sent], dict[str, Site]]:
        """Who is where, what they sent in so many seconds, and where brokers are."""
        told = self._ask("POST", "/summarize", {"seconds": seconds}, wait=seconds)
        return (
            [resident_of(one) for one in told["clients"]],
            [Sent(*one) for one in told["sent"]],
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
                status, told = self._ask_once(method, path, body, SECONDS + wait)
                break
            except (OSError, http.client.HTTPException, ValueError) as error:
                if time.monotonic() > end:
                    words = getattr(error, "strerror", None) or error.__class__.__name__
                    where = f"{self._host}:{self._port}"
                    raise InputError(f"the agent at {where} does not answer: {words}") from error
                time.sleep(AGAIN_SECONDS)
        if status >= 400:
            kind = RefusedError if status in REFUSALS else InputError
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
