"""DuckDB and Polars on the input of the ingest benchmark: the same checks, counts and tables, in one process.

    python benchmarks/_ingest_peers.py duckdb|polars RAW OUTPUT

RAW is a folder that `broadloom devices` wrote. Each program reads the CSV files line by line, refuses rows
for the same reasons, counts clients and rows by broker and filter, and writes the tables `wanted` and
`quarantine` as Parquet. It prints the number of rows by reason and the distinct ones, as JSON.
"""

import json
import sys
from pathlib import Path

CONTROL = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
VALID = r"^(?:#|(?:\+|[^+#/\x00]*)(?:/(?:\+|[^+#/\x00]*))*(?:/#)?)$"
OWN = r"^(?:[lr]\.)?(?:tco-|broadloom-)|^federation:"


def with_duckdb(raw: Path, output: Path) -> dict[str, int]:
    """Ingest with DuckDB's SQL."""
    import duckdb

    base = duckdb.connect()
    base.execute("set threads = 2")
    files = f"{raw}/subscriptions-*.csv"
    base.execute(f"create table nodes as select node from read_csv('{raw}/nodes.csv')")
    base.execute(f"create table topics as select topic from read_csv('{raw}/topics.csv')")
    # DuckDB refuses a file with a line that is not UTF-8; Latin-1 reads every byte.
    base.execute(
        f"""create view lines as select * from read_csv('{files}', header = false, auto_detect = false,
        columns = {{'line': 'varchar'}}, delim = '\x01', quote = '', escape = '', encoding = 'latin-1',
        null_padding = true)"""
    )
    base.execute(
        f"""create table checked as
        select cells[1] as device, cells[2] as node, cells[3] as topic, line, case
          when line = 'device,broker,filter' then 'header'
          when regexp_matches(line, '[\\x80-\\xff]') then 'not UTF-8'
          when coalesce(trim(line), '') = '' then 'blank line'
          when contains(line, '"') then 'quotes do not match'
          when len(cells) <> 3 then 'wrong number of fields'
          when cells[2] = '' then 'no node'
          when cells[3] = '' then 'no topic'
          when regexp_matches(cells[1], '{OWN}') then 'our own link'
          when cells[3][1] = '$' then 'topic of the broker itself'
          when (contains(cells[3], '+') or contains(cells[3], '#'))
            and not regexp_full_match(cells[3], '{VALID}') then 'not a topic filter'
          when not exists (select 1 from nodes where nodes.node = cells[2]) then 'unknown node'
          when not (contains(cells[3], '+') or contains(cells[3], '#'))
            and not exists (select 1 from topics where topics.topic = cells[3]) then 'unknown topic'
        end as reason
        from (select line, string_split(line, ',') as cells from lines)"""
    )
    wanted = """select node, topic, count(*) as clients, sum(rows) as rows from
        (select node, topic, device, count(*) as rows from checked where reason is null group by all)
        group by all"""
    base.execute(f"copy ({wanted}) to '{output}/wanted.parquet' (format parquet)")
    bad = "select line, reason from checked where reason is not null and reason <> 'header'"
    base.execute(f"copy ({bad}) to '{output}/quarantine.parquet' (format parquet)")
    counts = base.execute("select coalesce(reason, 'good'), count(*) from checked group by all").fetchall()
    clients = base.execute(f"select sum(clients) from '{output}/wanted.parquet'").fetchone()
    return dict(counts) | {"used": int(clients[0])}


def with_polars(raw: Path, output: Path) -> dict[str, int]:
    """Ingest with a lazy frame of Polars."""
    import polars as pl

    nodes = pl.read_csv(raw / "nodes.csv")["node"].implode()
    topics = pl.read_csv(raw / "topics.csv")["topic"].implode()
    lines = pl.scan_csv(
        f"{raw}/subscriptions-*.csv",
        has_header=False,
        separator="\x01",
        quote_char=None,
        schema={"line": pl.String},
        encoding="utf8-lossy",
    )
    line = pl.col("line")
    split = lines.with_columns(line.str.split(",").alias("cells"))
    cells = split.with_columns(
        pl.col("cells").list.get(0, null_on_oob=True).alias("device"),
        pl.col("cells").list.get(1, null_on_oob=True).alias("node"),
        pl.col("cells").list.get(2, null_on_oob=True).alias("topic"),
    )
    topic = pl.col("topic")
    wild = topic.str.contains("+", literal=True) | topic.str.contains("#", literal=True)
    faults = [
        (line == "device,broker,filter", "header"),
        (line.str.contains("\ufffd", literal=True), "not UTF-8"),
        (line.fill_null("").str.strip_chars() == "", "blank line"),
        (line.str.contains('"', literal=True), "quotes do not match"),
        (pl.col("cells").list.len() != 3, "wrong number of fields"),
        (pl.col("node") == "", "no node"),
        (topic == "", "no topic"),
        (pl.col("device").str.contains(OWN), "our own link"),
        (topic.str.starts_with("$"), "topic of the broker itself"),
        (wild & ~topic.str.contains(VALID), "not a topic filter"),
        (~pl.col("node").is_in(nodes), "unknown node"),
        (~wild & ~topic.is_in(topics), "unknown topic"),
    ]
    chain = pl.when(faults[0][0]).then(pl.lit(faults[0][1]))
    for fault, reason in faults[1:]:
        chain = chain.when(fault).then(pl.lit(reason))
    checked = cells.select("device", "node", "topic", "line", chain.otherwise(None).alias("reason")).collect(
        engine="streaming"
    )
    good = checked.lazy().filter(pl.col("reason").is_null())
    by_client = good.group_by("node", "topic", "device").agg(pl.len().alias("rows"))
    sums = pl.len().alias("clients"), pl.col("rows").sum()
    wanted = by_client.group_by("node", "topic").agg(*sums).collect(engine="streaming")
    wanted.write_parquet(output / "wanted.parquet")
    bad = checked.filter(pl.col("reason").is_not_null() & (pl.col("reason") != "header"))
    bad.select("line", "reason").write_parquet(output / "quarantine.parquet")
    counts = checked.group_by(pl.col("reason").fill_null("good")).agg(pl.len())
    return dict(counts.iter_rows()) | {"used": int(wanted["clients"].sum())}


if __name__ == "__main__":
    program, raw_folder, output_folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    output_folder.mkdir(parents=True, exist_ok=True)
    run = {"duckdb": with_duckdb, "polars": with_polars}[program]
    print(json.dumps(run(raw_folder, output_folder)))
