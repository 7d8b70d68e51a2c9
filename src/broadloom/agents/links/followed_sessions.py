"""Sessions and subscriptions of a Mosquitto, followed line by line through its log.

The lines come from `$SYS/broker/log/...` or from a log file. They do not say how long a session of MQTT 5
outlives its connection. Such a session is *unsure* while its client is away, and its filters stay wanted
until the broker's own count of subscriptions shows that it has ended: one filter too many costs a link at
most, one too few loses messages.

A client chooses its own id, which can look like a part of a line. So each line is read in all possible ways,
and a reading that names a client that is known to be connected wins.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from broadloom.mqtt.topic_filters import OWN_CLIENTS, SHARED, is_valid_filter

LONGEST_EVENT = 960  # bytes; Mosquitto cuts lines off at 1,000 bytes, up to 40 of which are the time
MOST_SESSIONS = 200_000
MOST_FILTERS = 200_000  # distinct ones
MQTT_5 = 5
# Whether a session outlives its connection.
ENDS, STAYS, UNKNOWN = "ends", "stays", "unknown"

_DATE = r"\d{4}-\d\d-\d\d[T ][\d:.+-]+Z?"
_STAMP = re.compile(rf"(?:\d{{9,}}|{_DATE}): ")
_SUBSCRIBE = re.compile(r" [012] (?=.)")
MOST_BRIDGES = 1_000
# Sessions whose end is remembered.
MOST_ENDS = 10_000
_CONNECT = re.compile(
    r"New (?:client|bridge) connected from \S+ as (.+) \(p(\d+), c([01]), k\d+(?:, u'.*')?\)\."
)
_GONE = re.compile(
    r" (?=(?:disconnected(?:\.|(?:,|:| due to) .*\.)|closed its connection\.|has exceeded timeout, .*\.)$)"
)
_SOCKET_ERROR = re.compile(r"Socket error on client (.+), disconnecting\.")
_ADDRESS = re.compile(r" \[[^ \]]*\]$")
_EXPIRED = re.compile(r"Expiring (?:persistent )?client (.+) due to timeout\.?")
_START = re.compile(r"mosquitto version \S+ starting")
# Beginnings of lines about other events, which can look like a subscription if they contain a number.
_OTHER = (
    "Received ",
    "Sending ",
    "New ",
    "Client ",
    "Socket ",
    "Opening ",
    "Saving ",
    "Config ",
    "Bridge ",
    "Connecting ",
    "Expiring ",
    "mosquitto ",
    "Warning: ",
    "Error: ",
    "Outgoing ",
    "No will ",
    "Will message ",
    "\t",
)
_FREQUENT = ("Received ", "Sending ", "\t")
_UNSUBSCRIBING = "Received UNSUBSCRIBE from "
_MOST_READINGS = 3  # of a line whose client is unknown
_MOST_WORDS = 100  # of the client and the filter that a line names; a longer line names neither


def wanted_filter(client: str, topic_filter: str) -> str | None:
    """The filter that links should carry for a subscription; None: none.

    Examples:
        >>> wanted_filter("c1", "$share/group/a/+"), wanted_filter("c1", "$SYS/#")
        ('a/+', None)
        >>> wanted_filter("broadloom-agent-rome", "a/+") is None
        True
    """
    if client.startswith(OWN_CLIENTS):
        return None
    text = re.sub(SHARED, "", topic_filter)
    return None if text.startswith("$") or not is_valid_filter(text) else text


@dataclass
class FollowedSession:
    """Session of one client.

    Attributes:
        filters: its topic filters, with `$share/...`.
        lasting: whether it outlives its connection: ENDS, STAYS or UNKNOWN.
        connected: whether its client is connected, as far as the lines tell.
        unsure: whether it can have ended without a line.
        parked: whether the broker's counts could not tell it from other unsure sessions.
        since: the time at which its client disconnected, in seconds since 1970.
        qualities: the quality of service of filters; those from before a restart lack it.
        has_connected: whether a line has told that its client connected; none does of the end of a bridge at
            its own broker.
        is_whole: whether all its filters are known: none can be missing.
        touched: the time of the last event that concerns its filters, in seconds since 1970.
    """

    filters: set[str] = field(default_factory=set)
    lasting: str = UNKNOWN
    connected: bool = True
    unsure: bool = False
    parked: bool = False
    since: float = 0.0
    qualities: dict[str, int] = field(default_factory=dict)
    has_connected: bool = False
    is_whole: bool = False
    touched: float = 0.0


class FollowedSessions:
    """All sessions of a broker, and how many of them want each topic filter.

    Attributes:
        sessions: by client.
        wanted: the number of subscriptions per filter that links should carry.
        refused: sessions and filters beyond the most that are followed.
        cut: subscriptions whose line is cut off, so that their filter is unknown.
        events: the number of connections, subscriptions and their ends so far.
        bridges: the client ids of bridges that have connected from other brokers.
        ended_at: when sessions ended, by client; the newest `MOST_ENDS` of them.
        knows_all: whether all sessions are known, so that one that is not known is new.
        missed_at: the time at which lines were last missing, in seconds since 1970.

    Examples:
        >>> followed = FollowedSessions()
        >>> followed.read("1700000000: New client connected from 10.0.0.7:4000 as c1 (p2, c1, k60).")
        >>> followed.read("1700000000: c1 0 a/+")
        >>> list(followed.wanted)
        ['a/+']
        >>> followed.read("1700000009: Client c1 disconnected.")
        >>> list(followed.wanted)
        []
    """

    def __init__(self) -> None:
        self.bridges: set[str] = set()
        self.sessions: dict[str, FollowedSession] = {}
        self.wanted: Counter[str] = Counter()
        self.refused = 0
        self.cut = 0
        self.events = 0
        self.ended_at: dict[str, float] = {}
        self.knows_all = False
        self.missed_at = 0.0
        self._unsubscribing: str | None = None
        self._odd: set[str] = set()  # clients whose id begins like a line about another event

    # Lines.

    def read(self, line: str) -> None:
        """Follow one line of a log file, whatever it is about."""
        event = _STAMP.sub("", line, count=1) if _STAMP.match(line) else line.partition(": ")[2]
        if self._unsubscribing is not None and event.startswith("\t"):
            self.unsubscribed(self._unsubscribing, event[1:])
            return
        self._unsubscribing = None
        is_other = event.startswith(_OTHER)
        if is_other and not self._odd:
            self._read_other(event)
        elif self._has_subscriber(event):
            self.read_subscribe(event)
        elif any(text in self.sessions[one].filters for one, text in self._unsubscriptions(event)):
            self.read_unsubscribe(event)
        elif is_other:
            self._read_other(event)
        elif _SUBSCRIBE.search(event):
            self.read_subscribe(event)

    def _read_other(self, event: str) -> None:
        """Follow a line that is not a subscription or an unsubscription."""
        if event.startswith(_UNSUBSCRIBING):
            self._unsubscribing = event.removeprefix(_UNSUBSCRIBING)
        elif not event.startswith(_FREQUENT):
            self.read_notice(event)

    def _has_subscriber(self, event: str) -> bool:
        """Whether a line is a subscription of a client that is known to be connected.

        The reading comes first, since a client's id can look like the beginning of any other line.
        """
        found = [self.sessions.get(client) for client, _, _ in _subscriptions(event)]
        return any(session is not None and session.connected for session in found)

    def read_subscribe(self, event: str) -> None:
        """Follow `<client> <qos> <filter>`, without the time; both texts can contain spaces."""
        if len(event.encode("utf-8", "replace")) >= LONGEST_EVENT:
            self.cut += 1
            self.events += 1
            for client, _, _ in _subscriptions(event):
                if client in self.sessions:
                    self.sessions[client].is_whole = False
            return
        readings = list(_subscriptions(event))
        known = [one for one in readings if one[0] in self.sessions and self.sessions[one[0]].connected]
        for client, topic_filter, quality in known or readings[:_MOST_READINGS]:
            self.subscribed(client, topic_filter, quality)

    def read_unsubscribe(self, event: str) -> None:
        """Follow `<client> <filter>`, without the time.

        A line that can be of several known clients ends nothing: any client can unsubscribe from what it
        does not have.
        """
        found = list(self._unsubscriptions(event))
        if len(found) == 1:
            self.unsubscribed(*found[0])

    def read_notice(self, event: str) -> bool:
        """Follow a line about a connection, a session or the broker, without the time; False: another one."""
        if match := _CONNECT.fullmatch(event):
            if event.startswith("New bridge ") and len(self.bridges) < MOST_BRIDGES:
                self.bridges.add(match[1])
            self.connected(match[1], int(match[2]), match[3] == "1")
        elif event.startswith("Client "):
            client = self._gone(event.removeprefix("Client "))
            if client is None:
                return False
            self.disconnected(client)
        elif match := _SOCKET_ERROR.fullmatch(event):
            self.disconnected(match[1])
        elif match := _EXPIRED.fullmatch(event):
            self.ended(match[1])
        elif _START.match(event):
            self.restarted()
        else:
            return False
        return True

    def _gone(self, text: str) -> str | None:
        """The client that a line `Client <client> disconnected...` names; None: it is unknown.

        The client's id ends where the broker's own words begin for the last time.
        """
        found = list(_GONE.finditer(text))
        if not found:
            return None
        client = text[: found[-1].start()]
        return next((one for one in (client, _ADDRESS.sub("", client)) if one in self.sessions), None)

    def _unsubscriptions(self, event: str) -> Iterator[tuple[str, str]]:
        """All readings of a line as `<client> <filter>` with a client that is known."""
        words = event.split(" ", _MOST_WORDS)
        for cut in range(1, len(words)):
            client = " ".join(words[:cut])
            if client in self.sessions:
                yield client, " ".join(words[cut:])

    # Events.

    def connected(self, client: str, protocol: int, clean_start: bool) -> None:
        """A client has connected."""
        self.events += 1
        session = self._session(client)
        if session is None:
            return
        if clean_start:
            self._drop(client, list(session.filters))
            session.is_whole = True
        session.touched = time.time()
        own = client.startswith(OWN_CLIENTS)
        session.lasting = ENDS if clean_start else STAYS
        if protocol >= MQTT_5 and not own:
            session.lasting = UNKNOWN
        session.connected = True
        session.has_connected = True
        session.unsure = False
        session.parked = False

    def subscribed(self, client: str, topic_filter: str, quality: int | None = None) -> None:
        """A client has subscribed, for the first time or again."""
        self.events += 1
        session = self._session(client)
        if session is None:
            return
        session.connected = True
        session.touched = time.time()
        if quality is not None:
            session.qualities[topic_filter] = quality
        if topic_filter in session.filters:
            return
        wanted = wanted_filter(client, topic_filter)
        if wanted is not None:
            if wanted not in self.wanted and len(self.wanted) >= MOST_FILTERS:
                self.refused += 1
                session.is_whole = False
                return
            self.wanted[wanted] += 1
        session.filters.add(topic_filter)

    def unsubscribed(self, client: str, topic_filter: str) -> None:
        """A client has unsubscribed."""
        self.events += 1
        session = self.sessions.get(client)
        if session is None:
            return
        session.touched = time.time()
        if topic_filter in session.filters:
            self._drop(client, [topic_filter])

    def disconnected(self, client: str) -> None:
        """A connection has ended."""
        self.events += 1
        session = self.sessions.get(client)
        if session is None:
            return
        if session.lasting == ENDS or not session.filters:
            self.ended(client)
            return
        session.connected = False
        session.since = time.time()
        session.unsure = session.unsure or session.lasting == UNKNOWN

    def ended(self, client: str) -> None:
        """A session has ended."""
        self.events += 1
        if client in self.sessions:
            self._drop(client, list(self.sessions[client].filters))
            del self.sessions[client]
            self._odd.discard(client)
            self.ended_at.pop(client, None)
            self.ended_at[client] = time.time()
            if len(self.ended_at) > MOST_ENDS:
                del self.ended_at[next(iter(self.ended_at))]

    def restarted(self) -> None:
        """The broker has started: sessions that end with their connection have ended, others can have."""
        self.events += 1
        for client, session in list(self.sessions.items()):
            if session.lasting == ENDS:
                self.ended(client)
            else:
                session.connected = False
                session.unsure = True
                session.parked = False

    def missed(self) -> None:
        """Lines are missing here: any session can have ended, or have filters that are not known."""
        self.events += 1
        self.knows_all = False
        self.missed_at = time.time()
        for session in self.sessions.values():
            session.unsure = True
            session.parked = False
            session.is_whole = False
            session.touched = self.missed_at

    def saved(self, client: str, filters: Mapping[str, int]) -> None:
        """All filters of a session with their QoS, as the broker has saved them since its last event."""
        session = self._session(client)
        if session is None:
            return
        connected = session.connected
        self._drop(client, session.filters - filters.keys())
        session.is_whole = True
        for topic_filter, quality in filters.items():
            self.subscribed(client, topic_filter, quality)
        session.connected = connected

    def found_all(self) -> None:
        """The broker counts exactly the subscriptions that are known."""
        self.knows_all = not self.refused
        for session in self.sessions.values():
            session.is_whole = True

    # Unsure sessions.

    def sure_count(self) -> int:
        """The number of subscriptions of sessions that exist for sure, our own included."""
        return sum(len(session.filters) for session in self.sessions.values() if not session.unsure)

    def unsure_counts(self, parked: bool) -> dict[str, int]:
        """The number of subscriptions per unsure session, of those that are parked or of the others."""
        return {
            name: len(session.filters)
            for name, session in self.sessions.items()
            if session.unsure and session.parked == parked
        }

    def confirm(self, clients: Iterable[str]) -> None:
        """The broker's count shows that unsure sessions exist."""
        for client in clients:
            if client in self.sessions:
                self.sessions[client].unsure = False

    def park(self, clients: Iterable[str]) -> None:
        """The broker's count shows that some of these unsure sessions exist, but not which."""
        for client in clients:
            if client in self.sessions:
                self.sessions[client].parked = True

    # State on disk.

    def to_json(self) -> list[list[Any]]:
        """One row per session: client, lasting, connected, unsure, filters, and three properties."""
        return [
            [
                *(client, session.lasting, session.connected, session.unsure, sorted(session.filters)),
                *(client in self.bridges, session.has_connected, session.is_whole),
            ]
            for client, session in self.sessions.items()
        ]

    def load(self, rows: Iterable[Any]) -> None:
        """Add the rows of `to_json`.

        Raises:
            ValueError: they are not such rows.
        """
        for row in rows:
            client, lasting, connected, unsure, filters, *more = row
            # An earlier version did not save them.
            is_bridge, has_connected, is_whole = (*more, False, False, False)[:3]
            if not isinstance(client, str) or lasting not in (ENDS, STAYS, UNKNOWN):
                raise ValueError(f"{row!r:.80} is not a session")
            for topic_filter in filters:
                self.subscribed(client, str(topic_filter))
            session = self._session(client)
            if session is not None:
                session.lasting = lasting
                session.connected = bool(connected)
                session.unsure = bool(unsure)
                session.has_connected = bool(has_connected)
                session.is_whole = bool(is_whole)
            if is_bridge:
                self.bridges.add(client)

    def _session(self, client: str) -> FollowedSession | None:
        session = self.sessions.get(client)
        if session is None:
            if len(self.sessions) >= MOST_SESSIONS:
                self.refused += 1
                self.knows_all = False
                return None
            session = self.sessions[client] = FollowedSession(is_whole=self.knows_all)
            if f"{client} ".startswith(_OTHER):
                self._odd.add(client)
        return session

    def _drop(self, client: str, filters: Iterable[str]) -> None:
        session = self.sessions[client]
        for topic_filter in filters:
            session.filters.discard(topic_filter)
            session.qualities.pop(topic_filter, None)
            wanted = wanted_filter(client, topic_filter)
            if wanted is not None:
                self.wanted[wanted] -= 1
                if not self.wanted[wanted]:
                    del self.wanted[wanted]


def _subscriptions(event: str) -> Iterator[tuple[str, str, int]]:
    """All readings of a line as `<client> <qos> <filter>`: the client, the filter and the QoS."""
    for match in _SUBSCRIBE.finditer(event):
        if match.start():
            yield event[: match.start()], event[match.end() :], int(match[0])
