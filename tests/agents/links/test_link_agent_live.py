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
NO_FAULTS = {"lost": 0, "doubled": 0}


def unlinked_lab(*brokers):
    """Running brokers without links."""
    return MosquittoLab(Wiring(tuple(brokers), {}, {}, ()))


def endpoints_of(lab):
    return {broker: Endpoint(HOST, port) for broker, port in lab.ports.items()}


def both_hops(*pairs):
    """The two hops of each pair of brokers."""
    return frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))


def faults(counts):
    """The numbers of lost and duplicated messages."""
    return {name: counts[name] for name in NO_FAULTS}


@asynccontextmanager
async def agent_under_load(lab, folder, pairs, wants, rate=0, **options):
    """A running agent with the links of topic x, and a load; both stop with the block."""
    agent = LinkAgent(endpoints_of(lab).__getitem__, folder, **options)
    load = Load(endpoints_of(lab), wants)
    await agent.start()
    agent.retarget({X: both_hops(*pairs)})
    await agent.settled()
    await load.start()
    if rate:
        load.run(rate)
    yield agent, load
    await agent.stop()
    await load.stop()


async def final_counts(load):
    """Stop publishing, wait for the last messages, and return the counts."""
    await load.pause()
    return await load.settle()


async def publish_more(load, count):
    """Wait until the load has published that many more messages."""
    end = len(load.published) + count
    await wait_until(lambda: len(load.published) >= end)


async def publish_at_all(load, count):
    """Publish exactly that many messages of topic x, at all brokers in turn."""
    brokers = sorted(load.wants)
    for number in range(count):
        while not load.publish(brokers[number % len(brokers)], "x"):
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)


async def wait_until(done, seconds=60.0):
    """Wait for a condition; fail if it does not hold in time."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, f"the condition does not hold within {seconds:g} s"
        await asyncio.sleep(0.01)


def wants_of(interest):
    """The topics of each broker."""
    topics = (interest.topics_of(node) for node in range(interest.node_count))
    return dict(
        zip(interest.node_ids, ([interest.topic_ids[t] for t in some] for some in topics), strict=True)
    )


def test_the_busiest_of_eight_brokers_leaves_and_returns_without_lost_or_duplicated_messages(tmp_path):
    """By events in a file; no message reaches the broker after it has left."""
    interest = bl.workload.interest(nodes=8, topics=12, sizes=(4, 6), seed=1)
    plan, wants = bl.link(interest, algorithm="gm"), wants_of(interest)
    events = tmp_path / "events.jsonl"
    busiest = interest.node_ids[plan.overlay.degrees().argmax()]

    def write_event(seq, kind, topics=None):
        with events.open("a") as file:
            file.write(json.dumps({"seq": seq, "kind": kind, "node": busiest, "topics": topics}) + "\n")

    async def scenario(lab):
        agent = LinkAgent(endpoints_of(lab).__getitem__, tmp_path / "state")
        run, load = LinkRun(agent, EventFile(plan, events)), Load(endpoints_of(lab), wants)
        await agent.start()
        following = asyncio.create_task(run.follow())
        await wait_until(lambda: agent.counts["changes"] == 1)
        await load.start()
        load.run(500)
        for turn in range(2):
            await publish_more(load, 150)
            await load.move_off(busiest)  # clients leave first, as in a migration
            write_event(2 * turn, "leave")
            await wait_until(lambda: not any(busiest in edge for edge in agent.links))
            before = received(lab, busiest)
            await publish_more(load, 250)
            assert received(lab, busiest) == before
            write_event(2 * turn + 1, "join", wants[busiest])
            await wait_until(lambda turn=turn: agent.counts["changes"] == 3 + 2 * turn)
            await load.move_to(busiest, wants[busiest])
        await load.pause()
        counts = await load.settle()
        run.stop()
        await following
        await agent.stop()
        await load.stop()
        return counts

    with unlinked_lab(*interest.node_ids) as lab:
        counts = asyncio.run(scenario(lab))
    assert faults(counts) == NO_FAULTS
    assert counts["due"] > 1000


def received(lab, broker):
    """The number of messages received by a broker, except probes, which can be repeated late."""
    for log in lab.logs[broker]:
        log.read()
    counts = [log.received for log in lab.logs[broker]]
    return sum(count for one in counts for (_, topic), count in one.items() if topic != PROBE)


def run_until_killed(state, ports, pairs, phase):
    """Run an agent in this process until it is killed in the middle of a phase, or until it has finished."""
    save = group.CarriedGroup._save

    async def save_and_kill(self, state):
        await save(self, state)
        if state.phase == phase:
            await asyncio.sleep(0.02)  # into the middle of the phase
            os.kill(os.getpid(), signal.SIGKILL)

    async def scenario():
        agent = LinkAgent(lambda broker: Endpoint(HOST, ports[broker]), state)
        await agent.start()
        await agent.settled()
        agent.retarget({("x",): both_hops(*pairs)})
        await agent.settled()
        await agent.stop()

    group.CarriedGroup._save = save_and_kill
    asyncio.run(scenario())


def test_an_agent_killed_in_any_phase_loses_and_duplicates_nothing(tmp_path):
    """SIGKILL in the middle of each phase, under load; each new agent continues the change."""
    path, star = ("ab", "bc", "cd"), ("ab", "ac", "ad")
    runs = [(None, path), ("mark", star), ("both", path), ("leave", star), ("forget", path)]
    runs += [("drop", ("ab", "bc")), ("add", path), (None, star)]
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["broadloom.agents.links.link_service"])

    async def scenario(lab):
        load = Load(endpoints_of(lab), dict.fromkeys("abcd", X))
        await load.start()
        for phase, pairs in runs:
            if phase == "drop":
                await load.move_off("d")
            arguments = (tmp_path, lab.ports, pairs, phase)
            process = processes.Process(target=run_until_killed, args=arguments, daemon=True)
            process.start()
            await asyncio.to_thread(process.join, 60)
            assert process.exitcode == (-signal.SIGKILL if phase else 0), phase
            if not load.published:
                load.run(200)
            await publish_more(load, 40)
        await load.pause()
        agent = LinkAgent(endpoints_of(lab).__getitem__, tmp_path)
        await agent.start()
        counts = await load.settle()
        await agent.stop()
        await load.stop()
        return counts

    with unlinked_lab(*"abcd") as lab:
        counts = asyncio.run(scenario(lab))
    assert faults(counts) == NO_FAULTS
    assert counts["due"] > 300


def test_a_broker_that_restarts_under_load_loses_and_duplicates_nothing(tmp_path):
    """The middle one of three brokers is down for a while."""

    async def scenario(lab):
        async with agent_under_load(lab, tmp_path, ("ab", "bc"), {"a": X, "c": X}, rate=300) as (_, load):
            await publish_more(load, 90)
            lab.stop("b")
            await publish_more(load, 150)
            lab.start("b")
            lab.wait_until_listening(["b"])
            await publish_more(load, 90)
            return await final_counts(load)

    with unlinked_lab(*"abc") as lab:
        counts = asyncio.run(scenario(lab))
    assert faults(counts) == NO_FAULTS
    assert counts["due"] > 200


def test_a_change_completes_without_a_broker_that_was_killed(tmp_path):
    """The others go on without it and get each message once; it returns as a broker that joins."""

    async def scenario(lab):
        wants = {"a": X, "c": X, "d": X}
        async with agent_under_load(lab, tmp_path, ("ab", "bc", "bd"), wants, patience=0.5) as (agent, load):
            lab.stop("b", kill=True)
            agent.retarget({X: both_hops("ac", "cd")})
            await asyncio.wait_for(agent.settled(), 60)
            assert agent.counts["barriers_given_up"]
            await wait_until(agent.is_up)  # the barrier of a slow broker can be given up, too
            load.run(300)
            await publish_more(load, 90)
            lab.start("b")
            lab.wait_until_listening(["b"])
            await load.clients["b"].up.wait()
            agent.retarget({X: both_hops("ab", "ac", "cd")})
            await agent.settled()
            await wait_until(agent.is_up)
            await load.move_to("b", X)
            await publish_more(load, 90)
            return await final_counts(load)

    with unlinked_lab(*"abcd") as lab:
        assert faults(asyncio.run(scenario(lab))) == NO_FAULTS


def test_a_stalled_far_broker_stops_the_flow_and_memory_stays_bounded(tmp_path):
    """At most `window` messages are in the agent; the near broker queues the others."""

    async def scenario(lab):
        async with agent_under_load(lab, tmp_path, ("ab",), {"a": X, "b": X}) as (agent, load):
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
            return await final_counts(load), most

    with unlinked_lab(*"ab") as lab:
        counts, most = asyncio.run(scenario(lab))
    assert faults(counts) == NO_FAULTS
    assert counts["due"] == 2000
    assert 0 < most <= Endpoint.window


def test_messages_without_ids_are_never_lost(tmp_path):
    async def scenario(lab):
        path, star = ("ab", "bc", "cd"), ("ab", "ac", "ad")
        async with agent_under_load(lab, tmp_path, path, dict.fromkeys("abcd", X)) as (agent, load):
            load.identified = False
            for pairs in (star, path, star, path, star):
                await publish_at_all(load, 200)
                await wait_until(lambda: not load.missing)
                agent.retarget({X: both_hops(*pairs)})
                await publish_at_all(load, 15)  # only messages published now can be duplicated
                await agent.settled()
            return await final_counts(load)

    with unlinked_lab(*"abcd") as lab:
        counts = asyncio.run(scenario(lab))
    assert counts["lost"] == 0
    assert counts["doubled"] < counts["due"] / 10


@pytest.mark.parametrize("filters", [("+/b", "a/#", "a/b"), ("+/b", "a/+")])
def test_overlapping_filters_deliver_each_message_once(tmp_path, filters):
    """Mosquitto sends a session one copy per filter that matches the topic."""

    async def scenario(lab):
        async with agent_under_load(lab, tmp_path, (), dict.fromkeys("abc", ("a/b",))) as (agent, load):
            for pairs in (("ab", "bc"), ("ab", "ac")):
                agent.retarget({filters: both_hops(*pairs)})
                await agent.settled()
                await load.pause()
                load.run(300)
                await publish_more(load, 60)
            return await final_counts(load)

    with unlinked_lab(*"abc") as lab:
        assert faults(asyncio.run(scenario(lab))) == NO_FAULTS


def test_a_retained_message_reaches_a_broker_that_joins_once(tmp_path):
    """A link that reconnects does not deliver it again."""

    def retain(port):
        with socket.create_connection((HOST, port)) as connection:
            message = publish("x", b"0", 1)
            connection.sendall(
                connect("retain", True, 60, 0, 10) + bytes((message[0] | RETAIN,)) + message[1:]
            )
            answers, reader = set(), PacketReader()
            while PUBACK not in answers:  # acknowledged, so it is retained
                answers.update(kind for kind, _, _ in reader.feed(connection.recv(1000)))

    async def scenario(lab):
        await asyncio.to_thread(retain, lab.ports["a"])
        async with agent_under_load(lab, tmp_path, (), {"b": X, "c": X}) as (agent, load):
            for pairs in (("ab",), ("ab", "bc"), ("ab", "ac")):
                agent.retarget({X: both_hops(*pairs)})
                await agent.settled()
            await wait_until(lambda: len(load.got) == 2)
            await asyncio.sleep(0.3)  # time for a duplicate, which must not arrive
            return load.got

    with unlinked_lab(*"abc") as lab:
        assert asyncio.run(scenario(lab)) == {("b", 0): 1, ("c", 0): 1}


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


class LockedLab(MosquittoLab):
    """Brokers that require a login, with some more lines in their configuration files."""

    def __init__(self, names, lines):
        super().__init__(Wiring(tuple(names), {}, {}, ()))
        self._lines = "\n".join(["allow_anonymous false", *lines])

    def configure(self, broker, wiring):
        """Write the broker's configuration file, without anonymous access."""
        super().configure(broker, wiring)
        path = self._folder_of(broker) / "mosquitto.conf"
        path.write_text(path.read_text().replace("allow_anonymous true", self._lines))

    @property
    def addresses(self):
        """The addresses of the brokers."""
        return {broker: f"{HOST}:{port}" for broker, port in self.ports.items()}


@pytest.fixture
def guarded_broker(tmp_path):
    """Two brokers with TLS, a password and a temporary certificate authority."""
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
        yield Settings(addresses=lab.addresses, certificates=str(tmp_path), credentials=True)


@pytest.mark.needs("openssl", "mosquitto_passwd")
def test_links_over_tls_with_a_login(guarded_broker, monkeypatch, tmp_path, caplog):
    """With the right password; a wrong one is refused with a short message, and is never logged."""

    @asynccontextmanager
    async def linking():
        agent = LinkAgent(settings_endpoints(guarded_broker), tmp_path / "state", patience=0.5)
        await agent.start()
        agent.retarget({("x",): both_hops("ab")})
        yield agent
        await agent.stop()

    async def refused():
        async with linking() as agent:
            await wait_until(lambda: "refuses the connection" in caplog.text)
            assert not any(session.up.is_set() for session in agent.links["a", "b"].sessions.values())

    async def linked():
        async with linking() as agent:
            await wait_until(lambda: agent.links and agent.is_up())
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


def test_the_command_follows_events_serves_metrics_and_exits_cleanly(tmp_path):
    """`broadloom deploy live`: a join in the file, a metrics page, SIGTERM, and exit code 0."""
    events = tmp_path / "events.jsonl"

    async def scenario(lab):
        (port,) = free_ports(1)
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

    with unlinked_lab(*"abc") as lab:
        ids = [str(lab.ports[broker]) for broker in "abc"]
        interest = bl.Interest.from_lists([["x"], ["x"], ["x"]], node_ids=ids)
        bl.link(interest, algorithm="gm").save(tmp_path / "plan")
        record = asyncio.run(scenario(lab))
    assert record["changes"] == 2
    assert record["links"] == 1


def metrics(port, expected, seconds=60.0):
    """The metrics page, as soon as it contains a text."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/metrics") as response:
                page = response.read().decode()
        except OSError:
            page = ""
        if expected in page:
            return page
        time.sleep(0.05)
    raise AssertionError(f"{expected} is not in {page}")


def test_take_down_removes_links_and_their_sessions(tmp_path):
    async def scenario(lab):
        for act in ("up", "down", "again"):
            agent = LinkAgent(endpoints_of(lab).__getitem__, tmp_path)
            if act == "down":
                await take_down_links(agent)
                continue
            await agent.start()
            assert not agent.links
            agent.retarget({("x",): both_hops("ab")})
            await agent.settled()
            await agent.stop()

    with unlinked_lab(*"ab") as lab:
        asyncio.run(scenario(lab))


def test_plans_without_links_contact_no_broker(tmp_path):
    """An empty plan, one broker, and topics with at most one subscriber."""
    for lists in ([], [["x"]], [[], []], [["x"], ["y"]]):
        observed = bl.Publishers("observed")
        plan = bl.link(bl.Interest.from_lists(lists), algorithm="gm", publishers=observed)
        assert not any(target_hops(plan).values())

        async def scenario(plan=plan):
            agent = LinkAgent(lambda broker: pytest.fail(f"contacted {broker}"), tmp_path / "state")
            run = LinkRun(agent, FixedPlan(plan))
            await agent.start()
            asyncio.get_running_loop().call_later(0.2, run.stop)
            await run.follow()
            await agent.settled()
            await agent.stop()

        asyncio.run(scenario())


@pytest.mark.needs("mosquitto_passwd")
@pytest.mark.parametrize("allowed", [True, False])
def test_a_change_completes_even_if_probes_are_not_allowed(tmp_path, monkeypatch, caplog, allowed):
    """With the exported rules no barrier is given up; without those for probes it is, with a warning."""
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

    async def scenario(addresses):
        patience = 60 if allowed else 1.5
        agent = LinkAgent(
            settings_endpoints(Settings(addresses=addresses, tls=False, credentials=True)),
            tmp_path / "s",
            patience=patience,
        )
        await agent.start()
        for pairs in (("ab", "bc"), ("ab", "ac")):
            agent.retarget({X: both_hops(*pairs)})
            await asyncio.wait_for(agent.settled(), 60)
        await agent.stop()
        return agent

    with LockedLab("abc", lines) as lab:
        agent = asyncio.run(scenario(lab.addresses))
    assert (agent.counts["probes_refused"] == 0) == allowed
    assert (agent.counts["barriers_given_up"] == 0) == allowed
    assert caplog.text.count("broker 'a' refuses probes (0x87)") == (not allowed)
    assert "broadloom_live_probes_refused_total" in link_metrics(agent)


@pytest.mark.parametrize("fresh", [False, True])
def test_an_agent_with_a_new_state_folder_forwards_queued_messages_unless_it_is_fresh(
    tmp_path, caplog, fresh
):
    """Messages published while no agent was running wait in the sessions of the brokers."""

    async def run_agent(lab, state, load):
        agent = LinkAgent(endpoints_of(lab).__getitem__, tmp_path / state, fresh=fresh)
        await agent.start()
        agent.retarget({X: both_hops("ab")})
        await agent.settled()
        counts = await load.settle(1.0 if fresh else 60.0)
        await agent.stop()
        return counts

    async def scenario(lab):
        load = Load(endpoints_of(lab), {"b": ["x"]})
        await load.start()
        await run_agent(lab, "one", load)
        while load.due < 50:
            load.publish("a", "x")
            await asyncio.sleep(0.01)
        counts = await run_agent(lab, "two", load)
        await load.stop()
        return counts

    with unlinked_lab(*"ab") as lab:
        counts = asyncio.run(scenario(lab))
    assert (counts["due"], counts["lost"], counts["doubled"]) == (50, 50 if fresh else 0, 0)
    assert caplog.text.count("though the state is new") == (0 if fresh else 2)


def test_control_topics_cross_no_link_even_with_a_wildcard_for_all_topics(tmp_path):
    control = "broadloom/from/client/register"

    async def scenario(lab):
        async with agent_under_load(lab, tmp_path, (), {"b": ["other", control]}) as (agent, load):
            agent.retarget({("#",): both_hops("ab")})
            await agent.settled()
            for topic in (control, "other"):
                load.publish("a", topic)
            await wait_until(lambda: load.got)
            await asyncio.sleep(0.3)  # time for a control message, which must not arrive
            return load.got

    with unlinked_lab(*"ab") as lab:
        assert asyncio.run(scenario(lab)) == {("b", 1): 1}
