"""Events from files are applied once and in order, or quarantined; `broadloom maintain` does so."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
from broadloom import InputError
from broadloom.cli import main
from broadloom.maintenance import (
    AppliedEvent,
    EventFeed,
    EventRow,
    RefusedEvent,
    SequenceSet,
    event_of,
    events_of,
    read_events,
)
from broadloom.storage.tables import read_table


@given(st.lists(st.integers(0, 30), unique=True))
def test_a_sequence_set_has_the_added_numbers_in_separate_ranges(numbers):
    seqs = SequenceSet()
    for number in numbers:
        assert number not in seqs
        seqs.add(number)
    assert [number for number in range(32) if number in seqs] == sorted(numbers)
    assert seqs.last == max(numbers, default=None)
    assert all(lower[1] + 1 < upper[0] for lower, upper in zip(seqs.ranges, seqs.ranges[1:], strict=False))


def event(seq, kind, node, topics=None):
    """A row of events with these values."""
    values = {"seq": seq, "kind": kind, "node": node, "topics": topics}
    return EventRow(json.dumps(values), values)


def test_events_are_sorted_and_each_is_applied_or_quarantined():
    live = bl.maintain(bl.Interest.from_lists([["t"], ["t"]], node_ids=["a", "b"]))
    feed = EventFeed(live)
    events = [event(3, "leave", "c"), event(1, "join", "c", ["t", "t"]), event(2, "subscribe", "c", ["new"])]
    events += [
        event(4, "join", "a", []),
        event(5, "leave", "nobody"),
        event(1, "join", "d"),
        EventRow("x", None),
    ]
    outcomes = list(feed.take(events))
    assert [outcome.seq for outcome in outcomes if isinstance(outcome, AppliedEvent)] == [1, 2, 3]
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, RefusedEvent)]
    assert reasons == [
        "not a JSON object",
        "duplicate: its seq was applied before",
        "node exists already",
        "unknown node",
    ]
    late = list(feed.take([event(0, "join", "e")]))
    assert [outcome.reason for outcome in late] == ["late: a later seq was applied before"]


def test_files_of_all_formats_give_the_same_events(tmp_path):
    rows = [
        {"seq": 0, "kind": "join", "node": "x", "topics": ["a", "b"]},
        {"seq": 1, "kind": "leave", "node": "x"},
    ]
    table = pa.table({name: [row.get(name) for row in rows] for name in ("seq", "kind", "node", "topics")})
    pa.parquet.write_table(table, tmp_path / "events.parquet")
    (tmp_path / "e.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "e.csv").write_text('seq,kind,node,topics\n0,join,x,"[""a"", ""b""]"\n1,leave,x,\n')
    found = [
        [(e.values["seq"], e.values["kind"], e.values.get("topics")) for e in read_events(path)]
        for path in (tmp_path, tmp_path / "e.jsonl", tmp_path / "e.csv")
    ]
    assert found[0] == found[1] == found[2] == [(0, "join", ["a", "b"]), (1, "leave", None)]
    with pytest.raises(InputError, match="cannot be read: No such file or directory; give a file of events"):
        read_events(tmp_path / "nowhere.csv")


WEIGHTS = {
    "uniform": None,
    "euclidean": bl.Weights.euclidean([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]]),
    "sites": bl.Weights.sites([0, 0, 1]),
    "dense": bl.Weights.dense([[0, 1, 2], [1, 0, 3], [2, 3, 0]]),
}
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(categories=["L", "Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.parametrize("kind", WEIGHTS)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "seq": st.integers(0, 9) | ANY_JSON,
                "kind": st.sampled_from(["join", "leave", "subscribe", "unsubscribe"]) | ANY_JSON,
                "node": st.sampled_from("abcd") | ANY_JSON,
            },
            optional={"topics": st.lists(st.sampled_from(["t", "u"])) | ANY_JSON, "at": ANY_JSON},
        ),
        max_size=4,
    )
)
def test_no_content_of_an_event_stops_the_feed(kind, rows):
    """Every event is applied or quarantined, and all names and reasons can be written to tables."""
    interest = bl.Interest.from_lists([["t"]] * 3, node_ids=["a", "b", "c"])
    live = bl.maintain(interest, WEIGHTS[kind], method="naive")
    outcomes = list(EventFeed(live).take([event_of(json.dumps(row)) for row in rows]))
    assert len(outcomes) == len(rows)
    texts = [text for outcome in outcomes if isinstance(outcome, RefusedEvent) for text in outcome]
    texts += [live.name_of(node) for node in live.nodes.tolist()]
    pa.array([*texts, *live.topic_ids], pa.string())
    pa.array([outcome.seq for outcome in outcomes if isinstance(outcome, AppliedEvent)], pa.int64())
    assert bl.is_topic_connected(live.interest, live.edges)


@pytest.mark.parametrize(
    ("kind", "sites", "at", "message"),
    [
        ("euclidean", (), [5.0, 5.0], None),
        ("euclidean", (), "[5.0, 5.0]", None),
        ("euclidean", (), [0.0, 0.0], "at the point of another node"),
        ("euclidean", (), 3, "give its point: 2 finite numbers"),
        ("sites", (), [1], None),
        ("sites", (), 1, None),
        ("sites", (), "1", None),
        ("sites", (), [2.7], "the new node's site is 2.7; give a whole number"),
        ("sites", ("fra", "nyc"), "nyc", None),
        ("sites", ("fra", "nyc"), ["nyc"], None),
        ("sites", ("fra", "nyc"), 2.7, "the new node's site is 2.7"),
        ("sites", ("7", "8"), 8, None),
        ("sites", ("7", "8"), [8.0], None),
        ("dense", (), {"a": 1, "b": 2, "c": 3, "gone": 4}, None),
        ("dense", (), '{"a": 1, "b": 2, "c": 3}', None),
        ("dense", (), {"a": 1}, "no weight to 'b'"),
        ("dense", (), [1, 2, 3], "no weight to 'a'"),
        ("uniform", (), [1.0], None),
    ],
)
def test_a_location_is_written_as_in_tables_or_refused(kind, sites, at, message):
    interest = bl.Interest.from_lists([["t"]] * 3, node_ids=["a", "b", "c"])
    live = bl.maintain(interest, WEIGHTS[kind], sites=sites)
    values = {"seq": 1, "kind": "join", "node": "d", "topics": ["t"], "at": at}
    [outcome] = EventFeed(live).take([event_of(json.dumps(values))])
    if message is None:
        assert isinstance(outcome, AppliedEvent), outcome
        if kind == "sites":
            assert live.plan().weights.site[3] == 1
            assert outcome.change.added.tolist() == [[2, 3]], "linked to the node of the same site"
    else:
        assert message in outcome.reason


def test_unknown_sites_and_wrong_names_of_sites_are_refused():
    weights = bl.Weights.sites([0, 1], between=[[1, 2], [2, 1]])
    live = bl.maintain(bl.Interest.from_lists([["t"]] * 2), weights, sites=["fra", "nyc"])
    with pytest.raises(InputError, match="there is no site 'sin'; there are fra, nyc"):
        live.join(["t"], at="sin")
    assert live.site_ids == ("fra", "nyc")
    with pytest.raises(InputError, match="1 names for 2 sites"):
        bl.maintain(bl.Interest.from_lists([["t"]] * 2), weights, sites=["fra"])
    with pytest.raises(InputError, match="the weights are uniform; leave them out"):
        bl.maintain(bl.Interest.from_lists([["t"]] * 2), sites=["fra"])


def test_a_bad_row_is_quarantined_alone_and_a_bad_file_is_an_error():
    """Bad rows: too short, an open quote, bytes that are not text. Blank lines are ignored."""
    rows = events_of("e.csv", b'\xef\xbb\xbfseq,kind,node\n1,leave,a\n2\n\n3,leave,"b\n\r\n4,leave,\xff\n')
    feed = EventFeed(bl.maintain(bl.Interest.from_lists([["t"], ["t"]], node_ids=["a", "b"])))
    reasons = [outcome.reason for outcome in feed.take(rows) if isinstance(outcome, RefusedEvent)]
    assert reasons == [
        "wrong number of fields",
        "not a row of CSV: unexpected end of data",
        "node is not a text",
    ]
    assert feed.live.named("a") is None
    assert len(events_of("e.json", b'\n{"seq": 1}\n\n{"seq": 2}\n')) == 2
    for name, data, message in (
        ("e.parquet", b"PAR1abc", "e.parquet cannot be read"),
        ("e.csv.gz", b"abc", "e.csv.gz is truncated or damaged"),
        ("e.xml", b"<a/>", "e.xml has an unknown ending"),
    ):
        with pytest.raises(InputError, match=message):
            events_of(name, data)


def test_two_tables_of_events_are_refused(tmp_path):
    for ending in ("csv", "jsonl"):
        (tmp_path / f"events.{ending}").write_text("")
    with pytest.raises(InputError, match=r"has both events\.csv and events\.jsonl; keep one"):
        read_events(tmp_path)


def run(*arguments):
    """Run `broadloom ...` in this process, and return the exit code."""
    with pytest.raises(SystemExit) as exited:
        main([str(argument) for argument in arguments])
    return exited.value.code


@pytest.fixture
def tables(tmp_path):
    """Tables of a small workload with churn."""
    size = ("--nodes", 40, "--topics", 15, "--sizes", 2, 5)
    churn = ("--churn", 80, "--change", 0.2)
    assert run("generate", *size, "--weights", "planar", *churn, "-q", "-o", tmp_path / "tables") == 0
    return tmp_path / "tables"


def test_the_command_writes_a_verified_plan_one_row_per_round_and_a_summary(tables, tmp_path, capsys):
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


def test_the_command_rebuilds_when_a_rebuild_is_due(tables, tmp_path, capsys):
    """From a plan with too many links: the rebuild's links are in the output, and the mean degree falls."""
    out = tmp_path / "out"
    assert run("link", tables, "-a", "trmaw", "-q", "-o", tmp_path / "plan") == 0
    command = ("maintain", tables, "--events", tables, "--plan", tmp_path / "plan", "--fresh-every", 20)
    assert run(*command, "--weights", "uniform", "--rebaseline", "-o", out, "--json") == 0
    record = json.loads(capsys.readouterr().out)
    rounds = read_table(out, "rounds").to_pylist()
    index = [row["kind"] for row in rounds].index("rebaseline")
    event, rebuilt = rounds[index - 1], rounds[index]
    assert index == 20
    assert event["seq"] == rebuilt["seq"]
    assert event["mean_degree"] - event["fresh_mean_degree"] > 0.8
    assert rebuilt["mean_degree"] <= 1.02 * rebuilt["fresh_mean_degree"]
    assert record["rebaseline"]["rounds"] == record["metrics"]["rebaselines"] == len(rounds) - 80
    assert links_after(tmp_path / "plan", out) == links_of(bl.Plan.load(out))
    assert run("verify", out, "-q") == 0


def links_of(plan):
    """The links of a plan as pairs of node names."""
    names = plan.interest.node_ids
    return {frozenset((names[u], names[v])) for u, v in plan.edges.tolist()}


def links_after(plan, out):
    """The links of a plan after the additions and removals in the table of links, in order."""
    links = links_of(bl.Plan.load(plan))
    for row in read_table(out, "links").to_pylist():
        (links.add if row["action"] == "add" else links.remove)(frozenset((row["u"], row["v"])))
    return links


def test_the_command_quarantines_bad_events_and_reports_them(tables, tmp_path, capsys):
    (tmp_path / "e.jsonl").write_text('{"seq": 0, "kind": "leave", "node": "0"}\n{broken\n')
    assert run("maintain", tables, "--events", tmp_path / "e.jsonl", "-o", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "1 events applied, 1 in quarantine" in printed
    assert "not a JSON object" in printed


def test_the_command_starts_from_a_plan_and_uses_weights(tables, tmp_path, capsys):
    assert run("link", tables, "-a", "gm", "-q", "-o", tmp_path / "plan") == 0
    (tmp_path / "e.jsonl").write_text(
        '{"seq": 0, "kind": "join", "node": "new", "topics": ["1"], "at": [0.5, 0.5]}\n'
        '{"seq": 1, "kind": "join", "node": "nowhere", "topics": ["1"]}\n'
    )
    command = ("maintain", "--events", tmp_path / "e.jsonl", "--plan", tmp_path / "plan")
    assert run(*command, "-o", tmp_path / "out", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["join"]["rounds"] == 1
    assert list(record["quarantined"]) == ["the new node has no position; give its point: 2 finite numbers"]
    nodes = read_table(tmp_path / "out", "nodes").to_pylist()
    assert nodes[-1] == {"node": "new", "id": 40, "x": 0.5, "y": 0.5}
    assert nodes[:40] == [
        row | {"id": node} for node, row in enumerate(read_table(tables, "nodes").to_pylist())
    ]


def test_the_command_keeps_addresses_and_names_brokers_without_one(tmp_path, capsys):
    """From a plan alone: no tables. A broker that joins has the address of its event."""
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "nodes.csv").write_text("node,address\na,10.0.0.1:8883\nb,b.example.org\n")
    (tables / "subscriptions.csv").write_text("node,topic\na,t\nb,t\nb,$SYS/#\n")
    (tables / "latency.csv").write_text("src,dst,rtt_ms\na,b,12\n")
    assert run("link", tables, "-q", "-o", tmp_path / "plan") == 0
    rows = [
        {"node": "c", "at": {"a": 5, "b": 6}, "address": "c.example.org"},
        {"node": "d", "at": {"a": 5, "b": 6, "c": 7}},
    ]
    lines = [{"seq": seq, "kind": "join", "topics": ["t"]} | row for seq, row in enumerate(rows)]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("maintain", "--plan", tmp_path / "plan", "--events", tmp_path / "e.jsonl")
    assert run(*command, "-o", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    assert "WARNING: 1 brokers without an address: d; give the field address" in printed
    assert "not carried: 1 subscription\n  topic of the broker itself: '$SYS/#' at b" in printed
    addresses = read_table(tmp_path / "out", "nodes").column("address").to_pylist()
    assert addresses == ["10.0.0.1:8883", "b.example.org", "c.example.org", None]
    assert bl.Plan.load(tmp_path / "out").weights.of([0, 0], [1, 2]).tolist() == [12, 5]
    assert run(*command, "-o", tmp_path / "more", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["brokers_without_address"] == ["d"]
    assert [row["topic"] for row in record["not_carried"]["subscriptions"]] == ["$SYS/#"]
    assert run("maintain", "--events", tmp_path / "e.jsonl", "-o", tmp_path / "no") == 2
    assert "there are no tables and no plan" in capsys.readouterr().err


def test_the_command_says_how_many_events_of_a_stream_it_refused(tmp_path, capsys, monkeypatch):
    counts = {"output": "followed", "version": 2, "batches": 1, "applied": 1200, "quarantined": 4}
    monkeypatch.setattr("broadloom.cli.maintain._streamed", lambda *_, **__: counts)
    words = ("--events", tmp_path, "--stream", "--once", "-o", tmp_path / "followed")
    assert run("maintain", tmp_path, *words) == 0
    assert "1,200 events applied, 4 in quarantine, batches: 1 -> " in capsys.readouterr().out


def test_the_command_says_that_it_reads_publishers_from_a_plan_only(tables, tmp_path, capsys):
    """`links.json` of tables counts for `link`; maintenance without a plan says that it does not."""
    command = ("maintain", tables, "--events", tables)
    assert run(*command, "-o", tmp_path / "one") == 0
    assert "links.json" not in capsys.readouterr().out
    (tables / "links.json").write_text('{"publishers": "observed", "max_degree": 3}')
    assert run(*command, "-o", tmp_path / "two") == 0
    assert "WARNING: without --plan, links.json and publications are not read" in capsys.readouterr().out


def test_the_command_takes_an_algorithm_as_the_other_stages_do(tables, tmp_path, capsys):
    """`--algorithm` and its older name `--method` run the same; two different names are refused."""
    command = ("maintain", tables, "--events", tables)
    for number, option in enumerate(("--algorithm", "--method", "-a")):
        assert run(*command, option, "naive", "-o", tmp_path / str(number), "--quiet") == 0
        record = json.loads((tmp_path / str(number) / "plan.json").read_text())
        assert record["algorithm"] == "naive"
    assert run(*command, "--algorithm", "shadow", "--method", "naive", "-o", tmp_path / "out") == 2
    assert "give only algorithm" in capsys.readouterr().err


def test_bad_input_is_one_line_and_exit_code_2(tables, tmp_path, capsys):
    assert run("maintain", tables, "--events", tmp_path / "none.csv", "-o", tmp_path / "out") == 2
    assert run("maintain", tables, "--events", tables, "--method", "x", "-o", tmp_path / "out") == 2
    assert run("maintain", tables, "--events", tables, "-o", tables) == 2
    assert run("maintain", tables, "--events", tables, "--once", "-o", tmp_path / "out") == 2
    assert run("maintain", tables, "--events", tables, "--fresh-every", -1, "-o", tmp_path / "out") == 2
    assert run("maintain", tables, "--events", tables, "--rebaseline", "-o", tmp_path / "out") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert "--once is for a stream; add --stream" in lines[3]
    assert "--rebaseline works together with --fresh-every" in lines[5]
    assert not Path(tmp_path / "out").exists()


def test_the_command_takes_sites_by_name(tmp_path, capsys):
    """Sites have names in the tables and in the events."""
    tables = tmp_path / "tables"
    tables.mkdir()
    (tables / "nodes.csv").write_text("node,site\na,fra\nb,fra\nc,nyc\n")
    (tables / "subscriptions.csv").write_text("node,topic\na,t\nb,t\nc,t\n")
    (tables / "events.csv").write_text(
        'seq,kind,node,topics,at\n1,join,d,"[""t""]",nyc\n2,join,e,"[""t""]",sin\n'
    )
    command = ("maintain", tables, "--events", tables, "--weights", "sites", "-o", tmp_path / "out", "--json")
    assert run(*command) == 0
    assert json.loads(capsys.readouterr().out)["quarantined"] == {}
    links = {
        (row["u"], row["v"]) for row in read_table(tmp_path / "out", "links").to_pylist() if row["seq"] == 1
    }
    assert links == {("c", "d")}
