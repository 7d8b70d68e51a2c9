"""The CD-ODA family equals its slow twins edge for edge, and keeps every topic within two hops."""

import link_strategies as strategies
import pytest
from hypothesis import given, settings

import broadloom as bl
import instances
import naive

TWINS = {"cd-oda": naive.cd_oda, "cd-oda-1": naive.cd_oda_1, "cd-oda-2": naive.cd_oda_2}

family = pytest.mark.parametrize("name", TWINS)


def edges_of(plan):
    return list(map(tuple, plan.edges.tolist()))


@family
@settings(max_examples=200)
@given(instance=strategies.interests())
def test_equals_its_twin(name, instance):
    rows, interest = instance
    assert edges_of(bl.link(interest, algorithm=name)) == TWINS[name](rows)


@family
@pytest.mark.parametrize("seed", range(10))
def test_equals_its_twin_on_larger_instances(name, seed):
    """More nodes than a word has bits, and nodes that are alike."""
    interests, _ = instances.scattered(90, 9 if seed % 2 else 40, seed, most=5)
    plan = bl.link(bl.Interest.from_lists(interests, topics=40), algorithm=name)
    assert edges_of(plan) == TWINS[name](interests)


@family
def test_every_topic_has_a_diameter_of_at_most_two_hops(name):
    """Paper 2, Lemma 7: each topic has a centre that is linked to all its other subscribers."""
    interests, _ = instances.scattered(30, 10, seed=5, most=6)
    edges = edges_of(bl.link(bl.Interest.from_lists(interests, topics=10), algorithm=name))
    assert all(naive.hop_diameter(interests, edges, t) <= 2 for t in naive.topics(interests))
