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
from naive_mqtt import Broker, FakeEndpoint, OwnTime, identified


@pytest.fixture(autouse=True)
def disk_in_our_time(monkeypatch):
    """A thread of its own would take another kind of time."""

    async def at_once(_, call, *values):
        return call(*values)

    monkeypatch.setattr(LinkJournal, "in_thread", at_once)


def random_tree(brokers, chance):
    """A random spanning tree, as hops both ways."""
    order = chance.sample(brokers, len(brokers))
    pairs = [(order[i], chance.choice(order[:i])) for i in range(1, len(order))]
    return frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))


class World:
    """Brokers, the agent and publishers, all of them at the mercy of chance."""

    def __init__(self, seed, size, window, folder, ids=True):
        self.chance, self.folder, self.ids = random.Random(seed), folder, ids
        odd = {"forgetful": seed % 2 == 0, "low_numbers": seed % 3 == 0}
        self.brokers = {name: Broker(name, self.chance, window, **odd) for name in "abcdef"[:size]}
        for broker in self.brokers.values():
            broker.wanted = {"x", "y"}
        self.stay = list(self.brokers)  # those that are in every tree
        self.sent = []
        self.agent, self.ours = None, set()

    async def start(self):
        """A new agent takes over."""
        endpoints = {
            name: FakeEndpoint("", 0, broker=broker, chance=self.chance, keep_alive=1000)
            for name, broker in self.brokers.items()
        }
        self.agent = LinkAgent(endpoints.__getitem__, self.folder, patience=1e9)
        await self.agent.start()

    def kill(self):
        """SIGKILL: tasks stop where they are, files are as they are, sockets close."""
        mine = self.ours | {asyncio.current_task()}
        for task in sorted(asyncio.all_tasks() - mine, key=lambda task: int(task.get_name()[5:])):
            task.cancel()
        for broker in self.brokers.values():
            for pipe in broker.pipes:
                pipe.kill()
        self.close_files()

    def close_files(self):
        """As the system does for who is dead; or later tests would find too many files open."""
        self.agent._journal.close()
        for link in self.agent.links.values():
            for store in link.stores.values():
                store.close()
        for group in self.agent.groups.values():
            if group.guard is not None:
                group.guard.close()

    async def publish(self, count):
        """Messages, here and there, now and then."""
        for _ in range(count):
            number = len(self.sent)
            self.sent.append(number)
            text = b"%d" % number
            broker = self.brokers[self.chance.choice(self.stay)]
            broker.publish(self.chance.choice("xy"), text, identified(text) if self.ids else b"")
            await asyncio.sleep(self.chance.choice((0, 0.001, 0.01, 0.05)))

    def break_a_connection(self):
        """Any of them."""
        pipes = [pipe for broker in self.brokers.values() for pipe in broker.pipes if pipe.open]
        if pipes:
            self.chance.choice(pipes).cut()

    def wrong(self):
        """Messages that did not come to a broker exactly once."""
        return {
            (name, number): broker.got[b"%d" % number]
            for name, broker in self.brokers.items()
            for number in self.sent
            if name in self.stay and broker.got[b"%d" % number] != 1
        }


async def story(world, trees, kills, breaks, messages=60):
    """Links come up; then trees change while messages flow, the agent dies and connections break."""
    await world.start()
    world.agent.retarget({("x",): trees[0][0], ("y",): trees[0][1]})
    await world.agent.settled()
    load = asyncio.create_task(world.publish(messages))
    world.ours = {load}
    for x, y in trees[1:]:
        world.agent.retarget({("x",): x, ("y",): y})
        await asyncio.sleep(world.chance.choice((0, 0.05, 0.3)))
        for _ in range(breaks):
            world.break_a_connection()
            await asyncio.sleep(world.chance.choice((0, 0.02, 0.2)))
        for _ in range(kills):
            world.kill()
            await world.start()
            world.agent.retarget({("x",): x, ("y",): y})
            await asyncio.sleep(world.chance.choice((0, 0.01, 0.05, 0.2, 0.5)))
    await load
    await asyncio.wait_for(world.agent.settled(), 200)
    await asyncio.sleep(100)
    states = [group.state for group in world.agent.groups.values()]
    await world.agent.stop()
    return states


def run(seed, size, changes, kills, breaks, window=20, ids=True, stay=6):
    loop = OwnTime()
    with tempfile.TemporaryDirectory() as folder:
        try:
            world = World(seed, size, window, Path(folder), ids)
            names = list(world.brokers)
            world.stay = names[:stay]

            def tree():
                others = world.chance.sample(names[stay:], world.chance.randint(0, len(names[stay:])))
                return random_tree(world.stay + others, world.chance)

            trees = [(tree(), tree()) for _ in range(changes + 1)]
            states = loop.run_until_complete(story(world, trees, kills, breaks))
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
def test_swaps_lose_and_double_nothing(seed, size, changes, window):
    assert run(seed, size, changes, kills=0, breaks=0, window=window).wrong() == {}


@settings(max_examples=12)
@given(**CASES, kills=st.integers(1, 3))
def test_an_agent_that_is_killed_anywhere_loses_and_doubles_nothing(seed, size, changes, window, kills):
    assert run(seed, size, changes, kills, breaks=0, window=window).wrong() == {}


@settings(max_examples=12)
@given(**CASES, kills=st.integers(0, 2), breaks=st.integers(1, 4))
def test_connections_that_break_lose_and_double_nothing(seed, size, changes, window, kills, breaks):
    assert run(seed, size, changes, kills, breaks, window=window).wrong() == {}


@settings(max_examples=12)
@given(**CASES, kills=st.integers(0, 2), breaks=st.integers(0, 3))
def test_messages_without_ids_are_never_lost_and_never_go_round(seed, size, changes, window, kills, breaks):
    wrong = run(seed, size, changes, kills, breaks, window=window, ids=False).wrong()
    assert all(count > 0 for count in wrong.values())
    assert sum(wrong.values()) < 2000


@settings(max_examples=12)
@given(**CASES | {"size": st.integers(3, 6)}, kills=st.integers(0, 2), breaks=st.integers(0, 2))
def test_brokers_that_come_and_go_cost_the_others_nothing(seed, size, changes, window, kills, breaks):
    assert run(seed, size, changes, kills, breaks, window=window, stay=2).wrong() == {}


def test_a_subscription_that_a_broker_kept_brings_nothing_and_is_ended(tmp_path):
    """A ring of them, of a topic that no plan has: not one message crosses."""
    world = World(1, 3, 20, tmp_path)

    async def story():
        await world.start()
        ring = frozenset(hop for u, v in ("ab", "bc", "ca") for hop in ((u, v), (v, u)))
        world.agent.retarget(
            {("x",): ring - {("c", "a"), ("a", "c")}, ("y",): ring - {("a", "b"), ("b", "a")}}
        )
        await world.agent.settled()
        sessions = [
            one for broker in world.brokers.values() for one in broker.sessions.values() if one.filters
        ]
        assert len(sessions) == 6
        for session in sessions:
            session.filters.add("z")
        world.brokers["a"].wanted = world.brokers["b"].wanted = {"z"}
        world.brokers["a"].publish("z", b"1", identified(b"1"))
        await asyncio.sleep(10)
        assert not any("z" in session.filters for session in world.brokers["a"].sessions.values())
        await world.agent.stop()

    loop = OwnTime()
    loop.run_until_complete(story())
    loop.close()
    assert (world.brokers["a"].got[b"1"], world.brokers["b"].got[b"1"]) == (1, 0)
