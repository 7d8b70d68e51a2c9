"""Random instances for Hypothesis: as the slow twins take them, and as the package does."""

from typing import NamedTuple

import hypothesis.strategies as st

import broadloom as bl
import naive


class Case(NamedTuple):
    """One instance twice: sets and a matrix for `naive`, interest and weights for `broadloom`."""

    interests: list[set[int]]
    matrix: list[list[float]]
    interest: bl.Interest
    weights: bl.Weights


@st.composite
def cases(draw, max_nodes: int = 10, weighted: bool = True) -> Case:
    """Few nodes and topics, often awkward; weights that tie (lattice points, sites, small numbers) or not.

    Awkward: no nodes, nodes without topics, topics without subscribers, more topics than a word has bits.
    """
    topics = draw(st.sampled_from([1, 2, 3, 6, 12, 64, 65, 130]))
    own = st.sets(st.integers(0, topics - 1), max_size=draw(st.sampled_from([1, 3, 8])))
    interests = draw(st.lists(own, max_size=max_nodes))
    weights = draw(weights_of(len(interests))) if weighted else bl.Weights.uniform(len(interests))
    return Case(
        interests, weights.matrix().tolist(), bl.Interest.from_lists(interests, topics=topics), weights
    )


@st.composite
def weights_of(draw, nodes: int) -> bl.Weights:
    """Weights of any kind."""
    kind = draw(st.sampled_from(["uniform", "lattice", "sites", "dense", "small"]))
    if kind == "uniform" or nodes == 0:
        return bl.Weights.uniform(nodes)
    if kind == "lattice":
        place = st.tuples(st.integers(0, 4), st.integers(0, 4))
        return bl.Weights.euclidean(draw(st.lists(place, min_size=nodes, max_size=nodes, unique=True)))
    if kind == "sites":
        return bl.Weights.sites(draw(st.lists(st.integers(0, 2), min_size=nodes, max_size=nodes)), 1, 3)
    number = st.integers(1, 4) if kind == "small" else st.floats(0.01, 100)
    matrix = [[0.0] * nodes for _ in range(nodes)]
    for u, v in naive.pairs([()] * nodes):
        matrix[u][v] = matrix[v][u] = float(draw(number))
    return bl.Weights.dense(matrix)


def edges_of(plan: bl.Plan) -> list[tuple[int, int]]:
    """The plan's edges as the twins list them."""
    return [(u, v) for u, v in plan.edges.tolist()]
