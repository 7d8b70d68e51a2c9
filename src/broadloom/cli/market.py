"""`broadloom market`: users to brokers at the least cost of links, from tables."""

from pathlib import Path
from typing import Annotated

import typer

import broadloom as bl
from broadloom.cli.link import parse_options
from broadloom.cli.output import Force, Json, Quiet, Seed, measures_table, progress, show
from broadloom.model.market_tables import read_market


def market(
    tables: Annotated[Path, typer.Argument(help="The folder of subscribers, brokers and messages.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the plan.")],
    algorithm: Annotated[
        str, typer.Option("--algorithm", "-a", help="One of `broadloom algorithms` for a MarketProblem.")
    ] = "broadloom",
    core: Annotated[str, typer.Option(help="How traffic crosses the core: mst, pair or tree.")] = "mst",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", help="An option of the algorithm, as name=value.")
    ] = None,
    channels: Annotated[int, typer.Option(help="Into how many channels the content is cut.")] = 128,
    headroom: Annotated[float, typer.Option(help="Capacity over demand, where brokers have none.")] = 2.0,
    core_price: Annotated[float, typer.Option(help="The price of distance between brokers.")] = 1.0,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose a broker for each user so that access and core links cost the least together.

    Example: broadloom market tables --core pair -o plan
    """
    with progress(quiet):
        problem = read_market(tables, channels, headroom, core_price)
        result = bl.assign(problem, algorithm, seed, core=core, **parse_options(option or []))
        result.save(output, overwrite=force)
    metrics = result.metrics()
    record = {
        "output": str(output),
        "algorithm": result.algorithm,
        "lower_bound": result.lower_bound,
        "gap": result.gap,
        "notes": dict(result.notes),
    }
    show(
        record | {"metrics": metrics},
        f"{result.summary()} -> {output}",
        as_json,
        quiet,
        measures_table(metrics),
    )
