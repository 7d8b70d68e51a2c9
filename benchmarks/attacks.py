"""Benchmark of attacks: on a running fleet, what other clients get; by names and files, what happens."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

from _common import Section, run
from deploy import version

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "attacks"))

from input_attacks import ATTACKS as INPUT_ATTACKS
from input_attacks import MEMORY_MB, attacked
from live_attacks import ATTACKS, LIMITS, AttackLab

SCALE = 10  # of the tests' short form
MESSAGES = 200  # of other clients, at least, during each attack
ALLOWED = LIMITS | {"memory MB": 100.0}
SHOWN = ("lost", "doubled", "leaked", "memory MB", "log kB")
FIRST = "many subscriptions"  # whose short form has the controller load what it plans with


async def attack_all(scale: int) -> list[dict[str, object]]:
    """One attack after the other on one laboratory."""
    with tempfile.TemporaryDirectory(prefix="broadloom-attacks-") as folder:
        lab = AttackLab(Path(folder))
        try:
            await lab.start()
            await lab.attack(next(attack for attack in ATTACKS if attack.name == FIRST), 1)
            return [await lab.attack(attack, scale, MESSAGES) for attack in ATTACKS]
        finally:
            await lab.stop()


def live(quick: bool) -> Section:
    """Each attack on brokers, agents and a controller, while other clients publish and count."""
    logging.disable(logging.CRITICAL)  # of the clients here; agents and controller are processes
    section = Section(f"Attacks on four brokers with agents and a controller, {version()}")
    section.rows = asyncio.run(attack_all(1 if quick else SCALE))
    for row in section.rows:
        if row.pop("ended") or row.pop("tracebacks"):
            raise RuntimeError(f"a process has failed: {row}")
    for name in SHOWN:
        special = {attack.name: attack.limits[name] for attack in ATTACKS if name in attack.limits}
        others = [row[name] for row in section.rows if row["attack"] not in special]
        section.claim(f"{name}, of any other attack", max(others), at_most=ALLOWED[name])
        for row in section.rows:
            if row["attack"] in special:
                section.claim(f"{name}: {row['attack']}", row[name], at_most=special[row["attack"]])
    return section


def inputs(quick: bool) -> Section:
    """Each attack by names and files, and by a local user, without a running fleet."""
    section = Section("Attempts by names and files, and by a local user")
    with tempfile.TemporaryDirectory(prefix="broadloom-attacks-") as folder:
        for number, attack in enumerate(INPUT_ATTACKS):
            section.rows.append(attacked(attack, Path(folder, str(number)), quick))
            print(section.rows[-1], flush=True)
    section.claim("attempts with a wrong outcome", sum(row["wrong"] for row in section.rows), at_most=0)
    section.claim("memory MB", max(row["memory MB"] for row in section.rows), at_most=MEMORY_MB)
    return section


if __name__ == "__main__":
    run("attacks", {"live": live, "inputs": inputs})
