"""Sources of other tools: nothing is lost or taken for another table without a word."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from broadloom import InputError, MissingExtraError, StorageError
from broadloom.cli.app import app
from broadloom.pipeline import RunConfig
from broadloom.pipeline.ingest import ingest, raw_sources
from broadloom.pipeline.ingest.raw_sources import RawSource, find_files
from broadloom.storage import locations

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


def test_a_column_of_json_can_appear_after_the_part_that_is_searched(tmp_path, monkeypatch):
    """Only the note on columns that are not used is from the beginning of the file."""
    monkeypatch.setattr(raw_sources, "_SCANNED_BYTES", 1000)
    late = '{"hub": "oslo", "filter": "t/1", "clientid": "c", "qos": 1}\n'
    (tmp_path / "subscriptions.jsonl").write_text(COMMON * 5000 + late)
    (tmp_path / "nodes.jsonl").write_text('{"node": "rome"}\n' * 5000 + '{"node": "oslo", "rack": "r1"}\n')
    [declared] = find_files([RawSource.parse(f"subscriptions(node:hub)={tmp_path}/subscriptions.jsonl")])
    assert declared.names_of("node") == ["hub"]
    nodes, wanted = find_files([RawSource(str(tmp_path))])
    assert {"clientid", "filter"} <= set(wanted.names)
    assert wanted.dropped == ()
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
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("raw", ["raw", "s3a://bucket/raw"])
def test_a_store_that_does_not_answer_leaves_no_local_folder(tmp_path, monkeypatch, raw):
    """Neither a source nor the output becomes a folder named `s3a:`."""
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "subscriptions.csv").write_text("node,topic\na,t\n")
    (tmp_path / "run.toml").write_text(f'sources = ["{raw}"]\noutput = "s3a://bucket/out"\n')
    before = sorted(tmp_path.rglob("*"))
    locations._store.cache_clear()
    try:
        for words in (["ingest", raw, "-o", "s3a://bucket/out"], ["run", "run.toml"]):
            done = CliRunner().invoke(app, words)
            assert isinstance(done.exception, StorageError), done.output
            assert str(done.exception).startswith("s3a://bucket/")
    finally:
        locations._store.cache_clear()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.spark
def test_a_file_uri_is_the_local_path(spark, tmp_path, monkeypatch):
    """As a source and as the output; the tables have the same bytes, and no folder is named `file:`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "subscriptions.csv").write_text("node,topic\nrome,t/1\noslo,t/2\n")
    ingest(["raw"], "local", spark=spark)
    ingest([f"file://{tmp_path}/raw"], f"file://{tmp_path}/by-uri", spark=spark)
    local, by_uri = (
        {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("local", "by-uri")
    )
    assert by_uri == local
    assert {path.name for path in tmp_path.iterdir()} == {"raw", "local", "by-uri"}


@pytest.mark.spark
def test_a_late_column_of_json_reaches_the_table(spark, tmp_path):
    late = '{"node": "oslo", "topic": "t/1"}\n{"broker": "bonn", "filter": "t/2"}\n'
    (tmp_path / "subscriptions.jsonl").write_text(COMMON * 5000 + late)
    ingest([str(tmp_path / "subscriptions.jsonl")], tmp_path / "out", spark=spark)
    assert subscriptions(tmp_path / "out") == [("bonn", "t/2"), ("oslo", "t/1"), ("rome", "t/0")]


def ledger_of(folder):
    """The accounts that ingest wrote."""
    return json.loads((folder / "ingest.json").read_text())


@pytest.mark.spark
def test_csv_without_a_header_has_the_declared_columns(spark, tmp_path):
    """Its first line is a row, also one with a semicolon; a file with a header can be among them."""
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.csv").write_text('c1,7,rome,t/1;x\n\nc2,8,"oslo","a,b"\n')
    (raw / "b.csv").write_text("device,qos,broker,filter\nc3,1,bern,t/3\n")
    ingest([f"subscriptions(client,-,node,topic)={raw}"], tmp_path / "tables", spark=spark)
    assert subscriptions(tmp_path / "tables") == [("bern", "t/3"), ("oslo", "a,b"), ("rome", "t/1;x")]
    ledger = ledger_of(tmp_path / "tables")
    assert ledger["tables"][0]["quarantined"] == {"blank line": 1}
    assert ledger["notes"] == ["subscriptions: not used: column number 2"]


@pytest.mark.spark
def test_columns_with_declared_names_reach_the_tables(spark, tmp_path):
    """In CSV, JSON lines (also a late key) and Parquet; a column with the usual name is not used."""
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.csv").write_text("Hub,node,topic\nrome,x,t/1\n")
    late = '{"Hub": "oslo", "node": "x", "topic": "t/2"}\n'
    (raw / "b.jsonl").write_text('{"node": "x", "topic": "t/9"}\n' * 3 + late)
    pq.write_table(pa.table({"Hub": ["bern"], "node": ["x"], "topic": ["t/3"]}), raw / "c.parquet")
    ingest([f"subscriptions(node:Hub)={raw}"], tmp_path / "tables", spark=spark)
    assert subscriptions(tmp_path / "tables") == [("bern", "t/3"), ("oslo", "t/2"), ("rome", "t/1")]
    ledger = ledger_of(tmp_path / "tables")
    assert ledger["tables"][0]["quarantined"] == {"no node": 3}
    assert ledger["notes"] == ["subscriptions: not used: column node"]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("subscriptions(node,topci)", "are not columns of subscriptions"),
        ("subscriptions(node,node,topic)", "at most once"),
        ("subscriptions(client,topic)", "no column 'node'"),
        ("subscriptions(node:hub,topic)", "COLUMN:NAME for each"),
        ("subscriptions(node:hub)", "has no column 'hub'"),
        ("subscriptions(node,-,topic)", "another number of fields"),
        ("emqx(node,topic)", "can be declared for"),
    ],
)
def test_columns_that_cannot_be_declared_so_are_refused_in_one_line(tmp_path, columns, words):
    (tmp_path / "a.csv").write_text("rome,t/1\n")
    with pytest.raises(InputError, match=words):
        find_files([RawSource.parse(f"{columns}={tmp_path}")])


def test_columns_in_order_are_only_for_csv(tmp_path):
    (tmp_path / "a.jsonl").write_text(COMMON)
    with pytest.raises(InputError, match="is not CSV"):
        find_files([RawSource.parse(f"subscriptions(node,topic)={tmp_path}")])


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


def test_a_configuration_has_uris_and_paths_without_dots(tmp_path):
    """Relative paths start at the file; URIs and tables stay as they are."""
    (tmp_path / "examples").mkdir()
    file = tmp_path / "examples" / "run.toml"
    sources = ["../raw", "nodes=s3a://lake/nodes.csv", "table:db.wants", "delta:../table"]
    file.write_text(f'sources = {json.dumps(sources)}\noutput = "hdfs://head:8020/out"\n')
    config = RunConfig.load(file)
    root = tmp_path.resolve()
    paths = [source.path for source in config.sources]
    assert paths == [f"{root}/raw", "s3a://lake/nodes.csv", "table:db.wants", f"delta:{root}/table"]
    assert config.sources[1].kind == "nodes"
    assert str(config.output) == "hdfs://head:8020/out"
