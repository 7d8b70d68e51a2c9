"""Events of churn in raw inputs: what each needs by its kind, and that a `seq` stands for one event."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from broadloom.maintenance.events import KINDS, UNKNOWN_KIND
from broadloom.maintenance.requests import SUBSCRIBE, UNSUBSCRIBE
from broadloom.pipeline import reasons
from broadloom.pipeline.read import RAW, REASON, SOURCE, first_fault


def checked(rows: DataFrame) -> DataFrame:
    """The rows with a reason where one is not to be used.

    Of rows with the same `seq` the first in the order of their text counts; one that says the same is a
    duplicate, one that says something else is at fault.
    """
    for column, kind in (("topics", "array<string>"), ("at", "string")):
        if column not in rows.columns:
            rows = rows.withColumn(column, sf.lit(None).cast(kind))
    kind, none = sf.col("kind"), sf.coalesce(sf.size("topics"), sf.lit(0)) <= 0
    faults = [
        (~kind.isin(*KINDS), UNKNOWN_KIND),
        (kind.isin(SUBSCRIBE, UNSUBSCRIBE) & none, reasons.missing("topics")),
    ]
    judged = rows.withColumn(REASON, sf.coalesce(REASON, first_fault(faults)))
    said = sf.to_json(sf.struct(*(name for name in judged.columns if name not in (RAW, SOURCE, REASON))))
    alike = Window.partitionBy("seq", sf.col(REASON).isNull())
    other = said != sf.min_by(said, RAW).over(alike)
    return judged.withColumn(REASON, sf.coalesce(REASON, first_fault([(other, reasons.SAME_SEQ)])))
