"""Tables whose rows have a key: what it is, and that it stands for one row."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from broadloom.model import Reason
from broadloom.pipeline.ingest.read import RAW, REASON, SOURCE, first_fault

# What makes a row of these tables another one.
KEYS = {"nodes": "node", "topics": "topic", "brokers": "broker", "subscribers": "subscriber", "events": "seq"}


def checked(rows: DataFrame, key: str) -> DataFrame:
    """The rows with a reason where one contradicts another of its key.

    Of the good rows of a key the first in the order of their text counts; one that says the same is a
    duplicate, one that says something else is at fault.
    """
    said = sf.to_json(sf.struct(*(name for name in rows.columns if name not in (RAW, SOURCE, REASON))))
    alike = Window.partitionBy(key, sf.col(REASON).isNull())
    other = said != sf.min(sf.struct(RAW, said.alias("said"))).over(alike).getField("said")
    return rows.withColumn(REASON, sf.coalesce(REASON, first_fault([(other, Reason.conflict(key))])))
