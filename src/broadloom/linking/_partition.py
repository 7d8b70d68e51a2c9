"""Partition inequalities: into k parts cut, a topic's subscribers need k - 1 chosen edges between the parts.

For each topic these inequalities describe what dominates a mixture of spanning trees, so the linear
relaxation that has them all is worth as much as the best Lagrangian bound.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom._jit import kernel

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
    z = np.zeros((n, n))
    for u in range(n):
        for v in range(u + 1, n):
            if x[u, v] <= EPSILON or part[u] == part[v]:
                continue
            slack, tight = _least_slack(z, part, part[u], part[v])
            z[part[u], part[v]] += min(x[u, v], slack)
            z[part[v], part[u]] = z[part[u], part[v]]
            if slack <= x[u, v] + EPSILON:
                _shrink(z, part, tight)
    return part


@kernel
def _least_slack(
    z: NDArray[np.float64], part: NDArray[np.int64], a: int, b: int
) -> tuple[float, NDArray[np.bool_]]:
    """The least |S| - 1 - z(E(S)) over the sets S of parts with a and b in it, and such a set.

    Twice |S| - z(E(S)) is the sum over S of (2 - degree), plus what leaves S: a minimum cut.
    """
    n = len(part)
    source, sink = n, n + 1
    room = np.zeros((n + 2, n + 2))
    room[:n, :n] = z
    offset = 0.0
    for i in range(n):
        if part[i] == i:
            surplus = z[i].sum() - 2.0
            offset -= max(surplus, 0.0)
            room[source, i] = max(surplus, 0.0)
            room[i, sink] = max(-surplus, 0.0)
    room[source, a] = room[source, b] = np.inf
    flow = _push_all(room, source, sink)
    return (flow + offset) / 2 - 1, _reached(room, source)[:n]


@kernel
def _push_all(room: NDArray[np.float64], source: int, sink: int) -> float:
    """Push flow along shortest augmenting paths until there is none; `room` becomes the residual graph."""
    total = 0.0
    n = len(room)
    before = np.empty(n, np.int64)
    queue = np.empty(n, np.int64)
    while True:
        before[:] = -1
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
        if before[sink] < 0:
            return total
        push, j = np.inf, sink
        while j != source:
            push = min(push, room[before[j], j])
            j = before[j]
        j = sink
        while j != source:
            room[before[j], j] -= push
            room[j, before[j]] += push
            j = before[j]
        total += push


@kernel
def _reached(room: NDArray[np.float64], source: int) -> NDArray[np.bool_]:
    """The nodes to which the residual graph still leads."""
    reached = np.zeros(len(room), np.bool_)
    reached[source] = True
    stack = [source]
    while len(stack) > 0:
        i = stack.pop()
        for j in range(len(room)):
            if not reached[j] and room[i, j] > EPSILON:
                reached[j] = True
                stack.append(j)
    return reached


@kernel
def _shrink(z: NDArray[np.float64], part: NDArray[np.int64], tight: NDArray[np.bool_]) -> None:
    """Make one part of the tight ones, at the place of the first."""
    first = np.flatnonzero(tight)[0]
    for i in range(len(part)):
        if tight[i] and i != first and part[i] == i:
            z[first] += z[i]
            z[:, first] += z[:, i]
            z[i] = 0.0
            z[:, i] = 0.0
    z[first, first] = 0.0
    for i in range(len(part)):
        if tight[part[i]]:
            part[i] = first
