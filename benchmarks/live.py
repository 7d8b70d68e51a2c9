"""Benchmark of the link agent on real mosquitto: changes under load, random kills, and one link's rate."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import broadloom as bl
from _common import Section, run
from broadloom.agents.links.link_agent import LinkAgent
from broadloom.agents.links.link_service import LinkRun
from broadloom.agents.links.plan_sources import EventFile
from broadloom.deployment import WiredLink, Wiring
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, MosquittoLab, killed_with_parent
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import (
    ID_PROPERTY,
    PUBACK,
    PUBLISH,
    SUBACK,
    PacketReader,
    acknowledgement,
    connect,
    publish,
    read_publish,
    subscribe,
)
from deploy import version

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from mqtt_load import Load

BROKERS, TOPICS = 10, 30
RATE = 400.0
CLEAN = ("lost", "doubled")


class Churn:
    """Changes of brokers (leave, return, other topics), written to a file of events."""

    def __init__(self, interest: bl.Interest, events: Path, load: Load, seed: int) -> None:
        self._events = events
        self._load = load
        self._rng = random.Random(seed)
        self._seq = 0
        self._topics = interest.topic_ids
        self._gone: dict[str, list[str]] = {}

    async def change(self, done: Callable[[], Any]) -> tuple[str, float]:
        """Write one event; returns its kind, and the seconds until all links are changed."""
        wants = self._load.wants
        broker = self._rng.choice(sorted(wants))
        others = [topic for topic in self._topics if topic not in wants[broker]]
        if broker in self._gone:
            return await self._gain("join", broker, self._gone.pop(broker), done)
        if len(self._gone) < 3 and self._rng.random() < 0.3:
            self._gone[broker] = sorted(wants[broker])
            return await self._lose("leave", broker, None, done)
        if len(wants[broker]) > 3 and (not others or self._rng.random() < 0.5):
            dropped = self._rng.sample(sorted(wants[broker]), 2)
            return await self._lose("unsubscribe", broker, dropped, done)
        return await self._gain("subscribe", broker, self._rng.sample(others, min(2, len(others))), done)

    async def _lose(
        self, kind: str, broker: str, topics: list[str] | None, done: Callable[[], Any]
    ) -> tuple[str, float]:
        await self._load.move_off(broker, topics)  # clients leave first
        return await self._report(kind, broker, topics, done)

    async def _gain(
        self, kind: str, broker: str, topics: list[str], done: Callable[[], Any]
    ) -> tuple[str, float]:
        change = await self._report(kind, broker, topics, done)
        await self._load.move_to(broker, topics)
        return change

    async def _report(
        self, kind: str, broker: str, topics: list[str] | None, done: Callable[[], Any]
    ) -> tuple[str, float]:
        self._seq += 1
        began = time.monotonic()
        with self._events.open("a") as file:
            file.write(json.dumps({"seq": self._seq, "kind": kind, "node": broker, "topics": topics}) + "\n")
        await done()
        return kind, time.monotonic() - began


def instance(seed: int = 0) -> tuple[bl.Interest, bl.Plan, dict[str, list[str]]]:
    """Brokers, their plan, and the topics of each."""
    interest = bl.workload.interest(nodes=BROKERS, topics=TOPICS, sizes=(5, 10), seed=seed)
    wants = {
        name: [interest.topic_ids[topic] for topic in interest.topics_of(node)]
        for node, name in enumerate(interest.node_ids)
    }
    return interest, bl.link(interest, algorithm="grmaw"), wants


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


async def soak_scenario(
    lab: MosquittoLab, folder: Path, seconds: float
) -> tuple[dict[str, int], list[tuple[str, float]], LinkAgent]:
    """Run load and changes for some seconds; returns the counts and the time of each change."""
    interest, plan, wants = instance()
    endpoints = {broker: Endpoint(HOST, port) for broker, port in lab.ports.items()}
    agent, load = LinkAgent(endpoints.__getitem__, folder / "state"), Load(endpoints, wants)
    follower = LinkRun(agent, EventFile(plan, folder / "events.jsonl"))
    churn, taken = Churn(interest, folder / "events.jsonl", load, 0), []
    await agent.start()
    following = asyncio.create_task(follower.follow())

    async def done() -> None:
        expected = len(taken) + 2  # with the initial plan
        while follower.plans < expected or not all(group.settled for group in agent.groups.values()):
            await asyncio.sleep(0.002)

    while not agent.counts["changes"]:
        await asyncio.sleep(0.01)
    await load.start()
    load.run(RATE)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0.3)
        taken.append(await churn.change(done))
    await load.pause()
    counts = await load.settle(30)
    follower.stop()
    await following
    await agent.stop()
    await load.stop()
    return counts, taken, agent


def soak(quick: bool) -> Section:
    """Changes of all kinds under load, for several minutes."""
    seconds = 10.0 if quick else 300.0
    title = f"{BROKERS} brokers, {TOPICS} topics, {RATE:g} messages a second, changes for {seconds:g} s"
    section = Section(f"{title}, {version()}")
    with MosquittoLab(Wiring(instance()[0].node_ids, {}, {}, ())) as lab, scratch() as folder:
        counts, taken, agent = asyncio.run(soak_scenario(lab, folder, seconds))
    for kind in (*sorted({kind for kind, _ in taken}), "all"):
        times = [took for what, took in taken if kind in (what, "all")]
        row = {"change": kind, "changes": len(times)}
        spread = {"p50 s": np.quantile(times, 0.5), "p99 s": np.quantile(times, 0.99), "max s": max(times)}
        section.rows.append(row | {name: float(value) for name, value in spread.items()})
    section.rows[-1] |= counts | {"guarded": agent.guarded.total()}
    for name in CLEAN:
        section.claim(f"{name} in {len(taken):,} changes", counts[name], at_most=0)
    section.claim("changes", len(taken), at_least=200)
    section.claim("p99 seconds from event to changed links", section.rows[-1]["p99 s"], at_most=2)
    return section


async def kill_scenario(lab: MosquittoLab, folder: Path, kills: int) -> tuple[dict[str, int], int]:
    """Start the agent as a command, and kill it repeatedly while links change."""
    interest, plan, wants = instance()
    plan.save(folder / "plan")
    endpoints = {broker: Endpoint(HOST, port) for broker, port in lab.ports.items()}
    load, rng = Load(endpoints, wants), random.Random(1)
    events = folder / "events.jsonl"
    churn, changes = Churn(interest, events, load, 1), 0

    def begin() -> subprocess.Popen[bytes]:
        command = [sys.executable, __file__, "agent", str(folder), json.dumps(lab.ports)]
        return subprocess.Popen([*killed_with_parent(), *command])

    async def up() -> None:
        while not (folder / "up").exists():
            await asyncio.sleep(0.01)

    agent = begin()
    await up()
    await load.start()
    load.run(RATE / 2)
    for _ in range(kills):
        for _ in range(3):  # joins and subscriptions count only once a running agent has made them
            await churn.change(lambda: settled(folder, events))
            changes += 1
        task = asyncio.create_task(churn.change(lambda: settled(folder, events)))
        await asyncio.sleep(rng.uniform(0, 0.25))
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        (folder / "up").unlink(missing_ok=True)
        agent = begin()
        await up()
        await task
        changes += 1
    await load.pause()
    counts = await load.settle(30)
    agent.send_signal(signal.SIGTERM)
    agent.wait()
    await load.stop()
    return counts, changes


async def settled(folder: Path, events: Path) -> None:
    """Wait until the agent has reported all events of the file as done."""
    lines = events.read_text().count("\n")  # the first seq is 1
    while True:
        try:
            done = int((folder / "up").read_text() or -1)
        except (FileNotFoundError, ValueError):
            done = -1
        if done >= lines:
            return
        await asyncio.sleep(0.005)


class EventRun(LinkRun):
    """A run that records which event its links follow."""

    last = -1

    async def _follow_plan(self, plan: bl.Plan) -> None:
        await super()._follow_plan(plan)
        self.last = self._source.last  # no events are read meanwhile


def agent_process(folder: Path, ports: dict[str, int]) -> None:
    """The agent of `kills`, which writes the number of events it has done."""

    async def scenario() -> None:
        source = EventFile(bl.Plan.load(folder / "plan"), folder / "events.jsonl")
        agent = LinkAgent(lambda broker: Endpoint(HOST, ports[broker]), folder / "state")
        follower, reported = EventRun(agent, source), 0
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, follower.stop)
        await agent.start()
        following = asyncio.create_task(follower.follow())
        while not following.done():
            if follower.plans > reported and all(group.settled for group in agent.groups.values()):
                (folder / "up.new").write_text(str(follower.last))
                (folder / "up.new").rename(folder / "up")
                reported = follower.plans
            await asyncio.sleep(0.005)
        await following
        await agent.stop()

    asyncio.run(scenario())


def kills(quick: bool) -> Section:
    """The agent is killed at random moments, during changes and between them."""
    count = 2 if quick else 25
    section = Section(f"The agent killed (SIGKILL) while links change under load, {version()}")
    with MosquittoLab(Wiring(instance()[0].node_ids, {}, {}, ())) as lab, scratch() as folder:
        counts, changes = asyncio.run(kill_scenario(lab, folder, count))
    section.rows.append({"kills": count, "changes": changes} | counts)
    for name in CLEAN:
        section.claim(f"{name} in {count} kills", counts[name], at_most=0)
    return section


async def measured_rate(lab: MosquittoLab, messages: int) -> float:
    """Messages per second from a client at one broker to a client at the other, over whatever links them."""
    out, reader = PacketReader(), PacketReader()
    source, sink = await asyncio.gather(*(_client(lab.ports[broker], broker) for broker in "ab"))
    sink[1].write(subscribe(1, ["x"], retained=False))
    while not any(kind == SUBACK for kind, _, _ in reader.feed(await sink[0].read(1 << 16))):
        pass
    began, got = time.monotonic(), 0

    async def publish_all() -> None:
        sent = acked = 0
        while acked < messages:
            while sent < messages and sent - acked < 100:
                sent += 1
                source[1].write(publish("x", b"." * 100, sent % 65_000 + 1, [(ID_PROPERTY, b"%d" % sent)]))
            acked += sum(kind == PUBACK for kind, _, _ in out.feed(await source[0].read(1 << 16)))

    async def take_all() -> None:
        nonlocal got
        while got < messages:
            for kind, raw, head in reader.feed(await sink[0].read(1 << 16)):
                if kind == PUBLISH:
                    got += 1
                    sink[1].write(acknowledgement(PUBACK, read_publish(raw, head).number))

    await asyncio.gather(publish_all(), take_all())
    seconds = time.monotonic() - began
    for _, writer in (source, sink):
        writer.close()
    return messages / seconds


async def _client(port: int, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(connect(f"rate-{name}", True, 60, 0, 500))
    await reader.read(1 << 16)
    return reader, writer


def native(messages: int) -> float:
    """The rate over a native bridge of mosquitto."""
    x = ("x",)
    wiring = Wiring(("a", "b"), {"a": x, "b": x}, {}, (WiredLink("a", "b", x, x),))
    with MosquittoLab(wiring) as lab:
        lab.wait_until_linked(wiring)
        return asyncio.run(measured_rate(lab, messages))


def linked(messages: int, start: Callable[[dict[str, int]], subprocess.Popen[bytes]]) -> float:
    """The rate over a process that links two brokers."""
    with MosquittoLab(Wiring(("a", "b"), {}, {}, ())) as lab:
        process = start(lab.ports)
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it is up
            return asyncio.run(measured_rate(lab, messages))
        finally:
            process.kill()
            process.wait()


def start_process(kind: str) -> Callable[[dict[str, int]], subprocess.Popen[bytes]]:
    """Start a process of this file that links two brokers."""
    return lambda ports: subprocess.Popen(
        [*killed_with_parent(), sys.executable, __file__, kind, json.dumps(ports)], stdout=subprocess.PIPE
    )


def link_process(ports: dict[str, int]) -> None:
    """The agent with one link, in a process of its own."""

    async def scenario(folder: Path) -> None:
        agent = LinkAgent(lambda broker: Endpoint(HOST, ports[broker]), folder)
        await agent.start()
        agent.retarget({("x",): frozenset({("a", "b"), ("b", "a")})})
        await agent.settled()
        print("up", flush=True)
        await asyncio.Event().wait()

    with scratch() as folder:
        asyncio.run(scenario(folder))


def paho_process(ports: dict[str, int]) -> None:
    """A link made with paho: QoS 1 in both directions, acknowledged after the far broker."""
    import paho.mqtt.client as paho

    clients, waiting = {}, {}
    for broker, port in ports.items():
        client = paho.Client(paho.CallbackAPIVersion.VERSION2, "paho", protocol=paho.MQTTv5, manual_ack=True)
        client.max_inflight_messages_set(200)
        client.connect(HOST, port)
        clients[broker] = client

    def forward(_client: Any, _data: Any, message: Any) -> None:
        done = clients["b"].publish(message.topic, message.payload, 1, properties=message.properties)
        waiting[done.mid] = message.mid

    clients["a"].on_message = forward
    clients["b"].on_publish = lambda _c, _d, mid, *_: clients["a"].ack(waiting.pop(mid), 1)
    for client in clients.values():
        client.loop_start()
    subscribed = threading.Event()
    clients["a"].on_subscribe = lambda *_: subscribed.set()
    clients["a"].subscribe("x", 1)
    subscribed.wait()
    print("up", flush=True)
    signal.pause()


def rate(quick: bool) -> Section:
    """The rate of one link: the agent's, mosquitto's own bridge, and one made with paho."""
    messages, rounds = (2_000, 1) if quick else (50_000, 5)
    links = {
        "native bridge": native,
        "broadloom link": lambda count: linked(count, start_process("link")),
        "paho-mqtt link": lambda count: linked(count // 5, start_process("paho")),
    }
    section = Section(f"One link, QoS 1, 100 bytes, {messages:,} messages, best of {rounds}, {version()}")
    best = dict.fromkeys(links, 0.0)
    for _ in range(rounds):
        for name, measure in links.items():
            best[name] = max(best[name], measure(messages))
    for name, value in best.items():
        share = value / best["native bridge"]
        section.rows.append({"link": name, "messages a second": value, "of the native bridge": share})
    section.claim("rate beside the native bridge", section.rows[1]["of the native bridge"], at_least=1 / 3)
    return section


SECTIONS = {"soak": soak, "kills": kills, "rate": rate}
PROCESSES = {"link": link_process, "paho": paho_process}

if __name__ == "__main__":
    if sys.argv[1:2] == ["agent"]:
        agent_process(Path(sys.argv[2]), json.loads(sys.argv[3]))
    elif sys.argv[1:2] and sys.argv[1] in PROCESSES:
        PROCESSES[sys.argv[1]](json.loads(sys.argv[2]))
    else:
        run("live", SECTIONS)
