"""One-way links by which any broker can publish any topic.

A broker that does not want a group of topic filters hands its clients' messages of that group to a broker
that does. Such a hop carries the group in one direction only, and its first broker receives the group from
nowhere, so no ring closes. Links of the plan are used first; they cost no connection. New links follow by a
greedy set cover of the groups that remain: always the least weight per newly covered group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from broadloom.model import ANYWHERE, Interest
from broadloom.plans import Plan

# Brokers times groups up to which `link` computes the one-way links only to tell their number.
QUICK_CELLS = 400_000


@dataclass(frozen=True, eq=False)
class PublisherLinks:
    """The one-way hops of a plan whose brokers can publish any topic.

    Attributes:
        receivers: int32 (brokers, groups), the broker to which each broker hands a group's messages; -1: it
            wants the group itself, or nobody does.
        new: the links that the plan does not have, pairs `u < v`, in the order in which they were chosen.
        weight: the sum of the weights of the new links.
    """

    receivers: NDArray[np.int32]
    new: tuple[tuple[int, int], ...]
    weight: float

    def leaves(self, group: int) -> tuple[tuple[int, int], ...]:
        """The hops of a group: pairs of a broker that only publishes and the one that receives from it."""
        receivers = self.receivers[:, group]
        brokers = np.flatnonzero(receivers >= 0)
        return tuple(zip(brokers.tolist(), receivers[brokers].tolist(), strict=True))

    def record(self, plan: Plan) -> dict[str, Any]:
        """The numbers of links and their weights, ready for JSON."""
        return {
            "plan_links": len(plan.edges),
            "plan_weight": plan.total_weight,
            "one_way_links": len(self.new),
            "one_way_weight": self.weight,
        }

    def summary(self, plan: Plan) -> str:
        """The numbers of links and their weights in a sentence."""
        if not self.new:
            return f"any broker can publish every topic: the plan's {len(plan.edges):,} links suffice"
        total = plan.total_weight + self.weight
        links = f"{len(self.new):,} one-way link{'' if len(self.new) == 1 else 's'}"
        return (
            f"any broker can publish every topic: {links} in addition to the plan's "
            f"{len(plan.edges):,} (weight {self.weight:,.6g} of {total:,.6g})"
        )


def filter_groups(interest: Interest) -> list[tuple[str, ...]]:
    """The topic filters of a plan, grouped if they can match the same topic, in the order of their first.

    Examples:
        >>> filter_groups(Interest.from_lists([["a/#", "b"], ["a/c"]]))
        [('a/#', 'a/c'), ('b',)]
    """
    members: list[list[str]] = [[] for _ in interest.grouped().topic_ids]
    for text, group in zip(interest.topic_ids, interest.group_of_topic.tolist(), strict=True):
        members[group].append(text)
    return [tuple(texts) for texts in members]


def wanted_groups(interest: Interest, grouped: Sequence[Sequence[str]]) -> NDArray[np.bool_]:
    """Whether each broker wants a topic filter of each group, bool (brokers, groups)."""
    group_of_text = {text: group for group, filters in enumerate(grouped) for text in filters}
    group_of = np.array([group_of_text[text] for text in interest.topic_ids], np.int64)
    wanted = np.zeros((interest.node_count, len(grouped)), bool)
    owners = np.repeat(np.arange(interest.node_count), np.diff(interest.topic_start))
    wanted[owners, group_of[interest.topics]] = True
    return wanted


def publisher_links(plan: Plan, grouped: Sequence[Sequence[str]] | None = None) -> PublisherLinks:
    """The one-way hops by which any broker can publish any topic.

    Brokers are served in the order of their names. Each uses its links of the plan, and those that a broker
    before it has opened to it, the lightest first; then it opens new ones.

    Args:
        plan: the plan.
        grouped: the groups of topic filters; None: `filter_groups` of its interest.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x", "y"], ["y"], []]), algorithm="gm")
        >>> links = publisher_links(plan)
        >>> links.summary(plan)
        "any broker can publish every topic: 1 one-way link in addition to the plan's 2 (weight 1 of 3)"
        >>> links.leaves(0)
        ((2, 1), (3, 1))
    """
    interest = plan.interest
    names = interest.node_ids
    count = interest.node_count
    by_name = np.array(sorted(range(count), key=names.__getitem__), np.int64)
    rank = np.empty(count, np.int64)
    rank[by_name] = np.arange(count)
    wanted = wanted_groups(interest, filter_groups(interest) if grouped is None else grouped)[by_name]
    offered = wanted.astype(np.float32)
    missing = ~wanted & wanted.any(axis=0)
    linked: list[list[int]] = [[] for _ in range(count)]
    for u, v in rank[plan.edges].tolist():
        linked[u].append(v)
        linked[v].append(u)
    receivers = np.full(wanted.shape, -1, np.int32)
    new = []
    paid = []
    for broker in np.flatnonzero(missing.any(axis=1)).tolist():
        left = missing[broker]
        weights = _weights_from(plan, by_name, broker)
        near = sorted(linked[broker], key=lambda other: (weights[other], other))
        for other in near:
            left = _hand_over(receivers, broker, other, wanted, left)
        while left.any():
            gain = offered @ left.astype(np.float32)
            with np.errstate(divide="ignore"):
                other = int(np.argmin(np.where(gain > 0, weights / gain, np.inf)))
            left = _hand_over(receivers, broker, other, wanted, left)
            linked[other].append(broker)
            new.append((broker, other))
            paid.append(float(weights[other]))
    found = np.full(receivers.shape, -1, np.int32)
    found[by_name] = np.where(receivers >= 0, by_name[receivers], -1)
    pairs = [(min(pair), max(pair)) for pair in by_name[np.array(new, np.int64).reshape(-1, 2)].tolist()]
    return PublisherLinks(found, tuple(pairs), fsum(paid))


def _weights_from(plan: Plan, by_name: NDArray[np.int64], broker: int) -> NDArray[np.float64]:
    """The weights of links from a broker to all others, in the order of names; infinite to itself."""
    others = np.delete(by_name, broker)
    weights = plan.weights.of(np.full(len(others), by_name[broker]), others)
    return np.insert(np.asarray(weights, np.float64), broker, np.inf)


def _hand_over(
    receivers: NDArray[np.int32], broker: int, other: int, wanted: NDArray[np.bool_], left: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Hand the groups that remain and that another broker wants over to it; returns those that remain."""
    receivers[broker, left & wanted[other]] = other
    return left & ~wanted[other]


def carried_lines(plan: Plan, links: PublisherLinks | None = None) -> Iterator[str]:
    """What a plan carries from publishers, and what it does not carry, as the lines of a text.

    Args:
        plan: the plan.
        links: its one-way links, if they are known; None: they are computed if that is quick.
    """
    if plan.publishers.mode == ANYWHERE:
        links = links or quick_publisher_links(plan)
        if links is None:
            yield "any broker can publish every topic, over more one-way links: see `broadloom deploy check`"
        else:
            yield links.summary(plan)
            yield from _above_limit(plan, links)
    else:
        count = len(plan.publishers.observed)
        yield f"brokers publish the topics that they want, and {count:,} that were observed"
    yield from plan.not_carried.lines()


def carried_record(plan: Plan, links: PublisherLinks | None = None) -> dict[str, Any]:
    """The same as `carried_lines`, complete and ready for JSON."""
    record: dict[str, Any] = {"mode": plan.publishers.mode, "observed": len(plan.publishers.observed)}
    if plan.publishers.mode == ANYWHERE:
        links = links or quick_publisher_links(plan)
        record |= {} if links is None else links.record(plan)
    return {"publishers": record, "not_carried": plan.not_carried.record()}


def quick_publisher_links(plan: Plan) -> PublisherLinks | None:
    """The one-way links of a plan; None if they would take more than about a second."""
    grouped = filter_groups(plan.interest)
    return publisher_links(plan, grouped) if plan.interest.node_count * len(grouped) <= QUICK_CELLS else None


def _above_limit(plan: Plan, links: PublisherLinks) -> Iterator[str]:
    """A line if one-way links exceed the limit of links per broker that the plan keeps."""
    limit = plan.options.get("max_degree")
    if limit is None:
        return
    ends = np.concatenate((plan.edges.ravel(), np.array(links.new, np.int64).ravel()))
    degrees = np.bincount(ends, minlength=plan.interest.node_count)
    above = np.flatnonzero(degrees > limit)
    if len(above):
        most = int(np.argmax(degrees))
        yield (
            f"  with them {len(above):,} brokers have more than {limit} links (max_degree), "
            f"{plan.interest.node_ids[most]!r} has {degrees[most]:,}; observed publishers need fewer"
        )
