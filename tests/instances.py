"""Hand-made link problems: those written out in the papers, and small ones on which a claim is tight.

Each function returns `(interests, weights)` in the form that `naive.py` takes. Figures 1 and 2 of paper 1 are
drawings without the subscriptions in the text, and the instances for its Lemma 4 and for Table I of paper 2
are in other papers, so they are not here.
"""

import random
from collections.abc import Callable
from itertools import combinations

Instance = tuple[list[set[int]], list[list[float]]]


def symmetric(nodes: int, weight: Callable[[int, int], float]) -> list[list[float]]:
    """The full matrix of `weight(u, v)`, which is called for u < v only; 0 on the diagonal."""
    return [[weight(min(u, v), max(u, v)) if u != v else 0.0 for v in range(nodes)] for u in range(nodes)]


def clique_or_star(n: int, epsilon: float = 0.25) -> Instance:
    """Paper 1, Lemma 10 (Fig. 3): PdMAW takes the clique on n + 1 nodes, PdrdMAW the star at node 0.

    Node 0 has all n * n topics, node p has t_pq and t_qp for each q. An edge of the star weighs
    (2n - 1) / 2 + epsilon, any other one 1. The ratio is 1 + (n^2 - n) / (2n^2 - n + 2 epsilon n), which
    tends to 3/2 from below; the paper prints -1 for the -n in the denominator.
    """
    return hub(n, first=0), symmetric(n + 1, lambda u, _: (2 * n - 1) / 2 + epsilon if u == 0 else 1.0)


def matchings_or_star(n: int) -> Instance:
    """Paper 2, Lemma 1: MinMax-ODA takes on the order of n^2 edges; the star at node 0 has n - 1.

    Node 0 (the paper's v_1) has all n * n topics t_ij, node i has t_ij and t_ji for each j; weights are 1.

    The paper counts n(n - 2) / 2 edges, as n - 2 perfect matchings. That is impossible for any order of ties:
    t_ii makes every edge of the star necessary, so node 0 has degree n - 1. And a pair that the star has
    joined no longer contributes: we find 5, 11, 21, 31, 46, 66 edges for n = 4, 6, 8, 10, 12, 14, where the
    paper counts 4, 12, 24, 40, 60, 84. Each is more than n^2 / 4, so the instance stays as printed.
    """
    return hub(n, first=1), symmetric(n, lambda _u, _v: 1.0)


def hub(n: int, first: int) -> list[set[int]]:
    """Node 0 with every topic t_pq = p * n + q, then for each p >= first a node with all t_pq and t_qp."""
    spokes = [{p * n + q for q in range(n)} | {q * n + p for q in range(n)} for p in range(first, n)]
    return [set(range(n * n)), *spokes]


def tree_per_topic_tight(topics: int, delta: float = 1e-3) -> Instance:
    """Ours: TrMAW weighs |T| times the optimum as delta tends to 0, the bound of paper 1, Lemma 1.

    Nodes 0 and 1 have all topics, node 2 + t has topic t alone. Node 0 is delta from these, node 1 is 1 from
    them, and 0 to 1 costs 1 + delta: each tree prefers its own path to node 1 over the shared edge.
    """
    return detours(topics, delta, lambda _: 1.0)


def greedy_tight(topics: int, delta: float = 1e-3) -> Instance:
    """Ours: GrMAW weighs H(|T|) times the optimum as delta tends to 0, the bound of paper 1, Theorem 2.

    As `tree_per_topic_tight`, but node 1 is 1 / (t + 1) from node 2 + t. With j topics remaining, the
    edge that serves them all costs (1 + delta) / j per topic, and the one that serves the last of them 1 / j.
    Needs delta < 1 / topics.
    """
    return detours(topics, delta, lambda t: 1.0 / (t + 1))


def detours(topics: int, delta: float, detour: Callable[[int], float]) -> Instance:
    """Two nodes with all topics, 1 + delta apart; for each topic t a node, delta and detour(t) from them."""
    common = set(range(topics))
    rows = {0: lambda v: 1.0 + delta if v == 1 else delta, 1: lambda v: detour(v - 2)}
    weights = symmetric(topics + 2, lambda u, v: rows[u](v) if u in rows else 1.0)
    return [common, set(common), *({t} for t in range(topics))], weights


def heavy_triangle(heavy: float = 100.0) -> Instance:
    """Ours: GM ignores weights (paper 1, IX-F) and takes the heavy (0, 1), where two edges of 1 suffice."""
    return [{0}, {0}, {0}], symmetric(3, lambda u, v: heavy if (u, v) == (0, 1) else 1.0)


def scattered(nodes: int, topics: int, seed: int, most: int = 3, integers: bool = False) -> Instance:
    """Zero to `most` random topics per node; random weights in (0, 1], or small integers with ties."""
    rng = random.Random(seed)
    interests = [set(rng.sample(range(topics), rng.randint(0, min(most, topics)))) for _ in range(nodes)]
    drawn = {
        (u, v): float(rng.randint(1, 4)) if integers else 1.0 - rng.random()
        for u, v in combinations(range(nodes), 2)
    }
    return interests, symmetric(nodes, lambda u, v: drawn[u, v])
