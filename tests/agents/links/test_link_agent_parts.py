"""The parts of the link agent: packets, steps between trees, guards, the journal, targets and sources."""

import asyncio
import json
import os
import random
import struct
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import broadloom as bl
from broadloom.agents.links import carried_groups as journal_module
from broadloom.agents.links.agent_link import HopForwarder, PacketStore
from broadloom.agents.links.carried_groups import (
    JOURNAL_FILE,
    JOURNAL_MAGIC,
    CarriedGroup,
    GroupState,
    LinkJournal,
)
from broadloom.agents.links.link_agent import LinkAgent
from broadloom.agents.links.link_service import (
    LinkRun,
    serve_links,
    serve_metrics,
    settings_endpoints,
    take_down_links,
)
from broadloom.agents.links.plan_sources import AddressedPlans, EventFile, FixedPlan, PlanVersions
from broadloom.agents.links.swap_guards import SwapGuard
from broadloom.agents.links.tree_changes import Step, edges, next_step, path_between, target_hops
from broadloom.deployment import Publication, Settings
from broadloom.errors import InputError
from broadloom.mqtt import packets
from broadloom.mqtt.client_session import ClientSession, SessionHandler, watched_task
from broadloom.mqtt.endpoint import Endpoint, Login
from broadloom.mqtt.packets import PacketReader, ProtocolError, Publish, publish, read_publish

# Packets.

TEXTS = st.text(st.characters(exclude_characters="+#\0", exclude_categories=["Cs"]), min_size=1, max_size=30)


def one_packet(data):
    """Kind, bytes and header length of a single packet."""
    ((kind, raw, head),) = PacketReader().feed(data)
    return kind, raw, head


@given(
    topic=TEXTS,
    payload=st.binary(max_size=300),
    number=st.integers(0, 65535),
    names=st.lists(TEXTS, max_size=9),
)
def test_a_message_survives_writing_and_reading(topic, payload, number, names):
    properties = [(name.encode(), b"value") for name in names]
    kind, raw, head = one_packet(publish(topic, payload, number, properties))
    message = read_publish(raw, head)
    assert (kind, message.topic, message.number) == (packets.PUBLISH, topic, number)
    assert message.payload() == payload
    assert message.key == 0
    stamped = message.stamped(b"id")
    again = read_publish(*one_packet(stamped.raw)[1:])
    assert again == stamped
    assert again.key != 0
    assert again.payload() == payload
    assert len(stamped.raw) > len(raw)


@given(chunks=st.lists(st.integers(1, 40), max_size=60), sizes=st.lists(st.integers(0, 200), max_size=8))
def test_packets_are_complete_however_the_stream_is_split(chunks, sizes):
    sent = [publish("x", b"." * size, number + 1) for number, size in enumerate(sizes)]
    stream, got, reader = b"".join(sent), [], PacketReader()
    for size in [*chunks, len(stream)]:
        got += [raw for _, raw, _ in reader.feed(stream[:size])]
        stream = stream[size:]
    assert got == sent


def fuzzed(rng):
    """A valid packet with some bytes changed, removed or added."""
    valid = [
        publish("a/b", b"payload", 7, [(packets.ID_PROPERTY, b"1"), (b"other", b"2")]),
        packets.acknowledgement(packets.PUBACK, 9),
        struct.pack(">BBBBBBH", 0x20, 6, 1, 0, 3, 0x21, 20),
        bytes((0x90, 4, 0, 1, 0, 1)),
        bytes((0xE0, 1, 0x8E)),
    ]
    data = bytearray(rng.choice(valid))
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
    return bytes(data)


def test_ten_thousand_malformed_packets_close_the_connection_or_are_ignored():
    """The session neither fails otherwise nor waits for an impossible length."""

    async def scenario():
        rng = random.Random(0)
        refused = 0
        for _ in range(10_000):
            session = ClientSession("a", "client", Endpoint("", 0), SessionHandler())
            session._welcome = asyncio.get_running_loop().create_future()
            session._welcome.set_result(None)
            session._transport = FakeTransport()
            session._packets = PacketReader()
            session.data_received(fuzzed(rng))
            refused += session._transport.closed
        return refused

    assert 1000 < asyncio.run(scenario()) < 10_000


class FakeTransport:
    """Transport that can only be closed."""

    closed = False

    def abort(self):
        """Close it."""
        self.closed = True


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x30\xff\xff\xff\xff\x01", "a length has more than four bytes"),
        (b"\x10\x00", "a packet begins with 0x10"),
        (b"\x62\x02\x00\x01", None),
        (publish("x", b"", 1).replace(b"\x32", b"\x36", 1), "a message at QoS 3"),
        (publish("x", b"", 1).replace(b"x\x00\x01", b"x\x00\x00"), "packet id 0"),
        (publish("+", b""), "wildcard"),
        (publish("x", b"").replace(b"x", b"\xff"), "not UTF-8"),
        (b"\x30\x04\x00\x01x\x05", "properties exceed their packet"),
        (b"\x30\x03\x00\x09x", "a string exceeds its packet"),
    ],
)
def test_malformed_packets_are_refused_with_a_short_message(data, message):
    if message is None:
        assert [kind for kind, _, _ in PacketReader().feed(data)] == [packets.PUBREL]
        return
    with pytest.raises(ProtocolError, match=message):
        [read_publish(raw, head) for _, raw, head in PacketReader().feed(data)]


def test_the_repr_of_a_login_hides_the_password():
    assert "secret" not in repr(Login("name", "secret"))


# Steps between trees.


def random_hops(rng, brokers, one_way):
    """The hops of a random tree of some brokers, optionally with a leaf that only publishes."""
    order = rng.sample(brokers, rng.randint(0, len(brokers)))
    hops = set()
    for index in range(1, len(order)):
        u, v = order[index], rng.choice(order[:index])
        hops |= {(u, v), (v, u)}
    if one_way and len(order) > 1:  # a broker that only publishes
        leaf = next((one for one in order if sum(one in edge for edge in edges(hops)) == 1), None)
        hops = {hop for hop in hops if hop[1] != leaf}
    return frozenset(hops)


@given(seed=st.integers(0, 10**6), one_way=st.booleans())
def test_steps_lead_to_the_target_without_cycles_or_disconnected_brokers(seed, one_way):
    """After each step the hops are a forest that connects the brokers of both trees."""
    rng = random.Random(seed)
    brokers = "abcdefg"[: rng.randint(2, 7)]
    now, target = (random_hops(rng, brokers, one_way) for _ in range(2))
    staying = {broker for hop in now for broker in hop} & {broker for hop in target for broker in hop}
    swaps = 0
    while step := next_step(now, target):
        assert not step.add & now
        assert step.drop <= now
        now = now - step.drop | step.add
        swaps += bool(step.add and step.drop)
        for u, v in edges(now):
            assert path_between(edges(now) - {(u, v)}, u, v) is None  # no cycle
        for broker in staying:
            assert path_between(edges(now), min(staying), broker) is not None
        assert swaps <= len(brokers)
    assert now == target


def test_an_inner_broker_becomes_a_leaf_before_it_is_removed():
    pairs = lambda *names: frozenset(hop for u, v in names for hop in ((u, v), (v, u)))  # noqa: E731
    now, target = pairs("xa", "xb", "xc"), pairs("ab", "bc")
    taken = []
    while step := next_step(now, target):
        taken.append((sorted(edges(step.add)), sorted(edges(step.drop))))
        now = now - step.drop | step.add
    assert [bool(add) for add, _ in taken] == [True, True, False]
    assert all("x" in edge for _, drop in taken for edge in drop)


# Files that outlive the agent.


def test_claims_outlive_the_agent_and_a_truncated_one_is_removed(tmp_path):
    hops, path = [("a", "b"), ("b", "a"), ("a", "c")], tmp_path / "x.claims"
    guard = SwapGuard(hops, path)
    assert guard.claim(("a", "b"), 7)
    guard.close()
    path.write_bytes(path.read_bytes() + b"part")
    again = SwapGuard(reversed(hops), path)
    assert not again.claim(("a", "c"), 7)
    assert again.claim(("a", "b"), 7)
    again.close(forget=True)
    assert not path.exists()


def test_a_claim_truncated_by_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    """Neither in the file, where it would make later claims unreadable, nor in memory."""
    hops, path = [("a", "b"), ("b", "a")], tmp_path / "x.claims"
    guard, write = SwapGuard(hops, path), os.write
    assert guard.claim(("a", "b"), 7)
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:4]))
    with pytest.raises(OSError, match="No space left"):
        guard.claim(("b", "a"), 8)
    monkeypatch.undo()
    assert guard.claim(("a", "b"), 9)
    guard.close()
    again = SwapGuard(hops, path)
    assert [again.claim(("b", "a"), key) for key in (7, 8, 9)] == [False, True, False]
    again.close()


def test_the_journal_keeps_states_and_removes_a_truncated_record(tmp_path):
    hops = frozenset({("a", "b"), ("b", "a")})
    states = [
        GroupState(("x",), hops),
        GroupState(("y",), hops, Step(hops, frozenset()), "add"),
        GroupState(("x",)),
    ]

    async def scenario():
        journal = LinkJournal(tmp_path)
        await asyncio.gather(*map(journal.save, states))
        with pytest.raises(InputError, match="open already"):
            LinkJournal(tmp_path)
        await journal.end()

    asyncio.run(scenario())
    path = tmp_path / JOURNAL_FILE
    whole = path.read_bytes()
    path.write_bytes(whole + whole[-9:])
    journal = LinkJournal(tmp_path)
    assert journal.states == {("y",): states[1]}
    journal.close()
    path.write_bytes(whole.replace(b"add", b"mad") + whole[len(JOURNAL_MAGIC) :])
    with pytest.raises(InputError, match="damaged at byte"):
        LinkJournal(tmp_path)
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="not a journal"):
        LinkJournal(tmp_path)


@pytest.mark.parametrize("fallocate", [True, False])
def test_a_packet_store_outlives_the_agent(tmp_path, monkeypatch, fallocate):
    if not fallocate:  # as on macOS
        monkeypatch.delattr("os.posix_fallocate", raising=False)
    store = PacketStore(tmp_path / "a:b.slots")
    store[65535] = 2**64 - 1
    store.close()
    again = PacketStore(tmp_path / "a:b.slots")
    assert again[65535] == 2**64 - 1
    assert (
        tmp_path / "a:b.slots"
    ).stat().st_blocks * 512 >= 65536 * 8  # otherwise a full disk would kill the agent
    again.clear()
    assert again[65535] == 0
    again.close()


def test_a_packet_store_in_memory_can_be_cleared():
    store = PacketStore()
    store[7] = 9
    store.clear()
    assert store[7] == 0
    store.close()


def test_a_forwarder_acknowledges_completed_messages_in_order():
    near, far = [], []
    forwarder = HopForwarder(PacketStore(), lambda message: None if message.topic == "dropped" else message)
    forwarder.near_opens(near.append, present=False)
    forwarder.far_opens(far.append, present=False, quota=2, largest=100)
    for number, topic in ((1, "x"), (2, "dropped"), (3, "x"), (4, "x")):
        forwarder.arrive(Publish(publish(topic, b"", number), 2, topic, number, number))
    assert len(far) == 2  # the far broker takes two at a time
    forwarder.stored(3, 0)
    forwarder.completed(3)
    assert near == []
    forwarder.stored(1, 0)
    forwarder.completed(1)
    assert near == [packets.acknowledgement(packets.PUBACK, number) for number in (1, 2, 3)]
    assert list(forwarder.in_flight) == [4]


def forwarder_with_a_message(far):
    """A forwarder with one message; the near broker has a new session, and the far one an old session."""
    forwarder = HopForwarder(PacketStore(), lambda message: message)
    forwarder.near_opens(lambda _: None, present=False)
    forwarder.far_opens(far.append, present=True, quota=20, largest=100)
    forwarder.arrive(Publish(publish("x", b"", 1), 2, "x", 1, 5))
    return forwarder


def test_packet_ids_that_the_far_broker_can_still_hold_are_released_first():
    """The near broker has lost its session, so its packet ids start again; the far one can hold old ones."""
    far = []
    forwarder = forwarder_with_a_message(far)
    assert [packet[0] >> 4 for packet in far] == [6]
    forwarder.completed(1)
    assert [packet[0] >> 4 for packet in far] == [6, 3]


def test_messages_are_sent_again_to_a_far_broker_that_lost_its_session():
    far = []
    forwarder = forwarder_with_a_message(far)
    forwarder.completed(1)
    forwarder.stored(1, 0)
    forwarder.far_closes()
    forwarder.far_opens(far.append, present=False, quota=20, largest=100)
    assert [packet[0] >> 4 for packet in far] == [6, 3, 6, 3]


# Target hops and plan sources.


def test_trees_keep_the_edges_that_the_new_plan_still_has():
    """Even if another tree would be better."""
    interest = bl.workload.interest(nodes=12, topics=8, sizes=(3, 6), seed=3)
    live = bl.maintain(interest)
    before = target_hops(live.plan())
    live.leave(0)
    after = target_hops(live.plan(), before=before)
    links = {tuple(sorted((live.name_of(u), live.name_of(v)))) for u, v in live.edges.tolist()}
    for filters, hops in before.items():
        members = {broker for hop in after.get(filters, ()) for broker in hop}
        kept = {edge for edge in edges(hops) & links if members.issuperset(edge)}
        assert kept <= edges(after.get(filters, frozenset()))


def test_a_broker_that_only_publishes_has_a_single_hop():
    plan = bl.link(bl.Interest.from_lists([["x"], ["x"], []]), algorithm="gm")
    hops = target_hops(plan, [Publication(2, "x")])["x",]
    assert ("2", "0") in hops
    assert ("0", "2") not in hops


def test_separate_filters_cannot_join_one_tree_live():
    separate = bl.link(bl.Interest.from_lists([["a/b", "a/c"], ["a/b", "a/c"]]), algorithm="gm")
    joined = bl.link(bl.Interest.from_lists([["a/b", "a/#"], ["a/b", "a/#"]]), algorithm="gm")
    with pytest.raises(InputError, match="need one tree; this cannot change live"):
        target_hops(joined, before=target_hops(separate))


@pytest.mark.parametrize(
    "topic", ["$SYS/x", "$share/g/x", "broadloom/#", "broadloom/to/+/move", "a#", "a/#/b", "x" * 70_000]
)
def test_topics_that_no_link_can_carry_are_refused(topic):
    plan = bl.link(bl.Interest.from_lists([[topic], [topic]]), algorithm="gm")
    with pytest.raises(InputError, match="not a filter that a link can carry"):
        target_hops(plan)


def test_an_event_file_is_followed_while_it_grows(tmp_path):
    path = tmp_path / "events.jsonl"
    source = EventFile(bl.link(bl.Interest.from_lists([["x"], ["x"]]), algorithm="gm"), path)
    assert source.poll().interest.node_count == 2
    assert source.poll() is None
    line = json.dumps({"seq": 1, "kind": "join", "node": "new", "topics": ["x", "y"]})
    path.write_text(line[:10])
    assert source.poll() is None  # an incomplete line
    path.write_text(line + "\nnonsense\n")
    assert source.poll().interest.node_ids == ("0", "1", "new")
    assert source.refused == 1
    assert source.poll() is None


def event(seq, node):
    """The line of a broker that joins."""
    return json.dumps({"seq": seq, "kind": "join", "node": node, "topics": ["x"]}, ensure_ascii=False) + "\n"


def test_a_truncated_or_replaced_event_file_is_read_from_the_start(tmp_path):
    """Lines end with a line feed only, not with other line separators of Unicode."""
    path = tmp_path / "events.jsonl"
    source = EventFile(bl.link(bl.Interest.from_lists([["x"], ["x"]]), algorithm="gm"), path)
    path.write_text(event(1, "one") + event(2, "t\u2028w\u0085o"))
    assert source.poll().interest.node_ids[2:] == ("one", "t\u2028w\u0085o")
    path.write_text(event(3, "three"))
    assert source.poll().interest.node_count == 5
    (tmp_path / "next").write_text(event(3, "three") + event(4, "four") + event(5, "five"))
    (tmp_path / "next").replace(path)
    assert source.poll().interest.node_count == 7
    assert source.refused == 1  # seq 3, repeated
    assert source.poll() is None


def test_the_plan_versions_of_a_stream_are_followed(tmp_path):
    plans = [bl.link(bl.Interest.from_lists([["x"]] * count), algorithm="gm") for count in (2, 3, 4)]
    source = PlanVersions(tmp_path, plans[0])
    assert source.poll() is plans[0]
    assert source.poll() is None
    for version in (1, 2):
        plans[version].save(tmp_path / "versions" / f"{version:012d}")
    (tmp_path / "versions" / "000000000003.tmp").mkdir()
    assert source.poll().interest.node_count == 4
    assert source.poll() is None


@pytest.mark.parametrize("kind", [bl.InputError, bl.StorageError])
def test_an_unreadable_version_leaves_the_first_plan(tmp_path, monkeypatch, kind):
    plan = bl.link(bl.Interest.from_lists([["x"]] * 2), algorithm="gm")
    plan.save(tmp_path / "versions" / f"{1:012d}")
    source = PlanVersions(tmp_path, plan)

    def unreadable(_):
        raise kind("permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("broadloom.plans.Plan.load", unreadable)
        assert source.poll() is plan
    assert source.poll().interest.node_count == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--events", "e", "--follow", "f"), "give one of them"),
        (("--credentials",), "set BROADLOOM_USER"),
        (("--certificates", "nowhere"), "cannot be used for TLS"),
        (("--window", "0"), "a whole number from 1"),
        (("--address", "here"), "put {broker} where the id goes"),
        (("--address", "127.0.0.1:x{broker}"), "give host or host:port"),
        (("--address", "a..{broker}"), "give host or host:port"),
        (("--window", "70000"), "from 1 to 65,535"),
        (("--metrics", "99999"), "a port from 1 to 65535"),
        (("--metrics", "0"), "a port from 1 to 65535"),
    ],
)
def test_the_command_refuses_bad_options_in_one_line(run, tmp_path, monkeypatch, options, message):
    monkeypatch.delenv("BROADLOOM_USER", raising=False)
    bl.link(bl.Interest.from_lists([["x"], ["x"]]), algorithm="gm").save(tmp_path / "plan")
    code, out, err = run("deploy", "live", tmp_path / "plan", "--state", tmp_path / "state", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_password_can_be_in_a_file(tmp_path, monkeypatch, caplog):
    (tmp_path / "password").write_text("secret\n")
    (tmp_path / "password").chmod(0o600)
    monkeypatch.setenv("BROADLOOM_USER", "agent")
    monkeypatch.delenv("BROADLOOM_PASSWORD", raising=False)
    monkeypatch.setenv("BROADLOOM_PASSWORD_FILE", str(tmp_path / "password"))
    endpoint = settings_endpoints(Settings(address="{broker}:1", tls=False, credentials=True))("a")
    assert endpoint.login == Login("agent", "secret")
    assert "secret" not in repr(endpoint)
    assert "the password is sent unencrypted" in caplog.text
    (tmp_path / "password").chmod(0o644)
    with pytest.raises(InputError, match="other users can read the secret"):
        settings_endpoints(Settings(credentials=True))


def test_a_long_journal_is_compacted(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "LONGEST_BYTES", 1000)
    hops = frozenset({("a", "b"), ("b", "a")})

    async def scenario():
        journal = LinkJournal(tmp_path)
        for turn in range(50):
            await journal.save(GroupState(("x",), hops, Step(hops, frozenset()), f"phase {turn}"))
        await journal.end()

    asyncio.run(scenario())
    assert (tmp_path / JOURNAL_FILE).stat().st_size < 1500
    journal = LinkJournal(tmp_path)
    assert journal.states[("x",)].phase == "phase 49"
    journal.close()


def test_a_full_disk_leaves_no_partial_record_in_the_journal(tmp_path, monkeypatch):
    """The caller gets the error; the journal stays valid and takes records again later."""
    write = os.write

    def half(file, data):
        write(file, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    async def scenario():
        journal = LinkJournal(tmp_path)
        monkeypatch.setattr(os, "write", half)
        with pytest.raises(OSError, match="No space"):
            await journal.save(GroupState(("x",), frozenset({("a", "b")})))
        monkeypatch.setattr(os, "write", write)
        await journal.save(GroupState(("y",), frozenset({("a", "b")})))
        await journal.end()

    asyncio.run(scenario())
    journal = LinkJournal(tmp_path)
    assert list(journal.states) == [("y",)]
    journal.close()


class BadEndpoint(Endpoint):
    """Endpoint whose connections fail by an unexpected error."""

    tries = 0

    async def open(self, client):  # noqa: ARG002
        """Fail."""
        BadEndpoint.tries += 1
        raise UnicodeError("label empty or too long")


def test_a_session_tries_again_after_any_error(caplog):
    async def scenario():
        session = ClientSession("a", "client", BadEndpoint("", 0), SessionHandler())
        before = BadEndpoint.tries
        session.start()
        async with asyncio.timeout(60):
            while BadEndpoint.tries < before + 2:
                await asyncio.sleep(0.01)
        assert not session._task.done()
        await session.stop()

    asyncio.run(scenario())
    assert "internal error; trying again" in caplog.text


@pytest.mark.parametrize("down", [False, True])
def test_a_failed_task_ends_the_run(tmp_path, monkeypatch, down):
    """And links without sessions are not reported as up."""
    plan = bl.link(bl.Interest.from_lists([["x"], ["x"]]), algorithm="gm")
    reports = []

    async def scenario():
        agent = LinkAgent(lambda _: BadEndpoint("", 0), tmp_path, patience=0.1)

        async def fail():
            while asyncio.get_running_loop().get_exception_handler() is None:
                await asyncio.sleep(0.01)  # until the run watches its tasks
            await asyncio.sleep(1.0)  # time for a report of links, which must not come
            raise KeyError("unexpected error")

        watched_task(fail())
        if down:
            monkeypatch.setattr(agent, "settled", asyncio.Event().wait)
            await take_down_links(agent)
        await serve_links(LinkRun(agent, FixedPlan(plan)), ready=lambda: reports.append("up"))

    with pytest.raises(KeyError, match="unexpected error"):
        asyncio.run(asyncio.wait_for(scenario(), 60))
    assert reports == []


def test_a_metrics_port_in_use_is_reported(tmp_path):
    async def scenario():
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        agent = LinkAgent(lambda _: BadEndpoint("", 0), tmp_path)
        with pytest.raises(InputError, match=f"metrics cannot listen on 127.0.0.1:{port}"):
            await serve_metrics(agent, port)
        server.close()
        await agent.stop()

    asyncio.run(scenario())


def both_hops(*pairs):
    """The two hops of each pair of brokers."""
    return frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))


@pytest.mark.parametrize(
    ("hops", "step", "phase", "target", "down", "disconnected"),
    [
        (("ab", "bc"), None, "", ("ab", "bc"), (), ""),
        (
            ("ab", "bc"),
            None,
            "",
            ("ab", "bc"),
            ("bc",),
            "c",
        ),  # c receives nothing; the others are connected
        (("ab", "bc", "cd"), None, "", ("ab", "bc", "cd"), ("bc",), "abcd"),  # two parts
        ((), (("ab",), ()), "add", ("ab",), (), "ab"),
        (("ab",), (("bc",), ()), "add", ("ab", "bc"), (), "c"),
        (("ab", "bc"), (("ac",), ("ab",)), "both", ("ac", "bc"), ("ac",), ""),
        (
            ("ab", "bc"),
            (("ac",), ("ab",)),
            "both",
            ("ac", "bc"),
            ("ab",),
            "a",
        ),  # ac is not allowed to carry yet
        (("ab", "bc"), (("ac",), ("ab",)), "leave", ("ac", "bc"), ("ab",), ""),
        (("ab", "bc"), ((), ("bc",)), "drop", ("ab",), (), ""),
        (("ab",), None, "", (), (), ""),  # no broker wants it in the target
    ],
)
def test_a_broker_is_joined_if_it_is_connected_to_all_linked_brokers(
    hops, step, phase, target, down, disconnected
):
    """Also during a change: a swap disconnects no broker, and a broker that joins does not delay others."""
    move = step and Step(*(both_hops(*pairs) for pairs in step))
    group = CarriedGroup(GroupState(("x",), both_hops(*hops), move), network=None)
    group.state, group.target = replace(group.state, phase=phase), both_hops(*target)
    members = sorted({broker for pair in target for broker in pair})
    missing = both_hops(*down)
    assert [one for one in members if not group.joins(one, lambda hop: hop not in missing)] == list(
        disconnected
    )
    assert group.joins("z", lambda _: False)  # the only subscriber


def test_a_subscription_that_a_change_did_not_wait_for_is_made_later():
    """By the session once it is connected, even during the change, unless the hop was dropped meanwhile."""

    async def scenario():
        agent, hop = LinkAgent(lambda _: Endpoint("127.0.0.1", 1), patience=0), ("a", "b")
        await agent.open(both_hops(hop))
        await agent.subscribe(hop, ["x"], retained=True)
        pending = list(agent.filters_of(hop)), list(agent.filters_of(hop[::-1]))
        await agent.unsubscribe(hop, ["x"])
        found = *pending, list(agent.filters_of(hop))
        await agent.stop()
        return found

    assert asyncio.run(scenario()) == (["x"], [], [])


def test_a_file_in_place_of_the_state_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"the state cannot be in .*file: File exists; give a folder"):
        LinkJournal(tmp_path / "file")


def test_a_broker_that_joins_has_the_address_of_its_event(tmp_path, caplog):
    """The addresses of a running agent follow its plans; a broker without one is named once."""
    interest = bl.Interest.from_lists([["t"], ["t"]], node_ids=["a", "b"])
    nodes = pa.table({"node": ["a", "b"], "address": ["10.0.0.1", "b.example.org:8883"]})
    plan = replace(bl.link(interest, algorithm="gm"), nodes=nodes)
    events = tmp_path / "events.jsonl"
    addresses: dict[str, str] = {}
    source = AddressedPlans(EventFile(plan, events), addresses)
    assert addresses == {"a": "10.0.0.1", "b": "b.example.org:8883"}
    assert source.poll() is not None
    assert source.poll() is None
    join = {"kind": "join", "topics": ["t"]}
    rows = [join | {"seq": 1, "node": "c", "address": "c.example.org"}, join | {"seq": 2, "node": "d"}]
    events.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert source.poll().interest.node_ids == ("a", "b", "c", "d")
    assert addresses == {"a": "10.0.0.1", "b": "b.example.org:8883", "c": "c.example.org"}
    assert [record.getMessage() for record in caplog.records].count(
        "broker 'd' has no address in the plan; the pattern of --address is used"
    ) == 1
