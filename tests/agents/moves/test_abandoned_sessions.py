"""Sessions that could not be emptied are counted and listed, and the notes of their moves mention them."""

from __future__ import annotations

import logging

from test_move_agent import BROKERS, saved_state

from broadloom.agents.moves.move_registry import MoveState
from broadloom.agents.moves.operator_api import NAMED, OperatorApi


def health(world):
    """The health page."""
    return page_of(world, "/health")


def metrics(world):
    """The metrics page."""
    return page_of(world, "/metrics")


def page_of(world, path):
    """The answer of the operator API to a GET."""
    world.agent.ask = lambda call: call(world.agent)  # the test is the agent's thread
    return OperatorApi(world.agent, lambda _: {}).answer("GET", path, {})[1]


def abandon_sessions(world):
    """Let enough time pass that the agent abandons its stray sessions."""
    now = world.agent.now() + world.agent.timing.abandon + 1
    for _ in range(2):  # the session, and then its move
        world.agent.step(now)


def moved(world, client="a"):
    """Move a client from h to f, without emptying its session at h."""
    world.register(client, "h")
    move = world.agent.request_to_move(client, "f")
    world.reply(move, "accept")
    world.step()
    world.register(client, "f")
    assert world.state(move) is MoveState.CONNECTED
    return move


def test_an_abandoned_session_is_counted_and_listed_also_after_a_restart(world, caplog):
    move = moved(world)
    assert (health(world)["strays"], health(world)["abandoned"]) == (1, 0)
    with caplog.at_level(logging.WARNING):
        abandon_sessions(world)
    assert "the session of a at 'h' could not be emptied" in caplog.text
    before = saved_state(world)
    for start in (lambda: None, world.start):
        start()
        page = health(world)
        assert (page["strays"], page["abandoned"]) == (0, 1)
        assert "\nbroadloom_migrate_abandoned 1\n" in metrics(world)
        (listed,) = page["abandoned_last"]
        assert (listed["client"], listed["broker"], listed["forward"]) == ("a", "h", True)
        ended = world.agent.registry.moves[move.id]
        assert (ended.state, ended.note) == (MoveState.REDIRECTED, "messages waiting at 'h' were abandoned")
        assert saved_state(world) == before


def test_an_emptied_session_is_not_counted_as_abandoned(world):
    """Nor is a session that was ended once and could not be ended again."""
    move = moved(world)
    world.step()
    assert world.agent.registry.strays["a", "h"].last
    abandon_sessions(world)
    assert not world.agent.registry.strays
    assert (health(world)["abandoned"], health(world)["abandoned_last"]) == (0, [])
    assert (world.state(move), world.agent.registry.moves[move.id].note) == (MoveState.REDIRECTED, "")


def test_an_abandoned_session_is_not_counted_once_its_client_returns(world):
    moved(world)
    abandon_sessions(world)
    world.register("a", "g")
    assert health(world)["abandoned"] == 1
    world.register("a", "h")
    assert health(world)["abandoned"] == 0
    before = saved_state(world)
    world.start()
    assert saved_state(world) == before


def test_an_abandoned_session_of_a_cancelled_move_has_nothing_to_forward(world):
    """The client stayed at home, so it misses nothing in the session that was prepared for it."""
    world.register("a", "h")
    move = world.agent.request_to_move("a", "f")
    world.reply(move, "accept")
    world.agent.cancel(move.id)
    abandon_sessions(world)
    assert [one["forward"] for one in health(world)["abandoned_last"]] == [False]


def test_sessions_at_a_removed_broker_are_abandoned(world):
    """All are counted, and the last ones are listed."""
    clients = [f"c{number}" for number in range(NAMED + 3)]
    for client in clients:
        world.register(client, "h")
        world.register(client, "f")
    world.start({name: BROKERS[name] for name in "fg"})
    world.step()
    page = health(world)
    assert (page["strays"], page["abandoned"]) == (0, len(clients))
    assert [one["client"] for one in page["abandoned_last"]] == clients[-NAMED:]


def test_only_the_last_abandoned_sessions_are_kept(world, monkeypatch):
    monkeypatch.setattr("broadloom.agents.moves.move_registry.KEPT", 2)
    for client in "abc":
        world.register(client, "h")
        world.register(client, "f")
    abandon_sessions(world)
    world.start()
    assert [client for client, _ in world.agent.registry.abandoned] == ["b", "c"]
