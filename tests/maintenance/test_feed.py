"""Events from files: applied once and in order, or set aside; and the command that does it."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
from broadloom import InputError
from broadloom.cli import main
from broadloom.maintenance.feed import Applied, Event, Feed, Refused, Seqs, read_events
from broadloom.model.tables import read_table


@given(st.lists(st.integers(0, 30), unique=True))
def test_ranges_are_a_set(numbers):
    seqs = Seqs()
    for number in numbers:
        assert number not in seqs
        seqs.add(number)
    assert [number for number in range(32) if number in seqs] == sorted(numbers)
    assert seqs.last == max(numbers, default=None)
    assert all(one[1] + 1 < other[0] for one, other in zip(seqs.ranges, seqs.ranges[1:], strict=False))


def event(seq, kind, node, topics=None):
    values = {"seq": seq, "kind": kind, "node": node, "topics": topics}
    return Event(json.dumps(values), values)


def test_events_are_sorted_and_every_one_is_applied_or_set_aside():
    live = bl.maintain(bl.Interest.from_lists([["t"], ["t"]], node_ids=["a", "b"]))
    feed = Feed(live)
    events = [event(3, "leave", "c"), event(1, "join", "c", ["t", "t"]), event(2, "subscribe", "c", ["new"])]
    events += [
        event(4, "join", "a", []),
        event(5, "leave", "nobody"),
        event(1, "join", "d"),
        Event("x", None),
    ]
    outcomes = list(feed.take(events))
    assert [one.seq for one in outcomes if isinstance(one, Applied)] == [1, 2, 3]
    reasons = [one.reason for one in outcomes if isinstance(one, Refused)]
    assert reasons == [
        "not a JSON object",
        "duplicate: its seq was applied before",
        "node is there already",
        "unknown node",
    ]
    late = list(feed.take([event(0, "join", "e")]))
    assert [one.reason for one in late] == ["late: a later seq was applied before"]


def test_files_of_all_kinds_say_the_same(tmp_path):
    rows = [
        {"seq": 0, "kind": "join", "node": "x", "topics": ["a", "b"]},
        {"seq": 1, "kind": "leave", "node": "x"},
    ]
    table = pa.table({name: [row.get(name) for row in rows] for name in ("seq", "kind", "node", "topics")})
    pa.parquet.write_table(table, tmp_path / "events.parquet")
    (tmp_path / "e.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "e.csv").write_text('seq,kind,node,topics\n0,join,x,"[""a"", ""b""]"\n1,leave,x,\n')
    said = [
        [(e.values["seq"], e.values["kind"], e.values.get("topics")) for e in read_events(place)]
        for place in (tmp_path, tmp_path / "e.jsonl", tmp_path / "e.csv")
    ]
    assert said[0] == said[1] == said[2] == [(0, "join", ["a", "b"]), (1, "leave", None)]
    with pytest.raises(InputError, match="is not there; give a file of events"):
        read_events(tmp_path / "nowhere.csv")


def run(*words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    return left.value.code


@pytest.fixture
def tables(tmp_path):
    """Tables of a small workload with churn."""
    words = ("generate", "--nodes", 40, "--topics", 15, "--sizes", 2, 5, "--weights", "planar", "--churn", 80)
    assert run(*words, "--change", 0.2, "-q", "-o", tmp_path / "tables") == 0
    return tmp_path / "tables"


def test_the_command_writes_a_verified_plan_a_round_a_row_and_a_summary(tables, tmp_path, capsys):
    out = tmp_path / "out"
    assert run("maintain", tables, "--events", tables, "--fresh-every", 40, "-o", out, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    rounds, links = read_table(out, "rounds"), read_table(out, "links")
    assert rounds.num_rows == 80 == sum(record[k]["rounds"] for k in ("join", "leave", "resubscribe"))
    assert {"ms_mean", "ms_p50", "ms_p99", "repair_edges", "repair_ratio", "shadow"} <= set(record["join"])
    assert record["against_fresh"]["rounds"] == 2
    assert record["metrics"]["topic_connected"]
    assert links.num_rows == sum(rounds.column("added").to_pylist() + rounds.column("removed").to_pylist())
    assert run("verify", out, "-q") == 0
    assert read_table(out, "quarantine").num_rows == 0


def test_the_command_sets_bad_events_aside_and_says_so(tables, tmp_path, capsys):
    (tmp_path / "e.jsonl").write_text('{"seq": 0, "kind": "leave", "node": "0"}\n{broken\n')
    assert run("maintain", tables, "--events", tmp_path / "e.jsonl", "-o", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "1 events applied, 1 in quarantine" in printed
    assert "not a JSON object" in printed


def test_the_command_starts_from_a_plan_and_takes_weights(tables, tmp_path, capsys):
    assert run("link", tables, "-a", "gm", "-q", "-o", tmp_path / "plan") == 0
    (tmp_path / "e.jsonl").write_text(
        '{"seq": 0, "kind": "join", "node": "new", "topics": ["1"], "at": [0.5, 0.5]}\n'
        '{"seq": 1, "kind": "join", "node": "nowhere", "topics": ["1"]}\n'
    )
    words = ("maintain", tables, "--events", tmp_path / "e.jsonl", "--plan", tmp_path / "plan")
    assert run(*words, "--weights", "auto", "-o", tmp_path / "out", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["join"]["rounds"] == 1
    assert list(record["quarantined"]) == ["the new node is at None; give its point: 2 finite numbers"]


def test_bad_input_is_one_line_and_exit_code_2(tables, tmp_path, capsys):
    assert run("maintain", tables, "--events", tmp_path / "none.csv", "-o", tmp_path / "out") == 2
    assert run("maintain", tables, "--events", tables, "--method", "x", "-o", tmp_path / "out") == 2
    assert run("maintain", tables, "--events", tables, "-o", tables) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert not Path(tmp_path / "out").exists()
