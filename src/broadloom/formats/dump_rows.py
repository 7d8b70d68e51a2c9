"""Rows and pages of a broker's dump, and a tolerant reader of JSON documents that the parsers share."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from broadloom.model import Reason

# The reason of a row that describes a page and is not a subscription.
PAGE = "page"

_decoder = json.JSONDecoder()
_SPACE = re.compile(r"[\s,]*")
_JSON_SPACE = re.compile(r"[ \t\n\r]*")
# The longest entry of a JSON list, and the longest line, in characters; longer ones are bad rows.
LONGEST_ENTRY = 16 * 2**20
_BLOCK_BYTES = 2**20


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


class DumpText:
    """The text of a dump, which is read in blocks, any number of times, from an open file.

    Once it is read to its end, what a running broker adds to the file is not read.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._size: int | None = None  # in bytes; None: the end is not reached yet

    @classmethod
    def of(cls, text: str) -> DumpText:
        """A text in memory."""
        return cls(io.BytesIO(text.encode("utf-8", "surrogateescape")))

    def pieces(self) -> Iterator[str]:
        """The text in pieces, without a byte order mark; bytes that are not UTF-8 are escaped."""
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._file.seek(0)
        at = 0
        while block := self._file.read(self._most_after(at)):
            yield decoder.decode(block if at else block.removeprefix(b"\xef\xbb\xbf"))
            at += len(block)
        self._size = at
        yield decoder.decode(b"", final=True)

    def _most_after(self, at: int) -> int:
        """The most bytes to read from a position on."""
        return _BLOCK_BYTES if self._size is None else min(_BLOCK_BYTES, self._size - at)

    def lines(self) -> Iterator[str]:
        r"""The text between line ends; parts of it if it is longer than `LONGEST_ENTRY`.

        Examples:
            >>> list(DumpText.of("a\nb").lines()), list(DumpText.of("a\n").lines())
            (['a', 'b'], ['a', ''])
        """
        parts: list[str] = []
        size = 0
        for piece in self.pieces():
            first, *others = piece.split("\n")
            parts.append(first)
            size += len(first)
            if others:
                yield "".join(parts)
                yield from others[:-1]
                parts = others[-1:]
                size = len(parts[0])
            elif size > LONGEST_ENTRY:
                yield "".join(parts)
                parts = []
                size = 0
        yield "".join(parts)

    def contains(self, text: str) -> bool:
        """Whether the text contains another one."""
        before = ""
        for piece in self.pieces():
            before = before[-len(text) :] + piece
            if text in before:
                return True
        return False


@dataclass(frozen=True)
class DumpFormat:
    """A kind of dump.

    Attributes:
        name: the name that users give on the command line.
        summary: where such a dump comes from.
        parse: a function from the text of a dump to its rows, or from its file if it is binary. It reads the
            dump in blocks, and keeps no rows.
        looks_like: a function that tells whether the beginning of a file is of this kind.
        binary: whether the dump is not text.
    """

    name: str
    summary: str
    parse: Callable[[DumpText], Iterator[DumpRow]] | Callable[[IO[bytes]], Iterator[DumpRow]]
    looks_like: Callable[[str], bool]
    binary: bool = False

    def rows(self, data: bytes | IO[bytes]) -> Iterator[DumpRow]:
        """The rows of a dump, or of an open file; a row with bytes that are not UTF-8 becomes a bad row."""
        file = io.BytesIO(data) if isinstance(data, bytes) else data
        if self.binary:
            yield from self.parse(file)  # type: ignore[arg-type]
            return
        for row in self.parse(DumpText(file)):  # type: ignore[arg-type]
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
    text: DumpText, key: str, page: Callable[[dict[str, Any], int], DumpPage | None] | None = None
) -> Iterator[dict[str, Any] | DumpRow]:
    """The objects in the list `key` of each document in `text` (or in the list that a document is).

    Text that cannot be read becomes a bad row: an entry that is not an object, a document without the list,
    and text from where it stops being JSON up to the next entry or document that can be read. The function
    `page` gets a document without its lists and the length of its list `key`; if it returns a page, the
    document ends with a row whose reason is PAGE.

    Examples:
        >>> text = DumpText.of('{"data": [{"a": 1}]} {"data": [{"a": 2}]}')
        >>> [entry["a"] for entry in entries(text, "data")]
        [1, 2]
        >>> list(entries(DumpText.of('{"data": [{"a": 1}, {"a"'), "data"))[1].reason
        'cut in the middle'
    """
    window = _TextWindow(text.pieces())
    opening = re.compile(rf'\{{\s*"{re.escape(key)}"\s*:\s*\[')
    inside = False  # true after a place that cannot be read, where entries can follow as well as documents
    while window.skip(_SPACE):
        if (not inside and window.peek() in "[{") or (inside and window.is_at(opening)):
            inside = not (yield from _document(window, key, page))
            continue
        start = window.position
        try:
            value = window.value()
        except _UnreadableError:
            yield from _cut(window, opening)
            inside = not window.is_at_end()
            continue
        listed = value.get(key) if isinstance(value, dict) else value
        if isinstance(listed, list):
            yield from map(_entry, listed)
            yield from _page_rows(page, value, len(listed))
            inside = False
        else:
            yield _entry(value) if inside else DumpRow(window.text_from(start), reason=Reason.NO_LIST)
    if inside:
        yield DumpRow("", reason=Reason.CUT)


def _document(
    window: _TextWindow, key: str, page: Callable[[dict[str, Any], int], DumpPage | None] | None
) -> Generator[dict[str, Any] | DumpRow, None, bool]:
    """The entries of the document at the window, one by one; returns whether it could be read to its end.

    Otherwise the window is where it cannot be read.
    """
    start = window.position
    try:
        if window.peek() == "[":
            yield from map(_entry, window.listed())
            return True
        length = None
        document: dict[str, Any] = {}
        window.take("{")
        while not (window.peek() == "}" and not document):
            name = window.value()
            if not isinstance(name, str):
                return False
            window.take(":")
            document[name] = None
            if window.peek() != "[":
                document[name] = window.value()
            elif name == key:
                length = 0
                for value in window.listed():
                    yield _entry(value)
                    length += 1
            else:
                for _ in window.listed():
                    pass
            if window.peek() != ",":
                break
            window.take(",")
        window.take("}")
    except _UnreadableError:
        return False
    if length is None:
        yield DumpRow(window.text_from(start), reason=Reason.NO_LIST)
    else:
        yield from _page_rows(page, document, length)
    return True


def _page_rows(
    page: Callable[[dict[str, Any], int], DumpPage | None] | None, document: Any, length: int
) -> Iterator[DumpRow]:
    """The row of a page, if a document is one."""
    described = page(document, length) if page and isinstance(document, dict) else None
    if described is not None:
        yield DumpRow(described.dumps(), reason=PAGE)


def _cut(window: _TextWindow, opening: re.Pattern[str]) -> Iterator[DumpRow]:
    """Bad rows with the text up to the next entry or document that can be read."""
    starts = re.compile(rf"(?<=[,\[\n}}])\s*(?=\{{)|(?={opening.pattern})")
    found = False
    while not found and not window.is_at_end():
        text, most = window.beginnings()
        end = most
        for candidate in starts.finditer(text, window.at + 1):
            if candidate.end() >= most:
                break
            if window.is_too_deep(candidate.end()):
                continue
            if opening.match(text, candidate.end()) or window.is_readable(candidate.end()):
                end, found = candidate.end(), True
                break
        yield DumpRow(window.pass_to(end), reason=Reason.CUT)


# A value that the parser finds too deep has more levels than this, and so as many characters.
FEWEST_LEVELS = 500


class _UnreadableError(Exception):
    """The text at the window is not the expected JSON."""


class _TextWindow:
    """The part of a JSON text that is in memory: at least `LONGEST_ENTRY` characters from the index `at` on.

    Attributes:
        at: the index of the next character in the text in memory.
    """

    def __init__(self, pieces: Iterable[str]) -> None:
        self._pieces = iter(pieces)
        self._text = ""
        self._before = 0  # the number of characters before the text in memory
        self._is_whole = False  # whether the text in memory goes to the end
        self._deep_until = 0  # the position up to which nothing is tried, because it nests too deeply
        self.at = 0

    @property
    def position(self) -> int:
        """The index of the next character in the whole text."""
        return self._before + self.at

    def _fill(self, wanted: int) -> None:
        """Read until there are so many characters from `at` on, or all."""
        if self._is_whole or len(self._text) - self.at >= wanted:
            return
        parts = [self._text[self.at :]]
        self._before += self.at
        self.at = 0
        size = len(parts[0])
        while size < wanted + LONGEST_ENTRY:
            piece = next(self._pieces, None)
            if piece is None:
                self._is_whole = True
                break
            parts.append(piece)
            size += len(piece)
        self._text = "".join(parts)

    def skip(self, pattern: re.Pattern[str]) -> bool:
        """Skip what a pattern matches, any number of times; return whether more text follows."""
        while True:
            self._fill(LONGEST_ENTRY)
            found = pattern.match(self._text, self.at)
            self.at = found.end() if found else self.at
            if self.at < len(self._text) or self._is_whole:
                return self.at < len(self._text)

    def is_at_end(self) -> bool:
        """Whether no text follows."""
        self._fill(1)
        return self.at >= len(self._text)

    def peek(self) -> str:
        """The next character that is not space; empty at the end."""
        self.skip(_JSON_SPACE)
        return self._text[self.at : self.at + 1]

    def is_at(self, pattern: re.Pattern[str]) -> bool:
        """Whether a pattern matches here."""
        return pattern.match(self._text, self.at) is not None

    def take(self, sign: str) -> None:
        """Skip space and a character, which must follow."""
        if self.peek() != sign:
            raise _UnreadableError
        self.at += 1

    def value(self) -> Any:
        """Read the next JSON value."""
        self.skip(_JSON_SPACE)
        try:
            value, self.at = _decoder.raw_decode(self._text, self.at)
        except RecursionError as error:
            self._note_depth(self.at)
            raise _UnreadableError from error
        except ValueError as error:
            raise _UnreadableError from error
        return value

    def is_readable(self, index: int) -> bool:
        """Whether there is a JSON value at an index of the text in memory."""
        try:
            _decoder.raw_decode(self._text, index)
        except RecursionError:
            self._note_depth(index)
            return False
        except ValueError:
            return False
        return True

    def is_too_deep(self, index: int) -> bool:
        """Whether an index of the text in memory is known to be within values that nest too deeply."""
        return self._before + index < self._deep_until

    def _note_depth(self, index: int) -> None:
        """A value nests too deeply; to try each value in it would take a thousand times as long."""
        self._deep_until = self._before + index + FEWEST_LEVELS

    def listed(self) -> Iterator[Any]:
        """Read the values of a JSON list, one by one."""
        self.take("[")
        if self.peek() == "]":
            self.at += 1
            return
        while True:
            yield self.value()
            if self.peek() == "]":
                self.at += 1
                return
            self.take(",")

    def text_from(self, position: int) -> str:
        """The text from a position up to here, as far as it is still in memory."""
        return self._text[max(position - self._before, 0) : self.at]

    def beginnings(self) -> tuple[str, int]:
        """The text in memory, and the index up to which an entry that begins there is in memory."""
        self._fill(2 * LONGEST_ENTRY)
        size = len(self._text)
        return self._text, size if self._is_whole else max(size - LONGEST_ENTRY, self.at + 1) - 1

    def pass_to(self, index: int) -> str:
        """Go to an index of the text in memory, and return the text before it."""
        passed = self._text[self.at : index]
        self.at = index
        return passed


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


def _is_text(row: DumpRow) -> bool:
    try:
        "".join(value or "" for value in row).encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(text: str) -> str:
    """Text with each byte that is not UTF-8 written as backslash, x and two digits."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
