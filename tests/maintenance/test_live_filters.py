"""Topic filters in a live overlay: the brokers of all filters that match a topic are connected."""

import json
import tempfile
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import broadloom as bl
from broadloom.maintenance import EventFeed, event_of, read_state, write_state
from broadloom.storage.tables import write_table

LEVELS = ("a", "b", "c")
TOPICS = ["/".join(levels) for depth in (1, 2, 3) for levels in product(LEVELS, repeat=depth)]
FILTERS = ["#", "+", "a/#", "b/#", "a/+", "+/b", "a/b", "b/c", "a", "c", "c/a/b", "+/+/c", "b/+/a", "c/#"]
SOME = st.lists(st.sampled_from(FILTERS), unique=True, max_size=3)


def matches(pattern, topic):
    """Whether a filter matches a topic, level by level (MQTT 5, section 4.7), as one would by hand."""
    if pattern == "#":
        return True
    wanted, given = pattern.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        if len(given) < len(wanted):
            return False
        given = given[: len(wanted)]
    return len(wanted) == len(given) and all(
        one in ("+", other) for one, other in zip(wanted, given, strict=True)
    )


def naive_groups(filters):
    """Filters that match a common topic, and so on: the sets that this closes."""
    sets = [{one} for one in filters]
    for topic in TOPICS:
        met = [one for one in sets if any(matches(pattern, topic) for pattern in one)]
        sets = [one for one in sets if one not in met] + ([set.union(*met)] if met else [])
    return sets


def reached(start, nodes, edges):
    """The nodes that links between `nodes` reach from a start."""
    found, todo = {start}, [start]
    while todo:
        u = todo.pop()
        near = {b if a == u else a for a, b in edges if u in (a, b)} & nodes
        todo += near - found
        found |= near
    return found


def assert_connected(wants, edges):
    """Assert that the subscribers of each group are connected among themselves."""
    links = [tuple(edge) for edge in edges.tolist()]
    members = []
    for group in naive_groups({one for own in wants.values() for one in own}):
        nodes = {node for node, own in wants.items() if own & group}
        members.append(nodes)
        assert reached(min(nodes), nodes, links) == nodes, (group, nodes, links)
    for topic in TOPICS:
        receivers = {node for node, own in wants.items() if any(matches(one, topic) for one in own)}
        if receivers:  # they are in one group
            assert any(receivers <= nodes for nodes in members)


class FilterChurn(RuleBasedStateMachine):
    """Random changes of two equal overlays, of which one is saved and loaded now and then."""

    @initialize(
        lists=st.lists(SOME, min_size=1, max_size=6),
        method=st.sampled_from(["shadow", "naive"]),
        weighted=st.booleans(),
        backups=st.sampled_from(["primal-dual", "greedy"]),
    )
    def begin(self, lists, method, weighted, backups):
        """Start from any filters; points on a line have distances that differ."""
        names = [f"n{node}" for node in range(len(lists))]
        points = [[2.0**node] for node in range(len(lists))]
        weights = bl.Weights.euclidean(points) if weighted else None
        interest = bl.Interest.from_lists(lists, node_ids=names)
        self.live, self.twin = (
            bl.maintain(interest, weights, algorithm=method, coverage=2, backups=backups) for _ in range(2)
        )
        self.weighted = weighted
        self.wants = {node: set(own) for node, own in enumerate(lists)}

    def both(self, change):
        """Run a change on both, and assert that it says what it did."""
        before = {tuple(edge) for edge in self.live.edges.tolist()}
        one, other = change(self.live), change(self.twin)
        for name in ("added", "removed", "shadow"):
            assert getattr(one, name).tolist() == getattr(other, name).tolist()
        added, removed = ({tuple(edge) for edge in links.tolist()} for links in (one.added, one.removed))
        assert not added & removed
        assert removed <= before
        assert not added & before
        assert (before - removed) | added == {tuple(edge) for edge in self.live.edges.tolist()}
        assert one.edges_before == len(before)
        return one

    @rule(own=SOME)
    def join(self, own):
        """A broker joins with any filters."""
        at = [2.0 ** (0.5 + self.live._dynamics.next_id)] if self.weighted else None
        self.wants[self.both(lambda live: live.join(own, at=at)).node] = set(own)

    @rule(data=st.data())
    def leave(self, data):
        """A broker leaves."""
        if self.wants:
            node = data.draw(st.sampled_from(sorted(self.wants)))
            self.both(lambda live: live.leave(node))
            del self.wants[node]

    @rule(data=st.data(), own=SOME, kind=st.sampled_from(["subscribe", "unsubscribe", "resubscribe"]))
    def change(self, data, own, kind):
        """A broker changes its filters."""
        if self.wants:
            node = data.draw(st.sampled_from(sorted(self.wants)))
            self.both(lambda live: live.apply([(0, kind, node, own)])[0])
            before = self.wants[node]
            after = {
                "subscribe": before | set(own),
                "unsubscribe": before - set(own),
                "resubscribe": set(own),
            }
            self.wants[node] = after[kind]

    @rule()
    def rebaseline(self):
        """Rebuild both."""
        self.both(lambda live: live.rebaseline())

    @rule()
    def restart(self):
        """Save one of them, and load it again."""
        with tempfile.TemporaryDirectory() as path:
            write_state(Path(path), self.twin)
            self.twin = read_state(Path(path))
            assert bl.Plan.load(path).interest == self.twin.plan().interest

    @invariant()
    def everything_holds(self):
        """Filters are those that were asked for, their groups are connected, and both overlays are equal."""
        if not hasattr(self, "live"):
            return
        interest = self.live.interest
        for node, own in self.wants.items():
            assert {interest.topic_ids[topic] for topic in interest.topics_of(node)} == own
            assert {self.live.topic_ids[topic] for topic in self.live.topics_of(node)} == own
        assert_connected(self.wants, self.live.edges)
        assert bl.is_topic_connected(interest, self.live.edges)
        assert self.live.plan() == self.twin.plan()
        assert self.live.counts["fallbacks"] == 0
        for node in self.wants:
            assert self.live.backups(node).tolist() == self.twin.backups(node).tolist()


FilterChurn.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TestFilterChurn = FilterChurn.TestCase


def test_a_filter_that_comes_joins_groups_and_splits_them_when_it_goes():
    """The example of a monitor that subscribes to everything for a while."""
    interest = bl.Interest.from_lists([["a/x"], ["a/x"], ["b/y"], ["b/y"]])
    live = bl.maintain(interest, edges=[(0, 1), (2, 3)])
    change = live.join(["#"], name="monitor")
    assert len(change.added) == 2
    assert bl.is_topic_connected(live.interest, live.edges)
    assert [live.topic_ids[topic] for topic in live.topics_of(change.node)] == ["#"]
    assert live.plan().interest.topic_ids == ("a/x", "b/y", "#")
    assert live.metrics()["topic_connected"]
    live.leave(change.node)
    assert live.plan().is_topic_connected()
    assert live.resubscribe(0, ["a/x", "b/y"]).added.tolist() in ([[0, 2]], [[0, 3]], [])


def test_without_wildcards_no_groups_are_kept():
    """Names that only look like filters are topics."""
    live = bl.maintain(bl.Interest.from_lists([["c#", "a+b"], ["c#"]]))
    live.join(["a+b", "x/y"])
    assert live._groups is None
    live.join(["x/+"])
    assert live._groups is not None


def test_the_journal_restores_groups(tmp_path):
    with bl.maintain(bl.Interest.from_lists([["a/b"], ["c/d"], ["a/#"]])) as live:
        live.save(tmp_path / "live")
        live.join(["+/d", "a/+"])
        live.join(["#"])
        live.leave(4)
        expected = live.plan()
    with bl.Live.load(tmp_path / "live") as again:
        assert again.plan() == expected
        again.save()
    with bl.Live.load(tmp_path / "live") as again:
        assert again.plan() == expected


def test_a_state_of_a_version_without_groups_is_completed(tmp_path):
    """There, filters were topics like all others, and a plan did not connect those that overlap."""
    write_state(tmp_path, bl.maintain(bl.Interest.from_lists([["a/b"], ["a/b"], ["a/#"], ["a/#"]])))
    record = json.loads((tmp_path / "live.json").read_text())
    assert record.pop("groups") == [[0, [0, 1]]]
    (tmp_path / "live.json").write_text(json.dumps(record))
    edges = pa.table({"u": ["0", "2"], "v": ["1", "3"], "weight": [1.0, 1.0], "rank": [0, 1]})
    write_table(tmp_path, "edges", edges)
    live = read_state(tmp_path)
    assert len(live.edges) == 3
    assert live.plan().is_topic_connected()


def test_events_name_filters_as_clients_write_them():
    """A shared subscription counts as its filter; an invalid filter is refused."""
    live = bl.maintain(bl.Interest.from_lists([["jobs/1"]], node_ids=["a"]))
    rows = [
        {"kind": "join", "node": "b", "topics": ["$share/g/jobs/+", "jobs/+", "$queue/x"]},
        {"kind": "join", "node": "c", "topics": ["a/#/b"]},
    ]
    lines = [json.dumps({"seq": seq, **row}) for seq, row in enumerate(rows)]
    done, refused = EventFeed(live).take(map(event_of, lines))
    assert done.change.added.tolist() == [[0, 1]]
    assert sorted(live.topic_ids[topic] for topic in live.topics_of(1)) == ["jobs/+", "x"]
    assert refused.reason == "'a/#/b' is not an MQTT topic filter"


def test_a_thousand_brokers_with_filters_stay_connected():
    """Compiled kernels, many groups, and a filter that overlaps all of them, which comes and goes."""
    rng = np.random.default_rng(1)
    lists = [[f"s{one}/{rng.integers(3)}" for one in rng.choice(60, 4, replace=False)] for _ in range(300)]
    live = bl.maintain(bl.Interest.from_lists(lists))
    for own in (["s1/#"], ["+/2"], ["s7/+", "s8/#"], ["#"], ["s9/0"]):
        live.join(own)
        assert bl.is_topic_connected(live.interest, live.edges)
    for node in (303, 301, 300, 17, 302):
        live.leave(node)
        assert bl.is_topic_connected(live.interest, live.edges)
    drift = live.drift()
    assert live.rebaseline().kind == "rebaseline"
    assert bl.is_topic_connected(live.interest, live.edges)
    assert live.max_degree <= max(drift.max_degree, 1.15 * drift.fresh_max_degree)
