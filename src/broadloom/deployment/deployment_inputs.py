"""Inputs of a deployment besides the plan: settings of links, and publications from a log of messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broadloom.checks import check_count, check_flag, raise_for_first
from broadloom.errors import InputError
from broadloom.model import Interest
from broadloom.mqtt.topic_filters import is_wild
from broadloom.plans import Plan
from broadloom.storage.tables import indices_in, require_table

LAST_PORT = 65_535
# Where links find the name and the password that they log in with.
LOGIN = ("BROADLOOM_USER", "BROADLOOM_PASSWORD")


@dataclass(frozen=True)
class Settings:
    """What an export needs to know beside the links.

    Attributes:
        address: where a broker is, `host` or `host:port`, with `{broker}` for its id.
        places: the addresses of brokers that are elsewhere.
        tls: whether links are encrypted, and prove themselves by certificates.
        certificates: the folder of certificates on each broker; None: the target's own.
        credentials: whether links also log in, with a name and password from the environment.
        accounts: for NATS, whether trees that close a ring together may have several accounts.
        qos: for MQTT, 0, 1 or 2.

    Examples:
        >>> Settings(address="{broker}.example.org:1884").place("rome", 1883)
        ('rome.example.org', 1884)
    """

    address: str = "{broker}"
    places: Mapping[str, str] = field(default_factory=dict)
    tls: bool = True
    certificates: str | None = None
    credentials: bool = False
    accounts: bool = False
    qos: int = 1

    def __post_init__(self) -> None:
        if "{broker}" not in self.address:
            raise InputError(
                f"address {self.address!r} is the same for all; put {{broker}} where the id goes"
            )
        if any(not char.isprintable() or char in "\"'" for char in self.certificates or ""):
            raise InputError(
                f"certificates is {self.certificates!r}; give a folder without quotes or line breaks"
            )
        for flag in ("tls", "credentials", "accounts"):
            check_flag(getattr(self, flag), flag)
        if check_count(self.qos, "qos") > 2:
            raise InputError(f"qos is {self.qos}; give 0, 1 or 2")

    def address_of(self, broker: str) -> str:
        """Where a broker is, as it was given."""
        address = self.places.get(broker, self.address.replace("{broker}", broker))
        if "@" in address:  # and do not repeat what may be a password
            raise InputError(f"the address of broker {broker!r} holds a login; give host or host:port alone")
        return address

    def place(self, broker: str, port: int) -> tuple[str, int]:
        """The host and the port of a broker, which has the given port if nothing else is said."""
        address = self.address_of(broker)
        host, colon, given = address.rpartition(":")
        if not colon or "]" in given:  # no port, perhaps an IPv6 address in brackets
            host, given = address, str(port)
        odd = any(char.isspace() or not char.isprintable() or char in "\"'/" for char in host)
        if (
            not host
            or odd
            or not _is_encodable(host)
            or not (given.isdecimal() and 0 < int(given) <= LAST_PORT)
        ):
            raise InputError(f"the address of broker {broker!r} is {address!r}; give host or host:port")
        return host, int(given)


def _is_encodable(host: str) -> bool:
    """Whether a host's labels are such that it can be looked up."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def places_of(plan: Plan) -> dict[str, str]:
    """The addresses in the plan's nodes table, if it has a column `address`."""
    if plan.nodes is None or "address" not in plan.nodes.column_names:
        return {}
    found = zip(plan.interest.node_ids, plan.nodes.column("address").to_pylist(), strict=True)
    return {broker: str(address) for broker, address in found if address}


def safe(broker: str) -> str:
    """A broker's id as a part of names: letters, digits and `_.-~`, the rest as `%` and its code.

    Examples:
        >>> safe("eu/1")
        'eu%2F1'
    """
    return quote(broker, safe="")


def link_name(one: str, other: str) -> str:
    """The name of the link of two brokers; no other pair has it.

    Examples:
        >>> link_name("a", "b:c")
        'broadloom-a:b%3Ac'
    """
    return f"broadloom-{safe(one)}:{safe(other)}"


class Publication(NamedTuple):
    """A broker whose clients publish a topic.

    Attributes:
        broker: the index of the broker.
        topic: the topic, without wildcards.
        rate: in bytes a second; 0 if nobody knows.
    """

    broker: int
    topic: str
    rate: float = 0.0


def publications(
    messages: pa.Table, interest: Interest, elsewhere: Collection[str] = ()
) -> list[Publication]:
    """Every broker and topic of a log of messages, whose publishers are brokers, with its rate.

    Args:
        messages: the canonical table: publisher, at, bytes, topic.
        interest: the brokers.
        elsewhere: brokers of another plan; what they publish is left out.

    Raises:
        InputError: no topics, an unknown broker, a topic with a wildcard, or negative bytes.

    Examples:
        >>> log = {"publisher": ["0", "1", "0"], "at": [0, 1, 2_000_000], "bytes": [6, 4, 2]}
        >>> table = pa.table(log | {"topic": ["x", "x", "x"]})
        >>> publications(table, Interest.from_lists([["x"], ["x"]]))
        [Publication(broker=0, topic='x', rate=4.0), Publication(broker=1, topic='x', rate=2.0)]
    """
    for column in ("publisher", "at", "bytes", "topic"):
        if column not in messages.column_names:
            raise InputError(
                f"messages have no column {column!r}; they have {', '.join(messages.column_names)}"
            )
    sizes = np.asarray(messages.column("bytes"), np.float64)
    raise_for_first(~(sizes >= 0), lambda row: f"message {row} has {sizes[row]} bytes", "give 0 or more")
    own = set(interest.node_ids)
    away = [name for name in dict.fromkeys(elsewhere) if name not in own]
    seconds = _seconds(messages)
    messages = messages.filter(pc.invert(pc.is_in(messages.column("publisher"), pa.array(away, pa.string()))))
    keys = ["publisher", "topic"]
    sums = messages.group_by(keys).aggregate([("bytes", "sum")]).sort_by([(key, "ascending") for key in keys])
    brokers = indices_in(sums.column("publisher"), pa.array(interest.node_ids, pa.string()))
    names, topics = sums.column("publisher").to_pylist(), sums.column("topic").to_pylist()
    raise_for_first(
        brokers < 0, lambda i: f"messages of {names[i]!r}, which is no broker", "name brokers of the plan"
    )
    bad = np.array([not topic or is_wild(topic) for topic in topics], bool)
    raise_for_first(
        bad, lambda i: f"{names[i]!r} publishes {topics[i]!r}", "a message has a topic without wildcards"
    )
    rates = np.asarray(sums.column("bytes_sum"), np.float64) / seconds
    rows = zip(brokers.tolist(), topics, rates.tolist(), strict=True)
    return sorted(Publication(*row) for row in rows)


def read_publications(folder: Path, interest: Interest, elsewhere: Collection[str] = ()) -> list[Publication]:
    """The publications in the table `messages` of a folder."""
    return publications(require_table(folder, "messages"), interest, elsewhere)


def _seconds(messages: pa.Table) -> float:
    """The time that the log covers; 1 if it is a moment."""
    at = messages.column("at").cast(pa.timestamp("us")).cast(pa.int64())
    if at.null_count:
        raise InputError(f"{at.null_count:,} messages have no time; give each one")
    return (pc.max(at).as_py() - pc.min(at).as_py()) / 1e6 or 1.0 if len(at) else 1.0
