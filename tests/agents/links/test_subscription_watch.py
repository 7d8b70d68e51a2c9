"""What clients subscribe to, followed at real mosquitto brokers and at stand-ins for other brokers' APIs."""

import asyncio
import json
import os
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import paho.mqtt.client as paho
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broadloom.agents.links import api_watch, followed_sessions, mosquitto_watch, subscription_watch
from broadloom.agents.links.agent_service import WatchedAgent
from broadloom.agents.links.client_watch import ClientWatch
from broadloom.agents.links.count_ledger import CountLedger, KnownCounts
from broadloom.agents.links.followed_sessions import LONGEST_EVENT, FollowedSessions
from broadloom.agents.links.log_tail import LogTail
from broadloom.agents.links.stamps import FleetKey
from broadloom.agents.links.subscription_watch import SubscriptionWatch
from broadloom.agents.links.topic_log import TopicLog
from broadloom.agents.links.watch_state import WatchState
from broadloom.deployment import Fleet, FleetBroker
from broadloom.deployment.rehearsal.mosquitto_lab import free_ports, killed_with_parent, listens
from fleet_lab import HOST, LabBroker, wait_until

pytestmark = pytest.mark.needs("mosquitto")
SECONDS = 60
LOG_TYPES = "\n".join(f"log_type {kind}" for kind in ("subscribe", "unsubscribe", "notice", "information"))
TOPIC_LOG = "log_dest topic"


async def until(condition, what):
    """Wait until a condition holds; fail after a long time."""
    end = asyncio.get_running_loop().time() + SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"not in time: {what}"
        await asyncio.sleep(0.01)


class Watched:
    """A watch, what it has told, and its broker."""

    def __init__(self, broker, folder, subscriptions=None, linger=0.0, kind="mosquitto", is_followed=True):
        port = broker if isinstance(broker, int) else broker.port
        listed = FleetBroker("rome", f"{HOST}:{port}", kind, None, subscriptions=subscriptions)
        self.told, self.problems, self.solved = [], [], []
        self.is_followed = is_followed
        state = folder / "state" / "subscriptions.jsonl"
        self.watch = SubscriptionWatch(
            listed,
            listed.endpoint(),
            self.told.append,
            self.problems.append,
            state,
            linger,
            on_solved=self.solved.append,
        )

    async def __aenter__(self):
        await self.watch.start()
        if self.is_followed:
            await until(lambda: self.told, "the first filters are told")
        return self

    async def __aexit__(self, *_):
        await self.watch.stop()

    async def wants(self, *filters):
        """Wait until exactly these filters were told last."""
        expected = tuple(sorted(filters))
        try:
            await until(lambda: self.told and self.told[-1] == expected, f"{expected}")
        except AssertionError as error:
            raise AssertionError(f"{error}; told {self.told[-3:]}, problems {self.problems}") from None


@contextmanager
def client(broker, name, *filters, version=4, clean=True, expiry=None):
    """A connected client with subscriptions; it disconnects at the end of the block."""
    kept = {} if version == 5 else {"clean_session": clean}
    one = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=version, **kept)
    options = {}
    if version == 5:
        properties = Properties(PacketTypes.CONNECT)
        if expiry is not None:
            properties.SessionExpiryInterval = expiry
        options = {"clean_start": clean, "properties": properties}
    subscribed = set()
    one.on_subscribe = lambda _client, _data, number, *_: subscribed.add(number)
    one.connect(HOST, broker.port, **options)
    one.loop_start()
    try:
        wait_until(one.is_connected, f"{name} is connected")
        numbers = {one.subscribe(text, 1)[1] for text in filters}
        wait_until(lambda: numbers <= subscribed, f"{name} is subscribed")
        yield one
    finally:
        one.disconnect()
        one.loop_stop()


@contextmanager
def lab_broker(folder, settings=TOPIC_LOG):
    """One mosquitto that logs on topics."""
    broker = LabBroker("rome", folder, free_ports(1)[0], settings)
    try:
        yield broker
    finally:
        broker.stop()


SOURCES = ["topics", "file"]


def sources_of(broker, source):
    return str(broker.log) if source == "file" else None


# Mosquitto.


@pytest.mark.parametrize("source", SOURCES)
def test_filters_follow_clients(tmp_path, source):
    """Subscriptions, shared ones, internal ones, and all ways in which they end."""

    async def run(broker):
        async with Watched(broker, tmp_path, sources_of(broker, source)) as rome:
            await rome.wants()
            with client(broker, "c1", "a/1", "$share/g/b/+", "$SYS/#") as one:
                await rome.wants("a/1", "b/+")
                with client(broker, "c2", "a/1"), client(broker, "broadloom-x", "own"):
                    one.unsubscribe(["a/1", "b/+"])
                    one.subscribe("c/#")
                    await rome.wants("a/1", "b/+", "c/#")
                await rome.wants("b/+", "c/#")
            await rome.wants()
            with client(broker, "kept one", "d", clean=False) as one:
                await rome.wants("d")
            with client(broker, "c3", "e"):
                await rome.wants("d", "e")
            await rome.wants("d")
            with client(broker, "kept one") as one:  # a clean session replaces the kept one
                await rome.wants()
                with client(broker, "kept one", "f"):  # the connection is taken over
                    one.loop_stop()
                    await rome.wants("f")
            await rome.wants()
            assert rome.problems == []

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


@pytest.mark.parametrize("source", SOURCES)
def test_a_session_of_mqtt_5_counts_until_the_broker_no_longer_counts_it(tmp_path, source):
    """The log does not tell how long it lasts; the broker's own count does."""

    async def run(broker):
        async with Watched(broker, tmp_path, sources_of(broker, source)) as rome:
            with client(broker, "stays", "b", version=5, expiry=600):
                await rome.wants("b")
                with client(broker, "ends", "a", version=5):
                    await rome.wants("a", "b")
                await rome.wants("b")
            await until(lambda: not is_unsure(rome, "stays"), "the session that stays is confirmed")
            await until(lambda: rome.watch.is_complete, "the count fits")
            with client(broker, "short", "c", version=5, expiry=1):
                await rome.wants("b", "c")
            await rome.wants("b")

    def is_unsure(rome, name):
        session = rome.watch._source.followed.sessions[name]
        return session.connected or session.unsure

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


@pytest.mark.parametrize("source", SOURCES)
def test_what_happens_while_the_watch_is_away_is_not_missed(tmp_path, source):
    """The broker keeps log lines for a moment; a log file keeps them for longer."""

    async def run(broker):
        given = sources_of(broker, source)
        with client(broker, "stays", "kept/1", clean=False), client(broker, "c1") as one:
            async with Watched(broker, tmp_path, given) as rome:
                one.subscribe("a")
                await rome.wants(*(["kept/1"] if source == "file" else []), "a")
            one.unsubscribe("a")
            with client(broker, "c2", "gone"):
                one.subscribe("b")
            with client(broker, "c3", "c"):
                async with Watched(broker, tmp_path, given) as rome:
                    await rome.wants(*(["kept/1"] if source == "file" else []), "b", "c")
                    one.subscribe("d")
                    await rome.wants(*(["kept/1"] if source == "file" else []), "b", "c", "d")

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


@pytest.mark.parametrize("source", SOURCES)
def test_filters_survive_a_restart_of_the_broker(tmp_path, source):
    """Sessions that the broker has saved stay; the others end, and come back with their clients."""

    async def run(broker):
        async with Watched(broker, tmp_path, sources_of(broker, source)) as rome:
            await rome.wants()
            with client(broker, "stays", "kept/1", clean=False):
                pass
            with client(broker, "c1", "a"):
                await rome.wants("a", "kept/1")
                broker.stop()
            restart(broker)
            with client(broker, "c2", "b"):
                await rome.wants("b", "kept/1")
            await rome.wants("kept/1")

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


def test_lines_survive_a_crash_of_the_agent(tmp_path, monkeypatch):
    """They are on disk before they count; the last state that was written as a whole is older."""

    async def run(broker):
        with client(broker, "c1") as one, client(broker, "c2", "never seen"):
            async with Watched(broker, tmp_path) as rome:
                one.subscribe([("a", 0), ("b", 0)])
                one.unsubscribe("b")
                one.subscribe("c")
                await rome.wants("a", "c")
                monkeypatch.setattr(mosquitto_watch.MosquittoWatch, "_save", lambda _: None)
            monkeypatch.undo()
            async with Watched(broker, tmp_path) as rome:
                await rome.wants("a", "c")
                with client(broker, "c1"):  # takes the connection over
                    await rome.wants()

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


def test_lines_that_nobody_kept_end_nothing(tmp_path):
    """After a long absence all that was known stays wanted, until lines or counts tell more."""

    async def run(broker):
        with client(broker, "c1") as one:
            with client(broker, "c2") as two:
                async with Watched(broker, tmp_path) as rome:
                    one.subscribe("a")
                    two.subscribe("b")
                    await rome.wants("a", "b")
                    await rome.watch.stop(forget=True)
            async with Watched(broker, tmp_path) as rome:
                await rome.wants("a", "b")
                one.subscribe("c")
                await rome.wants("a", "b", "c")
        await rome_is_empty(broker, tmp_path)

    async def rome_is_empty(broker, folder):
        async with Watched(broker, folder) as rome:
            await rome.wants()

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


def restart(broker):
    """Start the broker again, and keep its log."""
    before = broker.log.read_bytes()
    old = broker.log.with_suffix(".log.1")
    broker.log.rename(old)
    broker.start()
    assert before


def test_a_storm_of_subscriptions_is_not_cut(tmp_path):
    """Mosquitto would drop most of the lines at QoS 1."""
    count = 5_000

    async def run(broker):
        async with Watched(broker, tmp_path) as rome:
            await rome.wants()
            with client(broker, "storm") as one:
                for first in range(0, count, 200):
                    one.subscribe([(f"s/{number}", 0) for number in range(first, first + 200)])
                await rome.wants(*(f"s/{number}" for number in range(count)))
            await rome.wants()

    with lab_broker(tmp_path, f"log_dest topic\n{LOG_TYPES}") as broker:
        asyncio.run(run(broker))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("", "subscriptions at broker 'rome' cannot be followed: add `log_dest topic` and the lines"),
        ("log_dest topic\nlog_type subscribe\nlog_type notice", "add `log_type unsubscribe`"),
        ("log_dest topic\nlog_type subscribe\nlog_type unsubscribe", "add `log_type notice`"),
    ],
    ids=["no log on topics", "no unsubscribe", "no notice"],
)
def test_a_broker_that_does_not_tell_is_a_problem(tmp_path, monkeypatch, settings, problem):
    """One line that says what to add to mosquitto.conf, once."""
    monkeypatch.setattr("broadloom.agents.links.topic_log.MARKER_SECONDS", 0.5)

    async def run(broker):
        async with Watched(broker, tmp_path, is_followed=bool(settings)) as rome:
            await until(lambda: rome.problems, "a problem is told")
            assert len(rome.problems) == 1
            assert problem in rome.problems[0]
            if settings:
                with client(broker, "c1", "a"):
                    await rome.wants("a")
            else:
                assert rome.told == []

    with PlainBroker(tmp_path, settings) as broker:
        asyncio.run(run(broker))


class PlainBroker:
    """A mosquitto with only these log settings."""

    def __init__(self, folder: Path, settings: str) -> None:
        (self.port,) = free_ports(1)
        text = f"listener {self.port} {HOST}\nuser root\nallow_anonymous true\nsys_interval 1\n{settings}\n"
        self.config = folder / "plain.conf"
        self.config.write_text(text)

    def __enter__(self):
        program = shutil.which("mosquitto") or "mosquitto"
        command = [*killed_with_parent(), program, "-c", str(self.config)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: listens(self.port), "it listens")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(SECONDS)


def test_mosquitto_db_adds_sessions_and_ends_those_that_it_lacks(tmp_path, monkeypatch):
    """The only source of sessions from before a log on topics."""
    monkeypatch.setattr(mosquitto_watch, "SAVED_SECONDS", 0.1)

    async def run(broker):
        with client(broker, "old", "saved/1", clean=False):
            pass
        broker.save("saved/1")
        async with Watched(broker, tmp_path, str(broker.saved)) as rome:
            await rome.wants("saved/1")
            with client(broker, "old", clean=True):
                await rome.wants()
            later = time.time() - 0.5  # as if the broker had saved again, just before the session ended
            os.utime(broker.saved, (later, later))
            await until(
                lambda: abs(rome.watch._source._saved_at[broker.saved] - later) < 0.01, "the file is read"
            )
            await rome.wants()
            with client(broker, "new", "saved/2", clean=False):
                await rome.wants("saved/2")
            await until(lambda: rome.watch.is_complete, "the count fits")
            assert rome.problems == []

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


def test_a_large_mosquitto_db_is_a_problem(tmp_path, monkeypatch):
    monkeypatch.setattr(mosquitto_watch, "MOST_SAVED", 1)
    monkeypatch.setattr(mosquitto_watch, "SAVED_SECONDS", 0.1)

    async def run(broker):
        with client(broker, "old", "saved/1", clean=False):
            pass
        broker.save("saved/1")
        async with Watched(broker, tmp_path, str(broker.saved)) as rome:
            assert "mosquitto.db' has more than 0 MiB and is not read" in rome.problems[0]
            monkeypatch.setattr(mosquitto_watch, "MOST_SAVED", 1 << 20)
            await rome.wants("saved/1")
            assert rome.solved == rome.problems[:1]

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


@pytest.mark.parametrize("is_last", [True, False])
def test_of_several_logs_the_newest_is_followed(tmp_path, is_last):
    """Wherever it stands in the list; the others are named."""

    async def run(broker):
        earlier = tmp_path / "earlier.log"
        earlier.write_text("1600000000: old 0 gone\n")
        os.utime(earlier, (1, 1))
        logs = (str(earlier), str(broker.log)) if is_last else (str(broker.log), str(earlier))
        async with Watched(broker, tmp_path, logs) as rome:
            with client(broker, "c1", "a"):
                await rome.wants("a")
            assert f"is followed, and not '{earlier}'" in rome.problems[0]
            assert len(rome.problems) == 1

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


def test_subscriptions_that_nobody_saw_are_counted_as_a_problem(tmp_path):
    """Without a log file or mosquitto.db, the watch knows nothing from before its start, and says so."""

    async def run(broker):
        with client(broker, "before", "a", "b"):
            async with Watched(broker, tmp_path) as rome:
                await until(lambda: rome.problems, "a problem is told")
                assert "counts 2 subscriptions that its agent has not seen" in rome.problems[0]
                assert not rome.watch.is_complete

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


def test_a_watch_that_starts_again_compares_counts_that_have_not_changed(tmp_path):
    """The broker sends a count only when it changes, so the retained one is needed."""

    async def run(broker):
        with client(broker, "before", "a", "b"):
            for _ in range(2):
                async with Watched(broker, tmp_path) as rome:
                    await until(lambda: rome.problems, "a problem is told")
                    assert "counts 2 subscriptions that its agent has not seen" in rome.problems[0]

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


def test_a_broker_that_its_watch_reaches_last_counts_no_unseen_subscriptions(tmp_path, monkeypatch):
    """The other sessions of an agent subscribe after its watch, so that the log shows what they subscribe."""
    waiting = []
    opened, answered = TopicLog.opened, SubscriptionWatch.answered

    async def noted(watch):
        waiting.append(watch)
        await answered(watch)

    async def run(broker):
        async def opened_last(log, session, connack):
            def others_are_first():
                lines = broker.log.read_text()
                return "1 $broadloom/agent/answer" in lines and "1 $SYS/broker/connection/" in lines

            await until(lambda: len(waiting) == 2 or others_are_first(), "the other sessions are connected")
            await opened(log, session, connack)

        monkeypatch.setattr(TopicLog, "opened", opened_last)
        fleet = Fleet([FleetBroker("rome", f"{HOST}:{broker.port}", tls=None)])
        held = WatchedAgent(fleet, "rome", tmp_path / "state", FleetKey("only for tests, no secret"))
        await held.start()
        watch = held._watchers[0]
        await until(lambda: watch.is_complete or held.agent.report().problems, "the counts are compared")
        assert held.agent.report().problems == ()
        await held.stop()

    monkeypatch.setattr(SubscriptionWatch, "answered", noted)
    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


@pytest.mark.parametrize("answers", [True, False])
def test_other_sessions_do_not_wait_forever_for_the_watch(tmp_path, monkeypatch, answers):
    monkeypatch.setattr(subscription_watch, "ANSWER_SECONDS", SECONDS if answers else 0.1)

    async def run(broker):
        async with Watched(broker if answers else free_ports(1)[0], tmp_path, is_followed=False) as rome:
            await rome.watch.answered()

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


def test_a_damaged_state_is_said_and_learned_anew(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    WatchState(state / "subscriptions.jsonl").write({"sessions": 3}, [["c1"]])

    async def run(broker):
        async with Watched(broker, tmp_path) as rome:
            with client(broker, "c1", "a"):
                await rome.wants("a")
            assert "cannot be read ('it lacks sessions')" in rome.problems[0]

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


@pytest.mark.parametrize("source", SOURCES)
def test_a_filter_that_the_log_cuts_off_is_a_problem(tmp_path, source):
    async def run(broker):
        async with Watched(broker, tmp_path, sources_of(broker, source)) as rome:
            with client(broker, "c1", f"long/{'x' * 1_200}", "a"):
                await rome.wants("a")
                await until(lambda: rome.problems, "a problem is told")
        assert "cuts lines of its log off at 1,000 bytes" in rome.problems[0]

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


def test_a_client_that_reconnects_changes_nothing(tmp_path):
    """A filter stays wanted for a moment after its last client has left."""

    async def run(broker):
        async with Watched(broker, tmp_path, linger=SECONDS) as rome:
            with client(broker, "c1", "a"):
                await rome.wants("a")
            with client(broker, "c1", "a", "b"):
                await rome.wants("a", "b")
            assert ("b",) not in rome.told
            assert rome.told == [(), ("a",), ("a", "b")]

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))


# Lines of the log.


def connected(name, protocol=2, clean=1):
    return f"1700000000: New client connected from 10.0.0.7:4000 as {name} (p{protocol}, c{clean}, k60)."


@pytest.mark.parametrize(
    "name",
    ["a", "a b", "New x as y (p2, c1, k1) 1 z", "Client b disconnected.", "b disconnected", "c [1.2.3.4:5]"],
)
def test_a_hostile_client_id_ends_no_session_but_its_own(name):
    followed = FollowedSessions()
    for line in (connected("b"), "1700000000: b 0 victim", connected(name), f"1700000000: {name} 1 own 0 x"):
        followed.read(line)
    assert set(followed.wanted) == {"victim", "own 0 x"}
    followed.read(f"1700000000: Client {name} disconnected.")
    assert set(followed.wanted) == {"victim"}
    followed.read("1700000000: Client b [10.0.0.7:4000] disconnected.")
    assert not followed.wanted


def test_a_filter_that_the_log_cuts_off_is_not_taken():
    followed = FollowedSessions()
    followed.read(connected("a"))
    followed.read(f"1700000000: a 0 {'x' * LONGEST_EVENT}")
    assert followed.cut == 1
    assert not followed.wanted


def test_sessions_and_filters_are_bounded(monkeypatch):
    monkeypatch.setattr(followed_sessions, "MOST_SESSIONS", 3)
    monkeypatch.setattr(followed_sessions, "MOST_FILTERS", 5)
    followed = FollowedSessions()
    for number in range(9):
        followed.subscribed(f"c{number}", f"f{number}")
        followed.subscribed("c0", f"g{number}")
    assert len(followed.sessions) == 3
    assert len(followed.wanted) == 5
    assert followed.refused == 6 + 7


NAMES, FILTERS = ["a", "a b", "c", "broadloom-x"], ["t", "b t", "$share/g/t", "$SYS/x"]
EVENTS = st.one_of(
    st.tuples(st.just("connect"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("subscribe"), st.sampled_from(NAMES), st.sampled_from(FILTERS)),
    st.tuples(st.just("unsubscribe"), st.sampled_from(NAMES), st.sampled_from(FILTERS)),
    st.tuples(st.just("disconnect"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("restart"), st.just(""), st.none()),
)


@given(st.lists(EVENTS, min_size=8, max_size=40))
def test_no_wanted_filter_is_missing_whatever_happens(events):
    """Against a broker of a few lines; a filter too many can stay only where a line is ambiguous."""
    followed, saved = FollowedSessions(), FollowedSessions()
    sessions: dict[str, set[str]] = {}
    clean: dict[str, bool] = {}
    online: set[str] = set()
    for kind, name, value in events:
        if kind == "subscribe" and name not in online:  # connects first, and keeps its session
            sessions.setdefault(name, set())
            clean[name] = False
            online.add(name)
            followed.read(connected(name, clean=0))
        if kind == "connect":
            sessions[name] = set() if value else sessions.get(name, set())
            clean[name] = value
            online.add(name)
            followed.read(connected(name, clean=int(value)))
        elif kind == "restart":
            online.clear()
            sessions = {one: filters for one, filters in sessions.items() if not clean[one]}
            followed.read("1700000000: mosquitto version 2.0.11 starting")
        elif kind == "subscribe":
            sessions[name].add(value)
            followed.read(f"1700000000: {name} 1 {value}")
        elif name in online and kind == "unsubscribe":
            sessions[name].discard(value)
            followed.read(f"1700000000: {name} {value}")
        elif name in online and kind == "disconnect":
            online.discard(name)
            if clean[name]:
                del sessions[name]
            followed.read(f"1700000000: Client {name} disconnected.")
    wanted = {
        text.removeprefix("$share/g/")
        for name, filters in sessions.items()
        for text in filters
        if not name.startswith("broadloom") and not text.startswith("$SYS")
    }
    assert wanted <= set(followed.wanted)
    if not {"a", "a b"} <= {name for _, name, _ in events}:
        assert wanted == set(followed.wanted)
    saved.load(json.loads(json.dumps(followed.to_json())))
    assert saved.wanted == followed.wanted
    assert saved.sure_count() == followed.sure_count()


SESSIONS = ["a", "b", "c"]
TURNS = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), st.sampled_from(SESSIONS), st.integers(1, 3)),
        st.tuples(st.just("leave"), st.sampled_from(SESSIONS), st.booleans()),
        st.tuples(st.just("expire"), st.sampled_from(SESSIONS), st.none()),
        st.tuples(st.just("tick"), st.just(""), st.none()),
    ),
    min_size=10,
    max_size=60,
)


@given(TURNS, st.integers(0, 2))
def test_counts_end_no_session_that_exists(turns, unseen):
    """Whatever the sessions of MQTT 5 do, and with subscriptions that nobody saw."""
    followed, ledger = FollowedSessions(), CountLedger()
    existing: dict[str, int] = {}
    online: set[str] = set()
    was_parked = False
    for kind, name, value in [("tick", "", None), *turns]:
        if kind == "connect" and name not in online:
            existing[name] = value
            online.add(name)
            followed.connected(name, 5, True)
            for number in range(value):
                followed.subscribed(name, f"{name}/{number}")
        elif kind == "leave" and name in online:
            online.discard(name)
            if not value:
                del existing[name]
            followed.disconnected(name)
        elif kind == "expire" and name in existing and name not in online:
            del existing[name]
            followed.ended(name)
        elif kind == "tick":
            unsure = followed.unsure_counts(False)
            found = ledger.judge(sum(existing.values()) + unseen, KnownCounts.of(followed))
            assert not found.ended & set(existing)
            assert found.exist <= set(existing)
            assert ledger.unseen is None or ledger.unseen <= unseen
            followed.confirm(found.exist)
            followed.park(found.parked)
            for client in found.ended:
                followed.ended(client)
            was_parked = was_parked or bool(found.parked)
            if len(unsure) == 1 and not was_parked:
                assert not followed.unsure_counts(False), "one session alone is told"
    assert set(existing) <= set(followed.sessions)


def test_a_log_is_read_over_rotations(tmp_path):
    """Renamed, truncated, replaced while nobody read it; an incomplete line waits for its end."""
    path = tmp_path / "log"
    path.write_text("1\n2\n3")
    tail = LogTail(path)
    assert tail.read() == ["1", "2"]
    with path.open("a") as file:
        file.write("3\n4\n")
        file.flush()
        path.rename(tmp_path / "log.1")
        path.write_text("5\n")
        file.write("late\n")
    assert tail.read() == ["33", "4", "late"]
    assert tail.read() == ["5"]
    assert not tail.gap
    later = LogTail(path)
    assert later.resume(json.loads(json.dumps(tail.to_json())))
    with path.open("a") as file:
        file.write("6\n")
    path.rename(tmp_path / "log.2")
    path.write_text("7\n")
    assert [later.read(), later.read(), later.gap] == [["6"], ["7"], False]
    path.write_text("")
    assert later.read() == []
    with path.open("a") as file:
        file.write("8\n")
    assert [later.read(), later.gap] == [["8"], True]
    lost = LogTail(path)
    position = later.to_json()
    path.unlink()
    path.write_text("other\n" * 9)
    assert lost.resume(position)
    assert [lost.read(), lost.gap] == [["other"] * 9, True]
    for one in (tail, later, lost):
        one.close()


# APIs.


@contextmanager
def api(answers):
    """An HTTP server; `answers` is a function from a path and a query to a document, or None for 404."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            parts = urlsplit(self.path)
            document = answers(parts.path, {name: one[0] for name, one in parse_qs(parts.query).items()})
            body = json.dumps(document).encode()
            self.send_response(200 if document is not None else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer((HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def emqx(subscriptions, path, query):
    if path != "/api/v5/subscriptions" or subscriptions is None:
        return None
    data = [{"node": "n", "clientid": name, "topic": text} for name, text in subscriptions]
    return {"data": data, "meta": {"page": int(query["page"]), "limit": 1_000, "count": len(data)}}


def nats(subscriptions, path, _query):
    if path != "/connz" or subscriptions is None:
        return None
    listed = [
        {"cid": number, "name": name, "subscriptions_list": [text.replace("/", ".").replace("+", "*")]}
        for number, (name, text) in enumerate(subscriptions)
    ]
    return {"server_id": "n", "total": len(listed), "offset": 0, "connections": listed}


def rabbitmq(subscriptions, path, _query):
    if subscriptions is None or path not in ("/api/bindings", "/api/exchanges"):
        return None
    return [
        {
            "source": "amq.topic",
            "destination_type": "queue",
            "destination": f"mqtt-subscription-{name}qos1",
            "routing_key": text.replace("/", ".").replace("+", "*"),
        }
        for name, text in subscriptions
        if path == "/api/bindings"
    ]


@pytest.mark.parametrize("kind", [emqx, nats, rabbitmq], ids=lambda kind: kind.__name__)
def test_an_api_is_polled(tmp_path, kind, monkeypatch):
    """All subscriptions each time; a poll that fails drops nothing, and the state survives a restart."""
    monkeypatch.setattr(api_watch, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(api_watch, "CPU_SHARE", 1.0)
    now = [("c1", "a/+"), ("broadloom-x", "own")]

    async def run(url):
        nonlocal now
        async with Watched(1, tmp_path, url, kind=kind.__name__) as rome:
            await rome.wants("a/+")
            now = [("c1", "a/+"), ("c2", "b")]
            await rome.wants("a/+", "b")
            assert rome.watch.is_complete
            now = None
            await until(lambda: rome.problems, "a problem is told")
            assert "answers 404" in rome.problems[0]
            assert rome.watch.filters == ("a/+", "b")
            now = [("c1", "a/+"), ("c2", "b")]
            await until(lambda: set(rome.solved) == set(rome.problems), "the problem has ended")
            now = None
        async with Watched(1, tmp_path, url, kind=kind.__name__) as rome:
            await rome.wants("a/+", "b")
            now = [("c2", "b")]
            await rome.wants("b")

    with api(lambda path, query: kind(now, path, query)) as url:
        asyncio.run(run(url))


@pytest.mark.needs("nats-server")
def test_clients_of_a_real_nats_server_are_followed(tmp_path, monkeypatch):
    """Those of NATS and of MQTT; a client of ours is known by its MQTT id."""
    monkeypatch.setattr(api_watch, "POLL_SECONDS", 0.05)
    ports = free_ports(3)

    async def run():
        url = f"http://{HOST}:{ports[1]}"
        async with Watched(ports[0], tmp_path, url, kind="nats") as rome:
            await rome.wants()
            with client(MqttPort, "c1", "a/+") as one, client(MqttPort, "broadloom-x", "own"):
                await rome.wants("a/+")
                one.subscribe("b")
                await rome.wants("a/+", "b")
            await rome.wants()

    class MqttPort:
        port = ports[2]

    config = tmp_path / "nats.conf"
    config.write_text(
        f'server_name: rome\nlisten: "{HOST}:{ports[0]}"\nhttp: "{HOST}:{ports[1]}"\n'
        f'jetstream {{ store_dir: "{tmp_path}" }}\nmqtt {{ listen: "{HOST}:{ports[2]}" }}\n'
    )
    command = [*killed_with_parent(), shutil.which("nats-server") or "nats-server", "-c", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: all(map(listens, ports)), "nats-server listens")
        asyncio.run(run())
    finally:
        process.terminate()
        process.wait(SECONDS)


def test_a_broker_without_an_api_is_a_problem(tmp_path):
    async def run():
        async with Watched(1, tmp_path, kind="nats", is_followed=False) as rome:
            assert rome.problems == [
                "subscriptions at broker 'rome' cannot be followed: give the address of its monitoring port, "
                "such as http://host:8222, as `subscriptions` in [brokers.rome]"
            ]

    asyncio.run(run())


def test_an_event_of_emqx_begins_the_next_poll(tmp_path, monkeypatch):
    """A mosquitto stands in for EMQX and carries its event."""
    monkeypatch.setattr(api_watch, "POLL_SECONDS", SECONDS / 2)
    now = [("c1", "a")]

    async def run(broker, url):
        nonlocal now
        async with Watched(broker, tmp_path, url, kind="emqx") as rome:
            await rome.wants("a")
            await until(lambda: "broadloom-watch-rome 1 " in broker.log.read_text(), "it listens to events")
            now = [("c1", "a"), ("c2", "b")]
            monkeypatch.setattr(api_watch, "POLL_SECONDS", 0.02)
            rome.watch._source.arrived(rome.watch._source._events, Event())
            await rome.wants("a", "b")

    class Event:
        number = 0

    with lab_broker(tmp_path) as broker, api(lambda path, query: emqx(now, path, query)) as url:
        asyncio.run(run(broker, url))


def test_bridges_between_brokers_are_not_clients():
    """A mosquitto names the end of a bridge at its own broker after the other end; also after a restart."""
    at_rome, at_oslo = FollowedSessions(), FollowedSessions()
    for line in (
        "New bridge connected from 10.0.0.7:4000 as oslo.to-rome (p2, c0, k60).",
        "New client connected from 10.0.0.8:4000 as local.meter (p2, c0, k60).",
    ):
        assert at_rome.read_notice(line)
    at_oslo.connected("local.oslo.to-rome", 2, False)
    at_oslo.subscribed("local.oslo.to-elsewhere", "#")  # of mosquitto.db; the other end is not followed
    watch = object.__new__(ClientWatch)
    watch._watches = {
        "rome": SimpleNamespace(followed=at_rome),
        "oslo": SimpleNamespace(followed=at_oslo),
    }
    for _ in range(2):
        assert [one.client for one in watch._seen()] == ["local.meter"]
        assert watch._found("local.oslo.to-rome") is None
        for one in watch._watches.values():
            rows = json.loads(json.dumps(one.followed.to_json()))
            one.followed = FollowedSessions()
            one.followed.load(rows)


def test_sessions_that_an_earlier_version_has_saved_are_known():
    followed = FollowedSessions()
    followed.load([["meter-1", "stays", True, False, ["a/+"]]])
    assert list(followed.wanted) == ["a/+"]


def test_a_session_is_whole_only_if_no_filter_of_it_can_be_missing():
    """A client that comes back to its session need not subscribe again, so its filters can be unknown."""
    followed = FollowedSessions()
    for line in (connected("new", clean=1), connected("old", clean=0), "1700000000: old 1 again"):
        followed.read(line)
    rows = json.loads(json.dumps(followed.to_json()))
    followed = FollowedSessions()
    followed.load(rows)
    assert {name: one.is_whole for name, one in followed.sessions.items()} == {"new": True, "old": False}
    watch = object.__new__(ClientWatch)
    watch._watches = {"rome": SimpleNamespace(followed=followed)}
    assert "give mosquitto.db" in watch._found("old").doubt()
    assert not watch._found("new").doubt()
    followed.read(f"1700000000: new 0 {'x' * LONGEST_EVENT}")
    assert not followed.sessions["new"].is_whole
    followed.found_all()
    followed.read(connected("later", clean=0))  # it was not there before
    assert all(one.is_whole for one in followed.sessions.values())
    followed.missed()
    followed.read(connected("last", clean=0))
    assert not any(one.is_whole for one in followed.sessions.values())


def test_mosquitto_db_has_all_filters_of_a_session_that_was_known_partly(tmp_path, monkeypatch):
    monkeypatch.setattr(mosquitto_watch, "SAVED_SECONDS", 0.1)

    async def run(broker):
        with client(broker, "old", "saved/1", clean=False):
            pass
        async with Watched(broker, tmp_path, str(tmp_path / "later.db")) as rome:
            followed = rome.watch._source.followed
            with client(broker, "old", clean=False):
                await until(lambda: "old" in followed.sessions, "it has connected")
                assert (followed.sessions["old"].is_whole, *followed.wanted) == (False,)
                broker.save("saved/1")
                later = time.time() + 2
                (tmp_path / "later.db").write_bytes(broker.saved.read_bytes())
                os.utime(tmp_path / "later.db", (later, later))
                await until(lambda: followed.sessions["old"].is_whole, "the file is read")
                await rome.wants("saved/1")
                assert followed.sessions["old"].connected

    with lab_broker(tmp_path) as broker:
        asyncio.run(run(broker))
