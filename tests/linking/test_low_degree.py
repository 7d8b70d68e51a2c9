"""MinMax-ODA and Low-ODA equal their slow twins edge for edge, also with our limits and objectives."""

import contextlib
import math

import hypothesis.strategies as st
import link_strategies as strategies
import numpy as np
import pytest
from hypothesis import given, settings

import broadloom as bl
import instances
import naive
from broadloom.linking import low_degree_edges


def as_tuples(edges):
    return list(map(tuple, edges.tolist()))


def low_by_weight(interests, weights, k, limit):
    """Low-ODA by weight per contribution below a maximum degree, and whether it connects every topic."""
    edges = []
    while True:
        degree = naive.degrees(interests, edges)
        mu = naive.contributions(interests, edges)
        below = [(u, v) for u, v in mu if degree[u] < limit and degree[v] < limit]
        if not below:
            return edges, not mu
        best = {e: (weights[e[0]][e[1]] / mu[e], e) for e in below}
        e1, e2 = min(naive.sparing(below, degree), key=best.get), min(below, key=best.get)
        near = mu[e2] * weights[e1[0]][e1[1]] <= k * mu[e1] * weights[e2[0]][e2[1]]
        edges.append(e1 if near else e2)


ks = st.sampled_from([1, 1.5, 2, 3, 7, 50.0, math.inf])


@settings(max_examples=200)
@given(strategies.interests())
def test_minmax_oda_equals_its_twin(instance):
    rows, interest = instance
    assert as_tuples(bl.link(interest, algorithm="minmax-oda").edges) == naive.minmax_oda(rows)


@settings(max_examples=300)
@given(strategies.interests(), ks)
def test_low_oda_equals_its_twin(instance, k):
    rows, interest = instance
    assert as_tuples(bl.link(interest, algorithm="low-oda", k=k).edges) == naive.low_oda(rows, k)


def is_kept_or_refused(interest, weights, name, **options):
    """A higher k meets the limit if the rule does not; it is refused only if minmax-oda needs more."""
    least = bl.link(interest, algorithm="minmax-oda").overlay.degrees().max(initial=0)
    if least <= options["max_degree"]:
        plan = bl.link(interest, weights, name, **options)
        assert plan.overlay.degrees().max(initial=0) <= options["max_degree"]
        return
    with contextlib.suppress(bl.InputError):
        plan = bl.link(interest, weights, name, **options)
        assert plan.overlay.degrees().max(initial=0) <= options["max_degree"]


@settings(max_examples=300)
@given(strategies.instances(), ks, st.integers(1, 6))
def test_low_oda_by_weight_below_a_maximum_degree(instance, k, limit):
    rows, interest, weights, matrix = instance
    expected, connected = low_by_weight(rows, matrix, k, limit)
    options = {"k": k, "objective": "weight", "max_degree": limit}
    if connected:
        plan = bl.link(interest, weights, algorithm="low-oda", **options)
        assert as_tuples(plan.edges) == expected
    else:
        is_kept_or_refused(interest, weights, "low-oda", **options)


@settings(max_examples=200)
@given(strategies.instances(), st.integers(1, 6), st.sampled_from(["gm", "grmaw"]))
def test_the_greedy_algorithms_below_a_maximum_degree(instance, limit, name):
    rows, interest, weights, matrix = instance
    ones = [[1.0] * len(rows) for _ in rows]
    expected, connected = low_by_weight(rows, ones if name == "gm" else matrix, 0, limit)
    if connected:
        plan = bl.link(interest, weights, algorithm=name, max_degree=limit)
        assert as_tuples(plan.edges) == expected
    else:
        is_kept_or_refused(interest, weights, name, max_degree=limit)


@settings(max_examples=200)
@given(strategies.instances())
def test_low_oda_with_k_0_is_grmaw(instance):
    rows, interest, weights, matrix = instance
    assert as_tuples(low_degree_edges(interest, weights, k=0)) == naive.grmaw(rows, matrix)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("k", [1, 3, math.inf])
def test_low_oda_equals_its_twin_on_larger_instances(seed, k):
    """Enough nodes for several partners per row, and for rows that use them up."""
    interests, _ = instances.scattered(40, 25, seed, most=20)
    plan = bl.link(bl.Interest.from_lists(interests, topics=25), algorithm="low-oda", k=k)
    assert as_tuples(plan.edges) == naive.low_oda(interests, k)


def test_contributions_beyond_a_byte():
    interests = [set(range(300)), set(range(290)), set(range(280)), set(range(100, 400)), set(range(5))]
    plan = bl.link(bl.Interest.from_lists(interests, topics=400), algorithm="low-oda", k=2)
    assert as_tuples(plan.edges) == naive.low_oda(interests, 2)


@pytest.mark.parametrize("n", [4, 6, 8])
def test_the_lemma_against_minmax_oda(n):
    """Paper 2, Lemma 1: on the order of n^2 edges, although the n - 1 edges of a star are enough."""
    interests, _ = instances.matchings_or_star(n)
    plan = bl.link(bl.Interest.from_lists(interests), algorithm="minmax-oda")
    assert as_tuples(plan.edges) == naive.minmax_oda(interests)
    assert len(plan.edges) > n * n / 4


def test_low_oda_trades_edges_for_degree():
    """Paper 2, V: between gm, which has few edges, and minmax-oda, which has a low maximum degree."""
    rng = np.random.default_rng(3)
    interest = bl.Interest.from_lists([rng.choice(40, 12, replace=False) for _ in range(120)], topics=40)
    gm, low, minmax = (bl.link(interest, algorithm=name) for name in ("gm", "low-oda", "minmax-oda"))
    assert len(gm.edges) < min(len(low.edges), len(minmax.edges))
    assert low.overlay.degrees().max() < gm.overlay.degrees().max()


def test_a_maximum_degree_is_kept_or_refused():
    """A star of four topics needs four links at its centre; the error for three names that number."""
    interest = bl.Interest.from_lists([[0, 1, 2, 3], [0], [1], [2], [3]], topics=4)
    assert bl.link(interest, algorithm="low-oda", max_degree=4).overlay.degrees().max() == 4
    with pytest.raises(
        bl.InputError, match="topic '3' stays in 2 parts; minmax-oda connects every topic with max_degree 4"
    ):
        bl.link(interest, algorithm="low-oda", max_degree=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0.5}, "k is 0.5; give a number from 1"),
        ({"k": math.nan}, "k is nan"),
        ({"objective": "wieght"}, "give one of edges, weight"),
        ({"max_degree": 0}, "max_degree is 0"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(bl.InputError, match=message):
        bl.link(bl.Interest.from_lists([[0]]), algorithm="low-oda", **options)
