"""Topic filters of clients and the topics that they match, in this process or on executors.

The filters with a wildcard are few, and every task has them all; topics can be very many, and each is looked
up where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from broadloom.mqtt import topic_filters as filters
from broadloom.mqtt.topic_filters import FilterLookup

# A note names what overlaps or matches more topics than this, and more than half of all topics.
FEW_TOPICS = 10

_GROUP_SCHEMA = pa.schema([("group", pa.string()), ("name", pa.string()), ("size", pa.int64())])
_MEANING_SCHEMA = pa.schema([("filter", pa.string()), ("topic", pa.string())])


class OverlapGroup(NamedTuple):
    """A group of filters and topics that overlap: the shortest name, and the number of members."""

    name: str
    size: int

    def plus(self, other: OverlapGroup) -> OverlapGroup:
        """The group of the members of both."""
        shortest = min(self.name, other.name, key=lambda text: (len(text), text))
        return OverlapGroup(shortest, self.size + other.size)


def overlap_groups(found: FilterLookup, texts: Iterable[str]) -> dict[str, OverlapGroup]:
    """The groups that some topics and filters belong to, by the first filter of each group."""
    sizes: dict[str, OverlapGroup] = {}
    for text in texts:
        group = found.group(text)
        if group is not None:
            sizes[group] = (
                OverlapGroup(text, 1).plus(sizes[group]) if group in sizes else OverlapGroup(text, 1)
            )
    return sizes


def overlap_groups_on_spark(found: FilterLookup, topics: DataFrame) -> dict[str, OverlapGroup]:
    """As `overlap_groups`, for a frame with the column topic; only one row per task and group is returned."""

    def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sizes = overlap_groups(found, (text for batch in batches for text in batch["topic"].to_pylist()))
        columns = [list(sizes), [one.name for one in sizes.values()], [one.size for one in sizes.values()]]
        arrays = [pa.array(*pair) for pair in zip(columns, _GROUP_SCHEMA.types, strict=True)]
        yield pa.record_batch(arrays, schema=_GROUP_SCHEMA)

    counted = topics.mapInArrow(count, "group string, name string, size long").toArrow()
    sizes: dict[str, OverlapGroup] = {}
    for group, name, size in zip(*(counted[name].to_pylist() for name in counted.column_names), strict=True):
        one = OverlapGroup(name, size)
        sizes[group] = one.plus(sizes[group]) if group in sizes else one
    return sizes


def group_notes(sizes: Iterable[OverlapGroup], topics: int) -> list[str]:
    """Notes on groups of very many filters and topics; `topics`: the number of topics."""
    return [
        f"{size:,} topics and topic filters overlap and count as one topic, named {name!r}"
        for name, size in sorted(sizes)
        if size > max(FEW_TOPICS, topics // 2)
    ]


def matches(found: FilterLookup, texts: list[str]) -> pa.Table:
    """The topics that the filters match: filter, topic."""
    pairs = [(one, text) for text in texts for one in found.meeting(text)]
    columns = zip(*pairs, strict=True) if pairs else ([], [])
    return pa.table([pa.array(column, pa.string()) for column in columns], schema=_MEANING_SCHEMA)


def matches_on_spark(found: FilterLookup, topics: DataFrame) -> DataFrame:
    """As `matches`, for a frame with the column topic."""

    def match(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from matches(found, batch["topic"].to_pylist()).to_batches()

    return topics.mapInArrow(match, "filter string, topic string")


class FilterMeanings(NamedTuple):
    """What becomes of each filter if filters are replaced by the topics that they match.

    Attributes:
        sizes: the number of topics and filters that replace each filter.
        more: the filters that replace filters, in addition to the topics: filter, topic.
    """

    sizes: dict[str, int]
    more: pa.Table

    def narrowed(self) -> pa.Table:
        """The filters that are not carried as they are: filter, reason."""
        unchanged = set(
            self.more["topic"].filter(pc.equal(self.more["filter"], self.more["topic"])).to_pylist()
        )
        rows = [
            (text, f"carried only as the {size:,} topics of it that are known")
            for text, size in self.sizes.items()
            if not (size == 1 and text in unchanged)
        ]
        columns = zip(*rows, strict=True) if rows else ([], [])
        return pa.table([pa.array(column, pa.string()) for column in columns], names=["filter", "reason"])

    def notes(self, topics: int) -> list[str]:
        """Notes on filters that match very many topics."""
        return [
            f"filter {text!r} matches {size:,} of {topics:,} topics"
            for text, size in self.sizes.items()
            if size > max(FEW_TOPICS, topics // 2)
        ]


def filter_meanings(texts: list[str], matched: dict[str, int], itself: set[str]) -> FilterMeanings:
    """The meaning of each filter; one that matches no topic stays, and so does what overlaps it.

    Args:
        texts: the filters.
        matched: the number of topics that each filter matches, if there are any.
        itself: the filters that are themselves in the list of topics.

    Examples:
        >>> found = filter_meanings(["a/#", "x/+", "x/y/#", "a/+/c"], {"a/#": 1}, set())
        >>> found.sizes
        {'a/#': 2, 'x/+': 1, 'x/y/#': 1, 'a/+/c': 1}
        >>> found.more.to_pylist()[0], found.narrowed()["filter"].to_pylist()
        ({'filter': 'a/#', 'topic': 'a/+/c'}, ['a/#'])
    """
    unmatched = filters.FilterIndex(text for text in texts if text not in matched)
    sizes: dict[str, int] = {}
    pairs: list[tuple[str, str]] = []
    for text in texts:
        kept = {text}
        if text in matched:
            found = (filters.common_filter(text, other) for other in unmatched.meeting(text))
            kept = {one for one in found if one is not None}
        pairs += [(text, one) for one in sorted(kept)]
        sizes[text] = matched.get(text, 0) + len(kept)
    own = [(text, text) for text in texts if text in itself and sizes[text] == 1]
    columns = zip(*pairs, *own, strict=True) if pairs or own else ([], [])
    return FilterMeanings(
        sizes, pa.table([pa.array(column, pa.string()) for column in columns], schema=_MEANING_SCHEMA)
    )
