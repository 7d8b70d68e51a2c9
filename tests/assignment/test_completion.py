"""Bundles and kinds of interchangeable subscribers, and the completion of a sample's assignment."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
import naive_assign as naive
from assign_strategies import problems
from broadloom.assignment.subscribers.annealing import (
    allot,
    broker_by_rank,
    bundles_of,
    complete,
    kind_masks,
    row_kinds,
)
from broadloom.assignment.subscribers.greedy_assignment import GreedyRules, run_greedy
from broadloom.assignment.subscribers.load_flow import (
    candidates_in_time,
    least_lbf,
    load_limits,
    number_rows,
)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), max_size=30))
def test_equal_rows_have_the_same_number(rows):
    array = np.array(rows, float).reshape(-1, 3)
    expected = {row: i for i, row in enumerate(sorted(set(rows)))}
    assert row_kinds(array).tolist() == [expected[row] for row in rows] or len(expected) == len(rows)
    numbers, firsts = number_rows(array.astype(np.uint64))
    assert [rows[firsts[number]] for number in numbers] == rows
    assert len(firsts) == len(expected)


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 300))
def test_a_bundle_has_equal_subscribers_of_one_broker(seed, m):
    """Members are equal and at one broker, no bundle is too large, and each subscriber is in one bundle."""
    problem = bl.workload.subscribers(set=2, subscribers=m, brokers=6, geography=0, seed=seed % 100)
    candidates, rng = candidates_in_time(problem), np.random.default_rng(seed)
    broker_of, limit = rng.integers(0, 3, m), np.full(6, 100)
    bundles = bundles_of(problem, candidates, broker_of, limit)
    assert bundles.size.tolist() == np.bincount(bundles.of).tolist()
    assert bundles.size.max() <= 100 / 32 or bundles.size.max() == 1
    first = bundles.first[bundles.of]
    assert np.array_equal(candidates.group, candidates.group[first])
    assert np.array_equal(problem.lo, problem.lo[first])
    assert np.array_equal(problem.hi, problem.hi[first])
    assert np.array_equal(broker_of, broker_of[first])


def some_filters(problem, count):
    """The filters of a greedy assignment of the first subscribers."""
    part = problem.subset(np.arange(min(count, problem.subscriber_count)))
    unlimited = np.full(problem.broker_count, part.subscriber_count)
    rules = GreedyRules(np.arange(part.subscriber_count), adaptive=False)
    return run_greedy(part, candidates_in_time(part), unlimited, rules).filters


@settings(max_examples=40)
@given(problems(levels=3, most=40), st.integers(0, 10))
def test_a_completion_is_within_limits_at_the_least_factor(problem, few):
    """Limits hold wherever max-flow can meet them; the independent check finds no other violation."""
    least, _ = least_lbf(problem, candidates_in_time(problem))
    limit = load_limits(problem, least)
    broker_of, filters = complete(problem, some_filters(problem, few), limit, np.random.default_rng(0))
    assert np.all(np.bincount(broker_of, minlength=problem.broker_count) <= limit)
    boxes = tuple(
        tuple((filters.lo[b, i], filters.hi[b, i]) for i in range(filters.used[b]))
        for b in range(problem.broker_count)
    )
    result = bl.AssignmentResult(problem, broker_of.astype(np.int32), boxes)
    assert set(result.metrics()["violated"]) <= {"load"}


@settings(max_examples=40)
@given(problems(most=40), st.integers(0, 10))
def test_shares_send_subscribers_to_filters_around_them(problem, few):
    """By kind and rank, a subscriber gets a candidate with a box around its interest, or -1."""
    filters = some_filters(problem, few)
    masks = kind_masks(problem, filters)
    kind, firsts = number_rows(masks)
    least, _ = least_lbf(problem, candidates_in_time(problem))
    shares = allot(
        problem, masks[firsts], np.bincount(kind, minlength=len(firsts)), load_limits(problem, least)
    )
    seen: dict[int, int] = {}
    for j, number in enumerate(kind.tolist()):
        rank = seen.get(number, 0)
        seen[number] = rank + 1
        b = broker_by_rank(shares, np.array([number]), np.array([rank]))[0]
        if b < 0:
            continue
        in_time = naive.candidates(
            problem.publisher, problem.broker_place, problem.subscriber_place[j], problem.max_delay
        )
        box = tuple(problem.lo[j]), tuple(problem.hi[j])
        own = [(tuple(filters.lo[b, i]), tuple(filters.hi[b, i])) for i in range(filters.used[b])]
        assert b in in_time
        assert any(naive.inside(box, one) for one in own)


def test_equal_subscribers_are_searched_as_bundles():
    """50 interests at 500 locations make few bundles; limits hold with and without a sample."""
    problem = bl.workload.subscribers(set=2, subscribers=4000, brokers=20)
    greedy = bl.assign(problem, "gr*")
    assert bl.assign(problem, passes=3).bandwidth < greedy.bandwidth
    for polish in (0, 3):
        assert bl.assign(problem, passes=3, sample=1000, polish=polish).metrics()["within_beta"]
