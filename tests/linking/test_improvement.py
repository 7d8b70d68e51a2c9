"""Improvement and warm starts: never heavier, always connected, the same on every run."""

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
from broadloom.linking.warm_start import still_useful, warm_start

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
def test_no_further_exchange_is_possible(instance):
    """After the last round no lighter pair can replace an edge."""
    rows, interest, weights, matrix = instance
    edges = as_tuples(improve(bl.link(interest, weights, algorithm="grmaw")).edges)
    assert naive.reverse_delete(rows, edges, edges) == edges
    for e in edges:
        rest = [f for f in edges if f != e]
        lighter = [f for f in naive.pairs(rows) if matrix[f[0]][f[1]] < matrix[e[0]][e[1]] and f not in edges]
        assert not any(naive.is_topic_connected(rows, [*rest, f]) for f in lighter)


def test_one_link_can_replace_two():
    """Nodes 0 and 1 are connected by 2 in one topic and by 3 in another: one link replaces two."""
    interest = bl.Interest.from_lists([[0, 1], [0, 1], [0], [1]], topics=2)
    edges = [(0, 2), (1, 2), (0, 3), (1, 3)]
    plan = bl.Plan(interest, bl.Weights.uniform(4), bl.Overlay.from_edges(4, edges), "by hand")
    better = improve(plan)
    assert better.algorithm == "by hand+improve"
    assert len(better.edges) == 3
    assert better.notes["improvement"]["weight_before"] == 4


@pytest.mark.parametrize("name", STARTS)
def test_improvement_makes_every_start_lighter(name):
    """On a larger instance every start gets lighter, and removal alone gains less."""
    rng = np.random.default_rng(5)
    interest = bl.Interest.from_lists([rng.choice(30, 8, replace=False) for _ in range(150)], topics=30)
    weights = bl.Weights.euclidean(rng.random((150, 2)))
    plan = bl.link(interest, weights, algorithm=name)
    assert weight_of(improve(plan)) < weight_of(improve(plan, exchange=False)) <= weight_of(plan)


def test_a_maximum_degree_is_kept():
    """A plan made with a maximum degree keeps it."""
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


def test_a_disconnected_plan_and_negative_rounds_are_refused():
    interest = bl.Interest.from_lists([[0], [0]])
    plan = bl.Plan(interest, bl.Weights.uniform(2), bl.Overlay.from_edges(2, []), "by hand")
    with pytest.raises(bl.InputError, match="leaves a topic disconnected"):
        improve(plan)
    with pytest.raises(bl.InputError, match="rounds is -1"):
        improve(bl.link(interest), rounds=-1)


# Warm starts.


@settings(max_examples=200)
@given(strategies.instances(least_nodes=2), st.data())
def test_a_warm_start_adapts_to_changes(instance, data):
    """Some nodes leave, the others change topics: the result is connected, and changes are by node id."""
    rows, interest, weights, _ = instance
    plan = bl.link(interest, weights, algorithm="grmaw")
    staying = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))
    topics = max(interest.topic_count, 1)
    now = [rows[u] ^ data.draw(st.sets(st.integers(0, topics - 1), max_size=2)) for u in staying]
    changed = bl.Interest.from_lists(now, topics=topics, node_ids=[str(u) for u in staying])
    result = warm_start(changed, weights.subset(staying), plan)
    assert naive.is_topic_connected(now, as_tuples(result.edges))
    after = bl.Plan(
        changed, weights.subset(staying), bl.Overlay.from_edges(len(staying), result.edges), "warm"
    )
    change = link_change(plan, after)
    names = {u: str(u) for u in range(len(rows))}
    before = {frozenset((names[u], names[v])) for u, v in plan.edges.tolist()}
    links = {frozenset((str(staying[u]), str(staying[v]))) for u, v in result.edges.tolist()}
    assert set(map(frozenset, change.added)) == links - before
    assert set(map(frozenset, change.removed)) == before - links


@settings(max_examples=100)
@given(strategies.instances())
def test_a_plan_that_still_connects_every_topic_is_not_made_heavier(instance):
    _, interest, weights, _ = instance
    plan = bl.link(interest, weights, algorithm="low-oda")
    result = warm_start(interest, weights, plan)
    total = math.fsum(weights.of(result.edges[:, 0], result.edges[:, 1]))
    assert total <= weight_of(plan) * (1 + 1e-15)


def test_links_are_kept_by_node_id():
    """Node 'b' has left, and 'c' shares no topic with 'a' any more: their links are removed."""
    before = bl.Interest.from_lists([[0], [0], [0], [0]], node_ids=["a", "b", "c", "d"])
    overlay = bl.Overlay.from_edges(4, [(0, 1), (0, 2), (0, 3)])
    plan = bl.Plan(before, bl.Weights.uniform(4), overlay, "by hand")
    now = bl.Interest.from_lists([[0], [0], [1]], topics=2, node_ids=["d", "a", "c"])
    assert still_useful(now, plan).tolist() == [[0, 1]]
