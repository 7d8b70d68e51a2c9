"""Events of churn in raw inputs: what each needs by its kind."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from broadloom.maintenance import EVENT_KINDS, SUBSCRIBE, UNKNOWN_KIND, UNSUBSCRIBE
from broadloom.model import Reason
from broadloom.pipeline.ingest.read import REASON, first_fault


def checked(rows: DataFrame) -> DataFrame:
    """The rows with a reason where one is not to be used."""
    for column, kind in (("topics", "array<string>"), ("at", "string")):
        if column not in rows.columns:
            rows = rows.withColumn(column, sf.lit(None).cast(kind))
    kind, none = sf.col("kind"), sf.coalesce(sf.size("topics"), sf.lit(0)) <= 0
    faults = [
        (~kind.isin(*EVENT_KINDS), UNKNOWN_KIND),
        (kind.isin(SUBSCRIBE, UNSUBSCRIBE) & none, Reason.missing("topics")),
    ]
    return rows.withColumn(REASON, sf.coalesce(REASON, first_fault(faults)))
