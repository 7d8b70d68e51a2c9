"""Markets on Spark: the same trees and the same rates as in process, bit for bit."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import broadloom as bl
from broadloom.assignment.market.steiner_mixing import access_weights
from broadloom.cli import main
from broadloom.pipeline import spark_market as on_spark

pytestmark = pytest.mark.spark


def test_steiner_mixing_is_the_in_process_one(spark):
    problem = bl.workload.market(users=120, brokers=7, channels=12, width=0.2, seed=5)
    weights = on_spark.link_weights(spark, problem)
    assert np.array_equal(weights, access_weights(problem))
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


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.string()])
def test_times_of_every_kind_give_the_in_process_rates(spark, kind):
    """Whole numbers are microseconds."""
    at = pa.array([3_000_000, 0, 500_000], pa.timestamp("us")).cast(kind)
    log = pa.table({"publisher": ["a"] * 3, "at": at, "bytes": [1, 2, 3], "topic": ["x"] * 3})
    found = on_spark.summarize_log(spark.createDataFrame(log), ["a"], ["x"])
    assert found.tolist() == bl.summarize(log, ["a"], ["x"]).tolist() == [[2.0]]


def test_messages_without_a_time_are_refused(spark):
    at = pa.array([0, None], pa.timestamp("us"))
    log = pa.table({"publisher": ["a"] * 2, "at": at, "bytes": [1, 2], "topic": ["x"] * 2})
    for summarized in (lambda: bl.summarize(log, ["a"], ["x"]), lambda: _summarized(spark, log)):
        with pytest.raises(bl.InputError, match="1 messages have no time"):
            summarized()


def _summarized(spark, log):
    return on_spark.summarize_log(spark.createDataFrame(log), ["a"], ["x"])


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


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("by", ["point", "topic"])
def test_the_command_makes_the_in_process_plan(tmp_path, by):
    """`broadloom market --master` uses the running session, and assigns the same brokers."""
    rng = np.random.default_rng(4)
    users = [f"u{i}" for i in range(20)]
    lo = rng.random((20, 1)) / 2
    tables = {
        "subscribers": {"subscriber": users, "place": rng.random((20, 2)).tolist()}
        | {"lo": lo.tolist(), "hi": (lo + 0.3).tolist()},
        "brokers": {"broker": ["a", "b", "c"], "place": rng.random((3, 2)).tolist()},
        "messages": {
            "publisher": rng.choice(users, 300),
            "at": pa.array(rng.integers(0, 10**9, 300), pa.timestamp("us")),
            "bytes": rng.integers(1, 1000, 300),
            by: rng.random((300, 1)).tolist() if by == "point" else rng.choice(["x", "y", "z"], 300),
        },
        "subscriptions": {"node": [*users, *users[:9]], "topic": [*"wxyz" * 5, *"y" * 9]},
    }
    for name, columns in tables.items():
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    words = ["market", str(tmp_path), "-a", "steiner-mixing", "--quiet", "-o"]
    for where in (["here"], ["there", "--master", "local[2]"]):
        with pytest.raises(SystemExit) as stopped:
            main([*words, str(tmp_path / where[0]), *where[1:]])
        assert not stopped.value.code
    for name in ("assignment.parquet", "flows.parquet"):
        here, there = (pa.parquet.read_table(tmp_path / where / name) for where in ("here", "there"))
        assert here.equals(there)
