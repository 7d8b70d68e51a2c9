"""What links carry and how far each swap is, on the disk before it is done.

A file of lines: a checksum, and a JSON object with the state of one group of filters; its last one counts.
Only the last line can be torn by a crash, and nothing was done on its account: it is cut off. A new agent
writes the file anew, short, and puts it in place by one rename, and so does one that has written much.
"""

from __future__ import annotations

import asyncio
import json
import os
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broadloom.deployment.linkd.steps import Hops, Step
from broadloom.errors import InputError
from broadloom.model._records import hold

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
        self._lines: list[bytes] = []
        self._written: asyncio.Future[None] | None = None  # of those lines
        self._writer: asyncio.Task[None] | None = None
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = hold(self.folder)
            try:
                self.states = _read(self.folder / FILE)
                self._start_anew(self.folder, self._all())
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
        self._lines.append(_line(state))
        if self._written is None:
            self._written = asyncio.get_running_loop().create_future()
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await asyncio.shield(self._written)

    async def _write(self) -> None:
        """Write all that is asked for; what comes meanwhile goes together the next time."""
        while self._written is not None:
            data, self._lines = b"".join(self._lines), []
            written, self._written = self._written, None
            try:
                long = await self.aside(self._put, data)
                if long and self.folder is not None:
                    await self.aside(self._start_anew, self.folder, self._all())
            except OSError as error:
                written.set_exception(error)
                written.exception()  # who waited may be gone
            else:
                written.set_result(None)

    async def aside(self, call: Callable[..., Any], *values: Any) -> Any:
        """Do something that may take long, in a thread of its own: messages do not wait for a disk."""
        return await asyncio.to_thread(call, *values)

    def _put(self, data: bytes) -> bool:
        """Append; whether the file has become long."""
        end = os.lseek(self._file, 0, os.SEEK_END)
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, end)  # nothing is done on account of half a line
            raise
        return end > LONGEST_BYTES

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

    def _all(self) -> bytes:
        return MAGIC + b"".join(map(_line, self.states.values()))

    def _start_anew(self, folder: Path, data: bytes) -> None:
        draft = folder / f"{FILE}.new"
        draft.write_bytes(data)
        new = os.open(draft, os.O_WRONLY | os.O_APPEND)
        os.fsync(new)
        draft.rename(folder / FILE)
        os.fsync(self._lock)
        if self._file >= 0:
            os.close(self._file)
        self._file = new


def _line(state: State) -> bytes:
    text = json.dumps(state.plain()).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _read(place: Path) -> dict[tuple[str, ...], State]:
    """The states of a journal, as far as it is whole."""
    if not place.exists():
        return {}
    data = place.read_bytes()
    if not data.startswith(MAGIC):
        raise InputError(f"{place} is not a journal of links; it was not written by broadloom, or is damaged")
    states: dict[tuple[str, ...], State] = {}
    lines = data[len(MAGIC) :].split(b"\n")[:-1]
    for number, line in enumerate(lines, 1):
        check, _, text = line.partition(b" ")
        if not text or check != b"%08x" % zlib.crc32(text):
            if number < len(lines):
                raise InputError(f"{place} is damaged at line {number + 1}, with more behind it")
            break
        state = State.from_plain(json.loads(text))
        states[state.filters] = state
    return {filters: state for filters, state in states.items() if state.hops or state.step}


def _hops(pairs: Iterable[Iterable[str]]) -> Hops:
    return frozenset((u, v) for u, v in pairs)
