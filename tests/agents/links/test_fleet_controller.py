"""Controller of routes with simulated agents: lost reports, restarts, absent brokers, other controllers."""

import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadloom.agents.links import fleet_controller
from broadloom.agents.links.fleet_controller import FleetController
from broadloom.agents.links.group_trees import (
    check_tree,
    is_leaf,
    overlapping_groups,
    with_leaves,
    without_brokers,
)
from broadloom.agents.links.route_orders import NO_EPOCH, AgentOrders, AgentReport
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
    """An agent without brokers: what is on its disk and at its broker survives a restart, the rest not."""

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
        """Begin a new process."""
        self.instance = f"i{next(self.instances)}"
        self.opened = 0
        self.heard = set()
        self.closed_hops = set()
        self.marked = {}

    def apply(self, orders):
        """Store orders, unless they are older."""
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
        """Send `closed` messages over the hops that are closed now."""
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
        """The state of the agent."""
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


def naive_units(state, target):
    """The groups in which a target differs from the state, in sets that have topics in common."""
    if target is None:
        return set()
    replaced = {number for unit in state.opening.values() for number in unit.old}
    present = {
        route.key: route
        for route in state.routes.values()
        if route.until is None and route.number not in replaced
    }
    wanted = {filters: without_brokers(hops, state.removed) for filters, hops in target.items()}
    wanted = {filters: hops for filters, hops in wanted.items() if hops}
    old = {filters for filters, route in present.items() if wanted.get(filters) != route.hops}
    new = {filters for filters, hops in wanted.items() if filters not in present or filters in old}
    ending = {state.routes[number].key for number in replaced}
    found = set()
    for members in overlapping_groups([*old, *new, *ending]):
        numbers = {present[filters].number for filters in members if filters in old}
        trees = {(filters, wanted[filters]) for filters in members if filters in new}
        is_new = any(state.routes[number].since is None for number in numbers)
        if numbers or trees:
            is_behind = is_new or not ending.isdisjoint(members)
            found.add((frozenset(numbers), frozenset(trees), is_behind))
    return found


class CheckedJournal(RecordJournal):
    """A journal that compares each `closed` record with what agents have done, before it is written."""

    simulation = None

    def append_all(self, records):
        """Check the records, then write them."""
        listed = list(records)
        for kind, body in listed:
            is_copy = self.simulation is None
            if kind == "closed" and not body["given_up"] and not is_copy:
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
        """Begin a new controller with the same journal and target."""
        self.controller = FleetController(
            self.journal, lambda: self.time, PATIENCE, self.absent, silence=SILENCE, **options
        )
        self.check()
        if self.target is not None:
            self.controller.set_target(self.target)

    def set_target(self, target):
        """Set a target, and keep it for restarts."""
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
                    # A leaf that is away carries nothing for others; it opens its hop when it is back.
                    is_late = is_leaf(route.hops, start)
                    # A controller that took over cannot know that an old tree was closed before.
                    is_again = self.controller.asks_routes and (
                        route.until is not None or route.number in self.controller._doubtful
                    )
                    assert has >= set(route.filters) or is_again or is_late, "a version before its hops"
        ranges = [
            (route, route.since, route.until or 10**9) for route in state.routes.values() if route.since
        ]
        for index, (one, first, last) in enumerate(ranges):
            for other, since, until in ranges[:index]:
                if since <= last and first <= until:
                    pairs = [(u, v) for u in one.filters for v in other.filters]
                    assert all(common_topic(*pair) is None for pair in pairs), "two trees for one topic"
        units = self.controller._changes.units()
        found = {(frozenset(unit.old), frozenset(unit.new.items()), unit.is_behind) for unit in units}
        assert found == naive_units(state, self.controller._changes.target)

    def check_closed(self, body):
        """All agents of a tree that goes must have closed it, in one and the same round."""
        state = self.controller._state
        number = state.rounds[body["change"]]
        for broker in {hop[0] for one in body["routes"] for hop in state.routes[one].hops}:
            assert (body["change"], number) in self.agents[broker].log, "a tree goes before it is closed"

    def settle(self, rng, limit=3000):
        """Bring everybody back, and wait until the target is reached."""
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
        """All agents have the routes of the target, and no other subscriptions."""
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
    """Whatever is lost, restarts or is away, and the target is reached when all are there.

    No version before its hops are open, no tree dropped before it is closed, one tree per topic and version.
    """
    rng = random.Random(seed)
    simulation = Simulation(absent)
    run(rng, simulation, steps)
    simulation.settle(rng)
    simulation.check_reached()


class Agents:
    """Obedient agents with one controller, step by step."""

    def __init__(self, *brokers, **options):
        self.simulation = Simulation(options.pop("absent", "keep"), brokers)
        self.rng = random.Random(0)
        self.agents = self.simulation.agents

    @property
    def controller(self):
        """The present controller."""
        return self.simulation.controller

    def set_target(self, target, addresses=None):
        """Set a target with addresses."""
        self.simulation.target = target
        self.controller.set_target(target, addresses)

    def run(self, steps=12, seconds=0.3, but=()):
        """Let all agents but some report and obey, a few times."""
        for _ in range(steps):
            self.simulation.time += seconds
            for broker, agent in self.agents.items():
                if broker not in but and agent.up:
                    self.controller.receive(agent.report())
                    agent.apply(self.controller.orders_for(broker))
                    for _ in range(3):
                        agent.work(self.rng)
            self.controller.tick()
            self.simulation.check()

    def routes(self):
        """The hops of each group that the controller has a route for."""
        return {route.filters: route.hops for route in self.controller._state.routes.values()}


LINE = {("x",): both("ab", "bc")}
STAR = {("x",): both("ac", "bc")}


def test_a_change_goes_through_its_steps():
    fleet = Agents(*"abc")
    fleet.set_target(LINE)
    fleet.run()
    assert fleet.controller.settled()
    assert fleet.controller.carries("a", ["x"])
    assert not fleet.controller.carries("a", ["x", "y"])
    version = fleet.controller.status()["version"]
    fleet.set_target(STAR)
    assert len(fleet.controller._state.routes) == 2
    assert fleet.controller.status()["opening"][0]["waits_for"] == ["a", "b", "c"]
    fleet.run()
    assert fleet.controller.settled()
    status = fleet.controller.status()
    assert status["version"] == version + 1
    assert fleet.routes() == STAR
    assert status["changes"][-1]["drained_s"] > 0
    assert status["draining"] == status["opening"] == status["waiting"] == status["problems"] == []


def test_the_present_trees_as_target_change_nothing():
    fleet = Agents(*"abc")
    fleet.set_target(LINE)
    fleet.run()
    position = fleet.simulation.journal.position
    fleet.set_target({("x", "x"): both("cb", "ba"), ("y",): frozenset()})
    fleet.run()
    assert fleet.simulation.journal.position == position


def test_an_empty_target_takes_everything_down():
    fleet = Agents(*"abc")
    fleet.set_target(LINE)
    fleet.run()
    fleet.set_target({})
    fleet.run()
    assert fleet.controller.settled()
    assert all(not agent.stored.routes and not agent.subscribed for agent in fleet.agents.values())


def test_a_broker_that_is_away_delays_no_other():
    """New trees have it as a leaf until it is back; old trees stay for what waits there."""
    fleet = Agents(*"abcd")
    fleet.set_target({("x",): both("ab"), ("y",): both("ab", "bc")})
    fleet.run()
    fleet.agents["c"].up = False
    fleet.run(steps=50)
    target = {("x",): both("ac", "cb", "bd"), ("y",): both("ab"), ("z",): both("ac")}
    fleet.set_target(target)
    fleet.run(steps=20)
    assert fleet.controller.trees() == {
        ("x",): both("ab", "ac", "bd"),
        ("y",): both("ab"),
        ("z",): both("ac"),
    }
    status = fleet.controller.status()
    assert [(one["filters"], one["waits_for"]) for one in status["waiting"]] == [(["x"], ["c"])]
    assert all("c" in one["waits_for"] and "c is away" in one["reason"] for one in status["draining"])
    assert any("agent of c" in text for text in status["problems"])
    assert fleet.controller.carries("a", ["y"])
    assert not fleet.controller.settled()
    fleet.agents["c"].up = True
    fleet.run(steps=40)
    assert fleet.controller.settled()
    assert fleet.routes() == target


def test_a_broker_that_was_never_there_does_not_hold_up_the_first_links():
    """Its agent can still start for some seconds; then the others go on."""
    fleet = Agents(*"abc")
    target = {("x",): both("ac", "cb"), ("y",): both("ab") | {("c", "a")}}
    fleet.set_target(target)
    fleet.run(steps=10, but="c")
    (waiting,) = fleet.controller.status()["waiting"]
    assert (waiting["filters"], waiting["groups"], waiting["waits_for"]) == (["x", "y"], 2, ["c"])
    fleet.run(steps=60, but="c")
    assert fleet.controller.trees() == {("x",): both("ab", "ac"), ("y",): both("ab") | {("c", "a")}}
    assert fleet.controller.status()["problems"] == ["the agent of c does not report"]
    fleet.run(steps=40)
    assert fleet.controller.settled()
    assert fleet.routes() == target


def test_trees_go_on_without_a_broker_that_is_dropped_and_take_it_back():
    fleet = Agents(*"abc", absent="drop")
    fleet.set_target({("x",): both("ab")})
    fleet.run()
    fleet.agents["c"].up = False
    fleet.set_target({("x",): both("ac", "cb")})
    fleet.run(steps=20, seconds=1.0)
    assert fleet.controller.trees()["x",] == both("ab", "ac")
    assert not fleet.controller.settled()
    fleet.set_target({("x",): both("ac", "cb"), ("y",): both("bc", "ca")})
    fleet.run(steps=80, seconds=1.0)
    assert fleet.controller.trees() == {("x",): both("ab"), ("y",): both("ab")}
    assert set(fleet.controller.status()["left_out"]) == {"c"}
    assert any("without c" in text for text in fleet.controller.status()["problems"])
    assert fleet.controller.settled()
    fleet.agents["c"].up = True
    fleet.run(steps=40)
    assert fleet.controller.settled()
    assert fleet.routes() == {("x",): both("ac", "cb"), ("y",): both("bc", "ca")}


def test_thousands_of_groups_are_opened_some_at_a_time(monkeypatch):
    monkeypatch.setattr(fleet_controller, "OPENED_HOPS", 20)
    fleet = Agents(*"ab")
    fleet.run(2)
    fleet.set_target({(f"t/{number}",): both("ab") for number in range(100)})
    assert len(fleet.controller._state.opening) == 10
    fleet.run(steps=40)
    assert fleet.controller.settled()
    assert len(fleet.routes()) == 100


def test_a_slow_agent_delays_only_its_own_groups():
    """Groups that are ready switch after a grace; the other one follows."""
    fleet = Agents(*"abcd")
    fleet.run(2)
    fleet.set_target({("x",): both("ab"), ("y",): both("cd")})
    fleet.run(steps=8, but="d")
    assert fleet.controller.carries("a", ["x"])
    assert [one["waits_for"] for one in fleet.controller.status()["opening"]] == [["d"]]
    fleet.run()
    assert fleet.controller.settled()


def test_a_group_waits_for_the_end_of_a_tree_that_overlaps_it():
    """The tree of w/# goes with a change that waits for d; until then w/2 has no other tree."""
    fleet = Agents(*"abcd")
    fleet.set_target({("w/#", "w/1"): both("ab")})
    fleet.run()
    fleet.set_target({("w/1",): both("cd")})
    fleet.run(steps=2, but="d")
    fleet.set_target({("w/1",): both("cd"), ("w/2",): both("ab")})
    fleet.run(steps=10, but="d")
    assert [one["filters"] for one in fleet.controller.status()["waiting"]] == [["w/2"]]
    fleet.run(steps=20)
    assert fleet.controller.settled()
    assert fleet.routes() == {("w/1",): both("cd"), ("w/2",): both("ab")}


def test_an_agent_that_cannot_open_is_set_aside_after_the_patience():
    fleet = Agents(*"abc")
    fleet.run(2)
    fleet.agents["c"].work = lambda _: None
    fleet.set_target({("x",): both("ac", "cb")})
    fleet.run(steps=20, seconds=2.0)
    assert fleet.controller.status()["opening"][0]["waits_for"] == ["c"]
    fleet.run(steps=20, seconds=2.0)
    assert fleet.controller.trees() == {("x",): both("ab", "ac")}
    assert fleet.controller.status()["waiting"][0]["waits_for"] == ["c"]
    del fleet.agents["c"].work
    fleet.run(steps=80, seconds=2.0)
    assert fleet.controller.settled()
    assert fleet.routes() == {("x",): both("ac", "cb")}


def test_a_new_process_of_an_agent_begins_a_new_round():
    fleet = Agents(*"abc")
    fleet.set_target(LINE)
    fleet.run()
    fleet.agents["c"].up = False
    fleet.set_target({("x",): both("ab")})
    fleet.run(steps=4)
    assert [one["round"] for one in fleet.controller.status()["draining"]] == [1]
    fleet.agents["a"].restart()
    fleet.run(steps=2)
    assert [one["round"] for one in fleet.controller.status()["draining"]] == [2]
    fleet.simulation.restart()
    fleet.run(steps=4)
    assert [one["round"] for one in fleet.controller.status()["draining"]] == [2], (
        "nobody has restarted since"
    )
    fleet.agents["c"].up = True
    fleet.run()
    assert fleet.controller.settled()


def test_a_removed_broker_leaves_the_trees_and_its_old_versions_are_given_up():
    fleet = Agents(*"abc")
    fleet.set_target(LINE)
    fleet.run()
    fleet.agents["b"].up = False
    fleet.controller.remove("b")
    fleet.run(steps=5)
    assert fleet.controller._state.draining, "messages that are on the way have time to arrive"
    fleet.simulation.restart()
    fleet.run(steps=70, seconds=1.0)
    assert fleet.routes() == {("x",): both("ac")}
    assert any(
        "given up" in text and "b was removed" in text for text in fleet.controller.status()["problems"]
    )
    fleet.agents["b"].up = True
    fleet.controller.admit("b")
    fleet.run(steps=30)
    assert fleet.routes() == LINE
    assert fleet.controller.settled()


def test_an_operator_can_give_up_what_still_drains():
    fleet = Agents(*"abc")
    fleet.set_target(LINE)
    fleet.run()
    fleet.agents["c"].up = False
    fleet.set_target({})
    fleet.run(steps=50)
    assert fleet.controller._state.draining
    lines = fleet.controller.give_up()
    assert len(lines) == 1
    assert "c is away" in lines[0]
    assert not fleet.controller._state.routes


def test_brokers_join_with_an_address():
    fleet = Agents(*"abc")
    fleet.set_target({("x",): both("ab")}, {"b": "10.0.0.2:1883"})
    fleet.run()
    assert fleet.agents["a"].stored.addresses == {"b": "10.0.0.2:1883"}
    assert fleet.agents["c"].stored.addresses == {}
    fleet.set_target({("x",): both("ab")}, {"b": "10.0.0.3:1883"})
    fleet.run()
    assert fleet.agents["a"].stored.addresses == {"b": "10.0.0.3:1883"}
    fleet.simulation.restart()
    fleet.run()
    assert fleet.agents["a"].stored.addresses == {"b": "10.0.0.3:1883"}


def test_brokers_that_are_new_in_a_tree_need_retained_messages():
    fleet = Agents(*"abc")
    fleet.set_target({("x",): both("ab") | {("c", "a")}})
    fleet.run()
    (first,) = fleet.controller._state.routes.values()
    assert first.fresh == {"a", "b"}
    fleet.set_target(LINE)
    fleet.run()
    (second,) = fleet.controller._state.routes.values()
    assert second.fresh == {"c"}, "it only published before"
    fleet.set_target({("+", "x"): LINE["x",]})
    fleet.run()
    (wider,) = fleet.controller._state.routes.values()
    assert wider.fresh == {"a", "b", "c"}, "they did not get all topics before"
    fleet.set_target(LINE)
    fleet.run()
    (narrow,) = fleet.controller._state.routes.values()
    assert narrow.fresh == set()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({("x",): both("ab", "bc", "ca")}, "ring"),
        ({("x",): both("ab", "cd")}, "not connected"),
        ({("x/#",): both("ab"), ("x/y",): both("bc")}, "topics in common"),
    ],
)
def test_targets_that_are_not_trees_are_refused(target, reason):
    fleet = Agents(*"abcd")
    fleet.set_target({("x/y",): both("ab"), ("z",): both("ab")})
    with pytest.raises(InputError, match=reason):
        fleet.controller.set_target(target)
    fleet.controller.set_target({("x/y",): both("bc"), ("z",): both("ab")})
    with pytest.raises(InputError, match="topics in common"):
        fleet.controller.set_target({("x/+",): both("bc"), ("x/y",): both("ab")})


def test_a_full_disk_delays_a_change_and_is_said(monkeypatch):
    fleet = Agents(*"abc")
    fleet.run(2)

    def full(_):
        raise StorageError("the disk is full")

    monkeypatch.setattr(fleet.simulation.journal, "append_all", full)
    fleet.set_target(LINE)
    fleet.run()
    assert not fleet.controller._state.routes
    assert "the disk is full" in fleet.controller.status()["problems"]
    monkeypatch.undo()
    fleet.run()
    assert fleet.controller.settled()
    assert fleet.controller.status()["problems"] == []


# Other controllers.


def copied(journal):
    """A controller's journal, copied at this moment."""
    copy = CheckedJournal(None)
    copy.append_all([(one.kind, one.body) for one in journal.records()])
    copy.simulation = journal.simulation
    return copy


def second_controller(fleet, journal, **options):
    return FleetController(journal, lambda: fleet.simulation.time, PATIENCE, silence=SILENCE, **options)


def test_a_controller_on_an_old_copy_of_its_journal_changes_nothing():
    fleet = Agents(*"abc")
    fleet.set_target(LINE)
    fleet.run()
    copy = copied(fleet.simulation.journal)
    fleet.set_target(STAR)
    fleet.run()
    before = {name: agent.stored for name, agent in fleet.agents.items()}
    old = second_controller(fleet, copy)
    old.set_target({("x",): both("ab")})
    for name, agent in fleet.agents.items():
        old.receive(agent.report())
        agent.apply(old.orders_for(name))
    old.tick()
    assert "old copy" in old.refused
    assert old.status()["refused"] == old.refused
    assert {name: agent.stored for name, agent in fleet.agents.items()} == before


def test_a_second_controller_is_refused_until_it_takes_over():
    fleet = Agents(*"abc")
    fleet.set_target(LINE)
    fleet.run()
    other = second_controller(fleet, CheckedJournal(None))
    other.receive(fleet.agents["a"].report())
    assert f"epoch {fleet.controller.epoch.number}" in other.refused
    assert other.orders_for("a").epoch == NO_EPOCH
    other.set_target({})
    first = fleet.controller
    fleet.simulation.journal = CheckedJournal(None)
    fleet.simulation.journal.simulation = fleet.simulation
    fleet.simulation.target = STAR
    fleet.simulation.restart(take_over=True)
    fleet.run(steps=30)
    assert fleet.controller.settled()
    assert fleet.routes() == STAR
    assert fleet.controller.epoch.number > first.epoch.number
    first.receive(fleet.agents["a"].report())
    assert first.refused is not None


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.booleans())
def test_taking_over_in_the_middle_of_changes_reaches_the_target(seed, has_old_copy):
    """With an empty journal or an old copy; the new controller knows what agents have, whatever it is."""
    rng = random.Random(seed)
    simulation = Simulation()
    simulation.set_target(random_target(rng))
    run(rng, simulation, rng.randint(0, 60))
    journal = copied(simulation.journal) if has_old_copy else CheckedJournal(None)
    run(rng, simulation, rng.randint(0, 60))
    simulation.journal = journal
    journal.simulation = simulation
    simulation.reports.clear()
    simulation.target = random_target(rng)
    simulation.restart(take_over=True)
    simulation.settle(rng)
    simulation.check_reached()


def test_most_agents_must_follow_before_anything_changes():
    fleet = Agents(*"abcde")
    fleet.set_target({("x",): both("ab", "bc", "cd", "de")})
    fleet.run()
    fleet.simulation.restart()
    fleet.set_target({("x",): both("ab")})
    for _ in range(3):
        for name in "ab":
            fleet.controller.receive(fleet.agents[name].report())
            fleet.agents[name].apply(fleet.controller.orders_for(name))
            fleet.agents[name].work(fleet.rng)
    assert any("most agents" in text for text in fleet.controller.status()["problems"])
    assert len(fleet.controller._state.routes) == 1
    fleet.run()
    assert fleet.controller.settled()


def test_two_agents_of_one_broker_are_said():
    fleet = Agents(*"ab")
    fleet.run(2)
    other = SimulatedAgent("a", [])
    fleet.controller.receive(other.report())
    fleet.controller.receive(fleet.agents["a"].report())
    text = "two agents report for broker a; stop one of them"
    assert fleet.controller.status()["problems"] == [text]
    assert text in fleet.controller.status()["problem_times"]
    fleet.run(80)  # 24 seconds, in which the other one is silent
    assert text not in fleet.controller.status()["problems"]


def test_records_of_a_newer_version_are_refused():
    journal = RecordJournal(None)
    journal.append("teleport", {})
    with pytest.raises(InputError, match="unknown kind 'teleport'"):
        FleetController(journal, lambda: 0.0)


@given(st.integers(0, 2**32), st.sets(st.sampled_from(BROKERS)))
def test_a_tree_without_brokers_is_a_tree_of_the_others(seed, gone):
    hops = tree(random.Random(seed), BROKERS)
    left = without_brokers(hops, gone)
    inner = {start for start, end in hops if (end, start) in hops} - gone
    if len(inner) > 1:
        edges = {hop for hop in left if hop[0] < hop[1] and hop[::-1] in left}
        assert {broker for edge in edges for broker in edge} == inner
        assert len(edges) == len(inner) - 1
    assert not any(gone & set(hop) for hop in left)


@given(st.integers(0, 2**32), st.sets(st.sampled_from(BROKERS)))
def test_brokers_that_are_away_become_leaves(seed, gone):
    hops = tree(random.Random(seed), BROKERS)
    found = with_leaves(hops, gone)
    receiving = {end for _, end in hops}
    if found is None:
        assert receiving <= gone
        return
    check_tree(("x",), found)
    assert {end for _, end in found} == receiving
    assert {broker for hop in found for broker in hop} == {broker for hop in hops for broker in hop}
    assert all(is_leaf(found, broker) for broker in gone if any(broker in hop for hop in hops))
    if gone.isdisjoint(broker for hop in hops for broker in hop):
        assert found == hops
