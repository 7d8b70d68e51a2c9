"""Naive ingest: one pass over the lines in plain Python."""

import csv
import re
import unicodedata
from collections import Counter
from pathlib import Path

OWN = re.compile(r"(?:[lr]\.)?(?:tco|broadloom)-|federation:")


def matches(text: str, topic: str) -> bool:
    """Whether a filter matches a topic, level by level, as the MQTT standard says."""
    wanted = text.split("/")
    levels = topic.split("/")
    if levels[0].startswith("$") and wanted[0] in ("+", "#"):
        return False
    for i, level in enumerate(wanted):
        if level == "#":
            return True
        if i == len(levels) or level not in ("+", levels[i]):
            return False
    return len(wanted) == len(levels)


def overlap(one: str, other: str, topics: list[str]) -> bool:
    """Whether some topic of a list is matched by both filters; a topic without a wildcard matches itself."""
    return any(matches(one, topic) and matches(other, topic) for topic in topics)


def group_of(filters: list[str], topics: list[str]) -> dict[str, frozenset[str]]:
    """The group of each filter: all filters that it can be reached from, one overlap after the other."""
    groups = {}
    for start in filters:
        group, grown = set(), {start}
        while grown:
            group |= grown
            grown = {
                text
                for text in filters
                if text not in group and any(overlap(text, one, topics) for one in group)
            }
        groups[start] = frozenset(group)
    return groups


def is_filter(text: str) -> bool:
    """Whether a text is a topic filter."""
    levels = text.split("/")
    if not text or "#" in levels[:-1] or any(unicodedata.category(char) == "Cc" for char in text):
        return False
    if any(
        char in "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
        for char in text
    ):
        return False
    return all(level in ("+", "#") or not set(level) & {"+", "#"} for level in levels)


def _reason(
    line: bytes, width: int, nodes: set[str], topics: set[str] | None
) -> tuple[str | None, list[str]]:
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return "not UTF-8", []
    if not text.strip(" "):
        return "blank line", []
    if text.count('"') % 2:
        return "quotes do not match", []
    cells = [cell.strip(" ") for cell in next(csv.reader([text]))]
    if len(cells) != width:
        return "wrong number of fields", []
    client, node, topic = cells
    if not node:
        return "no node", []
    if not topic:
        return "no topic", []
    topic = re.sub(r"^(?:\$share/[^/]+/|\$queue/)", "", topic)
    if OWN.match(client):
        return "our own link", []
    if topic.startswith("$"):
        return "topic of the broker itself", []
    if not is_filter(topic):
        return "not a topic filter", []
    if node not in nodes:
        return "unknown node", []
    if topics is not None and not set(topic) & {"+", "#"} and topic not in topics:
        return "unknown topic", []
    return None, [client, node, topic]


def ingest(
    files: list[Path], nodes: set[str], topics: set[str], wildcards: str
) -> tuple[int, Counter[str], int, set[tuple[str, str]], set[tuple[str, str]]]:
    """Rows, the count of each reason, the number of duplicates, the pairs, and the pairs not carried."""
    rows = 0
    reasons = Counter[str]()
    seen = Counter[tuple[str, ...]]()
    left_out = set()
    for file in files:
        lines = file.read_bytes().removesuffix(b"\n").split(b"\n")
        for line in lines[1:]:
            rows += 1
            reason, cells = _reason(line.removesuffix(b"\r"), lines[0].count(b",") + 1, nodes, topics)
            if reason is None:
                seen[tuple(cells)] += 1
            else:
                reasons[reason] += 1
            if reason in ("topic of the broker itself", "not a topic filter", "unknown topic"):
                _, node, topic = line.decode().split(",")
                left_out |= {(node, topic)} if node in nodes else set()
    pairs = {(node, text) for _, node, text in seen}
    if wildcards == "match":
        wild = {(node, text) for node, text in pairs if set(text) & {"+", "#"}}
        pairs -= wild
        for node, text in wild:
            found = {topic for topic in topics if matches(text, topic)}
            pairs |= {(node, topic) for topic in found}
            left_out.add((node, text))
    return rows, reasons, seen.total() - len(seen), pairs, left_out
