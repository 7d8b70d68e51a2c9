"""What people wire today, for comparison: a full mesh with interest, one global tree, a hub with spokes."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

from broadloom.deployment.traffic import Publication
from broadloom.deployment.trees import Tree, filter_groups
from broadloom.deployment.wiring import Link, Wiring, wanted_filters, wire
from broadloom.plans.plan import Plan


def mesh(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """Every broker linked to every other; a message goes straight to the brokers that want it."""
    bare = wire(plan, (), publications)
    wants, names = wanted_filters(plan), plan.interest.node_ids
    links = [
        Link(u, v, tuple(sorted(wants[v])), tuple(sorted(wants[u])))
        for i, u in enumerate(names)
        for v in names[i + 1 :]
    ]
    return Wiring(bare.brokers, bare.wants, bare.publishes, tuple(links), relays=False)


def global_tree(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """One least spanning tree of all brokers; towards each end a link carries what is wanted behind it."""
    return _one_tree(plan, _least_tree(plan), publications)


def flooded_tree(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """The same tree, on which every message goes to every broker."""
    tree = _one_tree(plan, _least_tree(plan), publications)
    links = tuple(link._replace(out=("#",), into=("#",)) for link in tree.links)
    return Wiring(tree.brokers, tree.wants, tree.publishes, links)


def hub(plan: Plan, publications: Iterable[Publication] = ()) -> Wiring:
    """Every broker linked to the most central one, and to no other."""
    count = plan.interest.node_count
    weights = plan.weights.matrix()
    centre = int(np.argmin(weights.sum(axis=1))) if count else 0
    edges = [(min(centre, v), max(centre, v)) for v in range(count) if v != centre]
    return _one_tree(plan, edges, publications)


ALTERNATIVES: dict[str, Callable[[Plan, Iterable[Publication]], Wiring]] = {
    "full mesh with interest": mesh,
    "one global tree": global_tree,
    "one global tree, flooded": flooded_tree,
    "hub and spoke": hub,
}


def _least_tree(plan: Plan) -> list[tuple[int, int]]:
    u, v = minimum_spanning_tree(plan.weights.matrix()).nonzero()
    return sorted((min(pair), max(pair)) for pair in zip(u.tolist(), v.tolist(), strict=True))


def _one_tree(plan: Plan, edges: list[tuple[int, int]], publications: Iterable[Publication]) -> Wiring:
    """Every topic on the same tree; a publisher in it needs no leaf."""
    trees = [Tree(filters, tuple(edges)) for filters in filter_groups(plan.interest)]
    return wire(plan, trees, publications)
