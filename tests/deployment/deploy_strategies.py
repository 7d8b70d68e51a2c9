"""Hypothesis strategies: plans with redundant links, and publications in them."""

from hypothesis import strategies as st

import strategies
from broadloom import Interest, Overlay, Plan, Weights, link
from broadloom.deployment import Publication, filter_groups

WILD = st.sampled_from(["a/#", "a/b", "a/c", "+/b", "b/#", "b/c", "d", "#", "a/+/e", "$x/b"])


@st.composite
def plans(draw, max_nodes=7, max_topics=4):
    """A plan that connects every topic, with redundant links."""
    interest, weights = draw(strategies.instances(max_nodes, max_topics))
    greedy = link(interest, weights, "gm")
    more = draw(strategies.overlays(interest.node_count))
    edges = sorted({*map(tuple, greedy.edges.tolist()), *more})
    return Plan(interest, weights, Overlay.from_edges(interest.node_count, edges), "gm")


@st.composite
def wild_plans(draw):
    """A full mesh of brokers that want filters with wildcards."""
    interest = Interest.from_lists(draw(st.lists(st.lists(WILD, unique=True, max_size=3), max_size=6)))
    return mesh_of(interest)


def mesh_of(interest):
    """A plan that links all pairs of brokers."""
    n = interest.node_count
    pairs = [(u, v) for u in range(n) for v in range(u + 1, n)]
    return Plan(interest, Weights.uniform(n), Overlay.from_edges(n, pairs), "mesh")


@st.composite
def published(draw, plan, topics=None, max_size=8):
    """Publications in a plan, also by brokers that do not want the topic."""
    topics = topics or plan.interest.topic_ids
    if not plan.interest.node_count or not topics:
        return []
    brokers = st.integers(0, plan.interest.node_count - 1)
    publication = st.builds(Publication, brokers, st.sampled_from(topics), st.floats(0, 100).map(round))
    return draw(st.lists(publication, max_size=max_size))


@st.composite
def instances(draw):
    """A plan and publications in it."""
    plan = draw(plans())
    return plan, draw(published(plan))


@st.composite
def wild_instances(draw):
    """A full mesh with wildcards, and publications in it."""
    plan = draw(wild_plans())
    return plan, draw(published(plan, ("a/b", "a/c", "a/x/e", "b/b", "d", "$x/b", "nobody/wants")))


@st.composite
def sparse_wild_plans(draw):
    """Brokers with named positions that want filters with wildcards; each group is linked as a star."""
    lists = draw(st.lists(st.lists(WILD, unique=True, max_size=3), min_size=1, max_size=6))
    names = draw(st.permutations([f"broker{i}" for i in range(len(lists))]))
    interest = Interest.from_lists(lists, node_ids=names)
    n = interest.node_count
    edges = set()
    for filters in filter_groups(interest):
        members = [node for node, texts in enumerate(lists) if set(texts) & set(filters)]
        edges |= {(members[0], other) for other in members[1:]}
    points = st.tuples(st.integers(0, 5), st.integers(0, 5))
    places = draw(st.lists(points, min_size=n, max_size=n, unique=True))
    return Plan(interest, Weights.euclidean(places), Overlay.from_edges(n, sorted(edges)), "stars")
