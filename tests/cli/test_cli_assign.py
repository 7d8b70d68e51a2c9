"""`broadloom subscribers` and `broadloom assign` as a user calls them."""

import json

import pytest

import broadloom as bl
from broadloom.cli import main


@pytest.fixture
def run(capfd):
    """Run `broadloom ...` in this process; gives the exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(left.value.code or 0), out, err

    return call


@pytest.fixture
def tables(run, tmp_path):
    made = ("subscribers", "--subscribers", 400, "--brokers", 6, "-q", "-o", tmp_path / "tables")
    assert run(*made)[0] == 0
    return tmp_path / "tables"


def test_subscribers_assign_verify_measure(run, tables, tmp_path):
    code, out, _ = run("assign", tables, "-O", "passes=1", "-o", tmp_path / "plan", "--json")
    record = json.loads(out)
    assert code == 0
    assert record["feasible"] is True
    assert 0 < record["lower_bound"] <= record["metrics"]["bandwidth"]
    assert bl.AssignmentResult.load(tmp_path / "plan").metrics() == record["metrics"]
    assert run("verify", tmp_path / "plan")[0] == 0
    assert json.loads(run("measure", tmp_path / "plan", "--json")[1])["subscribers"] == 400


def test_limits_that_are_broken_leave_with_1(run, tables, tmp_path):
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
def test_bad_input_is_one_line(run, tables, tmp_path, arguments, message):
    code, out, err = run("assign", tables, *arguments, "-o", tmp_path / "plan")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "plan").exists()


@pytest.mark.spark
def test_a_master_gives_the_same_plan(run, tables, tmp_path):
    options = ("-O", "sample=100", "-O", "passes=1", "-O", "polish=0")
    spark = ("--master", "local[2]", "--conf", "spark.driver.memory=1g")
    assert run("assign", tables, *options, "-o", tmp_path / "here")[0] == 0
    assert run("assign", tables, *options, *spark, "-o", tmp_path / "there")[0] == 0
    here, there = (bl.AssignmentResult.load(tmp_path / name) for name in ("here", "there"))
    assert here.broker_of.tolist() == there.broker_of.tolist()
    assert here.metrics() == there.metrics()
