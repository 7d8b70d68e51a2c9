"""The verb: defaults, improvement, a previous plan, and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom import InputError, Interest, Weights
from broadloom.linking import ALGORITHMS
from shapes import SHAPES
from strategies import instances

NAMES = [algorithm.name for algorithm in ALGORITHMS]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lists", SHAPES.values(), ids=SHAPES)
def test_every_algorithm_takes_every_shape(name, lists):
    """Empty, one node, no topics, huge ids: a topic-connected plan, the same again."""
    interest = Interest.from_lists(lists)
    weights = Weights.euclidean([[node, node % 3] for node in range(len(lists))] or np.empty((0, 2)))
    options = {"by": "random"} if name == "dcmaw" else {}
    plan = bl.link(interest, weights, name, **options)
    assert plan.is_topic_connected()
    assert plan.overlay == bl.link(interest, weights, name, **options).overlay
    if plan.lower_bound is not None:
        assert plan.lower_bound <= plan.total_weight


@settings(max_examples=30)
@given(instances(max_nodes=9), st.sampled_from([name for name in NAMES if name != "dcmaw"]))
def test_bounds_of_one_hold_for_all(instance, name):
    """No algorithm is lighter than the bound of another."""
    plan = bl.link(*instance, name)
    assert bl.lower_bound(*instance) <= plan.total_weight * (1 + 1e-12)


def test_the_default_depends_on_the_weights():
    interest = bl.workload.interest(30, 10, sizes=(1, 4))
    assert bl.link(interest).algorithm == "gm"
    assert bl.link(interest, bl.workload.weights(30)).algorithm == "broadloom"


@settings(max_examples=40)
@given(instances())
def test_improved_is_never_heavier(instance):
    plain, better = (bl.link(*instance, "grmaw", improve=improve) for improve in (False, True))
    assert better.is_topic_connected()
    assert better.total_weight <= plain.total_weight


@settings(max_examples=40)
@given(instances(), st.sampled_from(["trmaw", "gm", "grmaw"]))
def test_a_previous_plan_is_never_made_worse(instance, name):
    """Whatever runs today, the new plan is at most as heavy, and the changes lead from one to the other."""
    previous = bl.link(*instance, name)
    plan = bl.link(*instance, "grmaw", previous=previous)
    assert plan.total_weight <= previous.total_weight
    names = plan.interest.node_ids
    links = {frozenset((names[u], names[v])) for u, v in previous.edges.tolist()}
    links |= {frozenset(link) for link in plan.notes["changes"]["added"]}
    links -= {frozenset(link) for link in plan.notes["changes"]["removed"]}
    assert links == {frozenset((names[u], names[v])) for u, v in plan.edges.tolist()}


def test_a_previous_plan_of_other_nodes():
    """Nodes are matched by id: one left, one came, and what still serves is kept."""
    before = Interest.from_lists([[0], [0], [0]], node_ids=["a", "b", "c"])
    after = Interest.from_lists([[0], [0], [0]], node_ids=["b", "c", "d"])
    previous = bl.link(before, algorithm="gm")
    plan = bl.link(after, algorithm="gm", previous=previous)
    assert plan.is_topic_connected()
    assert len(plan.edges) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([[0]],), "the interest is a list"),
        ((Interest.from_lists([[0]]), np.ones((1, 1))), "the weights are a ndarray"),
        ((Interest.from_lists([[0]]), Weights.uniform(2)), "1 nodes but weights for 2"),
        ((Interest.from_lists([[0]]), None, "grmow"), "did you mean 'grmaw'?"),
        ((Interest.from_lists([[0]]), None, "gm", "x"), "seed is 'x'"),
    ],
)
def test_what_it_refuses(arguments, words):
    with pytest.raises(InputError) as caught:
        bl.link(*arguments)
    assert words in str(caught.value)
