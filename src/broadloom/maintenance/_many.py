"""constructLowEdges among very many nodes (paper 3, Alg. 2 and 4), by linking's kernels: no V x V table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels.jit import kernel
from broadloom.linking._best_partners import new_partners
from broadloom.linking._components import STILL_TO_MERGE, Components, join, separate
from broadloom.linking.low_degree import grow
from broadloom.maintenance._repair import Rules
from broadloom.maintenance._world import MAX_DEGREE, World
from broadloom.model.weights import WeightArrays


def edges_among_many(
    world: World,
    weights: WeightArrays,
    rules: Rules,
    nodes: NDArray[np.int32],
    labels: NDArray[np.int32],
) -> tuple[NDArray[np.int32], int]:
    """The edges that `connect_pairs` would add, which it does not, and how many merges they make."""
    has = (labels >= 0).T
    start = np.concatenate((np.zeros(1, np.int64), np.cumsum(has.sum(axis=1), dtype=np.int64)))
    components = separate(start, np.nonzero(has)[1].astype(np.int32), len(labels))
    shared = has.sum(axis=0) > 1
    label = labels.T[:, shared][has[:, shared]]
    _join_labels(components, label, np.full((len(labels), int(labels.max()) + 1), -1))
    to_merge = components.tally[STILL_TO_MERGE]
    k = 0.0 if rules.by_weight else rules.rho
    degree = world.links.sizes[0, nodes].astype(np.int64)
    every, sparing, most = new_partners(components), new_partners(components), int(world.tally[MAX_DEGREE])
    among, limit = _among(weights, nodes), len(world.mark)
    edges = grow(components, among, every, sparing, float(k), limit, degree, most)
    return nodes[edges], int(to_merge - components.tally[STILL_TO_MERGE])


@kernel
def _join_labels(c: Components, label: NDArray[np.int32], first: NDArray[np.int64]) -> None:
    """Join the subscriptions of one topic that have one label; `first` is the first one of each."""
    for i in range(len(c.topics)):
        leader = first[c.topics[i], label[i]]
        if leader < 0:
            first[c.topics[i], label[i]] = i
        else:
            c.tally[STILL_TO_MERGE] -= join(c, leader, i)


def _among(weights: WeightArrays, nodes: NDArray[np.int32]) -> WeightArrays:
    """The weights among some of the nodes."""
    dense = len(weights.site) == 0 and len(weights.table) > 0
    return weights._replace(
        table=weights.table[np.ix_(nodes, nodes)] if dense else weights.table,
        points=weights.points[nodes] if len(weights.points) else weights.points,
        site=weights.site[nodes] if len(weights.site) else weights.site,
    )
