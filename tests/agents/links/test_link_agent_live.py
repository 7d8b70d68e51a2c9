"""The link agent on real mosquitto: brokers leave and return under load; nothing is lost or duplicated."""

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import asynccontextmanager

import pytest

import broadloom as bl
from broadloom.agents.links import carried_groups as group
from broadloom.agents.links.agent_link import PROBE
from broadloom.agents.links.link_agent import LinkAgent
from broadloom.agents.links.link_service import (
    LinkRun,
    link_metrics,
    settings_endpoints,
    take_down_links,
)
from broadloom.agents.links.plan_sources import EventFile, FixedPlan
from broadloom.agents.links.tree_changes import target_hops
from broadloom.deployment import Settings, Wiring
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, MosquittoLab, free_ports, killed_with_parent
from broadloom.deployment.targets import mosquitto_bridges
from broadloom.mqtt.endpoint import PASSWORD_VARIABLE, USER_VARIABLE, Endpoint
from broadloom.mqtt.packets import PUBACK, RETAIN, PacketReader, connect, publish
from mqtt_load import Load

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]

X = ("x",)
CLEAN = {"lost": 0, "doubled": 0}


def lab_of(*brokers):
    """Brokers without links."""
    return MosquittoLab(Wiring(tuple(brokers), {}, {}, ()))


def endpoints_of(lab):
    return {broker: Endpoint(HOST, port) for broker, port in lab.ports.items()}


def both(*pairs):
    return frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))


def wrong(counts):
    return {name: counts[name] for name in CLEAN}


@asynccontextmanager
async def loaded(lab, folder, pairs, wants, rate=0, **options):
    """An agent with the links of topic x, and a load; both end with the block."""
    agent = LinkAgent(endpoints_of(lab).__getitem__, folder, **options)
    load = Load(endpoints_of(lab), wants)
    await agent.start()
    agent.retarget({X: both(*pairs)})
    await agent.settled()
    await load.start()
    if rate:
        load.run(rate)
    yield agent, load
    await agent.stop()
    await load.stop()


async def counted(load):
    """What came of all messages, once no more are published."""
    await load.pause()
    return await load.settle()


async def more(load, count):
    """Let the load publish so many more messages, however long that takes."""
    end = len(load.published) + count
    await until(lambda: len(load.published) >= end)


async def publish_at_all(load, count):
    """Publish exactly so many messages of topic x, at all brokers in turn."""
    brokers = sorted(load.wants)
    for number in range(count):
        while not load.publish(brokers[number % len(brokers)], "x"):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)


async def until(done, seconds=60.0):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it takes too long"
        await asyncio.sleep(0.01)


def wants_of(interest):
    topics = (interest.topics_of(node) for node in range(interest.node_count))
    return dict(
        zip(interest.node_ids, ([interest.topic_ids[t] for t in some] for some in topics), strict=True)
    )


def test_the_busiest_of_eight_brokers_leaves_and_comes_back(tmp_path):
    """EventFile in a file; 0 lost, 0 doubled, nothing reaches the broker when it has left."""
    interest = bl.workload.interest(nodes=8, topics=12, sizes=(4, 6), seed=1)
    plan, wants = bl.link(interest, algorithm="gm"), wants_of(interest)
    events = tmp_path / "events.jsonl"
    busiest = interest.node_ids[plan.overlay.degrees().argmax()]

    def tell(seq, kind, topics=None):
        with events.open("a") as file:
            file.write(json.dumps({"seq": seq, "kind": kind, "node": busiest, "topics": topics}) + "\n")

    async def story(lab):
        agent = LinkAgent(endpoints_of(lab).__getitem__, tmp_path / "state")
        run, load = LinkRun(agent, EventFile(plan, events)), Load(endpoints_of(lab), wants)
        await agent.start()
        following = asyncio.create_task(run.follow())
        await until(lambda: agent.counts["changes"] == 1)
        await load.start()
        load.run(500)
        for turn in range(2):
            await more(load, 150)
            await load.move_off(busiest)  # clients first, as migration does it
            tell(2 * turn, "leave")
            await until(lambda: not any(busiest in edge for edge in agent.links))
            before = received(lab, busiest)
            await more(load, 250)
            assert received(lab, busiest) == before
            tell(2 * turn + 1, "join", wants[busiest])
            await until(lambda turn=turn: agent.counts["changes"] == 3 + 2 * turn)
            await load.move_to(busiest, wants[busiest])
        await load.pause()
        counts = await load.settle()
        run.stop()
        await following
        await agent.stop()
        await load.stop()
        return counts

    with lab_of(*interest.node_ids) as lab:
        counts = asyncio.run(story(lab))
    assert wrong(counts) == CLEAN
    assert counts["due"] > 1000


def received(lab, broker):
    """How many messages have come to a broker, but for probes, which may be repeated late."""
    for log in lab.logs[broker]:
        log.read()
    counts = [log.received for log in lab.logs[broker]]
    return sum(count for one in counts for (_, topic), count in one.items() if topic != PROBE)


def run_until_killed(state, ports, pairs, phase):
    """An agent in a process of its own, which dies in the middle of a phase, or comes to its end."""
    save = group.CarriedGroup._save

    async def save_and_die(self, state):
        await save(self, state)
        if state.phase == phase:
            await asyncio.sleep(0.02)  # and then in the middle of it
            os.kill(os.getpid(), signal.SIGKILL)

    async def story():
        agent = LinkAgent(lambda broker: Endpoint(HOST, ports[broker]), state)
        await agent.start()
        await agent.settled()
        agent.retarget({("x",): both(*pairs)})
        await agent.settled()
        await agent.stop()

    group.CarriedGroup._save = save_and_die
    asyncio.run(story())


def test_killed_in_each_phase_it_neither_loses_nor_doubles(tmp_path):
    """SIGKILL in the middle of each phase, under load; each new agent goes on where the last one died."""
    path, star = ("ab", "bc", "cd"), ("ab", "ac", "ad")
    killed = [(None, path), ("mark", star), ("both", path), ("leave", star), ("forget", path)]
    killed += [("drop", ("ab", "bc")), ("add", path), (None, star)]
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["broadloom.agents.links.link_service"])

    async def story(lab):
        load = Load(endpoints_of(lab), dict.fromkeys("abcd", X))
        await load.start()
        for phase, pairs in killed:
            if phase == "drop":
                await load.move_off("d")
            arguments = (tmp_path, lab.ports, pairs, phase)
            process = processes.Process(target=run_until_killed, args=arguments, daemon=True)
            process.start()
            await asyncio.to_thread(process.join, 60)
            assert process.exitcode == (-signal.SIGKILL if phase else 0), phase
            if not load.published:
                load.run(200)
            await more(load, 40)
        await load.pause()
        agent = LinkAgent(endpoints_of(lab).__getitem__, tmp_path)
        await agent.start()
        counts = await load.settle()
        await agent.stop()
        await load.stop()
        return counts

    with lab_of(*"abcd") as lab:
        counts = asyncio.run(story(lab))
    assert wrong(counts) == CLEAN
    assert counts["due"] > 300


def test_a_broker_that_restarts_under_load_costs_nothing(tmp_path):
    """The middle one of three is stopped, stays away for a while, and comes back."""

    async def story(lab):
        async with loaded(lab, tmp_path, ("ab", "bc"), {"a": X, "c": X}, rate=300) as (_, load):
            await more(load, 90)
            lab.stop("b")
            await more(load, 150)
            lab.start("b")
            lab.wait_until_listening(["b"])
            await more(load, 90)
            return await counted(load)

    with lab_of(*"abc") as lab:
        counts = asyncio.run(story(lab))
    assert wrong(counts) == CLEAN
    assert counts["due"] > 200


def test_a_broker_that_died_holds_up_no_change_for_long(tmp_path):
    """The others go on without it, once and for each message; it comes back as a broker that joins."""

    async def story(lab):
        wants = {"a": X, "c": X, "d": X}
        async with loaded(lab, tmp_path, ("ab", "bc", "bd"), wants, patience=0.5) as (agent, load):
            lab.stop("b", kill=True)
            agent.retarget({X: both("ac", "cd")})
            await asyncio.wait_for(agent.settled(), 60)
            assert agent.counts["barriers_given_up"]
            await until(agent.is_up)  # a slow one of the others may have been given up too
            load.run(300)
            await more(load, 90)
            lab.start("b")
            lab.wait_until_listening(["b"])
            await load.clients["b"].up.wait()
            agent.retarget({X: both("ab", "ac", "cd")})
            await agent.settled()
            await until(agent.is_up)
            await load.move_to("b", X)
            await more(load, 90)
            return await counted(load)

    with lab_of(*"abcd") as lab:
        assert wrong(asyncio.run(story(lab))) == CLEAN


def test_a_far_broker_that_stands_still_stops_the_flow_and_memory_stays_bounded(tmp_path):
    """At most `window` messages wait in the agent; the near broker keeps the rest."""

    async def story(lab):
        async with loaded(lab, tmp_path, ("ab",), {"a": X, "b": X}) as (agent, load):
            far, forwarder = lab._processes["b"].pid, agent.links["a", "b"].forwarders["a", "b"]
            os.kill(far, signal.SIGSTOP)
            try:
                sent = most = 0
                while sent < 2000:
                    sent += load.publish("a", "x")
                    await asyncio.sleep(0)
                    most = max(most, len(forwarder.in_flight))
            finally:
                os.kill(far, signal.SIGCONT)
            return await counted(load), most

    with lab_of(*"ab") as lab:
        counts, most = asyncio.run(story(lab))
    assert wrong(counts) == CLEAN
    assert counts["due"] == 2000
    assert 0 < most <= Endpoint.window


def test_messages_without_ids_are_never_lost(tmp_path):
    async def story(lab):
        path, star = ("ab", "bc", "cd"), ("ab", "ac", "ad")
        async with loaded(lab, tmp_path, path, dict.fromkeys("abcd", X)) as (agent, load):
            load.identified = False
            for pairs in (star, path, star, path, star):
                await publish_at_all(load, 200)
                agent.retarget({X: both(*pairs)})
                await publish_at_all(load, 15)  # a few: only what is published now may be doubled
                await agent.settled()
            return await counted(load)

    with lab_of(*"abcd") as lab:
        counts = asyncio.run(story(lab))
    assert counts["lost"] == 0
    assert counts["doubled"] < counts["due"] / 10


@pytest.mark.parametrize("filters", [("+/b", "a/#", "a/b"), ("+/b", "a/+")])
def test_filters_that_overlap_bring_each_message_once(tmp_path, filters):
    """A session with several filters that match a topic gets as many copies from mosquitto."""

    async def story(lab):
        async with loaded(lab, tmp_path, (), dict.fromkeys("abc", ("a/b",))) as (agent, load):
            for pairs in (("ab", "bc"), ("ab", "ac")):
                agent.retarget({filters: both(*pairs)})
                await agent.settled()
                await load.pause()
                load.run(300)
                await more(load, 60)
            return await counted(load)

    with lab_of(*"abc") as lab:
        assert wrong(asyncio.run(story(lab))) == CLEAN


def test_what_is_retained_comes_to_a_broker_that_joins(tmp_path):
    """Once, and a link that is connected anew does not bring it again."""

    def retain(port):
        with socket.create_connection((HOST, port)) as one:
            message = publish("x", b"0", 1)
            one.sendall(connect("retain", True, 60, 0, 10) + bytes((message[0] | RETAIN,)) + message[1:])
            answers, reader = set(), PacketReader()
            while PUBACK not in answers:  # from then on it is retained
                answers.update(kind for kind, _, _ in reader.feed(one.recv(1000)))

    async def story(lab):
        await asyncio.to_thread(retain, lab.ports["a"])
        async with loaded(lab, tmp_path, (), {"b": X, "c": X}) as (agent, load):
            for pairs in (("ab",), ("ab", "bc"), ("ab", "ac")):
                agent.retarget({X: both(*pairs)})
                await agent.settled()
            await until(lambda: len(load.got) == 2)
            await asyncio.sleep(0.3)  # for what comes twice
            return load.got

    with lab_of(*"abc") as lab:
        assert asyncio.run(story(lab)) == {("b", 0): 1, ("c", 0): 1}


def openssl(folder, *words):
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


class LockedLab(MosquittoLab):
    """Brokers that ask for a login, with some more lines in their files."""

    def __init__(self, names, lines):
        super().__init__(Wiring(tuple(names), {}, {}, ()))
        self._lines = "\n".join(["allow_anonymous false", *lines])

    def configure(self, broker, wiring):
        """Write the broker's file, which lets nobody in without a login."""
        super().configure(broker, wiring)
        place = self._folder_of(broker) / "mosquitto.conf"
        place.write_text(place.read_text().replace("allow_anonymous true", self._lines))

    @property
    def places(self):
        """The addresses of the brokers."""
        return {broker: f"{HOST}:{port}" for broker, port in self.ports.items()}


@pytest.fixture
def guarded_broker(tmp_path):
    """A mosquitto with TLS and a password, and a throw-away authority."""
    new = ["-newkey", "rsa:2048", "-nodes", "-subj", "/CN=throw-away"]
    openssl(tmp_path, "req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.crt")
    openssl(tmp_path, "req", *new, "-keyout", "b.key", "-out", "b.csr")
    (tmp_path / "names").write_text(f"subjectAltName=IP:{HOST}")
    signed = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-out", "b.crt"]
    openssl(tmp_path, "x509", "-req", "-in", "b.csr", *signed)
    (tmp_path / "passwords").write_text("agent:secret\n")
    subprocess.run(["mosquitto_passwd", "-U", "passwords"], cwd=tmp_path, check=True)
    lines = [f"password_file {tmp_path}/passwords", f"cafile {tmp_path}/ca.crt"]
    lines += [f"certfile {tmp_path}/b.crt", f"keyfile {tmp_path}/b.key"]
    with LockedLab("ab", lines) as lab:
        yield Settings(addresses=lab.places, certificates=str(tmp_path), credentials=True)


@pytest.mark.needs("openssl", "mosquitto_passwd")
def test_links_over_tls_with_a_login(guarded_broker, monkeypatch, tmp_path, caplog):
    """The right password links; a wrong one is refused in a word, and is in no log."""

    @asynccontextmanager
    async def linking():
        agent = LinkAgent(settings_endpoints(guarded_broker), tmp_path / "state", patience=0.5)
        await agent.start()
        agent.retarget({("x",): both("ab")})
        yield agent
        await agent.stop()

    async def refused():
        async with linking() as agent:
            await until(lambda: "refuses the connection" in caplog.text)
            assert not any(session.up.is_set() for session in agent.links["a", "b"].sessions.values())

    async def linked():
        async with linking() as agent:
            await until(lambda: agent.links and agent.is_up())
            load = Load(
                {broker: settings_endpoints(guarded_broker)(broker) for broker in "ab"},
                dict.fromkeys("ab", X),
            )
            await load.start()
            for _ in range(10):
                load.publish("a", "x")
            counts = await load.settle()
            assert (counts["due"], counts["lost"]) == (10, 0)
            await load.stop()

    monkeypatch.setenv(USER_VARIABLE, "agent")
    monkeypatch.setenv(PASSWORD_VARIABLE, "wrong-and-hidden")
    asyncio.run(refused())
    assert "refuses the connection (0x87)" in caplog.text or "(0x86)" in caplog.text
    assert "wrong-and-hidden" not in caplog.text
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    asyncio.run(linked())


def test_the_command_follows_events_tells_numbers_and_ends_cleanly(tmp_path):
    """`broadloom deploy live`: a join in the file, a metrics page, SIGTERM, and exit code 0."""
    events = tmp_path / "events.jsonl"

    async def story(lab):
        (port,) = free_ports(1)  # none of those that brokers have
        command = [sys.executable, "-m", "broadloom.cli", "deploy", "live", tmp_path / "plan", "--json"]
        command += ["--state", tmp_path / "state", "--events", events, "--metrics", port, "--no-tls"]
        command += ["--address", f"{HOST}:{{broker}}"]
        command = [*killed_with_parent(), *command]
        process = await asyncio.create_subprocess_exec(*map(str, command), stdout=subprocess.PIPE)
        page = await asyncio.to_thread(metrics, port, "broadloom_live_changes_total 1")
        assert f'broadloom_live_up{{broker="{lab.ports["a"]}"' in page
        leave = {"seq": 1, "kind": "leave", "node": str(lab.ports["c"])}
        events.write_text(json.dumps(leave) + "\nnot an event\n")
        page = await asyncio.to_thread(metrics, port, "broadloom_live_changes_total 2")
        assert f'broker="{lab.ports["c"]}"' not in page
        process.terminate()
        out, _ = await process.communicate()
        assert process.returncode == 0
        return json.loads(out)

    with lab_of(*"abc") as lab:
        ids = [str(lab.ports[broker]) for broker in "abc"]
        interest = bl.Interest.from_lists([["x"], ["x"], ["x"]], node_ids=ids)
        bl.link(interest, algorithm="gm").save(tmp_path / "plan")
        record = asyncio.run(story(lab))
    assert record["changes"] == 2
    assert record["links"] == 1


def metrics(port, awaited, seconds=60.0):
    """The page, once something is on it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/metrics") as answer:
                page = answer.read().decode()
        except OSError:
            page = ""
        if awaited in page:
            return page
        time.sleep(0.05)
    raise AssertionError(f"{awaited} is not in {page}")


def test_links_are_taken_down_with_their_sessions(tmp_path):
    async def story(lab):
        for act in ("up", "down", "again"):
            agent = LinkAgent(endpoints_of(lab).__getitem__, tmp_path)
            if act == "down":
                await take_down_links(agent)
                continue
            await agent.start()
            assert not agent.links
            agent.retarget({("x",): both("ab")})
            await agent.settled()
            await agent.stop()

    with lab_of(*"ab") as lab:
        asyncio.run(story(lab))


def test_nothing_to_do_is_done(tmp_path):
    """An empty plan, one broker, a topic that nobody or only one wants: no links, and no broker is called."""
    for lists in ([], [["x"]], [[], []], [["x"], ["y"]]):
        plan = bl.link(bl.Interest.from_lists(lists), algorithm="gm")
        assert not any(target_hops(plan).values())

        async def story(plan=plan):
            agent = LinkAgent(lambda broker: pytest.fail(f"called {broker}"), tmp_path / "state")
            run = LinkRun(agent, FixedPlan(plan))
            await agent.start()
            asyncio.get_running_loop().call_later(0.2, run.stop)
            await run.follow()
            await agent.settled()
            await agent.stop()

        asyncio.run(story())


@pytest.mark.needs("mosquitto_passwd")
@pytest.mark.parametrize("allowed", [True, False])
def test_a_change_does_not_hang_where_probes_may_not_be_written(tmp_path, monkeypatch, caplog, allowed):
    """With the exported rules a swap is whole; without those for probes it is given up, and that is told."""
    rules = mosquitto_bridges.acl_rules(links="agent")
    if not allowed:
        rules = rules.replace("topic readwrite $broadloom/#\n", "")
    (tmp_path / "acl").write_text(rules)
    (tmp_path / "acl").chmod(0o600)
    (tmp_path / "passwords").write_text("agent:secret\n")
    subprocess.run(["mosquitto_passwd", "-U", "passwords"], cwd=tmp_path, check=True)
    monkeypatch.setenv(USER_VARIABLE, "agent")
    monkeypatch.setenv(PASSWORD_VARIABLE, "secret")
    lines = [f"password_file {tmp_path}/passwords", f"acl_file {tmp_path}/acl"]

    async def story(places):
        patience = 60 if allowed else 1.5
        agent = LinkAgent(
            settings_endpoints(Settings(addresses=places, tls=False, credentials=True)),
            tmp_path / "s",
            patience=patience,
        )
        await agent.start()
        for pairs in (("ab", "bc"), ("ab", "ac")):
            agent.retarget({X: both(*pairs)})
            await asyncio.wait_for(agent.settled(), 60)
        await agent.stop()
        return agent

    with LockedLab("abc", lines) as lab:
        agent = asyncio.run(story(lab.places))
    assert (agent.counts["probes_refused"] == 0) == allowed
    assert (agent.counts["barriers_given_up"] == 0) == allowed
    assert caplog.text.count("broker 'a' refuses probes (0x87)") == (not allowed)
    assert "broadloom_live_probes_refused_total" in link_metrics(agent)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_lost_state_costs_nothing_that_waits_in_brokers(tmp_path, caplog, fresh):
    """Unless it is asked for: an agent with a new folder carries what was published while there was none."""

    async def held(lab, state, load):
        agent = LinkAgent(endpoints_of(lab).__getitem__, tmp_path / state, fresh=fresh)
        await agent.start()
        agent.retarget({X: both("ab")})
        await agent.settled()
        counts = await load.settle(1.0 if fresh else 60.0)
        await agent.stop()
        return counts

    async def story(lab):
        load = Load(endpoints_of(lab), {"b": ["x"]})
        await load.start()
        await held(lab, "one", load)
        while load.due < 50:
            load.publish("a", "x")
            await asyncio.sleep(0.01)
        counts = await held(lab, "two", load)
        await load.stop()
        return counts

    with lab_of(*"ab") as lab:
        counts = asyncio.run(story(lab))
    assert (counts["due"], counts["lost"], counts["doubled"]) == (50, 50 if fresh else 0, 0)
    assert caplog.text.count("though the state is new") == (0 if fresh else 2)


def test_control_topics_cross_no_link_even_where_all_topics_do(tmp_path):
    control = "broadloom/from/somebody/register"

    async def story(lab):
        async with loaded(lab, tmp_path, (), {"b": ["free", control]}) as (agent, load):
            agent.retarget({("#",): both("ab")})
            await agent.settled()
            for topic in (control, "free"):
                load.publish("a", topic)
            await until(lambda: load.got)
            await asyncio.sleep(0.3)  # for what should not come
            return load.got

    with lab_of(*"ab") as lab:
        assert asyncio.run(story(lab)) == {("b", 1): 1}
