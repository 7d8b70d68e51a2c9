"""Application of a change to running mosquitto brokers: killed at every step, rolled back, and under load."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading

import pytest
from deploy_strategies import plans
from hypothesis import given, settings
from hypothesis import strategies as st

import broadloom as bl
from broadloom.deployment import Deployment, FleetBroker, FleetHooks, WiredLink, Wiring, export, target_named
from broadloom.deployment.apply import OLD, ChangeJournal, DeploymentChange, apply_change
from broadloom.deployment.deployment_inputs import Settings
from broadloom.deployment.rabbitmq_control import RabbitChange, RabbitControl
from broadloom.deployment.rehearsal.delivery_counts import DeliveryTally
from broadloom.deployment.rehearsal.mosquitto_lab import HOST, MosquittoLab
from broadloom.deployment.rehearsal.rehearsals import LabControl, RestartSpans
from broadloom.deployment.wiring import SampleMessage
from broadloom.errors import InputError
from broadloom.formats.mosquitto_db import read_mosquitto_db
from broadloom.mqtt.endpoint import ANONYMOUS, Address
from broadloom.mqtt.paho import HeldMessage, publish_messages
from fleet_lab import wait_until
from operator_sites import fleet_of, running_sites

MOSQUITTO = target_named("mosquitto")
X, Y, BOTH = ("x",), ("y",), ("x", "y")


def deployed(wiring, settings=None):
    settings = settings or Settings(tls=False)
    return Deployment(wiring, settings, export(wiring, MOSQUITTO, settings))


class PretendBrokers:
    """A control that changes a dictionary, and can fail or be killed at any call."""

    def __init__(self, change, killed_at=None):
        self.sides = {OLD: change.old.wiring, "new": change.new.wiring}
        self.up = {broker: True for wiring in self.sides.values() for broker in wiring.brokers}
        self.file = {broker: self._links(OLD, broker) for broker in self.up}
        self.running = dict(self.file)
        self.sessions = {}  # the topic filters of each, by broker and client
        for link in change.old.wiring.links:
            self._connect(link)
        self.drained, self.published = {}, set()
        self.topics = {
            client: min(link.filters())
            for wiring in self.sides.values()
            for link in wiring.links
            for _, client in ends(link)
        }
        self.killed_at = killed_at
        self.calls = 0

    def _links(self, side, broker):
        return frozenset(link for link in self.sides[side].links if link.owner == broker)

    def _connect(self, link):
        """As mosquitto does: a link subscribes at its peer, and is subscribed anew at its owner."""
        at_peer, at_owner = ends(link)
        self.sessions[at_peer] = self.sessions.get(at_peer, frozenset()) | set(link.into)
        self.sessions[at_owner] = frozenset(link.out)

    def _count(self):
        self.calls += 1
        if self.calls == self.killed_at:
            raise KeyboardInterrupt

    def stop(self, broker):
        """Stop it."""
        self._count()
        self.up[broker] = False
        self._count()

    def install(self, broker, side):
        """Write its links."""
        self._count()
        assert not self.up[broker]
        self.file[broker] = self._links(side, broker)
        self._count()

    def remove(self, broker):
        """Remove its links."""
        self._count()
        self.file[broker] = frozenset()
        self._count()

    def start(self, broker):
        """Start it."""
        self._count()
        self.up[broker] = True
        self.running[broker] = self.file[broker]
        for link in self.running[broker]:
            self._connect(link)
        self._count()

    def wait(self, links):
        """The links must be up."""
        self._count()
        for link in links:
            assert self.up[link.owner]
            assert self.up[link.peer]
            assert link[:2] in {one[:2] for one in self.running[link.owner]}

    def update(self, action, session):
        """Change a session; its broker must be up."""
        assert self.up[session.broker], f"{session.broker} is down"
        assert session.filters
        key = (session.broker, session.client)
        before = self.sessions.get(key, frozenset())
        filters = frozenset(session.filters)
        self.sessions[key] = before | filters if action == "open" else before - filters

    def drain(self, session, keep):
        """End a session, in which one message waits."""
        assert self.up[session.broker], f"{session.broker} is down"
        if (session.broker, session.client) in self.sessions:
            topic = self.topics[session.client]
            keep([HeldMessage(topic, session.client.encode())])
            self._count()
            del self.sessions[session.broker, session.client]
            self.drained[session.client] = topic

    def watch(self, broker, filters):
        """Its broker must be up."""
        assert self.up[broker]
        assert filters

    def end_watch(self, broker):
        """Its broker must be up."""
        assert self.up[broker]

    def record(self):
        """Nothing is seen."""

    def recorded(self):
        """Nothing was seen."""
        return {}

    def missing(self, broker, messages, seconds):  # noqa: ARG002
        """Nothing has arrived."""
        assert self.up[broker]
        return list(messages)

    def publish(self, broker, messages):
        """Publish what was drained."""
        assert self.up[broker]
        self.published.update(message.payload.decode() for message in messages)
        self._count()

    def owed(self, side):
        """The sessions whose message somebody wants."""
        return {client for client, topic in self.drained.items() if self.sides[side].wanting(topic)}

    def state(self):
        """Everything."""
        return self.up, self.file, self.running, self.sessions


def ends(link):
    name = f"broadloom-{link.owner}:{link.peer}"
    return (link.peer, f"r.{name}"), (link.owner, f"l.{name}")


@st.composite
def wirings(draw):
    from broadloom.deployment import plan_trees, wire

    return [wire(plan, plan_trees(plan)) for plan in (draw(plans()), draw(plans()))]


@given(wirings(), st.integers(1, 60), st.booleans())
@settings(max_examples=60)
def test_killed_anywhere_and_run_again_a_change_ends_the_same(pair, killed_at, at_once):
    change = DeploymentChange(*(deployed(wiring) for wiring in pair))
    steps = change.steps(at_once)
    whole = PretendBrokers(change)
    apply_change(change, steps, whole, ChangeJournal(None))
    broken, journal = PretendBrokers(change, killed_at), ChangeJournal(None)
    try:
        apply_change(change, steps, broken, journal)
    except KeyboardInterrupt:
        apply_change(change, steps, broken, journal)
    assert broken.state() == whole.state()
    assert all(whole.up.values())
    assert broken.published == broken.owed("new") == whole.owed("new")
    assert whole.running == {broker: whole._links("new", broker) for broker in whole.up}
    left = {client for _, client in whole.sessions}
    assert left <= {client for link in pair[1].links for _, client in ends(link)}


@given(wirings(), st.integers(1, 60))
@settings(max_examples=60)
def test_a_rollback_from_anywhere_leads_to_the_old_links_and_leaves_no_session(pair, killed_at):
    change = DeploymentChange(*(deployed(wiring) for wiring in pair))
    broken, journal = PretendBrokers(change, killed_at), ChangeJournal(None)
    before = {broker: broken._links(OLD, broker) for broker in broken.up}
    try:
        apply_change(change, change.steps(), broken, journal)
    except KeyboardInterrupt:
        again = random.Random(killed_at).randint(1, 20)
        broken.killed_at = broken.calls + again  # the way back is killed as well
        for _ in range(2):
            try:
                apply_change(change, (), broken, journal, back=True)
                break
            except KeyboardInterrupt:
                continue
        assert all(broken.up.values())
        assert broken.running == broken.file == before
        assert broken.published >= broken.owed(OLD)
        assert broken.sessions == PretendBrokers(change).sessions
        assert journal.digest is None


@pytest.mark.parametrize("peer", ["b", "c"])
def test_a_rollback_drops_the_filters_that_a_link_had_gained(peer):
    """Topic x moves from b-c to a link of a; a filter left in its session at the peer would make x loop.

    Broker b restarts as well, and c does not.
    """
    other = "c" if peer == "b" else "b"
    stays = WiredLink("a", other, BOTH, BOTH)
    wants = dict.fromkeys("abc", BOTH)
    old, new = (
        deployed(Wiring(tuple("abc"), wants, {}, links))
        for links in (
            tuple(sorted((WiredLink("a", peer, Y, Y), stays, WiredLink("b", "c", X, X)))),
            tuple(sorted((WiredLink("a", peer, BOTH, BOTH), stays))),
        )
    )
    change = DeploymentChange(old, new)
    opened = 0
    for killed_at in itertools.count(1):
        broken, journal = PretendBrokers(change, killed_at), ChangeJournal(None)
        before = dict(broken.sessions)
        try:
            apply_change(change, change.steps(), broken, journal)
            break
        except KeyboardInterrupt:
            opened += "x" in broken.sessions[peer, f"r.broadloom-a:{peer}"]
            apply_change(change, (), broken, journal, back=True)
        assert broken.sessions == before, killed_at
    assert opened


class RememberingBrokers(PretendBrokers):
    """A control whose brokers have seen messages."""

    def __init__(self, change, seen):
        super().__init__(change)
        self.seen = seen
        self.again = []

    def drain(self, session, keep):
        """End a session in which nothing waits."""

    def recorded(self):
        """What was seen at each broker."""
        return self.seen

    def missing(self, broker, messages, seconds):  # noqa: ARG002
        """Those that were not seen there."""
        return [message for message in messages if message not in [one[:2] for one in self.seen[broker]]]

    def publish(self, broker, messages):
        """Remember it."""
        self.again.append((broker, messages))


def test_what_a_restarted_broker_forgot_is_published_where_it_is_missing():
    """Mosquitto drops what a link had not delivered yet, if it starts without the link."""
    ab, bc, ac = (WiredLink(u, v, X, X) for u, v in ("ab", "bc", "ac"))
    old = Wiring(tuple("abc"), dict.fromkeys("abc", X), {}, (ab, bc))
    new = Wiring(tuple("abcd"), dict.fromkeys("abcd", X), {}, (ab, ac, WiredLink("a", "d", X, X)))
    change = DeploymentChange(deployed(old), deployed(new))
    one, two = (HeldMessage("x", payload) for payload in (b"1", b"2"))
    seen = {"a": [one, two], "b": [one, two], "c": [one], "d": []}
    brokers = RememberingBrokers(change, seen)
    record = apply_change(change, change.steps(), brokers, ChangeJournal(None))
    assert brokers.again == [("c", [two])]  # and not at d, which joins
    assert record["returned"] == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, bl.UnreachableError])
def test_what_was_seen_before_a_failed_step_is_published_by_the_process_that_goes_on(tmp_path, error):
    """And what it has seen there is not missing; equal messages count."""
    ab, bc, ac = (WiredLink(u, v, X, X) for u, v in ("ab", "bc", "ac"))
    old, new = (Wiring(tuple("abc"), dict.fromkeys("abc", X), {}, links) for links in ((ab, bc), (ab, ac)))
    change = DeploymentChange(deployed(old), deployed(new))
    one, two = (HeldMessage("x", payload) for payload in (b"1", b"2"))
    first = RememberingBrokers(change, {"a": [one, two, two], "b": [one, two, two], "c": [one, two]})

    def fail(broker):
        raise error(f"{broker} does not start")

    first.start = fail
    journal = ChangeJournal(tmp_path / "fleet.apply")
    with pytest.raises(error):
        apply_change(change, change.steps(), first, journal)
    journal.close()
    journal = ChangeJournal(tmp_path / "fleet.apply")
    second = RememberingBrokers(change, {"a": [], "b": [], "c": []})
    for name in ("up", "file", "running", "sessions"):
        setattr(second, name, getattr(first, name))
    apply_change(change, change.steps(), second, journal)
    assert second.again == [("c", [two])]
    assert not journal.seen
    journal.close()


def test_a_message_that_is_published_again_is_retained_unless_another_has_replaced_it(tmp_path):
    """By a process that goes on, which has it from the journal."""
    ab, bc, ac = (WiredLink(u, v, BOTH, BOTH) for u, v in ("ab", "bc", "ac"))
    old, new = (Wiring(tuple("abc"), dict.fromkeys("abc", BOTH), {}, links) for links in ((ab, bc), (ab, ac)))
    change = DeploymentChange(deployed(old), deployed(new))
    replaced, last, once = (
        HeldMessage("x", b"1", True),
        HeldMessage("x", b"2", True),
        HeldMessage("y", b"3"),
    )
    seen = [replaced, last, once]
    brokers = RememberingBrokers(change, {"a": [], "b": [], "c": []})
    journal = ChangeJournal(tmp_path / "fleet.apply")
    journal.begin(change, change.steps())
    journal.keep_seen({"a": seen, "b": seen})
    journal.close()
    journal = ChangeJournal(tmp_path / "fleet.apply")
    apply_change(change, change.steps(), brokers, journal)
    journal.close()
    assert brokers.again == [("c", [one]) for one in (HeldMessage("x", b"1"), last, once)]


def test_topics_that_leave_a_link_that_stays_are_watched_too():
    """Topic x moves from a-b to b-c; a message from c can wait for a, which no longer forwards it to b."""
    ac = WiredLink("a", "c", BOTH, BOTH)
    old, new = (
        deployed(Wiring(tuple("abc"), dict.fromkeys("abc", BOTH), {}, links))
        for links in (
            (WiredLink("a", "b", BOTH, BOTH), ac),
            (WiredLink("a", "b", Y, Y), ac, WiredLink("b", "c", X, X)),
        )
    )
    change = DeploymentChange(old, new)
    steps = change.steps()
    assert not any(step.action == "end" for step in steps)
    watch = next(step for step in steps if step.action == "watch")
    assert change.watched(watch) == {broker: ["x"] for broker in "abc"}
    assert steps[-1].action == "return"


def test_marks_count_only_at_the_far_end_of_a_link():
    """A mark also arrives at the broker that sent it; that says nothing about the link."""
    link = WiredLink("a", "b", X, X)
    sides = [
        Deployment(Wiring(tuple("ab"), dict.fromkeys("ab", X), {}, links), Settings(tls=False), {})
        for links in ((), (link,))
    ]
    change = RabbitChange(*sides)
    marks = {"a": [], "b": []}
    crosses = False

    def call(broker, method, path, body):  # noqa: ARG001
        if path.endswith("/publish"):
            for name in "ab" if crosses else broker:
                marks[name].append({"payload": body["payload"]})
        if path.endswith("/get"):
            return [marks[broker].pop() for _ in list(marks[broker])]
        return {}

    control = RabbitControl(change, call, patience=0.1)
    probe = next(step for step in change.steps() if step.action == "probe")
    with pytest.raises(bl.UnreachableError, match="is not up"):
        control.take(probe)
    crosses = True
    control.take(probe)


def test_a_journal_survives_its_process_and_refuses_another_change(tmp_path):
    ab, bc = WiredLink("a", "b", X, X), WiredLink("b", "c", X, X)
    one, two = (Wiring(tuple("abc"), dict.fromkeys("abc", X), {}, links) for links in ((ab,), (ab, bc)))
    change = DeploymentChange(deployed_unchecked(one), deployed_unchecked(two))
    broken = PretendBrokers(change, killed_at=3)
    journal = ChangeJournal(tmp_path / "fleet.apply")
    with pytest.raises(KeyboardInterrupt):
        apply_change(change, change.steps(), broken, journal)
    journal.close()
    assert (tmp_path / "fleet.apply").stat().st_mode & 0o077 == 0  # it can have messages of clients
    journal = ChangeJournal(tmp_path / "fleet.apply")
    assert journal.steps == change.steps()
    other = DeploymentChange(change.new, change.old)
    with pytest.raises(InputError, match="another change of this fleet is unfinished"):
        apply_change(other, other.steps(), broken, journal)
    record = apply_change(change, change.steps(), broken, journal)
    assert record["taken"] < record["steps"]
    assert record["seconds_down"].keys() == set(
        record["restarts"]
    )  # also of those that the first one stopped
    with pytest.raises(InputError, match="nothing to roll back"):
        apply_change(change, (), broken, journal, back=True)


@pytest.mark.parametrize(("closing", "end"), [("start a", 4.0), ("close 1 session", 4.5)])
def test_messages_in_flight_are_those_between_the_opening_of_sessions_and_the_last_close(
    monkeypatch, closing, end
):
    """Or the last stop, if no session closes."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    spans = RestartSpans()
    for at, text in (
        (1.0, "1/6 watch what arrives"),
        (2.0, "2/6 open 1 session"),
        (3.0, "3/6 stop a"),
        (4.0, f"4/6 {closing}"),
        (4.5, "5/6 wait until the links are up"),
        (6.0, "6/6 publish what waited"),
    ):
        now = at
        spans(text)
    assert spans.spans() == [(2.0, end)]
    tally = DeliveryTally(Wiring(tuple("ab"), dict.fromkeys("ab", X), {}, ()))
    for published, arrives in ((0.5, 1.0), (1.0, 2.5), (3.0, 3.1), (5.0, 5.5)):
        now = published
        number = tally.publish(SampleMessage("a", "x"))
        now = arrives
        for broker in "aab" if number else "aabb":  # all arrive twice at a; the first also at b
            tally.receive(broker, "x", f"{number} ".encode())
    assert tally.in_flight(spans.spans()) == {"in_flight": 4, "doubled_otherwise": 3}


def deployed_unchecked(wiring):
    settings = Settings(tls=False)
    return Deployment(wiring, settings, MOSQUITTO.files(wiring, settings))


# Real brokers.


class LateWitnessControl(LabControl):
    """Loses a message on a link that is about to be removed, and sees it only when its broker is back."""

    def __init__(self, lab, change, link, message):
        super().__init__(lab, change)
        self.link, self.message = link, message
        self.is_back = threading.Event()

    def record(self):
        """Break the link, and publish the message at its owner, whose watcher is slow."""
        super().record()
        owner = self.link.owner
        self._lab.cut(self.link)
        client = self._witnesses[owner]._client
        seen = client.on_message
        client.on_message = lambda *args: self.is_back.wait(30) and seen(*args)
        publish_messages(Address(HOST, self._lab.ports[owner]), ANONYMOUS, [HeldMessage(*self.message)])

    def start(self, broker):
        """Start a broker, and let the watcher go on."""
        super().start(broker)
        self.is_back.set()

    def end_watch(self, broker):
        """The test asks the watchers what has arrived, and ends them itself."""


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_a_message_that_is_seen_only_after_the_restart_of_its_broker_is_not_lost(monkeypatch):
    monkeypatch.setattr("broadloom.deployment.apply.ARRIVAL_SECONDS", 1.0)
    ab, bc, ac = (WiredLink(u, v, X, X) for u, v in ("ab", "bc", "ac"))
    old, new = (Wiring(tuple("abc"), dict.fromkeys("abc", X), {}, links) for links in ((ab, bc), (ac, bc)))
    change = DeploymentChange(deployed(old), deployed(new))
    late = ("x", b"late")
    with MosquittoLab(old, [ab]) as lab:
        lab.wait_until_linked(old)
        control = LateWitnessControl(lab, change, ab, late)
        try:
            record = apply_change(change, change.steps(), control, ChangeJournal(None))
            missing = [broker for broker in "abc" if control.missing(broker, [late], 30)]
        finally:
            control.close()
    assert (record["returned"], missing) == (1, [])


@pytest.fixture
def sites(tmp_path):
    """Five mosquittos, without links."""
    with running_sites(tmp_path, "abcde") as found:
        yield found


@pytest.fixture
def change(sites, tmp_path):
    """Two plans and a fleet file: broker e joins, broker a leaves, and trees move."""
    fleet_of(sites).save(tmp_path / "fleet.toml")
    wants = {"a": ["x"], "b": ["x", "y"], "c": ["y", "z"], "d": ["x", "z"], "e": ["x", "y"]}
    for seed, (name, members) in enumerate((("empty", ""), ("old", "abcd"), ("new", "bcde"))):
        lists = [wants[broker] if members else [] for broker in members or "abcd"]
        interest = bl.Interest.from_lists(lists, node_ids=list(members or "abcd"))
        weights = bl.workload.weights(nodes=4, kind="planar", seed=seed)
        bl.link(interest, weights, "gm").save(tmp_path / name)
    return tmp_path


APPLY = (sys.executable, "-m", "broadloom.cli", "deploy", "apply")


def applied(folder, *options):
    """The result of the command."""
    words = [*APPLY, *map(str, options), "--fleet", str(folder / "fleet.toml")]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def started(folder, old, new):
    """A process of the command, whose steps can be read."""
    words = [*APPLY, str(old), str(new), "--fleet", str(folder / "fleet.toml")]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def state(sites):
    """The files of all brokers, and whether each runs."""
    return {
        name: (site.links.read_text() if site.links.exists() else None, (site.folder / "pid").exists())
        for name, site in sites.items()
    }


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_a_change_is_applied_killed_resumed_and_rolled_back(sites, change):
    dry = applied(change, "none", change / "old", "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "none taken" in dry.stdout
    assert state(sites) == dict.fromkeys(sites, (None, True))
    first = applied(change, "none", change / "old")
    assert first.returncode == 0, first.stderr
    before = state(sites)
    assert before["a"][0] is not None
    assert before["e"] == (None, True)
    own = [site.folder / "mosquitto.conf" for site in sites.values()]
    texts = [path.read_text() for path in own]

    # Killed again and again, each time after more steps, until it is through.
    for number in itertools.count(1):
        with started(change, change / "old", change / "new") as process:
            lines = list(itertools.islice(process.stderr, 2 * number))
            process.kill()
        if len(lines) < 2 * number:
            break
    assert number > 2
    assert applied(change, change / "old", change / "new", "--roll-back").returncode == 2  # it is complete
    after = state(sites)
    assert after["a"] == (None, True)
    assert [path.read_text() for path in own] == texts  # the operator's own settings
    assert links_up(sites) == {
        line.split()[1]
        for text, _ in after.values()
        for line in (text or "").splitlines()
        if "connection " in line
    }

    # And back, from the middle.
    with started(change, change / "new", change / "old") as process:
        for line in process.stderr:
            if " install " in line:
                process.kill()
    back = applied(change, change / "new", change / "old", "--roll-back")
    assert back.returncode == 0, back.stderr
    assert "rolled back" in back.stdout
    assert state(sites) == after


def links_up(sites):
    """The links that brokers say are up."""
    topic = "$SYS/broker/connection/+/state"
    running = [
        subprocess.Popen(
            ["mosquitto_sub", "-h", HOST, "-p", str(site.port), "-t", topic, "-v", "-W", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for site in sites.values()
    ]
    found = set()
    for process in running:
        for line in process.communicate()[0].splitlines():
            topic, _, up = line.partition(" ")
            if up == "1":
                found.add(topic.split("/")[3].removeprefix("r."))
    return found


def saved_sessions(site):
    """The sessions and subscriptions that a broker keeps, by client id."""
    file = site.folder / "mosquitto.db"
    before = file.stat().st_mtime_ns if file.exists() else None
    os.kill(int((site.folder / "pid").read_text()), signal.SIGUSR1)
    wait_until(lambda: file.exists() and file.stat().st_mtime_ns != before, "the file is written")
    saved = read_mosquitto_db(file.read_bytes())
    assert not saved.damage
    return set(saved.expires), {(one.client, one.filter) for one in saved.subscriptions}


def end_state(sites):
    """All that a change leads to: files, processes, links, sessions and subscriptions."""
    return state(sites), links_up(sites), {name: saved_sessions(site) for name, site in sites.items()}


def step_lines(process):
    """The steps that a process begins."""
    return (line for line in process.stderr if "/" in line.split()[0])


@pytest.mark.kills
@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_a_change_killed_at_each_single_step_ends_like_one_that_was_not(sites, change):
    """There and back, so that each run is killed once; what is compared includes the sessions of links."""
    directions = [(change / "old", change / "new"), (change / "new", change / "old")]
    assert applied(change, change / "empty", change / "old").returncode == 0
    expected, counts = [], []
    for pair in directions:
        with started(change, *pair) as process:
            counts.append(len(list(step_lines(process))))
        expected.append(end_state(sites))
    assert min(counts) > 10
    assert expected[0] != expected[1]
    for number in range(1, max(counts) + 1):
        for pair, wanted, count in zip(directions, expected, counts, strict=True):
            with started(change, *pair) as process:
                begun = len(list(itertools.islice(step_lines(process), number)))
                process.kill()
            assert begun == min(number, count)
            result = applied(change, *pair)
            assert result.returncode == 0, (number, result.stderr)
            assert end_state(sites) == wanted, number
    assert applied(change, change / "old", "none").returncode == 0
    assert (state(sites), links_up(sites)) == (dict.fromkeys(sites, (None, True)), set())


@pytest.mark.needs("mosquitto")
@pytest.mark.xdist_group("mosquitto")
def test_a_broker_that_does_not_come_back_stops_the_change_with_one_line(sites, change):
    fleet = fleet_of(sites)
    bad = FleetHooks(path=str(sites["b"].links), stop=sites["b"].hooks().stop, start=("true",))
    brokers = [
        FleetBroker(one.name, one.address, tls=None, hooks=bad if one.name == "b" else one.hooks)
        for one in fleet.brokers.values()
    ]
    bl.Fleet(brokers).save(change / "fleet.toml", overwrite=True)
    result = applied(change, change / "empty", change / "old", "--patience", 1)
    assert result.returncode == 3
    last = result.stderr.strip().splitlines()[-1]
    assert "broker 'b' does not answer" in last
    assert "--roll-back" in last
    fleet.save(change / "fleet.toml", overwrite=True)
    assert applied(change, change / "empty", change / "old", "--roll-back").returncode == 0
    assert all(up for _, up in state(sites).values())
