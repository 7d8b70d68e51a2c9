"""What trees mean for each link: which filters it carries which way."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

from broadloom.deployment.deployment_inputs import Publication
from broadloom.deployment.trees import Tree, filter_groups
from broadloom.mqtt.topic_filters import FilterTree, common_topic, covers, is_wild
from broadloom.plans import Plan

Hop = tuple[str, str]


class WiredLink(NamedTuple):
    """A connection between two brokers, configured at one of them.

    Attributes:
        owner: the broker that opens it; of the two the one whose id comes first, in every plan.
        peer: the other one.
        out: the filters of what goes from the owner to the peer, ascending.
        into: the filters of what comes from the peer, ascending.
    """

    owner: str
    peer: str
    out: tuple[str, ...]
    into: tuple[str, ...]

    def carried(self) -> tuple[tuple[Hop, tuple[str, ...]], ...]:
        """Both directions with their filters."""
        return ((self.owner, self.peer), self.out), ((self.peer, self.owner), self.into)


@dataclass(frozen=True)
class Wiring:
    """Brokers, what is wanted and published at each, and the links between them.

    Attributes:
        brokers: their ids, in the plan's order.
        wants: the filters that are subscribed to at each.
        publishes: the topics that are known to be published at each, beside those that it wants.
        links: the links, in the order of their ends' ids.
        relays: whether a broker passes on what it got over a link; in a full mesh it does not.
    """

    brokers: tuple[str, ...]
    wants: Mapping[str, tuple[str, ...]]
    publishes: Mapping[str, tuple[str, ...]]
    links: tuple[WiredLink, ...]
    relays: bool = True

    def next_hops(self, topic: str) -> Mapping[str, Sequence[str]]:
        """Where each broker sends a message of a topic, or all that a filter matches."""
        if topic not in self._next_hops:
            hops = defaultdict[str, list[str]](list)
            for text in (topic, *(wide for wide in self._wild if wide != topic and covers(wide, topic))):
                for start, end in self._hops_of.get(text, ()):
                    if end not in hops[start]:
                        hops[start].append(end)
            self._next_hops[topic] = dict(hops)
        return self._next_hops[topic]

    def wanting(self, topic: str) -> frozenset[str]:
        """The brokers with a subscription that matches a topic, or all of a filter."""
        if topic not in self._wanting:
            texts = (topic, *(wide for wide in self._wild_wants if covers(wide, topic)))
            self._wanting[topic] = frozenset().union(*(self._brokers_of.get(text, ()) for text in texts))
        return self._wanting[topic]

    @cached_property
    def _next_hops(self) -> dict[str, dict[str, list[str]]]:
        return {}

    @cached_property
    def _wanting(self) -> dict[str, frozenset[str]]:
        return {}

    @cached_property
    def _hops_of(self) -> Mapping[str, list[Hop]]:
        hops = defaultdict[str, list[Hop]](list)
        for link in self.links:
            for hop, filters in link.carried():
                for text in filters:
                    hops[text].append(hop)
        return hops

    @cached_property
    def _brokers_of(self) -> Mapping[str, list[str]]:
        brokers = defaultdict[str, list[str]](list)
        for broker, filters in self.wants.items():
            for text in filters:
                brokers[text].append(broker)
        return brokers

    @cached_property
    def _wild(self) -> list[str]:
        return sorted(filter(is_wild, self._hops_of))

    @cached_property
    def _wild_wants(self) -> list[str]:
        return sorted(filter(is_wild, self._brokers_of))


def wire(plan: Plan, trees: Iterable[Tree], publications: Iterable[Publication] = ()) -> Wiring:
    """The links of some trees. Towards each end a link carries what is wanted behind that end.

    So a link among brokers that all want a topic carries it both ways, one to a broker that only publishes it
    carries it one way, and of a group of filters only those that somebody behind it asked for.

    Examples:
        >>> import broadloom as bl
        >>> from broadloom.deployment.trees import plan_trees
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x"], []]), algorithm="gm")
        >>> sent = [Publication(2, "x")]
        >>> for link in wire(plan, plan_trees(plan, sent), sent).links:
        ...     print(link)
        WiredLink(owner='0', peer='1', out=('x',), into=('x',))
        WiredLink(owner='0', peer='2', out=(), into=('x',))
    """
    names, wants, publishes = plan.interest.node_ids, wanted_filters(plan), defaultdict[str, list[str]](list)
    for broker, topic, _ in publications:
        publishes[names[broker]].append(topic)
    carried = defaultdict[Hop, set[str]](set)
    for tree in trees:
        for (u, v), filters in _behind(tree, [wants[name] for name in names]).items():
            carried[names[u], names[v]] |= filters
        for leaf, taker in tree.leaves:
            carried[names[leaf], names[taker]] |= _met(tree.filters, publishes[names[leaf]])
    links = []
    for owner, peer in sorted({(min(hop), max(hop)) for hop in carried}):
        out, into = (tuple(sorted(widest(carried[hop]))) for hop in ((owner, peer), (peer, owner)))
        links.append(WiredLink(owner, peer, out, into))
    known = {broker: tuple(sorted(set(topics))) for broker, topics in sorted(publishes.items())}
    return Wiring(names, wants, known, tuple(links))


def wanted_filters(plan: Plan) -> dict[str, tuple[str, ...]]:
    """What each broker of a plan wants."""
    interest = plan.interest
    return {
        name: tuple(interest.topic_ids[topic] for topic in interest.topics_of(node))
        for node, name in enumerate(interest.node_ids)
    }


def _behind(tree: Tree, wants: Sequence[tuple[str, ...]]) -> dict[tuple[int, int], set[str]]:
    """Of each link of a tree and each direction, the filters that are wanted behind its far end."""
    near = defaultdict[int, list[int]](list)
    for u, v in tree.edges:
        near[u].append(v)
        near[v].append(u)
    if not near:
        return {}
    order, above = [min(near)], {min(near): -1}
    for v in order:
        for w in near[v]:
            if w not in above:
                above[w] = v
                order.append(w)
    own = {v: set(wants[v]).intersection(tree.filters) for v in order}
    down: dict[tuple[int, int], set[str]] = {}
    for v in reversed(order):
        below = own[v].union(*(down[v, w] for w in near[v] if w != above[v]))
        down[above[v], v] = below
    for v in order:
        for w in near[v]:
            if w != above[v]:
                others = (down[v, x] for x in near[v] if x != w)
                down[w, v] = own[v].union(*others)
    del down[-1, order[0]]
    return down


def _met(filters: Iterable[str], topics: Iterable[str]) -> set[str]:
    """The filters that match one of the topics."""
    known = list(topics)
    return {text for text in filters if any(covers(text, topic) for topic in known)}


def widest(filters: set[str]) -> set[str]:
    """The filters without those that another one covers."""
    wild = [text for text in filters if is_wild(text)]
    return {text for text in filters if not any(wide != text and covers(wide, text) for wide in wild)}


class SampleMessage(NamedTuple):
    """A message of a topic, published at a broker."""

    broker: str
    topic: str


def journey(wiring: Wiring, message: SampleMessage) -> dict[str, Hop]:
    """The brokers that a message comes to over links, each with the hop that brings it.

    Examples:
        >>> from broadloom.deployment.wiring import WiredLink
        >>> links = WiredLink("a", "b", ("x",), ("x",)), WiredLink("b", "c", ("x",), ("x",))
        >>> journey(Wiring(("a", "b", "c"), {}, {}, links), SampleMessage("a", "x"))
        {'b': ('a', 'b'), 'c': ('b', 'c')}
    """
    hops, todo = wiring.next_hops(message.topic), [message.broker]
    came: dict[str, Hop] = {}
    for here in todo:
        for end in hops.get(here, ()):
            if end not in came and end != message.broker:
                came[end] = (here, end)
                if wiring.relays:
                    todo.append(end)
    return came


def crossings(wiring: Wiring, messages: Mapping[SampleMessage, int]) -> Counter[Hop]:
    """How many messages cross each link each way."""
    crossed: Counter[Hop] = Counter()
    for message, count in messages.items():
        for hop in journey(wiring, message).values():
            crossed[hop] += count
    return crossed


def sample_messages(wiring: Wiring, each: int = 1) -> dict[SampleMessage, int]:
    """For every topic a few messages from every broker that wants it or publishes it.

    Filters with wildcards stand for a topic that they match, and each two that meet for one that both do.

    Examples:
        >>> wiring = Wiring(("a", "b"), {"a": ("x/+",), "b": ("x/y",)}, {}, ())
        >>> sorted(sample_messages(wiring))[0]
        SampleMessage(broker='a', topic='x/any')
    """
    wanted = {text for filters in wiring.wants.values() for text in filters}
    topics = {topic for known in wiring.publishes.values() for topic in known}
    known = FilterTree(wanted)
    for text in wanted:
        topics |= {topic for other in known.meeting(text) if (topic := common_topic(text, other))}
    at = {topic: set(wiring.wanting(topic)) for topic in topics}
    for broker, published in wiring.publishes.items():
        for topic in published:
            at[topic].add(broker)
    return {SampleMessage(broker, topic): each for topic in sorted(topics) for broker in sorted(at[topic])}


def delays(wiring: Wiring, messages: Iterable[SampleMessage], plan: Plan) -> dict[str, float]:
    """Hops, and the sum of the plan's weights, on the ways from publishers to brokers that want a message.

    Deliveries at the publisher's own broker are no journeys, and do not count.
    """
    index = {name: node for node, name in enumerate(plan.interest.node_ids)}
    ends = sorted({hop for link in wiring.links for hop, _ in link.carried()})
    lengths = plan.weights.of([index[u] for u, _ in ends], [index[v] for _, v in ends])
    length = dict(zip(ends, lengths.tolist(), strict=True))
    hops, delay = [], []
    for message in messages:
        far, late = {message.broker: 0}, {message.broker: 0.0}
        came = journey(wiring, message)
        for end, hop in came.items():
            far[end], late[end] = far[hop[0]] + 1, late[hop[0]] + length[hop]
        wanting = [end for end in came if end in wiring.wanting(message.topic)]
        hops += [far[end] for end in wanting]
        delay += [late[end] for end in wanting]
    return {
        "mean_hops": float(np.mean(hops)) if hops else 0.0,
        "max_hops": float(max(hops, default=0)),
        "mean_delay": float(np.mean(delay)) if delay else 0.0,
        "max_delay": max(delay, default=0.0),
    }


def mesh(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """Every broker linked to every other; a message goes straight to the brokers that want it."""
    bare = wire(plan, (), publications)
    wants, names = wanted_filters(plan), plan.interest.node_ids
    links = [
        WiredLink(u, v, tuple(sorted(wants[v])), tuple(sorted(wants[u])))
        for i, u in enumerate(names)
        for v in names[i + 1 :]
    ]
    return Wiring(bare.brokers, bare.wants, bare.publishes, tuple(links), relays=False)


def global_tree(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """One least spanning tree of all brokers; towards each end a link carries what is wanted behind it."""
    return _one_tree(plan, _least_tree(plan), publications)


def flooded_tree(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """The same tree, on which every message goes to every broker."""
    tree = _one_tree(plan, _least_tree(plan), publications)
    links = tuple(link._replace(out=("#",), into=("#",)) for link in tree.links)
    return Wiring(tree.brokers, tree.wants, tree.publishes, links)


def hub(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """Every broker linked to the most central one, and to no other."""
    count = plan.interest.node_count
    weights = plan.weights.matrix()
    centre = int(np.argmin(weights.sum(axis=1))) if count else 0
    edges = [(min(centre, v), max(centre, v)) for v in range(count) if v != centre]
    return _one_tree(plan, edges, publications)


ALTERNATIVES: dict[str, Callable[[Plan, Iterable[Publication]], Wiring]] = {
    "full mesh with interest": mesh,
    "one global tree": global_tree,
    "one global tree, flooded": flooded_tree,
    "hub and spoke": hub,
}


def _least_tree(plan: Plan) -> list[tuple[int, int]]:
    u, v = minimum_spanning_tree(plan.weights.matrix()).nonzero()
    return sorted((min(pair), max(pair)) for pair in zip(u.tolist(), v.tolist(), strict=True))


def _one_tree(plan: Plan, edges: list[tuple[int, int]], publications: Iterable[Publication]) -> Wiring:
    """Every topic on the same tree; a publisher in it needs no leaf."""
    trees = [Tree(filters, tuple(edges)) for filters in filter_groups(plan.interest)]
    return wire(plan, trees, publications)
