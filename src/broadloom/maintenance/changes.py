"""Changes of a live overlay: requests, their checks, and results."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count, check_number
from broadloom.errors import InputError
from broadloom.model import EUCLIDEAN, SITES, UNIFORM, WeightArrays


@dataclass(frozen=True, eq=False)
class Change:
    """What one change did: which links to add and which to remove.

    Attributes:
        node: the node that joined, left or changed its topics.
        added: the links to add, pairs of nodes (u, v), u < v, in the order of selection.
        removed: the links to remove; those of a node that left are among them.
        shadow: the nodes that were candidates for new links.
        seconds: until every topic was connected again.
        backup_seconds: what choosing backups anew took afterwards; nobody has to wait for it.
        kind: "join", "leave", "resubscribe" or "rebaseline".
        edges_before: how many links there were before.
        fallbacks: how many merges the shadow could not do, so that all nodes became candidates.

    Examples:
        >>> import broadloom as bl
        >>> live = bl.maintain(bl.Interest.from_lists([[0], [0], [0]]))
        >>> change = live.leave(0)
        >>> change.added.tolist(), change.removed.tolist(), change.repair_edges
        ([[1, 2]], [[0, 1], [0, 2]], 1)
    """

    node: int
    added: NDArray[np.int64]
    removed: NDArray[np.int64]
    shadow: NDArray[np.int64]
    seconds: float
    backup_seconds: float
    kind: str
    edges_before: int
    fallbacks: int = 0

    @property
    def repair_edges(self) -> int:
        """Links added, and removed other than those of the node that left."""
        return len(self.added) + (0 if self.kind == "leave" else len(self.removed))

    @property
    def repair_ratio(self) -> float:
        """Repair edges over the number of links before."""
        return self.repair_edges / max(self.edges_before, 1)

    def __repr__(self) -> str:
        links = f"{len(self.added)} links added, {len(self.removed)} removed"
        return f"Change({self.kind} of node {self.node}: {links})"


JOIN, LEAVE, RESUBSCRIBE, SUBSCRIBE, UNSUBSCRIBE = "join", "leave", "resubscribe", "subscribe", "unsubscribe"
REBASELINE = "rebaseline"
OF_A_NODE = (LEAVE, RESUBSCRIBE, SUBSCRIBE, UNSUBSCRIBE)

Topic = int | str


class ChangeRequest(NamedTuple):
    """One change that is asked for.

    Attributes:
        kind: what to do.
        node: to which node; of a join the one that is expected to come of it, or None.
        topics: topics by index, or by id: new ones then, if there is none of that id.
        name: what a node that joins is called, or None.
        at: the place of a node that joins, where links have weights.
    """

    kind: str
    node: int | None = None
    topics: tuple[Topic, ...] = ()
    name: str | None = None
    at: Any = None

    def plain(self) -> list[Any]:
        """The request as JSON has it."""
        at = self.at
        if isinstance(at, Mapping):
            at = {"weights": [[int(node), float(weight)] for node, weight in at.items()]}
        elif at is not None:
            at = np.asarray(at).tolist()
        return [self.kind, self.node, list(self.topics), self.name, at]

    @classmethod
    def from_plain(cls, values: Sequence[Any]) -> ChangeRequest:
        """The request that `plain` wrote."""
        kind, node, topics, name, at = values
        if isinstance(at, Mapping):
            at = {node: weight for node, weight in at["weights"]}  # noqa: C416
        return cls(kind, node, tuple(topics), name, at)


def topic_list(topics: object, count: int) -> tuple[Topic, ...]:
    """Topics as indices below `count` or ids, each once.

    Examples:
        >>> topic_list([2, "news"], 3)
        (2, 'news')
        >>> topic_list([3], 3)
        Traceback (most recent call last):
        broadloom.errors.InputError: topic 3 is not there; give an index from 0 to 2, or a text
    """
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise InputError(f"the topics are {topics!r}; give a list of topics")
    checked = tuple(_topic(topic, count) for topic in topics)
    repeated = next((topic for topic, times in Counter(checked).items() if times > 1), None)
    if repeated is not None:
        raise InputError(f"topic {repeated!r} is given twice; give each topic once")
    return checked


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a text that can be written.

    Examples:
        >>> is_text("news"), is_text(""), is_text(3), is_text(chr(0xD800))
        (True, False, False, False)
    """
    if not isinstance(value, str) or not value:
        return False
    return value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)


def _topic(topic: object, count: int) -> Topic:
    if is_text(topic):
        return topic
    try:
        index = -1 if isinstance(topic, bool) else operator.index(topic)  # type: ignore[arg-type]
    except TypeError:
        index = -1
    if not 0 <= index < count:
        raise InputError(f"topic {topic!r} is not there; give an index from 0 to {count - 1}, or a text")
    return index


def check_nodes(requests: Iterable[ChangeRequest], present: Mapping[int, object], next_id: int) -> None:
    """Every request is about a node that will be there when its turn comes.

    Raises:
        InputError: the node is not there, or left in an earlier request; or a join brings another node.
    """
    gone: set[int] = set()
    first = next_id
    for request in requests:
        node = request.node
        if request.kind == JOIN:
            if node is not None and node != next_id:
                raise InputError(f"a join is to bring node {node}, but the next one is {next_id}")
            next_id += 1
        elif request.kind in OF_A_NODE:
            there = node is not None and node not in gone and (node in present or first <= node < next_id)
            if not there:
                known = f"it left; nodes that are there: {len(present):,}"
                was = node is not None and 0 <= node < next_id
                raise InputError(
                    f"node {node} is not there; {known if was else f'ids go up to {next_id - 1}'}"
                )
            if request.kind == LEAVE:
                gone.add(int(node or 0))


Place = list[float] | int | dict[int, float] | None


def checked_place(arrays: WeightArrays, at: object, others: Mapping[int, int], sites: int = 0) -> Place:
    """The place of a node that is to join, in plain values that a journal can keep.

    Args:
        arrays: the weights.
        at: its point, its site, or its weight to each present node, by their ids; None without weights.
        others: the position of each node that is there, by its id.
        sites: how many sites there are; 0: any number is one, unless a table has their weights.

    Raises:
        InputError: it is not a place, or another node is there.
    """
    if arrays.kind == UNIFORM:
        if at is not None:
            raise InputError(f"at is {at!r:.40}, but there are no weights; leave it out")
        return None
    if arrays.kind == EUCLIDEAN:
        return _point(arrays, at, others)
    return _site(at, sites or len(arrays.table)) if arrays.kind == SITES else _row(at, others)


def _point(arrays: WeightArrays, at: object, others: Mapping[int, int]) -> list[float]:
    axes = arrays.points.shape[1]
    try:
        point = np.array(at, np.float64)
    except (TypeError, ValueError, OverflowError):
        point = np.empty(0)
    if point.shape != (axes,) or not np.isfinite(point).all():
        raise InputError(f"the new node is at {at!r:.40}; give its point: {axes} finite numbers")
    here = arrays.points[list(others.values())]
    if (here == point).all(axis=1).any():
        raise InputError(f"the new node is at the place of another, {at!r:.40}; give it a place of its own")
    return [float(value) for value in point]


def _site(at: object, sites: int) -> int:
    site, limit = check_count(at, "the new node's site"), sites or np.iinfo(np.int32).max
    if site >= limit:
        raise InputError(f"the new node's site is {site}; sites are 0 to {limit - 1}")
    return site


def _row(at: object, others: Mapping[int, int]) -> dict[int, float]:
    given: Mapping[Any, Any] = at if isinstance(at, Mapping) else {}
    missing = [node for node in others if node not in given]
    if missing or not isinstance(at, Mapping):
        raise InputError(
            f"the new node has no weight to node {next(iter(missing), 0)}; "
            "give at={node: weight} for every node that is there"
        )
    tiny = np.finfo(np.float64).tiny
    return {node: check_number(given[node], f"the weight to node {node}", minimum=tiny) for node in others}
