"""Ingest: raw logs, dumps and pings to canonical tables, with an account of every row."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf

from broadloom.formats import PAGE, Page, note
from broadloom.model import RowLedger, TableAccount
from broadloom.pipeline.ingest import events, keys, latency, subscriptions
from broadloom.pipeline.ingest.read import NO_ROWS, RAW, REASON, SOURCE, local_path, read_inputs
from broadloom.pipeline.ingest.sources import (
    MATRIX,
    PLAIN,
    Input,
    Source,
    check_choices,
    count_lines,
    find_inputs,
    total_bytes,
)
from broadloom.pipeline.session import Engine, session
from broadloom.progress import stage
from broadloom.storage import new_folder

# So many bytes of subscriptions are counted in one piece, in memory.
PIECE_BYTES = 8 * 2**20


def ingest(
    sources: Iterable[Source | str],
    output: str | Path,
    wildcards: str = "match",
    symmetric: str = "none",
    engine: Engine | None = None,
    spark: SparkSession | None = None,
    overwrite: bool = False,
) -> RowLedger:
    """Make a folder of canonical tables from raw inputs.

    Args:
        sources: files, folders and patterns, with their kind where it cannot be found out (`Source`).
        output: the folder; it appears whole or not at all.
        wildcards: "match" filters against the known topics, or "group" those that can meet.
        symmetric: latencies: "none" keeps both directions; "mean", "min" or "max" makes one of them.
        engine: where Spark runs.
        spark: a session of your own, in place of an engine; its settings stay as they are.
        overwrite: replace what is at `output`.

    Returns:
        What became of every row.

    Raises:
        InputError: a source is missing or of no known kind; or `output` is there already.
    """
    check_choices(wildcards, symmetric)
    inputs = find_inputs([one if isinstance(one, Source) else Source.parse(one) for one in sources])
    fitting = (engine or Engine()).sized(total_bytes(inputs))
    with session(fitting, spark) as running, new_folder(Path(output), overwrite) as folder:
        return ingest_into(folder, inputs, running, wildcards, symmetric)


def ingest_into(
    folder: Path,
    inputs: list[Input],
    spark: SparkSession,
    wildcards: str = "match",
    symmetric: str = "none",
) -> RowLedger:
    """As `ingest`, into a folder that is there."""
    ledger = _Ingest(spark, folder, inputs).run(wildcards, symmetric)
    ledger.save(folder)
    return ledger


@dataclass
class _Ingest:
    """One ingest: what it reads, where it writes, and what it has taken so far."""

    spark: SparkSession
    folder: Path
    inputs: list[Input]
    taken: list[_Taken] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, wildcards: str, symmetric: str) -> RowLedger:
        for table in PLAIN:
            if self._of(table):
                self._plain(table)
        if self._of("subscriptions"):
            self._subscriptions(wildcards)
        if self._of("latency"):
            self._latency(symmetric)
        return RowLedger(tuple(self._accounts()), tuple(self.notes))

    def _of(self, table: str) -> list[Input]:
        return [one for one in self.inputs if one.table == table]

    def _plain(self, table: str) -> None:
        """A table that is taken as it is, each key once."""
        with stage(f"ingest {table}"):
            rows, key = read_inputs(self.spark, self._of(table)), keys.KEYS.get(table)
            rows = events.checked(rows) if table == "events" else rows
            taken = self._take(table, rows if key is None else keys.checked(rows, key))
            kept = taken.rows.drop(RAW, SOURCE, REASON)
            self._write(table, kept if key is None else kept.dropDuplicates([key]), key)
            taken.used = taken.written = self._sum(table)

    def _subscriptions(self, wildcards: str) -> None:
        nodes = self.table("nodes") if self._of("nodes") else None
        topics = self.table("topics") if self._of("topics") else None
        with stage("ingest subscriptions"):
            rows = read_inputs(self.spark, self._of("subscriptions"))
            taken = self._tally("subscriptions", subscriptions.checked(rows, nodes, topics))
        with stage("match filters"):
            wanted = self.table("wanted")
            pairs, notes = subscriptions.interest(self.spark, wanted, topics, wildcards)
            self._write("subscriptions", pairs.sortWithinPartitions("node", "topic"))
            if nodes is None:
                self._write("nodes", wanted.select("node").distinct(), "node")
            taken.written = self._sum("subscriptions")
            self.notes.extend(notes)

    def _latency(self, symmetric: str) -> None:
        known = self.table("nodes") if self._of("nodes") else None
        with stage("ingest latency"):
            taken = self._take("latency", latency.checked(self._latency_rows(known), known))
            self._write("latency", latency.medians(taken.rows, symmetric), "src", "dst")
            taken.used = taken.accepted = self._sum("latency", "samples")
            taken.written = self._sum("latency")

    def _latency_rows(self, known: DataFrame | None) -> DataFrame:
        """Samples in long form and the cells of matrices, as rows of one kind."""
        inputs = self._of("latency")
        listed = [one for one in inputs if one.reader != MATRIX]
        names = [] if known is None else known.select("node").toArrow().column(0).to_pylist()
        parts = [
            self.spark.createDataFrame(latency.read_matrix(one.path, names))
            for one in inputs
            if one.reader == MATRIX
        ]
        if listed:
            parts.append(read_inputs(self.spark, listed))
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part, allowMissingColumns=True)
        return rows

    def _take(self, table: str, rows: DataFrame) -> _Taken:
        """Put the bad rows into quarantine, count all, and hand on the good ones."""
        seen = Observation()
        headers = sf.count_if(sf.col(REASON).isin(*NO_ROWS)).alias("headers")
        self._quarantine(table, rows.observe(seen, sf.count(sf.lit(1)).alias("lines"), headers))
        return self._taken(table, rows, seen.get["lines"], seen.get["headers"])

    def _tally(self, table: str, rows: DataFrame) -> _Taken:
        """As `_take`, but write the table `wanted` from the same pass over the input."""
        pieces = 1 + total_bytes(self._of(table)) // PIECE_BYTES
        self._write("tally", subscriptions.tally(rows, pieces))
        found = self.table("tally")
        self._quarantine(table, found)
        wanted = found.where(sf.col(REASON).isNull()).select("node", "filter", "clients", "rows")
        self._write("wanted", wanted)
        no_rows = pc.field(REASON).isin(NO_ROWS)
        lines, headers = self._sum("tally", "rows"), self._sum("tally", "rows", no_rows)
        self.notes.extend(self._missing_pages())
        shutil.rmtree(self.folder / "tally.parquet")
        taken = self._taken(table, rows, lines, headers)
        taken.used, taken.accepted = self._sum("wanted", "clients"), self._sum("wanted", "rows")
        return taken

    def _missing_pages(self) -> Iterator[str]:
        """A note on each kind of dump whose pages tell of more entries than there are."""
        data = pyarrow.dataset.dataset(self.folder / "tally.parquet")
        told = data.to_table([RAW, SOURCE], filter=pc.field(REASON) == PAGE).to_pylist()
        kind_of = {str(one.path): one.reader for one in self.inputs}
        pages: dict[str, list[Page]] = {}
        for row in told:
            pages.setdefault(kind_of[local_path(row[SOURCE])], []).append(Page.loads(row[RAW]))
        return filter(None, (note(kind, pages[kind]) for kind in sorted(pages)))

    def _quarantine(self, table: str, rows: DataFrame) -> None:
        """Set the rows aside that have a reason and are no headers."""
        bad = rows.where(sf.col(REASON).isNotNull() & ~sf.col(REASON).isin(*NO_ROWS))
        named = bad.select(sf.lit(table).alias("table"), sf.col(RAW).alias("row"), REASON, SOURCE)
        named.write.mode("append").parquet(str(self.folder / "quarantine.parquet"))

    def _taken(self, table: str, rows: DataFrame, lines: int, headers: int) -> _Taken:
        _check_lines(table, self._of(table), lines)
        taken = _Taken(table, rows.where(sf.col(REASON).isNull()), lines - headers)
        self.taken.append(taken)
        return taken

    def _accounts(self) -> Iterator[TableAccount]:
        """What became of the rows of each table, with the reasons as they stand in quarantine."""
        held = self.table("quarantine").groupBy("table", REASON).count().toArrow().to_pylist()
        for taken in self.taken:
            mine = {row[REASON]: row["count"] for row in held if row["table"] == taken.table}
            yield taken.account(dict(sorted(mine.items())))

    def _write(self, table: str, rows: DataFrame, *order: str | None) -> None:
        """Write a table; with an order, as one file."""
        keys = [key for key in order if key is not None]
        whole = rows.coalesce(1).sortWithinPartitions(*keys) if keys else rows
        whole.write.parquet(str(self.folder / f"{table}.parquet"))

    def _sum(self, table: str, column: str | None = None, where: pc.Expression | None = None) -> int:
        """The sum of a column of a table that has been written, or the number of its rows."""
        data = pyarrow.dataset.dataset(self.folder / f"{table}.parquet")
        if column is None:
            return int(data.count_rows())
        batches = data.to_batches(columns=[column], filter=where)
        return sum(pc.sum(batch[column]).as_py() or 0 for batch in batches)

    def table(self, table: str) -> DataFrame:
        """A table that has been written."""
        return self.spark.read.parquet(str(self.folder / f"{table}.parquet"))


@dataclass
class _Taken:
    """The good rows of a table, and what has become of them so far."""

    table: str
    rows: DataFrame
    count: int
    used: int = 0
    written: int = 0
    accepted: int | None = None

    def account(self, quarantined: dict[str, int]) -> TableAccount:
        """The table's account, after a look that no good row was lost on the way."""
        good = self.count - sum(quarantined.values())
        assert self.accepted in (None, good), (
            f"{self.table}: {good:,} good rows, but {self.accepted:,} arrived"
        )
        return TableAccount(self.table, self.count, self.used, good - self.used, quarantined, self.written)


def _check_lines(table: str, inputs: list[Input], seen: int) -> None:
    """Hold what Spark saw against a count that knows nothing of Spark, where there is one."""
    counts: dict[str, Callable[[Path], int]] = {
        "csv": count_lines,
        "jsonl": count_lines,
        "parquet": lambda path: int(pyarrow.parquet.read_metadata(path).num_rows),
    }
    if all(one.reader in counts for one in inputs):
        lines = sum(counts[one.reader](one.path) for one in inputs)
        assert lines == seen, f"{table}: the files have {lines:,} lines, but {seen:,} were read"
