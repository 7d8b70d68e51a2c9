"""Round-trip times between the brokers of a fleet: from a table, by positions, or by way of this machine."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from broadloom.checks import and_more
from broadloom.deployment import Fleet
from broadloom.errors import InputError, UnreachableError, error_from_os

if TYPE_CHECKING:
    import pyarrow as pa

EARTH_KM = 6371.0
# Light in fibre covers 200 km per millisecond (2/3 of its speed in vacuum), there and back; cables are
# usually half as long again as the great circle. Equipment adds about one millisecond.
KM_PER_MS = 200.0
DETOUR = 1.5
EQUIPMENT_MS = 1.0
AUTO, POSITIONS, MEASURED, NONE = "auto", "positions", "measured", "none"
CHOICES = (AUTO, POSITIONS, MEASURED, NONE)


@dataclass(frozen=True)
class Latencies:
    """Round-trip times for the table `latency`.

    Attributes:
        rows: source, destination and milliseconds; empty: no such table.
        basis: a sentence on what the numbers are.
        notes: what an operator must know about them.
    """

    rows: tuple[tuple[str, str, float], ...]
    basis: str
    notes: tuple[str, ...] = ()

    def table(self) -> pa.Table:
        """The table `latency`."""
        import pyarrow as pa

        columns = [list(column) for column in zip(*self.rows, strict=True)] or [[], [], []]
        return pa.table(
            {
                "src": pa.array(columns[0], pa.string()),
                "dst": pa.array(columns[1], pa.string()),
                "rtt_ms": pa.array(columns[2], pa.float64()),
            }
        )


def latencies(fleet: Fleet, choice: str | Path, measured: Mapping[str, float | None]) -> Latencies:
    """The round-trip times of a fleet.

    Args:
        fleet: the brokers, with their positions and sites.
        choice: the path of a CSV file with the columns src, dst and rtt_ms; or "positions", "measured",
            "none"; "auto": by the positions if each broker has one, and else none.
        measured: the round trip from this machine to each broker; None: unknown.

    Raises:
        InputError: the file cannot be used, or a broker lacks a position.
        UnreachableError: a broker was not measured.
        StorageError: the file cannot be read.
    """
    brokers = fleet.brokers
    if choice not in CHOICES:
        return _from_file(fleet, Path(choice))
    without = [name for name, broker in brokers.items() if broker.position is None]
    if choice == AUTO:
        choice = NONE if without else POSITIONS
    if choice == POSITIONS:
        if without:
            raise InputError(
                f"broker {without[0]!r}{and_more(len(without) - 1)} has no position; add it to the fleet file"
            )
        places = {name: broker.position for name, broker in brokers.items() if broker.position is not None}
        rows = tuple((u, v, estimated_rtt(places[u], places[v])) for u, v in permutations(places, 2))
        return Latencies(rows, "estimated from positions, not measured")
    if choice == MEASURED:
        missing = [name for name in brokers if measured.get(name) is None]
        if missing:
            raise UnreachableError(
                f"no round trip to broker {missing[0]!r}{and_more(len(missing) - 1)} was measured; "
                "choose --latency positions, none, or a file"
            )
        times = {name: float(measured[name] or 0.0) for name in brokers}
        rows = tuple((u, v, round(times[u] + times[v], 3)) for u, v in permutations(times, 2))
        note = "a latency is the sum of the round trips from this machine to both brokers: an upper bound"
        return Latencies(rows, "measured by way of this machine", (note,))
    with_site = sum(broker.site is not None for broker in brokers.values())
    if 0 < with_site < len(brokers):
        return Latencies((), "none, and some brokers have no site; use `link` with --weights uniform")
    return Latencies((), f"none; `link` weighs links {'by site' if with_site else 'uniformly'}")


def estimated_rtt(one: tuple[float, float], other: tuple[float, float]) -> float:
    """The usual round trip in milliseconds between two positions (latitude, longitude in degrees).

    Examples:
        >>> estimated_rtt((41.9, 12.5), (59.9, 10.7)), estimated_rtt((0, 0), (0, 0))
        (31.08, 1.0)
    """
    ms = 2 * great_circle_km(one, other) * DETOUR / KM_PER_MS
    return round(EQUIPMENT_MS + ms, 3)


def great_circle_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    """The length of the great circle between two positions, by the haversine formula.

    Examples:
        >>> round(great_circle_km((0, 0), (0, 180)))
        20015
    """
    lat1, lon1, lat2, lon2 = map(math.radians, (*one, *other))
    half = (
        math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    )
    return 2 * EARTH_KM * math.asin(math.sqrt(min(half, 1.0)))


def _from_file(fleet: Fleet, path: Path) -> Latencies:
    """The rows of a CSV file between the brokers, or between the sites, of the fleet."""
    rows = _rows(path)
    sites = {broker.site for broker in fleet.brokers.values() if broker.site is not None}
    names = {name for row in rows for name in row[:2]}
    by_site = not names & set(fleet.brokers) and bool(names & sites)
    known = sites if by_site else set(fleet.brokers)
    kept = tuple(row for row in rows if {*row[:2]} <= known and (by_site or row[0] != row[1]))
    notes = []
    if len(kept) < len(rows):
        notes.append(
            f"{len(rows) - len(kept):,} rows of {path} name others than the fleet's brokers; left out"
        )
    if not kept:
        raise InputError(
            f"{path} has no row between two brokers of the fleet; name them as the fleet file does"
        )
    pairs = {frozenset(row[:2]) for row in kept}
    wanted = math.comb(len(known), 2) + (len(known) if by_site else 0)
    if len(pairs) < wanted:
        notes.append(
            f"{path} lacks {wanted - len(pairs):,} of {wanted:,} pairs; give `link` the option --missing path"
        )
    return Latencies(kept, f"from {path}{', between sites' if by_site else ''}", tuple(notes))


def _rows(path: Path) -> list[tuple[str, str, float]]:
    """The rows of a CSV file, each checked."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in ("src", "dst", "rtt_ms") if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path} has no column {missing[0]!r}; it needs src, dst and rtt_ms")
            listed = list(reader)
    except OSError as error:
        raise error_from_os(f"the latency table {path} cannot be read", error) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file: {error}") from error
    rows = []
    seen: dict[tuple[str, str], int] = {}
    for number, row in enumerate(listed, 2):
        src, dst, text = row["src"], row["dst"], row["rtt_ms"]
        try:
            rtt = float(text)
        except (TypeError, ValueError):
            rtt = math.nan
        if not (src and dst and math.isfinite(rtt) and rtt > 0):
            raise InputError(
                f"{path}, line {number}: {src!r}, {dst!r}, {text!r}; give two names and a number above 0"
            )
        if (first := seen.setdefault((src, dst), number)) != number:
            raise InputError(
                f"{path}, lines {first} and {number}: {src!r} to {dst!r} twice; give one value per pair"
            )
        rows.append((src, dst, rtt))
    return rows
