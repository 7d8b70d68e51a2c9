"""Random instances for the link algorithms: all shapes, and weights that tie."""

from itertools import product

import numpy as np
from hypothesis import strategies as st

from broadloom import Interest, Weights
from broadloom.linking._bands import BandSize

KINDS = ("uniform", "lattice", "points", "sites", "between", "integers", "reals")


@st.composite
def interests(draw, nodes=14, least_nodes=0):
    """Sets of topics, few or many per node, below and above 64 topics; some sets can be empty."""
    n = draw(st.integers(least_nodes, nodes))
    topics = draw(st.sampled_from([0, 1, 2, 4, 8, 64, 65, 130]))
    few = min(topics, draw(st.sampled_from([1, 3, 8])))
    pick = st.sampled_from(range(min(topics, draw(st.sampled_from([4, 12, 130]))) or 1))
    rows = [set(draw(st.lists(pick, max_size=few))) if topics else set() for _ in range(n)]
    return rows, Interest.from_lists(rows, topics=topics)


@st.composite
def weights(draw, nodes, kinds=KINDS):
    """Weights of these kinds; on a lattice, between sites and as small integers many of them tie."""
    kind = draw(st.sampled_from(kinds))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if kind == "uniform":
        return Weights.uniform(nodes)
    if kind == "lattice":
        lattice = np.array(list(product(range(6), repeat=2)), float)
        return Weights.euclidean(rng.permutation(lattice)[:nodes] * draw(st.sampled_from([1.0, 0.1])))
    if kind == "points":
        return Weights.euclidean(rng.random((nodes, 3)))
    if kind == "sites":
        return Weights.sites(rng.integers(0, 4, nodes), inner=1, outer=draw(st.sampled_from([10, 3, 0.5])))
    table = rng.integers(1, 5, (nodes, nodes)) / 1.0 if kind != "reals" else rng.random((nodes, nodes)) + 0.01
    table = np.triu(table, 1) + np.triu(table, 1).T
    if kind == "between" and nodes:
        return Weights.sites(
            np.arange(nodes) // 2, inner=2, between=table[: nodes // 2 + 1, : nodes // 2 + 1]
        )
    return Weights.dense(table)


@st.composite
def instances(draw, nodes=14, least_nodes=0, kinds=KINDS):
    """Sets of topics, the same as an interest, weights, and the same as a matrix for the slow twins."""
    rows, interest = draw(interests(nodes, least_nodes))
    drawn = draw(weights(len(rows), kinds))
    return rows, interest, drawn, drawn.matrix().tolist()


# Bands so small that even a tiny instance needs many, few sampled rows, and both methods of counting.
band_sizes = st.builds(
    BandSize,
    share=st.just(0.0),
    least=st.sampled_from([1, 2, 5, 1000]),
    most=st.sampled_from([1, 3, 1000]),
    sampled_rows=st.sampled_from([1, 2, 50]),
    by_bits=st.sampled_from([None, True, False]),
)
