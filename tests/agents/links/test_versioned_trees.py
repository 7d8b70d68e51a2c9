"""The protocol of versioned trees, run as a model with failures; see `versioned_model`.

`BROADLOOM_MODEL_RUNS=20000` makes the search long.
"""

import os
import random

import pytest
from versioned_model import FAULTS, Model, ProtocolError, Rules, random_tree, search

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
        ("in_turn", FAULTS, 18),
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
