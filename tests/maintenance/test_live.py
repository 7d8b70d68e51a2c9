"""Live overlays: every topic is connected after every change, and wrong changes are refused."""

import copy

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

import broadloom as bl
from broadloom import InputError
from broadloom.maintenance import dynamics

TOPICS = st.lists(st.integers(0, 7), unique=True, max_size=8)


class Churn(RuleBasedStateMachine):
    """Random changes to a live overlay; an independent check after each."""

    nodes = Bundle("nodes")

    @initialize(
        target=nodes,
        lists=st.lists(TOPICS, min_size=1, max_size=10),
        method=st.sampled_from(["shadow", "naive"]),
        backups=st.sampled_from(["primal-dual", "greedy"]),
    )
    def begin(self, lists, method, backups):
        """Start from any interest with any method."""
        interest = bl.Interest.from_lists(lists, topics=8)
        self.live = bl.maintain(interest, method=method, backups=backups, coverage=2)
        self.wants = {node: set(topics) for node, topics in enumerate(lists)}
        return 0

    @rule(target=nodes, topics=TOPICS)
    def join(self, topics):
        """A node joins, and its backups cover it."""
        change = self.live.join(topics)
        self.wants[change.node] = set(topics)
        self.backups_cover(change.node, topics)
        return change.node

    @rule(node=consumes(nodes))
    def leave(self, node):
        """A node leaves, and only its own links are removed."""
        if node in self.wants:
            before = {tuple(edge) for edge in self.live.edges.tolist()}
            change = self.live.leave(node)
            del self.wants[node]
            after = {tuple(edge) for edge in self.live.edges.tolist()}
            added, removed = (
                {tuple(edge) for edge in edges.tolist()} for edges in (change.added, change.removed)
            )
            assert after == (before - removed) | added
            assert removed == {edge for edge in before if node in edge}, "only edges of the node are removed"

    @rule(node=nodes, topics=TOPICS)
    def resubscribe(self, node, topics):
        """A node replaces its topics."""
        if node in self.wants:
            self.live.resubscribe(node, topics)
            self.wants[node] = set(topics)

    @rule(topics=st.lists(TOPICS, min_size=1, max_size=4))
    def several_at_once(self, topics):
        """Nodes join and the first of them leaves, in one call."""
        first = self.live._dynamics.next_id
        events = [(0, "join", first + i, own) for i, own in enumerate(topics)]
        self.live.apply([*events, (0, "leave", first, ())])
        self.wants |= {first + i: set(own) for i, own in enumerate(topics) if i}

    @rule()
    def rebaseline(self):
        """Rebuild the overlay."""
        self.live.rebaseline()

    @invariant()
    def everything_holds(self):
        """Topics, degrees and backups are correct after each change."""
        if not hasattr(self, "live"):
            return
        interest, edges = self.live.interest, self.live.edges
        assert bl.is_topic_connected(interest, edges)
        assert {node: set(self.live.topics_of(node).tolist()) for node in self.wants} == self.wants
        assert self.live.counts["fallbacks"] == 0
        degrees = np.bincount(edges.ravel(), minlength=1)
        assert self.live.max_degree == degrees.max(initial=0)
        assert self.live.edge_count == len(edges)
        for node in self.wants:
            backups = self.live.backups(node).tolist()
            assert all(node in self.live.primaries(other) for other in backups)
            assert node not in backups

    def backups_cover(self, node, own):
        """Assert that each topic is covered twice, or as often as possible."""
        backups = self.live.backups(node).tolist()
        for topic in own if self.live.method == "shadow" else ():
            others = sum(topic in wants for other, wants in self.wants.items() if other != node)
            assert sum(topic in self.wants[other] for other in backups) >= min(2, others)


Churn.TestCase.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
TestChurn = Churn.TestCase


@pytest.mark.parametrize("popularity", ["unif", "zipf", "expo"])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_topic_is_connected_in_a_thousand_rounds_of_churn(popularity, weighted):
    """After every single change, by a check that shares no code with maintenance."""
    interest = bl.workload.interest(
        nodes=60, topics=30, popularity=popularity, sizes=(3, 12), size_law="power", seed=5
    )
    weights = bl.workload.weights(nodes=60, kind="planar", seed=5) if weighted else None
    live, rng = bl.maintain(interest, weights), np.random.default_rng(99)
    for event in bl.workload.churn(interest, rounds=1000, change=0.2, seed=6):
        if event.kind == "join" and weighted:
            live.join(event.topics, at=rng.random(2))
        else:
            live.apply([event])
        assert bl.measures.is_topic_connected(live.interest, live.edges)
    assert live.counts["fallbacks"] == 0
    assert live.metrics()["topic_connected"]


def test_the_same_seed_gives_the_same_overlay_in_batches_and_single_changes():
    interest = bl.workload.interest(nodes=50, topics=20, sizes=(2, 6), seed=1)
    events = bl.workload.churn(interest, rounds=120, change=0.3, seed=2)
    one, other = bl.maintain(interest, seed=3), bl.maintain(interest, seed=3)
    changes = one.apply(events)
    singles = [other.apply([event])[0] for event in events]
    assert [change.added.tolist() for change in changes] == [change.added.tolist() for change in singles]
    assert one.edges.tolist() == other.edges.tolist()
    different = bl.maintain(interest, seed=4)
    different.apply(events)
    assert different.edges.tolist() != one.edges.tolist()


def test_the_result_does_not_depend_on_the_spare_capacity_of_arrays(monkeypatch):
    """Arrays that are full at the start grow, and the overlay is the same."""
    interest = bl.workload.interest(nodes=30, topics=15, sizes=(2, 5), seed=1)
    events = bl.workload.churn(interest, rounds=300, join=0.7, change=0.2, seed=2)
    spacious = bl.maintain(interest)
    spacious.apply(events)
    monkeypatch.setattr(dynamics, "SPARE", 1.0)
    monkeypatch.setattr(dynamics, "SPARE_MINIMUM", 1)
    tight = bl.maintain(interest)
    tight.apply(events)
    assert tight.edges.tolist() == spacious.edges.tolist()


def test_a_shadow_that_is_too_small_falls_back_to_all_nodes(monkeypatch):
    """The rules exclude this case; if it occurs, the topic is connected all the same, and it is counted."""
    live = bl.maintain(bl.Interest.from_lists([[0]] * 5), edges=[(0, 1), (0, 2), (0, 3), (0, 4)])
    detach = dynamics.detach

    def detach_with_small_shadow(w, rules, v, topics, leaves):
        detached = detach(w, rules, v, topics, leaves)
        return detached._replace(shadow=detached.shadow[:2], labels=detached.labels[:, :2].copy())

    monkeypatch.setattr(dynamics, "detach", detach_with_small_shadow)
    change = live.leave(0)
    assert change.fallbacks == 2
    assert live.counts["fallbacks"] == 2
    assert bl.is_topic_connected(live.interest, live.edges)


def test_repair_edges_do_not_count_the_links_of_the_node_that_left():
    live = bl.maintain(bl.Interest.from_lists([[0]] * 3), edges=[(0, 1), (0, 2)])
    change = live.leave(0)
    assert (len(change.added), len(change.removed), change.repair_edges) == (1, 2, 1)
    assert change.repair_ratio == 0.5


def test_the_naive_candidates_are_the_present_nodes():
    live = bl.maintain(bl.Interest.from_lists([[0]] * 4), method="naive")
    live.leave(1)
    assert live.leave(0).shadow.tolist() == [2, 3]
    assert live.join([0]).shadow.tolist() == [2, 3]


def test_links_that_no_topic_needs_any_more_are_removed():
    """Node 0 drops the topic that it shared with node 1, and their link is removed."""
    live = bl.maintain(bl.Interest.from_lists([[0, 1], [0], [1]]), edges=[(0, 1), (0, 2)])
    change = live.resubscribe(0, [1])
    assert change.removed.tolist() == [[0, 1]]
    assert live.edges.tolist() == [[0, 2]]


def test_a_join_can_name_new_topics():
    live = bl.maintain(bl.Interest.from_lists([["a"], ["a"]]))
    assert live.join(["a", "b"]).added.tolist() == [[0, 2]]
    assert live.join(["b"]).added.tolist() == [[2, 3]]
    assert live.topic_ids == ("a", "b")
    assert live.join([f"topic-{i}" for i in range(300)]).added.tolist() == []


def test_with_a_huge_coverage_all_nodes_with_common_topics_are_backups():
    """The coverage can exceed the number of nodes; memory and time are bounded by all pairs of nodes."""
    interest = bl.workload.interest(nodes=20, topics=5, sizes=(2, 4), seed=1)
    live, most = bl.maintain(interest, coverage=10**9), bl.maintain(interest, coverage=20)
    own = [set(live.topics_of(node).tolist()) for node in range(20)]
    assert live.backups(0).tolist() == [node for node in range(1, 20) if own[node] & own[0]]
    for overlay in (live, most):
        overlay.apply(bl.workload.churn(interest, rounds=50, change=0.3, seed=2))
    assert live.edges.tolist() == most.edges.tolist()


def test_the_name_of_a_node_that_left_can_be_used_again():
    live = bl.maintain(bl.Interest.from_lists([[0], [0]], node_ids=["x", "y"]))
    node = live.join([0], name="z").node
    assert (live.named("z"), live.name_of(node)) == (2, "z")
    live.leave(node)
    assert live.named("z") is None
    assert live.join([0], name="z").node == 3
    assert live.interest.node_ids == ("x", "y", "left-2", "z")
    with pytest.raises(InputError, match="node 'x' exists already"):
        live.join([0], name="x")


def fresh_edges_of(live):
    """The edges of a fresh build by low-oda."""
    plan = live.plan()
    return bl.link(plan.interest, algorithm="low-oda").edges


def test_quality_drifts_and_a_rebaseline_restores_it():
    interest = bl.workload.interest(nodes=150, topics=40, sizes=(3, 12), seed=1)
    live = bl.maintain(interest)
    assert not live.rebuild_due(max_degree=0, mean_degree=0)
    live.apply(bl.workload.churn(interest, rounds=400, seed=2))
    assert live.rebuild_due(max_degree=0, mean_degree=0)
    assert not live.rebuild_due(max_degree=100, mean_degree=100)
    before = {tuple(edge) for edge in live.edges.tolist()}
    change = live.rebaseline()
    after = {tuple(edge) for edge in live.edges.tolist()}
    assert after - before == {tuple(edge) for edge in change.added.tolist()}
    assert before - after == {tuple(edge) for edge in change.removed.tolist()}
    drift = live.drift()
    assert drift.max_degree <= 1.15 * drift.fresh_max_degree
    assert drift.mean_degree <= 1.02 * drift.fresh_mean_degree
    fresh = {tuple(edge) for edge in live.nodes[fresh_edges_of(live)].tolist()}
    assert len(before ^ after) < len(before ^ fresh), "fewer changed links than by a fresh build"
    assert live.counts["rebaseline"] == 1
    live.leave(int(live.nodes[0]))
    assert bl.is_topic_connected(live.interest, live.edges)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda live: live.leave(9), "node 9 does not exist; ids go up to 2"),
        (lambda live: live.leave(-1), "give a whole number from 0"),
        (lambda live: live.leave("1"), "give a whole number from 0"),
        (lambda live: (live.leave(0), live.leave(0)), "node 0 does not exist; it left"),
        (lambda live: live.join([5]), "topic 5 does not exist; give an index from 0 to 1"),
        (lambda live: live.join([0, 0]), "topic 0 is given twice"),
        (lambda live: live.join("ab"), "give a list of topics"),
        (lambda live: live.join([True]), "topic True does not exist"),
        (lambda live: live.join([0], at=[1.0]), "links have no weights"),
        (lambda live: live.resubscribe(0, [2.5]), r"topic 2\.5 does not exist"),
        (lambda live: live.backups(7), "node 7 does not exist"),
        (lambda live: live.apply([(0, "fly", 0, [])]), "event 0 is a 'fly'"),
        (lambda live: live.apply([(0, "join", 7, [])]), "expects node id 7, but the next id is 3"),
        (lambda live: live.apply([3]), r"give \(seq, kind, node, topics\)"),
        (lambda live: live.rebuild_due(max_degree=-1), "give a number from 0"),
    ],
)
def test_wrong_changes_are_refused(change, message):
    with pytest.raises(InputError, match=message):
        change(bl.maintain(bl.Interest.from_lists([[0], [0, 1], [1]])))


def test_join_events_are_refused_if_links_have_weights_and_nothing_changes():
    live = bl.maintain(bl.Interest.from_lists([[0], [0]]), bl.Weights.euclidean([[0.0], [1.0]]))
    with pytest.raises(InputError, match=r"use join\(topics, at=\.\.\.\)"):
        live.apply([(0, "leave", 0, []), (1, "join", None, [0])])
    assert live.nodes.tolist() == [0, 1]


def test_a_batch_with_an_invalid_event_changes_nothing():
    live = bl.maintain(bl.Interest.from_lists([[0], [0, 1], [1]]))
    before = live.edges.tolist()
    with pytest.raises(InputError, match="node 3 does not exist"):
        live.apply([(0, "join", None, [0]), (1, "leave", 3, []), (2, "leave", 3, [])])
    assert live.edges.tolist() == before
    assert len(live.nodes) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "shadows"}, r"did you mean 'shadow'\?"),
        ({"algorithm": "shadows"}, r"did you mean 'shadow'\?"),
        ({"algorithm": 3}, "algorithm is 3; give the name of an algorithm"),
        ({"algorithm": "shadow", "method": "naive"}, "algorithm is 'shadow' but method is 'naive'"),
        ({"rho": 0.5}, "rho is 0.5; give a number from 1"),
        ({"coverage": 0}, "coverage is 0"),
        ({"backups": "best"}, "give one of primal-dual, greedy, primal-dual-printed, greedy-unweighted"),
        ({"edges": [(0, 1)]}, "the edges leave topic '1' disconnected"),
        ({"weights": bl.Weights.uniform(2)}, "3 nodes but weights for 2"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        bl.maintain(bl.Interest.from_lists([[0], [0, 1], [1]]), **options)


@pytest.mark.parametrize(
    "options", [{"algorithm": "naive"}, {"method": "naive"}, {"algorithm": "naive", "method": "naive"}]
)
def test_method_is_another_name_of_algorithm(options):
    """Each spelling, and the third position, starts the same algorithm."""
    interest = bl.Interest.from_lists([[0], [0, 1], [1]])
    live = bl.maintain(interest, **options)
    assert (live.algorithm, live.method) == ("naive", "naive")
    assert bl.maintain(interest, None, "naive").algorithm == "naive"
    assert bl.maintain(interest).algorithm == "shadow"


@pytest.mark.parametrize(
    ("weights", "at", "message"),
    [
        (bl.Weights.euclidean([[0.0], [1.0]]), None, "give its point: 1 finite numbers"),
        (bl.Weights.euclidean([[0.0], [1.0]]), [np.nan], "give its point"),
        (bl.Weights.euclidean([[0.0], [1.0]]), [1.0], "at the point of another node"),
        (bl.Weights.sites([0, 1]), -1, "give a whole number"),
        (bl.Weights.sites([0, 1], between=[[0, 2], [2, 0]]), 2, "sites are 0 to 1"),
        (bl.Weights.dense([[0, 5], [5, 0]]), {0: 1.0}, "no weight to node 1"),
        (bl.Weights.dense([[0, 5], [5, 0]]), {0: 1.0, 1: 0.0}, "the weight to node 1 is 0.0"),
    ],
)
def test_a_wrong_location_is_refused_and_changes_nothing(weights, at, message):
    live = bl.maintain(bl.Interest.from_lists([[0], [0]]), weights)
    with pytest.raises(InputError, match=message):
        live.join([0], at=at)
    assert live.nodes.tolist() == [0, 1]
    assert live.leave(0).kind == "leave"


def test_with_weights_a_new_node_is_linked_to_the_nearest():
    live = bl.maintain(bl.Interest.from_lists([[0], [0]]), bl.Weights.euclidean([[0.0], [10.0]]))
    assert live.join([0], at=[9.0]).added.tolist() == [[1, 2]]
    assert live.join([0], at=[0.5]).added.tolist() == [[0, 3]]
    assert live.plan().total_weight == pytest.approx(11.5)


@pytest.mark.parametrize("topics", [["a", "b"], ["a/#", "a/b"]])
def test_a_copy_changes_by_itself(topics):
    """Its names, groups of filters and links are its own."""
    live = bl.maintain(bl.Interest.from_lists([topics, topics[:1], topics[1:]]))
    one, other = copy.deepcopy(live), copy.copy(live)
    one.join(["new/+", topics[0]], "lima")
    one.leave(0)
    other.join(["new/x", topics[1]], "oslo")
    assert live.nodes.tolist() == [0, 1, 2]
    assert list(live.interest.topic_ids) == topics
    for overlay in (live, one, other):
        assert bl.is_topic_connected(overlay.interest, overlay.edges)
    assert one.interest != other.interest
