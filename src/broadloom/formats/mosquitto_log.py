"""Parser of the Mosquitto log with `log_type subscribe`, and `unsubscribe` for clients that unsubscribe.

A subscription is a line `<time>: <client> <qos> <filter>`. It ends with a line `<time>: <client> <filter>`
(`log_type unsubscribe`), or with `<time>: Received UNSUBSCRIBE from <client>` (`debug`), followed by one line
`<time>: <tab><filter>` per filter; with both types, lines of both kinds alternate. The log is a history: a
row without a reason is a subscription that still exists at the end of the log.

With MQTT 5, a session that began with a clean start can outlive its connection, and the log does not say so.
Such a subscription counts until the client unsubscribes, starts clean again or expires: one too many costs a
link at most, one too few loses messages.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from broadloom.formats.dump_rows import DumpFormat, DumpRow, DumpText
from broadloom.model import Reason
from broadloom.mqtt.topic_filters import OWN_CLIENTS

MQTT_5 = "5"
_DATE = r"\d{4}-\d\d-\d\d[T ][\d:.+-]+Z?"
_LINE = re.compile(rf"({_DATE}|\S+): ?(.*)", re.DOTALL)
# First words of other lines, which can look like a subscription if they contain a topic.
_OTHER = (
    "Received|Sending|New|Client|Socket|Opening|Saving|Config|Bridge|Connecting|Expiring|mosquitto|Warning:"
    "|Error:"
)
_SUBSCRIBE = re.compile(rf"(?!(?:{_OTHER}) )(\S.*) ([012]) (\S.*)")
_UNSUBSCRIBE = re.compile(r"Received UNSUBSCRIBE from (.+)")
_MOST_WORDS = 100  # of the client and the filter that a line names; a longer line names neither
_CONNECT = re.compile(r"New client connected from .* as (.+) \(p(\d+), c([01]), ")
_START = re.compile(r"mosquitto version \S+ starting")
_EXPIRED = re.compile(r"Expiring (?:persistent )?client (.+) due to timeout")
_REASONS = (None, Reason.UNSUBSCRIBED, Reason.ENDED)
_GONE = re.compile(
    r"(?:Client (.+?)(?: \[[^]]*\])? (?:disconnected|closed its connection|has exceeded timeout)"
    r"|Socket error on client (.+?), disconnecting)"
)


def parse(text: DumpText) -> Iterator[DumpRow]:
    r"""One row per subscribe line; lines about other events are skipped.

    Examples:
        >>> log = "1700000000: c1 1 t/1\n1700000001: c1 0 t/2\n"
        >>> log += "1700000002: Received UNSUBSCRIBE from c1\n1700000002: \tt/1\n"
        >>> [(row.filter, row.reason) for row in parse(DumpText.of(log))]
        [('t/1', 'unsubscribed later'), ('t/2', None)]
    """
    history = _LogHistory()
    for line, _ in pairwise(text.lines()):
        history.read(line.removesuffix("\r"))
    subscriptions = 0
    last = next(text.lines())
    for whole, last in pairwise(text.lines()):  # noqa: B007
        line = whole.removesuffix("\r")
        parts = _LINE.match(line)
        if parts is None:
            yield DumpRow(line, reason=Reason.FIELDS if line.strip() else Reason.BLANK)
        elif match := _SUBSCRIBE.fullmatch(parts[2]):
            yield DumpRow(line, None, match[1], match[3], _REASONS[history.ends[subscriptions]])
            subscriptions += 1
    if last:  # the broker ends each line, so this one is incomplete
        yield DumpRow(last, reason=Reason.CUT)


def is_subscribe_line(line: str) -> bool:
    """Whether a line of the log is a subscription.

    Examples:
        >>> is_subscribe_line("1700000000: c1 1 t/1"), is_subscribe_line("1700000000: Saving 1 entries")
        (True, False)
    """
    parts = _LINE.match(line)
    return parts is not None and not parts[2].startswith("\t") and _SUBSCRIBE.fullmatch(parts[2]) is not None


def is_connect_line(line: str) -> bool:
    """Whether a line of the log says that a client has connected."""
    parts = _LINE.match(line)
    return parts is not None and _CONNECT.match(parts[2]) is not None


@dataclass
class _LogHistory:
    """The subscriptions that existed after the lines read so far, and how all others ended.

    It needs 9 bytes per subscribe line, and the texts of those subscriptions that exist at the same time.

    Attributes:
        ends: one number per subscribe line, the index in `_REASONS`.
        before: per subscribe line, an earlier line of the same subscription, if it still existed; else -1.
        active: the last line of each existing subscription, by client and topic filter.
        clean: clients whose subscriptions end when they disconnect: those with a clean session.
        unsubscribing: the client of the last UNSUBSCRIBE; the indented lines after it are its filters.
    """

    ends: bytearray = field(default_factory=bytearray)
    before: array[int] = field(default_factory=lambda: array("q"))
    active: dict[str, dict[str, int]] = field(default_factory=dict)
    clean: set[str] = field(default_factory=set)
    unsubscribing: str | None = None

    def read(self, line: str) -> None:
        parts = _LINE.match(line)
        if parts is None:
            return
        if self.unsubscribing is not None and parts[2].startswith("\t"):
            self._end(self.unsubscribing, parts[2].strip(), Reason.UNSUBSCRIBED)
        else:
            self._event(parts[2])

    def _event(self, event: str) -> None:
        self.unsubscribing = None
        if match := _SUBSCRIBE.fullmatch(event):
            filters = self.active.setdefault(match[1], {})
            self.before.append(filters.get(match[3], -1))
            filters[match[3]] = len(self.ends)
            self.ends.append(0)
        elif match := _UNSUBSCRIBE.fullmatch(event):
            self.unsubscribing = match[1]
        elif match := _CONNECT.match(event):
            self._connect(match[1], match[2], match[3] == "1")
        elif match := _EXPIRED.match(event):
            self._end_all(match[1])
        elif (match := _GONE.match(event)) and (match[1] or match[2]) in self.clean:
            self._end_all(match[1] or match[2])
            self.clean.discard(match[1] or match[2])
        elif _START.match(event):
            for client in self.clean:
                self._end_all(client)
            self.clean.clear()
        else:
            self._unsubscribe(event)

    def _connect(self, client: str, protocol: str, clean_start: bool) -> None:
        if clean_start:
            self._end_all(client)
        if clean_start and (protocol != MQTT_5 or client.startswith(OWN_CLIENTS)):
            self.clean.add(client)
        else:
            self.clean.discard(client)

    def _unsubscribe(self, event: str) -> None:
        """End the subscription that a line `<client> <filter>` names; both can contain spaces."""
        words = event.split(" ", _MOST_WORDS)
        for cut in range(1, len(words)):
            client = " ".join(words[:cut])
            if client in self.active and (topic_filter := " ".join(words[cut:])) in self.active[client]:
                self._end(client, topic_filter, Reason.UNSUBSCRIBED)

    def _end_all(self, client: str) -> None:
        for topic_filter in list(self.active.get(client, ())):
            self._end(client, topic_filter, Reason.ENDED)

    def _end(self, client: str, topic_filter: str, reason: str) -> None:
        filters = self.active.get(client, {})
        row = filters.pop(topic_filter, -1)
        while row >= 0:
            self.ends[row] = _REASONS.index(reason)
            row = self.before[row]
        if not filters:
            self.active.pop(client, None)


FORMAT = DumpFormat(
    "mosquitto",
    "Mosquitto's log with log_type subscribe (and unsubscribe)",
    parse,
    lambda head: re.match(rf"\d{{9,}}: |{_DATE}: ", head) is not None,
)
