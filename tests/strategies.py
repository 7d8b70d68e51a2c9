"""Hypothesis strategies: random interests, weights with and without ties, overlays."""

import numpy as np
from hypothesis import strategies as st

from broadloom import Interest, Weights


@st.composite
def topic_lists(draw, max_nodes: int = 12, max_topics: int = 8) -> list[list[int]]:
    """The topics of each node; some nodes have no topics, some have all."""
    topics = draw(st.integers(1, max_topics))
    row = st.lists(st.integers(0, topics - 1), unique=True, max_size=topics)
    return draw(st.lists(row, max_size=max_nodes))


@st.composite
def interests(draw, max_nodes: int = 12, max_topics: int = 8) -> Interest:
    """A small interest."""
    return Interest.from_lists(draw(topic_lists(max_nodes, max_topics)), topics=max_topics)


@st.composite
def weights_for(draw, nodes: int) -> Weights:
    """Weights of every kind; lattices and sites have many ties."""
    kind = draw(st.sampled_from(["uniform", "dense", "ties", "plane", "lattice", "sites", "between"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if kind == "uniform":
        return Weights.uniform(nodes)
    if kind in ("dense", "ties"):
        upper = np.triu(
            rng.random((nodes, nodes)) + 0.01 if kind == "dense" else rng.integers(1, 4, (nodes, nodes)), 1
        )
        return Weights.dense(upper + upper.T)
    if kind == "plane":
        return Weights.euclidean(rng.random((nodes, 2)))
    if kind == "lattice":
        side = int(np.ceil(np.sqrt(max(nodes, 1))))
        return Weights.euclidean([(node // side, node % side) for node in range(nodes)] or np.empty((0, 2)))
    site = rng.integers(0, 3, nodes)
    if kind == "sites":
        return Weights.sites(site, inner=1, outer=10)
    table = np.triu(rng.integers(2, 6, (3, 3)), 1)
    return Weights.sites(site, inner=1, between=table + table.T)


@st.composite
def instances(draw, max_nodes: int = 12, max_topics: int = 8) -> tuple[Interest, Weights]:
    """An interest and weights for it."""
    interest = draw(interests(max_nodes, max_topics))
    return interest, draw(weights_for(interest.node_count))


@st.composite
def overlays(draw, nodes: int) -> list[tuple[int, int]]:
    """Some of the edges between nodes, in any order."""
    pairs = [(u, v) for u in range(nodes) for v in range(u + 1, nodes)]
    return draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []


def lists_of(interest: Interest) -> list[list[int]]:
    """An interest in the form that the slow twins take."""
    return [interest.topics_of(node).tolist() for node in range(interest.node_count)]
