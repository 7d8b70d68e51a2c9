"""Assignment on Spark: the plan of the in-process algorithm, bit for bit, and the same refusals."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

import broadloom as bl
from broadloom.model.assignment_tables import read_problem, write_problem
from broadloom.pipeline.assign import assign, indexed

pytestmark = pytest.mark.spark

OPTIONS = {"sample": 400, "passes": 2, "starts": 1, "many_starts": 1}


def compare(spark, tables, plan, **limits):
    """Assign on Spark and in process, and assert that the plans are equal."""
    metrics = assign(tables, plan, seed=3, spark=spark, limits=limits, **OPTIONS)
    found = bl.AssignmentResult.load(plan)
    expected = bl.assign(read_problem(tables, **limits), seed=3, polish=0, **OPTIONS)
    assert np.array_equal(found.broker_of, expected.broker_of)
    assert found.metrics() == expected.metrics()
    assert metrics == pytest.approx(expected.metrics(), rel=1e-9)
    assert json.loads((plan / "plan.json").read_text())["metrics"] == metrics
    return found


@pytest.mark.parametrize(
    "given",
    [
        {"subscribers": 3000, "brokers": 12},
        {"set": 2, "subscribers": 2000, "brokers": 12},
        {"subscribers": 2000, "brokers": 30, "levels": 2, "latency": "loose"},
    ],
)
def test_the_plan_is_the_in_process_one(spark, tmp_path, given):
    write_problem(tmp_path / "tables", bl.workload.subscribers(**given))
    assert compare(spark, tmp_path / "tables", tmp_path / "plan").feasible


def test_many_files_latencies_and_limits_of_the_call(spark, tmp_path):
    """Rows are counted over files by name; a latency that is missing leaves the delay to count."""
    problem = bl.workload.subscribers(subscribers=2000, brokers=10)
    bound = np.where(np.arange(2000) % 3 == 0, 1e6, np.nan)
    tables = tmp_path / "tables"
    write_problem(tables, problem.replace(max_latency=bound))
    whole = pq.read_table(tables / "subscribers.parquet")
    (tables / "subscribers.parquet").unlink()
    (tables / "subscribers.parquet").mkdir()
    for part, first in enumerate(range(0, 2000, 700)):
        pq.write_table(whole.slice(first, 700), tables / "subscribers.parquet" / f"part-{part}.parquet")
    rows, count = indexed(spark, tables / "subscribers.parquet")
    found = rows.select("index", "subscriber").toArrow().sort_by("index")
    assert count == 2000
    assert found["subscriber"].to_pylist() == whole["subscriber"].to_pylist()
    compare(spark, tables, tmp_path / "plan", alpha=2, beta=2.0, beta_max=2.5)


def test_few_subscribers_are_searched_on_the_driver(spark, tmp_path):
    write_problem(tmp_path / "tables", bl.workload.subscribers(subscribers=500, brokers=5))
    assert compare(spark, tmp_path / "tables", tmp_path / "plan").metrics()["subscribers"] == 500


def test_what_is_wrong_is_told_in_one_line(spark, tmp_path):
    problem = bl.workload.subscribers(subscribers=1500, brokers=6)
    bound = np.full(1500, np.nan)
    bound[[7, 900]] = 0.0
    write_problem(tmp_path / "far", problem.replace(max_latency=bound))
    with pytest.raises(bl.InputError, match=r"2 subscribers have no leaf broker .*: 7, 900; raise"):
        assign(tmp_path / "far", tmp_path / "plan", spark=spark, **OPTIONS)
    table = pq.read_table(tmp_path / "far" / "subscribers.parquet").drop_columns("max_latency")
    lows = table["lo"].to_pylist()
    lows[1400] = [1e9, 0.0]
    lo = table.column_names.index("lo")
    bad = table.set_column(lo, "lo", [lows])
    pq.write_table(bad, tmp_path / "far" / "subscribers.parquet")
    with pytest.raises(bl.InputError, match="lo is at most hi on every axis"):
        assign(tmp_path / "far", tmp_path / "plan", spark=spark, **OPTIONS | {"sample": 10})
    assert not (tmp_path / "plan").exists()
    with pytest.raises(bl.InputError, match="option polish is 3; on Spark it is 0"):
        assign(tmp_path / "far", tmp_path / "plan", spark=spark, polish=3)
    (tmp_path / "far" / "subscribers.parquet").unlink()
    with pytest.raises(bl.InputError, match=r"no subscribers.parquet"):
        assign(tmp_path / "far", tmp_path / "plan", spark=spark)
