"""Parser of NATS subscriptions: `/connz?subs=detail` (or `subs=1`) and `/subsz?subs=1`."""

from collections.abc import Iterator
from typing import Any

from broadloom.formats.dump_rows import DumpFormat, DumpPage, DumpRow, DumpText, entries, number, raw, string
from broadloom.model import Reason


def parse(text: DumpText) -> Iterator[DumpRow]:
    """One row per subscription; the client is the id of an MQTT client, else the connection's name or number.

    Examples:
        >>> page = '{"connections": [{"cid": 7, "subscriptions_list": ["a.*", "b.>"]}]}'
        >>> [row[2:4] for row in parse(DumpText.of(page))]
        [('7', 'a/+'), ('7', 'b/#')]
    """
    if not text.contains('"connections"'):
        for entry in entries(text, "subscriptions_list", _page):
            yield entry if isinstance(entry, DumpRow) else _row(entry, string(entry, "cid"))
        return
    for connection in entries(text, "connections", _page):
        if isinstance(connection, DumpRow):
            yield connection
        else:
            yield from _connection(connection)


def to_mqtt(subject: str) -> str | None:
    """A NATS subject as an MQTT topic filter; None if it has characters that are special in MQTT.

    Examples:
        >>> to_mqtt("a.*.>")
        'a/+/#'
    """
    if any(sign in subject for sign in "/+#"):
        return None
    levels = subject.split(".")
    return "/".join({"*": "+", ">": "#"}.get(level, level) for level in levels)


def _page(document: dict[str, Any], length: int) -> DumpPage | None:
    total = number(document, "total")
    return None if total is None else DumpPage(number(document, "offset") or 0, length, total, more=False)


def _connection(connection: dict[str, Any]) -> Iterator[DumpRow]:
    client = string(connection, "mqtt_client", "name", "cid")
    details = connection.get("subscriptions_list_detail")
    listed = details if isinstance(details, list) else connection.get("subscriptions_list")
    is_leaf = connection.get("kind") == "Leafnode"  # NATS 2.15 lists them, and 2.9 does not
    if not isinstance(listed, list) and connection.get("subscriptions"):
        reason = Reason.LEAF_NODE if is_leaf else Reason.NOT_LISTED
        yield DumpRow(raw(connection), None, client, reason=reason)
    for entry in listed if isinstance(listed, list) else ():
        row = _row(entry if isinstance(entry, dict) else {"subject": entry}, client)
        yield row._replace(reason=Reason.LEAF_NODE) if is_leaf and row.reason is None else row


def _row(entry: dict[str, Any], client: str | None) -> DumpRow:
    subject = string(entry, "subject")
    text = raw(entry)
    if subject is None:
        return DumpRow(text, None, client)
    if entry.get("account") == "$SYS":
        return DumpRow(text, None, client, subject, Reason.INTERNAL)
    if subject.startswith("_INBOX."):
        return DumpRow(text, None, client, subject, Reason.REPLY)
    topic_filter = to_mqtt(subject)
    return DumpRow(text, None, client, topic_filter, None if topic_filter else Reason.BAD_FILTER)


FORMAT = DumpFormat(
    "nats",
    "NATS's /connz?subs=detail or /subsz?subs=1 (JSON)",
    parse,
    lambda head: '"server_id"' in head or '"subscriptions_list' in head,
)
