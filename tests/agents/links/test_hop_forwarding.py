"""One hop: stamps, its store, its forwarder against a naive far broker, and its routing."""

import asyncio
import json
from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broadloom.agents.links import hop_store, site_hop
from broadloom.agents.links.hop_forwarder import (
    MOST_TRIES,
    SMALL_BYTES,
    ByteBudget,
    Hold,
    RouteForwarder,
)
from broadloom.agents.links.hop_routing import (
    CLOSED,
    MARKER,
    ClosedRoutes,
    HopClosing,
    Marker,
    RoutePolicy,
    near_side,
)
from broadloom.agents.links.hop_store import FAR, NEAR, HopStore
from broadloom.agents.links.ring_guard import LONGEST_HOLD, RingGuard
from broadloom.agents.links.route_orders import AgentOrders, AgentReport, Epoch, HopReport, Route
from broadloom.agents.links.site_hop import HopContext, SiteHop
from broadloom.agents.links.stamps import MOST_CACHED, FleetKey, Stamp, Stamps
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import (
    LAST_ID,
    MAXIMUM_PACKET,
    MAXIMUM_QOS,
    PUBACK,
    RECEIVE_MAXIMUM,
    RETAIN_AVAILABLE,
    Connack,
    PacketReader,
    Publish,
    acknowledgement,
    publish,
    read_publish,
)
from naive_mqtt import first_packet, parse_publish

KEY = FleetKey("only for tests, no secret")
OTHER_KEY = FleetKey("the key of another fleet")
NAMES = st.text(min_size=1, max_size=40)
NUMBERS = st.integers(0, 2**62)
STAMPS = st.builds(Stamp, NAMES, NUMBERS, NUMBERS, NAMES, st.booleans())


def both(*pairs):
    """The two hops of each pair of brokers."""
    return frozenset(hop for u, v in pairs for hop in ((u, v), (v, u)))


def message_of(packet):
    """The message of a PUBLISH packet of QoS 0 or 1."""
    ((_, raw, head),) = PacketReader().feed(packet)
    return read_publish(raw, head)


def received(topic="x", payload=b"", number=1, stamp=None, identifiers=(), dup=False, retain=False):
    """A message as the near broker sends it."""
    users = [] if stamp is None else [(b"broadloom-route", stamp)]
    packet = publish(topic, payload, number, users, retain)
    if dup:
        packet = bytes((packet[0] | 8, *packet[1:]))
    return message_of(packet)._replace(identifiers=tuple(identifiers))


# Keys and stamps.


@given(STAMPS)
def test_a_stamp_is_read_as_it_was_written(stamp):
    """Whatever the names of brokers contain: slashes, percent signs, line ends, other scripts."""
    assert Stamps(KEY).read(Stamps(KEY).write(stamp)) == stamp


@given(STAMPS, st.data())
def test_a_stamp_that_anybody_has_changed_is_not_read(stamp, data):
    value = Stamps(KEY).write(stamp)
    at = data.draw(st.integers(0, len(value) - 1))
    changed = value[:at] + bytes((value[at] ^ data.draw(st.integers(1, 255)),)) + value[at + 1 :]
    assert Stamps(KEY).read(changed) is None
    assert Stamps(OTHER_KEY).read(value) is None


@given(st.binary(max_size=200))
def test_bytes_that_are_not_a_stamp_are_ignored(value):
    assert Stamps(KEY).read(value) is None


def test_forged_stamps_do_not_fill_the_memory():
    stamps = Stamps(KEY)
    for number in range(MOST_CACHED + 10):
        stamps.read(b"%d" % number)
        stamps.write(Stamp("a", number, 1, "b"))
    assert len(stamps._read) <= MOST_CACHED
    assert len(stamps._written) <= MOST_CACHED


def test_a_key_file_is_new_private_and_never_replaced(tmp_path):
    path = tmp_path / "key"
    FleetKey.write(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InputError, match="exists already"):
        FleetKey.write(path)
    code = FleetKey.load(path).mac(b"order", b"text")
    assert FleetKey.load(path).verifies(b"order", b"text", code)
    assert not FleetKey.load(path).verifies(b"agent", b"text", code)  # a code is for one purpose
    path.chmod(0o644)
    with pytest.raises(InputError, match="other users can read"):
        FleetKey.load(path)
    with pytest.raises(InputError, match="has 5 characters; give at least 16"):
        FleetKey("short")


# The store.


def test_a_store_survives_its_process(tmp_path):
    store = HopStore(tmp_path / "a.hop")
    assert store.is_new
    store.version = 2**40
    store.begin(NEAR)
    store.record(LAST_ID, store.next_number(), 2**32 - 1)
    store.record(1, store.next_number(), 7, dropped=True)
    store.record_run(9, (3, 4))
    store.close()
    again = HopStore(tmp_path / "a.hop")
    assert not again.is_new
    assert (again.version, again.has_begun(NEAR), again.has_begun(FAR)) == (2**40, True, False)
    assert (again.has(LAST_ID, 2**32 - 1), again.was_dropped(LAST_ID)) == (True, False)
    assert (again.has(1, 7), again.was_dropped(1)) == (True, True)
    assert not again.has(1, 8)
    assert again.run() == (9, (3, 4))
    again.forget_far()
    assert not again.has(1, 7)
    assert again.version == 2**40
    again.delete()
    assert not (tmp_path / "a.hop").exists()
    again.close()


@given(
    before=st.integers(0, 2**34),
    ages=st.lists(st.sampled_from([1, 100, 32_767, 32_768, 40_000]), min_size=1, max_size=3),
)
def test_a_slot_is_that_of_a_repetition_only_while_it_is_young(before, ages):
    """Also when receive numbers wrap around in the slots, at 2 to the power of 31."""
    store = HopStore(None)
    store._words[hop_store._RECEIVED] = before
    for packet, age in enumerate(ages, 1):
        store.record(packet, store.next_number(), 5)
        store._words[hop_store._RECEIVED] += age - 1
        assert store.has(packet, 5) == (age <= 32_768)
    store.record(9, store.next_number(), 5)
    store.forget_near()
    assert not store.has(9, 5)  # packet ids begin again, so an equal message is a new one
    store.close()


# The forwarder.


class FarBroker:
    """Far broker that stores and delivers by the rules of MQTT, with limits and refusals."""

    def __init__(self, quota=LAST_ID, largest=2**28 - 1, quality=2, retain=1):
        self.limits = {
            RECEIVE_MAXIMUM: quota,
            MAXIMUM_PACKET: largest,
            MAXIMUM_QOS: quality,
            RETAIN_AVAILABLE: retain,
        }
        self.quota, self.largest, self.quality, self.retain = quota, largest, quality, retain
        self.refuses = lambda _: 0  # by topic: a reason of PUBREC or PUBACK
        self.kills = lambda _: 0  # by topic: a reason of DISCONNECT
        self.held, self.delivered, self.most = {}, [], 0
        self.answers, self.unfinished, self.blame = [], set(), 0

    def connack(self, present):
        """The CONNACK of a new connection."""
        if not present:
            self.held.clear()
        self.answers, self.unfinished, self.blame = [], set(), 0
        return Connack(present, 0, self.limits)

    def write(self, data):
        """Take packets; answers wait until they are fetched."""
        while data:
            kind, flags, size, body = first_packet(data)
            self.take(kind, flags, body, size)
            data = data[size:]

    def take(self, kind, flags, body, size):
        """Take one packet."""
        if self.blame:
            return  # the connection has ended
        if kind == 6:
            number = int.from_bytes(body[:2])
            message = self.held.pop(number, None)
            if message is not None:
                self.delivered.append(message)
            self.answers.append(("completed", number))
            return
        topic, number, _, payload = parse_publish(flags, body)
        assert size <= self.largest, "a packet is too large"
        assert flags >> 1 & 3 <= self.quality, "the quality is too high"
        assert self.retain or not flags & 1, "the broker retains nothing"
        self.blame = self.kills(topic)
        if self.blame:
            return
        reason = self.refuses(topic)
        if flags >> 1 & 3 == 2:
            self.unfinished.add(number)
            if not reason:
                self.held.setdefault(number, (topic, payload))
            self.answers.append(("stored", number, reason))
        elif flags >> 1 & 3 == 1:
            self.unfinished.add(number)
            if not reason:
                self.delivered.append((topic, payload))
            self.answers.append(("acknowledged", number, reason))
        else:
            self.delivered.append((topic, payload))
        self.most = max(self.most, len(self.unfinished))
        assert len(self.unfinished) <= self.quota, "more unfinished messages than the broker takes"


class PassAll:
    """Policy that forwards everything, with a stamp; a few topics mean something else."""

    def __init__(self):
        self.barriers, self.has_orders = [], False

    def decide(self, message, digest):  # noqa: ARG002
        """What becomes of a message."""
        if message.topic == "drop":
            return None
        if message.topic == "barrier" and message.number not in self.barriers:
            return Hold.BARRIER
        if message.topic == "later" and not self.has_orders:
            return Hold.ORDERS
        return message.with_stamp(b"stamp")

    def pass_barrier(self, message):
        """Note what passes."""
        self.barriers.append(message.number)


class Bench:
    """A forwarder between a list and a far broker; timers fire when they are told to."""

    def __init__(self, far=None, budget=None, store=None, policy=None):
        self.far = far or FarBroker()
        self.near, self.letters, self.paused, self.timers = [], [], [], []
        self.policy = policy or PassAll()
        self.forwarder = RouteForwarder(
            store or HopStore(None),
            self.policy,
            Counter(),
            budget or ByteBudget(),
            self.paused.append,
            self.letters.append,
            lambda _, call: self.timers.append(call),
        )
        self.forwarder.near_opens(self.near.append, present=True)

    def connect(self, present=True):
        """Connect the far broker."""
        self.forwarder.far_opens(self.far.write, self.far.connack(present))

    def lose(self):
        """Lose the far connection."""
        self.forwarder.far_closes()

    def settle(self, most=1000):
        """Deliver answers of the far broker, let timers fire, and connect again after a DISCONNECT."""
        for _ in range(most):
            if self.far.blame:
                reason, self.far.blame = self.far.blame, 0
                self.deliver()
                self.forwarder.far_blames(reason)
                self.lose()
                self.connect()
            elif self.far.answers:
                self.deliver()
            elif self.timers:
                self.timers.pop(0)()
            else:
                return
        raise AssertionError("the forwarder does not come to rest")

    def deliver(self):
        """Deliver the answers of the far broker."""
        answers, self.far.answers = self.far.answers, []
        for kind, number, *reason in answers:
            if kind in ("completed", "acknowledged") or (reason and reason[0] >= 0x80):
                self.far.unfinished.discard(number)
            getattr(self.forwarder, kind)(number, *reason)

    def arrive(self, *topics, first=1):
        """Messages of the near broker, with their numbers as payloads."""
        for number, topic in enumerate(topics, first):
            self.forwarder.arrive(received(topic, b"%d" % number, number))

    @property
    def acknowledged(self):
        """The packet ids that the near broker has PUBACK for."""
        for packet in self.near:
            assert packet == acknowledgement(PUBACK, int.from_bytes(packet[2:]))
        return [int.from_bytes(packet[2:]) for packet in self.near]

    @property
    def delivered(self):
        """The payloads that the far broker has delivered."""
        return [int(payload) for _, payload in self.far.delivered]


def test_messages_are_delivered_once_and_acknowledged_in_order():
    bench = Bench()
    bench.connect()
    bench.arrive("x", "drop", "y", "x")
    assert bench.acknowledged == []  # the second waits for the first
    bench.settle()
    assert bench.delivered == [1, 3, 4]
    assert bench.acknowledged == [1, 2, 3, 4]
    assert (bench.forwarder.counts["messages"], bench.forwarder.counts["dropped"]) == (3, 1)
    assert bench.forwarder.size == 0


@pytest.mark.parametrize("quality", [0, 1, 2])
@pytest.mark.parametrize("quota", [1, 3, LAST_ID])
def test_the_limits_of_the_far_broker_are_honoured(quality, quota):
    """Its quality of service, and the number of unfinished messages; nothing is lost."""
    far = FarBroker(quota=quota, quality=quality, retain=0)
    bench = Bench(far)
    bench.arrive(*"xyz")
    bench.forwarder.arrive(received("r", b"4", 4, retain=True))
    bench.connect(present=False)
    bench.arrive(*"uv", first=5)
    bench.settle()
    assert bench.delivered == [1, 2, 3, 4, 5, 6]
    assert bench.acknowledged == [1, 2, 3, 4, 5, 6]
    assert far.most <= min(quota, 6)


@pytest.mark.parametrize("limits", [{"quality": 0}, {"largest": 60}])
def test_many_waiting_messages_finish_at_once(limits):
    """A far broker of QoS 0, or of small packets, comes back while a whole window waits."""
    bench = Bench(FarBroker(**limits))
    for number in range(1, 2001):
        bench.forwarder.arrive(received("x" * (1 if "quality" in limits else 60), b"%d" % number, number))
    bench.connect(present=False)
    bench.settle()
    assert bench.acknowledged == list(range(1, 2001))
    assert len(bench.letters) == (0 if "quality" in limits else 2000)


@pytest.mark.parametrize("present", [True, False])
def test_a_far_broker_that_comes_back_with_a_smaller_quota_is_not_overrun(present):
    bench = Bench(FarBroker(quota=10))
    bench.connect(present=False)
    bench.arrive(*"abcdefgh")
    bench.lose()  # eight messages are sent and not answered
    bench.far.quota = bench.far.limits[RECEIVE_MAXIMUM] = 2
    bench.connect(present)
    bench.settle()
    assert sorted(bench.delivered) == list(range(1, 9))
    assert bench.acknowledged == list(range(1, 9))


def test_a_message_that_is_too_large_is_set_aside_and_the_rest_goes_on():
    bench = Bench(FarBroker(largest=200))
    bench.connect()
    bench.arrive("x")
    bench.forwarder.arrive(received("x", b"." * 300, 2))
    bench.arrive("x", first=3)
    bench.settle()
    assert bench.delivered == [1, 3]
    assert bench.acknowledged == [1, 2, 3]
    (letter,) = bench.letters
    assert (letter.topic, b"." * 300 in letter.packet) == ("x", True)
    assert "larger than 200 bytes" in letter.reason
    assert bench.forwarder.counts["dead_letters"] == 1


@pytest.mark.parametrize("quality", [1, 2])
def test_a_refused_message_is_set_aside_after_three_tries(quality):
    """PUBREC or PUBACK with a reason; a refusal that ends is no loss."""
    tries = Counter()

    def refuses(topic):
        tries[topic] += 1
        return 0x87 if topic == "bad" or (topic == "busy" and tries[topic] < MOST_TRIES) else 0

    bench = Bench(FarBroker(quota=2, quality=quality))
    bench.far.refuses = refuses
    bench.connect()
    bench.arrive("bad", "x", "busy", "y")
    bench.settle()
    assert sorted(bench.delivered) == [2, 3, 4]
    assert bench.acknowledged == [1, 2, 3, 4]
    assert tries == {"bad": 3, "x": 1, "busy": 3, "y": 1}
    assert [letter.reason for letter in bench.letters] == ["the broker refuses it (0x87)"]


def test_a_packet_for_which_the_broker_ends_the_connection_is_found_and_set_aside():
    """Without the others: from the first DISCONNECT on, one packet is sent at a time."""
    bench = Bench()
    bench.far.kills = lambda topic: 0x99 if topic == "poison" else 0
    bench.connect()
    bench.arrive("x", "y", "poison", "z", "u")
    bench.settle()
    assert sorted(bench.delivered) == [1, 2, 4, 5]
    assert bench.acknowledged == [1, 2, 3, 4, 5]
    assert [(letter.topic, letter.reason) for letter in bench.letters] == [
        ("poison", "the broker ends the connection (0x99)")
    ]


def test_a_disconnect_that_blames_no_packet_sets_nothing_aside():
    bench = Bench()
    bench.connect()
    bench.arrive("x")
    for _ in range(10):
        bench.forwarder.far_blames(0x8B)  # the broker shuts down
        bench.lose()
        bench.connect()
    bench.settle()
    assert (bench.delivered, bench.letters) == ([1], [])


def test_after_a_packet_was_blamed_for_nothing_many_are_sent_at_once_again():
    bench = Bench()
    bench.connect()
    bench.arrive("x", "y", "z")
    bench.forwarder.far_blames(0x82)
    bench.lose()
    bench.far.most = 0
    bench.connect()
    bench.settle()
    assert bench.far.most == 1
    bench.arrive(*"abc", first=4)
    assert bench.far.most == 3
    bench.settle()
    assert (bench.delivered, bench.letters) == ([1, 2, 3, 4, 5, 6], [])


def test_reading_pauses_over_the_budget_and_goes_on_below_it():
    """A single larger message still passes; hops with little in flight are not held up by others."""
    budget = ByteBudget(per_hop=1000, total=3_000)
    bench, other = Bench(budget=budget), Bench(budget=budget)
    for number in (1, 2, 3):
        bench.forwarder.arrive(received("x", b"%0600d" % number, number))
    assert bench.paused == [True]
    other.arrive("y")
    assert other.paused == []
    assert budget.used == bench.forwarder.size + other.forwarder.size
    bench.connect()
    bench.settle()
    assert (bench.paused, bench.delivered) == ([True, False], [1, 2, 3])
    assert bench.forwarder.size == 0
    large = Bench(budget=ByteBudget(per_hop=1000, total=1000))
    large.forwarder.arrive(received("x", b"7" * (SMALL_BYTES + 1), 1))
    large.connect()
    large.settle()
    assert (large.acknowledged, large.paused) == ([1], [True, False])


def test_a_hop_waits_for_the_budget_of_the_process_if_it_has_much_itself():
    budget = ByteBudget(per_hop=2**30, total=SMALL_BYTES)
    greedy, modest = Bench(budget=budget), Bench(budget=budget)
    greedy.forwarder.arrive(received("x", b"1" * (SMALL_BYTES + 1), 1))
    assert greedy.paused == [True]
    modest.arrive("y")
    assert modest.paused == []
    greedy.forwarder.release_budget()  # the hop ends
    assert budget.used == modest.forwarder.size
    assert budget.paused == set()


def test_a_barrier_waits_for_everything_before_it_and_holds_everything_after_it():
    bench = Bench()
    bench.connect()
    bench.arrive("x", "y", "barrier", "z", "barrier", "u")
    assert bench.policy.barriers == []
    assert set(bench.forwarder.in_flight) == {1, 2}
    bench.settle()
    assert bench.policy.barriers == [3, 5]
    assert bench.delivered == [1, 2, 4, 6]
    assert bench.acknowledged == [1, 2, 3, 4, 5, 6]
    assert bench.forwarder.size == 0


def test_a_message_for_which_orders_are_missing_holds_those_behind_it():
    """Those before it go on; a new connection of the near broker repeats what was held."""
    bench = Bench()
    bench.connect()
    bench.arrive("x", "later", "y")
    bench.settle()
    assert (bench.delivered, bench.acknowledged) == ([1], [1])
    assert bench.forwarder.size > 0
    bench.forwarder.near_opens(bench.near.append, present=True)
    assert bench.forwarder.size == 0
    for number, topic in ((2, "later"), (3, "y")):
        bench.forwarder.arrive(received(topic, b"%d" % number, number, dup=True))
    bench.policy.has_orders = True
    bench.forwarder.advance()
    bench.settle()
    assert (bench.delivered, bench.acknowledged) == ([1, 2, 3], [1, 2, 3])


def test_a_message_of_qos_0_is_sent_or_dropped_and_never_waits():
    bench = Bench()
    bench.arrive("x")
    bench.forwarder.arrive(received("q", b"7", 0))
    assert bench.forwarder.counts["qos0_dropped"] == 1
    bench.connect()
    bench.forwarder.arrive(received("q", b"8", 0))
    bench.forwarder.set_congested(True)
    bench.forwarder.arrive(received("q", b"9", 0))
    bench.forwarder.set_congested(False)
    bench.settle()
    assert (sorted(bench.delivered), bench.forwarder.counts["qos0_dropped"]) == ([1, 8], 2)


@settings(max_examples=60)
@given(data=st.data(), quota=st.sampled_from([1, 2, 50]))
def test_kills_and_lost_connections_lose_and_double_nothing(data, quota):
    """The near broker repeats what is not acknowledged; a new process has only the store."""
    store = HopStore(None)
    far = FarBroker(quota=quota)
    bench = Bench(far, store=store)
    count = data.draw(st.integers(1, 8))
    unacknowledged: dict[int, Publish] = {}
    numbers = iter(range(1, count + 1))
    dropped = data.draw(st.sets(st.integers(1, count)))
    bench.connect(present=False)
    done = set()

    def confirm():
        for number in bench.acknowledged:
            unacknowledged.pop(number, None)
            done.add(number)
        bench.near.clear()

    for step in data.draw(st.lists(st.sampled_from("mmmaaalnk"), max_size=40)):
        if step == "m" and (number := next(numbers, None)):
            topic = "drop" if number in dropped else "x"
            message = unacknowledged[number] = received(topic, b"%d" % number, number)
            bench.forwarder.arrive(message)
        elif step == "a" and far.answers:
            (kind, number, *reason), far.answers = far.answers[0], far.answers[1:]
            if kind == "completed":
                far.unfinished.discard(number)
            getattr(bench.forwarder, kind)(number, *reason)
        elif step == "l":
            bench.lose()
            bench.connect()
        elif step in "nk":  # the near connection is lost, or the whole process
            if data.draw(st.booleans()):
                confirm()  # otherwise PUBACK is lost with the connection
            bench.near.clear()
            if step == "k":
                bench = Bench(far, store=store)
                bench.connect()
            bench.forwarder.near_opens(bench.near.append, present=True)
            for number, message in list(unacknowledged.items()):
                unacknowledged[number] = again = received(message.topic, b"%d" % number, number, dup=True)
                bench.forwarder.arrive(again)
    for number in numbers:
        topic = "drop" if number in dropped else "x"
        unacknowledged[number] = received(topic, b"%d" % number, number)
        bench.forwarder.arrive(unacknowledged[number])
    bench.settle()
    confirm()
    assert sorted(bench.delivered) == sorted(set(range(1, count + 1)) - dropped)
    assert unacknowledged == {}
    store.close()


def test_what_was_received_is_finished_when_the_far_broker_has_all_of_it():
    """Also if a later message is finished earlier, because one is refused and tried again."""
    bench = Bench()
    bench.connect()
    refused = iter([0x97])
    bench.far.refuses = lambda topic: next(refused, 0) if topic == "busy" else 0
    bench.arrive("busy", "x")
    bench.deliver()
    bench.deliver()
    assert list(bench.forwarder.in_flight) == [1]
    assert [bench.forwarder.has_finished(number) for number in (0, 1, 2)] == [True, False, False]
    bench.settle()
    assert bench.forwarder.has_finished(2)


# Routing.


class Hop:
    """The routing of one hop."""

    def __init__(self, hop, *routes, version=1, ordered=None, known=None, store=None):
        self.store = store or HopStore(None)
        self.store.version = version
        self.counts, self.progress = Counter(), []
        self.clock = 0.0
        self.guard = RingGuard(hop[0], lambda: self.clock)
        self.policy = RoutePolicy(
            hop,
            self.store,
            KEY,
            Stamps(KEY),
            self.counts,
            lambda: self.progress.append(1),
            self.guard,
        )
        own = {route.number: route for route in routes if hop in route.hops}
        numbers = known or {route.number for route in routes}
        self.policy.set_routes(own, numbers, version if ordered is None else ordered)

    def sent(self, message):
        """The stamp of the forwarded packet; None or Hold: it is not forwarded."""
        decision = self.policy.decide(message, message.digest() if message.number else 0)
        if not isinstance(decision, bytes):
            return decision
        first = decision[0] & ~0x06 | (2 if message.number else 0)
        return Stamps(KEY).read(message_of(bytes((first, *decision[1:]))).stamp)

    def closed(self, message):
        """What the forwarded control packet says is closed; None: nothing is forwarded."""
        decision = self.policy.decide(message, message.digest())
        if decision is Hold.BARRIER:
            decision = self.policy.pass_barrier(message)
        return None if decision is None else json.loads(decision[decision.index(b"{") :])


def route(number, *pairs, filters=("x",), since=1, until=None, **more):
    """The tree of some pairs of brokers."""
    return Route(number, filters, both(*pairs), since, until, **more)


def stamped(topic, origin, version, number, at, retained=False, key=KEY, is_last=False, **more):
    """A message with a stamp."""
    value = Stamps(key).write(Stamp(origin, version, number, at, retained, is_last))
    return received(topic, stamp=value, **more)


def test_the_origins_version_chooses_the_tree_and_the_stamp_keeps_it():
    old, new = route(4, "ab", until=1), route(5, "ab", "bc", since=2)
    hop = Hop(("a", "b"), old, new)
    assert hop.sent(received("x")) == Stamp("a", 1, 4, "b", is_last=True)
    hop.policy.raise_version(2)
    assert hop.sent(received("x")) == Stamp("a", 2, 5, "b")
    further = Hop(("b", "c"), old, new, version=1)  # it has not switched yet
    assert further.sent(stamped("x", "a", 2, 5, "b")) == Stamp("a", 2, 5, "c", is_last=True)
    assert further.sent(stamped("x", "a", 1, 4, "b")) is None
    assert further.counts["other_hop"] == 1


def test_a_message_never_goes_back_towards_its_origin():
    tree = route(4, "ab", "bc", "bd")
    assert Hop(("b", "a"), tree).sent(stamped("x", "a", 1, 4, "b")) is None
    assert Hop(("b", "c"), tree).sent(stamped("x", "a", 1, 4, "b")) == Stamp("a", 1, 4, "c", is_last=True)
    assert Hop(("b", "c"), tree).sent(stamped("x", "c", 1, 4, "b")) is None


@settings(max_examples=40)
@given(seed=st.randoms(use_true_random=False), size=st.integers(2, 7))
def test_a_message_reaches_each_broker_of_its_tree_once(seed, size):
    """By the decisions of all hops, from any origin; a leaf that only sends receives nothing."""
    names = [f"b{number}" for number in range(size)]
    pairs = [(names[i], seed.choice(names[:i])) for i in range(1, size)]
    hops = {hop for u, v in pairs for hop in ((u, v), (v, u))}
    leaf = names[-1] if size > 2 and seed.random() < 0.5 else None
    tree = Route(7, ("x",), frozenset(hop for hop in hops if hop[1] != leaf), 1)
    origin = seed.choice(names)
    reached = Counter()
    todo = [(origin, received("x"))]
    for broker, message in todo:
        for hop in sorted(tree.hops):
            stamp = Hop(hop, tree).sent(message) if hop[0] == broker else None
            if stamp is not None:
                reached[hop[1]] += 1
                todo.append((hop[1], stamped("x", *stamp[:3], stamp.at)))
        assert len(todo) <= size
    assert reached == Counter(set(names) - {origin, leaf})


def test_messages_of_another_place_tree_or_fleet_are_dropped_and_counted():
    tree = route(4, "ab", "bc")
    hop = Hop(("b", "c"), tree)
    assert hop.sent(stamped("x", "a", 1, 4, "z")) is None
    assert hop.counts["ring"] == 1  # a bridge made by hand has brought it here
    hop.guard.set_bridges(())
    hop.clock = 1000.0
    hop.guard.check()
    assert hop.sent(stamped("x", "a", 1, 9, "b")) is None
    assert hop.counts["late"] == 1
    assert hop.sent(stamped("other", "a", 1, 4, "b")) is None
    assert hop.counts["forged"] == 1  # the stamp of another message
    assert hop.sent(stamped("x", "z", 1, 4, "b")) is None  # an origin outside of the tree
    foreign = stamped("x", "a", 1, 4, "b", key=OTHER_KEY)
    assert hop.sent(foreign) == Stamp("b", 1, 4, "c", is_last=True)  # as without a stamp
    assert hop.sent(received("y")) is None
    assert hop.sent(received("broadloom/from/me/register")) is None
    assert hop.counts["unrouted"] == 2
    hop.store.version = 0
    assert hop.sent(received("x")) is None
    assert hop.counts["other_version"] == 1


def test_a_message_of_a_newer_version_waits_for_orders():
    tree = route(4, "ab", "bc")
    hop = Hop(("b", "c"), tree, ordered=1)
    newer = stamped("x", "a", 2, 5, "b")
    assert hop.sent(newer) is Hold.ORDERS
    replacement = route(5, "ab", "bc", since=None)
    hop.policy.set_routes({4: tree, 5: replacement}, {4, 5}, 1)
    assert hop.sent(newer) == Stamp("a", 2, 5, "c", is_last=True)
    hop.policy.set_routes({}, (), 2)
    assert hop.sent(newer) is None
    assert hop.counts["late"] == 1


def test_a_message_of_an_unknown_tree_that_ends_here_holds_nothing_up():
    hop = Hop(("b", "c"), route(4, "ab", "bc"), ordered=1)
    assert hop.sent(stamped("x", "a", 2, 5, "b", is_last=True)) is None
    assert hop.sent(received("x")) == Stamp("b", 1, 4, "c", is_last=True)


def test_old_retained_messages_go_only_to_brokers_that_are_new_in_the_tree():
    tree = route(4, "ab", "bc", "bd", fresh=frozenset("bc"))
    message = stamped("x", "a", 1, 4, "b", retained=True)
    assert Hop(("b", "c"), tree).sent(message) == Stamp("a", 1, 4, "c", True, True)
    assert Hop(("b", "d"), tree).sent(message) is None


def test_of_the_copies_for_overlapping_subscriptions_one_is_forwarded():
    """Whether the broker sends a copy per subscription, or one message with all identifiers."""

    def count(*copies, payloads=None):
        hop = Hop(("a", "b"), route(4, "ab", filters=("+/b", "a/+")))
        hop.policy.has_overlaps = True
        texts = payloads or ["same"] * len(copies)
        return sum(
            hop.sent(received("a/b", text.encode(), number, identifiers=identifiers)) is not None
            for number, (identifiers, text) in enumerate(zip(copies, texts, strict=True), 1)
        )

    assert count([1], [2]) == count([2], [1]) == count([1, 2]) == 1
    assert count([1], [2], [1], [2]) == 2  # an equal message was published twice
    assert count([1], [1]) == 2
    assert count([1, 2], [1, 2], [1, 2]) == 3
    assert count([1], [2], [1], [2], payloads=["one", "one", "two", "two"]) == 2
    assert count(*([number] for number in range(1, 16)), *([number] for number in range(1, 16))) == 2


@pytest.mark.parametrize("begins", [True, False])
def test_copies_are_recognised_while_the_guard_begins_or_ends(begins):
    """Otherwise the second copy of a message would leave as a new one."""
    tree = route(4, "ab", "bc", filters=("+/b", "a/+"))
    hop = Hop(("b", "c"), tree)
    hop.policy.has_overlaps = True
    hop.guard.set_bridges([] if begins else ["by hand"])

    def copy(identifier):
        return stamped("a/b", "a", 1, 4, "b", payload=b"same", identifiers=[identifier])

    assert hop.sent(copy(1)) is not None
    hop.guard.set_bridges(["by hand"] if begins else [])
    assert hop.sent(copy(2)) is None
    assert hop.sent(copy(1)) is not None  # the same message, published again
    assert hop.sent(copy(2)) is None
    hop.clock += 60
    assert hop.sent(copy(1)) is not None
    assert hop.sent(copy(2)) is None


def test_a_copy_behind_a_full_window_of_waiting_messages_is_recognised():
    """While the guard is active, messages wait, and the broker sends no further ones meanwhile."""
    hop = Hop(("b", "c"), route(4, "ab", "bc", filters=("+/b", "a/+")))
    hop.policy.has_overlaps = True
    hop.guard.set_bridges(["by hand"])

    def copy(identifier):
        return stamped("a/b", "a", 1, 4, "b", payload=b"same", identifiers=[identifier])

    assert hop.sent(copy(1)) is not None
    hop.clock += 2 * LONGEST_HOLD
    assert hop.sent(copy(2)) is None
    assert hop.sent(copy(1)) is not None  # the same message, published again


def test_a_killed_agent_does_not_take_a_copy_for_a_new_message():
    """It had seen the copy, and was killed before it noted that it had dropped it."""
    tree = route(4, "ab", filters=("+/b", "a/+"))
    first = Hop(("a", "b"), tree)
    first.policy.has_overlaps = True
    assert first.sent(received("a/b", b"same", 1, identifiers=[1])) is not None
    assert first.sent(received("a/b", b"same", 2, identifiers=[2])) is None
    again = Hop(("a", "b"), tree, store=first.store)
    again.policy.has_overlaps = True
    assert again.sent(received("a/b", b"same", 2, identifiers=[2], dup=True)) is None
    # If the first one is repeated too, it was not finished, and is sent again.
    assert again.sent(received("a/b", b"same", 1, identifiers=[1], dup=True)) is not None
    assert again.sent(received("a/b", b"same", 2, identifiers=[2], dup=True)) is None


def test_a_copy_that_was_first_seen_as_a_repetition_stays_dropped():
    """Another client had taken over the session, and the broker sent it the copy first.

    When the connection is lost again, the last message is another one, so that only the store knows the copy.
    """
    hop = Hop(("a", "b"), route(4, "ab", filters=("+/b", "a/+")))
    hop.policy.has_overlaps = True
    bench = Bench(store=hop.store, policy=hop.policy)
    bench.connect()
    for _ in range(3):
        bench.forwarder.near_opens(bench.near.append, present=True)
        for number, text in enumerate((b"one", b"one", b"two", b"two"), 1):
            copy = received("a/b", text, number, identifiers=[2 - number % 2], dup=True)
            bench.forwarder.arrive(copy)
            bench.settle()
        bench.forwarder.near_closes()
    assert [payload for _, payload in bench.far.delivered] == [b"one", b"two"]
    assert bench.acknowledged == [1, 2, 3, 4] * 3


def test_echoes_of_bridges_made_by_hand_are_dropped_while_a_bridge_is_known():
    tree = route(4, "ab", "bc")
    hop = Hop(("b", "c"), tree)
    message = stamped("x", "a", 1, 4, "b", payload=b"text")
    echo = received("x", b"text", 2)
    assert hop.sent(message) is not None
    assert hop.sent(echo) is not None
    hop.guard.is_active = True
    hop.guard._sure_until = 60.0  # copies have come before
    assert hop.sent(message) is not None
    assert hop.sent(echo) is None
    assert hop.counts["echoes"] == 1
    assert hop.sent(received("x", b"another", 3)) is not None
    hop.clock = 60.0
    assert hop.sent(received("x", b"text", 4)) is not None


# Closing.


def marker(broker, version, rounds, number=9, key=KEY):
    """The message of a marker."""
    return received(MARKER, Marker(broker, version, rounds).write(key), number)


def closed_message(start, end, closed, number=8, key=KEY):
    """A `closed` message, as the hop from `start` to `end` sends it."""
    sender = Hop((start, end), route(4, start + end))
    sender.policy._key = key
    packet = sender.policy._closed_packet(received(CLOSED, b"", number), closed)
    return message_of(bytes((packet[0] & ~0x06 | 2, *packet[1:])))


def test_a_marker_is_a_barrier_that_raises_the_version_and_never_lowers_it():
    hop = Hop(("a", "b"), route(4, "ab", until=1), route(5, "ab", since=2))
    message = marker("a", 2, {})
    assert hop.policy.decide(message, message.digest()) is Hold.BARRIER
    assert hop.store.version == 1  # not before the barrier is passed
    assert hop.policy.pass_barrier(message) is None
    assert (hop.store.version, hop.progress) == (2, [1])
    assert hop.closed(marker("a", 1, {})) is None
    assert hop.store.version == 2


def test_forged_control_messages_are_dropped_and_counted():
    hop = Hop(("a", "b"), route(4, "ab", "ac", until=1))
    text = Marker("a", 9, {}).write(KEY)
    forgeries = [
        marker("b", 9, {}),  # of another broker
        marker("a", 9, {}, key=OTHER_KEY),
        received(MARKER, text[:-1]),
        received(MARKER, b""),
        closed_message("c", "z", [ClosedRoutes(2, 1, (4,))]),  # for another broker
        closed_message("c", "a", [ClosedRoutes(2, 1, (4,))], key=OTHER_KEY),
        received(CLOSED, b"nonsense"),
        received(CLOSED, text),  # an authentic marker is not a `closed` message
        received(MARKER, closed_message("c", "a", [ClosedRoutes(2, 1, (4,))]).payload()),
    ]
    for message in forgeries:
        assert hop.policy.decide(message, message.digest()) is None
    assert hop.counts["forged"] == len(forgeries)
    assert hop.policy.decide(received("$broadloom/other", b"x"), 1) is None
    assert hop.policy.decide(received(MARKER, text, number=0), 0) is None  # of QoS 0
    assert hop.store.version == 1


def test_a_hop_is_closed_after_its_marker_and_the_closed_messages_of_all_other_hops():
    old = route(4, "ab", "bc", "bd", until=1)
    hop = Hop(("b", "c"), old, ordered=2)
    assert hop.closed(closed_message("a", "b", [ClosedRoutes(2, 1, (4,))])) is None
    assert hop.closed(marker("b", 2, {2: 1})) is None
    assert not hop.policy.closing.is_closed(2, 1)
    found = hop.closed(closed_message("d", "b", [ClosedRoutes(2, 1, (4,))]))
    assert found == {"from": "b", "to": "c", "closed": [[2, 1, [4]]]}
    assert hop.policy.closed_at == hop.store.received + 1  # it is the next message to be numbered
    assert hop.policy.closing.is_closed(2, 1)
    assert not hop.policy.closing.is_closed(2, 2)
    assert hop.closed(closed_message("d", "b", [ClosedRoutes(2, 1, (4,))])) is None  # once


def test_a_new_round_begins_closing_again():
    """Messages of an earlier round do not count, and those that came too early do."""
    hop = Hop(("b", "c"), route(4, "ab", "bc", until=1), ordered=2)
    assert hop.closed(marker("b", 2, {2: 1})) is None
    assert hop.closed(closed_message("a", "b", [ClosedRoutes(2, 2, (4,))])) is None
    assert hop.closed(marker("b", 2, {2: 2}))["closed"] == [[2, 2, [4]]]
    assert hop.closed(closed_message("a", "b", [ClosedRoutes(2, 1, (4,))])) is None
    assert hop.policy.closing.is_closed(2, 2)


def test_one_marker_can_complete_several_changes_and_knows_nothing_of_later_ones():
    first, second = route(4, "ab", until=1), route(5, "ab", filters=("y",), until=2)
    hop = Hop(("a", "b"), first, second, ordered=3)
    assert hop.closed(marker("a", 3, {2: 1, 3: 4}))["closed"] == [[2, 1, [4]], [3, 4, [5]]]
    early = Hop(("a", "b"), second, ordered=2)
    assert early.closed(marker("a", 2, {3: 1})) is None  # it does not end version 2


def test_closing_keeps_what_arrives_before_its_orders():
    closing = HopClosing(("b", "c"))
    closing.set_routes([], version=1)
    assert closing.pass_closed("a", ClosedRoutes(2, 1, (4,))) == []
    closing.set_routes([route(4, "ab", "bc", until=1)], version=1)
    assert closing.pass_marker(Marker("b", 2, {2: 1})) == [ClosedRoutes(2, 1, (4,))]
    closing.set_routes([], version=2)
    assert closing.is_closed(2, 1) is False
    assert closing._received == {}


@given(seed=st.randoms(use_true_random=False), size=st.integers(2, 7))
def test_all_hops_of_a_tree_close_in_any_order_of_messages(seed, size):
    """Markers at all brokers, and the messages that they cause, in a random order per hop."""
    names = [f"b{number}" for number in range(size)]
    pairs = [(names[i], seed.choice(names[:i])) for i in range(1, size)]
    old = Route(4, ("x",), frozenset(hop for u, v in pairs for hop in ((u, v), (v, u))), 1, 1)
    hops = {hop: HopClosing(hop) for hop in old.hops}
    for closing in hops.values():
        closing.set_routes([old], 1)
    todo = [(hop, Marker(hop[0], 2, {2: 1})) for hop in sorted(hops)]
    while todo:
        hop, message = todo.pop(seed.randrange(len(todo)))
        if isinstance(message, Marker):
            found = hops[hop].pass_marker(message)
        else:
            found = hops[hop].pass_closed(*message)
        for closed in found:
            todo += [((u, v), (hop[0], closed)) for u, v in sorted(hops) if u == hop[1]]
    assert all(closing.is_closed(2, 1) for closing in hops.values())


@given(seed=st.randoms(use_true_random=False), size=st.integers(2, 8))
def test_the_sides_of_a_hop_divide_its_tree(seed, size):
    names = [f"b{number}" for number in range(size)]
    pairs = [(names[i], seed.choice(names[:i])) for i in range(1, size)]
    hops = {hop for u, v in pairs for hop in ((u, v), (v, u))}
    for u, v in hops:
        near, far = near_side(hops, (u, v)), near_side(hops, (v, u))
        assert near | far == set(names)
        assert not near & far
        assert (u in near, v in far) == (True, True)
    assert near_side(hops, ("b0", "elsewhere")) == frozenset()


# Orders and reports.

TEXTS = st.text(max_size=10)
COUNTS = st.dictionaries(TEXTS, st.integers(0, 2**60), max_size=3)
EPOCHS = st.builds(Epoch, st.integers(0, 2**60), TEXTS)
VERSIONS = st.none() | st.integers(0, 2**60)
HOPS = st.frozensets(st.tuples(TEXTS, TEXTS), max_size=4)
ROUTES = st.builds(
    Route,
    st.integers(0, 2**62),
    st.lists(TEXTS, max_size=3).map(tuple),
    HOPS,
    VERSIONS,
    VERSIONS,
    st.frozensets(TEXTS),
)
ROUNDS = st.dictionaries(st.integers(0, 2**60), st.integers(0, 2**60), max_size=3)
ORDERS = st.builds(
    AgentOrders,
    EPOCHS,
    st.integers(0, 2**60),
    st.integers(0, 2**60),
    ROUNDS,
    st.lists(ROUTES, max_size=3).map(lambda routes: {one.number: one for one in routes}),
    st.dictionaries(TEXTS, TEXTS, max_size=3),
)
TIMES = st.floats(0, 1e6)
HOP_REPORTS = st.builds(
    HopReport,
    st.booleans(),
    st.booleans(),
    st.integers(0, 2**60),
    st.integers(0, 65535),
    st.integers(0, 2**60),
    COUNTS,
    TEXTS,
    st.none() | TIMES,
)
REPORTS = st.builds(
    AgentReport,
    TEXTS,
    TEXTS,
    EPOCHS,
    st.integers(0, 2**60),
    st.integers(0, 2**60),
    st.integers(0, 2**60),
    st.integers(0, 2**60),
    ROUNDS,
    st.booleans(),
    st.dictionaries(TEXTS, HOP_REPORTS, max_size=3),
    st.lists(TEXTS, max_size=3).map(tuple),
    st.none() | st.lists(TEXTS, max_size=3).map(tuple),
    st.integers(0, 2**60),
    st.dictionaries(TEXTS, TIMES, max_size=3),
    COUNTS,
    st.none() | st.lists(ROUTES, max_size=2).map(tuple),
)


@settings(max_examples=40)
@given(ORDERS)
def test_orders_survive_json(orders):
    assert AgentOrders.from_json(json.loads(json.dumps(orders.to_json()))) == orders


@settings(max_examples=40)
@given(REPORTS)
def test_reports_survive_json(report):
    assert AgentReport.from_json(json.loads(json.dumps(report.to_json()))) == report


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(TEXTS, part, max_size=3),
    max_leaves=8,
)


@settings(max_examples=30)
@given(data=st.data())
@pytest.mark.parametrize("kind", [AgentOrders, AgentReport])
def test_any_other_json_is_refused_in_one_line(kind, data):
    """A value that is missing, or of any other shape; values that fit by chance are taken."""
    valid = data.draw(ORDERS if kind is AgentOrders else REPORTS).to_json()
    name = data.draw(st.sampled_from(sorted(valid)))
    changed = {key: value for key, value in valid.items() if key != name or data.draw(st.booleans())}
    if name in changed:
        changed[name] = data.draw(JSON)
    if name in changed:
        with suppress(InputError):
            kind.from_json(changed)
    else:
        with pytest.raises(InputError, match="is malformed") as error:
            kind.from_json(changed)
        assert len(str(error.value)) <= 200


@given(EPOCHS, EPOCHS)
def test_of_two_controllers_at_most_one_replaces_the_other(one, other):
    assert one.yields_to(one)
    assert not (one != other and one.yields_to(other) and other.yields_to(one))


def test_a_hop_whose_files_cannot_be_deleted_ends_when_they_can(tmp_path, monkeypatch):
    """A disk that is read-only for a while; it was the end of the agent, with a traceback."""
    said, refusals = [], [PermissionError("read-only")] * 2

    async def scenario():
        end = Endpoint("127.0.0.1", 1)  # nobody listens there
        context = HopContext(
            KEY,
            tmp_path,
            lambda text: said.append(("problem", text)),
            lambda text: said.append(("solved", text)),
            *(lambda *_: 0 for _ in range(5)),
            RingGuard("rome", lambda: 0.0),
        )
        hop = SiteHop(("rome", "oslo"), end, end, context)
        delete = hop.store.delete

        def refused():
            if refusals:
                raise refusals.pop()
            delete()

        monkeypatch.setattr(hop.store, "delete", refused)
        assert await hop.forget(seconds=0) == ["rome", "oslo"]  # whose sessions could not be ended

    monkeypatch.setattr(site_hop, "DELETE_SECONDS", 0)
    asyncio.run(scenario())
    text = "files of the ended hop to 'oslo' cannot be deleted, so its sessions stay for now"
    assert said == [("problem", text), ("problem", text), ("solved", text)]
    assert list(tmp_path.iterdir()) == []
