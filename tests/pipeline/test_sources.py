"""Raw sources: the kind of each file, and the errors for files that cannot be used."""

import errno
import gzip

import pyarrow as pa
import pyarrow.parquet
import pytest

from broadloom import InputError, StorageError
from broadloom.formats.mosquitto_db import MAGIC
from broadloom.pipeline.ingest import ingest
from broadloom.pipeline.ingest.raw_sources import (
    LONGEST_LINE,
    RawSource,
    check_dumps,
    count_lines,
    find_files,
)


@pytest.mark.parametrize(
    ("name", "text", "table", "reader"),
    [
        ("subs.csv", "device,broker,filter\nd,b,t\n", "subscriptions", "csv"),
        ("subs.tsv", "node\ttopic\nb\tt\n", "subscriptions", "csv"),
        ("subs.jsonl", '{"node": "b", "topic": "t"}\n', "subscriptions", "jsonl"),
        ("export.jsonl", '{"clientid": "c", "topic": "t", "node": "n"}\n', "subscriptions", "jsonl"),
        ("brokers.csv", "node,site\na,s\n", "nodes", "csv"),
        ("pings.csv", "from,to,ms\na,b,1\n", "latency", "csv"),
        ("list.csv", "topic\na\n", "topics", "csv"),
        ("berlin.log", "1700000000: c1 1 t/1\n", "subscriptions", "mosquitto"),
    ],
)
def test_a_file_is_recognised(tmp_path, name, text, table, reader):
    (tmp_path / name).write_text(text)
    [found] = find_files([RawSource(str(tmp_path / name))])
    assert (found.table, found.reader) == (table, reader)


def test_a_persistence_file_is_recognised(tmp_path):
    (tmp_path / "rome.db").write_bytes(MAGIC + bytes(7) + b"\x06" + bytes(8))
    [found] = find_files([RawSource(str(tmp_path / "rome.db"))])
    assert (found.table, found.reader, found.node) == ("subscriptions", "mosquitto-db", "rome")


def test_a_compressed_file_is_recognised(tmp_path):
    (tmp_path / "subs.csv.gz").write_bytes(gzip.compress(b"node,topic\na,t\nb,t"))
    [found] = find_files([RawSource(str(tmp_path))])
    assert found.reader == "csv"
    assert count_lines(found.path) == 3


def test_a_pattern_and_the_broker_of_a_dump(tmp_path):
    for name in ("berlin.1.log", "paris.1.log"):
        (tmp_path / name).write_text("1700000000: c1 1 t/1\n")
    found = find_files(
        [RawSource.parse(f"mosquitto={tmp_path}/*.log"), RawSource(str(tmp_path / "paris.1.log"), None, "x")]
    )
    assert [file.node for file in found] == ["berlin", "x"]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        (
            "subscriptions.csv",
            b"node,qos\na,1\n",
            "has no column 'topic': table subscriptions needs node, topic",
        ),
        ("some.csv", b"colour\nred\n", "is of an unknown kind"),
        ("wide.csv", "node,topic\na,t\n".encode("utf-16"), "is UTF-16"),
        ("rows.parquet", b"PAR1 and no more", "is truncated or damaged"),
        (
            "cut.csv.gz",
            gzip.compress(b"node,topic\n" + bytes(range(256)) * 9, mtime=0)[:-40],
            "gunzip -c cut.csv.gz > cut.csv",
        ),
        ("rome.db", MAGIC + bytes(7) + b"\x09", "rome.db: this mosquitto.db has version 9"),
        ("text.csv.gz", b"node,topic\na,t\n", "is truncated or damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line(tmp_path, name, data, words):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=words) as error:
        find_files([RawSource(str(tmp_path / name))])
    assert "\n" not in str(error.value)


def test_a_truncated_parquet_file_is_refused(tmp_path):
    pa.parquet.write_table(pa.table({"node": ["a"], "topic": ["t"]}), tmp_path / "whole.parquet")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "whole.parquet").read_bytes()[:-10])
    with pytest.raises(InputError, match=r"cut\.parquet is truncated or damaged"):
        find_files([RawSource(str(tmp_path))])


def test_a_parquet_file_on_a_failing_disk_is_a_storage_error(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, "Input/output error")

    path = tmp_path / "rows.parquet"
    pa.parquet.write_table(pa.table({"node": ["a"], "topic": ["t"]}), path)
    monkeypatch.setattr(pa.parquet, "read_schema", fail)
    with pytest.raises(StorageError, match=r"rows\.parquet cannot be read: Input/output error"):
        find_files([RawSource(str(path))])


def test_missing_files_and_unknown_kinds_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        find_files([RawSource(str(tmp_path / "nowhere.csv"))])
    with pytest.raises(InputError, match="unknown kind 'emxq'"):
        RawSource.parse("emxq=dump.json")


def test_an_empty_file_has_no_rows(tmp_path):
    (tmp_path / "subscriptions.csv").write_text("")
    with pytest.raises(InputError, match="every source is empty"):
        find_files([RawSource(str(tmp_path))])
    assert count_lines(tmp_path / "subscriptions.csv") == 0


@pytest.mark.parametrize("name", ["a[1].csv", "a{b}.csv", "12:30.csv"])
def test_names_with_characters_of_patterns_are_refused(tmp_path, name):
    (tmp_path / name).write_text("node,topic\na,t\n")
    with pytest.raises(InputError, match="rename it"):
        find_files([RawSource(str(tmp_path))])


def test_columns_of_json_lines_are_those_of_all_lines(tmp_path):
    (tmp_path / "subscriptions.jsonl").write_text('garbage\n{"node": "a"}\n{"broker": "b", "topic": "t"}\n')
    (one,) = find_files([RawSource(str(tmp_path))])
    assert (one.table, one.reader) == ("subscriptions", "jsonl")
    assert {"node", "broker", "topic", "client"} <= set(one.names)


QUIET_LOG = "1700000000: New client connected from 10.0.0.1:5 as c1 (p2, c1, k60).\n"


def test_logs_without_subscriptions_are_refused_before_spark_starts(tmp_path):
    """Each source is named with the setting that is missing, if no other source has subscriptions."""
    for name in ("oslo.log", "rome.log"):
        (tmp_path / name).write_text(QUIET_LOG)
    (tmp_path / "nodes.csv").write_text("node\noslo\n")
    words = r"oslo\.log: 1 connections .*mosquitto\.conf .*; .*rome\.log: 1 connections "
    with pytest.raises(InputError, match=words):
        check_dumps(find_files([RawSource(str(tmp_path))]))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("subscriptions.csv", b"node,topic\na,t\n"),
        ("b.log.gz", gzip.compress(b"1700000000: c1 1 t/1\n", mtime=0)),
        ("subscribers.csv", b'subscriber,place,lo,hi\ns,"[1]","[1]","[2]"\n'),
    ],
)
def test_a_log_without_subscriptions_has_a_note_if_another_source_has_some(tmp_path, name, data):
    (tmp_path / "oslo.log").write_text(QUIET_LOG)
    (tmp_path / name).write_bytes(data)
    [note] = check_dumps(find_files([RawSource(str(tmp_path))]))
    assert note.startswith(f"{tmp_path}/oslo.log: 1 connections and no subscription")


def test_publications_are_recognised_by_name_and_kind_only(tmp_path):
    for name in ("publications.csv", "rows.csv"):
        (tmp_path / name).write_text("node,topic,rate\na,t,1\n")
    found = find_files([RawSource(str(tmp_path))])
    assert [file.table for file in found] == ["publications", "subscriptions"]
    [named] = find_files([RawSource.parse(f"publications={tmp_path}/rows.csv")])
    assert named.table == "publications"


@pytest.mark.parametrize("name", ["it's", "a`b"])
def test_further_columns_of_nodes_with_quotes_are_refused(tmp_path, name):
    (tmp_path / "nodes.csv").write_text(f"node,{name}\na,1\n")
    with pytest.raises(InputError, match="Spark cannot read a column named"):
        find_files([RawSource(str(tmp_path))])


@pytest.mark.parametrize("excess", [1, LONGEST_LINE])
@pytest.mark.parametrize("name", ["subscriptions.csv", "subscriptions.jsonl"])
def test_a_line_without_an_end_is_named_and_does_not_fill_the_memory_of_spark(tmp_path, spark, name, excess):
    """Spark would keep a line of any length in memory, several times."""
    endless = b"node,topic\nrome,a\n" + bytes(LONGEST_LINE + excess) + b"\n"
    (tmp_path / "rome.log").write_text("1700000000: c1 1 t/1\n")  # of dumps, lines cannot be counted
    rows = endless if name.endswith("csv") else b'{"node": "a", "topic": "t"}\n\n' + endless[18:]
    (tmp_path / name).write_bytes(rows)
    with pytest.raises(InputError, match=rf"{name}: line 3 is longer than 16 MiB") as error:
        ingest([str(tmp_path / name), str(tmp_path / "rome.log")], tmp_path / "out", spark=spark)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_the_longest_line_is_a_row(tmp_path, spark):
    row = b"rome," + b"t" * (LONGEST_LINE - 5)
    (tmp_path / "subscriptions.csv").write_bytes(b"node,topic\nrome,a\n" + row + b"\n")
    ledger = ingest([str(tmp_path / "subscriptions.csv")], tmp_path / "out", spark=spark)
    assert ledger.accounts[0].rows == 2
