"""Wirings: every message arrives once at every broker that wants it, and links that loop are refused."""

from dataclasses import replace

import pytest
from deploy_strategies import instances, wild_instances
from hypothesis import given
from hypothesis import strategies as st

import naive_deploy
from broadloom import InputError, Interest, Overlay, Plan, Weights, link
from broadloom.deployment import (
    Publication,
    SampleMessage,
    Settings,
    WiredLink,
    Wiring,
    check,
    plan_trees,
    sample_messages,
    wire,
)
from broadloom.deployment.wiring import ALTERNATIVES, crossings, delays, delivery_hops, wanted_filters


def wired(instance, publishers="observed"):
    plan, sent = instance
    trees = plan_trees(plan, sent, publishers=publishers)
    return plan, trees, wire(plan, trees, sent, publishers)


@given(instances())
def test_every_message_arrives_once_at_brokers_that_want_it_and_nowhere_else(instance):
    _, _, wiring = wired(instance)
    check(wiring)
    for message in sample_messages(wiring):
        counts = naive_deploy.arrivals(wiring.links, *message)
        assert counts == dict.fromkeys(wiring.wanting(message.topic) | {message.broker}, 1)
        assert set(delivery_hops(wiring, message)) == set(counts) - {message.broker}


@given(wild_instances())
def test_messages_that_wildcards_match_arrive_once(instance):
    """A broker can have to forward what it does not want, but no message arrives twice."""
    _, _, wiring = wired(instance)
    check(wiring)
    for message in sample_messages(wiring):
        counts = naive_deploy.arrivals(wiring.links, *message)
        assert set(counts) >= wiring.wanting(message.topic)
        assert set(counts.values()) == {1}


@given(instances())
def test_messages_on_links_are_those_of_the_trees(instance):
    """A message crosses each link of its tree once, and its publisher's leaf link."""
    plan, trees, wiring = wired(instance)
    messages = sample_messages(wiring, 3)
    names, expected = plan.interest.node_ids, {}
    for tree in trees:
        for message, count in messages.items():
            if message.topic == tree.filters[0]:
                leaf = {(u, v) for u, v in tree.leaves if names[u] == message.broker}
                for u, v in {*tree.edges, *leaf}:
                    pair = frozenset((names[u], names[v]))
                    expected[pair] = expected.get(pair, 0) + count
    found: dict[frozenset[str], int] = {}
    for hop, count in crossings(wiring, messages).items():
        found[frozenset(hop)] = found.get(frozenset(hop), 0) + count
    assert found == expected


@pytest.mark.parametrize("name", ALTERNATIVES)
@given(instance=instances())
def test_alternative_wirings_deliver_too(name, instance):
    plan, sent = instance
    wiring = ALTERNATIVES[name](plan, sent)
    for message in sample_messages(wiring):
        reached = {message.broker, *delivery_hops(wiring, message)}
        assert reached >= wiring.wanting(message.topic)
        if wiring.relays:
            assert set(naive_deploy.arrivals(wiring.links, *message).values()) == {1}


def test_a_mesh_takes_one_hop_and_a_hub_two():
    plan = link(Interest.from_lists([["x"]] * 5), algorithm="gm")
    hops = {name: make(plan, ()) for name, make in ALTERNATIVES.items()}
    longest = {
        name: delays(wiring, sample_messages(wiring), plan)["max_hops"] for name, wiring in hops.items()
    }
    assert longest["full mesh with interest"] == 1
    assert longest["hub and spoke"] == 2
    assert [len(wiring.links) for wiring in hops.values()] == [10, 4, 4, 4]


def test_a_broker_that_only_publishes_a_topic_receives_none_of_it():
    plan = link(Interest.from_lists([["x"], ["x"], []]), algorithm="gm")
    sent = [Publication(2, "x", 1.0)]
    wiring = wire(plan, plan_trees(plan, sent), sent, "observed")
    assert naive_deploy.arrivals(wiring.links, "2", "x") == {"2": 1, "0": 1, "1": 1}
    assert naive_deploy.arrivals(wiring.links, "0", "x") == {"0": 1, "1": 1}


X = ("x",)
PAIR = Wiring(("a", "b"), {"a": X, "b": X}, {}, (WiredLink("a", "b", X, X),))
THREE = Wiring(
    ("a", "b", "c"), dict.fromkeys("abc", X), {}, (WiredLink("a", "b", X, X), WiredLink("b", "c", X, X))
)
MIXED = Wiring(
    ("a", "b", "c"),
    dict.fromkeys("abc", ("a/#", "a/b")),
    {},
    (WiredLink("a", "b", ("a/#",), ("a/#",)), WiredLink("b", "c", ("a/#", "a/b"), ("a/#", "a/b"))),
)
REFUSED = {
    "both ends": (PAIR, [WiredLink("b", "a", X, X)], "'a' and 'b' is configured at both ends"),
    "two links": (PAIR, [WiredLink("a", "b", ("y",), ())], "'a' has 2 links with 'b'"),
    "ring": (
        THREE,
        [WiredLink("a", "c", X, X)],
        "'x' loops over the links 'a'-'c', 'a'-'b', 'b'-'c'",
    ),
    "overlap": (
        MIXED,
        [WiredLink("a", "c", ("a/b",), ("a/b",))],
        "filters 'a/#' and 'a/b' can match the same topic but use different trees",
    ),
    "itself": (PAIR, [WiredLink("a", "a", X, X)], "a link of 'a' with itself"),
    "stranger": (PAIR, [WiredLink("a", "z", X, X)], "a link ends at 'z', which is not a broker of the plan"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_links_that_loop_are_refused_with_the_reason(name):
    wiring, more, message = REFUSED[name]
    check(wiring)
    with pytest.raises(InputError, match=message):
        check(replace(wiring, links=(*wiring.links, *more)))
    if name in ("ring", "overlap"):
        topic = "x" if name == "ring" else "a/b"
        assert max(naive_deploy.arrivals((*wiring.links, *more), "a", topic).values()) > 1


def test_a_filter_that_is_listed_twice_is_refused():
    with pytest.raises(InputError, match="has 'x' 2 times"):
        check(replace(PAIR, links=(WiredLink("a", "b", ("x", "x"), X),)))


def test_a_publisher_without_a_path_is_refused_by_name():
    alone = Wiring(("a", "b", "p"), {"a": X, "b": X}, {"p": X}, PAIR.links)
    with pytest.raises(InputError, match="'p' publishes 'x' but no links carry it to 'a', which wants 'x'"):
        check(alone)
    check(replace(alone, links=(*alone.links, WiredLink("a", "p", (), X))))
    with pytest.raises(InputError, match="'p' publishes 'x'"):
        check(replace(alone, links=(*alone.links, WiredLink("a", "p", X, ()))))


def test_a_subscriber_without_a_path_is_refused():
    one_way = (WiredLink("a", "b", X, ()),)
    with pytest.raises(InputError, match="'b' publishes 'x' but no links carry it to 'a'"):
        check(replace(PAIR, links=one_way))


def test_a_message_is_sampled_for_every_topic_and_broker():
    wiring = Wiring(("a", "b"), {"a": ("x/+",), "b": ("x/y", "z")}, {"a": ("z",)}, ())
    assert sorted(sample_messages(wiring)) == [
        SampleMessage("a", "x/any"),
        SampleMessage("a", "x/y"),
        SampleMessage("a", "z"),
        SampleMessage("b", "x/y"),
        SampleMessage("b", "z"),
    ]


@pytest.mark.parametrize("text", ["a+", "a#b", "a/#/b", "#/a"])
def test_an_invalid_topic_filter_is_refused(text):
    wiring = Wiring(("a", "b"), {"a": (text,), "b": (text,)}, {}, (WiredLink("a", "b", (text,), (text,)),))
    with pytest.raises(InputError, match="is not an MQTT topic filter; a wildcard must be alone"):
        check(wiring)


@pytest.mark.parametrize("text", ["$SYS/broker/load", "$share/g/x", "$queue/x"])
def test_topics_that_no_link_can_carry_are_refused(text):
    wiring = Wiring(("a", "b"), {"a": (text,), "b": (text,)}, {}, (WiredLink("a", "b", (text,), (text,)),))
    with pytest.raises(InputError, match="and no link carries it; remove it"):
        check(wiring)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"address": "admin:secret@{broker}:1"}, "contains a login; give host or host:port only"),
        ({"address": "{broker}:99999"}, "give host or host:port"),
        ({"address": "{broker}:0"}, "give host or host:port"),
        ({"certificates": "/a\nallow_anonymous true"}, "without quotes or line breaks"),
    ],
)
def test_settings_contain_no_secret_and_no_second_line(options, message):
    with pytest.raises(InputError, match=message) as refused:
        Settings(**options).host_and_port("a", 1883)
    assert "secret" not in str(refused.value)


@given(instances() | wild_instances(), st.randoms(use_true_random=False))
def test_another_order_of_the_same_brokers_is_the_same_wiring(instance, random):
    """A plan whose table of nodes is in another order changes nothing at any broker."""
    plan, sent = instance
    order = random.sample(range(plan.interest.node_count), plan.interest.node_count)
    index = {node: row for row, node in enumerate(order)}
    wants, names = wanted_filters(plan), plan.interest.node_ids
    interest = Interest.from_lists([wants[names[node]] for node in order], node_ids=[names[i] for i in order])
    weights = Weights.dense(plan.weights.matrix()[order][:, order])
    edges = sorted(sorted((index[u], index[v])) for u, v in plan.edges.tolist())
    other = Plan(interest, weights, Overlay.from_edges(len(order), edges), "other")
    moved = [one._replace(broker=index[one.broker]) for one in sent]
    assert wired((other, moved))[2].links == wired(instance)[2].links
