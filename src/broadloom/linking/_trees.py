"""The minimum spanning tree of every topic under its own weights (Boruvka, with contraction)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import inner_kernel, kernel
from broadloom.linking._candidates import Candidates


class Entries(NamedTuple):
    """The entries of candidate edges, topic after topic.

    Attributes:
        node_start: where each topic's subscribers start, with the end appended.
        start: where each topic's entries start, with the end appended.
        origin: the number of each entry among the candidates' own.
        edge: the edge of each entry.
        low: one end of each entry, counted among the topic's subscribers.
        high: its other end.
    """

    node_start: NDArray[np.int64]
    start: NDArray[np.int64]
    origin: NDArray[np.int64]
    edge: NDArray[np.int32]
    low: NDArray[np.int32]
    high: NDArray[np.int32]


class Workspace(NamedTuple):
    """What the search of one tree writes on: the entries left, and what is known of each component."""

    weight: NDArray[np.float64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    entry: NDArray[np.int64]
    least: NDArray[np.float64]
    best: NDArray[np.int32]
    label: NDArray[np.int32]


@kernel
def entries_by_topic(candidates: Candidates, node_start: NDArray[np.int64]) -> Entries:
    """The candidates' entries, topic after topic, in the order of the edges within a topic."""
    total, topics = len(candidates.topic), len(node_start) - 1
    start = np.zeros(topics + 1, np.int64)
    for k in range(total):
        start[candidates.topic[k] + 1] += 1
    for t in range(topics):
        start[t + 1] += start[t]
    origin, edge = np.empty(total, np.int64), np.empty(total, np.int32)
    low, high = np.empty(total, np.int32), np.empty(total, np.int32)
    filled = start.copy()
    for e in range(len(candidates.edges)):
        for k in range(candidates.start[e], candidates.start[e + 1]):
            t = candidates.topic[k]
            at = filled[t]
            filled[t] += 1
            origin[at], edge[at] = k, e
            low[at], high[at] = candidates.low[k] - node_start[t], candidates.high[k] - node_start[t]
    return Entries(node_start, start, origin, edge, low, high)


@kernel
def workspace_for(entries: Entries) -> Workspace:
    """A workspace that is large enough for every topic."""
    most_nodes, most_entries = 1, 1
    for t in range(len(entries.start) - 1):
        most_nodes = max(most_nodes, entries.node_start[t + 1] - entries.node_start[t])
        most_entries = max(most_entries, entries.start[t + 1] - entries.start[t])
    return Workspace(
        np.empty(most_entries),
        np.empty(most_entries, np.int32),
        np.empty(most_entries, np.int32),
        np.empty(most_entries, np.int64),
        np.empty(most_nodes),
        np.empty(most_nodes, np.int32),
        np.empty(most_nodes, np.int32),
    )


@kernel
def minimum_trees(entries: Entries, weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """The entries in the topics' minimum spanning trees; each topic must be connected by its entries."""
    workspace = workspace_for(entries)
    tree = np.empty(entries.node_start[-1], np.int64)
    count = 0
    for t in range(len(entries.start) - 1):
        count += minimum_tree(entries, t, weight, workspace, tree[count:])
    return tree[:count].copy()


@kernel
def minimum_tree(
    entries: Entries, t: int, weight: NDArray[np.float64], work: Workspace, tree: NDArray[np.int64]
) -> int:
    """Write the entries of the topic's minimum spanning tree to `tree`; how many there are.

    Rounds of Boruvka: each component takes its lightest entry, the first one among equals, and entries
    inside a component are dropped. The least weights are found without a branch, and only then the entries
    that have them: the processor cannot guess the outcome of the comparisons.
    """
    components = entries.node_start[t + 1] - entries.node_start[t]
    if components < 2:
        return 0
    left = _fetch(entries, t, weight, work, components)
    count = 0
    while True:
        _find_lightest(work, components, left)
        count = _take_lightest(work, components, tree, count)
        components = _number_components(work, components)
        if components == 1:
            return count
        left = _contract(work, components, left)


@inner_kernel
def _fetch(entries: Entries, t: int, weight: NDArray[np.float64], work: Workspace, components: int) -> int:
    """Copy the topic's entries, with the least weight at each of its subscribers; how many entries."""
    for c in range(components):
        work.least[c] = np.inf
    first = entries.start[t]
    count = entries.start[t + 1] - first
    for i in range(count):
        w, x, y = weight[first + i], entries.low[first + i], entries.high[first + i]
        work.weight[i], work.low[i], work.high[i], work.entry[i] = w, x, y, first + i
        work.least[x] = min(work.least[x], w)
        work.least[y] = min(work.least[y], w)
    return count


@inner_kernel
def _find_lightest(work: Workspace, components: int, left: int) -> None:
    """The first entry that has the least weight of each component."""
    for c in range(components):
        work.best[c] = -1
    for i in range(left):
        w, x, y = work.weight[i], work.low[i], work.high[i]
        if w == work.least[x] and work.best[x] < 0:
            work.best[x] = i
        if w == work.least[y] and work.best[y] < 0:
            work.best[y] = i


@inner_kernel
def _take_lightest(work: Workspace, components: int, tree: NDArray[np.int64], count: int) -> int:
    """Hang each component on the other end of its lightest entry; of two that chose the same, one stays."""
    for c in range(components):
        i = work.best[c]
        other = work.low[i] + work.high[i] - c
        if work.best[other] == i and c < other:
            work.label[c] = c
        else:
            work.label[c] = other
            tree[count] = work.entry[i]
            count += 1
    return count


@inner_kernel
def _number_components(work: Workspace, components: int) -> int:
    """Label everything with its new component, numbered from 0; how many there are."""
    for c in range(components):
        root = c
        while work.label[root] != root:
            root = work.label[root]
        below = c
        while work.label[below] != root:
            above = work.label[below]
            work.label[below] = root
            below = above
    count = 0
    for c in range(components):
        if work.label[c] == c:
            work.best[c] = count
            count += 1
    for c in range(components):
        work.label[c] = work.best[work.label[c]]
    return count


@inner_kernel
def _contract(work: Workspace, components: int, left: int) -> int:
    """Drop the entries inside a component, and note the least weight at each one; how many are left."""
    for c in range(components):
        work.least[c] = np.inf
    kept = 0
    for i in range(left):
        x, y, w = work.label[work.low[i]], work.label[work.high[i]], work.weight[i]
        work.low[kept], work.high[kept], work.weight[kept], work.entry[kept] = x, y, w, work.entry[i]
        at_ends = w if x != y else np.inf
        work.least[x] = min(work.least[x], at_ends)
        work.least[y] = min(work.least[y], at_ends)
        kept += x != y
    return kept
