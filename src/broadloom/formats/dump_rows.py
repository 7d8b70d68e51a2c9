"""Rows and pages of a broker's dump, and a tolerant reader of JSON documents that the parsers share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from broadloom.model import Reason

# The reason of a row that describes a page and is not a subscription.
PAGE = "page"

_decoder = json.JSONDecoder()
_SPACE = re.compile(r"[\s,]*")
_JSON_SPACE = re.compile(r"[ \t\n\r]*")
# The entries of documents in longer texts (characters) are read one by one.
LONG_TEXT = 32 * 2**20
# The most characters after the list of such a document, and an entry that no list has.
_REST = 2**20
_MARK = "the entries of this list are read one by one"


class DumpRow(NamedTuple):
    """A subscription in a dump, or, with a reason, text that is not a subscription.

    Attributes:
        raw: the row as it was in the file.
        node: the broker, if the dump names it.
        client: the client that subscribes.
        filter: the MQTT topic filter.
        reason: why the row is not a subscription; None: it is one, as far as the parser can see.
    """

    raw: str
    node: str | None = None
    client: str | None = None
    filter: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class DumpFormat:
    """A kind of dump.

    Attributes:
        name: the name that users give on the command line.
        summary: where such a dump comes from.
        parse: a function from the text of a dump to its rows, or from its bytes if it is binary.
        looks_like: a function that tells whether the beginning of a file is of this kind.
        binary: whether the dump is not text.
    """

    name: str
    summary: str
    parse: Callable[[str], Iterator[DumpRow]] | Callable[[bytes], Iterator[DumpRow]]
    looks_like: Callable[[str], bool]
    binary: bool = False

    def rows(self, data: bytes) -> Iterator[DumpRow]:
        """The rows of a file; a row with bytes that are not UTF-8 becomes a bad row."""
        if self.binary:
            yield from self.parse(data)  # type: ignore[arg-type]
            return
        for row in self.parse(_decoded(data)):  # type: ignore[arg-type]
            yield row if _is_text(row) else DumpRow(_escaped(row.raw), reason=Reason.NOT_UTF8)


class DumpPage(NamedTuple):
    """One page of a list that an API returns page by page.

    Attributes:
        first: the index of its first entry in the whole list.
        entries: the number of its entries.
        total: the number of entries in the whole list; None: the page does not say.
        more: whether the page says that another one follows.
    """

    first: int
    entries: int
    total: int | None
    more: bool

    def dumps(self) -> str:
        """The page as text, as `loads` reads it."""
        return json.dumps(self)

    @classmethod
    def loads(cls, text: str) -> DumpPage:
        """Read the text that `dumps` wrote."""
        return cls(*json.loads(text))


def missing_pages_note(kind: str, pages: Iterable[DumpPage]) -> str | None:
    """A note for the user if pages are missing, else None; each page that begins at 0 begins a new list.

    Examples:
        >>> missing_pages_note("emqx", [DumpPage(0, 100, 250, True), DumpPage(100, 100, 250, True)])
        'emqx: 200 of 250 entries are there; fetch the pages that are missing'
        >>> missing_pages_note("emqx", [DumpPage(0, 100, 150, True), DumpPage(100, 50, 150, False)]) is None
        True
    """
    listed = list(pages)
    count = sum(page.entries for page in listed)
    totals = [page.total for page in listed if page.total is not None]
    first_totals = [page.total for page in listed if page.total is not None and page.first == 0]
    total = sum(first_totals) if first_totals else max(totals, default=0)
    if count < total:
        return f"{kind}: {count:,} of {total:,} entries are there; fetch the pages that are missing"
    if sum(page.more for page in listed) > sum(page.first > 0 for page in listed):
        return f"{kind}: a page says that more follow, but none does; fetch the pages that are missing"
    return None


def entries(
    text: str, key: str, page: Callable[[dict[str, Any], int], DumpPage | None] | None = None
) -> Iterator[dict[str, Any] | DumpRow]:
    """The objects in the list `key` of each document in `text` (or in the list that a document is).

    Text that cannot be read becomes a bad row: an entry that is not an object, a document without the list,
    and text from where it stops being JSON up to the next entry or document that can be read. The function
    `page` gets a document and the length of its list; if it returns a page, the document ends with a row
    whose reason is PAGE.

    Examples:
        >>> [entry["a"] for entry in entries('{"data": [{"a": 1}]} {"data": [{"a": 2}]}', "data")]
        [1, 2]
        >>> list(entries('{"data": [{"a": 1}, {"a"', "data"))[1].reason
        'cut in the middle'
    """
    at = 0
    inside = False  # true inside the list of a document that cannot be parsed as a whole
    while (at := _skip_space(text, at)) < len(text):
        long = None if inside or len(text) - at <= LONG_TEXT else _long_list(text, at, key)
        if long is not None:
            yield from (_entry(value) for value, _ in _listed(text, long.start))
            described = page(long.document, long.length) if page and long.document is not None else None
            if described is not None:
                yield DumpRow(described.dumps(), reason=PAGE)
            at = long.end
            continue
        try:
            value, end = _decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError):
            start = None if inside else _list_start(text, at, key)
            inside = True
            if start is None:
                start = _next_object(text, at + 1, key)
                inside = start < len(text)
                yield DumpRow(text[at:start], reason=Reason.CUT)
            at = start
            continue
        found = value.get(key) if isinstance(value, dict) else value
        if isinstance(found, list):
            yield from map(_entry, found)
            described = page(value, len(found)) if page and isinstance(value, dict) else None
            if described is not None:
                yield DumpRow(described.dumps(), reason=PAGE)
            inside = False
        elif inside:
            yield _entry(value)
        else:
            yield DumpRow(text[at:end], reason=Reason.NO_LIST)
        at = end
    if inside:
        yield DumpRow("", reason=Reason.CUT)


class _LongList(NamedTuple):
    """A list in a long document: where it starts, its length, the document without it, and its end."""

    start: int
    length: int
    document: dict[str, Any] | None
    end: int


def _long_list(text: str, at: int, key: str) -> _LongList | None:
    """The list `key` of the document at an index, or the list that it is, if all of it can be read.

    The entries are read one by one and not kept: the objects of a whole document take many times the memory
    of its text.
    """
    start = at + 1 if text[at] == "[" else _list_start(text, at, key)
    if start is None:
        return None
    length = 0
    end = start
    try:
        for _, after in _listed(text, start):
            end = after
            length += 1
        end = _after_space(text, end)
        if text[end : end + 1] != "]":
            return None
        if text[at] == "[":
            return _LongList(start, length, None, end + 1)
        # The same document with another list: if `key` has it, the list is not that of an inner object.
        short = f'{text[at:start]}"{_MARK}"'
        document, size = _decoder.raw_decode(short + text[end : end + _REST])
    except (json.JSONDecodeError, RecursionError):
        return None
    if not isinstance(document, dict) or document.get(key) != [_MARK]:
        return None
    return _LongList(start, length, document, end + size - len(short))


def _listed(text: str, at: int) -> Iterator[tuple[Any, int]]:
    """The values of a JSON list whose first value is at an index, each with the index after it."""
    at = _after_space(text, at)
    if text[at : at + 1] == "]":
        return
    while True:
        value, at = _decoder.raw_decode(text, _after_space(text, at))
        yield value, at
        at = _after_space(text, at)
        if text[at : at + 1] != ",":
            return
        at += 1


def _after_space(text: str, at: int) -> int:
    found = _JSON_SPACE.match(text, at)
    return found.end() if found else at


def string(entry: dict[str, Any], *names: str) -> str | None:
    """The first of these fields that is a non-empty string or an integer, as text; None if there is none."""
    for name in names:
        value = entry.get(name)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    return None


def number(document: dict[str, Any], name: str) -> int | None:
    """The value of a field if it is an integer from 0, else None."""
    value = document.get(name)
    return value if type(value) is int and value >= 0 else None


def raw(entry: dict[str, Any]) -> str:
    """An entry as text, for the quarantine."""
    return json.dumps(entry, ensure_ascii=False)


def _entry(value: Any) -> dict[str, Any] | DumpRow:
    """The entry itself if it is an object, else a bad row."""
    return value if isinstance(value, dict) else DumpRow(json.dumps(value), reason=Reason.NOT_JSON)


def _list_start(text: str, at: int, key: str) -> int | None:
    """The start of the list in a document that is truncated or broken further on; None if not found."""
    opening = re.compile(rf'"{re.escape(key)}"\s*:\s*\[').search(text, at)
    if opening is not None:
        return opening.end()
    return at + 1 if text[at] == "[" else None


def _next_object(text: str, at: int, key: str) -> int:
    """The start of the next entry or document that can be read, or else the end of the text."""
    starts = re.compile(rf'(?<=[,\[\n}}])\s*(?=\{{)|(?=\{{\s*"{re.escape(key)}")')
    for found in starts.finditer(text, at):
        try:
            _decoder.raw_decode(text, found.end())
        except (json.JSONDecodeError, RecursionError):
            continue
        return found.end()
    return len(text)


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _decoded(data: bytes) -> str:
    """The text of a file without a byte order mark."""
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")


def _is_text(row: DumpRow) -> bool:
    try:
        "".join(value or "" for value in row).encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(text: str) -> str:
    """Text with each byte that is not UTF-8 written as backslash, x and two digits."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
