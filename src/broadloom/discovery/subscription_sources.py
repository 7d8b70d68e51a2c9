"""Sources of a broker's subscriptions: persistence files, logs, dumps, and HTTP APIs of brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from broadloom.deployment import FleetBroker
from broadloom.discovery.admin_apis import get_document
from broadloom.errors import BroadloomError, InputError, error_from_os
from broadloom.formats import FORMATS, PAGE, DumpFormat, DumpPage, DumpRow, dump_problem, missing_pages_note
from broadloom.formats.mosquitto_db import FORMAT as MOSQUITTO_DB
from broadloom.formats.mosquitto_db import NOT_IN_FILE, read_mosquitto_db
from broadloom.formats.mosquitto_log import FORMAT as MOSQUITTO_LOG
from broadloom.model import Reason
from broadloom.storage import unpack

LARGEST_FILE = 2**30  # bytes; `ingest` reads larger ones
MOST_PAGES = 10_000
PAGE_ENTRIES = 1_000
# The API of each kind of broker: what to append to an address without a path.
API_PATHS = {"emqx": "/api/v5/subscriptions", "nats": "/connz", "rabbitmq": "/api/bindings"}
LISTENED = "$SYS/broker/log"
OWN_CLIENT = "broadloom-discover"  # the beginning of the id of the client that listens

_HEAD_BYTES = 64 * 1024
# Reasons of rows that stand for subscriptions which cannot be read.
_DAMAGE = (Reason.CUT, Reason.NOT_JSON, Reason.NOT_UTF8, Reason.NO_LIST, Reason.NOT_LISTED)
NO_START = (
    "the log does not begin with the broker's start, so subscriptions made before it are missing; "
    "add mosquitto.db, or older logs"
)


@dataclass
class SourceFindings:
    """Rows of one source of a broker's subscriptions.

    Attributes:
        source: the path or URL, or LISTENED.
        kind: the format of the rows; None: it was not found out.
        rows: the rows; those that are not subscriptions have a reason.
        at: the time to which the rows belong, in seconds since 1970.
        notes: what an operator must know about the source.
        problem: why subscriptions are missing, or can be; None: the source was read as a whole.
    """

    source: str
    kind: str | None = None
    rows: list[DumpRow] = field(default_factory=list)
    at: float = field(default_factory=time.time)
    notes: list[str] = field(default_factory=list)
    problem: str | None = None

    def found(self) -> int:
        """The number of rows that are subscriptions."""
        return sum(row.reason is None for row in self.rows)

    def record(self) -> dict[str, Any]:
        """The source in the types of JSON."""
        return {
            "source": self.source,
            "kind": self.kind,
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds"),
            "rows": len(self.rows),
            "subscriptions": self.found(),
            "problem": self.problem,
            "notes": list(self.notes),
        }


def read_source(broker: FleetBroker, source: str) -> SourceFindings:
    """Read one source; a failure becomes its `problem`."""
    is_url = "://" in source
    findings = SourceFindings(source.partition("?")[0] if is_url else source)  # a query can have a secret
    try:
        if is_url:
            _read_api(broker, source, findings)
        else:
            _read_file(Path(source), findings)
    except BroadloomError as error:
        findings.problem = str(error)
    return findings


def listened_source(lines: list[str], since: float) -> SourceFindings:
    """The source made of the lines that a Mosquitto published while we listened, in their order."""
    text = "".join(f"{line}\n" for line in lines)
    rows = [row for row in MOSQUITTO_LOG.rows(text.encode()) if row.filter is not None]
    others = [row for row in rows if not (row.client or "").startswith(OWN_CLIENT)]
    return SourceFindings(LISTENED, LISTENED, others, since)


def _read_file(path: Path, findings: SourceFindings) -> None:
    data = _content(path)
    findings.at = path.stat().st_mtime
    head = data[:_HEAD_BYTES].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    form = next((form for form in FORMATS if form.looks_like(head)), None)
    if form is None and not data:
        raise InputError(f"{path} is empty; give mosquitto.db, a log or a dump with subscriptions")
    if form is None:
        kinds = "; ".join(form.summary for form in FORMATS)
        raise InputError(f"{path} is of an unknown kind; there are: {kinds}")
    if form is MOSQUITTO_DB:
        try:
            read_mosquitto_db(data)
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    _take(findings, form, form.rows(data))
    if form is MOSQUITTO_DB:
        findings.notes.append(f"{path.name} was written {_age(findings.at)} ago")
        findings.notes.append(NOT_IN_FILE)
    elif form is MOSQUITTO_LOG:
        _check_log(findings, data, head)
    if findings.problem is not None:
        findings.problem = f"{path}: {findings.problem}"


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path} is larger than {LARGEST_FILE >> 30} GiB; use `broadloom ingest` for it")
        data = path.read_bytes()
        return unpack(str(path), data) if path.suffix == ".gz" else data
    except OSError as error:
        raise error_from_os(f"{path} cannot be read", error) from error


def _take(findings: SourceFindings, form: DumpFormat, rows: Iterator[DumpRow]) -> None:
    """Add the rows of a dump; what cannot be read, and pages that are missing, become the problem."""
    findings.kind = form.name
    pages = []
    for row in rows:
        if row.reason == PAGE:
            pages.append(DumpPage.loads(row.raw))
        elif row.reason is None and not row.filter:
            findings.rows.append(row._replace(reason=Reason.missing("topic")))
        else:
            findings.rows.append(row)
    damaged = [row for row in findings.rows if row.reason in _DAMAGE]
    if form is MOSQUITTO_LOG:  # the last line can be half written while the broker runs
        damaged = [row for row in damaged if row.reason != Reason.CUT]
    if damaged:
        first = damaged[0]
        more = f" ({len(damaged):,} such rows)" if len(damaged) > 1 else ""
        findings.problem = f"{first.reason}: {first.raw[:80]!r}{more}"
    findings.problem = findings.problem or missing_pages_note(form.name, pages)


def _check_log(findings: SourceFindings, data: bytes, head: str) -> None:
    if (problem := dump_problem(MOSQUITTO_LOG, BytesIO(data))) is not None:
        findings.problem = problem.text
    elif "mosquitto version" not in head:
        findings.notes.append(NO_START)


def _age(at: float) -> str:
    """The time since a moment, in the largest unit that suits."""
    seconds = max(time.time() - at, 0)
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


# HTTP APIs.


def _read_api(broker: FleetBroker, url: str, findings: SourceFindings) -> None:
    if broker.kind not in API_PATHS:
        raise InputError(
            f"{findings.source}: {broker.kind} has no API of subscriptions; give mosquitto.db or a log"
        )
    form = next(form for form in FORMATS if form.name == broker.kind)
    parts = urlsplit(url)
    path = parts.path if parts.path.strip("/") else API_PATHS[broker.kind]
    query = dict(parse_qsl(parts.query))
    api = _Api(broker, urlunsplit((parts.scheme, parts.netloc, path, "", "")), query)
    documents = {"emqx": api.emqx_pages, "nats": api.nats_pages, "rabbitmq": api.rabbitmq_bindings}[
        broker.kind
    ]()
    _take(findings, form, form.rows("\n".join(json.dumps(one) for one in documents).encode()))
    nodes = {row.node for row in findings.rows if row.node}
    if len(nodes) > 1:
        findings.notes.append(f"the API lists {len(nodes)} nodes of a cluster; they are taken as one broker")
    if findings.problem is not None:
        findings.problem = f"{findings.source}: {findings.problem}"


@dataclass
class _Api:
    """An HTTP API of a broker that returns JSON.

    Attributes:
        broker: the broker.
        url: the address of the list of subscriptions, without a query.
        query: the query that the user gave.
    """

    broker: FleetBroker
    url: str
    query: Mapping[str, str]

    def emqx_pages(self) -> Iterator[Any]:
        """All pages of EMQX's list."""
        for number in range(1, MOST_PAGES):
            page = self._get({"limit": str(PAGE_ENTRIES)} | dict(self.query) | {"page": str(number)})
            yield page
            meta = page.get("meta") if isinstance(page, dict) else None
            if not isinstance(meta, dict) or not (meta.get("hasnext") or _expects(meta, number)):
                return
            if not page.get("data"):
                return

    def nats_pages(self) -> Iterator[Any]:
        """All pages of the connections of a NATS server."""
        offset = 0
        for _ in range(MOST_PAGES):
            query = (
                {"subs": "detail", "limit": str(PAGE_ENTRIES)} | dict(self.query) | {"offset": str(offset)}
            )
            page = self._get(query)
            yield page
            connections = page.get("connections") if isinstance(page, dict) else None
            if not isinstance(connections, list) or not connections:
                return
            offset += len(connections)
            total = page.get("total")
            if not isinstance(total, int) or offset >= total:
                return

    def rabbitmq_bindings(self) -> Iterator[Any]:
        """The bindings of RabbitMQ with the types of its exchanges, or definitions as they are."""
        found = self._get(self.query)
        if not (isinstance(found, list) and self.url.endswith("/bindings")):
            yield found
            return
        exchanges = _Api(self.broker, f"{self.url.removesuffix('bindings')}exchanges", {})._get({})
        yield {"exchanges": exchanges if isinstance(exchanges, list) else [], "bindings": found}

    def _get(self, query: Mapping[str, str]) -> Any:
        """The JSON document at the address."""
        url = f"{self.url}?{urlencode(query)}" if query else self.url
        return get_document(self.broker, url)[0]


def _expects(meta: Mapping[str, Any], number: int) -> bool:
    """Whether a page of EMQX without `hasnext` counts more entries than the pages so far have."""
    count, limit = meta.get("count"), meta.get("limit")
    return (
        "hasnext" not in meta and isinstance(count, int) and isinstance(limit, int) and count > number * limit
    )
