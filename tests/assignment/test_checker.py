"""The independent checker finds each kind of fault, and the problem refuses what is wrong."""

import numpy as np
import pytest

import broadloom as bl
from broadloom.measures import content_metrics


@pytest.fixture
def problem():
    """Two leaves below one inner broker and one leaf below the publisher, on a line."""
    return bl.AssignmentProblem(
        [0.0],
        [[1.0], [2.0], [3.0], [10.0]],
        [-1, 0, 0, -1],
        [[2.0], [3.0], [3.0]],
        [[0.0, 0.0], [2.0, 2.0], [4.0, 0.0]],
        [[1.0, 1.0], [3.0, 3.0], [5.0, 1.0]],
        alpha=2,
        beta=2,
        beta_max=2,
    )


def box(*sides):
    return np.array(sides[0::2], float), np.array(sides[1::2], float)


FILTERS = (
    (box(0, 1, 0, 1), box(2, 5, 0, 3)),
    (box(0, 1, 0, 1),),
    (box(2, 3, 2, 3), box(4, 5, 0, 1)),
    (),
)


def violated(problem, broker_of=(1, 2, 2), filters=FILTERS):
    return content_metrics(problem, np.array(broker_of, np.int32), filters)["violated"]


def test_a_valid_assignment_has_no_faults(problem):
    assert violated(problem) == []
    assert content_metrics(problem, np.array([1, 2, 2], np.int32), FILTERS)["bandwidth"] == 10 + 1 + 2


def test_each_fault_is_found(problem):
    assert violated(problem, (0, 2, 2)) == ["leaf", "load"]
    assert violated(problem, (3, 2, 2), (*FILTERS[:3], (box(0, 1, 0, 1),))) == ["latency"]
    assert violated(problem, (1, 1, 2)) == ["nesting"]
    assert violated(problem, filters=(FILTERS[0][:1], *FILTERS[1:])) == ["nesting"]
    assert violated(
        problem, filters=(FILTERS[0], (*FILTERS[1], box(0, 0, 0, 0), box(0, 0, 0, 0)), *FILTERS[2:])
    ) == ["alpha"]
    assert violated(problem.replace(beta=1, beta_max=1)) == ["load"]


def test_a_rectangle_may_be_covered_by_several_boxes(problem):
    """Nesting is of unions: a subscription across two touching boxes is inside the filter."""
    halves = (box(0, 0.5, 0, 1), box(0.5, 1, 0, 1))
    assert violated(problem, filters=(FILTERS[0], halves, *FILTERS[2:])) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"lo": [[0, 0], [9, 2], [4, 0]]},
            r"subscriber 1 wants \[9.0, 2.0\] to \[3.0, 3.0\]; lo is at most hi",
        ),
        ({"hi": [[0, 0], [np.nan, 2], [4, 0]]}, "hi 1 is .*; give finite numbers"),
        ({"broker_parent": [1, 0, 0, -1]}, "broker 0 is above itself"),
        ({"broker_parent": [-1, 0, 9, -1]}, "broker 2 has parent 9"),
        ({"capacity": [1, 1, 0, 1]}, "capacity of broker 2 is 0.0; give finite numbers above 0"),
        ({"alpha": 0}, "alpha is 0; give a whole number from 1"),
        ({"beta": 3}, "beta_max is 2.0; give a finite number of at least 3"),
        ({"max_delay": -1}, "max_delay is -1; give a finite number of at least 0"),
        ({"publisher": [1, 2]}, "broker_place has shape"),
        ({"subscriber_place": [[1.0]]}, "1 subscribers but 3 lower and 3 upper corners"),
        ({"broker_ids": ["a", "a", "b", "c"]}, "broker id 'a' appears twice"),
        ({"density": bl.Density([[0, 1]], [1])}, "events have 2 dimensions, their density 1"),
    ],
)
def test_a_problem_refuses_what_is_wrong(problem, change, message):
    with pytest.raises(bl.InputError, match=message):
        problem.replace(**change)


def test_a_result_comes_back_as_it_was_saved(problem, tmp_path):
    result = bl.assign(problem.replace(max_latency=[9, np.nan, 8]), "gr*")
    result.save(tmp_path / "plan")
    loaded = bl.AssignmentResult.load(tmp_path / "plan")
    assert loaded.metrics() == result.metrics()
    assert loaded.broker_of.tolist() == result.broker_of.tolist()
    with pytest.raises(bl.InputError, match="is there already"):
        result.save(tmp_path / "plan")
