"""`broadloom run`: the whole pipeline, from raw inputs to a verified plan and its report."""

from typing import Annotated, Any

import typer

from broadloom.cli.common import (
    UI_SETTING,
    Conf,
    Json,
    Master,
    Quiet,
    Remote,
    Ui,
    measures_table,
    progress,
    show,
)


def run(
    config: Annotated[str, typer.Argument(help="A TOML file: sources, output, and options of each step.")],
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run every step again, also those that are complete.")
    ] = False,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    ui: Ui = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the whole pipeline; a complete step whose input has not changed is skipped.

    Example: broadloom run demo.toml
    """
    from broadloom.pipeline import need_spark, parse_conf

    need_spark()
    from broadloom.pipeline import RunConfig, run_pipeline

    chosen = RunConfig.load(config)
    with progress(quiet):
        settings = parse_conf([*(conf or []), *([UI_SETTING] if ui else [])])
        outcome = run_pipeline(chosen, chosen.engine(master, remote, **settings), fresh=fresh)
    steps = ", ".join(
        f"{name} {'before' if seconds is None else f'{seconds:.1f} s'}"
        for name, seconds in outcome.steps.items()
    )
    lines = [
        steps,
        outcome.ledger.summary(),
        *outcome.ledger.reasons(),
        *outcome.ledger.notes,
        *([outcome.assignment] if outcome.assignment else []),
        outcome.plan,
        *outcome.carried,
        f"report: {outcome.report}",
    ]
    record: dict[str, Any] = {
        "output": str(outcome.output),
        "report": str(outcome.report),
        "steps": outcome.steps,
    }
    record |= {"assignment": outcome.assignment, "rows": outcome.ledger.record(), "metrics": outcome.metrics}
    record |= outcome.carried_record
    show(record, "\n".join(lines), as_json, quiet, measures_table(outcome.metrics))
