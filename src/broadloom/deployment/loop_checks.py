"""What must not be deployed: links that would loop, send twice, or leave a publisher out.

It looks at links alone, and knows nothing of the trees that they come from.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from broadloom.checks import and_more
from broadloom.deployment.wiring import Hop, WiredLink, Wiring
from broadloom.errors import InputError
from broadloom.mqtt.topic_filters import VALID, FilterTree, covers, groups


def check(wiring: Wiring) -> None:
    """Refuse links that would loop, send twice, or leave a publisher out.

    Raises:
        InputError: the first fault, in words of its own.

    Examples:
        >>> from broadloom.deployment.wiring import WiredLink, Wiring
        >>> links = WiredLink("a", "b", ("x",), ("x",)), WiredLink("b", "a", ("x",), ("x",))
        >>> check(Wiring(("a", "b"), {"a": ("x",), "b": ("x",)}, {}, links))
        Traceback (most recent call last):
        broadloom.errors.InputError: the link of 'a' and 'b' is configured at both ends, ...
    """
    for faults in (_invalid, _strangers, _both_ends, _twice, _repeated, _rings, _left_out):
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


def _invalid(wiring: Wiring) -> Iterator[str]:
    """A text that is no topic and no filter: brokers refuse it, or read something else in it."""
    texts = {text for link in wiring.links for text in (*link.out, *link.into)}
    for text in sorted(texts):
        if text.startswith(("$SYS/", "$share/", "$queue/")):
            yield f"{text!r} is of the broker itself or of a group, which no link carries; leave it out"
        elif not re.search(VALID, text):
            yield f"{text!r} is no filter of MQTT; a wildcard stands alone in its level, # in the last"


def _strangers(wiring: Wiring) -> Iterator[str]:
    known = set(wiring.brokers)
    for link in wiring.links:
        for broker in link[:2]:
            if broker not in known:
                yield f"a link ends at {broker!r}, which is no broker; links are between brokers of the plan"
        if link.owner == link.peer:
            yield f"a link of {link.owner!r} with itself sends everything back; link two brokers"


def _both_ends(wiring: Wiring) -> Iterator[str]:
    """An edge that both brokers open: each would send back what it got from the other."""
    opened = {link[:2] for link in wiring.links}
    for u, v in sorted(opened):
        if u < v and (v, u) in opened:
            yield (
                f"the link of {u!r} and {v!r} is configured at both ends, so messages would go to and fro "
                "for ever; configure it at one of them"
            )


def _twice(wiring: Wiring) -> Iterator[str]:
    """Two connections between a pair: what comes over one goes back over the other."""
    for (u, v), count in Counter(link[:2] for link in wiring.links).items():
        if count > 1:
            yield (
                f"{u!r} has {count} links with {v!r}, and what comes over one would go back over the other; "
                "put all filters of a pair on one link"
            )


def _repeated(wiring: Wiring) -> Iterator[str]:
    for link in wiring.links:
        for (start, end), filters in link.carried():
            for text, count in Counter(filters).items():
                if count > 1:
                    yield (
                        f"the link from {start!r} to {end!r} has {text!r} {count} times, so messages could "
                        "come as often; list it once"
                    )


def _rings(wiring: Wiring) -> Iterator[str]:
    """Links that close a ring for one filter, or for filters that can match one topic."""
    name_of = groups(sorted({text for link in wiring.links for text in link.out + link.into}))
    carrying = defaultdict[str, dict[WiredLink, set[str]]](lambda: defaultdict(set))
    for link in wiring.links:
        for text in link.out + link.into:
            carrying[name_of[text]][link].add(text)
    for links in carrying.values():
        for ring in _closed(links):
            yield _ring_words(ring, [links[link] for link in ring])


def _ring_words(ring: list[WiredLink], carried: list[set[str]]) -> str:
    ways = ", ".join(f"{link.owner!r}-{link.peer!r}" for link in ring)
    common = set.intersection(*carried)
    if common:
        return f"{min(common)!r} goes round for ever over the links {ways}; a topic's links must form a tree"
    one, other = _met_on_the_way(carried)
    return (
        f"filters {one!r} and {other!r} can match one topic but go over different trees, so that topic goes "
        f"round for ever over the links {ways}; give filters that meet one tree"
    )


def _met_on_the_way(carried: list[set[str]]) -> tuple[str, str]:
    """Two filters of a ring that meet, on different links of it."""
    pairs = (
        (text, other)
        for i, texts in enumerate(carried)
        for others in carried[i + 1 :]
        for text in sorted(texts)
        for other in sorted(others)
        if text != other and text in FilterTree([text]).meeting(other)
    )
    first = sorted(carried[0])[0]
    return min(pairs, default=(first, first))


def _closed(links: Iterable[WiredLink]) -> Iterator[list[WiredLink]]:
    """The ring that each link closes with earlier ones, if it does."""
    near: dict[str, list[tuple[str, WiredLink]]] = defaultdict(list)
    for link in links:
        way = _way(near, link.owner, link.peer)
        if way is None:
            near[link.owner].append((link.peer, link))
            near[link.peer].append((link.owner, link))
        else:
            yield [link, *way]


def _way(near: dict[str, list[tuple[str, WiredLink]]], start: str, end: str) -> list[WiredLink] | None:
    """The links between two brokers in a forest, or None."""
    todo: list[tuple[str, str, list[WiredLink]]] = [(start, "", [])]
    for broker, before, way in todo:
        if broker == end:
            return way
        todo += [(other, broker, [*way, link]) for other, link in near.get(broker, ()) if other != before]
    return None


def _left_out(wiring: Wiring) -> Iterator[str]:
    """Brokers whose messages do not reach somebody who wants them."""
    subscribed = FilterTree({text for filters in wiring.wants.values() for text in filters})
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
    """The brokers that a message comes to."""
    hops, reached, todo = wiring.next_hops(topic), {broker}, [broker]
    for here in todo:
        fresh = [end for end in hops.get(here, ()) if end not in reached]
        reached.update(fresh)
        todo += fresh
    return reached
