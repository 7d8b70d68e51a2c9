"""`link`: defaults, improvement, a previous plan, and refused arguments."""

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
    """Empty, one node, no topics, huge ids: a topic-connected plan, and the same one on a second run."""
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
def test_a_bound_holds_for_every_algorithm(instance, name):
    """No algorithm is lighter than the lower bound."""
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
    """The new plan is at most as heavy as the previous one, and the changes lead from one to the other."""
    previous = bl.link(*instance, name)
    plan = bl.link(*instance, "grmaw", previous=previous)
    assert plan.total_weight <= previous.total_weight
    names = plan.interest.node_ids
    links = {frozenset((names[u], names[v])) for u, v in previous.edges.tolist()}
    links |= {frozenset(link) for link in plan.notes["changes"]["added"]}
    links -= {frozenset(link) for link in plan.notes["changes"]["removed"]}
    assert links == {frozenset((names[u], names[v])) for u, v in plan.edges.tolist()}


def test_a_previous_plan_within_a_limit_is_never_made_worse():
    """A maximum degree is kept, and a previous plan that keeps it is not made heavier."""
    interest = bl.workload.interest(30, 15, "zipf", sizes=(2, 6), seed=1)
    weights = bl.workload.weights(30, "planar", seed=1)
    previous = bl.link(interest, weights, "low-oda", max_degree=6, objective="weight", improve=True)
    for name in ("grmaw", "low-oda", "gm"):
        plan = bl.link(interest, weights, name, max_degree=6, previous=previous)
        assert plan.total_weight <= previous.total_weight
        assert plan.metrics()["max_degree"] <= 6
        assert plan.algorithm == f"{name}+previous"


BAD_OPTIONS = [
    ("low-oda", {"k": "3"}, "k is '3'"),
    ("low-oda", {"k": 0}, "k is 0"),
    ("low-oda", {"max_degree": 1}, "no overlay was found with max_degree 1"),
    ("low-oda", {"k": 10**400}, "give a number from 1"),
    ("grmaw", {"max_degree": 2**70}, "give a whole number from 1"),
    ("dcmaw", {"by": ["site"]}, "give one of site"),
    ("cd-oda-2", {"improve": True}, "link without improve and previous"),
    ("low-oda", {"k": "inf"}, "k is 'inf'"),
    ("", {}, "no algorithm ''"),
    ("exact", {"time_limit": "1s"}, "time_limit is '1s'"),
    ("dcmaw", {"thin": "no", "by": "random"}, "thin is 'no'; give true or false"),
    ("dcmaw", {"part_of_node": 5}, "part_of_node are 5; give a list"),
    ("broadloom", {"effort": 0}, "effort is 0"),
    ("grmaw", {"previous": [[0, 1]]}, "previous is a list"),
    ("grmaw", {"improve": "no"}, "improve is 'no'"),
]


@pytest.mark.parametrize(("name", "options", "message"), BAD_OPTIONS)
def test_the_error_for_a_bad_option_is_one_line(name, options, message):
    interest = bl.workload.interest(12, 6, sizes=(2, 4))
    with pytest.raises(InputError) as caught:
        bl.link(interest, bl.workload.weights(12), name, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_previous_plan_with_other_nodes():
    """Nodes are matched by id: one has left, one has joined, and useful links are kept."""
    before = Interest.from_lists([[0], [0], [0]], node_ids=["a", "b", "c"])
    after = Interest.from_lists([[0], [0], [0]], node_ids=["b", "c", "d"])
    previous = bl.link(before, algorithm="gm")
    plan = bl.link(after, algorithm="gm", previous=previous)
    assert plan.is_topic_connected()
    assert len(plan.edges) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0]],), "the interest is a list"),
        ((Interest.from_lists([[0]]), np.ones((1, 1))), "the weights are a ndarray"),
        ((Interest.from_lists([[0]]), Weights.uniform(2)), "1 nodes but weights for 2"),
        ((Interest.from_lists([[0]]), None, "grmow"), "did you mean 'grmaw'?"),
        ((Interest.from_lists([[0]]), None, "gm", "x"), "seed is 'x'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(InputError) as caught:
        bl.link(*arguments)
    assert message in str(caught.value)


def test_all_rows_are_sampled_if_the_sample_counts_no_pair():
    """Late in a run, all pairs of the sampled rows can be counted in rows outside of the sample."""
    ends = [20 + 11 * k for k in range(33)]
    rest = [u for u in range(20, 20 + 11 * 33) if u not in ends]
    groups = [rest, *([ends[i], ends[i + 1]] for i in range(1, 31, 2)), [ends[0], ends[31], ends[32]]]
    groups += [[j, ends[i]] for j, i in enumerate([*range(1, 32, 2), 32])]
    lists = [[t for t, group in enumerate(groups) if u in group] for u in range(20 + 11 * 33)]
    table = np.full((len(lists), len(lists)), 1000.0)
    table[np.ix_(rest, rest)] = 1.0
    table[ends[31], ends[32]] = table[ends[32], ends[31]] = 1.0
    interest, weights = bl.Interest.from_lists(lists, topics=len(groups)), bl.Weights.dense(table)
    for name in ("grmaw", "pdmaw", "dcmaw", "broadloom"):
        assert bl.link(interest, weights, name).is_topic_connected()


def test_stars_are_refused_before_they_are_made(monkeypatch):
    """A plan that cannot be improved is refused before the work, not after it."""
    plan = bl.link(Interest.from_lists([[0], [0], [0]]), algorithm="gm")
    monkeypatch.setattr("broadloom.linking.link_plan.run", None)
    with pytest.raises(InputError, match="cd-oda makes stars, and exchanges would raise their diameter"):
        bl.link(plan.interest, algorithm="cd-oda", previous=plan)
