"""A group of filters on its way from the links it has to those it shall have, phase by phase.

A guarded swap of edge e for edge f, the two parts of the tree being those without e:

    mark    the guard watches both edges; then a barrier at the ends of f: what e has carried before the guard
            saw it has passed everywhere
    both    f is subscribed too; then a barrier at the ends of e: what came to f's ends before f was there has
            come to e
    leave   e is unsubscribed, and what waits in its queues is carried
    forget  a barrier at the ends of f: nothing that e has carried can come there any more; the guard goes

No phase waits for a time to pass. Each is in the journal before it begins, and can be done again from its
start.
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
from broadloom.deployment.wiring import Hop, widest
from broadloom.errors import InputError
from broadloom.mqtt.client_session import BrokerRefusedError, watched_task
from broadloom.mqtt.packets import Publish
from broadloom.storage import append_record, lock_folder, read_records, start_journal

LOG = logging.getLogger("broadloom.live")
ADD, DROP, MARK, BOTH, LEAVE, FORGET = "add", "drop", "mark", "both", "leave", "forget"
RETRY_SECONDS = 1.0
LAST_COPIES = 1000
JOURNAL_FILE = "live.journal"
JOURNAL_MAGIC = b"broadloom live 1\n"
LONGEST_BYTES = 1 << 22  # then it is written anew


class GroupNetwork(Protocol):
    """What a group asks of the agent."""

    async def keep(self, state: GroupState) -> None:
        """Bring a state to the disk."""

    async def open(self, hops: Hops) -> None:
        """See to it that the links of hops are there."""

    async def subscribe(self, hop: Hop, filters: Iterable[str], retained: bool) -> None:
        """Have the first broker of a hop send what matches."""

    async def unsubscribe(self, hop: Hop, filters: Iterable[str]) -> None:
        """Have it send that no more."""

    async def barrier(self, needs: Mapping[Hop, Iterable[str]], along: Hops) -> None:
        """Wait until all that was published at some brokers until now has come to the hops."""

    async def drained(self, hops: Hops, filters: tuple[str, ...]) -> None:
        """Wait until nothing of the filters is on its way over the hops."""

    def claims(self, filters: tuple[str, ...]) -> Path | None:
        """The file of the claims of a group's guard."""

    def on_the_way(self, hop: Hop, filters: tuple[str, ...]) -> list[Publish]:
        """The messages of the filters that a hop carries at this moment."""

    def release(self, hops: Hops) -> None:
        """The group needs these hops no more: a link that nobody needs is closed."""

    def reached(self, filters: tuple[str, ...]) -> None:
        """The group is where it shall be."""


class FilterGroup:
    """A group of filters, its state, and where it shall be.

    Args:
        state: how it stands.
        network: the agent.
    """

    def __init__(self, state: GroupState, network: GroupNetwork) -> None:
        self.state, self._network = state, network
        self.used = _used(state)  # the hops that it has to do with
        self.subscribed = tuple(sorted(widest(set(state.filters))))  # or a message would come twice
        self.guard: SwapGuard | None = None
        self._copies: dict[Hop, dict[int, int]] = defaultdict(dict)
        step = state.step or Step()
        self.target = state.hops - step.drop | step.add  # until somebody says otherwise
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        if state.step is not None and state.phase in (MARK, BOTH, LEAVE, FORGET):
            self._watch(state.step)  # before the first message comes

    def start(self) -> None:
        """Begin to move."""
        self._task = watched_task(self._run())

    async def stop(self) -> None:
        """Stay where it is; a new agent goes on from there."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.guard is not None:
            self.guard.close()

    def aim(self, target: Hops) -> None:
        """Move there."""
        self.target = target
        self._woken.set()

    @property
    def settled(self) -> bool:
        """Whether it is where it shall be."""
        return self.state.step is None and self.state.hops == self.target

    def carried(self) -> Hops:
        """The hops that are subscribed, or are about to be: what a session that is new needs."""
        state = self.state  # once: it may be asked from another thread
        hops, step, phase = state.hops, state.step, state.phase
        if step is None:
            return hops
        more = step.add if phase in (BOTH, LEAVE, FORGET) else frozenset()
        less = step.drop if phase in (DROP, LEAVE, FORGET) else frozenset()
        return (hops | more) - less

    def joins(self, broker: str, is_up: Callable[[Hop], bool]) -> bool:
        """Whether messages go, over hops that are up, between a broker and all that have such hops."""
        if not any(broker in hop for hop in self.target):
            return True  # nobody else is there, or shall be
        state = self.state
        hops = state.hops if state.phase == BOTH else self.carried()  # in BOTH the new ones may not carry yet
        ups = [hop for hop in hops if is_up(hop)]
        back = [(stop, start) for start, stop in ups]
        sending, taking = ({start for start, _ in some} for some in (ups, back))
        return (
            broker in sending | taking
            and sending.issubset(brokers_reaching(ups, broker))
            and taking.issubset(brokers_reaching(back, broker))
        )

    def admits(self, hop: Hop, message: Publish) -> bool:
        """Whether a hop may carry a message: one of the group's, and no other has claimed the message."""
        if hop not in self.used or (len(self.subscribed) > 1 and self._is_copy(hop, message)):
            return False
        return self.guard is None or hop not in self.guard.hops or self.guard.claim(hop, message.key)

    def _is_copy(self, hop: Hop, message: Publish) -> bool:
        """Whether a broker has just sent the same message for another one of the filters that it matches."""
        last = self._copies[hop]
        first = last.setdefault(message.key, message.number)
        if len(last) > LAST_COPIES:
            del last[next(iter(last))]
        return first != message.number

    def _watch(self, step: Step) -> None:
        """From now on a guard watches both edges; messages on their way have their hop already."""
        if self.guard is None:
            self.guard = SwapGuard(step.add | step.drop, self._network.claims(self.state.filters))
            for hop in sorted(step.drop):
                for message in self._network.on_the_way(hop, self.state.filters):
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
                self._network.reached(self.state.filters)
                await self._woken.wait()

    async def _advance(self) -> None:
        """Do one phase."""
        state = self.state
        if state.step is None:
            step = next_step(state.hops, self.target)
            if step is not None:
                first = MARK if step.add and step.drop else ADD if step.add else DROP
                await self._keep(replace(state, step=step, phase=first))
            return
        phases = {ADD: self._add, DROP: self._drop, MARK: self._mark, BOTH: self._both}
        await (phases | {LEAVE: self._leave, FORGET: self._forget})[state.phase](state.step)

    async def _keep(self, state: GroupState) -> None:
        """From now on this is how it stands; on the disk first."""
        await self._network.keep(state)
        self.state, self.used = state, _used(state)

    async def _add(self, step: Step) -> None:
        await self._network.open(step.add)
        known = {broker for hop in self.state.hops for broker in hop}
        await self._ask(step.add, subscribe=True, known=known)
        await self._keep(replace(self.state, hops=self.state.hops | step.add, step=None, phase=""))

    async def _drop(self, step: Step) -> None:
        await self._end(step.drop)
        await self._keep(replace(self.state, hops=self.state.hops - step.drop, step=None, phase=""))
        self._network.release(step.drop)

    async def _mark(self, step: Step) -> None:
        await self._network.open(step.add)
        self._watch(step)
        await self._flush(step.add, self.state.hops - step.drop)
        await self._keep(replace(self.state, phase=BOTH))

    async def _both(self, step: Step) -> None:
        await self._ask(step.add, subscribe=True)
        await self._flush(step.drop, self.state.hops - step.drop)
        await self._keep(replace(self.state, phase=LEAVE))

    async def _leave(self, step: Step) -> None:
        await self._end(step.drop)
        hops = self.state.hops - step.drop | step.add
        await self._keep(replace(self.state, hops=hops, phase=FORGET))

    async def _forget(self, step: Step) -> None:
        await self._flush(step.add, self.state.hops - step.add)
        await self._keep(replace(self.state, step=None, phase=""))
        if self.guard is not None:
            self.guard.close(forget=True)
            self.guard = None
        self._network.release(step.drop)

    async def _end(self, hops: Hops) -> None:
        """Unsubscribe hops, and carry what waits in their queues."""
        await self._ask(hops, subscribe=False)
        await self._network.barrier({hop: [hop[0]] for hop in hops}, frozenset())
        await self._network.drained(hops, self.state.filters)

    async def _flush(self, ends: Hops, along: Hops) -> None:
        """Let all that is on its way now come to the beginnings of hops."""
        await self._network.barrier({hop: set(brokers_reaching(along, hop[0])) for hop in ends}, along)

    async def _ask(self, hops: Hops, subscribe: bool, known: set[str] | None = None) -> None:
        """(Un)subscribe hops; what is retained goes to brokers that are new to the group, nowhere else."""
        filters, net = self.subscribed, self._network
        await asyncio.gather(
            *(
                net.subscribe(hop, filters, known is not None and hop[1] not in known)
                if subscribe
                else net.unsubscribe(hop, filters)
                for hop in sorted(hops)
            )
        )


def _used(state: GroupState) -> Hops:
    step = state.step or Step()
    return state.hops | step.add | step.drop


@dataclass(frozen=True)
class GroupState:
    """How a group of filters stands.

    Attributes:
        filters: its filters.
        hops: what carries them.
        step: the step that is being done, if any.
        phase: how far it is.
    """

    filters: tuple[str, ...]
    hops: Hops = frozenset()
    step: Step | None = None
    phase: str = ""

    def plain(self) -> dict[str, Any]:
        """The state as JSON has it."""
        step = None if self.step is None else [sorted(self.step.add), sorted(self.step.drop)]
        return {"filters": self.filters, "hops": sorted(self.hops), "step": step, "phase": self.phase}

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> GroupState:
        """The state that `plain` wrote."""
        step = values["step"]
        return cls(
            tuple(values["filters"]),
            _hops(values["hops"]),
            None if step is None else Step(_hops(step[0]), _hops(step[1])),
            values["phase"],
        )


@dataclass
class LinkJournal:
    """An open journal; nobody else can open it meanwhile.

    Attributes:
        folder: where it is; None: nothing is kept.
        states: the state of each group, by its filters.
    """

    folder: Path | None
    states: dict[tuple[str, ...], GroupState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._file = self._lock = -1
        self._new: list[GroupState] = []
        self._written: asyncio.Future[None] | None = None  # of those states
        self._writer: asyncio.Task[None] | None = None
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"the state cannot be in {self.folder}: {error.strerror}; give a folder"
                ) from error
            self._lock = lock_folder(self.folder)
            try:
                self.states = _read(self.folder / JOURNAL_FILE)
                self._start_anew(self.folder, _text(self.states.values()))
            except BaseException:
                self.close()
                raise

    async def keep(self, state: GroupState) -> None:
        """Bring a state to the disk; when this returns, it is there."""
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
        """Write all that is asked for; what comes meanwhile goes together the next time."""
        while self._written is not None:
            text, self._new = _text(self._new), []
            written, self._written = self._written, None
            try:
                long = await self.aside(self._put, text)
                if long and self.folder is not None:
                    await self.aside(self._start_anew, self.folder, _text(self.states.values()))
            except OSError as error:
                written.set_exception(error)
                written.exception()  # who waited may be gone
            else:
                written.set_result(None)

    async def aside(self, call: Callable[..., Any], *values: Any) -> Any:
        """Do something that may take long, in a thread of its own: messages do not wait for a disk."""
        return await asyncio.to_thread(call, *values)

    def _put(self, text: bytes) -> bool:
        """Append; whether the file has become long."""
        append_record(self._file, text)
        return os.lseek(self._file, 0, os.SEEK_END) > LONGEST_BYTES

    async def end(self) -> None:
        """Finish writing, and let go of it."""
        if self._writer is not None:
            await self._writer
        self.close()

    def close(self) -> None:
        """Let go of it."""
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)
        self._file = self._lock = -1

    def _start_anew(self, folder: Path, text: bytes) -> None:
        start_journal(folder / JOURNAL_FILE, JOURNAL_MAGIC, [text])
        old, self._file = self._file, os.open(folder / JOURNAL_FILE, os.O_WRONLY | os.O_APPEND)
        if old >= 0:
            os.close(old)


def _text(states: Iterable[GroupState]) -> bytes:
    return json.dumps([state.plain() for state in states]).encode()


def _read(place: Path) -> dict[tuple[str, ...], GroupState]:
    """The states of a journal, if there is one."""
    if not place.exists():
        return {}
    records = map(json.loads, read_records(place, JOURNAL_MAGIC))
    found = (GroupState.from_plain(values) for record in records for values in record)
    states = {state.filters: state for state in found}
    return {filters: state for filters, state in states.items() if state.hops or state.step}


def _hops(pairs: Iterable[Iterable[str]]) -> Hops:
    return frozenset((u, v) for u, v in pairs)
