"""pdmaw equals its slow twin up to ties that rounding decides, and its bound is valid."""

import math

import pytest
from hypothesis import given, settings
from link_strategies import band_sizes, instances

import broadloom as bl
import instances as handmade
import naive
from broadloom.linking.primal_dual import merge_by_residual
from broadloom.linking.topic_components import components_of


def replayed(rows, matrix, edges):
    """Check that each edge has the lowest residual per contribution, to 1e-12, and return the dual value."""
    residual = {(u, v): matrix[u][v] for u, v in naive.pairs(rows)}
    done, dual = [], 0.0
    for edge in edges:
        mu = naive.contributions(rows, done)
        y = min(residual[e] / m for e, m in mu.items())
        assert math.isclose(
            residual[edge] / mu[edge], y, rel_tol=1e-12, abs_tol=1e-12 * matrix[edge[0]][edge[1]]
        )
        dual += y * naive.to_merge(rows, done)
        for e in mu:
            residual[e] -= mu[e] * y
        done.append(edge)
    assert not naive.contributions(rows, done)
    return dual


@settings(max_examples=300)
@given(instances(nodes=11), band_sizes)
def test_pdmaw_takes_a_tightest_edge_at_every_step_for_any_bands(instance, size):
    rows, interest, weights, matrix = instance
    edges, bound = merge_by_residual(components_of(interest), weights.arrays(), size)
    dual = replayed(rows, matrix, list(map(tuple, edges.tolist())))
    assert bound <= dual * (1 + 1e-12)
    assert math.isclose(bound, dual, rel_tol=1e-9)


@settings(max_examples=200)
@given(instances(nodes=11, kinds=("points", "reals")), band_sizes)
def test_pdmaw_equals_its_twin_without_ties(instance, size):
    rows, interest, weights, matrix = instance
    edges, _ = merge_by_residual(components_of(interest), weights.arrays(), size)
    assert list(map(tuple, edges.tolist())) == naive.pdmaw(rows, matrix)[0]


@given(instances(nodes=9, kinds=("points", "reals")))
def test_pdrdmaw_equals_its_twin_and_keeps_the_bound(instance):
    rows, interest, weights, matrix = instance
    plan = bl.link(interest, weights, algorithm="pdrdmaw")
    assert list(map(tuple, plan.edges.tolist())) == naive.pdrdmaw(rows, matrix)
    assert plan.lower_bound <= naive.total_weight(matrix, naive.grmaw(rows, matrix)) + 1e-9


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_pdmaw_takes_the_clique_and_pdrdmaw_the_star(n):
    """Paper 1, Lemma 10: the ratio of their weights tends to 3/2."""
    rows, matrix = handmade.clique_or_star(n)
    interest, weights = bl.Interest.from_lists(rows, topics=n * n), bl.Weights.dense(matrix)
    clique, star = (bl.link(interest, weights, algorithm=name) for name in ("pdmaw", "pdrdmaw"))
    assert len(clique.edges) == n * (n + 1) // 2
    assert sorted(star.edges.tolist()) == [[0, v] for v in range(1, n + 1)]
    ratio = 1 + (n * n - n) / (2 * n * n - n + 0.5 * n)
    assert clique.total_weight / star.total_weight == pytest.approx(ratio)
    assert 1.5 - 1 / n < ratio < 1.5
