"""Control messages between clients and the agent, and clients' policies (paper 5, section V).

A client writes below `$broadloom/from/CLIENT/` and reads below `$broadloom/to/CLIENT/`, and nowhere else. No
`#` of another client matches these topics. Each message is one JSON object; anything malformed is refused
with an `InputError`. Redirected messages arrive on `$broadloom/to/CLIENT/redirect`.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from broadloom.checks import number_array, shown
from broadloom.errors import InputError
from broadloom.mqtt.reserved_topics import CONTROL_ROOT, INTERNAL_PREFIX
from broadloom.mqtt.topic_filters import QosFilters, is_valid_filter, is_wild

MOST_BYTES, MOST_FILTERS, MOST_AXES, MOST_NUMBER = 256 * 1024, 2_000, 16, 2**63
MOST_FILTER_BYTES = 192 * 1024  # of a `register` without `sends`, which gets the remaining bytes
AHEAD = 366 * 24 * 3600 * 10**9  # nanoseconds by which the clock of a client can be ahead
# Not 2: its messages can be overtaken by later ones, and message ids prevent duplicates already.
QUALITIES = (0, 1)
ANSWERS = ("accept", "decline", "stay", "ready", "failed", "received")

_CLIENT = re.compile(r"[A-Za-z0-9_.~-]{1,128}")
_ID = re.compile(r"[0-9a-f]{16}")


@dataclass(frozen=True)
class Register:
    """`register`: a client tells its broker its name and its topic filters.

    Attributes:
        client: its name, which is its MQTT client id, and its user name where brokers require one.
        number: higher than that of every earlier message of the client.
        broker: the broker it is connected to; at any other broker the message has crossed a link, and is
            refused.
        filters: its topic filters, each with its quality of service.
        place: its position in the network, if known.
        sends: the topics that it has published to, so that links carry them from wherever it moves.
    """

    client: str
    number: int
    broker: str
    filters: QosFilters = ()
    place: tuple[float, ...] | None = None
    sends: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """`reply`: a client accepts or declines a move, stays until a time, is ready, or could not connect.

    With `received` it confirms that it has all redirected messages before a mark.

    Attributes:
        client: the client's name.
        number: higher than that of every earlier message of the client.
        move: the id of the move; of `received`, the id of a mark in the redirected messages.
        answer: one of `ANSWERS`.
        until: for `stay`: the time (seconds since 1970) from which it can be asked again.
    """

    client: str
    number: int
    move: str
    answer: str
    until: float | None = None


@dataclass(frozen=True)
class MoveRequest:
    """`request_to_move`: asks a client to move from its home broker to the foreign broker.

    Example:
        >>> import broadloom as bl
        >>> request = bl.MoveRequest("00ff00ff00ff00ff", "rome", "oslo", "10.0.0.7:8883", ttl=5.0)
        >>> request.foreign
        'oslo'

    Attributes:
        move: the id of the move.
        home: the broker that serves the client.
        foreign: the broker that would serve it.
        address: the foreign broker's address, as host:port.
        ttl: seconds for which the home broker continues to queue messages for the client.
    """

    move: str
    home: str
    foreign: str
    address: str
    ttl: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            object.__setattr__(self, name, _field("a request to move", name, value))


@dataclass(frozen=True)
class ConnectOrder:
    """`connect`: asks a client whether it is ready, or, in reply to its `ready`, tells it to connect.

    Attributes:
        move: the id of the move.
        foreign: the broker to connect to.
        address: that broker's address, as host:port.
        number: the number of the client's `ready`; 0: a question whether it is ready.
    """

    move: str
    foreign: str
    address: str
    number: int = 0


@dataclass(frozen=True)
class RefusedNumber:
    """`refused`: the number of a client's message is not above this one, or more than a year above it."""

    number: int


@dataclass(frozen=True)
class Registered:
    """`registered`: the agent has received the `register` with this number."""

    number: int


M = TypeVar("M", Register, Reply, MoveRequest, ConnectOrder, RefusedNumber, Registered)
# Names of messages in errors.
_NAMES: Mapping[type[Any], str] = {
    Register: "register",
    Reply: "reply",
    MoveRequest: "request",
    ConnectOrder: "connect",
    RefusedNumber: "refused",
    Registered: "registered",
}


def from_client(client: str, call: str) -> str:
    """The topic of a client's message to the agent."""
    return f"{INTERNAL_PREFIX}from/{client}/{call}"


def to_client(client: str, call: str) -> str:
    """The topic of the agent's message to a client."""
    return f"{INTERNAL_PREFIX}to/{client}/{call}"


def redirect_topic(client: str) -> str:
    """The topic on which a client's queue is forwarded to it.

    Examples:
        >>> from broadloom.mqtt.topic_filters import covers
        >>> redirect_topic("meter-1"), covers("#", redirect_topic("meter-1"))
        ('$broadloom/to/meter-1/redirect', False)
    """
    return to_client(client, "redirect")


def control_filters(client: str) -> QosFilters:
    """The filters that a moving client needs for control messages, in addition to its own."""
    return ((to_client(client, "+"), 1),)


def client_and_call(topic: str) -> tuple[str, str]:
    """The client and the call of a control topic.

    Examples:
        >>> client_and_call("$broadloom/from/meter-1/register")
        ('meter-1', 'register')
    """
    levels = topic.split("/")
    if len(levels) != 4 or levels[:2] != [f"${CONTROL_ROOT}", "from"]:
        raise InputError(f"topic {topic!r:.80} is not a client's; expected {INTERNAL_PREFIX}from/CLIENT/CALL")
    return check_client(levels[2]), levels[3]


def check_client(name: object) -> str:
    """Check the name of a client, which is part of topics and its MQTT client id.

    Examples:
        >>> check_client("a/b")
        Traceback (most recent call last):
        broadloom.errors.InputError: client is 'a/b'; give 1 to 128 letters, digits or _.~-, not broadloom-...
    """
    if not isinstance(name, str) or not _CLIENT.fullmatch(name) or name.startswith(f"{CONTROL_ROOT}-"):
        raise InputError(f"client is {shown(name)}; give 1 to 128 letters, digits or _.~-, not broadloom-...")
    return name


def dump(message: Register | Reply | MoveRequest | ConnectOrder | RefusedNumber | Registered) -> bytes:
    """Encode a message."""
    return json.dumps(asdict(message), separators=(",", ":")).encode()


def with_topics(message: Register, topics: Collection[str]) -> Register:
    """A `register` with as many of the topics in `sends` as fit.

    Examples:
        >>> with_topics(Register("meter-1", 1, "rome"), ["a", "b" * MOST_BYTES]).sends
        ('a',)
    """
    spare = MOST_BYTES - len(dump(message))
    sizes = accumulate(len(json.dumps(topic)) + 1 for topic in topics)
    fitting = (topic for topic, size in zip(topics, sizes, strict=True) if size <= spare)
    return replace(message, sends=tuple(fitting))


def parse(kind: type[M], payload: bytes) -> M:
    """Decode a message.

    Raises:
        InputError: it is too long, is not a JSON object, or a field is missing, unknown or wrong.

    Examples:
        >>> parse(RefusedNumber, b'{"number": 7}')
        RefusedNumber(number=7)
        >>> parse(RefusedNumber, b'{"number": "7"}')
        Traceback (most recent call last):
        broadloom.errors.InputError: refused has number '7'; expected a whole number from 0 to below 2**63
    """
    name_of_kind = _NAMES[kind]
    if len(payload) > MOST_BYTES:
        raise InputError(f"{name_of_kind} has {len(payload):,} bytes; expected at most {MOST_BYTES:,}")
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        fields = None
    names = list(kind.__dataclass_fields__)
    if not isinstance(fields, dict) or sorted(fields) != sorted(names):
        raise InputError(f"{name_of_kind} is not a JSON object of {', '.join(names)}")
    return kind(**{name: _field(name_of_kind, name, fields[name]) for name in names})


def _field(message: str, name: str, value: Any) -> Any:
    """Check and convert the value of a field."""
    fits, expected, build = _FIELDS[name]
    try:
        ok = fits(value)
    except (TypeError, ValueError, OverflowError):
        ok = False
    if not ok:
        raise InputError(f"{message} has {name} {shown(value)}; expected {expected}")
    return build(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def is_text(value: Any) -> bool:
    """Whether a value is a text that can name a broker.

    Examples:
        >>> is_text("rome"), is_text(""), is_text("r" * 300)
        (True, False, False)
    """
    return isinstance(value, str) and 0 < len(value) <= 256 and value.isprintable()


def is_move_id(value: Any) -> bool:
    """Whether a value is the id of a move or of a mark.

    Examples:
        >>> is_move_id("00ff00ff00ff00ff"), is_move_id("00FF")
        (True, False)
    """
    return isinstance(value, str) and bool(_ID.fullmatch(value))


def is_client_filter(text: Any) -> bool:
    """Whether a text is a topic filter that a client can have: not of control topics, not shared.

    Examples:
        >>> texts = ("a/+/#", "a/#/b", "a+", "broadloom/to/x/move", "$share/g/a")
        >>> [is_client_filter(text) for text in texts]
        [True, False, False, False, False]
    """
    if not isinstance(text, str) or not is_valid_filter(text):
        return False
    return text.split("/")[0] not in (CONTROL_ROOT, f"${CONTROL_ROOT}", "$share")


def _are_filters(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MOST_FILTERS
        and all(isinstance(one, list) and len(one) == 2 for one in value)
        and all(is_client_filter(text) and type(qos) is int and qos in QUALITIES for text, qos in value)
        and len({text for text, _ in value}) == len(value)
    )


def is_client_topic(text: Any) -> bool:
    """Whether a text is a topic that a client can publish to: no wildcard, not a control topic."""
    return is_client_filter(text) and not is_wild(text)


def _are_topics(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= MOST_FILTERS
        and all(map(is_client_topic, value))
        and len(set(value)) == len(value)
    )


def _is_place(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and 0 < len(value) <= MOST_AXES and all(map(_is_number, value))
    )


def check_place(place: Sequence[float] | None) -> tuple[float, ...] | None:
    """Check the position of a client in the network.

    Examples:
        >>> check_place([3, 4])
        (3.0, 4.0)
        >>> check_place([float("nan")])
        Traceback (most recent call last):
        broadloom.errors.InputError: place is [nan]; give 1 to 16 finite numbers
    """
    try:
        axes = None if place is None else number_array(place, "place").tolist()
    except InputError:
        axes = []
    if not _is_place(axes):
        raise InputError(f"place is {shown(place)}; give 1 to {MOST_AXES} finite numbers")
    return None if axes is None else tuple(axes)


def _is_client_name(value: Any) -> bool:
    check_client(value)
    return True


_WHOLE = (
    lambda value: type(value) is int and 0 <= value < MOST_NUMBER,
    "a whole number from 0 to below 2**63",
    int,
)
_TEXT = (is_text, "a printable text of 1 to 256 characters", str)
# Per field: whether a value is valid, the valid values in words, and the conversion.
_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str, Callable[[Any], Any]]] = {
    "client": (_is_client_name, "the name of a client", str),
    "number": _WHOLE,
    "filters": (
        _are_filters,
        f"at most {MOST_FILTERS:,} different pairs of an MQTT filter and 0 or 1",
        lambda pairs: tuple((text, qos) for text, qos in pairs),
    ),
    "place": (
        _is_place,
        f"1 to {MOST_AXES} finite numbers, or null",
        lambda value: None if value is None else tuple(map(float, value)),
    ),
    "sends": (_are_topics, f"at most {MOST_FILTERS:,} different topics", tuple),
    "move": (is_move_id, "16 hexadecimal digits", str),
    "answer": (lambda value: value in ANSWERS, f"one of {', '.join(ANSWERS)}", str),
    "until": (
        lambda value: value is None or (_is_number(value) and value >= 0),
        "seconds since 1970, or null",
        lambda value: None if value is None else float(value),
    ),
    "broker": _TEXT,
    "home": _TEXT,
    "foreign": _TEXT,
    "address": _TEXT,
    "ttl": (lambda value: _is_number(value) and value >= 0, "a number from 0", float),
}


class PolicyAnswer(NamedTuple):
    """Answer of a client to a request: `accept`, `decline`, or `stay` until a time (seconds since 1970)."""

    answer: str
    until: float | None = None


Policy = Callable[[MoveRequest], PolicyAnswer]

ACCEPT, DECLINE = PolicyAnswer("accept"), PolicyAnswer("decline")


def accept(_: MoveRequest) -> PolicyAnswer:
    """Policy: accept every move.

    Examples:
        >>> accept(MoveRequest("0" * 16, "rome", "oslo", "10.0.0.7:1883", 5.0)).answer
        'accept'
    """
    return ACCEPT


def decline(_: MoveRequest) -> PolicyAnswer:
    """Policy: decline every move."""
    return DECLINE


def stay_until(moment: float, then: Policy = accept) -> Policy:
    """Policy: stay until a time (seconds since 1970), then follow another policy.

    Examples:
        >>> stay_until(0.0)(MoveRequest("0" * 16, "rome", "oslo", "10.0.0.7:1883", 5.0)).answer
        'accept'
    """

    def answer(request: MoveRequest) -> PolicyAnswer:
        return PolicyAnswer("stay", moment) if time.time() < moment else then(request)

    return answer
