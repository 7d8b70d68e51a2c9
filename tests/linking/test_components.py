"""Components and contributions by bits and labels equal those of the slow twin."""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import naive
from broadloom import Interest
from broadloom.kernels import kernel
from broadloom.linking import topic_components
from broadloom.linking.topic_components import TO_MERGE, components_of


# Wrappers: inner kernels can only be called by kernels.
@kernel
def contribution(state, u, v):
    return topic_components.contribution(state, u, v)


@kernel
def most_contribution(state, u, v):
    return topic_components.most_contribution(state, u, v)


@kernel
def add_edge(state, u, v):
    return topic_components.add_edge(state, u, v)


@st.composite
def overlays(draw, nodes=12, topics=70):
    """Interests, some edges in some order, and a part for each node."""
    n = draw(st.integers(0, nodes))
    t = draw(st.sampled_from([0, 1, 3, 63, 64, 65, topics]))
    interests = [set(draw(st.lists(st.integers(0, t - 1), max_size=6))) if t else set() for _ in range(n)]
    pairs = list(combinations(range(n), 2))
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return interests, t, edges, draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))


def agrees(interests, state, edges, groups=None):
    """Contributions equal those of the twin, bounds are not below them, and the merges to do are the same."""
    expected = naive.contributions(interests, edges, groups=groups)
    for u, v in naive.pairs(interests):
        assert contribution(state, u, v) == expected.get((u, v), 0) <= most_contribution(state, u, v)
    to_merge = sum(len(naive.components(interests, edges, t, groups)) - 1 for t in naive.topics(interests))
    assert state.tally[TO_MERGE] == to_merge


@given(overlays())
def test_contributions_equal_the_twin_after_each_edge(instance):
    interests, topics, edges, _ = instance
    state = components_of(Interest.from_lists(interests, topics=topics))
    for i, (u, v) in enumerate(edges):
        agrees(interests, state, edges[:i])
        gain = naive.contribution(interests, edges[:i], u, v)
        assert add_edge(state, u, v) == gain
    agrees(interests, state, edges)


@given(overlays())
def test_contributions_equal_the_twin_with_initial_edges_and_parts(instance):
    interests, topics, edges, parts = instance
    interest = Interest.from_lists(interests, topics=topics)
    state = components_of(interest, np.array(edges, np.int32).reshape(-1, 2), np.array(parts, np.int32))
    agrees(interests, state, edges, parts)
