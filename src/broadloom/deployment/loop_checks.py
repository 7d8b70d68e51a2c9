"""Checks of a wiring before it is deployed: loops, duplicate deliveries, and publishers without a path.

They use the links only, not the trees from which the links were made.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from broadloom.checks import and_more
from broadloom.deployment.wiring import Hop, WiredLink, Wiring
from broadloom.errors import InputError
from broadloom.mqtt.topic_filters import VALID_IN_PYTHON, FilterIndex, covers, groups


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
        elif not re.fullmatch(VALID_IN_PYTHON, text):
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
    carrying = defaultdict[str, dict[int, set[str]]](lambda: defaultdict(set))
    for number, link in enumerate(wiring.links):
        for text in link.out + link.into:
            carrying[name_of[text]][number].add(text)
    for numbers in carrying.values():
        if is_forest(wiring.links[number][:2] for number in numbers):
            continue
        for ring in _closed_rings(wiring.links, numbers):
            yield _ring_fault([wiring.links[number] for number in ring], [numbers[number] for number in ring])


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


def _closed_rings(links: Sequence[WiredLink], numbers: Iterable[int]) -> Iterator[list[int]]:
    """The rings that some of the links, given by their numbers, close with earlier ones."""
    near: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for number in numbers:
        link = links[number]
        path = _path(near, link.owner, link.peer)
        if path is None:
            near[link.owner].append((link.peer, number))
            near[link.peer].append((link.owner, number))
        else:
            yield [number, *path]


def _path(near: dict[str, list[tuple[str, int]]], start: str, end: str) -> list[int] | None:
    """The numbers of the links between two brokers in a forest, or None."""
    queue: list[tuple[str, str, list[int]]] = [(start, "", [])]
    for broker, before, path in queue:
        if broker == end:
            return path
        queue += [(other, broker, [*path, link]) for other, link in near.get(broker, ()) if other != before]
    return None


def _missed_subscribers(wiring: Wiring) -> Iterator[str]:
    """Brokers whose messages do not reach another broker that wants them.

    If any broker can publish any topic, every broker publishes every wanted topic filter as a whole.
    """
    sources = _everywhere(wiring) if wiring.anywhere else _known_sources(wiring)
    missed = []
    for (topic, wanted), senders in sources.items():
        if not _all_reach(wiring, topic, wanted, senders):
            missed += [(broker, sent, wanted, topic) for broker, sent in senders.items()]
    position = {broker: number for number, broker in enumerate(wiring.brokers)}
    for broker, sent, wanted, topic in sorted(missed, key=lambda row: (position[row[0]], row[1:])):
        unreached = wiring.wanting(wanted) - _reached(wiring, broker, topic)
        if unreached:
            yield (
                f"{broker!r} publishes {sent!r} but no links carry it to {min(unreached)!r}, which "
                f"wants {wanted!r}; attach {broker!r} to the topic's tree"
            )


Sources = Mapping[tuple[str, str], Mapping[str, str]]


def _known_sources(wiring: Wiring) -> Sources:
    """By topic and wanted topic filter, the brokers that publish such messages, with what each publishes."""
    subscribed = FilterIndex({text for filters in wiring.wants.values() for text in filters})
    sources = defaultdict[tuple[str, str], dict[str, str]](dict)
    for broker in wiring.brokers:
        for sent in (*wiring.publishes.get(broker, ()), *wiring.wants.get(broker, ())):
            for wanted in sorted(subscribed.meeting(sent)):
                topic = sent if covers(wanted, sent) else wanted
                sources[topic, wanted].setdefault(broker, sent)
    return sources


def _everywhere(wiring: Wiring) -> Sources:
    """By wanted topic filter, all brokers."""
    wanted = sorted({text for filters in wiring.wants.values() for text in filters})
    return {(text, text): dict.fromkeys(wiring.brokers, text) for text in wanted}


def _all_reach(wiring: Wiring, topic: str, wanted: str, senders: Iterable[str]) -> bool:
    """Whether all senders of a topic reach all brokers that want a topic filter.

    They do if all reach one of these brokers, and that one reaches the others. It has to, because a broker
    that wants a topic can publish it.
    """
    wanting = wiring.wanting(wanted)
    if not wanting:
        return True
    one = min(wanting)
    hops = wiring.next_hops(topic)
    back = defaultdict[str, list[str]](list)
    for start, ends in hops.items():
        for end in ends:
            back[end].append(start)
    return wanting <= _closure(hops, one) and _closure(back, one).issuperset(senders)


def _reached(wiring: Wiring, broker: str, topic: str) -> set[str]:
    """The brokers that a message reaches, including the one where it is published."""
    return _closure(wiring.next_hops(topic), broker)


def _closure(hops: Mapping[str, Sequence[str]], broker: str) -> set[str]:
    """The brokers to which hops lead from a broker, including itself."""
    reached = {broker}
    queue = [broker]
    for start in queue:
        fresh = [end for end in hops.get(start, ()) if end not in reached]
        reached.update(fresh)
        queue += fresh
    return reached
