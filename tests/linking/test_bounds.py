"""The lower bound is always below the optimum; each step of its proof is checked in exact arithmetic."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_strategies import instances

import naive
from broadloom import InputError, Interest, Weights, link
from broadloom.linking import _candidate_edges, lower_bound
from broadloom.linking._candidate_edges import candidates_of, chains_of_trees, codes_of, heavy_pairs
from broadloom.linking._spanning_trees import entries_by_topic, minimum_trees
from broadloom.linking._star_covers import (
    cheapest_cover,
    cover_prices,
    cover_workspace,
    no_covers,
    proven_costs,
    stars_of,
)
from broadloom.linking.greedy_overlays import GreedyOptions, grmaw
from broadloom.linking.guided_search import list_greedy
from broadloom.linking.lagrangian_bound import COVER_STEP, Ascent, smallest_topics


def all_pairs(interest, weights):
    n = interest.node_count
    codes = np.array([u * n + v for u, v in combinations(range(n), 2)], np.int64)
    return candidates_of(interest, weights, codes)


def ascent_of(interest, weights):
    return Ascent(interest, weights, grmaw(interest, weights, GreedyOptions(), 0).edges)


def bottlenecks(nodes, part):
    """The exact minimax height between each two nodes of one topic, from the parts of its edges."""
    height = {
        (u, v): part.get((min(u, v), max(u, v)), Fraction(10**9)) for u in nodes for v in nodes if u != v
    }
    for k in nodes:
        for i in nodes:
            for j in nodes:
                if len({i, j, k}) == 3:
                    height[i, j] = min(height[i, j], max(height[i, k], height[k, j]))
    return height


def exact_tree(nodes, part):
    """The exact weight of a topic's minimum spanning tree over the edges that have a part."""
    group = {v: v for v in nodes}
    total = Fraction(0)
    for (u, v), height in sorted(part.items(), key=lambda item: item[1]):
        if group[u] != group[v]:
            total += height
            old = group[u]
            group = {x: group[v] if g == old else g for x, g in group.items()}
    return total


def exact_cover(topics, entries):
    """The exact cost of the cheapest cover of the topics by entries: pairs of topics and a cost."""
    least = {frozenset(): Fraction(0)}
    for covered, cost in entries:
        for done, spent in list(least.items()):
            more = done | (topics & covered)
            least[more] = min(least.get(more, spent + cost), spent + cost)
    return least[topics]


# The bound.


@given(instances(nodes=7), st.sampled_from([60, 100]))
@settings(max_examples=300)
def test_bound_never_exceeds_the_optimum(instance, steps):
    """The trees alone, and with covers."""
    rows, interest, weights, table = instance
    optimum, _ = naive.optimum(rows, table)
    assert 0.0 <= lower_bound(interest, weights, iterations=steps) <= optimum


class ProofReached(Exception):  # noqa: N818
    """Ends a run at its proof, with the parts that it uses."""


@given(instances(nodes=7), st.sampled_from([0, 1, 5, 40, 70, 110]))
def test_certificate_holds_in_exact_fractions(instance, steps):
    """Parts of an edge sum to its weight at most; other pairs can be split without a change elsewhere.

    The split of another pair gives each topic its height, and each end the cost of covering what they share.
    """
    rows, interest, weights, table = instance
    ascent = ascent_of(interest, weights)
    ascent.climb_to(steps)

    def stop(terms):
        raise ProofReached(float(terms.sum()) * (1.0 - (len(terms) + 4) * 2.0**-52))

    ascent._prove = stop
    with pytest.raises(ProofReached) as proof:
        ascent.certify()
    candidates, entries, stars = ascent.candidates, ascent._entries, ascent._stars
    value, ends = ascent._feasible()
    parts = {t: {} for t in naive.topics(rows)}
    paid = {}
    for i, k in enumerate(entries.origin):
        edge = tuple(candidates.edges[entries.edge[i]].tolist())
        parts[candidates.topic[k]][edge] = Fraction(value[i])
        paid[edge] = paid.get(edge, 0) + Fraction(value[i])
    at = {u: [] for u in range(len(rows))}
    for i, (e, v) in enumerate(zip(stars.edge, stars.other, strict=True)):
        edge = tuple(candidates.edges[e].tolist())
        u = sum(edge) - v
        at[u].append((frozenset(rows[u]) & frozenset(rows[v]), Fraction(ends[i])))
        paid[edge] += Fraction(ends[i])
    heights = {t: bottlenecks(naive.subscribers(rows, t), part) for t, part in parts.items()}
    has_covers = steps > COVER_STEP
    for u, v in naive.pairs(rows):
        shared = frozenset(rows[u]) & frozenset(rows[v])
        split = paid.get((u, v))
        if split is None:
            split = sum(heights[t][u, v] for t in shared)
            if has_covers:
                split += exact_cover(shared, at[u]) + exact_cover(shared, at[v])
        assert split <= Fraction(table[u][v])
    total = sum(exact_tree(naive.subscribers(rows, t), part) for t, part in parts.items())
    if has_covers:
        for u, row in enumerate(rows):
            needed = frozenset(t for t in row if len(naive.subscribers(rows, t)) > 1)
            total += exact_cover(needed, at[u])
    assert proof.value.args[0] <= total


def test_bound_is_close_to_the_optimum_on_small_instances():
    """Two nodes and a star are tight; on random instances the gap is a few per cent at most."""
    assert lower_bound(Interest.from_lists([[0], [0]]), Weights.dense([[0, 3], [3, 0]])) == pytest.approx(3)
    star = Interest.from_lists([[0, 1, 2], [0], [1], [2]])
    assert lower_bound(star, Weights.uniform(4)) == pytest.approx(3)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        interest = Interest.from_lists([rng.choice(6, 3, replace=False).tolist() for _ in range(9)])
        weights = Weights.euclidean(rng.random((9, 2)))
        best = link(interest, weights, "exact").total_weight
        assert 0.95 * best < lower_bound(interest, weights) <= best


def test_more_iterations_never_lower_the_bound_of_an_ascent():
    rng = np.random.default_rng(0)
    interest = Interest.from_lists([rng.choice(12, 4, replace=False).tolist() for _ in range(40)])
    ascent = ascent_of(interest, Weights.euclidean(rng.random((40, 2))))
    values = []
    for steps in (0, 10, 50, 200):
        ascent.climb_to(steps)
        values.append(ascent.certify())
    assert values == sorted(values)
    assert values[0] > 0


@pytest.mark.parametrize("rows", [[], [[]], [[], []], [[0]], [[0], [1]], [[0], [], [1]]])
def test_the_bound_is_0_if_there_is_nothing_to_connect(rows):
    assert lower_bound(Interest.from_lists(rows, topics=2)) == 0.0


def test_bound_stops_at_the_time_limit_and_stays_valid():
    interest = Interest.from_lists([[0, 1]] * 6)
    assert 0 < lower_bound(interest, iterations=10**9, seconds=0.05) <= 5


def test_wrong_limits_and_weights_are_refused():
    interest = Interest.from_lists([[0], [0]])
    with pytest.raises(InputError, match="2 nodes but weights for 3"):
        lower_bound(interest, Weights.uniform(3))
    with pytest.raises(InputError, match="iterations is -1"):
        lower_bound(interest, iterations=-1)


@given(instances(nodes=8), st.sampled_from([0, 4, 9, 30]))
def test_bound_over_the_smallest_topics_is_valid(instance, most_work):
    """If there is too much work for all topics, the smallest ones give a weaker bound."""
    rows, interest, weights, table = instance
    fewer = smallest_topics(interest, most_work)
    sizes, kept = np.diff(interest.node_start), np.diff(fewer.node_start)
    assert np.sum(kept**2) <= most_work
    assert all(k in (0, s) for k, s in zip(kept, sizes, strict=True))
    assert lower_bound(fewer, weights, iterations=20) <= naive.total_weight(table, naive.grmaw(rows, table))


# Steps of the computation.


@given(instances(nodes=9))
def test_list_greedy_over_all_pairs_is_grmaw(instance):
    rows, interest, weights, table = instance
    pool = all_pairs(interest, weights)
    taken = list_greedy(pool, pool.weight, interest.subscription_count)
    assert list(map(tuple, pool.edges[taken].tolist())) == naive.grmaw(rows, table)


@given(instances(nodes=9))
def test_minimum_trees_are_minimal(instance):
    rows, interest, weights, table = instance
    pool = all_pairs(interest, weights)
    entries = entries_by_topic(pool, interest.node_start)
    tree, height = minimum_trees(entries, pool.weight[entries.edge])
    total = sum(Fraction(w) for w in pool.weight[entries.edge[tree]])
    parts = {
        t: {e: Fraction(table[e[0]][e[1]]) for e in combinations(naive.subscribers(rows, t), 2)}
        for t in naive.topics(rows)
    }
    assert total == sum(exact_tree(naive.subscribers(rows, t), part) for t, part in parts.items())
    joined_at = {t: bottlenecks(naive.subscribers(rows, t), part) for t, part in parts.items()}
    for i, k in enumerate(entries.origin):
        u, v = pool.edges[entries.edge[i]].tolist()
        assert height[i] == joined_at[pool.topic[k]][u, v]


@given(instances(nodes=9), st.randoms(use_true_random=False))
def test_cheapest_covers_are_found_and_proven(instance, random):
    """By branch and bound, for each node; the price of a pair is that of covering what its ends share."""
    rows, interest, weights, _ = instance
    pool = all_pairs(interest, weights)
    pool = candidates_of(interest, weights, codes_of(pool.edges[np.diff(pool.start) > 0], len(rows)))
    stars = stars_of(interest, pool)
    cost = np.array([random.choice([0.5, 1.0, 1.5, random.random() + 0.1]) for _ in stars.edge])
    work = cover_workspace(stars)
    proven = proven_costs(stars, no_covers(stars), cost)
    for u, row in enumerate(rows):
        here = range(stars.start[u], stars.start[u + 1])
        entries = [(frozenset(row) & frozenset(rows[stars.other[i]]), Fraction(cost[i])) for i in here]
        needed = frozenset().union(*(covered for covered, _ in entries))
        least = exact_cover(needed, entries)
        size, found, is_proven = cheapest_cover(stars, u, cost[list(here)], np.inf, 10**6, work)
        assert is_proven
        assert found == pytest.approx(float(least))
        chosen = work.best[:size].tolist()
        assert frozenset().union(*(entries[i][0] for i in chosen)) == needed
        assert sum(entries[i][1] for i in chosen) == pytest.approx(float(least))
        assert float(least) * (1 - 1e-12) <= proven[u] <= least
        others = np.array([v for v in range(len(rows)) if v != u and set(rows[v]) & set(row)], np.int32)
        pairs = (np.full(len(others), u, np.int32), others)
        prices = cover_prices((interest.topic_start, interest.topics), stars, cost, pairs)
        for v, price in zip(others, prices, strict=True):
            exact = exact_cover(frozenset(row) & frozenset(rows[v]), entries)
            assert price >= float(exact) * (1 - 1e-12)


def test_a_search_that_is_too_long_proves_less():
    """Never more than the cheapest cover costs."""
    rng = np.random.default_rng(0)
    interest = Interest.from_lists([rng.choice(30, 12, replace=False).tolist() for _ in range(25)])
    weights = Weights.euclidean(rng.random((25, 2)))
    stars = stars_of(interest, all_pairs(interest, weights))
    cost = rng.uniform(0.9, 1.1, len(stars.edge))
    proven = proven_costs(stars, no_covers(stars), cost)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broadloom.kernels.jit.MODE", "plain")
        patch.setattr("broadloom.linking._star_covers.PROOF_NODES", 40)
        less = proven_costs(stars, no_covers(stars), cost)
    assert np.all(less <= proven)
    assert np.any(less < 0.9 * proven)
    assert np.any(less > 0.0)


@given(instances(nodes=9), st.sampled_from([0.3, 1.0, 2.0]), st.sampled_from([0.0, 1.3, 1e9]))
def test_heavy_pairs_are_those_whose_bottlenecks_outweigh_them(instance, ratio, walk_per_step):
    """Whether all rows are walked, none, or those for which it is faster."""
    rows, interest, weights, table = instance
    pool = all_pairs(interest, weights)
    entries = entries_by_topic(pool, interest.node_start)
    tree, _ = minimum_trees(entries, pool.weight[entries.edge])
    ends = entries.origin[tree]
    chains = chains_of_trees(interest, pool.low[ends], pool.high[ends], pool.weight[entries.edge[tree]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("broadloom.kernels.jit.MODE", "plain")
        patch.setattr(_candidate_edges, "WALK_PER_STEP", walk_per_step)
        found = heavy_pairs(interest, weights, chains, ratio, np.zeros(len(rows)))
    heights = {
        t: bottlenecks(
            naive.subscribers(rows, t),
            {e: Fraction(table[e[0]][e[1]]) for e in combinations(naive.subscribers(rows, t), 2)},
        )
        for t in naive.topics(rows)
    }
    for u, v in naive.pairs(rows):
        total = sum(heights[t][u, v] for t in set(rows[u]) & set(rows[v]))
        listed = [u, v] in found.edges.tolist()
        assert listed == (total > Fraction(ratio) * Fraction(table[u][v])) or float(total) == pytest.approx(
            ratio * table[u][v]
        )
    assert np.all(np.diff(codes_of(found.edges, len(rows))) > 0)
