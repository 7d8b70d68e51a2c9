"""Sources of other tools: nothing is lost or taken for another table without a word."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from broadloom import InputError, MissingExtraError
from broadloom.pipeline.ingest import ingest
from broadloom.pipeline.ingest.raw_sources import RawSource, find_files

COMMON = '{"node": "rome", "topic": "t/0"}\n'


def subscriptions(folder):
    """The written pairs of broker and topic."""
    return sorted(tuple(row.values()) for row in pq.read_table(folder / "subscriptions.parquet").to_pylist())


def test_files_that_spark_and_hadoop_ignore_are_no_input(tmp_path):
    """An unfinished job of Spark leaves `_temporary`, its checksums are hidden files."""
    names = ("part-0.csv", "_temporary/0/part-1.csv", ".part-0.csv.crc", ".hidden/a.csv", "b.csv._COPYING_")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("node,topic\na,t\n")
    [found] = find_files([RawSource(str(tmp_path))])
    assert found.path == tmp_path / "part-0.csv"


def test_folders_of_hive_give_columns_and_a_table(tmp_path):
    file = tmp_path / "publications" / "node=rome" / "part-00000.csv"
    file.parent.mkdir(parents=True)
    file.write_text("topic,rate\nt,1\n")
    for source in (tmp_path, tmp_path / "publications", file.parent, file, f"{tmp_path}/*/*/*.csv"):
        [found] = find_files([RawSource(str(source))])
        assert (found.table, found.partitions) == ("publications", ("node",))


def test_a_column_of_json_that_appears_late_is_known(tmp_path):
    late = '{"node": "oslo", "topic": "t/1", "client": "c", "qos": 1}\n'
    (tmp_path / "subscriptions.jsonl").write_text(COMMON * 5000 + late)
    (tmp_path / "nodes.jsonl").write_text('{"node": "rome"}\n' * 5000 + '{"node": "oslo", "rack": "r1"}\n')
    nodes, wanted = find_files([RawSource(str(tmp_path))])
    assert "client" in wanted.names
    assert wanted.dropped == ("qos",)
    assert "rack" in nodes.names


def test_a_required_column_of_json_can_appear_late(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"node": "rome"}\n' * 5000 + COMMON)
    [found] = find_files([RawSource(str(tmp_path))])
    assert found.table == "subscriptions"


@pytest.mark.spark
def test_values_of_hive_folders_reach_the_tables(spark, tmp_path):
    """Encoded values, leading zeros, plus signs, missing values; CSV, JSON lines and Parquet."""
    raw = tmp_path / "raw"
    for folder, name, text in (
        ("broker=007", "a.csv", "topic,qos\nx/+,1\n"),
        ("broker=a%3Ab+c d", "b.jsonl", '{"topic": "y"}\n'),
        ("broker=__HIVE_DEFAULT_PARTITION__", "c.csv", "topic,qos\nz,1\n"),
    ):
        (raw / folder).mkdir(parents=True)
        (raw / folder / name).write_text(text)
    (raw / "broker=lima").mkdir()
    pq.write_table(pa.table({"topic": ["w"], "client": ["c"]}), raw / "broker=lima" / "d.parquet")
    ledger = ingest([str(raw)], tmp_path / "out", spark=spark)
    assert subscriptions(tmp_path / "out") == [("007", "x/+"), ("a:b+c d", "y"), ("lima", "w")]
    [account] = ledger.accounts
    assert account.quarantined == {"no node": 1}
    assert "subscriptions: not used: column qos" in ledger.notes
    assert (
        "subscriptions: not used: column qos"
        in json.loads((tmp_path / "out/ingest.json").read_text())["notes"]
    )


@pytest.mark.spark
def test_a_late_column_of_json_reaches_the_table(spark, tmp_path):
    late = '{"node": "oslo", "topic": "t/1"}\n{"broker": "bonn", "filter": "t/2"}\n'
    (tmp_path / "subscriptions.jsonl").write_text(COMMON * 5000 + late)
    ingest([str(tmp_path / "subscriptions.jsonl")], tmp_path / "out", spark=spark)
    assert subscriptions(tmp_path / "out") == [("bonn", "t/2"), ("oslo", "t/1"), ("rome", "t/0")]


@pytest.mark.spark
def test_a_table_of_spark_is_a_source(spark, tmp_path):
    """By its kind or by its columns; a name that does not exist is an error in one line."""
    rows = [("rome", "a/1", 1), ("oslo", "a/2", 1), (None, "a/3", 1)]
    spark.createDataFrame(rows, "node string, topic string, qos int").createOrReplaceTempView("wants")
    spark.createDataFrame([("rome", "site-1")], "node string, site string").createOrReplaceTempView("fleet")
    try:
        ledger = ingest(["table:wants", "nodes=table:fleet"], tmp_path / "out", spark=spark)
        with pytest.raises(InputError, match=r"table:nowhere cannot be read: .*nowhere") as error:
            ingest(["table:nowhere"], tmp_path / "other", spark=spark)
    finally:
        spark.catalog.dropTempView("wants")
        spark.catalog.dropTempView("fleet")
    assert "\n" not in str(error.value)
    assert subscriptions(tmp_path / "out") == [("rome", "a/1")]
    wanted = next(account for account in ledger.accounts if account.table == "subscriptions")
    assert wanted.quarantined == {"no node": 1, "unknown node": 1}
    assert "subscriptions: not used: column qos" in ledger.notes


@pytest.mark.spark
@pytest.mark.parametrize(
    ("marker", "form"), [("_delta_log/0.json", "delta"), ("metadata/v1.metadata.json", "iceberg")]
)
def test_the_folder_of_a_table_format_is_never_read_as_plain_parquet(spark, tmp_path, marker, form):
    """Its files can be removed rows; without the package the error names it."""
    table = tmp_path / "table"
    (table / marker).parent.mkdir(parents=True)
    (table / marker).write_text("{}")
    pq.write_table(pa.table({"node": ["removed"], "topic": ["t"]}), table / "part-0.parquet")
    with pytest.raises(MissingExtraError, match=f"is a table of {form}, and Spark has no package for it"):
        ingest([str(table)], tmp_path / "out", spark=spark)
    with pytest.raises(InputError, match="can only be read by Spark"):
        find_files([RawSource(str(table))])
