"""What users send, from a log of their messages: `summarize` (paper 5, sections I and V)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from broadloom.checks import raise_for_first
from broadloom.errors import InputError
from broadloom.model.grid import Grid


def summarize(
    messages: pa.Table, users: Sequence[str], channels: Grid | Sequence[str], seconds: float | None = None
) -> NDArray[np.float64]:
    """The message generating rate of each user in each channel, in bytes a second, (users, channels).

    Args:
        messages: the canonical table: publisher, at, bytes, and point (with a grid) or topic (with topics).
        users: the ids of the users, in the order of the rows.
        channels: the grid whose cells are the channels, or the topics that are.
        seconds: the time that the log covers; None: from its first message to its last one.

    Raises:
        InputError: a publisher that is no user, a point outside the grid, an unknown topic, negative bytes.

    Example:
        >>> sent = {"publisher": ["a", "a"], "topic": ["x", "y"]}
        >>> log = pa.table(sent | {"at": [0, 2_000_000], "bytes": [6, 4]})
        >>> summarize(log, ["a", "b"], ["x", "y"]).tolist()
        [[3.0, 2.0], [0.0, 0.0]]
    """
    if len(set(users)) < len(users):
        raise InputError(f"{len(users) - len(set(users)):,} users are named twice; give each one once")
    for column in ("publisher", "at", "bytes", "point" if isinstance(channels, Grid) else "topic"):
        if column not in messages.column_names:
            raise InputError(
                f"messages have no column {column!r}; they have {', '.join(messages.column_names)}"
            )
    sender = _positions(
        messages.column("publisher"), users, "publisher", "make it a user or drop its messages"
    )
    channel = _channel_of(messages, channels)
    size = messages.column("bytes").to_numpy().astype(np.float64)
    raise_for_first(
        ~(np.isfinite(size) & (size >= 0)),
        lambda row: f"message {row} has {size[row]} bytes",
        "give 0 or more",
    )
    count = channels.channel_count if isinstance(channels, Grid) else len(channels)
    total = np.bincount(sender * count + channel, size, minlength=len(users) * count)
    return total.reshape(len(users), count) / (_seconds(messages) if seconds is None else _above_0(seconds))


def _channel_of(messages: pa.Table, channels: Grid | Sequence[str]) -> NDArray[np.int64]:
    """The channel of each message."""
    if not isinstance(channels, Grid):
        return _positions(messages.column("topic"), channels, "topic", "add it to the topics")
    points = messages.column("point").to_pylist()
    axes = len(channels.cells)
    raise_for_first(
        np.array([point is None or len(point) != axes for point in points], bool),
        lambda row: f"message {row} is at {points[row]}",
        f"give {axes} coordinates",
    )
    channel = channels.channel_of(np.array(points, np.float64).reshape(-1, axes))
    raise_for_first(
        channel < 0,
        lambda row: f"message {row} is at {points[row]}, outside of the grid",
        f"the grid goes from {channels.lo} to {channels.hi}",
    )
    return channel


def _positions(column: pa.ChunkedArray, ids: Sequence[str], what: str, expected: str) -> NDArray[np.int64]:
    """The index of each value among the ids."""
    found = pc.fill_null(pc.index_in(column.cast(pa.string()), pa.array(list(ids), pa.string())), -1)
    at = found.to_numpy().astype(np.int64)
    raise_for_first(at < 0, lambda row: f"message {row}: {what} {column[row].as_py()!r} is unknown", expected)
    return at


def _seconds(messages: pa.Table) -> float:
    """The time from the first message to the last one; 1 if there is none between them."""
    if not messages.num_rows:
        return 1.0
    at = messages.column("at").cast(pa.timestamp("us")).cast(pa.int64())
    if at.null_count:
        raise InputError(f"{at.null_count:,} messages have no time; give each one, or the seconds of the log")
    return (pc.max(at).as_py() - pc.min(at).as_py()) / 1e6 or 1.0


def _above_0(seconds: float) -> float:
    if not (np.isfinite(seconds) and seconds > 0):
        raise InputError(f"a log of {seconds} seconds; give a finite number above 0")
    return seconds
