"""Local search on an overlay: reverse delete (paper 1, section VII-B) and the replacement of edges.

Both remove and add links, and so does the exchange of candidate edges in `guided_search`. They share one
engine: `LinkTable` holds the links of each node and changes in place, and `find_cuts` finds the topics that
the removal of a link disconnects, and the nodes on the smaller side of each.
"""

import time
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.kernels import WORD, inner_kernel, kernel, lowest, pack_rows
from broadloom.linking._bands import with_capacity
from broadloom.model import Interest, Overlay, WeightArrays, Weights, weight_of

MOST_CUTS = 64  # a link whose removal disconnects more topics is not exchanged: sides are bits of a word
MOST_REPLACED_CUTS = (
    4  # the same for replacement by one other link: more cuts are hardly ever repaired by one
)
# Results of `cut_side`.
CONNECTED = -1
LEFT = 0
RIGHT = 1
SPARE_SLOTS = 4  # links that a node can get in one round of replacement, on top of a quarter of its own

ROUNDS = 20  # default limit on rounds of replacement; few instances need as many
MOST_PAIRS = 1 << 16  # if an edge has more pairs to choose from, one end of the pair is an end of the edge
MOST_REPLACEMENTS = 1 << 23  # pairs listed per round
HEAVIEST_REPLACEMENT = 3.0  # times the weight of an edge: a heavier pair can pay if it replaces several edges


def reverse_delete(interest: Interest, edges: ArrayLike, order: ArrayLike | None = None) -> NDArray[np.bool_]:
    """Try to remove each edge in turn; it goes if the other edges keep every topic as connected as before.

    The topic bits of the neighbours usually show at once that an edge is needed. Otherwise each shared topic
    is searched from both ends in turn, so that a disconnected side costs twice its own size, and the first
    topic that breaks ends the trial.

    Args:
        interest: the topics of each node.
        edges: pairs of nodes, each pair once.
        order: indices of the edges in the order of the trials; the last edge first by default.

    Returns:
        A mask of the edges that are kept.

    Examples:
        >>> interest = Interest.from_lists([[0], [0], [0]])
        >>> reverse_delete(interest, [(0, 1), (1, 2), (0, 2)])
        array([ True,  True, False])
    """
    pairs = Overlay.from_edges(interest.node_count, edges).edges.copy()
    trials = np.arange(len(pairs))[::-1] if order is None else np.asarray(order)
    return _delete_in_order(new_link_table(topic_bits(interest), pairs), pairs, np.array(trials, np.int64))


def heaviest_first(weights: Weights, edges: NDArray[np.int32]) -> NDArray[np.int64]:
    """The indices of the edges by falling weight, ties by `(u, v)`."""
    u, v = edges[:, 0], edges[:, 1]
    return np.lexsort((v, u, -weights.of(u, v)))


def rarest_first(interest: Interest) -> NDArray[np.int64]:
    """The topics from the fewest subscribers to the most."""
    return np.argsort(np.diff(interest.node_start), kind="stable")


def topic_bits(interest: Interest) -> NDArray[np.uint64]:
    """A row of topic bits per node, the rarest topic lowest: it breaks soonest and is searched fastest."""
    rank = np.empty(interest.topic_count, np.int32)
    rank[rarest_first(interest)] = np.arange(interest.topic_count)
    return pack_rows(interest.topic_start, rank[interest.topics], -(-interest.topic_count // WORD))


class LinkTable(NamedTuple):
    """The topics and the links of every node, with the buffers of the cut search.

    Row `u` is the range from `start[u]` to `start[u + 1]`. Its first `degree[u]` entries are the links of
    `u`; behind them are removed links, candidates that are not links, or free slots.

    Attributes:
        bits: topic bits per node, the rarest topic lowest.
        start: the start of each row, with the end appended.
        neighbour: the other end of each entry.
        edge: the index of the edge of each entry.
        degree: the number of links per node.
        seen: per node, the stamp of the search that visited it last.
        reached: the nodes visited from each end, in order.
        stamp: the last stamp in use.
    """

    bits: NDArray[np.uint64]
    start: NDArray[np.int64]
    neighbour: NDArray[np.int32]
    edge: NDArray[np.int32]
    degree: NDArray[np.int64]
    seen: NDArray[np.int64]
    reached: NDArray[np.int32]
    stamp: NDArray[np.int64]


def new_link_table(
    bits: NDArray[np.uint64],
    edges: NDArray[np.int32],
    linked: NDArray[np.bool_] | None = None,
    spare_slots: int | None = None,
) -> LinkTable:
    """The table of some edges.

    Args:
        bits: topic bits per node.
        edges: pairs of nodes, each pair once.
        linked: which edges are links; the others are candidates. None: all are links.
        spare_slots: if not None, each row gets this many free slots and a quarter of its length.
    """
    n = len(bits)
    size = np.bincount(edges.ravel(), minlength=n)
    slots = size if spare_slots is None else size + size // 4 + spare_slots
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(slots)))
    neighbour = np.empty(start[-1], np.int32)
    edge = np.empty(start[-1], np.int32)
    buffers = np.zeros(n, np.int64), np.empty((2, n), np.int32), np.zeros(1, np.int64)
    table = LinkTable(bits, start, neighbour, edge, np.zeros(n, np.int64), *buffers)
    _fill_rows(table, edges, np.ones(len(edges), bool) if linked is None else linked)
    return table


@kernel
def _fill_rows(table: LinkTable, edges: NDArray[np.int32], linked: NDArray[np.bool_]) -> None:
    """Enter the links, and behind them the candidates."""
    filled = table.start.copy()
    for is_link in (True, False):
        for e in range(len(edges)):
            if linked[e] == is_link:
                for end in range(2):
                    u = edges[e, end]
                    table.neighbour[filled[u]] = edges[e, 1 - end]
                    table.edge[filled[u]] = e
                    filled[u] += 1
                    table.degree[u] += is_link


@inner_kernel
def remove_link(table: LinkTable, u: int, v: int) -> None:
    """Move the link behind the last link of both its ends."""
    for a, b in ((u, v), (v, u)):
        i = table.start[a]
        last = table.start[a] + table.degree[a] - 1
        while table.neighbour[i] != b:
            i += 1
        _swap(table, i, last)
        table.degree[a] -= 1


@inner_kernel
def restore_link(table: LinkTable, u: int, v: int) -> None:
    """Undo the removal of the link that was removed last."""
    table.degree[u] += 1
    table.degree[v] += 1


@inner_kernel
def link_candidate(table: LinkTable, u: int, v: int) -> None:
    """Turn a candidate into a link."""
    for a, b in ((u, v), (v, u)):
        first = table.start[a] + table.degree[a]
        i = first
        while table.neighbour[i] != b:
            i += 1
        _swap(table, i, first)
        table.degree[a] += 1


@inner_kernel
def _swap(table: LinkTable, i: int, j: int) -> None:
    table.neighbour[i], table.neighbour[j] = table.neighbour[j], table.neighbour[i]
    table.edge[i], table.edge[j] = table.edge[j], table.edge[i]


@inner_kernel
def _add_link(table: LinkTable, u: int, v: int) -> None:
    """Write a link into the first slot behind the links of both its ends."""
    for a, b in ((u, v), (v, u)):
        table.neighbour[table.start[a] + table.degree[a]] = b
        table.degree[a] += 1


@inner_kernel
def _has_free_slot(table: LinkTable, u: int) -> bool:
    return table.start[u] + table.degree[u] < table.start[u + 1]


class Cuts(NamedTuple):
    """The topics that a removed link disconnects, and the nodes on the smaller side of each.

    Attributes:
        word: the word of each cut topic; the length is the most cuts that are recorded.
        bit: the bit of each cut topic in that word.
        start: the start of the nodes of each cut in `nodes`, with the end appended.
        nodes: the nodes of the smaller sides, cut after cut; each side starts with an end of the link.
        sides: per node, bit `i` is set if it is on the smaller side of cut `i`; see `mark_sides`.
    """

    word: NDArray[np.int64]
    bit: NDArray[np.uint64]
    start: NDArray[np.int64]
    nodes: NDArray[np.int32]
    sides: NDArray[np.uint64]


@kernel
def new_cuts(nodes: int, most: int) -> Cuts:
    """Space for that many cuts."""
    return Cuts(
        np.empty(most, np.int64),
        np.empty(most, np.uint64),
        np.zeros(most + 1, np.int64),
        np.empty(most * nodes, np.int32),
        np.zeros(nodes, np.uint64),
    )


@kernel
def find_cuts(table: LinkTable, u: int, v: int, cuts: Cuts, thorough: bool) -> int:
    """Record the shared topics in which u and v are not connected, in the order of the topic bits.

    The topic bits of the neighbours settle most topics: an end has no other neighbour with the topic, or
    both ends have a neighbour in common. The others are searched.

    Returns:
        The number of cuts, or one more than can be recorded. Unless `thorough`, a topic that the bits do not
        settle counts as a cut, without a search, when the record is full.
    """
    most = len(cuts.word)
    count = 0
    for word in range(table.bits.shape[1]):
        shared = table.bits[u, word] & table.bits[v, word]
        if not shared:
            continue
        at_u, at_v, common = _topics_of_neighbours(table, word, u, v)
        if most == 0 and shared & ~(at_u & at_v):
            return 1
        unsettled = shared & ~common
        while unsettled:
            bit = np.uint64(lowest(unsettled))
            unsettled &= unsettled - np.uint64(1)
            if count == most and not thorough:
                return most + 1
            if not (at_u >> bit) & np.uint64(1):
                side, size = LEFT, 1
                table.reached[LEFT, 0] = u
            elif not (at_v >> bit) & np.uint64(1):
                side, size = RIGHT, 1
                table.reached[RIGHT, 0] = v
            else:
                side, size = cut_side(table, word, bit, u, v)
            if side == CONNECTED:
                continue
            if count == most:
                return most + 1
            first = cuts.start[count]
            for i in range(size):
                cuts.nodes[first + i] = table.reached[side, i]
            cuts.word[count] = word
            cuts.bit[count] = bit
            count += 1
            cuts.start[count] = first + size
    return count


@inner_kernel
def _topics_of_neighbours(
    table: LinkTable, word: int, u: int, v: int
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """One word of the topics of u's neighbours, of v's neighbours, and of their common neighbours."""
    at_u = np.uint64(0)
    at_v = np.uint64(0)
    common = np.uint64(0)
    table.stamp[0] += 1
    for i in range(table.start[u], table.start[u] + table.degree[u]):
        at_u |= table.bits[table.neighbour[i], word]
        table.seen[table.neighbour[i]] = table.stamp[0]
    for i in range(table.start[v], table.start[v] + table.degree[v]):
        at_v |= table.bits[table.neighbour[i], word]
        if table.seen[table.neighbour[i]] == table.stamp[0]:
            common |= table.bits[table.neighbour[i], word]
    return at_u, at_v, common


@kernel
def cut_side(table: LinkTable, word: int, bit: np.uint64, u: int, v: int) -> tuple[int, int]:
    """Search from u and from v, one node of each in turn, over the nodes with that topic bit.

    Returns:
        The side that was exhausted first, which is the smaller one, and its size; its nodes are in
        `table.reached`. `CONNECTED` and 0 if the two searches meet.
    """
    bits, start, neighbour, _, degree, seen, reached, last_stamp = table
    stamp = last_stamp[0] + 1  # on the nodes seen from u; the next number on those seen from v
    last_stamp[0] += 2
    reached[LEFT, 0] = u
    reached[RIGHT, 0] = v
    seen[u] = stamp
    seen[v] = stamp + 1
    head = 0
    own_size = 1
    other_size = 1
    side = LEFT
    while head < own_size:
        x = reached[side, head]
        for i in range(start[x], start[x] + degree[x]):
            y = neighbour[i]
            if seen[y] == stamp + side or not (bits[y, word] >> bit) & np.uint64(1):
                continue
            if seen[y] == stamp + 1 - side:
                return CONNECTED, 0
            seen[y] = stamp + side
            reached[side, own_size] = y
            own_size += 1
        head += side
        side = 1 - side
        own_size, other_size = other_size, own_size
    return side, own_size


@inner_kernel
def mark_sides(cuts: Cuts, count: int) -> None:
    """Set the bits of `cuts.sides`."""
    for c in range(count):
        for i in range(cuts.start[c], cuts.start[c + 1]):
            cuts.sides[cuts.nodes[i]] |= np.uint64(1) << np.uint64(c)


@inner_kernel
def clear_sides(cuts: Cuts, count: int) -> None:
    """Clear the bits that `mark_sides` has set."""
    for i in range(cuts.start[count]):
        cuts.sides[cuts.nodes[i]] = np.uint64(0)


@kernel
def _delete_in_order(
    table: LinkTable, edges: NDArray[np.int32], order: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """A mask of the edges that are kept after the trials."""
    n = len(table.bits)
    kept = np.ones(len(edges), np.bool_)
    no_cuts = new_cuts(n, 0)
    repeated = np.empty_like(table.bits)
    for u in range(n):
        _note_repeated(table, u, repeated)
    for e in order:
        u, v = int(edges[e, 0]), int(edges[e, 1])
        if _is_only_link(table, repeated, u, v):
            continue
        remove_link(table, u, v)
        if find_cuts(table, u, v, no_cuts, True) == 0:
            kept[e] = False
            _note_repeated(table, u, repeated)
            _note_repeated(table, v, repeated)
        else:
            restore_link(table, u, v)
    return kept


@kernel
def _note_repeated(table: LinkTable, u: int, repeated: NDArray[np.uint64]) -> None:
    """Record the topics that two or more neighbours of u have."""
    for word in range(table.bits.shape[1]):
        once = twice = np.uint64(0)
        for i in range(table.start[u], table.start[u] + table.degree[u]):
            topics = table.bits[table.neighbour[i], word]
            twice |= once & topics
            once |= topics
        repeated[u, word] = twice


@inner_kernel
def _is_only_link(table: LinkTable, repeated: NDArray[np.uint64], u: int, v: int) -> bool:
    """Whether u and v share a topic in which one of them has no other neighbour."""
    for word in range(table.bits.shape[1]):
        if table.bits[u, word] & table.bits[v, word] & ~(repeated[u, word] & repeated[v, word]):
            return True
    return False


class TopicMembers(NamedTuple):
    """The nodes of each topic, by the rank of its bit.

    Attributes:
        rarest: the topic of each bit.
        node_start: the start of each topic's nodes, with the end appended.
        nodes: the nodes of each topic.
    """

    rarest: NDArray[np.int64]
    node_start: NDArray[np.int64]
    nodes: NDArray[np.int32]


class Replacements(NamedTuple):
    """Pairs that can each replace some edges, the largest possible gain first.

    Attributes:
        pairs: the two nodes of each.
        cost: the weight of each.
        start: the start in `edges` of what each can replace, with the end appended.
        edges: the edges that can be replaced, heaviest first.
    """

    pairs: NDArray[np.int32]
    cost: NDArray[np.float64]
    start: NDArray[np.int64]
    edges: NDArray[np.int64]


def improved_edges(
    interest: Interest,
    weights: Weights,
    edges: NDArray[np.int32],
    rounds: int = ROUNDS,
    max_degree: int | None = None,
    seconds: float | None = None,
    near: NDArray[np.bool_] | None = None,
) -> tuple[NDArray[np.int32], int]:
    """The edges after reverse delete and rounds of replacement, new edges last, and the number of rounds.

    `near`: the first round replaces only edges of these nodes, and a further one those of nodes whose edges
    the round before has changed. None: all nodes.
    """
    began = time.monotonic()
    bits = topic_bits(interest)
    members = TopicMembers(rarest_first(interest), interest.node_start, interest.nodes)
    limit = interest.node_count if max_degree is None else max_degree
    edges = edges[reverse_delete(interest, edges, heaviest_first(weights, edges))]
    for done in range(rounds):
        if seconds is not None and time.monotonic() - began > seconds:
            return edges, done
        by_weight = heaviest_first(weights, edges)
        listed = len(edges)
        if near is not None:
            is_near = near[edges[by_weight]].any(axis=1)
            by_weight = np.concatenate((by_weight[is_near], by_weight[~is_near]))
            listed = int(is_near.sum())
        heaviest = edges[by_weight]
        weight = weights.of(heaviest[:, 0], heaviest[:, 1])
        table = new_link_table(bits, heaviest, spare_slots=SPARE_SLOTS)
        pair, edge = _list_replacements(table, members, weights.arrays(), heaviest[:listed])
        replacements = _most_promising_first(weights, weight, pair, edge)
        still_linked, chosen = _replace_edges(table, heaviest, weight, replacements, limit)
        if not len(chosen):
            return edges, done + 1
        kept = np.empty_like(still_linked)
        kept[by_weight] = still_linked
        if near is not None:
            near = np.zeros(interest.node_count, bool)
            near[edges[~kept]] = True
            near[replacements.pairs[chosen]] = True
        edges = np.concatenate((edges[kept], replacements.pairs[chosen]))
        edges = edges[reverse_delete(interest, edges, heaviest_first(weights, edges))]
    return edges, rounds


@kernel(cost=30)
def _list_replacements(
    table: LinkTable, members: TopicMembers, weights: WeightArrays, edges: NDArray[np.int32]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs that can replace an edge, as `u * 2^32 + v`, and the edge that each can replace.

    Such a pair crosses all cuts of the edge. One of its nodes is on the smallest side of all, the other one
    is a subscriber of that cut's topic.
    """
    bits = table.bits
    cuts = new_cuts(len(bits), MOST_REPLACED_CUTS)
    cut_topics = np.empty(bits.shape[1], np.uint64)
    found = np.empty((2, 1024), np.int64)
    size = 0
    for e in range(len(edges)):
        u, v = int(edges[e, 0]), int(edges[e, 1])
        remove_link(table, u, v)
        count = find_cuts(table, u, v, cuts, False)
        restore_link(table, u, v)
        if count == 0 or count > MOST_REPLACED_CUTS:
            continue
        smallest = 0
        side_size = cuts.start[1]
        cut_topics[:] = 0
        for c in range(count):
            cut_topics[cuts.word[c]] |= np.uint64(1) << cuts.bit[c]
            if cuts.start[c + 1] - cuts.start[c] < side_size:
                smallest = c
                side_size = cuts.start[c + 1] - cuts.start[c]
        topic = members.rarest[WORD * cuts.word[smallest] + np.int64(cuts.bit[smallest])]
        subscribers = members.nodes[members.node_start[topic] : members.node_start[topic + 1]]
        if side_size * len(subscribers) > MOST_PAIRS:
            side_size = 1  # the end of the edge
        if size > MOST_REPLACEMENTS:
            break
        found = with_capacity(found, size, side_size * len(subscribers))
        heaviest = HEAVIEST_REPLACEMENT * weight_of(weights, u, v)
        all_sides = ~np.uint64(0) >> np.uint64(MOST_CUTS - count)
        mark_sides(cuts, count)
        for i in range(cuts.start[smallest], cuts.start[smallest] + side_size):
            x = cuts.nodes[i]
            if not _has_all(bits, x, cut_topics):
                continue
            for y in subscribers:
                if cuts.sides[x] ^ cuts.sides[y] != all_sides or weight_of(weights, x, y) > heaviest:
                    continue
                if _has_all(bits, y, cut_topics):
                    found[0, size] = np.int64(min(x, y)) << 32 | max(x, y)
                    found[1, size] = e
                    size += 1
        clear_sides(cuts, count)
    return found[0, :size].copy(), found[1, :size].copy()


@inner_kernel
def _has_all(bits: NDArray[np.uint64], u: int, topics: NDArray[np.uint64]) -> bool:
    """Whether u subscribes to all of the topics."""
    missing = np.uint64(0)
    for word in range(len(topics)):
        missing |= topics[word] & ~bits[u, word]
    return not missing


def _most_promising_first(
    weights: Weights, weight: NDArray[np.float64], pair: NDArray[np.int64], edge: NDArray[np.int64]
) -> Replacements:
    """The replacements per pair, ordered by the weight of all their edges minus that of the pair.

    A pair that cannot gain is left out.
    """
    order = np.lexsort((edge, pair))
    pair = pair[order]
    edge = edge[order]
    codes, start, count = np.unique(pair, return_index=True, return_counts=True)
    pairs = np.stack((codes >> 32, codes & 0xFFFFFFFF), axis=1).astype(np.int32)
    cost = weights.of(pairs[:, 0], pairs[:, 1])
    gain = np.bincount(np.repeat(np.arange(len(codes)), count), weight[edge], len(codes)) - cost
    trials = np.lexsort((codes, -gain))
    trials = trials[gain[trials] > 0]
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(count[trials])))
    entries = np.arange(starts[-1]) + np.repeat(start[trials] - starts[:-1], count[trials])
    return Replacements(pairs[trials], cost[trials], starts, edge[entries])


@kernel(cost=8)
def _replace_edges(
    table: LinkTable,
    edges: NDArray[np.int32],
    weight: NDArray[np.float64],
    replacements: Replacements,
    limit: int,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Try each replacement: a mask of the edges that are kept, and the replacements that were made.

    The pair is added, and those of its edges are removed without which every topic stays connected. If they
    do not weigh more than the pair, all is undone.
    """
    kept = np.ones(len(edges), np.bool_)
    no_cuts = new_cuts(len(table.bits), 0)
    removed = np.empty(len(edges), np.int64)
    made = np.empty(len(replacements.cost), np.int64)
    count = 0
    for p in range(len(replacements.cost)):
        replaceable = replacements.edges[replacements.start[p] : replacements.start[p + 1]]
        u, v = int(replacements.pairs[p, 0]), int(replacements.pairs[p, 1])
        saving = 0.0  # what can still be saved at most
        for e in replaceable:
            saving += weight[e] if kept[e] else 0.0
        if saving <= replacements.cost[p] or not (_has_free_slot(table, u) and _has_free_slot(table, v)):
            continue
        _add_link(table, u, v)
        removals = 0
        for e in replaceable:
            if not kept[e] or saving <= replacements.cost[p]:
                continue
            a, b = int(edges[e, 0]), int(edges[e, 1])
            remove_link(table, a, b)
            if find_cuts(table, a, b, no_cuts, True) == 0:
                removed[removals] = e
                removals += 1
            else:
                restore_link(table, a, b)
                saving -= weight[e]
        if saving > replacements.cost[p] and table.degree[u] <= limit and table.degree[v] <= limit:
            kept[removed[:removals]] = False
            made[count] = p
            count += 1
        else:
            remove_link(table, u, v)
            for i in range(removals):
                _add_link(table, int(edges[removed[i], 0]), int(edges[removed[i], 1]))
    return kept, made[:count]
