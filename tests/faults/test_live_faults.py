"""Faults on real brokers, agents and a controller: each message arrives once, whatever breaks.

Seeds are printed: `BROADLOOM_SEED=N pytest -m faults` repeats a run of `make test-faults`.
"""

import asyncio
import logging
import os
import random
import shutil

import pytest
from live_faults import FAULTS, can_forbid_changes

from live_lab import Churn, LiveLab, LiveLoad, until

pytestmark = [pytest.mark.needs("mosquitto", "faketime"), pytest.mark.xdist_group("mosquitto")]

# A broker that is killed is in the long form only: on a busy machine, mosquitto saves changes too late.
SHORT = [name for name, fault in FAULTS.items() if not fault.saves]
CALM = ["agent killed", "delays", "reset within a packet"]  # in the short form, before subscriptions change
SEED = int(os.environ.get("BROADLOOM_SEED", random.SystemRandom().randrange(10**6)))
TOPICS = [f"t/{group}/{item}" for group in range(2) for item in range(2)]


async def break_parts(lab, load, churn, names, rng, is_short):
    """Inject faults one after the other, while subscriptions change (`churn`) or stay (None)."""
    for name in names:
        change = asyncio.create_task(churn.change()) if churn else None  # it can need a broker that is away
        await FAULTS[name].inject(lab, load, rng, is_short)
        if change is not None:
            await change
        before = load.arrivals["all"]
        await until(lambda before=before: load.arrivals["all"] > before + 50, f"messages after: {name}")


async def scenario(folder, names, seed, is_short):
    """Faults on three brokers with agents and a controller; returns what clients counted."""
    rng = random.Random(seed)
    saves = any(FAULTS[name].saves for name in names)
    lab = LiveLab(folder, ["rome", "oslo", "lima"], proxies=True, autosave=None if saves else 1800)
    load = LiveLoad(lab.ports, TOPICS, seed)
    churn = Churn(load, 2, 2, seed=1)
    try:
        await lab.start()
        await load.start()
        await churn.fill(0.7)
        await load.subscribe("rome", 1, "t/0/+")
        await load.reach_all()
        await lab.settled()
        load.run(20 if saves else 60)
        earlier = load.arrivals["reordered"]
        await break_parts(lab, load, None, CALM if is_short else [], rng, is_short)
        reordered = load.arrivals["reordered"] - earlier
        await break_parts(lab, load, churn, names, rng, is_short)
        await load.pause()
        await lab.settled()
        recovered = await load.recovery()
        counts = await load.settle()
        counts["recovered s"] = round(recovered, 3)
        status = await lab.settled()
        counts["copies"] = lab.counts(status)["copies"]
        counts["sessions lost"] = load.arrivals["sessions lost"]
        counts["reordered"] = reordered  # while trees stayed
        return counts, lab.tracebacks()
    finally:
        await lab.stop()
        await asyncio.gather(*(client.stop() for client in load.clients.values()))


def check(folder, names, seed, is_short, caplog):
    caplog.set_level(logging.CRITICAL, "broadloom")
    counts, tracebacks = asyncio.run(scenario(folder, names, seed, is_short))
    shown = f"seed {seed}, {names}: {counts}"
    print(shown)
    names = ("lost", "doubled", "leaked", "reordered", "sessions lost")
    assert {name: counts[name] for name in names if counts[name]} == {}, shown
    assert tracebacks == [], shown
    return counts


def test_each_message_arrives_once_while_parts_break(tmp_path, caplog):
    """Overlapping filters, QoS 1 and 2, no ids; subscriptions change meanwhile, but not at first.

    While they do not, the messages of a publisher stay in order, by topic and QoS.
    """
    names = SHORT if can_forbid_changes(tmp_path) else [name for name in SHORT if name != "disk read-only"]
    counts = check(tmp_path, names, 1, True, caplog)
    assert counts["copies"] > 0  # filters did overlap


@pytest.mark.faults
@pytest.mark.parametrize("name", FAULTS)
def test_one_kind_of_fault_in_its_long_form(tmp_path, name, caplog):
    if missing := [program for program in FAULTS[name].needs if shutil.which(program) is None]:
        pytest.skip(f"not installed: {missing}")
    check(tmp_path, [name] * 3, SEED, False, caplog)


@pytest.mark.faults
@pytest.mark.parametrize("number", range(4))
def test_faults_of_all_kinds_in_any_order(tmp_path, number, caplog):
    rng = random.Random(SEED + number)
    names = [name for name, fault in FAULTS.items() if not fault.saves]
    check(tmp_path, rng.choices(names, k=12), SEED + number, False, caplog)
