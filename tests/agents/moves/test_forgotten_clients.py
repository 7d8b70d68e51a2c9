"""Silent clients are forgotten in the end, but nothing that is still needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moving import (
    TrafficCounter,
    addresses,
    all_moves_over,
    client_addresses,
    linked_brokers,
    move_states,
    payload_id,
    running_agent,
    wait_for,
)
from test_move_agent import World, saved_state

from broadloom import InputError
from broadloom.agents.moves.client_links import LinksEverywhere
from broadloom.agents.moves.control_messages import RefusedNumber, Register, Registered, parse
from broadloom.agents.moves.move_agent import DAY, LEAST_FORGET, Timing
from broadloom.agents.moves.move_registry import FILE, MoveState
from broadloom.agents.moves.moving_client import MovingClient

MONTH = Timing().forget_after


def residents(world):
    return set(world.agent.registry.residents)


def later(world, seconds, monkeypatch):
    """Let time pass for the agent without messages, and let it do what is due."""
    moment = world.agent.now() + seconds
    monkeypatch.setattr(world.agent, "now", lambda: moment)
    world.agent.step(moment)


def test_a_silent_client_is_forgotten_and_an_active_one_is_not(world, monkeypatch):
    """Its records disappear from the journal; when it comes back, it can register as before."""
    for client in ("gone", "here"):
        world.register(client, "h", ((f"{client}/wants", 1),))
    for _ in range(int(MONTH / DAY)):
        later(world, DAY, monkeypatch)
        assert world.register("here", "h", (("here/wants", 1),))
        assert residents(world) == {"gone", "here"}
    later(world, 2 * DAY, monkeypatch)
    assert residents(world) == {"here"}
    for file in world.folder.iterdir():
        assert b"gone" not in file.read_bytes(), file
    before = saved_state(world)
    world.start()
    assert saved_state(world) == before
    assert world.register("gone", "f")
    assert world.gateway.sent[-1][1].endswith("gone/registered")
    assert residents(world) == {"gone", "here"}
    assert not world.agent.registry.strays


def test_a_register_that_changes_nothing_is_journaled_at_most_once_per_day(world, monkeypatch):
    """Enough for an agent that restarts, and the journal does not grow."""
    written = []
    for _ in range(20):
        later(world, DAY / 10, monkeypatch)
        world.register("a", "h")
        written.append(world.journal.position)
    assert len(set(written)) == 2
    heard = world.agent.registry.residents["a"].heard
    assert world.agent.now() - heard <= DAY
    world.start()
    assert world.agent.registry.residents["a"].heard == heard


def test_no_client_is_forgotten_if_forget_after_is_zero(world, monkeypatch):
    world.agent.timing = Timing(forget_after=0)
    world.register("a", "h")
    later(world, 100 * MONTH, monkeypatch)
    assert residents(world) == {"a"}


@pytest.mark.parametrize("forget_after", [-1, float("nan"), "30 days", True, 1, DAY, LEAST_FORGET - 1])
def test_an_invalid_forget_after_is_refused(forget_after):
    """Nor one so short that a broker can still have a session of a forgotten client."""
    with pytest.raises(InputError, match=r"forget_after is .*; give"):
        Timing(forget_after=forget_after)
    assert Timing(forget_after=LEAST_FORGET).forget_after == LEAST_FORGET


def test_an_agent_forgets_no_client_in_its_first_day(world, monkeypatch):
    """Clients could not register while no agent was running, however long that was."""
    world.register("a", "h")
    restart = world.agent.now() + 10 * MONTH
    monkeypatch.setattr("time.time", lambda: restart)
    world.start()
    later(world, DAY - 60, monkeypatch)
    assert residents(world) == {"a"}
    later(world, 120, monkeypatch)
    assert not residents(world)


def test_a_client_is_not_forgotten_during_a_move(world, monkeypatch):
    """Nor while one of its old sessions is still to be emptied."""
    world.agent.timing = Timing(answer=10 * MONTH, again=0, ttl=0, abandon=20 * MONTH)
    for client in "ab":
        world.register(client, "h")
    move = world.agent.request_to_move("a", "f")
    world.register("b", "f")
    later(world, 2 * MONTH, monkeypatch)
    assert residents(world) == {"a", "b"}
    world.agent.cancel(move.id)
    later(world, 2 * DAY, monkeypatch)
    assert residents(world) == {"b"}
    assert world.state(move) is MoveState.CANCELLED
    with pytest.raises(InputError, match="'a' has not registered"):
        world.agent.request_to_move("a", "f")
    for _ in range(2):  # the session is ended again after the broker has saved its end
        world.step()
    later(world, 2 * DAY, monkeypatch)
    assert not residents(world)


def test_an_agent_that_crashes_while_it_forgets_has_forgotten_all_clients_or_none(world, monkeypatch):
    """A crash before the journal is compacted, before its transaction and after it."""
    path = world.folder / FILE
    for client in "abc":
        world.register(client, "h")
    before, old = saved_state(world), path.read_bytes()
    monkeypatch.setattr(world.journal, "compact", lambda: None)  # it crashes before that
    later(world, 2 * MONTH, monkeypatch)
    after, new = saved_state(world), path.read_bytes()
    assert not residents(world)
    for data, state, clients in ((new, after, set()), (old, before, set("abc"))):
        world.journal.close()
        path.write_bytes(data)
        world.start()
        assert saved_state(world) == state
        assert residents(world) == clients


def test_the_filters_of_a_forgotten_client_are_released(world, monkeypatch):
    carried = set()

    class RecordingLinks(LinksEverywhere):
        def carry(self, broker, filters):
            carried.update((broker, one) for one in filters)

        def release(self, broker, filters):
            carried.difference_update((broker, one) for one in filters)

    world.start(links=RecordingLinks())
    world.register("a", "h", (("t/1", 1), ("t/2", 1)))
    later(world, MONTH - DAY, monkeypatch)
    world.register("b", "h", (("t/2", 1),))
    assert carried == {("h", "t/1"), ("h", "t/2")}
    later(world, 2 * DAY, monkeypatch)
    assert residents(world) == {"b"}
    assert carried == {("h", "t/2")}


def test_old_messages_of_a_forgotten_client_are_still_refused_as_replays(world, monkeypatch):
    """Also after a restart; a client whose clock was set back learns the last number."""
    early, late = Register("a", 41, "h"), Register("a", 42, "h")
    assert world.send("h", early)
    assert world.send("h", late)
    later(world, 2 * MONTH, monkeypatch)
    assert not residents(world)
    for start in (lambda: None, world.start):
        start()
        for message in (early, late):
            assert not world.send("f", Register("a", message.number, "f"))
    assert parse(RefusedNumber, world.gateway.sent[-1][2]).number == 42
    assert world.send("h", Register("a", 43, "h"))
    assert parse(Registered, world.gateway.sent[-1][2]).number == 43


def test_a_number_ahead_of_the_clock_does_not_block_other_clients(world, monkeypatch):
    """The client is remembered until the clock reaches its number; otherwise others would start below it."""
    ahead = int((world.agent.now() + 3 * MONTH) * 1e9)
    assert world.send("h", Register("a", ahead, "h"))
    later(world, 2 * MONTH, monkeypatch)
    assert residents(world) == {"a"}
    later(world, 2 * MONTH, monkeypatch)
    assert not residents(world)
    assert world.send("h", Register("b", ahead + 1, "h"))


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from("abc")),
        st.tuples(st.just("pass"), st.sampled_from([0.13, 0.62, 1.17, 14.0, 29.5, 40.0])),
        st.tuples(st.just("crash"), st.none()),
    ),
    max_size=30,
)


@settings(max_examples=40)
@given(events=EVENTS)
def test_exactly_the_silent_clients_are_forgotten_after_any_events(tmp_path_factory, events):
    """Compared with a plain table of times; a replay of the journal restores the same state at any time."""
    world, heard = World(tmp_path_factory.mktemp("j")), {}
    next_check = world.agent.now() + DAY
    with pytest.MonkeyPatch.context() as patch:
        later(world, 0, patch)
        for kind, value in events:
            now = world.agent.now()
            if kind == "register":
                assert world.register(value, "h")
                heard[value] = now if now > heard.get(value, 0.0) + DAY else heard[value]
            elif kind == "pass":
                later(world, value * DAY, patch)
                now = world.agent.now()
                if now > next_check:
                    heard = {client: when for client, when in heard.items() if when >= now - MONTH}
                    next_check = now + DAY
            else:
                before = saved_state(world)
                patch.setattr("time.time", lambda now=now: now)
                world.start()
                later(world, 0, patch)
                next_check = world.agent.now() + DAY
                assert saved_state(world) == before
            assert {name: one.heard for name, one in world.agent.registry.residents.items()} == heard
    world.journal.close()


def forget_all(agent):
    """Let two months pass; return the remaining clients before any registers again."""
    agent._forget_silent(agent.now() + 2 * MONTH)
    return list(agent.registry.residents)


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("moves")
def test_a_forgotten_client_can_register_and_move(tmp_path):
    """On real brokers, without lost or duplicated messages."""
    traffic = TrafficCounter()
    with linked_brokers("hf") as brokers, running_agent(addresses(brokers), tmp_path) as agent:
        reader = MovingClient(
            "reader",
            client_addresses(brokers),
            "h",
            traffic.callback("reader"),
            identify=payload_id,
            plain=True,
        )
        reader.subscribe("t/1")
        with reader, MovingClient("writer", client_addresses(brokers), "f", plain=True) as writer:
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            assert not agent.ask(forget_all)
            for client in (reader, writer):
                client.register()
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            agent.ask(lambda own: own.request_to_move("reader", "f"))
            assert wait_for(
                lambda: publish_one(traffic, writer) and all_moves_over(agent) and reader.home == "f"
            )
            assert wait_for(lambda: traffic.counts({"reader": {"t/1"}})[1] == 0)
            assert move_states(agent) == {MoveState.REDIRECTED: 1}
    expected, lost, doubled = traffic.counts({"reader": {"t/1"}})
    assert (lost, doubled, expected > 0) == (0, 0, True)


def publish_one(traffic, writer):
    """Publish one more message; true, for use in a condition."""
    traffic.send(writer, "t/1")
    return True
