"""The workload sets of paper 4, section VI: statistics, limits, trees and seeds."""

import numpy as np
import pytest

import broadloom as bl
from broadloom.assignment.subscribers import candidates_in_time, least_lbf
from broadloom.workload.assignment_workload import EVENT_SPACE, LIMITS, MULTI_LEVEL

M = 40_000


def zipf(count, exponent):
    share = np.arange(1, count + 1) ** -exponent
    return share / share.sum()


def region(positions):
    """0: Asia, 1: North America (around the origin), 2: Europe; by the nearest of the three."""
    centres = np.zeros((3, positions.shape[1]))
    centres[:, :2] = [[150, 0], [0, 0], [-71.25, 62.84]]
    return np.linalg.norm(positions[:, None] - centres, axis=2).argmin(axis=1)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_limits_are_those_of_the_paper_and_can_be_met(number):
    problem = bl.workload.subscribers(number, 20_000, 100)
    beta, beta_max = {1: (1.5, 1.8), 2: (2.3, 2.5), 3: (1.3, 1.5)}[number]
    assert (problem.alpha, problem.max_delay, problem.beta, problem.beta_max) == (3, 0.3, beta, beta_max)
    assert least_lbf(problem, candidates_in_time(problem))[0] <= beta
    assert np.ptp(problem.capacity) == 0


def test_set_1_has_regions_4_1_4_and_its_skew_and_breadth():
    problems = {
        (skew, broad): bl.workload.subscribers(
            1, M, 100, interest_skew=skew, broad_interests=broad, geography=0
        )
        for skew in ("low", "high")
        for broad in ("low", "high")
    }
    for problem in problems.values():
        assert problem.subscriber_place.shape == (M, 5)
        assert problem.dimensions == 2
        share = np.bincount(region(problem.subscriber_place), minlength=3) / M
        assert share == pytest.approx(np.array([4, 1, 4]) / 9, abs=0.02)
        brokers = np.bincount(region(problem.broker_place), minlength=3) / 100
        assert brokers == pytest.approx(np.array([4, 1, 4]) / 9, abs=0.15)
        assert region(problem.publisher[None])[0] == 1
        assert problem.lo.min() >= 0
        assert problem.hi.max() <= EVENT_SPACE
    for broad, expected in (("low", 0.005), ("high", 0.05)):
        width = problems["low", broad].hi - problems["low", broad].lo
        assert np.mean(width.max(axis=1) > 0.035 * EVENT_SPACE) == pytest.approx(expected, rel=0.35)
    popular = [_busiest(problems[skew, "low"]) for skew in ("low", "high")]
    assert popular[1] > 5 * popular[0]


def _busiest(problem):
    """The share of subscriptions in the busiest of 100 x 100 cells."""
    middle = ((problem.lo + problem.hi) / 2 * 100 / EVENT_SPACE).astype(int)
    return np.bincount(middle[:, 0] * 101 + middle[:, 1]).max() / len(middle)


def test_set_2_is_50_unit_squares_of_zipf_popularity_at_10_locations_each():
    problem = bl.workload.subscribers(2, M, 100, geography=0)
    assert np.allclose(problem.hi - problem.lo, 1)
    feeds, feed, counts = np.unique(problem.lo, axis=0, return_inverse=True, return_counts=True)
    assert len(feeds) == 50
    assert np.sort(counts)[::-1] / M == pytest.approx(zipf(50, 0.5), abs=0.005)
    for one in range(50):
        locations, counts = np.unique(problem.subscriber_place[feed == one], axis=0, return_counts=True)
        assert len(locations) == 10
        assert counts / counts.sum() == pytest.approx(np.full(10, 0.1), abs=0.05)


def test_set_3_is_a_grid_of_zipf_cells_and_widths_independent_of_locations():
    problem = bl.workload.subscribers(3, M, 100, geography=0)
    cell = EVENT_SPACE / 10
    clear = np.all((problem.lo > 0) & (problem.hi < EVENT_SPACE), axis=1)
    middle = (problem.lo + problem.hi)[clear] / 2
    assert np.allclose(middle % cell, cell / 2)
    narrow = np.isclose(problem.hi - problem.lo, cell).all(axis=1)
    number = (problem.lo[narrow] / cell).round().astype(int) @ [10, 1]
    share = np.sort(np.bincount(number, minlength=100))[::-1] / narrow.sum()
    assert share == pytest.approx(zipf(100, 0.5), abs=0.006)
    assert np.mean(narrow) == pytest.approx(zipf(5, 0.5)[0] ** 2, abs=0.02)
    locations, location = np.unique(problem.subscriber_place, axis=0, return_inverse=True)
    assert len(locations) == 1000
    wide = np.bincount(location, ~narrow, 1000) / np.bincount(location, minlength=1000)
    assert wide.std() < 0.1, "widths do not depend on locations"


@pytest.mark.parametrize("latency", ["tight", "loose"])
def test_inner_brokers_have_at_most_15_children(latency):
    problem = bl.workload.subscribers(1, 2000, 200, levels=2, latency=latency, geography=0)
    limits = MULTI_LEVEL[latency]
    assert (problem.beta, problem.beta_max, problem.max_delay) == limits
    below = np.bincount(problem.broker_parent[problem.broker_parent >= 0], minlength=200)
    assert below.max() <= 15
    assert problem.broker_count == 200
    deeper = bl.workload.subscribers(1, 100, 200, levels=3, geography=0, latency=latency)
    assert np.sum(deeper.broker_parent < 0) < np.sum(problem.broker_parent < 0)


def test_geography_does_not_depend_on_subscribers():
    """Another number or seed of subscribers leaves locations and brokers as they are."""
    few, many, other = (
        bl.workload.subscribers(1, m, 20, geography=4, seed=seed) for m, seed in ((50, 0), (90, 0), (50, 1))
    )
    for one in (many, other):
        assert np.array_equal(few.broker_place, one.broker_place)
        assert np.array_equal(few.publisher, one.publisher)
    assert not np.array_equal(few.lo, other.lo)
    again = bl.workload.subscribers(1, 50, 20, geography=4)
    assert np.array_equal(few.lo, again.lo)
    assert np.array_equal(few.subscriber_place, again.subscriber_place)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"set": 4}, "no workload set 4; there are 1, 2, 3"),
        ({"interest_skew": "medium"}, "interest_skew is 'medium'; give one of low, high"),
        ({"latency": "slow"}, "latency is 'slow'; give one of tight, loose"),
        ({"subscribers": -1}, "subscribers is -1; give a whole number from 0"),
        ({"set": 1, "brokers": 7, "subscribers": 3}, "none of 400 geographies"),
    ],
)
def test_bad_arguments_are_input_errors(arguments, message):
    with pytest.raises(bl.InputError, match=message):
        bl.workload.subscribers(**arguments)
    assert set(LIMITS) == {1, 2, 3}
