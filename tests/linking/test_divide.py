"""dcmaw equals its slow twin for the same division, and connects every topic for any division."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_strategies import instances

import broadloom as bl
import naive
from broadloom.linking import DivideOptions, conquer, divide, members
from broadloom.linking.divide_and_conquer import combine, representatives_of


@st.composite
def divided(draw, nodes=12):
    """An instance and a part for each node."""
    instance = draw(instances(nodes))
    n = len(instance[0])
    return *instance, draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))


@settings(max_examples=300)
@given(divided(), st.integers(1, 4))
def test_dcmaw_equals_its_twin(instance, representatives):
    rows, interest, weights, matrix, parts = instance
    plan = bl.link(interest, weights, "dcmaw", part_of_node=parts, representatives=representatives)
    assert list(map(tuple, plan.edges.tolist())) == naive.dcmaw(rows, matrix, parts, representatives)


@settings(max_examples=200)
@given(divided(), st.integers(1, 4))
def test_representatives_equal_those_of_the_twin(instance, count):
    rows, interest, _, _, parts = instance
    chosen = representatives_of(interest, np.arange(len(rows)), np.array(parts, np.int64), count)
    expected = [u for p in set(parts) for u in naive.representatives_of(rows, parts, p, count)]
    assert chosen.tolist() == sorted(expected)


@given(divided(), st.sampled_from([2, 3]), st.sampled_from(["grmaw", "gm", "trmaw", "pdmaw"]))
def test_levels_other_algorithms_and_thinning_connect_every_topic(instance, at_a_time, algorithm):
    """`link` itself raises if a topic is not connected; thinning never adds weight."""
    _, interest, weights, _, parts = instance
    options = {"part_of_node": parts, "parts_at_a_time": at_a_time, "conquer": algorithm}
    plan = bl.link(interest, weights, "dcmaw", **options)
    thinned = bl.link(interest, weights, "dcmaw", **options, thin=True)
    assert set(map(tuple, thinned.edges.tolist())) <= set(map(tuple, plan.edges.tolist()))


def test_thinning_removes_redundant_links():
    interest = bl.workload.interest(nodes=120, topics=40, popularity="zipf", sizes=(2, 10), seed=1)
    weights = bl.Weights.sites(np.arange(120) // 20)
    plan, thinned = (bl.link(interest, weights, "dcmaw", by="site", thin=thin) for thin in (False, True))
    assert thinned.total_weight < plan.total_weight


@given(instances(), st.sampled_from(["kmeans", "random", "landmark", None]), st.integers(1, 5))
def test_every_division_numbers_its_parts_without_gaps(instance, by, part_size):
    _, interest, weights, _ = instance
    options = DivideOptions(by=by, part_size=part_size)
    parts = divide(weights, options, seed=3)
    assert np.array_equal(np.unique(parts), np.arange(parts.max(initial=-1) + 1))
    assert np.array_equal(parts, divide(weights, options, seed=3))
    bl.link(interest, weights, "dcmaw", seed=3, by=by, part_size=part_size)


def test_separate_steps_give_the_same_overlay():
    """Divide, conquer one part at a time, combine, as a pipeline calls them."""
    interest = bl.workload.interest(nodes=120, topics=40, sizes=(2, 10), seed=1)
    weights = bl.Weights.sites(np.arange(120) // 20)
    options = DivideOptions()
    parts = divide(weights, options, 0)
    inner = [conquer(interest, weights, nodes) for nodes in members(parts)]
    edges = np.concatenate([*inner, combine(interest, weights, parts, options)])
    assert np.array_equal(edges, bl.link(interest, weights, "dcmaw").edges)


def test_division_by_site_needs_weights_by_site():
    weights = bl.Weights.sites([5, 5, 2, 7])
    assert divide(weights, DivideOptions(by="site"), 0).tolist() == [1, 1, 0, 2]
    with pytest.raises(bl.InputError, match="needs weights by site, these are uniform"):
        divide(bl.Weights.uniform(3), DivideOptions(by="site"), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "colour"}, "give one of site, kmeans, random, landmark"),
        ({"representatives": 0}, "representatives is 0"),
        ({"part_size": 0}, "part_size is 0"),
        ({"parts_at_a_time": 1}, "parts_at_a_time is 1"),
        ({"part_of_node": [0, -1]}, "the part of node 1 is -1"),
        ({"part_of_node": [0, 1], "by": "site"}, "give one of them"),
        ({"part_of_node": [0]}, "give one for each of the 2 nodes"),
        ({"conquer": "grmav"}, "did you mean 'grmaw'"),
    ],
)
def test_wrong_options_say_what_would_be_right(options, message):
    with pytest.raises(bl.InputError, match=message):
        bl.link(bl.Interest.from_lists([[0], [0]]), None, "dcmaw", **options)
