"""Pages of a list that came in several: what each says of the whole, and whether some are missing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

# The reason of a row that tells of a page and is no subscription.
PAGE = "page"


class Page(NamedTuple):
    """What a page says.

    Attributes:
        first: where in the whole list it begins.
        entries: how many it has.
        total: how many the whole list has; None: it does not say.
        more: whether it says that another page follows.
    """

    first: int
    entries: int
    total: int | None
    more: bool

    def dumps(self) -> str:
        """The page as text, as `loads` reads it."""
        return json.dumps(self)

    @classmethod
    def loads(cls, text: str) -> Page:
        """Read what `dumps` wrote."""
        return cls(*json.loads(text))


def number(document: dict[str, Any], name: str) -> int | None:
    """A field that is a count, or None."""
    value = document.get(name)
    return value if type(value) is int and value >= 0 else None


def note(kind: str, pages: Iterable[Page]) -> str | None:
    """One line if pages are missing, else None; each page that begins at 0 begins a list of its own.

    Examples:
        >>> note("emqx", [Page(0, 100, 250, True), Page(100, 100, 250, True)])
        'emqx: 200 of 250 entries are there; fetch the pages that are missing'
        >>> note("emqx", [Page(0, 100, 150, True), Page(100, 50, 150, False)]) is None
        True
    """
    listed = list(pages)
    have = sum(page.entries for page in listed)
    totals = [page.total for page in listed if page.total is not None]
    begun = [page.total for page in listed if page.total is not None and page.first == 0]
    total = sum(begun) if begun else max(totals, default=0)
    if have < total:
        return f"{kind}: {have:,} of {total:,} entries are there; fetch the pages that are missing"
    if sum(page.more for page in listed) > sum(page.first > 0 for page in listed):
        return f"{kind}: a page says that more follow, but none does; fetch the pages that are missing"
    return None
