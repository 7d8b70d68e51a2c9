"""Market problem (paper 5, section II), and its canonical tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import (
    check_choice,
    check_count,
    check_flag,
    check_ids,
    check_number,
    check_positive,
    frozen_array,
    lock_array,
    number_array,
    ordered_list,
    plain_array,
    raise_for_first,
    restore_frozen,
    same_value,
)
from broadloom.errors import InputError
from broadloom.kernels import kernel
from broadloom.model.channels import Grid, MessageReader, read_traffic, summarize
from broadloom.notebook import html_summary

if TYPE_CHECKING:
    import pyarrow as pa

# Routing of traffic through the core. "mst": a minimum spanning tree per source and channel; "pair": the
# shortest path from each source to each destination, so one tree per source; "tree": one tree for all.
CORES = ("mst", "pair", "tree")

# Prices count as equal if they differ by less than this share of the largest price.
PRICE_TOLERANCE = 1e-9

# A load can exceed the capacity by this share, because sums depend on the order of their terms.
LOAD_TOLERANCE = 1e-9

A = TypeVar("A", bound=NDArray[Any])


@dataclass(frozen=True, eq=False)
class MarketProblem:
    """Users that publish and subscribe to channels, and brokers that carry the messages at a price.

    Messages that no other user wants are removed from the rates. Arrays are checked once and made read-only.

    Attributes:
        rates: the rate of each user into each channel, (users, channels), from 0.
        wants: whether each user wants each channel, bool (users, channels).
        access: the price of the link between each user and each broker, (users, brokers), from 0.
        core: the price of the link between each two brokers, (brokers, brokers): symmetric, and never above
            the price of a detour over a third broker.
        capacity: the limit on what each broker's users send and receive: (brokers,), or one number for all.
        user_ids: the id of each user; its index by default.
        broker_ids: the id of each broker; its index by default.
        close: replace core prices above that of a detour by the cheapest detour, instead of an error.

    Raises:
        InputError: shapes that do not match, a price or rate that is not a number from 0, or core prices that
            are asymmetric or above that of a detour.

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
        wants = _flags(self.wants)
        users, channels = wants.shape
        access = _numbers(self.access, "access", ("user", "broker"), (users, None))
        brokers = access.shape[1]
        if users and not brokers:
            raise InputError(f"{users:,} users but no brokers; give at least one broker")
        rates = _numbers(self.rates, "rates", ("user", "channel"), (users, channels))
        core = _numbers(self.core, "core", ("broker", "broker"), (brokers, brokers))
        limits = number_array(self.capacity, "capacity")
        capacity = _numbers(
            np.full(brokers, limits) if limits.ndim == 0 else limits, "capacity", ("broker",), (brokers,)
        )
        arrays = {
            "rates": _wanted_by_others(rates, wants),
            "wants": wants,
            "access": access,
            "core": _metric(core, check_flag(close, "close")),
            "capacity": capacity,
        }
        for name, array in arrays.items():
            lock_array(array)
            object.__setattr__(self, name, array)
        object.__setattr__(self, "user_ids", _ids(self.user_ids, users, "user"))
        object.__setattr__(self, "broker_ids", _ids(self.broker_ids, brokers, "broker"))

    @property
    def user_count(self) -> int:
        """The number of users."""
        return self.wants.shape[0]

    @property
    def broker_count(self) -> int:
        """The number of brokers."""
        return self.access.shape[1]

    @property
    def channel_count(self) -> int:
        """The number of channels."""
        return self.wants.shape[1]

    @cached_property
    def sent(self) -> NDArray[np.float64]:
        """The rate of each user's messages that another user wants."""
        return _read_only(self.rates.sum(axis=1))

    @cached_property
    def received(self) -> NDArray[np.float64]:
        """The rate that each user receives: all messages of others in the channels that it wants."""
        total = self.rates.sum(axis=0)
        return _read_only(np.where(self.wants, total - self.rates, 0.0).clip(min=0.0).sum(axis=1))

    @cached_property
    def demand(self) -> NDArray[np.float64]:
        """The rate that each user sends and receives: its load on its broker and on its access link."""
        return _read_only(self.sent + self.received)

    @cached_property
    def wanted(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The wanted channels of all users in compressed rows: the start of each user's, and the channels."""
        start = np.concatenate(([0], np.cumsum(self.wants.sum(axis=1, dtype=np.int64))))
        return _read_only(start), _read_only(np.nonzero(self.wants)[1].astype(np.int32))

    @cached_property
    def limit(self) -> NDArray[np.float64]:
        """The load above which a broker is overloaded: its capacity, plus a tolerance for rounding."""
        return _read_only(self.capacity * (1 + LOAD_TOLERANCE))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MarketProblem):
            return NotImplemented
        names = [field.name for field in fields(self)]
        return all(same_value(getattr(self, name), getattr(other, name)) for name in names)

    def __hash__(self) -> int:
        return hash((self.user_count, self.broker_count, self.channel_count))

    def _repr_html_(self) -> str:
        counts: dict[str, object] = {
            "users": self.user_count,
            "brokers": self.broker_count,
            "channels": self.channel_count,
        }
        sums = {"demand": float(self.demand.sum()), "capacity": float(self.capacity.sum())}
        return html_summary("MarketProblem", counts | sums)

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore_frozen(self, state)

    def __repr__(self) -> str:
        return (
            f"MarketProblem({self.user_count:,} users, {self.broker_count:,} brokers, "
            f"{self.channel_count:,} channels)"
        )


def check_core(core: str) -> None:
    """Raise if a name is not one of `CORES`."""
    check_choice(core, "core", CORES)


def _read_only(array: A) -> A:
    lock_array(array)
    return array


def _numbers(
    values: ArrayLike, name: str, axes: tuple[str, ...], shape: tuple[int | None, ...]
) -> NDArray[np.float64]:
    """An array of finite numbers from 0, of the expected shape; copied unless it is read-only."""
    array = _as_doubles(values, name)
    if array.ndim != len(axes) or any(
        expected not in (None, size) for expected, size in zip(shape, array.shape, strict=True)
    ):
        expected = ", ".join(
            f"{axis}s" if n is None else f"{n:,} {axis}s" for axis, n in zip(axes, shape, strict=True)
        )
        raise InputError(f"{name} have shape {array.shape}; expected ({expected})")

    def describe(i: int) -> str:
        index = np.unravel_index(i, array.shape)
        entry = ", ".join(f"{axis} {number}" for axis, number in zip(axes, index, strict=True))
        return f"{name} of {entry}: {array[index]}"

    raise_for_first(~(np.isfinite(array) & (array >= 0)).ravel(), describe, "give a finite number from 0")
    return array


def _as_doubles(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """A new array of doubles; the array itself if nobody can write to it."""
    if type(values) is np.ndarray and values.dtype == np.float64 and values.flags.c_contiguous:
        return frozen_array(values)
    return number_array(values, name)


def _flags(values: ArrayLike) -> NDArray[np.bool_]:
    """The matrix `wants` as booleans."""
    array = plain_array(values, "wants")
    if array.ndim != 2:
        raise InputError(f"wants have shape {array.shape}; expected (users, channels)")
    if array.dtype.kind not in "biu":
        array = number_array(array, "wants")
    wants = array.astype(np.bool_, order="C")
    raise_for_first(
        (wants != array).ravel(),
        lambda i: f"wants of user {i // array.shape[1]}, channel {i % array.shape[1]}: {array.ravel()[i]}",
        "give true or false",
    )
    return wants


def _wanted_by_others(rates: NDArray[np.float64], wants: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The rates without the messages that only their sender wants."""
    return np.where(wants.sum(axis=0) - wants > 0, rates, 0.0)


def _metric(core: NDArray[np.float64], close: bool) -> NDArray[np.float64]:
    """The core prices; raises if they are asymmetric, or above a detour and `close` is false."""
    n = len(core)
    slack = PRICE_TOLERANCE * core.max(initial=0.0)
    raise_for_first(
        (np.abs(core - core.T) > slack).ravel(),
        lambda i: (
            f"core price of brokers {i // n} and {i % n} is {core[i // n, i % n]} in one direction and "
            f"{core[i % n, i // n]} in the other"
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
        "lower it, or replace it by the price of the detour (close=True)",
    )
    return core


@kernel
def _shortest_paths(prices: NDArray[np.float64]) -> NDArray[np.float64]:
    """The price of the cheapest path between each two brokers (Floyd and Warshall)."""
    n = len(prices)
    closed = prices.copy()
    for over in range(n):
        for u in range(n):
            first = closed[u, over]
            for v in range(n):
                closed[u, v] = min(closed[u, v], first + closed[over, v])
    return closed


def _ids(ids: Sequence[object], count: int, kind: str) -> tuple[str, ...]:
    """The ids as text; indices if there are no ids."""
    listed = ordered_list(ids, f"{kind} ids")
    if not listed:
        return tuple(map(str, range(count)))
    if len(listed) != count:
        raise InputError(f"{count:,} {kind}s but {len(listed):,} {kind} ids; give one id per {kind}")
    return check_ids(listed, kind)


class TrafficReader(MessageReader, Protocol):
    """Summarizes the messages of a folder of tables elsewhere than in this process."""

    def grid_rates(
        self, tables: Path, users: list[str], corners: NDArray[np.float64], channels: int
    ) -> tuple[Grid, NDArray[np.float64]]:
        """The grid over corners and messages, and the rates of each user in its cells."""
        ...


def read_market_problem(
    folder: str | Path,
    channels: int = 128,
    headroom: float = 2.0,
    core_price: float = 1.0,
    traffic: TrafficReader | None = None,
) -> MarketProblem:
    """The market in a folder of canonical tables.

    Users are the subscribers, including publishers; a user that wants nothing has empty `lo` and `hi`. Rates
    come from `messages`, in bytes per second. Prices are distances between positions. If messages have a
    `topic` and no `point`, each topic is a channel, and `subscriptions` holds the users that want it.
    `histograms` (rates by topic) can replace messages; without either, `traffic_matrix` holds the rate from
    each user to each other user.

    Args:
        folder: holds `subscribers`, `brokers`, and `messages`, `histograms` or `traffic_matrix`.
        channels: the approximate number of cells of the grid over all subscriptions and messages.
        headroom: if brokers have no capacity, or shares with the sum 1: the capacity of all brokers divided
            by the demand of all users.
        core_price: the price per unit of distance between brokers; between users and brokers it is 1.
        traffic: summarizes the messages; by default this process does it.

    Raises:
        InputError: a table or column is missing, or something in it is wrong.
    """
    from broadloom.storage import committed
    from broadloom.storage.tables import require_table

    path = committed(folder)
    check_count(channels, "channels", minimum=1)
    check_positive(headroom, "headroom")
    check_number(core_price, "core_price")
    subscribers = require_table(path, "subscribers")
    brokers = require_table(path, "brokers")
    users = subscribers.column("subscriber").to_pylist()
    names = brokers.column("broker").to_pylist()
    user_points = _points(subscribers, "place", "subscriber")
    broker_points = _points(brokers, "place", "broker")
    known = read_traffic(path, users, traffic)
    if known is not None:
        rates, wants = known
    else:
        lo = _borders(subscribers, "lo")
        hi = _borders(subscribers, "hi")
        grid_rates = _grid_rates if traffic is None else traffic.grid_rates
        grid, rates = grid_rates(path, users, np.concatenate([lo, hi]), channels)
        wants = grid.touched(lo, hi)
    core = core_price * _distances(broker_points, broker_points)
    draft = MarketProblem(
        rates,
        wants,
        _distances(user_points, broker_points),
        core,
        np.zeros(len(names)),
        tuple(users),
        tuple(names),
        close=True,
    )
    return replace(draft, capacity=_capacity(brokers, draft, headroom), close=False)


def _points(table: pa.Table, column: str, kind: str) -> NDArray[np.float64]:
    """A column of coordinates, with the same number in each row."""
    rows = table.column(column).to_pylist()
    axes = len(rows[0] or ()) if rows else 1
    raise_for_first(
        np.array([row is None or len(row) != axes or not axes for row in rows], bool),
        lambda i: f"{kind} {i} has {column} {rows[i]}",
        "give all rows the same number of coordinates, at least 1",
    )
    return np.array(rows, np.float64).reshape(len(rows), axes)


def _borders(subscribers: pa.Table, column: str) -> NDArray[np.float64]:
    """Borders of subscriptions; NaN for a user without one."""
    rows = [row or [] for row in subscribers.column(column).to_pylist()]
    axes = max(map(len, rows), default=1) or 1
    raise_for_first(
        np.array([len(row) not in (0, axes) for row in rows], bool),
        lambda i: f"subscriber {i} has {column} {rows[i]}",
        f"give {axes} coordinates, or an empty list if it wants nothing",
    )
    return np.array([row or [np.nan] * axes for row in rows], np.float64).reshape(len(rows), axes)


def check_has_points(columns: Iterable[str], folder: Path) -> None:
    """Raise if the messages of a folder have no points in a content space."""
    if "point" not in columns:
        raise InputError(
            f"{folder}: messages have no column 'point', so there is no content space to divide into channels"
        )


def _grid_rates(
    folder: Path, users: list[str], corners: NDArray[np.float64], channels: int
) -> tuple[Grid, NDArray[np.float64]]:
    """The grid over corners and messages, and the rates of each user in its cells."""
    from broadloom.storage.tables import require_table

    messages = require_table(folder, "messages")
    axes = corners.shape[1]
    check_has_points(messages.column_names, folder)
    points = [point for point in messages.column("point").to_pylist() if point is not None]
    sent = np.array([p for p in points if len(p) == axes], np.float64).reshape(-1, axes)
    grid = Grid.covering(np.concatenate([corners, sent]), channels)
    return grid, summarize(messages, users, grid)


def _capacity(brokers: pa.Table, draft: MarketProblem, headroom: float) -> NDArray[np.float64]:
    """The capacity of each broker; if it is a share or missing, a part of all demand times `headroom`."""
    everything = headroom * float(draft.demand.sum())
    if "capacity" in brokers.column_names:
        column = brokers.column("capacity")
        raise_for_first(
            np.asarray(column.is_null()),
            lambda i: f"broker {draft.broker_ids[i]!r} has no capacity",
            "give each broker one",
        )
        capacity = column.to_numpy().astype(np.float64)
        return capacity * everything if np.isclose(capacity.sum(), 1.0) else capacity
    return np.full(draft.broker_count, everything / max(1, draft.broker_count))


def _distances(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    if not len(one):
        return np.zeros((0, len(other)))
    if one.shape[1] != other.shape[1]:
        raise InputError(
            f"subscribers have {one.shape[1]} coordinates, brokers {other.shape[1]}; give the same number"
        )
    total = np.zeros((len(one), len(other)))
    for axis in range(one.shape[1]):
        total += (one[:, None, axis] - other[:, axis]) ** 2
    return np.sqrt(total)
