"""Silent clients are forgotten in the end, but nothing that is still needed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moving import (
    Counted,
    addresses,
    agent_of,
    is_over,
    known,
    linked,
    payload_id,
    states,
    wait_for,
)
from test_move_agent import World, kept

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
    """Let time pass for the agent, as if nobody said anything, and let it do what is due."""
    moment = world.agent.now() + seconds
    monkeypatch.setattr(world.agent, "now", lambda: moment)
    world.agent.step(moment)


def test_who_is_silent_for_long_is_forgotten_and_who_speaks_is_not(world, monkeypatch):
    """With what the journal has of it; a client that comes back registers again, and is known as before."""
    for client in ("gone", "here"):
        world.register(client, "h", ((f"{client}/wants", 1),))
    for _ in range(int(MONTH / DAY)):
        later(world, DAY, monkeypatch)
        assert world.register("here", "h", (("here/wants", 1),))
        assert residents(world) == {"gone", "here"}
    later(world, 2 * DAY, monkeypatch)
    assert residents(world) == {"here"}
    assert b"gone" not in (world.folder / FILE).read_bytes()
    before = kept(world)
    world.start()
    assert kept(world) == before
    assert world.register("gone", "f")
    assert world.wire.sent[-1][1].endswith("gone/registered")
    assert residents(world) == {"gone", "here"}
    assert not world.agent.registry.strays


def test_a_register_that_changes_nothing_is_kept_once_a_day(world, monkeypatch):
    """So that a new agent knows who was there, and the journal does not grow by it."""
    size = (world.folder / FILE).stat().st_size
    sizes = []
    for _ in range(20):
        later(world, DAY / 10, monkeypatch)
        world.register("a", "h")
        sizes.append((world.folder / FILE).stat().st_size - size)
    assert len(set(sizes)) == 2
    heard = world.agent.registry.residents["a"].heard
    assert world.agent.now() - heard <= DAY
    world.start()
    assert world.agent.registry.residents["a"].heard == heard


def test_nobody_is_forgotten_if_the_operator_wants_that(world, monkeypatch):
    world.agent.timing = Timing(forget_after=0)
    world.register("a", "h")
    later(world, 100 * MONTH, monkeypatch)
    assert residents(world) == {"a"}


@pytest.mark.parametrize("given", [-1, float("nan"), "30 days", True, 1, DAY, LEAST_FORGET - 1])
def test_what_cannot_be_said_of_forgetting(given):
    """A client is not forgotten while a broker may still have a session of it."""
    with pytest.raises(InputError, match=r"forget_after is .*; give"):
        Timing(forget_after=given)
    assert Timing(forget_after=LEAST_FORGET).forget_after == LEAST_FORGET


def test_a_new_agent_waits_a_day_before_it_forgets(world, monkeypatch):
    """However long there was none, and whatever its clock says: clients had nobody to register with."""
    world.register("a", "h")
    away = world.agent.now() + 10 * MONTH
    monkeypatch.setattr("time.time", lambda: away)
    world.start()
    later(world, DAY - 60, monkeypatch)
    assert residents(world) == {"a"}
    later(world, 120, monkeypatch)
    assert not residents(world)


def test_a_client_with_a_move_under_way_is_known_until_that_is_over(world, monkeypatch):
    """And while a session that it left is still to be emptied."""
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
    for _ in range(2):  # once, and once more when the broker has saved that it is gone
        world.step()
    later(world, 2 * DAY, monkeypatch)
    assert not residents(world)


def test_an_agent_that_dies_while_it_forgets_has_forgotten_all_of_them_or_none(world, monkeypatch):
    """Before the journal is written anew, and at each byte of the record, which was not acknowledged then."""
    place = world.folder / FILE
    for client in "abc":
        world.register(client, "h")
    before, size = kept(world), place.stat().st_size
    monkeypatch.setattr(world.journal, "compact", lambda: None)  # it dies before
    later(world, 2 * MONTH, monkeypatch)
    after, whole = kept(world), place.read_bytes()
    assert not residents(world)
    for cut in range(size, len(whole) + 1):
        world.journal.close()
        place.write_bytes(whole[:cut])
        world.start()
        assert kept(world) == (after if cut == len(whole) else before)
        assert residents(world) == (set() if cut == len(whole) else set("abc"))


def test_links_of_a_client_that_is_forgotten_are_released(world, monkeypatch):
    carried = set()

    class Counting(LinksEverywhere):
        def carry(self, broker, filters):
            carried.update((broker, one) for one in filters)

        def release(self, broker, filters):
            carried.difference_update((broker, one) for one in filters)

    world.start(links=Counting())
    world.register("a", "h", (("t/1", 1), ("t/2", 1)))
    later(world, MONTH - DAY, monkeypatch)
    world.register("b", "h", (("t/2", 1),))
    assert carried == {("h", "t/1"), ("h", "t/2")}
    later(world, 2 * DAY, monkeypatch)
    assert residents(world) == {"b"}
    assert carried == {("h", "t/2")}


def test_what_was_said_before_it_was_forgotten_is_still_a_replay(world, monkeypatch):
    """Also after a restart; a client whose clock was set back is told from where to count."""
    early, late = Register("a", 41, "h"), Register("a", 42, "h")
    assert world.say("h", early)
    assert world.say("h", late)
    later(world, 2 * MONTH, monkeypatch)
    assert not residents(world)
    for start in (lambda: None, world.start):
        start()
        for message in (early, late):
            assert not world.say("f", Register("a", message.number, "f"))
    assert parse(RefusedNumber, world.wire.sent[-1][2]).number == 42
    assert world.say("h", Register("a", 43, "h"))
    assert parse(Registered, world.wire.sent[-1][2]).number == 43


def test_nobody_closes_the_door_by_a_number_of_the_future(world, monkeypatch):
    """It would be above all that others begin with; who has one is known until the clock is there."""
    ahead = int((world.agent.now() + 3 * MONTH) * 1e9)
    assert world.say("h", Register("a", ahead, "h"))
    later(world, 2 * MONTH, monkeypatch)
    assert residents(world) == {"a"}
    later(world, 2 * MONTH, monkeypatch)
    assert not residents(world)
    assert world.say("h", Register("b", ahead + 1, "h"))


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
def test_whatever_happens_the_right_ones_are_forgotten(tmp_path_factory, events):
    """As a plain table of who spoke when has it; a replay of the journal leads to the same at any moment."""
    world, heard = World(tmp_path_factory.mktemp("j")), {}
    look = world.agent.now() + DAY
    with pytest.MonkeyPatch.context() as patch:
        later(world, 0, patch)
        for kind, what in events:
            now = world.agent.now()
            if kind == "register":
                assert world.register(what, "h")
                heard[what] = now if now > heard.get(what, 0.0) + DAY else heard[what]
            elif kind == "pass":
                later(world, what * DAY, patch)
                now = world.agent.now()
                if now > look:
                    heard = {client: when for client, when in heard.items() if when >= now - MONTH}
                    look = now + DAY
            else:
                before = kept(world)
                patch.setattr("time.time", lambda now=now: now)
                world.start()
                later(world, 0, patch)
                look = world.agent.now() + DAY
                assert kept(world) == before
            assert {name: one.heard for name, one in world.agent.registry.residents.items()} == heard
    world.journal.close()


def forget_everybody(agent):
    """Two months go by; gives who is left, before anybody registers again."""
    agent._forget_silent(agent.now() + 2 * MONTH)
    return list(agent.registry.residents)


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_a_client_that_was_forgotten_registers_and_moves(tmp_path):
    """On real brokers: it is known again as soon as it says so, and loses nothing when it then moves."""
    counted = Counted()
    with linked("hf") as brokers, agent_of(addresses(brokers), tmp_path) as agent:
        reader = MovingClient("reader", known(brokers), "h", counted.ear("reader"), identify=payload_id)
        reader.subscribe("t/1")
        with reader, MovingClient("writer", known(brokers), "f") as writer:
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            assert not agent.ask(forget_everybody)
            for client in (reader, writer):
                client.register()
            assert wait_for(lambda: len(agent.registry.residents) == 2)
            agent.ask(lambda own: own.request_to_move("reader", "f"))
            assert wait_for(lambda: sending(counted, writer) and is_over(agent) and reader.home == "f")
            assert wait_for(lambda: counted.faults({"reader": {"t/1"}})[1] == 0)
            assert states(agent) == {MoveState.REDIRECTED: 1}
    expected, lost, doubled = counted.faults({"reader": {"t/1"}})
    assert (lost, doubled, expected > 0) == (0, 0, True)


def sending(counted, writer):
    """Publish one more message."""
    counted.send(writer, "t/1")
    return True
