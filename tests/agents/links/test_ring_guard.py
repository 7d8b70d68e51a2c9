"""The guard against bridges made by hand: site agents on simulated brokers, in simulated time."""

import asyncio
import random
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broadloom.agents.links.ring_guard import (
    CIRCULATING_RATE,
    FIRST_HOLD,
    HOLD_STEP,
    LATE_SECONDS,
    LEFT_SECONDS,
    LONGEST_HOLD,
    MOST_HELD_BYTES,
    MOST_REPEATS,
    RING_SECONDS,
    STAMPED_SECONDS,
    EchoQueue,
    RingGuard,
    content_hash,
    hold_seconds,
)
from broadloom.agents.links.route_orders import AgentOrders, Epoch, Route
from broadloom.agents.links.site_agent import SiteAgent
from broadloom.agents.links.stamps import FleetKey, Stamp, Stamps
from broadloom.mqtt.packets import PacketReader, publish, read_publish
from naive_mqtt import Broker, FakeEndpoint, SimulatedLoop

KEY = FleetKey("only for tests, no secret")
TOPIC = "x"


class BridgedBroker(Broker):
    """A broker with bridges made by hand, which counts what comes over hops apart."""

    def __init__(self, name, rng, delays):
        super().__init__(name, rng)
        self.bridges, self.delays = [], delays
        self.by_hop, self.seen = Counter(), Counter()

    def publish(self, topic, payload, properties=b"", source=None):
        """Route a message, also to the bridges, except to the one that it came from."""
        if topic == TOPIC:
            self.seen[payload] += 1
            self.by_hop[payload] += (source or "").startswith("broadloom-hop")
            for other, bridge, strips in self.bridges:
                if bridge != source:
                    kept = b"" if strips else properties
                    asyncio.get_running_loop().call_later(
                        self.rng.choice(self.delays), other.publish, topic, payload, kept, bridge
                    )
        super().publish(topic, payload, properties, source)


def world(seed, size, bridges, known, delays=(0, 0.001, 0.02), holds=None, count=15, repeats=3, is_sure=True):
    """Publish messages in a tree of brokers with some bridges made by hand; returns the brokers.

    Args:
        seed: of all choices.
        size: how many brokers.
        bridges: pairs of brokers (numbers), whether the bridge has both directions, and drops properties.
        known: whether the brokers announce their bridges.
        delays: of the bridges, in seconds.
        holds: how long guards hold messages; None: as `hold_seconds` says.
        count: how many messages.
        repeats: how many messages each broker publishes before, which can arrive twice.
        is_sure: whether known bridges have brought copies before.
    """
    rng = random.Random(seed)
    names = [f"b{number}" for number in range(size)]
    brokers = {name: BridgedBroker(name, rng, delays) for name in names}
    for number, (one, other, is_both, strips) in enumerate(bridges):
        start, end = brokers[names[one]], brokers[names[other]]
        start.bridges.append((end, f"hand-{number}", strips))
        if is_both:
            end.bridges.append((start, f"hand-{number}", strips))
    order = rng.sample(names, size)
    pairs = [(order[i], rng.choice(order[:i])) for i in range(1, size)]
    hops = frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))
    route = Route(1, (TOPIC,), hops, since=1)
    problems = []

    async def scenario(folder):
        agents = []
        for name in names:
            agent = SiteAgent(
                name,
                lambda other, _: FakeEndpoint("", 0, broker=brokers[other], rng=rng, keep_alive=1000),
                folder / name,
                KEY,
            )
            agent.guard.hold = hold_seconds(name, names) if holds is None else rng.choice(holds)
            await agent.start()
            agent.apply(AgentOrders(Epoch(1, "c"), 1, 1, routes={1: route}))
            agents.append(agent)
            if known and any(name in (names[one], names[other]) for one, other, *_ in bridges):
                agent.set_foreign_bridges({"hand"})
                if is_sure:
                    agent.guard._sure_until = float("inf")
        while any(agent.report().version < 1 or agent.report().opened < 1 for agent in agents):
            await asyncio.sleep(0.1)
        # Agents learn which brokers get copies.
        for number, broker in enumerate([*brokers.values()] * repeats):
            broker.publish(TOPIC, b"first %d" % number)
            await asyncio.sleep(0.1)
        await asyncio.sleep(20)
        for number in range(count):
            rng.choice(list(brokers.values())).publish(TOPIC, b"%d" % number)
            await asyncio.sleep(rng.choice((0.05, 0.3, 2)))
        await asyncio.sleep(20)
        for agent in agents:
            problems.extend(agent.report().problems)
            await agent.stop()

    loop = SimulatedLoop()
    with tempfile.TemporaryDirectory() as folder:
        try:
            loop.run_until_complete(scenario(Path(folder)))
        finally:
            loop.close()
    return SimpleNamespace(
        brokers=brokers, sent=[b"%d" % number for number in range(count)], problems=problems
    )


@st.composite
def bridged_fleets(draw):
    """Brokers and bridges made by hand between them, without a ring of their own."""
    size = draw(st.integers(2, 4))
    order = draw(st.permutations(range(size)))
    bridges = []
    for number in range(1, draw(st.integers(2, size))):
        other = order[draw(st.integers(0, number - 1))]
        pair = (order[number], other) if draw(st.booleans()) else (other, order[number])
        bridges.append((*pair, draw(st.booleans()), draw(st.booleans())))
    return size, bridges


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), fleet=bridged_fleets())
@example(seed=0, fleet=(4, [(1, 0, False, False)]))
@example(seed=1, fleet=(4, [(1, 0, True, True)]))
@example(seed=2, fleet=(4, [(0, 1, False, True), (1, 2, False, True)]))
def test_hops_bring_each_message_once_to_each_broker_next_to_bridges_made_by_hand(seed, fleet):
    size, bridges = fleet
    found = world(seed, size, bridges, known=True)
    ends = {f"b{other}" for _, other, *_ in bridges} | {
        f"b{one}" for one, _, is_both, _ in bridges if is_both
    }
    for name, broker in found.brokers.items():
        for text in found.sent:
            assert broker.seen[text] >= 1, (name, text)
            assert broker.by_hop[text] <= 1, (name, text, broker.by_hop[text])
            if name not in ends:
                assert broker.seen[text] == 1, (name, text)


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), fleet=bridged_fleets(), known=st.booleans())
def test_no_message_is_lost_however_late_copies_are(seed, fleet, known):
    """Also if all wait for the same time, or hardly; a hidden bridge that drops properties is not noticed."""
    size, bridges = fleet
    known = known or any(strips for *_, strips in bridges)
    found = world(seed, size, bridges, known, delays=(0, 0.2, 1.5, 6), holds=(0.01, 0.5))
    for broker in found.brokers.values():
        assert set(found.sent) <= broker.seen.keys()


def test_a_ring_of_bridges_alone_does_not_double_messages_elsewhere():
    """Bridges that form a ring carry messages around for ever; hops bring each to other brokers once."""
    ring = [(0, 1, False, True), (1, 2, False, True), (2, 0, False, True)]
    found = world(3, 4, ring, known=True, delays=(0.01, 0.02), count=3, repeats=0)
    assert min(found.brokers["b0"].seen.values()) > 100
    assert [found.brokers["b3"].seen[text] for text in found.sent] == [1, 1, 1]


@pytest.mark.parametrize("is_both", [False, True])
@pytest.mark.parametrize("count", [1, 2])
def test_the_first_messages_over_a_new_bridge_do_not_circulate_for_long(is_both, count):
    """Fewer different messages than prove a bridge, which drops the stamps."""
    bridges = [(0, 1, is_both, True)]
    found = world(5, 2, bridges, known=True, delays=(0, 0.01), count=count, repeats=0, is_sure=False)
    for broker in found.brokers.values():
        assert min(broker.seen[text] for text in found.sent) >= 1
        assert max(broker.seen.values()) < 100


def test_a_hidden_bridge_is_noticed_and_named():
    """It announces nothing; the first message that it brings back switches the guard on."""
    found = world(4, 4, [(1, 0, False, False)], known=False, count=40)
    assert [text for text in found.problems if "by hand" in text] == [
        "messages come to broker 'b0' by a path that Broadloom did not make: some that were sent to broker "
        "'b1' turn up here; look for a bridge made by hand from 'b1' to 'b0', and remove it"
    ]
    late = found.sent[20:]
    assert all(found.brokers[name].seen[text] == 1 for name in ("b1", "b2", "b3") for text in late)


# The parts.


class Bench:
    """A guard and the queue of one hop, with a clock of their own; its broker gets copies."""

    def __init__(self):
        self.clock, self.timers, self.delivered, self.changes = 0.0, [], [], []
        self.problems, self.solved = [], []
        self.guard = RingGuard(
            "a",
            lambda: self.clock,
            self.problems.append,
            self.solved.append,
            lambda: self.changes.append(1),
        )
        self.guard._sure_until = float("inf")  # copies have come before
        self.queue = EchoQueue(
            ("a", "b"),
            self.guard,
            Stamps(KEY),
            self.delivered.append,
            lambda *call: self.timers.append(call),
        )
        self.get_copy()

    def get_copy(self):
        """Another message is a copy for certain."""
        self.guard.saw_stamped(1)
        self.guard.found_copy(1, ("a", "b"))

    def advance(self, seconds):
        """Let time pass, and call what is due."""
        self.clock += seconds
        timers, self.timers = self.timers, []
        for _, call in timers:
            call()

    def arrive(self, text, at=None, topic=TOPIC, retained=False):
        """A message arrives; `at`: with a stamp for this broker."""
        stamp = Stamps(KEY).write(Stamp("c", 1, 1, at, retained)) if at else None
        raw = publish(topic, text, 1, [(b"broadloom-route", stamp)] if stamp else ())
        for _, packet, head in PacketReader().feed(raw):
            self.queue.arrive(read_publish(packet, head))

    def texts(self):
        """The payloads that were delivered so far."""
        return [message.payload() for message in self.delivered]


def test_messages_without_a_stamp_wait_and_others_pass_them_unless_an_agent_has_divided_them():
    bench = Bench()
    bench.guard.set_bridges({"hand"})
    bench.arrive(b"client")
    bench.arrive(b"stamped", at="a")
    assert bench.texts() == [b"stamped"]
    bench.arrive(b"marker", topic="$broadloom/marker")
    bench.arrive(b"later", at="a")
    assert bench.texts() == [b"stamped"]
    bench.advance(bench.guard.hold)
    assert bench.texts() == [b"stamped", b"client", b"marker", b"later"]
    assert not bench.queue.waiting


def test_a_message_with_a_stamp_waits_no_longer_than_for_those_of_agents():
    """Otherwise the next one would pass it, and a second copy of it would be taken for a new message."""
    bench = Bench()
    bench.guard.set_bridges({"hand"})
    bench.arrive(b"client")
    bench.advance(bench.guard.hold / 2)
    bench.arrive(b"marker", topic="$broadloom/marker")
    bench.arrive(b"another client")
    bench.arrive(b"first", at="a")
    assert bench.texts() == []
    bench.advance(bench.guard.hold / 2)
    assert bench.texts() == [b"client", b"marker", b"first"]
    bench.arrive(b"second", at="a")
    assert bench.texts()[3:] == [b"second"]
    bench.advance(bench.guard.hold / 2)
    assert bench.texts()[4:] == [b"another client"]
    assert not bench.queue.waiting


def test_a_message_waits_no_longer_when_its_original_arrives():
    bench = Bench()
    bench.guard.set_bridges({"hand"})
    for text in (b"one", b"two", b"two"):
        bench.arrive(text)
    bench.arrive(b"two", at="a")
    assert bench.texts() == [b"two", b"two", b"two"]
    assert all(bench.guard.is_copy(content_hash(one), ("a", "b"), False) for one in bench.delivered[:2])
    bench.advance(bench.guard.hold)
    assert bench.texts()[3:] == [b"one"]
    assert not bench.queue.waiting


def test_messages_do_not_wait_at_a_broker_without_copies():
    bench = Bench()
    bench.guard.set_bridges({"hand"})
    bench.clock += RING_SECONDS
    bench.arrive(b"client")
    assert bench.texts() == [b"client"]


def test_known_copies_do_not_wait_and_old_retained_messages_prove_nothing():
    bench = Bench()
    bench.guard.set_bridges({"hand"})
    bench.arrive(b"text", at="a")
    bench.arrive(b"text")
    bench.arrive(b"other", at="a", retained=True)
    assert bench.texts() == [b"text", b"text", b"other"]
    bench.arrive(b"other")
    assert len(bench.texts()) == 3


def test_what_waits_is_forgotten_with_the_connection_and_freed_when_the_guard_ends():
    bench = Bench()
    bench.guard.set_bridges({"hand"})
    bench.arrive(b"lost")
    bench.queue.clear()
    bench.advance(9)
    assert bench.texts() == []
    bench.arrive(b"free")
    bench.guard.set_bridges(())
    bench.arrive(b"next", at="a")
    bench.advance(0)
    assert sorted(bench.texts()) == [b"free", b"next"]
    assert bench.changes == [1, 1]


def test_a_hop_holds_a_limited_number_of_bytes():
    bench = Bench()
    bench.guard.set_bridges({"hand"})
    size = MOST_HELD_BYTES // 4
    for number in range(5):
        bench.arrive(b"%d" % number + bytes(size))
    assert [text[:1] for text in bench.texts()] == [b"0", b"1"]


def test_the_time_in_the_queue_of_the_broker_counts_as_waiting():
    bench = Bench()
    bench.guard.set_bridges({"hand"})
    bench.guard.saw_arrive(hash((TOPIC, b"text")))
    bench.clock += bench.guard.hold / 2
    bench.arrive(b"text")
    bench.arrive(b"other")
    assert bench.texts() == []
    bench.advance(bench.guard.hold / 2)
    assert bench.texts() == [b"text"]
    bench.advance(bench.guard.hold / 2)
    assert bench.texts() == [b"text", b"other"]


def test_a_message_that_is_dropped_because_its_copy_was_faster_is_not_taken_for_a_copy():
    bench = Bench()
    bench.guard.set_bridges({"hand"})
    bench.clock += RING_SECONDS
    bench.guard.saw_arrive(7)
    bench.clock += 0.1
    bench.guard.saw_stamped(7)
    bench.guard.found_copy(7, ("a", "b"))
    assert not bench.guard.gets_copies()
    bench.clock += 0.1
    bench.guard.saw_arrive(7)
    bench.guard.found_copy(7, ("a", "b"))
    assert bench.guard.gets_copies()


def test_after_a_late_message_the_later_broker_waits_longer():
    bench = Bench()
    bench.guard.set_bridges({"hand"})

    def wait():
        return bench.guard.leaves_at(0) - bench.clock

    first = wait()
    bench.guard.found_late("b")  # the other one waits longer
    assert wait() == first
    bench.guard._broker = "c"
    for _ in range(3):
        bench.guard.found_late("b")
    assert wait() == first + HOLD_STEP
    for _ in range(20):
        bench.clock += LATE_SECONDS
        bench.get_copy()
        bench.guard.found_late("b")
    assert first + HOLD_STEP < wait() <= first + LONGEST_HOLD
    bench.guard.set_bridges(())
    assert wait() == first


def test_the_guard_ends_some_time_after_the_last_message_that_came_back():
    bench = Bench()
    bench.guard.found_ring(Stamp("c", 1, 1, "c"))
    assert bench.guard.is_active
    bench.clock += RING_SECONDS / 2
    bench.guard.found_ring(Stamp("c", 1, 1, "c"))
    bench.clock += RING_SECONDS - 1
    bench.guard.check()
    assert bench.guard.is_active
    assert bench.solved == []
    bench.clock += 1
    bench.guard.check()
    assert not bench.guard.is_active
    assert bench.solved == bench.problems  # the status shows them no longer
    bench.guard.found_ring(Stamp("c", 1, 1, "c"))
    assert len(bench.problems) == 2  # said again


@pytest.mark.parametrize("seconds", [STAMPED_SECONDS, LEFT_SECONDS])
@pytest.mark.parametrize("is_fast", [False, True])
def test_a_client_that_repeats_a_message_is_heard_again_but_a_ring_is_not(seconds, is_fast):
    bench = Bench()
    hop = ("a", "b")
    if seconds == STAMPED_SECONDS:
        bench.guard.saw_stamped(7)
    else:
        bench.guard.saw_leave(7, hop)
    step = 0.5 / CIRCULATING_RATE if is_fast else 0.9
    end = bench.clock + 4 * seconds
    copies = []
    while bench.clock < end:
        bench.clock += step
        copies.append(bench.guard.is_copy(7, hop, is_stamped=False))
    assert copies[0]
    assert all(copies) == is_fast
    assert not bench.guard.is_copy(8, hop, is_stamped=False)


def test_a_bridge_to_elsewhere_drops_no_message_that_a_client_repeats():
    """Three contents that come with and without a stamp prove copies; one that many clients send does not."""
    bench, hop = Bench(), ("a", "b")
    bench.guard._sure_until = 0.0
    bench.guard.set_bridges({"cloud"})
    for content in (7, 7, 7, 7, 8, 9):
        bench.guard.saw_leave(content, hop)
        assert not bench.guard.is_copy(content, hop, is_stamped=False)
    for content in (7, 7, 7, 8):
        bench.guard.saw_stamped(content)
        assert not bench.guard.is_copy(content, hop, is_stamped=False)
    bench.guard.saw_stamped(9)
    assert bench.guard.is_copy(9, hop, is_stamped=False)
    assert bench.guard.is_copy(7, hop, is_stamped=False)


def test_a_message_that_circulates_proves_copies_and_one_that_clients_repeat_does_not():
    """It comes back faster than many clients that send the same."""
    for seconds, proves in (
        (STAMPED_SECONDS / MOST_REPEATS, False),
        (0.9 * STAMPED_SECONDS / MOST_REPEATS, True),
    ):
        bench = Bench()
        bench.guard._sure_until = 0.0
        bench.guard.set_bridges({"cloud"})
        dropped = []
        for _ in range(3 * MOST_REPEATS):
            bench.clock += seconds
            bench.guard.saw_stamped(7)
            dropped.append(bench.guard.is_copy(7, ("a", "b"), is_stamped=False))
        assert any(dropped) == proves


def test_one_repeated_message_proves_nothing_at_a_broker_with_many_hops():
    """Each hop sees it, and asks about it twice."""
    bench = Bench()
    bench.guard._sure_until = 0.0
    bench.guard.set_bridges({"cloud"})
    bench.guard.saw_stamped(7)
    for number in range(3 * MOST_REPEATS):
        hop = ("a", f"b{number}")
        assert not bench.guard.is_copy(7, hop, is_stamped=False, is_early=True)
        assert not bench.guard.is_copy(7, hop, is_stamped=False)


@given(st.sets(st.text("abc", min_size=1, max_size=3), min_size=1, max_size=60))
def test_brokers_wait_for_different_times(names):
    holds = sorted(hold_seconds(name, names) for name in names)
    assert len(set(holds)) == len(names)
    assert FIRST_HOLD <= holds[0] <= holds[-1] <= LONGEST_HOLD + 1e-9
