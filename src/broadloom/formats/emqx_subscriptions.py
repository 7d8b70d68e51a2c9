"""Parser of EMQX subscriptions: the pages of `GET /api/v5/subscriptions`, one after the other."""

from collections.abc import Iterator
from typing import Any

from broadloom.formats.dump_rows import DumpFormat, DumpPage, DumpRow, DumpText, entries, number, raw, string


def parse(text: DumpText) -> Iterator[DumpRow]:
    """One row per subscription; the broker is the `node` of the cluster that holds it.

    Examples:
        >>> page = '{"data": [{"node": "emqx@a", "clientid": "c1", "topic": "t/1"}], "meta": {"page": 1}}'
        >>> next(parse(DumpText.of(page)))[1:4]
        ('emqx@a', 'c1', 't/1')
    """
    for entry in entries(text, "data", _page):
        if isinstance(entry, DumpRow):
            yield entry
        else:
            names = string(entry, "node"), string(entry, "clientid", "client_id"), string(entry, "topic")
            yield DumpRow(raw(entry), *names)


def _page(document: dict[str, Any], length: int) -> DumpPage | None:
    meta = document.get("meta")
    if not isinstance(meta, dict) or not meta:
        return None
    first = max((number(meta, "page") or 1) - 1, 0) * (number(meta, "limit") or length)
    return DumpPage(first, length, number(meta, "count"), meta.get("hasnext") is True)


FORMAT = DumpFormat(
    "emqx",
    "pages of EMQX's GET /api/v5/subscriptions (JSON)",
    parse,
    lambda head: '"clientid"' in head and (head.lstrip()[:1] == "[" or '"data"' in head),
)
