"""Reverse delete removes the same edges as its slow twin, in any order of trials."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import instances
import naive
from broadloom import Interest, Weights, is_topic_connected
from broadloom.linking import heaviest_first, reverse_delete


@st.composite
def overlays(draw):
    """An interest, all pairs that share a topic, or some edges that connect it, and an order of trials."""
    topics = draw(st.sampled_from([1, 2, 5, 63, 64, 65, 130]))
    own = st.sets(st.integers(0, topics - 1), max_size=6)
    interests = draw(st.lists(own, max_size=9))
    edges = [(u, v) for u, v in naive.pairs(interests) if interests[u] & interests[v]]
    if draw(st.booleans()):
        edges = naive.gm(interests) + draw(st.lists(st.sampled_from(edges), max_size=5)) if edges else []
    edges = draw(st.permutations(list(dict.fromkeys(edges))))
    return interests, topics, edges, draw(st.permutations(range(len(edges))))


@given(overlays())
def test_equals_its_twin(overlay):
    interests, topics, edges, order = overlay
    kept = reverse_delete(Interest.from_lists(interests, topics), edges, order)
    expected = naive.reverse_delete(interests, edges, [edges[i] for i in order])
    assert [edge for edge, stays in zip(edges, kept, strict=True) if stays] == expected


@pytest.mark.parametrize("seed", range(20))
def test_equals_its_twin_on_larger_overlays(seed):
    """Trees of several topics form many cycles: long searches, and removals that make other edges needed."""
    interests, weights = instances.scattered(30, 12, seed, most=8, integers=seed % 2 == 0)
    edges = naive.trmaw(interests, weights)
    kept = reverse_delete(Interest.from_lists(interests, 12), edges)
    expected = naive.reverse_delete(interests, edges, reversed(edges))
    assert np.array_equal(np.array(edges)[kept], expected)


def test_the_last_edge_is_tried_first_by_default():
    interest = Interest.from_lists([[0], [0], [0]])
    assert reverse_delete(interest, [(0, 1), (1, 2), (0, 2)]).tolist() == [True, True, False]
    assert reverse_delete(interest, [(0, 1), (1, 2), (0, 2)], [0, 1, 2]).tolist() == [False, True, True]


def test_edges_that_no_topic_uses_are_removed():
    """A link between nodes that share nothing, or of a node without topics, is never needed."""
    interest = Interest.from_lists([[0], [1], [], [0, 1]])
    assert reverse_delete(interest, [(0, 1), (2, 3), (0, 3), (1, 3)]).tolist() == [False, False, True, True]


def test_heaviest_first_breaks_ties_by_the_smallest_edge():
    weights = Weights.sites([0, 0, 1, 1], inner=1, outer=5)
    edges = np.array([(2, 3), (1, 3), (0, 1), (0, 2)], np.int32)
    assert heaviest_first(weights, edges).tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize("lists", [[], [[]], [[0]], [[], []], [[0], [1]]])
def test_an_interest_without_edges_is_accepted(lists):
    interest = Interest.from_lists(lists)
    assert reverse_delete(interest, []).tolist() == []
    assert is_topic_connected(interest, [])
