"""`broadloom reproduce`: the figures and tables of the papers, compared with the originals."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broadloom.cli.common import Conf, Json, Master, Quiet, Remote, engine_if_asked, progress, show

if TYPE_CHECKING:
    from rich.table import Table


def reproduce(
    paper: Annotated[int | None, typer.Argument(help="The paper, 1 to 5; all papers by default.")] = None,
    figure: Annotated[
        str | None, typer.Argument(help="One of its figures or tables, such as fig4 or table1.")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The folder for tables, drawings and the page.")
    ] = Path("reproduction"),
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer and smaller cases: minutes instead of hours.")
    ] = False,
    show_only: Annotated[
        bool, typer.Option("--show-only", help="Run nothing: write the page of the cases that are complete.")
    ] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Cases that run at a time, in processes.")] = 1,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the experiments of the papers, draw them, and judge each claim of their texts.

    The cases run one after another, or --jobs at a time; --master or --remote runs them on Spark. An
    interrupted run continues where it stopped. BROADLOOM_DATA can name a folder of measured latencies.

    Example: broadloom reproduce 2 fig1 --quick
    """
    # Before kernels are imported: compile them whatever their work, so that a first small run compiles what
    # is measured.
    os.environ.setdefault("BROADLOOM_KERNELS", "compiled")
    from rich.console import Group

    from broadloom.papers import figures_of, need_papers

    need_papers()
    engine = engine_if_asked(master, remote, conf)
    from broadloom.papers.evidence_page import scores
    from broadloom.papers.reproduction import reproduce as run

    with progress(quiet):
        found = run(figures_of(paper, figure), output, quick, engine, run=not show_only, jobs=jobs)
    text = f"{found.run:,} cases run, {found.known:,} known before -> {found.page}"
    counted = scores(found.claims)
    record = {"output": str(output), "page": str(found.page), "claims": found.claims, "scores": counted}
    tables = Group(_claims(found.claims), "", _scores(counted))
    show(record | {"run": found.run, "known": found.known}, text, as_json, quiet, tables)


def _scores(counted: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    from broadloom.papers.figures import VERDICTS

    used = [verdict for verdict in VERDICTS if any(row[verdict] for row in counted)]
    table = Table("paper", "size", "kind", *used, box=None, pad_edge=False)
    for row in counted:
        table.add_row(
            str(row["paper"]), row["size"], row["kind"], *(str(row[verdict] or "") for verdict in used)
        )
    return table


def _claims(claims: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table("figure", "verdict", "claim", "theirs", "ours", box=None, pad_edge=False)
    for claim in claims:
        table.add_row(*(claim[name] or "-" for name in ("figure", "verdict", "claim", "theirs", "ours")))
    return table
