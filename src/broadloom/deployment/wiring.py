"""Wirings: the links between brokers, the topic filters that each carries, and the paths of messages."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from broadloom.checks import has_control_characters, shown
from broadloom.deployment.deployment_inputs import Publication, publications_of
from broadloom.deployment.one_way_links import filter_groups
from broadloom.deployment.trees import Tree, mode_of
from broadloom.errors import InputError
from broadloom.model import ANYWHERE
from broadloom.mqtt.topic_filters import FilterIndex, common_topic, covers, groups, is_wild
from broadloom.plans import Plan

Hop = tuple[str, str]


class WiredLink(NamedTuple):
    """A connection between two brokers, configured at one of them.

    Attributes:
        owner: the broker that opens it; of the two the one whose id sorts first, in every plan.
        peer: the other broker.
        out: the topic filters from the owner to the peer, ascending.
        into: the topic filters from the peer to the owner, ascending.
    """

    owner: str
    peer: str
    out: tuple[str, ...]
    into: tuple[str, ...]

    def filters(self) -> frozenset[str]:
        """The topic filters of both directions.

        Examples:
            >>> sorted(WiredLink("a", "b", ("x",), ("y",)).filters())
            ['x', 'y']
        """
        return frozenset((*self.out, *self.into))

    def carried(self) -> tuple[tuple[Hop, tuple[str, ...]], ...]:
        """Both hops of the link with their topic filters."""
        return ((self.owner, self.peer), self.out), ((self.peer, self.owner), self.into)


@dataclass(frozen=True)
class Wiring:
    """Brokers, the subscriptions and publications at each, and the links between them.

    Attributes:
        brokers: the ids, in the plan's order.
        wants: the topic filters that clients of each broker subscribe to.
        publishes: the topics that are known to be published at each broker, in addition to those it wants.
        links: the links, in the order of their owners' and peers' ids.
        relays: whether a broker forwards what it received over a link; in a full mesh it does not.
        anywhere: whether any broker can publish any topic; otherwise those that want it, and `publishes`.
    """

    brokers: tuple[str, ...]
    wants: Mapping[str, tuple[str, ...]]
    publishes: Mapping[str, tuple[str, ...]]
    links: tuple[WiredLink, ...]
    relays: bool = True
    anywhere: bool = False

    def __post_init__(self) -> None:
        for broker in self.brokers:  # they are written into files and commands
            if has_control_characters(broker):
                raise InputError(
                    f"broker {shown(broker)} has a line break or another control character; rename it"
                )

    def next_hops(self, topic: str) -> Mapping[str, Sequence[str]]:
        """The brokers to which each broker sends all messages of a topic or topic filter."""
        if topic not in self._next_hops:
            hops = defaultdict[str, list[str]](list)
            wider = (wide for wide in self._wild.meeting(topic) if wide != topic and covers(wide, topic))
            for text in (topic, *sorted(wider)):
                for start, end in self._hops_of.get(text, ()):
                    if end not in hops[start]:
                        hops[start].append(end)
            self._next_hops[topic] = dict(hops)
        return self._next_hops[topic]

    def linked_brokers(self) -> tuple[str, ...]:
        """The brokers with links, in order."""
        ends = {end for link in self.links for end in link[:2]}
        return tuple(broker for broker in self.brokers if broker in ends)

    def wanting(self, topic: str) -> frozenset[str]:
        """The brokers with a subscription that matches a topic, or everything that a topic filter matches."""
        if topic not in self._wanting:
            texts = (topic, *(wide for wide in self._wild_wants.meeting(topic) if covers(wide, topic)))
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
    def _wild(self) -> FilterIndex:
        return FilterIndex(filter(is_wild, self._hops_of))

    @cached_property
    def _wild_wants(self) -> FilterIndex:
        return FilterIndex(filter(is_wild, self._brokers_of))


def wire(
    plan: Plan,
    trees: Iterable[Tree],
    publications: Iterable[Publication] | None = None,
    publishers: str | None = None,
) -> Wiring:
    """Wire the links of some trees; each hop carries the topic filters that brokers behind its end want.

    So a link between brokers that both want a topic carries it in both directions, and a link to a broker
    that only publishes it carries it in one direction. Of a group of topic filters, a hop carries only
    those that a broker behind it wants; with observed publishers, a link from a broker that only publishes
    carries only those that match what it publishes.

    Args:
        plan: the plan.
        trees: its trees.
        publications: the known publications; None: those of the plan.
        publishers: "anywhere" or "observed", as for `plan_trees`; None: as the plan says.

    Examples:
        >>> import broadloom as bl
        >>> from broadloom.deployment.trees import plan_trees
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x"], []]), algorithm="gm")
        >>> for link in wire(plan, plan_trees(plan)).links:
        ...     print(link)
        WiredLink(owner='0', peer='1', out=('x',), into=('x',))
        WiredLink(owner='0', peer='2', out=(), into=('x',))
    """
    names = plan.interest.node_ids
    wants = wanted_filters(plan)
    publishes = defaultdict[str, list[str]](list)
    anywhere = mode_of(plan, publishers) == ANYWHERE
    for broker, topic, _ in publications_of(plan) if publications is None else publications:
        publishes[names[broker]].append(topic)
    carried = defaultdict[Hop, set[str]](set)
    wanted = set().union(*wants.values())
    wants_of = [wants[name] for name in names]
    for tree in trees:  # filters of different trees do not overlap, so `widest` is needed per tree only
        widest_of = lru_cache(widest)
        for (u, v), filters in _wanted_behind(tree, wants_of).items():
            carried[names[u], names[v]] |= widest_of(frozenset(filters))
        everything = frozenset(tree.filters) & wanted
        for leaf, receiver in tree.leaves:
            known = everything if anywhere else _matching(tree.filters, publishes[names[leaf]])
            carried[names[leaf], names[receiver]] |= widest_of(known)
    links = []
    for owner, peer in sorted({(min(hop), max(hop)) for hop in carried}):
        out, into = (tuple(sorted(carried.get(hop, ()))) for hop in ((owner, peer), (peer, owner)))
        links.append(WiredLink(owner, peer, out, into))
    published = {broker: tuple(sorted(set(topics))) for broker, topics in sorted(publishes.items())}
    return Wiring(names, wants, published, tuple(links), anywhere=anywhere)


def wanted_filters(plan: Plan) -> dict[str, tuple[str, ...]]:
    """The topic filters that each broker of a plan wants."""
    interest = plan.interest
    return {
        name: tuple(interest.topic_ids[topic] for topic in interest.topics_of(node))
        for node, name in enumerate(interest.node_ids)
    }


def widest(filters: Set[str]) -> set[str]:
    """The topic filters that no other one of them covers; of `#` and `+/#`, which mean the same, the first.

    Examples:
        >>> sorted(widest({"a/#", "a/b", "c"})), widest({"#", "+/#"})
        (['a/#', 'c'], {'#'})
    """
    wild = [text for text in filters if is_wild(text) and not (text == "+/#" and "#" in filters)]
    return {text for text in filters if not any(wide != text and covers(wide, text) for wide in wild)}


def _wanted_behind(tree: Tree, wants: Sequence[tuple[str, ...]]) -> dict[tuple[int, int], set[str]]:
    """For each hop of a tree, the topic filters that are wanted at its end or behind it."""
    neighbours = defaultdict[int, list[int]](list)
    for u, v in tree.edges:
        neighbours[u].append(v)
        neighbours[v].append(u)
    if not neighbours:
        return {}
    root = min(neighbours)
    order = [root]
    parent = {root: -1}
    for v in order:
        for w in neighbours[v]:
            if w not in parent:
                parent[w] = v
                order.append(w)
    own = {v: set(wants[v]).intersection(tree.filters) for v in order}
    behind: dict[tuple[int, int], set[str]] = {}
    for v in reversed(order):
        behind[parent[v], v] = own[v].union(*(behind[v, w] for w in neighbours[v] if w != parent[v]))
    for v in order:
        for w in neighbours[v]:
            if w != parent[v]:
                behind[w, v] = own[v].union(*(behind[v, x] for x in neighbours[v] if x != w))
    del behind[-1, root]
    return behind


def _matching(filters: Iterable[str], topics: Iterable[str]) -> frozenset[str]:
    """The topic filters that match one of the topics."""
    known = list(topics)
    return frozenset(text for text in filters if any(covers(text, topic) for topic in known))


class SampleMessage(NamedTuple):
    """A message of a topic, published at a broker."""

    broker: str
    topic: str


def delivery_hops(wiring: Wiring, message: SampleMessage) -> dict[str, Hop]:
    """The brokers that a message reaches over links, each with the hop that delivers it.

    Examples:
        >>> links = WiredLink("a", "b", ("x",), ("x",)), WiredLink("b", "c", ("x",), ("x",))
        >>> delivery_hops(Wiring(("a", "b", "c"), {}, {}, links), SampleMessage("a", "x"))
        {'b': ('a', 'b'), 'c': ('b', 'c')}
    """
    hops = wiring.next_hops(message.topic)
    queue = [message.broker]
    reached: dict[str, Hop] = {}
    for start in queue:
        for end in hops.get(start, ()):
            if end not in reached and end != message.broker:
                reached[end] = (start, end)
                if wiring.relays:
                    queue.append(end)
    return reached


def crossings(wiring: Wiring, messages: Mapping[SampleMessage, int]) -> Counter[Hop]:
    """The number of messages on each hop."""
    crossed: Counter[Hop] = Counter()
    for message, count in messages.items():
        for hop in delivery_hops(wiring, message).values():
            crossed[hop] += count
    return crossed


def relayed_messages(wiring: Wiring, messages: Mapping[SampleMessage, int]) -> int:
    """How often messages reach brokers that do not want them, but another topic filter of their group.

    Examples:
        >>> both = ("a/b", "a/c")
        >>> links = WiredLink("a", "b", ("a/b",), ("a/+",)), WiredLink("b", "c", ("a/c",), both)
        >>> wants = {"a": ("a/+",), "b": ("a/b",), "c": ("a/c",)}
        >>> relayed_messages(Wiring(("a", "b", "c"), wants, {}, links), {SampleMessage("c", "a/c"): 2})
        2
    """
    name_of = groups(sorted({text for filters in wiring.wants.values() for text in filters}))
    known = FilterIndex(name_of)
    members = defaultdict[str, set[str]](set)
    for broker, filters in wiring.wants.items():
        for text in filters:
            members[name_of[text]].add(broker)
    total = 0
    for message, count in messages.items():
        name = next((name_of[text] for text in known.meeting(message.topic)), None)
        if name is not None:
            others = members[name] - wiring.wanting(message.topic)
            total += count * len(others.intersection(delivery_hops(wiring, message)))
    return total


def sample_messages(wiring: Wiring, each: int = 1) -> dict[SampleMessage, int]:
    """For every topic, `each` messages from every broker that wants or publishes it.

    A topic filter with wildcards is sampled by one topic that it matches, and two topic filters that overlap
    also by one that both match. If any broker can publish any topic, each one-way hop is sampled by a message
    of one of its topics that the first broker does not want.

    Examples:
        >>> wiring = Wiring(("a", "b"), {"a": ("x/+",), "b": ("x/y",)}, {}, ())
        >>> sorted(sample_messages(wiring))[0]
        SampleMessage(broker='a', topic='x/any')
    """
    wanted = {text for filters in wiring.wants.values() for text in filters}
    topics = {topic for known in wiring.publishes.values() for topic in known}
    known = FilterIndex(wanted)
    for text in wanted:
        topics |= {topic for other in known.meeting(text) if (topic := common_topic(text, other))}
    brokers = {topic: set(wiring.wanting(topic)) for topic in topics}
    for broker, published in wiring.publishes.items():
        for topic in published:
            brokers[topic].add(broker)
    if wiring.anywhere:
        for broker, topic in _one_way_samples(wiring):
            brokers.setdefault(topic, set(wiring.wanting(topic))).add(broker)
    return {
        SampleMessage(broker, topic): each for topic in sorted(brokers) for broker in sorted(brokers[topic])
    }


def _one_way_samples(wiring: Wiring) -> Iterator[tuple[str, str]]:
    """For each hop with topic filters that its first broker does not want, this broker and such a topic."""
    for link in wiring.links:
        for (start, _), filters in link.carried():
            own = FilterIndex(wiring.wants.get(start, ()))
            alone = (text for text in filters if next(own.meeting(text), None) is None)
            topic = next((topic for text in alone if (topic := common_topic(text, text))), None)
            if topic is not None:
                yield start, topic


def delays(wiring: Wiring, messages: Iterable[SampleMessage], plan: Plan) -> dict[str, float]:
    """Mean and maximum hops and delays of messages, from their publishers to the brokers that want them.

    A delay is the sum of the plan's weights on the path. Deliveries at the publisher's own broker do not
    count.
    """
    index = {name: node for node, name in enumerate(plan.interest.node_ids)}
    ends = sorted({hop for link in wiring.links for hop, _ in link.carried()})
    lengths = plan.weights.of([index[u] for u, _ in ends], [index[v] for _, v in ends])
    length = dict(zip(ends, lengths.tolist(), strict=True))
    hops = []
    delay = []
    for message in messages:
        hops_to = {message.broker: 0}
        delay_to = {message.broker: 0.0}
        reached = delivery_hops(wiring, message)
        for end, hop in reached.items():
            hops_to[end] = hops_to[hop[0]] + 1
            delay_to[end] = delay_to[hop[0]] + length[hop]
        wanting = [end for end in reached if end in wiring.wanting(message.topic)]
        hops += [hops_to[end] for end in wanting]
        delay += [delay_to[end] for end in wanting]
    return {
        "mean_hops": float(np.mean(hops)) if hops else 0.0,
        "max_hops": float(max(hops, default=0)),
        "mean_delay": float(np.mean(delay)) if delay else 0.0,
        "max_delay": max(delay, default=0.0),
    }


def full_mesh(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """Every pair of brokers linked; a message goes directly to the brokers that want it."""
    bare = wire(plan, (), publications)
    wants = wanted_filters(plan)
    names = plan.interest.node_ids
    links = [
        WiredLink(u, v, tuple(sorted(wants[v])), tuple(sorted(wants[u])))
        for i, u in enumerate(names)
        for v in names[i + 1 :]
    ]
    return Wiring(bare.brokers, bare.wants, bare.publishes, tuple(links), relays=False)


def global_tree(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """One minimum spanning tree of all brokers; a hop carries the topic filters that are wanted behind it."""
    return _one_tree(plan, _minimum_tree(plan), publications)


def flooded_tree(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """The global tree, on which every message goes to every broker."""
    tree = global_tree(plan, publications)
    links = tuple(link._replace(out=("#",), into=("#",)) for link in tree.links)
    return Wiring(tree.brokers, tree.wants, tree.publishes, links)


def hub_and_spoke(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """Every broker linked to the most central one, and to no other."""
    count = plan.interest.node_count
    weights = plan.weights.matrix()
    centre = int(np.argmin(weights.sum(axis=1))) if count else 0
    edges = [(min(centre, v), max(centre, v)) for v in range(count) if v != centre]
    return _one_tree(plan, edges, publications)


# Common wirings, for comparison with the trees of a plan.
ALTERNATIVES: dict[str, Callable[[Plan, Iterable[Publication]], Wiring]] = {
    "full mesh with interest": full_mesh,
    "one global tree": global_tree,
    "one global tree, flooded": flooded_tree,
    "hub and spoke": hub_and_spoke,
}


def _minimum_tree(plan: Plan) -> list[tuple[int, int]]:
    from scipy.sparse.csgraph import minimum_spanning_tree

    u, v = minimum_spanning_tree(plan.weights.matrix()).nonzero()
    return sorted((min(pair), max(pair)) for pair in zip(u.tolist(), v.tolist(), strict=True))


def _one_tree(plan: Plan, edges: list[tuple[int, int]], publications: Iterable[Publication]) -> Wiring:
    """All topics on the same tree; publishers are part of it and need no leaf links."""
    trees = [Tree(filters, tuple(edges)) for filters in filter_groups(plan.interest)]
    return wire(plan, trees, publications)
