"""Ingest on Spark: canonical tables from raw logs, dumps and pings, with an account of every row.

Spark reads and checks the rows of each table in one pass, which ends in a tally (`tallies`). A small tally is
divided into tables in this process, where a job of Spark would cost more than the work; a large one stays on
the executors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.errors import InternalError
from broadloom.formats import PAGE, DumpPage, missing_pages_note
from broadloom.model import RowLedger, TableAccount
from broadloom.mqtt.topic_filters import FilterLookup
from broadloom.pipeline.ingest import filter_matches, row_checks
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
from broadloom.pipeline.ingest.tallies import (
    QUARANTINE,
    SMALL_BYTES,
    LargeTally,
    SmallTally,
    Tally,
    take_tally,
)
from broadloom.pipeline.spark_session import (
    SparkEngine,
    executors_are_elsewhere,
    hadoop_settings,
    session,
    write_frame,
)
from broadloom.progress import stage
from broadloom.storage import as_path, new_folder, remove_path, share_folder, use_store_settings
from broadloom.storage.tables import parquet_dataset, write_parquet, write_table

_BY_NODE = [(name, "ascending") for name in ("node", "topic", "reason")]
# The size of the subscriptions that one partition counts in memory.
PIECE_BYTES = 8 * 2**20
# Compressed files are this many times smaller than their text.
PACKED = 8


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
    ledger = _Ingest(spark, folder, files, notes).run(wildcards, symmetric)
    ledger.save(folder)
    return ledger


@dataclass
class _Ingest:
    """One ingest: the files that it reads, its output folder, and the accounts of the tables so far."""

    spark: SparkSession
    folder: Path
    files: list[RawFile]
    notes: list[str] = field(default_factory=list)
    accounts: list[TableAccount] = field(default_factory=list)
    _known: dict[str, DataFrame] = field(default_factory=dict)

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
        if not self._path("quarantine").exists():
            write_parquet(QUARANTINE.empty_table(), self._path("quarantine"))
        return RowLedger(tuple(self.accounts), tuple(self.notes))

    def _files_of(self, table: str) -> list[RawFile]:
        return [file for file in self.files if file.table == table]

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}.parquet"

    def _plain(self, table: str) -> None:
        """Check a table and write it, each key once."""
        with stage(f"ingest {table}"):
            rows = self._read(table)
            key = row_checks.KEYS.get(table)
            rows = row_checks.check_events(rows) if table == "events" else rows
            further = FURTHER.format("")
            columns = {
                name.removeprefix(further): name for name in rows.columns if name not in (RAW, SOURCE, REASON)
            }
            tally = self._tally(table, row_checks.tally_rows(rows, key))
            tally.write(self._path(table), columns, () if key is None else (key,))
            if table in ("nodes", "topics"):
                self._known[table] = self._frame(tally, columns)
            written = tally.written()
            self._account(table, tally, written, written)

    def _subscriptions(self, wildcards: str) -> None:
        with stage("ingest subscriptions"):
            checked = row_checks.check_subscriptions(
                self._read("subscriptions"), self._known.get("nodes"), self._known.get("topics")
            )
            size = self._size("subscriptions")
            pieces = 1 if size <= SMALL_BYTES else 1 + size // PIECE_BYTES
            tally = self._tally("subscriptions", row_checks.tally_subscriptions(checked, pieces))
            self.notes.extend(self._missing_pages(tally))
            self.notes.extend(row_checks.shared_notes(_brokers_of_shared(tally)))
            columns = {name: name for name in ("node", "filter", "clients", "rows")}
            tally.write(self._path("wanted"), columns, ())
        with stage("match filters"):
            divide = _SmallFilters if isinstance(tally, SmallTally) else _LargeFilters
            found = divide(self, tally)  # type: ignore[arg-type]
            notes, left_out = found.write(wildcards, self._path("subscriptions"))
            left_out = left_out.sort_by(_BY_NODE)
            if left_out.num_rows:
                write_table(self.folder, "not_carried", left_out)
            if "nodes" not in self._known:
                names = pc.unique(pa.concat_arrays([found.nodes(), *left_out["node"].chunks]))
                write_table(self.folder, "nodes", pa.table({"node": names}).sort_by("node"))
            written = int(parquet_dataset(self._path("subscriptions")).count_rows())
            if not written:
                self.notes.append("no row is a subscription that can be used; the table quarantine says why")
            self.notes.extend([*notes, *row_checks.not_carried_notes(left_out)])
        self._account("subscriptions", tally, tally.total("clients"), written)

    def _latency(self, symmetric: str) -> None:
        with stage("ingest latency"):
            known = self._known.get("nodes")
            checked = row_checks.check_latency(self._latency_rows(known), known)
            tally = self._tally("latency", row_checks.tally_latency(checked, symmetric))
            columns = {"src": "src", "dst": "dst", "rtt_ms": "rtt_ms", "samples": "rows"}
            tally.write(self._path("latency"), columns, ("src", "dst"))
            self._account("latency", tally, tally.total("rows"), tally.written())

    def _publications(self) -> None:
        with stage("ingest publications"):
            rows = row_checks.check_publications(self._read("publications"), self._known.get("nodes"))
            tally = self._tally("publications", row_checks.tally_publications(rows))
            columns = {"node": "node", "topic": "topic", "rate": "rate", "samples": "rows"}
            tally.write(self._path("publications"), columns, ("node", "topic"))
            self._account("publications", tally, tally.total("rows"), tally.written())

    def _read(self, table: str) -> DataFrame:
        """The rows of all files of a table; those of small files in one partition, which needs no shuffle."""
        rows = read_files(self.spark, self._files_of(table))
        return rows.coalesce(1) if self._size(table) <= SMALL_BYTES else rows

    def _size(self, table: str) -> int:
        """The approximate size of the text of a table's files."""
        packed = [one for one in self._files_of(table) if one.path.suffix == ".gz" or one.reader == "parquet"]
        return total_bytes(self._files_of(table)) + (PACKED - 1) * total_bytes(packed)

    def _latency_rows(self, known: DataFrame | None) -> DataFrame:
        """The rows of all latency files: samples, and the cells of matrices."""
        files = self._files_of("latency")
        listed = [one for one in files if one.reader != MATRIX]
        if len(listed) == len(files):
            return self._read("latency")
        names = [] if known is None else known.select("node").toArrow().column(0).to_pylist()
        parts = [
            self.spark.createDataFrame(row_checks.read_matrix(one.path, names))
            for one in files
            if one.reader == MATRIX
        ]
        if listed:
            parts.append(read_files(self.spark, listed))
        rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
        return rows.coalesce(1) if self._size("latency") <= SMALL_BYTES else rows

    def _tally(self, table: str, rows: DataFrame) -> Tally:
        """Count all rows of a table, and write the refused ones to the quarantine."""
        path = self.folder / f"{table}-tally.parquet"
        tally = take_tally(self.spark, rows, self._size(table) <= SMALL_BYTES, path)
        tally.write_refused(self._path("quarantine"), table)
        return tally

    def _frame(self, tally: Tally, columns: dict[str, str]) -> DataFrame:
        """The rows of a table as a frame of Spark."""
        if isinstance(tally, SmallTally):
            good = tally.good()
            return self.spark.createDataFrame(pa.table({new: good[old] for new, old in columns.items()}))
        written: str = str(self._path("nodes" if "node" in columns else "topics"))
        return self.spark.read.parquet(written)

    def _missing_pages(self, tally: Tally) -> Iterator[str]:
        """A note on each kind of dump whose pages announce more entries than they have."""
        kind_of = {str(one.path): one.reader for one in self.files}
        pages: dict[str, list[DumpPage]] = {}
        for row in tally.rows_of(PAGE, RAW, SOURCE).to_pylist():
            pages.setdefault(kind_of[file_path(row[SOURCE])], []).append(DumpPage.loads(row[RAW]))
        return filter(None, (missing_pages_note(kind, pages[kind]) for kind in sorted(pages)))

    def _account(self, table: str, tally: Tally, used: int, written: int) -> None:
        """Add the account of a table, after a check that no line and no good row was lost."""
        counts = tally.counts()
        _check_lines(table, self._files_of(table), sum(counts.values()))
        rows = sum(counts.values()) - sum(counts.get(reason, 0) for reason in NOT_ROWS)
        quarantined = tally.quarantined()
        good = counts.get(None, 0) + counts.get(row_checks.DUPLICATE, 0)
        self.accounts.append(account_of(table, rows, quarantined, good, used, written))
        for name in (table, "matches"):
            remove_path(self.folder / f"{name}-tally.parquet")


def account_of(
    table: str, rows: int, quarantined: dict[str, int], good: int, used: int, written: int
) -> TableAccount:
    """The account of a table; raises unless `good`, the good rows that arrived, are all that are not bad."""
    expected = rows - sum(quarantined.values())
    if good != expected:
        raise InternalError(f"{table}: {expected:,} rows are good, but {good:,} arrived; please report this")
    return TableAccount(table, rows, used, good - used, quarantined, written)


def _brokers_of_shared(tally: Tally) -> dict[str, list[str]]:
    """The nodes of each shared subscription."""
    if isinstance(tally, LargeTally):
        marks = tally.rows.where(sf.col(REASON) == row_checks.SHARED).groupBy(RAW)
        nodes = marks.agg(sf.collect_list("left_node").alias("nodes")).where(sf.size("nodes") > 1).toArrow()
    else:
        marks = tally.rows_of(row_checks.SHARED, RAW, "left_node").group_by(RAW)
        nodes = marks.aggregate([("left_node", "list")]).rename_columns({"left_node_list": "nodes"})
    return dict(zip(nodes[RAW].to_pylist(), nodes["nodes"].to_pylist(), strict=True))


@dataclass
class _SmallFilters:
    """The table subscriptions from the filters of a small tally, in this process."""

    ingest: _Ingest
    tally: SmallTally

    def nodes(self) -> pa.Array:
        """The nodes that have subscriptions."""
        return pc.unique(self.tally.good()["node"])

    def write(self, wildcards: str, path: Path) -> tuple[list[str], pa.Table]:
        """Write the table; return notes on filters that match very much, and what is left out."""
        good = self.tally.good()
        wanted = pa.table({"node": good["node"], "filter": good["filter"]})
        wild = pc.match_substring_regex(wanted["filter"], "[+#]")
        patterns = sorted(pc.unique(wanted["filter"].filter(wild)).to_pylist())
        notes: list[str] = []
        pairs = wanted.rename_columns(["node", "topic"])
        left_out = [self._left_out()]
        if patterns:
            topics = self._topics(wanted, wild)
            found = FilterLookup(patterns)
            if wildcards == "group":
                sizes = filter_matches.overlap_groups(found, [*patterns, *topics])
                notes = filter_matches.group_notes(sizes.values(), len(topics))
            else:
                pairs, notes, narrowed = self._matched(wanted, patterns, found, topics)
                left_out.append(narrowed)
        write_parquet(pairs.sort_by([("node", "ascending"), ("topic", "ascending")]), path)
        return notes, pa.concat_tables(left_out).group_by(["node", "topic", "reason"]).aggregate([])

    def _left_out(self) -> pa.Table:
        rows = self.tally.rows
        kept = rows.filter(pc.is_valid(rows["left_topic"]))
        return pa.table([kept[name] for name in ("left_node", "left_topic", REASON)], names=_LEFT_OUT)

    def _topics(self, wanted: pa.Table, wild: pa.ChunkedArray) -> list[str]:
        known = self.ingest._known.get("topics")
        if known is not None:
            return sorted(known.select("topic").toArrow()["topic"].to_pylist())
        return sorted(pc.unique(wanted["filter"].filter(pc.invert(wild))).to_pylist())

    def _matched(
        self, wanted: pa.Table, patterns: list[str], found: FilterLookup, topics: list[str]
    ) -> tuple[pa.Table, list[str], pa.Table]:
        """The subscriptions with the topics that filters match; notes; the filters that are not carried."""
        meaning = filter_matches.matches(found, topics)
        counted = meaning.group_by("filter").aggregate([([], "count_all")])
        counts = dict(zip(counted["filter"].to_pylist(), counted["count_all"].to_pylist(), strict=True))
        own = meaning.filter(pc.equal(meaning["filter"], meaning["topic"]))["filter"].to_pylist()
        meanings = filter_matches.filter_meanings(patterns, counts, set(own))
        whole = pa.concat_tables([meaning, meanings.more])
        joined = wanted.join(whole, "filter", join_type="left outer")
        topic = pc.coalesce(joined["topic"], joined["filter"])
        pairs = pa.table({"node": joined["node"], "topic": topic}).group_by(["node", "topic"]).aggregate([])
        narrowed = wanted.join(meanings.narrowed(), "filter", join_type="inner")
        left_out = pa.table([narrowed[name] for name in ("node", "filter", "reason")], names=_LEFT_OUT)
        return pairs, meanings.notes(len(topics)), left_out


@dataclass
class _LargeFilters:
    """The table subscriptions from the filters of a large tally, on Spark."""

    ingest: _Ingest
    tally: LargeTally

    def nodes(self) -> pa.Array:
        """The nodes that have subscriptions."""
        return pc.unique(self.tally.good().select("node").distinct().toArrow()["node"])

    def write(self, wildcards: str, path: Path) -> tuple[list[str], pa.Table]:
        """As `_SmallFilters.write`."""
        wanted = self.tally.good().select("node", "filter")
        wild = sf.col("filter").contains("+") | sf.col("filter").contains("#")
        patterns = sorted(wanted.where(wild).select("filter").distinct().toArrow()["filter"].to_pylist())
        notes: list[str] = []
        pairs = wanted.select("node", sf.col("filter").alias("topic"))
        rows = self.tally.rows.where("left_topic is not null")
        left_out = rows.select(sf.col("left_node").alias("node"), sf.col("left_topic").alias("topic"), REASON)
        if patterns:
            known = self.ingest._known.get("topics")
            literal = wanted.where(~wild).select(sf.col("filter").alias("topic")).distinct()
            topics = literal if known is None else known.select("topic")
            found = FilterLookup(patterns)
            if wildcards == "group":
                sizes = filter_matches.overlap_groups(found, patterns)
                for group, one in filter_matches.overlap_groups_on_spark(found, topics).items():
                    sizes[group] = one.plus(sizes[group])
                notes = filter_matches.group_notes(sizes.values(), topics.count())
            else:
                pairs, notes, narrowed = self._matched(wanted, patterns, found, topics)
                left_out = left_out.unionByName(narrowed)
        write_frame(pairs.sortWithinPartitions("node", "topic"), path)
        return notes, left_out.distinct().toArrow()

    def _matched(
        self, wanted: DataFrame, patterns: list[str], found: FilterLookup, topics: DataFrame
    ) -> tuple[DataFrame, list[str], DataFrame]:
        spark = self.ingest.spark
        path = self.ingest.folder / "matches-tally.parquet"
        write_frame(filter_matches.matches_on_spark(found, topics), path)
        meaning = spark.read.schema("filter string, topic string").parquet(str(path))
        own = sf.max(sf.col("filter") == sf.col("topic")).alias("own")
        counted = meaning.groupBy("filter").agg(sf.count("*").alias("count"), own).toArrow().to_pylist()
        counts = {row["filter"]: row["count"] for row in counted}
        meanings = filter_matches.filter_meanings(
            patterns, counts, {row["filter"] for row in counted if row["own"]}
        )
        whole = meaning.unionByName(spark.createDataFrame(meanings.more))
        plain = ~(sf.col("filter").contains("+") | sf.col("filter").contains("#"))
        expanded = wanted.where(~plain).join(whole, "filter").select("node", "topic")
        literal = wanted.where(plain).select("node", sf.col("filter").alias("topic"))
        narrowed = wanted.join(sf.broadcast(spark.createDataFrame(meanings.narrowed())), "filter")
        left_out = narrowed.select("node", sf.col("filter").alias("topic"), REASON)
        return literal.unionByName(expanded).distinct(), meanings.notes(topics.count()), left_out


_LEFT_OUT = ["node", "topic", "reason"]


def _check_lines(table: str, files: list[RawFile], read: int) -> None:
    """Raise if Spark read another number of lines than the files have, where all can be counted.

    Raises:
        InputError: a line is too long.
    """
    counts: dict[str, Callable[[Path], int]] = {
        "csv": count_lines,
        "jsonl": count_lines,
        "parquet": lambda path: int(parquet_dataset(path).count_rows()),
    }
    countable = [one for one in files if one.reader in counts]
    lines = sum(counts[one.reader](one.path) for one in countable)
    if lines != read and len(countable) == len(files):
        raise InternalError(
            f"{table}: the files have {lines:,} lines, but Spark read {read:,}; "
            "if they have not changed in the meantime, please report this"
        )
