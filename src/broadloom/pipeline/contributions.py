"""Pairwise contributions as a Spark job: of each node, the partners with which it shares the most topics.

With no links yet, the contribution of a pair (papers 1 and 2) is the number of topics that both want. All
pairs of many nodes fit no machine, so a task holds one block of nodes against all others, block by block, and
keeps the best of each row: what is moved are the blocks, as packed bits, and never the pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from broadloom.errors import InputError
from broadloom.kernels import WORD, kernel, pack_rows, popcount
from broadloom.model import Interest

# Nodes a block: 2,000 nodes of 1,000 topics are 256 kB of bits.
BLOCK = 2048

_Best = tuple[NDArray[np.int32], NDArray[np.int32]]


def top_partners(spark: SparkSession, interest: Interest, count: int, scratch: Path) -> DataFrame:
    """The `count` best partners of each node: node, rank, partner, shared; the lowest index among equals.

    Args:
        spark: the session.
        interest: who wants what.
        count: how many partners a node; it has fewer if it shares a topic with fewer nodes.
        scratch: a folder that the executors can read; the packed bits are written there.
    """
    if count < 1:
        raise InputError(f"{count} partners a node; ask for 1 or more")
    blocks = _blocks(spark, interest, scratch)
    others = sf.broadcast(blocks.select(*(sf.col(name).alias(f"other_{name}") for name in blocks.columns)))
    pairs = blocks.repartition("first").crossJoin(others)
    words = -(-interest.topic_count // WORD)

    def best(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _best(batches, words, count)

    return pairs.mapInArrow(best, "node int, rank int, partner int, shared int")


def _blocks(spark: SparkSession, interest: Interest, scratch: Path) -> DataFrame:
    """The nodes' topics as packed bits, a row a block: first (the block's first node) and bits."""
    words = -(-interest.topic_count // WORD)
    bits = pack_rows(interest.topic_start, interest.topics, words)
    starts = list(range(0, interest.node_count, BLOCK))
    table = pa.table(
        {
            "first": pa.array(starts, pa.int32()),
            "bits": pa.array([bits[first : first + BLOCK].tobytes() for first in starts], pa.binary()),
        }
    )
    place = scratch / "bits.parquet"
    pa.parquet.write_table(table, place, row_group_size=1)
    return spark.read.parquet(str(place))


def _best(batches: Iterable[pa.RecordBatch], words: int, count: int) -> Iterator[pa.RecordBatch]:
    """The best partners of each block's nodes; the rows of a block come one after the other."""
    first, best = -1, None
    for batch in batches:
        for own, bits, other, other_bits in zip(*(batch[i] for i in range(4)), strict=True):
            rows = _words(bits, words)
            if own.as_py() != first:
                if best is not None:
                    yield _listed(first, best)
                first = own.as_py()
                best = np.zeros((len(rows), count), np.int32), np.full((len(rows), count), -1, np.int32)
            assert best is not None
            _keep_best(rows, _words(other_bits, words), first, other.as_py(), *best)
    if best is not None:
        yield _listed(first, best)


def _words(bits: pa.BinaryScalar, words: int) -> NDArray[np.uint64]:
    return (
        np.frombuffer(bits.as_buffer(), np.uint64).reshape(-1, max(words, 1))
        if words
        else np.empty((0, 1), np.uint64)
    )


def _listed(first: int, best: _Best) -> pa.RecordBatch:
    """What was kept, as rows."""
    shared, partner = best
    row, rank = np.nonzero(shared)
    columns: list[NDArray[Any]] = [row + first, rank, partner[row, rank], shared[row, rank]]
    names = ["node", "rank", "partner", "shared"]
    return pa.record_batch([column.astype(np.int32) for column in columns], names)


@kernel
def _keep_best(
    rows: NDArray[np.uint64],
    others: NDArray[np.uint64],
    first: int,
    other_first: int,
    shared: NDArray[np.int32],
    partner: NDArray[np.int32],
) -> None:
    """Hold each row against all others, and keep the best in `shared` and `partner`, best first."""
    last = shared.shape[1] - 1
    for i in range(len(rows)):
        for j in range(len(others)):
            count, v = 0, other_first + j
            for word in range(rows.shape[1]):
                count += popcount(rows[i, word] & others[j, word])
            if count == 0 or v == first + i or not _before(count, v, shared[i, last], partner[i, last]):
                continue
            at = last
            while at > 0 and _before(count, v, shared[i, at - 1], partner[i, at - 1]):
                shared[i, at], partner[i, at] = shared[i, at - 1], partner[i, at - 1]
                at -= 1
            shared[i, at], partner[i, at] = count, v


@kernel
def _before(count: int, v: int, other_count: int, other: int) -> bool:
    """Whether a partner is better than another: more topics, or as many and a lower index."""
    return count > other_count or (count == other_count and v < other)
