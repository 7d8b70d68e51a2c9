"""The agent: sessions, lanes, guards and groups put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from hashlib import blake2b
from itertools import count
from pathlib import Path

from broadloom.agents.links.agent_link import PROBE, AgentLink
from broadloom.agents.links.filter_groups import FilterGroup, GroupState, LinkJournal
from broadloom.agents.links.swap_guards import ProbeAnswers, Probes
from broadloom.agents.links.tree_changes import KEPT_BACK, Hops, edge_of, edges
from broadloom.deployment.wiring import Hop
from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import Publish
from broadloom.mqtt.topic_filters import covers, is_wild

LOG = logging.getLogger("broadloom.live")
Filters = tuple[str, ...]
POLL_SECONDS = 0.005
LAST_CHANGES, LAST_TOPICS = 10_000, 100_000


class LinkAgent:
    """Holds the links of trees between running brokers, and changes them live.

    Args:
        door: how to reach a broker, by its id.
        folder: where it keeps what a new agent must know; None: nowhere, and a crash may lose messages.
        patience: how many seconds a change waits for a broker that is away before it goes on without it.
        fresh: whether to throw away what waits in brokers if nothing is known of an earlier agent.

    Attributes:
        groups: the groups of filters that have links, by their filters.
        links: the links, by their ends.
        seconds: how long the last changes took, from `aim` until every link was changed.

    Examples:
        >>> async def hold(targets):
        ...     agent = LinkAgent(lambda broker: Endpoint(f"{broker}.example.org", 1883))
        ...     await agent.start()
        ...     agent.aim(targets)
        ...     await agent.settled()
        ...     await agent.stop()
        ...     return agent.counts["changes"]
        >>> asyncio.run(hold({}))
        0
    """

    def __init__(
        self,
        door: Callable[[str], Endpoint],
        folder: Path | None = None,
        patience: float = 10.0,
        fresh: bool = False,
    ) -> None:
        self._door, self._folder, self._patience = door, folder, patience
        self.groups: dict[Filters, FilterGroup] = {}
        self.links: dict[Hop, AgentLink] = {}
        self.controls: dict[str, ClientSession] = {}
        self.seconds: list[float] = []
        self.counts: Counter[str] = Counter()
        self.guarded: Counter[Hop] = Counter()
        self._name = secrets.token_hex(6)
        self._answers = ProbeAnswers(self.counts)
        self._probes = Probes(self._name, self._probe, self._mute)
        self._ids = count()
        self._group_of: dict[str, FilterGroup | None] = {}  # by topic
        self._waiting: list[tuple[float, set[Filters]]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._strays: set[tuple[Hop, str]] = set()
        self._ending: dict[Hop, asyncio.Task[None]] = {}
        self._owed: dict[Hop, set[str]] = {}  # filters that changes went on without
        self._journal = LinkJournal(folder)
        # With no state at all, sessions that brokers kept are those of an agent whose state is lost.
        self._inherits = not self._journal.states and not fresh
        self._had: set[Hop] = set()  # links that were there since then

    # From outside.

    async def start(self) -> None:
        """Take up what an earlier agent has left, and go on with it."""
        for filters, state in sorted(self._journal.states.items()):
            self.groups[filters] = FilterGroup(state, self)
        self._sweep()
        for group in self.groups.values():
            self._open(group.used, anew=False)
        for group in self.groups.values():
            group.start()

    def check_addresses(self, targets: Mapping[Filters, Hops]) -> None:
        """Refuse hops of a broker that cannot be reached at all, before any is in the journal.

        Raises:
            InputError: the address of a broker is none.
        """
        for broker in {broker for hops in targets.values() for hop in hops for broker in hop}:
            self._door(broker)

    def aim(self, targets: Mapping[Filters, Hops], since: float | None = None) -> None:
        """Change links until each group of filters goes over these hops, and no other group has any.

        Args:
            targets: the hops of each group.
            since: when the change was asked for, by the event loop's clock.
        """
        moved = set()
        for filters in sorted(targets.keys() | self.groups.keys()):
            hops = targets.get(filters, frozenset())
            group = self.groups.get(filters)
            if group is None:
                if not hops:
                    continue
                group = self.groups[filters] = FilterGroup(GroupState(filters), self)
                self._group_of.clear()
                group.start()
            group.aim(hops)
            if not group.settled:
                moved.add(filters)
        if moved:
            self._waiting.append((asyncio.get_running_loop().time() if since is None else since, moved))

    async def settled(self) -> None:
        """Wait until every group is where it shall be."""
        while not all(group.settled for group in self.groups.values()) or self._closing:
            await asyncio.sleep(POLL_SECONDS)

    def is_up(self) -> bool:
        """Whether every group is where it shall be, and every link is up; it may be asked from any thread."""
        sessions = (session for link in list(self.links.values()) for session in link.sessions.values())
        settled = all(group.settled for group in list(self.groups.values()))
        return settled and all(session.up.is_set() for session in sessions)

    def carries(self, broker: str, topics: set[str]) -> bool:
        """Whether a broker is linked, in the groups of some filters, with all that are linked at all.

        It may be asked from any thread. Brokers that are just joining, or away, or refuse links, are not
        linked with anybody.
        """
        groups = [group for filters, group in list(self.groups.items()) if not topics.isdisjoint(filters)]
        return all(group.joins(broker, self._is_linked) for group in groups)

    async def stop(self, seconds: float = 2.0) -> None:
        """Finish what is on its way, and disconnect; brokers keep the sessions, so that nothing is lost."""
        await asyncio.gather(*(group.stop() for group in self.groups.values()))
        lanes = [lane for link in self.links.values() for lane in link.lanes.values()]
        for lane in lanes:
            lane.closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(lane.flight for lane in lanes):
                    await asyncio.sleep(POLL_SECONDS)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.gather(*(link.stop() for link in self.links.values()))
        await asyncio.gather(*(control.stop() for control in self.controls.values()))
        await self._journal.end()

    # What groups ask for.

    async def keep(self, state: GroupState) -> None:
        """Bring a state to the disk."""
        await self._journal.keep(state)

    async def open(self, hops: Hops) -> None:
        """See to it that the links of hops are there."""
        ending = [self._ending[edge] for edge in edges(hops) if edge in self._ending]
        await asyncio.gather(*ending, return_exceptions=True)
        self._open(hops, anew=True)

    async def subscribe(self, hop: Hop, filters: Iterable[str], retained: bool) -> None:
        """Have the first broker of a hop send what matches."""
        if session := await self._there(hop):
            await session.subscribe(filters, retained)
        else:
            self._owed.setdefault(hop, set()).update(filters)

    async def unsubscribe(self, hop: Hop, filters: Iterable[str]) -> None:
        """Have it send that no more."""
        self._owed.get(hop, set()).difference_update(filters)
        if session := await self._there(hop):
            await session.unsubscribe(filters)

    async def barrier(self, needs: Mapping[Hop, Iterable[str]], along: Hops) -> None:
        """Wait until all that was published at some brokers until now has come to the hops."""
        origins = {origin for some in needs.values() for origin in some}
        controls = [self.controls[origin] for origin in sorted(origins & self.controls.keys())]
        # A probe that is published before would be missed.
        await asyncio.gather(*map(self._there, needs), *map(self._is_up, controls))
        if not await self._probes.pass_through(needs, along):
            self.counts["barriers_given_up"] += 1

    async def drained(self, hops: Hops, filters: Filters) -> None:
        """Wait until nothing of the filters is on its way over the hops."""
        for hop in hops:
            while self.on_the_way(hop, filters) and not self._away(hop):
                await asyncio.sleep(POLL_SECONDS)

    def claims(self, filters: Filters) -> Path | None:
        """The file of the claims of a group's guard."""
        if self._folder is None:
            return None
        return self._folder / f"{blake2b(repr(filters).encode(), digest_size=16).hexdigest()}.claims"

    def on_the_way(self, hop: Hop, filters: Filters) -> list[Publish]:
        """The messages of the filters that a hop carries at this moment."""
        link = self.links.get(edge_of(hop))
        found = [] if link is None else link.lanes[hop].on_the_way()
        return [message for message in found if _matches(filters, message.topic)]

    def release(self, hops: Hops) -> None:
        """The group needs these hops no more: a link that nobody needs is closed."""
        used = {edge_of(hop) for group in self.groups.values() for hop in group.used}
        for edge in edges(hops) - used:
            if link := self.links.pop(edge, None):
                self._ending[edge] = task = self._close(link.stop(forget=True))
                task.add_done_callback(lambda _, edge=edge: self._ending.pop(edge))  # type: ignore[misc]
        brokers = {broker for edge in self.links for broker in edge}
        for broker in self.controls.keys() - brokers:
            self._close(self.controls.pop(broker).stop())

    def reached(self, filters: Filters) -> None:
        """The group is where it shall be."""
        group = self.groups[filters]
        for hop in group.state.hops & self._owed.keys():
            self._owed[hop].difference_update(group.subscribed)  # from now on they are the group's own
        if not group.state.hops:
            self._close(group.stop())
            del self.groups[filters]
            self._group_of.clear()
        for since, moved in self._waiting:
            moved.discard(filters)
            if not moved:
                self.counts["changes"] += 1
                self.seconds.append(asyncio.get_running_loop().time() - since)
        self._waiting = [one for one in self._waiting if one[1]]
        del self.seconds[:-LAST_CHANGES]

    # What links ask for.

    def admit(self, hop: Hop, message: Publish) -> Publish | None:
        """What to carry over a hop: a message with an id, unless another hop carries it; or None."""
        if message.topic == PROBE:
            return message if self._probes.arrive(hop, message) else None
        if message.topic.startswith(KEPT_BACK):
            return None  # it came by a wildcard, and belongs to this broker alone
        if not message.key:
            message = message.stamped(b"%b-%x" % (self._name.encode(), next(self._ids)))
        group = self._find(message.topic)
        if group is not None and group.admits(hop, message):
            return message
        self.guarded[hop] += 1
        if group is None or hop not in group.used:
            self._stray(hop, message.topic)
        return None

    def wanted(self, hop: Hop) -> list[str]:
        """The filters of a hop."""
        groups = [group for group in self.groups.values() if hop in group.carried()]
        return sorted(self._owed.get(hop, set()).union(*(group.subscribed for group in groups)))

    # Inside.

    def _open(self, hops: Hops, anew: bool) -> None:
        for edge in sorted(edges(hops)):
            for broker in edge:
                if broker not in self.controls:
                    control = ClientSession(
                        broker, f"broadloom-agent-{self._name}", self._door(broker), self._answers, kept=False
                    )
                    self.controls[broker] = control
                    control.start()
            if edge not in self.links:
                doors = (self._door(edge[0]), self._door(edge[1]))
                strange = anew and self._inherits and edge not in self._had
                fresh = anew and not strange
                link = AgentLink(edge, doors, self._folder, self.admit, self.wanted, fresh, strange)
                self._had.add(edge)
                self.links[edge] = link
                link.start()

    def _sweep(self) -> None:
        """Remove claims of swaps that were over when an earlier agent died."""
        if self._folder is not None:
            used = {self.claims(filters) for filters, group in self.groups.items() if group.guard}
            for place in self._folder.glob("*.claims"):
                if place not in used:
                    place.unlink()

    def _is_linked(self, hop: Hop) -> bool:
        """Whether both ends of a hop are connected, and subscribed to all that they should be."""
        link = self.links.get(edge_of(hop))
        return link is not None and all(session.up.is_set() for session in link.sessions.values())

    async def _there(self, hop: Hop) -> ClientSession | None:
        """The session at the beginning of a hop, once it is connected; None if that takes too long."""
        session = self.links[edge_of(hop)].sessions[hop[0]]
        if await self._is_up(session):
            return session
        LOG.warning("a change goes on without broker %r, which is away", hop[0])
        return None

    async def _is_up(self, session: ClientSession) -> bool:
        """Whether a session is connected, or is so before long."""
        if not session.up.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(session.up.wait(), max(0.0, self._patience - session.away()))
        return session.up.is_set()

    def _away(self, brokers: Iterable[str]) -> set[str]:
        """Which brokers have been away for so long that nobody waits for them."""
        controls = {broker: self.controls.get(broker) for broker in brokers}
        return {
            broker
            for broker, control in controls.items()
            if control is None or control.away() > self._patience
        }

    def _mute(self, brokers: Iterable[str]) -> set[str]:
        """Which brokers have been away, or refused probes, for so long that nobody waits for them."""
        some = set(brokers)
        long_ago = asyncio.get_running_loop().time() - self._patience
        refusing = {broker for broker, since in self._answers.refused_since.items() if since < long_ago}
        return self._away(some) | (some & refusing)

    def _probe(self, broker: str, payload: bytes) -> None:
        control = self.controls.get(broker)
        if control is not None and control.up.is_set():
            control.publish(PROBE, payload)

    def _find(self, topic: str) -> FilterGroup | None:
        """The group that a topic belongs to."""
        if topic not in self._group_of:
            if len(self._group_of) > LAST_TOPICS:
                self._group_of.clear()
            groups = self.groups.items()
            self._group_of[topic] = next((one for filters, one in groups if _matches(filters, topic)), None)
        return self._group_of[topic]

    def _stray(self, hop: Hop, topic: str) -> None:
        """What comes though nobody asked for it: of a subscription that a broker kept while it was away."""
        link = self.links.get(edge_of(hop))  # none, if it is just being closed
        if link is not None and link.sessions[hop[0]].up.is_set() and (hop, topic) not in self._strays:
            self._strays.add((hop, topic))
            asked = self._close(_quietly(link.sessions[hop[0]].unsubscribe([topic])))
            asked.add_done_callback(lambda _: self._strays.discard((hop, topic)))

    def _close(self, closing: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """End something beside all else."""
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task


def _matches(filters: Iterable[str], topic: str) -> bool:
    return any(text == topic or (is_wild(text) and covers(text, topic)) for text in filters)


async def _quietly(asked: Coroutine[None, None, None]) -> None:
    """Ask for something that is no matter if it fails."""
    with contextlib.suppress(OSError, BrokerRefusedError):
        await asked
