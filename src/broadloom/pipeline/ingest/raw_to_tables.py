"""Ingest on Spark: canonical tables from raw logs, dumps and pings, with an account of every row."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.parquet
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as sf

from broadloom.errors import InternalError
from broadloom.formats import PAGE, DumpPage, missing_pages_note
from broadloom.model import RowLedger, TableAccount
from broadloom.pipeline.ingest import row_checks
from broadloom.pipeline.ingest.raw_rows import (
    NOT_ROWS,
    RAW,
    REASON,
    SOURCE,
    file_path,
    read_files,
    spark_columns,
)
from broadloom.pipeline.ingest.raw_sources import (
    FURTHER,
    MATRIX,
    PLAIN,
    RawFile,
    RawSource,
    check_choices,
    check_dumps,
    count_lines,
    dropped_notes,
    find_files,
    total_bytes,
)
from broadloom.pipeline.spark_session import SparkEngine, executors_are_elsewhere, hadoop_settings, session
from broadloom.progress import stage
from broadloom.storage import as_path, new_folder, share_folder, use_store_settings
from broadloom.storage.tables import write_table

_BY_NODE = [(name, "ascending") for name in ("node", "topic", "reason")]
# The size of the subscriptions that one partition counts in memory.
PIECE_BYTES = 8 * 2**20


def ingest(
    sources: Iterable[RawSource | str],
    output: str | Path,
    wildcards: str = "group",
    symmetric: str = "none",
    engine: SparkEngine | None = None,
    spark: SparkSession | None = None,
    overwrite: bool = False,
) -> RowLedger:
    """Make a folder of canonical tables from raw inputs.

    Args:
        sources: files, folders and patterns, with their kind where it cannot be detected (`RawSource`).
        output: the folder for the tables; it appears by one rename.
        wildcards: "group" keeps each topic filter as the clients wrote it; filters that overlap count as one
            topic. "match" replaces a filter by the known topics that it matches, and lists the filter in the
            table `not_carried`, because what else it matches is left out.
        symmetric: latencies: "none" keeps both directions; "mean", "min" or "max" combines them.
        engine: the Spark to use.
        spark: a session of your own, instead of an engine; its settings do not change.
        overwrite: replace an existing `output`.

    Returns:
        The account of every row.

    Raises:
        InputError: a source is missing or of an unknown kind, no source has subscriptions, or `output` exists
            already.
        StorageError: a source cannot be read, or `output` cannot be written.
        UnreachableError: the cluster does not answer, or the JVM does not start.
    """
    check_choices(wildcards, symmetric)
    chosen = engine or SparkEngine()
    use_store_settings(hadoop_settings(chosen, spark))
    with ExitStack() as stack:

        def columns(form: str, name: str) -> tuple[list[str], str]:
            return spark_columns(stack.enter_context(session(chosen, spark)), form, name)

        parsed = [one if isinstance(one, RawSource) else RawSource.parse(one) for one in sources]
        files = find_files(parsed, columns)
        notes = check_dumps(files)
        running = stack.enter_context(session(chosen.sized(total_bytes(files)), spark))
        folder = stack.enter_context(new_folder(as_path(output), overwrite))
        return ingest_into(folder, files, running, wildcards, symmetric, notes)


def ingest_into(
    folder: Path,
    files: list[RawFile],
    spark: SparkSession,
    wildcards: str = "group",
    symmetric: str = "none",
    notes: Iterable[str] = (),
) -> RowLedger:
    """As `ingest`, into an existing folder; `notes` (of `check_dumps`) come first in the ledger."""
    if executors_are_elsewhere(spark):
        share_folder(folder)
    notes = [*notes, *dropped_notes(files)]
    ledger = _Ingest(spark, folder, files, notes=notes).run(wildcards, symmetric)
    ledger.save(folder)
    return ledger


@dataclass
class _Ingest:
    """One ingest: the files that it reads, its output folder, and the tables that it has read so far."""

    spark: SparkSession
    folder: Path
    files: list[RawFile]
    tables: list[_TableRows] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, wildcards: str, symmetric: str) -> RowLedger:
        for table in PLAIN:
            if self._files_of(table):
                self._plain(table)
        if self._files_of("subscriptions"):
            self._subscriptions(wildcards)
        if self._files_of("latency"):
            self._latency(symmetric)
        if self._files_of("publications"):
            self._publications()
        return RowLedger(tuple(self._accounts()), tuple(self.notes))

    def _files_of(self, table: str) -> list[RawFile]:
        return [file for file in self.files if file.table == table]

    def _plain(self, table: str) -> None:
        """Check a table and write it, each key once."""
        with stage(f"ingest {table}"):
            rows = read_files(self.spark, self._files_of(table))
            key = row_checks.KEYS.get(table)
            rows = row_checks.check_events(rows) if table == "events" else rows
            result = self._separate(table, rows if key is None else row_checks.check_keys(rows, key))
            kept = result.rows.drop(RAW, SOURCE, REASON)
            further = FURTHER.format("")
            names = {name: name.removeprefix(further) for name in kept.columns if name.startswith(further)}
            kept = kept.withColumnsRenamed(names)
            self._write(table, kept if key is None else kept.dropDuplicates([key]), key)
            result.used = result.written = self._sum(table)

    def _subscriptions(self, wildcards: str) -> None:
        nodes = self.table("nodes") if self._files_of("nodes") else None
        topics = self.table("topics") if self._files_of("topics") else None
        with stage("ingest subscriptions"):
            rows = read_files(self.spark, self._files_of("subscriptions"))
            checked = row_checks.check_subscriptions(rows, nodes, topics)
            result = self._tally("subscriptions", checked)
        with stage("match filters"):
            wanted = self.table("wanted")
            pairs, notes, narrowed = row_checks.expand_filters(self.spark, wanted, topics, wildcards)
            self._write("subscriptions", pairs.sortWithinPartitions("node", "topic"))
            left_out = self._not_carried(narrowed)
            if nodes is None:
                names = wanted.select("node").union(self.spark.createDataFrame(left_out).select("node"))
                self._write("nodes", names.distinct(), "node")
            result.written = self._sum("subscriptions")
            if not result.written:
                self.notes.append("no row is a subscription that can be used; the table quarantine says why")
            self.notes.extend([*notes, *row_checks.not_carried_notes(left_out)])

    def _not_carried(self, narrowed: DataFrame | None) -> pa.Table:
        """Write the table not_carried, if it has rows: subscriptions that are left out, or only in part."""
        path = self.folder / "left_out.parquet"
        parts = [self.table("left_out")] + ([] if narrowed is None else [narrowed])
        rows = reduce(DataFrame.unionByName, parts).distinct().toArrow().sort_by(_BY_NODE)
        shutil.rmtree(path)
        if rows.num_rows:
            write_table(self.folder, "not_carried", rows)
        return rows

    def _latency(self, symmetric: str) -> None:
        known = self.table("nodes") if self._files_of("nodes") else None
        with stage("ingest latency"):
            result = self._separate("latency", row_checks.check_latency(self._latency_rows(known), known))
            self._write("latency", row_checks.median_latency(result.rows, symmetric), "src", "dst")
            result.used = result.accepted = self._sum("latency", "samples")
            result.written = self._sum("latency")

    def _publications(self) -> None:
        nodes = self.table("nodes") if self._files_of("nodes") else None
        with stage("ingest publications"):
            rows = read_files(self.spark, self._files_of("publications"))
            result = self._separate("publications", row_checks.check_publications(rows, nodes))
            self._write("publications", row_checks.total_rates(result.rows), "node", "topic")
            result.used = result.accepted = self._sum("publications", "samples")
            result.written = self._sum("publications")

    def _latency_rows(self, known: DataFrame | None) -> DataFrame:
        """The rows of all latency files: samples, and the cells of matrices."""
        files = self._files_of("latency")
        listed = [one for one in files if one.reader != MATRIX]
        names = [] if known is None else known.select("node").toArrow().column(0).to_pylist()
        parts = [
            self.spark.createDataFrame(row_checks.read_matrix(one.path, names))
            for one in files
            if one.reader == MATRIX
        ]
        if listed:
            parts.append(read_files(self.spark, listed))
        rows = parts[0]
        for part in parts[1:]:
            rows = rows.unionByName(part, allowMissingColumns=True)
        return rows

    def _separate(self, table: str, rows: DataFrame) -> _TableRows:
        """Count all rows, write the bad ones to the quarantine, and return the good ones."""
        counts = Observation()
        headers = sf.count_if(sf.col(REASON).isin(*NOT_ROWS)).alias("headers")
        self._quarantine(table, rows.observe(counts, sf.count(sf.lit(1)).alias("lines"), headers))
        return self._counted(table, rows, counts.get["lines"], counts.get["headers"])

    def _tally(self, table: str, rows: DataFrame) -> _TableRows:
        """As `_separate`, but write the table `wanted` from the same pass over the input."""
        pieces = 1 + total_bytes(self._files_of(table)) // PIECE_BYTES
        self._write("tally", row_checks.tally(rows, pieces))
        found = self.table("tally")
        self._quarantine(table, found)
        wanted = found.where(sf.col(REASON).isNull()).select("node", "filter", "clients", "rows")
        self._write("wanted", wanted)
        names = (sf.col("left_node").alias("node"), sf.col("left_topic").alias("topic"))
        self._write("left_out", found.where("left_topic is not null").select(*names, REASON).distinct())
        not_rows = pc.field(REASON).isin(NOT_ROWS)
        lines = self._sum("tally", "rows")
        headers = self._sum("tally", "rows", not_rows)
        self.notes.extend(self._missing_pages())
        if self._sum("tally", "shared", pc.field(REASON).is_null()):
            self.notes.extend(row_checks.shared_notes(rows))
        shutil.rmtree(self.folder / "tally.parquet")
        result = self._counted(table, rows, lines, headers)
        result.used = self._sum("wanted", "clients")
        result.accepted = self._sum("wanted", "rows")
        return result

    def _missing_pages(self) -> Iterator[str]:
        """A note on each kind of dump whose pages announce more entries than they have."""
        data = pyarrow.dataset.dataset(self.folder / "tally.parquet")
        found = data.to_table([RAW, SOURCE], filter=pc.field(REASON) == PAGE).to_pylist()
        kind_of = {str(one.path): one.reader for one in self.files}
        pages: dict[str, list[DumpPage]] = {}
        for row in found:
            pages.setdefault(kind_of[file_path(row[SOURCE])], []).append(DumpPage.loads(row[RAW]))
        return filter(None, (missing_pages_note(kind, pages[kind]) for kind in sorted(pages)))

    def _quarantine(self, table: str, rows: DataFrame) -> None:
        """Write the rows that have a reason and are not headers to the quarantine."""
        bad = rows.where(sf.col(REASON).isNotNull() & ~sf.col(REASON).isin(*NOT_ROWS))
        named = bad.select(sf.lit(table).alias("table"), sf.col(RAW).alias("row"), REASON, SOURCE)
        named.write.mode("append").parquet(str(self.folder / "quarantine.parquet"))

    def _counted(self, table: str, rows: DataFrame, lines: int, headers: int) -> _TableRows:
        _check_lines(table, self._files_of(table), lines)
        result = _TableRows(table, rows.where(sf.col(REASON).isNull()), lines - headers)
        self.tables.append(result)
        return result

    def _accounts(self) -> Iterator[TableAccount]:
        """The account of each table, with the reasons that the quarantine has."""
        quarantined = self.table("quarantine").groupBy("table", REASON).count().toArrow().to_pylist()
        for one in self.tables:
            mine = {row[REASON]: row["count"] for row in quarantined if row["table"] == one.table}
            yield one.account(dict(sorted(mine.items())))

    def _write(self, table: str, rows: DataFrame, *order: str | None) -> None:
        """Write a table; if sort columns are given, as one sorted file."""
        keys = [key for key in order if key is not None]
        whole = rows.coalesce(1).sortWithinPartitions(*keys) if keys else rows
        whole.write.parquet(str(self.folder / f"{table}.parquet"))

    def _sum(self, table: str, column: str | None = None, where: pc.Expression | None = None) -> int:
        """The sum of a column of a written table; without a column, the number of its rows."""
        data = pyarrow.dataset.dataset(self.folder / f"{table}.parquet")
        if column is None:
            return int(data.count_rows())
        batches = data.to_batches(columns=[column], filter=where)
        return sum(pc.sum(batch[column]).as_py() or 0 for batch in batches)

    def table(self, table: str) -> DataFrame:
        """A written table."""
        return self.spark.read.parquet(str(self.folder / f"{table}.parquet"))


@dataclass
class _TableRows:
    """The good rows of a table, and how many of them were used and written.

    Attributes:
        table: the name of the table.
        rows: its good rows.
        count: the number of its rows, bad ones included.
        used: the number of good rows that the written table comes from.
        written: the number of rows of the written table.
        accepted: the number of good rows that reached the output, if counted; it must equal that of all good
            rows.
    """

    table: str
    rows: DataFrame
    count: int
    used: int = 0
    written: int = 0
    accepted: int | None = None

    def account(self, quarantined: dict[str, int]) -> TableAccount:
        """The account of the table, after a check that no good row was lost."""
        good = self.count - sum(quarantined.values())
        if self.accepted is not None and self.accepted != good:
            raise InternalError(
                f"{self.table}: {good:,} rows are good, but {self.accepted:,} arrived; please report this"
            )
        return TableAccount(self.table, self.count, self.used, good - self.used, quarantined, self.written)


def _check_lines(table: str, files: list[RawFile], read: int) -> None:
    """Raise if Spark read another number of lines than the files have; only for kinds that can be counted."""
    counts: dict[str, Callable[[Path], int]] = {
        "csv": count_lines,
        "jsonl": count_lines,
        "parquet": lambda path: int(pyarrow.parquet.read_metadata(path).num_rows),
    }
    if all(one.reader in counts for one in files):
        lines = sum(counts[one.reader](one.path) for one in files)
        if lines != read:
            raise InternalError(
                f"{table}: the files have {lines:,} lines, but Spark read {read:,}; "
                "if they have not changed in the meantime, please report this"
            )
