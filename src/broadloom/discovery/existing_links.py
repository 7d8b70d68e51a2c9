"""Links that exist in a fleet already: which brokers they connect, whether Broadloom made them, and rings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from broadloom.discovery.doctor_report import ADVICE, FLEET, MUST_CHANGE, NOT_SEEN, OK, Finding
from broadloom.mqtt.topic_filters import common_filter, is_own_name

CHECK, RING = "bridges", "ring"


@dataclass(frozen=True)
class ExistingLink:
    """A link that a broker has already.

    Attributes:
        name: its name: a client id, or the name in a configuration.
        broker: the broker that it was seen at.
        peer: the broker at its other end; None: not a broker of the fleet, or unknown.
        source: where it was seen.
        remedy: how to remove it.
        filters: the topic filters that it carries; None: unknown.
        loops: whether messages can circulate over it; a NATS cluster prevents it.
        title: what it is; a NATS server does not tell who made a leafnode.
    """

    name: str
    broker: str
    peer: str | None
    source: str
    remedy: str
    filters: tuple[str, ...] | None = None
    loops: bool = True
    title: str = "a bridge made by hand"

    @property
    def is_own(self) -> bool:
        """Whether Broadloom made it; a bridge's default client id is its host, a dot and its name."""
        return is_own_name(self.name)


def links_of_client_ids(seen: Mapping[str, Iterable[str]]) -> list[ExistingLink]:
    """The links whose client ids brokers report; a bridge has the same one at both of its brokers.

    Args:
        seen: the client ids of bridges at each broker.
    """
    brokers_of: dict[str, list[str]] = {}
    for broker, clients in seen.items():
        for client in clients:
            brokers_of.setdefault(client, []).append(broker)
    links = []
    for client, brokers in brokers_of.items():
        remedy = f"remove `connection {client.rpartition('.')[2]}` from mosquitto.conf"
        source = "$SYS/broker/connection"
        if len(brokers) == 1:
            links.append(ExistingLink(client, brokers[0], None, source, remedy))
        # Several bridges can have one client id, if their hosts have one name; then any of them can be.
        links += [ExistingLink(client, brokers[0], other, source, remedy) for other in brokers[1:]]
    return links


def without_repeats(links: Sequence[ExistingLink], configured: Sequence[ExistingLink]) -> list[ExistingLink]:
    """Links from configuration files, and those of the others that are not among them."""

    def is_same(link: ExistingLink, known: ExistingLink) -> bool:
        ends = {link.broker, link.peer} - {None}
        is_named = link.name == known.name or link.name.endswith(f".{known.name}")
        return is_named and ends <= {known.broker, known.peer}

    return [*configured, *(link for link in links if not any(is_same(link, known) for known in configured))]


def link_findings(links: Sequence[ExistingLink], unseen: Mapping[str, str]) -> list[Finding]:
    """The findings about existing links: one per link, one per ring, and one if there is no link.

    Args:
        links: the links.
        unseen: the brokers whose bridges could not be seen, and the setting that would show them.
    """
    findings = [_finding(link) for link in links]
    made_by_hand = [link for link in links if not link.is_own and link.peer is not None and link.loops]
    findings += [_ring_finding(ring) for ring in rings(made_by_hand)]
    known = {link.broker for link in links}
    findings += [
        Finding(broker, CHECK, NOT_SEEN, "its bridges cannot be seen", setting)
        for broker, setting in unseen.items()
        if broker not in known
    ]
    if not links and not unseen:
        findings.append(Finding(FLEET, CHECK, OK, "no broker has bridges yet"))
    return findings


def _finding(link: ExistingLink) -> Finding:
    other = f"to {link.peer}" if link.peer is not None else "to a broker that is not in the fleet, or unknown"
    if link.is_own:
        return Finding(link.broker, CHECK, OK, f"a link of Broadloom {other}: {link.name} ({link.source})")
    found = f"{link.title} {other}: {link.name} ({link.source})"
    if link.peer is None:
        return Finding(link.broker, CHECK, ADVICE, f"{found}; it can bring messages twice", link.remedy)
    return Finding(link.broker, CHECK, ADVICE, f"{found}; a plan's links carry the same again", link.remedy)


def rings(links: Sequence[ExistingLink]) -> list[list[ExistingLink]]:
    """The rings that links close: for each link that closes one, the links of that ring."""
    tree: dict[str, list[ExistingLink]] = {}
    found = []
    for link in links:
        path = _path(tree, link.broker, str(link.peer))
        if path is not None:
            found.append([*path, link])
            continue
        for end in (link.broker, str(link.peer)):
            tree.setdefault(end, []).append(link)
    return found


def _path(tree: Mapping[str, list[ExistingLink]], start: str, end: str) -> list[ExistingLink] | None:
    """The links between two brokers in a forest; None: not connected."""
    todo: list[tuple[str, list[ExistingLink]]] = [(start, [])]
    visited = {start}
    while todo:
        broker, path = todo.pop()
        if broker == end:
            return path
        for link in tree.get(broker, ()):
            other = str(link.peer) if link.broker == broker else link.broker
            if other not in visited:
                visited.add(other)
                todo.append((other, [*path, link]))
    return None


def _ring_finding(ring: Sequence[ExistingLink]) -> Finding:
    last = ring[-1]
    brokers = [last.broker]
    for link in ring[:-1]:
        brokers.append(str(link.peer) if link.broker == brokers[-1] else link.broker)
    names = " - ".join([*brokers, last.broker])
    remedy = f"{last.remedy} of {last.broker}"
    if _can_circulate(ring):
        return Finding(FLEET, RING, MUST_CHANGE, f"bridges made by hand form a ring: {names}", remedy)
    found = f"bridges made by hand form a ring, for different topics: {names}"
    return Finding(FLEET, RING, ADVICE, found, remedy)


def _can_circulate(ring: Sequence[ExistingLink]) -> bool:
    """Whether some topic passes all links of a ring, or the topics of one are unknown."""
    common: list[str] = ["#"]
    for link in ring:
        if link.filters is None:
            continue
        met = (common_filter(one, other) for one in common for other in link.filters)
        common = [text for text in met if text is not None]
    return bool(common)
