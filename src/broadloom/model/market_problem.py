"""The market problem (paper 5, section II), and its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import check_ids, lock_array, raise_for_first
from broadloom.errors import InputError
from broadloom.kernels import kernel
from broadloom.model.channels import Grid, read_traffic, summarize
from broadloom.storage.tables import require_table

# How traffic crosses the core: "mst": a least spanning tree for each source and channel; "pair": each source
# to each destination on its own shortest path, so a tree for each source; "tree": one tree for everything.
CORES = ("mst", "pair", "tree")

# Prices that differ by less than this share of the largest one are the same price, rounded twice.
PRICE_TOLERANCE = 1e-9

# A broker is full when its load is its capacity; sums in another order may differ by this share of it.
LOAD_TOLERANCE = 1e-9

A = TypeVar("A", bound=NDArray[Any])


@dataclass(frozen=True, eq=False)
class MarketProblem:
    """Users that send and want messages of some channels, and brokers that carry them at a price.

    What nobody else wants is removed from the rates at once. Everything is checked once, then read-only.

    Attributes:
        rates: how much each user sends into each channel, (users, channels), from 0.
        wants: whether each user wants each channel, bool (users, channels).
        access: the price of the link between each user and each broker, (users, brokers), from 0.
        core: the price of the link between each two brokers, (brokers, brokers): symmetric, and never above
            a detour over a third broker.
        capacity: how much each broker's users may send and receive together: (brokers,) or one for all.
        user_ids: the id of each user; its position by default.
        broker_ids: the id of each broker; its position by default.
        close: replace core prices that a detour beats by the cheapest detour, in place of an error.

    Raises:
        InputError: shapes that do not fit, a price or rate that is not a number from 0, or core prices that
            are not symmetric or that a detour beats.

    Example:
        >>> market = MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> market
        MarketProblem(2 users, 2 brokers, 1 channels)
        >>> market.demand
        array([3., 3.])
    """

    rates: NDArray[np.float64]
    wants: NDArray[np.bool_]
    access: NDArray[np.float64]
    core: NDArray[np.float64]
    capacity: NDArray[np.float64]
    user_ids: tuple[str, ...] = ()
    broker_ids: tuple[str, ...] = ()
    close: InitVar[bool] = False

    def __post_init__(self, close: bool) -> None:
        wants = _yes_or_no(self.wants)
        users, channels = wants.shape
        access = _numbers(self.access, "access", ("user", "broker"), (users, None))
        brokers = access.shape[1]
        if users and not brokers:
            raise InputError(f"{users:,} users but no brokers; give at least one broker")
        rates = _numbers(self.rates, "rates", ("user", "channel"), (users, channels))
        core = _numbers(self.core, "core", ("broker", "broker"), (brokers, brokers))
        given = np.asarray(self.capacity, np.float64)
        capacity = _numbers(
            np.full(brokers, given) if given.ndim == 0 else given, "capacity", ("broker",), (brokers,)
        )
        arrays = {
            "rates": _wanted_by_others(rates, wants),
            "wants": wants,
            "access": access,
            "core": _metric(core, close),
            "capacity": capacity,
        }
        for name, array in arrays.items():
            lock_array(array)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "user_ids", _ids(self.user_ids, users, "user"))
        object.__setattr__(self, "broker_ids", _ids(self.broker_ids, brokers, "broker"))

    @property
    def user_count(self) -> int:
        """How many users there are."""
        return self.wants.shape[0]

    @property
    def broker_count(self) -> int:
        """How many brokers there are."""
        return self.access.shape[1]

    @property
    def channel_count(self) -> int:
        """How many channels the content space is cut into."""
        return self.wants.shape[1]

    @cached_property
    def sent(self) -> NDArray[np.float64]:
        """What each user sends that somebody else wants."""
        return _locked(self.rates.sum(axis=1))

    @cached_property
    def received(self) -> NDArray[np.float64]:
        """What each user receives: all that others send into the channels that it wants."""
        total = self.rates.sum(axis=0)
        return _locked(np.where(self.wants, total - self.rates, 0.0).clip(min=0.0).sum(axis=1))

    @cached_property
    def demand(self) -> NDArray[np.float64]:
        """What each user sends and receives: what its broker has to carry for it, and what its link costs."""
        return _locked(self.sent + self.received)

    @cached_property
    def wanted(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The channels that users want in compressed rows: where each user's start, and all of them."""
        start = np.concatenate(([0], np.cumsum(self.wants.sum(axis=1, dtype=np.int64))))
        return _locked(start), _locked(np.nonzero(self.wants)[1].astype(np.int32))

    @cached_property
    def limit(self) -> NDArray[np.float64]:
        """The load up to which each broker is not overloaded: its capacity, and a hair for rounding."""
        return _locked(self.capacity * (1 + LOAD_TOLERANCE))

    def __repr__(self) -> str:
        return (
            f"MarketProblem({self.user_count:,} users, {self.broker_count:,} brokers, "
            f"{self.channel_count:,} channels)"
        )


def check_core(core: str) -> None:
    """Refuse a name that is not one of `CORES`."""
    if core not in CORES:
        raise InputError(f"no core {core!r}; there are {', '.join(CORES)}")


def _locked(array: A) -> A:
    lock_array(array)
    return array


def _numbers(
    given: ArrayLike, what: str, axes: tuple[str, ...], shape: tuple[int | None, ...]
) -> NDArray[np.float64]:
    """An array of finite numbers from 0, of the shape expected; copied unless it is locked already."""
    array = np.asarray(given, np.float64, order="C")
    if array.flags.writeable:
        array = array.copy()
    if array.ndim != len(axes) or any(
        want not in (None, have) for want, have in zip(shape, array.shape, strict=True)
    ):
        expected = ", ".join(
            f"{axis}s" if n is None else f"{n:,} {axis}s" for axis, n in zip(axes, shape, strict=True)
        )
        raise InputError(f"{what} have shape {array.shape}; expected ({expected})")

    def describe(i: int) -> str:
        place = np.unravel_index(i, array.shape)
        where = ", ".join(f"{axis} {at}" for axis, at in zip(axes, place, strict=True))
        return f"{what} of {where}: {array[place]}"

    raise_for_first(~(np.isfinite(array) & (array >= 0)).ravel(), describe, "give a finite number from 0")
    return array


def _yes_or_no(given: ArrayLike) -> NDArray[np.bool_]:
    """What users want, as a matrix of truth values."""
    array = np.asarray(given)
    if array.ndim != 2:
        raise InputError(f"wants have shape {array.shape}; expected (users, channels)")
    wants = array.astype(np.bool_, order="C")
    raise_for_first(
        (wants != array).ravel(),
        lambda i: f"wants of user {i // array.shape[1]}, channel {i % array.shape[1]}: {array.ravel()[i]}",
        "give true or false",
    )
    return wants


def _wanted_by_others(rates: NDArray[np.float64], wants: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The rates without the messages that nobody but their sender wants."""
    return np.where(wants.sum(axis=0) - wants > 0, rates, 0.0)


def _metric(core: NDArray[np.float64], close: bool) -> NDArray[np.float64]:
    """Core prices that are symmetric and that no detour beats, closed under shortest paths when asked."""
    n, slack = len(core), PRICE_TOLERANCE * core.max(initial=0.0)
    raise_for_first(
        (np.abs(core - core.T) > slack).ravel(),
        lambda i: (
            f"core price of brokers {i // n} and {i % n} is {core[i // n, i % n]} one way and "
            f"{core[i % n, i // n]} the other"
        ),
        "give one price for both directions",
    )
    core = np.maximum(core, core.T)
    np.fill_diagonal(core, 0.0)
    closed = _shortest_paths(core)
    if close:
        return closed
    raise_for_first(
        (core - closed > slack).ravel(),
        lambda i: (
            f"core price of brokers {i // n} and {i % n} is {core[i // n, i % n]}, a detour costs "
            f"{closed[i // n, i % n]}"
        ),
        "lower it, or ask for the prices to be closed under shortest paths (close=True)",
    )
    return core


@kernel
def _shortest_paths(prices: NDArray[np.float64]) -> NDArray[np.float64]:
    """The cheapest way between each two brokers (Floyd and Warshall)."""
    n = len(prices)
    closed = prices.copy()
    for over in range(n):
        for u in range(n):
            first = closed[u, over]
            for v in range(n):
                closed[u, v] = min(closed[u, v], first + closed[over, v])
    return closed


def _ids(given: Sequence[object], count: int, what: str) -> tuple[str, ...]:
    """The ids as text, one for each; positions where none are given."""
    if not len(given):
        return tuple(map(str, range(count)))
    if len(given) != count:
        raise InputError(f"{count:,} {what}s but {len(given):,} {what} ids; give one id a {what}")
    return check_ids(given, what)


# From a folder's messages, the names of users, corners of what they want and a number of cells: a grid of
# about so many cells over all that, and each user's rates on it.
TrafficReader = Callable[[Path, list[str], NDArray[np.float64], int], tuple[Grid, NDArray[np.float64]]]


def read_market_problem(
    folder: str | Path,
    channels: int = 128,
    headroom: float = 2.0,
    core_price: float = 1.0,
    traffic: TrafficReader | None = None,
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
    subscribers, brokers = require_table(place, "subscribers"), require_table(place, "brokers")
    users, names = subscribers.column("subscriber").to_pylist(), brokers.column("broker").to_pylist()
    at, broker_at = _points(subscribers, "place", "subscriber"), _points(brokers, "place", "broker")
    told = read_traffic(place, users, points=traffic is not None)
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


def check_has_points(columns: Iterable[str], place: Path) -> None:
    """Refuse messages that are nowhere in a content space."""
    if "point" not in columns:
        raise InputError(f"{place}: messages have no column 'point', so there is no content space to cut")


def _traffic(
    place: Path, users: list[str], corners: NDArray[np.float64], channels: int
) -> tuple[Grid, NDArray[np.float64]]:
    messages, axes = require_table(place, "messages"), corners.shape[1]
    check_has_points(messages.column_names, place)
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
