"""`broadloom assign` and `broadloom market`: the broker of each subscriber, and of each user."""

from pathlib import Path
from typing import Annotated, Any

import typer

import broadloom as bl
from broadloom.cli.common import (
    Conf,
    Force,
    Json,
    Master,
    Quiet,
    Remote,
    Seed,
    check_output,
    engine_if_asked,
    measures_table,
    parse_options,
    progress,
    show,
)
from broadloom.errors import InputError


def assign(
    tables: Annotated[Path, typer.Argument(help="The folder of canonical tables.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the plan.")],
    algorithm: Annotated[
        str, typer.Option("--algorithm", "-a", help="See `broadloom algorithms`, stage assign.")
    ] = "broadloom",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", help="An option of the algorithm, as name=value.")
    ] = None,
    max_delay: Annotated[
        float | None, typer.Option(help="The share by which a latency can exceed the least possible one.")
    ] = None,
    alpha: Annotated[
        int | None, typer.Option(help="Maximum number of rectangles per content filter.")
    ] = None,
    beta: Annotated[float | None, typer.Option(help="The desired load balance factor.")] = None,
    beta_max: Annotated[float | None, typer.Option(help="The maximum load balance factor.")] = None,
    seed: Seed = 0,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Choose the broker of each subscriber and the filter of each broker; exit with 1 if a limit is exceeded.

    With --master or --remote, subscribers are assigned on Spark after a search on a sample of them. The plan
    is the same as without Spark.

    Example: broadloom assign tables --algorithm slp -o plan
    """
    from broadloom.model import read_assignment_problem
    from broadloom.plans import assignment_summary, read_assignment_record
    from broadloom.storage import as_path

    output = as_path(output)
    check_output(output, force, tables)
    limits = {"max_delay": max_delay, "alpha": alpha, "beta": beta, "beta_max": beta_max}
    options = parse_options(option or [])
    with progress(quiet):
        if master or remote:
            _on_spark(tables, output, algorithm, seed, limits, options, (master, remote, conf or []), force)
        else:
            bl.assign(read_assignment_problem(tables, **limits), algorithm, seed, **options).save(
                output, force
            )
    record = read_assignment_record(output)
    metrics = record["metrics"]
    details = {name: record[name] for name in ("algorithm", "lower_bound", "notes", "metrics")}
    text = f"{assignment_summary(algorithm, metrics)} -> {output}"
    show(
        {"output": str(output), "feasible": metrics["feasible"]} | details,
        text,
        as_json,
        quiet,
        measures_table(metrics),
    )
    return 0 if metrics["feasible"] else 1


def _on_spark(
    tables: Path,
    output: Path,
    algorithm: str,
    seed: int,
    limits: dict[str, float | None],
    options: dict[str, Any],
    where: tuple[str | None, str | None, list[str]],
    force: bool,
) -> None:
    """Assign subscribers that can exceed the memory of this machine."""
    from broadloom.pipeline import SparkEngine, need_spark, parse_conf

    if algorithm != "broadloom":
        raise InputError(f"{algorithm} does not run on Spark; choose --algorithm broadloom, or no master")
    need_spark()
    from broadloom.pipeline import assign_on_spark

    master, remote, conf = where
    engine = SparkEngine(master, remote, parse_conf(conf))
    assign_on_spark(tables, output, seed, engine, overwrite=force, limits=limits, **options)


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
    channels: Annotated[
        int, typer.Option(help="Number of channels into which the content is divided.")
    ] = 128,
    headroom: Annotated[
        float, typer.Option(help="Total capacity divided by total demand, if brokers have no capacity.")
    ] = 2.0,
    core_price: Annotated[float, typer.Option(help="The price per unit of distance between brokers.")] = 1.0,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose a broker for each user at the least total cost of access and core links.

    With --master, --remote or --conf, Spark summarizes the messages, and grows the trees of steiner-mixing.

    Example: broadloom market tables --core pair -o plan
    """
    from broadloom.model import read_market_problem
    from broadloom.storage import as_path

    output = as_path(output)
    check_output(output, force, tables)
    engine, options = engine_if_asked(master, remote, conf), parse_options(option or [])
    sizes = channels, headroom, core_price
    with progress(quiet):
        if engine is None:
            result = bl.assign(read_market_problem(tables, *sizes), algorithm, seed, core=core, **options)
        else:
            from broadloom.pipeline import assign_market_on_spark

            result = assign_market_on_spark(engine, tables, sizes, algorithm, seed, core, options)
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
