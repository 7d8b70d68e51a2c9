"""The guided algorithm: connected, never heavier than greedy with reverse delete, nor with more effort."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_strategies import instances

import broadloom as bl
import naive
from broadloom.linking._candidate_edges import candidates_of
from broadloom.linking.guided_search import EdgeExchange, GuidedOptions, GuidedSearch, broadloom


def random_instance(nodes, topics, seed=0):
    rng = np.random.default_rng(seed)
    rows = [rng.choice(topics, rng.integers(2, topics // 2), replace=False).tolist() for _ in range(nodes)]
    return bl.Interest.from_lists(rows, topics=topics), bl.Weights.euclidean(rng.random((nodes, 2)))


def total(table, edges):
    return naive.total_weight(table, edges.tolist())


@given(instances(nodes=12), st.integers(1, 2))
@settings(max_examples=150)
def test_connected_and_never_worse_than_greedy_with_reverse_delete(instance, effort):
    rows, interest, weights, table = instance
    result = broadloom(interest, weights, GuidedOptions(effort), 0)
    assert naive.is_topic_connected(rows, result.edges.tolist())
    edges = naive.grmaw(rows, table)
    heaviest = sorted(edges, key=lambda e: (-table[e[0]][e[1]], e))
    kept = naive.reverse_delete(rows, edges, heaviest)
    assert total(table, result.edges) <= naive.total_weight(table, kept) * (1 + 1e-12)
    assert result.lower_bound <= total(table, result.edges)


@given(instances(nodes=6))
def test_between_its_bound_and_the_optimum(instance):
    rows, interest, weights, table = instance
    result = broadloom(interest, weights, GuidedOptions(), 0)
    optimum, _ = naive.optimum(rows, table)
    assert result.lower_bound <= optimum <= total(table, result.edges) * (1 + 1e-12)


def test_more_effort_is_never_heavier_and_bounds_never_fall():
    saved = 0.0
    for seed in range(3):
        interest, weights = random_instance(80, 16, seed)
        plans = [bl.link(interest, weights, algorithm="broadloom", effort=effort) for effort in (1, 2, 3, 4)]
        totals = [plan.total_weight for plan in plans]
        proven = [plan.lower_bound for plan in plans]
        assert totals == sorted(totals, reverse=True)
        assert proven == sorted(proven)
        saved += totals[0] - totals[-1]
    assert saved > 0


def test_each_level_is_recorded_and_the_first_ones_are_those_of_less_effort():
    interest, weights = random_instance(60, 12)
    less = bl.link(interest, weights, algorithm="broadloom", effort=2)
    more = bl.link(interest, weights, algorithm="broadloom", effort=3)
    assert more.notes["stopped"] == less.notes["stopped"] == "effort"
    assert more.notes["levels"][:2] == less.notes["levels"]
    assert more.notes["levels"][2]["weight"] == pytest.approx(more.total_weight)
    assert more.notes["levels"][2]["bound"] == more.lower_bound


def test_stops_at_a_gap():
    """After the first level that proves it; without `effort` there are as many levels as it takes."""
    interest, weights = random_instance(60, 12)
    levels = bl.link(interest, weights, algorithm="broadloom", effort=3).notes["levels"]
    gaps = [level["weight"] / level["bound"] - 1 for level in levels]
    plan = bl.link(interest, weights, algorithm="broadloom", gap=gaps[1] + 1e-9)
    assert plan.notes["stopped"] == "gap"
    assert plan.notes["levels"] == levels[:2]
    plan = bl.link(interest, weights, algorithm="broadloom", gap=0.0, effort=2)
    assert plan.notes["stopped"] == "effort"


def test_stops_at_a_time():
    """Without `effort` the time is the only limit; the plan is connected and has a bound."""
    interest, weights = random_instance(60, 12)
    plan = bl.link(interest, weights, algorithm="broadloom", seconds=0.0)
    assert plan.notes["stopped"] == "seconds"
    assert 0 < plan.lower_bound <= plan.total_weight
    longer = bl.link(interest, weights, algorithm="broadloom", seconds=1.5)
    assert longer.notes["stopped"] == "seconds"
    assert len(longer.notes["levels"]) > 1
    assert longer.total_weight <= plan.total_weight


def test_an_interrupted_search_returns_the_best_plan_so_far(monkeypatch):
    interest, weights = random_instance(60, 12)
    levels = bl.link(interest, weights, algorithm="broadloom", effort=2).notes["levels"]

    def interrupted(search, level, deadline):
        if level == 2:
            raise KeyboardInterrupt
        run_level(search, level, deadline)

    run_level = GuidedSearch.run_level
    monkeypatch.setattr(GuidedSearch, "run_level", interrupted)
    plan = bl.link(interest, weights, algorithm="broadloom", effort=4)
    assert plan.notes["stopped"] == "interrupt"
    assert plan.notes["levels"] == levels
    assert plan.total_weight == pytest.approx(levels[-1]["weight"])


def test_a_level_that_takes_long_is_announced(monkeypatch):
    interest, weights = random_instance(30, 8)
    said = []
    monkeypatch.setattr("broadloom.linking.guided_search.notice", said.append)
    monkeypatch.setattr("broadloom.linking.guided_search.LONG", 0.0)
    bl.link(interest, weights, algorithm="broadloom", effort=2)
    assert len(said) == 1
    assert said[0].startswith("Level 2 can take")


def test_same_seed_same_overlay_for_any_number_of_threads(monkeypatch):
    interest, weights = random_instance(60, 12)
    first = broadloom(interest, weights, GuidedOptions(3), seed=5)
    monkeypatch.setenv("BROADLOOM_THREADS", "3")
    monkeypatch.setattr("broadloom.linking._candidate_edges.WORK_PER_BLOCK", 500)
    again = broadloom(interest, weights, GuidedOptions(3), seed=5)
    assert np.array_equal(first.edges, again.edges)
    assert first.lower_bound == again.lower_bound


def test_with_uniform_weights_there_are_no_more_edges_than_by_gm():
    interest, _ = random_instance(60, 12)
    plan = bl.link(interest, algorithm="broadloom", effort=2)
    assert plan.lower_bound <= len(plan.edges) <= len(bl.link(interest, algorithm="gm").edges)


def test_a_large_instance_falls_back_with_a_note(monkeypatch):
    monkeypatch.setattr("broadloom.linking.lagrangian_bound.MOST_WORK", 10)
    interest, weights = random_instance(30, 8)
    plan = bl.link(interest, weights, algorithm="broadloom")
    assert "too large" in plan.notes["why"]
    assert plan.lower_bound == 0, "no topic is small enough"


@given(instances(nodes=14), st.integers(1, 4))
def test_keeps_a_maximum_degree(instance, limit):
    """With a limit the overlay is connected, within the limit, and never heavier than that of grmaw."""
    _, interest, weights, _ = instance
    try:
        greedy = bl.link(interest, weights, "grmaw", max_degree=limit)
    except bl.InputError as refused:
        with pytest.raises(bl.InputError, match=re.escape(str(refused))):
            bl.link(interest, weights, "broadloom", max_degree=limit)
        return
    plan = bl.link(interest, weights, "broadloom", max_degree=limit)
    assert plan.overlay.degrees().max(initial=0) <= limit
    assert plan.lower_bound <= plan.total_weight <= greedy.total_weight
    more = bl.link(interest, weights, "broadloom", max_degree=limit, effort=2)
    assert more.overlay.degrees().max(initial=0) <= limit
    assert more.total_weight <= plan.total_weight * (1 + 1e-12)
    assert more.is_topic_connected()


def test_with_a_maximum_degree_plans_stay_guided():
    """Not far above the plan without a limit, and far below the overlay that `grmaw` falls back to."""
    interest, weights = random_instance(120, 40)
    free = bl.link(interest, weights, "broadloom")
    plan = bl.link(interest, weights, "broadloom", max_degree=8)
    assert plan.overlay.degrees().max() <= 8 < free.overlay.degrees().max()
    assert free.total_weight < plan.total_weight < 1.1 * free.total_weight
    assert bl.link(interest, weights, "grmaw", max_degree=8).total_weight > 1.2 * free.total_weight


@pytest.mark.parametrize("effort", [0, -1, 13, 1.5, "2", True])
def test_wrong_effort_is_refused(effort):
    with pytest.raises(bl.InputError, match="effort is"):
        GuidedOptions(effort)


@given(instances(nodes=12), st.integers(0, 3))
def test_exchange_keeps_topics_connected_and_descent_never_adds_weight(instance, seed):
    """From the complete overlay, by descent, and by annealing from there."""
    rows, interest, weights, _ = instance
    everything = np.array([u * len(rows) + v for u, v in naive.pairs(rows)], np.int64)
    pool = candidates_of(interest, weights, everything)
    overlay = EdgeExchange(interest, pool, np.ones(len(everything), bool))
    before = overlay.total_weight
    overlay.descend()
    assert overlay.total_weight <= before
    assert naive.is_topic_connected(rows, pool.edges[overlay.linked].tolist())
    overlay.anneal(3, 0.2, np.random.default_rng(seed))
    assert naive.is_topic_connected(rows, pool.edges[overlay.linked].tolist())
