"""Fast maintenance equals its slow twin, edge for edge and change for change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom.maintenance import dynamics, fresh_edges
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
    edges = fresh_edges(interest, weights or bl.Weights.uniform(interest.node_count), live._dynamics.rules)
    by = None if live._dynamics.rules.by_weight is False else Places(weights).weight
    twin = Twin(
        lists_of(interest), map(tuple, edges.tolist()), chance, method, rho, coverage, backups, weight=by
    )
    return live, twin


class Places:
    """The weights of a twin, by definition, with the places of the nodes that join."""

    def __init__(self, weights):
        self.given, self.at = weights, {}

    def weight(self, u, v):
        """The weight of a pair; of a dense one the later node tells it."""
        if self.given.kind == "dense":
            return self.at[max(u, v)][min(u, v)] if max(u, v) in self.at else self.given.table[u, v]
        here, there = (self.at.get(node, self._first(node)) for node in (u, v))
        if self.given.kind == "euclidean":
            total = 0.0
            for a, b in zip(here, there, strict=True):
                total += (a - b) * (a - b)
            return float(np.sqrt(total))
        if len(self.given.table):
            return self.given.table[here, there]
        return self.given.inner if here == there else self.given.outer

    def _first(self, node):
        """The place of a node that was there at the start."""
        rows = self.given.points if self.given.kind == "euclidean" else self.given.site
        return rows[node] if node < len(rows) else None

    def draw(self, node, others, rng):
        """A place for a node that joins, as `join` takes it."""
        if self.given.kind == "dense":
            self.at[node] = {other: float(rng.integers(1, 4)) for other in others}
        elif self.given.kind == "euclidean":
            self.at[node] = rng.random(self.given.points.shape[1]).tolist()
        else:
            self.at[node] = int(rng.integers(0, 3))
        return self.at[node]


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


def play(live, twin, steps, place=lambda _: None):
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

    def place(node):
        return None if twin.weight is None else twin.weight.__self__.draw(node, live.nodes.tolist(), rng)

    play(live, twin, data.draw(moves(4)), place)


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
    events = bl.workload.churn(interest, rounds=60, join=0.0, seed=4)
    for given_weights in (None, weights):
        outcomes = []
        for most in (10_000, 0):
            monkeypatch.setattr(dynamics, "TABLE_NODES", most)
            live = bl.maintain(interest, given_weights, method=method)
            outcomes.append([change.added.tolist() for change in live.apply(events)])
        assert outcomes[0] == outcomes[1]
        assert any(outcomes[0])
