"""Hand-made link problems: those written out in the papers, and small ones on which a claim is tight.

Each function returns `(interests, weights)` in the form that `naive.py` takes. Figures 1 and 2 of paper 1 are
drawings without the subscriptions in the text, and the instances for its Lemma 4 and for Table I of paper 2
are in other papers, so they are not here.
"""

import random
from itertools import combinations

from broadloom.papers.lemma_instances import (
    Instance,
    clique_or_star,
    detours,
    greedy_tight,
    hub,
    matchings_or_star,
    symmetric,
    tree_per_topic_tight,
)

__all__ = [
    "Instance",
    "clique_or_star",
    "detours",
    "greedy_tight",
    "heavy_triangle",
    "hub",
    "matchings_or_star",
    "scattered",
    "symmetric",
    "tree_per_topic_tight",
]


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
