"""Minimum spanning trees of the topics over candidate edges, and the heights at which they join two nodes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import inner_kernel, kernel
from broadloom.linking._candidate_edges import Candidates


class TopicEntries(NamedTuple):
    """The entries of candidate edges, topic after topic.

    Attributes:
        node_start: the start of each topic's subscribers, with the end appended.
        start: the start of each topic's entries, with the end appended.
        origin: the index of each entry among the candidates' entries.
        edge: the edge of each entry.
        low: one end of each entry, as an index of the topic's subscribers.
        high: its other end.
    """

    node_start: NDArray[np.int64]
    start: NDArray[np.int64]
    origin: NDArray[np.int64]
    edge: NDArray[np.int32]
    low: NDArray[np.int32]
    high: NDArray[np.int32]


class TreeWorkspace(NamedTuple):
    """Buffers for one tree: the remaining entries, and the lightest entry and label of each component."""

    weight: NDArray[np.float64]
    height: NDArray[np.float64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    entry: NDArray[np.int64]
    least: NDArray[np.float64]
    joined_at: NDArray[np.float64]
    best: NDArray[np.int32]
    label: NDArray[np.int32]


@kernel
def entries_by_topic(candidates: Candidates, node_start: NDArray[np.int64]) -> TopicEntries:
    """The candidates' entries, topic after topic, in the order of the edges within a topic."""
    total = len(candidates.topic)
    topics = len(node_start) - 1
    start = np.zeros(topics + 1, np.int64)
    for k in range(total):
        start[candidates.topic[k] + 1] += 1
    for t in range(topics):
        start[t + 1] += start[t]
    origin = np.empty(total, np.int64)
    edge = np.empty(total, np.int32)
    low, high = np.empty(total, np.int32), np.empty(total, np.int32)
    filled = start.copy()
    for e in range(len(candidates.edges)):
        for k in range(candidates.start[e], candidates.start[e + 1]):
            t = candidates.topic[k]
            at = filled[t]
            filled[t] += 1
            origin[at] = k
            edge[at] = e
            low[at] = candidates.low[k] - node_start[t]
            high[at] = candidates.high[k] - node_start[t]
    return TopicEntries(node_start, start, origin, edge, low, high)


@kernel
def workspace_for(entries: TopicEntries) -> TreeWorkspace:
    """A workspace large enough for every topic."""
    most_nodes = 1
    most_entries = 1
    for t in range(len(entries.start) - 1):
        most_nodes = max(most_nodes, entries.node_start[t + 1] - entries.node_start[t])
        most_entries = max(most_entries, entries.start[t + 1] - entries.start[t])
    return TreeWorkspace(
        np.empty(most_entries),
        np.empty(most_entries),
        np.empty(most_entries, np.int32),
        np.empty(most_entries, np.int32),
        np.empty(most_entries, np.int64),
        np.empty(most_nodes),
        np.empty(most_nodes),
        np.empty(most_nodes + 1, np.int32),
        np.empty(most_nodes, np.int32),
    )


@kernel
def minimum_trees(
    entries: TopicEntries, weight: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The entries in the topics' minimum spanning trees, and the height at which each one's ends are joined.

    Each topic must be connected by its entries.
    """
    workspace = workspace_for(entries)
    height = np.empty(len(weight))
    tree = np.empty(entries.node_start[-1], np.int64)
    count = 0
    for t in range(len(entries.start) - 1):
        count += minimum_tree(entries, t, weight, workspace, tree[count:], height)
    return tree[:count].copy(), height


@kernel
def minimum_tree(
    entries: TopicEntries,
    t: int,
    weight: NDArray[np.float64],
    work: TreeWorkspace,
    tree: NDArray[np.int64],
    height: NDArray[np.float64],
) -> int:
    """Write the entries of the topic's minimum spanning tree to `tree`; returns their number.

    Boruvka with contraction: each component takes its lightest entry, the first of several, and entries
    inside of a component are dropped. The least weights are found first, and then the entries that have
    them; both without a branch, which would be unpredictable.

    The height of an entry is the heaviest on the path of the tree between its ends. It is the heaviest of the
    entries that were taken by the components of its ends until these were one component (King 1997).
    """
    components = entries.node_start[t + 1] - entries.node_start[t]
    if components < 2:
        return 0
    remaining = _fetch(entries, t, weight, work, components)
    count = 0
    while components > 1:
        _find_lightest(work, components, remaining)
        count = _take_lightest(work, components, tree, count)
        for c in range(components):
            work.joined_at[c] = work.least[c]
        components = _number_components(work, components)
        remaining = _contract(work, components, remaining, height)
    return count


@inner_kernel
def _fetch(
    entries: TopicEntries, t: int, weight: NDArray[np.float64], work: TreeWorkspace, components: int
) -> int:
    """Copy the topic's entries, and note the least weight at each subscriber; the number of entries."""
    for c in range(components):
        work.least[c] = np.inf
    first = entries.start[t]
    count = entries.start[t + 1] - first
    for i in range(count):
        w = weight[first + i]
        x = entries.low[first + i]
        y = entries.high[first + i]
        work.weight[i] = w
        work.height[i] = 0.0
        work.low[i] = x
        work.high[i] = y
        work.entry[i] = first + i
        work.least[x] = min(work.least[x], w)
        work.least[y] = min(work.least[y], w)
    return count


@inner_kernel
def _find_lightest(work: TreeWorkspace, components: int, remaining: int) -> None:
    """The first entry that has the least weight of each component.

    Backwards, and what is not the least is written behind the components: without a branch.
    """
    for i in range(remaining - 1, -1, -1):
        w = work.weight[i]
        x = work.low[i]
        y = work.high[i]
        work.best[x if w == work.least[x] else components] = i
        work.best[y if w == work.least[y] else components] = i


@inner_kernel
def _take_lightest(work: TreeWorkspace, components: int, tree: NDArray[np.int64], count: int) -> int:
    """Attach each component to the other end of its lightest entry; if both chose it, one is the root."""
    for c in range(components):
        i = work.best[c]
        other = work.low[i] + work.high[i] - c
        is_root = (work.best[other] == i) & (c < other)
        work.label[c] = c if is_root else other
        tree[count] = work.entry[i]
        count += not is_root
    return count


@inner_kernel
def _number_components(work: TreeWorkspace, components: int) -> int:
    """Label each component with its new one, numbered from 0; returns the number of new ones."""
    for c in range(components):
        above = work.label[c]
        while work.label[above] != above:
            above = work.label[above]
            work.label[c] = above
    count = 0
    for c in range(components):
        work.best[c] = count
        count += work.label[c] == c
    for c in range(components):
        work.label[c] = work.best[work.label[c]]
    return count


@inner_kernel
def _contract(work: TreeWorkspace, components: int, remaining: int, height: NDArray[np.float64]) -> int:
    """Drop the entries inside of a component, and note the least weight at each; returns the number kept."""
    for c in range(components):
        work.least[c] = np.inf
    kept = 0
    for i in range(remaining):
        low = work.low[i]
        high = work.high[i]
        x = work.label[low]
        y = work.label[high]
        w = work.weight[i]
        joined_at = max(work.height[i], max(work.joined_at[low], work.joined_at[high]))
        height[work.entry[i]] = joined_at
        work.height[kept] = joined_at
        work.low[kept] = x
        work.high[kept] = y
        work.weight[kept] = w
        work.entry[kept] = work.entry[i]
        at_ends = w if x != y else np.inf
        work.least[x] = min(work.least[x], at_ends)
        work.least[y] = min(work.least[y], at_ends)
        kept += x != y
    return kept
