"""Groups of topic filters that share a tree: their state, its journal, and its change step by step.

A guarded swap replaces edge e by edge f; without e the tree has two parts. Its phases:

    mark    the guard watches both edges; then a barrier at the ends of f: every message that e carried
            before the guard watched it has arrived everywhere
    both    f is subscribed too; then a barrier at the ends of e: every message that arrived at the ends
            of f before f was subscribed has arrived at e
    leave   e is unsubscribed, and the messages in its queues are forwarded
    forget  a barrier at the ends of f: no message that e carried can still arrive there; the guard ends

No phase waits for a fixed time. Each is journaled before it begins, and can be repeated from its start.

The journal is a file of records, each with the states of some groups as JSON; a group's last state counts. It
is compacted when an agent starts, and when it has become long.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from broadloom.agents.links.swap_guards import SwapGuard
from broadloom.agents.links.tree_changes import Hops, Step, brokers_reaching, next_step
from broadloom.deployment import Hop, widest
from broadloom.errors import InputError, StorageError
from broadloom.mqtt.client_session import BrokerRefusedError, watched_task
from broadloom.mqtt.packets import Publish
from broadloom.mqtt.topic_filters import covers
from broadloom.storage import BINARY, append_record, lock_folder, read_records, start_journal

LOG = logging.getLogger("broadloom.live")
ADD, DROP, MARK, BOTH, LEAVE, FORGET = "add", "drop", "mark", "both", "leave", "forget"
RETRY_SECONDS = 1.0
LAST_COPIES = 1000  # message ids remembered per hop
JOURNAL_FILE = "live.journal"
JOURNAL_MAGIC = b"broadloom live 1\n"
LONGEST_BYTES = 1 << 22  # of the journal; then it is compacted


class GroupNetwork(Protocol):
    """Operations that a group needs of the link agent."""

    async def save(self, state: GroupState) -> None:
        """Write a state to the journal."""

    async def open(self, hops: Hops) -> None:
        """Open the links of hops."""

    async def subscribe(self, hop: Hop, filters: Iterable[str], retained: bool) -> None:
        """Subscribe at the first broker of a hop."""

    async def unsubscribe(self, hop: Hop, filters: Iterable[str]) -> None:
        """Unsubscribe at the first broker of a hop."""

    async def barrier(self, needs: Mapping[Hop, Iterable[str]], along: Hops) -> None:
        """Wait until everything that brokers have received so far has arrived at the hops."""

    async def drained(self, hops: Hops, filters: tuple[str, ...]) -> None:
        """Wait until the hops have forwarded all messages of the filters."""

    def claims(self, filters: tuple[str, ...]) -> Path | None:
        """The file of claims of a group's guard."""

    def in_transit(self, hop: Hop, filters: tuple[str, ...]) -> list[Publish]:
        """The messages of the filters that a hop has not finished."""

    def release(self, hops: Hops) -> None:
        """Stop using hops; links that no group uses are closed."""

    def group_settled(self, filters: tuple[str, ...]) -> None:
        """The group has reached its target."""


class CarriedGroup:
    """Group of topic filters, its current hops and its target hops.

    Args:
        state: the current state.
        network: the link agent.
    """

    def __init__(self, state: GroupState, network: GroupNetwork) -> None:
        self.state = state
        self._network = network
        self.used = _used(state)  # current, coming and leaving hops
        self.subscribed = tuple(
            sorted(widest(set(state.filters)))
        )  # overlapping filters would duplicate messages
        # A broker sends a message once per filter that matches it; the identifiers tell these copies apart.
        self.identifiers = (
            {text: number for number, text in enumerate(self.subscribed, 1)}
            if len(self.subscribed) > 1
            else {}
        )
        self._first_of: dict[str, int] = {}  # by topic
        self.guard: SwapGuard | None = None
        self._copies: dict[Hop, dict[int, int]] = defaultdict(dict)
        step = state.step or Step()
        self.target = state.hops - step.drop | step.add  # until `retarget`
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        if state.step is not None and state.phase in (MARK, BOTH, LEAVE, FORGET):
            self._watch(state.step)  # before the first message arrives

    def start(self) -> None:
        """Start to change towards the target."""
        self._task = watched_task(self._run())

    async def stop(self) -> None:
        """Stop changing; the next agent continues from the journaled state."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.guard is not None:
            self.guard.close()

    def retarget(self, target: Hops) -> None:
        """Change towards other hops."""
        self.target = target
        self._woken.set()

    @property
    def settled(self) -> bool:
        """Whether the group has its target hops."""
        return self.state.step is None and self.state.hops == self.target

    def carried(self) -> Hops:
        """The hops that are subscribed or about to be, for new sessions."""
        state = self.state  # read once, since other threads call this
        hops, step, phase = state.hops, state.step, state.phase
        if step is None:
            return hops
        more = step.add if phase in (BOTH, LEAVE, FORGET) else frozenset()
        less = step.drop if phase in (DROP, LEAVE, FORGET) else frozenset()
        return (hops | more) - less

    def joins(self, broker: str, is_up: Callable[[Hop], bool]) -> bool:
        """Whether hops that are up connect a broker in both directions with all brokers that have some."""
        if not any(broker in hop for hop in self.target):
            return True  # the group has no other broker
        state = self.state
        hops = (
            state.hops if state.phase == BOTH else self.carried()
        )  # in BOTH, new hops possibly do not carry yet
        ups = [hop for hop in hops if is_up(hop)]
        back = [(stop, start) for start, stop in ups]
        senders, receivers = ({start for start, _ in some} for some in (ups, back))
        return (
            broker in senders | receivers
            and senders.issubset(brokers_reaching(ups, broker))
            and receivers.issubset(brokers_reaching(back, broker))
        )

    def admits(self, hop: Hop, message: Publish) -> bool:
        """Whether a hop can carry a message: the group uses it, and no other hop has claimed the message."""
        if hop not in self.used or (len(self.subscribed) > 1 and self._is_copy(hop, message)):
            return False
        return self.guard is None or hop not in self.guard.hops or self.guard.claim(hop, message.key)

    def _is_copy(self, hop: Hop, message: Publish) -> bool:
        """Whether the broker has sent, or will send, the same message for another matching filter.

        Of the filters that match it, the first counts. Brokers without subscription identifiers send copies
        that can be told only if the message has an id already.
        """
        if message.identifiers:
            return self._first_match(message.topic) not in message.identifiers
        last = self._copies[hop]
        first = last.setdefault(message.key, message.number)
        if len(last) > LAST_COPIES:
            del last[next(iter(last))]
        return first != message.number

    def _first_match(self, topic: str) -> int:
        """The identifier of the first filter that matches a topic."""
        if topic not in self._first_of:
            if len(self._first_of) > LAST_COPIES:
                self._first_of.clear()
            matching = (one for text, one in self.identifiers.items() if covers(text, topic))
            self._first_of[topic] = next(matching, 0)
        return self._first_of[topic]

    def _watch(self, step: Step) -> None:
        """Start the guard of a swap; unfinished messages are claimed by their hop."""
        if self.guard is None:
            self.guard = SwapGuard(step.add | step.drop, self._network.claims(self.state.filters))
            for hop in sorted(step.drop):
                for message in self._network.in_transit(hop, self.state.filters):
                    self.guard.claim(hop, message.key)

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            try:
                await self._advance()
            except (OSError, BrokerRefusedError, InputError) as error:
                LOG.warning("%s in phase %s: %s; trying again", self.state.filters, self.state.phase, error)
                await asyncio.sleep(RETRY_SECONDS)
            if self.settled:
                self._network.group_settled(self.state.filters)
                await self._woken.wait()

    async def _advance(self) -> None:
        """Execute one phase."""
        state = self.state
        if state.step is None:
            step = next_step(state.hops, self.target)
            if step is not None:
                first = MARK if step.add and step.drop else ADD if step.add else DROP
                await self._save(replace(state, step=step, phase=first))
            return
        phases = {ADD: self._add, DROP: self._drop, MARK: self._mark, BOTH: self._both}
        await (phases | {LEAVE: self._leave, FORGET: self._forget})[state.phase](state.step)

    async def _save(self, state: GroupState) -> None:
        """Journal a state, then make it current."""
        await self._network.save(state)
        self.state = state
        self.used = _used(state)

    async def _add(self, step: Step) -> None:
        await self._network.open(step.add)
        known = {broker for hop in self.state.hops for broker in hop}
        await self._subscribe(step.add, known=known)
        await self._save(replace(self.state, hops=self.state.hops | step.add, step=None, phase=""))

    async def _drop(self, step: Step) -> None:
        await self._unsubscribe(step.drop)
        await self._save(replace(self.state, hops=self.state.hops - step.drop, step=None, phase=""))
        self._network.release(step.drop)

    async def _mark(self, step: Step) -> None:
        await self._network.open(step.add)
        self._watch(step)
        await self._flush(step.add, self.state.hops - step.drop)
        await self._save(replace(self.state, phase=BOTH))

    async def _both(self, step: Step) -> None:
        await self._subscribe(step.add)
        await self._flush(step.drop, self.state.hops - step.drop)
        await self._save(replace(self.state, phase=LEAVE))

    async def _leave(self, step: Step) -> None:
        await self._unsubscribe(step.drop)
        hops = self.state.hops - step.drop | step.add
        await self._save(replace(self.state, hops=hops, phase=FORGET))

    async def _forget(self, step: Step) -> None:
        await self._flush(step.add, self.state.hops - step.add)
        await self._save(replace(self.state, step=None, phase=""))
        if self.guard is not None:
            self.guard.close(forget=True)
            self.guard = None
        self._network.release(step.drop)

    async def _unsubscribe(self, hops: Hops) -> None:
        """Unsubscribe hops, and forward the messages in their queues."""
        filters = self.subscribed
        await asyncio.gather(*(self._network.unsubscribe(hop, filters) for hop in sorted(hops)))
        await self._network.barrier({hop: [hop[0]] for hop in hops}, frozenset())
        await self._network.drained(hops, self.state.filters)

    async def _flush(self, ends: Hops, along: Hops) -> None:
        """Wait until everything received so far has arrived at the first brokers of hops."""
        await self._network.barrier({hop: set(brokers_reaching(along, hop[0])) for hop in ends}, along)

    async def _subscribe(self, hops: Hops, known: set[str] | None = None) -> None:
        """Subscribe hops; only brokers new to the group get retained messages."""
        requests = (
            self._network.subscribe(hop, self.subscribed, known is not None and hop[1] not in known)
            for hop in sorted(hops)
        )
        await asyncio.gather(*requests)


def _used(state: GroupState) -> Hops:
    step = state.step or Step()
    return state.hops | step.add | step.drop


@dataclass(frozen=True)
class GroupState:
    """Journaled state of a group.

    Attributes:
        filters: the topic filters.
        hops: the hops that carry them.
        step: the step in progress, if any.
        phase: the phase of the step.
    """

    filters: tuple[str, ...]
    hops: Hops = frozenset()
    step: Step | None = None
    phase: str = ""

    def plain(self) -> dict[str, Any]:
        """The state as JSON values."""
        step = None if self.step is None else [sorted(self.step.add), sorted(self.step.drop)]
        return {"filters": self.filters, "hops": sorted(self.hops), "step": step, "phase": self.phase}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> GroupState:
        """The state that JSON values describe."""
        step = values["step"]
        return cls(
            tuple(values["filters"]),
            _hops(values["hops"]),
            None if step is None else Step(_hops(step[0]), _hops(step[1])),
            values["phase"],
        )


@dataclass
class LinkJournal:
    """Write-ahead journal of the link agent; a folder has one open journal at a time.

    Attributes:
        folder: its folder; None: nothing is written.
        states: the state of each group by its filters.

    Raises:
        InputError: the path is not a folder, another agent has the journal, or it is damaged.
        StorageError: the folder or the journal cannot be written.
    """

    folder: Path | None
    states: dict[tuple[str, ...], GroupState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._file = self._lock = -1
        self._new: list[GroupState] = []
        self._written: asyncio.Future[None] | None = None  # done when `_new` is written
        self._writer: asyncio.Task[None] | None = None
        if self.folder is not None:
            make_state_folder(self.folder)
            self._lock = lock_folder(self.folder)
            try:
                self.states = _read(self.folder / JOURNAL_FILE)
                self._compact(self.folder, _text(self.states.values()))
            except BaseException:
                self.close()
                raise

    async def save(self, state: GroupState) -> None:
        """Write a state, and return when it is on the disk."""
        self.states[state.filters] = state
        if not state.hops and state.step is None:
            del self.states[state.filters]
        if self._file < 0:
            return
        self._new.append(state)
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await asyncio.shield(self._written)

    async def _write(self) -> None:
        """Write all new states; states that are added meanwhile are written together in the next round."""
        while self._written is not None:
            text, self._new = _text(self._new), []
            written, self._written = self._written, None
            try:
                long = await self.in_thread(self._append, text)
                if long and self.folder is not None:
                    await self.in_thread(self._compact, self.folder, _text(self.states.values()))
            except OSError as error:
                written.set_exception(error)
                written.exception()  # retrieved, since the caller can be cancelled
            else:
                written.set_result(None)

    async def in_thread(self, call: Callable[..., Any], *values: Any) -> Any:
        """Call a slow function in a thread, so that messages do not wait for the disk."""
        return await asyncio.to_thread(call, *values)

    def _append(self, text: bytes) -> bool:
        """Append a record; true if the file has become long."""
        append_record(self._file, text)
        return os.lseek(self._file, 0, os.SEEK_END) > LONGEST_BYTES

    async def end(self) -> None:
        """Finish writing, and close the journal."""
        if self._writer is not None:
            await self._writer
        self.close()

    def close(self) -> None:
        """Close the journal."""
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._lock = -1

    def _compact(self, folder: Path, text: bytes) -> None:
        start_journal(folder / JOURNAL_FILE, JOURNAL_MAGIC, [text])
        old, self._file = self._file, os.open(folder / JOURNAL_FILE, os.O_WRONLY | os.O_APPEND | BINARY)
        if old >= 0:
            os.close(old)


def make_state_folder(folder: Path) -> None:
    """Create the folder of an agent's state if it does not exist.

    Raises:
        InputError: the path, or a part of it, is a file.
        StorageError: the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(f"the state cannot be in {folder}: {error.strerror}; give a folder") from error
    except OSError as error:
        raise StorageError(f"the state cannot be in {folder}: {error.strerror}") from error


def _text(states: Iterable[GroupState]) -> bytes:
    return json.dumps([state.plain() for state in states]).encode()


def _read(path: Path) -> dict[tuple[str, ...], GroupState]:
    """The states of a journal; empty if it does not exist."""
    if not path.exists():
        return {}
    states: dict[tuple[str, ...], GroupState] = {}
    for record in read_records(path, JOURNAL_MAGIC):
        try:
            found = [GroupState.from_plain(values) for values in json.loads(record)]
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} has a record of another version: {error!r:.80}") from error
        states |= {state.filters: state for state in found}
    return {filters: state for filters, state in states.items() if state.hops or state.step}


def _hops(pairs: Iterable[Iterable[str]]) -> Hops:
    return frozenset((u, v) for u, v in pairs)
