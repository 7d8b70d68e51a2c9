"""Watch of the subscriptions at a Mosquitto: by its log on topics, its log file, and its persistence file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from broadloom.agents.links.count_ledger import CountLedger, KnownCounts
from broadloom.agents.links.followed_sessions import MOST_FILTERS, MOST_SESSIONS, STAYS, FollowedSessions
from broadloom.agents.links.log_tail import LogTail
from broadloom.agents.links.topic_log import (
    COUNT,
    NOTICE,
    SHARED_COUNT,
    SUBSCRIBE,
    UNSUBSCRIBE,
    TopicLog,
    watch_client,
)
from broadloom.agents.links.watch_state import WatchState
from broadloom.deployment import FleetBroker
from broadloom.errors import BroadloomError
from broadloom.mqtt.client_session import watched_task
from broadloom.mqtt.endpoint import Endpoint

RESTART, GAP = "restart", "gap"  # kinds of lines of our own
TAIL_SECONDS = 0.1
IDLE_TAIL_SECONDS = 2.0  # if the file does not grow with the broker's log
FILE_SECONDS = 1.5  # for a line to appear in the log file
SAVED_SECONDS = 5.0  # between looks at mosquitto.db
STATE_SECONDS = 2.0
PATIENCE = 5.0  # for a broker that does not answer, if something is known from before
QUIET_SECONDS = 1.0
MOST_LOG = 256 << 20  # bytes of an old log that are read at the start
MOST_SAVED = 256 << 20
MOST_WAITING = 100_000  # lines
CHUNKS_AT_ONCE = 4
_MAGIC = b"\x00\xb5\x00mosquitto db"
_CONNECTIONS = ("New connection from ", "New client connected from ")


class MosquittoWatch:
    """Follows the subscriptions at one Mosquitto.

    The log file, if it is given and grows, is the best source: it has no gap. Else the log on topics is
    followed. The persistence file adds sessions from before, and ends sessions that it lacks.

    Args:
        broker: the broker.
        endpoint: its endpoint.
        changed: called when `current` can have changed.
        ready: called when `current` is known as well as it can be.
        problem: called with what an operator should know.
        state: the file for the state; None: it is forgotten with the process.

    Attributes:
        followed: the sessions of the broker.
        is_complete: whether the broker counts exactly the subscriptions that are known.
        is_answered: set once the broker lets its log be followed, or refuses to: what others subscribe from
            then on is in the log.
        on_notice: called with each notice of the log on topics.
        solved: called with the line of a problem that has ended.
        client: the id under which the log on topics is followed; empty: that of the broker's agent.
    """

    def __init__(
        self,
        broker: FleetBroker,
        endpoint: Endpoint,
        changed: Callable[[], None],
        ready: Callable[[], None],
        problem: Callable[[str], None],
        state: Path | None,
    ) -> None:
        self.followed = FollowedSessions()
        self.is_complete = False
        self.is_answered = asyncio.Event()
        self.on_notice: Callable[[str], None] = lambda _: None
        self.solved: Callable[[str], None] = lambda _: None
        self.client = ""
        self._broker = broker
        self._endpoint = endpoint
        self._changed = changed
        self._ready = ready
        self._problem = problem
        self._present: dict[str, str] = {}  # problems that can end, by what they concern
        self._state = WatchState(state)
        self._topics: TopicLog | None = None
        self._tail: LogTail | None = None
        self._saved: list[Path] = []
        self._saved_at: dict[Path, float] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._uses_file = False
        self._file_has_notices = False
        self._probe: str | None = None
        self._probe_seen = asyncio.Event()
        self._has_lines = asyncio.Event()
        self._undecided: list[tuple[str, str]] | None = []
        self._deciding: asyncio.Task[None] | None = None
        self._last_event = 0.0
        self._dirty = True
        self._counts: dict[str, int] = {}
        self._ledger = CountLedger()
        self._doomed: frozenset[str] = frozenset()
        self._reported = 0

    def current(self) -> Collection[str]:
        """The topic filters that clients want now."""
        return self.followed.wanted.keys()

    async def start(self) -> None:
        """Read what is known from before, and begin to follow."""
        header, last_alive = self._load_state()
        self._follow_one_of(
            [path for source in self._broker.subscription_sources() for path in self._log_of(source)]
        )
        for path in self._saved:
            await self._read_saved(path)
        if self._tail is not None:
            await self._read_log(self._tail, header.get("tail"))
        self._save()
        name = self._broker.name
        client = self.client or watch_client(name)
        self._topics = TopicLog(name, client, self._endpoint, self, last_alive)
        self._topics.start()
        self._tasks = [watched_task(self._keep_state()), watched_task(self._wait_for_broker())]
        if self._tail is not None:
            self._tasks.append(watched_task(self._follow_file(self._tail)))
        if self._saved:
            self._tasks.append(watched_task(self._follow_saved()))

    async def stop(self, forget: bool = False) -> None:
        """Stop; the broker keeps its log for us for a moment, or forgets us."""
        tasks = [*self._tasks, *([self._deciding] if self._deciding is not None else ())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._topics is not None:
            await self._topics.stop(forget)
        if self._tail is not None:
            self._tail.close()
        self._save()
        self._state.close()

    def _set_problem(self, subject: str, text: str | None) -> None:
        """What is wrong with something; None: nothing, or no longer."""
        before = self._present.pop(subject, None)
        if before is not None and before != text:
            self.solved(before)
        if text is not None:
            self._present[subject] = text
            self._problem(text)

    # What is known from before.

    def _load_state(self) -> tuple[dict[str, Any], float | None]:
        try:
            found = self._state.load()
            if found is None:
                return {}, None
            header, rows, lines, at = found
            self.followed.load(rows)
            self.followed.knows_all = header.get("knows_all") is True
            for kind, event in lines:
                self._follow(kind, event)
        except (OSError, ValueError, TypeError, IndexError) as error:
            self._problem(
                f"what was known about subscriptions at broker {self._broker.name!r} cannot be read "
                f"({str(error)[:80]!r}); it is learned anew"
            )
            self.followed = FollowedSessions()
            return {}, None
        return header, at

    def _log_of(self, source: str) -> list[Path]:
        """The log that a source is, if it is one; take over a persistence file."""
        path = Path(source)
        if "://" in source:
            self._problem(f"broker {self._broker.name!r} is a mosquitto, which has no API of subscriptions")
            return []
        try:
            with path.open("rb") as file:
                is_saved = file.read(len(_MAGIC)) == _MAGIC
        except OSError as error:
            is_saved = path.suffix == ".db"
            if not is_saved:
                self._problem(
                    f"the log {source!r} of broker {self._broker.name!r} cannot be read: {error.strerror}"
                )
        if is_saved:
            self._saved.append(path)
        return [] if is_saved else [path]

    def _follow_one_of(self, logs: list[Path]) -> None:
        """Follow the newest of some logs: a mosquitto writes one, and the others are earlier ones."""
        if not logs:
            return
        newest = max(enumerate(logs), key=lambda one: (one[1].suffix != ".gz", _modified(one[1]), one[0]))[1]
        self._tail = LogTail(newest)
        others = ", ".join(repr(str(path)) for path in logs if path != newest)
        if others:
            self._problem(
                f"of the logs of broker {self._broker.name!r} in `subscriptions`, only the newest, "
                f"{str(newest)!r}, is followed, and not {others}; mosquitto.db has sessions from before"
            )

    async def _read_log(self, tail: LogTail, position: Any) -> None:
        """Read a log file up to its present end."""
        resumed = tail.resume(position)
        if not resumed:
            self._begin_log(tail)
        while lines := tail.read():
            self._take_lines(tail, lines)
            await asyncio.sleep(0)

    def _begin_log(self, tail: LogTail) -> None:
        """Prepare to read a log from its beginning, or, if it is very long, from a later point."""
        try:
            with tail.path.open("rb") as file:
                is_whole = b" starting" in file.readline(1_000)
            too_long = tail.path.stat().st_size > MOST_LOG
        except OSError:
            return
        if too_long:
            self._problem(
                f"only the last {MOST_LOG >> 20} MiB of {str(tail.path)!r} are read; rotate it more often"
            )
            tail.skip_to_last(MOST_LOG)
        if is_whole and not too_long:
            self.followed = FollowedSessions()  # the log tells everything
            self.followed.knows_all = not self._saved  # sessions from before are in mosquitto.db
        else:
            self.followed.missed()

    # The log file.

    async def _follow_file(self, tail: LogTail) -> None:
        while True:
            for _ in range(CHUNKS_AT_ONCE):
                lines = tail.read()
                self._take_lines(tail, lines)
                if not lines:
                    break
            is_idle = not self._uses_file and self._undecided is None
            with suppress(TimeoutError):
                async with asyncio.timeout(IDLE_TAIL_SECONDS if is_idle else TAIL_SECONDS):
                    await self._has_lines.wait()
            self._has_lines.clear()

    def _take_lines(self, tail: LogTail, lines: list[str]) -> None:
        before = self.followed.events
        if tail.gap:
            self.followed.missed()
            tail.gap = False
        for line in lines:
            self.followed.read(line)
            if self._probe is not None and line.endswith(self._probe):
                self._probe_seen.set()
            if not self._file_has_notices and any(text in line for text in _CONNECTIONS):
                self._file_has_notices = True
        if self.followed.events > before:
            self._note_event()

    # The log on topics: callbacks of TopicLog.

    def topic_line(self, kind: str, event: str) -> None:
        """A line, a restart of the broker, or a gap."""
        if kind == NOTICE:
            self.on_notice(event)
        if self._uses_file:
            self._has_lines.set()  # the broker writes a line to the file first
            return
        if self._undecided is not None:
            if len(self._undecided) < MOST_WAITING:
                self._undecided.append((kind, event))
            return
        self._take(kind, event)

    def topic_restart(self) -> None:
        """The broker has started at this point of the lines."""
        self.topic_line(RESTART, "")

    def topic_gap(self) -> None:
        """Lines are missing at this point."""
        self.topic_line(GAP, "")

    def topic_answered(self) -> None:
        """The broker publishes its lines from now on, or refuses to."""
        self.is_answered.set()

    def topic_probe(self, text: str) -> None:
        """A line of this text is to appear in the log now."""
        if self._tail is not None:
            self._probe = text
            self._probe_seen.clear()

    def topic_state(self, seen: frozenset[str]) -> None:
        """Which kinds of lines the broker publishes."""
        if self._deciding is not None:
            self._deciding.cancel()
        self._deciding = watched_task(self._decide(seen))

    async def _decide(self, seen: frozenset[str]) -> None:
        """Choose the source: the log file if it grows with the broker's log, else the topics."""
        uses_file = False
        if self._tail is not None:
            try:
                async with asyncio.timeout(FILE_SECONDS):
                    await self._probe_seen.wait()
                uses_file = True
                self._set_problem("log", None)
            except TimeoutError:
                self._set_problem(
                    "log",
                    f"the log {str(self._tail.path)!r} does not show what happens at broker "
                    f"{self._broker.name!r} now; is it the broker's own, with log_type subscribe?",
                )
        if self._uses_file and not uses_file:
            self.followed.missed()
        self._uses_file = uses_file
        waiting, self._undecided = self._undecided or [], None
        if not uses_file:
            for kind, event in waiting:
                self._take(kind, event)
        kinds = seen
        if uses_file:
            kinds = seen | {SUBSCRIBE, UNSUBSCRIBE} | ({NOTICE} if self._file_has_notices else set())
        self._report_missing_kinds(kinds)
        if SUBSCRIBE in kinds or self.followed.sessions:
            self._ready()
        self._changed()

    def _report_missing_kinds(self, kinds: frozenset[str] | set[str]) -> None:
        name = self._broker.name
        if SUBSCRIBE in kinds:
            self._set_problem(SUBSCRIBE, None)
        else:
            self._set_problem(
                SUBSCRIBE,
                f"subscriptions at broker {name!r} cannot be followed: add `log_dest topic` and the lines "
                "`log_type subscribe`, `log_type unsubscribe`, `log_type notice` to its mosquitto.conf, "
                "besides those that its own log needs, and restart it; or give the path of its log in "
                "`subscriptions`",
            )
        for kind, what in ((UNSUBSCRIBE, "unsubscribe"), (NOTICE, "disconnect")):
            text = (
                f"broker {name!r} does not log clients that {what}, so that links stay after them: "
                f"add `log_type {kind}` to its mosquitto.conf and restart it"
            )
            self._set_problem(kind, text if SUBSCRIBE in kinds and kind not in kinds else None)

    def _take(self, kind: str, event: str) -> None:
        try:
            self._state.append(kind, event)
        except OSError as error:
            self._problem(f"what clients of {self._broker.name!r} want cannot be saved: {error.strerror}")
        self._follow(kind, event)
        self._note_event()

    def _follow(self, kind: str, event: str) -> None:
        if kind == SUBSCRIBE:
            self.followed.read_subscribe(event)
        elif kind == UNSUBSCRIBE:
            self.followed.read_unsubscribe(event)
        elif kind == NOTICE:
            self.followed.read_notice(event)
        elif kind == RESTART:
            self.followed.restarted()
            self._ledger = CountLedger()
        elif kind == GAP:
            self.followed.missed()
            self._ledger = CountLedger()

    def _note_event(self) -> None:
        self._last_event = time.monotonic()
        self._dirty = True
        name = self._broker.name
        if self.followed.cut:
            self._problem(
                f"broker {name!r} cuts lines of its log off at 1,000 bytes, so that a long topic filter is "
                "unknown and not carried; let the client subscribe to a shorter one that covers it"
            )
        if self.followed.refused:
            self._problem(
                f"broker {name!r} has more than {MOST_SESSIONS:,} sessions or {MOST_FILTERS:,} filters; "
                "the others are not followed"
            )
        self._changed()

    # The broker's own counts.

    def topic_count(self, kind: str, number: int) -> None:
        """A count of the broker has changed."""
        self._counts[kind] = number

    def topic_tick(self) -> None:
        """The broker looks at its counts now, and sends those that have changed next."""
        if self._undecided is None:
            known = KnownCounts.of(self.followed)
            asyncio.get_running_loop().call_later(QUIET_SECONDS, self._compare, known, time.monotonic())

    def _compare(self, known: KnownCounts, at: float) -> None:
        """Compare the broker's counts with what was known at a tick."""
        if self._uses_file and self._last_event > at - QUIET_SECONDS:
            return  # the file can be ahead of the tick, or behind it
        if COUNT not in self._counts:
            return
        count = self._counts[COUNT] + self._counts.get(SHARED_COUNT, 0)
        judgement = self._ledger.judge(count, known)
        if known == (count, {}, {}) and known == KnownCounts.of(self.followed):
            self.followed.found_all()
        self.followed.confirm(judgement.exist)
        self.followed.park(judgement.parked)
        self._end_doomed(judgement.ended)
        self.is_complete = self._ledger.unseen == 0
        self._report_unseen()

    def _end_doomed(self, doomed: frozenset[str]) -> None:
        """End sessions that two comparisons in a row have found to be over."""
        for client in doomed & self._doomed:
            session = self.followed.sessions.get(client)
            if session is not None and session.unsure:
                self.followed.ended(client)
                self._note_event()
        self._doomed = doomed

    def _report_unseen(self) -> None:
        unseen = self._ledger.unseen or 0
        if self._ledger.unseen == 0:
            self._set_problem("count", None)
        elif unseen > self._reported:
            self._set_problem(
                "count",
                f"broker {self._broker.name!r} counts {unseen:,} subscription{'' if unseen == 1 else 's'} "
                "that its agent has not seen, because they are older, so links do not follow them; give the "
                "path of its log in `subscriptions` (and mosquitto.db) and restart the agent, or restart the "
                "broker, so that its clients subscribe again",
            )
        self._reported = unseen

    # mosquitto.db.

    async def _follow_saved(self) -> None:
        while True:
            await asyncio.sleep(SAVED_SECONDS)
            for path in self._saved:
                await self._read_saved(path)

    async def _read_saved(self, path: Path) -> None:
        """Take sessions from a persistence file that is new, and end those that it lacks."""
        from broadloom.formats.mosquitto_db import read_mosquitto_db

        try:
            found = path.stat()
            if found.st_mtime == self._saved_at.get(path):
                return
            if found.st_size > MOST_SAVED:
                self._set_problem(
                    str(path),
                    f"{str(path)!r} has more than {MOST_SAVED >> 20} MiB and is not read, so that sessions "
                    f"from before the agent's start are unknown; give the log of {self._broker.name!r} too",
                )
                return
            saved = read_mosquitto_db(await asyncio.to_thread(path.read_bytes))
        except FileNotFoundError:
            return  # the broker has not written it yet
        except (OSError, BroadloomError) as error:
            self._set_problem(str(path), f"{str(path)!r} cannot be read: {error}")
            return
        self._set_problem(str(path), None)
        self._saved_at[path] = found.st_mtime
        ends = self.followed.ended_at
        ended = {client for client in ends if ends[client] > found.st_mtime - QUIET_SECONDS}
        known = ended | set(self.followed.sessions)
        now = time.time()
        filters: dict[str, dict[str, int]] = {}
        for one in saved.subscriptions:
            filters.setdefault(one.client, {})[one.filter] = one.qos
            if one.client not in known and not saved.has_expired(one.client, now):
                self.followed.subscribed(one.client, one.filter, one.qos)
                session = self.followed.sessions.get(one.client)
                if session is not None:
                    session.lasting = STAYS
                    session.connected = False
                    session.touched = 0.0
        if saved.damage is None:
            self._end_unsaved(set(saved.expires), found.st_mtime)
            self._complete_saved(filters, found.st_mtime - QUIET_SECONDS)
        self._note_event()

    def _complete_saved(self, filters: dict[str, dict[str, int]], at: float) -> None:
        """Take all filters of sessions that have not changed between a time and the writing of the file."""
        followed = self.followed
        for client in filters.keys() & followed.sessions.keys():
            session = followed.sessions[client]
            if not session.is_whole and session.touched < at:
                followed.saved(client, filters[client])
        followed.knows_all = followed.knows_all or (followed.missed_at < at and not followed.refused)

    def _end_unsaved(self, saved: set[str], at: float) -> None:
        for client, session in list(self.followed.sessions.items()):
            if session.lasting != STAYS or session.connected or session.since > at - QUIET_SECONDS:
                continue
            if client in saved:
                session.unsure = False
            else:
                self.followed.ended(client)

    # State.

    async def _wait_for_broker(self) -> None:
        """Tell what is known from before, if the broker does not answer."""
        await asyncio.sleep(PATIENCE)
        if self._undecided is not None and self.followed.sessions:
            self._ready()

    async def _keep_state(self) -> None:
        while True:
            await asyncio.sleep(STATE_SECONDS)
            if self._state.is_long() or (self._uses_file and self._dirty):
                self._save()
            elif self._topics is not None and self._topics.session.up.is_set():
                self._state.touch()

    def _save(self) -> None:
        tail = None if self._tail is None else self._tail.to_json()
        try:
            header = {"tail": tail, "knows_all": self.followed.knows_all}
            self._state.write(header, self.followed.to_json())
            self._dirty = False
        except BroadloomError as error:
            self._problem(str(error))


def _modified(path: Path) -> float:
    """When a file was last written; 0: it cannot be looked at."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
