"""`summarize`: traffic of the clients of running brokers, as the tables that `assign` reads (paper 5, V).

The generating function of a client is its rate into each topic. Together with the clients' filters, the
generating functions give the traffic matrix.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.agents.moves.control_messages import is_client_topic
from broadloom.agents.moves.move_registry import Resident
from broadloom.errors import UnreachableError
from broadloom.model import MarketProblem
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.paho import (
    TICK,
    connect,
    new_client,
    stop_client,
    user_properties,
)
from broadloom.mqtt.reserved_topics import CONTROL_ROOT, MESSAGE_ID, MOVE_AGENT
from broadloom.mqtt.topic_filters import covers, is_wild
from broadloom.storage import new_folder

if TYPE_CHECKING:
    import pyarrow as pa

UP_SECONDS = 30.0  # time limit for a broker to accept the agent
log = logging.getLogger("broadloom.agents.moves")

# Of a mosquitto with `log_type debug`, which it writes to files and not to topics.
_LOGGED = re.compile(
    r"\S+ Received PUBLISH from (?P<client>.+) "
    r"\(d\d, q\d, r\d, m\d+, '(?P<topic>.*)', \.\.\. \((?P<size>\d+) bytes\)\)"
)
MOST_FLOWS = 2_000_000  # rows of a traffic matrix
MOST_TALLY_BYTES = 64 << 20  # of the traffic of all clients and topics
ENTRY_BYTES = 600  # of the traffic of a client on a topic, without their names
Rates = Mapping[tuple[str, str], float]


class TrafficCount(NamedTuple):
    """Traffic of all clients for some seconds.

    Attributes:
        sent: the messages of each client on each topic.
        left_out: number of messages that are not in `sent`, because there were too many topics.
    """

    sent: list[SentTraffic]
    left_out: int


class SentTraffic(NamedTuple):
    """Messages of a client on a topic.

    Attributes:
        publisher: the client's name.
        at: the time, in seconds since 1970.
        topic: the topic.
        size: bytes of the payloads.
        messages: number of messages.
    """

    publisher: str
    at: float
    topic: str
    size: int
    messages: int = 1


@dataclass(frozen=True)
class Site:
    """Position and capacity of a broker, for the planner.

    Attributes:
        place: its position in the network.
        capacity: bytes per second that its clients can send and receive together; None: unknown.
    """

    place: tuple[float, ...] = (0.0, 0.0)
    capacity: float | None = None


def watch_traffic(
    addresses: Mapping[str, Address],
    login: Login,
    seconds: float,
    home_of: Callable[[str], str | None],
    ordinary: Container[str] = frozenset(),
    logs: Mapping[str, Sequence[Path]] = {},
) -> TrafficCount:
    """Count messages at all brokers for some seconds; a message counts at the home broker of its publisher.

    The publisher is the part of the message id before the colon, or, of messages without an id, what the log
    file of the broker says.

    Args:
        addresses: the brokers' addresses.
        login: a login that can read all topics.
        seconds: the duration.
        home_of: returns the broker of a client; None: the client is unknown.
        ordinary: the clients whose messages have no ids; the broker's log says what they publish.
        logs: the log files of brokers.

    Raises:
        UnreachableError: a broker does not answer, so its clients cannot be counted.
    """
    tallies: list[TrafficTally] = []
    share = MOST_TALLY_BYTES // max(1, len(addresses) + sum(map(len, logs.values())))
    with ExitStack() as stack:
        subscribed: set[str] = set()
        for broker, address in addresses.items():
            tallies.append(tally := TrafficTally(share))
            client = new_client(f"{MOVE_AGENT}-count-{secrets.token_hex(4)}", login)
            client.on_message = _counter(broker, home_of, tally)
            client.on_connect = lambda own, *_: own.subscribe("#", 0)
            client.on_subscribe = lambda *_, broker=broker: subscribed.add(broker)
            try:
                connect(client, address, clean=True, seconds=0)
            except OSError as error:
                raise UnreachableError(
                    f"broker {broker!r} does not answer: {error.strerror or error}"
                ) from error
            stack.callback(stop_client, client)
            client.loop_start()
        _wait_until_subscribed(addresses, subscribed)
        ends = {path: _size(path) for paths in logs.values() for path in paths}
        time.sleep(seconds)
        for broker, paths in logs.items():
            for path in paths:
                tallies.append(tally := TrafficTally(share))
                _add_logged(tally, path, ends[path], broker, home_of, ordinary)
    left_out = sum(tally.left_out for tally in tallies)
    if left_out:
        log.warning("%d messages are not counted, because there are too many topics", left_out)
    return TrafficCount(
        sorted((one for tally in tallies for one in tally.sent()), key=lambda one: one.at), left_out
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _add_logged(
    tally: TrafficTally,
    path: Path,
    start: int,
    broker: str,
    home_of: Callable[[str], str | None],
    ordinary: Container[str],
) -> None:
    """Count the messages of ordinary clients of a broker in its log, from a position on."""
    try:
        with path.open("rb") as file:
            file.seek(start if _size(path) >= start else 0)  # it can have been replaced
            for line in file:
                found = _LOGGED.fullmatch(line.decode(errors="replace").rstrip("\n"))
                if found is None or found["client"] not in ordinary or not is_client_topic(found["topic"]):
                    continue
                if home_of(found["client"]) == broker:
                    tally.add(SentTraffic(found["client"], time.time(), found["topic"], int(found["size"])))
    except OSError as error:
        log.warning("the log %s of broker %r cannot be read: %s", path, broker, error.strerror)


def _wait_until_subscribed(brokers: Iterable[str], subscribed: Container[str]) -> None:
    """Wait until all brokers send their messages, so that the whole time counts."""
    end = time.monotonic() + UP_SECONDS
    while away := [broker for broker in brokers if broker not in subscribed]:
        if time.monotonic() > end:
            raise UnreachableError(f"broker {away[0]!r} does not accept the agent within {UP_SECONDS:g} s")
        time.sleep(TICK)


class TrafficTally:
    """Traffic per publisher and topic: the sum of all messages but the last, and the last one.

    This keeps the time from the first to the last message and all bytes, in little memory. When that is used
    up, messages of a client on a topic that is not known yet are only counted.

    Args:
        most: bytes that it can take.

    Attributes:
        left_out: number of messages that are only counted.

    Examples:
        >>> tally = TrafficTally()
        >>> for at in range(3):
        ...     tally.add(SentTraffic("meter-1", at, "a/b", 10))
        >>> [(one.at, one.size, one.messages) for one in tally.sent()]
        [(0, 20, 2), (2, 10, 1)]
    """

    def __init__(self, most: int = MOST_TALLY_BYTES) -> None:
        self.left_out = 0
        self._most = most
        self._size = 0
        self._first: dict[tuple[str, str], SentTraffic] = {}
        self._last: dict[tuple[str, str], SentTraffic] = {}

    def add(self, one: SentTraffic) -> None:
        """Count a message."""
        key = one.publisher, one.topic
        if (first := self._first.get(key)) is None:
            size = len(one.publisher.encode()) + len(one.topic.encode()) + ENTRY_BYTES
            if self._size + size > self._most:
                self.left_out += one.messages
            else:
                self._size += size
                self._first[key] = one
            return
        if (last := self._last.get(key)) is not None:
            self._first[key] = first._replace(
                size=first.size + last.size, messages=first.messages + last.messages
            )
        self._last[key] = one

    def sent(self) -> list[SentTraffic]:
        """The counted traffic."""
        return [*self._first.values(), *self._last.values()]


def _counter(broker: str, home_of: Callable[[str], str | None], tally: TrafficTally) -> Callable[..., None]:
    def on_message(_client: object, _data: object, message: Any) -> None:
        publisher = dict(user_properties(message.properties)).get(MESSAGE_ID, "").partition(":")[0]
        if home_of(publisher) == broker and not message.topic.startswith(f"{CONTROL_ROOT}/"):
            tally.add(SentTraffic(publisher, time.time(), message.topic, len(message.payload)))

    return on_message


def live_tables(
    residents: Iterable[Resident],
    sent: Sequence[SentTraffic],
    sites: Mapping[str, Site],
    seconds: float | None = None,
) -> dict[str, pa.Table]:
    """The canonical tables of a running system, and the broker of each client (`assignment`).

    A client without a position gets its broker's.

    Args:
        residents: the clients.
        sent: their traffic.
        sites: the brokers.
        seconds: the duration of the traffic; None: from the first message to the last one.

    Examples:
        >>> meter = Resident("meter-1", "rome", (("a/#", 1),), None, since=0.0)
        >>> sent = [SentTraffic("meter-1", 0.0, "a/b", 10)]
        >>> tables = live_tables([meter], sent, {"rome": Site((1.0, 2.0))})
        >>> tables["subscriptions"].to_pylist()
        [{'node': 'meter-1', 'topic': 'a/b'}]
        >>> tables["histograms"].to_pylist()
        [{'publisher': 'meter-1', 'topic': 'a/b', 'rate': 10.0}]
        >>> tables["subscribers"].column("place").to_pylist()
        [[1.0, 2.0]]
    """
    import pyarrow as pa

    clients = sorted(residents, key=lambda one: one.client)
    names = [one.client for one in clients]
    known, topics = set(names), {one.topic for one in sent}
    sent = [one for one in sent if one.publisher in known]
    wants = [(one.client, topic) for one in clients for topic in _topics_of(one, topics)]
    rates = _rates(sent, seconds)
    numbers = pa.list_(pa.float64())
    places = [list(one.place or sites[one.broker].place) for one in clients]
    no_bounds = pa.array([[] for _ in clients], numbers)
    columns = {
        "subscriber": pa.array(names, pa.string()),
        "place": pa.array(places, numbers),
        "lo": no_bounds,
        "hi": no_bounds,
    }
    return {
        "subscribers": pa.table(columns),
        "subscriptions": _text_table(("node", "topic"), wants),
        "brokers": _broker_table(sites),
        "messages": _message_table(sent),
        "histograms": histogram_table(rates),
        "traffic_matrix": traffic_table(rates, wants),
        "assignment": _text_table(("user", "broker"), [(one.client, one.broker) for one in clients]),
    }


def save_tables(folder: Path, tables: Mapping[str, pa.Table], overwrite: bool = False) -> None:
    """Write tables as a folder that appears by one atomic rename."""
    from broadloom.storage.tables import write_table

    with new_folder(folder, overwrite) as scratch:
        for name, table in tables.items():
            write_table(scratch, name, table)


def traffic_matrix(market: MarketProblem) -> NDArray[np.float64]:
    """The traffic matrix of paper 5: the rate from each user to each other one, (users, users).

    Examples:
        >>> market = MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> traffic_matrix(market).tolist()
        [[0.0, 3.0], [0.0, 0.0]]
    """
    flows = market.rates @ market.wants.T.astype(np.float64)
    np.fill_diagonal(flows, 0.0)
    return flows


def _rates(sent: Sequence[SentTraffic], seconds: float | None) -> dict[tuple[str, str], float]:
    """The rate of each client into each topic, in bytes per second."""
    moments = [one.at for one in sent]
    duration = seconds or max(moments, default=0.0) - min(moments, default=0.0) or 1.0
    size: Counter[tuple[str, str]] = Counter()
    for one in sent:
        size[one.publisher, one.topic] += one.size
    return {key: total / duration for key, total in size.items()}


def _topics_of(resident: Resident, topics: set[str]) -> list[str]:
    """The topics of a client: those it names, and published ones that its filters match."""
    filters = [text for text, _ in resident.filters]
    named = {text for text in filters if not is_wild(text)}
    return sorted(named | {topic for topic in topics if any(covers(text, topic) for text in filters)})


def _text_table(names: tuple[str, str], rows: Sequence[tuple[str, str]]) -> pa.Table:
    import pyarrow as pa

    one, other = names
    return pa.table(
        {
            one: pa.array([row[0] for row in rows], pa.string()),
            other: pa.array([row[1] for row in rows], pa.string()),
        }
    )


def _broker_table(sites: Mapping[str, Site]) -> pa.Table:
    import pyarrow as pa

    places = pa.array([list(site.place) for site in sites.values()], pa.list_(pa.float64()))
    columns = {"broker": pa.array(list(sites), pa.string()), "place": places}
    if any(site.capacity is not None for site in sites.values()):
        columns["capacity"] = pa.array([site.capacity for site in sites.values()], pa.float64())
    return pa.table(columns)


def _message_table(sent: Sequence[SentTraffic]) -> pa.Table:
    import pyarrow as pa

    return pa.table(
        {
            "publisher": pa.array([one.publisher for one in sent], pa.string()),
            "at": pa.array([round(one.at * 1e6) for one in sent], pa.timestamp("us")),
            "bytes": pa.array([one.size for one in sent], pa.int64()),
            "topic": pa.array([one.topic for one in sent], pa.string()),
        }
    )


def histogram_table(rates: Rates) -> pa.Table:
    """The generating function of each client: its rate into each topic, in bytes per second.

    Examples:
        >>> histogram_table({("meter-1", "a/b"): 5.0}).to_pylist()
        [{'publisher': 'meter-1', 'topic': 'a/b', 'rate': 5.0}]
    """
    return _table(("publisher", "topic"), rates)


def traffic_table(rates: Rates, wants: Iterable[tuple[str, str]]) -> pa.Table:
    """The rate from each client to each other one, in bytes per second; pairs without traffic have no row.

    A matrix of more than two million rows is left empty: histograms and subscriptions contain the same data.

    Args:
        rates: the rate of each client into each topic.
        wants: pairs of a client and a topic that it receives.

    Examples:
        >>> traffic_table({("meter-1", "a"): 5.0}, [("meter-1", "a"), ("screen", "a")]).to_pylist()
        [{'src': 'meter-1', 'dst': 'screen', 'rate': 5.0}]
    """
    receivers: dict[str, list[str]] = {}
    for client, topic in wants:
        receivers.setdefault(topic, []).append(client)
    if (count := sum(len(receivers.get(topic, ())) for _, topic in rates)) > MOST_FLOWS:
        log.warning("the traffic matrix would have up to %d rows, and is left empty", count)
        return _table(("src", "dst"), {})
    flows: Counter[tuple[str, str]] = Counter()
    for (sender, topic), rate in rates.items():
        for receiver in receivers.get(topic, ()):
            flows[sender, receiver] += rate  # type: ignore[assignment]
    return _table(("src", "dst"), {pair: rate for pair, rate in flows.items() if pair[0] != pair[1]})


def _table(names: Collection[str], rates: Rates) -> pa.Table:
    import pyarrow as pa

    one, other = names
    rows = sorted((pair, rate) for pair, rate in rates.items() if rate > 0)
    return pa.table(
        {
            one: pa.array([pair[0] for pair, _ in rows], pa.string()),
            other: pa.array([pair[1] for pair, _ in rows], pa.string()),
            "rate": pa.array([rate for _, rate in rows], pa.float64()),
        }
    )
