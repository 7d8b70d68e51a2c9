"""TrMAW equals its slow twin edge for edge."""

import link_strategies as strategies
import numpy as np
import pytest
from hypothesis import given, settings

import broadloom as bl
import instances
import naive


def edges_of(plan):
    return list(map(tuple, plan.edges.tolist()))


@settings(max_examples=200)
@given(strategies.instances())
def test_equals_its_twin(instance):
    rows, interest, weights, matrix = instance
    assert edges_of(bl.link(interest, weights, algorithm="trmaw")) == naive.trmaw(rows, matrix)


@pytest.mark.parametrize("seed", range(20))
def test_equals_its_twin_on_larger_instances(seed):
    interests, matrix = instances.scattered(40, 15, seed, most=9, integers=seed % 2 == 0)
    plan = bl.link(bl.Interest.from_lists(interests, topics=15), bl.Weights.dense(matrix), algorithm="trmaw")
    assert edges_of(plan) == naive.trmaw(interests, matrix)


def test_the_ratio_of_lemma_1_is_reached():
    """Paper 1, Lemma 1: as many times the optimum as there are topics."""
    interests, matrix = instances.tree_per_topic_tight(6)
    interest, weights = bl.Interest.from_lists(interests, topics=6), bl.Weights.dense(matrix)
    plan = bl.link(interest, weights, algorithm="trmaw")
    assert edges_of(plan) == naive.trmaw(interests, matrix)
    assert plan.total_weight > 5.9


def test_a_large_topic_has_the_weight_of_scipys_tree():
    from scipy.sparse.csgraph import minimum_spanning_tree

    weights = bl.Weights.euclidean(np.random.default_rng(1).random((300, 2)))
    plan = bl.link(bl.Interest.from_lists([[0]] * 300), weights, algorithm="trmaw")
    assert plan.total_weight == pytest.approx(minimum_spanning_tree(weights.matrix()).sum())
    assert (np.diff(plan.edge_weights) >= 0).all()
