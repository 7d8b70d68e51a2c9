"""Tallies: the checked rows of one table, counted, in this process if they are few and on Spark if not.

A row of a tally without a reason is a row of the table, made from `rows` input rows. The others are refused
rows, headers, duplicates and marks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.pipeline.ingest.raw_rows import NOT_ROWS, RAW, REASON, SOURCE
from broadloom.pipeline.ingest.row_checks import DUPLICATE, SHARED
from broadloom.pipeline.spark_session import write_frame
from broadloom.storage.tables import parquet_dataset, read_parquet, write_parquet

# Inputs up to this size are read by one task, and their tally is fetched without files in between.
SMALL_BYTES = 4 * 2**20
# Tallies up to this many rows and bytes (compressed) are divided into tables in this process.
SMALL_ROWS = 500_000
SMALL_FILES = 32 * 2**20

# The reasons of rows that are not in quarantine.
NOT_REFUSED = (*NOT_ROWS, DUPLICATE, SHARED)
QUARANTINE = pa.schema([(name, pa.string()) for name in ("table", "row", "reason", "source")])


class Tally(ABC):
    """The checked rows of a table, counted."""

    @abstractmethod
    def counts(self) -> dict[str | None, int]:
        """The number of input rows by reason; None: the rows of the table."""

    @abstractmethod
    def total(self, column: str) -> int:
        """The sum of a column of the rows of the table."""

    @abstractmethod
    def written(self) -> int:
        """The number of rows of the table."""

    @abstractmethod
    def write(self, path: Path, columns: Mapping[str, str], order: tuple[str, ...]) -> None:
        """Write the rows of the table as Parquet: `columns` by their names, in the order of some of them."""

    @abstractmethod
    def write_refused(self, path: Path, table: str) -> None:
        """Add the refused rows to the quarantine, a folder of Parquet files."""

    @abstractmethod
    def rows_of(self, reason: str, *columns: str) -> pa.Table:
        """Columns of the rows with a reason of which there are few."""

    def quarantined(self) -> dict[str, int]:
        """The number of refused rows by reason."""
        found = {reason: count for reason, count in self.counts().items() if reason is not None}
        return {reason: found[reason] for reason in sorted(found) if reason not in NOT_REFUSED}


@dataclass(frozen=True)
class SmallTally(Tally):
    """A tally in this process."""

    rows: pa.Table

    def counts(self) -> dict[str | None, int]:
        """As in `Tally`."""
        found = self.rows.group_by(REASON).aggregate([("rows", "sum")])
        return dict(zip(found[REASON].to_pylist(), found["rows_sum"].to_pylist(), strict=True))

    def good(self) -> pa.Table:
        """The rows of the table."""
        return self.rows.filter(pc.is_null(self.rows[REASON]))

    def total(self, column: str) -> int:
        """As in `Tally`."""
        return int(pc.sum(self.good()[column]).as_py() or 0)

    def written(self) -> int:
        """As in `Tally`."""
        return int(self.rows[REASON].null_count)

    def write(self, path: Path, columns: Mapping[str, str], order: tuple[str, ...]) -> None:
        """As in `Tally`."""
        good = self.good()
        table = pa.table({new: good[old] for new, old in columns.items()})
        write_parquet(table.sort_by([(name, "ascending") for name in order]) if order else table, path)

    def write_refused(self, path: Path, table: str) -> None:
        """As in `Tally`."""
        reasons = pa.array(NOT_REFUSED)
        refused = pc.and_not(pc.is_valid(self.rows[REASON]), pc.is_in(self.rows[REASON], reasons))
        rows = self.rows.filter(refused)
        if rows.num_rows:
            columns = [[table] * rows.num_rows, rows[RAW], rows[REASON], rows[SOURCE]]
            path.mkdir(exist_ok=True)
            write_parquet(pa.table(columns, schema=QUARANTINE), path / f"{table}.parquet")

    def rows_of(self, reason: str, *columns: str) -> pa.Table:
        """As in `Tally`."""
        return self.rows.filter(pc.equal(self.rows[REASON], reason)).select(list(columns))


@dataclass(frozen=True)
class LargeTally(Tally):
    """A tally in Parquet files, on Spark."""

    rows: DataFrame
    path: Path

    def counts(self) -> dict[str | None, int]:
        """As in `Tally`."""
        found: dict[str | None, int] = {}
        for batch in parquet_dataset(self.path).to_batches(columns=[REASON, "rows"]):
            for reason, count in SmallTally(pa.Table.from_batches([batch])).counts().items():
                found[reason] = found.get(reason, 0) + (count or 0)
        return found

    def good(self) -> DataFrame:
        """The rows of the table."""
        return self.rows.where(sf.col(REASON).isNull())

    def total(self, column: str) -> int:
        """As in `Tally`."""
        good = pc.field(REASON).is_null()
        batches = parquet_dataset(self.path).to_batches(columns=[column], filter=good)
        return sum(pc.sum(batch[column]).as_py() or 0 for batch in batches)

    def written(self) -> int:
        """As in `Tally`."""
        return int(parquet_dataset(self.path).count_rows(filter=pc.field(REASON).is_null()))

    def write(self, path: Path, columns: Mapping[str, str], order: tuple[str, ...]) -> None:
        """As in `Tally`."""
        rows = self.good().select(*(sf.col(f"`{old}`").alias(new) for new, old in columns.items()))
        write_frame(rows.orderBy(*order) if order else rows, path)

    def write_refused(self, path: Path, table: str) -> None:
        """As in `Tally`."""
        refused = self.rows.where(sf.col(REASON).isNotNull() & ~sf.col(REASON).isin(*NOT_REFUSED))
        named = refused.select(sf.lit(table).alias("table"), sf.col(RAW).alias("row"), REASON, SOURCE)
        write_frame(named, path, append=True)

    def rows_of(self, reason: str, *columns: str) -> pa.Table:
        """As in `Tally`."""
        return parquet_dataset(self.path).to_table(list(columns), filter=pc.field(REASON) == reason)


def take_tally(spark: SparkSession, rows: DataFrame, small: bool, path: Path) -> Tally:
    """Run the one job that reads an input: fetch its small tally, or write it to `path` and see if it is."""
    if small:
        return SmallTally(rows.toArrow())
    write_frame(rows, path)
    files = [file for file in path.iterdir() if file.name.endswith(".parquet")]
    few = parquet_dataset(path).count_rows() <= SMALL_ROWS
    if few and sum(file.stat().st_size for file in files) <= SMALL_FILES:
        return SmallTally(read_parquet(path))
    return LargeTally(spark.read.schema(rows.schema).parquet(str(path)), path)
