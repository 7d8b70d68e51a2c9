"""Publishers: any broker can publish any topic, or only what was observed, and the plan lists the rest."""

import itertools
import json
from dataclasses import replace

import pytest
from deploy_strategies import published, sparse_wild_plans
from hypothesis import given
from hypothesis import strategies as st

import naive_deploy
from broadloom import InputError, Interest, Plan, Publishers, link
from broadloom.deployment import check, filter_groups, plan_trees, publisher_links, sample_messages, wire
from broadloom.deployment.targets import nats_leafnodes
from broadloom.model import NotCarried
from naive_ingest import matches

LEVELS = ("a", "b", "c", "d", "e", "$x")
TOPICS = tuple("/".join(levels) for size in (1, 2, 3) for levels in itertools.product(LEVELS, repeat=size))
SAMPLES = st.sampled_from(TOPICS)


def lists_of(plan):
    interest = plan.interest
    return [
        [interest.topic_ids[topic] for topic in interest.topics_of(node)]
        for node in range(interest.node_count)
    ]


def wanting(plan, topic):
    """The brokers with a filter that matches a topic."""
    names = plan.interest.node_ids
    return {
        names[node]
        for node, texts in enumerate(lists_of(plan))
        if any(matches(text, topic) for text in texts)
    }


def members(plan, topic):
    """The brokers of the group that a topic belongs to."""
    names = plan.interest.node_ids
    group = next((g for g in filter_groups(plan.interest) if any(matches(f, topic) for f in g)), ())
    return {names[node] for node, texts in enumerate(lists_of(plan)) if set(texts) & set(group)}


@given(sparse_wild_plans())
def test_one_way_links_are_those_of_the_twin(plan):
    """Links of the plan first, then the least weight per group that is still missing."""
    found = publisher_links(plan)

    def weight(u, v):
        return float(plan.weights.of([u], [v])[0])

    hops, new = naive_deploy.publisher_links(
        lists_of(plan), plan.interest.node_ids, plan.edges.tolist(), weight
    )
    assert list(found.new) == new
    assert found.weight == pytest.approx(sum(weight(u, v) for u, v in new))
    for number, filters in enumerate(filter_groups(plan.interest)):
        expected = {b: r for b, into in hops.items() for group, r in into.items() if group in filters}
        assert dict(found.leaves(number)) == expected


@given(sparse_wild_plans(), st.lists(SAMPLES, min_size=5, max_size=30, unique=True))
def test_any_broker_publishes_any_topic_to_all_its_subscribers_exactly_once(plan, topics):
    """And a message reaches no other broker but those of its group, which forward it."""
    wiring = wire(plan, plan_trees(plan))
    check(wiring)
    for broker, topic in itertools.product(plan.interest.node_ids, topics):
        counts = naive_deploy.arrivals(wiring.links, broker, topic)
        assert set(counts.values()) == {1}
        assert {broker} | wanting(plan, topic) <= set(counts) <= {broker} | members(plan, topic)


@given(sparse_wild_plans(), st.data())
def test_the_checks_find_every_missing_one_way_hop(plan, data):
    wiring = wire(plan, plan_trees(plan))
    hops = [
        (i, side, text)
        for i, link_ in enumerate(wiring.links)
        for side in ("out", "into")
        for text in getattr(link_, side)
    ]
    if not hops:
        return
    i, side, text = data.draw(st.sampled_from(hops))
    links = list(wiring.links)
    links[i] = links[i]._replace(**{side: tuple(one for one in getattr(links[i], side) if one != text)})
    with pytest.raises(InputError, match="no links carry it to"):
        check(replace(wiring, links=tuple(links)))


@given(sparse_wild_plans(), st.data())
def test_with_observed_publishers_exactly_the_listed_messages_are_missing(plan, data):
    """A message is missing exactly if it matches a listed filter and nothing that is carried."""
    sent = data.draw(published(plan, TOPICS))
    names = plan.interest.node_ids
    plan = replace(plan, publishers=Publishers("observed", [(names[b], t, r) for b, t, r in sent]))
    wiring = wire(plan, plan_trees(plan))
    check(wiring)
    listed = {row.node: row for row in plan.not_carried.publications}
    topics = data.draw(st.lists(SAMPLES, min_size=5, max_size=30, unique=True))
    for broker, topic in itertools.product(names, topics):
        counts = naive_deploy.arrivals(wiring.links, broker, topic)
        missing = wanting(plan, topic) - set(counts)
        row = listed.get(broker)
        said = row is not None and any(matches(text, topic) for text in row.filters)
        kept = row is not None and any(matches(text, topic) for text in row.carried)
        assert bool(missing) == (said and not kept)
        assert not missing or missing == wanting(plan, topic)


@given(sparse_wild_plans())
def test_the_links_of_nats_connect_every_broker_with_every_account_and_close_no_ring(plan):
    wiring = wire(plan, plan_trees(plan))
    adapted = nats_leafnodes.joined(wiring)
    check(adapted)
    assert {link_[:2] for link_ in adapted.links} <= {link_[:2] for link_ in wiring.links}


@given(sparse_wild_plans())
def test_each_one_way_hop_is_sampled(plan):
    """A rehearsal sends a message over every hop that only publishers use."""
    wiring = wire(plan, plan_trees(plan))
    senders = {(message.broker, message.topic) for message in sample_messages(wiring)}
    for link_ in wiring.links:
        for (start, end), filters in link_.carried():
            assert not filters or any(
                broker == start and any(matches(text, topic) for text in filters) for broker, topic in senders
            ), f"{start} to {end}"


def test_a_plan_says_how_many_one_way_links_it_takes():
    plan = link(Interest.from_lists([["x"], ["x"], [], []]), algorithm="gm")
    expected = "2 one-way links in addition to the plan's 1 (weight 2 of 3)"
    assert publisher_links(plan).summary(plan) == f"any broker can publish every topic: {expected}"
    alone = link(Interest.from_lists([["x"], ["x"]]), algorithm="gm")
    assert publisher_links(alone).summary(alone).endswith("the plan's 1 links suffice")


INTEREST = Interest.from_lists([["a/+"], ["+/b", "c"], []], node_ids=["rome", "oslo", "bonn"])


def test_a_saved_plan_keeps_its_publishers_and_what_it_does_not_carry(tmp_path):
    plan = link(INTEREST.grouped(), algorithm="gm") if hasattr(INTEREST, "grouped") else link(INTEREST)
    plan = replace(
        plan,
        publishers=Publishers("observed", [("bonn", "a/x", 3.0)]),
        not_carried=NotCarried([("rome", "$SYS/#", "belongs to one broker")]),
    )
    plan.save(tmp_path / "plan")
    loaded = Plan.load(tmp_path / "plan")
    assert loaded == plan
    assert (loaded.publishers, loaded.not_carried) == (plan.publishers, plan.not_carried)
    assert json.loads((tmp_path / "plan/plan.json").read_text())["not_carried"] == plan.not_carried.record()
    assert plan != replace(plan, publishers=Publishers())
    assert "observed" in plan._repr_html_()


def test_a_plan_with_the_defaults_is_saved_as_before(tmp_path):
    plan = link(INTEREST, algorithm="gm")
    plan.save(tmp_path / "plan")
    assert not {"publishers", "not_carried"} & json.loads((tmp_path / "plan/plan.json").read_text()).keys()
    assert not (tmp_path / "plan/publications.parquet").exists()
    assert Plan.load(tmp_path / "plan").publishers == Publishers()


def test_what_is_not_carried_follows_the_publishers():
    """It is derived, so that a replaced plan never says something else than it does."""
    plan = link(INTEREST, algorithm="gm", publishers=Publishers("observed"))
    assert [row.node for row in plan.not_carried.publications] == ["rome", "bonn"]
    assert not replace(plan, publishers=Publishers()).not_carried


def test_the_section_counts_by_reason_and_shows_the_first_names():
    rows = [("rome", f"t{i}", "outside of carry") for i in range(7)] + [("oslo", "$SYS/#", "internal")]
    many = [(f"b{i}", ("x",)) for i in range(7)]
    lines = list(NotCarried(rows, many).lines())
    assert lines[0] == "not carried: 8 subscriptions"
    assert lines[1].startswith("  outside of carry: 't0' at rome, ")
    assert lines[1].endswith(" and 2 more")
    assert lines[-1] == "  and from 2 more brokers; --json lists all"
    assert not list(NotCarried().lines())


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([("rome", "a/#")], "a message's topic has no wildcards"),
        ([("paris", "x")], "is not a node of the interest"),
    ],
)
def test_wrong_publications_are_refused(rows, expected):
    with pytest.raises(InputError, match=expected):
        link(INTEREST, algorithm="gm", publishers=Publishers("observed", rows))


def test_hostile_topics_that_are_not_carried_are_cut_and_escaped():
    """A topic of 60,000 characters does not fill the terminal, and escape sequences do not reach it."""
    hostile = ("a\x1b[2J/#", "x" * 60_000)
    missing = NotCarried([("rome", text, "outside") for text in hostile], [("oslo", hostile, hostile)])
    text = "".join(missing.lines())
    assert text.isprintable()
    assert len(text) < 1_000
    assert missing.record()["publications"][0]["filters"] == list(hostile)
