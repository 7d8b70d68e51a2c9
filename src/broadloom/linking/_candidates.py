"""Candidate edges, each with the topics that both its ends share: what the bound and its greedy work on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.model import Interest, Weights


class Candidates(NamedTuple):
    """A list of edges, and an entry for each edge and topic that both its ends subscribe to.

    A subscription goes by its place in `interest.nodes`, so those of one topic stand together.

    Attributes:
        edges: int32 (m, 2), `u < v`, in lexicographic order.
        weight: the weight of each edge.
        start: where each edge's entries start, with the end appended.
        low: the subscription of u of each entry, by ascending topic within an edge.
        high: the subscription of v of each entry.
        topic: the topic of each entry.
    """

    edges: NDArray[np.int32]
    weight: NDArray[np.float64]
    start: NDArray[np.int64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    topic: NDArray[np.int32]


def candidates_of(interest: Interest, weights: Weights, codes: NDArray[np.int64]) -> Candidates:
    """The candidates given by their codes `u * nodes + v`, ascending."""
    edges = np.stack(np.divmod(codes, max(interest.node_count, 1)), axis=1).astype(np.int32)
    start, low, high, topic = _shared(interest.topic_start, interest.topics, places_of(interest), edges)
    return Candidates(edges, weights.of(edges[:, 0], edges[:, 1]), start, low, high, topic)


def codes_of(edges: NDArray[np.int32], nodes: int) -> NDArray[np.int64]:
    """One number an edge, in the order of `(u, v)`."""
    return edges[:, 0].astype(np.int64) * nodes + edges[:, 1]


def places_of(interest: Interest) -> NDArray[np.int32]:
    """Where each subscription of `interest.topics` stands in `interest.nodes`."""
    return _places(interest.topics, interest.node_start)


@kernel
def _places(topics: NDArray[np.int32], node_start: NDArray[np.int64]) -> NDArray[np.int32]:
    place = np.empty(len(topics), np.int32)
    filled = node_start.copy()
    for i in range(len(topics)):
        place[i] = filled[topics[i]]
        filled[topics[i]] += 1
    return place


@kernel
def _shared(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    place: NDArray[np.int32],
    edges: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """The entries of each edge: where they start, the subscriptions of both ends, the topic."""
    most = np.int64(0)
    for e in range(len(edges)):
        u, v = edges[e, 0], edges[e, 1]
        most += min(topic_start[u + 1] - topic_start[u], topic_start[v + 1] - topic_start[v])
    start = np.zeros(len(edges) + 1, np.int64)
    low, high, topic = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.int32)
    count = 0
    for e in range(len(edges)):
        i, j = topic_start[edges[e, 0]], topic_start[edges[e, 1]]
        i_end, j_end = topic_start[edges[e, 0] + 1], topic_start[edges[e, 1] + 1]
        while i < i_end and j < j_end:
            x, y = topics[i], topics[j]
            if x == y:
                low[count], high[count], topic[count] = place[i], place[j], x
                count += 1
            i += x <= y
            j += y <= x
        start[e + 1] = count
    return start, low[:count], high[:count], topic[:count]
