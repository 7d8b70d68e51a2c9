"""`broadloom ingest`: raw logs, dumps and pings to canonical tables, on Spark."""

from typing import Annotated

import typer

from broadloom.cli.common import Conf, Force, Json, Master, Quiet, Remote, Ui, engine_of, progress, show


def ingest(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, patterns or URIs, or table:NAME; as KIND=PATH or KIND@BROKER=PATH where "
            "needed."
        ),
    ],
    output: Annotated[str, typer.Option("-o", "--output", help="The folder or URI for the tables.")],
    wildcards: Annotated[
        str,
        typer.Option(
            help="group: keep topic filters, of which those that overlap count as one topic; "
            "match: replace them by the known topics."
        ),
    ] = "group",
    symmetric: Annotated[
        str, typer.Option(help="Latencies of the two directions: none (keep both), mean, min or max.")
    ] = "none",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    ui: Ui = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Turn raw logs and dumps into canonical tables; bad rows go to quarantine, and every row is counted.

    Example: broadloom ingest nodes.csv emqx=dump.json mosquitto@berlin=berlin.log latency=pings.csv -o tables
    """
    from rich.table import Table

    engine = engine_of(master, remote, conf, ui)
    from broadloom.pipeline.ingest import ingest as run_ingest

    with progress(quiet):
        ledger = run_ingest(sources, output, wildcards, symmetric, engine, overwrite=force)
    table = Table("table", "rows", "used", "duplicates", "quarantine", "written", box=None, pad_edge=False)
    for account in ledger.accounts:
        counts = (
            account.rows,
            account.used,
            account.duplicates,
            sum(account.quarantined.values()),
            account.written,
        )
        table.add_row(account.table, *(f"{count:,}" for count in counts))
    text = "\n".join([f"{ledger.summary()} -> {output}", *ledger.reasons(), *ledger.notes])
    show({"output": str(output)} | ledger.record(), text, as_json, quiet, table)
