"""`broadloom discover`: subscriptions, publishers and latencies of a running fleet, as canonical tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import broadloom as bl
from broadloom.cli.common import Force, Json, Quiet, progress, say, show
from broadloom.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from broadloom.discovery import Discovery

INCOMPLETE = 1
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600}


def discover(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the tables.")],
    fleet: Annotated[Path, typer.Argument(help="The fleet file.")] = Path("fleet.toml"),
    listen: Annotated[
        str | None,
        typer.Option(
            help='Listen to publications for this time, such as 30s or 5m; 30s with publishers = "observed", '
            "else 0. Ctrl-C ends it early."
        ),
    ] = None,
    latency: Annotated[
        str,
        typer.Option(
            help="Latencies: a CSV file (src, dst, rtt_ms), positions, measured (through this machine), "
            "none, or auto (positions if each broker has one, else none)."
        ),
    ] = "auto",
    partial: Annotated[
        bool, typer.Option("--partial", help="Write the tables even if subscriptions are missing.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find out the subscriptions, publishers and latencies of a running fleet, and write them as tables.

    If the subscriptions of a broker are not all known, nothing is written and the exit code is 1.

    Example: broadloom discover fleet.toml --listen 30s -o tables
    """
    with progress(quiet):
        found = bl.discover(fleet, output, _seconds(listen), latency, partial, overwrite=force)
    show(found.record(), _text(found), as_json, quiet, _table(found))
    if quiet and not as_json:
        _print_problems(found)
    if not (found.is_complete or partial):
        raise typer.Exit(INCOMPLETE)


def _seconds(text: str | None) -> float | None:
    """The seconds that a text such as 30s or 5m means."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise InputError(f"--listen is {text!r}; give a time such as 30s or 5m")
    return float(match[1]) * _UNITS[match[2]]


def _print_problems(found: Discovery) -> None:
    """Print what is missing on standard error, as --quiet prints errors."""
    for line in _problems(found):
        say(line, error=True)


def _problems(found: Discovery) -> list[str]:
    return [
        f"MISSING at {findings.broker.name}: {text}"
        for findings in found.brokers
        for text in findings.problems
    ]


def _text(found: Discovery) -> str:
    """The lines above the table: the totals, the notes, and what is missing."""
    written = f" -> {found.output}" if found.output is not None else ""
    lines = [f"{found.summary()}{written}", f"latency: {found.latencies.basis}", *found.notes]
    lines += [f"{findings.broker.name}: {note}" for findings in found.brokers for note in findings.notes]
    lines += _problems(found)
    if found.output is None:
        lines.append(
            "nothing was written, since a plan would lose messages; --partial writes it all the same"
        )
    return "\n".join(lines)


def _table(found: Discovery) -> Table:
    from rich.table import Table

    columns = ("broker", "source", "clients", "filters", "not carried", "publications", "complete")
    table = Table(*columns, box=None, pad_edge=False)
    for findings in found.brokers:
        sources = ", ".join(str(source.kind or source.source) for source in findings.sources) or "-"
        listened = bool(findings.observed.seconds)
        table.add_row(
            findings.broker.name,
            sources,
            f"{len(findings.clients):,}",
            f"{len(findings.wanted):,}",
            f"{len(findings.not_carried):,}",
            f"{len(findings.observed.traffic):,}" if listened else "-",
            "yes" if findings.is_complete else "NO",
        )
    return table
