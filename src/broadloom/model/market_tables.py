"""A folder of canonical tables as a market: subscribers, brokers and messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broadloom.checks import raise_for_first
from broadloom.errors import InputError
from broadloom.model.grid import Grid
from broadloom.model.market import MarketProblem
from broadloom.model.traffic import summarize
from broadloom.model.traffic_tables import told_traffic
from broadloom.storage.tables import need_table

# From a folder's messages, the names of users, corners of what they want and a number of cells: a grid of
# about so many cells over all that, and each user's rates on it.
Traffic = Callable[[Path, list[str], NDArray[np.float64], int], tuple[Grid, NDArray[np.float64]]]


def read_market(
    folder: str | Path,
    channels: int = 128,
    headroom: float = 2.0,
    core_price: float = 1.0,
    traffic: Traffic | None = None,
) -> MarketProblem:
    """The market in a folder of canonical tables.

    Users are the subscribers, publishers among them; one that wants nothing has empty `lo` and `hi`. Rates
    come from `messages` (bytes a second). Prices are distances of places. Where messages have a `topic` and
    no `point`, each topic is a channel, and `subscriptions` says who wants it. `histograms`, rates by topic,
    stand for messages; where there are neither, `traffic_matrix` says what goes from whom to whom.

    Args:
        folder: holds `subscribers`, `brokers`, and `messages`, `histograms` or `traffic_matrix`.
        channels: about how many cells the box of all subscriptions and messages is cut into.
        headroom: where brokers have no capacity, or shares that sum to 1: the capacity of all together over
            the demand of all users.
        core_price: what a unit of distance costs between brokers, where it costs 1 between users and brokers.
        traffic: who summarizes the messages; None: this process.

    Raises:
        InputError: a table or column is missing, or something in it is wrong.
    """
    place = Path(folder)
    if channels < 1 or not headroom > 0 or not core_price >= 0:
        raise InputError(
            f"{channels} channels, headroom {headroom}, core price {core_price}; give 1, above 0, from 0"
        )
    subscribers, brokers = need_table(place, "subscribers"), need_table(place, "brokers")
    users, names = subscribers.column("subscriber").to_pylist(), brokers.column("broker").to_pylist()
    at, broker_at = _points(subscribers, "place", "subscriber"), _points(brokers, "place", "broker")
    told = told_traffic(place, users, points=traffic is not None)
    if told is not None:
        rates, wants = told
    else:
        lo, hi = _borders(subscribers, "lo"), _borders(subscribers, "hi")
        grid, rates = (traffic or _traffic)(place, users, np.concatenate([lo, hi]), channels)
        wants = grid.touched(lo, hi)
    core = core_price * _distances(broker_at, broker_at)
    draft = MarketProblem(
        rates,
        wants,
        _distances(at, broker_at),
        core,
        np.zeros(len(names)),
        tuple(users),
        tuple(names),
        close=True,
    )
    return replace(draft, capacity=_capacity(brokers, draft, headroom), close=False)


def _points(table: pa.Table, column: str, what: str) -> NDArray[np.float64]:
    """A column of coordinates, as many in each row."""
    rows = table.column(column).to_pylist()
    axes = len(rows[0] or ()) if rows else 1
    raise_for_first(
        np.array([row is None or len(row) != axes or not axes for row in rows], bool),
        lambda i: f"{what} {i} has {column} {rows[i]}",
        "give each as many coordinates, at least 1",
    )
    return np.array(rows, np.float64).reshape(len(rows), axes)


def _borders(subscribers: pa.Table, column: str) -> NDArray[np.float64]:
    """Borders of subscriptions; NaN where there is none."""
    rows = [row or [] for row in subscribers.column(column).to_pylist()]
    axes = max(map(len, rows), default=1) or 1
    raise_for_first(
        np.array([len(row) not in (0, axes) for row in rows], bool),
        lambda i: f"subscriber {i} has {column} {rows[i]}",
        f"give {axes} coordinates, or none where it wants nothing",
    )
    return np.array([row or [np.nan] * axes for row in rows], np.float64).reshape(len(rows), axes)


def need_points(columns: Iterable[str], place: Path) -> None:
    """Refuse messages that are nowhere in a content space."""
    if "point" not in columns:
        raise InputError(f"{place}: messages have no column 'point', so there is no content space to cut")


def _traffic(
    place: Path, users: list[str], corners: NDArray[np.float64], channels: int
) -> tuple[Grid, NDArray[np.float64]]:
    messages, axes = need_table(place, "messages"), corners.shape[1]
    need_points(messages.column_names, place)
    points = [point for point in messages.column("point").to_pylist() if point is not None]
    sent = np.array([p for p in points if len(p) == axes], np.float64).reshape(-1, axes)
    grid = Grid.covering(np.concatenate([corners, sent]), channels)
    return grid, summarize(messages, users, grid)


def _capacity(brokers: pa.Table, draft: MarketProblem, headroom: float) -> NDArray[np.float64]:
    """The brokers' capacities; or, where they are shares as `assign` reads them, or none, parts of all."""
    everything = headroom * float(draft.demand.sum())
    if "capacity" in brokers.column_names:
        given = brokers.column("capacity")
        raise_for_first(
            np.asarray(given.is_null()),
            lambda i: f"broker {draft.broker_ids[i]!r} has no capacity",
            "give each one",
        )
        capacity = given.to_numpy().astype(np.float64)
        return capacity * everything if np.isclose(capacity.sum(), 1.0) else capacity
    return np.full(draft.broker_count, everything / max(1, draft.broker_count))


def _distances(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    if not len(one):
        return np.zeros((0, len(other)))
    if one.shape[1] != other.shape[1]:
        raise InputError(
            f"subscribers have {one.shape[1]} coordinates, brokers {other.shape[1]}; give as many"
        )
    total = np.zeros((len(one), len(other)))
    for axis in range(one.shape[1]):
        total += (one[:, None, axis] - other[:, axis]) ** 2
    return np.sqrt(total)
