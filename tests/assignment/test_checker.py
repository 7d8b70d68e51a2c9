"""The independent checker of assignments finds each kind of violation; problems and densities check input."""

import numpy as np
import pyarrow as pa
import pytest

import broadloom as bl
from broadloom.measures import content_metrics
from broadloom.model import read_assignment_problem, write_assignment_problem
from broadloom.storage.tables import write_table


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


def test_a_valid_assignment_has_no_violations(problem):
    assert violated(problem) == []
    assert content_metrics(problem, np.array([1, 2, 2], np.int32), FILTERS)["bandwidth"] == 10 + 1 + 2


def test_each_violation_is_found(problem):
    assert violated(problem, (0, 2, 2)) == ["leaf", "load"]
    assert violated(problem, (3, 2, 2), (*FILTERS[:3], (box(0, 1, 0, 1),))) == ["latency"]
    assert violated(problem, (1, 1, 2)) == ["nesting"]
    assert violated(problem, filters=(FILTERS[0][:1], *FILTERS[1:])) == ["nesting"]
    assert violated(
        problem, filters=(FILTERS[0], (*FILTERS[1], box(0, 0, 0, 0), box(0, 0, 0, 0)), *FILTERS[2:])
    ) == ["alpha"]
    assert violated(problem.replace(beta=1, beta_max=1)) == ["load"]


def test_several_boxes_together_can_cover_a_rectangle(problem):
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
        ({"broker_parent": [1, 0, 0, -1]}, "broker 0 is its own ancestor"),
        ({"broker_parent": [-1, 0, 9, -1]}, "broker 2 has parent 9"),
        ({"capacity": [1, 1, 0, 1]}, "capacity of broker 2 is 0.0; give finite numbers above 0"),
        ({"alpha": 0}, "alpha is 0; give a whole number from 1"),
        ({"beta": 3}, "beta_max is 2.0; give a number from 3"),
        ({"max_delay": -1}, "max_delay is -1; give a number from 0"),
        ({"publisher": [1, 2]}, "broker_place has shape"),
        ({"subscriber_place": [[1.0]]}, "1 subscribers but 3 lower and 3 upper corners"),
        ({"broker_ids": ["a", "a", "b", "c"]}, "broker id 'a' appears twice"),
        ({"density": bl.Density([[0, 1]], [1])}, "events have 2 dimensions, their density 1"),
        ({"density": [1, 2]}, "density is a list; give a broadloom.Density"),
        ({"alpha": np.nan}, "alpha is nan; give a whole number from 1"),
        ({"alpha": 17}, "alpha is 17; give a whole number from 1 to 16"),
        ({"beta": "3"}, "beta is '3'; give a number from 1"),
        ({"beta": None}, "beta is None; give a number from 1"),
        ({"beta_max": np.nan}, "beta_max is nan; give a number"),
        ({"max_latency": "x"}, "max_latency are 'x'; give an array of numbers"),
        ({"capacity": ["x"] * 4}, "capacity are text; give numbers"),
        ({"capacity": [1e308] * 4}, "the sum of the capacities overflows"),
        ({"hi": np.full((3, 2), 1e155)}, "volumes overflow; give smaller coordinates"),
        ({"lo": np.full((3, 2), -1e308), "hi": np.full((3, 2), 1e308)}, "volumes overflow"),
        ({"publisher": [1e200]}, "distances overflow; give smaller coordinates"),
    ],
)
def test_bad_arguments_of_a_problem_are_input_errors(problem, change, message):
    with pytest.raises(bl.InputError, match=message):
        problem.replace(**change)


def test_a_saved_result_can_be_loaded(problem, tmp_path):
    result = bl.assign(problem.replace(max_latency=[9, np.nan, 8]), "gr*")
    result.save(tmp_path / "plan")
    loaded = bl.AssignmentResult.load(tmp_path / "plan")
    assert loaded.metrics() == result.metrics()
    assert loaded.broker_of.tolist() == result.broker_of.tolist()
    with pytest.raises(bl.InputError, match="exists already"):
        result.save(tmp_path / "plan")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bl.Density([["a", "b"]], [1]), "edges of axis 0 of the density are text; give numbers"),
        (lambda: bl.Density([[0, 1, 2]], [1e308, 1e308]), "mass or grid overflows"),
        (lambda: bl.Density([[-1e308, 1e308]], [1]), "mass or grid overflows"),
        (lambda: bl.Density.from_events([[1.0], [2.0]], bins=0), "bins is 0; give a whole number from 1"),
        (lambda: bl.Density.from_events([["a"]]), "events are text; give numbers"),
    ],
)
def test_bad_arguments_of_a_density_are_input_errors(make, message):
    with pytest.raises(bl.InputError, match=message):
        make()


def test_a_saved_result_has_its_density(problem, tmp_path):
    """Bandwidth is a mass of events, so the plan has the density, with its empty cells."""
    density = bl.Density([[0, 0.1, 0.3, 9], [0, 1, 9]], [[0.5, 0], [0.1, 3], [0, 0]])
    result = bl.assign(problem.replace(density=density), "gr*")
    result.save(tmp_path / "plan")
    loaded = bl.AssignmentResult.load(tmp_path / "plan")
    assert loaded.metrics() == result.metrics()
    found = loaded.problem.density
    assert [line.tolist() for line in found.edges] == [line.tolist() for line in density.edges]
    assert found.mass.tolist() == density.mass.tolist()


def cells(*rows):
    """A table of cells, each (lo, hi, mass)."""
    lo, hi, mass = zip(*rows, strict=True)
    return pa.table({"lo": lo, "hi": hi, "mass": mass})


def test_cells_without_a_row_are_empty(problem, tmp_path):
    """A table of the cells with events, in any order, is a density; the other cells of the grid are empty."""
    write_assignment_problem(tmp_path / "tables", problem)
    write_table(tmp_path / "tables", "density", cells(([2.0, 1], [5.0, 4], 2.0), ([0.0, 0], [2.0, 1], 7.0)))
    density = read_assignment_problem(tmp_path / "tables").density
    assert [line.tolist() for line in density.edges] == [[0, 2, 5], [0, 1, 4]]
    assert density.mass.tolist() == [[7, 0], [0, 2]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([([0.0, 0], [2.0, 1], 7.0), ([1.0, 0], [2.0, 1], 1.0)], "row 0: .* is not one cell of the grid"),
        ([([0.0, 0], [2.0, 1], 7.0), ([0.0, 0], [2.0, 1], 1.0)], "row 1: .* appears twice"),
        ([([0.0, 0], [0.0, 1], 7.0)], "row 0: .* is not one cell of the grid"),
        ([([0.0, 0], [2.0, 1], -7.0)], "negative or missing entry"),
        ([([0.0], [2.0], 7.0)], "events have 2 dimensions, their density 1"),
    ],
)
def test_a_density_table_that_is_not_a_grid_is_an_input_error(problem, tmp_path, rows, message):
    write_assignment_problem(tmp_path / "tables", problem)
    write_table(tmp_path / "tables", "density", cells(*rows))
    with pytest.raises(bl.InputError, match=message):
        read_assignment_problem(tmp_path / "tables")
