"""Sessions that could not be emptied are counted and listed, and the notes of their moves mention them."""

from __future__ import annotations

import logging

from test_move_agent import BROKERS, kept

from broadloom.agents.moves.move_registry import MoveState
from broadloom.agents.moves.operator_api import NAMED, OperatorApi


def health(world):
    """What an operator sees."""
    return told_of(world, "/health")


def metrics(world):
    """What Prometheus sees."""
    return told_of(world, "/metrics")


def told_of(world, path):
    world.agent.ask = lambda question: question(world.agent)  # the test is the agent's thread
    return OperatorApi(world.agent, lambda _: {}).answer("GET", path, {})[1]


def give_up(world):
    """Let so much time pass that nothing more is tried."""
    now = world.agent.now() + world.agent.timing.abandon + 1
    for _ in range(2):  # what was left, and then its move
        world.agent.step(now)


def moved(world, client="a"):
    """A client that has moved from h to f, and whose session at h is still to be emptied."""
    world.register(client, "h")
    move = world.agent.request_to_move(client, "f")
    world.reply(move, "accept")
    world.step()
    world.register(client, "f")
    assert world.state(move) is MoveState.CONNECTED
    return move


def test_what_was_left_is_counted_and_named_also_by_the_next_agent(world, caplog):
    move = moved(world)
    assert (health(world)["strays"], health(world)["abandoned"]) == (1, 0)
    with caplog.at_level(logging.WARNING):
        give_up(world)
    assert "the session of a at 'h' could not be emptied" in caplog.text
    before = kept(world)
    for start in (lambda: None, world.start):
        start()
        told = health(world)
        assert (told["strays"], told["abandoned"]) == (0, 1)
        assert "\nbroadloom_migrate_abandoned 1\n" in metrics(world)
        (named,) = told["abandoned_last"]
        assert (named["client"], named["broker"], named["forward"]) == ("a", "h", True)
        over = world.agent.registry.moves[move.id]
        assert (over.state, over.note) == (MoveState.REDIRECTED, "what waited at 'h' was left there")
        assert kept(world) == before


def test_what_was_emptied_is_not_counted(world):
    """Nor a session that was ended once, and could not be ended once more."""
    move = moved(world)
    world.step()
    assert world.agent.registry.strays["a", "h"].last
    give_up(world)
    assert not world.agent.registry.strays
    assert (health(world)["abandoned"], health(world)["abandoned_last"]) == (0, [])
    assert (world.state(move), world.agent.registry.moves[move.id].note) == (MoveState.REDIRECTED, "")


def test_a_client_that_is_back_there_has_what_was_left(world):
    moved(world)
    give_up(world)
    world.register("a", "g")
    assert health(world)["abandoned"] == 1
    world.register("a", "h")
    assert health(world)["abandoned"] == 0
    before = kept(world)
    world.start()
    assert kept(world) == before


def test_a_session_that_nobody_came_to_is_none_of_the_clients(world):
    """The client stayed: it misses nothing of what waits in the session that was made ready for it."""
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "accept")
    world.agent.cancel(move.id)
    give_up(world)
    assert [one["forward"] for one in health(world)["abandoned_last"]] == [False]


def test_sessions_at_a_broker_that_is_no_longer_known(world):
    """All are counted, the last ones are named."""
    clients = [f"c{number}" for number in range(NAMED + 3)]
    for client in clients:
        world.register(client, "h")
        world.register(client, "f")
    world.start({name: BROKERS[name] for name in "fg"})
    world.step()
    told = health(world)
    assert (told["strays"], told["abandoned"]) == (0, len(clients))
    assert [one["client"] for one in told["abandoned_last"]] == clients[-NAMED:]


def test_of_those_that_were_given_up_the_last_ones_are_kept(world, monkeypatch):
    monkeypatch.setattr("broadloom.agents.moves.move_registry.KEPT", 2)
    for client in "abc":
        world.register(client, "h")
        world.register(client, "f")
    give_up(world)
    world.start()
    assert [client for client, _ in world.agent.registry.abandoned] == ["b", "c"]
