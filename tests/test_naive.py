"""Naive twins: connected overlays, the papers' lemmas, lower bound <= optimum <= every overlay."""

import math
from itertools import chain, combinations

import pytest

import instances
import naive

OVERLAYS = {
    "trmaw": naive.trmaw,
    "gm": lambda interests, _: naive.gm(interests),
    "grmaw": naive.grmaw,
    "pdmaw": lambda interests, weights: naive.pdmaw(interests, weights)[0],
    "pdrdmaw": naive.pdrdmaw,
    "dcmaw": lambda interests, weights: naive.dcmaw(
        interests, weights, [v % 3 for v in range(len(interests))]
    ),
    "minmax-oda": lambda interests, _: naive.minmax_oda(interests),
    "low-oda": lambda interests, _: naive.low_oda(interests),
    "cd-oda": lambda interests, _: naive.cd_oda(interests),
    "cd-oda-1": lambda interests, _: naive.cd_oda_1(interests),
    "cd-oda-2": lambda interests, _: naive.cd_oda_2(interests),
}
GREEDY = ("gm", "grmaw", "pdmaw", "minmax-oda", "low-oda")  # each edge contributes when it is added

SMALL = [instances.scattered(12, 6, seed, integers=seed % 2 == 1) for seed in range(6)]
TINY = [instances.scattered(7, 4, seed, integers=seed % 2 == 1) for seed in range(12)]

every_overlay = pytest.mark.parametrize("name", OVERLAYS)


def harmonic(m: int) -> float:
    return math.fsum(1 / i for i in range(1, m + 1))


# The model.


def test_components_of_a_path_with_a_hole():
    """An edge counts for a topic only if both its ends subscribe to it."""
    interests = [{0}, {0, 1}, {1}, {0, 1}]
    assert naive.components(interests, [(0, 1), (1, 2), (2, 3)], 0) == [{0, 1}, {3}]
    assert naive.components(interests, [(0, 1), (1, 2), (2, 3)], 1) == [{1, 2, 3}]
    assert naive.components(interests, [], 0, groups=[7, 8, 7, 7]) == [{0, 3}, {1}]
    assert not naive.is_topic_connected(interests, [(0, 1), (1, 2), (2, 3)])
    assert naive.is_topic_connected(interests, [(0, 1), (1, 3), (2, 3)])


def test_contribution_counts_the_shared_topics_still_disconnected():
    interests = [{0, 1, 2}, {0, 1}, {0, 2}]
    assert naive.contribution(interests, [], 0, 1) == 2
    assert naive.contribution(interests, [(0, 2), (1, 2)], 0, 1) == 1
    assert naive.contribution(interests, [(0, 1)], 0, 1) == 0


@pytest.mark.parametrize("instance", SMALL)
def test_contributions_agree_and_never_rise(instance):
    """Paper 1: mu is submodular (Eq. 14), and TCC(E) falls by the contribution of the edge added (Eq. 10)."""
    interests, weights = instance
    edges = naive.grmaw(interests, weights)
    before = naive.contributions(interests, [])
    for i in range(len(edges) + 1):
        mu = naive.contributions(interests, edges[:i])
        for e in naive.pairs(interests):
            assert mu.get(e, 0) == naive.contribution(interests, edges[:i], *e) <= before.get(e, 0)
        if i < len(edges):
            left = naive.to_merge(interests, edges[:i]) - naive.to_merge(interests, edges[: i + 1])
            assert left == mu[edges[i]]
        before = mu


# Every overlay.


@every_overlay
@pytest.mark.parametrize("instance", SMALL)
def test_overlays_are_topic_connected_and_proper(name, instance):
    """Topic-connected; u < v; no edge twice; no edge between nodes without a common topic."""
    interests, weights = instance
    edges = OVERLAYS[name](interests, weights)
    assert naive.is_topic_connected(interests, edges)
    assert len(set(edges)) == len(edges)
    assert all(u < v and set(interests[u]) & set(interests[v]) for u, v in edges)


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.parametrize("instance", SMALL)
def test_each_edge_contributes_when_it_is_added(name, instance):
    interests, weights = instance
    edges = OVERLAYS[name](interests, weights)
    assert all(naive.contribution(interests, edges[:i], *e) > 0 for i, e in enumerate(edges))


@every_overlay
def test_nothing_to_connect(name):
    """No nodes, no topics, topics with one subscriber: an empty overlay."""
    for interests in ([], [set()], [set(), set(), set()], [{0}, {1}, {2, 3}]):
        weights = instances.symmetric(len(interests), lambda _u, _v: 1.0)
        assert OVERLAYS[name](interests, weights) == []


@every_overlay
def test_ties_go_to_the_smallest_edge(name):
    """Three equal nodes with equal weights: the star at node 0, the smallest in every order."""
    interests, weights = [{0}, {0}, {0}], instances.symmetric(3, lambda _u, _v: 1.0)
    expected = [(0, 1), (0, 2)]
    assert OVERLAYS[name](interests, weights) == expected


# The optimum.


@pytest.mark.parametrize("seed", range(10))
def test_optimum_equals_the_best_of_all_subsets(seed):
    interests, weights = instances.scattered(5, 3, seed)
    every = chain.from_iterable(combinations(naive.pairs(interests), m) for m in range(11))
    least = min(naive.total_weight(weights, s) for s in every if naive.is_topic_connected(interests, s))
    value, edges = naive.optimum(interests, weights)
    assert value == least == naive.total_weight(weights, edges)
    assert naive.is_topic_connected(interests, edges)


@pytest.mark.parametrize("instance", TINY)
def test_dual_is_below_the_optimum_and_the_optimum_below_every_overlay(instance):
    """Weak duality (paper 1, Lemma 8)."""
    interests, weights = instance
    value, _ = naive.optimum(interests, weights)
    _, dual = naive.pdmaw(interests, weights)
    assert dual <= value * (1 + 1e-12)
    for overlay in OVERLAYS.values():
        assert naive.total_weight(weights, overlay(interests, weights)) >= value


@pytest.mark.parametrize("instance", TINY)
def test_approximation_ratios_of_tree_per_topic_and_greedy(instance):
    """TrMAW is within |T| (paper 1, Lemma 1), GrMAW within H(max mu) (Theorem 2)."""
    interests, weights = instance
    value, _ = naive.optimum(interests, weights)
    most = max(naive.contributions(interests, []).values(), default=0)
    tree, greedy = naive.trmaw(interests, weights), naive.grmaw(interests, weights)
    assert naive.total_weight(weights, tree) <= len(naive.topics(interests)) * value * (1 + 1e-12)
    assert naive.total_weight(weights, greedy) <= harmonic(most) * value * (1 + 1e-12)


# Paper 1.


def test_trmaw_lists_topics_ascending_and_a_shared_edge_once():
    """Within a topic by (weight, u, v); the edge (0, 1) of the second tree is in the overlay already."""
    interests = [{0, 1}, {0, 1}, {0}, {1}]
    weights = instances.symmetric(4, lambda u, v: {(0, 1): 2.0, (1, 2): 1.0, (0, 3): 1.0}.get((u, v), 3.0))
    assert naive.trmaw(interests, weights) == [(1, 2), (0, 1), (0, 3)]


@pytest.mark.parametrize("instance", SMALL)
def test_grmaw_is_gm_if_all_weights_are_equal(instance):
    """Paper 1, VI."""
    interests, _ = instance
    assert naive.grmaw(interests, instances.symmetric(len(interests), lambda _u, _v: 1.0)) == naive.gm(
        interests
    )


def test_gm_ignores_weights():
    interests, weights = instances.heavy_triangle()
    assert naive.gm(interests) == [(0, 1), (0, 2)]
    assert naive.grmaw(interests, weights) == [(0, 2), (1, 2)]


@pytest.mark.parametrize("topics", [2, 5, 8])
def test_tree_per_topic_is_as_bad_as_its_bound(topics):
    """Paper 1, Lemma 1 is tight."""
    interests, weights = instances.tree_per_topic_tight(topics, delta=1e-6)
    value, edges = naive.optimum(interests, weights)
    assert edges == sorted(naive.grmaw(interests, weights))
    ratio = naive.total_weight(weights, naive.trmaw(interests, weights)) / value
    assert topics - 1e-4 < ratio <= topics


@pytest.mark.parametrize("topics", [2, 5, 8])
def test_greedy_is_as_bad_as_its_bound(topics):
    """Paper 1, Lemma 4."""
    interests, weights = instances.greedy_tight(topics, delta=1e-6)
    value, _ = naive.optimum(interests, weights)
    ratio = naive.total_weight(weights, naive.grmaw(interests, weights)) / value
    assert harmonic(topics) - 1e-4 < ratio <= harmonic(topics)


def test_pdmaw_by_hand():
    """Weights 1, 2, 4, one topic: y = 1 with two to merge, then y = 1 with one: 3, the tree's weight."""
    interests = [{0}, {0}, {0}]
    weights = instances.symmetric(3, lambda u, v: {(0, 1): 1.0, (0, 2): 2.0, (1, 2): 4.0}[u, v])
    assert naive.pdmaw(interests, weights) == ([(0, 1), (0, 2)], 3.0)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_reverse_delete_turns_the_clique_into_the_star(n):
    """Paper 1, Lemma 10, as printed except for -n in the formula."""
    epsilon = 0.25
    interests, weights = instances.clique_or_star(n, epsilon)
    primal_dual, _ = naive.pdmaw(interests, weights)
    deleted = naive.pdrdmaw(interests, weights)
    assert sorted(primal_dual) == naive.pairs(interests)
    assert primal_dual[:-n] == [(u, v) for u, v in naive.pairs(interests) if u > 0]
    assert deleted == [(0, p) for p in range(1, n + 1)]
    ratio = naive.total_weight(weights, primal_dual) / naive.total_weight(weights, deleted)
    assert ratio == pytest.approx(1 + (n * n - n) / (2 * n * n - n + 2 * epsilon * n))
    assert ratio < 3 / 2


@pytest.mark.parametrize("instance", SMALL)
def test_reverse_delete_gives_a_minimal_overlay(instance):
    """PdrdMAW's overlay is minimal and a subsequence of PdMAW's (paper 1, Def. 3)."""
    interests, weights = instance
    edges = naive.pdrdmaw(interests, weights)
    assert edges == [e for e in naive.pdmaw(interests, weights)[0] if e in edges]
    assert not any(naive.is_topic_connected(interests, [f for f in edges if f != e]) for e in edges)


def test_the_last_edge_is_the_first_to_be_deleted():
    """Either (1, 2) or (0, 3) is redundant given the others; the later one is deleted (paper 1, Alg. 5)."""
    interests, weights = instances.scattered(4, 6, seed=36, most=5)
    assert naive.pdmaw(interests, weights)[0] == [(1, 2), (2, 3), (0, 3), (0, 1)]
    assert naive.pdrdmaw(interests, weights) == [(1, 2), (2, 3), (0, 1)]


@pytest.mark.parametrize("instance", SMALL)
def test_divide_and_conquer_of_one_part_is_grmaw(instance):
    interests, weights = instance
    assert naive.dcmaw(interests, weights, [5] * len(interests)) == naive.grmaw(interests, weights)


@pytest.mark.parametrize("representatives", [1, 2, 3])
def test_divide_and_conquer_lists_inner_edges_first_and_joins_representatives(representatives):
    interests, weights = instances.scattered(15, 5, seed=1)
    part = [v // 5 for v in range(15)]
    reps = {v for p in range(3) for v in naive.representatives_of(interests, part, p, representatives)}
    edges = naive.dcmaw(interests, weights, part, representatives)
    parts = [part[u] if part[u] == part[v] else 3 for u, v in edges]
    assert naive.is_topic_connected(interests, edges)
    assert parts == sorted(parts)
    assert all(u in reps and v in reps for (u, v), p in zip(edges, parts, strict=True) if p == 3)


def test_representatives_by_hand():
    """Topic 3 has subscribers in one part only. In part 0, topics 0 and 1 have two subscribers, 2 has one."""
    interests = [{0, 3}, {0, 1, 2}, {1, 3}, {0, 1, 2}]
    assert naive.representatives_of(interests, [0, 0, 0, 1], 0, 1) == [1]
    assert naive.representatives_of(interests, [0, 0, 0, 1], 0, 2) == [1, 0, 2]
    assert naive.representatives_of(interests, [0, 0, 0, 1], 1, 2) == [3]


def test_grmaw_from_adds_only_missing_edges():
    interests, weights = [{0}, {0}, {0}, {0}], instances.symmetric(4, lambda u, v: float(u + v))
    assert naive.grmaw_from(interests, weights, edges=[(2, 3)]) == [(0, 1), (0, 2)]
    assert naive.grmaw_from(interests, weights, candidates=[(2, 3), (1, 3)]) == [(1, 3), (2, 3)]
    assert naive.grmaw_from(interests, weights, groups=[0, 0, 1, 1]) == [(0, 2)]


# Paper 2.


@pytest.mark.parametrize(("n", "count"), [(4, 5), (6, 11), (8, 21), (10, 31)])
def test_minmax_takes_far_more_edges_than_the_star(n, count):
    """Paper 2, Lemma 1: a ratio of the order of n. Its count is not reproduced: see `matchings_or_star`."""
    interests, _ = instances.matchings_or_star(n)
    star = [(0, i) for i in range(1, n)]
    edges = naive.minmax_oda(interests)
    assert naive.gm(interests) == star
    assert set(star) < set(edges)
    assert len(edges) == count > n * n / 4


@pytest.mark.parametrize("instance", SMALL)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_low_oda_never_takes_less_than_a_kth_of_the_best(instance, k):
    """Paper 2, Theorem 1's premise; k = 1 takes a highest contribution always, as GM does."""
    interests, _ = instance
    edges = naive.low_oda(interests, k)
    for i, e in enumerate(edges):
        mu = naive.contributions(interests, edges[:i])
        assert mu[e] * k >= max(mu.values())


def test_low_oda_prefers_low_degrees_at_equal_contributions():
    """Equality is enough for e1 (paper 2, Alg. 1, line 10), so k = 1 differs from GM at ties."""
    interests = [{0}, {0}, {0}, {0}]
    assert naive.low_oda(interests, k=1) == [(0, 1), (2, 3), (0, 2)]
    assert naive.gm(interests) == [(0, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize("instance", SMALL)
def test_low_oda_with_a_large_k_is_minmax_oda(instance):
    interests, _ = instance
    assert naive.low_oda(interests, k=math.inf) == naive.minmax_oda(interests)


@pytest.mark.parametrize("build", [naive.cd_oda, naive.cd_oda_1, naive.cd_oda_2])
@pytest.mark.parametrize("instance", SMALL)
def test_constant_diameter_is_two(build, instance):
    """Paper 2, Lemma 7."""
    interests, _ = instance
    edges = build(interests)
    assert all(naive.hop_diameter(interests, edges, t) <= 2 for t in naive.topics(interests))


def test_the_three_stars_differ():
    """First by n_u node 0 (4), by w_u node 4 (8), by w_u / n_u node 5 (7 / 2, its private topic counted)."""
    interests = [{0}, {0}, {0}, {0}, {1, 2, 3, 4}, {1, 2, 4, 5}, {3}]
    assert naive.cd_oda(interests) == [(0, 1), (0, 2), (0, 3), (4, 5), (4, 6)]
    assert naive.cd_oda_1(interests) == [(4, 5), (4, 6), (0, 1), (0, 2), (0, 3)]
    assert naive.cd_oda_2(interests) == [(4, 5), (0, 1), (0, 2), (0, 3), (4, 6)]


# Measures.


def test_measures_of_a_path():
    interests = [{0}, {0, 1}, {0}, {1}]
    weights = instances.symmetric(4, lambda u, v: float(10 * u + v))
    path = [(0, 1), (1, 2)]
    assert naive.degrees(interests, path) == [1, 2, 1, 0]
    assert naive.hop_diameter(interests, path, 0) == 2
    assert naive.weighted_diameter(interests, weights, path, 0) == 1.0 + 12.0
    assert naive.weighted_diameter(interests, weights, [*path, (0, 2)], 0) == 2.0 + 1.0
    assert naive.hop_diameter(interests, path, 1) == math.inf
    assert naive.total_weight(weights, path) == 13.0
