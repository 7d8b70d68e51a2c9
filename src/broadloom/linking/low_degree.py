"""Overlays of low degree: MinMax-ODA and Low-ODA (paper 2, I-B and Alg. 1; paper 3, Alg. 2).

At each step e1 is the best pair among those that raise the maximum degree least, and e2 the best of all.
MinMax-ODA adds e1; Low-ODA adds e1 if it is at most k times worse than e2, else e2.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import and_more, check_count, check_number
from broadloom.errors import InputError
from broadloom.kernels import kernel
from broadloom.linking._best_partners import Partners, best_pair, least_key, new_partners, start_from
from broadloom.linking._built import Built
from broadloom.linking._components import STILL_TO_MERGE, Components, add_edge, components_of
from broadloom.measures import components_per_topic
from broadloom.model import Interest, NoOptions, WeightArrays, Weights, weight_of

OBJECTIVES = ("edges", "weight")

# Bounds on a key tell less than the key itself only within this: then the key is looked at.
CLEARLY = 1 + 1e-9
# What k becomes, one after the other, where the links get stuck below a maximum degree.
MORE_CARE = (3.0, 10.0, math.inf)


@dataclass(frozen=True)
class LowDegreeOptions:
    """Options of low-oda.

    Attributes:
        k: how many times worse than the best edge the chosen one may be, for the sake of the maximum
            degree. More: a lower maximum degree, more edges. 1 is nearly gm, infinity is minmax-oda.
        objective: what makes an edge good: "edges", its contribution; "weight", its weight a contribution.
        max_degree: no node gets more links than this; None: no limit.
    """

    k: float = 3
    objective: str = "edges"
    max_degree: int | None = None

    def __post_init__(self) -> None:
        check_number(self.k, "k", minimum=1, finite=False)
        if self.objective not in OBJECTIVES:
            raise InputError(f"objective is {self.objective!r}; give one of {', '.join(OBJECTIVES)}")
        if self.max_degree is not None:
            check_count(self.max_degree, "max_degree", minimum=1)


def minmax_oda(interest: Interest, weights: Weights, options: NoOptions, seed: int) -> Built:  # noqa: ARG001
    """Add the highest contribution among the pairs that raise the maximum degree least."""
    return Built(low_degree_edges(interest, Weights.uniform(interest.node_count), math.inf))


def low_oda(interest: Interest, weights: Weights, options: LowDegreeOptions, seed: int) -> Built:  # noqa: ARG001
    """Add what minmax-oda would, unless it is more than k times worse than the best of all."""
    by = weights if options.objective == "weight" else Weights.uniform(interest.node_count)
    return Built(low_degree_edges(interest, by, options.k, options.max_degree))


def low_degree_edges(
    interest: Interest, weights: Weights, k: float, max_degree: int | None = None
) -> NDArray[np.int32]:
    """The edges of Low-ODA by weight a contribution, in order.

    With k = 0 it is GrMAW: the best edge below the maximum degree, however many links its ends have. Where
    that ends with a topic in parts, it starts again with more care for the maximum degree.

    Raises:
        InputError: with all care, no pair is left below the maximum degree, but a topic is still in parts.
    """
    n = interest.node_count
    limit = n if max_degree is None else max_degree
    careful = [(weights, more_k) for more_k in (k, *MORE_CARE) if more_k >= k]
    for by, more_k in (*careful, (Weights.uniform(n), math.inf)):
        components, degree = components_of(interest), np.zeros(n, np.int64)
        every, sparing = new_partners(components), new_partners(components)
        edges = grow(components, by.arrays(), every, sparing, float(more_k), limit, degree, 0)
        if components.tally[STILL_TO_MERGE] == 0:
            return edges
    raise InputError(_too_strict(interest, edges, limit))


def _too_strict(interest: Interest, edges: NDArray[np.int32], limit: int) -> str:
    """What a maximum degree leaves undone, and which one would do."""
    parts = components_per_topic(interest, edges)
    worst = int(parts.argmax())
    reached = low_degree_edges(interest, Weights.uniform(interest.node_count), math.inf)
    return (
        f"no overlay was found with max_degree {limit}: topic {interest.topic_ids[worst]!r} is left in "
        f"{parts[worst]:,} parts{and_more(int(np.count_nonzero(parts > 1)) - 1)}; "
        f"minmax-oda connects every topic with {np.bincount(reached.ravel()).max()}"
    )


@kernel
def grow(
    c: Components,
    weights: WeightArrays,
    every: Partners,
    sparing: Partners,
    k: float,
    limit: int,
    degree: NDArray[np.int64],
    most: int,
) -> NDArray[np.int32]:
    """Add e1 or e2 until no pair is left; `degree` and the maximum degree `most` are those at the start.

    Most steps never look at e2: e1 is good enough by the bound on it. And an e2 that spares the maximum
    degree is e1 as well.
    """
    edges = np.empty((c.tally[STILL_TO_MERGE], 2), np.int32)
    added = 0
    while c.tally[STILL_TO_MERGE] > 0:
        u1, v1, mu1 = best_pair(sparing, c, weights, degree, min(limit, most) if k > 0 else 0)
        w1 = weight_of(weights, u1, v1) if mu1 else np.inf
        if mu1 == 0 or w1 / mu1 * CLEARLY > k * least_key(every):
            u2, v2, mu2 = best_pair(every, c, weights, degree, limit)
            if mu2 == 0:
                break
            if mu1 == 0 or not mu2 * w1 <= k * mu1 * weight_of(weights, u2, v2):
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
