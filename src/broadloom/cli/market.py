"""`broadloom market`: users to brokers at the least cost of links, from tables."""

from pathlib import Path
from typing import Annotated

import typer

import broadloom as bl
from broadloom.cli.link import parse_options
from broadloom.cli.output import Force, Json, Quiet, Seed, measures_table, progress, show
from broadloom.cli.spark import Conf, Master, Remote, engine_if_asked
from broadloom.model import read_market_problem


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
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose a broker for each user so that access and core links cost the least together.

    With a master, a remote or a conf, Spark summarizes the messages, and grows the trees of steiner-mixing.

    Example: broadloom market tables --core pair -o plan
    """
    engine, options = engine_if_asked(master, remote, conf), parse_options(option or [])
    sizes = channels, headroom, core_price
    with progress(quiet):
        if engine is None:
            result = bl.assign(read_market_problem(tables, *sizes), algorithm, seed, core=core, **options)
        else:
            from broadloom.pipeline.market import assign_on_spark

            result = assign_on_spark(engine, tables, sizes, algorithm, seed, core, options)
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
