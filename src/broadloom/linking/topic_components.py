"""Connected components of every topic's sub-overlay, and the contributions of edges (paper 1, section VI).

For each topic one large component is its main component. Three sets of topics per node, as packed words, then
settle most pairs in a few instructions: a shared topic can only contribute if one of the two nodes is outside
of the topic's main component. It does contribute then, unless both are in the same one of its other
components.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import WORD, bit_of, inner_kernel, kernel, lowest, pack_rows, popcount
from broadloom.model import Interest

TO_MERGE = 0
EDGES_ADDED = 1
NEVER = np.iinfo(np.int32).max


class Components(NamedTuple):
    """The components of each topic with two or more subscribers; the other topics are left out.

    A component's label is the index of the subscription that it grew from. When two join, the smaller takes
    the label of the larger, so a subscription is relabelled at most log2(subscribers) times.

    Attributes:
        topic_start: the start of each node's subscriptions, with the end appended.
        topics: the topic of each subscription, ascending within a node.
        node_start: the start of each topic's nodes, with the end appended.
        nodes: the nodes of each topic, ascending.
        subscribed: per node, as words: its topics.
        outside: per node, as words: its topics whose main component it is not in.
        grouped: per node, as words: those of `outside` in which its component has other members.
        word_start: per node and word, the index of its first subscription of that word.
        owner: the node of each subscription.
        label: the component of each subscription.
        next_member: the next subscription of the same component, as a ring.
        size: the number of members of the component of this label.
        absorbed_by: the label that absorbed a label; itself if none did.
        absorbed_at: the number of edges added before the one that did it; NEVER if none did.
        entered: the number of edges added before the one that brought a subscription into its main
            component; -1 if it was there from the start.
        main: the label of each topic's main component.
        main_since: the number of edges added before the one by which another component of the topic became
            the main one; -1 if none did. Since then no subscription has left the main component.
        tally: the number of merges still to be done, and of edges added.
    """

    topic_start: NDArray[np.int64]
    topics: NDArray[np.int32]
    node_start: NDArray[np.int64]
    nodes: NDArray[np.int32]
    subscribed: NDArray[np.uint64]
    outside: NDArray[np.uint64]
    grouped: NDArray[np.uint64]
    word_start: NDArray[np.int32]
    owner: NDArray[np.int32]
    label: NDArray[np.int32]
    next_member: NDArray[np.int32]
    size: NDArray[np.int32]
    absorbed_by: NDArray[np.int32]
    absorbed_at: NDArray[np.int32]
    entered: NDArray[np.int32]
    main: NDArray[np.int32]
    main_since: NDArray[np.int32]
    tally: NDArray[np.int64]


def components_of(
    interest: Interest,
    edges: NDArray[np.int32] | None = None,
    part_of_node: NDArray[np.int32] | None = None,
) -> Components:
    """The components at the start of an algorithm.

    Args:
        interest: the topics of each node.
        edges: edges that exist already; None: no edges.
        part_of_node: a part number from 0 per node: subscribers of a topic in one part count as connected.
    """
    components = separate_components(interest.topic_start, interest.topics, interest.topic_count)
    if part_of_node is not None and len(part_of_node):
        join_parts(components, part_of_node.astype(np.int32), int(part_of_node.max()) + 1)
    if edges is not None:
        add_edges(components, edges.astype(np.int32))
    return components


def separate_components(
    topic_start: NDArray[np.int64], topics: NDArray[np.int32], topic_count: int
) -> Components:
    """Every subscription in a component of its own; the cost is linear in subscriptions and words."""
    popularity = np.bincount(topics, minlength=topic_count)
    shared = popularity > 1
    kept = shared[topics]
    number = np.cumsum(shared, dtype=np.int32) - np.int32(1)
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(kept, dtype=np.int64)))[topic_start]
    topics = number[topics[kept]]
    popularity = popularity[shared]
    subscribed = pack_rows(start, topics, (len(popularity) + WORD - 1) // WORD)
    before = np.cumsum(np.bitwise_count(subscribed), axis=1, dtype=np.int32)[:, :-1]
    word_start = np.concatenate((start[:-1, None], start[:-1, None] + before), axis=1, dtype=np.int32)
    alone = np.arange(len(topics), dtype=np.int32)
    components = Components(
        topic_start=start,
        topics=topics,
        node_start=np.concatenate((np.zeros(1, np.int64), np.cumsum(popularity))),
        nodes=np.empty(len(topics), np.int32),
        subscribed=subscribed,
        outside=subscribed.copy(),
        grouped=np.zeros_like(subscribed),
        word_start=word_start[:, : subscribed.shape[1]].copy(),
        owner=np.repeat(np.arange(len(start) - 1, dtype=np.int32), np.diff(start)),
        label=alone,
        next_member=alone.copy(),
        size=np.ones(len(topics), np.int32),
        absorbed_by=alone.copy(),
        absorbed_at=np.full(len(topics), NEVER, np.int32),
        entered=np.full(len(topics), -1, np.int32),
        main=np.empty(len(popularity), np.int32),
        main_since=np.full(len(popularity), -1, np.int32),
        tally=np.array([len(topics) - len(popularity), 0], np.int64),
    )
    _list_subscribers(components, components.node_start[:-1].copy())
    return components


@kernel
def _list_subscribers(c: Components, free: NDArray[np.int64]) -> None:
    """Fill in each topic's nodes; the component of the first one is the main one at first."""
    for i in range(len(c.topics)):
        u = c.owner[i]
        t = c.topics[i]
        if free[t] == c.node_start[t]:
            c.main[t] = i
            c.outside[u, t >> 6] &= ~bit_of(t)
        c.nodes[free[t]] = u
        free[t] += 1


@inner_kernel
def most_contribution(c: Components, u: int, v: int) -> int:
    """An upper bound on the contribution of (u, v), and nearly always the contribution itself."""
    count = 0
    for w in range(c.subscribed.shape[1]):
        count += popcount((c.outside[u, w] & c.subscribed[v, w]) | (c.subscribed[u, w] & c.outside[v, w]))
    return count


@inner_kernel
def topics_in_same_component(c: Components, u: int, v: int) -> int:
    """The number of topics in which u and v are in the same component, other than the main one."""
    count = 0
    for w in range(c.grouped.shape[1]):
        both = c.grouped[u, w] & c.grouped[v, w]
        while both:
            bit = np.uint64(1) << np.uint64(lowest(both))
            count += c.label[subscription(c, u, w, bit)] == c.label[subscription(c, v, w, bit)]
            both ^= bit
    return count


@inner_kernel
def least_in_same_component(c: Components, u: int, v: int) -> int:
    """A lower bound on `topics_in_same_component`, and faster: 0 if they are apart in the first topic."""
    for w in range(c.grouped.shape[1]):
        both = c.grouped[u, w] & c.grouped[v, w]
        if both:
            bit = np.uint64(1) << np.uint64(lowest(both))
            if c.label[subscription(c, u, w, bit)] == c.label[subscription(c, v, w, bit)]:
                return topics_in_same_component(c, u, v)
            return 0
    return 0


@inner_kernel
def contribution(c: Components, u: int, v: int) -> int:
    """The number of topics that u and v share and in which they are in different components."""
    return most_contribution(c, u, v) - topics_in_same_component(c, u, v)


@inner_kernel
def subscription(c: Components, u: int, word: int, bit: np.uint64) -> int:
    """The index of u's subscription to the topic of this bit of a word."""
    return c.word_start[u, word] + popcount(c.subscribed[u, word] & (bit - np.uint64(1)))


@inner_kernel
def add_edge(c: Components, u: int, v: int) -> int:
    """Join the components of u and v in every topic that they share; returns the number of joins."""
    gained = 0
    for w in range(c.subscribed.shape[1]):
        apart = (c.outside[u, w] & c.subscribed[v, w]) | (c.subscribed[u, w] & c.outside[v, w])
        while apart:
            bit = np.uint64(1) << np.uint64(lowest(apart))
            gained += join_subscriptions(c, subscription(c, u, w, bit), subscription(c, v, w, bit))
            apart ^= bit
    c.tally[TO_MERGE] -= gained
    c.tally[EDGES_ADDED] += 1
    return gained


@kernel
def add_edges(c: Components, edges: NDArray[np.int32]) -> None:
    """Add the edges one after the other."""
    for e in range(len(edges)):
        add_edge(c, edges[e, 0], edges[e, 1])


@kernel
def join_parts(c: Components, part_of_node: NDArray[np.int32], parts: int) -> None:
    """Join, for each topic, the subscribers in the same part."""
    seen = np.full(parts, -1, np.int64)
    for t in range(len(c.main)):
        bit = bit_of(t)
        for k in range(c.node_start[t], c.node_start[t + 1]):
            u = c.nodes[k]
            i = subscription(c, u, t >> 6, bit)
            first = seen[part_of_node[u]]
            if first >= c.node_start[t]:
                v = c.nodes[first]
                c.tally[TO_MERGE] -= join_subscriptions(c, subscription(c, v, t >> 6, bit), i)
            else:
                seen[part_of_node[u]] = k


@inner_kernel
def join_subscriptions(c: Components, i: int, j: int) -> int:
    """Join the components of two subscriptions to one topic; returns 0 if they are the same, else 1."""
    if c.label[i] == c.label[j]:
        return 0
    if c.size[c.label[i]] < c.size[c.label[j]]:
        i, j = j, i
    topic = c.topics[i]
    large = c.label[i]
    small = c.label[j]
    main = c.main[topic]
    if main == large:
        _enter_main(c, j)
    elif main == small:
        _enter_main(c, i)
        c.main[topic] = large
    else:
        _form_group(c, i)
        _form_group(c, j)
    _relabel(c, j, large)
    c.next_member[i], c.next_member[j] = c.next_member[j], c.next_member[i]
    c.size[large] += c.size[small]
    c.absorbed_by[small] = large
    c.absorbed_at[small] = c.tally[EDGES_ADDED]
    # Larger by a margin, so that two components do not alternate as the main one.
    if 4 * c.size[large] > 5 * c.size[c.main[topic]]:
        _leave_main(c, c.main[topic])
        _enter_main(c, i)
        c.main[topic] = large
    return 1


@inner_kernel
def _relabel(c: Components, i: int, label: int) -> None:
    """Give the label to every member of i's component."""
    while c.label[i] != label:
        c.label[i] = label
        i = c.next_member[i]


@inner_kernel
def _enter_main(c: Components, i: int) -> None:
    """Mark every member of i's component as a member of the topic's main component."""
    w = c.topics[i] >> 6
    bit = bit_of(c.topics[i])
    first = i
    while True:
        c.outside[c.owner[i], w] &= ~bit
        c.grouped[c.owner[i], w] &= ~bit
        c.entered[i] = c.tally[EDGES_ADDED]
        i = c.next_member[i]
        if i == first:
            return


@inner_kernel
def _leave_main(c: Components, i: int) -> None:
    """Mark every member of i's component as outside of the topic's main component."""
    c.main_since[c.topics[i]] = c.tally[EDGES_ADDED]
    w = c.topics[i] >> 6
    bit = bit_of(c.topics[i])
    first = i
    while True:
        c.outside[c.owner[i], w] |= bit
        if c.size[c.label[i]] > 1:
            c.grouped[c.owner[i], w] |= bit
        i = c.next_member[i]
        if i == first:
            return


@inner_kernel
def _form_group(c: Components, i: int) -> None:
    """Mark i as grouped before its component of one member, outside of the main one, grows."""
    if c.size[c.label[i]] == 1:
        c.grouped[c.owner[i], c.topics[i] >> 6] |= bit_of(c.topics[i])
