"""Fast maintenance equals its slow twin, edge for edge and change for change, and every topic stays connected."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom.maintenance import _engine
from broadloom.maintenance.fresh import fresh_edges
from naive_maintain import Twin
from shapes import SHAPES
from strategies import instances, lists_of

METHODS = [("shadow", "primal-dual"), ("shadow", "greedy"), ("naive", "primal-dual")]


def both(interest, weights, method, backups, rho=3.0, coverage=2, seed=0):
    """A live overlay and its twin, started from the same edges."""
    live = bl.maintain(
        interest, weights, method=method, rho=rho, coverage=coverage, seed=seed, backups=backups
    )
    chance = int(np.random.default_rng(seed).integers(2**64, dtype=np.uint64))
    edges = fresh_edges(interest, weights or bl.Weights.uniform(interest.node_count), live._engine.rules)
    by = None if live._engine.rules.by_weight is False else Places(weights).weight
    twin = Twin(
        lists_of(interest), map(tuple, edges.tolist()), chance, method, rho, coverage, backups, weight=by
    )
    return live, twin


class Places:
    """The weights of a twin, which nodes that join are added to."""

    def __init__(self, weights):
        self.kind, self.matrix = weights.kind, {}
        n = weights.node_count
        for u in range(n):
            for v in range(n):
                self.matrix[u, v] = float(weights.of([u], [v])[0]) if u != v else 0.0

    def weight(self, u, v):
        return self.matrix[u, v]


def agree(live, twin):
    assert [tuple(edge) for edge in live.edges.tolist()] == sorted(twin.edges)
    assert live.max_degree == twin.max_degree()
    for node in twin.topics:
        assert live.topics_of(node).tolist() == sorted(twin.topics[node])
        assert live.backups(node).tolist() == sorted(twin.backups[node])
        assert live.primaries(node).tolist() == (twin.primaries(node) if live.method == "shadow" else [])
    assert bl.is_topic_connected(live.interest, live.edges)


def same(change, added_and_removed):
    added, removed = added_and_removed
    assert [tuple(edge) for edge in change.added.tolist()] == added
    assert sorted(map(tuple, change.removed.tolist())) == sorted(removed)


@st.composite
def moves(draw, topics, longest=6):
    """Changes as numbers: what to do, to whom (modulo those that are there), with which topics."""
    own = st.lists(st.integers(0, topics - 1), unique=True, max_size=topics)
    return draw(
        st.lists(st.tuples(st.sampled_from("jlr"), st.integers(0, 99), own), min_size=1, max_size=longest)
    )


def play(live, twin, steps, place=lambda node: None):
    """Do the same to both, and compare after every single change."""
    for what, who, topics in steps:
        there = sorted(twin.topics)
        node = there[who % len(there)] if there else None
        if what == "j" or node is None:
            at = place(twin.next)
            same(live.join(topics, at=at), twin.join(topics))
        elif what == "l":
            same(live.leave(node), twin.leave(node))
        else:
            same(live.resubscribe(node, topics), twin.resubscribe(node, topics))
        agree(live, twin)


@pytest.mark.parametrize(("method", "backups"), METHODS)
@settings(max_examples=40)
@given(data=st.data())
def test_maintenance_equals_its_twin(method, backups, data):
    interest = bl.Interest.from_lists(
        data.draw(st.lists(st.lists(st.integers(0, 4), unique=True), max_size=7)), topics=5
    )
    rho, coverage = data.draw(st.sampled_from([1.0, 3.0, np.inf])), data.draw(st.integers(1, 3))
    live, twin = both(interest, None, method, backups, rho, coverage, seed=data.draw(st.integers(0, 9)))
    agree(live, twin)
    play(live, twin, data.draw(moves(5)))


@pytest.mark.parametrize(("method", "backups"), METHODS)
@settings(max_examples=25)
@given(data=st.data())
def test_weighted_maintenance_equals_its_twin(method, backups, data):
    """With weights the least weight a contribution decides, whatever kind the weights are."""
    interest, weights = data.draw(instances(max_nodes=6, max_topics=4))
    live, twin = both(interest, weights, method, backups, seed=data.draw(st.integers(0, 9)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    play(live, twin, data.draw(moves(4)), lambda node: new_place(live, twin, weights, node, rng))


def new_place(live, twin, weights, node, rng):
    """Where a node that joins is: told to the twin, and returned as `join` takes it."""
    if twin.weight is None:
        return None
    matrix, others = twin.weight.__self__.matrix, live.nodes.tolist()
    if weights.kind == "dense":
        at = {other: float(rng.integers(1, 4)) for other in others}
    elif weights.kind == "euclidean":
        at = rng.random(weights.points.shape[1]).tolist()
    else:
        at = int(rng.integers(0, 3))
    trial = bl.maintain(bl.Interest.from_lists([[]] * weights.node_count, topics=1), weights, method="naive")
    for other in others:
        matrix[other, node] = matrix[node, other] = _price(live, twin, weights, other, at)
    del trial
    twin.weight.__self__.__dict__.setdefault("at", {})[node] = at
    return at


def _price(live, twin, weights, other, at):
    """The weight between a node and a new place, by the definition of the kind."""
    if weights.kind == "dense":
        return at[other]
    places = twin.weight.__self__.__dict__.setdefault("at", {})
    if weights.kind == "euclidean":
        there = places[other] if other in places else weights.points[other]
        total = 0.0
        for a, b in zip(there, at, strict=True):
            total += (a - b) * (a - b)
        return float(np.sqrt(total))
    there = places[other] if other in places else int(weights.site[other])
    if len(weights.table):
        return float(weights.table[there, at])
    return weights.inner if there == at else weights.outer


@pytest.mark.parametrize(("method", "backups"), METHODS)
@pytest.mark.parametrize("shape", ["empty", "one topic", "no topics", "all the same", "star", "chain"])
def test_awkward_shapes_until_everybody_has_left(shape, method, backups):
    """Every node leaves, and one joins again: nothing is left over, and nothing breaks."""
    interest = bl.Interest.from_lists([row[:3] for row in SHAPES[shape]])
    live, twin = both(interest, None, method, backups)
    for node in range(interest.node_count):
        same(live.leave(node), twin.leave(node))
        agree(live, twin)
    assert live.edge_count == 0
    change = live.join(list(range(interest.topic_count)))
    assert change.node == interest.node_count
    assert not len(change.added)


@pytest.mark.parametrize("method", ["shadow", "naive"])
def test_lazy_search_among_many_nodes_finds_the_same_edges(method, monkeypatch):
    """Above a number of nodes no table of pairs is made; the edges are the same."""
    interest = bl.workload.interest(nodes=80, topics=20, sizes=(3, 9), seed=3)
    weights = bl.workload.weights(nodes=80, kind="planar", seed=3)
    events = [event for event in bl.workload.churn(interest, rounds=60, join=0.0, seed=4)]
    for given_weights in (None, weights):
        outcomes = []
        for most in (10_000, 0):
            monkeypatch.setattr(_engine, "TABLE_NODES", most)
            live = bl.maintain(interest, given_weights, method=method)
            outcomes.append([change.added.tolist() for change in live.apply(events)])
        assert outcomes[0] == outcomes[1]
        assert any(outcomes[0])
