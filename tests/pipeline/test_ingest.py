"""Ingest: every row is used, a duplicate, or in quarantine, as in the naive ingest."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from test_formats import EMQX, KAFKA, MOSQUITTO, VERNEMQ

import naive_ingest
from broadloom import InputError, Interest, InternalError, maintain, workload
from broadloom.maintenance import AppliedEvent, EventFeed, read_events
from broadloom.model import RowLedger, read_link_problem
from broadloom.pipeline.ingest import (
    RawSource,
    find_files,
    ingest,
    raw_rows,
    raw_to_tables,
    row_checks,
    tallies,
)
from broadloom.storage.tables import require_table
from broadloom.workload.device_logs import FAULTS

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    """Raw inputs of 20 brokers, one row in ten bad, and the faults that were planted in them."""
    folder = tmp_path_factory.mktemp("devices") / "raw"
    return folder, workload.devices(folder, brokers=20, subscriptions=20_000, bad=0.1, seed=3)


@pytest.fixture(scope="module")
def ingested(raw, spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("devices") / "tables"
    return folder, ingest([str(raw[0])], folder, symmetric="mean", spark=spark)


def rows_of(folder, table, *columns):
    read = pa.parquet.read_table(folder / f"{table}.parquet")
    return sorted(zip(*(read.column(name).to_pylist() for name in columns), strict=True))


def account(ledger, table):
    return next(one for one in ledger.accounts if one.table == table)


@pytest.mark.parametrize("wildcards", ["group", "match"])
def test_ingest_equals_the_naive_ingest(raw, ingested, spark, tmp_path, wildcards):
    """Rows, reasons, duplicates, interest and what is not carried equal those of a plain Python program."""
    nodes = {line.split(",")[0] for line in (raw[0] / "nodes.csv").read_text().split()[1:]}
    topics = set((raw[0] / "topics.csv").read_text().split()[1:])
    files = sorted(raw[0].glob("subscriptions-*.csv"))
    folder, ledger = ingested
    if wildcards == "match":
        folder = tmp_path / "matched"
        ledger = ingest([str(raw[0])], folder, wildcards="match", spark=spark)
    rows, reasons, duplicates, pairs, left_out = naive_ingest.ingest(files, nodes, topics, wildcards)
    found = account(ledger, "subscriptions")
    assert (found.rows, found.duplicates) == (rows, duplicates)
    assert found.quarantined == dict(reasons)
    assert rows_of(folder, "subscriptions", "node", "topic") == sorted(pairs)
    assert rows_of(folder, "not_carried", "node", "topic") == sorted(left_out)
    notes = [note for note in ledger.notes if note.startswith("not carried: ")]
    counts = [int(note.split()[2].replace(",", "")) for note in notes]
    assert sum(counts) == len(left_out)
    assert any("topics of it that are known" in note for note in notes) == (wildcards == "match")


def test_all_planted_faults_are_found(raw, ingested):
    planted = {}
    for name, count in raw[1].items():
        if name != "repeated":
            planted[FAULTS[name][0]] = planted.get(FAULTS[name][0], 0) + count
    assert account(ingested[1], "subscriptions").quarantined == planted


def test_the_quarantine_has_the_original_rows(raw, ingested):
    lines = b"\n".join(file.read_bytes() for file in raw[0].glob("subscriptions-*.csv")).split(b"\n")
    quarantined = require_table(ingested[0], "quarantine")
    assert quarantined.num_rows == sum(account(ingested[1], "subscriptions").quarantined.values())
    for row in quarantined.column("row").to_pylist():
        assert (bytes.fromhex(row[4:]) if row.startswith("hex:") else row.encode()) in lines


def test_the_tables_can_be_linked(ingested):
    problem = read_link_problem(ingested[0])
    assert problem.interest.node_count == 20
    assert problem.weights.kind == "sites"


def test_twenty_thousand_rows_take_few_jobs(raw, spark, tmp_path):
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    before = set(jobs())
    ingest([str(raw[0])], tmp_path / "tables", spark=spark)
    assert 0 < len(set(jobs()) - before) <= 40


def test_the_ledger_is_saved(ingested):
    assert RowLedger.load(ingested[0]) == ingested[1]


def test_all_kinds_of_text_files_are_read(tmp_path, spark):
    """Byte order mark, Windows line ends, quotes, tabs, no last line end, compressed, JSON lines, Parquet."""
    (tmp_path / "bom.csv").write_bytes(b'\xef\xbb\xbfnode,topic,client\r\n"a","t,1",c\r\na, t/2 ,"c""c"\r\n')
    (tmp_path / "tabs.csv").write_bytes(b"topic\tnode\nt/3\tb")
    (tmp_path / "packed.csv.gz").write_bytes(gzip.compress(b"node,topic\nb,$share/g/t/4\nnode,topic\n"))
    lines = [
        '{"node": "c", "topic": "t/5"}',
        '{"node": "c"',
        '{"node": "c"} {"node": "d"}',
        "",
        '{"topic": "t"}',
    ]
    (tmp_path / "lines.jsonl").write_text("\n".join(lines))
    pa.parquet.write_table(
        pa.table({"node": ["d", None], "topic": ["t/6", "t/6"]}), tmp_path / "rows.parquet"
    )
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    found = account(ledger, "subscriptions")
    assert rows_of(tmp_path / "out", "subscriptions", "node", "topic") == [
        ("a", "t,1"),
        ("a", "t/2"),
        ("b", "t/3"),
        ("b", "t/4"),
        ("c", "t/5"),
        ("d", "t/6"),
    ]
    assert found.quarantined == {"not a JSON object": 2, "blank line": 1, "no node": 2}
    assert (found.rows, found.used) == (11, 6)


def test_complete_rows_of_damaged_files_are_used(tmp_path, spark):
    """A row truncated at the end, a header alone, a line of megabytes, NUL bytes, another encoding."""
    (tmp_path / "cut.csv").write_bytes(b"node,topic,client\na,t/1,c1\na,t/2,c2\na,t/")
    (tmp_path / "bare.csv").write_bytes(b"topic,node,client\n")
    (tmp_path / "long.csv").write_bytes(
        b"node;topic\na;" + b"x/" * 1_000_000 + b"x\nb;" + b'"' * 999_999 + b"\n"
    )
    (tmp_path / "zeros.csv").write_bytes(b"node,topic\nc,t\0x\nc,\0\0\n" + "é,t/3\nü,t/4\n".encode("latin-1"))
    (tmp_path / "lines.jsonl").write_bytes(
        b'{"node": "d", "topic": "t/5"}\n{"node": "d", "topic": ["t"]}\n{"no'
    )
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    found = account(ledger, "subscriptions")
    used = {("a", "t/1"), ("a", "t/2"), ("a", "x/" * 1_000_000 + "x"), ("d", "t/5"), ("d", '["t"]')}
    assert set(rows_of(tmp_path / "out", "subscriptions", "node", "topic")) == used
    assert (found.rows, found.used, sum(found.quarantined.values())) == (12, 5, 7)
    assert found.quarantined["not UTF-8"] == 2
    assert found.quarantined["not a topic filter"] == 2
    assert require_table(tmp_path / "out", "quarantine").num_rows == 7


@pytest.mark.parametrize("large", [False, True])
def test_a_folder_of_dumps_is_recognised(tmp_path, spark, monkeypatch, large):
    """A folder of dumps, each recognised; brokers are named by the dump, by the user, or by the file.

    Small dumps come from Spark, and large ones are read in blocks by the tasks.
    """
    if large:
        monkeypatch.setattr(raw_rows, "LARGE_DUMP", 0)
    for name, text in (
        ("emqx.json", EMQX),
        ("kafka.txt", KAFKA),
        ("oslo.1.log", MOSQUITTO),
    ):
        (tmp_path / name).write_text(text)
    (tmp_path / "v.txt.gz").write_bytes(gzip.compress(VERNEMQ.encode()))
    (tmp_path / "with #1%20.json").write_text(EMQX[:-30])
    ledger = ingest(
        [f"kafka@cluster={tmp_path}/kafka.txt", *map(str, sorted(tmp_path.glob("[evow]*")))],
        tmp_path / "out",
        spark=spark,
    )
    found = account(ledger, "subscriptions")
    assert rows_of(tmp_path / "out", "wanted", "node", "filter", "clients", "rows") == [
        ("cluster", "orders", 1, 2),
        ("e1", "#", 1, 1),
        ("e1", "t/1", 1, 2),
        ("oslo", "t/3", 1, 1),
        ("v1", "t/+", 1, 1),
        ("v1", "t/1", 1, 1),
    ]
    assert found.quarantined["cut in the middle"] == 1
    quarantine = require_table(tmp_path / "out", "quarantine")
    assert f"file:{tmp_path}/with #1%20.json" in quarantine["source"].to_pylist()
    assert found.duplicates == 2
    assert ("e1", "#") in rows_of(tmp_path / "out", "subscriptions", "node", "topic")


def test_filters_stay_as_clients_wrote_them(tmp_path, spark):
    """Without `$share/<group>/`; the filters that overlap are one topic for link."""
    (tmp_path / "subscriptions.csv").write_text(
        "node,topic,client\na,t/#,1\nb,t/1,2\nc,$share/g/+/1,3\nd,u/v,4\nd,$queue/u/v,5\ne,$SYS/#,6\n"
    )
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    assert rows_of(tmp_path / "out", "subscriptions", "node", "topic") == [
        ("a", "t/#"),
        ("b", "t/1"),
        ("c", "+/1"),
        ("d", "u/v"),
    ]
    problem = read_link_problem(tmp_path / "out")
    assert problem.interest.grouped().topic_ids == ("+/1", "u/v")
    assert problem.not_carried == (("e", "$SYS/#", "topic of the broker itself"),)
    assert problem.interest.node_ids == ("a", "b", "c", "d", "e")
    assert ledger.notes == ("not carried: 1 subscriptions, topic of the broker itself ('$SYS/#' at e)",)


def test_a_filter_that_overlaps_everything_has_a_note(tmp_path, spark):
    topics = "".join(f"a,t/{number}\n" for number in range(30))
    (tmp_path / "subscriptions.csv").write_text(f"node,topic\n{topics}b,#\n")
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    assert ledger.notes == ("31 topics and topic filters overlap and count as one topic, named '#'",)
    ledger = ingest([str(tmp_path / "subscriptions.csv")], tmp_path / "m", wildcards="match", spark=spark)
    assert ledger.notes == (
        "filter '#' matches 30 of 30 topics",
        "not carried: 1 subscriptions, carried only as the 30 topics of it that are known ('#' at b)",
    )


def test_match_keeps_filters_that_match_no_known_topic(tmp_path, spark):
    """And what overlaps them; `a/#` is replaced by `a/b` and by the part of it that `+/+/c` wants."""
    (tmp_path / "subscriptions.csv").write_text("node,topic\nr,a/#\ns,a/b\nt,+/+/c\nt,x/+\nu,x/y/#\n")
    ingest([str(tmp_path)], tmp_path / "out", wildcards="match", spark=spark)
    assert rows_of(tmp_path / "out", "subscriptions", "node", "topic") == [
        ("r", "a/+/c"),
        ("r", "a/b"),
        ("s", "a/b"),
        ("t", "+/+/c"),
        ("t", "x/+"),
        ("u", "x/y/#"),
    ]
    assert rows_of(tmp_path / "out", "not_carried", "node", "topic") == [("r", "a/#")]


def test_a_shared_subscription_at_several_brokers_has_a_note(tmp_path, spark):
    """The same group at one broker, or groups of different names, have none."""
    rows = (
        "a,$share/g/t,1\na,$share/g/t,2\nb,$share/g/t,3\nb,$share/h/t,4\nc,t,5\nc,$queue/u,6\na,$queue/u,7\n"
    )
    (tmp_path / "subscriptions.csv").write_text(f"node,topic,client\n{rows}")
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    copies = "the group of each broker receives a copy of its own"
    assert ledger.notes == (
        f"shared subscription '$queue/u' is at 2 brokers (a, c); {copies}",
        f"shared subscription '$share/g/t' is at 2 brokers (a, b); {copies}",
    )
    assert account(ledger, "subscriptions").used == 7


def test_further_columns_of_nodes_survive(tmp_path, spark):
    """As text, or as numbers where they are known to be; of Parquet in their types; whatever their names."""
    (tmp_path / "nodes.csv").write_text(
        "broker,Address,kind,lat,lon,capacity,source,line,my rack\n"
        "a,a.example:8883,emqx,1.5,-2,50000,x,7,r 1\nb,,,,,,,,\nc,c:1,,north,,,,,\n"
    )
    (tmp_path / "nodes-2.jsonl").write_text('{"node": "d", "address": "d:1883", "lat": 3, "tier": 2}\n')
    table = pa.table({"node": ["e"], "reason": [["x", "y"]], "weight": pa.array([2], pa.int32())})
    pa.parquet.write_table(table, tmp_path / "nodes-3.parquet")
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    rows = {row["node"]: row for row in require_table(tmp_path / "out", "nodes").to_pylist()}
    found = {
        name: {key: value for key, value in row.items() if value is not None} for name, row in rows.items()
    }
    first = {"address": "a.example:8883", "kind": "emqx", "lat": 1.5, "lon": -2.0, "capacity": 50000.0}
    assert found == {
        "a": {"node": "a", **first, "source": "x", "line": "7", "my rack": "r 1"},
        "b": {"node": "b"},
        "d": {"node": "d", "address": "d:1883", "lat": 3.0, "tier": "2"},
        "e": {"node": "e", "reason": ["x", "y"], "weight": 2},
    }
    assert account(ledger, "nodes").quarantined == {"lat is not a number": 1}
    assert [name for name in read_link_problem_columns(tmp_path, spark) if name == "my rack"] == ["my rack"]


def read_link_problem_columns(folder, spark):
    """The columns of the nodes that link reads from the tables."""
    (folder / "subscriptions.csv").write_text("node,topic\na,t\nb,t\n")
    sources = [str(folder / "nodes.csv"), str(folder / "subscriptions.csv")]
    ingest(sources, folder / "again", spark=spark)
    return read_link_problem(folder / "again").nodes.column_names


def test_publications_are_checked_and_their_rates_add_up(tmp_path, spark):
    (tmp_path / "nodes.csv").write_text("node\na\nb\n")
    rows = "a,t,1.5\na,t,2\nb,t,0\nb,u/+,1\nb,$SYS/x,1\nz,t,1\nb,t,-1\nb,t,nan\nb,t,x\nb,,1\n"
    (tmp_path / "publications.csv").write_text(f"node,topic,rate\n{rows}")
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    assert rows_of(tmp_path / "out", "publications", "node", "topic", "rate") == [
        ("a", "t", 3.5),
        ("b", "t", 0.0),
    ]
    counts = account(ledger, "publications")
    assert (counts.rows, counts.used, counts.duplicates, counts.written) == (10, 3, 0, 2)
    assert counts.quarantined == {
        "no topic": 1,
        "not a topic": 1,
        "rate is not a finite number from 0": 2,
        "rate is not a number": 1,
        "topic of the broker itself": 1,
        "unknown node": 1,
    }


def test_latency_is_the_median_of_samples(tmp_path, spark):
    """Several samples per pair: the median and their count; two directions combined by each rule."""
    (tmp_path / "nodes.csv").write_text("node\na\nb\nc\na\n")
    pings = "a,b,1\na,b,2\na,b,9\nb,a,4\na,c,x\na,c,-1\na,c,nan\na,a,3\na,z,1\nb,c,7\n"
    (tmp_path / "pings.csv").write_text(f"src,dst,rtt_ms\n{pings}")
    ledger = ingest([str(tmp_path)], tmp_path / "both", spark=spark)
    columns = ("src", "dst", "rtt_ms", "samples")
    assert rows_of(tmp_path / "both", "latency", *columns) == [
        ("a", "b", 2, 3),
        ("b", "a", 4, 1),
        ("b", "c", 7, 1),
    ]
    assert account(ledger, "latency").quarantined == {
        "rtt_ms is not a number": 1,
        "rtt_ms is not above 0": 2,
        "src and dst are the same": 1,
        "unknown node": 1,
    }
    assert account(ledger, "nodes").duplicates == 1
    for rule, value in (("mean", 3), ("min", 2), ("max", 4)):
        ingest([str(tmp_path / "pings.csv")], tmp_path / rule, symmetric=rule, spark=spark)
        assert rows_of(tmp_path / rule, "latency", *columns)[0] == ("a", "b", value, 4)


def test_a_latency_matrix_is_read_with_and_without_names(tmp_path, spark):
    (tmp_path / "nodes.csv").write_text("node\na\nb\nc\n")
    (tmp_path / "named.csv").write_text(",a,b,c\na,0,1,2\nb,1,0,\nc,2,bad,0\n")
    ledger = ingest(
        [str(tmp_path / "nodes.csv"), f"matrix={tmp_path}/named.csv"], tmp_path / "out", spark=spark
    )
    assert rows_of(tmp_path / "out", "latency", "src", "dst", "rtt_ms") == [
        ("a", "b", 1.0),
        ("a", "c", 2.0),
        ("b", "a", 1.0),
        ("c", "a", 2.0),
    ]
    assert account(ledger, "latency").quarantined == {"rtt_ms is not a number": 1}
    (tmp_path / "bare.csv").write_text("0,1,2\n1,0,5\n2,5,0\n")
    sources = [str(tmp_path / "nodes.csv"), f"matrix={tmp_path}/bare.csv"]
    ingest(sources, tmp_path / "bare", symmetric="max", spark=spark)
    assert rows_of(tmp_path / "bare", "latency", "src", "dst", "rtt_ms")[2] == ("b", "c", 5.0)


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        (",1,2,3\n1,0,5,6\n2,5,0,\n3,6,7,0\n", []),
        ("node;1;2;3\n1;0;5;6\n2;5;0;\n3;6;7;0\n", ["1", "2", "3"]),
        ("1,2,3\n0,5,6\n5,0,\n6,7,0\n", []),
        ("1,2,3\n1,0,5,6\n2,5,0,\n3,6,7,0\n", ["3", "2", "1"]),
        ("0,5,6\n5,0,\n6,7,0\n", ["1", "2", "3"]),
        (",5,6\n5,,\n6,7,\n", ["1", "2", "3"]),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_names_in_a_matrix_can_be_numbers_and_the_file_compressed(tmp_path, text, nodes, packed):
    path = tmp_path / ("m.csv.gz" if packed else "m.csv")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    rows = row_checks.read_matrix(path, nodes).select(["src", "dst", "rtt_ms"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("1", "2", 5),
        ("1", "3", 6),
        ("2", "1", 5),
        ("3", "1", 6),
        ("3", "2", 7),
    ]


@pytest.mark.parametrize("text", ["0,1\n1,0\n", "a,b,c\n0,1,2\n1,0,2\n", "1,2\n3,4\n0,1\n1,0\n"])
def test_a_matrix_without_names_that_fit_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "m.csv").write_text(text)
    with pytest.raises(InputError, match="give a square matrix, or name its rows"):
        row_checks.read_matrix(tmp_path / "m.csv", ["x", "y", "z"])


def test_of_rows_that_contradict_each_other_the_first_by_its_text_is_kept(tmp_path, spark):
    """A second row with another site is bad; a second row with the same values is a duplicate."""
    (tmp_path / "nodes.csv").write_text("node,site\nb,paris\na,oslo\na,rome\na,oslo\nb,paris\na,\n")
    (tmp_path / "nodes-2.csv").write_text("site,node\nparis,b\nberlin,b\n")
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    assert rows_of(tmp_path / "out", "nodes", "node", "site") == [("a", None), ("b", "paris")]
    counts = account(ledger, "nodes")
    assert (counts.rows, counts.used, counts.duplicates) == (8, 2, 2)
    assert counts.quarantined == {"another row has this node": 4}


def test_missing_pages_have_a_note(tmp_path, spark):
    """The present entries are used."""

    def emqx(page, count, has_next):
        entry = {"node": "e", "clientid": f"c{page}", "topic": "t"}
        return {"data": [entry], "meta": {"page": page, "limit": 1, "count": count, "hasnext": has_next}}

    connections = [{"cid": 1, "subscriptions_list": ["a", "b"]}]
    nats = {"server_id": "N", "total": 3, "offset": 0, "limit": 1, "connections": connections}
    (tmp_path / "one.json").write_text(json.dumps(emqx(1, 3, True)))
    (tmp_path / "two.json").write_text(json.dumps(emqx(2, 3, True)))
    (tmp_path / "n.json").write_text(json.dumps(nats))
    sources = [str(tmp_path / name) for name in ("one.json", "two.json", "n.json")]
    ledger = ingest(sources, tmp_path / "out", spark=spark)
    assert [words.partition(";")[0] for words in ledger.notes] == [
        "emqx: 2 of 3 entries are there",
        "nats: 1 of 3 entries are there",
    ]
    counts = account(ledger, "subscriptions")
    assert (counts.rows, counts.used, counts.quarantined) == (4, 4, {})


def test_other_tables_have_their_types_and_unique_keys(tmp_path, spark):
    """Subscribers, brokers, messages and events have their types, and each key occurs once."""
    events = [
        {"seq": 1, "kind": "join", "node": "a", "topics": ["t"]},
        {"seq": 1, "kind": "join", "node": "a", "topics": ["t"]},
        {"seq": "two", "kind": "join", "node": "a", "topics": ["t"]},
    ]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (tmp_path / "brokers.csv").write_text("broker;place\nb;[1, 2.5]\nc;here\n")
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    assert rows_of(tmp_path / "out", "events", "seq", "topics") == [(1, ["t"])]
    assert account(ledger, "events").quarantined == {"seq is not a whole number": 1}
    assert rows_of(tmp_path / "out", "brokers", "broker", "place") == [("b", [1.0, 2.5])]
    assert account(ledger, "brokers").quarantined == {"place is not a list of numbers": 1}


def test_events_are_checked_by_their_kind_and_keep_their_position(tmp_path, spark):
    """A leave needs no topics; two different events with one seq are bad, two equal ones are not."""
    lines = [
        {"seq": 1, "kind": "leave", "node": "a"},
        {"seq": 2, "kind": "join", "node": "b", "topics": ["t"], "at": [0.5, 2]},
        {"seq": 3, "kind": "join", "node": "c", "topics": ["t"], "at": "fra"},
        {"seq": 4, "kind": "join", "node": "d", "topics": ["t"], "at": {"b": 1.5}},
        {"seq": 5, "kind": "fly", "node": "a"},
        {"seq": 6, "kind": "subscribe", "node": "b"},
        {"node": "a", "seq": 1, "kind": "leave"},
        {"seq": 1, "kind": "leave", "node": "b"},
    ]
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "events-2.csv").write_text("seq,kind,node\n7,leave,c\n")
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    counts = account(ledger, "events")
    assert counts.quarantined == {"another row has this seq": 1, "no topics": 1, "unknown kind": 1}
    assert (counts.rows, counts.used, counts.duplicates) == (9, 5, 1)
    feed = EventFeed(maintain(Interest.from_lists([["t"]], node_ids=["a"])))
    values = {event.values["seq"]: event.values for event in read_events(tmp_path / "out")}
    assert [values[seq]["at"] for seq in (1, 2, 3, 4)] == [None, [0.5, 2], "fra", {"b": 1.5}]
    assert values[1]["node"] == "a"
    assert values[2]["topics"] == ["t"]
    taken = [one.seq for one in feed.take(read_events(tmp_path / "out")) if isinstance(one, AppliedEvent)]
    assert taken == [1, 2, 3, 4, 7]  # without weights, positions have no effect


def test_a_million_bad_rows_and_no_good_one(tmp_path, spark):
    (tmp_path / "subscriptions.csv").write_text("node,topic\n" + "broken\n" * 1_000_000)
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    assert account(ledger, "subscriptions").quarantined == {"wrong number of fields": 1_000_000}
    assert require_table(tmp_path / "out", "subscriptions").num_rows == 0


def test_ingest_says_that_a_log_lacks_subscriptions(tmp_path, spark, capsys):
    """As a note beside another source; alone it is an error with exit code 2, without an output."""
    from broadloom.cli import main

    (tmp_path / "oslo.log").write_text(
        "1700000000: New client connected from 10.0.0.1:5 as c (p2, c1, k60).\n"
    )
    (tmp_path / "subscriptions.csv").write_text("node,topic\na,t\n")
    ledger = ingest([str(tmp_path)], tmp_path / "out", spark=spark)
    assert ["oslo.log: 1 connections and no subscription in the log" in note for note in ledger.notes] == [
        True
    ]
    with pytest.raises(SystemExit) as stopped:
        main(["ingest", str(tmp_path / "oslo.log"), "-o", str(tmp_path / "none")])
    assert stopped.value.code == 2
    assert "log_type" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_an_ingest_that_fails_leaves_no_files(tmp_path, spark):
    (tmp_path / "subscriptions.csv").write_text("node,topic\na,t\n")
    with pytest.raises(InputError, match="wildcards is 'guess'"):
        ingest([str(tmp_path / "subscriptions.csv")], tmp_path / "out", wildcards="guess", spark=spark)
    assert [file.name for file in tmp_path.iterdir()] == ["subscriptions.csv"]


def test_each_json_line_can_use_other_names_of_columns(spark, tmp_path):
    """One line has node, another has broker; a column that is missing in the first line is not lost."""
    lines = [
        {"node": "a", "topic": "t"},
        {"broker": "b", "filter": "t", "device": "d1"},
        {"broker": "b", "filter": "t", "client": "d2"},
        {"node": "b", "topic": "t", "client": "tco-9"},
        {"node": "b"},
    ]
    (tmp_path / "subscriptions.jsonl").write_text("garbage\n" + "\n".join(map(json.dumps, lines)) + "\n")
    ledger = ingest([str(tmp_path / "subscriptions.jsonl")], tmp_path / "out", spark=spark)
    (account,) = ledger.accounts
    assert (account.rows, account.used, account.duplicates) == (6, 3, 0)
    assert sorted(account.quarantined) == ["no topic", "not a JSON object", "our own link"]


def test_parquet_of_any_names_and_types(spark, tmp_path):
    """Columns with the names of internal ones, and files of one table with different types."""
    for name, ms in (("one", [1.5]), ("two", [2])):
        table = pa.table({"source": ["a"], "target": [name], "rtt": ms, "line": ["x"]})
        pa.parquet.write_table(table, tmp_path / f"{name}.parquet")
    sources = [f"latency={tmp_path / name}.parquet" for name in ("one", "two")]
    ledger = ingest(sources, tmp_path / "out", spark=spark)
    assert [account.written for account in ledger.accounts] == [2]


def test_lost_rows_are_a_bug_under_python_o_too(tmp_path):
    """The account of rows must add up: good rows that did not arrive, and lines that Spark did not read."""
    with pytest.raises(InternalError, match="subscriptions: 4 rows are good, but 3 arrived"):
        raw_to_tables.account_of("subscriptions", 5, {"blank line": 1}, good=3, used=3, written=3)
    (tmp_path / "subscriptions.csv").write_text("node,topic\na,t\n")
    files = find_files([RawSource(str(tmp_path))])
    with pytest.raises(InternalError, match="the files have 2 lines, but Spark read 1"):
        raw_to_tables._check_lines("subscriptions", files, 1)


@pytest.mark.parametrize("wildcards", ["group", "match"])
def test_a_large_tally_gives_the_tables_of_a_small_one(tmp_path, spark, monkeypatch, wildcards):
    """In files and on executors instead of in this process: the same tables, ledger and notes."""
    raw = tmp_path / "raw"
    workload.devices(raw, brokers=6, subscriptions=600, bad=0.2, seed=4)
    with (raw / "subscriptions-0.csv").open("a") as file:
        file.write("d1,us-east-1-0,$share/g/x/+\nd2,nowhere,a/b\n")
        file.writelines(f"d3,{name},$share/g/new/#\n" for name in _nodes(raw))
    topics = (raw / "topics.csv").read_text()
    (raw / "topics.csv").write_text(topics + topics.split()[1] + "\n")
    small = ingest([str(raw)], tmp_path / "small", wildcards=wildcards, symmetric="mean", spark=spark)
    for name in ("SMALL_BYTES", "SMALL_ROWS"):
        monkeypatch.setattr(tallies, name, -1)
    monkeypatch.setattr(raw_to_tables, "SMALL_BYTES", -1)
    large = ingest([str(raw)], tmp_path / "large", wildcards=wildcards, symmetric="mean", spark=spark)
    assert large == small
    for table in ("nodes", "topics", "wanted", "subscriptions", "not_carried", "latency", "quarantine"):
        found = [require_table(tmp_path / size, table).to_pylist() for size in ("small", "large")]
        rows = [sorted(json.dumps(row, sort_keys=True) for row in one) for one in found]
        assert rows[0] == rows[1], table


def _nodes(raw):
    return [line.split(",")[0] for line in (raw / "nodes.csv").read_text().split()[1:]]
