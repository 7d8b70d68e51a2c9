"""The agent: sessions, lanes, guards and groups put together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from hashlib import blake2b
from itertools import count
from pathlib import Path

from broadloom.deployment.linkd.group import Group
from broadloom.deployment.linkd.guard import Guard
from broadloom.deployment.linkd.journal import Journal, State
from broadloom.deployment.linkd.link import PROBE, Link
from broadloom.deployment.linkd.packets import Publish
from broadloom.deployment.linkd.probes import Probes
from broadloom.deployment.linkd.session import Door, Nobody, Session
from broadloom.deployment.linkd.steps import Hops, edge_of, edges
from broadloom.deployment.wiring import Hop
from broadloom.pipeline.filters import covers, is_wild

LOG = logging.getLogger("broadloom.live")
Filters = tuple[str, ...]
CONTROL = "broadloom-agent"
POLL_SECONDS = 0.005
LAST_CHANGES = 10_000


class Agent:
    """Holds the links of trees between running brokers, and changes them live.

    Args:
        door: how to reach a broker, by its id.
        folder: where it keeps what a new agent must know; None: nowhere, and a crash may lose messages.
        patience: how many seconds a change waits for a broker that is away before it goes on without it.

    Attributes:
        groups: the groups of filters that have links, by their filters.
        links: the links, by their ends.
        seconds: how long the last changes took, from `aim` until every link was changed.
    """

    def __init__(
        self, door: Callable[[str], Door], folder: Path | None = None, patience: float = 10.0
    ) -> None:
        self._door, self._folder, self._patience = door, folder, patience
        self.groups: dict[Filters, Group] = {}
        self.links: dict[Hop, Link] = {}
        self.controls: dict[str, Session] = {}
        self.seconds: list[float] = []
        self.counts: Counter[str] = Counter()
        self.guarded: Counter[Hop] = Counter()
        self._name = secrets.token_hex(6)
        self._probes = Probes(self._name, self._probe)
        self._ids = count()
        self._guards: dict[Filters, Guard] = {}
        self._watched: dict[Hop, dict[str, Guard]] = defaultdict(dict)
        self._waiting: list[tuple[float, set[Filters]]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._ending: dict[Hop, asyncio.Task[None]] = {}
        self._journal = Journal(folder)

    # From outside.

    async def start(self) -> None:
        """Take up what an earlier agent has left, and go on with it."""
        for filters, state in sorted(self._journal.states.items()):
            self.groups[filters] = Group(state, self)
        self._sweep()
        for group in self.groups.values():
            self._open(group.used(), fresh=False)
        for group in self.groups.values():
            group.start()

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
                group = self.groups[filters] = Group(State(filters), self)
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
        for guard in self._guards.values():
            guard.close()
        self._journal.close()

    # What groups ask for.

    async def keep(self, state: State) -> None:
        """Bring a state to the disk."""
        await self._journal.keep(state)

    async def open(self, hops: Hops) -> None:
        """See to it that the links of hops are there."""
        ending = [self._ending[edge] for edge in edges(hops) if edge in self._ending]
        await asyncio.gather(*ending, return_exceptions=True)
        self._open(hops, fresh=True)

    async def subscribe(self, hop: Hop, filters: Iterable[str], retained: bool) -> None:
        """Have the first broker of a hop send what matches."""
        if session := await self._there(hop):
            await session.subscribe(filters, retained)

    async def unsubscribe(self, hop: Hop, filters: Iterable[str]) -> None:
        """Have it send that no more."""
        if session := await self._there(hop):
            await session.unsubscribe(filters)

    async def barrier(self, needs: Mapping[Hop, Iterable[str]], along: Hops) -> None:
        """Wait until all that was published at some brokers until now has come to the hops."""
        await asyncio.gather(*map(self._there, needs))  # a probe that is published before would be missed
        away = await self._probes.pass_through(needs, along, self._patience)
        if away:
            self.counts["barriers_given_up"] += 1
            LOG.warning("a change goes on without waiting for %s: a broker is away", ", ".join(sorted(away)))

    async def drained(self, hops: Hops, filters: Filters) -> None:
        """Wait until nothing of the filters is on its way over the hops."""
        end = asyncio.get_running_loop().time() + self._patience
        for hop in hops:
            link = self.links[edge_of(hop)]
            while any(_matches(filters, message.topic) for message in link.lanes[hop].on_the_way()):
                up = all(session.up.is_set() for session in link.sessions.values())
                if not up and asyncio.get_running_loop().time() > end:
                    return
                await asyncio.sleep(POLL_SECONDS)

    def guard(self, filters: Filters, hops: Hops) -> None:
        """Let each message cross by one of the hops; those on their way have their hop already."""
        if filters in self._guards:
            return
        guard = self._guards[filters] = Guard(sorted(hops), self._claims_of(filters))
        for hop in hops:
            self._watched[hop].update(dict.fromkeys(filters, guard))
            if link := self.links.get(edge_of(hop)):
                for message in link.lanes[hop].on_the_way():
                    if _matches(filters, message.topic):
                        guard.claim(hop, message.key)

    def unguard(self, filters: Filters) -> None:
        """End that."""
        guard = self._guards.pop(filters)
        for watched in self._watched.values():
            for text in filters:
                if watched.get(text) is guard:
                    del watched[text]
        guard.close(forget=True)

    def release(self, hops: Hops) -> None:
        """The group needs these hops no more: a link that nobody needs is closed."""
        used = {edge_of(hop) for group in self.groups.values() for hop in group.used()}
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
        if not group.state.hops:
            self._close(group.stop())
            del self.groups[filters]
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
        if not message.key:
            message = message.stamped(b"%b-%x" % (self._name.encode(), next(self._ids)))
        watched = self._watched.get(hop)
        if watched and (guard := _find(watched, message.topic)) and not guard.claim(hop, message.key):
            self.guarded[hop] += 1
            return None
        return message

    def wanted(self, hop: Hop) -> list[str]:
        """The filters of a hop."""
        return sorted(
            text for group in self.groups.values() if hop in group.carried() for text in group.state.filters
        )

    # Inside.

    def _open(self, hops: Hops, fresh: bool) -> None:
        for edge in sorted(edges(hops)):
            for broker in edge:
                if broker not in self.controls:
                    control = Session(broker, CONTROL, self._door(broker), Nobody(), kept=False)
                    self.controls[broker] = control
                    control.start()
            if edge not in self.links:
                doors = (self._door(edge[0]), self._door(edge[1]))
                link = Link(edge, doors, self._folder, self.admit, self.wanted, fresh)
                self.links[edge] = link
                link.start()

    def _sweep(self) -> None:
        """Remove claims of swaps that were over when an earlier agent died."""
        if self._folder is not None:
            used = {self._claims_of(filters) for filters in self._guards}
            for place in self._folder.glob("*.claims"):
                if place not in used:
                    place.unlink()

    async def _there(self, hop: Hop) -> Session | None:
        """The session at the beginning of a hop, once it is connected; None if that takes too long."""
        session = self.links[edge_of(hop)].sessions[hop[0]]
        try:
            await asyncio.wait_for(session.up.wait(), self._patience)
        except TimeoutError:
            LOG.warning("a change goes on without broker %r, which is away", hop[0])
            return None
        return session

    def _probe(self, broker: str, payload: bytes) -> bool:
        control = self.controls.get(broker)
        if control is None or not control.up.is_set():
            return False
        if payload:
            control.publish(PROBE, payload)
        return True

    def _close(self, closing: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """End something beside all else."""
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def _claims_of(self, filters: Filters) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{blake2b(repr(filters).encode(), digest_size=16).hexdigest()}.claims"


def _matches(filters: Iterable[str], topic: str) -> bool:
    return any(text == topic or (is_wild(text) and covers(text, topic)) for text in filters)


def _find(watched: Mapping[str, Guard], topic: str) -> Guard | None:
    """The guard of the group that a topic belongs to."""
    if topic in watched:
        return watched[topic]
    return next((guard for text, guard in watched.items() if is_wild(text) and covers(text, topic)), None)
