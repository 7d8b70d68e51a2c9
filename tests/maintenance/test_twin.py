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
    """A live overlay and its twin, which start from the same edges."""
    live = bl.maintain(
        interest, weights, method=method, rho=rho, coverage=coverage, seed=seed, backups=backups
    )
    random_state = int(np.random.default_rng(seed).integers(2**64, dtype=np.uint64))
    edges = fresh_edges(interest, weights or bl.Weights.uniform(interest.node_count), live._dynamics.rules)
    weight = None if live._dynamics.rules.by_weight is False else TwinWeights(weights).weight
    twin = Twin(
        lists_of(interest),
        map(tuple, edges.tolist()),
        random_state,
        method,
        rho,
        coverage,
        backups,
        weight=weight,
    )
    return live, twin


class TwinWeights:
    """The weights of a twin, by definition, with the locations of the nodes that join."""

    def __init__(self, weights):
        self.weights, self.at = weights, {}

    def weight(self, u, v):
        """The weight of a pair; for dense weights, the node that joined later has it."""
        if self.weights.kind == "dense":
            return self.at[max(u, v)][min(u, v)] if max(u, v) in self.at else self.weights.table[u, v]
        at_u, at_v = (self.at.get(node, self._initial_location(node)) for node in (u, v))
        if self.weights.kind == "euclidean":
            total = 0.0
            for a, b in zip(at_u, at_v, strict=True):
                total += (a - b) * (a - b)
            return float(np.sqrt(total))
        if len(self.weights.table):
            return self.weights.table[at_u, at_v]
        return self.weights.inner if at_u == at_v else self.weights.outer

    def _initial_location(self, node):
        """The location of a node of the initial overlay; None for a later node."""
        rows = self.weights.points if self.weights.kind == "euclidean" else self.weights.site
        return rows[node] if node < len(rows) else None

    def draw(self, node, others, rng):
        """A random location for a node that joins, in the form that `join` takes."""
        if self.weights.kind == "dense":
            self.at[node] = {other: float(rng.integers(1, 4)) for other in others}
        elif self.weights.kind == "euclidean":
            self.at[node] = rng.random(self.weights.points.shape[1]).tolist()
        else:
            self.at[node] = int(rng.integers(0, 3))
        return self.at[node]


def assert_agree(live, twin):
    """Assert that edges, topics, backups and primaries are equal, and that every topic is connected."""
    assert [tuple(edge) for edge in live.edges.tolist()] == sorted(twin.edges)
    assert live.max_degree == twin.max_degree()
    for node in twin.topics:
        assert live.topics_of(node).tolist() == sorted(twin.topics[node])
        assert live.backups(node).tolist() == sorted(twin.backups[node])
        assert live.primaries(node).tolist() == (twin.primaries(node) if live.method == "shadow" else [])
    assert bl.is_topic_connected(live.interest, live.edges)


def assert_same_edges(change, added_and_removed):
    """Assert that a change added and removed the same edges as the twin."""
    added, removed = added_and_removed
    assert [tuple(edge) for edge in change.added.tolist()] == added
    assert sorted(map(tuple, change.removed.tolist())) == sorted(removed)


@st.composite
def changes(draw, topics, longest=6):
    """Random changes: (join, leave or resubscribe; a number that selects a present node; its topics)."""
    own = st.lists(st.integers(0, topics - 1), unique=True, max_size=topics)
    return draw(
        st.lists(st.tuples(st.sampled_from("jlr"), st.integers(0, 99), own), min_size=1, max_size=longest)
    )


def play(live, twin, steps, location=lambda _: None):
    """Apply the same changes to both, and compare them after each change."""
    for kind, number, topics in steps:
        present = sorted(twin.topics)
        node = present[number % len(present)] if present else None
        if kind == "j" or node is None:
            at = location(twin.next)
            assert_same_edges(live.join(topics, at=at), twin.join(topics))
        elif kind == "l":
            assert_same_edges(live.leave(node), twin.leave(node))
        else:
            assert_same_edges(live.resubscribe(node, topics), twin.resubscribe(node, topics))
        assert_agree(live, twin)


@pytest.mark.parametrize(("method", "backups"), METHODS)
@settings(max_examples=40)
@given(data=st.data())
def test_maintenance_equals_its_twin(method, backups, data):
    interest = bl.Interest.from_lists(
        data.draw(st.lists(st.lists(st.integers(0, 4), unique=True), max_size=7)), topics=5
    )
    rho, coverage = data.draw(st.sampled_from([1.0, 3.0, np.inf])), data.draw(st.integers(1, 3))
    live, twin = both(interest, None, method, backups, rho, coverage, seed=data.draw(st.integers(0, 9)))
    assert_agree(live, twin)
    play(live, twin, data.draw(changes(5)))


@pytest.mark.parametrize(("method", "backups"), METHODS)
@settings(max_examples=25)
@given(data=st.data())
def test_weighted_maintenance_equals_its_twin(method, backups, data):
    """With weights of any kind, the edge of least weight per contribution is added."""
    interest, weights = data.draw(instances(max_nodes=6, max_topics=4))
    live, twin = both(interest, weights, method, backups, seed=data.draw(st.integers(0, 9)))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))

    def location(node):
        return None if twin.weight is None else twin.weight.__self__.draw(node, live.nodes.tolist(), rng)

    play(live, twin, data.draw(changes(4)), location)


@pytest.mark.parametrize(("method", "backups"), METHODS)
@pytest.mark.parametrize("shape", ["empty", "one topic", "no topics", "all the same", "star", "chain"])
def test_awkward_shapes_equal_the_twin_until_all_nodes_have_left(shape, method, backups):
    """All nodes leave and no edge remains; then a node can join again."""
    interest = bl.Interest.from_lists([row[:3] for row in SHAPES[shape]])
    live, twin = both(interest, None, method, backups)
    for node in range(interest.node_count):
        assert_same_edges(live.leave(node), twin.leave(node))
        assert_agree(live, twin)
    assert live.edge_count == 0
    change = live.join(list(range(interest.topic_count)))
    assert change.node == interest.node_count
    assert not len(change.added)


@pytest.mark.parametrize("method", ["shadow", "naive"])
def test_lazy_search_among_many_nodes_finds_the_same_edges(method, monkeypatch):
    """Above a number of nodes there is no table of pairs; the edges are the same."""
    interest = bl.workload.interest(nodes=80, topics=20, sizes=(3, 9), seed=3)
    weights = bl.workload.weights(nodes=80, kind="planar", seed=3)
    events = bl.workload.churn(interest, rounds=60, join=0.0, seed=4)
    for each_weights in (None, weights):
        outcomes = []
        for most in (10_000, 0):
            monkeypatch.setattr(dynamics, "TABLE_NODES", most)
            live = bl.maintain(interest, each_weights, method=method)
            outcomes.append([change.added.tolist() for change in live.apply(events)])
        assert outcomes[0] == outcomes[1]
        assert any(outcomes[0])


@given(
    instances(),
    st.sampled_from(["primal-dual-printed", "greedy-unweighted"]),
    st.lists(st.integers(0, 7), min_size=1, unique=True),
)
@settings(max_examples=20, deadline=None)
def test_backups_by_rules_for_comparison_equal_the_twins(instance, rule, topics):
    """Alg. 12 with `weight(u) > 0`, Alg. 11 with equal weights; a join connects topics that they miss."""
    interest, _ = instance
    live, twin = both(interest, None, "shadow", rule)
    assert {v: set(live.backups(v).tolist()) for v in live.nodes.tolist()} == twin.backups
    live.join([topic for topic in topics if topic < interest.topic_count])
    assert bl.is_topic_connected(live.interest, live.edges)
