"""Dumps without subscriptions, or with too few: the setting that is missing, and where to write it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, NamedTuple

from broadloom.formats.dump_rows import PAGE, DumpFormat
from broadloom.formats.mosquitto_log import is_connect_line, is_subscribe_line
from broadloom.model import Reason

VERNEMQ_ROWS = 100  # that vmq-admin shows without --limit

_LOG_TYPES = "error, warning, notice, information, subscribe, unsubscribe"


class DumpProblem(NamedTuple):
    """A dump that does not show what it should.

    Attributes:
        empty: whether it has no subscription at all.
        text: what is missing, and what to do.
    """

    empty: bool
    text: str


def dump_problem(form: DumpFormat, file: IO[bytes]) -> DumpProblem | None:
    r"""What keeps a dump from showing the subscriptions; None: nothing that can be seen.

    A subscription that ended later counts: then the dump shows subscriptions.

    Examples:
        >>> from io import BytesIO
        >>> from broadloom.formats import mosquitto_log
        >>> log = b"1700000000: New client connected from 10.0.0.1:50000 as c1 (p2, c1, k60).\n"
        >>> dump_problem(mosquitto_log.FORMAT, BytesIO(log)).text.partition(";")[0]
        '1 connections and no subscription in the log'
        >>> dump_problem(mosquitto_log.FORMAT, BytesIO(log + b"1700000001: c1 0 t/1\n")) is None
        True
    """
    if form.name == "mosquitto":
        return _mosquitto(file)
    reasons: list[str] = []
    found = 0
    for row in form.rows(file):
        if row.reason is None or row.reason in _SHOWN:
            found += 1
            if form.name != "vernemq":
                return None
        elif row.reason != PAGE:
            reasons.append(row.reason)
    if found:
        return _truncated() if found == VERNEMQ_ROWS else None
    return DumpProblem(True, _explanation(form.name, reasons))


# The reasons of rows that are subscriptions, although ingest does not use them.
_SHOWN = (
    Reason.UNSUBSCRIBED,
    Reason.ENDED,
    Reason.EXPIRED,
    Reason.OWN,
    Reason.INTERNAL,
    Reason.REPLY,
    Reason.LEAF_NODE,
)


def _mosquitto(lines: Iterable[bytes]) -> DumpProblem | None:
    """A log is read line by line up to its first subscription; there can be gigabytes of other lines."""
    connections = 0
    for data in lines:
        line = data.decode("utf-8", "replace").rstrip("\r\n")
        if is_subscribe_line(line):
            return None
        connections += is_connect_line(line)
    condition = "" if connections else "if clients have connected since it began, "
    return DumpProblem(
        True,
        f"{connections:,} connections and no subscription in the log; {condition}write into mosquitto.conf "
        f"one line `log_type ...` for each of {_LOG_TYPES}, restart the broker, and let clients subscribe "
        "again",
    )


def _truncated() -> DumpProblem:
    return DumpProblem(
        False,
        f"exactly {VERNEMQ_ROWS} rows, as many as vmq-admin shows without a limit; "
        "if there are more, call it with --limit=1000000",
    )


def _explanation(kind: str, reasons: list[str]) -> str:
    """What a dump without subscriptions lacks, the reason of its first row if it has rows, and the advice."""
    if Reason.NOT_LISTED in reasons:
        return (
            f"{reasons.count(Reason.NOT_LISTED):,} connections only count their subscriptions; "
            "fetch /connz?subs=detail from the monitoring port"
        )
    lack, advice = _ADVICE.get(kind, ("no row is a subscription", "look at the file"))
    refused = f" ({len(reasons):,} rows: {reasons[0]})" if reasons else ""
    return f"{lack}{refused}; {advice}"


_ADVICE = {
    "nats": (
        "no connection has a subscription",
        "fetch /connz?subs=detail from the monitoring port while clients are connected",
    ),
    "rabbitmq": (
        "no queue is bound to a topic exchange",
        "definitions leave out the queues of clean sessions: "
        "fetch GET /api/bindings while clients are connected",
    ),
    "emqx": (
        "the list is empty",
        "fetch all pages of GET /api/v5/subscriptions while clients are connected",
    ),
    "vernemq": (
        "no row has a client and a topic",
        "call vmq-admin session show --client_id --topic --node --limit=1000000",
    ),
    "kafka": ("no consumer group reads a topic", "call kafka-consumer-groups --describe --all-groups"),
    "mosquitto-db": (
        "no saved session has a subscription",
        "the file lacks clients with a clean session: give the broker's log with log_type subscribe",
    ),
}
