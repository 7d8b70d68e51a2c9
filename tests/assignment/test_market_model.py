"""Inputs and results of markets: checked, read-only, from arrays, messages and tables."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom.cli import main
from broadloom.model import read_market_problem

GOOD = {
    "rates": [[1.0, 0], [0, 2]],
    "wants": [[0, 1], [1, 0]],
    "access": [[1, 2, 3], [3, 2, 1]],
    "core": [[0, 1, 2], [1, 0, 1], [2, 1, 0]],
    "capacity": 9,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rates": [[1, 0], [0, -2]]}, r"rates of user 1, channel 1: -2.0; give a finite number from 0"),
        ({"access": [[1, np.nan, 3], [3, 2, 1]]}, r"access of user 0, broker 1: nan"),
        ({"capacity": [1, 2, np.inf]}, r"capacity of broker 2: inf"),
        ({"capacity": [1, 2]}, r"capacity have shape \(2,\); expected \(3 brokers\)"),
        ({"rates": [[1, 0]]}, r"rates have shape \(1, 2\); expected \(2 users, 2 channels\)"),
        ({"wants": [[0, 1], [1, 2]]}, r"wants of user 1, channel 1: 2; give true or false"),
        ({"wants": [0, 1]}, r"wants have shape \(2,\)"),
        (
            {"core": [[0, 1, 2], [3, 0, 1], [2, 1, 0]]},
            r"brokers 0 and 1 is 1.0 in one direction and 3.0 in the other",
        ),
        ({"core": [[0, 1, 5], [1, 0, 1], [5, 1, 0]]}, r"brokers 0 and 2 is 5.0, a detour costs 2.0"),
        ({"access": np.empty((2, 0)), "core": np.empty((0, 0))}, r"2 users but no brokers"),
        ({"user_ids": ["a"]}, r"2 users but 1 user ids"),
        ({"broker_ids": ["a", "b", "a"]}, r"broker id 'a' appears twice"),
    ],
)
def test_wrong_markets_are_refused(change, message):
    with pytest.raises(bl.InputError, match=message):
        bl.MarketProblem(**(GOOD | change))


def test_a_market_is_a_read_only_copy():
    access = np.array(GOOD["access"], float)
    market = bl.MarketProblem(**(GOOD | {"access": access}))
    access[:] = 0
    assert market.access[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        market.access[0, 0] = 7


def test_close_replaces_prices_by_shortest_paths():
    market = bl.MarketProblem(**(GOOD | {"core": [[0, 1, 5], [1, 0, 1], [5, 1, 0]]}), close=True)
    assert market.core[0, 2] == 2


def test_wrong_results_are_refused():
    market = bl.MarketProblem(**GOOD)
    with pytest.raises(bl.InputError, match="user '1' is at broker 3; brokers are 0 to 2"):
        bl.MarketResult(market, np.array([0, 3]))
    with pytest.raises(bl.InputError, match="give one broker per user"):
        bl.MarketResult(market, np.array([0]))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 10**6))
def test_a_rectangle_touches_the_cells_of_its_points(axes, cells, seed):
    """Every point inside a rectangle is in a channel that the rectangle touches."""
    rng = np.random.default_rng(seed)
    grid = bl.Grid.over([-1.0] * axes, [3.0] * axes, [cells] * axes)
    ends = np.sort(rng.uniform(-1, 3, (5, 2, axes)), axis=1)
    inside = ends[:, 0] + rng.random((5, axes)) * (ends[:, 1] - ends[:, 0])
    touched = grid.touched(ends[:, 0], ends[:, 1])
    assert touched[np.arange(5), grid.channel_of(inside)].all()
    assert touched.shape == (5, cells**axes)


def test_a_border_belongs_to_the_cell_above_it():
    """The last border belongs to the last cell; NaN touches no cell."""
    grid = bl.Grid.over([0], [1], [2])
    assert grid.channel_of([[0.0], [0.5], [1.0], [1.1], [np.nan]]).tolist() == [0, 1, 1, -1, -1]
    rows = grid.touched([[0.0], [0.5], [1.0], [2.0], [np.nan]], [[0.5], [0.5], [1.0], [3.0], [np.nan]])
    assert rows.tolist() == [[True, False], [False, True], [False, True], [False, False], [False, False]]
    with pytest.raises(bl.InputError, match=r"rectangle 0 goes from \[1.0\] to \[0.0\]"):
        grid.touched([[1.0]], [[0.0]])
    with pytest.raises(bl.InputError, match="cells of axis 0 is 0"):
        bl.Grid.over([0], [1], [0])


def messages(**change):
    columns = {"publisher": ["a", "b", "a"], "at": [0, 1_000_000, 4_000_000], "bytes": [8, 4, 4]}
    columns |= {"point": [[0.1], [0.2], [0.9]], "topic": ["x", "x", "y"]}
    return pa.table(columns | change)


def test_rates_are_bytes_per_second():
    """The rates add up to the bytes of the log, by cell or by topic."""
    grid = bl.Grid.over([0], [1], [2])
    assert bl.summarize(messages(), ["a", "b"], grid).tolist() == [[2, 1], [1, 0]]
    assert bl.summarize(messages(), ["b", "a"], ["y", "x"], seconds=1).tolist() == [[0, 4], [4, 8]]
    assert bl.summarize(messages().slice(0, 0), ["a"], grid).tolist() == [[0, 0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"publisher": ["a", "c", "a"]}, "message 1: publisher 'c' is unknown"),
        ({"point": [[0.1], [0.2], [1.9]]}, "message 2 is at .* outside of the grid"),
        ({"point": [[0.1], [0.2, 0.3], [0.9]]}, "message 1 is at .* give 1 coordinates"),
        ({"bytes": [1, -1, 0]}, "message 1 has -1.0 bytes"),
    ],
)
def test_wrong_messages_are_refused(change, message):
    with pytest.raises(bl.InputError, match=message):
        bl.summarize(messages(**change), ["a", "b"], bl.Grid.over([0], [1], [2]))


@pytest.fixture
def tables(tmp_path):
    """Tables of a small market: ten users on a line, three brokers, a log of messages."""
    rng = np.random.default_rng(2)
    names, at = [f"u{i}" for i in range(10)], rng.random((10, 1))
    lo = rng.random((10, 1)) * 0.5
    rows = {
        "subscribers": {
            "subscriber": names,
            "place": at.tolist(),
            "lo": [*lo[:-1].tolist(), []],
            "hi": [*(lo[:-1] + 0.4).tolist(), []],
        },
        "brokers": {"broker": ["p", "q", "r"], "place": [[0.1], [0.5], [0.9]]},
        "messages": {
            "publisher": rng.choice(names, 50),
            "at": pa.array(np.arange(50) * 10**6, pa.timestamp("us")),
            "bytes": rng.integers(1, 100, 50),
            "point": rng.random((50, 1)).tolist(),
        },
    }
    for name, columns in rows.items():
        pa.parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    return tmp_path


def test_a_market_is_read_from_tables(tables):
    market = read_market_problem(tables, channels=16)
    assert (market.user_count, market.broker_count, market.channel_count) == (10, 3, 16)
    assert market.user_ids[0] == "u0"
    assert not market.wants[9].any()
    assert market.capacity.sum() == pytest.approx(2 * market.demand.sum())


@pytest.mark.parametrize("algorithm", ["broadloom", "greedy-packing", "ilp"])
def test_the_command_writes_a_verified_plan(tables, capsys, algorithm):
    """`broadloom market` reads tables and writes a verified plan."""
    command = [
        "market",
        str(tables),
        "-o",
        str(tables / "plan"),
        "--core",
        "pair",
        "--channels",
        "6",
        "--json",
    ]
    with pytest.raises(SystemExit) as exited:
        main([*command, "-a", algorithm])
    assert not exited.value.code
    record = json.loads(capsys.readouterr().out)
    assert record["metrics"]["feasible"] is True
    saved = pa.parquet.read_table(tables / "plan" / "assignment.parquet")
    assert saved.column("user").to_pylist() == [f"u{i}" for i in range(10)]
    assert set(saved.column("broker").to_pylist()) <= {"p", "q", "r"}
    flows = pa.parquet.read_table(tables / "plan" / "flows.parquet")
    assert flows.num_rows == record["metrics"]["links_used"]


def test_a_saved_result_is_loaded(tmp_path):
    market = bl.workload.market(users=20, brokers=4, channels=8, seed=1)
    result = bl.assign(market, core="pair", seed=3)
    result.save(tmp_path / "plan")
    again = bl.MarketResult.load(tmp_path / "plan", market)
    assert again.broker_of.tolist() == result.broker_of.tolist()
    assert again.cost == result.cost
    for name in ("core", "algorithm", "seed", "lower_bound"):
        assert getattr(again, name) == getattr(result, name)
    assert dict(again.options) == dict(result.options)
    other = bl.workload.market(users=21, brokers=4, channels=8, seed=1)
    with pytest.raises(bl.InputError, match="other users than this market has"):
        bl.MarketResult.load(tmp_path / "plan", other)
    with pytest.raises(bl.InputError, match=r"has no plan\.json"):
        bl.MarketResult.load(tmp_path, market)
    (tmp_path / "plan" / "plan.json").write_text('{"kind": "market"}')
    with pytest.raises(bl.InputError, match="has no 'core'; it is damaged"):
        bl.MarketResult.load(tmp_path / "plan", market)


def test_a_current_assignment_can_be_improved_and_saved(tmp_path):
    market = bl.workload.market(users=20, brokers=4, channels=8, seed=1)
    today = bl.assign(market, "random")
    bl.assign(market, "migration", start=today.broker_of).save(tmp_path / "plan")
    assert len(json.loads((tmp_path / "plan" / "plan.json").read_text())["options"]["start"]) == 20


@pytest.mark.parametrize("overload", [False, True])
def test_saved_markets_are_verified_and_measured(tmp_path, capsys, overload):
    market = bl.workload.market(users=20, brokers=4, channels=8, seed=1)
    result = bl.assign(market)
    result.save(tmp_path / "plan")
    if overload:
        loads = pa.parquet.read_table(tmp_path / "plan" / "loads.parquet")
        less = loads.set_column(2, "capacity", pa.array(np.full(4, 1e-3)))
        pa.parquet.write_table(less, tmp_path / "plan" / "loads.parquet")
    with pytest.raises(SystemExit) as exited:
        main(["verify", str(tmp_path / "plan"), "--json"])
    assert exited.value.code == (1 if overload else 0)
    assert json.loads(capsys.readouterr().out)["feasible"] is not overload
    with pytest.raises(SystemExit):
        main(["measure", str(tmp_path / "plan"), "--json"])
    assert json.loads(capsys.readouterr().out)["cost"] == result.cost


def test_capacities_that_sum_to_1_are_shares(tables):
    """As in `assign`, so that one folder of tables serves both."""
    brokers = pa.parquet.read_table(tables / "brokers.parquet")
    shares = [0.5, 0.3, 0.2]
    pa.parquet.write_table(brokers.append_column("capacity", [shares]), tables / "brokers.parquet")
    market = read_market_problem(tables, channels=16, headroom=3.0)
    assert market.capacity == pytest.approx(3.0 * market.demand.sum() * np.array(shares))


def test_rates_are_means_of_density_functions():
    """The rate of a cell is the mean of the function over it."""
    grid = bl.Grid.over([0, 0], [2, 1], [2, 1])
    assert grid.rates([lambda at: at[:, 0], lambda at: np.ones(len(at))]).tolist() == [[0.5, 1.5], [1, 1]]
    with pytest.raises(bl.InputError, match="density of user 0 is not a finite number"):
        grid.rates([lambda at: at[:, 0] - 1])
    with pytest.raises(bl.InputError, match=r"cells of axis 0 is 1\.5"):
        bl.Grid.over([0], [1], [1.5])


def test_a_user_named_twice_is_refused():
    log = pa.table({"publisher": ["a"], "topic": ["x"], "at": [0], "bytes": [1]})
    with pytest.raises(bl.InputError, match="user id 'a' appears twice"):
        bl.summarize(log, ["a", "a"], ["x"])


def test_generated_markets_have_the_requested_capacity_and_prices():
    """Twice the demand as capacity, the requested ratio of prices, and the same market for the same seed."""
    one, other = (bl.workload.market(users=200, brokers=5, channels=16, ratio=10, seed=3) for _ in range(2))
    assert np.array_equal(one.rates, other.rates)
    assert np.array_equal(one.access, other.access)
    assert one.capacity.sum() == pytest.approx(2 * one.demand.sum())
    assert one.access.mean() / one.core[~np.eye(5, dtype=bool)].mean() == pytest.approx(10)
    for wrong in ({"access": "air"}, {"brokers": 0}, {"width": 0}, {"ratio": -1}):
        with pytest.raises(bl.InputError):
            bl.workload.market(**({"users": 5, "brokers": 2, "channels": 4} | wrong))
