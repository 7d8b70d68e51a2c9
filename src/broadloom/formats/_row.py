"""What every broker's dump becomes: one row a subscription, or a bad row with its reason."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from broadloom.model import Reason


class Row(NamedTuple):
    """A subscription as a dump has it, or, with a reason, what could not be one.

    Attributes:
        raw: the row as it was in the file.
        node: the broker, if the dump names it.
        client: who subscribes.
        filter: to what, as an MQTT filter.
        reason: why it is no subscription; None: it is one, as far as the parser can see.
    """

    raw: str
    node: str | None = None
    client: str | None = None
    filter: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Format:
    """A kind of dump.

    Attributes:
        name: as users ask for it.
        summary: where such a dump comes from.
        parse: its text to rows.
        looks_like: whether the beginning of a file is of this kind.
    """

    name: str
    summary: str
    parse: Callable[[str], Iterator[Row]]
    looks_like: Callable[[str], bool]

    def rows(self, data: bytes) -> Iterator[Row]:
        """The rows of a file; only those with bytes that are not UTF-8 are bad for it."""
        for row in self.parse(data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")):
            yield row if _is_text(row) else Row(_escaped(row.raw), reason=Reason.NOT_UTF8)


def _is_text(row: Row) -> bool:
    try:
        "".join(value or "" for value in row).encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(text: str) -> str:
    """Text with each byte that is not UTF-8 written as backslash, x and two digits."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
