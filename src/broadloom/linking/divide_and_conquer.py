"""DcMAW (paper 1, Alg. 6 and section IX-G): divide the nodes, conquer the parts, combine representatives.

Each step is a function on plain arrays, so that parts can be conquered on any machine:

    part_of_node = divide(weights, options, seed)
    inner = [conquer(interest, weights, nodes, "grmaw", seed) for nodes in members(part_of_node)]
    outer = combine(interest, weights, part_of_node, options)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_choice, check_count, check_flag, check_text, ordered_list
from broadloom.errors import InputError
from broadloom.kernels import k_means, kernel
from broadloom.linking._bands import in_threads
from broadloom.linking.greedy_overlays import merge_by_contribution, merge_by_weight
from broadloom.linking.link_result import LinkResult
from broadloom.linking.local_search import heaviest_first, reverse_delete
from broadloom.linking.topic_components import join_parts, separate_components
from broadloom.model import Interest, Weights, find_algorithm

# With more representatives than this, combine some parts at a time: a little heavier, much faster.
MANY_REPRESENTATIVES = 50_000
PARTS_AT_A_TIME = 256
LANDMARKS = 8  # for k-means without coordinates


class PartGroup(NamedTuple):
    """Nodes to be joined, and the part of each."""

    nodes: NDArray[np.int64]
    part: NDArray[np.int64]


JoinAll = Callable[[Sequence[PartGroup]], Sequence[NDArray[np.int32]]]


@dataclass(frozen=True)
class DivideOptions:
    """Options of dcmaw.

    Attributes:
        by: "site" (needs weights by site), "kmeans" (on coordinates, or on the weights to a few landmarks),
            "landmark" (the nearest of some distant nodes), "random"; None: by site if there are sites, else
            by k-means. "random" is for comparison: it is far heavier if weights have locality.
        part_size: the approximate number of nodes per part, unless by site. Smaller parts are faster but give
            heavier overlays, as each one connects its rare topics with long inner links.
        part_of_node: a part number from 0 for each node, instead of `by`.
        representatives: the number of nodes of a part that represent each topic that it shares with other
            parts. With 1 the result is about 4 % heavier; 10 hardly helps and takes three times as long.
        conquer: the algorithm for the inside of each part.
        parts_at_a_time: the number of parts to combine at a time, level by level; None: all, unless there
            are very many representatives.
        thin: whether to remove redundant links of the whole overlay at the end, heaviest first.
    """

    by: str | None = None
    part_size: int = 1000
    part_of_node: Sequence[int] | None = None
    representatives: int = 3
    conquer: str = "grmaw"
    parts_at_a_time: int | None = None
    thin: bool = False

    def __post_init__(self) -> None:
        if self.by is not None:
            check_choice(self.by, "by", DIVISIONS)
        if self.by is not None and self.part_of_node is not None:
            raise InputError("by and part_of_node exclude each other; give one of them")
        check_text(self.conquer, "conquer")
        check_flag(self.thin, "thin")
        check_count(self.part_size, "part_size", minimum=1)
        check_count(self.representatives, "representatives", minimum=1)
        if self.parts_at_a_time is not None:
            check_count(self.parts_at_a_time, "parts_at_a_time", minimum=2)
        if self.part_of_node is not None:
            parts = ordered_list(self.part_of_node, "part_of_node")
            numbers = tuple(check_count(part, f"the part of node {u}") for u, part in enumerate(parts))
            object.__setattr__(self, "part_of_node", numbers)


def dcmaw(interest: Interest, weights: Weights, options: DivideOptions, seed: int) -> LinkResult:
    """Inner edges part by part, then the outer edges that join the parts.

    Reference: Chen, Tock, Jacobsen and Vitenberg, ICDCS 2015 (paper 1), Alg. 6.
    """
    part_of_node = divide(weights, options, seed)
    parts = members(part_of_node)
    inner = in_threads(lambda nodes: conquer(interest, weights, nodes, options.conquer, seed), parts)
    return assemble(interest, weights, part_of_node, inner, options)


def assemble(
    interest: Interest,
    weights: Weights,
    part_of_node: NDArray[np.int32],
    inner: Sequence[NDArray[np.int32]],
    options: DivideOptions,
    join_all: JoinAll | None = None,
) -> LinkResult:
    """The whole overlay from the inner edges of each part."""
    edges = np.concatenate([*inner, combine(interest, weights, part_of_node, options, join_all)])
    if options.thin:
        edges = edges[reverse_delete(interest, edges, heaviest_first(weights, edges))]
    sizes = np.bincount(part_of_node)
    return LinkResult(edges, notes={"parts": len(sizes), "largest_part": int(sizes.max(initial=0))})


def divide(weights: Weights, options: DivideOptions, seed: int) -> NDArray[np.int32]:
    """A part number for each node; the parts are numbered from 0 without gaps."""
    n = weights.node_count
    if n == 0:
        return np.empty(0, np.int32)
    if options.part_of_node is not None:
        if len(options.part_of_node) != n:
            raise InputError(
                f"part_of_node has {len(options.part_of_node):,} entries; "
                f"give one for each of the {n:,} nodes"
            )
        part = np.array(options.part_of_node, np.int64)
    else:
        rng = np.random.default_rng(seed)
        by = options.by or ("site" if weights.kind == "sites" else "kmeans")
        part = DIVISIONS[by](weights, math.ceil(n / options.part_size), rng).astype(np.int64)
    return np.unique(part, return_inverse=True)[1].astype(np.int32)


def by_site(weights: Weights, parts: int, rng: np.random.Generator) -> NDArray[np.int32]:  # noqa: ARG001
    """One part per site of the weights."""
    if weights.kind != "sites":
        raise InputError(f"by='site' needs weights by site, these are {weights.kind}; use by='kmeans'")
    return weights.site


def by_random(weights: Weights, parts: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Parts of equal size, drawn at random."""
    return (rng.permutation(weights.node_count) % parts).astype(np.int32)


def by_landmark(weights: Weights, parts: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Each node with the nearest of as many landmarks as there are parts."""
    return np.argmin(distances_to(weights, landmarks(weights, parts, rng)), axis=1).astype(np.int32)


def by_kmeans(weights: Weights, parts: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Clusters of coordinates, or of the weights to a few landmarks if there are no coordinates."""
    if weights.kind == "euclidean":
        return k_means(weights.points, parts, rng)
    return k_means(distances_to(weights, landmarks(weights, LANDMARKS, rng)), parts, rng)


DIVISIONS: dict[str, Callable[[Weights, int, np.random.Generator], NDArray[np.int32]]] = {
    "site": by_site,
    "kmeans": by_kmeans,
    "random": by_random,
    "landmark": by_landmark,
}


def landmarks(weights: Weights, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Nodes far from each other: the first at random, then always the one farthest from the others."""
    n = weights.node_count
    chosen = [int(rng.integers(n))]
    nearest = distances_to(weights, np.array(chosen))[:, 0]
    while len(chosen) < min(count, n):
        chosen.append(int(np.argmax(nearest)))
        nearest = np.minimum(nearest, distances_to(weights, np.array(chosen[-1:]))[:, 0])
    return np.array(chosen)


def distances_to(weights: Weights, nodes: NDArray[np.int64]) -> NDArray[np.float64]:
    """The weights from every node (rows) to these nodes (columns); 0 from a node to itself."""
    n = weights.node_count
    table = weights.of(np.repeat(np.arange(n), len(nodes)), np.tile(nodes, n)).reshape(n, len(nodes))
    table[nodes, np.arange(len(nodes))] = 0.0
    return table


def members(part_of_node: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    """The nodes of each part, ascending."""
    order = np.argsort(part_of_node, kind="stable")
    return np.split(order, np.cumsum(np.bincount(part_of_node))[:-1]) if len(order) else []


def conquer(
    interest: Interest, weights: Weights, nodes: NDArray[np.int64], algorithm: str = "grmaw", seed: int = 0
) -> NDArray[np.int32]:
    """The edges of an algorithm among some nodes; `nodes` ascend, so that ties are broken as usual."""
    if algorithm == "grmaw":  # for a small part, building an Interest would take longer than the algorithm
        start, topics = rows_of(interest, nodes)
        edges = merge_by_weight(
            separate_components(start, topics, interest.topic_count), weights.subset(nodes).arrays()
        )
    else:
        from broadloom.linking import ALGORITHMS  # imports this module

        chosen = find_algorithm(algorithm, ALGORITHMS)
        part = interest.subset(nodes), weights.subset(nodes)
        edges = chosen.run(*part, chosen.with_options({}), seed).edges
    return nodes[edges].astype(np.int32)


def combine(
    interest: Interest,
    weights: Weights,
    part_of_node: NDArray[np.int32],
    options: DivideOptions,
    join_all: JoinAll | None = None,
) -> NDArray[np.int32]:
    """The edges that join the parts, inside each of which every topic is connected already.

    With very many representatives, groups of neighbouring parts are joined first. These groups are the parts
    of the next level, which needs fewer representatives.

    Args:
        interest: the topics of each node.
        weights: the weights of the links.
        part_of_node: the part of each node.
        options: the number of representatives, and of parts at a time.
        join_all: joins each of some groups as `join` does, on any machine; None: in threads.
    """
    join_all = join_all or (lambda groups: in_threads(lambda one: join(interest, weights, one), groups))
    nodes = np.arange(len(part_of_node))
    part = part_of_node.astype(np.int64)
    edges = [np.empty((0, 2), np.int32)]
    while len(part) and part.max() > 0:
        chosen = representatives_of(interest, nodes, part, options.representatives)
        nodes = nodes[chosen]
        part = part[chosen]
        many = len(nodes) > MANY_REPRESENTATIVES
        group = part // (options.parts_at_a_time or (PARTS_AT_A_TIME if many else len(part_of_node)))
        groups = [indices for indices in members(group.astype(np.int32)) if len(indices) > 1]
        edges += join_all([PartGroup(nodes[indices], part[indices]) for indices in groups])
        part = group
    return np.concatenate(edges)


def join(interest: Interest, weights: Weights, group: PartGroup) -> NDArray[np.int32]:
    """GrMAW among the nodes of a group; a part's subscribers of a topic are one component from the start."""
    nodes, part = group
    start, topics = rows_of(interest, nodes)
    components = separate_components(start, topics, interest.topic_count)
    join_parts(components, np.unique(part, return_inverse=True)[1].astype(np.int32), len(part))
    group_weights = weights.subset(nodes)
    if _weigh_the_same(group_weights, part):  # the lowest weight per contribution is the highest contribution
        return nodes[merge_by_contribution(components)].astype(np.int32)
    return nodes[merge_by_weight(components, group_weights.arrays())].astype(np.int32)


def _weigh_the_same(weights: Weights, part: NDArray[np.int64]) -> bool:
    """Whether all pairs of nodes in different parts weigh the same, if that is cheap to see."""
    if weights.kind != "sites" or weights.table.size:
        return weights.is_uniform
    sites, first = np.unique(weights.site, return_index=True)
    part_of_site = part[first]
    each_site_in_one_part = np.array_equal(part_of_site[np.searchsorted(sites, weights.site)], part)
    return bool(each_site_in_one_part)


def representatives_of(
    interest: Interest, nodes: NDArray[np.int64], part: NDArray[np.int64], representatives: int
) -> NDArray[np.int64]:
    """The representatives of the parts, as indices of `nodes`, ascending.

    The topics that count are those with a subscriber in another part. In each part, the node with the most
    topics that are not yet covered `representatives` times is taken, the first of several, until all topics
    are covered as often, or by all their subscribers in the part.
    """
    start, topics = rows_of(interest, nodes)
    popularity = np.bincount(topics, minlength=interest.topic_count)
    parts = [indices for indices in members(part.astype(np.int32)) if len(indices)]
    chosen = [_cover(start, topics, popularity, indices, representatives) for indices in parts]
    return np.sort(np.concatenate([np.empty(0, np.int64), *chosen]))


@kernel
def _cover(
    start: NDArray[np.int64],
    topics: NDArray[np.int32],
    popularity: NDArray[np.int64],
    part: NDArray[np.int64],
    representatives: int,
) -> NDArray[np.int64]:
    """The representatives of one part, in order of choice."""
    need = np.zeros(len(popularity), np.int64)
    for u in part:
        for i in range(start[u], start[u + 1]):
            need[topics[i]] += 1
    for t in range(len(need)):
        need[t] = min(representatives, need[t]) if need[t] < popularity[t] else 0
    candidates = part.copy()
    count = 0
    while True:
        best, most = -1, 0
        for k in range(count, len(candidates)):
            gain = 0
            for i in range(start[candidates[k]], start[candidates[k] + 1]):
                gain += need[topics[i]] > 0
            if gain > most or (gain == most and gain > 0 and candidates[k] < candidates[best]):
                best, most = k, gain
        if best < 0:
            return candidates[:count].copy()
        candidates[count], candidates[best] = candidates[best], candidates[count]
        for i in range(start[candidates[count]], start[candidates[count] + 1]):
            need[topics[i]] = max(0, need[topics[i]] - 1)
        count += 1


def rows_of(interest: Interest, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The topics of some nodes as compressed rows, in the order of `nodes`."""
    sizes = interest.topic_start[nodes + 1] - interest.topic_start[nodes]
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    entries = np.arange(start[-1]) + np.repeat(interest.topic_start[nodes] - start[:-1], sizes)
    return start, interest.topics[entries]
