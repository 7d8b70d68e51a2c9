"""Controller and agents, as processes and embedded, on real mosquitto: they follow what clients want."""

import asyncio
import json
import multiprocessing
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

import pytest

import broadloom as bl
from broadloom.agents.links.agent_service import AgentOptions, agent_folder, serve_agent
from broadloom.agents.links.controller_service import (
    ControllerOptions,
    ControllerService,
    take_down_fleet,
)
from broadloom.agents.links.fleet_planner import FleetPlanner
from broadloom.agents.links.live_status import is_healthy
from broadloom.agents.links.relink_search import in_process
from broadloom.agents.links.route_orders import AgentOrders, Epoch, Route
from broadloom.agents.links.site_agent import SiteAgent
from broadloom.agents.links.stamps import FleetKey
from broadloom.deployment import FleetBroker
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, free_ports
from broadloom.errors import InputError, UnreachableError
from broadloom.mqtt.endpoint import Endpoint
from fleet_lab import fleet_lab, wait_until

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]

FOLLOWED = "log_dest topic"
KEY = "a key for tests, long enough"


@contextmanager
def live_lab(folder, *names, patience=20, **settings):
    """Running brokers, and the path of their fleet file with a controller on a free port."""
    with fleet_lab(folder, **dict.fromkeys(names, FOLLOWED), **settings) as lab:
        (folder / "key").write_text(KEY)
        (folder / "key").chmod(0o600)
        live = f'[live]\ncontroller = "{HOST}:{free_ports(1)[0]}"\nkey_file = "key"\npatience = {patience}\n'
        yield lab, lab.fleet_file({}, links=live)


def received(client):
    """The lines that a client has printed so far."""
    return client.read_text().split()


def start_subscriber(lab, broker, *filters, name=""):
    """A client that writes what it receives to a file."""
    output = lab.folder / f"received-{broker}{name}"
    with output.open("wb") as stream:
        topics = [part for text in filters for part in ("-t", text)]
        command = ["mosquitto_sub", "-h", HOST, "-p", str(lab.brokers[broker].port), "-q", "1", *topics]
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.DEVNULL)
    lab._clients.append(process)
    return output


class LiveProcess:
    """A verb of the live plane as a process of its own."""

    def __init__(self, folder, name, *arguments):
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "broadloom.cli", *map(str, arguments)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)

    def wait_for(self, text):
        """Wait until the log has a text."""
        wait_until(lambda: text in self.log.read_text() or self.process.poll() is not None, text)
        assert text in self.log.read_text(), self.log.read_text()

    def end(self, name=signal.SIGTERM):
        """Send a signal, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(name)
        return self.process.wait(60)


@contextmanager
def processes():
    """A list of processes that end with the block."""
    started = []
    try:
        yield started
    except BaseException:
        for one in started:
            print(f"{one.log.name}:\n{one.log.read_text()}")  # pytest shows it for a test that fails
        raise
    finally:
        for one in started:
            one.end(signal.SIGKILL)


def test_processes_follow_a_subscription_and_outlive_the_controller(tmp_path, run):
    """A subscription at one broker brings messages of the other; the death of the controller stops none."""
    with live_lab(tmp_path, "rome", "oslo") as (lab, fleet), processes() as started:
        agents = [
            LiveProcess(tmp_path, name, "agent", fleet, "--broker", name, "--state", "state")
            for name in ("rome", "oslo")
        ]
        started += agents
        for agent in agents:
            agent.wait_for("runs; its controller is")
        controller = LiveProcess(tmp_path, "controller", "controller", fleet, "--state", "state")
        started.append(controller)

        def is_followed():
            code, said, _ = run("status", fleet, "--json")
            return code != 3 and all(
                one["filters"] is not None for one in json.loads(said)["brokers"].values()
            )

        wait_until(is_followed, "what clients want is known")

        client = start_subscriber(lab, "oslo", "news/#")

        def arrives(text):
            lab.publish("rome", "news/world", text)
            return text in received(client)

        wait_until(lambda: arrives("first"), "a message at the other broker")
        code, said, _ = run("status", fleet)
        assert code == 0, said
        assert "2 of 2 agents up" in said
        code, said, _ = run("status", fleet, "--json")
        assert is_healthy(json.loads(said))
        code, token, _ = run("status", fleet, "--token")
        assert len(token.strip()) == 64

        assert controller.end(signal.SIGKILL) == -signal.SIGKILL
        before = len(received(client))
        for number in range(20):
            lab.publish("rome", "news/world", f"without-{number}")
        wait_until(lambda: len(received(client)) >= before + 20, "messages without a controller")
        assert received(client)[-20:] == [f"without-{number}" for number in range(20)]
        code, _, said = run("status", fleet)
        assert code == 3
        assert "does not answer" in said

        again = LiveProcess(tmp_path, "again", "controller", fleet, "--state", "state")
        started.append(again)
        wait_until(lambda: run("status", fleet)[0] == 0, "agents with the controller again")
        assert json.loads(run("status", fleet, "--json")[1])["epoch"][0] == 2
        assert again.end() == 0
        code, said, _ = run("controller", fleet, "--state", tmp_path / "state", "--down")
        assert (code, said) == (0, "all links are down\n")
        assert [agent.end() for agent in agents] == [0, 0]
        assert KEY not in "".join(one.log.read_text() for one in started)


@asynccontextmanager
async def service_of(options):
    """A running controller in this process."""
    service = ControllerService(options)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


async def until(condition, seconds=60.0):
    """Wait for a condition."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)


def are_followed(service):
    """Whether it is known what clients want, at all brokers."""
    return all(one["filters"] is not None for one in service.status()["brokers"].values())


def embedded(fleet, state, **options):
    return ControllerOptions(bl.Fleet.load(fleet), state, with_agents=True, **options)


def test_a_broker_joins_with_an_address_of_its_own_and_leaves(tmp_path):
    """It is not in the fleet file; a bad event is quarantined with its reason, and shown."""
    with live_lab(tmp_path, "rome", "oslo") as (lab, fleet), fleet_lab(tmp_path, bern=FOLLOWED) as more:
        address = f"{HOST}:{more.brokers['bern'].port}"
        events = tmp_path / "events.jsonl"
        events.write_text("")

        async def test():
            async with service_of(embedded(fleet, tmp_path / "state", events=events)) as service:
                await until(lambda: are_followed(service))
                client = start_subscriber(lab, "oslo", "news")
                await until(lambda: service.status()["brokers"]["oslo"]["filters"] == 1)
                join = {"seq": 1, "kind": "join", "node": "bern", "topics": ["news"], "address": address}
                events.write_text(json.dumps(join) + "\nnot an event\n")
                await until(lambda: service.controller.carries("bern", ["news"]))
                assert service.status()["quarantined"]
                await asyncio.to_thread(more.publish, "bern", "news", "hello")
                await until(lambda: received(client) == ["hello"])
                with events.open("a") as stream:
                    stream.write(json.dumps({"seq": 2, "kind": "leave", "node": "bern"}) + "\n")
                await until(lambda: service.status()["brokers"]["bern"]["removed"])
                await until(lambda: not any(one.broker == "bern" for one in service._left()))

        asyncio.run(test())


def test_a_broker_returns_to_the_fleet_file(tmp_path):
    """Deleted from the fleet file, it is removed; written there again, it has links again."""
    with live_lab(tmp_path, "rome", "oslo", "bern") as (lab, path):
        whole = path.read_text()
        start = whole.index("[brokers.bern]")
        without = whole[:start] + whole[whole.index("[live]") :]

        def is_linked(service):
            bern = service.status()["brokers"]["bern"]
            return bool(bern["hops"]) and not bern["removed"]

        async def test():
            state = tmp_path / "state"
            async with service_of(embedded(path, state)) as service:
                await until(lambda: are_followed(service))
                for name in ("oslo", "bern"):
                    start_subscriber(lab, name, "news")
                await until(lambda: is_linked(service))
            path.write_text(without)
            async with service_of(embedded(path, state)) as service:
                await until(lambda: service.status()["brokers"]["bern"]["removed"])
            async with service_of(ControllerOptions(bl.Fleet.load(path), state)) as service:
                reasons = {one.broker: one.reason for one in service._left()}
                assert reasons["bern"] == "it was removed, and no agent says that its sessions have ended"
                assert reasons["rome"] == "it has no agent that could end its sessions"
            path.write_text(whole)
            async with service_of(embedded(path, state)) as service:
                await until(lambda: is_linked(service))

        asyncio.run(test())


@pytest.mark.parametrize("with_agents", [True, False])
def test_down_ends_the_links_of_a_broker_that_joined_with_an_address(tmp_path, with_agents):
    """Its agent is started for that, or runs by itself with this address."""
    with live_lab(tmp_path, "rome", "oslo") as (lab, path), fleet_lab(tmp_path, bern=FOLLOWED) as more:
        fleet = bl.Fleet.load(path)
        address = f"{HOST}:{more.brokers['bern'].port}"
        join = {"seq": 1, "kind": "join", "node": "bern", "topics": ["news"], "address": address}
        events = tmp_path / "events.jsonl"
        events.write_text(json.dumps(join) + "\n")
        addresses = {} if with_agents else {"rome": None, "oslo": None, "bern": address}

        async def test():
            state = tmp_path / "state"
            agents = [
                asyncio.create_task(
                    serve_agent(AgentOptions(fleet, name, agent_folder(state, name), address=own))
                )
                for name, own in addresses.items()
            ]
            try:
                options = ControllerOptions(fleet, state, with_agents, events=events)
                async with service_of(options) as service:
                    await until(lambda: are_followed(service))
                    start_subscriber(lab, "oslo", "news")
                    await until(lambda: service.controller.carries("bern", ["news"]))
                    await until(lambda: service.controller.carries("oslo", ["news"]))
                assert await take_down_fleet(options) == []
            finally:
                for agent in agents:
                    agent.cancel()
                await asyncio.gather(*agents, return_exceptions=True)

        asyncio.run(test())


def test_an_address_is_for_brokers_that_the_fleet_file_does_not_have(tmp_path):
    """Two addresses of one broker would be one too many."""
    fleet = bl.Fleet([FleetBroker("rome", "10.0.0.7", tls=None)])
    with pytest.raises(InputError, match="broker 'rome' is in the fleet file; leave out its address"):
        asyncio.run(serve_agent(AgentOptions(fleet, "rome", tmp_path, address="10.0.0.8")))


def test_a_second_controller_is_refused_until_it_takes_over(tmp_path):
    """One with an empty state changes nothing; with --take-over it goes on from what agents have."""
    with live_lab(tmp_path, "rome", "oslo") as (lab, path):
        fleet = bl.Fleet.load(path)
        folders = {name: agent_folder(tmp_path / "agents", name) for name in fleet.brokers}

        async def test():
            agents = [
                asyncio.create_task(serve_agent(AgentOptions(fleet, name, folder)))
                for name, folder in folders.items()
            ]
            try:
                async with service_of(ControllerOptions(fleet, tmp_path / "first")) as first:
                    await until(lambda: are_followed(first))
                    client = start_subscriber(lab, "oslo", "news")
                    await until(lambda: first.controller.carries("oslo", ["news"]))
                other = ControllerOptions(fleet, tmp_path / "other")
                async with service_of(other) as second:
                    await until(lambda: second.status()["refused"] is not None)
                    status = second.status()
                    assert not is_healthy(status)
                    assert any("--take-over" in text for text in status["problems"])
                    await asyncio.to_thread(lab.publish, "rome", "news", "still")
                    await until(lambda: received(client) == ["still"])
                async with service_of(replace(other, take_over=True)) as third:
                    await until(
                        lambda: third.controller.settled() and third.controller.carries("oslo", ["news"])
                    )
                    await asyncio.to_thread(lab.publish, "rome", "news", "after")
                    await until(lambda: received(client) == ["still", "after"])
            finally:
                for agent in agents:
                    agent.cancel()
                await asyncio.gather(*agents, return_exceptions=True)

        asyncio.run(test())


def test_an_agent_that_takes_over_ends_the_older_one(tmp_path):
    """Even if there are no hops, whose sessions it could take over; the newer one goes on."""
    with live_lab(tmp_path, "rome", "oslo") as (_, path):
        fleet = bl.Fleet.load(path)

        async def test():
            ready = asyncio.Event()
            older = asyncio.create_task(serve_agent(AgentOptions(fleet, "rome", tmp_path / "1"), ready.set))
            await asyncio.wait_for(ready.wait(), 60)
            ready.clear()
            options = AgentOptions(fleet, "rome", tmp_path / "2", take_over=True)
            newer = asyncio.create_task(serve_agent(options, ready.set))
            await asyncio.wait_for(ready.wait(), 60)
            with pytest.raises(UnreachableError, match="a second agent of broker 'rome' runs somewhere"):
                await asyncio.wait_for(older, 30)
            await asyncio.sleep(1)
            assert not newer.done()
            newer.cancel()
            await asyncio.gather(newer, return_exceptions=True)

        asyncio.run(test())


def test_an_agent_that_stops_while_it_ends_a_hop_leaves_no_connection(tmp_path):
    """The task that ends the hop can be cancelled before it begins, and at each of its steps."""
    routes = {1: Route(1, ("x",), frozenset({("rome", "oslo"), ("oslo", "rome")}), since=1)}

    async def scenario(lab, steps):
        def endpoint(broker, _):
            return Endpoint(HOST, lab.brokers[broker].port)

        def is_up():
            hop = agent.report().hops.get("oslo")
            return hop is not None and hop.near_up and hop.far_up

        agent = SiteAgent("rome", endpoint, tmp_path / "state", FleetKey(KEY))
        await agent.start()
        epoch = Epoch(steps + 1, "c")
        agent.apply(AgentOrders(epoch, 1, 1, routes=routes))
        await until(is_up)
        (hop,) = agent._hops.values()
        agent.apply(AgentOrders(epoch, 2, 2))
        for _ in range(steps):
            await asyncio.sleep(0)
        await agent.stop()
        for session in (hop._near, hop._far):
            assert session._transport is None or session._transport.is_closing()

    with fleet_lab(tmp_path, rome="", oslo="") as lab:
        for steps in range(6):
            asyncio.run(scenario(lab, steps))


def test_a_state_that_is_no_folder_is_bad_input(tmp_path):
    state = tmp_path / "state"
    state.touch()
    with (
        live_lab(tmp_path, "rome") as (_, path),
        pytest.raises(InputError, match="state cannot be created: "),
    ):
        ControllerService(ControllerOptions(bl.Fleet.load(path), state))


def test_down_ends_in_time_and_names_what_is_left(tmp_path):
    """A broker that is away keeps the sessions; the others are cleaned up."""
    with live_lab(tmp_path, "rome", "oslo", patience=2) as (lab, fleet):

        async def test():
            async with service_of(embedded(fleet, tmp_path / "state")) as service:
                await until(lambda: are_followed(service))
                start_subscriber(lab, "oslo", "news")
                await until(lambda: service.controller.carries("oslo", ["news"]))
                lab.brokers["oslo"].stop()
                left = await service.take_down()
                assert {one.broker for one in left} == {"oslo"}, left
                assert all(one.reason for one in left)
            lab.brokers["oslo"].start()

        asyncio.run(test())


def test_down_needs_no_planner(tmp_path):
    """A damaged journal of the planner stops a start, and not the end of all links."""
    with live_lab(tmp_path, "rome", "oslo", patience=10) as (lab, fleet):
        options = embedded(fleet, tmp_path / "state")

        async def test():
            async with service_of(options) as service:
                await until(lambda: are_followed(service))
                start_subscriber(lab, "oslo", "news")
                await until(lambda: service.controller.carries("oslo", ["news"]))
            (tmp_path / "state" / "planner.journal").write_bytes(b"damaged")
            with pytest.raises(InputError, match=r"planner\.journal is damaged"):
                ControllerService(options)
            assert await take_down_fleet(options) == []

        asyncio.run(test())


def test_retained_messages_reach_all_that_want_them(tmp_path):
    """Those of topics that a wider filter brings too, wherever they were published."""
    with live_lab(tmp_path, "rome", "oslo", "bern") as (lab, fleet):
        for broker, topic, text in (("oslo", "a/1", "one"), ("oslo", "a/2", "two"), ("bern", "a/3", "three")):
            lab.publish(broker, topic, text, "-r")

        async def test():
            async with service_of(embedded(fleet, tmp_path / "state")) as service:
                await until(lambda: are_followed(service))
                exact = start_subscriber(lab, "rome", "a/1")
                await until(lambda: received(exact) == ["one"])
                wide = start_subscriber(lab, "rome", "a/+", name="-wide")
                await until(lambda: sorted(received(wide)) == ["one", "three", "two"])
                other = start_subscriber(lab, "oslo", "a/3")
                await until(lambda: received(other) == ["three"])
                assert received(exact) == ["one"]
                assert len(received(wide)) == 3

        asyncio.run(test())


def test_two_controllers_cannot_share_a_state(tmp_path):
    with live_lab(tmp_path, "rome") as (_, fleet):

        async def test():
            options = ControllerOptions(bl.Fleet.load(fleet), tmp_path / "state")
            async with service_of(options):
                with pytest.raises(InputError, match="open already"):
                    ControllerService(options)

        asyncio.run(test())


def test_a_fleet_without_a_key_is_bad_input(tmp_path, run):
    (tmp_path / "fleet.toml").write_text('[brokers.rome]\naddress = "127.0.0.1:1"\ntls = false')
    for arguments in (["controller", "--state", tmp_path / "s"], ["agent", "--broker", "rome"], ["status"]):
        code, _, said = run(arguments[0], tmp_path / "fleet.toml", *arguments[1:])
        assert code == 2
        assert "the fleet has no key" in said
    code, _, said = run("agent", tmp_path / "fleet.toml", "--broker", "roma")
    assert code == 2
    code, _, said = run("controller", tmp_path / "fleet.toml", "--adopt")
    assert code == 2
    assert "--propose" in said


def test_a_fleet_with_a_broker_without_mqtt_5_is_bad_input(tmp_path, run):
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    brokers = [
        f'[brokers.{name}]\naddress = "127.0.0.1:{port}"\ntls = false\n' for port, name in enumerate("ab", 1)
    ]
    (tmp_path / "fleet.toml").write_text("\n".join([*brokers, 'kind = "nats"', '[live]\nkey_file = "key"']))
    for arguments in (["controller", "--with-agents", "--state", tmp_path / "s"], ["agent", "--broker", "a"]):
        code, _, said = run(arguments[0], tmp_path / "fleet.toml", *arguments[1:])
        assert code == 2
        assert "broker 'b' is a NATS server; only MQTT 5 brokers can have agents" in said


@pytest.mark.parametrize("option", [["--events", "e.jsonl"], ["--propose", "9"], ["--moves", "m.toml"]])
def test_down_refuses_options_that_it_would_ignore(option, run):
    code, _, said = run("controller", "--down", *option)
    assert code == 2
    assert f"leave out {option[0]}" in said


def test_a_watched_status_outlives_the_controller(tmp_path, run, monkeypatch):
    """While the controller does not answer, it says so, and shows the status again afterwards."""
    (tmp_path / "key").write_text(KEY)
    (tmp_path / "key").chmod(0o600)
    live = f'[live]\ncontroller = "{HOST}:{free_ports(1)[0]}"\nkey_file = "key"'
    (tmp_path / "fleet.toml").write_text(f'[brokers.rome]\naddress = "127.0.0.1:1"\ntls = false\n{live}')
    pauses = iter([None, None])

    def pause(_):
        if next(pauses, 1) is not None:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", pause)
    code, said, errors = run("status", tmp_path / "fleet.toml", "--watch")
    assert (code, errors) == (0, "")
    assert said.count("does not answer") == 3
    assert run("status", tmp_path / "fleet.toml")[0] == 3


def test_a_search_in_a_process_of_its_own_ends_with_its_task():
    """Its result or its error comes back; if the controller stops, it stops."""

    async def test():
        assert await in_process(abs, -3) == 3
        with pytest.raises(InputError, match="no topic"):
            await in_process(bl.Interest.from_lists, [[""]])
        before = set(multiprocessing.active_children())
        waiting = asyncio.create_task(in_process(time.sleep, 600))
        await until(lambda: set(multiprocessing.active_children()) - before)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert set(multiprocessing.active_children()) <= before

    asyncio.run(test())


def test_a_missing_file_of_events_is_a_problem_until_it_exists(tmp_path):
    with live_lab(tmp_path, "rome") as (_, fleet):

        async def test():
            path = tmp_path / "events.jsonl"
            async with service_of(
                ControllerOptions(bl.Fleet.load(fleet), tmp_path / "state", events=path)
            ) as service:

                def is_missing():
                    return any(
                        "events.jsonl does not exist yet" in text for text in service.status()["problems"]
                    )

                await until(is_missing)
                path.touch()
                await until(lambda: not is_missing())

        asyncio.run(test())


def test_an_operator_adopts_a_proposal(tmp_path):
    """The answer says what changes; without a proposal, that there is none."""
    with live_lab(tmp_path, "rome") as (_, fleet):

        async def test():
            async with service_of(ControllerOptions(bl.Fleet.load(fleet), tmp_path / "state")) as service:
                assert not (await service.adopt()).adopted
                service.planner.adopt = lambda: "two links change"
                assert (await service.adopt()).note == "two links change"

        asyncio.run(test())


def test_a_better_plan_is_proposed_and_adopted(tmp_path, run):
    """Three brokers begin with a ring; two links are enough. Messages flow on over those."""
    names = ["bern", "oslo", "rome"]
    with live_lab(tmp_path, *names) as (lab, fleet):
        interest = bl.Interest.from_lists([["news"]] * 3, node_ids=names)
        ring = bl.Plan(interest, bl.Weights.uniform(3), bl.Overlay(3, [[0, 1], [0, 2], [1, 2]]), "none")
        state = tmp_path / "state"
        state.mkdir()
        planner = FleetPlanner(bl.Fleet.load(fleet), state, ring)
        for number, name in enumerate(names, 1):
            event = {"seq": number, "kind": "subscribe", "node": name, "topics": ["news"]}
            assert planner.event(json.dumps(event)) is None
        planner.close()

        async def test():
            async with service_of(embedded(fleet, state, plan=ring, propose=0.2)) as service:
                await until(lambda: are_followed(service))
                clients = [start_subscriber(lab, name, "news") for name in names]
                await until(lambda: service.status()["proposal"])
                assert service.status()["overlay"]["links"] == 3
                code, printed, _ = await asyncio.to_thread(run, "status", fleet, "--adopt")
                assert code == 0
                assert "links change" in printed
                await until(lambda: service.status()["overlay"]["links"] == 2)
                await until(lambda: service.controller.settled())
                await asyncio.to_thread(lab.publish, "bern", "news", "hello")
                await until(lambda: all(received(client) == ["hello"] for client in clients))

        asyncio.run(test())
