"""Attacks on a running fleet: what somebody does, while other clients publish and count what arrives.

`ATTACKS` lists them. The tests run each in its short form and check `LIMITS`;
`benchmarks/attacks.py` runs the long form and writes the table of the documentation.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from broadloom.agents.links.hop_routing import CLOSED, MARKER
from broadloom.agents.links.site_agent import ANSWER, ASK, PRESENCE
from broadloom.agents.links.site_hop import hop_client
from broadloom.deployment.rehearsal.mosquitto_lab import HOST
from broadloom.mqtt.client_session import ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import FAILED, PUBACK, PUBREC, PUBREL, Publish, acknowledgement, publish
from broadloom.mqtt.reserved_topics import ROUTE_STAMP
from live_lab import LiveLab, LiveLoad, until

BROKERS = ("rome", "oslo", "lima", "bonn")
TOPICS = ["t/0/0", "t/0/1", "t/1/0"]  # of the other clients
RATE = 40.0  # of their messages, per second
LARGEST = 50_000  # bytes of a packet at oslo
SETTINGS = {
    "oslo": f"max_packet_size {LARGEST}\nretain_available false\n",
    "bonn": "max_qos 1\n",  # so messages can double there when a connection is lost
}
LIVE = "hop_bytes = 2_000_000\nagent_bytes = 8_000_000\n"
LIMITS = {
    "lost": 0,
    "doubled": 0,
    "leaked": 0,
    "tracebacks": 0,
    "ended": 0,
    "memory MB": 40.0,  # by which agents and controller grow, together
    "log kB": 64.0,  # that they write
}


class Mallory(SessionHandler):
    """A client that wishes others ill: it sends what it likes and keeps what arrives."""

    def __init__(self, lab: LiveLab, broker: str, name: str = "mallory") -> None:
        self.heard: list[Publish] = []
        self.session = ClientSession(
            broker, name, Endpoint(HOST, lab.ports[broker]), self, kept=False, fresh=False
        )
        self._number = 0
        self._unacknowledged: set[int] = set()

    async def __aenter__(self) -> Mallory:
        self.session.start()
        await self.session.up.wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.stop(forget=True)

    def arrived(self, session: ClientSession, message: Publish) -> None:
        """Keep and acknowledge a message."""
        self.heard.append(message)
        if message.number:
            session.send(acknowledgement(PUBACK, message.number))

    def acknowledged(self, session: ClientSession, kind: int, number: int, reason: int) -> None:
        """Complete QoS 2."""
        if kind == PUBREC and reason < FAILED:
            session.send(acknowledgement(PUBREL, number))
        else:
            self._unacknowledged.discard(number)

    def closed(self, session: ClientSession) -> None:  # noqa: ARG002
        """What the broker has not acknowledged is not sent again."""
        self._unacknowledged.clear()

    async def send(self, topic: str, payload: bytes, quality: int = 1, **how: Any) -> None:
        """Send a message, with at most ten unacknowledged: of more, a broker ends the connection."""
        await self.session.up.wait()
        while len(self._unacknowledged) >= 10:
            await asyncio.sleep(0.001)
        self._number = self._number % 65_000 + 1
        if quality == 2:
            packet = publish(topic, payload, self._number, **how)
            packet = b"%c%b" % (packet[0] & ~6 | 4, packet[1:])
        else:
            packet = publish(topic, payload, self._number if quality else 0, **how)
        if quality:
            self._unacknowledged.add(self._number)
        self.session.send(packet)
        if self._number % 50 == 0:
            await asyncio.sleep(0)


@asynccontextmanager
async def accomplices(lab: LiveLab, text: str = "x/#") -> AsyncIterator[tuple[Mallory, Mallory]]:
    """Mallory at Rome, and one at Oslo who subscribes, so that links carry what Mallory sends."""
    async with Mallory(lab, "rome") as mallory, Mallory(lab, "oslo", "trudy") as trudy:
        await trudy.session.subscribe([text], retained=False)
        probe = text.replace("#", "probe")
        while not any(message.topic == probe for message in trudy.heard):
            await mallory.send(probe, b"?")
            await asyncio.sleep(0.1)
        yield mallory, trudy


# A client with a login.


async def flood_of_qos_0(lab: LiveLab, scale: int) -> int:
    """Messages of 1 kB at QoS 0, as fast as the broker takes them."""
    async with accomplices(lab) as (mallory, _):
        for _ in range(2_000 * scale):
            await mallory.send("x/0", b"0" * 1_000, quality=0)
        await asyncio.sleep(0.5)
    return 2_000 * scale


async def flood_of_qos_1(lab: LiveLab, scale: int) -> int:
    """Messages of 10 kB at QoS 1, 20 MB times the scale in all."""
    async with accomplices(lab) as (mallory, trudy):
        for number in range(500 * scale):
            await mallory.send("x/1", b"%09d" % number + b"1" * 10_000)
            if number % 50 == 49:
                await until(lambda number=number: len(trudy.heard) > number - 200, "the flood flows")
    return 500 * scale


async def oversized(lab: LiveLab, scale: int) -> int:
    """Messages of 1 MB, of which the broker at the other end takes 50 kB."""
    async with accomplices(lab) as (mallory, trudy):
        for _ in range(10 * scale):
            await mallory.send("x/2", b"2" * 1_000_000)
        await mallory.send("x/last", b"")
        await until(lambda: any(one.topic == "x/last" for one in trudy.heard), "messages behind them arrive")
        assert not any(one.topic == "x/2" for one in trudy.heard)
    return 10 * scale


async def retained_and_qos_2(lab: LiveLab, scale: int) -> int:
    """Retained messages for a broker that keeps none, QoS 2 for one that has QoS 1 only."""
    async with accomplices(lab) as (mallory, trudy), Mallory(lab, "bonn", "oscar") as oscar:
        await oscar.session.subscribe(["x/#"], retained=False)
        for number in range(100 * scale):
            await mallory.send(f"x/3/{number}", b"3", quality=2, retain=True)
        await mallory.send("x/last", b"")
        await until(lambda: sum(one.topic[:4] == "x/3/" for one in trudy.heard) >= 100 * scale, "they arrive")
        for number in range(100 * scale):  # away with them
            await mallory.send(f"x/3/{number}", b"", quality=1, retain=True)
    return 100 * scale


async def forged_stamps(lab: LiveLab, scale: int) -> int:
    """Stamps that Mallory made up, and stamps of messages that were read at the other end."""
    rng = random.Random(4)
    count = 200 * scale
    async with accomplices(lab) as (mallory, trudy):
        await trudy.session.subscribe(["t/#"], retained=False)
        await until(lambda: any(one.stamp for one in trudy.heard), "a stamp is read")
        for number in range(count):
            copied = [one.stamp for one in trudy.heard[-20:] if one.stamp]
            stamp = rng.choice(copied) if copied and number % 2 else b"%x" % rng.getrandbits(400)
            await mallory.send("x/4", b"%d" % number, properties=[(ROUTE_STAMP.encode(), stamp)])
        await mallory.send("x/last", b"")
        await until(lambda: any(one.topic == "x/last" for one in trudy.heard), "messages behind them arrive")
        got = [message.payload() for message in trudy.heard if message.topic == "x/4"]
        assert len(got) == len(set(got)), "a copied stamp doubles a message"
    return count


async def many_subscriptions(lab: LiveLab, scale: int) -> int:
    """Thousands of filters of one client, which then leaves."""
    async with Mallory(lab, "rome") as mallory:
        await mallory.session.subscribe((f"y/{number}" for number in range(500 * scale)), retained=False)
    return 500 * scale


async def odd_names(lab: LiveLab, scale: int) -> int:
    """Clients and filters whose names mean something to terminals, shells, logs and markup."""
    names = [
        "$(id)",
        "a; rm -rf /",
        "'\"`",
        "<img src=x>",
        "\u202egnp.exe",
        "{{7*7}}",
        "%s%n",
        "../../x",
        "1 z/#",
    ]
    for name in names[: 3 * scale]:
        async with Mallory(lab, "rome", name) as mallory:
            topic = f"z/{name.replace('#', '')}/"
            await mallory.session.subscribe([topic], retained=False)
            await mallory.send(topic, name.encode())
    return len(names[: 3 * scale])


async def reserved_topics(lab: LiveLab, scale: int) -> int:
    """Messages on topics below `$`, retained and not, which links never carry."""
    count = 300 * scale
    async with accomplices(lab) as (mallory, trudy):
        with suppress(Exception):
            await trudy.session.subscribe(["$evil/#", "broadloom/#"], retained=False)
        for number in range(count):
            topic = ("$evil/a", "broadloom/to/a/b", "$share/a/b")[number % 2]
            await mallory.send(topic, b"{}", retain=number % 4 > 1)
        await mallory.send("x/last", b"")
        await until(lambda: any(one.topic == "x/last" for one in trudy.heard), "messages behind them arrive")
        assert not any(one.topic[0] == "$" or one.topic.startswith("broadloom/") for one in trudy.heard)
        for topic in ("$evil/a", "broadloom/to/a/b"):
            await mallory.send(topic, b"", retain=True)
    return count


# A client with wide rights.


async def forged_control_messages(lab: LiveLab, scale: int) -> int:
    """Markers and closed routes that Mallory made up, and markers that were read and are sent again."""
    rng = random.Random(5)
    count = 200 * scale
    async with Mallory(lab, "rome") as mallory:
        await mallory.session.subscribe([MARKER, CLOSED], retained=False)
        async with Mallory(lab, "lima", "trudy") as trudy:
            await trudy.session.subscribe(["w/1"], retained=False)  # a change of trees, with markers
        await until(lambda: bool(mallory.heard), "a marker is read")
        before = lab.counts(await lab.settled())["forged"]
        for number in range(count):
            text = json.dumps({"broker": "rome", "version": 2**62 + number, "rounds": {}}).encode()
            heard = mallory.heard[number % len(mallory.heard)].payload()
            payload = (rng.randbytes(32) + text, b"[" * 50_000, heard, b"")[number % 4]
            await mallory.send((MARKER, CLOSED)[number // 4 % 2], payload)
        found = [0]

        async def counted() -> bool:
            found[0] = lab.counts(await lab.status_soon() or {"brokers": {}})["forged"] - before
            return found[0] >= count // 2

        for _ in range(600):
            if await counted():
                break
            await asyncio.sleep(0.1)
        assert found[0] >= count // 2, f"{found[0]} of {count} were counted"
    return count


async def copied_presence(lab: LiveLab, scale: int) -> int:
    """What another broker's agent says of itself, as if it served this one, whose agent starts again."""
    agent = lab.agents["rome"]
    async with (
        Mallory(lab, "rome") as mallory,
        Mallory(lab, "rome", "oscar") as oscar,
        Mallory(lab, "lima", "trudy") as trudy,
    ):
        await trudy.session.subscribe([PRESENCE], retained=True)
        await until(lambda: bool(trudy.heard), "the presence of an agent is read")
        copied = trudy.heard[-1].payload()
        await oscar.session.subscribe([PRESENCE, ASK], retained=False)
        for _ in range(scale):
            agent.end(signal.SIGKILL)
            await mallory.send(PRESENCE, copied, retain=True)
            await until(lambda: any(one.payload() == copied for one in oscar.heard), "it is in place")
            oscar.heard.clear()
            agent.start()
            while not any(one.topic == PRESENCE for one in oscar.heard):
                if oscar.heard:
                    await mallory.send(ANSWER, copied)
                await asyncio.sleep(0.02)
                assert agent.is_running(), "an agent believes that another one serves its broker"
    return scale


async def stolen_sessions(lab: LiveLab, scale: int) -> int:
    """Connections under the client id of a hop, at one of its ends, until the agent says so."""
    status = await lab.settled()
    hops = [(near, far) for near, broker in status["brokers"].items() for far in broker["hops"] or {}]
    hops = [hop for hop in hops if "bonn" not in hop]
    for number in range(scale):
        hop = hops[number // 2 % len(hops)]
        log = lab.agents[hop[0]].log
        before = log.stat().st_size
        broker = hop[number % 2]
        thief = ClientSession(broker, hop_client(hop), Endpoint(HOST, lab.ports[broker]), SessionHandler())
        thief.start()
        await until(
            lambda log=log, before=before: b"use this client id" in log.read_bytes()[before:], "a line"
        )
        await thief.stop()
    return scale


# A hostile broker, or somebody between.


async def malformed_packets(lab: LiveLab, scale: int) -> int:
    """Bytes that are not MQTT, on all connections of agents to one broker."""
    rng = random.Random(6)
    bad = [
        b"\xff" * 40,  # a packet of a kind that does not exist, with an endless length
        b"\x30\xff\xff\xff\x7f" + b"\0" * 64,  # 256 MB are announced
        b"\x32\x07\x00\x20\xff\xff\xff\xff\xff",  # a topic that is longer than its packet
        b"\x40\x02\x00\x00",  # an acknowledgement of nothing
        b"\x20\x03\x00\x00\x00",  # a second CONNACK
        b"\x32\x0b\x00\x01a\x00\x01\x05" + b"\x26" * 5,  # properties that end in their middle
    ]
    times = 6 * scale
    for number in range(times):
        for (_, far), proxy in lab.proxies.items():
            if far == "lima":
                proxy.inject(bad[number] if number < len(bad) else rng.randbytes(rng.randrange(1, 2_000)))
        await asyncio.sleep(0.2)
    return times


async def silence(lab: LiveLab, scale: int) -> int:
    """A broker that takes everything and answers nothing, on connections of all agents."""
    proxies = [proxy for (_, far), proxy in lab.proxies.items() if far == "lima"]
    for proxy in proxies:
        proxy.silence(True)
    await asyncio.sleep(3.0 * scale)
    for proxy in proxies:
        proxy.silence(False)
    return len(proxies)


async def resets(lab: LiveLab, scale: int) -> int:
    """Connections of agents that end in the middle of packets."""
    rng = random.Random(7)
    times = 10 * scale
    proxies = [proxy for (_, far), proxy in lab.proxies.items() if far != "bonn"]
    for _ in range(times):
        rng.choice(proxies).cut_after(rng.randrange(1, 200))
        await asyncio.sleep(0.1)
    return times


# A local user, or somebody who reaches the controller.


async def request(lab: LiveLab, data: bytes, seconds: float = 10.0) -> bytes:
    """The first bytes of the controller's answer to some bytes; empty: it closes the connection."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection(HOST, lab.controller_port)
            try:
                writer.write(data)
                return await reader.read(12)
            finally:
                writer.close()
    return b""


async def unsigned_requests(lab: LiveLab, scale: int) -> int:
    """Orders without a signature, with a wrong one, with deep JSON, with too many bytes."""
    deep = b"[" * 100_000
    bodies = [b"{}", b"[]", b"null", deep, b'{"a":' * 20_000, b"\xff\xfe", b'{"orders": {}}']
    paths = ["/v1/status", "/v1/reports/rome", "/v1/sessions", "/v1/adopt", "/v1/down", "/v1/nothing", "/%00"]
    answers = set()
    for number in range(70 * scale):
        path = paths[number % len(paths)]
        body = bodies[number // len(paths) % len(bodies)]
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: Bearer nonsense\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        answers.add(await request(lab, head.encode() + body))
    assert all(answer == b"" or answer[9:10] == b"4" for answer in answers), answers
    return 70 * scale


async def slow_connections(lab: LiveLab, scale: int) -> int:
    """Connections to the controller that say half a request, and no more."""
    held = []
    for _ in range(150 * scale):
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(HOST, lab.controller_port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: ")
            held.append((reader, writer))
    status = await lab.status_soon()
    for _, writer in held:
        writer.close()
    assert status is not None, "the operator gets no answer"
    return len(held)


async def files_read(lab: LiveLab, scale: int) -> int:
    """Every file of the state of controller and agents, read by another user."""
    del scale
    state = lab.folder / "state"
    tried = [state, *state.rglob("*"), lab.folder / "key"]
    for path in tried:
        parents = [one for one in path.parents if one.is_relative_to(state)]
        hidden = [one for one in (path, *parents) if one.is_dir() and not one.stat().st_mode & 0o077]
        assert hidden or not path.stat().st_mode & 0o077, f"others can read {path.relative_to(lab.folder)}"
    assert len(tried) > 2 * len(lab.agents)
    await asyncio.sleep(0.5)  # the other clients publish
    return len(tried)


async def files_changed(lab: LiveLab, scale: int) -> int:
    """A bit of an agent's orders, which is flipped while the agent is down; then they are restored."""
    rng = random.Random(8)
    for number in range(scale):
        name = lab.names[number % 3]  # not bonn, where messages in flight can double
        agent = lab.agents[name]
        agent.end(signal.SIGTERM)
        path = lab.folder / "state" / "agents" / name / "orders.json"
        whole = path.read_bytes()
        changed = bytearray(whole)
        changed[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        logged = agent.log.stat().st_size
        agent.start()
        await until(lambda agent=agent: not agent.is_running(), "the agent refuses its orders")
        said = agent.log.read_bytes()[logged:]
        assert b"is damaged" in said, said
        path.write_bytes(whole)
        agent.start()
        await lab.settled(watched=True)
    return scale


class Attack(NamedTuple):
    """An attack.

    Attributes:
        attacker: who attacks.
        name: what it does.
        run: the attack; it takes the laboratory and a scale, and returns how often it attacked.
        limits: those that differ from `LIMITS`.
    """

    attacker: str
    name: str
    run: Callable[[LiveLab, int], Awaitable[int]]
    limits: Mapping[str, float] = {}


# As the threat model names them.
LOGIN, RIGHTS = "a client with a login at one broker", "a client with wide rights"
BROKER, NAMES = "a hostile broker, or somebody on the network", "somebody who chooses names"
LOCAL = "a local user"
ATTACKS = [
    Attack(LOGIN, "flood at QoS 0", flood_of_qos_0),
    Attack(LOGIN, "flood at QoS 1", flood_of_qos_1),
    Attack(LOGIN, "messages that are too large for the next broker", oversized),
    Attack(LOGIN, "retained and QoS 2, to brokers without them", retained_and_qos_2),
    Attack(LOGIN, "stamps made up or copied", forged_stamps),
    Attack(LOGIN, "many subscriptions", many_subscriptions),
    Attack(NAMES, "hostile names of clients and filters", odd_names),
    Attack(LOGIN, "reserved topics", reserved_topics),
    Attack(RIGHTS, "control messages forged or repeated", forged_control_messages),
    Attack(RIGHTS, "presence copied from another agent", copied_presence),
    Attack(RIGHTS, "sessions of agents taken over", stolen_sessions),
    Attack(BROKER, "malformed packets", malformed_packets),
    Attack(BROKER, "no answers", silence),
    Attack(BROKER, "connections that end within a packet", resets),
    Attack(LOCAL, "requests to the controller, unsigned, deep or too large", unsigned_requests),
    Attack(LOCAL, "slow and many connections to the controller", slow_connections),
    Attack(LOCAL, "files of agents and controller read", files_read),
    Attack(LOCAL, "files of agents changed while they are down", files_changed),
]


class AttackLab:
    """Brokers, agents, a controller, and clients that count, for one attack after the other.

    Args:
        folder: the folder of all state and logs.
    """

    def __init__(self, folder: Path) -> None:
        self.lab = LiveLab(folder, BROKERS, live=LIVE, proxies=True, broker_settings=SETTINGS)
        self.load = LiveLoad(self.lab.ports, TOPICS)
        self.load.quality = 1

    async def start(self) -> None:
        """Start everything."""
        await self.lab.start()
        await self.load.start()
        for broker in BROKERS:
            await self.load.subscribe(broker, 0, "t/0/0")
            await self.load.subscribe(broker, 1, "t/#")
        await self.load.reach_all()

    async def stop(self) -> None:
        """End everything."""
        await self.load.pause()
        await self.lab.stop()
        await asyncio.gather(*(client.stop() for client in self.load.clients.values()))

    def _memory(self) -> float:
        processes = (self.lab.controller, *self.lab.agents.values())
        return sum(process.memory() for process in processes if process.is_running()) / 1e6

    def _log_bytes(self) -> int:
        processes = (self.lab.controller, *self.lab.agents.values())
        return sum(process.log.stat().st_size for process in processes)

    async def attack(self, attack: Attack, scale: int, least: int = 1) -> dict[str, Any]:
        """Attack while clients publish; returns what happened to them and to the processes.

        Args:
            attack: the attack.
            scale: a factor of how often it is tried.
            least: it is repeated until clients have published so many messages.
        """
        lab, load = self.lab, self.load
        memory, logged, before = self._memory(), self._log_bytes(), load.counts()
        load.run(RATE)
        times = 0
        while not times or len(load.sent) - before["published"] < least:
            times += await attack.run(lab, scale)
        await load.pause()
        recovered = await load.recovery()
        counts = await load.settle()
        await lab.settled()
        processes = (lab.controller, *lab.agents.values())
        return {
            "attacker": attack.attacker,
            "attack": attack.name,
            "times": times,
            "published": counts["published"] - before["published"],
            "arrived": counts["arrived"] - before["arrived"],
            "lost": counts["lost"] - before["lost"],
            "doubled": counts["doubled"] - before["doubled"],
            "leaked": counts["leaked"] - before["leaked"],
            "memory MB": self._memory() - memory,
            "log kB": (self._log_bytes() - logged) / 1e3,
            "recovered s": recovered,
            "ended": sum(not process.is_running() for process in processes),
            "tracebacks": len(lab.tracebacks()),
        }
