"""Controller of routes against simulated agents: lost reports, restarts, absent brokers, other controllers."""

import random
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broadloom.agents.links.fleet_controller import FleetController
from broadloom.agents.links.group_trees import without_brokers
from broadloom.agents.links.route_orders import NO_EPOCH, AgentOrders, AgentReport, Epoch
from broadloom.errors import InputError, StorageError
from broadloom.mqtt.topic_filters import common_topic
from broadloom.storage import RecordJournal

BROKERS = ("a", "b", "c", "d", "e")
PATIENCE, SILENCE = 60.0, 10.0
# Sets of groups, none of which has topics in common with another one of the same set.
GROUPINGS = (
    [("x",), ("y",), ("w/1",)],
    [("x", "+"), ("w/1",)],
    [("w/#", "w/1"), ("y",)],
    [("w/#", "w/1", "+/1"), ("x",), ("y",)],
    [("x",)],
    [],
)


def both(*edges):
    return frozenset(hop for u, v in edges for hop in ((u, v), (v, u)))


def tree(rng, brokers):
    """A random tree; sometimes one more broker only publishes."""
    order = rng.sample(brokers, rng.randint(2, len(brokers)))
    edges = [(order[rng.randrange(index)], order[index]) for index in range(1, len(order))]
    others = [one for one in brokers if one not in order]
    hops = both(*edges)
    if others and rng.random() < 0.5:
        hops |= {(others[0], order[0])}
    return hops


def random_target(rng, brokers=BROKERS):
    return {filters: tree(rng, brokers) for filters in rng.choice(GROUPINGS)}


class SimulatedAgent:
    """An agent without brokers: what is on its disk and at its broker survives a restart, the rest does not."""

    instances = count()

    def __init__(self, broker, mail):
        self.broker = broker
        self.mail = mail  # `closed` messages of all hops: (receiver, sender, change, round, route)
        self.stored = AgentOrders()
        self.published = 0
        self.subscribed = {}  # filters per neighbour, at the broker
        self.up = self.broker_up = True
        self.log = set()  # (change, round) that it has ever closed
        self.restart()

    def restart(self):
        self.instance = f"i{next(self.instances)}"
        self.opened = 0
        self.heard = set()
        self.closed_hops = set()
        self.marked = {}

    def apply(self, orders):
        seen = self.stored
        if not seen.epoch.yields_to(orders.epoch):
            return
        if orders.epoch == seen.epoch and orders.number <= seen.number:
            if orders.number == seen.number:
                assert orders == seen, "two orders have one number"
            return
        assert orders.number > seen.number, "numbers rise over restarts of one controller"
        self.stored = orders

    def work(self, rng):
        """Do one thing: open, publish a marker, or take a `closed` message."""
        if not (self.up and self.broker_up):
            return
        wanted = {}
        for route in self.stored.routes.values():
            for start, end in route.hops:
                if start == self.broker:
                    wanted.setdefault(end, set()).update(route.filters)
        if self.subscribed != wanted or self.opened != self.stored.number:
            self.subscribed = wanted
            self.opened = self.stored.number
            if rng.random() < 0.5:
                return
        self.published = max(self.published, self.stored.version)
        self.marked = dict(self.stored.rounds)
        waiting = [letter for letter in self.mail if letter[0] == self.broker]
        if waiting:
            letter = rng.choice(waiting)
            self.mail.remove(letter)
            self.heard.add(letter[1:])
        for change, number in self.marked.items():
            if self.published >= change:
                self.close(change, number)

    def close(self, change, number):
        for route in self.stored.routes.values():
            if route.until != change - 1:
                continue
            for start, end in route.hops:
                feeders = {w for w, u in route.hops if u == self.broker and w != end}
                key = (end, change, number, route.number)
                heard = all((w, change, number, route.number) in self.heard for w in feeders)
                if start == self.broker and heard and key not in self.closed_hops:
                    self.closed_hops.add(key)
                    self.mail.append((end, self.broker, change, number, route.number))

    def report(self):
        closed = {}
        for change, number in self.marked.items():
            hops = {
                (end, change, number, route.number)
                for route in self.stored.routes.values()
                if route.until == change - 1
                for start, end in route.hops
                if start == self.broker
            }
            if hops <= self.closed_hops and self.published >= change:
                closed[change] = number
                self.log.add((change, number))
        return AgentReport(
            self.broker,
            self.instance,
            self.stored.epoch,
            self.stored.number,
            min(self.opened, self.stored.number),
            self.published,
            self.published,
            closed,
            self.broker_up,
            routes=tuple(self.stored.routes.values()),
        )


class CheckedJournal(RecordJournal):
    """A journal that compares each `closed` record with what agents have really done, before it is written."""

    simulation = None

    def append_all(self, records):
        listed = list(records)
        for kind, body in listed:
            if kind == "closed" and not body["given_up"]:
                self.simulation.check_closed(body)
        return super().append_all(listed)


class Simulation:
    """A fleet of simulated agents, a controller that restarts from its journal, and a bad network."""

    def __init__(self, absent="keep", brokers=BROKERS):
        self.time = 0.0
        self.absent = absent
        self.mail = []
        self.agents = {broker: SimulatedAgent(broker, self.mail) for broker in brokers}
        self.journal = CheckedJournal(None)
        self.journal.simulation = self
        self.target = None
        self.reports = []
        self.restart()

    def restart(self, **options):
        self.controller = FleetController(
            self.journal, lambda: self.time, PATIENCE, self.absent, silence=SILENCE, **options
        )
        self.check()
        if self.target is not None:
            self.controller.set_target(self.target)

    def set_target(self, target):
        self.target = target
        self.controller.set_target(target)
        self.check()

    def exchange(self, rng, broker):
        """A report of one agent and its orders, or one of them, or an old report once more."""
        agent = self.agents[broker]
        if not agent.up:
            return
        self.reports.append(agent.report())
        luck = rng.random()
        if luck < 0.8:
            self.controller.receive(self.reports[-1])
        if luck > 0.7:
            self.controller.receive(rng.choice(self.reports[-8:]))
        self.check()
        if rng.random() < 0.9:
            agent.apply(self.controller.orders_for(broker))
        agent.work(rng)

    def check(self):
        """Compare what the controller has written with what agents have really done."""
        state = self.controller._state
        for route in state.routes.values():
            if route.since is not None:
                for start, end in route.hops:
                    has = self.agents[start].subscribed.get(end, set())
                    assert has >= set(route.filters) or start in state.removed, "a version before its hops"
        ranges = [(route, route.since, route.until or 10**9) for route in state.routes.values() if route.since]
        for index, (one, first, last) in enumerate(ranges):
            for other, since, until in ranges[:index]:
                if since <= last and first <= until:
                    pairs = [(u, v) for u in one.filters for v in other.filters]
                    assert all(common_topic(*pair) is None for pair in pairs), "two trees for one topic"

    def check_closed(self, body):
        state = self.controller._state
        number = state.rounds[body["change"]]
        for broker in {hop[0] for one in body["routes"] for hop in state.routes[one].hops}:
            assert (body["change"], number) in self.agents[broker].log, "a tree goes before it is closed"

    def settle(self, rng, limit=3000):
        for agent in self.agents.values():
            agent.up = agent.broker_up = True
            self.controller.receive(agent.report())
        for step in range(limit):
            self.exchange(rng, list(self.agents)[step % len(self.agents)])
            self.time += 0.3
            self.controller.tick()
            self.check()
            if self.controller.settled():
                return
        raise AssertionError(self.controller.status())

    def check_reached(self):
        found = {
            route.filters: route.hops
            for agent in self.agents.values()
            for route in agent.stored.routes.values()
        }
        assert found == {tuple(sorted(filters)): hops for filters, hops in (self.target or {}).items()}
        for broker, agent in self.agents.items():
            ends = {end for hops in found.values() for start, end in hops if start == broker}
            assert {end for end, filters in agent.subscribed.items() if filters} == ends


def run(rng, simulation, steps):
    simulation.set_target(random_target(rng))
    for _ in range(steps):
        luck = rng.random()
        broker = rng.choice(BROKERS)
        agent = simulation.agents[broker]
        if luck < 0.06:
            simulation.set_target(random_target(rng))
        elif luck < 0.12:
            simulation.restart()
        elif luck < 0.16:
            agent.restart()
        elif luck < 0.19:
            agent.up = not agent.up
        elif luck < 0.22:
            agent.broker_up = not agent.broker_up
        elif luck < 0.24:
            simulation.controller.compact()
        elif luck < 0.26:
            simulation.time += rng.choice([1.5, 12.0, 70.0])
            simulation.controller.tick()
            simulation.check()
        else:
            simulation.time += 0.1
            simulation.exchange(rng, broker)


@settings(max_examples=120)
@given(st.integers(0, 2**32), st.sampled_from(["keep", "drop"]), st.integers(0, 250))
def test_changes_are_safe_and_settle(seed, absent, steps):
    """Whatever is lost, restarts or is away: no version before its hops, no tree dropped before it is closed,
    one tree per topic and version; and the fleet reaches the target when all are there."""
    rng = random.Random(seed)
    simulation = Simulation(absent)
    run(rng, simulation, steps)
    simulation.settle(rng)
    simulation.check_reached()
