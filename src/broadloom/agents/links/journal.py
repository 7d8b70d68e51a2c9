"""What links carry and how far each swap is, on the disk before it is done.

A file of records, each of them the states of some groups of filters as JSON; the last of a group counts. A
new agent writes the file anew, short, and so does one that has written much.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broadloom.agents.links.steps import Hops, Step
from broadloom.errors import InputError
from broadloom.storage import append_record, lock_folder, read_records, start_journal

FILE = "live.journal"
MAGIC = b"broadloom live 1\n"
LONGEST_BYTES = 1 << 22  # then it is written anew


@dataclass(frozen=True)
class State:
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
    def from_plain(cls, values: dict[str, Any]) -> State:
        """The state that `plain` wrote."""
        step = values["step"]
        return cls(
            tuple(values["filters"]),
            _hops(values["hops"]),
            None if step is None else Step(_hops(step[0]), _hops(step[1])),
            values["phase"],
        )


@dataclass
class Journal:
    """An open journal; nobody else can open it meanwhile.

    Attributes:
        folder: where it is; None: nothing is kept.
        states: the state of each group, by its filters.
    """

    folder: Path | None
    states: dict[tuple[str, ...], State] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._file = self._lock = -1
        self._new: list[State] = []
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
                self.states = _read(self.folder / FILE)
                self._start_anew(self.folder, _text(self.states.values()))
            except BaseException:
                self.close()
                raise

    async def keep(self, state: State) -> None:
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
        start_journal(folder / FILE, MAGIC, [text])
        old, self._file = self._file, os.open(folder / FILE, os.O_WRONLY | os.O_APPEND)
        if old >= 0:
            os.close(old)


def _text(states: Iterable[State]) -> bytes:
    return json.dumps([state.plain() for state in states]).encode()


def _read(place: Path) -> dict[tuple[str, ...], State]:
    """The states of a journal, if there is one."""
    if not place.exists():
        return {}
    records = map(json.loads, read_records(place, MAGIC))
    found = (State.from_plain(values) for record in records for values in record)
    states = {state.filters: state for state in found}
    return {filters: state for filters, state in states.items() if state.hops or state.step}


def _hops(pairs: Iterable[Iterable[str]]) -> Hops:
    return frozenset((u, v) for u, v in pairs)
