"""The measuring process of the console: its measures, its errors, and its death."""

import json

import pytest

import broadloom as bl
from broadloom.console.measuring import MeasuringProcess
from broadloom.console.relinking import FAILED, Relinking
from broadloom.console.what_if import WhatIfSession
from broadloom.errors import InputError, InternalError
from broadloom.report import record_of
from what_if_plans import plan_of


@pytest.fixture(scope="module")
def measuring():
    """A process."""
    made = MeasuringProcess()
    yield made
    made.close()


def test_measures_and_records_are_those_of_the_plan(measuring, tmp_path):
    plan = plan_of("regions")
    metrics = plan.metrics()
    paths = measuring.paths(plan)
    assert (paths.delay, paths.hops) == (metrics["weighted_max_diameter"], metrics["max_diameter"])
    record, (again,) = measuring.record({"main": plan}, "A title", "ms")
    assert json.loads(record) == json.loads(
        json.dumps(record_of({"main": plan}, "A title", "ms", repairs=False))
    )
    assert again == paths
    measuring.save(plan, tmp_path / "plan")
    assert bl.Plan.load(tmp_path / "plan") == plan


def test_an_error_comes_back_and_the_process_goes_on(measuring, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError):
        measuring.save(plan_of("sites"), tmp_path / "file" / "plan")
    assert measuring.paths(plan_of("sites")).hops > 0


def test_a_process_that_died_is_started_again(measuring):
    measuring._process.kill()
    measuring._process.wait()
    assert measuring.paths(plan_of("sites")).hops > 0


def test_a_closed_process_says_so():
    made = MeasuringProcess()
    made.close()
    with pytest.raises(InternalError, match="has ended"):
        made.paths(plan_of("sites"))


def test_a_relink_that_cannot_be_says_why():
    """Five brokers of one topic cannot be connected with one link each."""
    interest = bl.Interest.from_lists([["a"]] * 5, node_ids=list("abcde"))
    session = WhatIfSession(bl.link(interest, bl.Weights.euclidean([[i, 0] for i in range(5)])))
    session.do("limit 1")
    relinking = Relinking(session.situation, 0)
    relinking._process.wait(300)
    assert relinking.poll() == FAILED
    assert relinking.error
    assert relinking.plan is None
