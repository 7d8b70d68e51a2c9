"""Overlays of low degree and of constant diameter (paper 2, sections I-B, Alg. 1 and VI; paper 3, Alg. 2).

MinMax-ODA and Low-ODA: at each step e1 is the best pair among those that raise the maximum degree least, and
e2 the best pair of all. MinMax-ODA adds e1; Low-ODA adds e1 if it is at most k times worse than e2, else e2.

CD-ODA: stars that cover the topics. Until every topic is covered, the node of the highest score is linked to
every node with which it shares an uncovered topic, and its topics are covered. So the subscribers of each
topic are at most two hops apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import and_more, check_choice, check_count, check_flag, check_number
from broadloom.errors import InputError
from broadloom.kernels import WORD, bit_of, by_word, inner_kernel, kernel, lowest, pack_rows, popcount
from broadloom.linking._bands import SEGMENT, any_from, count_bits
from broadloom.linking._ties import SMALLEST, TieOptions, TieRule, check_ties, priority_of, tie_rule
from broadloom.linking.link_result import LinkResult, without_repetition
from broadloom.linking.topic_components import (
    EDGES_ADDED,
    TO_MERGE,
    Components,
    add_edge,
    components_of,
    contribution,
)
from broadloom.measures import components_per_topic
from broadloom.model import UNIFORM, Interest, WeightArrays, Weights, weight_of

OBJECTIVES = ("edges", "weight")

# If a bound and a key differ by less than this factor, the key itself is computed.
CLEARLY = 1 + 1e-9
# Further values of k to try if a maximum degree leaves a topic disconnected.
HIGHER_K = (3.0, 10.0, math.inf)

# Screening compares w <= key * mu, which is not rounded as w / mu <= key is; this factor allows for that.
TOLERANCE = 1 + 1e-12

PARTNERS = 6  # per row: more of them are slower to find, but last longer
NONE = -1
REFRESH = 16  # members are refreshed after one scan of a row per this many members
MEMBERS, ROWS_TO_SCAN, REFRESHED_AT = range(3)  # indices of `Partners.state`

# Scores of CD-ODA: n_u nodes share an uncovered topic with u, w_u sums the subscribers of its topics.
BY_NODES, BY_SUBSCRIPTIONS, BY_DENSITY = range(3)


@dataclass(frozen=True)
class LowDegreeOptions:
    """Options of low-oda.

    Attributes:
        k: how many times worse than the best edge the chosen one can be, to spare the maximum degree. A
            higher k gives a lower maximum degree and more edges. 1 is nearly gm, infinity is minmax-oda.
        objective: the key of an edge: "edges", its contribution; "weight", its weight per contribution.
        max_degree: no node gets more links than this; None: no limit.
        strict: whether the chosen edge must be less than k times worse. Paper 2 prints "at least" in Alg. 1,
            which is the default, and "greater" in its text; with the latter, k = 1 is gm.
        ties: the choice among equally good links: "smallest", the smallest pair of indices; "random", drawn
            from the seed.
    """

    k: float = 3
    objective: str = "edges"
    max_degree: int | None = None
    strict: bool = False
    ties: str = "smallest"

    def __post_init__(self) -> None:
        check_flag(self.strict, "strict")
        check_ties(self.ties)
        check_number(self.k, "k", minimum=1, finite=False)
        check_choice(self.objective, "objective", OBJECTIVES)
        if self.max_degree is not None:
            check_count(self.max_degree, "max_degree", minimum=1)


def minmax_oda(interest: Interest, weights: Weights, options: TieOptions, seed: int) -> LinkResult:  # noqa: ARG001
    """Add the highest contribution among the pairs that raise the maximum degree least.

    Reference: Onus and Richa, INFOCOM 2009; restated in paper 2, section I-B.
    """
    ties = tie_rule(options.ties, seed)
    return LinkResult(low_degree_edges(interest, Weights.uniform(interest.node_count), math.inf, ties=ties))


def low_oda(interest: Interest, weights: Weights, options: LowDegreeOptions, seed: int) -> LinkResult:
    """Add the edge of minmax-oda, unless it is more than k times worse than the best of all.

    Reference: Onus and Richa, ICDCS 2010 (paper 2), Alg. 1.
    """
    by = weights if options.objective == "weight" else Weights.uniform(interest.node_count)
    ties = tie_rule(options.ties, seed)
    edges = low_degree_edges(interest, by, options.k, options.max_degree, strict=options.strict, ties=ties)
    return LinkResult(edges)


def low_degree_edges(
    interest: Interest,
    weights: Weights,
    k: float,
    max_degree: int | None = None,
    *,
    strict: bool = False,
    ties: TieRule = SMALLEST,
) -> NDArray[np.int32]:
    """The edges of Low-ODA by weight per contribution, in order.

    With k = 0 it is GrMAW: the best edge below the maximum degree, whatever the degrees of its ends. If that
    leaves a topic disconnected, it starts again with a higher k.

    Raises:
        InputError: even with the highest k, a topic stays disconnected below the maximum degree.
    """
    n = interest.node_count
    limit = n if max_degree is None else max_degree
    attempts = [(weights, more_k) for more_k in (k, *HIGHER_K) if more_k >= k]
    for by, more_k in (*attempts, (Weights.uniform(n), math.inf)):
        components = components_of(interest)
        rule = DegreeRule(float(more_k), limit, most=0, strict=bool(strict), ties=ties)
        edges = grow(components, by.arrays(), rule, np.zeros(n, np.int64))
        if components.tally[TO_MERGE] == 0:
            return edges
    raise InputError(_too_strict(interest, edges, limit))


def _too_strict(interest: Interest, edges: NDArray[np.int32], limit: int) -> str:
    """The error message for a maximum degree that is too low; it names one that is high enough."""
    parts = components_per_topic(interest, edges)
    worst = int(parts.argmax())
    enough = low_degree_edges(interest, Weights.uniform(interest.node_count), math.inf)
    return (
        f"no overlay was found with max_degree {limit}: topic {interest.topic_ids[worst]!r} stays in "
        f"{parts[worst]:,} parts{and_more(int(np.count_nonzero(parts > 1)) - 1)}; "
        f"minmax-oda connects every topic with max_degree {np.bincount(enough.ravel()).max()}"
    )


class DegreeRule(NamedTuple):
    """The rule of Low-ODA.

    Attributes:
        k: how many times worse than the best pair the chosen one can be; 0: always the best pair.
        limit: no node gets more links than this.
        most: the maximum degree at the start.
        strict: whether the chosen pair must be less than k times worse.
        ties: the rule for ties.
    """

    k: float
    limit: int
    most: int
    strict: bool = False
    ties: TieRule = SMALLEST


def grow(
    components: Components, weights: WeightArrays, rule: DegreeRule, degree: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Add pairs by the rule until no pair contributes; the edges, in order. `degree` is updated."""
    every = new_partners(components, rule.ties)
    sparing = new_partners(components, rule.ties)
    return _grow(components, weights, every, sparing, rule, degree)


@kernel(cost=10)
def _grow(
    c: Components,
    weights: WeightArrays,
    every: Partners,
    sparing: Partners,
    rule: DegreeRule,
    degree: NDArray[np.int64],
) -> NDArray[np.int32]:
    """Add e1, the best of the `sparing` pairs, or e2, the best of every pair, until no pair contributes.

    Most steps do not compute e2: by its bound, e1 is good enough. An e2 that does not raise the maximum
    degree is e1 as well.
    """
    k = rule.k
    limit = rule.limit
    most = rule.most
    edges = np.empty((c.tally[TO_MERGE], 2), np.int32)
    added = 0
    while c.tally[TO_MERGE] > 0:
        u1, v1, mu1 = best_pair(sparing, c, weights, degree, min(limit, most) if k > 0 else 0)
        w1 = weight_of(weights, u1, v1) if mu1 else np.inf
        if mu1 == 0 or w1 / mu1 * CLEARLY > k * least_key(every):
            u2, v2, mu2 = best_pair(every, c, weights, degree, limit)
            if mu2 == 0:
                break
            worst = k * mu1 * weight_of(weights, u2, v2)
            if mu1 == 0 or not (mu2 * w1 < worst if rule.strict else mu2 * w1 <= worst):
                u1, v1 = u2, v2
        add_edge(c, u1, v1)
        edges[added, 0], edges[added, 1] = u1, v1
        added += 1
        degree[u1] += 1
        degree[v1] += 1
        if degree[u1] > most or degree[v1] > most:
            most += 1
            start_from(sparing, every)
    return edges[:added]


# The best remaining pair, by weight per contribution, then priority (0 unless ties are random), then (u, v).
# A pair's key w/mu only rises, since its contribution only falls. So each node u keeps the few best partners
# v > u that it once found. The first one's key is a lower bound for the whole row of u, and a tournament tree
# holds the row of the lowest bound. If that bound is still its pair's key, the pair is the best of all. If
# not, the pair moves back in its row, and a row that has used up its partners is scanned again. Memory is
# linear in the nodes.


class Partners(NamedTuple):
    """The best partners of every node, and a tournament tree over them.

    Behind the partners, each row ends with NONE and a lower bound on the keys of its other pairs: infinite
    if there are no others.

    Attributes:
        key: per row the keys of its partners, ascending; there are rows for a power of two of nodes.
        partner: per row the partners with these keys.
        priority: per row the priorities of the partners at these keys, ascending among equal keys; used only
            if ties are random.
        winner: the tournament tree over the rows, its root at 1, row `u` at `len(key) + u`.
        members: the nodes that can still be partners, ascending.
        subscribed: the words of the members, one row per word, when they were last refreshed.
        outside: likewise; since then words have only lost bits, if the main component is still the same.
        bounds: bounds on the contribution of each member, in the row that is scanned.
        state: the number of members, the number of rows to scan before they are refreshed, and the number of
            edges added when they were last refreshed.
        ties: the rule for ties.
    """

    key: NDArray[np.float64]
    partner: NDArray[np.int64]
    priority: NDArray[np.uint64]
    winner: NDArray[np.int64]
    members: NDArray[np.int64]
    subscribed: NDArray[np.uint64]
    outside: NDArray[np.uint64]
    bounds: NDArray[np.int32]
    state: NDArray[np.int64]
    ties: TieRule


def new_partners(c: Components, ties: TieRule = SMALLEST) -> Partners:
    """No partners yet: every row is scanned when it comes first in the tree."""
    nodes = len(c.topic_start) - 1
    size = 1 << max(nodes - 1, 0).bit_length()
    key = np.full((size, PARTNERS + 1), np.inf)
    key[:nodes] = 0.0
    winner = np.zeros(2 * size, np.int64)
    winner[size:] = np.arange(size)
    while size > 1:
        winner[size // 2 : size] = winner[size : 2 * size : 2]
        size //= 2
    return Partners(
        key,
        np.full(key.shape, NONE),
        np.zeros(key.shape, np.uint64),
        winner,
        np.arange(nodes),
        by_word(c.subscribed),
        by_word(c.outside),
        np.empty(nodes, np.int32),
        np.array([nodes, 0, 0], np.int64),
        ties,
    )


@kernel
def start_from(partners: Partners, others: Partners) -> None:
    """Copy the partners and bounds of the others, which hold for any choice of nodes."""
    for u in range(len(partners.key)):
        for i in range(PARTNERS + 1):
            partners.key[u, i], partners.partner[u, i] = others.key[u, i], others.partner[u, i]
    if partners.ties.random:
        for u in range(len(partners.key)):
            for i in range(PARTNERS + 1):
                partners.priority[u, i] = others.priority[u, i]
    for i in range(len(partners.winner)):
        partners.winner[i] = others.winner[i]
    for u in range(len(partners.members)):
        partners.members[u] = u
    partners.state[MEMBERS], partners.state[ROWS_TO_SCAN] = len(partners.members), 0


@inner_kernel
def least_key(partners: Partners) -> float:
    """A lower bound on the key of the best pair."""
    return partners.key[partners.winner[1], 0]


@kernel
def best_pair(
    partners: Partners, c: Components, weights: WeightArrays, degree: NDArray[np.int64], limit: int
) -> tuple[int, int, int]:
    """The best pair of nodes of degrees below the limit, and its contribution; NONE if no pair contributes.

    Between two calls, contributions and the limit must not rise, and degrees must not fall.
    """
    while True:
        u = partners.winner[1]
        v = partners.partner[u, 0]
        key = partners.key[u, 0]
        if np.isinf(key):
            return NONE, NONE, 0
        if degree[u] >= limit:
            partners.key[u, 0], partners.partner[u, 0] = np.inf, NONE
        elif v == NONE:
            _scan_row(partners, c, weights, degree, limit, u)
        else:
            mu = contribution(c, u, v) if degree[v] < limit else 0
            now = weight_of(weights, u, v) / mu if mu > 0 else np.inf
            if now == key:
                return u, v, mu
            _move_back(partners, u, now, priority_of(partners.ties, u, v, mu))
        i = (len(partners.key) + u) >> 1
        while i > 0:
            _replay_match(partners, i)
            i >>= 1


@inner_kernel
def _replay_match(partners: Partners, i: int) -> None:
    """Decide the match at node `i` of the tree; the earlier row wins a draw."""
    first, second = partners.winner[2 * i], partners.winner[2 * i + 1]
    second_wins = partners.key[first, 0] > partners.key[second, 0]
    if partners.ties.random and partners.key[first, 0] == partners.key[second, 0]:
        second_wins = partners.priority[first, 0] > partners.priority[second, 0]
    partners.winner[i] = second if second_wins else first


@inner_kernel
def _move_back(partners: Partners, u: int, now: float, priority: np.uint64) -> None:
    """Give the first partner of a row its current key; drop it if other pairs can be better."""
    key = partners.key
    partner = partners.partner
    v = partners.partner[u, 0]
    for i in range(PARTNERS):
        if now < key[u, i + 1] or (
            now == key[u, i + 1] and (priority, v) < (partners.priority[u, i + 1], partner[u, i + 1])
        ):
            key[u, i], partner[u, i] = now, v
            if partners.ties.random:
                partners.priority[u, i] = priority
            return
        key[u, i], partner[u, i] = key[u, i + 1], partner[u, i + 1]
        if partners.ties.random:
            partners.priority[u, i] = partners.priority[u, i + 1]
        if partner[u, i] == NONE:
            return


@inner_kernel
def _scan_row(
    partners: Partners,
    c: Components,
    weights: WeightArrays,
    degree: NDArray[np.int64],
    limit: int,
    u: int,
) -> None:
    """Find the best partners of u again."""
    key = partners.key
    partner = partners.partner
    last = PARTNERS - 1
    seen = key[u, 0]
    for i in range(PARTNERS + 1):
        key[u, i], partner[u, i] = np.inf, NONE
    random = partners.ties.random
    enough = 1  # with equal weights, the least contribution of a better partner
    _refresh_members(partners, c, degree, limit)
    position = _position_of(partners, c, u)
    bounds = partners.bounds[: partners.state[MEMBERS]]
    count_bits(partners.subscribed, partners.outside, position, position + 1, bounds[position + 1 :])
    for first in range(position + 1, len(bounds), SEGMENT):
        segment = bounds[first : first + SEGMENT]
        if not any_from(segment, enough):
            continue
        for i in range(len(segment)):
            most = segment[i]
            v = partners.members[first + i]
            if most < enough or degree[v] >= limit:
                continue
            w = weight_of(weights, u, v)
            if w > key[u, last] * most * TOLERANCE or not _precedes_last(partners, u, v, w, most):
                continue
            if w <= seen * most * TOLERANCE:  # the bound can be loose: compute the contribution
                most = contribution(c, u, v)
                if most == 0 or not _precedes_last(partners, u, v, w, most):
                    continue
            _insert(partners, u, v, w / most, priority_of(partners.ties, u, v, most))
            if weights.kind == UNIFORM and partner[u, last] != NONE:
                enough = int(np.rint(1.0 / key[u, last])) + (0 if random else 1)
    key[u, PARTNERS] = key[u, last]
    if random:
        partners.priority[u, PARTNERS] = partners.priority[u, last]


@inner_kernel
def _precedes_last(partners: Partners, u: int, v: int, w: float, mu: int) -> bool:
    """Whether a partner of this weight and contribution comes before the last one of its row."""
    key = w / mu
    last = partners.key[u, PARTNERS - 1]
    if key != last:
        return key < last
    return priority_of(partners.ties, u, v, mu) < partners.priority[u, PARTNERS - 1]


@inner_kernel
def _insert(partners: Partners, u: int, v: int, new: float, priority: np.uint64) -> None:
    """Insert a partner larger than the others into a row, replacing its last one."""
    key = partners.key
    partner = partners.partner
    i = PARTNERS - 1
    while i > 0 and (
        key[u, i - 1] > new or (key[u, i - 1] == new and partners.priority[u, i - 1] > priority)
    ):
        key[u, i], partner[u, i] = key[u, i - 1], partner[u, i - 1]
        if partners.ties.random:
            partners.priority[u, i] = partners.priority[u, i - 1]
        i -= 1
    key[u, i], partner[u, i] = new, v
    if partners.ties.random:
        partners.priority[u, i] = priority


@inner_kernel
def _refresh_members(partners: Partners, c: Components, degree: NDArray[np.int64], limit: int) -> None:
    """After some scans, drop the members that have reached the limit, and refresh the words of the others."""
    members = partners.members
    state = partners.state
    state[ROWS_TO_SCAN] -= 1
    if state[ROWS_TO_SCAN] >= 0:
        return
    size = 0
    for i in range(state[MEMBERS]):
        u = members[i]
        if degree[u] < limit:
            members[size] = u
            for w in range(c.outside.shape[1]):
                partners.subscribed[w, size] = c.subscribed[u, w]
                partners.outside[w, size] = c.outside[u, w]
            size += 1
    state[MEMBERS], state[ROWS_TO_SCAN], state[REFRESHED_AT] = size, size // REFRESH, c.tally[EDGES_ADDED]


@inner_kernel
def _position_of(partners: Partners, c: Components, u: int) -> int:
    """The index of u among the members, after refreshing its words there.

    If the main component of a topic has changed since the members were refreshed, their words are not valid
    for it: u is then marked as outside of it, so that all subscribers of the topic count.
    """
    low, high = 0, partners.state[MEMBERS]
    while low < high:
        middle = (low + high) // 2
        if partners.members[middle] < u:
            low = middle + 1
        else:
            high = middle
    for w in range(c.outside.shape[1]):
        partners.outside[w, low] = c.outside[u, w]
    for i in range(c.topic_start[u], c.topic_start[u + 1]):
        t = c.topics[i]
        if c.main_since[t] >= partners.state[REFRESHED_AT]:
            partners.outside[t >> 6, low] |= bit_of(t)
    return low


def cd_oda(interest: Interest, weights: Weights, options: TieOptions, seed: int) -> LinkResult:  # noqa: ARG001
    """Stars around the node with the largest n_u (paper 2, VI).

    Reference: Onus and Richa, ICDCS 2010 (paper 2), section VI.
    """
    return _stars(interest, BY_NODES, tie_rule(options.ties, seed))


def cd_oda_1(interest: Interest, weights: Weights, options: TieOptions, seed: int) -> LinkResult:  # noqa: ARG001
    """Stars around the node with the largest w_u (paper 2, VI-A).

    Reference: Onus and Richa, ICDCS 2010 (paper 2), section VI-A.
    """
    return _stars(interest, BY_SUBSCRIPTIONS, tie_rule(options.ties, seed))


def cd_oda_2(interest: Interest, weights: Weights, options: TieOptions, seed: int) -> LinkResult:  # noqa: ARG001
    """Stars around the node with the largest w_u / n_u (paper 2, VI-B).

    Reference: Onus and Richa, ICDCS 2010 (paper 2), section VI-B.
    """
    return _stars(interest, BY_DENSITY, tie_rule(options.ties, seed))


def _stars(interest: Interest, score: int, ties: TieRule) -> LinkResult:
    """The stars around the nodes of the highest score, each edge once."""
    words = -(-interest.node_count // WORD)
    members = pack_rows(interest.node_start, interest.nodes, words)
    topic_start = interest.topic_start
    topics = interest.topics
    centres = _centres(topic_start, topics, interest.node_start, interest.nodes, members, score, ties)
    return LinkResult(without_repetition(_star_edges(topic_start, topics, members, centres)))


@kernel
def _centres(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    node_start: NDArray[np.int64],
    nodes: NDArray[np.int32],
    members: NDArray[np.uint64],
    score: int,
    ties: TieRule,
) -> NDArray[np.int64]:
    """The centres of the stars, in order; only nodes that share a topic with the last one score again."""
    n = len(topic_start) - 1
    uncovered = node_start[1:] > node_start[:-1]
    reached = np.zeros(n, np.int64)
    subscriptions = np.zeros(n, np.int64)
    stale = np.ones(n, np.bool_)
    centres = np.empty(len(uncovered), np.int64)
    count = 0
    remaining = uncovered.sum()
    while remaining > 0:
        for u in range(n):
            if stale[u]:
                own = topics[topic_start[u] : topic_start[u + 1]]
                own = own[uncovered[own]]
                subscriptions[u] = (node_start[own + 1] - node_start[own]).sum()
                reached[u] = 1 if score == BY_SUBSCRIPTIONS else _union_size(members, own)
                stale[u] = False
        centre = _highest(reached, subscriptions, score, ties, count)
        centres[count] = centre
        count += 1
        for t in topics[topic_start[centre] : topic_start[centre + 1]]:
            if uncovered[t]:
                uncovered[t] = False
                remaining -= 1
                stale[nodes[node_start[t] : node_start[t + 1]]] = True
    return centres[:count]


@kernel
def _union_size(members: NDArray[np.uint64], topics: NDArray[np.int32]) -> int:
    """The number of nodes that have one of the topics."""
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
def _highest(
    reached: NDArray[np.int64], subscriptions: NDArray[np.int64], score: int, ties: TieRule, star: int
) -> int:
    """The first node of the highest score; a node without an uncovered topic scores 0.

    If ties are random, the node of the lowest priority; each star draws new priorities.
    """
    best, best_over, best_under = 0, -1, 1
    for u in range(len(reached)):
        over = reached[u] if score == BY_NODES else subscriptions[u]
        under = max(reached[u], 1) if score == BY_DENSITY else 1
        if over * best_under > best_over * under or (
            ties.random
            and over * best_under == best_over * under
            and priority_of(ties, u, u, star) < priority_of(ties, best, best, star)
        ):
            best, best_over, best_under = u, over, under
    return best


@kernel
def _star_edges(
    topic_start: NDArray[np.int64],
    topics: NDArray[np.int32],
    members: NDArray[np.uint64],
    centres: NDArray[np.int64],
) -> NDArray[np.int32]:
    """The edges of the stars, star after star, neighbours ascending; an edge of two stars occurs twice."""
    uncovered = np.ones(len(members), np.bool_)
    edges = [(np.int32(0), np.int32(0)) for _ in range(0)]
    for centre in centres:
        own = topics[topic_start[centre] : topic_start[centre + 1]]
        own = own[uncovered[own]]
        uncovered[own] = False
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
