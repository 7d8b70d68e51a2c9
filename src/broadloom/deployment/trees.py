"""One tree a topic over the plan's links: the shortest ways from its publishers, or the least weight.

Filters that can match one topic must share a tree, since on two their messages would go round for ever: they
are a group, and a group has one tree. Brokers that publish a topic but do not want it hang on it by a leaf
link that carries one way only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import fsum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_number
from broadloom.deployment._balance import balance
from broadloom.deployment._spanning import Edges, Group, best_tree
from broadloom.deployment.traffic import Publication
from broadloom.errors import InputError
from broadloom.model.interest import Interest
from broadloom.mqtt.topic_filters import FilterTree, covers, groups
from broadloom.plans.plan import Plan

LEAST = ("latency", "weight")


class Tree(NamedTuple):
    """The way of a topic's messages.

    Attributes:
        filters: the topic, or all the filters of a group, in the plan's order.
        edges: the links between brokers that want it, pairs `u < v`, ascending.
        leaves: pairs of a broker that only publishes it and the one that takes it from there.
        rate: bytes a second of all publishers; 0 if unknown.
    """

    filters: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    leaves: tuple[tuple[int, int], ...] = ()
    rate: float = 0.0


def plan_trees(
    plan: Plan, publications: Sequence[Publication] = (), least: str = "latency", slack: float = 0.1
) -> list[Tree]:
    """The tree of every topic of a plan that somebody wants, in the order of topics.

    With one publisher its tree of shortest ways is the best there is. For several, the best tree of shortest
    ways from any one broker is taken, which has at most twice the least possible delay. In a group of
    several filters the brokers of each one are kept together first, and the weight decides after that.

    Args:
        plan: the plan.
        publications: who publishes what; nothing: every broker that wants a topic may publish it.
        least: "latency", the delay from all publishers to all subscribers, or "weight", that of the tree.
        slack: where rates are known, how much more a tree may cost to relieve busy links; 0.1 is a tenth.

    Raises:
        InputError: the overlay does not connect all brokers that want a topic, or a group of filters.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x", "y"], ["x", "y"]]), algorithm="gm")
        >>> plan_trees(plan)[0]
        Tree(filters=('x',), edges=((0, 1), (1, 2)), leaves=(), rate=0.0)
    """
    if least not in LEAST:
        raise InputError(f"trees of least {least!r}; choose {' or '.join(LEAST)}")
    check_number(slack, "slack")
    senders = _senders(plan.interest, publications)
    names = plan.interest.node_ids
    by_name = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    planned, leaves, trees = [], [], []
    for filters in filter_groups(plan.interest):
        group = _group(plan, filters, by_name)
        if len(group.members):
            leaves.append(_hand_over(plan, group, senders[filters[0]]))
            planned.append(_with_senders(group, senders[filters[0]], dict(leaves[-1]), least))
            trees.append(_need_tree(planned[-1]))
    if any(group.rate > 0 for group in planned):
        trees = balance(planned, trees, slack)
    return [
        Tree(group.filters, group.links(tree), leaf, group.rate)
        for group, tree, leaf in zip(planned, trees, leaves, strict=True)
    ]


def filter_groups(interest: Interest) -> list[tuple[str, ...]]:
    """The topics of a plan, those that can match one topic together, in the order of their first.

    Examples:
        >>> filter_groups(Interest.from_lists([["a/#", "b"], ["a/c"]]))
        [('a/#', 'a/c'), ('b',)]
    """
    named = defaultdict(list)
    for text, name in groups(interest.topic_ids).items():
        named[name].append(text)
    return [tuple(members) for members in named.values()]


def _senders(interest: Interest, publications: Sequence[Publication]) -> Mapping[str, dict[int, float]]:
    """The rate of each broker that publishes into a group, by the group's first filter."""
    first = {text: filters[0] for filters in filter_groups(interest) for text in filters}
    known, senders = FilterTree(interest.topic_ids), defaultdict[str, dict[int, float]](dict)
    for broker, topic, rate in publications:
        met = next(known.meeting(topic), None)  # all that match one topic are in one group
        if met is not None:
            rates = senders[first[met]]
            rates[broker] = rates.get(broker, 0.0) + rate
    return senders


def _group(plan: Plan, filters: tuple[str, ...], by_name: NDArray[np.int64]) -> Group:
    """The part of the overlay among the brokers that want one of the filters."""
    wanted = _wanted(plan.interest, filters)
    members = by_name[wanted[:, by_name].any(axis=0)]
    place = np.full(plan.interest.node_count, -1)
    place[members] = np.arange(len(members))
    ends = np.sort(place[plan.edges], axis=1)
    order = np.lexsort((ends[:, 1], ends[:, 0]))
    order = order[ends[order, 0] >= 0]
    u, v = plan.edges[order].T
    shared = (wanted[:, u] & wanted[:, v]).sum(axis=0)
    return Group(filters, members, ends[order], plan.edge_weights[order], shared, None, 0.0)


def _wanted(interest: Interest, filters: tuple[str, ...]) -> NDArray[np.bool_]:
    """Which broker wants which of the filters, by itself or by a wider one."""
    number_of = {text: topic for topic, text in enumerate(interest.topic_ids)}
    wanted = np.zeros((len(filters), interest.node_count), bool)
    for row, narrow in enumerate(filters):
        for wide in filters:
            if covers(wide, narrow):
                wanted[row, interest.nodes_of(number_of[wide])] = True
    return wanted


def _hand_over(plan: Plan, group: Group, senders: Mapping[int, float]) -> tuple[tuple[int, int], ...]:
    """Of each broker that only publishes: the nearest member, over a link of the plan if there is one."""
    leaves = []
    for broker in sorted(set(senders) - set(group.members.tolist())):
        linked = np.concatenate([plan.edges[plan.edges[:, 1 - end] == broker, end] for end in (0, 1)])
        near = group.members[np.isin(group.members, linked)]
        near = near if len(near) else group.members
        weights = plan.weights.of(np.full(len(near), broker), near)
        leaves.append((broker, int(near[np.argmin(weights)])))
    return tuple(leaves)


def _with_senders(group: Group, senders: Mapping[int, float], taker: Mapping[int, int], least: str) -> Group:
    """The group with what each member sends, or takes from those that only publish."""
    rate = fsum(senders.values())  # the same in any order
    together = len(group.filters) > 1
    if least == "weight" or together:
        return group._replace(rate=rate)
    sent = np.zeros(len(group.members))
    for broker in sorted(senders):
        at = group.members == taker.get(broker, broker)
        sent[at] += senders[broker] if rate > 0 else 1.0
    return group._replace(rate=rate, sent=sent if senders else np.ones(len(sent)))


def _need_tree(group: Group) -> Edges:
    tree = best_tree(group)
    if tree is not None:
        return tree
    names = ", ".join(repr(text) for text in group.filters[:3])
    if len(group.filters) == 1:
        raise InputError(f"the plan does not connect topic {names}; link again, or `broadloom verify` it")
    raise InputError(
        f"filters {names} can match one topic, so they need one tree, but the plan does not connect the "
        f"{len(group.members)} brokers that want them; make them one topic (ingest with wildcards = 'group')"
    )
