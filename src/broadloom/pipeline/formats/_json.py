"""Entries of JSON documents, one page after the other, and all that can be saved of a file that is cut."""

import json
import re
from collections.abc import Iterator
from typing import Any

from broadloom.pipeline import reasons
from broadloom.pipeline.formats._row import Row

_decoder = json.JSONDecoder()
_SPACE = re.compile(r"[\s,]*")


def entries(text: str, key: str) -> Iterator[dict[str, Any] | Row]:
    """The objects in the list `key` of each document in `text` (or in the list that a document is).

    What cannot be read comes as a bad row: an entry that is no object, a document without the list, and the
    rest of the text from the place where it stops being JSON.

    Examples:
        >>> [entry["a"] for entry in entries('{"data": [{"a": 1}]} {"data": [{"a": 2}]}', "data")]
        [1, 2]
        >>> list(entries('{"data": [{"a": 1}, {"a"', "data"))[1].reason
        'cut in the middle'
    """
    at = _skip(text, 0)
    while at < len(text):
        try:
            document, end = _decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            yield from _saved(text, at, key)
            return
        found = document.get(key) if isinstance(document, dict) else document
        if isinstance(found, list):
            yield from map(_entry, found)
        else:
            yield Row(text[at:end], reason=reasons.NO_LIST)
        at = _skip(text, end)


def string(entry: dict[str, Any], *names: str) -> str | None:
    """The first of these fields that is there, as text; None if none is."""
    for name in names:
        value = entry.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return None


def raw(entry: dict[str, Any]) -> str:
    """An entry as the quarantine shows it."""
    return json.dumps(entry, ensure_ascii=False)


def _entry(value: Any) -> dict[str, Any] | Row:
    return value if isinstance(value, dict) else Row(json.dumps(value), reason=reasons.NOT_JSON)


def _saved(text: str, at: int, key: str) -> Iterator[dict[str, Any] | Row]:
    """The whole entries of a document that is cut or broken, then the rest of it as one bad row."""
    opening = re.compile(rf'"{re.escape(key)}"\s*:\s*\[').search(text, at)
    if opening is not None or text[at] == "[":
        at = _skip(text, opening.end() if opening else at + 1)
        while at < len(text) and text[at] != "]":
            try:
                value, end = _decoder.raw_decode(text, at)
            except (json.JSONDecodeError, RecursionError):
                break
            yield _entry(value)
            at = _skip(text, end)
    yield Row(text[at:], reason=reasons.CUT)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
