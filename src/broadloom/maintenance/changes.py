"""Changes of a live overlay: requests, their checks, and results."""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import (
    check_choice,
    check_count,
    check_number,
    integer_array,
    is_text,
    number_array,
    shown,
)
from broadloom.errors import InputError
from broadloom.model import EUCLIDEAN, HEAVIEST, LIGHTEST, SITES, UNIFORM, WeightArrays
from broadloom.notebook import PREVIEW_ROWS, html_summary

# The kinds of changes.
JOIN = "join"
LEAVE = "leave"
RESUBSCRIBE = "resubscribe"
SUBSCRIBE = "subscribe"
UNSUBSCRIBE = "unsubscribe"
REBASELINE = "rebaseline"
# The kinds of a change that was made.
CHANGE_KINDS = (JOIN, LEAVE, RESUBSCRIBE, REBASELINE)
# The kinds that concern a node which is present.
OF_A_NODE = (LEAVE, RESUBSCRIBE, SUBSCRIBE, UNSUBSCRIBE)

Topic = int | str
# The position of a node that joins, as the journal stores it: a point, a site, or weights by node id.
JoinPosition = list[float] | int | dict[int, float] | None


@dataclass(frozen=True, eq=False)
class Change:
    """The result of one change: the links to add and the links to remove.

    Attributes:
        node: the node that joined, left or changed its topics.
        added: the links to add, pairs of nodes (u, v), u < v, in the order of selection.
        removed: the links to remove; includes those of a node that left.
        shadow: the nodes that were candidates for new links.
        seconds: the time until every topic was connected again.
        backup_seconds: the time from then until new backups were chosen and the call returned.
        kind: "join", "leave", "resubscribe" or "rebaseline".
        edges_before: the number of links before the change.
        fallbacks: the number of merges that the shadow could not do, so that all nodes became candidates.

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

    def __post_init__(self) -> None:
        for name, axes in (("added", 2), ("removed", 2), ("shadow", 1)):
            array = integer_array(getattr(self, name), name)
            if array.ndim != axes or (axes == 2 and array.shape[1] != 2):
                expected = "pairs of nodes" if axes == 2 else "a list of nodes"
                raise InputError(f"{name} has shape {array.shape}; give {expected}")
            object.__setattr__(self, name, array.copy())
        object.__setattr__(self, "node", check_count(self.node, "node", minimum=-1))
        check_choice(self.kind, "kind", CHANGE_KINDS)
        check_number(self.seconds, "seconds")
        check_number(self.backup_seconds, "backup_seconds")
        check_count(self.edges_before, "edges_before")
        check_count(self.fallbacks, "fallbacks")

    @property
    def repair_edges(self) -> int:
        """The number of links added, and of links removed other than those of the node that left."""
        return len(self.added) + (0 if self.kind == LEAVE else len(self.removed))

    @property
    def repair_ratio(self) -> float:
        """Repair edges over the number of links before the change."""
        return self.repair_edges / max(self.edges_before, 1)

    def _repr_html_(self) -> str:
        facts = {"kind": self.kind, "node": str(self.node), "links added": len(self.added)}
        facts |= {"links removed": len(self.removed), "seconds": self.seconds}
        added = [("add", *pair) for pair in self.added.tolist()]
        removed = [("remove", *pair) for pair in self.removed.tolist()]
        rows = [(what, str(u), str(v)) for what, u, v in added + removed]
        return html_summary("Change", facts, ("step", "u", "v"), rows[:PREVIEW_ROWS], len(rows))

    def __repr__(self) -> str:
        links = f"{len(self.added)} links added, {len(self.removed)} removed"
        return f"Change({self.kind} of node {self.node}: {links})"


def trusted_change(**values: Any) -> Change:
    """A change that our own code made, not checked and copied again: changes take microseconds."""
    change = object.__new__(Change)
    vars(change).update({"fallbacks": 0, **values})
    return change


class EarlierLinks:
    """Links that were added for a change before it was made.

    Args:
        edges_before: the number of links before them.
    """

    def __init__(self, edges_before: int) -> None:
        self._edges_before = edges_before
        self._start = time.perf_counter()
        self._seconds = 0.0
        self._added: list[NDArray[np.int64]] = []

    def add(self, added: NDArray[np.int64] | None) -> None:
        """Note links that were added."""
        if added is not None and len(added):
            self._added.append(added)
        self._seconds = time.perf_counter() - self._start

    def before(self, change: Change, removed: NDArray[np.int64] | None = None) -> Change:
        """The change with these links, and with links that were removed after it.

        A link that was added and removed again is not mentioned.
        """
        if not self._added and (removed is None or not len(removed)):
            return change
        net: dict[tuple[int, int], int] = {}
        steps = [(1, links) for links in (*self._added, change.added)] + [(-1, change.removed)]
        for sign, links in [*steps, (-1, np.empty((0, 2), np.int64) if removed is None else removed)]:
            for u, v in links.tolist():
                net[u, v] = net.get((u, v), 0) + sign
        values = vars(change) | {
            name: np.array([pair for pair, count in net.items() if count == sign], np.int64).reshape(-1, 2)
            for name, sign in (("added", 1), ("removed", -1))
        }
        seconds = change.seconds + self._seconds
        return trusted_change(**(values | {"seconds": seconds, "edges_before": self._edges_before}))


class ChangeRequest(NamedTuple):
    """One requested change.

    Attributes:
        kind: the kind of the change.
        node: the node that changes; for a join its expected id, or None.
        topics: topics by index or by id; an unknown id creates a topic.
        name: the name of a node that joins, or None.
        at: the position of a node that joins, if links have weights.
        columns: further columns of a node that joins: its address and its site, if they are known.
    """

    kind: str
    node: int | None = None
    topics: tuple[Topic, ...] = ()
    name: str | None = None
    at: Any = None
    columns: Mapping[str, str] | None = None

    def to_json(self) -> list[Any]:
        """The request as JSON values."""
        at = self.at
        if isinstance(at, Mapping):
            at = {"weights": [[int(node), float(weight)] for node, weight in at.items()]}
        elif at is not None:
            at = np.asarray(at).tolist()
        values = [self.kind, self.node, list(self.topics), self.name, at]
        return [*values, dict(self.columns)] if self.columns else values

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> ChangeRequest:
        """The request that `to_json` wrote."""
        kind, node, topics, name, at, *columns = values
        if isinstance(at, Mapping):
            at = {node: weight for node, weight in at["weights"]}  # noqa: C416
        return cls(kind, node, tuple(topics), name, at, *columns)


def check_topics(topics: object, count: int) -> tuple[Topic, ...]:
    """The topics as indices below `count` or as ids, if each is valid and occurs once.

    Examples:
        >>> check_topics([2, "news"], 3)
        (2, 'news')
        >>> check_topics([3], 3)
        Traceback (most recent call last):
        broadloom.errors.InputError: topic 3 does not exist; give an index from 0 to 2, or a text
    """
    if isinstance(topics, (str, bytes, Mapping)) or not isinstance(topics, Iterable):
        raise InputError(f"the topics are {shown(topics)}; give a list of topics")
    if isinstance(topics, np.ndarray) and topics.ndim != 1:
        raise InputError(f"the topics have shape {topics.shape}; give a list of topics")
    checked = tuple(_check_topic(topic, count) for topic in topics)
    repeated = next((topic for topic, times in Counter(checked).items() if times > 1), None)
    if repeated is not None:
        raise InputError(f"topic {repeated!r} is given twice; give each topic once")
    return checked


def _check_topic(topic: object, count: int) -> Topic:
    if is_text(topic):
        return str.__str__(topic)
    try:
        index = -1 if isinstance(topic, bool) else operator.index(topic)  # type: ignore[arg-type]
    except TypeError:
        index = -1
    if not 0 <= index < count:
        known = f"give an index from 0 to {count - 1}, or a text"
        raise InputError(f"topic {shown(topic)} does not exist; {known}")
    return index


def check_nodes(requests: Iterable[ChangeRequest], present: Mapping[int, object], next_id: int) -> None:
    """Check that every request concerns a node that is present when the request is run.

    Raises:
        InputError: the node is absent, or leaves in an earlier request; or a join expects another id.
    """
    gone: set[int] = set()
    first = next_id
    for request in requests:
        node = request.node
        if request.kind == JOIN:
            if node is not None and node != next_id:
                raise InputError(f"a join expects node id {node}, but the next id is {next_id}")
            next_id += 1
        elif request.kind in OF_A_NODE:
            if node is None or node in gone or not (node in present or first <= node < next_id):
                known = node is not None and 0 <= node < next_id
                reason = (
                    f"it left; {len(present):,} nodes are present" if known else f"ids go up to {next_id - 1}"
                )
                raise InputError(f"node {node} does not exist; {reason}")
            if request.kind == LEAVE:
                gone.add(node)


def check_join_position(
    arrays: WeightArrays, at: object, others: Mapping[int, int], sites: int = 0
) -> JoinPosition:
    """The position of a node that joins, in plain values that a journal can store.

    Args:
        arrays: the weights.
        at: its point, its site, or its weight to each present node, by their ids; None without weights.
        others: the array index of each present node, by its id.
        sites: the number of sites; 0: any number is a site, unless a table has their weights.

    Raises:
        InputError: the position is invalid, or another node has the same point.
    """
    if arrays.kind == UNIFORM:
        if at is not None:
            raise InputError(f"at is {shown(at)}, but links have no weights; leave it out")
        return None
    if arrays.kind == EUCLIDEAN:
        return _check_point(arrays, at, others)
    if arrays.kind == SITES:
        return _check_site(at, sites or len(arrays.table))
    return _check_weights(at, others)


def _check_point(arrays: WeightArrays, at: object, others: Mapping[int, int]) -> list[float]:
    axes = arrays.points.shape[1]
    point = number_array([] if at is None else at, "the coordinates of the new node")
    if point.shape != (axes,) or not np.isfinite(point).all():
        state = "has no position" if at is None else f"is at {shown(at)}"
        raise InputError(f"the new node {state}; give its point: {axes} finite numbers")
    with np.errstate(over="ignore"):
        squares = np.sum((arrays.points[list(others.values())] - point) ** 2, axis=1)
    if (squares < LIGHTEST**2).any():
        raise InputError(f"the new node is at the point of another node, {shown(at)}; give another point")
    if not (squares <= HEAVIEST**2).all():
        raise InputError(f"the new node is at {shown(at)}, too far from another node; give another point")
    return [float(value) for value in point]


def _check_site(at: object, sites: int) -> int:
    site = check_count(at, "the new node's site")
    limit = sites or np.iinfo(np.int32).max
    if site >= limit:
        raise InputError(f"the new node's site is {site}; sites are 0 to {limit - 1}")
    return site


def _check_weights(at: object, others: Mapping[int, int]) -> dict[int, float]:
    weights: Mapping[Any, Any] = at if isinstance(at, Mapping) else {}
    missing = [node for node in others if node not in weights]
    if missing or not isinstance(at, Mapping):
        raise InputError(
            f"the new node has no weight to node {next(iter(missing), 0)}; "
            "give at={node: weight} for every node that is present"
        )
    return {
        node: check_number(weights[node], f"the weight to node {node}", LIGHTEST, HEAVIEST) for node in others
    }
