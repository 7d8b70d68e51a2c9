"""Partition inequalities: into k parts cut, a topic's subscribers need k - 1 chosen edges between the parts.

For each topic these inequalities describe what dominates a mixture of spanning trees, so the linear
relaxation that has them all is worth as much as the best Lagrangian bound.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel

# Flows are sums of the solver's doubles: less than this is nothing.
EPSILON = 1e-9


@kernel
def most_violated_partition(x: NDArray[np.float64]) -> NDArray[np.int64]:
    """The partition for which (parts - 1) - (x between parts) is largest; x is a symmetric matrix.

    Greedy on a polymatroid (Cunningham 1985): give each edge in turn as much of its x as the forest
    inequalities z(E(S)) <= |S| - 1 leave it. Where a set S becomes tight, shrink it to one node. What
    remains are the parts. Costs a minimum cut on the shrunk graph for each edge between parts.
    """
    n = len(x)
    part = np.arange(n)
    z, room, before = np.zeros((n, n)), np.empty((n + 2, n + 2)), np.empty(n + 2, np.int64)
    for u in range(n):
        for v in range(u + 1, n):
            a, b = part[u], part[v]
            if x[u, v] <= EPSILON or a == b:
                continue
            slack = _least_slack(z, part, a, b, room, before)
            z[a, b] += min(x[u, v], slack)
            z[b, a] = z[a, b]
            if slack <= x[u, v] + EPSILON:
                _shrink(z, part, before)
    return part


@kernel
def _least_slack(
    z: NDArray[np.float64],
    part: NDArray[np.int64],
    a: int,
    b: int,
    room: NDArray[np.float64],
    before: NDArray[np.int64],
) -> float:
    """The least |S| - 1 - z(E(S)) over the sets S of parts with a and b in it; `before` tells such a set.

    Twice |S| - z(E(S)) is the sum over S of (2 - degree), plus what leaves S: a minimum cut. The nodes of S
    are those that can still be reached from the source when the flow is greatest.
    """
    n = len(part)
    source, sink = n, n + 1
    for i in range(n + 2):
        for j in range(n + 2):
            room[i, j] = z[i, j] if i < n and j < n else 0.0
    total = 0.0
    for i in range(n):
        if part[i] == i:
            surplus = _degree(z, i) - 2.0
            total -= max(surplus, 0.0)
            room[source, i] = np.inf if i in (a, b) else max(surplus, 0.0)
            room[i, sink] = max(-surplus, 0.0)
    while _find_path(room, source, sink, before):
        total += _push(room, source, sink, before)
    return total / 2 - 1


@kernel
def _degree(z: NDArray[np.float64], i: int) -> float:
    """What z gives to the edges of a node."""
    total = 0.0
    for j in range(len(z)):
        total += z[i, j]
    return total


@kernel
def _find_path(room: NDArray[np.float64], source: int, sink: int, before: NDArray[np.int64]) -> bool:
    """Whether there is room for more flow: a shortest path, by the node before each; -1 where none leads."""
    n = len(room)
    queue = np.empty(n, np.int64)
    for i in range(n):
        before[i] = -1
    before[source] = source
    queue[0], head, tail = source, 0, 1
    while head < tail and before[sink] < 0:
        i = queue[head]
        head += 1
        for j in range(n):
            if before[j] < 0 and room[i, j] > EPSILON:
                before[j] = i
                queue[tail] = j
                tail += 1
    return before[sink] >= 0


@kernel
def _push(room: NDArray[np.float64], source: int, sink: int, before: NDArray[np.int64]) -> float:
    """Push as much flow along the path as there is room."""
    push, j = np.inf, sink
    while j != source:
        push = min(push, room[before[j], j])
        j = before[j]
    j = sink
    while j != source:
        room[before[j], j] -= push
        room[j, before[j]] += push
        j = before[j]
    return push


@kernel
def _shrink(z: NDArray[np.float64], part: NDArray[np.int64], before: NDArray[np.int64]) -> None:
    """Make one part of those that were reached, at the place of the first."""
    n, first = len(part), 0
    while before[first] < 0:
        first += 1
    for i in range(first + 1, n):
        if before[i] >= 0:
            for j in range(n):
                z[first, j] += z[i, j]
                z[j, first] += z[j, i]
                z[i, j] = z[j, i] = 0.0
    z[first, first] = 0.0
    for i in range(n):
        if before[part[i]] >= 0:
            part[i] = first
