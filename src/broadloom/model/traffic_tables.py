"""What users send and want: from tables by topic, or from a traffic matrix (paper 5, sections I and II)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from broadloom.checks import raise_for_first
from broadloom.errors import InputError
from broadloom.model.traffic import summarize
from broadloom.storage.tables import need_table, positions, read_table

MOST_CELLS = 1 << 28  # of users and channels: two gigabytes
Flows = tuple[NDArray[np.float64], NDArray[np.bool_]]


def told_traffic(place: Path, users: list[str], points: bool = False) -> Flows | None:
    """What each user sends into each channel, and which it wants; None where a content space says that.

    The first that is there counts: `histograms` (generating functions: rates by topic), `messages` with
    topics, and, without any messages, `traffic_matrix`.

    Args:
        place: the folder.
        users: the ids of the users.
        points: whether messages are read elsewhere, by their points.

    Raises:
        InputError: somebody is unknown, a rate is below 0 or no number, or a matrix is too large.
    """
    histograms = read_table(place, "histograms")
    messages = read_table(place, "messages") if histograms is None and not points else None
    if messages is not None:
        columns = set(messages.column_names)
        return _by_topic(place, users, messages) if "topic" in columns and "point" not in columns else None
    if histograms is not None:
        return _by_topic(place, users, histograms)
    matrix = None if points else read_table(place, "traffic_matrix")
    return None if matrix is None else _by_level(matrix, users)


def _by_topic(place: Path, users: list[str], sent: pa.Table) -> Flows:
    """Each topic is a channel."""
    subscriptions = need_table(place, "subscriptions")
    node, wanted = subscriptions.column("node"), subscriptions.column("topic")
    topics = sorted({*wanted.to_pylist(), *sent.column("topic").to_pylist()} - {None})
    who, what = (positions(one, pa.array(ids, pa.string())) for one, ids in ((node, users), (wanted, topics)))
    raise_for_first(
        (who < 0) | (what < 0),
        lambda row: f"subscriptions row {row}: {node[row].as_py()!r} is unknown, or wants nothing",
        "make it a subscriber of a topic, or drop the row",
    )
    wants = np.zeros((len(users), len(topics)), bool)
    wants[who, what] = True
    if "rate" not in sent.column_names:
        return summarize(sent, users, topics), wants
    user, topic, rate = _rows(sent, "histograms", ("publisher", users), ("topic", topics))
    rates = np.zeros(wants.shape)
    np.add.at(rates, (user, topic), rate)
    return rates, wants


def _by_level(matrix: pa.Table, users: list[str]) -> Flows:
    """A traffic matrix as channels: what goes from one user to several is the same, as far as amounts allow.

    Of a user's amounts, each step up from one to the next is a channel, wanted by all who get at least that.

    Examples:
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
    if len(users) * len(channels) > MOST_CELLS:
        raise InputError(
            f"traffic_matrix has {len(users):,} users and {len(channels):,} different amounts, too much for "
            "memory; give histograms and subscriptions instead, which `migrate summarize` writes beside it"
        )
    shape = len(users), len(channels)
    rates, wants = np.zeros(shape), np.zeros(shape, bool)
    for channel, (one, low, high, takers) in enumerate(channels):
        rates[one, channel] = high - low
        wants[takers, channel] = True
    return rates, wants


def _rows(
    table: pa.Table, name: str, one: tuple[str, list[str]], other: tuple[str, list[str]]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Two columns of ids as indices, and the rate."""

    def index(column: str, ids: list[str]) -> NDArray[np.int64]:
        text = table.column(column)
        at = positions(text, pa.array(ids, pa.string()))
        raise_for_first(
            at < 0,
            lambda row: f"{name} row {row}: {column} {text[row].as_py()!r} is unknown",
            "make it a subscriber, or drop the row",
        )
        return at

    rate = np.asarray(table.column("rate").to_numpy(zero_copy_only=False), np.float64)
    raise_for_first(
        ~(np.isfinite(rate) & (rate >= 0)),
        lambda row: f"{name} row {row} has rate {rate[row]}",
        "give a finite number from 0, in bytes a second",
    )
    return index(*one), index(*other), rate
