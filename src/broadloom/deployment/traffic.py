"""Who publishes what, and how much: from a log of messages."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broadloom.checks import raise_for_first
from broadloom.errors import InputError
from broadloom.model.interest import Interest
from broadloom.mqtt.topic_filters import is_wild
from broadloom.storage.tables import need_table, positions


class Publication(NamedTuple):
    """A broker whose clients publish a topic.

    Attributes:
        broker: the index of the broker.
        topic: the topic, without wildcards.
        rate: in bytes a second; 0 if nobody knows.
    """

    broker: int
    topic: str
    rate: float = 0.0


def publications(
    messages: pa.Table, interest: Interest, elsewhere: Collection[str] = ()
) -> list[Publication]:
    """Every broker and topic of a log of messages, whose publishers are brokers, with its rate.

    Args:
        messages: the canonical table: publisher, at, bytes, topic.
        interest: the brokers.
        elsewhere: brokers of another plan; what they publish is left out.

    Raises:
        InputError: no topics, an unknown broker, a topic with a wildcard, or negative bytes.

    Examples:
        >>> log = {"publisher": ["0", "1", "0"], "at": [0, 1, 2_000_000], "bytes": [6, 4, 2]}
        >>> table = pa.table(log | {"topic": ["x", "x", "x"]})
        >>> publications(table, Interest.from_lists([["x"], ["x"]]))
        [Publication(broker=0, topic='x', rate=4.0), Publication(broker=1, topic='x', rate=2.0)]
    """
    for column in ("publisher", "at", "bytes", "topic"):
        if column not in messages.column_names:
            raise InputError(
                f"messages have no column {column!r}; they have {', '.join(messages.column_names)}"
            )
    sizes = np.asarray(messages.column("bytes"), np.float64)
    raise_for_first(~(sizes >= 0), lambda row: f"message {row} has {sizes[row]} bytes", "give 0 or more")
    own = set(interest.node_ids)
    away = [name for name in dict.fromkeys(elsewhere) if name not in own]
    seconds = _seconds(messages)
    messages = messages.filter(pc.invert(pc.is_in(messages.column("publisher"), pa.array(away, pa.string()))))
    keys = ["publisher", "topic"]
    sums = messages.group_by(keys).aggregate([("bytes", "sum")]).sort_by([(key, "ascending") for key in keys])
    brokers = positions(sums.column("publisher"), pa.array(interest.node_ids, pa.string()))
    names, topics = sums.column("publisher").to_pylist(), sums.column("topic").to_pylist()
    raise_for_first(
        brokers < 0, lambda i: f"messages of {names[i]!r}, which is no broker", "name brokers of the plan"
    )
    bad = np.array([not topic or is_wild(topic) for topic in topics], bool)
    raise_for_first(
        bad, lambda i: f"{names[i]!r} publishes {topics[i]!r}", "a message has a topic without wildcards"
    )
    rates = np.asarray(sums.column("bytes_sum"), np.float64) / seconds
    rows = zip(brokers.tolist(), topics, rates.tolist(), strict=True)
    return sorted(Publication(*row) for row in rows)


def read_publications(folder: Path, interest: Interest, elsewhere: Collection[str] = ()) -> list[Publication]:
    """The publications in the table `messages` of a folder."""
    return publications(need_table(folder, "messages"), interest, elsewhere)


def _seconds(messages: pa.Table) -> float:
    """The time that the log covers; 1 if it is a moment."""
    at = messages.column("at").cast(pa.timestamp("us")).cast(pa.int64())
    if at.null_count:
        raise InputError(f"{at.null_count:,} messages have no time; give each one")
    return (pc.max(at).as_py() - pc.min(at).as_py()) / 1e6 or 1.0 if len(at) else 1.0
