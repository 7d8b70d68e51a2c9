"""Saving a live overlay: a plan with its backups, and a journal of the changes since, in one folder."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from broadloom._version import VERSION
from broadloom.errors import InputError
from broadloom.maintenance._engine import Engine, Present
from broadloom.maintenance._places import with_room
from broadloom.maintenance._world import Contents
from broadloom.maintenance.journal import FILE, Journal, mark_of, open_journal, read_entries
from broadloom.maintenance.live import Live, options_of
from broadloom.plans import Plan
from broadloom.storage.folders import new_folder
from broadloom.storage.tables import need_table, write_table

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


def _write(live: Live, journal: Journal) -> None:
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
    plan, present = live.plan(), live._engine.present()
    plan.save(folder, overwrite=True)
    names, pairs = pa.array(plan.interest.node_ids, pa.string()), present.contents.backups
    backups = pa.table({"node": names.take(pairs[:, 0]), "backup": names.take(pairs[:, 1])})
    write_table(folder, "backups", backups)
    record = {
        "format": FORMAT,
        "broadloom": VERSION,
        "next_id": live._engine.next_id,
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
    pairs = need_table(folder, "backups")
    backups = [[index[name] for name in pairs.column(end).to_pylist()] for end in ("node", "backup")]
    contents = Contents(
        plan.interest.topic_start,
        plan.interest.topics,
        plan.edges,
        np.array(backups, np.int32).reshape(2, -1).T.copy(),
        record["chance"],
    )
    rules = options.rules(by_weight=not plan.weights.is_uniform)
    weights = with_room(plan.weights.arrays(), everybody, len(everybody))
    engine = Engine(rules, Present(ids, contents, weights), plan.interest.topic_count, record["next_id"])
    names = dict(zip(ids.tolist(), plan.interest.node_ids, strict=True))
    counts = Counter(record["counts"])
    topics, sites = plan.interest.topic_ids, record["sites"]
    return Live(engine, plan.algorithm, options, plan.seed, topics, names, counts, sites)


def _replay(live: Live, journal: Journal) -> None:
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
