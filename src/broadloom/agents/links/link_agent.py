"""Link agent: the links between running brokers, changed live without loss or duplication."""

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
from broadloom.agents.links.carried_groups import CarriedGroup, GroupState, LinkJournal
from broadloom.agents.links.swap_guards import ProbeAnswers, Probes
from broadloom.agents.links.tree_changes import NEVER_CARRIED, Hops, edge_of, edges
from broadloom.deployment import Hop
from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import Publish
from broadloom.mqtt.topic_filters import covers, is_wild

LOG = logging.getLogger("broadloom.live")
Filters = tuple[str, ...]
POLL_SECONDS = 0.005
LAST_CHANGES, LAST_TOPICS = 10_000, 100_000  # durations of changes, and groups of topics, that are remembered


class LinkAgent:
    """Holds the links of trees between running brokers, and changes them live.

    Args:
        endpoint: the endpoint of a broker, by its id.
        folder: the folder of its state; None: no state is kept, and a crash can lose messages.
        patience: seconds for which a change waits for an absent broker before it continues without it.
        fresh: whether to discard the queues at brokers if there is no state of an earlier agent.

    Attributes:
        groups: the groups of filters with links, by their filters.
        links: the links by their ends.
        seconds: durations of the last changes, from `retarget` until every link was changed.

    Examples:
        >>> async def hold(targets):
        ...     agent = LinkAgent(lambda broker: Endpoint(f"{broker}.example.org", 1883))
        ...     await agent.start()
        ...     agent.retarget(targets)
        ...     await agent.settled()
        ...     await agent.stop()
        ...     return agent.counts["changes"]
        >>> asyncio.run(hold({}))
        0
    """

    def __init__(
        self,
        endpoint: Callable[[str], Endpoint],
        folder: Path | None = None,
        patience: float = 10.0,
        fresh: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._folder = folder
        self._patience = patience
        self.groups: dict[Filters, CarriedGroup] = {}
        self.links: dict[Hop, AgentLink] = {}
        self.controls: dict[str, ClientSession] = {}
        self.seconds: list[float] = []
        self.counts: Counter[str] = Counter()
        self.guarded: Counter[Hop] = Counter()
        self._name = secrets.token_hex(6)
        self._answers = ProbeAnswers(self.counts)
        self._probes = Probes(self._name, self._probe, self._unresponsive)
        self._ids = count()
        self._group_of: dict[str, CarriedGroup | None] = {}  # by topic
        # Per change, its time and the groups that are not settled yet.
        self._waiting: list[tuple[float, set[Filters]]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._strays: set[tuple[Hop, str]] = set()
        self._ending: dict[Hop, asyncio.Task[None]] = {}
        self._pending_filters: dict[Hop, set[str]] = {}  # of brokers that were absent during a change
        self._journal = LinkJournal(folder)
        # Without any state, sessions at brokers belong to an agent whose state is lost.
        self._adopts_sessions = not self._journal.states and not fresh
        self._known_edges: set[Hop] = set()  # links opened since the start

    # Public methods.

    async def start(self) -> None:
        """Continue from the state of an earlier agent."""
        for filters, state in sorted(self._journal.states.items()):
            self.groups[filters] = CarriedGroup(state, self)
        self._remove_stale_claims()
        for group in self.groups.values():
            self._open(group.used, new=False)
        for group in self.groups.values():
            group.start()

    def check_addresses(self, targets: Mapping[Filters, Hops]) -> None:
        """Check the addresses of the brokers of hops, before any of them is journaled.

        Raises:
            InputError: the address of a broker is malformed.
        """
        for broker in {broker for hops in targets.values() for hop in hops for broker in hop}:
            self._endpoint(broker)

    def retarget(self, targets: Mapping[Filters, Hops], since: float | None = None) -> None:
        """Change links until each group of filters has these hops, and no other group has hops.

        Args:
            targets: the hops of each group.
            since: the time of the change by the event loop's clock; None: now.
        """
        changing = set()
        for filters in sorted(targets.keys() | self.groups.keys()):
            hops = targets.get(filters, frozenset())
            group = self.groups.get(filters)
            if group is None:
                if not hops:
                    continue
                group = self.groups[filters] = CarriedGroup(GroupState(filters), self)
                self._group_of.clear()
                group.start()
            group.retarget(hops)
            if not group.settled:
                changing.add(filters)
        if changing:
            self._waiting.append((asyncio.get_running_loop().time() if since is None else since, changing))

    async def settled(self) -> None:
        """Wait until every group has its target hops."""
        while not all(group.settled for group in self.groups.values()) or self._closing:
            await asyncio.sleep(POLL_SECONDS)

    def is_up(self) -> bool:
        """Whether every group has its target hops and every link is up; any thread can call this."""
        sessions = (session for link in list(self.links.values()) for session in link.sessions.values())
        settled = all(group.settled for group in list(self.groups.values()))
        return settled and all(session.up.is_set() for session in sessions)

    def carries(self, broker: str, topics: set[str]) -> bool:
        """Whether the groups of some filters connect a broker with all other brokers that have links.

        Any thread can call this. A broker that is joining, is absent or refuses links is not connected.
        """
        groups = [group for filters, group in list(self.groups.items()) if not topics.isdisjoint(filters)]
        return all(group.joins(broker, self._is_linked) for group in groups)

    async def stop(self, seconds: float = 2.0) -> None:
        """Finish the messages in flight, and disconnect; brokers keep the sessions, so nothing is lost."""
        await asyncio.gather(*(group.stop() for group in self.groups.values()))
        forwarders = [forwarder for link in self.links.values() for forwarder in link.forwarders.values()]
        for forwarder in forwarders:
            forwarder.closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(forwarder.in_flight for forwarder in forwarders):
                    await asyncio.sleep(POLL_SECONDS)
        await asyncio.gather(*self._closing, return_exceptions=True)
        await asyncio.gather(*(link.stop() for link in self.links.values()))
        await asyncio.gather(*(control.stop() for control in self.controls.values()))
        await self._journal.end()

    # Operations for groups.

    async def save(self, state: GroupState) -> None:
        """Write a state to the journal."""
        await self._journal.save(state)

    async def open(self, hops: Hops) -> None:
        """Open the links of hops."""
        ending = [self._ending[edge] for edge in edges(hops) if edge in self._ending]
        await asyncio.gather(*ending, return_exceptions=True)
        self._open(hops, new=True)

    async def subscribe(self, hop: Hop, filters: Iterable[str], retained: bool) -> None:
        """Subscribe at the first broker of a hop."""
        if session := await self._connected_session(hop):
            await session.subscribe(filters, retained, self._identifiers())
        else:
            self._pending_filters.setdefault(hop, set()).update(filters)

    async def unsubscribe(self, hop: Hop, filters: Iterable[str]) -> None:
        """Unsubscribe at the first broker of a hop."""
        self._pending_filters.get(hop, set()).difference_update(filters)
        if session := await self._connected_session(hop):
            await session.unsubscribe(filters)

    async def barrier(self, needs: Mapping[Hop, Iterable[str]], along: Hops) -> None:
        """Wait until everything that brokers have received so far has arrived at the hops."""
        origins = {origin for some in needs.values() for origin in some}
        controls = [self.controls[origin] for origin in sorted(origins & self.controls.keys())]
        # A probe that is published earlier would be missed.
        await asyncio.gather(*map(self._connected_session, needs), *map(self._is_up, controls))
        if not await self._probes.wait(needs, along):
            self.counts["barriers_given_up"] += 1

    async def drained(self, hops: Hops, filters: Filters) -> None:
        """Wait until the hops have forwarded all messages of the filters."""
        for hop in hops:
            while self.in_transit(hop, filters) and not self._absent(hop):
                await asyncio.sleep(POLL_SECONDS)

    def claims(self, filters: Filters) -> Path | None:
        """The file of claims of a group's guard."""
        if self._folder is None:
            return None
        return self._folder / f"{blake2b(repr(filters).encode(), digest_size=16).hexdigest()}.claims"

    def in_transit(self, hop: Hop, filters: Filters) -> list[Publish]:
        """The messages of the filters that a hop has not finished."""
        link = self.links.get(edge_of(hop))
        found = [] if link is None else link.forwarders[hop].in_transit()
        return [message for message in found if _matches(filters, message.topic)]

    def release(self, hops: Hops) -> None:
        """Stop using hops; links that no group uses are closed."""
        used = {edge_of(hop) for group in self.groups.values() for hop in group.used}
        for edge in edges(hops) - used:
            if link := self.links.pop(edge, None):
                self._ending[edge] = task = self._close(link.stop(forget=True))
                task.add_done_callback(lambda _, edge=edge: self._ending.pop(edge))  # type: ignore[misc]
        brokers = {broker for edge in self.links for broker in edge}
        for broker in self.controls.keys() - brokers:
            self._close(self.controls.pop(broker).stop())

    def group_settled(self, filters: Filters) -> None:
        """The group has reached its target."""
        group = self.groups[filters]
        for hop in group.state.hops & self._pending_filters.keys():  # now they belong to the group
            self._pending_filters[hop].difference_update(group.subscribed)
        if not group.state.hops:
            self._close(group.stop())
            del self.groups[filters]
            self._group_of.clear()
        for since, changing in self._waiting:
            changing.discard(filters)
            if not changing:
                self.counts["changes"] += 1
                self.seconds.append(asyncio.get_running_loop().time() - since)
        self._waiting = [entry for entry in self._waiting if entry[1]]
        del self.seconds[:-LAST_CHANGES]

    # Operations for links.

    def admit(self, hop: Hop, message: Publish) -> Publish | None:
        """The message to forward over a hop, with an id; None: drop it, because another hop carries it."""
        if message.topic == PROBE:
            return message if self._probes.arrive(hop, message) else None
        if message.topic.startswith(NEVER_CARRIED):
            return None  # a wildcard matched a topic that links never carry
        if not message.key:
            message = message.stamped(b"%b-%x" % (self._name.encode(), next(self._ids)))
        group = self._find(message.topic)
        if group is not None and group.admits(hop, message):
            return message
        self.guarded[hop] += 1
        if group is None or hop not in group.used:
            self._unsubscribe_stray(hop, message.topic)
        return None

    def filters_of(self, hop: Hop) -> dict[str, int]:
        """The filters of a hop, with their subscription identifiers; 0: none."""
        groups = [group for group in self.groups.values() if hop in group.carried()]
        texts = self._pending_filters.get(hop, set()).union(*(group.subscribed for group in groups))
        identifiers = self._identifiers()
        return {text: identifiers.get(text, 0) for text in texts}

    def _identifiers(self) -> dict[str, int]:
        """The subscription identifiers of overlapping filters."""
        return {text: one for group in self.groups.values() for text, one in group.identifiers.items()}

    def _open(self, hops: Hops, new: bool) -> None:
        for edge in sorted(edges(hops)):
            for broker in edge:
                if broker not in self.controls:
                    control = ClientSession(
                        broker,
                        f"broadloom-agent-{self._name}",
                        self._endpoint(broker),
                        self._answers,
                        kept=False,
                    )
                    self.controls[broker] = control
                    control.start()
            if edge not in self.links:
                endpoints = (self._endpoint(edge[0]), self._endpoint(edge[1]))
                unknown_state = new and self._adopts_sessions and edge not in self._known_edges
                fresh = new and not unknown_state
                link = AgentLink(
                    edge, endpoints, self._folder, self.admit, self.filters_of, fresh, unknown_state
                )
                self._known_edges.add(edge)
                self.links[edge] = link
                link.start()

    def _remove_stale_claims(self) -> None:
        """Remove the claims of swaps that an earlier agent had finished."""
        if self._folder is not None:
            used = {self.claims(filters) for filters, group in self.groups.items() if group.guard}
            for path in self._folder.glob("*.claims"):
                if path not in used:
                    path.unlink()

    def _is_linked(self, hop: Hop) -> bool:
        """Whether both ends of a hop are connected and subscribed."""
        link = self.links.get(edge_of(hop))
        return link is not None and all(session.up.is_set() for session in link.sessions.values())

    async def _connected_session(self, hop: Hop) -> ClientSession | None:
        """The session at the first broker of a hop, once connected; None if that takes too long."""
        session = self.links[edge_of(hop)].sessions[hop[0]]
        if await self._is_up(session):
            return session
        LOG.warning("a change continues without broker %r, which is absent", hop[0])
        return None

    async def _is_up(self, session: ClientSession) -> bool:
        """Whether a session is connected, or becomes so within the patience."""
        if not session.up.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(session.up.wait(), max(0.0, self._patience - session.seconds_absent()))
        return session.up.is_set()

    def _absent(self, brokers: Iterable[str]) -> set[str]:
        """The brokers that have been absent for longer than the patience."""
        controls = {broker: self.controls.get(broker) for broker in brokers}
        return {
            broker
            for broker, control in controls.items()
            if control is None or control.seconds_absent() > self._patience
        }

    def _unresponsive(self, brokers: Iterable[str]) -> set[str]:
        """The brokers that have been absent, or have refused probes, for longer than the patience."""
        some = set(brokers)
        long_ago = asyncio.get_running_loop().time() - self._patience
        refusing = {broker for broker, since in self._answers.refused_since.items() if since < long_ago}
        return self._absent(some) | (some & refusing)

    def _probe(self, broker: str, payload: bytes) -> None:
        control = self.controls.get(broker)
        if control is not None and control.up.is_set():
            control.publish(PROBE, payload)

    def _find(self, topic: str) -> CarriedGroup | None:
        """The group of a topic."""
        if topic not in self._group_of:
            if len(self._group_of) > LAST_TOPICS:
                self._group_of.clear()
            groups = self.groups.items()
            self._group_of[topic] = next((one for filters, one in groups if _matches(filters, topic)), None)
        return self._group_of[topic]

    def _unsubscribe_stray(self, hop: Hop, topic: str) -> None:
        """End a subscription that a broker kept although the agent ended it while the broker was absent."""
        link = self.links.get(edge_of(hop))  # None if it is just being closed
        if link is not None and link.sessions[hop[0]].up.is_set() and (hop, topic) not in self._strays:
            self._strays.add((hop, topic))
            task = self._close(_ignoring_errors(link.sessions[hop[0]].unsubscribe([topic])))
            task.add_done_callback(lambda _: self._strays.discard((hop, topic)))

    def _close(self, closing: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run a task that ends something in the background."""
        task = asyncio.create_task(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task


def _matches(filters: Iterable[str], topic: str) -> bool:
    return any(text == topic or (is_wild(text) and covers(text, topic)) for text in filters)


async def _ignoring_errors(work: Coroutine[None, None, None]) -> None:
    """Await some work, and ignore connection errors and refusals."""
    with contextlib.suppress(OSError, BrokerRefusedError):
        await work
