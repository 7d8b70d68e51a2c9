"""Reconnection of topics over allowed links: the most parts joined per weight first."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.measures import disconnected_topics
from broadloom.model import Interest, Overlay, Weights

# Brokers of a part that are tried as ends of a new link, those with the most topics.
MOST_ENDS = 40

Pair = tuple[int, int]


def reconnected(
    interest: Interest,
    weights: Weights,
    edges: NDArray[np.int32],
    forbidden: Collection[Pair],
    room: NDArray[np.int64] | None = None,
) -> list[Pair]:
    """Links to add, so that every topic is connected, without forbidden links.

    Args:
        interest: the subscriptions; topic filters that overlap must be grouped already.
        weights: the weights of links.
        edges: the present links.
        forbidden: links that must not be added, as pairs (u, v), u < v.
        room: the most links that each broker can get; None: any number.

    Raises:
        InputError: the allowed links cannot connect a topic.

    Examples:
        >>> interest = Interest.from_lists([["a"], ["a"], ["a"]])
        >>> reconnected(interest, Weights.uniform(3), np.array([[0, 1]]), {(1, 2)})
        [(0, 2)]
    """
    broken = disconnected_topics(interest, Overlay.from_edges(interest.node_count, edges)).tolist()
    parts = {topic: _parts(interest.nodes_of(topic).tolist(), edges) for topic in broken}
    topic_counts = np.diff(interest.topic_start)
    left = np.full(interest.node_count, interest.node_count) if room is None else room.copy()
    added: list[Pair] = []
    candidates = _candidates(parts, topic_counts, forbidden, left, MOST_ENDS)
    while parts:
        best = _best(candidates, parts, weights, left)
        if best is None:
            wider = _candidates(parts, topic_counts, forbidden, left, interest.node_count)
            if (best := _best(wider, parts, weights, left)) is None:
                name = interest.topic_ids[next(iter(parts))]
                raise InputError(
                    f"no allowed link connects topic {name!r:.80}; allow or restore one of its links"
                )
        added.append(best)
        left[list(best)] -= 1
        for topic in list(parts):
            _join(parts[topic], *best)
            if len(set(parts[topic].values())) == 1:
                del parts[topic]
    return added


def _parts(members: list[int], edges: NDArray[np.int32]) -> dict[int, int]:
    """The part of each broker of a topic: the smallest broker of the part."""
    part = {node: node for node in members}

    def root(node: int) -> int:
        while part[node] != node:
            part[node] = part[part[node]]
            node = part[node]
        return node

    inside = np.isin(edges, members).all(axis=1)
    for u, v in edges[inside].tolist():
        one, other = sorted((root(u), root(v)))
        part[other] = one
    return {node: root(node) for node in members}


def _join(part: dict[int, int], u: int, v: int) -> None:
    if u in part and v in part and part[u] != part[v]:
        old, new = part[u], part[v]
        for node, other in part.items():
            if other == old:
                part[node] = new


def _candidates(
    parts: dict[int, dict[int, int]],
    topic_counts: NDArray[np.int64],
    forbidden: Collection[Pair],
    left: NDArray[np.int64],
    most: int,
) -> dict[Pair, list[int]]:
    """Allowed pairs in different parts of a topic, with these topics."""
    found: dict[Pair, list[int]] = {}
    for topic, part in parts.items():
        members: dict[int, list[int]] = {}
        for node in sorted(part, key=lambda node: (-topic_counts[node], node)):
            if left[node] > 0:
                members.setdefault(part[node], []).append(node)
        for one, other in combinations(sorted(members), 2):
            for x in members[one][:most]:
                for y in members[other][:most]:
                    pair = (x, y) if x < y else (y, x)
                    if pair not in forbidden:
                        found.setdefault(pair, []).append(topic)
    return found


def _best(
    candidates: dict[Pair, list[int]],
    parts: dict[int, dict[int, int]],
    weights: Weights,
    left: NDArray[np.int64],
) -> Pair | None:
    """The pair that joins the most parts per weight; of equal ones the first by number."""
    pairs, joined = [], []
    for pair in sorted(candidates):
        u, v = pair
        if min(left[u], left[v]) <= 0:
            continue
        count = sum(1 for topic in candidates[pair] if topic in parts and parts[topic][u] != parts[topic][v])
        if count:
            pairs.append(pair)
            joined.append(count)
    if not pairs:
        return None
    ends = np.array(pairs)
    return pairs[int(np.argmax(np.array(joined) / weights.of(ends[:, 0], ends[:, 1])))]
