"""The move agent without brokers: what it refuses and journals, and that a replay restores its state."""

# ruff: noqa: D102, ARG002  # stand-ins have the methods of what they stand for

from __future__ import annotations

import json
import logging
import random
import time
from contextlib import suppress
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadloom import InputError
from broadloom.agents.monitoring import MOST_WARNINGS, RateLimitedLog
from broadloom.agents.moves.client_links import LinkClaims, LinksEverywhere
from broadloom.agents.moves.control_messages import (
    AHEAD,
    ConnectOrder,
    MoveRequest,
    RefusedNumber,
    Register,
    Reply,
    dump,
    from_client,
    is_client_filter,
    parse,
)
from broadloom.agents.moves.move_agent import LEAVING, MoveAgent, Timing
from broadloom.agents.moves.move_registry import (
    FILE,
    NEXT,
    MoveJournal,
    MoveState,
    Numbered,
    Resident,
    from_plain,
    plain,
)
from broadloom.mqtt.endpoint import Address
from broadloom.mqtt.topic_filters import covers

BROKERS = {name: Address("127.0.0.1", 1) for name in "hfg"}
NOW = 1e9


class Still:
    """A wire that does nothing by itself; a test says how its work ends."""

    def __init__(self):
        self.sent = []
        self.work = []

    def send(self, broker, topic, payload):
        self.sent.append((broker, topic, payload))

    def replicate(self, broker, client, filters, then):
        self.work.append(("replicate", broker, client, then))

    def forget(self, broker, client, then):
        self.work.append(("forget", broker, client, then))

    def redirect(self, old, new, client, token, then):
        self.work.append(("redirect", old, client, then))
        return lambda: None


class World:
    """An agent, its wire, and a clock."""

    def __init__(self, folder):
        self.folder, self.number, self.journal = folder, 0, None
        self.start()

    def start(self, brokers=BROKERS, links=None):
        """Start the agent, as after a crash if there was one before."""
        if self.journal is not None:
            self.journal.close()
        self.wire, self.journal = Still(), MoveJournal(self.folder)
        self.agent = MoveAgent(brokers, self.wire, self.journal, links, Timing(ttl=0, settle=0, again=0))

    def say(self, broker, message, call=None):
        call = call or type(message).__name__.lower()
        return self.agent.receive(broker, from_client(message.client, call), dump(message))

    def register(self, client, broker, filters=(("t", 1),)):
        self.number += 1
        return self.say(broker, Register(client, self.number, broker, filters))

    def reply(self, move, answer, broker="h", until=None):
        self.number += 1
        return self.say(broker, Reply(move.client, self.number, move.id, answer, until))

    def step(self, fault=None):
        """Let the agent do what is due, and end all its work."""
        self.agent.step(self.agent.now())
        work, self.wire.work = self.wire.work, []
        for *_, then in work:
            then(fault)
        while not self.agent._inbox.empty():
            self.agent._inbox.get()()

    def state(self, move):
        return self.agent.registry.moves[move.id].state


def test_a_move_from_request_to_redirect(world):
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.step()
    assert parse(MoveRequest, world.wire.sent[-1][2]).foreign == "f"
    assert world.reply(move, "accept")
    world.step()
    assert world.state(move) is MoveState.REPLICATED
    world.step()
    assert {broker for broker, topic, _ in world.wire.sent if topic.endswith("connect")} == {"h", "f"}
    world.register("a", "f")
    assert world.state(move) is MoveState.CONNECTED
    world.step()
    world.step()
    assert world.state(move) is MoveState.REDIRECTED
    world.step()
    assert not world.agent.registry.strays


def test_what_operators_cannot_ask_for(world):
    """Unknown clients and brokers, the broker where it is, and two moves of one client."""
    world.register("a", "h")
    ask = world.agent.request_to_move
    for client, to, words in (("b", "f", "not registered"), ("a", "x", "no broker 'x'; there are h, f, g")):
        with pytest.raises(InputError, match=words):
            ask(client, to)
    with pytest.raises(InputError, match="client 'a' is at 'h' already"):
        ask("a", "h")
    move = ask("a", "f", "key")
    assert ask("a", "f", "key") == move
    with pytest.raises(InputError, match="belongs to another move"):
        ask("a", "g", "key")
    with pytest.raises(InputError, match="being moved already"):
        ask("a", "g")
    assert world.agent.cancel(move.id).state is MoveState.CANCELLED
    with pytest.raises(InputError, match="too late"):
        world.agent.cancel(move.id)
    with pytest.raises(InputError, match="no move"):
        world.agent.cancel("?")


def test_a_move_that_was_given_up_leaves_no_session(world):
    """After its yes the foreign broker may have one: it is ended, and never sent on."""
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "accept")
    world.agent.cancel(move.id)
    world.agent.step(time.time())
    assert [work[:3] for work in world.wire.work] == [("forget", "f", "a")]


def test_a_client_is_sent_off_only_when_it_is_ready_and_then_not_called_back(world):
    """Who is ready after its move was given up is told nothing; who was told to go is not stopped."""
    world.register("a", "h")
    given_up = world.agent.request_to_move("a", "f")
    world.reply(given_up, "accept")
    world.step()
    assert world.agent.cancel(given_up.id).state is MoveState.CANCELLED
    world.step()
    sent = len(world.wire.sent)
    assert world.reply(given_up, "ready")
    world.step()
    assert len(world.wire.sent) == sent
    move = world.agent.request_to_move("a", "g")
    world.reply(move, "accept")
    world.step()
    world.reply(move, "ready")
    world.step()
    orders = [parse(ConnectOrder, data) for _, topic, data in world.wire.sent if topic.endswith("connect")]
    assert world.number in [order.number for order in orders if order.move == move.id]
    with pytest.raises(InputError, match="told to go; it is too late"):
        world.agent.cancel(move.id)
    world.reply(move, "failed")
    assert world.state(move) is MoveState.FAILED


def test_a_client_that_registers_all_the_time_gets_what_it_left_behind(world):
    """The TTL begins when it comes to a broker, not whenever it wants something else."""
    world.register("a", "h")
    world.register("a", "f")
    begun = world.agent.registry.strays["a", "h"].since
    for number in range(5):
        world.register("a", "f", ((f"t/{number}", 1),))
    assert world.agent.registry.strays["a", "h"].since == begun
    assert world.agent.registry.residents["a"].filters == (("t/4", 1),)


def test_a_broker_that_is_no_longer_known(world, caplog):
    """Moves from and to it fail with a reason, what waits there is left, and others are served."""
    for client in "abcd":
        world.register(client, "h")
    to, prepared = world.agent.request_to_move("a", "f"), world.agent.request_to_move("b", "f")
    world.reply(prepared, "accept")
    world.register("c", "f")
    world.register("d", "f")
    world.register("d", "g")
    world.start({name: BROKERS[name] for name in "hg"})
    assert "1 clients were last at broker 'f', which is no longer known" in caplog.text
    for _ in range(4):
        world.step()
    for move in (to, prepared):
        assert world.state(move) is MoveState.FAILED
        assert world.agent.registry.moves[move.id].note == "broker 'f' is no longer known"
    with pytest.raises(InputError, match="was last at 'f', which is no longer known"):
        world.agent.request_to_move("c", "h")
    world.register("c", "g")
    world.step()
    world.step()
    world.step()
    assert not world.agent.registry.strays
    assert world.agent.request_to_move("c", "h")


def test_links_that_cannot_be_asked_do_not_end_the_agent(world, caplog):
    class Broken(LinksEverywhere):
        def carried(self, broker, filters):
            raise ValueError("of its own")

    world.start(links=Broken())
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "accept")
    world.step()
    assert world.state(move) is MoveState.ACCEPTED
    assert "failed to report their state" in caplog.text


def test_what_waits_is_sent_on_before_it_is_abandoned_though_links_are_wanting(world):
    """To a client that went, by itself, to a broker whose links never come up."""

    class Never(LinksEverywhere):
        def carried(self, broker, filters):
            return False

    world.start(links=Never())
    world.agent.timing = Timing(ttl=5, settle=0, again=0)
    world.register("a", "h")
    world.register("a", "f")
    now, abandon = world.agent.now(), world.agent.timing.abandon
    for later in (10, abandon / 2 - 1, abandon / 2 + 1):
        world.agent.step(now + later)
        assert not world.wire.work
    world.agent.step(now + abandon / 2 + 6)
    assert [work[:3] for work in world.wire.work] == [("redirect", "h", "a")]


def test_nobody_stays_for_ever(world):
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "stay", until=1e300)
    assert world.state(move) is MoveState.STAYING
    assert world.agent.registry.moves[move.id].until < time.time() + 25 * 3600


def test_a_register_that_crossed_a_link_is_refused(world):
    """It moves nobody, whichever of the two comes first, and the one at the client's broker counts."""
    message = Register("a", 5, "h")
    assert not world.say("f", message)
    assert world.say("h", message)
    assert not world.say("g", message)
    assert world.agent.registry.residents["a"].broker == "h"
    assert not world.agent.registry.strays
    assert world.agent.refused["crossed:"] == 2


def test_no_client_uses_up_its_numbers(world):
    """One that is far ahead of the clock is refused, so that later ones are still heard."""
    for ahead in (2**63 - 1, 2**62):
        assert not world.say("h", Register("a", ahead, "h"))
        told = parse(RefusedNumber, world.wire.sent[-1][2]).number
        assert ahead > told > time.time_ns() - AHEAD
    assert world.agent.refused["ahead:"] == 2
    assert world.say("h", Register("a", time.time_ns() + 10**12, "h"))


def test_a_client_that_is_known_is_heard_by_an_agent_whose_clock_was_set_back(world):
    """Or each would refuse the other's count for ever."""
    known = time.time_ns() + 2 * AHEAD
    world.agent.registry.apply([Numbered("a", known)])
    assert world.say("h", Register("a", known + 1, "h"))


def test_forged_and_replayed_messages_are_refused_and_logged(world, caplog):
    """A client speaks for itself only, and each of its messages counts once; nothing of it is kept."""
    world.register("a", "h")
    world.register("b", "h")
    move = world.agent.request_to_move("b", "f")
    before = world.agent.registry.changes()
    with caplog.at_level(logging.WARNING):
        topic = from_client("a", "register")
        assert not world.agent.receive("f", topic, dump(Register("b", 99, "f")))
        assert "forged: a claims to be b" in caplog.text
        assert not world.agent.receive(
            "f", from_client("a", "reply"), dump(Reply("a", 99, move.id, "accept"))
        )
        assert f"move {move.id} is not a move of a" in caplog.text
        assert not world.agent.receive("f", topic, dump(Register("a", 1, "f")))
        assert "replayed: a sent number 1 after 1" in caplog.text
    assert world.agent.registry.changes() == before
    assert world.agent.refused.total() == 3


def test_a_client_with_a_clock_that_was_set_back_is_told(world):
    world.number = 50
    world.register("a", "h")
    assert not world.say("h", Register("a", 7, "h"))
    assert parse(RefusedNumber, world.wire.sent[-1][2]).number == 51


def _mutated(chance: random.Random, message: bytes) -> bytes:
    """A message with something wrong, perhaps."""
    kind = chance.randrange(6)
    if kind == 0:
        data = bytearray(message)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data)
    if kind == 1:
        return message[: chance.randrange(len(message))]
    if kind == 2:
        return chance.randbytes(chance.randrange(200))
    fields = json.loads(message)
    odd = [None, True, -1, 2**70, 1e308, "", "x" * 300, "a/b", [], [[]], [["#", 9]], {}, "\0", [["+a", 1]]]
    if kind == 3:
        fields[chance.choice(list(fields))] = chance.choice(odd)
    elif kind == 4:
        fields.pop(chance.choice(list(fields)))
    else:
        fields[chance.choice(["cmd", "client ", "__class__"])] = chance.choice(odd)
    return json.dumps(fields).encode()


def test_ten_thousand_malformed_messages(world, caplog):
    """None is more than refused: nobody moves, no home changes, the agent goes on, the log stays short."""
    chance = random.Random(0)
    for client in "abc":
        world.register(client, "h")
    moves = [world.agent.request_to_move(client, "f") for client in "abc"]
    homes = {name: one.broker for name, one in world.agent.registry.residents.items()}
    world.agent._warnings = RateLimitedLog(logging.getLogger("broadloom.agents.moves"), clock=lambda: 0.0)
    for _ in range(10_000):
        client, move = chance.choice("abc"), chance.choice(moves)
        good = chance.choice(
            [
                Register(client, 10**6, "h", (("t", 1),), (1.0, 2.0), ("u",)),
                Reply(client, 10**6, move.id, "accept", 1.0),
            ]
        )
        topics = [from_client("abc"[("abc".index(client) + 1) % 3], "register"), "broadloom/from/a"]
        topics += ["broadloom/to/a/move", from_client(client, "obey"), "x", "broadloom/from//register"]
        topic = from_client(client, type(good).__name__.lower())
        data = _mutated(chance, dump(good))
        if chance.random() < 0.3:
            topic, data = chance.choice(topics), dump(good)
        elif data == dump(good) or world_would_take(topic, data):
            continue
        assert not world.agent.receive(chance.choice("hf?"), topic, data)
    refused = world.agent.refused
    assert sum(refused.values()) > 5_000
    assert len(caplog.records) == sum(min(count, MOST_WARNINGS) for count in refused.values())
    assert {name: one.broker for name, one in world.agent.registry.residents.items()} == homes
    assert {world.state(move) for move in moves} == {MoveState.REQUESTED}
    assert world.register("a", "h")
    assert world.agent.refused.total() > 7_000


def test_a_flood_is_told_by_its_first_lines_and_a_count(caplog):
    """Of each kind, in each minute; what is left out is told once, when the minute is over."""
    clock, told = [0.0], []
    words = RateLimitedLog(logging.getLogger("flood"), most=3, seconds=60.0, clock=lambda: clock[0])
    for moment in range(0, 121, 10):
        clock[0] = moment
        told += [words.warn(kind, "refused: %s", kind) for kind in ["forged:"] * 100 + ["replayed:"]]
        words.report()
    assert told.count(True) == 3 + 3 + 3 + 3 + 3 + 1  # minutes 0, 1 and 2 of forged: and of replayed:
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("597 more refusals like 'forged:' were not logged") == 2
    assert lines.count("3 more refusals like 'replayed:' were not logged") == 2
    assert len(lines) == told.count(True) + 4
    clock[0] = 180
    words.report()
    assert caplog.records[-1].getMessage() == "97 more refusals like 'forged:' were not logged"


def world_would_take(topic: str, data: bytes) -> bool:
    """Whether a mutation happens to be what its client may say."""
    try:
        message = parse(Register if topic.endswith("register") else Reply, data)
    except InputError:
        return False
    return topic == from_client(message.client, topic.rpartition("/")[2])


@given(data=st.binary(max_size=300))
def test_any_bytes_are_parsed_or_refused(data):
    for kind in (Register, Reply, MoveRequest, ConnectOrder, RefusedNumber):
        try:
            parse(kind, data)
        except InputError:
            continue


names = st.text("ab/+#$", max_size=6)


@given(pattern=names, topic=st.text("ab/$", min_size=1, max_size=6))
def test_filters_match_as_paho_says(pattern, topic):
    from paho.mqtt.client import topic_matches_sub

    if is_client_filter(pattern):
        assert covers(pattern, topic) == topic_matches_sub(pattern, topic)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from("ab"), st.sampled_from("hfg")),
        st.tuples(st.just("ask"), st.sampled_from("ab"), st.sampled_from("hfg")),
        st.tuples(
            st.just("reply"),
            st.sampled_from("ab"),
            st.sampled_from(["accept", "decline", "stay", "ready", "failed"]),
        ),
        st.tuples(st.just("step"), st.sampled_from([None, "away"]), st.none()),
        st.tuples(st.just("cancel"), st.sampled_from("ab"), st.none()),
        st.tuples(st.just("crash"), st.none(), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(events=EVENTS)
def test_whatever_happens_a_client_has_one_home(tmp_path_factory, events):
    """Home is where it registered last; states follow each other; a crash changes nothing; all ends well."""
    world, homes, past = World(tmp_path_factory.mktemp("j")), {}, {}
    logging.getLogger("broadloom.agents.moves").setLevel(logging.CRITICAL)
    for kind, one, other in events:
        registry = world.agent.registry
        move = registry.active_move(one) if one in ("a", "b") else None
        if kind == "register":
            assert world.register(one, other)
            homes[one] = other
        elif kind == "ask":
            with suppress(InputError):
                world.agent.request_to_move(one, other)
        elif kind == "reply" and move is not None:
            assert world.reply(move, other)
        elif kind == "cancel" and move is not None and move.state is not MoveState.CONNECTED:
            with suppress(InputError):  # it may have been told to go
                world.agent.cancel(move.id)
        elif kind == "step":
            world.step(one)
        elif kind == "crash":
            before = kept(world)
            world.start()
            assert kept(world) == before
        check(world, homes, past)
    for client in homes:
        if (move := world.agent.registry.active_move(client)) and move.state is not MoveState.CONNECTED:
            world.reply(move, "failed" if move.note == LEAVING else "decline")
    for _ in range(4):
        world.step()
    check(world, homes, past)
    assert not world.agent.registry.strays
    assert not world.agent.registry.active_moves()
    world.journal.close()
    logging.getLogger("broadloom.agents.moves").setLevel(logging.NOTSET)


def kept(world):
    """All but numbers: that of a register that changed nothing is not written."""
    changes = world.agent.registry.changes()
    return {json.dumps(plain(one), sort_keys=True) for one in changes if not isinstance(one, Numbered)}


def check(world, homes, past):
    registry = world.agent.registry
    assert {name: one.broker for name, one in registry.residents.items()} == homes
    for move in registry.moves.values():
        was = past.get(move.id, MoveState.REQUESTED)
        assert move.state == was or reachable(was, move.state)
        past[move.id] = move.state
    for stray in registry.strays.values():
        assert stray.broker != homes[stray.client]
    for client in homes:
        assert sum(move.client == client for move in registry.active_moves()) <= 1


def reachable(one, other):
    seen, front = set(), {one}
    while front:
        seen |= front
        front = {after for state in front for after in NEXT.get(state, ())} - seen
    return other in seen


def test_the_journal_is_held_by_one_agent_and_survives_a_torn_end(tmp_path):
    first = MoveJournal(tmp_path)
    with pytest.raises(InputError, match="open already"):
        MoveJournal(tmp_path)
    first.append([Resident("a", "h", (("t", 1),), (1.0,), NOW)])
    first.append([Resident("b", "h", (), None, NOW)])
    first.close()
    whole = (tmp_path / FILE).read_bytes()
    for cut in range(len(whole) - 40, len(whole)):
        (tmp_path / FILE).write_bytes(whole[:cut])
        again = MoveJournal(tmp_path)
        assert list(again.registry.residents) == ["a"]
        again.close()
    (tmp_path / FILE).write_bytes(whole)
    again = MoveJournal(tmp_path)
    assert again.registry.residents["a"] == Resident("a", "h", (("t", 1),), (1.0,), NOW)
    again.close()


def test_changes_are_written_as_they_are_read(world):
    world.register("a", "h")
    world.agent.request_to_move("a", "f")
    for change in world.agent.registry.changes():
        assert from_plain(json.loads(json.dumps(plain(change)))) == change
        assert "password" not in json.dumps(asdict(change))


@given(st.lists(st.tuples(st.sampled_from("hf"), st.sampled_from("abc"), st.sets(st.sampled_from("xyz")))))
def test_links_are_asked_for_once_and_released_by_the_last(steps):
    """At each broker exactly what somebody needs is carried."""
    carried = {"h": set(), "f": set()}

    class Counting(LinksEverywhere):
        def carry(self, broker, filters):
            assert not carried[broker] & set(filters)
            carried[broker] |= set(filters)

        def release(self, broker, filters):
            assert carried[broker] >= set(filters)
            carried[broker] -= set(filters)

    claims, needs = LinkClaims(Counting()), {}
    for broker, client, filters in steps:
        if filters:
            claims.hold(broker, client, filters)
        else:
            claims.drop(broker, client)
        needs[broker, client] = filters
        for place in "hf":
            needed = set().union(*(one for (at, _), one in needs.items() if at == place))
            assert carried[place] == claims.at(place) == needed


def test_a_long_journal_is_written_anew(tmp_path, monkeypatch):
    """It stays short, and of moves that are over it keeps the last ones."""
    monkeypatch.setattr("broadloom.agents.moves.move_registry.MOST_RECORDS", 20)
    monkeypatch.setattr("broadloom.agents.moves.move_registry.KEPT", 3)
    world = World(tmp_path)
    world.register("a", "h")
    for _ in range(50):
        world.agent.cancel(world.agent.request_to_move("a", "f").id)
        assert (tmp_path / FILE).stat().st_size < 20_000
    last = list(world.agent.registry.moves)[-3:]
    world.start()
    assert list(world.agent.registry.moves) == last
    world.journal.close()


def test_a_journal_does_not_grow_by_registers(tmp_path, monkeypatch):
    """One that changes nothing is not written; it is written anew in time; it is its owner's."""
    monkeypatch.setattr("broadloom.agents.moves.move_registry.MOST_BYTES", 50_000)
    world = World(tmp_path / "j")
    place = tmp_path / "j" / FILE
    assert world.register("a", "h")
    size = place.stat().st_size
    assert all(world.register("a", "h") for _ in range(10))
    assert place.stat().st_size == size
    assert not world.say("h", Register("a", world.number, "h"))  # and yet it is no longer taken
    sizes = []
    for number in range(100):
        world.register("a", "h", tuple((f"{'x' * 100}/{number}/{one}", 1) for one in range(50)))
        sizes.append(place.stat().st_size)
    assert max(sizes) < 100_000
    assert place.stat().st_mode & 0o077 == 0
    before = kept(world)
    world.start()
    assert kept(world) == before
    world.journal.close()


def test_links_that_fail_do_not_end_the_agent():
    """A filter that links cannot carry is not carried, and that is all."""

    class Broken(LinksEverywhere):
        def carry(self, broker, filters):
            raise InputError("no such topic")

    logging.getLogger("broadloom.agents.moves").setLevel(logging.CRITICAL + 1)
    claims = LinkClaims(Broken())
    claims.hold("h", "a", ["x"])
    claims.drop("h", "a")
    logging.getLogger("broadloom.agents.moves").setLevel(logging.NOTSET)
    assert claims.at("h") == set()


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_clock_that_was_set_neither_loses_nor_stops_anything(world, monkeypatch, hours):
    """A client has left while the agent is away or runs: what waits for it is sent on all the same."""
    world.register("a", "h")
    world.register("a", "f")
    assert ("a", "h") in world.agent.registry.strays
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    for start in (lambda: None, world.start):
        start()
        world.agent.step(world.agent.now())
        assert [work[:3] for work in world.wire.work] == [("redirect", "h", "a")]


def test_a_session_that_cannot_be_emptied_is_left_in_the_end(world):
    world.register("a", "h")
    world.register("a", "f")
    world.agent.step(world.agent.now() + world.agent.timing.abandon + 1)
    assert not world.agent.registry.strays
