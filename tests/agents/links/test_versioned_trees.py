"""The protocol of versioned trees, run as a model with failures; see `versioned_model`.

`BROADLOOM_MODEL_RUNS=20000` makes the search long.
"""

import os
import random

import pytest
from versioned_model import FAULTS, Model, ProtocolError, Rules, random_tree, search

from broadloom.agents.links.fleet_controller import FleetController
from broadloom.agents.links.route_orders import NO_EPOCH
from broadloom.storage import RecordJournal

STEP_SECONDS = 0.02
RUNS = int(os.environ.get("BROADLOOM_MODEL_RUNS", "150"))


def test_each_message_comes_once_to_each_broker_of_its_tree_and_no_change_hangs():
    counts, failures = search(range(RUNS))
    assert failures == []
    assert counts["deliveries"] > 20 * RUNS  # the runs do something
    assert counts["versions"] > RUNS


def test_nothing_fails_without_faults():
    counts, failures = search(range(50), faults=())
    assert failures == []
    assert counts["versions"] > 50


@pytest.mark.parametrize("fault", sorted(set(FAULTS)))
def test_one_kind_of_fault_alone_does_no_harm(fault):
    counts, failures = search(range(max(15, RUNS // 10)), faults=(fault,))
    assert failures == []
    assert counts[fault] > 0


@pytest.mark.parametrize(
    ("rule", "faults", "seed"),
    [
        ("barrier", ("kill",), 78),
        ("route_in_stamp", FAULTS, 273),
        ("in_turn", FAULTS, 70),
        ("version_after_loss", FAULTS, 0),
        ("drops_recorded", FAULTS, 3),
        ("majority", FAULTS, 19),
        ("same_base", ("second",), 498),
        ("check_at", FAULTS, 2),
    ],
)
def test_the_model_finds_the_failure_of_a_weaker_protocol(rule, faults, seed):
    with pytest.raises(ProtocolError):
        Model(seed, Rules(**{rule: False}), faults=faults).run()
    Model(seed, faults=faults).run()


def test_random_trees_have_publishers_that_receive_nothing():
    rng = random.Random(0)
    trees = [random_tree(rng, ["a", "b", "c", "d"]) for _ in range(100)]
    assert any((far, near) not in hops for hops in trees for near, far in hops)


class JournalledController:
    """The real controller, in place of the one of the model."""

    def __init__(self, journal, model):
        self._model = model
        self.real = FleetController(journal, lambda: model.clock, patience=20.0, silence=4.0, grace=0.5)
        self.target = model.targets.get(id(journal))
        if self.target is not None:
            self.real.set_target(self.target)

    @property
    def epoch(self):
        """The epoch of the controller."""
        return self.real.epoch

    @property
    def refused(self):
        """Whether agents refuse it."""
        return self.real.refused is not None

    def set_target(self, target):
        """Set the trees that the fleet should have."""
        self.target = target
        self._model.targets[id(self.real._journal)] = target
        self.real.set_target(target)

    def receive(self, report):
        """Take a report."""
        self.real.receive(report)

    def tick(self):
        """Do what can be done now."""
        self.real.tick()

    def orders_for(self, broker):
        """The orders of a broker's agent; None: there are none."""
        orders = self.real.orders_for(broker)
        return None if orders.epoch == NO_EPOCH else orders

    def base_of(self, broker):
        """The epoch and number of the orders that an agent has."""
        return self._model.agents[broker].epoch, self._model.agents[broker].orders.number

    def settled(self):
        """Whether the fleet has its target."""
        return self.real.settled()


class FleetControllerModel(Model):
    """The model of brokers and agents with the real controller."""

    def __init__(self, *arguments, **options):
        self.clock = 0.0
        self.targets = {}
        self.target = {}
        super().__init__(*arguments, **options)

    def new_journal(self):
        """An empty journal."""
        return RecordJournal(None)

    def new_controller(self, journal, name):  # noqa: ARG002
        """The real controller on a journal."""
        return JournalledController(journal, self)

    def versions(self):
        """The number of versions so far."""
        return len(self.history)

    def learn(self):
        """Note the routes of this step."""
        self.clock += STEP_SECONDS
        for controller in self.controllers:
            for route in controller.real._state.routes.values():
                self.history[route.number] = route

    def _step(self):
        if self.rng.random() < 0.05:
            self.controllers[0].tick()
        return super()._step()

    def _settle(self):
        for _ in range(30):  # until agents that were away count as back, and patience is over
            self.clock += 1.0
            super()._settle()

    def _heal(self):
        for name in self.names:
            self._restore(name)
        self._wire.clear()

    def describe(self):
        """Why the controller is not settled."""
        found = self.controllers[0].real.status()
        return str({key: found[key] for key in ("opening", "waiting", "draining", "problems", "refused")})


@pytest.mark.parametrize("faults", [(), tuple(fault for fault in FAULTS if fault != "second")])
def test_the_real_controller_leads_agents_of_the_model(faults):
    counts, failures = search(range(max(20, RUNS // 5)), make=FleetControllerModel, faults=faults)
    assert failures == []
    assert counts["versions"] > 20
