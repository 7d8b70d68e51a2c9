"""From one plan's links to another's: what changes at which broker, and in which order.

Where a change needs a restart, brokers drop their old links and open their new ones at once. A new link must
not come up before the old one that it replaces is gone: on mosquitto messages would go round for ever. So the
brokers restart in batches that close no ring, first the one after which the fewest deliveries are cut off.
What a batch cuts is queued meanwhile: the session of each new link is opened before the old link goes, and
the link finds it when it comes. RabbitMQ changes live and never loops, so that all is added first and removed
afterwards: a few messages come twice, none is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from broadloom.deployment.check import would_loop
from broadloom.deployment.flow import Message, journey, sample_messages
from broadloom.deployment.mosquitto import local_id, remote_id
from broadloom.deployment.wiring import Hop, Link, Wiring

Links = tuple[Link, ...]


class Session(NamedTuple):
    """What a broker keeps for a link while it is away.

    Attributes:
        broker: where it is kept.
        client: under which client id.
        filters: which subscriptions; for a session to be ended, none.
    """

    broker: str
    client: str
    filters: tuple[str, ...] = ()


class Batch(NamedTuple):
    """Brokers that restart together.

    Attributes:
        brokers: who restarts.
        links: all links of all brokers from then on.
        cut: how many deliveries, of a message of each topic from each broker, wait for a later batch.
        opened: sessions of new links, to be opened before; they queue what the old links no longer carry.
        grown: what links that stay carry more from then on, to be subscribed to while their brokers are down.
        shrunk: what links that stay carry no more, to be unsubscribed from while their brokers are down.
        ended: sessions of links that are gone, to be ended while or after the brokers restart.
    """

    brokers: tuple[str, ...]
    links: Links
    cut: int
    opened: tuple[Session, ...]
    grown: tuple[Session, ...]
    shrunk: tuple[Session, ...]
    ended: tuple[Session, ...]

    def record(self) -> dict[str, Any]:
        """The batch as JSON has it."""
        sessions = ("opened", "grown", "shrunk", "ended")
        kept = {name: [session._asdict() for session in getattr(self, name)] for name in sessions}
        return {"restart": list(self.brokers), "cut": self.cut, "sessions": kept}


class Change(NamedTuple):
    """What changes at the broker that owns some links."""

    broker: str
    added: Links
    removed: Links
    changed: tuple[tuple[Link, Link], ...]

    def record(self) -> dict[str, Any]:
        """The change as JSON has it."""
        return {
            "broker": self.broker,
            "added": [link._asdict() for link in self.added],
            "removed": [link._asdict() for link in self.removed],
            "changed": [{"from": old._asdict(), "to": new._asdict()} for old, new in self.changed],
        }


def changes(old: Wiring, new: Wiring) -> list[Change]:
    """What changes at each broker, in the order of the new plan's brokers, then those that leave.

    Examples:
        >>> one = Wiring(("a", "b"), {}, {}, (Link("a", "b", ("x",), ()),))
        >>> two = Wiring(("a", "b"), {}, {}, (Link("a", "b", ("x", "y"), ()),))
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
            found.append(Change(broker, added, removed, changed))
    return found


def order(old: Wiring, new: Wiring, at_once: bool = False) -> list[Batch]:
    """The batches of brokers that lead from the old links to the new ones; each broker restarts once.

    Args:
        old: how brokers are linked.
        new: how they are to be linked.
        at_once: restart all of them together; sooner over, but all are away in the same moment.

    Examples:
        >>> x, brokers = ("x",), ("a", "b", "c")
        >>> wants = dict.fromkeys(brokers, x)
        >>> ab, bc, ac = (Link(u, v, x, x) for u, v in ("ab", "bc", "ac"))
        >>> path, other = (Wiring(brokers, wants, {}, links) for links in ((ab, bc), (ab, ac)))
        >>> [batch.brokers for batch in order(path, other)]
        [('b',), ('a',)]
    """
    goal = {change.broker: tuple(_owned(new.links, change.broker).values()) for change in changes(old, new)}
    state, judge, batches = tuple(old.links), _Judge(old, new), []
    while goal:
        brokers, links, cut = _next_batch(state, goal, judge) if not at_once else (tuple(goal), new.links, 0)
        batches.append(_batch(brokers, state, links, new.links, cut))
        state, goal = links, {broker: own for broker, own in goal.items() if broker not in brokers}
    return batches


def _next_batch(state: Links, goal: Mapping[str, Links], judge: _Judge) -> tuple[tuple[str, ...], Links, int]:
    """Of the batches that close no ring, the one that cuts off least, and of those the smallest."""
    seeds = dict.fromkeys(_closure({broker}, state, goal) for broker in goal)
    found = [(brokers, links) for brokers in seeds if not would_loop(links := _with(state, brokers, goal))]
    if not found:  # together until they close none, as all of them do
        together: set[str] = set()
        for brokers in seeds:
            together |= set(brokers)
            links = _with(state, together, goal)
            if not would_loop(links):
                break
        found = [(tuple(broker for broker in goal if broker in together), links)]
    cuts = [judge.cut(links) for _, links in found]
    best = min(range(len(found)), key=lambda i: (cuts[i], len(found[i][0]), i))
    return *found[best], cuts[best]


def _closure(brokers: set[str], state: Links, goal: Mapping[str, Links]) -> tuple[str, ...]:
    """The brokers, and those with a link that is to carry more of what they cut.

    A link that is up cannot queue for later, so it must change in the same moment.
    """
    while True:
        cut = _dropped(state, _with(state, brokers, goal))
        more = {
            broker
            for broker, links in goal.items()
            for gained in _gained(_owned(state, broker), links).values()
            if broker not in brokers and cut & gained
        }
        if not more:
            return tuple(broker for broker in goal if broker in brokers)
        brokers = brokers | more


def _batch(brokers: tuple[str, ...], state: Links, links: Links, goal: Links, cut: int) -> Batch:
    """A batch with the sessions that go with it."""
    dropped, up = _dropped(state, links), {link[:2]: link for link in state}
    later, after, opened = {link[:2]: link for link in links}, Wiring((), {}, {}, links), []
    for link in goal:
        if link[:2] not in up:
            out, into = (_cut_off(hop, dropped.intersection(way), after) for hop, way in link.carried())
            opened += [Session(link.peer, remote_id(link), into)] if into else []
            opened += [Session(link.owner, local_id(link), out)] if out and link.owner not in brokers else []
    grown: list[Session] = []
    shrunk: list[Session] = []
    ended: list[Session] = []
    for ends, link in up.items():
        if ends not in later:
            ended += [Session(link.peer, remote_id(link)), Session(link.owner, local_id(link))]
            continue
        for one, other, found in ((link, later[ends], shrunk), (later[ends], link, grown)):
            if less := tuple(sorted(set(one.into) - set(other.into))):
                found.append(Session(link.peer, remote_id(link), less))
    return Batch(brokers, links, cut, tuple(opened), tuple(grown), tuple(shrunk), tuple(ended))


class _Judge:
    """How many deliveries some links cut off, among topics whose way changes."""

    def __init__(self, old: Wiring, new: Wiring) -> None:
        both = {
            broker: tuple(set(old.wants.get(broker, ())) & set(new.wants[broker])) for broker in new.wants
        }
        self._stable = Wiring(new.brokers, both, {}, ())
        self._messages = [message for message in sample_messages(self._stable) if _differs(old, new, message)]

    def cut(self, links: Iterable[Link]) -> int:
        wiring = Wiring((), {}, {}, tuple(links))
        return sum(
            len(self._stable.wanting(message.topic) - {message.broker, *journey(wiring, message)})
            for message in self._messages
        )


def _differs(old: Wiring, new: Wiring, message: Message) -> bool:
    return journey(old, message) != journey(new, message)


def _cut_off(hop: Hop, filters: Iterable[str], wiring: Wiring) -> tuple[str, ...]:
    """The filters whose messages do not come from one end of a hop to the other."""
    start, end = hop
    return tuple(sorted(text for text in filters if end not in journey(wiring, Message(start, text))))


def _dropped(before: Links, after: Links) -> set[str]:
    """The filters that some hop no longer carries."""
    later = {hop: set(filters) for link in after for hop, filters in link.carried()}
    return {
        text
        for link in before
        for hop, filters in link.carried()
        for text in set(filters) - later.get(hop, set())
    }


def _gained(before: Mapping[str, Link], after: Links) -> dict[str, set[str]]:
    """Of each link that stays, the filters that it is to carry more, either way."""
    return {
        link.peer: (set(link.out) - set(before[link.peer].out))
        | (set(link.into) - set(before[link.peer].into))
        for link in after
        if link.peer in before
    }


def _owned(links: Iterable[Link], broker: str) -> dict[str, Link]:
    return {link.peer: link for link in links if link.owner == broker}


def _with(state: Links, brokers: Iterable[str], goal: Mapping[str, Links]) -> Links:
    """All links, with some brokers' replaced."""
    chosen = set(brokers)
    kept = [link for link in state if link.owner not in chosen]
    return tuple(sorted([*kept, *(link for broker in sorted(chosen) for link in goal[broker])]))
