"""Record of a report: it has the values of the measures, in the order of the plan's brokers and links."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom import InputError, measures
from broadloom.maintenance import maintain
from broadloom.model import NotCarried, RowLedger, TableAccount
from broadloom.report import overlay_record, record_of, record_of_folders, report
from broadloom.report.html_page import as_script
from broadloom.report.overlay_record import failures
from broadloom.report.report_record import market_record
from broadloom.storage.tables import write_table
from strategies import instances


@pytest.fixture(scope="module")
def plan():
    """Thirty brokers in cloud regions."""
    interest = bl.workload.interest(nodes=30, topics=12, sizes=(2, 5), seed=0)
    return bl.link(interest, bl.workload.weights(nodes=30, kind="regions", seed=0), algorithm="grmaw")


@given(instances())
@settings(max_examples=25)
def test_any_plan_has_a_record_that_is_json(instance):
    interest, weights = instance
    plan = bl.link(interest, weights, algorithm="grmaw")
    record = json.loads(as_script(record_of({"plan": plan})))
    shown = record["plans"][0]
    shared = record["interests"][0]
    assert shown["links"]["u"] == plan.edges[:, 0].tolist()
    assert shared["brokers"] == list(interest.node_ids)
    assert [shared["members"][first:last] for first, last in pairwise(shared["start"])] == [
        interest.nodes_of(topic).tolist() for topic in range(interest.topic_count)
    ]


def test_loads_and_weak_points_are_the_measures(plan):
    shown = record_of({"plan": plan})["plans"][0]
    loads = measures.link_loads(plan.interest, plan.overlay, plan.weights)
    assert shown["links"]["load"] == loads.tolist()
    assert sum(shown["load"]) == 2 * loads.sum()
    assert shown["holds"] == measures.weak_points(plan.interest, plan.overlay).nodes.tolist()


def test_repairs_are_those_of_maintain(plan):
    """Each failure is computed from the whole overlay, independently of the others."""
    found = failures(plan, plan.overlay.degrees(), most=5)["failures"]
    assert len(found["brokers"]) == 5
    for broker, added in zip(found["brokers"], found["added"], strict=True):
        live = maintain(plan.interest, plan.weights, edges=plan.edges)
        assert live.leave(broker).added.tolist() == added
        assert bl.is_topic_connected(live.interest, live.edges)


def test_backups_are_those_of_maintain(plan):
    live = maintain(plan.interest, plan.weights, edges=plan.edges)
    shown = record_of({"plan": plan})["plans"][0]["backups"]
    assert shown == [live.backups(broker).tolist() for broker in range(30)]


def test_a_plan_with_a_disconnected_topic_has_no_repairs():
    interest = bl.Interest.from_lists([[0], [0]])
    broken = bl.Plan(interest, bl.Weights.uniform(2), bl.Overlay.from_edges(2, []), "by hand")
    shown = record_of({"broken": broken})["plans"][0]
    assert shown["failures"] is shown["backups"] is None
    assert shown["topics"]["hops"] == [None]


def test_small_topics_are_left_out_of_a_large_page(plan, monkeypatch):
    monkeypatch.setattr(overlay_record.shown_topics, "__defaults__", (40,))
    record = record_of({"plan": plan})
    shared = record["interests"][0]
    assert len(shared["members"]) <= 40
    assert shared["topicsInAll"] == 12 > len(shared["topics"])
    assert len(record["plans"][0]["topics"]["hops"]) == len(shared["topics"])


def test_plans_of_one_interest_share_it(plan):
    other = bl.link(plan.interest, plan.weights, algorithm="trmaw")
    unrelated = bl.link(bl.Interest.from_lists([[0], [0]]), algorithm="gm")
    record = record_of({"one": plan, "two": other, "three": unrelated})
    assert [shown["interest"] for shown in record["plans"]] == [0, 0, 1]


@pytest.mark.parametrize(
    ("columns", "positions"),
    [
        ({"lat": [10.0, 95.0], "lon": [20.0, 0.0]}, {"kind": "map", "x": [20, None], "y": [10, None]}),
        ({"latitude": [1, 2], "longitude": [3, 4]}, {"kind": "map", "x": [3, 4], "y": [1, 2]}),
        ({"site": ["aws/eu-west-2", "attic"]}, {"kind": "map", "x": [-0.13, None], "y": [51.51, None]}),
        ({"x": [0.0, 1.0], "y": [2.0, 3.0]}, {"kind": "plane", "x": [0, 1], "y": [2, 3]}),
        ({"x": [0.0, 1.0], "y": [2.0, np.nan]}, {"kind": "none"}),
        ({"lat": ["here", "there"], "lon": ["?", "?"]}, {"kind": "none"}),
        ({}, {"kind": "none"}),
    ],
)
def test_brokers_have_the_positions_of_their_table(columns, positions):
    interest = bl.Interest.from_lists([[0], [0]])
    nodes = pa.table({"node": ["0", "1"]} | columns)
    plan = bl.Plan(
        interest, bl.Weights.uniform(2), bl.Overlay.from_edges(2, [(0, 1)]), "by hand", nodes=nodes
    )
    assert record_of({"plan": plan})["interests"][0]["places"] == positions


def test_a_content_plan_shows_filters_loads_and_delays():
    problem = bl.workload.subscribers(set=1, subscribers=300, brokers=5, seed=0)
    result = bl.assign(problem, algorithm="gr")
    shown = record_of({"content": result})["plans"][0]
    assert sum(shown["load"]) == 300
    assert sum(shown["delays"]["counts"]) == 300
    assert [len(boxes) for boxes in shown["filters"]] == [len(boxes) for boxes in result.filters]


def test_a_market_is_read_from_its_folder(tmp_path):
    result = bl.assign(bl.workload.market(users=50, brokers=4, channels=8, seed=0), algorithm="random")
    result.save(tmp_path / "market")
    shown = market_record(tmp_path / "market", "market")
    assert sum(shown["load"]) == 50
    assert shown["metrics"]["cost"] == pytest.approx(result.cost)
    origin = {"source": str(tmp_path / "market"), "written": None}
    assert record_of_folders([tmp_path / "market"])["plans"][0] == shown | origin


def test_a_damaged_market_is_refused(tmp_path):
    (tmp_path / "plan.json").write_text('{"kind": "market", "algorithm": "random"}')
    with pytest.raises(InputError):
        record_of_folders([tmp_path])


def test_folders_are_named_by_the_part_that_differs(plan, tmp_path):
    for name in ("monday/plan", "tuesday/plan"):
        plan.save(tmp_path / name)
    names = [
        shown["name"] for shown in record_of_folders([tmp_path / "monday", tmp_path / "tuesday"])["plans"]
    ]
    assert names == ["monday/plan", "tuesday/plan"]
    with pytest.raises(InputError, match="given twice"):
        record_of_folders([tmp_path / "monday", tmp_path / "monday" / "plan"])


def test_a_run_shows_its_assignment_and_quarantined_rows(plan, tmp_path):
    run = tmp_path / "out"
    plan.save(run / "plan")
    problem = bl.workload.subscribers(set=1, subscribers=30, brokers=3, seed=0)
    bl.assign(problem, algorithm="gr").save(run / "assign")
    (run / "ingest").mkdir()
    RowLedger((TableAccount("nodes", 9, 3, 1, {"no node": 5}, 3),), ("a note",)).save(run / "ingest")
    rows = pa.table(
        {"table": ["nodes"] * 5, "row": ["x" * 500, "", None, "4", "5"], "reason": ["no node"] * 5}
    )
    write_table(run / "ingest", "quarantine", rows)
    record = record_of_folders([run])
    assert [(shown["name"], shown["kind"]) for shown in record["plans"]] == [
        ("plan", "overlay"),
        ("assign", "content"),
    ]
    assert record["rows"]["words"] == "9 rows: 3 used, 1 duplicates, 5 in quarantine"
    assert sorted(len(one["row"]) for one in record["rows"]["examples"]) == [0, 0, 200]


@pytest.mark.parametrize("folders", [[], ["nowhere"]])
def test_a_folder_that_is_not_a_plan_is_refused(folders, tmp_path):
    with pytest.raises(InputError):
        record_of_folders([tmp_path / name for name in folders])


@given(st.text())
def test_no_text_can_end_the_script_element(text):
    """For any name of a topic the record is the same after parsing, and has no `<`."""
    written = as_script({"topic": text})
    assert "<" not in written
    assert written.isascii()
    assert json.loads(written) == {"topic": text}


def test_the_same_plan_gives_the_same_page(plan):
    assert report({"plan": plan}) == report({"plan": plan})


def test_the_record_has_all_that_is_not_carried(plan):
    """And the loads of groups of filters, not of each filter by itself."""
    left_out = NotCarried([("0", "$SYS/#", "belongs to one broker")])
    shown = record_of({"p": replace(plan, not_carried=left_out)})["plans"][0]
    assert shown["notCarried"] == left_out.record()
    interest = bl.Interest.from_lists([["a/#"], ["a/b"], ["+/b"], ["c"]])
    record = record_of({"p": bl.link(interest, algorithm="gm")})
    grouped = record_of({"p": bl.link(interest.grouped(), algorithm="gm")})
    assert record["interests"][0]["topics"] == ["+/b, a/#, a/b", "c"]
    assert record["interests"][0]["members"] == grouped["interests"][0]["members"]
    for name in ("links", "load", "holds", "topics", "failures"):
        assert record["plans"][0][name] == grouped["plans"][0][name]
