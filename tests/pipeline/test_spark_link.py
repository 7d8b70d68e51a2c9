"""Link on Spark: the plan of the in-process dcmaw, byte for byte, however the work is divided."""

import numpy as np
import pytest

import broadloom as bl
from broadloom import workload
from broadloom.linking import DivideOptions, divide, members
from broadloom.pipeline.spark_link import bounded, kmeans, link_on_spark

pytestmark = pytest.mark.spark


def contents(plan, folder):
    plan.save(folder)
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


@pytest.mark.parametrize("kind", ["sites", "planar", "regions", "dense", "uniform"])
def test_the_plan_equals_the_in_process_one_byte_for_byte(spark, tmp_path, kind):
    interest = workload.interest(nodes=150, topics=40, popularity="zipf", alpha=1.0, sizes=(2, 8), seed=4)
    weights = bl.Weights.uniform(150) if kind == "uniform" else None
    if kind == "sites":
        weights = workload.weights(150, "sites", site_size=30)
    elif kind == "dense":
        weights = bl.Weights.dense(workload.weights(150, "planar", seed=1).matrix())
    elif weights is None:
        weights = workload.weights(150, kind, seed=1)
    options = {} if kind in ("sites", "regions") else {"by": "random", "part_size": 40}
    expected = bl.link(interest, weights, "dcmaw", seed=3, **options)
    found = link_on_spark(interest, weights, seed=3, spark=spark, **options)
    assert contents(found, tmp_path / "spark") == contents(expected, tmp_path / "process")


def test_overlapping_filters_are_linked_as_one_topic(spark, tmp_path):
    """As in process; the plan has the filters, and every group is connected."""
    drawn = workload.interest(nodes=60, topics=40, popularity="zipf", alpha=1.0, sizes=(2, 8), seed=4)
    names = [f"t{topic % 8}/{topic}" for topic in range(38)] + ["t1/#", "+/7"]
    interest = bl.Interest.from_rows(drawn.topic_start, drawn.topics, names)
    weights = workload.weights(60, "sites", site_size=15)
    found = link_on_spark(interest, weights, spark=spark)
    assert found.interest == interest
    assert found.is_topic_connected()
    assert contents(found, tmp_path / "spark") == contents(
        bl.link(interest, weights, "dcmaw"), tmp_path / "process"
    )


def test_groups_of_parts_are_joined_by_tasks_level_by_level(spark):
    interest = workload.interest(nodes=150, topics=40, popularity="zipf", alpha=1.0, sizes=(2, 8), seed=4)
    weights = workload.weights(150, "sites", site_size=15)
    expected = bl.link(interest, weights, "dcmaw", parts_at_a_time=3)
    assert (
        link_on_spark(interest, weights, spark=spark, parts_at_a_time=3).edges.tolist()
        == expected.edges.tolist()
    )


def test_one_huge_site_and_a_topic_of_all_nodes(spark):
    """A part above the limit is cut, and the plan equals that of the in-process dcmaw for the same cuts."""
    drawn = workload.interest(nodes=200, topics=30, sizes=(1, 5), seed=2)
    interest = bl.Interest.from_lists([[*drawn.topics_of(u), 30] for u in range(200)], topics=31)
    weights = bl.Weights.sites([0] * 170 + [1] * 30)
    cut = bounded(interest, weights, divide(weights, DivideOptions(), 0), 4000)
    assert len(members(cut)) > 3
    assert all((cut[nodes] == cut[nodes[0]]).all() for nodes in members(cut))
    found = link_on_spark(interest, weights, spark=spark, part_bytes=4000)
    expected = bl.link(interest, weights, "dcmaw", part_of_node=cut.tolist())
    assert found.edges.tolist() == expected.edges.tolist()
    assert np.all(np.diff(np.flatnonzero(np.diff(cut))) > 0)


@pytest.mark.parametrize("lists", [[], [[0]], [[], []], [[0], [0]]])
def test_tiny_interests_have_the_in_process_plan(spark, lists):
    interest = bl.Interest.from_lists(lists)
    assert (
        link_on_spark(interest, spark=spark).edges.tolist()
        == bl.link(interest, algorithm="dcmaw").edges.tolist()
    )


def test_division_by_mllib(spark):
    """MLlib's k-means finds two clouds that are far apart, and the same ones each time."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.normal(0, 1, (30, 2)), rng.normal(50, 1, (30, 2))])
    part = kmeans(spark, points, 2, seed=1)
    assert len(set(part[:30].tolist())) == len(set(part[30:].tolist())) == 1
    assert part[0] != part[-1]
    interest = workload.interest(nodes=60, topics=10, sizes=(1, 4), seed=0)
    weights = bl.Weights.euclidean(points)
    found = link_on_spark(interest, weights, seed=1, spark=spark, mllib=True, part_size=30)
    assert (
        found.edges.tolist() == bl.link(interest, weights, "dcmaw", part_of_node=part.tolist()).edges.tolist()
    )


def test_mllib_needs_coordinates(spark):
    with pytest.raises(bl.InputError, match="needs coordinates"):
        link_on_spark(bl.Interest.from_lists([[0], [0]]), spark=spark, mllib=True)
