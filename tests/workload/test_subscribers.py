"""The workload sets of paper 4."""

import numpy as np
import pytest

import broadloom as bl
from broadloom.assignment.flow import least_lbf
from broadloom.assignment.reach import reach_of


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_set_can_meet_its_limits(number):
    problem = bl.workload.subscribers(set=number, subscribers=3000, brokers=30)
    assert least_lbf(problem, reach_of(problem))[0] <= problem.beta


def test_geography_and_subscribers_are_separate_streams():
    """More subscribers do not move the brokers, and other subscribers do not either."""
    few, many, others = (
        bl.workload.subscribers(subscribers=m, brokers=10, geography=3, seed=seed)
        for m, seed in ((10, 0), (20, 0), (20, 1))
    )
    assert np.array_equal(few.broker_place, many.broker_place)
    assert np.array_equal(many.broker_place, others.broker_place)
    assert not np.array_equal(many.lo, others.lo)


def test_a_tree_has_at_most_15_children_a_broker():
    problem = bl.workload.subscribers(subscribers=100, brokers=200, levels=2, geography=0)
    children = np.bincount(problem.broker_parent[problem.broker_parent >= 0])
    assert children.max() <= 15
    assert not problem.is_one_level


def test_wrong_words_are_refused():
    with pytest.raises(bl.InputError, match="no workload set 4; there are 1, 2, 3"):
        bl.workload.subscribers(set=4)
    with pytest.raises(bl.InputError, match="interest_skew is 'medium'; give low or high"):
        bl.workload.subscribers(interest_skew="medium")
    with pytest.raises(bl.InputError, match="no latency setting 'lax'; there are tight, loose"):
        bl.workload.subscribers(latency="lax")
