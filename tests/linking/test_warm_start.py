"""Warm starts after few changes: connected, never heavier than a repair, and with a bound that holds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_strategies import instances

import broadloom as bl
import naive
from broadloom.linking import warm_start as module
from broadloom.linking._carried_division import carried_bound, match_interests
from broadloom.linking.greedy_overlays import merge_by_weight
from broadloom.linking.topic_components import components_of
from broadloom.linking.warm_start import moved_nodes, still_useful


@st.composite
def changes(draw):
    """A plan, and rows, weights and ids after brokers have left, joined, moved or changed topics."""
    rows, interest, weights, _ = draw(instances(least_nodes=2, nodes=7))
    count = len(rows)
    early = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
    late = draw(st.permutations(sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))))
    topics = max(interest.topic_count, 1)
    before = bl.Interest.from_lists([rows[u] for u in early], topics=topics, node_ids=[str(u) for u in early])
    plan = bl.link(before, weights.subset(early), "broadloom")
    now = [rows[u] ^ draw(st.sets(st.integers(0, topics - 1), max_size=2)) for u in late]
    matrix = weights.matrix()
    if draw(st.booleans()):
        moved = draw(st.integers(0, count - 1))
        factor = draw(st.sampled_from([0.2, 0.5, 3.0]))
        matrix[moved] *= factor
        matrix[:, moved] *= factor
        weights = bl.Weights.dense(matrix)
    today = bl.Interest.from_lists(now, topics=topics, node_ids=[str(u) for u in late])
    return plan, now, today, weights.subset(late)


@settings(max_examples=300)
@given(changes())
def test_a_carried_bound_never_exceeds_the_optimum(change):
    """However much has changed; nor does one that is carried on from there."""
    plan, rows, today, weights = change
    if plan.division is None:
        return
    table = weights.matrix().tolist()
    matching = match_interests(plan.division.interest, today, moved_nodes(plan, today, weights))
    bound, division = carried_bound(plan.division, today, weights, matching)
    optimum, _ = naive.optimum(rows, table)
    assert 0.0 <= bound <= optimum
    matching = match_interests(today, plan.interest, np.zeros(plan.interest.node_count, bool))
    if plan.weights.kind != "dense" and weights.kind != "dense":  # nothing has moved
        again, _ = carried_bound(division, plan.interest, plan.weights, matching)
        before = [set(plan.interest.topics_of(u)) for u in range(plan.interest.node_count)]
        assert again <= naive.optimum(before, plan.weights.matrix().tolist())[0]


@settings(max_examples=200)
@given(changes())
def test_after_few_changes_a_plan_is_never_heavier_than_a_repair(change):
    plan, rows, today, weights = change
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ALWAYS_FEW", 100)
        after = bl.link(today, weights, "broadloom", previous=plan)
    assert after.algorithm == "broadloom+previous"
    assert naive.is_topic_connected(rows, [tuple(edge) for edge in after.edges.tolist()])
    assert after.lower_bound <= after.total_weight
    kept = still_useful(today, plan)
    added = merge_by_weight(components_of(today, kept), weights.arrays())
    repaired = np.concatenate((kept, added))
    assert after.total_weight <= weights.of(repaired[:, 0], repaired[:, 1]).sum() * (1 + 1e-12)


def relinked(nodes=80, topics=24, seed=0, **options):
    """A plan, and the interest and weights after two brokers have changed topics."""
    interest = bl.workload.interest(nodes, topics, "unif", sizes=(3, 10), seed=seed)
    weights = bl.workload.weights(nodes, "planar", seed=seed)
    rows = [list(interest.topics_of(u)) for u in range(nodes)]
    rows[3], rows[5] = rows[5], rows[3]
    plan = bl.link(interest, weights, "broadloom", **options)
    return plan, bl.Interest.from_lists(rows, topics=topics), weights


def test_few_changes_keep_most_links_and_most_of_the_bound():
    plan, today, weights = relinked()
    after = bl.link(today, weights, previous=plan)
    fresh = bl.link(today, weights)
    assert after.notes["start"] == "previous"
    assert after.notes["changed_brokers"] == 2
    assert len(after.notes["changes"]["added"]) < 0.2 * len(plan.edges)
    assert after.total_weight < 1.05 * fresh.total_weight
    assert after.gap < fresh.gap + 0.15
    assert bl.link(today, weights, previous=plan).overlay == after.overlay


def test_without_a_change_the_plan_and_its_bound_stay():
    plan, _, weights = relinked()
    after = bl.link(plan.interest, weights, previous=plan)
    assert after.overlay == plan.overlay
    assert after.lower_bound == pytest.approx(plan.lower_bound, rel=1e-9)
    again = bl.link(plan.interest, weights, previous=after)
    assert again.overlay == plan.overlay
    assert again.algorithm == "broadloom+previous"


def test_a_plan_that_was_saved_gets_a_new_bound(tmp_path):
    plan, today, weights = relinked()
    plan.save(tmp_path / "plan")
    loaded = bl.Plan.load(tmp_path / "plan")
    assert loaded.division is None
    after = bl.link(today, weights, previous=loaded)
    assert after.overlay == bl.link(today, weights, previous=plan).overlay
    assert 0 < after.lower_bound <= after.total_weight
    assert after.division is not None


@pytest.mark.parametrize("options", [{"effort": 1}, {"gap": 0.5}, {"seconds": 5.0, "effort": 1}])
def test_a_search_that_is_asked_for_is_made(options):
    plan, today, weights = relinked()
    after = bl.link(today, weights, previous=plan, **options)
    assert "changed_brokers" not in after.notes
    assert after.total_weight <= bl.link(today, weights, **options).total_weight


def test_many_changes_make_a_new_plan():
    plan, today, weights = relinked()
    few = today.subset(range(60))
    after = bl.link(few, weights.subset(range(60)), previous=plan)
    assert "changed_brokers" not in after.notes
    assert after.total_weight <= bl.link(few, weights.subset(range(60))).total_weight


def test_a_limit_on_links_is_kept():
    plan, today, weights = relinked(max_degree=8)
    after = bl.link(today, weights, previous=plan, max_degree=8)
    assert after.overlay.degrees().max() <= 8
    stricter = bl.link(today, weights, previous=bl.link(plan.interest, weights), max_degree=7)
    assert stricter.overlay.degrees().max() <= 7


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        (bl.Weights.uniform(3), bl.Weights.uniform(3), []),
        (bl.Weights.uniform(3), bl.Weights.sites([0, 0, 1]), [0, 1, 2]),
        (bl.Weights.sites([0, 0, 1]), bl.Weights.sites([0, 1, 1]), [1]),
        (bl.Weights.sites([0, 0, 1]), bl.Weights.sites([0, 0, 1], outer=9), [0, 1, 2]),
        (bl.Weights.euclidean([[0], [1], [3]]), bl.Weights.euclidean([[0], [2], [3]]), [1]),
        (bl.Weights.euclidean([[0], [1], [3]]), bl.Weights.euclidean([[0, 0], [1, 0], [3, 0]]), [0, 1, 2]),
        (
            bl.Weights.dense([[0, 1, 2], [1, 0, 3], [2, 3, 0]]),
            bl.Weights.dense([[0, 1, 5], [1, 0, 4], [5, 4, 0]]),
            [2],
        ),
    ],
)
def test_brokers_whose_weights_have_changed_are_found(old, new, moved):
    interest = bl.Interest.from_lists([[0], [0], [0]])
    plan = bl.link(interest, old, "grmaw")
    assert np.flatnonzero(moved_nodes(plan, interest, new)).tolist() == moved
