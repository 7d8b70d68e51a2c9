"""Timed tasks: linking, and what it is compared with.

Each task takes an interest, weights and its arguments, prepares what is not timed, and returns the function
to be timed.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

import broadloom as bl
from broadloom.kernels import kernel, over_ranges

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

Run = Callable[[], dict[str, Any]]

# With fewer nodes a popcount of all pairs takes less time than starting threads.
THREADS_PAY = 4000


def link(interest: bl.Interest, weights: bl.Weights, algorithm: str, **options: Any) -> Run:
    """`bl.link`, with the check of its result."""
    return lambda: described(bl.link(interest, weights, algorithm, **options))


def build(interest: bl.Interest, weights: bl.Weights, algorithm: str, **options: Any) -> Run:
    """An algorithm without the check of its result, as a peer is timed."""
    from broadloom.linking import ALGORITHMS
    from broadloom.model import find_algorithm

    chosen = find_algorithm(algorithm, ALGORITHMS)
    settings = chosen.with_options(options)
    return lambda: described_edges(weights, chosen.run(interest, weights, settings, 0).edges)


def delete(interest: bl.Interest, weights: bl.Weights, algorithm: str, heaviest: bool = False) -> Run:
    """Reverse delete on the overlay of an algorithm, the last edge first, or the heaviest."""
    edges = bl.link(interest, weights, algorithm).edges
    return lambda: described_edges(weights, edges[_kept(interest, weights, edges, heaviest)])


def link_delete(interest: bl.Interest, weights: bl.Weights, algorithm: str, **options: Any) -> Run:
    """Linking, then a reverse delete over the whole overlay, the heaviest edge first."""

    def run() -> dict[str, Any]:
        edges = bl.link(interest, weights, algorithm, **options).edges
        return described_edges(weights, edges[_kept(interest, weights, edges, heaviest=True)])

    return run


def bound(interest: bl.Interest, weights: bl.Weights, **options: Any) -> Run:
    """The certified lower bound."""
    return lambda: {"lower_bound": bl.lower_bound(interest, weights, **options)}


def twin(interest: bl.Interest, weights: bl.Weights, algorithm: str) -> Run:
    """The slow twin of an algorithm, in plain Python."""
    import naive

    lists = [interest.topics_of(u).tolist() for u in range(interest.node_count)]
    arguments = (
        (lists,) if algorithm in ("gm", "low-oda", "minmax-oda") else (lists, weights.matrix().tolist())
    )
    build = getattr(naive, algorithm.replace("-", "_"))

    def run() -> dict[str, Any]:
        result = build(*arguments)
        return described_edges(weights, result[0] if algorithm == "pdmaw" else result)

    return run


def scipy_trees(interest: bl.Interest, weights: bl.Weights) -> Run:
    """The union of a minimum spanning tree per topic, with SciPy."""
    from scipy.sparse.csgraph import minimum_spanning_tree

    def run() -> dict[str, Any]:
        edges: set[tuple[int, int]] = set()
        for nodes in _topics(interest):
            u, v = minimum_spanning_tree(weights.subset(nodes).matrix()).nonzero()
            ends = np.sort(np.stack((nodes[u], nodes[v]), axis=1), axis=1)
            edges.update(map(tuple, ends.tolist()))
        return described_edges(weights, sorted(edges))

    return run


def networkx_trees(interest: bl.Interest, weights: bl.Weights) -> Run:
    """The union of a minimum spanning tree per topic, with NetworkX."""
    import networkx as nx

    whole = nx.from_numpy_array(weights.matrix())

    def run() -> dict[str, Any]:
        edges: set[tuple[int, int]] = set()
        for nodes in _topics(interest):
            tree = nx.minimum_spanning_edges(whole.subgraph(nodes.tolist()), data=False)
            edges.update((min(u, v), max(u, v)) for u, v in tree)
        return described_edges(weights, sorted(edges))

    return run


def popcount(interest: bl.Interest, weights: bl.Weights) -> Run:  # noqa: ARG001
    """The floor: the number of shared topics of all pairs, on all threads if that pays."""
    bits = _bits(interest.topic_start, interest.topics, -(-interest.topic_count // 64))
    sums = np.zeros(interest.node_count, np.int64)

    def run() -> dict[str, Any]:
        if len(sums) < THREADS_PAY:
            _count_pairs(bits, sums, 0, len(sums))
        else:
            over_ranges(len(sums), lambda first, last: _count_pairs(bits, sums, first, last), "count pairs")
        return {"shared": int(sums.sum())}

    return run


TASKS: dict[str, Callable[..., Run]] = {
    task.__name__: task
    for task in (link, build, delete, link_delete, bound, twin, scipy_trees, networkx_trees, popcount)
}


def described(plan: bl.Plan) -> dict[str, Any]:
    """The facts about a plan that benchmarks report."""
    return described_edges(plan.weights, plan.edges) | {
        "lower_bound": plan.lower_bound,
        "notes": dict(plan.notes),
    }


def described_edges(weights: bl.Weights, edges: Iterable[Any]) -> dict[str, Any]:
    """The facts about an overlay that benchmarks report; equal digests mean equal edges in the same order."""
    pairs = np.array(edges, np.int32).reshape(-1, 2)
    degree = np.bincount(pairs.ravel(), minlength=1)
    return {
        "edges": len(pairs),
        "total_weight": float(weights.of(pairs[:, 0], pairs[:, 1]).sum()),
        "max_degree": int(degree.max()),
        "digest": hashlib.sha256(pairs.astype("<i4").tobytes()).hexdigest()[:16],
    }


def _kept(
    interest: bl.Interest, weights: bl.Weights, edges: NDArray[np.int32], heaviest: bool
) -> NDArray[np.bool_]:
    from broadloom.linking import heaviest_first, reverse_delete

    return reverse_delete(interest, edges, heaviest_first(weights, edges) if heaviest else None)


def _topics(interest: bl.Interest) -> list[NDArray[np.int32]]:
    """The subscribers of each topic that has two or more."""
    groups = [interest.nodes_of(topic) for topic in range(interest.topic_count)]
    return [nodes for nodes in groups if len(nodes) > 1]


@intrinsic
def _ones(typing, word):  # noqa: ARG001
    """The number of set bits of a word, by the machine instruction."""
    return types.int64(types.uint64), lambda context, builder, signature, args: builder.ctpop(args[0])  # noqa: ARG005


@kernel
def _bits(start: NDArray[np.int64], topics: NDArray[np.int32], words: int) -> NDArray[np.uint64]:
    """A row of topic bits per node."""
    bits = np.zeros((len(start) - 1, words), np.uint64)
    for u in range(len(start) - 1):
        for i in range(start[u], start[u + 1]):
            bits[u, topics[i] >> 6] |= np.uint64(1) << np.uint64(topics[i] & 63)
    return bits


@kernel
def _count_pairs(bits: NDArray[np.uint64], sums: NDArray[np.int64], first: int, last: int) -> None:
    """Per row, the number of topics that it shares with later rows."""
    for u in range(first, last):
        total = 0
        for v in range(u + 1, len(bits)):
            for word in range(bits.shape[1]):
                total += _ones(bits[u, word] & bits[v, word])
        sums[u] = total
