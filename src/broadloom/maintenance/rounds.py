"""A run over a file of events: a row a round, and what they come to (paper 3, VI-C)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from broadloom.maintenance.events import Event
from broadloom.maintenance.feed import Applied, Feed, Refused
from broadloom.maintenance.live import Live
from broadloom.maintenance.quality import Drift
from broadloom.maintenance.requests import JOIN, LEAVE, REBASELINE, RESUBSCRIBE
from broadloom.progress import stage

LINKS = {"seq": pa.int64(), "action": pa.string(), "u": pa.string(), "v": pa.string()}
OF_EVENTS = (JOIN, LEAVE, RESUBSCRIBE)
FRESH = ("fresh_max_degree", "fresh_mean_degree")
_WHOLE, _NUMBER = pa.int64(), pa.float64()
ROUNDS = (
    {"seq": _WHOLE, "kind": pa.string(), "node": pa.string()}
    | dict.fromkeys(("added", "removed", "repair_edges"), _WHOLE)
    | {"repair_ratio": _NUMBER, "shadow": _WHOLE, "ms": _NUMBER, "backup_ms": _NUMBER}
    | {"nodes": _WHOLE, "edges": _WHOLE, "max_degree": _WHOLE, "mean_degree": _NUMBER}
    | dict(zip(FRESH, (_WHOLE, _NUMBER), strict=True))
)


class Rounds:
    """What a feed did, as tables: `rounds`, `links` (add and remove) and `quarantine`."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, Any]] = []
        self.links: list[tuple[int, str, str, str]] = []
        self.refused: list[Refused] = []

    @property
    def applied(self) -> int:
        """How many events were applied."""
        return sum(row["kind"] != REBASELINE for row in self.rounds)

    def run(
        self, feed: Feed, events: Sequence[Event], fresh_every: int = 0, rebaseline: bool = False
    ) -> None:
        """Apply the events; compare with a fresh build at every so many, and rebaseline where that is due."""
        live, names = feed.live, _Names(feed.live)
        with stage("events", len(events)) as done:
            for count, outcome in enumerate(feed.take(events), start=1):
                if isinstance(outcome, Refused):
                    self.refused.append(outcome)
                else:
                    self._add(outcome, live, names)
                    if fresh_every and sum(live.counts[kind] for kind in OF_EVENTS) % fresh_every == 0:
                        self._compare(outcome.seq, live, names, rebaseline)
                done(count)

    def _compare(self, seq: int, live: Live, names: _Names, rebaseline: bool) -> None:
        """Put what a fresh build has beside the last round, and rebaseline where that is due."""
        drift = live.drift()
        self.rounds[-1] |= _fresh(drift)
        if rebaseline and live.rebuild_due(drift=drift):
            self._add(Applied(seq, "", live.rebaseline()), live, names)
            self.rounds[-1] |= _fresh(drift)

    def _add(self, applied: Applied, live: Live, names: _Names) -> None:
        """One more round, and its links."""
        self.rounds.append(_round(applied, live))
        self.links += names.links_of(applied)

    def tables(self) -> dict[str, pa.Table]:
        """The tables."""
        links = {
            name: pa.array([row[i] for row in self.links], kind)
            for i, (name, kind) in enumerate(LINKS.items())
        }
        raws, reasons = ([getattr(one, name) for one in self.refused] for name in ("raw", "reason"))
        quarantine = {"table": ["events"] * len(raws), "row": raws, "reason": reasons}
        return {
            "rounds": _rounds_table(self.rounds),
            "links": pa.table(links),
            "quarantine": pa.table(
                {name: pa.array(column, pa.string()) for name, column in quarantine.items()}
            ),
        }

    def summary(self) -> dict[str, Any]:
        """All rounds in a few numbers."""
        kinds = {kind: [row for row in self.rounds if row["kind"] == kind] for kind in _kinds(self.rounds)}
        reasons = sorted({one.reason for one in self.refused})
        record: dict[str, Any] = {kind: _numbers(rows) for kind, rows in kinds.items()}
        record["quarantined"] = {
            reason: sum(one.reason == reason for one in self.refused) for reason in reasons
        }
        compared = [row for row in self.rounds if FRESH[0] in row]
        events = [row for row in compared if row["kind"] != REBASELINE]
        if compared:
            record["against_fresh"] = {
                "rounds": len(events),
                "max_degree_above": float(np.mean([row["max_degree"] - row[FRESH[0]] for row in events])),
                "mean_degree_above": float(np.mean([row["mean_degree"] - row[FRESH[1]] for row in events])),
                "last_max_degree_above": compared[-1]["max_degree"] - compared[-1][FRESH[0]],
                "last_mean_degree_above": compared[-1]["mean_degree"] - compared[-1][FRESH[1]],
            }
        return record


class _Names:
    """What nodes are called, those that have just left among them."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._names = {node: live.name_of(node) for node in live.nodes.tolist()}

    def links_of(self, applied: Applied) -> list[tuple[int, str, str, str]]:
        """The rows of `links` for one event."""
        change = applied.change
        self._names.setdefault(change.node, applied.node)
        rows = [
            (applied.seq, action, self._names[u], self._names[v])
            for action, links in (("remove", change.removed), ("add", change.added))
            for u, v in links.tolist()
        ]
        if change.kind == "leave":
            del self._names[change.node]
        return rows


def _round(applied: Applied, live: Live) -> dict[str, Any]:
    change = applied.change
    return {
        "seq": applied.seq,
        "kind": change.kind,
        "node": applied.node,
        "added": len(change.added),
        "removed": len(change.removed),
        "repair_edges": change.repair_edges,
        "repair_ratio": change.repair_ratio,
        "shadow": len(change.shadow),
        "ms": 1e3 * change.seconds,
        "backup_ms": 1e3 * change.backup_seconds,
        "nodes": len(live._names),
        "edges": live.edge_count,
        "max_degree": live.max_degree,
        "mean_degree": live.mean_degree,
    }


def _fresh(drift: Drift) -> dict[str, Any]:
    return dict(zip(FRESH, (drift.fresh_max_degree, drift.fresh_mean_degree), strict=True))


def _kinds(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({row["kind"] for row in rows})


def _numbers(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means of all rounds of one kind, and how their times are spread."""
    times = np.array([row["ms"] for row in rows])
    means = {name: float(np.mean([row[name] for row in rows])) for name in _MEANS}
    spread = {"ms_mean": times.mean(), "ms_p50": np.quantile(times, 0.5), "ms_p99": np.quantile(times, 0.99)}
    return {"rounds": len(rows)} | {name: float(value) for name, value in spread.items()} | means


_MEANS = ("backup_ms", "repair_edges", "repair_ratio", "shadow")


def _rounds_table(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """One row a round; the same columns whatever happened."""
    return pa.table({name: pa.array([row.get(name) for row in rows], kind) for name, kind in ROUNDS.items()})
