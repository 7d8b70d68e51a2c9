"""Client of the HTTP API for operators."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from broadloom.agents.moves.move_plans import MoveRefusedError
from broadloom.agents.moves.move_registry import Resident, resident_of
from broadloom.agents.moves.traffic_summary import SentTraffic, Site
from broadloom.errors import InputError, UnreachableError

ANSWER_SECONDS, AGAIN_SECONDS, PATIENCE = 30.0, 0.2, 10.0
REFUSALS = (400, 409)  # status codes of a refused request; other errors are not about the client
SendRequest = Callable[[str, str, dict[str, Any] | None, float], tuple[int, Any]]


class LiveSummary(NamedTuple):
    """Clients and their traffic, as an agent has counted it.

    Attributes:
        clients: the clients.
        sent: their messages.
        sites: the brokers.
        left_out: number of messages that are not in `sent`, because there were too many topics.
    """

    clients: list[Resident]
    sent: list[SentTraffic]
    sites: dict[str, Site]
    left_out: int


class Operator:
    """Client of an agent's HTTP API.

    Args:
        url: the agent's URL, such as `http://127.0.0.1:8780`.
        token: the agent's token.
        patience: seconds for which to wait for an agent that does not answer.
        send: sends a request by other means, such as the controller's API: called with the method, the path,
            the body and the seconds for which to wait; returns the status and the answer.

    Raises:
        InputError: the URL is malformed.
    """

    def __init__(
        self, url: str, token: str, patience: float | None = None, send: SendRequest | None = None
    ) -> None:
        self._send = send
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or parts.username:
            raise InputError(
                f"the agent's URL, of {parts.hostname or url:.80}, is malformed; "
                "give http://HOST:PORT, without a login"
            )
        self._host = parts.hostname
        try:
            self._port = parts.port
        except ValueError as error:
            raise InputError(
                f"the agent's URL has a malformed port; give http://HOST:PORT ({error})"
            ) from error
        self._token = token
        self._patience = PATIENCE if patience is None else patience

    def clients(self) -> list[dict[str, Any]]:
        """All clients by name."""
        return self._pages("clients")

    def moves(self) -> list[dict[str, Any]]:
        """All moves, oldest first."""
        return self._pages("moves")

    def move(self, move: str) -> dict[str, Any]:
        """The move with an id."""
        return self._ask("GET", f"/moves/{quote(move, safe='')}")

    def health(self) -> dict[str, Any]:
        """The counts of `/health`."""
        return self._ask("GET", "/health")

    def request_to_move(self, client: str, to: str, key: str = "") -> dict[str, Any]:
        """Request a move of a client; returns the move. The same key returns the same move."""
        return self._ask("POST", "/moves", {"client": client, "to": to, "key": key})

    def cancel(self, move: str) -> dict[str, Any]:
        """Cancel a move; returns the move."""
        return self._ask("POST", f"/moves/{quote(move, safe='')}/cancel")

    def summarize(self, seconds: float) -> LiveSummary:
        """Count messages for some seconds."""
        answer = self._ask("POST", "/summarize", {"seconds": seconds}, wait=seconds)
        return LiveSummary(
            [resident_of(one) for one in answer["clients"]],
            [SentTraffic(*one) for one in answer["sent"]],
            {name: Site(tuple(place), capacity) for name, (place, capacity) in answer["sites"].items()},
            answer["left_out"],
        )

    def _pages(self, name: str) -> list[dict[str, Any]]:
        """The entries of all pages."""
        found: list[dict[str, Any]] = []
        query = ""
        while True:
            page = self._ask("GET", f"/{name}{query}")
            found += page[name]
            if page["next"] is None:
                return found
            query = f"?after={quote(page['next'], safe='')}"

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, wait: float = 0.0) -> Any:
        """Send a request, and repeat it while the agent does not answer, since it can be restarting.

        Raises:
            MoveRefusedError: the agent refuses the request.
            InputError: the token or the request is wrong.
            UnreachableError: the agent does not answer, or fails.
        """
        end = time.monotonic() + self._patience
        while True:
            try:
                status, answer = self._ask_once(method, path, body, ANSWER_SECONDS + wait)
                break
            except (OSError, http.client.HTTPException, ValueError) as error:
                if time.monotonic() > end:
                    reason = getattr(error, "strerror", None) or type(error).__name__
                    where = f"{self._host}:{self._port}"
                    raise UnreachableError(f"the agent at {where} does not answer: {reason}") from error
                time.sleep(AGAIN_SECONDS)
        if status >= 400:
            reason = answer.get("error", status) if isinstance(answer, dict) else status
            kind = (
                MoveRefusedError if status in REFUSALS else UnreachableError if status >= 500 else InputError
            )
            raise kind(f"the agent says: {reason}")
        return answer

    def _ask_once(
        self, method: str, path: str, body: dict[str, Any] | None, seconds: float
    ) -> tuple[int, Any]:
        if self._send is not None:
            return self._send(method, path, body if method == "POST" else None, seconds)
        connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            connection.request(method, path, json.dumps(body or {}).encode(), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()
