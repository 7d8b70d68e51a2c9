"""MQTT topic filters: validity, matching, and which filters have topics in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import cast

# A level is `+` alone or has no wildcard; it can be empty.
# No backtracking (*+): a line of a megabyte must not exhaust Java's stack.
_LEVEL = r"(?:\+|[^+#/\x00]*+)(?=/|$)"
VALID = rf"^(?:#|{_LEVEL}(?:/{_LEVEL})*+(?:/#)?)$"

# A shared subscription receives what its filter matches, whichever member of the group gets it.
SHARED = r"^(?:\$share/[^/]+/|\$queue/)"

# Name prefixes of the clients and queues that are a plan's links; their subscriptions are not interests.
OWN_CLIENTS = ("tco-", "broadloom-", "l.tco-", "r.tco-", "l.broadloom-", "r.broadloom-", "federation:")

MOST_BYTES = 65_535  # of an MQTT string
QosFilters = tuple[tuple[str, int], ...]  # topic filters, each with its quality of service

_END = ""  # the key of the filter that ends at a node; the keys of levels begin with "/"
_Node = dict[str, "str | _Node"]


class FilterIndex:
    """Index of topics and filters by their levels.

    Examples:
        >>> tree = FilterIndex(["a/b", "a/c", "b", "$SYS/x"])
        >>> sorted(tree.meeting("+/b")), sorted(tree.meeting("#"))
        (['a/b'], ['a/b', 'a/c', 'b'])
    """

    def __init__(self, filters: Iterable[str]) -> None:
        self._root: _Node = {}
        for text in filters:
            node = self._root
            for level in text.split("/"):
                node = node.setdefault(f"/{level}", {})  # type: ignore[assignment]
            node[_END] = text

    def meeting(self, text: str) -> Iterator[str]:
        """Yield each indexed topic or filter that has a topic in common with the filter `text`."""
        levels = text.split("/")
        todo: list[tuple[_Node, int]] = [(self._root, 0)]
        while todo:
            node, depth = todo.pop()
            if depth == len(levels):
                yield from _ends(node)
            elif levels[depth] == "#":
                yield from _all_below(node, depth == 0)
            else:
                if not (depth == 0 and text.startswith("$")):
                    yield from _ends(cast("_Node", node.get("/#", {})))
                todo.extend((child, depth + 1) for child in _steps(node, levels[depth], depth == 0))


def is_valid_filter(text: str) -> bool:
    """Whether a text is a valid MQTT topic filter or topic.

    Examples:
        >>> [is_valid_filter(text) for text in ("a/+/#", "a//b", "a/#/b", "a+", "")]
        [True, True, False, False, False]
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return 0 < size <= MOST_BYTES and re.fullmatch(VALID, text) is not None


def is_wild(text: str) -> bool:
    """Whether a valid filter has a wildcard.

    Examples:
        >>> is_wild("a/+/b"), is_wild("a/b")
        (True, False)
    """
    return "#" in text or "+" in text


def covers(wide: str, narrow: str) -> bool:
    """Whether the filter `wide` matches every topic that the topic or filter `narrow` matches.

    Examples:
        >>> covers("a/#", "a/+/b"), covers("a/+", "a/#"), covers("#", "$SYS/x")
        (True, False, False)
    """
    if narrow.startswith("$") and wide[:1] in ("#", "+"):
        return False
    narrow = "+/#" if narrow == "#" else narrow  # equivalent, since a topic has at least one level
    wide_levels, levels = wide.split("/"), narrow.split("/")
    if wide_levels[-1] == "#":
        wide_levels.pop()
        if len(levels) - (levels[-1] == "#") < len(wide_levels):
            return False
        levels = levels[: len(wide_levels)]
    return len(wide_levels) == len(levels) and all(
        one == other or (one == "+" and other != "#") for one, other in zip(wide_levels, levels, strict=True)
    )


def common_topic(first: str, second: str, level: str = "any") -> str | None:
    """A topic that both filters match, with `level` where both have a wildcard; None: no common topic.

    Examples:
        >>> common_topic("a/#", "+/b"), common_topic("a/+", "a/+"), common_topic("a", "b")
        ('a/b', 'a/any', None)
    """
    pairs = [pair for pair in zip_longest(first.split("/"), second.split("/")) if set(pair) != {None, "#"}]
    chosen = [next((one for one in pair if one not in (None, "#", "+")), level) for pair in pairs]
    topic = "/".join(chosen)
    return topic if covers(first, topic) and covers(second, topic) else None


def topics_of(filters: Iterable[str], topics: Iterable[str]) -> dict[str, list[str]]:
    """The planned topics that each filter stands for.

    A filter stands for the known topics that it matches. Filters that match no known topic are grouped (see
    `groups`); each group is a separate topic, and every filter with topics in common with it stands for it.

    Examples:
        >>> topics_of(["a/#", "x/+", "x/y/#", "z/#", "a/+/c"], ["a/b"])
        {'a/#': ['a/b', 'a/+/c'], 'x/+': ['x/+'], 'x/y/#': ['x/+'], 'z/#': ['z/#'], 'a/+/c': ['a/+/c']}
    """
    tree = FilterIndex(topics)
    matched = {text: sorted(tree.meeting(text)) for text in filters}
    alone = groups(text for text, found in matched.items() if not found)
    unmatched = FilterIndex(alone)
    return {
        text: found + sorted({alone[other] for other in unmatched.meeting(text)})
        for text, found in matched.items()
    }


def groups(filters: Iterable[str]) -> dict[str, str]:
    """The group of each filter: filters that have topics in common, named by the shortest of them.

    Filters with topics in common must share one tree: over two trees, messages would circulate for ever.

    Examples:
        >>> groups(["a/#", "a/b", "+/b/c", "d"])
        {'a/#': 'a/#', 'a/b': 'a/#', '+/b/c': 'a/#', 'd': 'd'}
    """
    texts = list(filters)
    tree = FilterIndex(texts)
    parent = {text: text for text in texts}
    for text in filter(is_wild, texts):
        for other in tree.meeting(text):
            one, two = sorted((_root(parent, text), _root(parent, other)), key=lambda name: (len(name), name))
            parent[two] = one
    return {text: _root(parent, text) for text in texts}


def _root(parent: dict[str, str], text: str) -> str:
    while parent[text] != text:
        parent[text] = text = parent[parent[text]]
    return text


def _ends(node: _Node) -> Iterator[str]:
    """The filter that ends at a node, and the one that ends in `#` there: `a/#` matches `a`."""
    for end in (node, cast("_Node", node.get("/#", {}))):
        if _END in end:
            yield cast("str", end[_END])


def _steps(node: _Node, level: str, first: bool) -> Iterator[_Node]:
    """The children that a level of a filter can lead to; a leading wildcard does not match a `$` topic."""
    if level == "+":
        for name, child in node.items():
            if name not in (_END, "/#") and not (first and name.startswith("/$")):
                yield child  # type: ignore[misc]
        return
    names = [f"/{level}"] if first and level.startswith("$") else [f"/{level}", "/+"]
    yield from (node[name] for name in names if name in node)  # type: ignore[misc]


def _all_below(node: _Node, first: bool) -> Iterator[str]:
    """Every filter that ends at a node or below it."""
    todo = [node]
    while todo:
        here = todo.pop()
        for name, child in here.items():
            if isinstance(child, str):
                yield child
            elif not (first and here is node and name.startswith("/$")):
                todo.append(child)
