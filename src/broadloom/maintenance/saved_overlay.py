"""Saved live overlays: a folder with a state and a journal of the changes since.

The state is a plan with its backups. Every state names a journal of its own, `journal.<number>`, which is
created before the state is. So one rename, that of the state, replaces the pair; a journal that no state
names is left over from an interrupted save and is removed. A journal is a `RecordJournal`.
"""

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

from broadloom._version import VERSION
from broadloom.errors import InputError, InternalError, StorageError, error_from_os
from broadloom.folder_locks import sync_path
from broadloom.maintenance._overlay_arrays import OverlayContents
from broadloom.maintenance.carry_ledger import CarryLedger
from broadloom.maintenance.changes import Change, ChangeRequest
from broadloom.maintenance.dynamics import OverlayDynamics, Snapshot, weights_with_capacity
from broadloom.maintenance.filter_groups import (
    group_of_topics,
    grouped_rows,
    groups_from_json,
    rows_by_node,
)
from broadloom.maintenance.live import Live, OverlayNames
from broadloom.maintenance.methods import options_of
from broadloom.maintenance.node_columns import ID, IDS_NOTE, NodeColumns
from broadloom.plans import Plan
from broadloom.storage import (
    JournalRecord,
    RecordJournal,
    create_journal,
    delete_journal,
    lock_folder,
    new_folder,
)

STATE = "state"
RECORD = "live.json"
FORMAT = 2
JOURNAL = "journal"
KIND = "changes"  # of all records
OLD_EMPTY = b"broadloom journal 1\n"  # a journal of an earlier version, without changes


def save(live: Live, path: str | Path | None = None, overwrite: bool = False) -> None:
    """The work of `Live.save`."""
    old = live._journal
    folder = Path(path).resolve() if path is not None else None if old is None else old.folder
    if folder is None:
        raise InputError("the overlay was never saved, so it has no folder yet; give a path")
    if old is not None and old.folder == folder:
        _write(live, old)
        return
    _check_folder(folder, overwrite)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise error_from_os(f"cannot write to {folder}", error) from error
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
    """The work of `Live.load`: the state, and then the changes in the journal."""
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


def _check_folder(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds another overlay, or other files."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; choose a folder")
    if (folder / STATE).exists() and not overwrite:
        raise InputError(f"{folder} holds a live overlay already; load it, or ask for it to be overwritten")
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    foreign = [name for name in names if name != STATE and not name.startswith((f".{STATE}.", f"{JOURNAL}."))]
    if foreign:
        raise InputError(
            f"{folder} holds {foreign[0]!r}, which is not part of a live overlay; choose an empty folder"
        )


def _write(live: Live, journal: OverlayJournal) -> None:
    """Write the state with a new journal; the old pair stays until the new one is complete."""
    state = journal.folder / STATE
    try:
        name = journal.begin()
    except OSError as error:
        raise error_from_os(f"cannot write to {journal.folder}", error) from error
    try:
        with new_folder(state, overwrite=True) as scratch:
            write_state(scratch, live, name)
    finally:  # an interrupt can come after the rename: the state in the folder says which journal is valid
        if (state / RECORD).exists():
            journal.go_on(_record(state)["journal"], changes_of(live))


def changes_of(live: Live) -> int:
    """The number of changes so far."""
    return sum(live.counts[kind] for kind in ("join", "leave", "resubscribe", "rebaseline"))


def write_state(folder: Path, live: Live, journal: str | None = None) -> None:
    """Write a live overlay into a folder: a plan, its backups, and a record.

    `journal` is the name of the journal for the changes after this state, if there is one.
    """
    import pyarrow as pa

    from broadloom.storage.tables import write_table

    plan = live.plan()
    present = live._dynamics.present()
    plan.save(folder, overwrite=True)
    names = pa.array(plan.interest.node_ids, pa.string())
    pairs = present.contents.backups
    backups = pa.table({"node": names.take(pairs[:, 0]), "backup": names.take(pairs[:, 1])})
    write_table(folder, "backups", backups)
    record = {
        "format": FORMAT,
        "broadloom": VERSION,
        "next_id": live._dynamics.next_id,
        "chance": present.contents.random_state,
        "counts": dict(live.counts),
        "sites": live.site_ids,
        "journal": journal,
    }
    if live._groups is not None:
        record["groups"] = live._groups.to_json()
    (folder / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def read_state(folder: Path) -> Live:
    """The live overlay that `write_state` wrote, without a journal."""
    from broadloom.storage.tables import require_table

    record = _record(folder)
    plan = Plan.load(folder)
    options = options_of(plan.algorithm, **{k: np.inf if v is None else v for k, v in plan.options.items()})
    if plan.nodes is None:
        raise InputError(f"{folder} has no table nodes; it is not the state of a live overlay")
    interest = plan.interest
    own = IDS_NOTE not in plan.notes
    ids = plan.nodes.column(ID).to_numpy() if own else np.array(plan.notes[IDS_NOTE], np.int64)
    everybody = np.arange(interest.node_count)
    index = {name: node for node, name in enumerate(interest.node_ids)}
    pairs = require_table(folder, "backups")
    backups = [[index[name] for name in pairs.column(end).to_pylist()] for end in ("node", "backup")]
    group_of = groups_from_json(record.get("groups", ())) if interest.has_filters else None
    topics = grouped_rows(interest, group_of)
    contents = OverlayContents(
        topics.start,
        topics.topics,
        plan.edges,
        np.array(backups, np.int32).reshape(2, -1).T.copy(),
        record["chance"],
    )
    rules = options.rules(by_weight=not plan.weights.is_uniform)
    weights = weights_with_capacity(plan.weights.arrays(), everybody, len(everybody))
    present = Snapshot(ids, contents, weights)
    dynamics = OverlayDynamics(rules, present, interest.topic_count, record["next_id"])
    if group_of is not None and "groups" not in record:  # written when filters were topics like all others
        group_of = group_of_topics(interest)
        topics = grouped_rows(interest, group_of)
        of_row = np.repeat(ids, np.diff(topics.start))
        subscribers = {one: of_row[topics.topics == one].tolist() for one in group_of.values()}
        dynamics.relabel(group_of.keys(), subscribers)
    node_names = dict(zip(ids.tolist(), interest.node_ids, strict=True))
    further = plan.nodes.drop_columns(["node", ID] if own else ["node"])
    columns = NodeColumns(further if further.num_columns else None, ids.tolist())
    carry = CarryLedger(plan.publishers, plan.not_carried.subscriptions, interest.node_ids)
    rows = rows_by_node(node_names, interest.topic_start, interest.topics) if interest.has_filters else None
    names = OverlayNames(interest.topic_ids, node_names, record["sites"], columns, carry, rows, group_of)
    return Live(dynamics, plan.algorithm, options, plan.seed, names, Counter(record["counts"]))


def _replay(live: Live, journal: OverlayJournal) -> None:
    """Run the changes in the journal again; the results must equal those at the time."""
    name = str(_record(journal.folder / STATE)["journal"])
    for entry in journal.open(name):
        if entry.number != changes_of(live) or checksum(live._execute(entry.requests)) != entry.checksum:
            raise InputError(
                f"{journal.folder / name} does not follow from its state: it is damaged, or of another "
                "version of broadloom; load and save it with the version that wrote it"
            )
    journal.go_on(name, changes_of(live))


def _record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    try:
        record = json.loads(path.read_text())
    except OSError as error:
        raise error_from_os(
            f"{folder.parent} holds no live overlay: {path.name} cannot be read", error
        ) from error
    except ValueError as error:
        raise InputError(f"{folder.parent} holds no live overlay: {path.name} is damaged") from error
    if record.get("format") != FORMAT:
        raise InputError(f"{path} has format {record.get('format')}, this version reads {FORMAT}")
    return dict(record)


class JournalEntry(NamedTuple):
    """Changes that were acknowledged together.

    Attributes:
        number: the number of changes before them.
        requests: the requested changes.
        checksum: a checksum of the links that they added and removed.
    """

    number: int
    requests: list[ChangeRequest]
    checksum: int


class OverlayJournal:
    """The open journal of a saved overlay, with a lock on its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = lock_folder(folder)
        self._records: RecordJournal | None = None
        self._number = 0
        self._fault: str | None = None

    def begin(self) -> str:
        """Create an empty journal; it is valid as soon as a state names it."""
        last = max((int(path.suffix[1:]) for path in journals_in(self.folder)), default=0)
        name = f"{JOURNAL}.{last + 1}"
        create_journal(self.folder / name)
        return name

    def open(self, name: str) -> list[JournalEntry]:
        """Open the journal of this name and return its entries.

        Raises:
            InputError: it does not exist, is damaged, or was written by an earlier version.
            StorageError: it cannot be read.
        """
        path = self.folder / name
        try:
            with path.open("rb") as file:
                start = file.read(len(OLD_EMPTY) + 1)
        except OSError as error:
            raise error_from_os(f"{path} cannot be read", error) from error
        if start == OLD_EMPTY:
            create_journal(path)
        elif start.startswith(OLD_EMPTY):
            raise InputError(
                f"{path} was written by an earlier version of broadloom; load and save it with that "
                "version, or begin with a new folder"
            )
        opened = RecordJournal(path)
        if self._records is not None:
            self._records.close()
        self._records = opened
        return [_entry(record) for record in opened.records()]

    def go_on(self, name: str, number: int) -> None:
        """Append to the journal of this name from now on, after `number` changes; remove other journals."""
        try:
            if self._records is None or self._records.path != self.folder / name:
                self.open(name)
            sync_path(self.folder)  # the state that names it is on the disk before the old journal is removed
        except (OSError, InputError) as error:
            reason = getattr(error, "strerror", None) or error
            self._fault = f"{self.folder / name} cannot be opened: {reason}; load it again"
            raise StorageError(self._fault) from error
        self._number = number
        for unused in journals_in(self.folder):
            if unused.name != name:
                with suppress(OSError):
                    delete_journal(unused)

    def append(self, requests: Sequence[ChangeRequest], changes: Sequence[Change]) -> None:
        """Write changes to the disk before they are acknowledged."""
        if self._records is None:
            raise InternalError(f"the journal of {self.folder} is not open; please report this")
        body = {
            "number": self._number,
            "requests": [request.to_json() for request in requests],
            "checksum": checksum(changes),
        }
        try:
            self._records.append(KIND, body)
        except StorageError as error:
            self._fault = f"the journal of {self.folder} could not be written ({error}); load it again"
            raise StorageError(self._fault) from error
        self._number += len(requests)

    def check(self) -> None:
        """Refuse further changes after one could not be written."""
        if self._fault is not None:
            raise StorageError(self._fault)

    def close(self) -> None:
        """Close the journal and release the folder."""
        if self._records is not None:
            self._records.close()
            self._records = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_journal(folder: Path) -> OverlayJournal:
    """The journal of a folder that exists."""
    try:
        return OverlayJournal(folder)
    except OSError as error:
        kind = type(error_from_os("", error))
        raise kind(f"{folder} cannot be opened: {error.strerror}; save a live overlay there first") from error


def journals_in(folder: Path) -> list[Path]:
    """All journals in a folder."""
    return [path for path in folder.glob(f"{JOURNAL}.*") if path.suffix[1:].isdecimal()]


def _entry(record: JournalRecord) -> JournalEntry:
    body = record.body
    requests = [ChangeRequest.from_json(one) for one in body["requests"]]
    return JournalEntry(body["number"], requests, body["checksum"])


def checksum(changes: Sequence[Change]) -> int:
    """A checksum of the links that changes added and removed."""
    check = 0
    for change in changes:
        for links in (change.added, change.removed):
            check = zlib.crc32(links.astype("<i8").tobytes(), check)
    return check
