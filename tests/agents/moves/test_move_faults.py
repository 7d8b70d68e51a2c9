"""The move agent and its clients when something around them fails: one fault does not stop the rest."""

# fakes have the methods of the real classes

from __future__ import annotations

import asyncio
import math
import queue
import threading
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from test_move_agent import BROKERS, ClaimedLinks

from broadloom import InputError, StorageError, UnreachableError
from broadloom.agents.links import loop_calls
from broadloom.agents.links.client_watch import ClientWatch
from broadloom.agents.moves import move_agent, move_registry
from broadloom.agents.moves.broker_sessions import NO_ANSWER, MqttGateway
from broadloom.agents.moves.client_policy import MovePolicy
from broadloom.agents.moves.control_messages import Register, dump, from_client
from broadloom.agents.moves.move_agent import AWAY_SECONDS, MoveAgent
from broadloom.agents.moves.move_registry import (
    COMING,
    FILE,
    ORDINARY,
    Move,
    MoveJournal,
    MoveState,
    Numbered,
    Resident,
)
from broadloom.agents.moves.moving_client import MovingClient
from broadloom.agents.moves.operator_api import OperatorApi
from broadloom.agents.moves.ordinary_clients import SeenClient
from broadloom.agents.moves.traffic_summary import ENTRY_BYTES, SentTraffic, TrafficTally
from broadloom.mqtt.endpoint import Login
from fleet_lab import wait_until

SEEN = SeenClient("c", "h", (("t", 1),), True, True)


# The agent's thread.


def test_a_login_file_that_is_missing_for_a_moment_only_delays_a_session(tmp_path):
    """TLS files are read in the pool, so that the agent's thread cannot fail because of them."""
    gateway = MqttGateway(BROKERS, Login(ca=str(tmp_path / "ca.crt")))
    errors: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    gateway.redirect("h", "f", "a", "token", errors.put)
    gateway.forget("h", "a", errors.put)
    found = [errors.get(timeout=60) for _ in range(2)]
    gateway.stop()
    assert all("ca.crt" in error for error in found)


def test_a_move_that_fails_does_not_stop_the_others(world, monkeypatch, caplog):
    """The failure is logged in a line, and with its traceback once."""
    for client in "ab":
        world.register(client, "h")
    bad = world.agent.request_to_move("a", "f")
    good = world.agent.request_to_move("b", "f")
    send = world.gateway.send

    def fail_for_a(broker, topic, payload):
        if "/a/" in topic:
            raise KeyError("bad move")
        send(broker, topic, payload)

    monkeypatch.setattr(world.gateway, "send", fail_for_a)
    for _ in range(30):
        world.step()
    world.reply(good, "accept")
    world.step()
    assert world.state(good) is MoveState.REPLICATED
    assert world.state(bad) is MoveState.REQUESTED
    assert caplog.text.count("Traceback") == 1
    assert 1 < caplog.text.count("has failed: KeyError in fail_for_a") <= 10


def test_work_that_fails_does_not_end_the_thread(world, monkeypatch):
    """Not even a control message; it is acknowledged, and no longer counts as waiting."""
    working = threading.Thread(target=world.agent.run, daemon=True)
    working.start()
    taken = threading.Event()
    receive = world.agent.receive
    monkeypatch.setattr(world.agent, "receive", Mock(side_effect=TypeError("unexpected")))
    world.agent.post("h", from_client("a", "register"), dump(Register("a", 1, "h")), taken.set)
    assert taken.wait(60)
    assert world.agent._waiting_bytes == 0
    monkeypatch.setattr(world.agent, "receive", receive)
    world.agent.post("h", from_client("a", "register"), dump(Register("a", 2, "h")), lambda: None)
    wait_until(lambda: "a" in world.agent.registry.residents, "the next message is processed")
    world.agent.stop()
    working.join()


def test_a_session_whose_work_could_not_begin_is_processed_later(world, monkeypatch):
    """For example because no thread could be started."""
    world.register("a", "h")
    world.register("a", "f")
    with monkeypatch.context() as patch:
        for call in ("redirect", "forget"):
            patch.setattr(world.gateway, call, Mock(side_effect=RuntimeError("can't start new thread")))
        world.step()
    world.step()
    world.step()
    assert not world.agent.registry.strays


# The journal.


def test_operators_change_nothing_while_what_clients_did_waits_for_the_journal(world, monkeypatch):
    """The client leaves while the disk is full: if a cancellation fitted, it would go to an ended session."""
    monkeypatch.setattr(move_agent, "ROOM_SECONDS", math.inf)
    world.register("a", "h")
    world.register("b", "h")
    move = world.agent.request_to_move("a", "f", "key")
    world.reply(move, "accept")
    world.step()
    append = world.journal.append
    monkeypatch.setattr(world.journal, "append", Mock(side_effect=StorageError("no space")))
    working = threading.Thread(target=world.agent.run, daemon=True)
    working.start()
    message = Register("a", world.number + 1, "f", (("t", 1),))
    world.agent.post("f", from_client("a", "register"), dump(message), lambda: None)
    wait_until(lambda: world.agent.problem, "the agent knows that the disk is full")
    monkeypatch.setattr(world.journal, "append", append)  # a small record fits again
    api = OperatorApi(world.agent, Mock())
    for path, body in (
        (f"/moves/{move.id}/cancel", {}),
        ("/moves", {"client": "b", "to": "f"}),
    ):
        status, answer = api.respond("POST", path, body)
        assert (status, answer["error"]) == (503, world.agent.problem)
    assert "nothing moves until the journal can be written: no space" in world.agent.problem
    assert (
        api.respond("POST", "/moves", {"client": "a", "to": "f", "key": "key"})[0] == 201
    )  # changes nothing
    world.agent.stop()
    working.join()
    assert world.state(move) is MoveState.REPLICATED


def test_a_change_that_is_written_counts_even_if_the_compaction_fails(tmp_path, monkeypatch, caplog):
    """It is tried again later; a warning is logged once."""
    monkeypatch.setattr(move_registry, "MOST_RECORDS", 3)
    create = move_registry.create_journal
    fail = Mock(side_effect=StorageError("no space left"))
    clock = [1e6]
    monkeypatch.setattr(move_registry, "time", Mock(monotonic=lambda: clock[0]))
    journal = MoveJournal(tmp_path)
    monkeypatch.setattr(move_registry, "create_journal", fail)
    for number in range(20):
        journal.append([Numbered("a", number)])
    assert fail.call_count == 1
    clock[0] += move_registry.COMPACTION_SECONDS
    journal.append([Numbered("a", 20)])
    assert fail.call_count == 2
    assert caplog.text.count("the journal cannot be compacted yet, and grows: no space left") == 1
    size = (tmp_path / FILE).stat().st_size
    monkeypatch.setattr(move_registry, "create_journal", create)
    clock[0] += move_registry.COMPACTION_SECONDS
    journal.append([Numbered("a", 21)])
    assert len(journal._opened()) == 2
    assert (tmp_path / FILE).stat().st_size <= size
    journal.close()
    again = MoveJournal(tmp_path)
    assert again.registry.numbers == {"a": 21}
    again.close()


def test_a_journal_that_is_damaged_meanwhile_stops_moves_and_not_the_agent(tmp_path, monkeypatch):
    journal = MoveJournal(tmp_path)
    monkeypatch.setattr(journal, "_records", Mock(append=Mock(side_effect=InputError("is damaged"))))
    with pytest.raises(StorageError, match="is damaged"):
        journal.append([Numbered("a", 1)])
    journal.close()


# What moves wait for.


def test_an_accepted_move_says_whose_links_are_not_up(world):
    links = ClaimedLinks()
    world.start(links=links)
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "accept")
    links.claimed.clear()
    world.step()
    assert world.agent.registry.moves[move.id].note == "waiting: links of 'f' are not up"
    links.claimed = {(broker, "t") for broker in "hf"}
    world.step()
    assert (world.state(move), world.agent.registry.moves[move.id].note) == (MoveState.REPLICATED, "")


def test_the_move_of_an_absent_client_that_takes_part_says_so(world):
    """It has moved, and left; what waits at home is forwarded when it is back."""
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "accept")
    world.step()
    world.register("a", "f")
    note = lambda: world.agent.registry.moves[move.id].note  # noqa: E731
    world.step(NO_ANSWER)
    assert (world.state(move), note()) == (MoveState.CONNECTED, COMING)
    world.register("a", "f")
    assert note() == ""
    world.step("connection refused")
    assert note() == "waiting: the session at 'h' is not emptied yet: connection refused"
    world.step()
    world.step()
    assert (world.state(move), note()) == (MoveState.REDIRECTED, "")


# Ordinary clients.


@contextmanager
def ordinary_agent(folder, brokers=BROKERS):
    """An agent whose brokers show the client `c`, its view of the brokers, and its relay."""
    folder.mkdir(exist_ok=True)
    (folder / "policy.toml").write_text('[[rules]]\nclients = ["*"]\n')
    sight = Mock()
    sight.find.return_value = SEEN
    sight.has_session.return_value = False
    relay = Mock(policy=MovePolicy.load(folder / "policy.toml"))
    journal = MoveJournal(folder / "journal")
    try:
        yield MoveAgent(brokers, Mock(), journal, ordinary=relay, sight=sight), sight, relay
    finally:
        journal.close()


def moving(agent, state, **fields):
    """A move of `c` from h to f in a state, as the journal has it."""
    home = "f" if state is MoveState.CONNECTED else "h"
    resident = Resident("c", home, (("t", 1),), None, agent.now(), (), agent.now(), ORDINARY, True)
    move = Move("0" * 16, "c", "h", "f", state, agent.now(), **fields)
    agent._journal.append([resident, move])
    return move.id


def test_a_move_waits_with_a_note_while_it_is_not_known_what_brokers_have(tmp_path, monkeypatch):
    """Otherwise doubts about its subscriptions and about another client with its id would be skipped."""
    monkeypatch.setattr(move_agent, "BLIND_SECONDS", 0.0)
    with ordinary_agent(tmp_path) as (agent, sight, relay):
        move = moving(agent, MoveState.REQUESTED)
        for call in ("find", "has_session"):
            with monkeypatch.context() as patch:
                patch.setattr(sight, call, Mock(side_effect=UnreachableError("no answer within 10 s")))
                agent.step(agent.now() + 3600)
            found = agent.registry.moves[move]
            assert found.state is MoveState.REQUESTED
            assert found.note == "waiting: the brokers' lists of clients do not answer"
        agent.step(agent.now())
        assert agent.registry.moves[move].state is MoveState.ACCEPTED
        relay.prepare.assert_not_called()


def test_a_request_is_refused_while_it_is_not_known_what_brokers_have(tmp_path):
    """The list is then not read again for a while: each attempt holds the agent's thread for seconds."""
    with ordinary_agent(tmp_path) as (agent, sight, _):
        sight.find.side_effect = UnreachableError("no answer within 10 s")
        for _ in range(3):
            with pytest.raises(UnreachableError, match="the brokers' lists of clients do not answer"):
                agent.request_to_move("c", "f")
        assert sight.find.call_count == 1


def test_work_that_needs_the_lists_of_brokers_is_done_when_they_answer(tmp_path, monkeypatch):
    """The client has left home, and it is not known whether its subscriptions have changed meanwhile."""
    monkeypatch.setattr(move_agent, "BLIND_SECONDS", 0.0)
    with ordinary_agent(tmp_path) as (agent, sight, relay):
        move = moving(agent, MoveState.REPLICATED, note="")
        agent._ordinary._prepared.add(move)
        agent.step(agent.now() + 60)
        agent.step(agent.now() + 60)
        (*_, then) = relay.take_over.call_args.args
        then(None)
        answers = Mock(side_effect=[UnreachableError("no answer"), SEEN, SEEN, SEEN])
        monkeypatch.setattr(sight, "find", answers)
        agent._do(agent._inbox.get())
        assert agent.registry.moves[move].note != COMING
        agent._do_deferred()
        assert agent.registry.moves[move].note == COMING
        assert not agent._deferred


def test_a_watch_that_does_not_answer_is_not_an_answer(monkeypatch):
    """Neither that of a loop that is busy, nor that of one that has ended."""
    monkeypatch.setattr(loop_calls, "ANSWER_SECONDS", 0.01)
    watch = object.__new__(ClientWatch)
    watch._loop = asyncio.new_event_loop()  # it does not run
    calls = (
        watch.clients,
        lambda: watch.find("c"),
        lambda: watch.is_connected("c", "h"),
        lambda: watch.has_session("c", "h", is_sure=True),
    )
    for call in calls:
        with pytest.raises(UnreachableError, match=r"does not answer within 0\.01 s"):
            call()
    assert loop_calls.ask_loop(watch._loop, lambda: 1, 2) == 2
    watch._loop.close()
    for call in calls:
        with pytest.raises(UnreachableError, match="has ended"):
            call()
    assert loop_calls.ask_loop(watch._loop, lambda: 1, 2) == 2


def test_the_move_of_an_absent_ordinary_client_says_so(tmp_path):
    """It has arrived, and left before it had what waited at home."""
    with ordinary_agent(tmp_path) as (agent, sight, _):
        move = moving(agent, MoveState.CONNECTED)
        since = agent.registry.moves[move].since
        for later, is_there, note in (
            (AWAY_SECONDS / 2, False, ""),
            (AWAY_SECONDS + 1, False, COMING),
            (AWAY_SECONDS + 10, True, ""),
        ):
            sight.is_connected.return_value = is_there
            agent.step(agent.now() + later)
            assert agent.registry.moves[move].note == note
        assert agent.registry.moves[move].since == since  # its time limits go on
        assert agent._is_at("c", "f")


@pytest.mark.parametrize(
    ("state", "removed", "home"),
    [
        (MoveState.REPLICATED, "f", "h"),
        (MoveState.CONNECTED, "f", "h"),
        (MoveState.CONNECTED, "h", "f"),
    ],
)
def test_an_ordinary_client_is_not_stranded_by_a_removed_broker(tmp_path, state, removed, home):
    """The relay gives up its move, and the router is told where it belongs."""
    with ordinary_agent(tmp_path) as (agent, *_):
        move = moving(agent, state)
    left = {name: address for name, address in BROKERS.items() if name != removed}
    with ordinary_agent(tmp_path, left) as (agent, *_):
        agent._ordinary = Mock()
        before = agent.registry.moves[move]
        agent.step(agent.now())
        found = agent.registry.moves[move]
        assert (found.state, found.note) == (MoveState.FAILED, f"broker {removed!r} is no longer known")
        agent._ordinary.abandon.assert_called_once_with(before)
        assert agent.registry.residents["c"].broker == home
        agent.step(agent.now())
        sessions = {key: one.forward for key, one in agent.registry.abandoned.items()}
        assert sessions == (
            {} if (state, removed) == (MoveState.CONNECTED, "f") else {("c", removed): removed == "h"}
        )


# Clients.


def test_a_client_that_cannot_write_its_memory_connects_nevertheless(tmp_path, caplog):
    """A full disk at the client must not disconnect it."""
    memory = tmp_path / "missing" / "home"
    client = MovingClient("c", {"h": "127.0.0.1:1", "f": "127.0.0.1:2"}, "h", memory=memory, plain=True)
    client._open("f")
    assert (client.home, client._client is not None) == ("f", True)
    assert "client c cannot write" in caplog.text
    client._close()


def test_a_client_whose_login_file_was_missing_connects_when_it_is_there(monkeypatch, caplog):
    opened = []
    client = MovingClient("c", {"h": "127.0.0.1:1", "f": "127.0.0.1:2"}, "h", plain=True)
    client.start()
    open_one = client._open

    def open_later(broker):
        opened.append(broker)
        if len(opened) < 3:
            raise InputError("ca.crt cannot be read")
        open_one(broker)

    monkeypatch.setattr(client, "_open", open_later)
    client.connect("f")
    wait_until(lambda: client._client is not None and len(opened) > 2, "the client has connected again")
    assert "client c cannot connect yet: ca.crt cannot be read" in caplog.text
    client.stop()


def test_filters_are_unsubscribed_at_each_connection(monkeypatch):
    """The client was disconnected, or the session was prepared before it unsubscribed."""
    client = MovingClient("c", {"h": "127.0.0.1:1"}, "h", plain=True)
    client.subscribe("a", "b", "c/#")
    client.unsubscribe("a", "c/#", "from/an/earlier/run", "not/#/valid")
    client.subscribe("a")
    connection = Mock()
    for _ in range(2):
        client._connected(connection, None, None, Mock(is_failure=False), None)
    former = [call.args[0] for call in connection.unsubscribe.call_args_list]
    assert former == [["c/#", "from/an/earlier/run"]] * 2
    assert connection.subscribe.call_count == 2
    monkeypatch.setattr("broadloom.agents.moves.moving_client.MOST_FILTERS", 3)
    client.unsubscribe(*"uvwxyz")
    assert client._former == ("x", "y", "z")
    monkeypatch.setattr("broadloom.agents.moves.moving_client.MOST_FILTER_BYTES", 7)
    client.unsubscribe("12345")
    assert client._former == ("y", "z", "12345")


# Traffic.


def test_the_traffic_of_random_topics_takes_bounded_memory():
    """Messages that find no room are counted, and those of known topics still count as before."""
    tally = TrafficTally(most=3 * (ENTRY_BYTES + 10))
    for number in range(10):
        tally.add(SentTraffic("meter", number, f"t/{number}", 5))
        tally.add(SentTraffic("meter", number, "t/0", 5))
    assert sum(one.messages for one in tally.sent()) == 13
    assert tally.left_out == 7
