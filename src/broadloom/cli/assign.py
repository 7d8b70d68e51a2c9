"""`broadloom assign` and `broadloom subscribers`: from subscribers and brokers to who serves whom."""

from pathlib import Path
from typing import Annotated, Any

import typer

import broadloom as bl
from broadloom import workload
from broadloom.cli.link import parse_options
from broadloom.cli.output import Force, Json, Quiet, Seed, keep_apart, measures_table, progress, show
from broadloom.cli.spark import Conf, Master, Remote
from broadloom.errors import InputError
from broadloom.model import read_assignment_problem, write_assignment_problem
from broadloom.plans import assignment_summary, read_assignment_record


def assign(
    tables: Annotated[Path, typer.Argument(help="The folder of canonical tables.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the plan.")],
    algorithm: Annotated[
        str, typer.Option("--algorithm", "-a", help="See `broadloom algorithms`, stage assign.")
    ] = "broadloom",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", help="An option of the algorithm, as name=value.")
    ] = None,
    max_delay: Annotated[float | None, typer.Option(help="Latency over the least possible, less 1.")] = None,
    alpha: Annotated[int | None, typer.Option(help="The most rectangles of a filter.")] = None,
    beta: Annotated[float | None, typer.Option(help="The wanted load balance factor.")] = None,
    beta_max: Annotated[float | None, typer.Option(help="The largest load balance factor allowed.")] = None,
    seed: Seed = 0,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Choose the broker of each subscriber and the filter of each broker; exit with 1 if limits are broken.

    With a master or a remote, many subscribers stay on Spark: broadloom searches on a sample of them, and
    the rest is assigned there. The plan is the same as without Spark.

    Example: broadloom assign tables --algorithm slp -o plan
    """
    keep_apart(output, tables)
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
    told = {name: record[name] for name in ("algorithm", "lower_bound", "notes", "metrics")}
    words = f"{assignment_summary(algorithm, metrics)} -> {output}"
    show(
        {"output": str(output), "feasible": metrics["feasible"]} | told,
        words,
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
    """Assign subscribers who need not fit on this machine."""
    from broadloom.pipeline.session import Engine, need_spark, parse_conf

    if algorithm != "broadloom":
        raise InputError(f"{algorithm} does not run on Spark; choose --algorithm broadloom, or no master")
    need_spark()
    from broadloom.pipeline.assign import assign as assign_on_spark

    master, remote, conf = where
    engine = Engine(master, remote, parse_conf(conf))
    assign_on_spark(tables, output, seed, engine, overwrite=force, limits=limits, **options)


def subscribers(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the tables.")],
    number: Annotated[int, typer.Option("--set", help="Paper 4's workload set: 1, 2 or 3.")] = 1,
    subscribers: Annotated[int, typer.Option(help="How many subscribers.")] = 100_000,
    brokers: Annotated[int, typer.Option(help="How many brokers.")] = 100,
    levels: Annotated[int, typer.Option(help="Levels of brokers below the publisher.")] = 1,
    interest_skew: Annotated[str, typer.Option(help="Set 1: low or high.")] = "high",
    broad_interests: Annotated[str, typer.Option(help="Set 1: low or high.")] = "low",
    latency: Annotated[str | None, typer.Option(help="Limits of the multi-level runs: tight, loose.")] = None,
    geography: Annotated[
        int | None,
        typer.Option(help="The seed of the places; else the first that can meet the limits."),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate subscribers with a place and an interest, and brokers to serve them.

    Example: broadloom subscribers --set 1 -o tables; broadloom assign tables -o plan
    """
    asked = (number, subscribers, brokers, levels, interest_skew, broad_interests, latency, seed)
    with progress(quiet):
        if geography is None:
            geography = workload.first_geography(*asked)
        problem = workload.subscribers(*asked, geography)
        write_assignment_problem(output, problem, force)
    record = {
        "output": str(output),
        "set": number,
        "subscribers": problem.subscriber_count,
        "brokers": problem.broker_count,
        "leaves": len(problem.leaves),
        "geography": geography,
        "seed": seed,
    }
    words = (
        f"set {number}: {problem.subscriber_count:,} subscribers, {problem.broker_count:,} brokers, "
        f"geography {geography} -> {output}"
    )
    show(record, words, as_json, quiet)
