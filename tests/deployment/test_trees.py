"""Delivery trees: spanning, as good as brute force, shared by overlapping filters, with balanced loads."""

import networkx as nx
import numpy as np
import pyarrow as pa
import pytest
from deploy_strategies import instances, mesh_of, plans, wild_plans
from hypothesis import given, settings
from hypothesis import strategies as st

import naive_deploy
from broadloom import InputError, Interest, Overlay, Plan, Weights, link
from broadloom.deployment import Publication, filter_groups, plan_trees, publications
from broadloom.deployment import trees as trees_module
from broadloom.mqtt.topic_filters import covers
from shapes import SHAPES


def graph_of(plan, topic):
    members = set(plan.interest.nodes_of(topic).tolist())
    return naive_deploy.sub_overlay(
        members, plan.edges.tolist(), lambda u, v: float(plan.weights.of([u], [v])[0])
    )


def topic_of(plan, tree):
    return plan.interest.topic_ids.index(tree.filters[0])


@given(instances(), st.sampled_from(["latency", "weight"]), st.sampled_from([0, 0.1, 1]))
def test_each_topic_has_a_spanning_tree_of_its_links(instance, least, slack):
    plan, sent = instance
    trees = plan_trees(plan, sent, least, slack)
    assert [tree.filters for tree in trees] == [
        (text,) for t, text in enumerate(plan.interest.topic_ids) if len(plan.interest.nodes_of(t))
    ]
    for tree in trees:
        graph = graph_of(plan, topic_of(plan, tree))
        assert all(graph.has_edge(*edge) for edge in tree.edges)
        assert list(tree.edges) == sorted(tree.edges)
        spanning = nx.Graph(tree.edges)
        spanning.add_nodes_from(graph)
        assert nx.is_tree(spanning)


@given(plans())
@settings(max_examples=40)
def test_the_tree_of_least_weight_is_a_minimum_spanning_tree(plan):
    for tree in plan_trees(plan, least="weight"):
        graph = graph_of(plan, topic_of(plan, tree))
        best = min(map(naive_deploy.weight, naive_deploy.spanning_trees(graph)))
        assert naive_deploy.weight(graph.edge_subgraph(tree.edges)) == pytest.approx(best)


@given(plans(max_nodes=6), st.data())
@settings(max_examples=40)
def test_the_tree_of_one_publisher_has_the_least_delay(plan, data):
    """With several publishers the delay is at most twice the least."""
    sent = [
        Publication(data.draw(st.sampled_from(plan.interest.nodes_of(t).tolist())), text, 1.0)
        for t, text in enumerate(plan.interest.topic_ids)
        if len(plan.interest.nodes_of(t))
    ]
    for tree, published in zip(plan_trees(plan, sent, slack=0), sent, strict=True):
        graph = graph_of(plan, topic_of(plan, tree))
        chosen = nx.Graph(graph.edge_subgraph(tree.edges))
        chosen.add_nodes_from(graph)
        every = list(naive_deploy.spanning_trees(graph))
        one = {published.broker: 1.0}
        assert naive_deploy.delay(chosen, one) == pytest.approx(
            min(naive_deploy.delay(other, one) for other in every)
        )
    for tree in plan_trees(plan):
        graph = graph_of(plan, topic_of(plan, tree))
        chosen = nx.Graph(graph.edge_subgraph(tree.edges))
        chosen.add_nodes_from(graph)
        all_brokers = dict.fromkeys(graph, 1.0)
        least = min(naive_deploy.delay(other, all_brokers) for other in naive_deploy.spanning_trees(graph))
        assert naive_deploy.delay(chosen, all_brokers) <= 2 * least * (1 + 1e-9)


@given(plans(), st.data())
@settings(max_examples=40)
def test_central_members_of_a_large_topic_are_found_by_a_sample(plan, data):
    """The trees span all brokers, and that of one publisher still has the least delay."""
    texts = [text for t, text in enumerate(plan.interest.topic_ids) if len(plan.interest.nodes_of(t))]
    members = {text: plan.interest.nodes_of(plan.interest.topic_ids.index(text)).tolist() for text in texts}
    sent = [Publication(data.draw(st.sampled_from(members[text])), text, 1.0) for text in texts]
    exact = [plan_trees(plan, one, slack=0) for one in (None, sent)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trees_module, "MOST_EXACT", 2)
        patch.setattr(trees_module, "SAMPLES", 2)
        found = [plan_trees(plan, one, slack=0) for one in (None, sent)]
    for tree in found[0]:
        spanning = nx.Graph(tree.edges)
        spanning.add_nodes_from(members[tree.filters[0]])
        assert nx.is_tree(spanning)
    for tree, other, published in zip(found[1], exact[1], sent, strict=True):
        graph = graph_of(plan, topic_of(plan, tree))
        delays = []
        for edges in (tree.edges, other.edges):
            chosen = nx.Graph(graph.edge_subgraph(edges))
            chosen.add_nodes_from(graph)
            delays.append(naive_deploy.delay(chosen, {published.broker: 1.0}))
        assert delays[0] == pytest.approx(delays[1])


@given(instances())
def test_brokers_that_only_publish_have_one_leaf_link(instance):
    """It is a link of the plan if there is one, and leads to the nearest broker that wants the topic."""
    plan, sent = instance
    linked = {frozenset(edge) for edge in plan.edges.tolist()}
    for tree in plan_trees(plan, sent, publishers="observed"):
        members = set(plan.interest.nodes_of(topic_of(plan, tree)).tolist())
        senders = {broker for broker, topic, _ in sent if topic == tree.filters[0]}
        assert [leaf for leaf, _ in tree.leaves] == sorted(senders - members)
        for leaf, receiver in tree.leaves:
            near = {member for member in members if frozenset((leaf, member)) in linked} or members
            lengths = {member: float(plan.weights.of([leaf], [member])[0]) for member in near}
            assert lengths[receiver] == min(lengths.values())


def loads(trees):
    load: dict[tuple[int, int], float] = {}
    for tree in trees:
        for edge in tree.edges:
            load[edge] = load.get(edge, 0) + tree.rate
    return load


@given(instances())
def test_balancing_lowers_loads_within_the_slack(instance):
    plan, sent = instance
    balanced = plan_trees(plan, sent, "weight", slack=0.5)
    blind = plan_trees(plan, [one._replace(rate=0.0) for one in sent], "weight")
    blind = [one._replace(rate=other.rate) for one, other in zip(blind, balanced, strict=True)]
    squares = [sum(load**2 for load in loads(trees).values()) for trees in (balanced, blind)]
    assert squares[0] <= squares[1] * (1 + 1e-9)
    assert sum(loads(balanced).values()) == pytest.approx(sum(loads(blind).values()))
    for one, other in zip(balanced, blind, strict=True):
        graph = graph_of(plan, topic_of(plan, one))
        weights = [naive_deploy.weight(graph.edge_subgraph(tree.edges)) for tree in (one, other)]
        assert weights[0] <= 1.5 * weights[1] * (1 + 1e-9)


def test_balancing_spreads_equal_trees():
    """Four topics with the same cheapest tree spread over the links of a clique."""
    interest = Interest.from_lists([["a", "b", "c", "d"]] * 4)
    plan = mesh_of(interest)
    sent = [Publication(0, topic, 1.0) for topic in "abcd"]
    trees = plan_trees(plan, sent, "weight")
    assert max(loads(trees).values()) == 2  # 12 uses of 6 links
    assert max(loads(plan_trees(plan, (), "weight")).values(), default=0) == 0


@pytest.mark.parametrize("name", SHAPES)
def test_trees_span_awkward_shapes(name):
    interest = Interest.from_lists(SHAPES[name])
    trees = plan_trees(link(interest, algorithm="gm"))
    subscribers = np.diff(interest.node_start)
    assert sum(len(tree.edges) for tree in trees) == (subscribers - 1)[subscribers > 0].sum()


@given(wild_plans())
@settings(max_examples=60)
def test_overlapping_filters_share_a_tree_that_splits_them_least(plan):
    """On a full mesh, no spanning tree splits the filters' brokers into fewer parts."""
    interest = plan.interest
    lists = [[interest.topic_ids[t] for t in interest.topics_of(node)] for node in range(interest.node_count)]
    for tree in plan_trees(plan):
        wanted = [
            {node for node, texts in enumerate(lists) if any(covers(text, narrow) for text in texts)}
            for narrow in tree.filters
        ]
        graph = nx.complete_graph(sorted(set().union(*wanted)))
        nx.set_edge_attributes(graph, 1, "weight")

        def all_parts(spanning, wanted=wanted):
            return sum(naive_deploy.parts(spanning, brokers) for brokers in wanted)

        chosen = nx.Graph(tree.edges)
        chosen.add_nodes_from(graph)
        assert nx.is_tree(chosen)
        if len(graph) < 6:
            assert all_parts(chosen) == min(map(all_parts, naive_deploy.spanning_trees(graph)))


def test_groups_follow_the_order_of_topics():
    interest = Interest.from_lists([["d", "a/b"], ["a/#", "c"]])
    assert filter_groups(interest) == [("a/#", "a/b"), ("c",), ("d",)]


def test_a_group_that_is_not_connected_is_refused_with_its_filters():
    interest = Interest.from_lists([["a/#"], ["a/#"], ["a/b"], ["a/b"]])
    plan = Plan(interest, Weights.uniform(4), Overlay.from_edges(4, [(0, 1), (2, 3)]), "by hand")
    assert not plan.is_topic_connected()
    with pytest.raises(
        InputError, match="filters 'a/#', 'a/b' can match the same topic, so they need one tree"
    ):
        plan_trees(plan)


def test_a_topic_that_is_not_connected_is_refused():
    plan = Plan(Interest.from_lists([["x"], ["x"]]), Weights.uniform(2), Overlay.from_edges(2, []), "none")
    for least in ("latency", "weight"):
        with pytest.raises(InputError, match="does not connect topic 'x'"):
            plan_trees(plan, least=least)


@pytest.mark.parametrize("wrong", [{"least": "hops"}, {"slack": -1}, {"slack": float("nan")}])
def test_wrong_options_are_refused(wrong):
    with pytest.raises(InputError, match=r"least is .hops.|slack is"):
        plan_trees(link(Interest.from_lists([["x"]]), algorithm="gm"), **wrong)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("publisher", "z", "a publisher is 'z', not a broker of the plan"),
        ("topic", "a/#", "publishes 'a/#'; a message's topic has no wildcards"),
        ("bytes", -1, "message 0 has -1.0 bytes"),
    ],
)
def test_wrong_messages_are_refused(column, value, message):
    row = {"publisher": ["0"], "topic": ["x"], "at": [0], "bytes": [5]} | {column: [value]}
    with pytest.raises(InputError, match=message):
        publications(pa.table(row), Interest.from_lists([["x"]]))
