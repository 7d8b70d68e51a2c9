"""Repair of topic-connectedness after a change: constructLowEdges (paper 3, Alg. 2 to 10)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import bit_of, inner_kernel, kernel, popcount
from broadloom.linking import DegreeRule, grow
from broadloom.linking.topic_components import (
    TO_MERGE,
    Components,
    join_subscriptions,
    separate_components,
)
from broadloom.maintenance._overlay_arrays import (
    AFTER,
    BACKUPS,
    MARKS,
    MAX_DEGREE,
    NODES,
    NOTHING,
    OTHER,
    PRINTED,
    OverlayArrays,
    build_backups,
    degree_of,
    half_towards,
    link,
    listed,
    subscribe,
    topics_of,
    unlink,
    unsubscribe,
    wants,
)
from broadloom.model import WeightArrays, weight_of


class RepairRules(NamedTuple):
    """Rules by which edges and backups are chosen.

    Attributes:
        naive: candidates are all nodes, and there are no backups.
        cover: the rule for backups: 0 Alg. 12, 1 Alg. 11, 2 Alg. 12 with line 8 as printed.
        by_weight: edges by the least weight per contribution, not by the rule of low degree.
        rho: how many times worse than the best edge the chosen one can be, to keep the maximum degree low.
        coverage: how often the backups of a node cover each of its topics.
    """

    naive: bool
    cover: int
    by_weight: bool
    rho: float
    coverage: int


class BrokenTopics(NamedTuple):
    """The topics that a change disconnected, and their components.

    Attributes:
        near: the neighbours of the node that left the topics, ascending.
        shadow: the nodes between which edges can be added, ascending.
        labels: per disconnected topic and node of the shadow, its component; -1: not a subscriber.
        parts: per disconnected topic, the number of its components.
    """

    near: NDArray[np.int32]
    shadow: NDArray[np.int32]
    labels: NDArray[np.int32]
    parts: NDArray[np.int32]


@kernel
def attach(
    w: OverlayArrays, weights: WeightArrays, rules: RepairRules, v: int, topics: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Subscribe v to topics and connect it in each (Alg. 3, 9 and 10): the added edges, and the candidates.

    All other subscribers of these topics are connected. So v is connected in a topic if it is its only
    subscriber, or if a neighbour has the topic too.
    """
    for t in topics:
        subscribe(w, v, t)
    if rules.naive:
        candidates = _all_but(w, v)
    else:
        build_backups(w, rules.coverage, rules.cover, v)
        candidates = listed(w.backups, BACKUPS, v)
    rest = np.zeros(w.bits.shape[1], np.uint64)
    for t in topics:
        if w.size[t] > 1:
            rest[t >> 6] |= bit_of(t)
    half = w.links.heads[0, v]
    while half != NOTHING:
        for k in range(len(rest)):
            rest[k] &= ~w.bits[w.links.halves[half, OTHER], k]
        half = w.links.halves[half, AFTER]
    added = _connect_star(w, weights, rules, v, candidates, rest)
    if rules.cover == PRINTED:  # its backups can miss topics
        added = np.concatenate((added, _connect_star(w, weights, rules, v, _all_but(w, v), rest)))
    return added, candidates


@kernel
def _all_but(w: OverlayArrays, v: int) -> NDArray[np.int32]:
    others = np.arange(w.tally[NODES] - 1).astype(np.int32)
    for i in range(v, len(others)):
        others[i] += 1
    return others


@kernel
def _connect_star(
    w: OverlayArrays,
    weights: WeightArrays,
    rules: RepairRules,
    v: int,
    candidates: NDArray[np.int32],
    rest: NDArray[np.uint64],
) -> NDArray[np.int32]:
    """Link v to candidates until it is connected in the topics of `rest`; the edges, in order."""
    ends = np.empty((len(candidates), 2), np.int32)
    mu = np.empty(len(candidates), np.int32)
    for i in range(len(candidates)):
        ends[i, 0] = min(v, candidates[i])
        ends[i, 1] = max(v, candidates[i])
        mu[i] = _shared(w, rest, candidates[i])
    added = np.empty((len(candidates), 2), np.int32)
    count = 0
    while True:
        chosen = _best(w, weights, rules, ends, mu)
        if chosen == NOTHING:
            return added[:count]
        link(w, ends[chosen, 0], ends[chosen, 1])
        added[count] = ends[chosen]
        count += 1
        for k in range(len(rest)):
            rest[k] &= ~w.bits[candidates[chosen], k]
        for i in range(len(candidates)):
            if mu[i] > 0:
                mu[i] = _shared(w, rest, candidates[i])


@inner_kernel
def _shared(w: OverlayArrays, rest: NDArray[np.uint64], u: int) -> int:
    count = 0
    for k in range(len(rest)):
        count += popcount(rest[k] & w.bits[u, k])
    return count


@inner_kernel
def _best(
    w: OverlayArrays,
    weights: WeightArrays,
    rules: RepairRules,
    ends: NDArray[np.int32],
    mu: NDArray[np.int32],
) -> int:
    """The candidate to add; candidates ascend, so of equal ones the first is the smallest edge."""
    if rules.by_weight:
        return _lightest(weights, ends, mu)
    most = w.tally[MAX_DEGREE]
    e1 = e2 = NOTHING
    mu1 = mu2 = 0
    for i in range(len(mu)):
        if mu[i] > mu2:
            e2 = i
            mu2 = mu[i]
        if mu[i] > mu1 and degree_of(w, ends[i, 0]) < most and degree_of(w, ends[i, 1]) < most:
            e1 = i
            mu1 = mu[i]
    return e1 if e1 != NOTHING and mu1 * rules.rho >= mu2 else e2


@inner_kernel
def _lightest(weights: WeightArrays, ends: NDArray[np.int32], mu: NDArray[np.int32]) -> int:
    """The candidate of the least weight per contribution."""
    best = NOTHING
    least = np.inf
    for i in range(len(mu)):
        if mu[i] > 0:
            key = weight_of(weights, ends[i, 0], ends[i, 1]) / mu[i]
            if key < least:
                best = i
                least = key
    return best


@kernel
def detach(
    w: OverlayArrays, rules: RepairRules, v: int, topics: NDArray[np.int32], leaves: bool
) -> BrokenTopics:
    """Unsubscribe v from topics, and unlink it if it leaves; the topics that this disconnects."""
    near = listed(w.links, 0, v)
    if rules.naive:
        shadow = _all_but(w, v)
    else:
        backups = listed(w.backups, BACKUPS, v)
        shadow = _union(near, backups)
    for t in topics:
        unsubscribe(w, v, t)
    while leaves and w.links.heads[0, v] != NOTHING:
        unlink(w, w.links.heads[0, v])
    return split(w, near, topics, shadow)


@kernel
def _union(one: NDArray[np.int32], other: NDArray[np.int32]) -> NDArray[np.int32]:
    """The union of two ascending lists, ascending."""
    union = np.empty(len(one) + len(other), np.int32)
    count = 0
    i = 0
    j = 0
    while i < len(one) or j < len(other):
        if j == len(other) or (i < len(one) and one[i] <= other[j]):
            j += j < len(other) and one[i] == other[j]
            union[count] = one[i]
            i += 1
        else:
            union[count] = other[j]
            j += 1
        count += 1
    return union[:count].copy()


@kernel
def split(
    w: OverlayArrays, near: NDArray[np.int32], topics: NDArray[np.int32], shadow: NDArray[np.int32]
) -> BrokenTopics:
    """The topics that are disconnected after a node with these neighbours has left them."""
    labels = np.empty((len(topics), len(shadow)), np.int32)
    parts = np.empty(len(topics), np.int32)
    broken = 0
    root = np.empty(len(near), np.int32)
    waiting = np.empty(len(near), np.int32)
    for t in topics:
        before = w.tally[MARKS]
        count, rest = _components(w, near, t, root, waiting)
        if count > 1:
            for i in range(len(shadow)):
                u = shadow[i]
                labels[broken, i] = _root(root, w.mark[u] - before - 1) if w.mark[u] > before else rest
                if not wants(w, u, t):
                    labels[broken, i] = NOTHING
            parts[broken] = count
            broken += 1
    return BrokenTopics(near, shadow, labels[:broken].copy(), parts[:broken].copy())


@inner_kernel
def _components(
    w: OverlayArrays, near: NDArray[np.int32], t: int, root: NDArray[np.int32], waiting: NDArray[np.int32]
) -> tuple[int, int]:
    """The number of components of topic t, and the component of the nodes without a mark.

    Each component contains a neighbour. Searches from all neighbours run in turns until they have met, or
    all but one are finished: usually long before the largest component is searched.

    Args:
        w: the overlay.
        near: the neighbours of the node that left the topic.
        t: the topic.
        root: output: a forest over the searches; those that have met are in one tree.
        waiting: output: per root, the number of nodes in the queue of its searches.
    """
    before = w.tally[MARKS]
    count = 0
    tail = 0
    waiting[:] = 0
    for u in near:
        if wants(w, u, t):
            w.tally[MARKS] += 1
            w.mark[u] = w.tally[MARKS]
            w.queue[tail] = u
            root[count] = count
            waiting[count] = 1
            count += 1
            tail += 1
    searching = count
    head = 0
    while searching > 1:
        x = w.queue[head]
        head += 1
        own = _root(root, w.mark[x] - before - 1)
        half = w.links.heads[0, x]
        while half != NOTHING:
            y = w.links.halves[half, OTHER]
            half = w.links.halves[half, AFTER]
            if not wants(w, y, t):
                continue
            if w.mark[y] <= before:
                w.mark[y] = w.mark[x]
                w.queue[tail] = y
                waiting[own] += 1
                tail += 1
                continue
            other = _root(root, w.mark[y] - before - 1)
            if other != own:
                root[other] = own
                waiting[own] += waiting[other]
                waiting[other] = 0
                count -= 1
                searching -= 1
        waiting[own] -= 1
        searching -= waiting[own] == 0
    return count, int(waiting.argmax()) if count > 1 else 0


@inner_kernel
def _root(root: NDArray[np.int32], i: int) -> int:
    """The root of the tree of i."""
    while root[i] != i:
        i = root[i]
    return i


@inner_kernel
def _is_connected(w: OverlayArrays, u: int, v: int, t: int) -> bool:
    """Whether a path of subscribers of topic t leads from u to v."""
    w.tally[MARKS] += 1
    mark = w.tally[MARKS]
    w.mark[u] = mark
    w.queue[0] = u
    head = 0
    tail = 1
    while head < tail and w.mark[v] != mark:
        half = w.links.heads[0, w.queue[head]]
        head += 1
        while half != NOTHING:
            x = w.links.halves[half, OTHER]
            if w.mark[x] != mark and wants(w, x, t):
                w.mark[x] = mark
                w.queue[tail] = x
                tail += 1
            half = w.links.halves[half, AFTER]
    return w.mark[v] == mark


@kernel
def connect_pairs(
    w: OverlayArrays,
    weights: WeightArrays,
    rules: RepairRules,
    shadow: NDArray[np.int32],
    labels: NDArray[np.int32],
) -> tuple[NDArray[np.int32], int]:
    """Link nodes of the shadow until no pair contributes (Alg. 2): the edges, and the number of merges.

    A table maps each pair of the shadow to its candidate, so that merging two components takes one step per
    pair between them. The labels are overwritten.
    """
    s = len(shadow)
    merged = 0
    table = np.zeros((s, s), np.int32)
    for d in range(len(labels)):
        _count_contributions(labels[d], table)
    count = int(np.count_nonzero(table))
    pair = np.empty((count, 2), np.int32)
    ends = np.empty((count, 2), np.int32)
    mu = np.empty(count, np.int32)
    added = np.empty((count, 2), np.int32)
    many = 0
    count = 0
    for i in range(s):
        for j in range(i + 1, s):
            if table[i, j] > 0:
                pair[count, 0] = i
                pair[count, 1] = j
                ends[count, 0] = shadow[i]
                ends[count, 1] = shadow[j]
                mu[count] = table[i, j]
                table[i, j] = count
                count += 1
    while True:
        chosen = _best(w, weights, rules, ends, mu)
        if chosen == NOTHING:
            return added[:many].copy(), merged
        link(w, ends[chosen, 0], ends[chosen, 1])
        added[many] = ends[chosen]
        many += 1
        for d in range(len(labels)):
            merged += _merge(labels[d], pair[chosen, 0], pair[chosen, 1], table, mu)


@kernel
def _count_contributions(label: NDArray[np.int32], table: NDArray[np.int32]) -> None:
    """Add 1 for each pair, i < j, whose nodes are in different components of a topic.

    At least one of the two is outside of the largest component, and few nodes are.
    """
    sizes = np.zeros(label.max() + 1, np.int32)
    for i in range(len(label)):
        if label[i] != NOTHING:
            sizes[label[i]] += 1
    largest = sizes.argmax()
    for i in range(len(label)):
        if label[i] != NOTHING and label[i] != largest:
            for j in range(len(label)):
                if label[j] == largest or (j > i and label[j] != NOTHING and label[j] != label[i]):
                    table[min(i, j), max(i, j)] += 1


@inner_kernel
def _merge(label: NDArray[np.int32], i: int, j: int, table: NDArray[np.int32], mu: NDArray[np.int32]) -> int:
    """Merge the components of i and j in a topic; 1 if there were two, else 0."""
    into = label[i]
    gone = label[j]
    if min(into, gone) == NOTHING or into == gone:
        return 0
    for x in range(len(label)):
        if label[x] == into:
            for y in range(len(label)):
                if label[y] == gone:
                    mu[table[min(x, y), max(x, y)]] -= 1
    for y in range(len(label)):
        if label[y] == gone:
            label[y] = into
    return 1


@kernel
def prune(w: OverlayArrays, v: int, suspects: NDArray[np.int32]) -> NDArray[np.int32]:
    """Remove those links from v to suspects that no topic needs any more; the other ends, in order."""
    removed = np.empty(len(suspects), np.int32)
    count = 0
    topics = topics_of(w, v)
    for u in suspects:
        unlink(w, half_towards(w, v, u))
        for t in topics:
            if wants(w, u, t) and not _is_connected(w, v, u, t):
                link(w, min(u, v), max(u, v))
                break
        else:
            removed[count] = u
            count += 1
    return removed[:count].copy()


@kernel
def link_all(w: OverlayArrays, edges: NDArray[np.int32]) -> None:
    """Add these edges."""
    for e in range(len(edges)):
        link(w, edges[e, 0], edges[e, 1])


def edges_among_many(
    arrays: OverlayArrays,
    weights: WeightArrays,
    rules: RepairRules,
    nodes: NDArray[np.int32],
    labels: NDArray[np.int32],
) -> tuple[NDArray[np.int32], int]:
    """The edges that `connect_pairs` would add, without a table of all pairs, and the number of merges."""
    has = (labels >= 0).T
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(has.sum(axis=1), dtype=np.int64)))
    components = separate_components(start, np.nonzero(has)[1].astype(np.int32), len(labels))
    shared = has.sum(axis=0) > 1
    label = labels.T[:, shared][has[:, shared]]
    _join_labels(components, label, np.full((len(labels), int(labels.max()) + 1), -1))
    to_merge = components.tally[TO_MERGE]
    k = 0.0 if rules.by_weight else rules.rho
    degree = arrays.links.sizes[0, nodes].astype(np.int64)
    rule = DegreeRule(float(k), limit=len(arrays.mark), most=int(arrays.tally[MAX_DEGREE]))
    edges = grow(components, _among(weights, nodes), rule, degree)
    return nodes[edges], int(to_merge - components.tally[TO_MERGE])


@kernel
def _join_labels(c: Components, label: NDArray[np.int32], first: NDArray[np.int64]) -> None:
    """Join the subscriptions of a topic with the same label; `first` has the first one of each label."""
    for i in range(len(c.topics)):
        leader = first[c.topics[i], label[i]]
        if leader < 0:
            first[c.topics[i], label[i]] = i
        else:
            c.tally[TO_MERGE] -= join_subscriptions(c, leader, i)


def _among(weights: WeightArrays, nodes: NDArray[np.int32]) -> WeightArrays:
    """The weights among some of the nodes."""
    dense = len(weights.site) == 0 and len(weights.table) > 0
    return weights._replace(
        table=weights.table[np.ix_(nodes, nodes)] if dense else weights.table,
        points=weights.points[nodes] if len(weights.points) else weights.points,
        site=weights.site[nodes] if len(weights.site) else weights.site,
    )
