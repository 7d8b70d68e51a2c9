"""Rollout of a change: what changes at each broker from one deployment to another, and in which order.

Where a change needs a restart, a broker drops its old links and opens its new ones at the same time. On
mosquitto, a new link must not come up before the old link that it replaces is gone, or messages would loop.
So the brokers restart in batches that close no ring, first the batch that cuts off the fewest deliveries. The
messages that a batch cuts off are queued: the session of each new link is opened before the old link goes,
and the new link takes it over.

RabbitMQ changes everything live, by its HTTP API: the new deployment is added next to the old one, each
broker switches by one call, and the old deployment is removed when it is empty. NATS reads
links again when it reloads (before 2.14: when it restarts), and keeps nothing for a link that is away.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import unified_diff
from itertools import islice
from typing import Any, NamedTuple

from broadloom.deployment.deployment_inputs import Settings
from broadloom.deployment.loop_checks import is_forest
from broadloom.deployment.targets import nats_leafnodes, rabbitmq_federation
from broadloom.deployment.targets.mosquitto_bridges import broker_address, local_id, remote_id
from broadloom.deployment.wiring import Hop, SampleMessage, WiredLink, Wiring, delivery_hops, sample_messages
from broadloom.errors import InputError
from broadloom.mqtt.topic_filters import FilterIndex, groups

Links = tuple[WiredLink, ...]
RolloutStep = dict[str, Any]

CANDIDATE_BATCHES = 8  # number of batches that are compared before one is chosen


class Deployment(NamedTuple):
    """An export with its wiring and settings.

    Attributes:
        wiring: the links between brokers.
        settings: addresses, and how links authenticate.
        files: the file of each broker, by name, in the order of the brokers.
    """

    wiring: Wiring
    settings: Settings
    files: dict[str, str]

    def texts(self) -> dict[str, str]:
        """The text of each broker's file, by broker."""
        return dict(zip(self.wiring.brokers, self.files.values(), strict=True))


class LinkSession(NamedTuple):
    """The session that a broker keeps for a link while it is absent.

    Attributes:
        broker: the broker that keeps it.
        client: its client id.
        owner: the broker that opens the link.
        filters: its subscriptions; empty for a session that ends.
    """

    broker: str
    client: str
    owner: str
    filters: tuple[str, ...] = ()


class BatchAction(NamedTuple):
    """One action at a broker.

    Attributes:
        action: "stop" or "start" the broker, or "open", "close" or "end" a session there.
        broker: the broker.
        session: the session, with the topic filters to open or close.
    """

    action: str
    broker: str
    session: LinkSession | None = None


class Batch(NamedTuple):
    """Brokers that restart together.

    Attributes:
        brokers: the brokers that restart.
        links: all links of all brokers from then on.
        cut: how many deliveries, of one message per topic and broker, wait for a later batch.
        opened: sessions of new links to open before; they queue messages that old links no longer carry.
        grown: additional topic filters of links that stay, to subscribe while their owners are stopped.
        shrunk: dropped topic filters of links that stay, to unsubscribe while their owners are stopped.
        ended: sessions of removed links, to end while or after their owners restart.
        dropped: the topic filters that some link no longer carries.
    """

    brokers: tuple[str, ...]
    links: Links
    cut: int
    opened: tuple[LinkSession, ...]
    grown: tuple[LinkSession, ...]
    shrunk: tuple[LinkSession, ...]
    ended: tuple[LinkSession, ...]
    dropped: tuple[str, ...] = ()

    def actions(self) -> Iterator[BatchAction]:
        """The actions, in order.

        The owner of a link, whose id sorts first, stops before its peer and starts after it: in between, the
        session at the peer is free to be changed. No filter is dropped before all others are queued: sessions
        open as soon as their owner has stopped, and close when all have, or when their broker is back. The
        sessions of removed links end when all brokers are back: nothing connects to them any more, and no
        broker is down meanwhile.
        """
        restarting = set(self.brokers)
        opens = defaultdict[str, list[BatchAction]](list)
        for session in self.grown:
            opens[session.owner].append(BatchAction("open", session.broker, session))
        at_once: list[BatchAction] = []  # when all brokers have stopped
        when_back = defaultdict[str, list[BatchAction]](list)
        for session in self.shrunk:
            found = when_back[session.broker] if session.broker in restarting else at_once
            found.append(BatchAction("close", session.broker, session))
        yield from (BatchAction("open", session.broker, session) for session in self.opened)
        for broker in sorted(self.brokers):
            yield from (BatchAction("stop", broker), *opens[broker])
        yield from at_once
        for broker in sorted(self.brokers, reverse=True):
            yield from (BatchAction("start", broker), *when_back[broker])
        yield from (BatchAction("end", session.broker, session) for session in self.ended)

    def record(self) -> dict[str, Any]:
        """The batch, ready for JSON."""
        names = ("opened", "grown", "shrunk", "ended")
        sessions = {name: [session._asdict() for session in getattr(self, name)] for name in names}
        return {"restart": list(self.brokers), "cut": self.cut, "sessions": sessions}


class WiringChange(NamedTuple):
    """The changes of the links that one broker owns."""

    broker: str
    added: Links
    removed: Links
    changed: tuple[tuple[WiredLink, WiredLink], ...]

    def record(self) -> dict[str, Any]:
        """The change, ready for JSON."""
        return {
            "broker": self.broker,
            "added": [link._asdict() for link in self.added],
            "removed": [link._asdict() for link in self.removed],
            "changed": [{"from": old._asdict(), "to": new._asdict()} for old, new in self.changed],
        }


def changes(old: Wiring, new: Wiring) -> list[WiringChange]:
    """The changes at each broker, in the order of the new plan's brokers, then those that leave.

    Examples:
        >>> one = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ()),))
        >>> two = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x", "y"), ()),))
        >>> [(change.broker, len(change.changed)) for change in changes(one, two)]
        [('a', 1)]
    """
    found = []
    for broker in dict.fromkeys((*new.brokers, *old.brokers)):
        before = _owned(old.links, broker)
        after = _owned(new.links, broker)
        added = tuple(link for peer, link in after.items() if peer not in before)
        removed = tuple(link for peer, link in before.items() if peer not in after)
        kept = ((before[peer], after[peer]) for peer in after if peer in before)
        changed = tuple((one, other) for one, other in kept if one != other)
        if added or removed or changed:
            found.append(WiringChange(broker, added, removed, changed))
    return found


def common(old: Wiring, new: Wiring) -> Wiring:
    """The brokers of both wirings, with the subscriptions and publications that both have; without links.

    Examples:
        >>> one = Wiring(("a", "b"), {"a": ("x", "y")}, {"b": ("x",)}, ())
        >>> both = common(one, Wiring(("a", "b", "c"), {"a": ("x",)}, {"b": ("x",), "c": ("x",)}, ()))
        >>> both.brokers, both.wants, both.publishes
        (('a', 'b', 'c'), {'a': ('x',)}, {'b': ('x',)})
    """
    brokers = tuple(dict.fromkeys((*old.brokers, *new.brokers)))

    def both(
        one: Mapping[str, tuple[str, ...]], other: Mapping[str, tuple[str, ...]]
    ) -> dict[str, tuple[str, ...]]:
        shared = {name: tuple(sorted(set(one.get(name, ())) & set(other.get(name, ())))) for name in brokers}
        return {name: texts for name, texts in shared.items() if texts}

    wants, publishes = both(old.wants, new.wants), both(old.publishes, new.publishes)
    return Wiring(brokers, wants, publishes, (), anywhere=old.anywhere and new.anywhere)


def order(old: Wiring, new: Wiring, at_once: bool = False, also: Iterable[str] = ()) -> list[Batch]:
    """The batches in which brokers change from the old links to the new ones; each restarts once.

    Args:
        old: the present wiring.
        new: the new wiring.
        at_once: whether to restart all brokers together: faster, but all are absent at the same time.
        also: brokers that restart although their links carry the same, because other settings change.

    Examples:
        >>> x, brokers = ("x",), ("a", "b", "c")
        >>> wants = dict.fromkeys(brokers, x)
        >>> ab, bc, ac = (WiredLink(u, v, x, x) for u, v in ("ab", "bc", "ac"))
        >>> path, other = (Wiring(brokers, wants, {}, links) for links in ((ab, bc), (ab, ac)))
        >>> [batch.brokers for batch in order(path, other)]
        [('b',), ('a',)]
    """
    planner = _BatchPlanner(old, new, also)
    batches = []
    while planner.goal:
        before = planner.links
        brokers = tuple(planner.goal) if at_once else planner.choose()
        planner.apply(brokers)
        batches.append(_with_sessions(brokers, before, planner, new.links))
    return batches


class _BatchPlanner:
    """State of a rollout: the links that are up, the goals of the other brokers, the deliveries cut off."""

    def __init__(self, old: Wiring, new: Wiring, also: Iterable[str]) -> None:
        brokers = dict.fromkeys((*(change.broker for change in changes(old, new)), *also))
        own = {broker: _owned(old.links, broker) for broker in brokers}
        self.links: Links = tuple(old.links)
        self.goal = {broker: tuple(_owned(new.links, broker).values()) for broker in own}
        self._drops = {broker: _dropped(own[broker].values(), self.goal[broker]) for broker in own}
        self._gains = {broker: _dropped(self.goal[broker], own[broker].values()) for broker in own}
        staying = {broker: [link for link in self.goal[broker] if link.peer in own[broker]] for broker in own}
        self._grows = {broker: _dropped(staying[broker], own[broker].values()) for broker in own}
        self._group = groups(
            sorted({text for link in (*old.links, *new.links) for text in link.out + link.into})
        )
        self._up = self._pairs(self.links)
        self._coming = {broker: self._pairs(links) for broker, links in self.goal.items()}
        self._deliveries = _CutDeliveries(old, new)
        self.cut = 0

    def choose(self) -> tuple[str, ...]:
        """Of a few batches that close no ring, the one with the fewest cut deliveries, then the smallest."""
        seeds = dict.fromkeys(self._closure(broker) for broker in self.goal)
        found = list(islice((brokers for brokers in seeds if not self._loops(brokers)), CANDIDATE_BATCHES))
        if not found:  # unite batches until they close no ring; all brokers together close none
            together: set[str] = set()
            for brokers in seeds:
                together.update(brokers)
                if not self._loops(together):
                    break
            return tuple(broker for broker in self.goal if broker in together)
        cuts = [self._deliveries.change(self._with(brokers), self._touched(brokers)) for brokers in found]
        return min(zip(cuts, map(len, found), range(len(found)), found, strict=True))[-1]

    def apply(self, brokers: tuple[str, ...]) -> None:
        """Give brokers their new links."""
        touched = self._touched(brokers)
        self.links = self._with(brokers)
        self._up = self._pairs(self.links)
        self.cut = self._deliveries.apply(self.links, touched)
        self.goal = {broker: links for broker, links in self.goal.items() if broker not in brokers}

    def _closure(self, broker: str) -> tuple[str, ...]:
        """The broker, the brokers with a link that takes over a topic filter that it drops, and so on.

        A link that is up cannot queue messages for later, so both must change at the same time.
        """
        brokers = {broker}
        dropped = set(self._drops[broker])
        while more := {one for one in self.goal if one not in brokers and dropped & self._grows[one]}:
            brokers |= more
            dropped.update(*(self._drops[one] for one in more))
        return tuple(one for one in self.goal if one in brokers)

    def _loops(self, brokers: Iterable[str]) -> bool:
        """Whether the brokers' new links would close a ring; only the topic filters that they gain can."""
        chosen = set(brokers)
        for group in {self._group[text] for broker in chosen for text in self._gains[broker]}:
            kept = [pair for pair in self._up.get(group, ()) if pair[0] not in chosen]
            coming = [pair for broker in chosen for pair in self._coming[broker].get(group, ())]
            if not is_forest(kept + coming):
                return True
        return False

    def _pairs(self, links: Links) -> dict[str, set[Hop]]:
        """The ends of the links that carry each group of topic filters."""
        found = defaultdict[str, set[Hop]](set)
        for link in links:
            for text in link.out + link.into:
                found[self._group[text]].add(link[:2])
        return found

    def _touched(self, brokers: Iterable[str]) -> set[str]:
        """The topic filters whose paths change with a batch."""
        return {text for broker in brokers for text in self._drops[broker] | self._gains[broker]}

    def _with(self, brokers: Iterable[str]) -> Links:
        """All links, with those of some brokers replaced."""
        chosen = set(brokers)
        kept = [link for link in self.links if link.owner not in chosen]
        return tuple(sorted([*kept, *(link for broker in sorted(chosen) for link in self.goal[broker])]))


class _CutDeliveries:
    """Counts of the deliveries that links cut off, among the topics wanted and published in both wirings."""

    def __init__(self, old: Wiring, new: Wiring) -> None:
        self._stable = common(old, new)
        self._messages = defaultdict[str, list[SampleMessage]](list)
        for message in sample_messages(self._stable):
            self._messages[message.topic].append(message)
        self._known = FilterIndex(self._messages)
        self._cut: dict[str, int] = {}

    def change(self, links: Links, filters: Iterable[str]) -> int:
        """How many more deliveries links cut off that differ from the present ones in these filters."""
        return sum(cut - self._cut.get(topic, 0) for topic, cut in self._count(links, filters).items())

    def apply(self, links: Links, filters: Iterable[str]) -> int:
        """Make these links the present ones; returns how many deliveries they cut off."""
        self._cut.update(self._count(links, filters))
        return sum(self._cut.values())

    def _count(self, links: Links, filters: Iterable[str]) -> dict[str, int]:
        wiring = Wiring((), {}, {}, links)
        topics = {topic for text in filters for topic in self._known.meeting(text)}
        return {
            topic: sum(
                len(self._stable.wanting(topic) - {message.broker, *delivery_hops(wiring, message)})
                for message in self._messages[topic]
            )
            for topic in topics
        }


def _with_sessions(brokers: tuple[str, ...], before: Links, planner: _BatchPlanner, goal: Links) -> Batch:
    """The batch that led from the links before to those of the planner, with the sessions to change."""
    after = planner.links
    dropped = _dropped(before, after)
    staying = _staying(before, after)
    old_links = {link[:2]: link for link in before}
    new_links = {link[:2]: link for link in after}
    opened = []
    for link in goal:
        if link[:2] not in old_links:
            out, into = (
                _cut_off(hop, dropped.intersection(filters), staying) for hop, filters in link.carried()
            )
            opened += [_session_at_peer(link, into)] if into else []
            opened += [_session_at_owner(link, out)] if out else []
    grown: list[LinkSession] = []
    shrunk: list[LinkSession] = []
    ended: list[LinkSession] = []
    for ends, link in old_links.items():
        if ends not in new_links:
            ended += [_session_at_peer(link), _session_at_owner(link)]
            continue
        for one, other, found in ((link, new_links[ends], shrunk), (new_links[ends], link, grown)):
            if difference := tuple(sorted(set(one.into) - set(other.into))):
                found.append(_session_at_peer(link, difference))
    sessions = (tuple(opened), tuple(grown), tuple(shrunk), tuple(ended))
    return Batch(brokers, after, planner.cut, *sessions, dropped=tuple(sorted(dropped)))


def _session_at_peer(link: WiredLink, filters: tuple[str, ...] = ()) -> LinkSession:
    return LinkSession(link.peer, remote_id(link), link.owner, filters)


def _session_at_owner(link: WiredLink, filters: tuple[str, ...] = ()) -> LinkSession:
    return LinkSession(link.owner, local_id(link), link.owner, filters)


def _staying(before: Links, after: Links) -> Wiring:
    """The links that are in both, with the topic filters that both have."""
    earlier = {hop: filters for link in before for hop, filters in link.carried()}
    links = []
    for link in after:
        out, into = (
            tuple(set(filters).intersection(earlier.get(hop, ()))) for hop, filters in link.carried()
        )
        links.append(WiredLink(link.owner, link.peer, out, into))
    return Wiring((), {}, {}, tuple(links))


def _cut_off(hop: Hop, filters: Iterable[str], wiring: Wiring) -> tuple[str, ...]:
    """The topic filters whose messages do not get from one end of a hop to the other."""
    start, end = hop
    return tuple(
        sorted(text for text in filters if end not in delivery_hops(wiring, SampleMessage(start, text)))
    )


def _dropped(before: Iterable[WiredLink], after: Iterable[WiredLink]) -> set[str]:
    """The topic filters that some hop no longer carries."""
    later = {hop: filters for link in after for hop, filters in link.carried()}
    return {
        text
        for link in before
        for hop, filters in link.carried()
        for text in set(filters).difference(later.get(hop, ()))
    }


def _owned(links: Iterable[WiredLink], broker: str) -> dict[str, WiredLink]:
    return {link.peer: link for link in links if link.owner == broker}


def differing_files(old: Deployment, new: Deployment) -> list[dict[str, Any]]:
    """The files that differ, with the removed and the added lines."""
    found = []
    names = {
        name: broker for one in (old, new) for broker, name in zip(one.wiring.brokers, one.files, strict=True)
    }
    for name, broker in sorted(names.items()):
        before, after = (one.files.get(name) for one in (old, new))
        if before != after:
            lines = unified_diff((before or "").splitlines(), (after or "").splitlines(), n=0, lineterm="")
            change = "new" if before is None else "gone" if after is None else "changed"
            changed = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
            found.append({"broker": broker, "file": name, "change": change, "lines": changed})
    return found


def restarting(old: Deployment, new: Deployment) -> list[str]:
    """The brokers of both that must read their file again: it differs in more than comments.

    Examples:
        >>> both = Wiring(("a", "b"), {}, {}, ())
        >>> one = Deployment(both, Settings(), {"a": "address b:1", "b": "# linked from a"})
        >>> two = Deployment(both, Settings(), {"a": "address b:2", "b": "# linked from c"})
        >>> restarting(one, two)
        ['a']
    """
    before = old.texts()
    after = new.texts()
    return [
        broker
        for broker in new.wiring.brokers
        if broker in before and without_comments(before[broker]) != without_comments(after[broker])
    ]


def without_comments(text: str) -> list[str]:
    """The lines of a file that mean something to a broker."""
    return [line.split("  # ")[0] for line in text.splitlines() if not line.startswith("#")]


def mosquitto_steps(old: Deployment, new: Deployment, at_once: bool) -> list[RolloutStep]:
    """The batches of brokers that restart, with the commands that make brokers queue messages meanwhile."""
    batches = order(old.wiring, new.wiring, at_once, restarting(old, new))
    return [batch.record() | {"commands": list(_commands(batch, old, new))} for batch in batches]


def _commands(batch: Batch, old: Deployment, new: Deployment) -> Iterator[str]:
    """The commands of a batch for an operator; work at the broker's own machine is a comment."""
    file_of = dict(zip(new.wiring.brokers, new.files, strict=True))
    for action, broker, session in batch.actions():
        if session is not None:
            deployment = new if broker in file_of else old
            yield session_command(session, action, deployment.settings)
        elif action == "start":
            yield f"# start {broker} " + (f"with {file_of[broker]}" if broker in file_of else "without links")
        else:
            yield f"# stop {broker}"


def session_command(session: LinkSession, action: str, settings: Settings) -> str:
    """The command that opens, closes or ends a session at a mosquitto broker.

    Examples:
        >>> session_command(LinkSession("b", "r.broadloom-a:b", "a", ("x",)), "open", Settings(tls=False))
        'broadloom deploy session b:1883 r.broadloom-a:b --open=x --no-tls'
    """
    address = broker_address(settings, session.broker)
    known = session.broker in settings.brokers and settings.fleet_file is not None
    words = ["broadloom", "deploy", "session", session.broker if known else str(address), session.client]
    words += ["--end"] if action == "end" else [f"--{action}={text}" for text in session.filters]
    if known:
        words += ["--fleet", settings.fleet_file or ""]
        words += ["--qos", str(settings.qos)] if action == "open" and settings.qos != 1 else []
        return shlex.join(words)
    words += [] if settings.tls else ["--no-tls"]
    words += ["--certificates", settings.certificates] if settings.tls and settings.certificates else []
    words += ["--credentials"] if settings.credentials else []
    words += ["--qos", str(settings.qos)] if action == "open" and settings.qos != 1 else []
    return shlex.join(words)


def rabbitmq_steps(old: Deployment, new: Deployment, at_once: bool) -> list[RolloutStep]:
    """The calls that add the new deployment, that switch to it, and that remove the old one; no restart."""
    if at_once:
        raise InputError("--at-once does not apply to RabbitMQ, which restarts no broker; leave it out")
    parts = rabbitmq_federation.change(old.wiring, new.wiring, old.settings, new.settings)
    when = ("", "when all links of the step before are up", "when the queues of the old links are empty")
    return [
        {"restart": [], "call": calls} | ({"when": text} if text else {})
        for calls, text in zip(parts, when, strict=True)
        if calls
    ]


def nats_steps(old: Deployment, new: Deployment, at_once: bool) -> list[RolloutStep]:
    """The batches of brokers that restart, so that no account closes a ring; nothing is queued meanwhile.

    Brokers to which others will link come first, brokers to which no other links any more last. If topics
    change accounts, all brokers restart together.
    """
    every_change = restarting(old, new)
    moved = nats_leafnodes.moved_topics(old.wiring, new.wiring)
    if at_once or moved:
        return [{"restart": every_change, "accounts": moved}] if every_change or moved else []
    batches = [batch.brokers for batch in order(_by_account(old.wiring), _by_account(new.wiring))]
    linking = {broker for brokers in batches for broker in brokers}
    linked_to = {link.peer for link in new.wiring.links}
    others = [broker for broker in every_change if broker not in linking]
    first = [broker for broker in others if broker in linked_to]
    last = [broker for broker in others if broker not in linked_to]
    return [{"restart": list(brokers), "accounts": {}} for brokers in (first, *batches, last) if brokers]


def _by_account(wiring: Wiring) -> Wiring:
    """The wiring as NATS sees it: a link carries accounts, in both directions, instead of topics."""
    account_of = nats_leafnodes.account_of(wiring)

    def accounts(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted({account_of[text] for text in texts if text in account_of}))

    carried = [(link, accounts(link.out + link.into)) for link in wiring.links]
    links = tuple(link._replace(out=both, into=both) for link, both in carried)
    wants = {broker: accounts(texts) for broker, texts in wiring.wants.items()}
    return replace(wiring, wants=wants, publishes={}, links=links)
