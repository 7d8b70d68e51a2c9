"""Markets on Spark: the same trees and the same rates as in process, bit for bit."""

import numpy as np
import pyarrow as pa
import pytest

import broadloom as bl
from broadloom.assignment import steiner
from broadloom.pipeline import market as on_spark

pytestmark = pytest.mark.spark


def test_steiner_mixing_is_the_in_process_one(spark):
    problem = bl.workload.market(users=120, brokers=7, channels=12, width=0.2, seed=5)
    weights = on_spark.link_weights(spark, problem)
    assert np.array_equal(weights, steiner.link_weights(problem))
    expected = bl.assign(problem, "steiner-mixing", seed=3)
    assert np.array_equal(on_spark.steiner_mixing(problem, seed=3, spark=spark).broker_of, expected.broker_of)


@pytest.mark.parametrize("by", ["point", "topic"])
def test_rates_from_a_log_are_the_in_process_ones(spark, by):
    rng = np.random.default_rng(1)
    users = [f"u{i}" for i in range(9)]
    log = pa.table(
        {
            "publisher": rng.choice(users, 500),
            "at": pa.array(rng.integers(0, 10**9, 500), pa.timestamp("us")),
            "bytes": rng.integers(0, 10**6, 500),
            "point": rng.random((500, 2)).tolist(),
            "topic": rng.choice(["x", "y", "z"], 500),
        }
    )
    channels = bl.Grid.over([0, 0], [1, 1], [4, 3]) if by == "point" else ["x", "y", "z"]
    found = on_spark.summarize_log(spark.createDataFrame(log).repartition(5), users, channels)
    assert np.array_equal(found, bl.summarize(log, users, channels))


def test_a_bad_message_is_refused(spark):
    log = pa.table(
        {
            "publisher": ["a", "b"],
            "at": pa.array([0, 1], pa.timestamp("us")),
            "bytes": [1, 2],
            "topic": ["x", "x"],
        }
    )
    with pytest.raises(bl.InputError, match="publisher 'b' is unknown"):
        on_spark.summarize_log(spark.createDataFrame(log), ["a"], ["x"])
