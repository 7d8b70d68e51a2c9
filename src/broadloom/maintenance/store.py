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
from broadloom.model import Plan
from broadloom.model._atomic import new_folder
from broadloom.model.tables import need_table, write_table

STATE, RECORD = "state", "live.json"
FORMAT = 1


def save(live: Live, path: str | Path | None = None, overwrite: bool = False) -> None:
    """What `Live.save` does."""
    journal = live._journal
    folder = Path(path).resolve() if path is not None else None if journal is None else journal.folder
    if folder is None:
        raise InputError("it was never saved, so there is no place yet; give a path")
    if journal is None or journal.folder != folder:
        if (folder / STATE).exists() and not overwrite:
            raise InputError(
                f"{folder} holds a live overlay already; load it, or ask for it to be overwritten"
            )
        folder.mkdir(parents=True, exist_ok=True)
        journal = open_journal(folder)
        live.close()
    if overwrite:
        (folder / FILE).unlink(missing_ok=True)  # its changes are of the overlay that is replaced
    with new_folder(folder / STATE, overwrite=True) as state:
        write_state(state, live)
    journal.start(changes_of(live))
    live._journal = journal


def load(path: str | Path) -> Live:
    """What `Live.load` does: the state, and what the journal says has changed since."""
    folder = Path(path).resolve()
    journal = open_journal(folder)
    try:
        live = read_state(folder / STATE)
        if not (folder / FILE).exists():  # it died between the first state and the first journal
            journal.start(changes_of(live))
        else:
            _replay(live, journal)
    except BaseException:
        journal.close()
        raise
    live._journal = journal
    return live


def changes_of(live: Live) -> int:
    """How many changes there have been."""
    return sum(live.counts[kind] for kind in ("join", "leave", "resubscribe", "rebaseline"))


def write_state(folder: Path, live: Live) -> None:
    """Write a live overlay into a folder: a plan, and beside it backups and what else there is to know."""
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
    return Live(engine, plan.algorithm, options, plan.seed, plan.interest.topic_ids, names, counts)


def _replay(live: Live, journal: Journal) -> None:
    """Do again what the journal says, from where the state stands; it must come out the same."""
    for entry in read_entries(journal.folder):
        if entry.number < changes_of(live):
            continue  # it died after saving this, before the journal was cut
        if entry.number > changes_of(live) or mark_of(live._do(entry.requests)) != entry.mark:
            raise InputError(
                f"{journal.folder / FILE} does not follow from its state: it is damaged, or of another "
                "version of broadloom; load and save it with the version that wrote it"
            )
    journal.resume(changes_of(live))


def _record(folder: Path) -> dict[str, Any]:
    place = folder / RECORD
    try:
        record = json.loads(place.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder.parent} holds no live overlay: {place.name} cannot be read") from error
    if record.get("format") != FORMAT:
        raise InputError(f"{place} has format {record.get('format')}, this version reads {FORMAT}")
    return dict(record)
