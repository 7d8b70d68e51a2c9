"""Protocol between the controller and its agents: signed requests over HTTP, and orders as differences.

Both sides know the key of the fleet, and neither ever sends it. A connection begins with a *hello*: the
client sends a random nonce with its code, and the controller answers with a new session and a code that binds
it to the nonce. Each further request has the session, a count that rises, a digest of its body, and a code of
all of these; each answer has a code that binds it to its request. So neither side can be impersonated, no
request or answer can be used twice, and bodies of strangers are not even read. TLS keeps the content secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from hmac import compare_digest
from typing import TYPE_CHECKING, Any

from broadloom.agents.links.route_orders import AgentOrders, Epoch
from broadloom.errors import InputError

if TYPE_CHECKING:
    from broadloom.agents.links.stamps import FleetKey

HELLO_PATH = "/v1/hello"
STATUS_PATH = "/v1/status"
PROPOSAL_PATH = "/v1/proposal"
PLAN_PATH = "/v1/plan"
MOVES_PATH = "/v1/migrate"  # before the paths of the API of moves
METRICS_PATH = "/metrics"
NONCE_HEADER = "broadloom-nonce"
SESSION_HEADER = "broadloom-session"
COUNT_HEADER = "broadloom-count"
DIGEST_HEADER = "broadloom-digest"
CODE_HEADER = "broadloom-code"
PEER_HEADER = "broadloom-peer"  # the name of the client, for the log
LARGEST_REPORT = 32_000_000  # bytes of a request
LARGEST_ANSWER = 256_000_000  # bytes
POLL_SECONDS = 20.0  # the longest wait of a request for orders
# Purposes of codes, so that none can be used in place of another.
_HELLO, _WELCOME, _REQUEST, _ANSWER, _READ = b"hello", b"welcom", b"query", b"answer", b"read"


def agent_path(broker: str, what: str) -> str:
    """The path of an agent's requests.

    Examples:
        >>> agent_path("rome/1", "report")
        '/v1/agents/rome%2F1/report'
    """
    from urllib.parse import quote

    return f"/v1/agents/{quote(broker, safe='')}/{what}"


def body_digest(body: bytes) -> str:
    """The digest of a body."""
    return hashlib.sha256(body).hexdigest()


class ProtocolCodes:
    """Codes of requests and answers with the key of a fleet.

    Args:
        key: the key of the fleet.
    """

    def __init__(self, key: FleetKey) -> None:
        self._key = key

    def hello(self, nonce: str) -> str:
        """The code of a client's hello."""
        return self._code(_HELLO, nonce)

    def welcome(self, nonce: str, session: str) -> str:
        """The code of the controller's answer to a hello."""
        return self._code(_WELCOME, nonce, session)

    def request(self, method: str, target: str, session: str, count: int, digest: str) -> str:
        """The code of a request; the target is its path with the query."""
        return self._code(_REQUEST, method, target, session, str(count), digest)

    def answer(self, session: str, count: int, status: int, body: bytes) -> str:
        """The code of the answer to a request."""
        return self._code(_ANSWER, session, str(count), str(status), body_digest(body))

    def read_token(self) -> str:
        """The token with which status and metrics can be read, and nothing else."""
        return self._code(_READ)

    def _code(self, purpose: bytes, *parts: str) -> str:
        # Lengths before the parts: two lists of parts never have the same bytes.
        data = b"".join(b"%d:%b" % (len(part.encode()), part.encode()) for part in parts)
        return self._key.mac(purpose, data).hex()


def same_code(expected: str, received: str) -> bool:
    """Whether a received code is right, in a time that does not depend on it.

    Examples:
        >>> same_code("00ff", "00ff"), same_code("00ff", "00f\u00ff")
        (True, False)
    """
    return compare_digest(expected.encode(), received.encode(errors="replace"))


# Orders as differences.


def orders_message(orders: AgentOrders, before: AgentOrders | None) -> str:
    """Orders as JSON text: only what differs from earlier orders of the same epoch, or everything.

    Examples:
        >>> import json
        >>> from dataclasses import replace
        >>> from broadloom.agents.links.route_orders import Route
        >>> first = AgentOrders(Epoch(1, "c"), 1, 1, routes={4: Route(4, ("a",), frozenset())})
        >>> second = replace(first, number=2, routes={5: Route(5, ("b",), frozenset())})
        >>> message = json.loads(orders_message(second, first))
        >>> message["base"], [route["number"] for route in message["routes"]], message["dropped"]
        (1, [5], [4])
        >>> orders_of(message, first) == second
        True
    """
    if before is None or before.epoch != orders.epoch:
        return orders.to_text({"base": None, "dropped": []})
    return orders.difference_text(before, {"base": before.number})


def orders_of(message: Mapping[str, Any], before: AgentOrders | None) -> AgentOrders:
    """The complete orders of a message, given the orders that it is based on.

    Raises:
        InputError: the message is malformed, or is based on other orders than these.
    """
    try:
        base = message["base"]
    except (KeyError, TypeError) as error:
        raise InputError("orders are malformed: they have no base") from error
    if base is None:
        return AgentOrders.from_json(message)
    if before is not None and before.number == base:
        received = before.with_difference(message)
        if received.epoch == before.epoch:
            return received
    raise InputError(f"orders are based on number {str(base)[:20]}, which is not the last one")


def epoch_query(epoch: Epoch, number: int, wait: float) -> str:
    """The query of a request for orders later than these."""
    from urllib.parse import urlencode

    values = {"epoch": epoch.number, "controller": epoch.controller, "number": number, "wait": f"{wait:g}"}
    return urlencode(values)
