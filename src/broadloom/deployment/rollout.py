"""From one plan's links to another's: what changes at which broker, and in which order.

Where a change needs a restart, brokers drop their old links and open their new ones at once. A new link must
not come up before the old one that it replaces is gone: on mosquitto messages would go round for ever. So the
brokers restart in batches that close no ring, first the one after which the fewest deliveries are cut off.
What a batch cuts is queued meanwhile: the session of each new link is opened before the old link goes, and
the link finds it when it comes. RabbitMQ changes live and never loops, so that all is added first and removed
afterwards: a few messages come twice, none is lost.
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
from broadloom.deployment.targets.mosquitto_bridges import PORT, TLS_PORT, local_id, remote_id
from broadloom.deployment.wiring import Hop, SampleMessage, WiredLink, Wiring, delivery_hops, sample_messages
from broadloom.errors import InputError
from broadloom.mqtt.topic_filters import FilterTree, groups

Links = tuple[WiredLink, ...]
_Texts = dict[str, tuple[str, ...]]

TRIED = 8  # batches that are looked at before one of them is chosen


class LinkSession(NamedTuple):
    """What a broker keeps for a link while it is away.

    Attributes:
        broker: where it is kept.
        client: under which client id.
        owner: the broker that opens the link.
        filters: which subscriptions; for a session to be ended, none.
    """

    broker: str
    client: str
    owner: str
    filters: tuple[str, ...] = ()


class Act(NamedTuple):
    """Something to do at a broker.

    Attributes:
        what: "stop" or "start" it, or "open", "close" or "end" a session there.
        broker: where.
        session: which session, with the filters to open or close.
    """

    what: str
    broker: str
    session: LinkSession | None = None


class Batch(NamedTuple):
    """Brokers that restart together.

    Attributes:
        brokers: who restarts.
        links: all links of all brokers from then on.
        cut: how many deliveries, of a message of each topic from each broker, wait for a later batch.
        opened: sessions of new links, to be opened before; they queue what the old links no longer carry.
        grown: what links that stay carry more from then on, to be subscribed to while their owners are down.
        shrunk: what links that stay carry no more, to be unsubscribed from while their owners are down.
        ended: sessions of links that are gone, to be ended while or after their owners restart.
    """

    brokers: tuple[str, ...]
    links: Links
    cut: int
    opened: tuple[LinkSession, ...]
    grown: tuple[LinkSession, ...]
    shrunk: tuple[LinkSession, ...]
    ended: tuple[LinkSession, ...]

    def acts(self) -> Iterator[Act]:
        """What is done, in order.

        The owner of a link, whose id comes first, stops before its peer and starts after it: in between the
        session at the peer is free to be seen to. That is done at once, so that the link queues what it is
        to carry more before other links let go of it.
        """
        kinds = (("open", self.grown), ("close", self.shrunk), ("end", self.ended))
        at_owner, at_peer = defaultdict[str, list[Act]](list), defaultdict[str, list[Act]](list)
        for what, sessions in kinds:
            for session in sessions:
                kept = at_owner if session.broker == session.owner else at_peer
                kept[session.owner].append(Act(what, session.broker, session))
        yield from (Act("open", session.broker, session) for session in self.opened)
        for broker in sorted(self.brokers):
            yield from (Act("stop", broker), *at_peer[broker])
        for broker in sorted(self.brokers, reverse=True):
            yield from (Act("start", broker), *at_owner[broker])

    def record(self) -> dict[str, Any]:
        """The batch as JSON has it."""
        sessions = ("opened", "grown", "shrunk", "ended")
        kept = {name: [session._asdict() for session in getattr(self, name)] for name in sessions}
        return {"restart": list(self.brokers), "cut": self.cut, "sessions": kept}


class WiringChange(NamedTuple):
    """What changes at the broker that owns some links."""

    broker: str
    added: Links
    removed: Links
    changed: tuple[tuple[WiredLink, WiredLink], ...]

    def record(self) -> dict[str, Any]:
        """The change as JSON has it."""
        return {
            "broker": self.broker,
            "added": [link._asdict() for link in self.added],
            "removed": [link._asdict() for link in self.removed],
            "changed": [{"from": old._asdict(), "to": new._asdict()} for old, new in self.changed],
        }


def changes(old: Wiring, new: Wiring) -> list[WiringChange]:
    """What changes at each broker, in the order of the new plan's brokers, then those that leave.

    Examples:
        >>> one = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ()),))
        >>> two = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x", "y"), ()),))
        >>> [(change.broker, len(change.changed)) for change in changes(one, two)]
        [('a', 1)]
    """
    found = []
    for broker in dict.fromkeys((*new.brokers, *old.brokers)):
        before, after = _owned(old.links, broker), _owned(new.links, broker)
        added = tuple(link for peer, link in after.items() if peer not in before)
        removed = tuple(link for peer, link in before.items() if peer not in after)
        kept = ((before[peer], after[peer]) for peer in after if peer in before)
        changed = tuple((one, other) for one, other in kept if one != other)
        if added or removed or changed:
            found.append(WiringChange(broker, added, removed, changed))
    return found


def common(old: Wiring, new: Wiring) -> Wiring:
    """The brokers of both, with what is wanted, and what is published, in both; without links.

    Examples:
        >>> one = Wiring(("a", "b"), {"a": ("x", "y")}, {"b": ("x",)}, ())
        >>> common(one, Wiring(("a", "b", "c"), {"a": ("x",)}, {"b": ("x",), "c": ("x",)}, ()))
        Wiring(brokers=('a', 'b', 'c'), wants={'a': ('x',)}, publishes={'b': ('x',)}, links=(), relays=True)
    """
    brokers = tuple(dict.fromkeys((*old.brokers, *new.brokers)))

    def both(one: Mapping[str, tuple[str, ...]], other: Mapping[str, tuple[str, ...]]) -> _Texts:
        shared = {name: tuple(sorted(set(one.get(name, ())) & set(other.get(name, ())))) for name in brokers}
        return {name: texts for name, texts in shared.items() if texts}

    return Wiring(brokers, both(old.wants, new.wants), both(old.publishes, new.publishes), ())


def order(old: Wiring, new: Wiring, at_once: bool = False, also: Iterable[str] = ()) -> list[Batch]:
    """The batches of brokers that lead from the old links to the new ones; each broker restarts once.

    Args:
        old: how brokers are linked.
        new: how they are to be linked.
        at_once: restart all of them together; sooner over, but all are away in the same moment.
        also: brokers that restart though their links carry what they did, since other settings change.

    Examples:
        >>> x, brokers = ("x",), ("a", "b", "c")
        >>> wants = dict.fromkeys(brokers, x)
        >>> ab, bc, ac = (WiredLink(u, v, x, x) for u, v in ("ab", "bc", "ac"))
        >>> path, other = (Wiring(brokers, wants, {}, links) for links in ((ab, bc), (ab, ac)))
        >>> [batch.brokers for batch in order(path, other)]
        [('b',), ('a',)]
    """
    planner = _Planner(old, new, also)
    batches = []
    while planner.goal:
        state = planner.links
        brokers = tuple(planner.goal) if at_once else planner.choose()
        planner.apply(brokers)
        batches.append(_batch(brokers, state, planner.links, new.links, planner.cut))
    return batches


class _Planner:
    """Where a change stands: the links that are up, the brokers that are still to change, what is cut off."""

    def __init__(self, old: Wiring, new: Wiring, also: Iterable[str]) -> None:
        brokers = dict.fromkeys((*(change.broker for change in changes(old, new)), *also))
        own = {broker: _owned(old.links, broker) for broker in brokers}
        self.links: Links = tuple(old.links)
        self.goal = {broker: tuple(_owned(new.links, broker).values()) for broker in own}
        self._drops = {broker: _dropped(own[broker].values(), self.goal[broker]) for broker in own}
        self._gains = {broker: _dropped(self.goal[broker], own[broker].values()) for broker in own}
        stay = {broker: [link for link in self.goal[broker] if link.peer in own[broker]] for broker in own}
        self._grows = {broker: _dropped(stay[broker], own[broker].values()) for broker in own}
        self._group = groups(
            sorted({text for link in (*old.links, *new.links) for text in link[2] + link[3]})
        )
        self._up = self._pairs(self.links)
        self._coming = {broker: self._pairs(links) for broker, links in self.goal.items()}
        self._judge = _Judge(old, new)
        self.cut = 0

    def choose(self) -> tuple[str, ...]:
        """Of a few batches that close no ring, the one that cuts off least, and of those the smallest."""
        seeds = dict.fromkeys(self._closure(broker) for broker in self.goal)
        found = list(islice((brokers for brokers in seeds if not self._loops(brokers)), TRIED))
        if not found:  # together until they close none, as all of them do
            together: set[str] = set()
            for brokers in seeds:
                together.update(brokers)
                if not self._loops(together):
                    break
            return tuple(broker for broker in self.goal if broker in together)
        cuts = [self._judge.change(self._with(brokers), self._touched(brokers)) for brokers in found]
        return min(zip(cuts, map(len, found), range(len(found)), found, strict=True))[-1]

    def apply(self, brokers: tuple[str, ...]) -> None:
        """Let brokers have their new links."""
        touched = self._touched(brokers)
        self.links = self._with(brokers)
        self._up = self._pairs(self.links)
        self.cut = self._judge.settle(self.links, touched)
        self.goal = {broker: links for broker, links in self.goal.items() if broker not in brokers}

    def _closure(self, broker: str) -> tuple[str, ...]:
        """The broker, and those with a link that is to carry more of what it cuts, and so on.

        A link that is up cannot queue for later, so it must change in the same moment.
        """
        brokers, cut = {broker}, set(self._drops[broker])
        while more := {one for one in self.goal if one not in brokers and cut & self._grows[one]}:
            brokers |= more
            cut.update(*(self._drops[one] for one in more))
        return tuple(one for one in self.goal if one in brokers)

    def _loops(self, brokers: Iterable[str]) -> bool:
        """Whether the brokers' new links would close a ring; only what they gain can."""
        chosen = set(brokers)
        for group in {self._group[text] for broker in chosen for text in self._gains[broker]}:
            kept = [pair for pair in self._up.get(group, ()) if pair[0] not in chosen]
            coming = [pair for broker in chosen for pair in self._coming[broker].get(group, ())]
            if not is_forest(kept + coming):
                return True
        return False

    def _pairs(self, links: Links) -> dict[str, set[Hop]]:
        """The ends of the links that carry each group of filters."""
        found = defaultdict[str, set[Hop]](set)
        for link in links:
            for text in link.out + link.into:
                found[self._group[text]].add(link[:2])
        return found

    def _touched(self, brokers: Iterable[str]) -> set[str]:
        """The filters that go another way after a batch."""
        return {text for broker in brokers for text in self._drops[broker] | self._gains[broker]}

    def _with(self, brokers: Iterable[str]) -> Links:
        """All links, with some brokers' replaced."""
        chosen = set(brokers)
        kept = [link for link in self.links if link.owner not in chosen]
        return tuple(sorted([*kept, *(link for broker in sorted(chosen) for link in self.goal[broker])]))


def _batch(brokers: tuple[str, ...], state: Links, links: Links, goal: Links, cut: int) -> Batch:
    """A batch with the sessions that go with it."""
    dropped, up = _dropped(state, links), {link[:2]: link for link in state}
    later, meanwhile, opened = {link[:2]: link for link in links}, _staying(state, links), []
    for link in goal:
        if link[:2] not in up:
            out, into = (_cut_off(hop, dropped.intersection(way), meanwhile) for hop, way in link.carried())
            opened += [_at_peer(link, into)] if into else []
            opened += [_at_owner(link, out)] if out else []
    grown: list[LinkSession] = []
    shrunk: list[LinkSession] = []
    ended: list[LinkSession] = []
    for ends, link in up.items():
        if ends not in later:
            ended += [_at_peer(link), _at_owner(link)]
            continue
        for one, other, found in ((link, later[ends], shrunk), (later[ends], link, grown)):
            if less := tuple(sorted(set(one.into) - set(other.into))):
                found.append(_at_peer(link, less))
    return Batch(brokers, links, cut, tuple(opened), tuple(grown), tuple(shrunk), tuple(ended))


def _at_peer(link: WiredLink, filters: tuple[str, ...] = ()) -> LinkSession:
    return LinkSession(link.peer, remote_id(link), link.owner, filters)


def _at_owner(link: WiredLink, filters: tuple[str, ...] = ()) -> LinkSession:
    return LinkSession(link.owner, local_id(link), link.owner, filters)


class _Judge:
    """How many deliveries some links cut off, of what is wanted and published in both plans."""

    def __init__(self, old: Wiring, new: Wiring) -> None:
        self._stable = common(old, new)
        self._senders = defaultdict[str, list[SampleMessage]](list)
        for message in sample_messages(self._stable):
            self._senders[message.topic].append(message)
        self._known = FilterTree(self._senders)
        self._cut: dict[str, int] = {}

    def change(self, links: Links, filters: Iterable[str]) -> int:
        """How many more are cut off with some links, which differ from those before in these filters."""
        return sum(cut - self._cut.get(topic, 0) for topic, cut in self._count(links, filters).items())

    def settle(self, links: Links, filters: Iterable[str]) -> int:
        """Take the links as those that are up; how many deliveries they cut off."""
        self._cut.update(self._count(links, filters))
        return sum(self._cut.values())

    def _count(self, links: Links, filters: Iterable[str]) -> dict[str, int]:
        wiring = Wiring((), {}, {}, links)
        topics = {topic for text in filters for topic in self._known.meeting(text)}
        return {
            topic: sum(
                len(self._stable.wanting(topic) - {message.broker, *delivery_hops(wiring, message)})
                for message in self._senders[topic]
            )
            for topic in topics
        }


def _staying(before: Links, after: Links) -> Wiring:
    """What both have: links that stay, with the filters that stay."""
    earlier = {hop: filters for link in before for hop, filters in link.carried()}
    links = (
        WiredLink(
            *link[:2], *(tuple(set(way).intersection(earlier.get(hop, ()))) for hop, way in link.carried())
        )
        for link in after
    )
    return Wiring((), {}, {}, tuple(links))


def _cut_off(hop: Hop, filters: Iterable[str], wiring: Wiring) -> tuple[str, ...]:
    """The filters whose messages do not come from one end of a hop to the other."""
    start, end = hop
    return tuple(
        sorted(text for text in filters if end not in delivery_hops(wiring, SampleMessage(start, text)))
    )


def _dropped(before: Iterable[WiredLink], after: Iterable[WiredLink]) -> set[str]:
    """The filters that some hop no longer carries."""
    later = {hop: filters for link in after for hop, filters in link.carried()}
    return {
        text
        for link in before
        for hop, filters in link.carried()
        for text in set(filters).difference(later.get(hop, ()))
    }


def _owned(links: Iterable[WiredLink], broker: str) -> dict[str, WiredLink]:
    return {link.peer: link for link in links if link.owner == broker}


Step = dict[str, Any]


class Deployment(NamedTuple):
    """An export, and what it is made of.

    Attributes:
        wiring: how brokers are linked.
        settings: where they are, and how links prove themselves.
        files: the file of each broker, by name, in the order of the brokers.
    """

    wiring: Wiring
    settings: Settings
    files: dict[str, str]

    def texts(self) -> dict[str, str]:
        """The text of each broker's file, by broker."""
        return dict(zip(self.wiring.brokers, self.files.values(), strict=True))


def differing_files(old: Deployment, new: Deployment) -> list[dict[str, Any]]:
    """The files that are not the same, with the lines that go and come."""
    found = []
    names = {
        name: broker for one in (old, new) for broker, name in zip(one.wiring.brokers, one.files, strict=True)
    }
    for name, broker in sorted(names.items()):
        before, after = (one.files.get(name) for one in (old, new))
        if before != after:
            lines = unified_diff((before or "").splitlines(), (after or "").splitlines(), n=0, lineterm="")
            change = "new" if before is None else "gone" if after is None else "changed"
            kept = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
            found.append({"broker": broker, "file": name, "change": change, "lines": kept})
    return found


def restarting(old: Deployment, new: Deployment) -> list[str]:
    """The brokers of both that must read their file anew: more than comments differs in it.

    Examples:
        >>> both = Wiring(("a", "b"), {}, {}, ())
        >>> one = Deployment(both, Settings(), {"a": "address b:1", "b": "# found by a"})
        >>> two = Deployment(both, Settings(), {"a": "address b:2", "b": "# forgotten by a"})
        >>> restarting(one, two)
        ['a']
    """
    before, after = old.texts(), new.texts()
    return [
        broker
        for broker in new.wiring.brokers
        if broker in before and _said(before[broker]) != _said(after[broker])
    ]


def _said(text: str) -> list[str]:
    """The lines of a file without comments."""
    return [line.split("  # ")[0] for line in text.splitlines() if not line.startswith("#")]


def mosquitto_steps(old: Deployment, new: Deployment, at_once: bool) -> list[Step]:
    """Batches of brokers that restart, with the commands that keep what is published meanwhile."""
    batches = order(old.wiring, new.wiring, at_once, restarting(old, new))
    return [batch.record() | {"commands": list(_commands(batch, old, new))} for batch in batches]


def _commands(batch: Batch, old: Deployment, new: Deployment) -> Iterator[str]:
    """What an operator runs for a batch, a line each; what is up to the broker's own machine as a comment."""
    file_of = dict(zip(new.wiring.brokers, new.files, strict=True))
    for what, broker, session in batch.acts():
        if session is not None:
            there = new if broker in file_of else old
            yield session_command(session, what, there.settings)
        elif what == "start":
            yield f"# start {broker} " + (f"with {file_of[broker]}" if broker in file_of else "without links")
        else:
            yield f"# stop {broker}"


def session_command(session: LinkSession, how: str, settings: Settings) -> str:
    """The command that opens, closes or ends a session at a mosquitto broker.

    Examples:
        >>> session_command(LinkSession("b", "r.broadloom-a:b", "a", ("x",)), "open", Settings(tls=False))
        'broadloom deploy session b:1883 r.broadloom-a:b --open=x --no-tls'
    """
    host, port = settings.place(session.broker, TLS_PORT if settings.tls else PORT)
    words = ["broadloom", "deploy", "session", f"{host}:{port}", session.client]
    words += ["--end"] if how == "end" else [f"--{how}={text}" for text in session.filters]
    words += [] if settings.tls else ["--no-tls"]
    words += ["--certificates", settings.certificates] if settings.tls and settings.certificates else []
    words += ["--credentials"] if settings.credentials else []
    words += ["--qos", str(settings.qos)] if how == "open" and settings.qos != 1 else []
    return shlex.join(words)


def rabbitmq_steps(old: Deployment, new: Deployment, at_once: bool) -> list[Step]:
    """All calls that add, at all brokers, and then all that remove; nothing restarts."""
    if at_once:
        raise InputError("RabbitMQ restarts no broker, so none can be restarted at once; leave it out")
    parts = rabbitmq_federation.change(old.wiring, new.wiring, old.settings, new.settings)
    return [{"restart": [], "call": calls} for calls in parts if calls]


def nats_steps(old: Deployment, new: Deployment, at_once: bool) -> list[Step]:
    """Batches of brokers that restart, so that no account closes a ring; nothing is kept meanwhile.

    Those that others are to find come first, those that nobody looks for any more last. Where topics change
    accounts everybody restarts together.
    """
    everybody = restarting(old, new)
    moved = nats_leafnodes.moved_topics(old.wiring, new.wiring)
    if at_once or moved:
        return [{"restart": everybody, "accounts": moved}] if everybody or moved else []
    batches = [batch.brokers for batch in order(_by_account(old.wiring), _by_account(new.wiring))]
    linking = {broker for brokers in batches for broker in brokers}
    found = {link.peer for link in new.wiring.links}
    rest = [broker for broker in everybody if broker not in linking]
    first, last = ([broker for broker in rest if (broker in found) is early] for early in (True, False))
    return [{"restart": list(brokers), "accounts": {}} for brokers in (first, *batches, last) if brokers]


def _by_account(wiring: Wiring) -> Wiring:
    """The wiring as NATS sees it: a link carries accounts, both ways, and not topics."""
    account_of = nats_leafnodes.account_of(wiring)

    def accounts(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted({account_of[text] for text in texts if text in account_of}))

    carried = [(link, accounts(link.out + link.into)) for link in wiring.links]
    links = tuple(link._replace(out=both, into=both) for link, both in carried)
    wants = {broker: accounts(texts) for broker, texts in wiring.wants.items()}
    return replace(wiring, wants=wants, publishes={}, links=links)
