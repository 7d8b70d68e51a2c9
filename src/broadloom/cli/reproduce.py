"""`broadloom reproduce`: the figures and tables of the papers, compared with the originals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broadloom.cli.common import Conf, Json, Master, Quiet, Remote, engine_of, progress, show

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
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the experiments of the papers, draw them, and compare each number of their texts with ours.

    An interrupted run continues where it stopped. BROADLOOM_DATA can name a folder of measured latencies.

    Example: broadloom reproduce 1 fig4 --quick
    """
    from broadloom.papers import figures_of, need_papers

    need_papers()
    engine = engine_of(master, remote, conf)
    from broadloom.papers.reproduction import reproduce as run

    with progress(quiet):
        found = run(figures_of(paper, figure), output, quick, engine)
    kept = sum(claim["verdict"] == "reproduced" for claim in found.claims)
    text = (
        f"{found.run:,} cases run, {found.known:,} known before; "
        f"{kept} of {len(found.claims)} claims reproduced -> {found.page}"
    )
    record = {"output": str(output), "page": str(found.page), "claims": found.claims}
    show(record | {"run": found.run, "known": found.known}, text, as_json, quiet, _claims(found.claims))


def _claims(claims: list[dict[str, object]]) -> Table:
    from rich.table import Table

    table = Table("figure", "claim", "theirs", "ours", "verdict", box=None, pad_edge=False)
    for claim in claims:
        shown = [claim[name] for name in ("figure", "claim", "theirs", "ours", "verdict")]
        table.add_row(*map(_cell, shown))
    return table


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
