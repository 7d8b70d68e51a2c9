"""Channels of a market (cells of a grid, or topics), and the traffic of users in them (paper 5, I to V)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import (
    MAX_CELLS,
    check_count,
    check_ids,
    check_instance,
    check_number,
    check_positive,
    number_array,
    ordered_list,
    raise_for_first,
    shown,
)
from broadloom.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

DensityFunction = Callable[[NDArray[np.float64]], ArrayLike]


@dataclass(frozen=True)
class Grid:
    """Sub-channels: a box of the content space divided into equal cells (paper 5, IV-A).

    Channels number the cells, the last axis fastest. A cell includes its lower border and not its upper one,
    except for the upper border of the box.

    Attributes:
        lo: the lower border of the box on each axis.
        hi: the upper border.
        cells: the number of cells on each axis.

    Example:
        >>> grid = Grid.over([0], [1], [4])
        >>> grid.touched([[0.2]], [[0.5]]).tolist()
        [[True, True, False, False]]
        >>> grid.channel_of([[0.5], [1.0], [1.5]]).tolist()
        [2, 3, -1]
    """

    lo: tuple[float, ...]
    hi: tuple[float, ...]
    cells: tuple[int, ...]

    def __post_init__(self) -> None:
        lo = ordered_list(self.lo, "lower borders")
        hi = ordered_list(self.hi, "upper borders")
        cells = ordered_list(self.cells, "cells")
        if not len(lo) == len(hi) == len(cells) or not lo:
            raise InputError(
                f"borders {shown(lo)}, {shown(hi)} and cells {shown(cells)}; give one of each per axis"
            )
        for axis, (low, high, count) in enumerate(zip(lo, hi, cells, strict=True)):
            lo[axis], hi[axis] = (
                check_number(border, f"a border of axis {axis}", -np.inf) for border in (low, high)
            )
            if not (lo[axis] < hi[axis] and np.isfinite(hi[axis] - lo[axis])):
                raise InputError(f"axis {axis} goes from {low} to {high}; give finite numbers that ascend")
            cells[axis] = check_count(count, f"the number of cells of axis {axis}", 1, MAX_CELLS)
        if math.prod(cells) > MAX_CELLS:
            raise InputError(f"cells {shown(cells)} are more than {MAX_CELLS:,}; give fewer")
        for name, values in (("lo", lo), ("hi", hi), ("cells", cells)):
            object.__setattr__(self, name, tuple(values))

    @classmethod
    def over(cls, lo: Sequence[float], hi: Sequence[float], cells: Sequence[int]) -> Grid:
        """A grid over a box.

        Raises:
            InputError: the three arguments differ in length or are empty, a border is not finite, an upper
                border is not above the lower one, or an axis has no cell.
        """
        return cls(lo, hi, cells)  # type: ignore[arg-type]

    @classmethod
    def covering(cls, points: NDArray[np.float64], channels: int) -> Grid:
        """A grid of about `channels` cells over all points without NaN, with equally many cells per axis.

        Examples:
            >>> Grid.covering(np.array([[0.0, 5.0], [8.0, 5.0]]), 16)
            Grid(lo=(0.0, 5.0), hi=(8.0, 6.0), cells=(4, 4))
        """
        rows = number_array(points, "points")
        if rows.ndim != 2 or not rows.shape[1]:
            raise InputError(f"points have shape {rows.shape}; give one row of coordinates per point")
        if np.isinf(rows).any():
            raise InputError("a point is infinitely far away; give finite coordinates, or NaN")
        check_count(channels, "channels", 1, MAX_CELLS)
        known = rows[~np.isnan(rows).any(axis=1)]
        low, high = known.min(axis=0, initial=np.inf), known.max(axis=0, initial=-np.inf)
        low, high = np.where(np.isfinite(low), low, 0.0), np.where(np.isfinite(high), high, 1.0)
        high = np.where(high > low, high, low + 1.0)
        cells_per_axis = max(1, round(channels ** (1 / len(low))))
        return cls.over(low.tolist(), high.tolist(), [cells_per_axis] * len(low))

    @property
    def channel_count(self) -> int:
        """The number of cells."""
        return int(np.prod(self.cells))

    def channel_of(self, points: ArrayLike) -> NDArray[np.int64]:
        """The channel of each point (a row of coordinates); -1 for a point outside the box or with a NaN."""
        rows = self._rows(points, "points")
        inside = np.all((rows >= self.lo) & (rows <= self.hi), axis=1)
        cell = np.minimum(
            np.floor(self._scaled(np.where(inside[:, None], rows, self.lo))), np.array(self.cells) - 1
        )
        channel = np.ravel_multi_index(tuple(cell.astype(np.int64).T), self.cells)
        return np.where(inside, channel, -1)

    def touched(self, lo: ArrayLike, hi: ArrayLike) -> NDArray[np.bool_]:
        """Whether each rectangle from `lo` to `hi` touches each channel, bool (rectangles, channels).

        The touched cells are the fewest that cover the rectangle.

        A rectangle with NaN borders, or outside the box, touches no channel.

        Raises:
            InputError: a lower border is above the upper one.
        """
        low, high = self._rows(lo, "lower borders"), self._rows(hi, "upper borders")
        if len(low) != len(high):
            raise InputError(f"{len(low):,} lower but {len(high):,} upper borders; give the same number")
        raise_for_first(
            np.any(low > high, axis=1),
            lambda i: f"rectangle {i} goes from {low[i].tolist()} to {high[i].tolist()}",
            "give the lower borders first",
        )
        touched = np.ones((len(low), 1), bool)
        for axis, count in enumerate(self.cells):
            first = np.floor(self._scaled(low)[:, axis])
            last = np.maximum(np.ceil(self._scaled(high)[:, axis]) - 1, first)
            first = np.where(low[:, axis] == self.hi[axis], count - 1, first)
            cell = np.arange(count)
            along = (cell >= first[:, None]) & (cell <= last[:, None])
            touched = (touched[:, :, None] & along[:, None, :]).reshape(len(low), touched.shape[1] * count)
        return touched

    def rates(self, densities: Sequence[DensityFunction], samples: int = 8) -> NDArray[np.float64]:
        """The rate of each user into each channel: the mean of its density function over the cell.

        Args:
            densities: one function per user, from points (one row of coordinates each) to the rates there.
            samples: the number of points along each axis of a cell at which functions are evaluated.

        Raises:
            InputError: a function does not return a finite number from 0 for each point.

        Example:
            >>> Grid.over([0], [1], [2]).rates([lambda at: np.maximum(2 * at[:, 0] - 1, 0)]).tolist()
            [[0.0, 0.5]]
        """
        functions = ordered_list(densities, "densities")
        fine = [count * check_count(samples, "samples", minimum=1) for count in self.cells]
        if math.prod(fine) > MAX_CELLS:
            raise InputError(f"{samples} samples per axis make {math.prod(fine):,} points; give fewer")
        axes = [
            low + (high - low) * (np.arange(count) + 0.5) / count
            for low, high, count in zip(self.lo, self.hi, fine, strict=True)
        ]
        points = np.stack([one.ravel() for one in np.meshgrid(*axes, indexing="ij")], axis=1)
        rates = np.zeros((len(functions), self.channel_count))
        channel = self.channel_of(points)
        for user, density in enumerate(functions):
            if not callable(density):
                raise InputError(f"the density of user {user} is {shown(density)}; give a function")
            values = number_array(density(points.copy()), f"the values of the density of user {user}")
            if values.shape != (len(points),) or not (np.isfinite(values) & (values >= 0)).all():
                raise InputError(f"the density of user {user} is not a finite number from 0 at each point")
            rates[user] = np.bincount(channel, values, minlength=self.channel_count)
        return rates / samples ** len(self.cells)

    def _scaled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Coordinates in units of cells, from the lower border."""
        lo, hi = np.array(self.lo), np.array(self.hi)
        return (rows - lo) / (hi - lo) * self.cells

    def _rows(self, values: ArrayLike, name: str) -> NDArray[np.float64]:
        rows = number_array(values, name)
        if rows.ndim != 2 or rows.shape[1] != len(self.lo):
            raise InputError(f"{name} have shape {rows.shape}; expected ({name.split()[-1]}, {len(self.lo)})")
        return rows


def summarize(
    messages: pa.Table, users: Sequence[str], channels: Grid | Sequence[str], seconds: float | None = None
) -> NDArray[np.float64]:
    """The rate at which each user publishes in each channel, in bytes per second, (users, channels).

    Args:
        messages: the canonical table: publisher, at, bytes, and point (with a grid) or topic (with topics).
        users: the ids of the users, in the order of the rows.
        channels: the grid whose cells are the channels, or the topics.
        seconds: the duration of the log; None: from its first message to its last one.

    Raises:
        InputError: a publisher is not a user, a point is outside the grid, a topic is unknown, or bytes are
            negative.

    Example:
        >>> sent = {"publisher": ["a", "a"], "topic": ["x", "y"]}
        >>> import pyarrow as pa
        >>> log = pa.table(sent | {"at": [0, 2_000_000], "bytes": [6, 4]})
        >>> summarize(log, ["a", "b"], ["x", "y"]).tolist()
        [[3.0, 2.0], [0.0, 0.0]]
    """
    import pyarrow as pa

    check_instance(messages, pa.Table, "the log", "give a pyarrow.Table of messages")
    users = check_ids(users, "user")
    if not isinstance(channels, Grid):
        channels = check_ids(channels, "topic")
    for column in ("publisher", "at", "bytes", "point" if isinstance(channels, Grid) else "topic"):
        if column not in messages.column_names:
            raise InputError(
                f"messages have no column {column!r}; they have {', '.join(messages.column_names)}"
            )
    sender = _message_indices(
        messages.column("publisher"), users, "publisher", "make it a user or drop its messages"
    )
    channel = _channel_of(messages, channels)
    size = number_array(messages.column("bytes").to_numpy(), "bytes")
    raise_for_first(
        ~(np.isfinite(size) & (size >= 0)),
        lambda row: f"message {row} has {size[row]} bytes",
        "give 0 or more",
    )
    count = channels.channel_count if isinstance(channels, Grid) else len(channels)
    if len(users) * count > MAX_CELLS:
        raise InputError(f"{len(users):,} users and {count:,} channels are too many for memory; give fewer")
    total = np.bincount(sender * count + channel, size, minlength=len(users) * count)
    return total.reshape(len(users), count) / (
        _duration(messages) if seconds is None else check_positive(seconds, "seconds")
    )


def _channel_of(messages: pa.Table, channels: Grid | Sequence[str]) -> NDArray[np.int64]:
    """The channel of each message."""
    if not isinstance(channels, Grid):
        return _message_indices(messages.column("topic"), channels, "topic", "add it to the topics")
    points = messages.column("point").to_pylist()
    axes = len(channels.cells)
    raise_for_first(
        np.array([point is None or len(point) != axes for point in points], bool),
        lambda row: f"message {row} is at {points[row]}",
        f"give {axes} coordinates",
    )
    channel = channels.channel_of(number_array(points, "points").reshape(-1, axes))
    raise_for_first(
        channel < 0,
        lambda row: f"message {row} is at {points[row]}, outside of the grid",
        f"the grid goes from {channels.lo} to {channels.hi}",
    )
    return channel


def _message_indices(
    column: pa.ChunkedArray, ids: Sequence[str], kind: str, expected: str
) -> NDArray[np.int64]:
    """The index among the ids of each value in a column of messages."""
    import pyarrow as pa

    from broadloom.storage.tables import indices_in

    found = indices_in(column.cast(pa.string()), pa.array(list(ids), pa.string()))
    raise_for_first(
        found < 0, lambda row: f"message {row}: {kind} {column[row].as_py()!r} is unknown", expected
    )
    return found


def _duration(messages: pa.Table) -> float:
    """The seconds from the first message to the last one; 1 if that is zero."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not messages.num_rows:
        return 1.0
    at = messages.column("at").cast(pa.timestamp("us")).cast(pa.int64())
    if at.null_count:
        raise InputError(
            f"{at.null_count:,} messages have no time; give each one a time, or the seconds of the log"
        )
    return (pc.max(at).as_py() - pc.min(at).as_py()) / 1e6 or 1.0


Flows = tuple[NDArray[np.float64], NDArray[np.bool_]]


class MessageReader(Protocol):
    """A log of messages that is read elsewhere than in this process."""

    def topics(self, tables: Path) -> list[str] | None:
        """The topics of the messages; None if messages have points in a content space."""
        ...

    def topic_rates(self, tables: Path, users: list[str], topics: list[str]) -> NDArray[np.float64]:
        """As `summarize`, with the topics as channels."""
        ...


def read_traffic(folder: Path, users: list[str], log: MessageReader | None = None) -> Flows | None:
    """The rates and wants of all users by topic; None if messages have points in a content space.

    The source is the first that exists: `histograms` (generating functions: rates by topic), `messages` with
    topics, or `traffic_matrix` if there are no messages.

    Args:
        folder: the folder of tables.
        users: the ids of the users.
        log: reads the messages; by default this process does it.

    Raises:
        InputError: a user is unknown, a rate is not a number from 0, or the matrix is too large.
    """
    from broadloom.storage.tables import read_table

    histograms = read_table(folder, "histograms")
    if histograms is not None:
        return _by_topic(folder, users, histograms)
    if log is not None:
        topics = log.topics(folder)
        if topics is None:
            return None
        topics, wants = _wants(folder, users, topics)
        return log.topic_rates(folder, users, topics), wants
    messages = read_table(folder, "messages")
    if messages is not None:
        columns = set(messages.column_names)
        return _by_topic(folder, users, messages) if "topic" in columns and "point" not in columns else None
    matrix = read_table(folder, "traffic_matrix")
    return None if matrix is None else _by_level(matrix, users)


def _by_topic(folder: Path, users: list[str], sent: pa.Table) -> Flows:
    """Rates and wants with each topic as a channel."""
    topics, wants = _wants(folder, users, sent.column("topic").to_pylist())
    if "rate" not in sent.column_names:
        return summarize(sent, users, topics), wants
    user, topic, rate = _rows(sent, "histograms", ("publisher", users), ("topic", topics))
    rates = np.zeros(wants.shape)
    np.add.at(rates, (user, topic), rate)
    return rates, wants


def _wants(folder: Path, users: list[str], sent: Iterable[str | None]) -> tuple[list[str], NDArray[np.bool_]]:
    """All topics that are sent or wanted, and which user wants which."""
    import pyarrow as pa

    from broadloom.storage.tables import indices_in, require_table

    subscriptions = require_table(folder, "subscriptions")
    node = subscriptions.column("node")
    wanted = subscriptions.column("topic")
    topics = sorted({*wanted.to_pylist(), *sent} - {None})
    user = indices_in(node, pa.array(users, pa.string()))
    topic = indices_in(wanted, pa.array(topics, pa.string()))
    raise_for_first(
        (user < 0) | (topic < 0),
        lambda row: f"subscriptions row {row}: {node[row].as_py()!r} is unknown, or has no topic",
        "make it a subscriber of a topic, or drop the row",
    )
    wants = np.zeros((len(users), len(topics)), bool)
    wants[user, topic] = True
    return topics, wants


def _by_level(matrix: pa.Table, users: list[str]) -> Flows:
    """Rates and wants from a traffic matrix, on the assumption that receivers share as much as possible.

    Sort the rates from one user to the others; each step from one rate to the next is a channel, wanted by
    all receivers with at least the higher rate.

    Examples:
        >>> import pyarrow as pa
        >>> matrix = pa.table({"src": ["a", "a"], "dst": ["b", "c"], "rate": [2.0, 5.0]})
        >>> rates, wants = _by_level(matrix, ["a", "b", "c"])
        >>> rates[0].tolist(), wants[1].tolist(), wants[2].tolist()
        ([2.0, 3.0], [True, False], [True, True])
    """
    src, dst, rate = _rows(matrix, "traffic_matrix", ("src", users), ("dst", users))
    raise_for_first(
        src == dst, lambda row: f"traffic_matrix row {row} is of {users[src[row]]!r} to itself", "drop it"
    )
    flows: dict[int, dict[int, float]] = {}
    for one, other, amount in zip(src.tolist(), dst.tolist(), rate.tolist(), strict=True):
        to = flows.setdefault(one, {})
        to[other] = to.get(other, 0.0) + amount
    channels = [
        (one, low, high, [other for other, amount in to.items() if amount >= high])
        for one, to in sorted(flows.items())
        for low, high in pairwise(sorted({0.0, *to.values()}))
    ]
    if len(users) * len(channels) > MAX_CELLS:
        raise InputError(
            f"traffic_matrix has {len(users):,} users and {len(channels):,} different amounts, too much for "
            "memory; give histograms and subscriptions instead, which `migrate summarize` also writes"
        )
    shape = len(users), len(channels)
    rates, wants = np.zeros(shape), np.zeros(shape, bool)
    for channel, (one, low, high, receivers) in enumerate(channels):
        rates[one, channel] = high - low
        wants[receivers, channel] = True
    return rates, wants


def _rows(
    table: pa.Table, name: str, one: tuple[str, list[str]], other: tuple[str, list[str]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Two columns of ids as indices, and the rate."""
    import pyarrow as pa

    from broadloom.storage.tables import indices_in

    def index(column: str, ids: list[str]) -> NDArray[np.int64]:
        values = table.column(column)
        found = indices_in(values, pa.array(ids, pa.string()))
        raise_for_first(
            found < 0,
            lambda row: f"{name} row {row}: {column} {values[row].as_py()!r} is unknown",
            "make it a subscriber, or drop the row",
        )
        return found

    rate = np.asarray(table.column("rate").to_numpy(zero_copy_only=False), np.float64)
    raise_for_first(
        ~(np.isfinite(rate) & (rate >= 0)),
        lambda row: f"{name} row {row} has rate {rate[row]}",
        "give a finite number from 0, in bytes per second",
    )
    return index(*one), index(*other), rate
