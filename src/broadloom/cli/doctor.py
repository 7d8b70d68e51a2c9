"""`broadloom doctor`: checks of every broker of a fleet, and the settings to write."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import broadloom as bl
from broadloom.cli.common import Json, Quiet, progress, show

FleetFile = Annotated[Path, typer.Argument(help="The fleet file, as `broadloom init` writes it.")]


def doctor(
    fleet: FleetFile = Path("fleet.toml"),
    deliver: Annotated[
        bool,
        typer.Option(
            "--deliver",
            help="Also try the right to read: send one real message per filter. Clients of `#` see it.",
        ),
    ] = False,
    all_lines: Annotated[
        bool, typer.Option("--all", help="Also list checks that found nothing wrong.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Check the brokers of a fleet, and say what to change; exit with 1 if something must change.

    Example: broadloom doctor fleet.toml
    """
    loaded = bl.Fleet.load(fleet)
    with progress(quiet or as_json):
        report = bl.doctor(loaded, deliver=deliver)
    record = {"ok": report.ok, "summary": report.summary(), "findings": report.records()}
    lines = [*report.lines(all_lines), f"{len(loaded.brokers)} brokers: {report.summary()}"]
    show(record, "\n".join(lines), as_json, quiet)
    return 0 if report.ok else 1
