"""Every algorithm of subscriber assignment: promises kept, and equal to its naive twin if there is one."""

import numpy as np
import pytest
from hypothesis import given, settings

import broadloom as bl
import naive_assign as naive
from assign_strategies import problems
from broadloom.assignment import ALGORITHMS
from broadloom.assignment.subscribers import candidates_in_time, least_lbf

NAMES = [one.name for one in ALGORITHMS if one.problem is bl.AssignmentProblem]
IN_TIME = [name for name in NAMES if not name.startswith(("closest", "gr-no"))]
NEEDS_LP = ("slp1", "slp")
QUICK = {"broadloom": {"passes": 2, "starts": 2, "many_starts": 3}}


def run(problem, name, **options):
    if name in NEEDS_LP:
        pytest.importorskip("ortools")
    return bl.assign(problem, name, **QUICK.get(name, {}) | options)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEEDS_LP])
@settings(deadline=None, max_examples=25)
@given(problem=problems(levels=3))
def test_every_algorithm_keeps_its_promises(name, problem):
    """Filters nest and are within alpha (`assign` verifies it); algorithms with a latency bound keep it."""
    result = run(problem, name)
    metrics = result.metrics()
    assert np.all(problem.is_leaf[result.broker_of])
    if name in IN_TIME:
        assert "latency" not in metrics["violated"]
    if name in ("broadloom", "balance"):
        least, _ = least_lbf(problem, candidates_in_time(problem))
        assert result.feasible == (least <= problem.beta_max * (1 + 1e-9))


@pytest.mark.parametrize("name", NEEDS_LP)
@settings(deadline=None, max_examples=8)
@given(problem=problems(levels=2))
def test_the_linear_program_gives_feasible_assignments(name, problem):
    least, _ = least_lbf(problem, candidates_in_time(problem))
    result = run(problem, name)
    assert result.feasible == (least <= problem.beta_max * (1 + 1e-9))


@pytest.mark.parametrize("name", ["gr", "gr*"])
@settings(deadline=None, max_examples=40)
@given(problem=problems(most=15, dimensions=2))
def test_greedy_equals_its_naive_twin(name, problem):
    problem = problem.replace(density=None)
    result = bl.assign(problem, name)
    broker_of, filters, stranded = naive.greedy(problem, name == "gr*", result.notes["beta"])
    assert result.broker_of.tolist() == broker_of
    assert result.notes["stranded"] == stranded
    assert result.bandwidth == pytest.approx(sum(map(naive.union, filters)))


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_result(name):
    problem = bl.workload.subscribers(subscribers=600, brokers=8)
    one, other = (run(problem, name) for _ in range(2))
    assert np.array_equal(one.broker_of, other.broker_of)
    assert one.metrics() == other.metrics()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("m", [0, 1, 2])
def test_every_algorithm_accepts_very_few_subscribers(name, m):
    problem = bl.AssignmentProblem(
        [0.0],
        [[1.0], [2.0]],
        [-1, -1],
        np.ones((m, 1)),
        np.zeros((m, 2)),
        np.ones((m, 2)),
        beta=2,
        beta_max=2,
    )
    result = run(problem, name)
    assert result.metrics()["bandwidth"] == min(m, 1) or name in ("balance",)


@pytest.mark.parametrize("name", NAMES)
def test_identical_subscribers_need_one_rectangle(name):
    """All subscribers are equal: each broker with subscribers has exactly their rectangle."""
    problem = bl.AssignmentProblem(
        [0, 0], [[1, 0], [0, 1]], [-1, -1], np.zeros((50, 2)), np.zeros((50, 2)), np.full((50, 2), 3.0)
    )
    result = run(problem, name)
    used = len(np.unique(result.broker_of))
    assert result.bandwidth == 9.0 * used


def test_the_default_has_far_less_bandwidth_than_gr_star():
    problem = bl.workload.subscribers(subscribers=4000, brokers=30)
    greedy = bl.assign(problem, "gr*")
    ours = bl.assign(problem, passes=20)
    assert ours.feasible
    assert ours.bandwidth < 0.9 * greedy.bandwidth


@pytest.mark.parametrize("arguments", [{"brokers": 20}, {"set": 2, "brokers": 12}])
def test_many_subscribers_are_searched_on_a_sample(arguments):
    """Polish passes over all subscribers do not make it worse; without them there is no bound."""
    problem = bl.workload.subscribers(subscribers=5000, **arguments)
    plain, polished = (bl.assign(problem, sample=1000, passes=5, polish=polish) for polish in (0, 3))
    assert plain.feasible
    assert polished.feasible
    assert polished.bandwidth <= plain.bandwidth
    assert polished.bandwidth < bl.assign(problem, "gr*").bandwidth
    assert plain.lower_bound is None
    assert 0 < polished.lower_bound < polished.bandwidth


def test_inner_brokers_have_filters_around_those_below():
    problem = bl.workload.subscribers(subscribers=2000, brokers=30, levels=2, latency="loose")
    for name in ("gr*", "broadloom"):
        result = run(problem, name)
        assert result.feasible, result.summary()
        inner = np.flatnonzero(~problem.is_leaf)
        assert len(inner)
        assert all(result.filters[b] for b in inner)


def test_bandwidth_is_measured_under_the_density():
    """A filter costs nothing where no events fall: all bandwidth is in the busy cell."""
    density = bl.Density([[0, 10, 20], [0, 10, 20]], [[8, 0], [0, 0]])
    problem = bl.AssignmentProblem(
        [0], [[1]], [-1], np.ones((2, 1)), [[5, 5], [12, 12]], [[6, 6], [19, 19]], density=density, alpha=1
    )
    result = bl.assign(problem, "gr")
    assert result.bandwidth == pytest.approx(8 * 25 / 100)


def test_absolute_latency_bounds_replace_delays():
    problem = bl.AssignmentProblem(
        [0], [[1], [5]], [-1, -1], [[2], [4]], [[0], [0]], [[1], [1]], max_latency=[2.5, np.nan], max_delay=9
    )
    candidates = candidates_in_time(problem)
    assert [np.diff(candidates.start)[g] for g in candidates.group] == [1, 2]


def test_an_error_names_subscribers_without_a_broker_in_time():
    problem = bl.AssignmentProblem(
        [0], [[1]], [-1], [[2], [50]], [[0], [0]], [[1], [1]], max_latency=10, subscriber_ids=["near", "far"]
    )
    with pytest.raises(bl.InputError, match=r"1 subscribers have no leaf broker .*: far; raise"):
        bl.assign(problem, "gr")


def test_only_problems_can_be_assigned():
    with pytest.raises(bl.InputError, match=r"the problem is of type list; give one of .*AssignmentProblem"):
        bl.assign([1, 2])


def test_the_error_for_an_unknown_option_names_the_nearest():
    problem = bl.AssignmentProblem([0], [[1]], [-1], [[2]], [[0]], [[1]])
    with pytest.raises(bl.InputError, match="did you mean 'passes'"):
        bl.assign(problem, "broadloom", pases=3)
    with pytest.raises(bl.InputError, match="option starts is 0; give a whole number from 1"):
        bl.assign(problem, "broadloom", starts=0)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("broadloom", {"passes": "x"}, "option passes is 'x'; give a whole number from 0"),
        ("broadloom", {"starts": 1.5}, "option starts is 1.5; give a whole number from 1"),
        ("gr*", {"shuffle": "x"}, "option shuffle is 'x'; give true or false"),
        ("slp1", {"literal": 1}, "option literal is 1; give true or false"),
        ("slp1", {"passes": 1.5}, "option passes is 1.5; give a whole number from 1"),
        ("slp", {"eps": "a"}, "option eps is 'a'; give a number from 0"),
        ("gr", {"seed": -1}, "seed is -1; give a whole number from 0"),
        ("gr", {"seed": 1.5}, "seed is 1.5; give a whole number from 0"),
    ],
)
def test_values_of_the_wrong_type_are_input_errors(name, options, message):
    problem = bl.AssignmentProblem([0], [[1]], [-1], [[2]], [[0]], [[1]])
    with pytest.raises(bl.InputError, match=message):
        bl.assign(problem, name, **options)


@pytest.mark.parametrize("name", NAMES)
def test_a_single_broker_takes_all_subscribers(name):
    rng = np.random.default_rng(0)
    lo = rng.integers(-20, 20, (30, 2))
    problem = bl.AssignmentProblem(
        [0, 0], [[-3, 1]], [-1], rng.normal(0, 9, (30, 2)), lo, lo + 1, beta=1, beta_max=1
    )
    result = run(problem, name)
    assert result.feasible
    assert set(result.broker_of) == {0}


@pytest.mark.parametrize("name", NAMES)
def test_limits_that_cannot_be_met_are_reported(name):
    """Most are near one of two brokers: the best effort breaks the load limit, and says by how much."""
    position = np.concatenate((np.zeros((9, 1)), [[100.0]]))
    problem = bl.AssignmentProblem(
        [50],
        [[0], [100]],
        [-1, -1],
        position,
        np.zeros((10, 1)),
        np.ones((10, 1)),
        max_delay=0.0,
        beta_max=1.5,
    )
    result = run(problem, name)
    assert not result.feasible
    if name in IN_TIME:
        assert result.metrics()["violated"] == ["load"]
        assert result.overload.tolist() == [2, 0]
        assert "NOT feasible (load)" in result.summary()


@pytest.mark.parametrize("name", NAMES)
def test_rectangles_without_extent_cost_nothing(name):
    """Points and lines, some of them repeated, below and above 0."""
    lo = np.repeat([[-5.0, 3.0], [2.0, -4.0], [0.0, 0.0]], 6, axis=0)
    position = np.tile([[1.0], [2.0]], (9, 1))
    problem = bl.AssignmentProblem(
        [0], [[1], [2]], [-1, -1], position, lo, lo + np.array([0, 1]), max_delay=9
    )
    result = run(problem, name)
    assert result.bandwidth == 0.0
    assert result.feasible


@pytest.mark.parametrize("make_room", ["next", "later"])
@settings(max_examples=25, deadline=None)
@given(problem=problems())
def test_gr_that_makes_room_assigns_everyone_in_time(make_room, problem):
    """Section VI, variants of Gr: all subscribers have a candidate; without removals the result is Gr's."""
    found = bl.assign(problem, "gr", make_room=make_room)
    assert len(found.broker_of) == problem.subscriber_count
    assert not set(found.metrics()["violated"]) & {"latency", "nesting", "alpha", "leaf"}
    if found.notes["stranded"] == 0:
        assert "load" not in found.metrics()["violated"]
    again = bl.assign(problem, "gr", make_room=make_room)
    assert found.broker_of.tolist() == again.broker_of.tolist()
