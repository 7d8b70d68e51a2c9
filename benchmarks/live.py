"""Benchmark of the live plane on real mosquitto: changes under load, faults, one hop's rate, and scale."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from _common import Section, kept, run
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports
from broadloom.mqtt.client_session import ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import PUBACK, Connack, Publish, acknowledgement
from deploy import version

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))

from live_faults import FAULTS, Fault

from file_damage import FILES, flips
from live_lab import Churn, LiveLab, LiveLoad, until

GROUPS, ITEMS = 3, 4
TOPICS = [f"t/{group}/{item}" for group in range(GROUPS) for item in range(ITEMS)]
RATE = 120.0
SAVING_RATE = (
    25.0  # for brokers that save all sessions at each change: they can do that some 30 times per second
)
CLEAN = ("lost", "doubled")


@asynccontextmanager
async def laboratory(
    brokers: int, rate: float = RATE, topics: list[str] = TOPICS, share: float = 0.4, **options: Any
) -> AsyncIterator[tuple[LiveLab, LiveLoad, Churn]]:
    """Brokers, agents, a controller and clients that publish at a rate, once all have what they want."""
    with tempfile.TemporaryDirectory(prefix="broadloom-live-") as folder:
        lab = LiveLab(Path(folder), [f"b{index}" for index in range(brokers)], **options)
        load = LiveLoad(lab.ports, topics)
        churn = Churn(load, GROUPS, ITEMS)
        try:
            await lab.start()
            await load.start()
            await churn.fill(share)
            await load.reach_all(300)
            if rate:
                load.run(rate)
            yield lab, load, churn
        finally:
            await lab.stop()
            await asyncio.gather(*(client.stop() for client in load.clients.values()))
            if keep := os.environ.get("BROADLOOM_LAB_KEEP"):  # logs, to find out why something failed
                shutil.copytree(folder, keep, dirs_exist_ok=True)


async def verdict(lab: LiveLab, load: LiveLoad, seconds: float = 120) -> dict[str, Any]:
    """Stop the load, wait until all has arrived and every client is reached, and count."""
    await load.pause()
    status = await lab.settled(seconds=seconds)
    await load.settle(seconds)
    await load.reach_all(seconds)
    counts = await load.settle(30)
    lost = lab.counts(status)
    return counts | {
        "sessions lost": lost["sessions_lost"] + load.arrivals["sessions lost"],
        "sessions rolled back": sum(
            (broker.get("counts") or {}).get("sessions_rolled_back", 0)
            for broker in status["brokers"].values()
        ),
        "unsure": len(load.unsure),
        "versions": status["version"] & 0xFFFFFFFF,
        "tracebacks": len(lab.tracebacks()),
    }


def add_counts(section: Section, name: str, row: dict[str, Any]) -> None:
    """A row, and the claims that nothing is lost or doubled."""
    section.rows.append({"scenario": name} | row)
    for word in CLEAN:
        section.claim(f"{word}: {name}", row[word], at_most=0)


async def keep_changing(churn: Churn, pause: float) -> None:
    """Change subscriptions for ever."""
    while True:
        await churn.change()
        await asyncio.sleep(pause)


@asynccontextmanager
async def changes(churn: Churn, pause: float) -> AsyncIterator[None]:
    """Subscriptions change while the block runs."""
    task = asyncio.create_task(keep_changing(churn, pause))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# Kills.


async def kill_scenario(agent_kills: int, controller_kills: int) -> dict[str, Any]:
    """Agents and the controller are killed while subscriptions change under load."""
    rng = random.Random(1)
    plan = ["agent"] * agent_kills + ["controller"] * controller_kills
    rng.shuffle(plan)
    async with laboratory(6) as (lab, load, churn), changes(churn, 0.35):
        for victim in plan:
            process = lab.controller if victim == "controller" else lab.agents[rng.choice(lab.names)]
            process.end(signal.SIGKILL)
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.2, 1.0)))
            process.start()
            await asyncio.sleep(rng.uniform(0.2, 1.5))
        return {
            "agents killed": agent_kills,
            "controller killed": controller_kills,
            **await verdict_after(lab, load, churn),
        }


async def verdict_after(lab: LiveLab, load: LiveLoad, churn: Churn) -> dict[str, Any]:
    """The counts, with the changes so far; subscriptions change no more."""
    counted = churn.changes
    churn.stopped = True
    return {"changes": counted} | await verdict(lab, load)


def kills(quick: bool) -> Section:
    """Agents and the controller are killed in the middle of changes."""
    section = Section(f"Agents and the controller killed (SIGKILL) in the middle of changes, {version()}")
    row = asyncio.run(kill_scenario(*((6, 2) if quick else (110, 35))))
    add_counts(section, "kills", row)
    section.claim("agents killed", row["agents killed"], at_least=100)
    section.claim("controller killed", row["controller killed"], at_least=30)
    section.claim("changes", row["changes"], at_least=300)
    return section


# Faults.


async def with_fault(fault: Fault, times: int) -> dict[str, Any]:
    """A fault some times, while subscriptions change under load."""
    rng = random.Random(2)
    options = {"autosave": None, "rate": SAVING_RATE} if fault.saves else {}
    async with laboratory(5, proxies=fault.proxies, **options) as (lab, load, churn), changes(churn, 0.7):
        for _ in range(times - 1):
            await fault.inject(lab, load, rng, False)
            await asyncio.sleep(rng.uniform(0.5, 2.0))
        await fault.inject(lab, load, rng, False)
        churn.stopped = True
        recovered = await load.recovery(120)
        return {"faults": times, **await verdict_after(lab, load, churn), "recovered s": recovered}


async def killed_without_agents(times: int, is_bridged: bool) -> dict[str, Any]:
    """Brokers that save each change are killed, without Broadloom: what mosquitto itself loses and doubles.

    Clients publish and subscribe at one broker, or at five brokers with bridges of mosquitto in a chain.
    """
    rng = random.Random(2)
    names = [f"b{index}" for index in range(5)] if is_bridged else ["b0"]
    bridge = (
        "connection chain\naddress 127.0.0.1:{%s}\ntopic t/# both 2\nbridge_protocol_version mqttv50\n"
        "cleansession false\nnotifications false\ntry_private false\nrestart_timeout 1\n"
    )
    settings = {name: bridge % before for before, name in itertools.pairwise(names)}
    with tempfile.TemporaryDirectory(prefix="broadloom-live-") as folder:
        lab = LiveLab(Path(folder), names, autosave=None, broker_settings=settings)
        # Messages count that go from one name to another.
        ports = lab.ports if is_bridged else {"publishers": lab.ports["b0"], "subscribers": lab.ports["b0"]}
        load = LiveLoad(ports, TOPICS)
        churn = Churn(load, GROUPS, ITEMS)
        try:
            for broker in lab.brokers.values():
                broker.start()
            await load.start()
            await churn.fill(0.4)
            await load.reach_all()
            load.run(SAVING_RATE)
            for _ in range(times):
                name = rng.choice(names)
                stopped = {name} if is_bridged else set(ports)
                load.paused |= stopped
                # With one broker, messages have to be under way at the kill: nothing else brings any.
                await asyncio.sleep(1.0 if is_bridged else 0.0)
                lab.brokers[name].end(signal.SIGKILL)
                await asyncio.sleep(rng.choice((0.0, 1.0, 4.0)))
                lab.brokers[name].start()
                load.paused -= stopped
                await asyncio.sleep(rng.uniform(0.5, 2.0))
            await load.pause()
            counts = await load.settle(15)
            return {"faults": times, "sessions lost": load.arrivals["sessions lost"]} | counts
        finally:
            await lab.stop()
            await asyncio.gather(*(client.stop() for client in load.clients.values()))


CONTROLS = {
    "control: one broker without links killed": False,
    "control: broker killed with bridges of mosquitto": True,
}


def faults(quick: bool) -> Section:
    """Stops, restarts and kills of brokers, partitions, clocks, disks; one laboratory per kind.

    BROADLOOM_LAB_FAULTS names some of them; the rows of the others stay as they were measured.
    """
    section = Section(f"Faults under load and changes, {version()}")
    wanted = os.environ.get("BROADLOOM_LAB_FAULTS", ",".join((*FAULTS, *CONTROLS))).split(",")
    found = {}
    for name in wanted:
        try:
            if name in CONTROLS:
                row = asyncio.run(killed_without_agents(1 if quick else 12, CONTROLS[name]))
            else:
                fault = FAULTS[name]
                row = asyncio.run(with_fault(fault, 1 if quick else fault.times))
            found[name] = {"scenario": name} | row
        except AssertionError as error:
            found[name] = {"scenario": name, "failed": str(error)[:300], "lost": -1, "doubled": -1}
    rows = {row["scenario"]: row for row in kept("live", "faults")} | found
    section.rows = [rows[name] for name in (*FAULTS, *CONTROLS) if name in rows]
    for row in section.rows:
        if row["scenario"] in CONTROLS:
            continue
        section.claim(
            f"lost, doubled or leaked: {row['scenario']}",
            abs(row["lost"]) + abs(row["doubled"]) + row.get("leaked", 0),
            at_most=0,
        )
    return section


def damage(quick: bool) -> Section:
    """One flipped bit at each position of each kind of file."""
    del quick
    section = Section("One flipped bit at each position of files of agents, controller, moves and changes")
    with tempfile.TemporaryDirectory(prefix="broadloom-live-") as folder:
        for number, (name, make) in enumerate(FILES.items()):
            section.rows.append({"file": name} | flips(make, Path(folder, str(number))))
    section.claim("wrong, of all files", sum(row["wrong"] for row in section.rows), at_most=0)
    return section


# Outages.


async def outage_scenario(seconds: float) -> list[dict[str, Any]]:
    """The controller is dead, then the agent of a broker with one neighbour is."""
    rows = []
    async with laboratory(5) as (lab, load, _):

        async def measured(what: str, without: str = "") -> dict[str, Any]:
            """Latency of messages of all brokers but one."""
            load.latencies.clear()
            load.origins.clear()
            await asyncio.sleep(seconds)
            times = [
                late for late, origin in zip(load.latencies, load.origins, strict=True) if origin != without
            ]
            times = times or [float("nan")]
            quantiles = {f"p{int(q * 100)} ms": 1000 * float(np.quantile(times, q)) for q in (0.5, 0.99, 1.0)}
            return {"scenario": what, "deliveries": len(times)} | quantiles

        await asyncio.sleep(3)
        rows.append(await measured("all up"))
        lab.controller.end(signal.SIGKILL)
        rows.append(await measured("controller dead"))
        lab.controller.start()
        status = await lab.settled()
        hops = {name: len(broker["hops"]) for name, broker in status["brokers"].items()}
        leaf = min(hops, key=lambda name: hops[name])
        assert hops[leaf] == 1, f"each broker is on the way of others: {hops}"
        lab.agents[leaf].end(signal.SIGKILL)
        rows.append(await measured("one agent dead: messages of other brokers", leaf))
        waited = len(load.origins) - rows[-1]["deliveries"]
        lab.agents[leaf].start()
        await lab.settled()
        rows[-1] |= {"deliveries of its own broker": waited} | await verdict(lab, load)
    return rows


def outages(quick: bool) -> Section:
    """Messages do not wait for a dead controller, nor for the agent of another broker."""
    section = Section(f"Latency with a dead controller, and with a dead agent, {version()}")
    section.rows = asyncio.run(outage_scenario(5.0 if quick else 60.0))
    all_up = max(section.rows[0]["p99 ms"], 1.0)
    for word in CLEAN:
        section.claim(f"{word}: controller dead, then an agent", section.rows[-1][word], at_most=0)
    for row in section.rows[1:]:
        section.claim(
            f"p99 of latency, relative to all up: {row['scenario']}", row["p99 ms"] / all_up, at_most=3
        )
    return section


# Equal messages.


async def equal_scenario(agent_kills: int) -> dict[str, Any]:
    """All messages of a topic are equal, without ids; agents are killed and trees change.

    Clients with wildcards keep their subscriptions, which overlap, and count; the others change theirs.
    """
    rng = random.Random(4)
    async with laboratory(5, rate=0) as (lab, load, churn):
        for name in lab.names:
            await load.subscribe(name, 1, f"t/{rng.randrange(GROUPS)}/+")
            await load.subscribe(name, 2, f"t/+/{rng.randrange(ITEMS)}")
        await load.reach_all()
        await lab.settled()
        await load.settle()
        churn.kinds = (0,)
        load.is_equal = True
        load.run(RATE)
        async with changes(churn, 0.7):
            for _ in range(agent_kills):
                await asyncio.sleep(rng.uniform(0.3, 1.5))
                agent = lab.agents[rng.choice(lab.names)]
                agent.end(signal.SIGKILL)
                await asyncio.sleep(rng.choice((0.0, 0.2, 1.0)))
                agent.start()
            churn.stopped = True
        await load.pause()
        status = await lab.settled()
        counts = await load.settle_equal(kinds=(1, 2))
        copies = lab.counts(status)["copies"]
        changed = {"changes": churn.changes, "copies for overlapping filters": copies}
        return {"agents killed": agent_kills} | counts | changed


def equal(quick: bool) -> Section:
    """Equal messages without ids: only their numbers can be compared."""
    section = Section(f"Equal messages without ids, agents killed, {version()}")
    add_counts(section, "equal messages", asyncio.run(equal_scenario(4 if quick else 30)))
    return section


# Rivals.


async def old_copy() -> dict[str, Any]:
    """The controller is replaced by one on an old copy of its state, then comes back."""
    async with laboratory(5) as (lab, load, churn), changes(churn, 0.5):
        lab.controller.end(signal.SIGKILL)
        shutil.copytree(lab.folder / "state", lab.folder / "old")
        lab.controller.start()
        await asyncio.sleep(12)
        lab.controller.end(signal.SIGKILL)
        rival = lab.new_controller("rival", lab.folder / "old")
        rival.start()
        said = await refusal(lab)
        rival.end(signal.SIGKILL)
        lab.controller.start()
        await asyncio.sleep(5)
        return {"said": said} | await verdict_after(lab, load, churn)


async def refusal(lab: LiveLab) -> str:
    """Wait until the status of the controller says that it is refused."""
    end = time.monotonic() + 30
    found: dict[str, Any] | None = None
    while time.monotonic() < end:
        found = await lab.status_soon()
        if found is not None and found["refused"]:
            return str(found["refused"])
        await asyncio.sleep(0.2)
    return "NOT SAID"


async def two_controllers() -> dict[str, Any]:
    """A second controller on a copy of the state runs at the same time, for half of the agents."""
    async with laboratory(6) as (lab, load, churn), changes(churn, 0.5):
        shutil.copytree(lab.folder / "state", lab.folder / "copy")
        await asyncio.sleep(5)
        (port,) = free_ports(1)
        fleet = lab.write_fleet("rival.toml", lab.ports, port)
        rival = lab.new_controller("rival", lab.folder / "copy", fleet=fleet)
        rival.start()
        half = lab.names[3:]
        for name in half:
            lab.agents[name].end(signal.SIGTERM)
            lab.new_agent(name, lab.folder / "state", fleet)
            moved = lab.new_agent(name, lab.folder / "state", fleet)
            moved.start()
            lab.agents[name] = moved
        await asyncio.sleep(20)
        rival.end(signal.SIGKILL)
        for name in half:
            lab.agents[name].end(signal.SIGTERM)
            lab.agents[name] = lab.new_agent(name, lab.folder / "state", lab.fleet_path)
            lab.agents[name].start()
        await asyncio.sleep(5)
        said = "refuses" if "orders nothing" in (lab.folder / "rival.log").read_text() else "-"
        return {"said": said} | await verdict_after(lab, load, churn)


async def two_agents() -> dict[str, Any]:
    """A second agent of a broker, with a state of its own, is started."""
    async with laboratory(5) as (lab, load, churn), changes(churn, 0.7):
        rival = lab.new_agent("b0", lab.folder / "other", lab.fleet_path)
        rival.log = lab.folder / "rival-agent.log"
        rival.start()
        await until(lambda: not rival.is_running(), "the second agent ends")
        said = rival.log.read_text().strip().splitlines()[-1][-150:]
        await asyncio.sleep(5)
        return {"said": said} | await verdict_after(lab, load, churn)


async def hand_made_bridge(
    direction: str = "out", settings: str = "", is_chain: bool = False
) -> dict[str, Any]:
    """Somebody adds a bridge of mosquitto from b1 to b0, and restarts b1; `is_chain`: also one from b2 to b1.

    Clients of a broker that a bridge leads to get its copies, which nobody can stop; they are counted apart.
    """
    bridge = "connection by-hand\naddress 127.0.0.1:{}\ntopic t/# {} 1\ntry_private true\n"
    targets = {"b1": "b0", "b2": "b1"} if is_chain else {"b1": "b0"}
    ends = {*targets.values(), *(targets if direction == "both" else ())}
    async with laboratory(4) as (lab, load, _):
        for name, target in targets.items():
            broker = lab.brokers[name]
            with (lab.folder / f"broker-{name}" / "mosquitto.conf").open("a") as file:
                file.write(bridge.format(lab.ports[target], direction) + settings)
            broker.end(signal.SIGTERM)
            broker.start()
        await asyncio.sleep(8)
        noticed = len(load.sent)
        await asyncio.sleep(15)
        status = await lab.settled()
        said = [text for text in status["problems"] if "bridge" in text]
        counts = lab.counts(status)
        row = await verdict(lab, load)
        elsewhere = [number for key, number in load.doubled if key[0] not in ends]
        return (
            {"said": (said or ["NOT SAID"])[0][:150], "ring": counts["ring"], "echoes": counts["echoes"]}
            | row
            | {
                "doubled": sum(number >= noticed for number in elsewhere),
                "doubled in the first seconds": sum(number < noticed for number in elsewhere),
                "doubled by the bridge itself": len(load.doubled) - len(elsewhere),
            }
        )


MQTT_5 = "bridge_protocol_version mqttv50\n"
HIDDEN = "notifications false\n"
RIVALS = {
    "controller on an old copy": old_copy,
    "two controllers": two_controllers,
    "two agents of one broker": two_agents,
    "bridge made by hand": lambda: hand_made_bridge(settings=MQTT_5),
    "hidden bridge": lambda: hand_made_bridge(settings=MQTT_5 + HIDDEN),
    "bridge in both directions": lambda: hand_made_bridge("both", MQTT_5),
    "bridge of MQTT 3.1.1": hand_made_bridge,
    "hidden bridge of MQTT 3.1.1": lambda: hand_made_bridge(settings=HIDDEN),
    "bridge of MQTT 3.1.1 in both directions": lambda: hand_made_bridge("both"),
    "two bridges of MQTT 3.1.1 that close a ring": lambda: hand_made_bridge(is_chain=True),
}


def rivals(quick: bool) -> Section:
    """Two controllers, an old copy of the state, two agents, bridges made by hand.

    BROADLOOM_LAB_RIVALS names some of them.
    """
    del quick
    section = Section(f"Rivals, {version()}")
    wanted = os.environ.get("BROADLOOM_LAB_RIVALS", ",".join(RIVALS)).split(",")
    for name in wanted:
        scenario = RIVALS[name]
        try:
            row = asyncio.run(scenario())
        except AssertionError as error:
            section.rows.append({"scenario": name, "said": f"FAILED: {error}"[:300]})
            section.claim(f"finished: {name}", 0, at_least=1)
            continue
        add_counts(section, name, row)
        section.claim(f"said: {name}", float("NOT SAID" not in row["said"]), at_least=1)
    return section


# One hop.


class BacklogCounter(SessionHandler):
    """Counts messages, and reads a lot at once, so that it takes little time from the hop."""

    def __init__(self) -> None:
        self.count = 0

    async def opened(self, session: ClientSession, connack: Connack) -> None:  # noqa: ARG002
        """Subscribe."""
        await session.subscribe(["x"], retained=False)

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """Count a message."""
        self.count += 1
        session.send(acknowledgement(PUBACK, message.number))

    def is_busy(self) -> bool:
        """Always."""
        return True


async def hop_scenario(
    is_native: bool, qos: int, size: int, backlog: int, samples: int = 300
) -> dict[str, Any]:
    """Measure the latency of some messages from broker b0 to b1, then drain a backlog."""
    bridge = (
        "connection native\naddress 127.0.0.1:{b1}\ntopic x out 2\nbridge_protocol_version mqttv50\n"
        "cleansession false\nnotifications false\ntry_private false\nrestart_timeout 0 1\n"
    )
    with tempfile.TemporaryDirectory(prefix="broadloom-live-") as folder:
        lab = LiveLab(Path(folder), ["b0", "b1"], broker_settings={"b0": bridge} if is_native else "")
        load = LiveLoad(lab.ports, ["x"])
        load.quality = qos
        load.payload = b"." * size
        counter = BacklogCounter()
        session = ClientSession("b1", "counter", Endpoint(HOST, lab.ports["b1"], window=5_000), counter)
        try:
            if is_native:
                for broker in lab.brokers.values():
                    broker.start()
            else:
                await lab.start()
            await load.start()
            session.start()
            await session.up.wait()
            await load.subscribe("b1", 0, "x")
            await load.reach_all(60)
            load.latencies.clear()
            for _ in range(samples):
                load.publish("b0", "x")
                await asyncio.sleep(0.01)
            late = 1000 * float(np.median(load.latencies))
            await load.unsubscribe("b1", 0, "x")
            await until(lambda: load.counts()["lost"] == 0, "the last message")
            lab.brokers["b1"].pause(True)
            began = len(load.sent)
            while len(load.sent) < began + backlog:
                while load.publish("b0", "x", len(load.sent) % 3):
                    pass
                await asyncio.sleep(0)
            messages = len(load.sent) - began
            await until(lambda: not any(load._flight.values()), "the last acknowledgement")
            agents = [lab.agents["b0"]] if not is_native else []
            processes = [*lab.brokers.values(), *agents]
            before = [process.cpu_seconds() for process in processes]
            first = counter.count
            start = time.monotonic()
            lab.brokers["b1"].pause(False)
            await until(lambda: counter.count >= first + messages, "the backlog", 300)
            seconds = time.monotonic() - start
            spent = [process.cpu_seconds() - was for process, was in zip(processes, before, strict=True)]
            near, far, own = [1e6 * one / messages for one in (*spent, 0)[:3]]
            return {
                "hop": "native bridge" if is_native else "site agent",
                "QoS": qos,
                "bytes": size,
                "messages per second": messages / seconds,
                "CPU us per message": near + far + own,
                "near broker": near,
                "far broker": far,
                "agent": own,
                "latency p50 ms": late,
                "lost": max(0, first + messages - counter.count),
                "doubled": max(0, counter.count - first - messages) + load.counts()["doubled"],
            }
        finally:
            await session.stop()
            await lab.stop()
            await asyncio.gather(*(client.stop() for client in load.clients.values()))


def best_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The best of each figure."""
    return {
        key: (max if key == "messages per second" else min)(row[key] for row in rows)
        if isinstance(rows[0][key], float)
        else rows[-1][key]
        for key in rows[0]
    }


def hop(quick: bool) -> Section:
    """One hop and a native bridge: rate, CPU and latency."""
    # A bridge of mosquitto 2.0.11 stops after its first window of QoS 2, so there is none to compare with.
    cases = [(1, 100, 60_000), (1, 1_000, 40_000), (1, 10_000, 8_000)]
    if quick:
        cases = [(1, 100, 3_000)]
    section = Section(f"One hop and a native bridge drain a backlog, {version()}")
    for qos, size, messages in cases:
        found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for _ in range(1 if quick else 2):
            for is_native, rows in found.items():
                rows.append(asyncio.run(hop_scenario(is_native, qos, size, messages)))
        native, agent = best_of(found[True]), best_of(found[False])
        section.rows += [native, agent]
        what = f"QoS {qos}, {size:,} bytes"
        section.claim(
            f"rate, relative to the native bridge ({what})",
            agent["messages per second"] / native["messages per second"],
            at_least=0.7,
        )
        section.claim(
            f"CPU of brokers and agent, relative to the native bridge ({what})",
            agent["CPU us per message"] / native["CPU us per message"],
            at_most=2.5,
        )
        section.claim(
            f"added latency, ms, median ({what})",
            agent["latency p50 ms"] - native["latency p50 ms"],
            at_most=1,
        )
    return section


# Costs.


async def start_cost() -> float:
    """CPU seconds of an agent until it runs."""
    with tempfile.TemporaryDirectory(prefix="broadloom-live-") as folder:
        lab = LiveLab(Path(folder), ["b0"])
        try:
            lab.brokers["b0"].start()
            agent = lab.agents["b0"] = lab.new_agent("b0", lab.folder / "state", lab.fleet_path)
            agent.start()
            await until(lambda: "its controller is" in agent.log.read_text(), "the agent runs")
            return agent.cpu_seconds()
        finally:
            lab.controller.process = None
            await lab.stop()


async def group_cost(count: int) -> dict[str, Any]:
    """Seconds for one message per topic over a hop, at first and again."""
    topics = [f"g/{index}" for index in range(count)]
    async with laboratory(2, rate=0, topics=["t/0/0"], share=0) as (lab, load, _):
        load.topics = topics
        for broker in lab.names:
            for first in range(0, count, 100):
                load.filters[broker, 0].update(topics[first : first + 100])
                await load.clients[broker, 0].subscribe(topics[first : first + 100], retained=False)
        every = set(topics)
        load.wanted = lambda _: every  # type: ignore[method-assign]
        await asyncio.sleep(5)
        await lab.settled(seconds=300)
        end = time.monotonic() + 120
        got = load._got["b1", 0]
        while not got and time.monotonic() < end:
            load.publish("b0", topics[0])
            await asyncio.sleep(0.2)
        times = []
        for _ in range(3):
            size = len(got)
            start = time.monotonic()
            for topic in topics:
                while not load.publish("b0", topic):
                    await asyncio.sleep(0)
            await until(lambda size=size: len(got) >= size + count, "all topics", 300)
            times.append(time.monotonic() - start)
        return {"first s": times[0], "again s": min(times[1:])} | {w: load.counts()[w] for w in CLEAN}


async def memory_cost(count: int) -> dict[str, Any]:
    """Memory of an agent whose far broker is stopped, while large messages come."""
    async with laboratory(2, rate=0, topics=["t/0/0"], share=0) as (lab, load, _):
        for broker in lab.names:
            await load.subscribe(broker, 0, "t/0/0")
        await load.reach_all()
        load.payload = bytes(1_000_000)
        lab.brokers["b1"].pause(True)
        sent = 0
        while sent < count:
            sent += load.publish("b0", "t/0/0")
            await asyncio.sleep(0.005)
        await asyncio.sleep(5)
        high = lab.agents["b0"].memory()
        lab.brokers["b1"].pause(False)
        counts = await load.settle(120)
        return {"memory MB": max(high, lab.agents["b0"].memory()) / 1e6} | {w: counts[w] for w in CLEAN}


def costs(quick: bool) -> Section:
    """Start of an agent, many groups, memory."""
    section = Section(f"Costs, {version()}")
    cpu = min(asyncio.run(start_cost()) for _ in range(3))
    section.rows.append({"what": "start of an agent", "CPU s": cpu})
    section.claim("CPU seconds of an agent's start", cpu, at_most=0.5)
    row = asyncio.run(group_cost(500 if quick else 10_000))
    section.rows.append({"what": "10,000 topics over one hop"} | row)
    section.claim("first use of 10,000 topics, relative to later", row["first s"] / row["again s"], at_most=2)
    row = asyncio.run(memory_cost(30 if quick else 400))
    section.rows.append({"what": "far broker stopped, messages of 1 MB"} | row)
    section.claim("memory of an agent, MB", row["memory MB"], at_most=300)
    for word in CLEAN:
        section.claim(f"{word}: messages of 1 MB", row[word], at_most=0)
    return section


# Subscriptions.


async def follow_scenario(samples: int, brokers: int = 10) -> tuple[list[float], dict[str, Any]]:
    """Seconds from a client's subscription until it has a message of every other broker."""
    rng = random.Random(3)
    times = []
    fresh = [f"t/{GROUPS}/{index}" for index in range(20)]
    async with laboratory(brokers, rate=60, topics=[*TOPICS, *fresh], share=0.25) as (lab, load, _):
        for index in range(samples):
            topic = fresh[index % len(fresh)]
            name = rng.choice(lab.names)
            others = [other for other in lab.names if other != name]
            if index < len(fresh):
                for other in others:
                    await load.subscribe(other, 0, topic)
            else:
                name = rng.choice([one for one in lab.names if topic in load.filters[one, 0]])
                others = [one for one in lab.names if one != name]
                await load.unsubscribe(name, 0, topic)
                for other in others:
                    if topic not in load.filters[other, 0]:
                        await load.subscribe(other, 0, topic)
            await lab.settled()
            await asyncio.sleep(1.0)
            start = time.monotonic()
            await load.subscribe(name, 0, topic)
            have: set[str] = set()
            while len(have) < len(others) and time.monotonic() < start + 30:
                for other in others:
                    load.publish(other, topic, 1)
                await asyncio.sleep(0.02)
                have = {
                    other
                    for other in others
                    if (s := load._streams.get(((name, 0), other, topic))) and s.first
                }
            times.append(time.monotonic() - start)
        return times, await verdict(lab, load)


def follow(quick: bool) -> Section:
    """The time from a subscription to messages of all other brokers."""
    section = Section(f"From a new subscription to messages of all others, ten brokers, {version()}")
    times, counts = asyncio.run(follow_scenario(3 if quick else 60))
    quantiles = {f"p{int(q * 100)} s": float(np.quantile(times, q)) for q in (0.5, 0.9, 0.99)}
    add_counts(section, "follow", {"subscriptions": len(times)} | quantiles | counts)
    section.claim("p99, seconds", quantiles["p99 s"], at_most=2)
    return section


# Scale.


async def soak_scenario(brokers: int, seconds: float) -> dict[str, Any]:
    """Many brokers with their agents, load and changes."""
    async with laboratory(brokers, rate=60, share=0.15) as (lab, load, churn):
        async with changes(churn, 2.0):
            await asyncio.sleep(seconds)
        memory = max(agent.memory() for agent in lab.agents.values()) / 1e6
        row = await verdict_after(lab, load, churn)
        quantiles = {f"p{int(q * 100)} ms": 1000 * float(np.quantile(load.latencies, q)) for q in (0.5, 0.99)}
        return {"brokers": brokers, "seconds": seconds, "agent MB": memory} | quantiles | row


def soak(quick: bool) -> Section:
    """Forty brokers, ten minutes."""
    section = Section(f"Soak with changes under load, {version()}")
    add_counts(section, "soak", asyncio.run(soak_scenario(*((5, 20.0) if quick else (40, 600.0)))))
    return section


SECTIONS = {
    "kills": kills,
    "faults": faults,
    "damage": damage,
    "outages": outages,
    "equal": equal,
    "rivals": rivals,
    "hop": hop,
    "costs": costs,
    "follow": follow,
    "soak": soak,
}

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    run("live", SECTIONS)
