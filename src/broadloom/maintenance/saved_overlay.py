"""Saved live overlays: a folder with a state and a journal of the changes since."""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from broadloom._version import VERSION
from broadloom.errors import InputError
from broadloom.maintenance._overlay_arrays import OverlayContents
from broadloom.maintenance.changes import Change, ChangeRequest
from broadloom.maintenance.dynamics import OverlayDynamics, Snapshot, with_room
from broadloom.maintenance.live import Live
from broadloom.maintenance.methods import options_of
from broadloom.plans import Plan
from broadloom.storage import append_record, lock_folder, new_folder, read_records, start_journal
from broadloom.storage.tables import require_table, write_table

STATE, RECORD = "state", "live.json"
FORMAT = 2


def save(live: Live, path: str | Path | None = None, overwrite: bool = False) -> None:
    """What `Live.save` does."""
    old = live._journal
    folder = Path(path).resolve() if path is not None else None if old is None else old.folder
    if folder is None:
        raise InputError("it was never saved, so there is no place yet; give a path")
    if old is not None and old.folder == folder:
        _write(live, old)
        return
    _check_place(folder, overwrite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}") from error
    journal = open_journal(folder)
    try:
        _write(live, journal)
    except BaseException:
        journal.close()
        raise
    live._journal = journal
    if old is not None:
        old.close()


def load(path: str | Path) -> Live:
    """What `Live.load` does: the state, and what the journal says has changed since."""
    folder = Path(path).resolve()
    journal = open_journal(folder)
    try:
        live = read_state(folder / STATE)
        _replay(live, journal)
    except BaseException:
        journal.close()
        raise
    live._journal = journal
    return live


def _check_place(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that is another's."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose a folder")
    if (folder / STATE).exists() and not overwrite:
        raise InputError(f"{folder} holds a live overlay already; load it, or ask for it to be overwritten")
    names = sorted(place.name for place in folder.iterdir()) if folder.is_dir() else []
    foreign = [name for name in names if name != STATE and not name.startswith((f".{STATE}.", f"{FILE}."))]
    if foreign:
        raise InputError(f"{folder} holds {foreign[0]!r}, which is no live overlay's; choose an empty folder")


def _write(live: Live, journal: OverlayJournal) -> None:
    """Write the state with a new journal; the old ones are there until the new ones are, whatever happens."""
    state = journal.folder / STATE
    try:
        name = journal.begin()
    except OSError as error:
        raise InputError(f"cannot write to {journal.folder}: {error.strerror}") from error
    try:
        with new_folder(state, overwrite=True) as scratch:
            write_state(scratch, live, name)
    finally:  # an interrupt may come after the rename: the state that is there says which journal counts
        if (state / RECORD).exists():
            journal.go_on(_record(state)["journal"], changes_of(live))


def changes_of(live: Live) -> int:
    """How many changes there have been."""
    return sum(live.counts[kind] for kind in ("join", "leave", "resubscribe", "rebaseline"))


def write_state(folder: Path, live: Live, journal: str | None = None) -> None:
    """Write a live overlay into a folder: a plan, and beside it backups and what else there is to know.

    `journal` is the name of the journal of what will have changed since, if there is one.
    """
    plan, present = live.plan(), live._dynamics.present()
    plan.save(folder, overwrite=True)
    names, pairs = pa.array(plan.interest.node_ids, pa.string()), present.contents.backups
    backups = pa.table({"node": names.take(pairs[:, 0]), "backup": names.take(pairs[:, 1])})
    write_table(folder, "backups", backups)
    record = {
        "format": FORMAT,
        "broadloom": VERSION,
        "next_id": live._dynamics.next_id,
        "chance": present.contents.chance,
        "counts": dict(live.counts),
        "sites": live.site_ids,
        "journal": journal,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def read_state(folder: Path) -> Live:
    """The live overlay that `write_state` wrote, without a journal."""
    record, plan = _record(folder), Plan.load(folder)
    options = options_of(plan.algorithm, **{k: np.inf if v is None else v for k, v in plan.options.items()})
    assert plan.nodes is not None
    ids, everybody = plan.nodes.column("id").to_numpy(), np.arange(plan.interest.node_count)
    index = {name: node for node, name in enumerate(plan.interest.node_ids)}
    pairs = require_table(folder, "backups")
    backups = [[index[name] for name in pairs.column(end).to_pylist()] for end in ("node", "backup")]
    contents = OverlayContents(
        plan.interest.topic_start,
        plan.interest.topics,
        plan.edges,
        np.array(backups, np.int32).reshape(2, -1).T.copy(),
        record["chance"],
    )
    rules = options.rules(by_weight=not plan.weights.is_uniform)
    weights = with_room(plan.weights.arrays(), everybody, len(everybody))
    dynamics = OverlayDynamics(
        rules, Snapshot(ids, contents, weights), plan.interest.topic_count, record["next_id"]
    )
    names = dict(zip(ids.tolist(), plan.interest.node_ids, strict=True))
    counts = Counter(record["counts"])
    topics, sites = plan.interest.topic_ids, record["sites"]
    return Live(dynamics, plan.algorithm, options, plan.seed, topics, names, counts, sites)


def _replay(live: Live, journal: OverlayJournal) -> None:
    """Do again what the journal says, from where the state stands; it must come out the same."""
    name = str(_record(journal.folder / STATE)["journal"])
    for entry in read_entries(journal.folder / name):
        if entry.number != changes_of(live) or mark_of(live._do(entry.requests)) != entry.mark:
            raise InputError(
                f"{journal.folder / name} does not follow from its state: it is damaged, or of another "
                "version of broadloom; load and save it with the version that wrote it"
            )
    journal.go_on(name, changes_of(live))


def _record(folder: Path) -> dict[str, Any]:
    place = folder / RECORD
    try:
        record = json.loads(place.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder.parent} holds no live overlay: {place.name} cannot be read") from error
    if record.get("format") != FORMAT:
        raise InputError(f"{place} has format {record.get('format')}, this version reads {FORMAT}")
    return dict(record)


FILE = "journal"
MAGIC = b"broadloom journal 1\n"


class JournalEntry(NamedTuple):
    """Changes that were acknowledged together.

    Attributes:
        number: how many changes there had been before them.
        requests: what was asked for.
        mark: a checksum of the links that they added and removed.
    """

    number: int
    requests: list[ChangeRequest]
    mark: int


class OverlayJournal:
    """An open journal; nobody else can open it meanwhile."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = lock_folder(folder)
        self._file = -1
        self._number = 0
        self._fault: str | None = None

    def begin(self) -> str:
        """Make an empty journal; it counts from when a state names it."""
        last = max((int(place.suffix[1:]) for place in journals_in(self.folder)), default=0)
        name = f"{FILE}.{last + 1}"
        start_journal(self.folder / name, MAGIC)
        return name

    def go_on(self, name: str, number: int) -> None:
        """Write to the journal of this name, behind what it has, after so many changes; others go."""
        try:
            file = os.open(self.folder / name, os.O_RDWR | os.O_APPEND)
            os.fsync(self._lock)  # the state that names it is there for good before the old journal goes
        except OSError as error:
            self._fault = f"{self.folder / name} cannot be opened: {error.strerror}; load it again"
            raise InputError(self._fault) from error
        if self._file >= 0:
            os.close(self._file)
        self._file, self._number = file, number
        for litter in journals_in(self.folder):
            if litter.name != name:
                with suppress(OSError):
                    litter.unlink()

    def append(self, requests: Sequence[ChangeRequest], changes: Sequence[Change]) -> None:
        """Bring changes to the disk; when this returns, they are there."""
        text = json.dumps([self._number, [request.plain() for request in requests], mark_of(changes)])
        try:
            append_record(self._file, text.encode())
        except OSError as error:
            self._fault = (
                f"the journal of {self.folder} could not be written: {error.strerror}; load it again"
            )
            raise InputError(self._fault) from error
        self._number += len(requests)

    def check(self) -> None:
        """Refuse further changes after one could not be kept."""
        if self._fault is not None:
            raise InputError(self._fault)

    def close(self) -> None:
        """Let go of it."""
        for handle in (self._file, self._lock):
            if handle >= 0:
                os.close(handle)


def journals_in(folder: Path) -> list[Path]:
    """The journals in a folder: that of its state, and litter."""
    return [place for place in folder.glob(f"{FILE}.*") if place.suffix[1:].isdecimal()]


def read_entries(place: Path) -> list[JournalEntry]:
    """The entries of a journal; a torn record at its end is cut off.

    Raises:
        InputError: there is no journal, or a record before its end is damaged.
    """
    entries = []
    for text in read_records(place, MAGIC):
        number, requests, mark = json.loads(text)
        entries.append(JournalEntry(number, [ChangeRequest.from_plain(values) for values in requests], mark))
    return entries


def mark_of(changes: Sequence[Change]) -> int:
    """A checksum of what changes did."""
    mark = 0
    for change in changes:
        for links in (change.added, change.removed):
            mark = zlib.crc32(links.astype("<i8").tobytes(), mark)
    return mark


def open_journal(folder: Path) -> OverlayJournal:
    """The journal of a folder, which must be there."""
    try:
        return OverlayJournal(folder)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be opened: {error.strerror}; save a live overlay there first"
        ) from error
