"""Mosquitto: the log with `log_type subscribe`, and `debug` for what is unsubscribed again.

Lines are `<time>: <client> <qos> <filter>`; `<time>: Received UNSUBSCRIBE from <client>` and then
`<time>: <tab><filter>`. The log tells what happened; the rows are what is subscribed at its end.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from broadloom.formats._row import Format, Row
from broadloom.model import Reason

_DATE = r"\d{4}-\d\d-\d\d[T ][\d:.+-]+Z?"
_LINE = re.compile(rf"({_DATE}|\S+): ?(.*)", re.DOTALL)
# What other lines begin with: a message's topic may look like a client, a quality and a filter.
_OTHER = (
    "Received|Sending|New|Client|Socket|Opening|Saving|Config|Bridge|Connecting|mosquitto|Warning:|Error:"
)
_SUBSCRIBE = re.compile(rf"(?!(?:{_OTHER}) )(\S.*) ([012]) (\S.*)")
_UNSUBSCRIBE = re.compile(r"Received UNSUBSCRIBE from (.+)")
_CONNECT = re.compile(r"New client connected from .* as (.+) \(p\d+, c([01]), ")
_GONE = re.compile(
    r"(?:Client (.+?)(?: \[[^]]*\])? (?:disconnected|closed its connection|has exceeded timeout)"
    r"|Socket error on client (.+?), disconnecting)"
)


def parse(text: str) -> Iterator[Row]:
    r"""A row a subscribe line; lines about other things are passed over.

    Examples:
        >>> log = "1700000000: c1 1 t/1\n1700000001: c1 0 t/2\n"
        >>> log += "1700000002: Received UNSUBSCRIBE from c1\n1700000002: \tt/1\n"
        >>> [(row.filter, row.reason) for row in parse(log)]
        [('t/1', 'unsubscribed later'), ('t/2', None)]
    """
    log = _Log()
    *lines, rest = text.split("\n")
    for line in lines:
        log.read(line.removesuffix("\r"))
    if rest:  # the broker ends each line, so this one is being written, or was cut
        log.rows.append(Row(rest, reason=Reason.CUT))
    yield from log.rows


@dataclass
class _Log:
    """What the lines so far have told."""

    rows: list[Row] = field(default_factory=list)
    standing: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    clean: set[str] = field(default_factory=set)
    leaving: str | None = None

    def read(self, line: str) -> None:
        parts = _LINE.match(line)
        if parts is None:
            self.rows.append(Row(line, reason=Reason.FIELDS if line.strip() else Reason.BLANK))
        elif self.leaving is not None and parts[2].startswith("\t"):
            self._end(self.leaving, parts[2].strip(), Reason.UNSUBSCRIBED)
        else:
            self._event(line, parts[2])

    def _event(self, line: str, event: str) -> None:
        self.leaving = None
        if said := _SUBSCRIBE.fullmatch(event):
            self.standing.setdefault(said[1], {}).setdefault(said[3], []).append(len(self.rows))
            self.rows.append(Row(line, None, said[1], said[3]))
        elif said := _UNSUBSCRIBE.fullmatch(event):
            self.leaving = said[1]
        elif said := _CONNECT.match(event):
            if said[2] == "1":
                self._end_all(said[1])
                self.clean.add(said[1])
            else:
                self.clean.discard(said[1])
        elif (said := _GONE.match(event)) and (said[1] or said[2]) in self.clean:
            self._end_all(said[1] or said[2])

    def _end_all(self, client: str) -> None:
        for topic_filter in list(self.standing.get(client, ())):
            self._end(client, topic_filter, Reason.ENDED)

    def _end(self, client: str, topic_filter: str, reason: str) -> None:
        for at in self.standing.get(client, {}).pop(topic_filter, ()):
            self.rows[at] = self.rows[at]._replace(reason=reason)


FORMAT = Format(
    "mosquitto",
    "Mosquitto's log with log_type subscribe (and debug, for unsubscribe)",
    parse,
    lambda head: re.match(rf"\d{{9,}}: |{_DATE}: ", head) is not None,
)
