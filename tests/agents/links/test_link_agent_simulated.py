"""The whole link agent on simulated brokers and a simulated network with delays, failures and crashes."""

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadloom.agents.links.carried_groups import LinkJournal
from broadloom.agents.links.link_agent import LinkAgent
from naive_mqtt import Broker, FakeEndpoint, SimulatedLoop, id_property


@pytest.fixture(autouse=True)
def disk_in_simulated_time(monkeypatch):
    """Write the journal in the event loop: a thread would not follow the simulated clock."""

    async def at_once(_, call, *values):
        return call(*values)

    monkeypatch.setattr(LinkJournal, "in_thread", at_once)


def random_tree(brokers, rng):
    """A random spanning tree, as hops in both directions."""
    order = rng.sample(brokers, len(brokers))
    pairs = [(order[i], rng.choice(order[:i])) for i in range(1, len(order))]
    return frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))


class World:
    """Simulated brokers, the agent and publishers, with random delays and choices."""

    def __init__(self, seed, size, window, folder, ids=True):
        self.rng, self.folder, self.ids = random.Random(seed), folder, ids
        options = {"forgetful": seed % 2 == 0, "low_ids": seed % 3 == 0}
        self.brokers = {name: Broker(name, self.rng, window, **options) for name in "abcdef"[:size]}
        for broker in self.brokers.values():
            broker.wanted = {"x", "y"}
        self.staying = list(self.brokers)  # brokers of every tree
        self.sent = []
        self.agent, self.own_tasks = None, set()

    async def start(self):
        """Start a new agent."""
        endpoints = {
            name: FakeEndpoint("", 0, broker=broker, rng=self.rng, keep_alive=1000)
            for name, broker in self.brokers.items()
        }
        self.agent = LinkAgent(endpoints.__getitem__, self.folder, patience=1e9)
        await self.agent.start()

    def kill(self):
        """Simulate SIGKILL: tasks stop where they are, files stay as they are, sockets close."""
        own = self.own_tasks | {asyncio.current_task()}
        for task in sorted(asyncio.all_tasks() - own, key=lambda task: int(task.get_name()[5:])):
            task.cancel()
        for broker in self.brokers.values():
            for connection in broker.connections:
                connection.kill()
        self.close_files()

    def close_files(self):
        """Close files as the system does for a dead process; otherwise later tests run out of files."""
        self.agent._journal.close()
        for link in self.agent.links.values():
            for store in link.stores.values():
                store.close()
        for group in self.agent.groups.values():
            if group.guard is not None:
                group.guard.close()

    async def publish(self, count):
        """Publish messages at random brokers and times."""
        for _ in range(count):
            number = len(self.sent)
            self.sent.append(number)
            text = b"%d" % number
            broker = self.brokers[self.rng.choice(self.staying)]
            broker.publish(self.rng.choice("xy"), text, id_property(text) if self.ids else b"")
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.01, 0.05)))

    def break_a_connection(self):
        """Break a random connection."""
        connections = [
            connection
            for broker in self.brokers.values()
            for connection in broker.connections
            if connection.open
        ]
        if connections:
            self.rng.choice(connections).cut()

    def faults(self):
        """Messages that a staying broker did not get exactly once, with their counts."""
        return {
            (name, number): broker.got[b"%d" % number]
            for name, broker in self.brokers.items()
            for number in self.sent
            if name in self.staying and broker.got[b"%d" % number] != 1
        }


async def scenario(world, trees, kills, breaks, messages=60):
    """Set up links; then change trees under load, while the agent is killed and connections break."""
    await world.start()
    world.agent.retarget({("x",): trees[0][0], ("y",): trees[0][1]})
    await world.agent.settled()
    load = asyncio.create_task(world.publish(messages))
    world.own_tasks = {load}
    for x, y in trees[1:]:
        world.agent.retarget({("x",): x, ("y",): y})
        await asyncio.sleep(world.rng.choice((0, 0.05, 0.3)))
        for _ in range(breaks):
            world.break_a_connection()
            await asyncio.sleep(world.rng.choice((0, 0.02, 0.2)))
        for _ in range(kills):
            world.kill()
            await world.start()
            world.agent.retarget({("x",): x, ("y",): y})
            await asyncio.sleep(world.rng.choice((0, 0.01, 0.05, 0.2, 0.5)))
    await load
    await asyncio.wait_for(world.agent.settled(), 200)
    await asyncio.sleep(100)
    states = [group.state for group in world.agent.groups.values()]
    await world.agent.stop()
    return states


def run(seed, size, changes, kills, breaks, window=20, ids=True, stay=6):
    """Run a random scenario in simulated time; check the final hops and return its world."""
    loop = SimulatedLoop()
    with tempfile.TemporaryDirectory() as folder:
        try:
            world = World(seed, size, window, Path(folder), ids)
            names = list(world.brokers)
            world.staying = names[:stay]

            def tree():
                others = world.rng.sample(names[stay:], world.rng.randint(0, len(names[stay:])))
                return random_tree(world.staying + others, world.rng)

            trees = [(tree(), tree()) for _ in range(changes + 1)]
            states = loop.run_until_complete(scenario(world, trees, kills, breaks))
        finally:
            loop.close()
    assert [state.hops for state in states] == list(trees[-1])
    return world


CASES = {
    "seed": st.integers(0, 10**6),
    "size": st.integers(2, 6),
    "changes": st.integers(1, 4),
    "window": st.sampled_from((1, 3, 20)),
}


@settings(max_examples=12)
@given(**CASES)
def test_swaps_lose_and_duplicate_nothing(seed, size, changes, window):
    assert run(seed, size, changes, kills=0, breaks=0, window=window).faults() == {}


@settings(max_examples=12)
@given(**CASES, kills=st.integers(1, 3))
def test_an_agent_killed_at_any_time_loses_and_duplicates_nothing(seed, size, changes, window, kills):
    assert run(seed, size, changes, kills, breaks=0, window=window).faults() == {}


@settings(max_examples=12)
@given(**CASES, kills=st.integers(0, 2), breaks=st.integers(1, 4))
def test_broken_connections_lose_and_duplicate_nothing(seed, size, changes, window, kills, breaks):
    assert run(seed, size, changes, kills, breaks, window=window).faults() == {}


@settings(max_examples=12)
@given(**CASES, kills=st.integers(0, 2), breaks=st.integers(0, 3))
def test_messages_without_ids_are_never_lost_and_do_not_circulate(seed, size, changes, window, kills, breaks):
    faults = run(seed, size, changes, kills, breaks, window=window, ids=False).faults()
    assert all(count > 0 for count in faults.values())
    assert sum(faults.values()) < 2000


@settings(max_examples=12)
@given(**CASES | {"size": st.integers(3, 6)}, kills=st.integers(0, 2), breaks=st.integers(0, 2))
def test_brokers_that_join_and_leave_do_not_affect_the_others(seed, size, changes, window, kills, breaks):
    assert run(seed, size, changes, kills, breaks, window=window, stay=2).faults() == {}


def test_a_stale_subscription_of_a_broker_forwards_nothing_and_is_removed(tmp_path):
    """A cycle of them, for a topic that is in no plan: no message crosses a link."""
    world = World(1, 3, 20, tmp_path)

    async def scenario():
        await world.start()
        cycle = frozenset(hop for u, v in ("ab", "bc", "ca") for hop in ((u, v), (v, u)))
        world.agent.retarget(
            {("x",): cycle - {("c", "a"), ("a", "c")}, ("y",): cycle - {("a", "b"), ("b", "a")}}
        )
        await world.agent.settled()
        sessions = [
            session
            for broker in world.brokers.values()
            for session in broker.sessions.values()
            if session.filters
        ]
        assert len(sessions) == 6
        for session in sessions:
            session.filters.add("z")
        world.brokers["a"].wanted = world.brokers["b"].wanted = {"z"}
        world.brokers["a"].publish("z", b"1", id_property(b"1"))
        await asyncio.sleep(10)
        assert not any("z" in session.filters for session in world.brokers["a"].sessions.values())
        await world.agent.stop()

    loop = SimulatedLoop()
    loop.run_until_complete(scenario())
    loop.close()
    assert (world.brokers["a"].got[b"1"], world.brokers["b"].got[b"1"]) == (1, 0)
