"""The move agent without brokers: what it refuses and journals, and that a replay restores its state."""

# ruff: noqa: D102, ARG002  # fakes have the methods of the real classes

from __future__ import annotations

import json
import logging
import random
import threading
import time
from contextlib import suppress
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadloom import InputError, StorageError
from broadloom.agents.monitoring import MOST_WARNINGS, RateLimitedLog
from broadloom.agents.moves import move_agent
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
    PREPARED,
    MoveJournal,
    MoveState,
    Numbered,
    Resident,
    from_plain,
    plain,
)
from broadloom.mqtt.endpoint import Address
from broadloom.mqtt.topic_filters import covers
from broadloom.storage import repair_journal
from damage import with_flipped_bits
from fleet_lab import wait_until

BROKERS = {name: Address("127.0.0.1", 1) for name in "hfg"}
NOW = 1e9


class FakeGateway:
    """Gateway that records messages and tasks; a test decides how each task ends."""

    def __init__(self):
        self.sent = []
        self.work = []

    def send(self, broker, topic, payload):
        self.sent.append((broker, topic, payload))

    def replicate(self, broker, client, filters, done):
        self.work.append(("replicate", broker, client, done))

    def forget(self, broker, client, done):
        self.work.append(("forget", broker, client, done))

    def redirect(self, old, new, client, token, done):
        self.work.append(("redirect", old, client, done))
        return lambda: None


class ClaimedLinks(LinksEverywhere):
    """Links that carry exactly what the agent has claimed."""

    def __init__(self):
        self.claimed = set()

    def carry(self, broker, filters):
        self.claimed |= {(broker, text) for text in filters}

    def carried(self, broker, filters):
        return {(broker, text) for text in filters} <= self.claimed

    def release(self, broker, filters):
        self.claimed -= {(broker, text) for text in filters}


class World:
    """Agent with a fake gateway, its journal, and the number of the last client message."""

    def __init__(self, folder):
        self.folder, self.number, self.journal = folder, 0, None
        self.start()

    def start(self, brokers=BROKERS, links=None):
        """Start the agent, or start it again as after a crash."""
        if self.journal is not None:
            self.journal.close()
        self.gateway, self.journal = FakeGateway(), MoveJournal(self.folder)
        self.agent = MoveAgent(brokers, self.gateway, self.journal, links, Timing(ttl=0, settle=0, again=0))

    def send(self, broker, message, call=None):
        call = call or type(message).__name__.lower()
        return self.agent.receive(broker, from_client(message.client, call), dump(message))

    def register(self, client, broker, filters=(("t", 1),)):
        self.number += 1
        return self.send(broker, Register(client, self.number, broker, filters))

    def reply(self, move, answer, broker="h", until=None):
        self.number += 1
        return self.send(broker, Reply(move.client, self.number, move.id, answer, until))

    def step(self, fault=None):
        """Let the agent do what is due, and end all its tasks, with a fault or without."""
        self.agent.step(self.agent.now())
        work, self.gateway.work = self.gateway.work, []
        for *_, done in work:
            done(fault)
        while not self.agent._inbox.empty():
            self.agent._inbox.get()()

    def state(self, move):
        return self.agent.registry.moves[move.id].state


def test_a_move_passes_all_states_from_request_to_redirect(world):
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.step()
    assert parse(MoveRequest, world.gateway.sent[-1][2]).foreign == "f"
    assert world.reply(move, "accept")
    world.step()
    assert world.state(move) is MoveState.REPLICATED
    world.step()
    assert {broker for broker, topic, _ in world.gateway.sent if topic.endswith("connect")} == {"h", "f"}
    world.register("a", "f")
    assert world.state(move) is MoveState.CONNECTED
    world.step()
    world.step()
    assert world.state(move) is MoveState.REDIRECTED
    world.step()
    assert not world.agent.registry.strays


def test_invalid_requests_of_operators_are_refused(world):
    """Unknown clients and brokers, a move to the same broker, and two moves of one client."""
    world.register("a", "h")
    request = world.agent.request_to_move
    for client, to, message in (("b", "f", "not registered"), ("a", "x", "no broker 'x'; there are h, f, g")):
        with pytest.raises(InputError, match=message):
            request(client, to)
    with pytest.raises(InputError, match="client 'a' is at 'h' already"):
        request("a", "h")
    move = request("a", "f", "key")
    assert request("a", "f", "key") == move
    with pytest.raises(InputError, match="belongs to another move"):
        request("a", "g", "key")
    with pytest.raises(InputError, match="being moved already"):
        request("a", "g")
    assert world.agent.cancel(move.id).state is MoveState.CANCELLED
    with pytest.raises(InputError, match="too late"):
        world.agent.cancel(move.id)
    with pytest.raises(InputError, match="no move"):
        world.agent.cancel("?")


def test_a_cancelled_move_leaves_no_session(world):
    """After the client has accepted, the foreign broker can have one: it is ended, and not forwarded."""
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "accept")
    world.agent.cancel(move.id)
    world.agent.step(time.time())
    assert [work[:3] for work in world.gateway.work] == [("forget", "f", "a")]


def test_a_client_is_told_to_connect_only_when_it_is_ready_and_then_the_move_cannot_be_cancelled(world):
    """A client that is ready after its move was cancelled gets no order."""
    world.register("a", "h")
    cancelled = world.agent.request_to_move("a", "f")
    world.reply(cancelled, "accept")
    world.step()
    assert world.agent.cancel(cancelled.id).state is MoveState.CANCELLED
    world.step()
    sent = len(world.gateway.sent)
    assert world.reply(cancelled, "ready")
    world.step()
    assert len(world.gateway.sent) == sent
    move = world.agent.request_to_move("a", "g")
    world.reply(move, "accept")
    world.step()
    world.reply(move, "ready")
    world.step()
    orders = [parse(ConnectOrder, data) for _, topic, data in world.gateway.sent if topic.endswith("connect")]
    assert world.number in [order.number for order in orders if order.move == move.id]
    with pytest.raises(InputError, match="ordered to move; it is too late"):
        world.agent.cancel(move.id)
    world.reply(move, "failed")
    assert world.state(move) is MoveState.FAILED


def test_repeated_registers_do_not_delay_the_forwarding_of_a_queue(world):
    """The TTL starts when the client arrives at a broker, not whenever it changes its filters."""
    world.register("a", "h")
    world.register("a", "f")
    since = world.agent.registry.strays["a", "h"].since
    for number in range(5):
        world.register("a", "f", ((f"t/{number}", 1),))
    assert world.agent.registry.strays["a", "h"].since == since
    assert world.agent.registry.residents["a"].filters == (("t/4", 1),)


def test_moves_of_a_removed_broker_fail_and_others_go_on(world, caplog):
    """Its moves fail with a reason, and its sessions are abandoned."""
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


def test_an_error_of_the_links_does_not_end_the_agent(world, caplog):
    class FailingLinks(LinksEverywhere):
        def carried(self, broker, filters):
            raise ValueError("error of the links")

    world.start(links=FailingLinks())
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "accept")
    world.step()
    assert world.state(move) is MoveState.ACCEPTED
    assert "failed to report their state" in caplog.text


@pytest.mark.parametrize("state", ["accepted", "replicated"])
def test_a_client_that_subscribes_while_it_moves_gets_links_for_that_at_both_brokers(world, state):
    """Otherwise the move would wait for links that nobody has requested."""
    links = ClaimedLinks()
    world.start(links=links)
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "accept")
    if state == "replicated":
        world.step()
    assert world.state(move) == state
    world.register("a", "h", (("t", 1), ("u", 1)))
    assert links.claimed == {(broker, text) for broker in "hf" for text in "tu"}
    world.step()
    assert world.state(move) is MoveState.REPLICATED
    world.agent.cancel(move.id)
    world.step()
    world.step()  # each session is ended twice
    assert links.claimed == {("h", "t"), ("h", "u")}


def test_consent_that_the_full_disk_could_not_take_counts_when_there_is_room(world, monkeypatch):
    """The time limit of the answer has passed meanwhile; the client answered in time."""
    monkeypatch.setattr(move_agent, "ROOM_SECONDS", 0.0)
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    append = world.journal.append

    def refuse(changes):  # noqa: ARG001
        raise StorageError("no space")

    monkeypatch.setattr(world.journal, "append", refuse)
    working = threading.Thread(target=world.agent.run, daemon=True)
    working.start()
    taken = threading.Event()
    answer = Reply("a", world.number + 1, move.id, "accept")
    world.agent.post("h", from_client("a", "reply"), dump(answer), taken.set)
    wait_until(lambda: world.agent.problem, "the agent knows that the disk is full")
    assert not taken.is_set()
    with pytest.raises(StorageError, match="no space"):
        world.agent.ask(lambda agent: agent.cancel(move.id))
    world.agent.timing = replace(world.agent.timing, answer=0.0)
    monkeypatch.setattr(world.journal, "append", append)
    assert taken.wait(60)
    wait_until(lambda: not world.agent.problem, "the agent knows that there is room")
    world.agent.stop()
    working.join()
    assert world.state(move) is MoveState.ACCEPTED


def test_a_queue_is_forwarded_before_it_is_abandoned_even_without_links(world):
    """The client went by itself to a broker whose links never come up."""

    class LinksDown(LinksEverywhere):
        def carried(self, broker, filters):
            return False

    world.start(links=LinksDown())
    world.agent.timing = Timing(ttl=5, settle=0, again=0)
    world.register("a", "h")
    world.register("a", "f")
    now, abandon = world.agent.now(), world.agent.timing.abandon
    for later in (10, abandon / 2 - 1, abandon / 2 + 1):
        world.agent.step(now + later)
        assert not world.gateway.work
    world.agent.step(now + abandon / 2 + 6)
    assert [work[:3] for work in world.gateway.work] == [("redirect", "h", "a")]


def test_a_client_can_stay_for_at_most_a_day(world):
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "stay", until=1e300)
    assert world.state(move) is MoveState.STAYING
    assert world.agent.registry.moves[move.id].until < time.time() + 25 * 3600


def test_a_register_that_crossed_a_link_is_refused(world):
    """Only the copy at the client's broker counts, whichever arrives first."""
    message = Register("a", 5, "h")
    assert not world.send("f", message)
    assert world.send("h", message)
    assert not world.send("g", message)
    assert world.agent.registry.residents["a"].broker == "h"
    assert not world.agent.registry.strays
    assert world.agent.refused["crossed:"] == 2


def test_message_numbers_far_ahead_of_the_clock_are_refused(world):
    """Otherwise no later message of the client would have a higher number."""
    for ahead in (2**63 - 1, 2**62):
        assert not world.send("h", Register("a", ahead, "h"))
        answered = parse(RefusedNumber, world.gateway.sent[-1][2]).number
        assert ahead > answered > time.time_ns() - AHEAD
    assert world.agent.refused["ahead:"] == 2
    assert world.send("h", Register("a", time.time_ns() + 10**12, "h"))


def test_an_agent_whose_clock_was_set_back_still_accepts_known_clients(world):
    """Otherwise it would refuse their numbers for ever."""
    last = time.time_ns() + 2 * AHEAD
    world.agent.registry.apply([Numbered("a", last)])
    assert world.send("h", Register("a", last + 1, "h"))


def test_forged_and_replayed_messages_are_refused_and_logged(world, caplog):
    """A client can only act for itself, each message counts once, and refused ones change nothing."""
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


def test_a_client_whose_clock_was_set_back_learns_the_next_number(world):
    world.number = 50
    world.register("a", "h")
    assert not world.send("h", Register("a", 7, "h"))
    assert parse(RefusedNumber, world.gateway.sent[-1][2]).number == 51


def _mutated(rng: random.Random, message: bytes) -> bytes:
    """A message with a random change, most likely invalid."""
    kind = rng.randrange(6)
    if kind == 0:
        data = bytearray(message)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    if kind == 1:
        return message[: rng.randrange(len(message))]
    if kind == 2:
        return rng.randbytes(rng.randrange(200))
    fields = json.loads(message)
    odd = [None, True, -1, 2**70, 1e308, "", "x" * 300, "a/b", [], [[]], [["#", 9]], {}, "\0", [["+a", 1]]]
    if kind == 3:
        fields[rng.choice(list(fields))] = rng.choice(odd)
    elif kind == 4:
        fields.pop(rng.choice(list(fields)))
    else:
        fields[rng.choice(["cmd", "client ", "__class__"])] = rng.choice(odd)
    return json.dumps(fields).encode()


def test_ten_thousand_malformed_messages_change_nothing(world, caplog):
    """No client moves, the agent keeps running, and the log stays short."""
    rng = random.Random(0)
    for client in "abc":
        world.register(client, "h")
    moves = [world.agent.request_to_move(client, "f") for client in "abc"]
    homes = {name: one.broker for name, one in world.agent.registry.residents.items()}
    world.agent._warnings = RateLimitedLog(logging.getLogger("broadloom.agents.moves"), clock=lambda: 0.0)
    for _ in range(10_000):
        client, move = rng.choice("abc"), rng.choice(moves)
        good = rng.choice(
            [
                Register(client, 10**6, "h", (("t", 1),), (1.0, 2.0), ("u",)),
                Reply(client, 10**6, move.id, "accept", 1.0),
            ]
        )
        topics = [from_client("abc"[("abc".index(client) + 1) % 3], "register"), "$broadloom/from/a"]
        topics += ["$broadloom/to/a/move", from_client(client, "obey"), "x", "$broadloom/from//register"]
        topic = from_client(client, type(good).__name__.lower())
        data = _mutated(rng, dump(good))
        if rng.random() < 0.3:
            topic, data = rng.choice(topics), dump(good)
        elif data == dump(good) or is_valid(topic, data):
            continue
        assert not world.agent.receive(rng.choice("hf?"), topic, data)
    refused = world.agent.refused
    assert sum(refused.values()) > 5_000
    assert len(caplog.records) == sum(min(count, MOST_WARNINGS) for count in refused.values())
    assert {name: one.broker for name, one in world.agent.registry.residents.items()} == homes
    assert {world.state(move) for move in moves} == {MoveState.REQUESTED}
    assert world.register("a", "h")
    assert world.agent.refused.total() > 7_000


def test_a_rate_limited_log_writes_the_first_lines_of_a_flood_and_a_count(caplog):
    """Per kind and minute; the number of omitted lines is logged once, after the minute."""
    clock, logged = [0.0], []
    log = RateLimitedLog(logging.getLogger("flood"), most=3, seconds=60.0, clock=lambda: clock[0])
    for moment in range(0, 121, 10):
        clock[0] = moment
        logged += [log.warn(kind, "refused: %s", kind) for kind in ["forged:"] * 100 + ["replayed:"]]
        log.report()
    assert logged.count(True) == 3 + 3 + 3 + 3 + 3 + 1  # minutes 0, 1 and 2 of forged: and of replayed:
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("597 more warnings like 'forged:' were not logged") == 2
    assert lines.count("3 more warnings like 'replayed:' were not logged") == 2
    assert len(lines) == logged.count(True) + 4
    clock[0] = 180
    log.report()
    assert caplog.records[-1].getMessage() == "97 more warnings like 'forged:' were not logged"


def is_valid(topic: str, data: bytes) -> bool:
    """Whether a mutated message is still one that its client can send."""
    try:
        message = parse(Register if topic.endswith("register") else Reply, data)
    except InputError:
        return False
    return topic == from_client(message.client, topic.rpartition("/")[2])


@given(data=st.binary(max_size=300))
def test_any_bytes_are_parsed_or_refused_with_an_input_error(data):
    for kind in (Register, Reply, MoveRequest, ConnectOrder, RefusedNumber):
        try:
            parse(kind, data)
        except InputError:
            continue


names = st.text("ab/+#$", max_size=6)


@given(pattern=names, topic=st.text("ab/$", min_size=1, max_size=6))
def test_filters_match_the_same_topics_as_in_paho(pattern, topic):
    from paho.mqtt.client import topic_matches_sub

    if is_client_filter(pattern):
        assert covers(pattern, topic) == topic_matches_sub(pattern, topic)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from("ab"), st.sampled_from("hfg")),
        st.tuples(st.just("subscribe"), st.sampled_from("ab"), st.sampled_from(["t", "u", "tu", ""])),
        st.tuples(st.just("request"), st.sampled_from("ab"), st.sampled_from("hfg")),
        st.tuples(st.just("consent"), st.sampled_from("ab"), st.sampled_from("hfg")),
        st.tuples(
            st.just("reply"),
            st.sampled_from("ab"),
            st.sampled_from(["accept", "decline", "stay", "ready", "failed"]),
        ),
        st.tuples(st.just("step"), st.sampled_from([None, "unreachable"]), st.none()),
        st.tuples(st.just("cancel"), st.sampled_from("ab"), st.none()),
        st.tuples(st.just("crash"), st.none(), st.none()),
    ),
    min_size=10,
    max_size=40,
)


@settings(max_examples=100)
@given(events=EVENTS)
def test_a_client_has_exactly_one_home_after_any_events(tmp_path_factory, events):
    """It is where it registered last; states change as allowed, crashes change nothing, and all moves end.

    Links are claimed for what a client needs where it is, and where it moves to.
    """
    world, homes, past, filters = World(tmp_path_factory.mktemp("j")), {}, {}, {}
    world.start(links=ClaimedLinks())
    logging.getLogger("broadloom.agents.moves").setLevel(logging.CRITICAL)
    for kind, one, other in events:
        registry = world.agent.registry
        move = registry.active_move(one) if one in ("a", "b") else None
        if kind == "register":
            assert world.register(one, other, filters.get(one, ()))
            homes[one] = other
        elif kind == "subscribe" and one in homes:
            filters[one] = tuple((text, 1) for text in other)
            assert world.register(one, homes[one], filters[one])
        elif kind == "request":
            with suppress(InputError):
                world.agent.request_to_move(one, other)
        elif kind == "consent" and move is None:
            with suppress(InputError):
                assert world.reply(world.agent.request_to_move(one, other), "accept")
        elif kind == "reply" and move is not None:
            assert world.reply(move, other)
        elif kind == "cancel" and move is not None and move.state is not MoveState.CONNECTED:
            with suppress(InputError):  # it can be too late
                world.agent.cancel(move.id)
        elif kind == "step":
            world.step(one)
        elif kind == "crash":
            before = saved_state(world)
            world.start(links=ClaimedLinks())
            assert saved_state(world) == before
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


def saved_state(world):
    """All changes but numbers: the number of a register that changed nothing is not written."""
    changes = world.agent.registry.changes()
    return {json.dumps(plain(one), sort_keys=True) for one in changes if not isinstance(one, Numbered)}


def check(world, homes, past):
    """Assert the invariants of the registry."""
    registry = world.agent.registry
    assert {name: one.broker for name, one in registry.residents.items()} == homes
    for move in registry.moves.values():
        before = past.get(move.id, MoveState.REQUESTED)
        assert move.state == before or reachable(before, move.state)
        past[move.id] = move.state
    for stray in registry.strays.values():
        assert stray.broker != homes[stray.client]
    for client in homes:
        assert sum(move.client == client for move in registry.active_moves()) <= 1
        assert world.agent._links.carried(homes[client], registry.residents[client].needs)
    for move in registry.active_moves():
        if move.state in PREPARED:
            assert world.agent._links.carried(move.foreign, registry.residents[move.client].needs)


def reachable(start, end):
    """Whether a move can come from one state to another."""
    seen, front = set(), {start}
    while front:
        seen |= front
        front = {after for state in front for after in NEXT.get(state, ())} - seen
    return end in seen


def test_a_journal_has_one_owner(tmp_path):
    first = MoveJournal(tmp_path)
    with pytest.raises(InputError, match="open already"):
        MoveJournal(tmp_path)
    first.append([Resident("a", "h", (("t", 1),), (1.0,), NOW)])
    first.close()
    again = MoveJournal(tmp_path)
    assert again.registry.residents["a"] == Resident("a", "h", (("t", 1),), (1.0,), NOW)
    again.close()


def registry_or_damage(folder):
    """The changes of a journal's registry, or the error that refuses the journal."""
    try:
        journal = MoveJournal(folder)
    except InputError as error:
        return str(error)
    journal.close()
    return journal.registry.changes()


def test_each_flipped_bit_of_a_journal_is_refused_or_harmless(tmp_path, monkeypatch):
    """A client is never forgotten silently, not even that of the last record; a repair keeps the others."""
    path = tmp_path / FILE
    journal = MoveJournal(tmp_path)
    for client in "ab":
        journal.append([Resident(client, "h", ((f"topic/{client}", 1),), None, NOW), Numbered(client, 7)])
    expected = journal.registry.changes()
    journal.close()
    whole = path.read_bytes()
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(MoveJournal, "compact", lambda _: None)  # so that the test does not wait for the disk
        for data in with_flipped_bits(whole):
            path.write_bytes(data)
            result = registry_or_damage(tmp_path)
            if result != expected:
                found.append(result)
    assert len(found) > 300
    assert all("is damaged: " in one and f"broadloom repair {path}" in one for one in found)
    path.write_bytes(whole.replace(b"topic/b", b"topic/x"))
    assert "position 3 is not as it was written" in registry_or_damage(tmp_path)
    assert repair_journal(path).lost_from == 3
    journal = MoveJournal(tmp_path)
    assert list(journal.registry.residents) == ["a"]
    journal.close()


def test_a_journal_of_an_earlier_version_is_refused(tmp_path):
    (tmp_path / FILE).write_bytes(b"broadloom moves 1\n")
    with pytest.raises(InputError, match="earlier version of broadloom; finish its work with that version"):
        MoveJournal(tmp_path)


def test_a_compaction_that_fails_keeps_the_journal(tmp_path, monkeypatch):
    """The next change is written to the old file."""
    journal = MoveJournal(tmp_path)
    journal.append([Numbered("a", 1)])

    def full(*_):
        raise StorageError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr("broadloom.agents.moves.move_registry.create_journal", full)
        with pytest.raises(StorageError, match="no space left"):
            journal.compact()
    journal.append([Numbered("b", 2)])
    journal.close()
    again = MoveJournal(tmp_path)
    assert again.registry.numbers == {"a": 1, "b": 2}
    again.close()


def test_changes_survive_the_round_trip_through_json(world):
    world.register("a", "h")
    world.agent.request_to_move("a", "f")
    for change in world.agent.registry.changes():
        assert from_plain(json.loads(json.dumps(plain(change)))) == change
        assert "password" not in json.dumps(asdict(change))


@given(st.lists(st.tuples(st.sampled_from("hf"), st.sampled_from("abc"), st.sets(st.sampled_from("xyz")))))
def test_links_carry_exactly_the_filters_that_some_client_needs(steps):
    carried = {"h": set(), "f": set()}

    class RecordingLinks(LinksEverywhere):
        def carry(self, broker, filters):
            assert not carried[broker] & set(filters)
            carried[broker] |= set(filters)

        def release(self, broker, filters):
            assert carried[broker] >= set(filters)
            carried[broker] -= set(filters)

    claims, needs = LinkClaims(RecordingLinks()), {}
    for broker, client, filters in steps:
        if filters:
            claims.hold(broker, client, filters)
        else:
            claims.drop(broker, client)
        needs[broker, client] = filters
        for at in "hf":
            needed = set().union(*(some for (where, _), some in needs.items() if where == at))
            assert carried[at] == claims.at(at) == needed


def test_a_long_journal_is_compacted(tmp_path, monkeypatch):
    """It keeps the last finished moves."""
    monkeypatch.setattr("broadloom.agents.moves.move_registry.MOST_RECORDS", 20)
    monkeypatch.setattr("broadloom.agents.moves.move_registry.KEPT", 3)
    world = World(tmp_path)
    world.register("a", "h")
    for _ in range(50):
        world.agent.cancel(world.agent.request_to_move("a", "f").id)
        assert (tmp_path / FILE).stat().st_size < 30_000
    last = list(world.agent.registry.moves)[-3:]
    world.start()
    assert list(world.agent.registry.moves) == last
    world.journal.close()


def test_repeated_registers_do_not_grow_the_journal(tmp_path, monkeypatch):
    """One that changes nothing is not written; the file is compacted, and only its owner can read it."""
    monkeypatch.setattr("broadloom.agents.moves.move_registry.MOST_BYTES", 50_000)
    world = World(tmp_path / "j")
    path = tmp_path / "j" / FILE
    assert world.register("a", "h")
    size = path.stat().st_size
    assert all(world.register("a", "h") for _ in range(10))
    assert path.stat().st_size == size
    assert not world.send("h", Register("a", world.number, "h"))  # its number counts nevertheless
    sizes = []
    for number in range(100):
        world.register("a", "h", tuple((f"{'x' * 100}/{number}/{one}", 1) for one in range(50)))
        sizes.append(path.stat().st_size)
    assert max(sizes) < 100_000
    assert path.stat().st_mode & 0o077 == 0
    before = saved_state(world)
    world.start()
    assert saved_state(world) == before
    world.journal.close()


def test_a_filter_that_links_refuse_is_not_carried():
    class FailingLinks(LinksEverywhere):
        def carry(self, broker, filters):
            raise InputError("no such topic")

    logging.getLogger("broadloom.agents.moves").setLevel(logging.CRITICAL + 1)
    claims = LinkClaims(FailingLinks())
    claims.hold("h", "a", ["x"])
    claims.drop("h", "a")
    logging.getLogger("broadloom.agents.moves").setLevel(logging.NOTSET)
    assert claims.at("h") == set()


@pytest.mark.parametrize("hours", [-30, 30])
def test_a_clock_change_does_not_stop_the_forwarding_of_a_queue(world, monkeypatch, hours):
    """With the running agent, and with one that starts after the change."""
    world.register("a", "h")
    world.register("a", "f")
    assert ("a", "h") in world.agent.registry.strays
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + hours * 3600)
    for start in (lambda: None, world.start):
        start()
        world.agent.step(world.agent.now())
        assert [work[:3] for work in world.gateway.work] == [("redirect", "h", "a")]


def test_a_session_that_cannot_be_emptied_is_abandoned_in_the_end(world):
    world.register("a", "h")
    world.register("a", "f")
    world.agent.step(world.agent.now() + world.agent.timing.abandon + 1)
    assert not world.agent.registry.strays
