"""Faults of a running fleet: what breaks, while clients publish, count and change their subscriptions.

`FAULTS` lists them by name. The tests inject each in its short form, or some at random; `benchmarks/live.py`
runs the long form and writes the table of the documentation.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from live_lab import LabProcess, LiveLab, LiveLoad, until

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


async def kill_agent(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """An agent is killed, and starts again."""
    await _restart(lab.agents[rng.choice(lab.names)], signal.SIGKILL, rng, is_short)


async def kill_controller(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """The controller is killed, and starts again."""
    await _restart(lab.controller, signal.SIGKILL, rng, is_short)


async def restart_broker(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """A broker ends as told to, saves its sessions and starts again."""
    await _restart(lab.brokers[rng.choice(lab.names)], signal.SIGTERM, rng, is_short)


async def kill_broker(lab: LiveLab, load: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """A broker that saves each change is killed and starts again; nobody publishes there meanwhile."""
    name = rng.choice(lab.names)
    load.paused.add(name)
    await asyncio.sleep(1.0)
    await _restart(lab.brokers[name], signal.SIGKILL, rng, is_short)
    load.paused.discard(name)


async def _restart(process: LabProcess, number: int, rng: random.Random, is_short: bool) -> None:
    process.end(number)
    await asyncio.sleep(0.2 if is_short else rng.choice((0.0, 1.0, 4.0)))
    process.start()


async def stop_agent(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """An agent is stopped for 5 to 40 s, then goes on."""
    await _pause(lab.agents[rng.choice(lab.names)], rng, is_short)


async def stop_broker(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """A broker is stopped for 5 to 40 s, then goes on."""
    await _pause(lab.brokers[rng.choice(lab.names)], rng, is_short)


async def stop_controller(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """The controller is stopped for 5 to 40 s, then goes on."""
    await _pause(lab.controller, rng, is_short)


async def _pause(process: LabProcess, rng: random.Random, is_short: bool) -> None:
    process.pause(True)
    await asyncio.sleep(1 if is_short else rng.choice((5, 12, 40)))
    process.pause(False)


async def partition(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """The agents of some brokers do not reach the others: silence, then closed connections."""
    some = set(rng.sample(lab.names, rng.randint(1, len(lab.names) - 1)))
    proxies = [proxy for (near, far), proxy in lab.proxies.items() if (near in some) != (far in some)]
    for proxy in proxies:
        proxy.silence(True)
    await asyncio.sleep(1 if is_short else rng.choice((2, 5, 20)))
    for proxy in proxies:
        if rng.random() < 0.7:
            proxy.cut()
        proxy.silence(False)


async def delay(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """Bytes between brokers take up to a second, each connection its own time."""
    for proxy in lab.proxies.values():
        proxy.delay = rng.choice((0.0, 0.05, 0.3, 1.0))
    await asyncio.sleep(1 if is_short else 8)
    for proxy in lab.proxies.values():
        proxy.delay = 0.0


async def reset(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """Connections between brokers end in the middle of a packet."""
    for _ in range(3 if is_short else 10):
        rng.choice(list(lab.proxies.values())).cut_after(rng.randrange(1, 200))
        await asyncio.sleep(0.1)


async def jump_clock(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """The clock of one agent or of the controller jumps by hours, in both directions."""
    name = rng.choice([*lab.names, "controller"])
    process = lab.controller if name == "controller" else lab.agents[name]
    file = lab.folder / f"clock-{name}"
    if not process.environment:
        file.write_text("+0")
        process.environment = {
            "LD_PRELOAD": FAKETIME,
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        process.end(signal.SIGTERM)
        process.start()
        await asyncio.sleep(0.5 if is_short else 2)
    file.write_text(rng.choice(("+3h", "-5h", "+400d", "-1d", "+0")))
    await asyncio.sleep(0.5 if is_short else 2)


async def fill_disk(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """No file of an agent or of the controller can grow for a few seconds."""
    process = rng.choice([lab.controller, *lab.agents.values()])
    await until(process.has_started, "it runs: a process that starts on a full disk ends, with one line")
    await lab.settled()
    with _no_growth(process):
        await asyncio.sleep(1 if is_short else rng.choice((3, 8)))
    assert process.is_running()


@contextmanager
def _no_growth(process: LabProcess) -> Iterator[None]:
    limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    yield
    if process.is_running():
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)


async def read_only_disk(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """No file of an agent's or of the controller's state can be made, replaced or removed."""
    name = rng.choice([*lab.names, "controller"])
    folder = lab.folder / "state" / ("" if name == "controller" else f"agents/{name}")
    await _immutable(folder, "+i")
    try:
        await asyncio.sleep(1 if is_short else rng.choice((3, 8)))
    finally:
        await _immutable(folder, "-i")
    process = lab.controller if name == "controller" else lab.agents[name]
    if not process.is_running():
        process.start()


async def _immutable(folder: os.PathLike[str], change: str) -> None:
    """Forbid changes of a folder even to root, or allow them again; the file system must be able to."""
    command = await asyncio.create_subprocess_exec("chattr", change, folder)
    assert await command.wait() == 0, f"chattr {change} does not work here"


def can_forbid_changes(folder: Path) -> bool:
    """Whether changes of a folder can be forbidden here: as root, on a file system that can do it."""
    if shutil.which("chattr") is None:
        return False
    done = [subprocess.run(["chattr", change, folder], capture_output=True) for change in ("+i", "-i")]
    return all(one.returncode == 0 for one in done)


async def second_agent(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """A second agent of a broker, with a state of its own, is started; it ends by itself."""
    broker = rng.choice(lab.names)
    rival = lab.new_agent(broker, lab.folder / f"rival-{rng.getrandbits(32):x}", lab.fleet_path)
    rival.log = lab.folder / "rival.log"
    rival.start()
    while rival.is_running():
        await asyncio.sleep(0.1)
    del is_short


async def second_controller(lab: LiveLab, _: LiveLoad, rng: random.Random, is_short: bool) -> None:
    """A second controller on the same state is started; it ends by itself."""
    rival = lab.new_controller("rival", lab.folder / "state")
    rival.start()
    while rival.is_running():
        await asyncio.sleep(0.1)
    del rng, is_short


class Fault(NamedTuple):
    """A fault.

    Attributes:
        inject: injects it; its arguments are the laboratory, the clients, the source of chance, and whether
            a short form is wanted.
        times: how often the long form injects it.
        proxies: whether agents must reach other brokers through proxies.
        saves: whether brokers must save their sessions at each change.
        needs: programs that it needs.
    """

    inject: Callable[[LiveLab, LiveLoad, random.Random, bool], Awaitable[None]]
    times: int
    proxies: bool = False
    saves: bool = False
    needs: tuple[str, ...] = ()


FAULTS = {
    "agent killed": Fault(kill_agent, 12),
    "controller killed": Fault(kill_controller, 12),
    "agent stopped": Fault(stop_agent, 6),
    "broker stopped": Fault(stop_broker, 6),
    "controller stopped": Fault(stop_controller, 4),
    "broker restarted": Fault(restart_broker, 12),
    "broker killed": Fault(kill_broker, 12, saves=True),
    "partition": Fault(partition, 8, proxies=True),
    "delays": Fault(delay, 8, proxies=True),
    "reset within a packet": Fault(reset, 8, proxies=True),
    "clock": Fault(jump_clock, 12, needs=("faketime",)),
    "disk full": Fault(fill_disk, 10),
    "disk read-only": Fault(read_only_disk, 8, needs=("chattr",)),
    "second agent": Fault(second_agent, 3),
    "second controller": Fault(second_controller, 3),
}
