"""Groups of topic filters that overlap, while subscriptions come and go.

Filters with topics in common must share one tree (`Interest.grouped`). So a live overlay connects groups of
them: each group is one topic of the dynamics. A filter that comes can overlap several groups, which then
become one. When it goes, the group is split again: a group that stayed one would be connected as a whole, but
not each of its parts in itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.maintenance.dynamics import OverlayDynamics
from broadloom.model import Interest
from broadloom.mqtt.topic_filters import FilterIndex, groups, is_filter

Topics = NDArray[np.int32]
NO_LINKS = np.empty((0, 2), np.int64)


class GroupedRows(NamedTuple):
    """The groups of nodes as compressed rows: the start of each row, and the groups or filters, ascending."""

    start: NDArray[np.int64]
    topics: Topics


class FilterGroups:
    """The topic filters and topics of all nodes, and the group of each filter that a node has.

    A filter, a topic and a group are indices; the dynamics connect the topic that has the index of the group.
    A group usually has the index of one of its members. Filters that no node has are in no group.

    Args:
        topic_ids: the text of each filter or topic; the caller appends to it.
        rows: the filters and topics of each node, ascending.
        group_of: the group of each filter or topic that has another one's index; others are alone.

    Examples:
        >>> groups = FilterGroups(["a/#", "a/b", "c"], {7: np.array([0, 1, 2])}, {1: 0})
        >>> groups.of([1, 2]).tolist(), groups.to_json()
        ([0, 2], [[0, [0, 1]]])
    """

    def __init__(
        self, topic_ids: list[str], rows: Mapping[int, Topics], group_of: Mapping[int, int] | None = None
    ) -> None:
        self._topic_ids = topic_ids
        self._rows = dict(rows)
        self._subscribers: dict[int, int] = {}
        for topics in self._rows.values():
            for topic in topics.tolist():
                self._subscribers[topic] = self._subscribers.get(topic, 0) + 1
        self._group_of = {topic: (group_of or {}).get(topic, topic) for topic in self._subscribers}
        self._complete()

    def _complete(self) -> None:
        """Build what follows from the rest of the state."""
        self._members: dict[int, set[int]] = {}
        for topic, group in self._group_of.items():
            self._members.setdefault(group, set()).add(topic)
        self._index_of = {self._topic_ids[topic]: topic for topic in self._subscribers}
        self._index = FilterIndex(self._index_of)

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, without the index, whose depth is that of topics."""
        return {name: value for name, value in vars(self).items() if name not in DERIVED}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._complete()

    def row(self, node: int) -> Topics:
        """The filters and topics of a node, ascending."""
        return self._rows[node]

    def of(self, topics: Iterable[int]) -> Topics:
        """The groups of filters and topics, ascending."""
        return np.unique(np.array([self._group_of[int(topic)] for topic in topics], np.int32))

    def filters(self, nodes: Iterable[int]) -> GroupedRows:
        """The filters and topics of each of these nodes."""
        return _compressed([self._rows[node] for node in nodes])

    def add(self, topics: Iterable[int], dynamics: OverlayDynamics) -> NDArray[np.int64]:
        """Prepare for filters and topics that a node is about to get: the links that this adds.

        A filter that no node has yet joins the group that it overlaps. If it overlaps several, they become
        one, which is connected.
        """
        gone: set[int] = set()
        merged: set[int] = set()
        for topic in sorted(int(one) for one in topics):
            if topic in self._group_of:
                continue
            text = self._topic_ids[topic]
            met = {self._group_of[self._index_of[other]] for other in self._index.meeting(text)}
            chosen = max(met, key=lambda group: (dynamics.subscriber_count(group), -group), default=-1)
            chosen = self._unused_group(topic) if chosen < 0 else chosen
            for group in sorted(met - {chosen}):
                for member in self._members.pop(group):
                    self._put(member, chosen)
                gone.add(group)
                merged.add(chosen)
            self._put(topic, chosen)
            self._index.add(text)
            self._index_of[text] = topic
        merged &= self._members.keys()
        return dynamics.relabel(gone - merged, self._subscribers_of(merged)) if merged else NO_LINKS

    def drop(self, node: int, kept: Topics, dynamics: OverlayDynamics) -> NDArray[np.int64] | None:
        """Remove all filters and topics of a node but these; the links that this adds, if groups are split.

        If a filter goes that no other node has, its group is split into those that remain; each is connected,
        and the node is only in those that it keeps. The node still has all other groups.
        """
        lost = [one for one in np.setdiff1d(self._rows[node], kept).tolist() if self._subscribers[one] == 1]
        groups_of_filters = {self._group_of[one] for one in lost if is_filter(self._topic_ids[one])}
        self.set(node, kept)
        changed: set[int] = set()
        for group in sorted(groups_of_filters & self._members.keys()):
            parts = self._parts(group)
            for part in parts[1:]:
                self._members[group] -= part
            for part in parts[1:]:
                name = self._unused_group(min(part))
                for member in part:
                    self._put(member, name)
                changed |= {name, group}
        return dynamics.relabel((), self._subscribers_of(changed)) if changed else None

    def _subscribers_of(self, chosen: Collection[int]) -> dict[int, list[int]]:
        """The nodes of each of these groups, ascending."""
        found: dict[int, list[int]] = {group: [] for group in chosen}
        for node, topics in sorted(self._rows.items()):
            for group in {self._group_of[topic] for topic in topics.tolist()} & found.keys():
                found[group].append(node)
        return found

    def _parts(self, group: int) -> list[set[int]]:
        """The sets of members of a group that still overlap, the largest first."""
        parts: dict[str, set[int]] = {}
        texts = {self._topic_ids[member]: member for member in sorted(self._members[group])}
        for text, name in groups(texts).items():
            parts.setdefault(name, set()).add(texts[text])
        return sorted(parts.values(), key=lambda part: (-len(part), min(part)))

    def _unused_group(self, topic: int) -> int:
        """The index of a new group: that of this topic, or else the first that no group has."""
        if topic not in self._members:
            return topic
        return next(index for index in range(len(self._topic_ids)) if index not in self._members)

    def set(self, node: int, topics: Topics) -> None:
        """Set the filters and topics of a node, after `add`; a filter that no node has is removed."""
        before = self._rows.get(node, np.empty(0, np.int32))
        self._rows[node] = topics
        for topic in topics.tolist():
            self._subscribers[topic] = self._subscribers.get(topic, 0) + 1
        for topic in before.tolist():
            self._subscribers[topic] -= 1
            if not self._subscribers[topic]:
                self._remove(topic)

    def leave(self, node: int) -> None:
        """Remove a node."""
        self.set(node, np.empty(0, np.int32))
        del self._rows[node]

    def to_json(self) -> list[Any]:
        """The groups of several members, and those that have another index than their only member."""
        groups = ((group, sorted(members)) for group, members in sorted(self._members.items()))
        return [[group, members] for group, members in groups if members != [group]]

    def _put(self, topic: int, group: int) -> None:
        self._group_of[topic] = group
        self._members.setdefault(group, set()).add(topic)

    def _remove(self, topic: int) -> None:
        group = self._group_of.pop(topic)
        self._members[group].discard(topic)
        if not self._members[group]:
            del self._members[group]
        text = self._topic_ids[topic]
        self._index.discard(text)
        del self._index_of[text]
        del self._subscribers[topic]


DERIVED = ("_members", "_index_of", "_index")


def group_of_topics(interest: Interest) -> dict[int, int]:
    """The group of each topic with subscribers: the first topic of those in `Interest.grouped`.

    Examples:
        >>> group_of_topics(Interest.from_lists([["a/#"], ["a/b", "c"], ["+/b"]]))
        {0: 0, 1: 0, 2: 0, 3: 3}
    """
    used = np.flatnonzero(np.diff(interest.node_start))
    first: dict[int, int] = {}
    return {topic: first.setdefault(int(interest.group_of_topic[topic]), topic) for topic in used.tolist()}


def grouped_rows(interest: Interest, group_of: Mapping[int, int] | None) -> GroupedRows:
    """The groups of each node; its topics if there are no groups."""
    start, topics = interest.topic_start, interest.topics
    if group_of is None:
        return GroupedRows(start, topics)
    groups = np.arange(interest.topic_count, dtype=np.int32)
    groups[list(group_of)] = list(group_of.values())
    return _compressed([np.unique(groups[topics[a:b]]) for a, b in pairwise(start.tolist())])


def groups_from_json(groups: Iterable[Sequence[Any]]) -> dict[int, int]:
    """The group of each member, from what `FilterGroups.to_json` wrote."""
    return {int(member): int(group) for group, members in groups for member in members}


def rows_by_node(nodes: Iterable[int], start: NDArray[np.int64], topics: Topics) -> dict[int, Topics]:
    """The rows of nodes, by their ids."""
    return {node: topics[start[row] : start[row + 1]].copy() for row, node in enumerate(nodes)}


def _compressed(rows: Sequence[Topics]) -> GroupedRows:
    start = np.concatenate(([0], np.cumsum([len(row) for row in rows], dtype=np.int64)))
    return GroupedRows(
        start.astype(np.int64), np.concatenate([np.empty(0, np.int32), *rows]).astype(np.int32)
    )
