"""TrMAW (paper 1, Alg. 1): a minimum spanning tree for each topic on its own, and their union."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import inner_kernel, kernel, thread_count
from broadloom.linking._built import Built
from broadloom.linking._edges import first_of_each
from broadloom.model import Interest, NoOptions, WeightArrays, Weights, weight_of


def trmaw(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:  # noqa: ARG001
    """Topic after topic its tree's edges by weight, then `(u, v)`; an edge of several trees once.

    That is Kruskal's order, without his list of all pairs: under a strict order of the edges there is one
    minimum spanning tree, and Prim finds it in memory linear in the subscribers.
    """
    arrays, topics = weights.arrays(), range(interest.topic_count)
    with ThreadPoolExecutor(thread_count()) as threads:
        trees = list(threads.map(lambda topic: _spanning_tree(arrays, interest.nodes_of(topic)), topics))
    edges = np.concatenate([tree for tree, _ in trees] + [np.empty((0, 2), np.int32)])
    cost = np.concatenate([cost for _, cost in trees] + [np.empty(0)])
    topic = np.repeat(topics, [len(tree) for tree, _ in trees])
    return Built(first_of_each(edges[np.lexsort((edges[:, 1], edges[:, 0], cost, topic))]))


@kernel
def _spanning_tree(
    weights: WeightArrays, members: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The minimum spanning tree of the members under the order (weight, u, v), and its edges' weights.

    Prim over all pairs, n^2 / 2 weights: each member outside keeps its best edge into the tree.
    """
    outside = members[1:].copy()
    inside = np.empty_like(outside)  # the tree's end of the best edge
    cost = np.full(len(outside), np.inf)
    tree, tree_cost = np.empty((len(outside), 2), np.int32), np.empty(len(outside))
    newest = members[0] if len(members) else 0
    for left in range(len(outside), 0, -1):
        lowest = np.inf
        for i in range(left):
            w = weight_of(weights, newest, outside[i])
            if w <= cost[i] and (w < cost[i] or _comes_first(newest, outside[i], inside[i], outside[i])):
                cost[i], inside[i] = w, newest
            lowest = min(lowest, cost[i])
        best = _first_at(lowest, cost[:left], inside, outside)
        newest = outside[best]
        tree[left - 1] = min(newest, inside[best]), max(newest, inside[best])
        tree_cost[left - 1] = lowest
        outside[best], inside[best], cost[best] = outside[left - 1], inside[left - 1], cost[left - 1]
    return tree, tree_cost


@kernel
def _first_at(
    lowest: float, cost: NDArray[np.float64], inside: NDArray[np.int32], outside: NDArray[np.int32]
) -> int:
    """Of the edges that cost the lowest, the smallest."""
    best = -1
    for i in range(len(cost)):
        if cost[i] == lowest and (
            best < 0 or _comes_first(inside[i], outside[i], inside[best], outside[best])
        ):
            best = i
    return best


@inner_kernel
def _comes_first(a: int, b: int, c: int, d: int) -> bool:
    """Whether the edge of a and b is smaller than that of c and d."""
    low, other = min(a, b), min(c, d)
    return low < other or (low == other and max(a, b) < max(c, d))
