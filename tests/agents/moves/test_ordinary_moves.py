"""Ordinary clients (`mosquitto_sub`) are moved between mosquitto brokers behind HAProxy, and lose nothing."""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordinary import (
    HOST,
    POLICY,
    Publisher,
    RoutedBrokers,
    Subscriber,
    homes,
    ordinary_agent,
    state_of,
    wait_for,
    write_ordinary_config,
)

import broadloom as bl
from broadloom.agents.moves.client_policy import MovePolicy
from broadloom.agents.moves.move_agent import MoveAgent, Timing
from broadloom.agents.moves.move_registry import (
    COMING,
    ORDINARY,
    Abandoned,
    Move,
    MoveJournal,
    MoveState,
    Registry,
    Resident,
    Stray,
)
from broadloom.agents.moves.operator_client import Operator
from broadloom.agents.moves.ordinary_clients import SeenClient
from broadloom.agents.moves.ordinary_steps import OrdinarySteps
from broadloom.agents.moves.relayed_move import MOST_REFUSALS, RelayedMove, RelayPlan
from broadloom.agents.moves.session_reader import (
    MOST_WAITING,
    KnownContents,
    content_digest,
    seconds_until_pause,
)
from broadloom.deployment.targets.mosquitto_bridges import acl_rules
from broadloom.mqtt.endpoint import Address, Login
from broadloom.mqtt.relayed_packets import RelayedPublish
from broadloom.mqtt.reserved_topics import MOVE_AGENT
from certificates import authority

live = [
    pytest.mark.needs("mosquitto", "mosquitto_sub", "mosquitto_pub", "haproxy"),
    pytest.mark.xdist_group("moves"),
]


def moved_by_naive_streams(seed: int) -> tuple[Counter[str], Counter[str]]:
    """Messages that were published, and those that a client gets, in a simulation of its two sessions.

    Each message reaches both brokers at random times, at most `settle` apart. Home delivers up to the cut.
    Messages at QoS 0 reach home, but no session queues them.
    """
    rng = random.Random(seed)
    settle, prepared, cut = 1.0, 3.0, 6.0
    contents = [str(rng.randrange(rng.choice((3, 200)))) for _ in range(60)]
    at_home = sorted((rng.uniform(1.0, 8.0), content) for content in contents)
    move = a_relayed_move()
    witnessed = []
    both = []
    for home, content in at_home:
        quality = int(rng.random() < 0.8)
        if prepared - settle <= home < cut:
            move._on_witnessed(a_publish(content)._replace(quality=quality))
            witnessed += [(digest, home) for digest, _ in move._witnessed]
            move._witnessed.clear()
        if quality:
            both.append((home, home + rng.uniform(-settle, settle), content))
    got = Counter(content for home, _, content in both if home < cut)
    known = KnownContents(witnessed, prepared, settle)
    for _, foreign, content in sorted(both, key=lambda one: one[1]):
        if foreign < prepared:
            continue
        if foreign > prepared + 2 * settle:
            known.pass_early_fence()
        if foreign > cut + settle:
            known.clear()
        got[content] += not known.takes(content_digest(b"t/1", content.encode()))
    return Counter(content for _, _, content in both), got


@given(st.integers(0, 10**6))
def test_no_message_is_left_out_that_home_has_not_delivered(seed):
    """Whatever the delays and however many messages are equal; unique messages arrive exactly once."""
    published, got = moved_by_naive_streams(seed)
    assert not published - got
    twice = got - published
    assert all(published[content] > 1 for content in twice)


def test_the_first_rule_of_the_policy_file_decides(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text(
        'at_once = 3\n[[rules]]\nclients = ["pump-*"]\nmove = false\n'
        '[[rules]]\nclients = ["*"]\nto = ["oslo"]\nhours = "22:00-06:00"\ndays = ["fri"]\nplace = [1, 2]\n'
    )
    policy = MovePolicy.load(file)
    friday = 86_400.0  # the second of January 1970
    for client, to, now, answer, until in (
        ("pump-1", "oslo", friday + 23 * 3600, "decline", None),
        ("meter-1", "rome", friday + 23 * 3600, "decline", None),
        ("meter-1", "oslo", friday + 23 * 3600, "accept", None),
        ("meter-1", "oslo", friday + 29 * 3600, "accept", None),  # Saturday morning ends Friday's night
        ("meter-1", "oslo", friday + 12 * 3600, "stay", friday + 22 * 3600),
        ("meter-1", "oslo", friday + 5 * 3600, "stay", friday + 22 * 3600),
        ("meter-1", "oslo", friday + 31 * 3600, "stay", friday + 7 * 86_400 + 22 * 3600),
    ):
        assert policy.answer(client, "paris", to, now) == (answer, until)
    assert (policy.at_once, policy.place_of("meter-1")) == (3, (1.0, 2.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rules"),
        ("[[rules]]\n", "clients is missing"),
        ('[[rules]]\nclients = ["*"]\nhours = "25:00-26:00"\n', "hours is '25:00-26:00'; give UTC times"),
        ('[[rules]]\nclients = ["*"]\nhours = "05:00-05:00"\n', "which is empty"),
        ('[[rules]]\nclients = ["*"]\ndays = ["someday"]\n', "days has 'someday'"),
        ('[[rules]]\nclients = ["*"]\nmove = 1\n', "move is 1; give true or false"),
        ('[[rules]]\nclients = ["*"]\nplace = ["x"]\n', "policy.toml, rule 1: place is"),
        ('[[rules]]\nclients = "c"\n', "clients is 'c'; give a list"),
        ('at_once = 0\n[[rules]]\nclients = ["*"]\n', "at_once is 0"),
        ('[[rules]]\nclients = ["*"]\nnow = true\n', "'now' is unknown"),
    ],
)
def test_a_wrong_policy_file_is_refused_with_a_reason(tmp_path, text, message):
    (tmp_path / "policy.toml").write_text(text)
    with pytest.raises(bl.InputError) as refused:
        MovePolicy.load(tmp_path / "policy.toml")
    assert message in str(refused.value)


@given(
    gap=st.floats(0.05, 4.0), offset=st.floats(0.0, 1.0), jitter=st.lists(st.floats(-0.05, 0.05), min_size=24)
)
def test_a_client_leaves_home_between_two_messages(gap, offset, jitter):
    """Away from both, if messages come regularly: none is off by more than a fifth of the margin."""
    times = [gap * number + min(gap, 1.0) * jitter[number % len(jitter)] for number in range(40)]
    now = times[20] + offset * gap
    for _ in range(50):
        wait = seconds_until_pause([at for at in times if at <= now], now)
        if not wait:
            break
        now += wait
    before = now - max(at for at in times if at <= now)
    after = min(at for at in times if at > now) - now
    assert before >= min(0.4 * gap, 0.49)
    assert after >= min(0.03 * gap, 0.03)


def test_a_client_leaves_home_at_any_moment_if_messages_come_too_fast():
    times = [number / 1000 for number in range(100)]
    assert seconds_until_pause(times, times[-1] + 0.0005) == pytest.approx(0.0095)
    assert seconds_until_pause(times, times[-1] + 0.02) == 0


def a_publish(text: str, topic: str = "t/1", repeated: bool = False) -> RelayedPublish:
    return RelayedPublish(topic.encode(), text.encode(), 1, 1, False, b"", 0, repeated)


def a_relayed_move(secret: str = "secret") -> RelayedMove:
    nowhere = Address("127.0.0.1", 1)
    plan = RelayPlan("0" * 16, "c", (("t/1", 1),), nowhere, nowhere, nowhere)
    return RelayedMove(plan, Login(), 1.0, 0.2, secret)


@pytest.mark.parametrize("home_first", [False, True])
def test_what_reaches_home_behind_the_fence_is_not_left_out(home_first):
    """The client gets it from the foreign session only, also if the agent is slow to notice the fence."""
    move = a_relayed_move()
    fence = RelayedPublish(move._fence.encode(), move._codes["home"], 1, 1, False, b"", 0)
    forged = fence._replace(payload=b"home")
    at_witness = a_publish("1"), forged, a_publish("2"), fence, a_publish("3")
    at_home = forged, a_publish("2", repeated=True), fence, a_publish("3")
    both = [(move._on_witnessed, at_witness), (move._on_waiting, at_home)]
    for received, messages in reversed(both) if home_first else both:
        for message in messages:
            received(message)
    assert [message.payload for message in move._waiting] == [b"2"]
    assert not move.is_fence(a_publish("1"))
    assert [move.is_wanted(a_publish(text)) for text in "123"] == [False, False, True]
    assert asyncio.run(move.next_waiting()).payload == b"2"
    assert asyncio.run(move.next_waiting()) is None
    assert move.counts.repeated == 1


def test_an_agent_knows_the_fence_of_the_one_before_it():
    """Messages behind it came with the rights of that agent, and are at the foreign broker."""
    before, after = a_relayed_move(), a_relayed_move()
    assert before._codes == after._codes
    codes = {*before._codes.values(), *a_relayed_move("other")._codes.values()}
    assert len(codes) == 8  # none is a part of another, so who has read one cannot send another


def test_nothing_is_left_out_once_the_client_gets_messages_of_the_foreign_session():
    """An equal message could be another one."""
    move = a_relayed_move()
    fence = RelayedPublish(move._fence.encode(), move._codes["home"], 1, 1, False, b"", 0)
    for message in (a_publish("1"), fence):
        move._on_witnessed(message)
    assert not move.is_fence(a_publish("1"))
    move._on_waiting(fence)
    assert move.is_wanted(a_publish("1"))


@pytest.mark.parametrize(("state", "note"), [(MoveState.REPLICATED, COMING), (MoveState.CONNECTED, "")])
def test_a_client_that_has_passed_the_relay_by_is_called_back(state, note):
    """A router sends it to the foreign broker itself if the relay does not answer in time or restarts."""
    move = Move("0" * 16, "c", "h", "f", state, 0.0, note=note)
    registry = Registry()
    registry.apply([Resident("c", "h", (("t/1", 1),), None, 0.0, (), 0.0, ORDINARY, True), move])
    clients = Mock()
    is_at = Mock(return_value=False)
    steps = OrdinarySteps(
        *(clients, registry, {}, {}, Mock(), lambda call: call, lambda *_: True, Mock(), is_at),
        *(lambda: 0.0, vars(Timing()), lambda _: (None, "")),
    )
    steps._left.add(move.id)
    steps.advance(move, 60.0, 60.0)
    assert not clients.call_back.called  # it is absent
    is_at.return_value = True
    steps.advance(move, 1.0, 1.0)
    assert not clients.call_back.called  # it may be coming
    steps.advance(move, 60.0, 60.0)
    assert clients.call_back.call_args[0][0] == "c"
    is_at.assert_called_with("c", "f")
    clients.call_back.call_args[0][1](None)
    assert not steps._busy
    called = a_relayed_move()
    for received in (called._on_witnessed, called._on_waiting):
        received(a_publish("1"))
        received(RelayedPublish(called._fence.encode(), called._codes["home"], 1, 1, False, b"", 0))
    called._connection = Mock()
    asyncio.run(called.call_back())  # the client is here
    assert not called.is_wanted(a_publish("1"))
    called._connection = None
    with pytest.raises(bl.UnreachableError):
        asyncio.run(called.call_back())
    assert called.is_wanted(a_publish("1"))  # the client can have received another one with this content


@pytest.mark.parametrize("left_by_us", [False, True])
def test_a_client_does_not_move_to_a_broker_where_another_has_its_id(tmp_path, left_by_us):
    """That one would be disconnected, and its queue deleted. What a move has left there is no obstacle."""
    sight = Mock()
    sight.find.return_value = SeenClient("c", "rome", (("t/1", 1),), True, True)
    sight.has_session.return_value = True
    nowhere = dict.fromkeys(("rome", "oslo"), Address("127.0.0.1", 1))
    journal = MoveJournal(tmp_path / "journal")
    agent = MoveAgent(nowhere, Mock(), journal, ordinary=Mock(), sight=sight)
    try:
        if left_by_us:
            resident = Resident("c", "rome", (("t/1", 1),), None, 0.0, (), 0.0, ORDINARY, True)
            journal.append([resident, Abandoned("c", "oslo", 0.0, False)])
            assert agent.request_to_move("c", "oslo").state is MoveState.REQUESTED
        else:
            with pytest.raises(bl.InputError, match="also has a session at 'oslo'; give each client its own"):
                agent.request_to_move("c", "oslo")
            sight.has_session.assert_called_with("c", "oslo", is_sure=False)
    finally:
        journal.close()


@contextmanager
def an_agent(folder: Path, seen: SeenClient, policy: str = POLICY) -> Iterator[tuple[MoveAgent, Mock, Mock]]:
    """An agent whose brokers show one client, its view of the brokers, and its relay."""
    (folder / "policy.toml").write_text(policy)
    sight = Mock()
    sight.find.return_value = seen
    sight.has_session.return_value = False
    relay = Mock(policy=MovePolicy.load(folder / "policy.toml"))
    nowhere = dict.fromkeys(("rome", "oslo", "bern"), Address("127.0.0.1", 1))
    journal = MoveJournal(folder / "journal")
    try:
        yield MoveAgent(nowhere, Mock(), journal, ordinary=relay, sight=sight), sight, relay
    finally:
        journal.close()


def test_a_client_whose_subscriptions_are_not_all_known_is_not_moved(tmp_path):
    """Its move waits until they are, and fails if they stay unknown; the note says what to do."""
    partly = SeenClient("c", "rome", (("t/1", 1),), True, True, is_whole=False)
    with an_agent(tmp_path, partly) as (agent, sight, relay):
        now = agent.now()
        move = agent.request_to_move("c", "oslo").id
        agent.step(now)
        assert agent.registry.moves[move].state is MoveState.REQUESTED
        assert "has not shown all its subscriptions" in agent.registry.moves[move].note
        agent.step(now + agent.timing.move + 1)
        assert agent.registry.moves[move].state is MoveState.FAILED
        assert "give mosquitto.db in `subscriptions`" in agent.registry.moves[move].note
        assert not relay.prepare.called
        sight.find.return_value = replace(partly, keeps=False)  # it subscribes anew wherever it connects
        move = agent.request_to_move("c", "oslo").id
        agent.step(now)
        assert agent.registry.moves[move].state is MoveState.ACCEPTED


def run_steps(agent: MoveAgent, now: float) -> None:
    """Let the agent do what is due at a time."""
    for _ in range(3):
        while not agent._inbox.empty():
            agent._inbox.get()()
        agent.step(now)


def left_by(agent: MoveAgent, relay: Mock) -> str:
    """Request a move of the client `c` to oslo, up to the moment in which it is disconnected from home."""
    now = agent.now()
    move = agent.request_to_move("c", "oslo").id
    run_steps(agent, now)
    relay.prepare.call_args[0][1](None)
    run_steps(agent, now + 5)
    assert relay.take_over.called
    return move


@pytest.mark.parametrize("event", ["subscribes", "goes to bern", "goes to oslo", "has a twin"])
def test_what_a_client_does_between_the_request_and_its_move_counts(tmp_path, event):
    """The policy can let it move hours later: its filters can be others, and it can be elsewhere."""
    seen = SeenClient("c", "rome", (("t/1", 1),), True, True)
    night = time.gmtime(time.time() + 7200).tm_hour
    hours = f'hours = "{night:02}:00-{(night + 1) % 24:02}:00"\n'
    with an_agent(tmp_path, seen, f"{POLICY}{hours}") as (agent, sight, relay):
        now = agent.now()
        move = agent.request_to_move("c", "oslo").id
        agent.step(now)
        assert agent.registry.moves[move].state is MoveState.STAYING
        until = agent.registry.moves[move].until + 1
        if event == "subscribes":
            sight.find.return_value = replace(seen, filters=(("t/1", 1), ("t/2", 1)))
        elif event == "has a twin":
            sight.has_session.return_value = True
        else:
            sight.find.return_value = replace(seen, broker=event[-4:])
        for _ in range(3):
            agent.step(until)
        if event == "subscribes":
            assert relay.prepare.call_args[0][0].filters == (("t/1", 1), ("t/2", 1))
        else:
            expected = (
                "also has a session at 'oslo'" if event == "has a twin" else f"is at {event[-4:]!r} now"
            )
            assert agent.registry.moves[move].state is MoveState.FAILED
            assert expected in agent.registry.moves[move].note
            assert not relay.prepare.called


@pytest.mark.parametrize("is_late", [False, True])
def test_what_a_client_subscribes_to_while_it_moves_is_not_lost(tmp_path, is_late):
    """Its session is prepared anew; if it has left already, it goes back home, where it has everything."""
    seen = SeenClient("c", "rome", (("t/1", 1),), True, True)
    more = replace(seen, filters=(("t/1", 1), ("t/2", 1)))
    with an_agent(tmp_path, seen) as (agent, sight, relay):
        now = agent.now()
        move = agent.request_to_move("c", "oslo").id
        run_steps(agent, now)
        relay.prepare.call_args[0][1](None)
        if not is_late:
            sight.find.return_value = more
            run_steps(agent, now + 5)
            assert relay.prepare.call_args[0][0].filters == more.filters
            assert not relay.take_over.called
            relay.prepare.call_args[0][1](None)
        run_steps(agent, now + 20)
        assert relay.take_over.called
        sight.find.return_value = more
        relay.take_over.call_args[0][3](None)
        run_steps(agent, now + 20)
        note = agent.registry.moves[move].note
        assert (note == COMING) != is_late
        assert ("changed its subscriptions while it left" in note) == is_late
        assert relay.give_up.called == is_late


@pytest.mark.parametrize("full_at", [1, 2])
def test_a_subscription_of_a_client_that_leaves_is_not_lost_on_a_full_disk(tmp_path, monkeypatch, full_at):
    """Whichever record finds no room: the step is repeated, and the client goes home."""
    seen = SeenClient("c", "rome", (("t/1", 1),), True, True)
    more = replace(seen, filters=(("t/1", 1), ("t/2", 1)))
    with an_agent(tmp_path, seen) as (agent, sight, relay):
        move = left_by(agent, relay)
        sight.find.return_value = more
        relay.take_over.call_args[0][3](None)
        then = agent._inbox.get()
        written = agent._journal.append
        records = Counter[str]()

        def append(changes: list[object]) -> None:
            records["all"] += 1
            if records["all"] == full_at:
                raise bl.StorageError("the disk is full")
            written(changes)

        monkeypatch.setattr(agent._journal, "append", append)
        for _ in range(2):
            with suppress(bl.StorageError):
                then()
                break
        assert agent.registry.moves[move].state is MoveState.FAILED
        assert agent.registry.residents["c"].filters == more.filters
        relay.give_up.assert_called_once_with("c", "rome")


@pytest.mark.parametrize("step", ["prepare", "prepare anew", "take over"])
def test_the_note_of_a_failed_move_says_what_has_failed_last(tmp_path, step):
    """Not that the client did not come, if a router does not answer."""
    seen = SeenClient("c", "rome", (("t/1", 1),), True, True)
    with an_agent(tmp_path, seen) as (agent, _, relay):
        begun = agent.now()
        if step == "prepare":
            move = agent.request_to_move("c", "oslo").id
            run_steps(agent, begun)
            relay.prepare.call_args[0][1]("127.0.0.1:1 refuses the agent: 0x87")
            expected = "no session at 'oslo': 127.0.0.1:1 refuses the agent: 0x87"
        else:
            move = left_by(agent, relay)
            relay.take_over.call_args[0][3]("the router at r does not answer")
            expected = "the client does not leave 'rome': the router at r does not answer"
        if step == "prepare anew":  # by an agent that has restarted
            agent._save([replace(agent.registry.moves[move], note="")])
            agent._ordinary._prepared.clear()
        run_steps(agent, begun + 2 * agent.timing.move)
        assert agent.registry.moves[move].state is MoveState.FAILED
        assert agent.registry.moves[move].note == expected
        relay.give_up.assert_called_once_with("c", "rome")


def test_moves_that_wait_for_others_are_counted_once_per_step(tmp_path, monkeypatch):
    """However many there are; an ended move makes room at once."""
    seen = SeenClient("c", "rome", (("t/1", 1),), True, True)
    policy = POLICY.replace("at_once = 100", "at_once = 2")
    with an_agent(tmp_path, seen, policy) as (agent, sight, _):
        sight.find.side_effect = lambda client: replace(seen, client=client)
        now = agent.now()
        moves = [agent.request_to_move(f"c{number}", "oslo").id for number in range(20)]
        counted = Mock(side_effect=agent.registry.active_moves)
        monkeypatch.setattr(agent.registry, "active_moves", counted)

        def accepted() -> list[int]:
            states = [agent.registry.moves[move].state for move in moves]
            return [number for number, state in enumerate(states) if state is MoveState.ACCEPTED]

        agent.step(now)
        assert accepted() == [0, 1]
        assert counted.call_count == 2  # by the agent, and by the steps of ordinary clients
        agent.cancel(moves[0])
        agent.step(now)
        assert accepted() == [1, 2]


@pytest.mark.parametrize("broker", ["h", "f"])
def test_a_client_whose_move_is_abandoned_connects_to_the_broker_that_it_is_at(broker):
    """The map does not send it to the relay any more."""
    move = Move("0" * 16, "c", "h", "f", MoveState.CONNECTED, 0.0)
    registry = Registry()
    registry.apply([Resident("c", broker, (("t/1", 1),), None, 0.0, (), 0.0, ORDINARY, True), move])
    clients = Mock()
    steps = OrdinarySteps(clients, registry, *[Mock() for _ in range(10)])
    steps.abandon(move)
    called = clients.release if broker == "f" else clients.give_up
    called.assert_called_once_with("c", broker)
    assert len(clients.method_calls) == 1


def test_a_client_with_a_clean_session_has_moved_when_it_has_arrived(tmp_path):
    """If it does not come, its move fails, and the map sends it home again."""
    seen = SeenClient("c", "rome", (("t/1", 1),), True, False)
    for has_come in (True, False):
        folder = tmp_path / str(has_come)
        folder.mkdir()
        with an_agent(folder, seen) as (agent, sight, relay):
            sight.is_connected.return_value = False
            now = agent.now()
            move = agent.request_to_move("c", "oslo").id
            for seconds in (0, 1, 5, 6, 7):
                agent.step(now + seconds)
            relay.hand_over.call_args[0][3](None)
            agent._inbox.get()()
            agent.step(now + 8)
            assert agent.registry.moves[move].state is MoveState.CONNECTED
            sight.is_connected.return_value = has_come
            agent.step(now + 9 if has_come else now + 9 + agent.timing.move)
            sight.is_connected.assert_called_with("c", "oslo")
            state, home = agent.registry.moves[move].state, agent.registry.residents["c"].broker
            expected = (MoveState.REDIRECTED, "oslo") if has_come else (MoveState.FAILED, "rome")
            assert (state, home) == expected
            assert relay.give_up.called != has_come
            assert not relay.take_over.called
            assert agent._claims.at("rome") == (set() if has_come else {"t/1"})


def test_a_session_is_not_prepared_while_an_earlier_one_of_the_client_is_being_ended(tmp_path):
    """The end of what a move has left there would end it, too."""
    seen = SeenClient("c", "rome", (("t/1", 1),), True, True)
    with an_agent(tmp_path, seen) as (agent, _, relay):
        now = agent.now()
        resident = Resident("c", "rome", (("t/1", 1),), None, 0.0, (), 0.0, ORDINARY, True)
        agent._save([resident, Stray("c", "oslo", now - 60, False, "0" * 16, last=True)])
        agent.step(now + agent.timing.ttl)
        then = agent._gateway.forget.call_args[0][2]
        agent.request_to_move("c", "oslo")
        for seconds in (6, 7, 8):
            agent.step(now + seconds)
        assert not relay.prepare.called
        then(None)
        agent._inbox.get()()
        agent.step(now + 10)
        assert relay.prepare.called


def publish_lines(port: int, topic: str, count: int, first: int = 0) -> None:
    """Publish numbered messages at QoS 1."""
    command = ["mosquitto_pub", "-h", HOST, "-p", str(port), "-q", "1", "-t", topic, "-l"]
    lines = "".join(f"m{number}\n" for number in range(first, first + count))
    subprocess.run(command, input=lines, text=True, check=True)


def is_requested(operator: Operator, client: str, to: str) -> bool:
    """Request a move; false if the client is still being moved."""
    with suppress(bl.InputError):
        operator.request_to_move(client, to)
    return operator.moves()[-1]["client"] == client and operator.moves()[-1]["foreign"] == to


class RawClient:
    """A client of MQTT 3.1.1 with a persistent session that sends packets as they are given."""

    def __init__(self, port: int, name: str, is_present: bool = False) -> None:
        self._port = port
        self._is_present = is_present
        text = name.encode()
        self._connect = bytes((0x10, 12 + len(text))) + b"\0\4MQTT\4\0\0\x3c\0" + bytes((len(text),)) + text

    def __enter__(self) -> RawClient:
        assert wait_for(self._is_accepted)
        return self

    def _is_accepted(self) -> bool:
        self._socket = socket.create_connection((HOST, self._port), 30.0)
        self._socket.sendall(self._connect)
        if self._socket.recv(4) == bytes((0x20, 2, self._is_present, 0)):
            return True
        self._socket.close()
        return False

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, packet: bytes, answer: bytes) -> None:
        """Send a packet, and check the answer."""
        self._socket.sendall(packet)
        assert self._socket.recv(len(answer)) == answer

    def is_ended(self) -> bool:
        """Wait until the broker has ended the connection."""
        return self._socket.recv(1) == b""


class TestLive:
    """On real brokers behind a real router."""

    pytestmark = live

    @pytest.mark.needs("openssl")
    def test_online_clients_of_both_versions_move_under_load(self, tmp_path):
        """And one that is absent gets what waited for it, once, when it comes back, at its new broker.

        More waits for it than the relay reads at once.

        All connections have TLS: from clients to the router, on to brokers and to the relay, and from there.
        """
        certificates = authority(tmp_path / "tls")
        with RoutedBrokers(tmp_path, ("a", "b"), certificates=certificates) as system:
            tls = ("--cafile", str(certificates / "ca.crt"))
            clients = [
                Subscriber(tmp_path, f"c-{one}", system.port, one, options=tls) for one in ("mqttv311", "5")
            ]
            absent = Subscriber(tmp_path, "c-absent", system.port, topic="t/2", options=tls)
            config, operator = write_ordinary_config(tmp_path, system)
            for client in (*clients, absent):
                client.start()
            with ordinary_agent(config) as service:
                assert wait_for(lambda: len(homes(operator)) == 3)
                absent.stop()
                many = 2 * MOST_WAITING + 500
                publish_lines(system.lab.ports["a"], "t/2", many)
                with Publisher(system.lab.ports["b"]) as load:
                    assert wait_for(lambda: load.sent > 20)
                    for client in (*clients, absent):
                        assert homes(operator)[client.name] == "a"
                        operator.request_to_move(client.name, "b")
                    for client in clients:
                        assert wait_for(lambda c=client: state_of(operator, c.name) == "redirected")
                    assert state_of(operator, "c-absent") == "replicated"
                    publish_lines(system.lab.ports["b"], "t/2", 200, first=many)
                    absent.start()
                    assert wait_for(lambda: state_of(operator, "c-absent") == "redirected")
                    assert wait_for(lambda: system.connected("c-absent")[-1] == "b")
                    more = load.sent + 20
                    assert wait_for(lambda: load.sent > more)
                    publish_lines(system.lab.ports["b"], "t/2", 1, first=many + 200)
                assert wait_for(lambda: f"m{many + 200}" in absent.got())
                assert absent.got() == Counter(f"m{number}" for number in range(many + 201))
                assert wait_for(lambda: not service.agent._ordinary._clients._relay.moves)  # all are counted
                doubled = 0
                for client in clients:
                    assert wait_for(lambda c=client: not load.missing(c.got())), client.name
                    doubled += client.got().total() - len(client.got())
                    assert all(text.startswith("m") for text in client.got())
                # A message whose acknowledgement was under way when the client left can arrive twice.
                assert doubled <= operator.health()["relayed"]["repeated"]
                for client in (*clients, absent):
                    client.stop()
                assert set(homes(operator).values()) == {"b"}

    def test_the_policy_a_shared_subscription_and_a_clean_session(self, tmp_path):
        """Each is said: what the policy forbids, what cannot be moved, and what can be lost."""
        with RoutedBrokers(tmp_path, ("a", "b")) as system:
            config, operator = write_ordinary_config(tmp_path, system)
            with ordinary_agent(config):
                pump = Subscriber(tmp_path, "pump", system.port)
                shared = Subscriber(tmp_path, "c-shared", system.port, "5", "$share/g/t/1")
                clean = Subscriber(tmp_path, "c-clean", system.port)
                clean._command.remove("-c")
                for client in (pump, shared, clean):
                    client.start()
                assert wait_for(lambda: len(homes(operator)) == 3), operator.health()
                operator.request_to_move("pump", "b")
                assert wait_for(lambda: state_of(operator, "pump") == "declined")
                with pytest.raises(bl.InputError, match=r"'\$share/g/t/1' is shared"):
                    operator.request_to_move("c-shared", "b")
                with pytest.raises(bl.InputError, match="no broker shows it"):
                    operator.request_to_move("c-nobody", "b")
                operator.request_to_move("c-clean", "b")
                assert wait_for(lambda: state_of(operator, "c-clean") == "redirected")
                assert "keeps no session" in operator.moves()[-1]["note"]
                assert wait_for(lambda: "b" in system.connected("c-clean"))
                for client in (pump, shared, clean):
                    client.stop()

    def test_clients_move_back_but_not_to_a_broker_where_another_has_their_id(self, tmp_path):
        """Whichever version of MQTT they use: what earlier moves have left at a broker is no obstacle."""
        with RoutedBrokers(tmp_path, ("a", "b")) as system:
            clients = [Subscriber(tmp_path, f"c-{one}", system.port, one) for one in ("mqttv311", "5")]
            other = Subscriber(tmp_path / "b", "c-twin", system.lab.ports["b"])
            (tmp_path / "b").mkdir()
            twin = Subscriber(tmp_path, "c-twin", system.port)
            config, operator = write_ordinary_config(tmp_path, system)
            for client in (*clients, other, twin):
                client.start()
            with ordinary_agent(config):
                assert wait_for(lambda: len(homes(operator)) == 3)
                home = homes(operator)["c-twin"]
                with pytest.raises(bl.InputError, match="also has a session at"):
                    operator.request_to_move("c-twin", "ab"[home == "a"])
                for target in "ba":
                    for client in clients:
                        assert wait_for(lambda c=client, to=target: is_requested(operator, c.name, to))
                    for client in clients:
                        assert wait_for(lambda c=client: state_of(operator, c.name) == "redirected")
                for client in (*clients, other, twin):
                    client.stop()

    @pytest.mark.parametrize("has_fences", [True, False])
    def test_nothing_is_lost_under_the_exported_rules(self, tmp_path, monkeypatch, has_fences):
        """Nor under rules that hide fences from clients, though messages are equal to earlier ones."""
        monkeypatch.setenv("BROADLOOM_AGENT_PASSWORD", "agent")
        exported = acl_rules()
        if not has_fences:
            exported = exported.replace("pattern read $broadloom/to/+/fence\n", "")
        rules = f"topic readwrite #\ntopic write $SYS/#\nuser c-1\ntopic read t/#\n{exported}"
        passwords = {"c-1": "right", MOVE_AGENT: "agent"}
        with RoutedBrokers(tmp_path, ("a", "b"), passwords, rules=rules) as system:
            client = Subscriber(tmp_path, "c-1", system.port, options=("-u", "c-1", "-P", "right"))
            config, operator = write_ordinary_config(tmp_path, system, ttl=4.0, user=MOVE_AGENT)
            client.start()
            with ordinary_agent(config):
                assert wait_for(lambda: "c-1" in homes(operator))
                with Publisher(system.lab.ports["a"], cycle=50) as load:
                    operator.request_to_move("c-1", "b")
                    assert wait_for(lambda: state_of(operator, "c-1") == "redirected")
                    more = load.sent + 5
                    assert wait_for(lambda: load.sent > more)
                sent = Counter(f"m{number % 50}" for number in range(load.sent))
                assert wait_for(lambda: not sent - client.got())
                assert wait_for(lambda: "left_out" in operator.health()["relayed"])
                assert (operator.health()["relayed"]["left_out"] > 0) == has_fences
            client.stop()

    def test_a_cancelled_move_and_a_move_between_two_packets_of_qos_2(self, tmp_path):
        """An absent client gets no fence when it comes back home; a message that is released late arrives."""
        with RoutedBrokers(tmp_path, ("a", "b")) as system:
            absent = Subscriber(tmp_path, "c-absent", system.port, topic="t/2")
            reader = Subscriber(tmp_path, "reader", system.lab.ports["a"], topic="t/3")
            config, operator = write_ordinary_config(tmp_path, system)
            absent.start()
            reader.start()
            with ordinary_agent(config):
                with RawClient(system.port, "c-raw") as raw:
                    raw.ask(b"\x82\x08\0\1\0\3t/4\1", b"\x90\3\0\1\1")  # SUBSCRIBE, SUBACK
                    assert wait_for(lambda: {"c-absent", "c-raw"} <= homes(operator).keys())
                    raw.ask(b"\x34\x0a\0\3t/3\0\5m.3", b"\x50\2\0\5")  # PUBLISH, PUBREC
                    absent.stop()
                    publish_lines(system.lab.ports["a"], "t/2", 3)
                    moves = [operator.request_to_move(name, "b") for name in ("c-absent", "c-raw")]
                    assert raw.is_ended()
                assert wait_for(lambda: operator.moves()[0]["note"] == COMING)
                operator.cancel(moves[0]["id"])
                with RawClient(system.port, "c-raw", is_present=True) as raw:
                    raw.ask(b"\x62\2\0\5", b"\x70\2\0\5")  # PUBREL, PUBCOMP
                    assert wait_for(lambda: reader.got() == Counter(["m.3"]))
                absent.start()
                publish_lines(system.lab.ports["b"], "t/2", 1, first=3)
                assert wait_for(lambda: absent.got()["m3"] == 1)
                assert absent.got() == Counter(["m0", "m1", "m2", "m3"])
                assert homes(operator)["c-absent"] == "a"
            absent.stop()
            reader.stop()

    def test_a_stranger_with_the_name_of_a_client_changes_nothing(self, tmp_path, monkeypatch):
        """Without its password, while the client is at the relay."""
        have_tried = threading.Event()
        finish = RelayedMove._finish

        async def finish_later(move: RelayedMove) -> None:
            while not have_tried.is_set():
                await asyncio.sleep(0.02)
            await finish(move)

        monkeypatch.setattr(RelayedMove, "_finish", finish_later)
        with RoutedBrokers(tmp_path, ("a", "b"), {"c-1": "right"}) as system:
            client = Subscriber(tmp_path, "c-1", system.port, options=("-u", "c-1", "-P", "right"))
            config, operator = write_ordinary_config(tmp_path, system, ttl=2.0)
            client.start()
            with ordinary_agent(config), Publisher(system.lab.ports["a"]) as load:
                assert wait_for(lambda: "c-1" in homes(operator))
                operator.request_to_move("c-1", "b")
                assert wait_for(lambda: state_of(operator, "c-1") == "connected")
                connections = system.connected("c-1")
                with ThreadPoolExecutor() as pool:
                    wrong = [pool.submit(system.publish, "c-1", login=("c-1", "wrong")) for _ in range(4)]
                assert all(one.result() for one in wrong)
                assert operator.health()["refused"]["relay, not authorized"] == 4 > MOST_REFUSALS
                assert system.connected("c-1") == connections  # nobody has ended that of the client
                have_tried.set()
                assert wait_for(lambda: state_of(operator, "c-1") == "redirected")
                assert wait_for(lambda: system.connected("c-1")[-1] == "b")
                assert set(system.connected("c-1")) == {"a", "b"}
                more = load.sent + 5
                assert wait_for(lambda: load.sent > more)
            assert wait_for(lambda: not load.missing(client.got()))
            client.stop()
