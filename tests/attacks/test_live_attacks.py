"""Attacks on a running fleet of real brokers, agents and a controller: other clients lose nothing."""

import asyncio
import logging

import pytest
from live_attacks import ATTACKS, LIMITS, AttackLab

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]


@pytest.fixture(scope="module")
def loop():
    """An event loop for the laboratory."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def laboratory(loop, tmp_path_factory):
    """Brokers, agents and clients, for all attacks."""
    logging.getLogger("broadloom").setLevel(logging.CRITICAL)
    lab = AttackLab(tmp_path_factory.mktemp("attacks"))
    try:
        loop.run(lab.start())
        yield lab
    finally:
        loop.run(lab.stop())
        logging.getLogger("broadloom").setLevel(logging.NOTSET)


@pytest.mark.parametrize("attack", ATTACKS, ids=[attack.name for attack in ATTACKS])
def test_others_lose_nothing_and_processes_stay_small(laboratory, loop, attack):
    found = loop.run(laboratory.attack(attack, 1))
    assert found["arrived"] > 0
    limits = LIMITS | attack.limits
    assert {name: found[name] for name, limit in limits.items() if found[name] > limit} == {}
