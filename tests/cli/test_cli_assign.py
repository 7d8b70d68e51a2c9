"""`broadloom subscribers` and `broadloom assign` on the command line."""

import json

import pytest

import broadloom as bl
from broadloom.cli import main


@pytest.fixture
def run(capfd):
    """Run `broadloom ...` in this process; returns the exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exited:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(exited.value.code or 0), out, err

    return call


@pytest.fixture
def tables(run, tmp_path):
    """The folder of generated tables with 400 subscribers and 6 brokers."""
    generate = ("subscribers", "--subscribers", 400, "--brokers", 6, "-q", "-o", tmp_path / "tables")
    assert run(*generate)[0] == 0
    return tmp_path / "tables"


def test_generated_subscribers_are_assigned_verified_and_measured(run, tables, tmp_path):
    code, out, _ = run("assign", tables, "-O", "passes=1", "-o", tmp_path / "plan", "--json")
    record = json.loads(out)
    assert code == 0
    assert record["feasible"] is True
    assert 0 < record["lower_bound"] <= record["metrics"]["bandwidth"]
    assert bl.AssignmentResult.load(tmp_path / "plan").metrics() == record["metrics"]
    assert run("verify", tmp_path / "plan")[0] == 0
    assert json.loads(run("measure", tmp_path / "plan", "--json")[1])["subscribers"] == 400


def test_violated_limits_exit_with_1(run, tables, tmp_path):
    limits = ("--beta", 1, "--beta-max", 1, "--max-delay", 0)
    code, out, _ = run("assign", tables, "-a", "gr*", *limits, "-o", tmp_path / "plan")
    assert code == 1
    assert "NOT feasible (load)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-a", "grr"), "no algorithm 'grr'"),
        (("-O", "pases=3"), "did you mean 'passes'"),
        (("--alpha", 0), "alpha is 0; give a whole number from 1"),
        (("-a", "gr", "--master", "local[2]"), "gr does not run on Spark; choose --algorithm broadloom"),
    ],
)
def test_wrong_input_is_an_error_of_one_line(run, tables, tmp_path, arguments, message):
    code, out, err = run("assign", tables, *arguments, "-o", tmp_path / "plan")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize("command", ["assign", "link", "maintain", "market"])
def test_an_output_that_exists_is_refused_before_the_work_begins(run, tmp_path, command):
    plan = tmp_path / "plan"
    plan.mkdir()
    events = ("--events", tmp_path) if command == "maintain" else ()
    code, _, err = run(command, tmp_path / "no tables", *events, "-o", plan)
    assert code == 2
    assert err.startswith(f"broadloom: {plan} exists already; choose another, or replace it (--force")


@pytest.mark.spark
def test_a_run_on_spark_gives_the_same_plan(run, tables, tmp_path):
    options = ("-O", "sample=100", "-O", "passes=1", "-O", "polish=0")
    spark = ("--master", "local[2]", "--conf", "spark.driver.memory=1g")
    assert run("assign", tables, *options, "-o", tmp_path / "local")[0] == 0
    assert run("assign", tables, *options, *spark, "-o", tmp_path / "spark")[0] == 0
    local, on_spark = (bl.AssignmentResult.load(tmp_path / name) for name in ("local", "spark"))
    assert local.broker_of.tolist() == on_spark.broker_of.tolist()
    assert local.metrics() == on_spark.metrics()
