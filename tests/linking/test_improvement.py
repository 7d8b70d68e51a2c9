"""Improvement and warm starts: never worse, always connected, the same each time."""

import math

import hypothesis.strategies as st
import link_strategies as strategies
import numpy as np
import pytest
from hypothesis import given, settings

import broadloom as bl
import instances
import naive
from broadloom.linking import improve, link_change
from broadloom.linking.link_plan import still_useful, warm_start

STARTS = ["trmaw", "gm", "grmaw", "low-oda", "minmax-oda"]


def as_tuples(edges):
    return list(map(tuple, edges.tolist()))


def weight_of(plan):
    return math.fsum(plan.edge_weights)


@settings(max_examples=300)
@given(strategies.instances(), st.sampled_from(STARTS), st.booleans())
def test_never_worse_and_still_connected(instance, name, exchange):
    rows, interest, weights, _ = instance
    plan = bl.link(interest, weights, algorithm=name)
    better = improve(plan, exchange=exchange)
    assert weight_of(better) <= weight_of(plan) * (1 + 1e-15)
    assert naive.is_topic_connected(rows, as_tuples(better.edges))
    assert as_tuples(improve(plan, exchange=exchange).edges) == as_tuples(better.edges)
    assert len(improve(better).edges) <= len(better.edges) or not exchange


@settings(max_examples=100)
@given(strategies.instances(nodes=7))
def test_no_single_exchange_is_left(instance):
    """After the last round no pair can take the place of one edge or more and weigh less."""
    rows, interest, weights, matrix = instance
    edges = as_tuples(improve(bl.link(interest, weights, algorithm="grmaw")).edges)
    assert naive.reverse_delete(rows, edges, edges) == edges
    for e in edges:
        rest = [f for f in edges if f != e]
        lighter = [f for f in naive.pairs(rows) if matrix[f[0]][f[1]] < matrix[e[0]][e[1]] and f not in edges]
        assert not any(naive.is_topic_connected(rows, [*rest, f]) for f in lighter)


def test_one_pair_for_two_edges():
    """Nodes 0 and 1 reach each other over 2 in one topic and over 3 in another: one link does for two."""
    interest = bl.Interest.from_lists([[0, 1], [0, 1], [0], [1]], topics=2)
    edges = [(0, 2), (1, 2), (0, 3), (1, 3)]
    plan = bl.Plan(interest, bl.Weights.uniform(4), bl.Overlay.from_edges(4, edges), "by hand")
    better = improve(plan)
    assert better.algorithm == "by hand+improve"
    assert len(better.edges) == 3
    assert better.notes["improvement"]["weight_before"] == 4


@pytest.mark.parametrize("name", STARTS)
def test_it_pays(name):
    """On a clustered instance of some size every start gets lighter, and dropping alone gains less."""
    rng = np.random.default_rng(5)
    interest = bl.Interest.from_lists([rng.choice(30, 8, replace=False) for _ in range(150)], topics=30)
    weights = bl.Weights.euclidean(rng.random((150, 2)))
    plan = bl.link(interest, weights, algorithm=name)
    assert weight_of(improve(plan)) < weight_of(improve(plan, exchange=False)) <= weight_of(plan)


def test_a_maximum_degree_is_kept():
    """What was built below a maximum degree stays below it."""
    rng = np.random.default_rng(5)
    interest = bl.Interest.from_lists([rng.choice(30, 8, replace=False) for _ in range(150)], topics=30)
    weights = bl.Weights.euclidean(rng.random((150, 2)))
    plan = bl.link(interest, weights, algorithm="grmaw", max_degree=8)
    better = improve(plan)
    assert better.total_weight < plan.total_weight
    assert (
        better.overlay.degrees().max()
        <= 8
        < bl.link(interest, weights, algorithm="grmaw").overlay.degrees().max()
    )
    again = bl.link(
        interest,
        weights,
        algorithm="grmaw",
        max_degree=8,
        previous=bl.link(interest, weights, algorithm="trmaw"),
    )
    assert again.overlay.degrees().max() <= 8


def test_a_time_limit_is_recorded():
    plan = bl.link(bl.Interest.from_lists([[0], [0]]), algorithm="gm")
    assert improve(plan, seconds=0.0).notes["improvement"]["seconds"] == 0.0


def test_the_star_of_the_lemma_is_found():
    """Paper 1, Lemma 10: pdmaw takes the clique and the star, improvement leaves the star."""
    interests, matrix = instances.clique_or_star(5)
    interest, weights = bl.Interest.from_lists(interests), bl.Weights.dense(matrix)
    plan = improve(bl.link(interest, weights, algorithm="pdmaw"))
    assert sorted(as_tuples(plan.edges)) == [(0, v) for v in range(1, 6)]


def test_what_cannot_be_improved_is_refused():
    interest = bl.Interest.from_lists([[0], [0]])
    plan = bl.Plan(interest, bl.Weights.uniform(2), bl.Overlay.from_edges(2, []), "by hand")
    with pytest.raises(bl.InputError, match="leaves a topic disconnected"):
        improve(plan)
    with pytest.raises(bl.InputError, match="rounds is -1"):
        improve(bl.link(interest), rounds=-1)


# Warm starts.


@settings(max_examples=200)
@given(strategies.instances(least_nodes=2), st.data())
def test_a_warm_start_adapts_to_what_changed(instance, data):
    """Some nodes leave, the others change topics at random: connected, and links change by name."""
    rows, interest, weights, _ = instance
    plan = bl.link(interest, weights, algorithm="grmaw")
    left = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    topics = max(interest.topic_count, 1)
    now = [rows[u] ^ data.draw(st.sets(st.integers(0, topics - 1), max_size=2)) for u in left]
    changed = bl.Interest.from_lists(now, topics=topics, node_ids=[str(u) for u in left])
    built = warm_start(changed, weights.subset(left), plan)
    assert naive.is_topic_connected(now, as_tuples(built.edges))
    after = bl.Plan(changed, weights.subset(left), bl.Overlay.from_edges(len(left), built.edges), "warm")
    change = link_change(plan, after)
    names = {u: str(u) for u in range(len(rows))}
    before = {frozenset((names[u], names[v])) for u, v in plan.edges.tolist()}
    links = {frozenset((str(left[u]), str(left[v]))) for u, v in built.edges.tolist()}
    assert set(map(frozenset, change.added)) == links - before
    assert set(map(frozenset, change.removed)) == before - links


@settings(max_examples=100)
@given(strategies.instances())
def test_a_plan_that_still_holds_is_not_made_heavier(instance):
    _, interest, weights, _ = instance
    plan = bl.link(interest, weights, algorithm="low-oda")
    built = warm_start(interest, weights, plan)
    total = math.fsum(weights.of(built.edges[:, 0], built.edges[:, 1]))
    assert total <= weight_of(plan) * (1 + 1e-15)


def test_links_are_kept_by_name():
    """Node 'b' has gone, 'c' has nothing in common with 'a' any more: their links go."""
    before = bl.Interest.from_lists([[0], [0], [0], [0]], node_ids=["a", "b", "c", "d"])
    overlay = bl.Overlay.from_edges(4, [(0, 1), (0, 2), (0, 3)])
    plan = bl.Plan(before, bl.Weights.uniform(4), overlay, "by hand")
    now = bl.Interest.from_lists([[0], [0], [1]], topics=2, node_ids=["d", "a", "c"])
    assert still_useful(now, plan).tolist() == [[0, 1]]
