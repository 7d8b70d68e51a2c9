"""Measures equal their naive versions on any overlay, connected or not."""

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
import naive
from broadloom import InputError, Interest, Overlay, Weights, measures
from broadloom.measures import overlay_measures
from shapes import SHAPES
from strategies import instances, lists_of, overlays


@st.composite
def measured(draw):
    interest, weights = draw(instances())
    return interest, weights, draw(overlays(interest.node_count))


@given(measured())
def test_components_and_connectedness(case):
    interest, _, edges = case
    lists = lists_of(interest)
    slow = [len(naive.components(lists, edges, topic)) for topic in range(interest.topic_count)]
    assert measures.components_per_topic(interest, edges).tolist() == slow
    assert bl.is_topic_connected(interest, edges) == naive.is_topic_connected(lists, edges)


@given(measured())
def test_diameters(case):
    """Hops are equal; weighted diameters up to the rounding of sums in another order."""
    interest, weights, edges = case
    lists, matrix = lists_of(interest), weights.matrix().tolist()
    topics = [t for t in range(interest.topic_count) if len(interest.nodes_of(t))]
    hops = measures.topic_diameters(interest, edges, topics=topics)
    assert hops.tolist() == [naive.hop_diameter(lists, edges, topic) for topic in topics]
    slow = [naive.weighted_diameter(lists, matrix, edges, topic) for topic in topics]
    assert measures.topic_diameters(interest, edges, weights, topics) == pytest.approx(slow, rel=1e-12)


def test_diameters_of_larger_graphs():
    """The pruned search equals a search from every node, on chains, trees and denser graphs."""
    rng = np.random.default_rng(5)
    for extra, back in product((0, 2, 5, 60), (1, 2, 6, 30)):
        interest = Interest.from_lists([[0]] * 60)
        weights = Weights.euclidean(rng.random((60, 2)))
        edges = {tuple(sorted((v, int(rng.integers(max(0, v - back), v))))) for v in range(1, 60)}
        edges |= {tuple(sorted(map(int, rng.choice(60, 2, replace=False)))) for _ in range(extra)}
        slow = naive.weighted_diameter(lists_of(interest), weights.matrix().tolist(), sorted(edges), 0)
        assert measures.topic_diameters(interest, sorted(edges), weights)[0] == pytest.approx(slow, rel=1e-12)


@given(measured())
def test_routing_cost_is_that_of_the_minimum_spanning_tree(case):
    """The cost of a message is that of Kruskal's forest over the links of the topic."""
    interest, weights, edges = case
    lists, matrix = lists_of(interest), weights.matrix()
    for topic, cost in enumerate(measures.routing_costs(interest, edges, weights)):
        taken: list[tuple[int, int]] = []
        inside = [(u, v) for u, v in edges if topic in lists[u] and topic in lists[v]]
        for u, v in sorted(inside, key=lambda edge: matrix[edge]):
            if len(naive.components(lists, [*taken, (u, v)], topic)) < len(
                naive.components(lists, taken, topic)
            ):
                taken.append((u, v))
        assert cost == pytest.approx(sum(matrix[edge] for edge in taken))


@given(measured())
def test_metrics_add_up(case):
    """Names of the metrics, and identities between them."""
    interest, weights, edges = case
    got = measures.metrics(interest, edges, weights)
    degrees = naive.degrees(lists_of(interest), edges)
    nodes = max(interest.node_count, 1)
    total = sum(weights.matrix()[edge] for edge in edges)
    assert got["edges"] == len(edges)
    assert got["mean_degree"] == pytest.approx(2 * len(edges) / nodes)
    assert got["max_degree"] == max(degrees, default=0)
    assert got["total_weight"] == pytest.approx(total)
    assert got["weighted_mean_degree"] == pytest.approx(2 * total / nodes)
    assert got["topic_connected"] == (got["disconnected_topics"] == 0)
    assert (got["mean_diameter"] == math.inf) == (not got["topic_connected"])
    weighted = [
        sum(weights.matrix()[edge] for edge in edges if node in edge) for node in range(interest.node_count)
    ]
    assert got["weighted_max_degree"] == pytest.approx(max(weighted, default=0.0))
    assert got["components"] == sum(
        len(naive.components(lists_of(interest), edges, topic)) for topic in range(interest.topic_count)
    )
    costs = measures.routing_costs(interest, edges, weights)[np.diff(interest.node_start) > 0]
    assert got["mean_routing_cost"] == pytest.approx(costs.mean() if len(costs) else 0.0)


@pytest.mark.parametrize("lists", SHAPES.values(), ids=SHAPES)
def test_awkward_shapes_have_metrics(lists):
    interest = Interest.from_lists(lists)
    assert measures.metrics(interest, [])["edges"] == 0


def test_a_limit_of_searches_gives_a_lower_bound():
    """On a ring every node needs a search; with fewer searches the result is at most the diameter."""
    ring = [(v, v + 1) for v in range(59)] + [(0, 59)]
    weights = Weights.euclidean(np.random.default_rng(1).random((60, 2)))
    interest = Interest.from_lists([[0]] * 60)
    exact = measures.topic_diameters(interest, ring, weights)[0]
    cut = [measures.topic_diameters(interest, ring, weights, searches=k)[0] for k in (1, 2, 5)]
    assert 0 < cut[0] <= cut[1] <= cut[2] <= exact


WRONG = {
    "topic": (lambda i: measures.topic_diameters(i, [], topics=[7]), "topic 7 does not exist"),
    "topic below 0": (lambda i: measures.topic_diameters(i, [], topics=[-1]), "topic -1 does not exist"),
    "weights": (lambda i: measures.metrics(i, [], Weights.uniform(9)), "the weights 9"),
    "overlay": (lambda i: bl.is_topic_connected(i, Overlay.from_edges(5, [])), "the overlay 5"),
    "sample": (lambda i: measures.metrics(i, [], sample=0), "sample is 0"),
}


@pytest.mark.parametrize(("measure", "words"), WRONG.values(), ids=WRONG)
def test_inconsistent_arguments_are_refused(measure, words):
    with pytest.raises(InputError) as caught:
        measure(Interest.from_lists([[0], [0]]))
    assert words in str(caught.value)


def test_the_number_of_threads_changes_nothing(monkeypatch):
    plan = bl.link(bl.workload.interest(60, 30, sizes=(3, 9)), bl.workload.weights(60), algorithm="gm")
    parts = plan.interest, plan.overlay, plan.weights
    monkeypatch.setenv("BROADLOOM_THREADS", "1")
    one = measures.metrics(*parts)
    monkeypatch.setenv("BROADLOOM_THREADS", "3")
    assert measures.metrics(*parts) == one


def test_sampled_diameters_are_marked(monkeypatch):
    """Above the size limit diameters are over some topics, the same for one seed, and `diameters` says so."""
    monkeypatch.setattr(overlay_measures, "EXACT_SUBSCRIPTIONS", 10)
    monkeypatch.setattr(overlay_measures, "SAMPLED_TOPICS", 4)
    plan = bl.link(bl.workload.interest(40, 20, sizes=(3, 9)), algorithm="gm")
    assert plan.metrics()["diameters"] == "sampled: 4 of 20 topics"
    assert measures.metrics(plan.interest, plan.edges, sample=7)["diameters"] == "sampled: 7 of 20 topics"
    monkeypatch.setattr(overlay_measures, "LARGE_TOPIC", 2)
    described = measures.metrics(plan.interest, plan.edges)["diameters"]
    assert described == "lower bounds by 200 searches per topic, sampled: 4 of 20 topics"
