"""Overlays of constant diameter (paper 2, section VI): stars that cover the topics.

Until no topic is left: the node that scores highest is linked to every node that shares with it a topic that
is left, and its topics are done. So each topic's subscribers are at most two hops apart.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import WORD, inner_kernel, kernel, lowest, pack_rows, popcount
from broadloom.linking._built import Built
from broadloom.linking._edges import first_of_each
from broadloom.model import Interest, NoOptions, Weights

# What a score is made of: n_u nodes share with u a topic that is left, w_u sums its topics' subscribers.
BY_NODES, BY_SUBSCRIPTIONS, BY_DENSITY = range(3)


def cd_oda(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:  # noqa: ARG001
    """Stars around the node with the largest n_u (paper 2, VI)."""
    return _stars(interest, BY_NODES)


def cd_oda_1(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:  # noqa: ARG001
    """Stars around the node with the largest w_u (paper 2, VI-A)."""
    return _stars(interest, BY_SUBSCRIPTIONS)


def cd_oda_2(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:  # noqa: ARG001
    """Stars around the node with the largest w_u / n_u (paper 2, VI-B)."""
    return _stars(interest, BY_DENSITY)


def _stars(interest: Interest, score: int) -> Built:
    words = -(-interest.node_count // WORD)
    members = pack_rows(interest.node_start, interest.nodes, words)
    topic_start, topics = interest.topic_start, interest.topics
    centres = _centres(topic_start, topics, interest.node_start, interest.nodes, members, score)
    return Built(first_of_each(_star_edges(topic_start, topics, members, centres)))


@kernel
def _centres(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    node_start: NDArray[np.int64],
    nodes: NDArray[np.int32],
    members: NDArray[np.uint64],
    score: int,
) -> NDArray[np.int64]:
    """The centres of the stars, in order: only the nodes that had a topic of the last one score anew."""
    n = len(topic_start) - 1
    left = node_start[1:] > node_start[:-1]
    reached, subscriptions = np.zeros(n, np.int64), np.zeros(n, np.int64)
    stale = np.ones(n, np.bool_)
    centres = np.empty(len(left), np.int64)
    count, still = 0, left.sum()
    while still > 0:
        for u in range(n):
            if stale[u]:
                own = topics[topic_start[u] : topic_start[u + 1]]
                own = own[left[own]]
                subscriptions[u] = (node_start[own + 1] - node_start[own]).sum()
                reached[u] = 1 if score == BY_SUBSCRIPTIONS else _union_size(members, own)
                stale[u] = False
        centre = _highest(reached, subscriptions, score)
        centres[count] = centre
        count += 1
        for t in topics[topic_start[centre] : topic_start[centre + 1]]:
            if left[t]:
                left[t] = False
                still -= 1
                stale[nodes[node_start[t] : node_start[t + 1]]] = True
    return centres[:count]


@kernel
def _union_size(members: NDArray[np.uint64], topics: NDArray[np.int32]) -> int:
    """How many nodes have one of the topics."""
    count = 0
    for w in range(members.shape[1]):
        count += popcount(_union(members, topics, w))
    return count


@inner_kernel
def _union(members: NDArray[np.uint64], topics: NDArray[np.int32], word: int) -> np.uint64:
    """The nodes of that word that have one of the topics."""
    union = np.uint64(0)
    for t in topics:
        union |= members[t, word]
    return union


@kernel
def _highest(reached: NDArray[np.int64], subscriptions: NDArray[np.int64], score: int) -> int:
    """The first node of the highest score; a node without a topic that is left scores 0."""
    best, best_over, best_under = 0, -1, 1
    for u in range(len(reached)):
        over = reached[u] if score == BY_NODES else subscriptions[u]
        under = max(reached[u], 1) if score == BY_DENSITY else 1
        if over * best_under > best_over * under:
            best, best_over, best_under = u, over, under
    return best


@kernel
def _star_edges(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    members: NDArray[np.uint64],
    centres: NDArray[np.int64],
) -> NDArray[np.int32]:
    """The edges of the stars, one after the other, neighbours ascending; an edge of two stars twice."""
    left = np.ones(len(members), np.bool_)
    edges = [(np.int32(0), np.int32(0)) for _ in range(0)]
    for centre in centres:
        own = topics[topic_start[centre] : topic_start[centre + 1]]
        own = own[left[own]]
        left[own] = False
        for w in range(members.shape[1]):
            star = _union(members, own, w)
            while star:
                v = w * WORD + lowest(star)
                star &= star - np.uint64(1)
                if v != centre:
                    edges.append((np.int32(min(v, centre)), np.int32(max(v, centre))))
    result = np.empty((len(edges), 2), np.int32)
    for i, edge in enumerate(edges):
        result[i, 0], result[i, 1] = edge
    return result
