"""`broadloom what-if` and `serve`: operations on a plan, on the command line and in a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import broadloom as bl
from broadloom.cli.common import Force, Json, Quiet, Seed, keep_apart, progress, show
from broadloom.errors import InputError

if TYPE_CHECKING:
    from broadloom.console.running_fleet import RunningFleet


def what_if(
    plan: Annotated[Path, typer.Argument(help="The folder of the plan.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the resulting plan.")],
    do: Annotated[
        list[str],
        typer.Option(help="An operation, such as: fail broker rome. Repeat it for several, in order."),
    ],
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try changes on a plan, such as a failed broker, repair it after each, and write the resulting plan.

    Example: broadloom what-if plan --do "fail broker rome" --do "relink" -o after
    """
    from broadloom.console import WhatIfSession

    keep_apart(output, plan)
    with progress(quiet):
        session = WhatIfSession(bl.Plan.load(plan), seed)
        effects = [session.do(text) for text in do]
        session.plan.save(output, overwrite=force)
    lines = [
        f"{one.operation}: {len(one.added):,} links added, {len(one.removed):,} removed, "
        f"weight {one.cost_before:.6g} -> {one.cost_after:.6g}"
        for one in effects
    ]
    record = {"output": str(output), "effects": [one.record() for one in effects]}
    show(record, "\n".join([*lines, f"{session.plan.summary()} -> {output}"]), as_json, quiet)


def serve(
    source: Annotated[
        Path, typer.Argument(help="The folder of a plan or of tables, or a fleet file (fleet.toml).")
    ],
    port: Annotated[
        int, typer.Option(help="The port on this machine; 0: any free one.", max=65535, min=0)
    ] = 0,
    title: Annotated[str, typer.Option(help="The heading of the page.")] = "",
    unit: Annotated[str, typer.Option(help="The unit of the weights, such as ms.")] = "",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    discover: Annotated[
        bool, typer.Option("--discover", help="With a fleet file: ask the brokers, not the controller.")
    ] = False,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show a plan in the browser, and try changes: failures, moves, weights, links, subscriptions.

    With a fleet file that has a key, it shows the running fleet as the controller knows it; it only reads.
    The server listens on this machine only, and its address has a secret token. Ctrl-C ends it.

    Example: broadloom serve plan
    """
    import webbrowser

    from broadloom.console import WhatIfSession
    from broadloom.console.server import ConsoleServer

    with progress(quiet):
        fleet = None if discover else _running_fleet(source)
        if fleet is not None:
            fleet.refresh()
            plan, folder = fleet.plan, str(source.with_name(f"{source.stem}-live-plan"))
            title = title or "Broadloom: the running fleet"
            unit = unit or "ms"
        else:
            plan, folder = _plan_of(source, seed)
            title = title or "Broadloom: what if"
        session = WhatIfSession(plan, seed)
        session.prepare()
        file = str(source) if source.is_file() else "fleet.toml"
        console = ConsoleServer(session, folder, title, unit, port, fleet, file)
    show({"address": console.address, "port": console.port}, console.address, as_json, quiet=False)
    if browser:
        webbrowser.open(console.address)
    console.run()


def _running_fleet(source: Path) -> RunningFleet | None:
    """The fleet of a fleet file, if it has a key of agents and a controller."""
    if not source.is_file():
        return None
    from broadloom.console.running_fleet import RunningFleet
    from broadloom.deployment import Fleet

    fleet = Fleet.load(source)
    if fleet.live.key_file is None and fleet.live.key_env is None:
        return None
    return RunningFleet(fleet, source)


def _plan_of(source: Path, seed: int) -> tuple[bl.Plan, str]:
    """The plan to show, and the folder that a script starts from.

    Tables are linked first; of a fleet file, the tables are discovered first. The plan is written next to the
    source, so that a script can start from it.
    """
    from broadloom.model import NotCarried, read_link_problem

    if (source / "plan.json").exists():
        return bl.Plan.load(source), str(source)
    tables = source
    if source.is_file():
        tables = source.with_name(f"{source.stem}-tables")
        found = bl.discover(source, tables, overwrite=True)
        if not found.is_complete:
            raise InputError(f"the subscriptions of {source} are not all known; see broadloom discover")
    from broadloom.deployment import read_link_requests

    problem = read_link_problem(tables)
    requests = read_link_requests(tables, problem.interest, None)
    algorithm, options = requests.options_for(None, problem.weights.is_uniform, {})
    plan = bl.link(problem.interest, problem.weights, algorithm, seed, **options)
    plan = replace(
        plan,
        nodes=problem.nodes,
        publishers=requests.publishers,
        not_carried=NotCarried(problem.not_carried),
    )
    folder = tables.with_name(f"{tables.name}-plan")
    plan.save(folder, overwrite=True)
    return bl.Plan.load(folder), str(folder)
