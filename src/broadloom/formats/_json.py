"""Entries of JSON documents, one page after the other, and all that can be saved of a file that is cut."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from broadloom.formats._page import PAGE, Page
from broadloom.formats._row import Row
from broadloom.model import Reason

_decoder = json.JSONDecoder()
_SPACE = re.compile(r"[\s,]*")


def entries(
    text: str, key: str, page: Callable[[dict[str, Any], int], Page | None] | None = None
) -> Iterator[dict[str, Any] | Row]:
    """The objects in the list `key` of each document in `text` (or in the list that a document is).

    What cannot be read comes as a bad row: an entry that is no object, a document without the list, and text
    from the place where it stops being JSON up to the next entry or document that can be read. With `page`,
    which gets a document and the length of its list, one that says it is a page ends with a row PAGE.

    Examples:
        >>> [entry["a"] for entry in entries('{"data": [{"a": 1}]} {"data": [{"a": 2}]}', "data")]
        [1, 2]
        >>> list(entries('{"data": [{"a": 1}, {"a"', "data"))[1].reason
        'cut in the middle'
    """
    at, inside = 0, False  # inside: in the list of a document that cannot be read as a whole
    while (at := _skip(text, at)) < len(text):
        try:
            value, end = _decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            start = None if inside else _list_start(text, at, key)
            inside = True
            if start is None:
                start = _next_object(text, at + 1, key)
                inside = start < len(text)
                yield Row(text[at:start], reason=Reason.CUT)
            at = start
            continue
        found = value.get(key) if isinstance(value, dict) else value
        if isinstance(found, list):
            yield from map(_entry, found)
            told = page(value, len(found)) if page and isinstance(value, dict) else None
            if told is not None:
                yield Row(told.dumps(), reason=PAGE)
            inside = False
        elif inside:
            yield _entry(value)
        else:
            yield Row(text[at:end], reason=Reason.NO_LIST)
        at = end
    if inside:
        yield Row("", reason=Reason.CUT)


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
    return value if isinstance(value, dict) else Row(json.dumps(value), reason=Reason.NOT_JSON)


def _list_start(text: str, at: int, key: str) -> int | None:
    """Where the list of a document starts that is cut or broken further on; None if it is not there."""
    opening = re.compile(rf'"{re.escape(key)}"\s*:\s*\[').search(text, at)
    if opening is not None:
        return opening.end()
    return at + 1 if text[at] == "[" else None


def _next_object(text: str, at: int, key: str) -> int:
    """Where the next entry or document begins that can be read; the end of the text if there is none."""
    starts = re.compile(rf'(?<=[,\[\n}}])\s*(?=\{{)|(?=\{{\s*"{re.escape(key)}")')
    for found in starts.finditer(text, at):
        try:
            _decoder.raw_decode(text, found.end())
        except (json.JSONDecodeError, RecursionError):
            continue
        return found.end()
    return len(text)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
