"""Checks of a wiring before it is deployed: loops, duplicate deliveries, and publishers without a path.

They use the links only, not the trees from which the links were made.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from broadloom.checks import and_more
from broadloom.deployment.wiring import Hop, WiredLink, Wiring
from broadloom.errors import InputError
from broadloom.mqtt.topic_filters import VALID, FilterIndex, covers, groups


def check(wiring: Wiring) -> None:
    """Refuse links that would loop, deliver twice, or leave out a subscriber.

    Raises:
        InputError: the first fault, and how many more there are.

    Examples:
        >>> links = WiredLink("a", "b", ("x",), ("x",)), WiredLink("b", "a", ("x",), ("x",))
        >>> check(Wiring(("a", "b"), {"a": ("x",), "b": ("x",)}, {}, links))
        Traceback (most recent call last):
        broadloom.errors.InputError: the link of 'a' and 'b' is configured at both ends, ...
    """
    checks = (
        _invalid_filters,
        _unknown_brokers,
        _links_from_both_ends,
        _parallel_links,
        _repeated_filters,
        _rings,
        _missed_subscribers,
    )
    for faults in checks:
        found = list(faults(wiring))
        if found:
            fault, _, remedy = found[0].rpartition("; ")
            raise InputError(f"{fault}{and_more(len(found) - 1)}; {remedy}")


def is_forest(pairs: Iterable[Hop]) -> bool:
    """Whether links between pairs of brokers close no ring; two links of one pair do.

    Examples:
        >>> is_forest([("a", "b"), ("b", "c")]), is_forest([("a", "b"), ("b", "a")])
        (True, False)
    """
    parent: dict[str, str] = {}

    def root(broker: str) -> str:
        while parent.setdefault(broker, broker) != broker:
            parent[broker] = broker = parent[parent[broker]]
        return broker

    for one, other in pairs:
        a, b = root(one), root(other)
        if a == b:
            return False
        parent[a] = b
    return True


def _invalid_filters(wiring: Wiring) -> Iterator[str]:
    """Texts that are not topic filters: brokers refuse or misread them."""
    texts = {text for link in wiring.links for text in (*link.out, *link.into)}
    for text in sorted(texts):
        if text.startswith(("$SYS/", "$share/", "$queue/")):
            yield f"{text!r} belongs to a single broker or client group, and no link carries it; remove it"
        elif not re.search(VALID, text):
            yield (
                f"{text!r} is not an MQTT topic filter; a wildcard must be alone in its level, and # in the "
                "last level"
            )


def _unknown_brokers(wiring: Wiring) -> Iterator[str]:
    known = set(wiring.brokers)
    for link in wiring.links:
        for broker in link[:2]:
            if broker not in known:
                yield f"a link ends at {broker!r}, which is not a broker of the plan; remove the link"
        if link.owner == link.peer:
            yield f"a link of {link.owner!r} with itself returns every message; link two brokers"


def _links_from_both_ends(wiring: Wiring) -> Iterator[str]:
    """Links that both brokers open: each would return what it received from the other."""
    opened = {link[:2] for link in wiring.links}
    for u, v in sorted(opened):
        if u < v and (v, u) in opened:
            yield (
                f"the link of {u!r} and {v!r} is configured at both ends, so messages would loop between "
                "them; configure it at one end"
            )


def _parallel_links(wiring: Wiring) -> Iterator[str]:
    """Two links from one broker to another: a message received over one would return over the other."""
    for (u, v), count in Counter(link[:2] for link in wiring.links).items():
        if count > 1:
            yield (
                f"{u!r} has {count} links with {v!r}, so a message received over one would return over "
                "another; put all topic filters of a pair on one link"
            )


def _repeated_filters(wiring: Wiring) -> Iterator[str]:
    for link in wiring.links:
        for (start, end), filters in link.carried():
            for text, count in Counter(filters).items():
                if count > 1:
                    yield (
                        f"the link from {start!r} to {end!r} has {text!r} {count} times, so messages could "
                        "arrive as often; list it once"
                    )


def _rings(wiring: Wiring) -> Iterator[str]:
    """Links that close a ring for one topic filter, or for filters that can match the same topic."""
    name_of = groups(sorted({text for link in wiring.links for text in link.out + link.into}))
    carrying = defaultdict[str, dict[WiredLink, set[str]]](lambda: defaultdict(set))
    for link in wiring.links:
        for text in link.out + link.into:
            carrying[name_of[text]][link].add(text)
    for links in carrying.values():
        for ring in _closed_rings(links):
            yield _ring_fault(ring, [links[link] for link in ring])


def _ring_fault(ring: list[WiredLink], carried: list[set[str]]) -> str:
    names = ", ".join(f"{link.owner!r}-{link.peer!r}" for link in ring)
    common = set.intersection(*carried)
    if common:
        return f"{min(common)!r} loops over the links {names}; a topic's links must form a tree"
    one, other = _overlapping_filters(carried)
    return (
        f"filters {one!r} and {other!r} can match the same topic but use different trees, so that topic "
        f"loops over the links {names}; give overlapping filters one tree"
    )


def _overlapping_filters(carried: list[set[str]]) -> tuple[str, str]:
    """Two topic filters that overlap, on different links of a ring."""
    pairs = (
        (text, other)
        for i, texts in enumerate(carried)
        for others in carried[i + 1 :]
        for text in sorted(texts)
        for other in sorted(others)
        if text != other and text in FilterIndex([text]).meeting(other)
    )
    first = sorted(carried[0])[0]
    return min(pairs, default=(first, first))


def _closed_rings(links: Iterable[WiredLink]) -> Iterator[list[WiredLink]]:
    """The rings that links close with earlier ones."""
    near: dict[str, list[tuple[str, WiredLink]]] = defaultdict(list)
    for link in links:
        path = _path(near, link.owner, link.peer)
        if path is None:
            near[link.owner].append((link.peer, link))
            near[link.peer].append((link.owner, link))
        else:
            yield [link, *path]


def _path(near: dict[str, list[tuple[str, WiredLink]]], start: str, end: str) -> list[WiredLink] | None:
    """The links between two brokers in a forest, or None."""
    queue: list[tuple[str, str, list[WiredLink]]] = [(start, "", [])]
    for broker, before, path in queue:
        if broker == end:
            return path
        queue += [(other, broker, [*path, link]) for other, link in near.get(broker, ()) if other != before]
    return None


def _missed_subscribers(wiring: Wiring) -> Iterator[str]:
    """Brokers whose messages do not reach another broker that wants them."""
    subscribed = FilterIndex({text for filters in wiring.wants.values() for text in filters})
    for broker in wiring.brokers:
        for sent in (*wiring.publishes.get(broker, ()), *wiring.wants.get(broker, ())):
            for wanted in sorted(subscribed.meeting(sent)):
                topic = sent if covers(wanted, sent) else wanted
                missed = wiring.wanting(wanted) - _reached(wiring, broker, topic)
                if missed:
                    yield (
                        f"{broker!r} publishes {sent!r} but no links carry it to {min(missed)!r}, which "
                        f"wants {wanted!r}; attach {broker!r} to the topic's tree"
                    )


def _reached(wiring: Wiring, broker: str, topic: str) -> set[str]:
    """The brokers that a message reaches, including the one where it is published."""
    hops = wiring.next_hops(topic)
    reached = {broker}
    queue = [broker]
    for start in queue:
        fresh = [end for end in hops.get(start, ()) if end not in reached]
        reached.update(fresh)
        queue += fresh
    return reached
