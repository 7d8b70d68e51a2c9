"""Inputs of a deployment in addition to the plan: settings of links, and publications from a message log."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import numpy as np

from broadloom.checks import check_count, check_flag, raise_for_first
from broadloom.deployment.fleet_file import FleetBroker
from broadloom.errors import InputError
from broadloom.model import ANYWHERE, Interest, PublishedTopic, Publishers
from broadloom.mqtt.endpoint import Address
from broadloom.mqtt.topic_filters import is_wild
from broadloom.plans import Plan

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Settings:
    """Addresses of brokers, and how links authenticate; it refers to secrets and contains none.

    Attributes:
        address: the address of a broker, `host` or `host:port`, with `{broker}` for its id.
        addresses: the addresses of brokers that differ from this pattern.
        tls: whether links are encrypted, and authenticate by certificates.
        certificates: the folder of certificates on each broker; None: the target's default.
        credentials: whether links also log in, with a user name and password from the environment.
        accounts: for NATS, whether trees that close a ring together can have several accounts.
        qos: for MQTT, 0, 1 or 2.
        brokers: the brokers of a fleet, by id; links use the TLS files and the login of the broker to which
            they connect. See `fleet_settings`.
        passwords: the passwords of these logins, for files that contain them; otherwise there are references.
        fleet_file: the path of the fleet file.

    Examples:
        >>> Settings(address="{broker}.example.org:1884").host_and_port("rome", 1883)
        Address(host='rome.example.org', port=1884)
    """

    address: str = "{broker}"
    addresses: Mapping[str, str] = field(default_factory=dict)
    tls: bool = True
    certificates: str | None = None
    credentials: bool = False
    accounts: bool = False
    qos: int = 1
    brokers: Mapping[str, FleetBroker] = field(default_factory=dict)
    passwords: Mapping[str, str] = field(default_factory=dict, repr=False)
    fleet_file: str | None = None

    def __post_init__(self) -> None:
        if "{broker}" not in self.address:
            raise InputError(
                f"address {self.address!r} is the same for all brokers; put {{broker}} where the id goes"
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
        """The address of a broker, as the user wrote it."""
        address = self.addresses.get(broker, self.address.replace("{broker}", broker))
        if "@" in address:  # the error must not repeat what can be a password
            raise InputError(
                f"the address of broker {broker!r} contains a login; give host or host:port only"
            )
        return address

    def host_and_port(self, broker: str, default_port: int) -> Address:
        """The host and port of a broker."""
        return Address.parse(self.address_of(broker), default_port, f"the address of broker {broker!r}")


# Kinds of brokers that have another port for links than for clients.
LINK_PORT_KINDS = ("nats", "rabbitmq")


def addresses_of(plan: Plan, links_of: str | None = None) -> dict[str, str]:
    """The addresses in the plan's nodes table, if it has a column `address`.

    Args:
        plan: the plan.
        links_of: the kind of the brokers, for the addresses of their links; None: the addresses for clients.

    Raises:
        InputError: an address is malformed.
    """
    if plan.nodes is None or "address" not in plan.nodes.column_names:
        return {}
    rows = zip(plan.interest.node_ids, plan.nodes.column("address").to_pylist(), strict=True)
    found = {broker: str(address) for broker, address in rows if address}
    if links_of not in LINK_PORT_KINDS:
        return found
    return {
        broker: Address.parse(address, 1, f"the address of broker {broker!r}").host
        for broker, address in found.items()
    }


def safe_name(broker: str) -> str:
    """A broker's id for use in other names: all but letters, digits and `_.-~` is percent-encoded.

    Examples:
        >>> safe_name("eu/1")
        'eu%2F1'
    """
    return quote(broker, safe="")


def variable_name(broker: str) -> str:
    """A broker's id as part of the name of a variable.

    Examples:
        >>> variable_name("eu-1")
        'eu_2D_1'
    """
    return re.sub(r"[^A-Za-z0-9]", lambda char: f"_{ord(char[0]):X}_", broker)


def link_name(one: str, other: str) -> str:
    """The name of the link of two brokers; no other pair has it.

    Examples:
        >>> link_name("a", "b:c")
        'broadloom-a:b%3Ac'
    """
    return f"broadloom-{safe_name(one)}:{safe_name(other)}"


class Publication(NamedTuple):
    """A topic that clients of a broker publish.

    Attributes:
        broker: the index of the broker.
        topic: the topic, without wildcards.
        rate: bytes per second; 0 if unknown.
    """

    broker: int
    topic: str
    rate: float = 0.0


def publications_of(plan: Plan) -> list[Publication]:
    """The observed publications of a plan."""
    index = {name: node for node, name in enumerate(plan.interest.node_ids)}
    return sorted(Publication(index[one.broker], one.topic, one.rate) for one in plan.publishers.observed)


def publications(
    messages: pa.Table, interest: Interest, elsewhere: Collection[str] = ()
) -> list[Publication]:
    """The publications in a log of messages whose publishers are brokers.

    Args:
        messages: the canonical table: publisher, at, bytes, topic.
        interest: the brokers.
        elsewhere: brokers of another plan; their messages are ignored.

    Raises:
        InputError: a column is missing, a broker is unknown, a topic has a wildcard, or bytes are negative.

    Examples:
        >>> log = {"publisher": ["0", "1", "0"], "at": [0, 1, 2_000_000], "bytes": [6, 4, 2]}
        >>> import pyarrow as pa
        >>> table = pa.table(log | {"topic": ["x", "x", "x"]})
        >>> publications(table, Interest.from_lists([["x"], ["x"]]))
        [Publication(broker=0, topic='x', rate=4.0), Publication(broker=1, topic='x', rate=2.0)]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from broadloom.storage.tables import indices_in

    for column in ("publisher", "at", "bytes", "topic"):
        if column not in messages.column_names:
            raise InputError(
                f"the table messages has no column {column!r}; it has {', '.join(messages.column_names)}"
            )
    sizes = np.asarray(messages.column("bytes"), np.float64)
    raise_for_first(~(sizes >= 0), lambda row: f"message {row} has {sizes[row]} bytes", "give 0 or more")
    own = set(interest.node_ids)
    ignored = [name for name in dict.fromkeys(elsewhere) if name not in own]
    seconds = _seconds(messages)
    messages = messages.filter(
        pc.invert(pc.is_in(messages.column("publisher"), pa.array(ignored, pa.string())))
    )
    keys = ["publisher", "topic"]
    sums = messages.group_by(keys).aggregate([("bytes", "sum")]).sort_by([(key, "ascending") for key in keys])
    brokers = indices_in(sums.column("publisher"), pa.array(interest.node_ids, pa.string()))
    names = sums.column("publisher").to_pylist()
    topics = sums.column("topic").to_pylist()
    raise_for_first(
        brokers < 0, lambda i: f"a publisher is {names[i]!r}, not a broker of the plan", "name its brokers"
    )
    bad = np.array([not topic or is_wild(topic) for topic in topics], bool)
    raise_for_first(
        bad, lambda i: f"{names[i]!r} publishes {topics[i]!r}", "a message's topic has no wildcards"
    )
    rates = np.asarray(sums.column("bytes_sum"), np.float64) / seconds
    rows = zip(brokers.tolist(), topics, rates.tolist(), strict=True)
    return sorted(Publication(*row) for row in rows)


def read_publications(folder: Path, interest: Interest, elsewhere: Collection[str] = ()) -> list[Publication]:
    """The publications in the table `messages` of a folder."""
    from broadloom.storage.tables import require_table

    return publications(require_table(folder, "messages"), interest, elsewhere)


LINKS_FILE = "links.json"


class LinkRequests(NamedTuple):
    """What a folder of tables asks of the link stage, besides the problem.

    Attributes:
        publishers: where clients publish.
        max_degree: the largest number of links per broker; None: no limit.
    """

    publishers: Publishers
    max_degree: int | None = None

    def options_for(self, algorithm: str | None, uniform: bool, options: Mapping[str, Any]) -> LinkOptions:
        """The algorithm and its options with the limit on links; an option wins, and None lifts the limit.

        Raises:
            InputError: the algorithm cannot keep a limit.
        """
        from broadloom.linking import ALGORITHMS

        able = [one.name for one in ALGORITHMS if "max_degree" in one.option_names]
        lifted = "max_degree" in options and options["max_degree"] is None
        if self.max_degree is not None and lifted and algorithm is not None and algorithm not in able:
            return LinkOptions(algorithm, {name: options[name] for name in options if name != "max_degree"})
        if self.max_degree is None or "max_degree" in options:
            return LinkOptions(algorithm, dict(options))
        chosen = algorithm or ("gm" if uniform and "gm" in able else "broadloom")
        if chosen not in able:
            raise InputError(
                f"{LINKS_FILE} asks for at most {self.max_degree} links per broker (max_degree), which "
                f"{chosen} cannot keep; choose {', '.join(able)}, or lift it with --option max_degree=null"
            )
        return LinkOptions(chosen, {**options, "max_degree": self.max_degree})


class LinkOptions(NamedTuple):
    """An algorithm of the link stage and its options."""

    algorithm: str | None
    options: dict[str, Any]


def read_link_requests(folder: Path, interest: Interest, mode: str | None = None) -> LinkRequests:
    """What a folder of tables asks of the link stage: `links.json`, and the observed publications.

    These are the table `publications`; without it, the messages in the table `messages` whose publishers are
    brokers.

    Args:
        folder: the folder of tables.
        interest: the brokers.
        mode: "anywhere" or "observed", instead of what `links.json` says.

    Raises:
        InputError: a table or `links.json` is wrong.
    """
    requested = _links_file(folder / LINKS_FILE)
    observed = [
        PublishedTopic(interest.node_ids[one.broker], one.topic, one.rate)
        for one in _observed(folder, interest)
    ]
    limit = requested.get("max_degree")
    return LinkRequests(
        Publishers(mode or requested.get("publishers", ANYWHERE), observed),
        None if limit is None else check_count(limit, f"{folder / LINKS_FILE}: max_degree", 1),
    )


def _links_file(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        record = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    unknown = sorted(set(record) - {"publishers", "max_degree"}) if isinstance(record, dict) else [path.name]
    if unknown:
        raise InputError(f"{path}: {unknown[0]!r} is unknown; give publishers and max_degree")
    return dict(record)


def _observed(folder: Path, interest: Interest) -> list[Publication]:
    from broadloom.storage.tables import read_table

    table = read_table(folder, "publications")
    if table is not None:
        return _listed_publications(table, interest, folder)
    messages = read_table(folder, "messages")
    if messages is None or "topic" not in messages.column_names:
        return []
    others = set(messages.column("publisher").unique().to_pylist()) - {*interest.node_ids, None}
    return publications(messages, interest, sorted(others))


def _listed_publications(table: pa.Table, interest: Interest, folder: Path) -> list[Publication]:
    """The rows of a table of publications."""
    index = {name: node for node, name in enumerate(interest.node_ids)}
    nodes, topics = (table.column(name).to_pylist() for name in ("node", "topic"))
    rates = table.column("rate").to_pylist() if "rate" in table.column_names else [None] * len(nodes)
    unknown = np.array([node not in index for node in nodes], bool)
    raise_for_first(
        unknown,
        lambda row: f"{folder}: publications row {row}: {nodes[row]!r} is not a broker",
        "name brokers of the table nodes",
    )
    rows = zip(nodes, topics, rates, strict=True)
    return [Publication(index[node], topic or "", rate or 0.0) for node, topic, rate in rows]


def replace_publishers(
    plan: Plan, mode: str | None = None, messages: Path | None = None, elsewhere: Collection[str] = ()
) -> Plan:
    """The plan with another mode of publishers, or with the publications of a log of messages.

    Args:
        plan: the plan.
        mode: "anywhere" or "observed"; None: as in the plan.
        messages: the folder of a table of messages; None: the publications of the plan.
        elsewhere: brokers of another plan; their messages are ignored.
    """
    if mode is None and messages is None:
        return plan
    observed: Iterable[PublishedTopic] = plan.publishers.observed
    if messages is not None:
        names = plan.interest.node_ids
        sent = read_publications(messages, plan.interest, elsewhere)
        observed = [PublishedTopic(names[one.broker], one.topic, one.rate) for one in sent]
    return replace(plan, publishers=Publishers(mode or plan.publishers.mode, tuple(observed)))


def _seconds(messages: pa.Table) -> float:
    """The seconds that the log covers; 1 if all messages have the same time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at = messages.column("at").cast(pa.timestamp("us")).cast(pa.int64())
    if at.null_count:
        raise InputError(f"{at.null_count:,} messages have no time; fill in the column at")
    return (pc.max(at).as_py() - pc.min(at).as_py()) / 1e6 or 1.0 if len(at) else 1.0
