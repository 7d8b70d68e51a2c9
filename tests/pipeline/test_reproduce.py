"""Papers on Spark: a task a case, resumed case by case."""

import dataclasses

import pyarrow.parquet
import pytest

from broadloom.papers import low_degree
from broadloom.pipeline.reproduce import reproduce

pytestmark = pytest.mark.spark


def test_cases_run_once(spark, tmp_path):
    """A second run finds all cases; one that was lost is run again, and the table is the same."""
    pytest.importorskip("matplotlib")
    few = lambda _: [low_degree._case(seed, 12) | {"k": k} for seed in (0, 1) for k in (1, 8)]  # noqa: E731
    figure = dataclasses.replace(low_degree.FIG3, cases=few)
    first = reproduce([figure], tmp_path, spark=spark)
    assert (first.run, first.known) == (4, 0)
    table = pyarrow.parquet.read_table(tmp_path / "paper2-fig3.parquet").drop_columns("seconds")
    next((tmp_path / "cases").iterdir()).unlink()
    again = reproduce([figure], tmp_path, spark=spark)
    assert (again.run, again.known) == (1, 3)
    assert pyarrow.parquet.read_table(tmp_path / "paper2-fig3.parquet").drop_columns("seconds").equals(table)
    assert again.page.exists()
