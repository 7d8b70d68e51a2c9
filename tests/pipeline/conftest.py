"""Fixture: one Spark session for the whole test run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from broadloom.pipeline import SparkEngine, session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A small embedded session, shared by all tests; no test changes its settings."""
    with session(SparkEngine(master="local[2]", conf={"spark.driver.memory": "1g"})) as running:
        before = {row.key: row.value for row in running.sql("SET").collect()}
        yield running
        assert {row.key: row.value for row in running.sql("SET").collect()} == before
