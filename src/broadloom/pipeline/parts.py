"""Parts of an instance as rows of a table: one row has all that a task needs to link one part by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from broadloom.linking.divide import Group, members, rows_of
from broadloom.model import Interest, Weights

_INTS, _NUMBERS = pa.list_(pa.int32()), pa.list_(pa.float64())
SCHEMA = pa.schema(
    [
        ("part", pa.int32()),
        ("nodes", _INTS),
        ("starts", _INTS),
        ("topics", _INTS),
        ("sites", _INTS),
        ("points", _NUMBERS),
        ("table", _NUMBERS),
        ("joined", _INTS),
    ]
)


class Part(NamedTuple):
    """One part: which nodes it has, what they want, and what links among them cost.

    Where its nodes come from parts that are connected already, `joined` is the one of each; else it is empty.
    """

    number: int
    nodes: NDArray[np.int32]
    interest: Interest
    weights: Weights
    joined: NDArray[np.int32]


def bounded(
    interest: Interest, weights: Weights, part_of_node: NDArray[np.int32], most: int
) -> NDArray[np.int32]:
    """The division with each part cut into pieces of at most `most` bytes, or of one node.

    The nodes of a part are cut in order, so that one huge site, or one node after the other with very many
    topics, never becomes a task that no executor can hold.
    """
    pieces = np.zeros(len(part_of_node), np.int64)
    for nodes in members(part_of_node):
        sizes = 4 * (interest.topic_start[nodes + 1] - interest.topic_start[nodes]) + 64
        total = int(sizes.sum()) + (8 * len(nodes) ** 2 if weights.kind == "dense" else 0)
        if total > most:
            pieces[nodes] = np.cumsum(sizes) * -(-total // most) // (int(sizes.sum()) + 1)
    both = part_of_node.astype(np.int64) * (int(pieces.max(initial=0)) + 1) + pieces
    return np.unique(both, return_inverse=True)[1].astype(np.int32)


def write_parts(place: Path, interest: Interest, weights: Weights, parts: Sequence[Group]) -> None:
    """Write one row a part, a row group each, so that a task need not hold more than the part it works on."""
    with pa.parquet.ParquetWriter(place, SCHEMA) as writer:
        for number, (nodes, joined) in enumerate(parts):
            starts, topics = rows_of(interest, nodes)
            cost = weights.subset(nodes)
            table = cost.table.ravel() if weights.kind == "dense" else np.empty(0)
            row = (number, nodes, starts, topics, cost.site, cost.points.ravel(), table, joined)
            columns = [_one(value, field.type) for value, field in zip(row, SCHEMA, strict=True)]
            writer.write_table(pa.table(columns, schema=SCHEMA))


def read_parts(batch: pa.RecordBatch, topic_count: int, frame: Weights) -> Iterator[Part]:
    """The parts in a batch of rows; `frame` is the weights without what they say of single nodes."""
    for row in range(batch.num_rows):
        number, *lists = (batch.column(name)[row] for name in SCHEMA.names)
        nodes, starts, topics, sites, points, table, joined = (np.array(value.values) for value in lists)
        interest = Interest.from_rows(starts, topics, topic_count)
        weights = Weights(
            frame.kind,
            len(nodes),
            table=table.reshape(len(nodes), -1) if frame.kind == "dense" else frame.table,
            points=points.reshape(len(nodes), -1) if frame.kind == "euclidean" else frame.points,
            site=sites,
            inner=frame.inner,
            outer=frame.outer,
        )
        yield Part(number.as_py(), nodes, interest, weights, joined)


def frame_of(weights: Weights) -> Weights:
    """The weights without what they say of single nodes: small, and the same for all parts."""
    return weights.subset(np.empty(0, np.int64))


def _one(value: Any, kind: pa.DataType) -> pa.Array:
    """An array of one value."""
    if not pa.types.is_list(kind):
        return pa.array([value], kind)
    items = pa.array(value, kind.value_type)
    return pa.ListArray.from_arrays(pa.array([0, len(items)], pa.int32()), items).cast(kind)
