"""Link loads and weak points equal those of networkx in each topic's sub-overlay."""

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from broadloom import Interest, Weights, measures
from strategies import instances, interests, overlays


@st.composite
def linked(draw):
    interest = draw(interests(max_nodes=9, max_topics=4))
    return interest, draw(overlays(interest.node_count))


def sub_overlay(interest, edges, topic):
    members = set(interest.nodes_of(topic).tolist())
    graph = nx.Graph()
    graph.add_nodes_from(members)
    graph.add_edges_from((u, v) for u, v in edges if u in members and v in members)
    return graph


@given(linked())
def test_weak_points_are_bridges_and_cut_nodes(case):
    interest, edges = case
    links, nodes = dict.fromkeys(edges, 0), [0] * interest.node_count
    for topic in range(interest.topic_count):
        graph = sub_overlay(interest, edges, topic)
        for u, v in nx.bridges(graph):
            links[min(u, v), max(u, v)] += 1
        for node in nx.articulation_points(graph):
            nodes[node] += 1
    found = measures.weak_points(interest, edges)
    assert found.links.tolist() == [links[edge] for edge in edges]
    assert found.nodes.tolist() == nodes


@given(st.data())
def test_loads_are_those_of_minimum_spanning_trees(data):
    """Each topic uses one tree; loads times weights are the cost of one message per topic."""
    interest, weights = data.draw(instances())
    edges = data.draw(overlays(interest.node_count))
    loads = measures.link_loads(interest, edges, weights)
    forest = [
        len(graph) - nx.number_connected_components(graph)
        for graph in (sub_overlay(interest, edges, t) for t in range(interest.topic_count))
        if len(graph)
    ]
    assert loads.sum() == sum(forest)
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    price = weights.of(pairs[:, 0], pairs[:, 1])
    assert np.isclose(loads @ price, measures.routing_costs(interest, edges, weights).sum())


def test_a_long_chain_needs_no_deep_stack():
    interest = Interest.from_lists([[0]] * 50_000)
    edges = [(u, u + 1) for u in range(49_999)]
    found = measures.weak_points(interest, edges)
    assert found.links.all()
    assert found.nodes.sum() == 49_998
    assert measures.link_loads(interest, edges, Weights.uniform(50_000)).tolist() == [1] * 49_999
