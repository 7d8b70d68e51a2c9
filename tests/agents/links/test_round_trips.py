"""Round-trip times to brokers, and bridges that somebody else made, on real connections."""

import asyncio
import socket
from contextlib import closing

import pytest

from broadloom.agents.links import round_trips
from broadloom.agents.links.foreign_bridges import ForeignBridges
from broadloom.agents.links.round_trips import RoundTrips, handshake_seconds
from broadloom.mqtt.endpoint import Endpoint
from fleet_lab import HOST, fleet_lab

SECONDS = 60


async def until(condition, what):
    """Wait until a condition holds; fail after a long time."""
    end = asyncio.get_running_loop().time() + SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < end, f"not in time: {what}"
        await asyncio.sleep(0.01)


@pytest.fixture
def quick(monkeypatch):
    """Measurements without pauses."""
    monkeypatch.setattr(round_trips, "SPACING_SECONDS", 0.005)
    monkeypatch.setattr(round_trips, "TELL_SECONDS", 0.0)


def test_the_handshake_is_measured_on_loopback():
    with closing(socket.create_server((HOST, 0))) as server:
        seconds = asyncio.run(handshake_seconds(HOST, server.getsockname()[1]))
    assert seconds is not None
    assert 0 < seconds < SECONDS


@pytest.mark.usefixtures("quick")
def test_all_reachable_brokers_are_told():
    """A broker that refuses connections has no value, and holds up nobody."""
    told = []

    async def run():
        with closing(socket.create_server((HOST, 0))) as one, closing(socket.create_server((HOST, 0))) as two:
            ports = [server.getsockname()[1] for server in (one, two)]
            endpoints = {
                name: Endpoint(HOST, port) for name, port in zip(("oslo", "rome"), ports, strict=True)
            }
            trips = RoundTrips({**endpoints, "gone": Endpoint(HOST, 1)}, told.append, interval=0.01)
            await trips.start()
            await until(lambda: told and set(told[-1]) == {"oslo", "rome"}, "both brokers are told")
            trips.update({"rome": endpoints["rome"]})
            assert set(trips.medians()) == {"rome"}
            await trips.stop()

    asyncio.run(run())
    assert all(ms > 0 for ms in told[-1].values())


@pytest.mark.usefixtures("quick")
def test_only_a_move_by_more_than_a_quarter_is_told(monkeypatch):
    """The median of five moves only when most of them have moved."""
    times = [0.1] * 5 + [0.12] * 20 + [0.2] * 20
    measured = iter(times)
    told = []

    async def fake(_host, _port):
        return next(measured, 0.2)

    async def run():
        monkeypatch.setattr(round_trips, "handshake_seconds", fake)
        trips = RoundTrips({"oslo": Endpoint(HOST, 1)}, told.append, interval=0.0)
        await trips.start()
        await until(lambda: len(told) == 2, "a second value is told")
        await trips.stop()

    asyncio.run(run())
    assert told == [{"oslo": 100.0}, {"oslo": 200.0}]


@pytest.mark.usefixtures("quick")
def test_a_broker_that_never_answers_is_given_up_after_the_deadline(monkeypatch):
    monkeypatch.setattr(round_trips, "DEADLINE_SECONDS", 0.01)
    calls = []

    async def hang(_host, port):
        calls.append(port)
        await asyncio.sleep(SECONDS)

    async def run():
        monkeypatch.setattr(round_trips, "handshake_seconds", hang)
        trips = RoundTrips({"oslo": Endpoint(HOST, 1)}, lambda _: pytest.fail("told"), interval=0.01)
        await trips.start()
        await until(lambda: len(calls) > 3, "it is tried again")
        await trips.stop()

    asyncio.run(run())


@pytest.mark.needs("mosquitto")
def test_a_bridge_made_by_hand_is_a_problem(tmp_path):
    """At both of its ends; a bridge of ours is not."""
    problems = []

    async def run(lab):
        watches = {
            name: ForeignBridges(name, Endpoint(HOST, broker.port), problems.append)
            for name, broker in lab.brokers.items()
        }
        for watch in watches.values():
            await watch.start()
        await until(lambda: all(watch.names == {"hand.made"} for watch in watches.values()), "it is seen")
        lab.brokers["rome"].stop()
        await until(lambda: not watches["oslo"].names, "it is down")
        lab.brokers["rome"].start()
        await until(lambda: watches["oslo"].names, "it is up again")
        for watch in watches.values():
            await watch.stop()

    with fleet_lab(tmp_path, oslo="") as lab:
        more = "restart_timeout 1\ntopic a/# both\n"
        bridges = "".join(
            f"connection {name}\naddress {HOST}:{lab.brokers['oslo'].port}\nremote_clientid {name}\n{more}"
            for name in ("hand.made", "broadloom-rome-oslo")
        )
        with fleet_lab(tmp_path, rome=bridges) as other:
            other.brokers.update(lab.brokers)
            try:
                asyncio.run(run(other))
            finally:
                del other.brokers["oslo"]
    assert sorted(set(problems)) == [
        f"broker '{name}' has a bridge of its own, 'hand.made': messages can arrive twice or circulate; "
        "remove it, or leave its topics out of `carry`"
        for name in ("oslo", "rome")
    ]


def test_the_log_tells_of_bridges_that_announce_nothing():
    """At both ends. One is forgotten when its client is gone, or when the broker restarts without it."""
    problems, solved, changes = [], [], []

    async def run():
        watch = ForeignBridges(
            "rome",
            Endpoint(HOST, 1),
            problems.append,
            lambda: changes.append(set(watch.names)),
            solved.append,
        )
        watch.notice("New client connected from 10.0.0.9:4711 as sensor (p5, c1, k60).")
        watch.notice("Connecting bridge (step 1) broadloom-rome-oslo (10.0.0.7:1883)")
        assert watch.names == set()
        watch.notice("Connecting bridge (step 1) by-hand (10.0.0.7:1883)")
        watch.notice("Connecting bridge (step 2) by-hand (10.0.0.7:1883)")
        watch.notice("New bridge connected from 10.0.0.9:4711 as host.other (p2, c0, k60).")
        assert watch.names == {"by-hand", "host.other"}
        watch.notice("Client host.other closed its connection.")
        assert watch.names == {"by-hand"}
        watch._take_uptime(b"100 seconds")
        assert watch.names == {"by-hand"}  # the broker was running then
        now = asyncio.get_running_loop().time()
        watch._logged["by-hand"] = now - 60
        watch._take_uptime(b"2 seconds")
        assert watch.names == set()
        watch._take_uptime(b"soon")

    asyncio.run(run())
    assert solved == problems[::-1]
    assert changes == [{"by-hand"}, {"by-hand", "host.other"}, {"by-hand"}, set()]
    assert [text.split(",")[1] for text in problems] == [
        " 'by-hand': messages can arrive twice or circulate; remove it",
        " 'host.other': messages can arrive twice or circulate; remove it",
    ]
