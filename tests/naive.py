"""Slow twins of every static overlay algorithm, from the pseudo-code of papers 1 and 2.

Paper 1: Chen, Tock, Jacobsen, Vitenberg, "Weighted Overlay Design for Topic-based Publish/Subscribe Systems
on Geo-Distributed Data Centers". Paper 2: Onus, Richa, "Parameterized Maximum and Average Degree
Approximation in Topic-based Publish-Subscribe Overlay Network Design".

Everything is recomputed from scratch at each step, in plain Python. `interests[v]` holds the topics of node
`v`, `weights[u][v]` is symmetric, an edge is `(u, v)` with `u < v`, and an overlay lists its edges in order
of selection. Ties go to the smallest edge or node, or to the first one in another order; `w / mu` is a
double division.
"""

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction
from itertools import combinations

Edge = tuple[int, int]
Edges = Sequence[Edge]
Interests = Sequence[Collection[int]]
Weights = Sequence[Sequence[float]]
Order = Callable[[Edge, int], tuple[int, ...]]  # of equally good edges; the number is that of the draw


# Ties.


def smallest(edge: Edge, _draw: int) -> tuple[int, ...]:
    """The order of ties by `(u, v)`."""
    return edge


def at_random(seed: int) -> Order:
    """A random order of the edges for each draw, by two rounds of SplitMix64 on 64-bit numbers."""
    step, modulus = 0x9E3779B97F4A7C15, 1 << 64

    def mixed(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % modulus
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % modulus
        return z ^ (z >> 31)

    def order(edge: Edge, draw: int) -> tuple[int, ...]:
        pair = edge[0] * 2**32 + edge[1]
        return (mixed((mixed((seed + pair * step) % modulus) + draw * step) % modulus), *edge)

    return order


# The model: topic-connected components and contributions (paper 1, III and VI).


def topics(interests: Interests) -> list[int]:
    """Every topic with a subscriber, ascending: T."""
    return sorted({t for own in interests for t in own})


def subscribers(interests: Interests, topic: int) -> list[int]:
    """The nodes interested in the topic, ascending: V^(t)."""
    return [v for v, own in enumerate(interests) if topic in own]


def pairs(interests: Interests) -> list[Edge]:
    """All possible edges, ascending: K."""
    return list(combinations(range(len(interests)), 2))


def components(
    interests: Interests, edges: Iterable[Edge], topic: int, groups: Sequence[int] | None = None
) -> list[set[int]]:
    """The topic-connected components (TCCs) of G^(t), by smallest member (paper 1, III-A).

    With `groups`, a part number per node, the subscribers in one part count as connected from the start.
    """
    tcc = {v: {v} for v in subscribers(interests, topic)}
    links = list(edges)
    if groups is not None:
        links += [(u, v) for u, v in combinations(tcc, 2) if groups[u] == groups[v]]
    for u, v in links:
        if u in tcc and v in tcc and tcc[u] is not tcc[v]:
            merged = tcc[u] | tcc[v]
            tcc.update(dict.fromkeys(merged, merged))
    return [tcc[v] for v in tcc if v == min(tcc[v])]


def is_topic_connected(interests: Interests, edges: Iterable[Edge]) -> bool:
    """Whether each topic induces at most one component (paper 1, III-A)."""
    edges = list(edges)
    return all(len(components(interests, edges, t)) == 1 for t in topics(interests))


def contribution(interests: Interests, edges: Iterable[Edge], u: int, v: int) -> int:
    """mu_E(u, v): the shared topics for which u and v lie in different components (paper 1, Eq. 10)."""
    edges = list(edges)
    shared = set(interests[u]) & set(interests[v])
    return sum(not any({u, v} <= tcc for tcc in components(interests, edges, t)) for t in shared)


def contributions(
    interests: Interests,
    edges: Iterable[Edge],
    candidates: Iterable[Edge] | None = None,
    groups: Sequence[int] | None = None,
) -> dict[Edge, int]:
    """mu_E(e) of each candidate for which it is positive; without candidates, of all pairs."""
    edges = list(edges)
    mu = dict.fromkeys(pairs(interests) if candidates is None else candidates, 0)
    for t in topics(interests):
        tccs = components(interests, edges, t, groups)
        label = {v: i for i, tcc in enumerate(tccs) for v in tcc}
        for u, v in mu:
            mu[u, v] += u in label and v in label and label[u] != label[v]
    return {e: m for e, m in mu.items() if m > 0}


def to_merge(interests: Interests, edges: Edges) -> int:
    """TCC(E) - TCC(K): the number of merges that are still to be done (paper 1, Eq. 8)."""
    return sum(len(components(interests, edges, t)) - 1 for t in topics(interests))


# Paper 1: least total weight.


def trmaw(interests: Interests, weights: Weights, ties: Order = smallest) -> list[Edge]:
    """TrMAW (paper 1, Alg. 1): the union of a minimum spanning tree per topic.

    Topic by topic, ascending; within a topic in the order in which a Kruskal over (weight, u, v) takes them,
    or over another order of ties, the same for all topics; an edge of several trees once, where it first
    occurs.
    """
    union: dict[Edge, None] = {}
    for t in topics(interests):
        tree: list[Edge] = []
        among = combinations(subscribers(interests, t), 2)
        for u, v in sorted(among, key=lambda e: (weights[e[0]][e[1]], ties(e, 0))):
            if not any({u, v} <= tcc for tcc in components(interests, tree, t)):
                tree.append((u, v))
        union.update(dict.fromkeys(tree))
    return list(union)


def gm(interests: Interests, ties: Order = smallest) -> list[Edge]:
    """GM, Greedy-Merge (paper 2, I-B; paper 1, IX-F): add the edge with the highest contribution."""
    edges: list[Edge] = []
    while mu := contributions(interests, edges):
        edges.append(min(mu, key=lambda e: (-mu[e], ties(e, mu[e]))))
    return edges


def grmaw(interests: Interests, weights: Weights, ties: Order = smallest) -> list[Edge]:
    """GrMAW (paper 1, Alg. 2): add the edge with the lowest w(e) / mu_E(e)."""
    return grmaw_from(interests, weights, ties=ties)


def grmaw_from(
    interests: Interests,
    weights: Weights,
    edges: Edges = (),
    candidates: Iterable[Edge] | None = None,
    groups: Sequence[int] | None = None,
    ties: Order = smallest,
) -> list[Edge]:
    """GrMAW (paper 1, Alg. 2) over some candidates, starting with some edges: the edges that it adds.

    It ends when no candidate contributes, which need not be a topic-connected overlay. With `groups`, a part
    number per node, the subscribers of a topic within a part are one component from the start.
    """
    candidates = pairs(interests) if candidates is None else list(candidates)
    added: list[Edge] = []
    while mu := contributions(interests, [*edges, *added], candidates, groups):
        added.append(min(mu, key=lambda e: (weights[e[0]][e[1]] / mu[e], ties(e, mu[e]))))
    return added


def pdmaw(interests: Interests, weights: Weights) -> tuple[list[Edge], float]:
    """PdMAW (paper 1, Alg. 4): the edges, and the dual value (Eq. 18), a lower bound on any overlay's weight.

    The residual r(e) = w(e) - sum_S mu_S(e) y_S is updated for every candidate at every step, with the
    contributions from before the edge is added.
    """
    r = {(u, v): weights[u][v] for u, v in pairs(interests)}
    edges: list[Edge] = []
    dual = 0.0
    while mu := contributions(interests, edges):
        e_i = min(mu, key=lambda e: (r[e] / mu[e], e))
        y = r[e_i] / mu[e_i]
        dual += y * to_merge(interests, edges)
        for e in mu:
            r[e] -= mu[e] * y
        edges.append(e_i)
    return edges, dual


def reverse_delete(interests: Interests, edges: Edges, order: Iterable[Edge]) -> list[Edge]:
    """Remove, in this order, each edge without which the rest is topic-connected (paper 1, VII-B)."""
    kept = list(edges)
    for e in order:
        rest = [f for f in kept if f != e]
        if is_topic_connected(interests, rest):
            kept = rest
    return kept


def pdrdmaw(interests: Interests, weights: Weights) -> list[Edge]:
    """PdrdMAW (paper 1, Alg. 5): PdMAW, then reverse delete in reverse order of selection."""
    edges, _ = pdmaw(interests, weights)
    return reverse_delete(interests, edges, reversed(edges))


def representatives_of(
    interests: Interests, part_of_node: Sequence[int], part: int, representatives: int = 3
) -> list[int]:
    """The representatives of a part, in order of choice (paper 1, IX-G leaves the rule open: this is ours).

    The topics that count are those that also have a subscriber in another part. Each needs
    min(representatives, its subscribers in the part) of them. Repeatedly take the node of the part with the
    most topics that still need one, ties to the smallest index, until no topic needs one.
    """
    inside = [v for v, p in enumerate(part_of_node) if p == part]
    elsewhere = {t for v, p in enumerate(part_of_node) if p != part for t in interests[v]}
    need = {t: min(representatives, sum(t in interests[v] for v in inside)) for t in elsewhere}
    chosen: list[int] = []
    while any(need.values()):
        gain = {v: sum(need.get(t, 0) > 0 for t in set(interests[v])) for v in inside if v not in chosen}
        best = min(gain, key=lambda v: (-gain[v], v))
        chosen.append(best)
        for t in set(interests[best]) & elsewhere:
            need[t] = max(0, need[t] - 1)
    return chosen


def dcmaw(
    interests: Interests, weights: Weights, part_of_node: Sequence[int], representatives: int = 3
) -> list[Edge]:
    """DcMAW (paper 1, Alg. 6 and IX-G), one flat level: inner edges part by part, then outer edges.

    Conquer each part, ascending, by GrMAW on its nodes. Combine by GrMAW over the cross-part pairs among
    representatives; each part's subscribers of a topic are one component by then. Representatives of a part:
    greedily the node with the most topics that are shared with other parts and still need one, ties to the
    smallest index, until each such topic is covered `representatives` times or as often as possible.
    """
    inner: list[Edge] = []
    reps: list[int] = []
    for part in sorted(set(part_of_node)):
        within = [(u, v) for u, v in pairs(interests) if part_of_node[u] == part_of_node[v] == part]
        inner += grmaw_from(interests, weights, candidates=within)
        reps += representatives_of(interests, part_of_node, part, representatives)
    across = [(u, v) for u, v in combinations(sorted(reps), 2) if part_of_node[u] != part_of_node[v]]
    return inner + grmaw_from(interests, weights, inner, across, part_of_node)


# Paper 2: low degree, constant diameter.


def minmax_oda(interests: Interests, ties: Order = smallest) -> list[Edge]:
    """MinMax-ODA (paper 2, I-B): the highest contribution among those that raise the maximum degree least."""
    edges: list[Edge] = []
    while mu := contributions(interests, edges):
        spared = sparing(mu, degrees(interests, edges))
        edges.append(min(spared, key=lambda e: (-mu[e], ties(e, mu[e]))))
    return edges


def low_oda(interests: Interests, k: float = 3, strict: bool = False, ties: Order = smallest) -> list[Edge]:
    """Low-ODA (paper 2, Alg. 1): e1 as MinMax-ODA, e2 as GM; e1 if w(e1) >= w(e2) / k, else e2.

    If strict, e1 only if w(e1) > w(e2) / k, as the paper's text says.
    """
    edges: list[Edge] = []
    while mu := contributions(interests, edges):
        spared = sparing(mu, degrees(interests, edges))
        e1 = min(spared, key=lambda e: (-mu[e], ties(e, mu[e])))
        e2 = min(mu, key=lambda e: (-mu[e], ties(e, mu[e])))
        near = mu[e1] * k > mu[e2] if strict else mu[e1] * k >= mu[e2]
        edges.append(e1 if near else e2)
    return edges


def sparing(candidates: Iterable[Edge], degree: Sequence[int]) -> list[Edge]:
    """The candidates that do not raise the maximum degree; if there are none, all (paper 2, Alg. 1)."""
    candidates = list(candidates)
    most = max(degree)
    return [(u, v) for u, v in candidates if degree[u] < most and degree[v] < most] or candidates


def cd_oda(interests: Interests, ties: Order = smallest) -> list[Edge]:
    """CD-ODA (paper 2, VI): stars around the node with the largest n_u."""
    return stars(interests, lambda n, _: n, ties)


def cd_oda_1(interests: Interests, ties: Order = smallest) -> list[Edge]:
    """CD-ODA-I (paper 2, VI-A): stars around the node with the largest w_u."""
    return stars(interests, lambda _, w: w, ties)


def cd_oda_2(interests: Interests, ties: Order = smallest) -> list[Edge]:
    """CD-ODA-II (paper 2, VI-B): stars around the node with the largest density d_u = w_u / n_u, exactly."""
    return stars(interests, lambda n, w: Fraction(w, n), ties)


def stars(
    interests: Interests, score: Callable[[int, int], Fraction | int], ties: Order = smallest
) -> list[Edge]:
    """Until all topics are covered: link the node of highest score(n_u, w_u) to all its neighbours.

    n_u counts the nodes that share an uncovered topic with u, w_u sums the subscribers of u's uncovered
    topics; u itself counts in both, as in the formulas of paper 2, VI. Neighbours are linked in ascending
    order, an edge once; a topic with a single subscriber yields no edge. Ties are in the order of the pairs
    (u, u), with a draw per star.
    """
    uncovered = set(topics(interests))
    count = 0
    edges: dict[Edge, None] = {}
    while uncovered:
        star: dict[int, list[int]] = {}
        size: dict[int, int] = {}
        for u, own in enumerate(interests):
            active = uncovered & set(own)
            if active:
                star[u] = [v for v, other in enumerate(interests) if active & set(other)]
                size[u] = sum(len(subscribers(interests, t)) for t in active)
        u = min(star, key=lambda u: (-score(len(star[u]), size[u]), ties((u, u), count)))
        count += 1
        edges.update(dict.fromkeys((min(u, v), max(u, v)) for v in star[u] if v != u))
        uncovered -= set(interests[u])
    return list(edges)


# The optimum of tiny instances, and the measures.


def optimum(interests: Interests, weights: Weights) -> tuple[float, list[Edge]]:
    """A topic-connected overlay of the least total weight, by exhaustive search: weight and sorted edges.

    A component of a topic that is not yet connected needs an edge to the topic's other subscribers. Branch on
    the first of these that is taken, with those before it banned; stop at the weight of the best so far.
    """
    best = grmaw(interests, weights)

    def search(edges: list[Edge], banned: set[Edge]) -> None:
        nonlocal best
        if total_weight(weights, edges) >= total_weight(weights, best):
            return
        open_topics = [t for t in topics(interests) if len(components(interests, edges, t)) > 1]
        if not open_topics:
            best = edges
            return
        side = components(interests, edges, open_topics[0])[0]
        other = set(subscribers(interests, open_topics[0])) - side
        cut = {(min(u, v), max(u, v)) for u in side for v in other} - banned
        for e in sorted(cut, key=lambda e: (weights[e[0]][e[1]], e)):
            search([*edges, e], banned)
            banned = banned | {e}

    search([], set())
    return total_weight(weights, best), sorted(best)


def total_weight(weights: Weights, edges: Iterable[Edge]) -> float:
    """The sum of the edges' weights, rounded once (paper 1, Problem 1)."""
    return math.fsum(weights[u][v] for u, v in edges)


def degrees(interests: Interests, edges: Iterable[Edge]) -> list[int]:
    """The degree of each node."""
    degree = [0] * len(interests)
    for u, v in edges:
        degree[u] += 1
        degree[v] += 1
    return degree


def hop_diameter(interests: Interests, edges: Edges, topic: int) -> float:
    """diam(t) (paper 1, IX-F): the longest shortest path of G^(t) in hops, infinite if not connected."""
    ones = [[1.0] * len(interests) for _ in interests]
    return weighted_diameter(interests, ones, edges, topic)


def weighted_diameter(interests: Interests, weights: Weights, edges: Edges, topic: int) -> float:
    """The weighted diam(t) (paper 1, IX-F) by Floyd and Warshall, infinite if G^(t) is not connected."""
    nodes = subscribers(interests, topic)
    far = {(u, v): 0.0 if u == v else math.inf for u in nodes for v in nodes}
    for u, v in edges:
        if u in nodes and v in nodes:
            far[u, v] = far[v, u] = weights[u][v]
    for k in nodes:
        for i in nodes:
            for j in nodes:
                far[i, j] = min(far[i, j], far[i, k] + far[k, j])
    return max(far.values(), default=0.0)
