"""Verify and measure on Spark: the same verdicts and numbers as in process."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
from broadloom import workload
from broadloom.measures import components_per_topic, topic_diameters
from broadloom.mqtt.topic_filters import FilterLookup, groups, is_filter, is_valid_filter
from broadloom.pipeline import spark_inspect
from broadloom.pipeline.spark_inspect import (
    PlanTables,
    measure_into,
    measure_on_spark,
    topics_on_spark,
    verify_on_spark,
    verify_plan,
)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan of 60 nodes; some topics have no subscriber, one has a single one, one has all nodes."""
    interest = workload.interest(nodes=60, topics=40, popularity="zipf", alpha=1.0, sizes=(3, 8), seed=1)
    lists = [[*interest.topics_of(u).tolist(), 40] for u in range(60)]
    lists[7].append(41)
    whole = bl.Interest.from_lists([*lists, []], topics=43)
    made = bl.link(whole, workload.weights(61, "planar", seed=2), algorithm="gm")
    folder = tmp_path_factory.mktemp("plans") / "plan"
    made.save(folder)
    return made, folder


def topics_of(spark, folder):
    """The rows of all topics of a plan, on Spark, by name."""
    tables = PlanTables(folder)
    with topics_on_spark(tables, tables.links(), spark, measured=True) as topics:
        return {row.topic: row for row in topics.collect()}


def no_spark():
    raise AssertionError("a small plan is inspected without Spark")


def test_a_good_plan_is_good(spark, plan):
    verdict = verify_on_spark(plan[1], spark=spark)
    assert verdict.good
    assert verdict.topics == 43
    assert verdict.summary() == "every one of 43 topics is connected"


@pytest.fixture
def broken(plan, tmp_path):
    """The plan without every third edge."""
    made, whole = plan
    folder = tmp_path / "broken"
    folder.mkdir()
    for table in ("nodes", "topics", "subscriptions", "edges"):
        rows = pyarrow.parquet.read_table(whole / f"{table}.parquet")
        if table == "edges":
            rows = rows.filter(np.arange(rows.num_rows) % 3 > 0)
        pyarrow.parquet.write_table(rows, folder / f"{table}.parquet")
    return bl.Overlay.from_edges(61, made.edges[np.arange(len(made.edges)) % 3 > 0]), folder


def test_components_equal_those_of_the_measure(spark, plan, broken):
    """Topic by topic with subscribers, on a good plan and on a broken one."""
    made = plan[0]
    for overlay, folder in ((made.overlay, plan[1]), broken):
        found = {name: row.components for name, row in topics_of(spark, folder).items()}
        expected = dict(
            zip(made.interest.topic_ids, components_per_topic(made.interest, overlay).tolist(), strict=True)
        )
        assert found == {name: count for name, count in expected.items() if count}


def test_a_broken_plan_is_detected(spark, plan, broken):
    verdict = verify_on_spark(broken[1], spark=spark)
    count = int(np.sum(components_per_topic(plan[0].interest, broken[0]) > 1))
    assert (verdict.disconnected, verdict.good) == (count, False)
    assert "topics are not connected" in verdict.summary()


def test_bad_links_are_detected(spark, broken):
    path = broken[1] / "edges.parquet"
    edges = pyarrow.parquet.read_table(path)
    worse = pyarrow.concat_tables([edges, edges.slice(0, 2)])
    pyarrow.parquet.write_table(worse, path)
    assert verify_on_spark(broken[1], spark=spark).bad_edges == 2


def test_measures_equal_those_of_metrics(spark, plan):
    made, folder = plan
    expected = made.metrics()
    for name, value in measure_on_spark(folder, spark=spark).items():
        assert value == pytest.approx(expected[name], rel=1e-12), name


def test_degrees_and_diameters_one_by_one(spark, plan, broken):
    made = plan[0]
    for overlay, folder in ((made.overlay, plan[1]), broken):
        found = {name: (row.hops, row.length) for name, row in topics_of(spark, folder).items()}
        hops, lengths = (topic_diameters(made.interest, overlay, kind) for kind in (None, made.weights))
        for topic in np.flatnonzero(np.diff(made.interest.node_start)).tolist():
            name = made.interest.topic_ids[topic]
            assert found[name] == pytest.approx((hops[topic], lengths[topic]), rel=1e-12)
        counted = PlanTables(folder).degrees()
        assert dict(zip(*(counted[name].to_pylist() for name in ("node", "degree")), strict=True)) == dict(
            zip(made.interest.node_ids, overlay.degrees().tolist(), strict=True)
        )


def test_overlapping_filters_count_as_one_topic_as_in_process(spark, tmp_path, capsys):
    """Verify and measure on Spark equal those in process, on a whole plan and on one without some links."""
    wanted = [["a/#", "x"], ["a/b", "x"], ["+/b", "c/+"], ["c/d"], ["c/+", "x"], ["#/", "$s/+"], ["$s/t"]]
    interest = bl.Interest.from_lists(wanted)
    weights = workload.weights(7, "planar", seed=3)
    whole = bl.link(interest, weights)
    grouped = interest.grouped()
    for name, kept in (("whole", len(whole.edges)), ("broken", 2)):
        made = replace(whole, overlay=bl.Overlay.from_edges(7, whole.edges[:kept]), lower_bound=None)
        folder = tmp_path / name
        whole.save(folder)
        edges = pyarrow.parquet.read_table(folder / "edges.parquet")
        pyarrow.parquet.write_table(edges.slice(0, kept), folder / "edges.parquet")
        expected = dict(zip(grouped.topic_ids, components_per_topic(grouped, made.overlay), strict=True))
        assert {name: row.components for name, row in topics_of(spark, folder).items()} == expected
        verdict = verify_on_spark(folder, spark=spark)
        assert (verdict.topics, verdict.filters) == (grouped.topic_count, 4)
        assert verdict.good == made.is_topic_connected() == (name == "whole")
        metrics = made.metrics()
        for measure, value in measure_on_spark(folder, spark=spark).items():
            assert value == pytest.approx(metrics[measure], rel=1e-12), measure
        alone, on_spark = (command(capsys, "verify", folder, *o) for o in ((), ("--master", "local[2]")))
        assert alone[1] == on_spark[1] == (name == "broken")
        assert on_spark[0] == {**alone[0], "disconnected": sorted(alone[0]["disconnected"]), "bad_edges": 0}
    assert "4 topic filters; those that overlap count as one topic" in verdict.summary()


def test_one_process_and_spark_write_the_same_measures(spark, plan, broken, tmp_path, monkeypatch):
    """Bit for bit, for any number of blocks; a small plan is inspected without Spark."""
    filters = tmp_path / "filters"
    wanted = [["a/#", "x", "b/1"], ["a/b", "x"], ["+/b", "c/+"], ["c/d"], ["c/+", "x"], ["+/1"]]
    bl.link(bl.Interest.from_lists(wanted), workload.weights(6, "planar", seed=3)).save(filters)
    for number, folder in enumerate((plan[1], broken[1], filters)):
        found = []
        for rows, block in ((10**9, 10**9), (-1, 10**9), (-1, 40)):
            monkeypatch.setattr(spark_inspect, "IN_PROCESS_ROWS", rows)
            monkeypatch.setattr(spark_inspect, "BLOCK_ROWS", block)
            start = no_spark if rows > 0 else lambda: spark
            out = tmp_path / f"{number}-{rows}-{block}"
            out.mkdir()
            measure_into(out, folder, start)
            topics = pyarrow.parquet.read_table(out / "topics.parquet").sort_by("topic").to_pylist()
            found.append((verify_plan(folder, start), (out / "measures.json").read_bytes(), topics))
        assert found[0] == found[1] == found[2]


@given(st.lists(st.text("ab+#/$", max_size=5).filter(bool), max_size=12))
def test_the_group_of_each_topic_follows_from_the_filters_alone(texts):
    """Topics are looked up one by one; the groups are those of all topics and filters together."""
    valid = sorted({text for text in texts if is_valid_filter(text)})
    found = FilterLookup(filter(is_filter, valid))
    names = {text: found.group(text) or text for text in valid}
    together = groups(valid)
    for one in valid:
        for other in valid:
            assert (names[one] == names[other]) == (together[one] == together[other])


def test_a_folder_that_is_not_a_plan_is_refused(spark, tmp_path):
    with pytest.raises(bl.InputError, match="is not a plan"):
        verify_on_spark(tmp_path, spark=spark)


def test_an_empty_plan_is_good(spark, tmp_path):
    """It has no topics and no links."""
    made = bl.link(bl.Interest.from_lists([[], []]), algorithm="gm")
    replace(made, notes={}).save(tmp_path / "plan")
    assert verify_on_spark(tmp_path / "plan", spark=spark).good
    measures = measure_on_spark(tmp_path / "plan", spark=spark)
    assert (measures["edges"], measures["mean_diameter"]) == (0, 0)
    assert json.dumps(measures)


def command(capsys, *words):
    """The JSON that a command prints, and its exit code."""
    from broadloom.cli import main

    with pytest.raises(SystemExit) as stopped:
        main([*map(str, words), "--json"])
    return json.loads(capsys.readouterr().out or "null"), stopped.value.code


def test_the_commands_print_the_same_with_a_master(spark, plan, broken, capsys):  # noqa: ARG001 (the commands use it)
    """Verify and measure print the same with and without Spark; the exit code is 1 for a broken plan."""
    for verb in ("verify", "measure"):
        alone, on_spark = (command(capsys, verb, plan[1], *where) for where in ((), ("--master", "local[2]")))
        assert alone[1] == on_spark[1] == 0
        shared = alone[0].keys() & on_spark[0].keys()
        assert len(shared) > 2
        assert all(on_spark[0][name] == pytest.approx(alone[0][name], rel=1e-12) for name in shared)
    assert command(capsys, "verify", broken[1], "--master", "local[2]")[1] == 1


def test_an_assignment_is_refused_on_spark(tmp_path, capsys):
    problem = bl.AssignmentProblem([0], [[1]], [-1], [[2]], [[0]], [[3]])
    bl.assign(problem, "closest").save(tmp_path / "plan")
    for verb in ("verify", "measure"):
        assert command(capsys, verb, tmp_path / "plan", "--conf", "spark.x=1")[1] == 2
