"""Assignment on Spark: the plan of the in-process algorithm, bit for bit, and the same refusals."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

import broadloom as bl
from broadloom.model import read_assignment_problem, write_assignment_problem
from broadloom.pipeline.spark_assign import assign_on_spark, indexed

pytestmark = pytest.mark.spark

OPTIONS = {"sample": 400, "passes": 2, "starts": 1, "many_starts": 1, "polish_up_to": 1000}


def compare(spark, tables, plan, options=OPTIONS, **limits):
    """Assign on Spark and in process, and assert that the plans are equal."""
    metrics = assign_on_spark(tables, plan, seed=3, spark=spark, limits=limits, **options)
    found = bl.AssignmentResult.load(plan)
    expected = bl.assign(read_assignment_problem(tables, **limits), seed=3, **options)
    assert np.array_equal(found.broker_of, expected.broker_of)
    for name in ("algorithm", "seed", "options", "notes", "lower_bound"):
        assert getattr(found, name) == getattr(expected, name)
    assert found.metrics() == expected.metrics()
    assert metrics == pytest.approx(expected.metrics(), rel=1e-9)
    assert json.loads((plan / "plan.json").read_text())["metrics"] == metrics
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        {"subscribers": 3000, "brokers": 12},
        {"set": 2, "subscribers": 2000, "brokers": 12},
        {"subscribers": 2000, "brokers": 30, "levels": 2, "latency": "loose"},
    ],
)
def test_the_plan_equals_the_in_process_one(spark, tmp_path, arguments):
    write_assignment_problem(tmp_path / "tables", bl.workload.subscribers(**arguments))
    assert compare(spark, tmp_path / "tables", tmp_path / "plan").feasible


def test_many_files_latencies_and_limits_as_arguments(spark, tmp_path):
    """Rows are numbered over files by name; without a max_latency the delay is limited."""
    problem = bl.workload.subscribers(subscribers=2000, brokers=10)
    bound = np.where(np.arange(2000) % 3 == 0, 1e6, np.nan)
    tables = tmp_path / "tables"
    write_assignment_problem(tables, problem.replace(max_latency=bound))
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


@pytest.mark.parametrize("more", [{}, {"sample": 100, "polish": 2}, {"sample": 100, "polish": 0}])
def test_few_subscribers_are_searched_or_polished_on_the_driver(spark, tmp_path, more):
    """Up to `polish_up_to` the driver holds all subscribers; without polish it does not have to."""
    write_assignment_problem(tmp_path / "tables", bl.workload.subscribers(subscribers=500, brokers=5))
    found = compare(spark, tmp_path / "tables", tmp_path / "plan", OPTIONS | more)
    assert found.metrics()["subscribers"] == 500
    assert (found.lower_bound is None) == (more.get("polish") == 0)


def test_a_density_is_used_on_spark(spark, tmp_path):
    problem = bl.workload.subscribers(subscribers=1500, brokers=6)
    density = bl.Density([[0, 2000, 9000], [0, 5000, 10000]], [[1, 2], [0, 4]])
    write_assignment_problem(tmp_path / "tables", problem.replace(density=density))
    assert compare(spark, tmp_path / "tables", tmp_path / "plan").bandwidth <= 7 * 6


def test_an_id_that_appears_twice_is_refused(spark, tmp_path):
    problem = bl.workload.subscribers(subscribers=1500, brokers=6)
    write_assignment_problem(tmp_path / "tables", problem)
    path = tmp_path / "tables" / "subscribers.parquet"
    table = pq.read_table(path)
    for wrong, message in (("7", "id '7' appears twice"), ("", "has no id")):
        names = [*table["subscriber"].to_pylist()[:-1], wrong]
        pq.write_table(table.set_column(0, "subscriber", [names]), path)
        with pytest.raises(bl.InputError, match=message):
            assign_on_spark(tmp_path / "tables", tmp_path / "plan", spark=spark, **OPTIONS)


def test_wrong_inputs_are_errors_in_one_line(spark, tmp_path):
    problem = bl.workload.subscribers(subscribers=1500, brokers=6)
    bound = np.full(1500, np.nan)
    bound[[7, 900]] = 0.0
    write_assignment_problem(tmp_path / "far", problem.replace(max_latency=bound))
    with pytest.raises(bl.InputError, match=r"2 subscribers have no leaf broker .*: 7, 900; raise"):
        assign_on_spark(tmp_path / "far", tmp_path / "plan", spark=spark, **OPTIONS)
    table = pq.read_table(tmp_path / "far" / "subscribers.parquet").drop_columns("max_latency")
    lows = table["lo"].to_pylist()
    lows[1400] = [1e9, 0.0]
    lo = table.column_names.index("lo")
    bad = table.set_column(lo, "lo", [lows])
    pq.write_table(bad, tmp_path / "far" / "subscribers.parquet")
    with pytest.raises(bl.InputError, match="lo is at most hi on every axis"):
        assign_on_spark(tmp_path / "far", tmp_path / "plan", spark=spark, **OPTIONS | {"sample": 10})
    assert not (tmp_path / "plan").exists()
    (tmp_path / "far" / "subscribers.parquet").unlink()
    with pytest.raises(bl.InputError, match=r"no subscribers.parquet"):
        assign_on_spark(tmp_path / "far", tmp_path / "plan", spark=spark)
