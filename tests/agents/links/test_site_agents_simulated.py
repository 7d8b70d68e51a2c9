"""Site agents and the controller on simulated brokers, with delays, failures and kills, in simulated time."""

import asyncio
import contextlib
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from broadloom.agents.links.fleet_controller import FleetController
from broadloom.agents.links.site_agent import SiteAgent, StaleEpochError
from broadloom.agents.links.stamps import FleetKey
from broadloom.storage import RecordJournal
from naive_mqtt import Broker, FakeEndpoint, SimulatedLoop

KEY = FleetKey("only for tests, no secret")
TOPICS = ("x", "y")


def random_tree(brokers, rng):
    """A random spanning tree, as hops in both directions; some leaves only send."""
    order = rng.sample(brokers, len(brokers))
    pairs = [(order[i], rng.choice(order[:i])) for i in range(1, len(order))]
    return frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))


class Process:
    """What dies with an agent's process."""

    def __init__(self):
        self.is_alive, self.connections = True, []


@dataclass(frozen=True)
class ProcessEndpoint(FakeEndpoint):
    """Endpoint that only a living process can open."""

    process: Process | None = None

    async def open(self, client):
        """Connect."""
        await super().open(client)
        connection = self.broker.connections[-1]
        self.process.connections.append(connection)
        if not self.process.is_alive:
            connection.kill()


class World:
    """Simulated brokers, an agent for each, a controller, and publishers; all choices are random."""

    def __init__(self, seed, size, window, folder, equal=False):
        self.rng, self.folder, self.equal = random.Random(seed), folder, equal
        options = {"forgetful": seed % 2 == 0, "low_ids": seed % 3 == 0 and not equal}
        self.brokers = {name: Broker(name, self.rng, window, **options) for name in "abcdef"[:size]}
        for broker in self.brokers.values():
            broker.wanted = set(TOPICS)
        self.staying = list(self.brokers)  # brokers of every tree
        self.sent = []
        self.agents, self.processes = {}, {}
        self.controller, self.target = None, {}

    async def start_agent(self, name):
        """Start the agent of a broker."""
        process = self.processes[name] = Process()

        def endpoint(broker, _):
            return ProcessEndpoint(
                "", 0, broker=self.brokers[broker], rng=self.rng, keep_alive=1000, process=process
            )

        self.agents[name] = agent = SiteAgent(name, endpoint, self.folder / name, KEY)
        await agent.start()

    def start_controller(self):
        """Start a controller from the journal."""
        loop = asyncio.get_running_loop()
        self.journal = RecordJournal(self.folder / "controller.journal")
        self.controller = FleetController(self.journal, loop.time, patience=1e9, silence=30, grace=0.05)
        if self.target:
            self.controller.set_target(self.target)

    async def relay(self):
        """Carry reports to the controller and orders to the agents, late and not always."""
        while True:
            await asyncio.sleep(self.rng.choice((0.01, 0.05)))
            for name in self.rng.sample(list(self.agents), len(self.agents)):
                agent = self.agents[name]
                if self.rng.random() < 0.2 or agent is None or self.controller is None:
                    continue
                self.controller.receive(agent.report())
                if self.rng.random() < 0.8:
                    with contextlib.suppress(StaleEpochError):
                        agent.apply(self.controller.orders_for(name))
            if self.controller is not None:
                self.controller.tick()

    def kill_agent(self, name):
        """Simulate SIGKILL: tasks stop where they are, files stay as they are, sockets close."""
        agent, self.agents[name] = self.agents[name], None
        process = self.processes[name]
        process.is_alive = False
        for connection in process.connections:
            connection.kill()
        for hop in agent._hops.values():
            hop.forwarder.closing = True  # nothing runs in a dead process, a timer for example
            hop.forwarder.in_flight.clear()
        sessions = [agent._control.session]
        for hop in [*agent._hops.values(), *agent._dying]:
            sessions += [hop._near, hop._far]
        tasks = [agent._task, *agent._sending, *agent._ending.values()]
        for task in [*tasks, *(session._task for session in sessions)]:
            if task is not None:
                task.cancel()
        for hop in agent._hops.values():
            hop.store.close()
        agent._unlock()

    def kill_controller(self):
        """Forget the controller; its journal stays."""
        self.journal.close()
        self.controller = None

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

    async def publish(self, count):
        """Publish messages at random brokers and times; with `equal`, most have the same content."""
        for number in range(count):
            text = b"same" if self.equal and number % 4 else b"%d" % number
            self.sent.append(text)
            self.brokers[self.rng.choice(self.staying)].publish(self.rng.choice(TOPICS), text)
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.01, 0.05)))

    def faults(self):
        """Messages that a staying broker did not get as often as they were published."""
        return {
            (name, text): (self.brokers[name].got[text], self.sent.count(text))
            for name in self.staying
            for text in set(self.sent)
            if self.brokers[name].got[text] != self.sent.count(text)
        }


async def scenario(world, targets, kills, breaks):
    """Set up links; then change trees under load, while agents and the controller are killed."""
    for name in world.brokers:
        await world.start_agent(name)
    world.target = targets[0]
    world.start_controller()
    relay = asyncio.create_task(world.relay())
    await settle(world)
    load = asyncio.create_task(world.publish(60))
    for target in targets[1:]:
        world.target = target
        world.controller.set_target(target)
        await asyncio.sleep(world.rng.choice((0, 0.05, 0.3, 2)))
        for _ in range(breaks):
            world.break_a_connection()
            await asyncio.sleep(world.rng.choice((0, 0.02, 0.2)))
        for _ in range(kills):
            name = world.rng.choice([*world.brokers, None])
            if name is None:
                world.kill_controller()
                await asyncio.sleep(world.rng.choice((0, 0.1, 3)))
                world.start_controller()
            else:
                world.kill_agent(name)
                await asyncio.sleep(world.rng.choice((0, 0.01, 0.2, 40)))
                await world.start_agent(name)
            await asyncio.sleep(world.rng.choice((0, 0.01, 0.05, 0.2, 0.5)))
    await load
    await settle(world)
    await asyncio.sleep(100)
    relay.cancel()
    for agent in world.agents.values():
        await agent.stop()
    world.kill_controller()


async def settle(world):
    """Wait until the fleet has its target."""
    async with asyncio.timeout(3000):
        while not world.controller.settled():
            await asyncio.sleep(0.1)


def run(seed, size, changes, kills, breaks, window=20, stay=6, equal=False):
    """Run a random scenario in simulated time and return its world."""
    loop = SimulatedLoop()
    with tempfile.TemporaryDirectory() as folder:
        try:
            world = World(seed, size, window, Path(folder), equal)
            names = list(world.brokers)
            world.staying = names[:stay]

            def tree():
                others = world.rng.sample(names[stay:], world.rng.randint(0, len(names[stay:])))
                return random_tree(world.staying + others, world.rng)

            targets = [{(topic,): tree() for topic in TOPICS} for _ in range(changes + 1)]
            loop.run_until_complete(scenario(world, targets, kills, breaks))
        finally:
            loop.close()
    return world


CASES = {
    "seed": st.integers(0, 10**6),
    "size": st.integers(2, 6),
    "changes": st.integers(1, 4),
    "window": st.sampled_from((1, 3, 20)),
}


@settings(max_examples=7)
@given(**CASES)
def test_changes_of_trees_lose_and_double_nothing(seed, size, changes, window):
    assert run(seed, size, changes, kills=0, breaks=0, window=window).faults() == {}


@settings(max_examples=10)
@given(**CASES, kills=st.integers(1, 3))
@example(seed=122416, size=4, changes=3, window=20, kills=2)  # a hop ended with messages in flight
def test_agents_and_controllers_killed_at_any_time_lose_and_double_nothing(
    seed, size, changes, window, kills
):
    assert run(seed, size, changes, kills, breaks=0, window=window).faults() == {}


@settings(max_examples=7)
@given(**CASES, kills=st.integers(0, 2), breaks=st.integers(1, 4))
def test_broken_connections_lose_and_double_nothing(seed, size, changes, window, kills, breaks):
    assert run(seed, size, changes, kills, breaks, window=window).faults() == {}


@settings(max_examples=7)
@given(**CASES, kills=st.integers(0, 2), breaks=st.integers(0, 3))
def test_equal_messages_without_ids_are_counted_right(seed, size, changes, window, kills, breaks):
    assert run(seed, size, changes, kills, breaks, window=window, equal=True).faults() == {}


@settings(max_examples=7)
@given(**CASES | {"size": st.integers(3, 6)}, kills=st.integers(0, 2), breaks=st.integers(0, 2))
def test_brokers_that_join_and_leave_do_not_affect_the_others(seed, size, changes, window, kills, breaks):
    assert run(seed, size, changes, kills, breaks, window=window, stay=2).faults() == {}
