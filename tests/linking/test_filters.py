"""Topic filters in an interest: overlapping ones are linked as one topic, compared with brute force."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
import naive_ingest
from broadloom.linking import link_change
from broadloom.measures import disconnected_topics

LEVELS = st.sampled_from(["a", "b", "+"])
FILTERS = st.builds(
    lambda levels, tail: "/".join([*levels, *tail]),
    st.lists(LEVELS, min_size=1, max_size=2),
    st.sampled_from([[], [], ["#"]]),
) | st.sampled_from(["#", "$x/#", "$x/a", "c#"])
# All topics of up to three levels; no filter above needs a deeper one to overlap another.
TOPICS = [
    "/".join(levels)
    for size in (1, 2, 3)
    for levels in itertools.product(["a", "b", "$x", "other"], repeat=size)
]
WANTED = st.lists(st.lists(FILTERS, max_size=3, unique=True), min_size=1, max_size=7)


def reached(edges, members, start):
    """The members that a broker reaches over links between members."""
    found, todo = set(), [start]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += [v for edge in edges for u, v in (edge, edge[::-1]) if u == node and v in members]
    return found


def brokers_of(wanted, texts):
    """The brokers that want at least one of the filters."""
    return {node for node, row in enumerate(wanted) if texts & set(row)}


@given(WANTED)
def test_grouping_unites_exactly_the_filters_that_overlap(wanted):
    interest = bl.Interest.from_lists(wanted)
    naive = naive_ingest.group_of(list(interest.topic_ids), [*TOPICS, "c#"])
    grouped = interest.grouped()
    assert interest.has_filters == any("+" in text or "#" in text.split("/") for text in interest.topic_ids)
    assert len(grouped.topic_ids) == len(set(naive.values()))
    for topic, text in enumerate(interest.topic_ids):
        group = int(interest.group_of_topic[topic])
        assert grouped.topic_ids[group] == min(naive[text], key=lambda name: (len(name), name))
        assert set(grouped.nodes_of(group).tolist()) == brokers_of(wanted, naive[text])
    assert (grouped is interest) == (len(grouped.topic_ids) == len(interest.topic_ids))
    assert grouped.grouped() is grouped


@settings(max_examples=40)
@given(WANTED, st.sampled_from(["gm", "grmaw", "low-oda", "trmaw"]), st.booleans())
def test_all_brokers_with_a_matching_filter_are_linked_through_their_group(wanted, algorithm, improve):
    """Every topic of the alphabet is published: its brokers reach each other through brokers of one group."""
    interest = bl.Interest.from_lists(wanted)
    weights = bl.Weights.euclidean([[float(i * i % 7), float(i)] for i in range(len(wanted))])
    plan = bl.link(interest, weights, algorithm, improve=improve)
    edges = plan.edges.tolist()
    assert plan.is_topic_connected()
    assert bl.is_topic_connected(interest, plan.overlay)
    assert plan.interest == interest
    naive = naive_ingest.group_of(list(interest.topic_ids), [*TOPICS, "c#"])
    for topic in TOPICS:
        matching = {text for text in interest.topic_ids if naive_ingest.matches(text, topic)}
        for text in matching:
            members = brokers_of(wanted, naive[text])
            receivers = brokers_of(wanted, matching)
            assert receivers <= members
            assert receivers <= reached(edges, members, min(receivers))


@settings(max_examples=40)
@given(WANTED, st.data())
def test_connectivity_counts_the_brokers_of_each_group(wanted, data):
    interest = bl.Interest.from_lists(wanted)
    pairs = list(itertools.combinations(range(len(wanted)), 2))
    edges = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    naive = naive_ingest.group_of(list(interest.topic_ids), [*TOPICS, "c#"])
    broken = []
    for topic, text in enumerate(interest.topic_ids):
        members = brokers_of(wanted, naive[text])
        if reached(edges, members, min(members)) != members:
            broken.append(topic)
    assert disconnected_topics(interest, edges).tolist() == broken
    assert bl.is_topic_connected(interest, edges) == (not broken)
    found = bl.Plan(interest, bl.Weights.uniform(len(wanted)), bl.Overlay.from_edges(len(wanted), edges), "x")
    metrics = found.metrics()
    assert metrics["topics"] == len(set(naive.values()))
    assert metrics["disconnected_topics"] == len({naive[interest.topic_ids[topic]] for topic in broken})
    assert metrics.get("topic_filters", 0) == interest.filter_count


def test_a_summary_says_that_filters_were_grouped():
    plan = bl.link(bl.Interest.from_lists([["a/#"], ["a/b"], ["a/+", "c"], ["c"]]))
    assert plan.summary() == (
        "gm: 4 brokers, 3 links, every one of 2 topics connected "
        "(2 topic filters; those that overlap count as one topic)"
    )
    assert "connected (" not in bl.link(bl.Interest.from_lists([["c#"], ["c#"]])).summary()


def test_a_previous_plan_is_kept_where_filters_overlap():
    """The links of the previous plan join brokers that have no filter in common, only overlapping ones."""
    interest = bl.Interest.from_lists([["a/#"], ["a/b"], ["+/b"], ["a/b/#"]])
    weights = bl.Weights.euclidean([[0.0], [1.0], [2.0], [3.0]])
    plan = bl.link(interest, weights)
    again = bl.link(interest, weights, "grmaw", previous=plan)
    assert link_change(plan, again) == ([], [])
    assert bl.improve(plan).total_weight == plan.total_weight
    assert bl.lower_bound(interest, weights) == pytest.approx(3.0)
    assert plan.total_weight == 3.0


def test_grouping_many_topics_without_filters_returns_the_interest_itself():
    interest = bl.Interest.from_rows(np.arange(100_001), np.arange(100_000), 100_000)
    assert interest.grouped() is interest
    assert interest.filter_count == 0


def test_a_copied_interest_computes_its_groups_again():
    import pickle

    interest = bl.Interest.from_lists([["a/#"], ["a/b"]])
    assert interest.grouped().topic_ids == ("a/#",)
    copy = pickle.loads(pickle.dumps(interest))
    assert "_grouping" not in vars(copy)
    assert copy.grouped() == interest.grouped()


def test_a_filter_without_subscribers_joins_no_group():
    """Nobody needs a tree of it, so the topics that it matches keep their own; publishers reach them."""
    from broadloom.deployment import Publication, plan_trees

    interest = bl.Interest.from_pairs(
        ["0", "1", "2", "3"], ["a/b", "a/b", "a/c", "a/c"], topic_ids=["a/#", "a/b", "a/c"]
    )
    assert interest.grouped() is interest
    plan = bl.link(interest)
    assert plan.edges.tolist() == [[0, 1], [2, 3]]
    trees = plan_trees(plan, [Publication(2, "a/b", 1.0)])
    assert [tree.filters for tree in trees] == [("a/b",), ("a/c",)]
    assert (2, 0) in trees[0].leaves
    assert trees[0].rate == 1.0
