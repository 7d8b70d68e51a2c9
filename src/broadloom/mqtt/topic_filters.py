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
# The same for Python, whose versions before 3.11.5 fail with `*+`.
VALID_IN_PYTHON = VALID.replace("*+", "*")

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
            self.add(text)

    def add(self, text: str) -> None:
        """Add a topic or filter."""
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

    def discard(self, text: str) -> None:
        """Remove an indexed topic or filter."""
        path: list[tuple[_Node, str]] = []
        node = self._root
        for level in text.split("/"):
            path.append((node, f"/{level}"))
            node = cast("_Node", node[f"/{level}"])
        del node[_END]
        for parent, key in reversed(path):
            if parent[key]:
                break
            del parent[key]


def is_own_name(name: str) -> bool:
    """Whether a client id or the name of a link is one of ours.

    The default client id of a bridge is its host, a dot and its name.

    Examples:
        >>> is_own_name("host.broadloom-rome-oslo"), is_own_name("host.to-oslo")
        (True, False)
    """
    return name.startswith((*OWN_CLIENTS, "broadloom.")) or any(f".{own}" in name for own in OWN_CLIENTS)


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
    return 0 < size <= MOST_BYTES and re.fullmatch(VALID_IN_PYTHON, text) is not None


def is_wild(text: str) -> bool:
    """Whether a valid filter has a wildcard.

    Examples:
        >>> is_wild("a/+/b"), is_wild("a/b")
        (True, False)
    """
    return "#" in text or "+" in text


def is_filter(text: str) -> bool:
    """Whether a text is a valid MQTT topic filter with a wildcard, not a topic or any other text.

    Examples:
        >>> [is_filter(text) for text in ("a/+/b", "#", "a/b", "c#", "a/#/b")]
        [True, True, False, False, False]
    """
    return is_wild(text) and is_valid_filter(text)


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


def common_filter(first: str, second: str) -> str | None:
    """The topic or filter that matches exactly the topics that both filters match; None: no common topic.

    Examples:
        >>> common_filter("a/#", "+/b/+"), common_filter("a/#", "a"), common_filter("#", "$SYS/x")
        ('a/b/+', 'a', None)
    """
    if {first[:1], second[:1]} in ({"$", "+"}, {"$", "#"}):
        return None
    short, long = sorted((first.split("/"), second.split("/")), key=lambda levels: len(_fixed(levels)))
    head = _fixed(short)
    rest = _fixed(long)[len(head) :]
    if rest and short[-1] != "#":
        return None
    common: list[str] = []
    for one, other in zip(head, long, strict=False):
        if one != other and "+" not in (one, other):
            return None
        common.append(other if one == "+" else one)
    tail = ["#"] if short[-1] == long[-1] == "#" else []
    return (
        "/".join([*common, *rest, *tail]) or None
    )  # `/#` and `+` have only the empty topic, which is invalid


def _fixed(levels: list[str]) -> list[str]:
    """The levels without a `#` at the end."""
    return levels[:-1] if levels[-1] == "#" else levels


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


def groups(filters: Iterable[str]) -> dict[str, str]:
    """The group of each filter: filters that have topics in common, named by the shortest of them.

    Filters with topics in common must share one tree: over two trees, messages would circulate for ever.

    Examples:
        >>> groups(["a/#", "a/b", "+/b/c", "d"])
        {'a/#': 'a/#', 'a/b': 'a/#', '+/b/c': 'a/#', 'd': 'd'}
    """
    texts = list(filters)
    tree = FilterIndex(texts)
    group_of = {text: text for text in texts}
    grouped: set[str] = set()
    for start in filter(is_filter, texts):
        members = {start}
        todo = [] if start in grouped else [start]
        while todo:
            found = list(tree.meeting(todo.pop()))
            members.update(found)
            todo.extend(filter(is_filter, found))
            for text in found:  # each is found once, so that filters that all overlap take linear time
                tree.discard(text)
        if start not in grouped:
            grouped.update(members)
            group_of.update(dict.fromkeys(members, min(members, key=lambda name: (len(name), name))))
    return group_of


class FilterLookup:
    """Topic filters, the groups of those that overlap, and which topics they match.

    All filters that match a topic overlap each other, so one of them tells the group of the topic. Therefore
    topics are looked up one by one, wherever they are, and only the filters have to be in memory.

    Examples:
        >>> found = FilterLookup(["a/#", "+/b", "c/d"])
        >>> found.group("a/x"), found.group("c/d"), found.group("d")
        ('+/b', 'c/d', None)
        >>> found.meeting("a/b")
        ['+/b', 'a/#']
    """

    def __init__(self, texts: Iterable[str]) -> None:
        ordered = sorted(texts)
        self._group_of = groups(ordered)
        self._index = FilterIndex(ordered)

    def __bool__(self) -> bool:
        return bool(self._group_of)

    def group(self, text: str) -> str | None:
        """The first filter of the group that a topic or filter belongs to; None: it overlaps no filter."""
        found = text if text in self._group_of else next(self._meeting(text), None)
        return None if found is None else self._group_of[found]

    def meeting(self, text: str) -> list[str]:
        """The filters that have a topic in common with a topic or filter, ascending."""
        return sorted(self._meeting(text))

    def _meeting(self, text: str) -> Iterator[str]:
        if not is_wild(text) or is_valid_filter(text):
            return self._index.meeting(text)
        alone = FilterIndex([text])  # a plain text, which an index of filters would take for a filter
        return (one for one in self._group_of if any(True for _ in alone.meeting(one)))


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
