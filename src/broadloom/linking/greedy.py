"""Greedy overlays: GM (papers 1 and 2) adds the edge with the highest contribution."""

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import kernel
from broadloom.linking._built import Built
from broadloom.model import Interest, Weights
from broadloom.model.algorithm import NoOptions


def gm(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:  # noqa: ARG001
    """Add the edge with the highest contribution, the smallest `(u, v)` among equals, until none has any.

    Contributions never rise, so the order is one sweep over the pairs for each level from the highest to 1.
    """
    return Built(_sweep_levels(interest.topic_start, interest.topics, interest.node_start, interest.nodes))


@kernel
def _sweep_levels(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    node_start: NDArray[np.int64],
    nodes: NDArray[np.int32],
) -> NDArray[np.int32]:
    """Edges of GM: at each level add every pair whose contribution is still that high when it is reached."""
    n = len(topic_start) - 1
    level = 0
    label = np.empty(len(topics), np.int32)
    for u in range(n):
        label[topic_start[u] : topic_start[u + 1]] = u
    for u in range(n):
        level = max(level, topic_start[u + 1] - topic_start[u])
    edges = [(np.int32(0), np.int32(0)) for _ in range(0)]
    while level > 0:
        for u in range(n):
            for v in range(u + 1, n):
                if _contribution(topic_start, topics, label, u, v) == level:
                    edges.append((np.int32(u), np.int32(v)))
                    _merge(topic_start, topics, node_start, nodes, label, u, v)
        level -= 1
    result = np.empty((len(edges), 2), np.int32)
    for i, edge in enumerate(edges):
        result[i, 0], result[i, 1] = edge
    return result


@kernel
def _contribution(
    topic_start: NDArray[np.int64], topics: NDArray[np.int32], label: NDArray[np.int32], u: int, v: int
) -> int:
    """How many topics u and v share in which they are in different components."""
    i, j, count = topic_start[u], topic_start[v], 0
    while i < topic_start[u + 1] and j < topic_start[v + 1]:
        if topics[i] == topics[j]:
            count += label[i] != label[j]
            i += 1
            j += 1
        elif topics[i] < topics[j]:
            i += 1
        else:
            j += 1
    return count


@kernel
def _merge(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    node_start: NDArray[np.int64],
    nodes: NDArray[np.int32],
    label: NDArray[np.int32],
    u: int,
    v: int,
) -> None:
    """Join the components of u and v in every topic that they share."""
    for i in range(topic_start[u], topic_start[u + 1]):
        j = topic_start[v] + np.searchsorted(topics[topic_start[v] : topic_start[v + 1]], topics[i])
        if j == topic_start[v + 1] or topics[j] != topics[i] or label[i] == label[j]:
            continue
        new, old = label[i], label[j]
        for k in range(node_start[topics[i]], node_start[topics[i] + 1]):
            w = nodes[k]
            at = topic_start[w] + np.searchsorted(topics[topic_start[w] : topic_start[w + 1]], topics[i])
            if label[at] == old:
                label[at] = new
