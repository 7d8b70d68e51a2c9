"""Max-flow over groups of subscribers, the least load balance factor, and the guard."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from assign_strategies import problems
from broadloom.assignment.subscribers.greedy_assignment import OrderOptions, gr_star, guarded_greedy
from broadloom.assignment.subscribers.load_flow import (
    candidates_in_time,
    least_lbf,
    load_limits,
    max_flow,
    max_ratio,
    spread,
)


def flow_by_networkx(candidates, limit):
    graph = nx.DiGraph()
    graph.add_nodes_from(["s", "t"])
    for j, g in enumerate(candidates.group):
        graph.add_edge(("subscriber", j), "t", capacity=1)
        for b in candidates.brokers[candidates.start[g] : candidates.start[g + 1]]:
            graph.add_edge("s", int(b), capacity=int(limit[b]))
            graph.add_edge(int(b), ("subscriber", j), capacity=1)
    return nx.maximum_flow_value(graph, "s", "t")


@settings(deadline=None, max_examples=60)
@given(problems(), st.sampled_from([0.3, 0.8, 1.0, 1.3, 2.0]))
def test_the_flow_is_as_large_as_that_of_networkx(problem, beta):
    candidates = candidates_in_time(problem)
    limit = load_limits(problem, beta)
    flow, unplaced, tight = max_flow(candidates, limit)
    assert problem.subscriber_count - unplaced == flow_by_networkx(candidates, limit)
    assert np.all(flow.load <= limit)
    if unplaced:
        confined = [
            j
            for j, g in enumerate(candidates.group)
            if tight[candidates.brokers[candidates.start[g] : candidates.start[g + 1]]].all()
        ]
        assert len(confined) > limit[tight].sum(), "the tight set has more subscribers than it can hold"


@settings(deadline=None, max_examples=60)
@given(problems())
def test_the_least_factor_can_be_met_and_no_smaller_one(problem):
    candidates = candidates_in_time(problem)
    least, flow = least_lbf(problem, candidates)
    assert flow_by_networkx(candidates, load_limits(problem, least)) == problem.subscriber_count
    if problem.subscriber_count and least > 1:
        assert (
            flow_by_networkx(candidates, load_limits(problem, least * (1 - 1e-6))) < problem.subscriber_count
        )
    broker_of = spread(candidates, flow)
    assert max_ratio(problem, np.bincount(broker_of, minlength=problem.broker_count)) == pytest.approx(least)


@settings(deadline=None, max_examples=60)
@given(problems(levels=2), st.integers(0, 10))
def test_a_guarded_assignment_is_within_limits_at_the_least_factor(problem, seed):
    candidates = candidates_in_time(problem)
    least, _ = least_lbf(problem, candidates)
    limit = load_limits(problem, least)
    order = np.random.default_rng(seed).permutation(problem.subscriber_count)
    broker_of, _ = guarded_greedy(problem, candidates, limit, order)
    assert np.all(np.bincount(broker_of, minlength=problem.broker_count) <= limit)


def test_a_guard_that_refuses_nothing_changes_nothing():
    problem = bl.workload.subscribers(subscribers=2000, brokers=20)
    candidates = candidates_in_time(problem)
    plain = gr_star(problem, OrderOptions(), 0)
    broker_of, _ = guarded_greedy(problem, candidates, load_limits(problem, 1.5), np.arange(2000))
    assert plain.notes["stranded"] == 0
    assert np.array_equal(plain.broker_of, broker_of)


def test_a_guard_with_limits_that_cannot_be_met_is_an_internal_error():
    problem = bl.workload.subscribers(subscribers=200, brokers=8)
    limit = np.ones(8, np.int64)
    with pytest.raises(bl.InternalError, match="leave 192 subscribers without a broker"):
        guarded_greedy(problem, candidates_in_time(problem), limit, np.arange(200))


def test_the_guard_finds_assignments_that_gr_star_misses():
    """Right above the least possible factor Gr* finds all candidates full; a guarded Gr* does not."""
    problem = bl.workload.subscribers(set=2, subscribers=3000, brokers=20)
    least, _ = least_lbf(problem, candidates_in_time(problem))
    tight = problem.replace(beta=max(1.0, least), beta_max=max(1.0, least) * 1.0001)
    assert bl.assign(tight, "gr*").notes["stranded"] > 0
    assert bl.assign(tight, "broadloom", passes=2).feasible
