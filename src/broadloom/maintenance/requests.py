"""What is asked of a live overlay, checked before anything changes, and as the journal keeps it."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from broadloom.errors import InputError

JOIN, LEAVE, RESUBSCRIBE, SUBSCRIBE, UNSUBSCRIBE = "join", "leave", "resubscribe", "subscribe", "unsubscribe"
REBASELINE = "rebaseline"
OF_A_NODE = (LEAVE, RESUBSCRIBE, SUBSCRIBE, UNSUBSCRIBE)

Topic = int | str


class Request(NamedTuple):
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
    def from_plain(cls, values: Sequence[Any]) -> Request:
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


def check_nodes(requests: Iterable[Request], present: Mapping[int, object], next_id: int) -> None:
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
