"""`broadloom assign` and `broadloom subscribers`: from subscribers and brokers to who serves whom."""

from pathlib import Path
from typing import Annotated, Any

import typer

import broadloom as bl
from broadloom import workload
from broadloom.cli.link import parse_options
from broadloom.cli.output import Force, Json, Quiet, Seed, keep_apart, measures_table, progress, show
from broadloom.model.assignment_tables import read_problem, write_problem


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
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Choose the broker of each subscriber and the filter of each broker; exit with 1 if limits are broken.

    Example: broadloom assign tables --algorithm slp -o plan
    """
    keep_apart(output, tables)
    with progress(quiet):
        problem = read_problem(tables, max_delay=max_delay, alpha=alpha, beta=beta, beta_max=beta_max)
        result = bl.assign(problem, algorithm, seed, **parse_options(option or []))
        result.save(output, overwrite=force)
        metrics = result.metrics()
    record: dict[str, Any] = {
        "output": str(output),
        "algorithm": algorithm,
        "feasible": result.feasible,
        "lower_bound": result.lower_bound,
        "notes": dict(result.notes),
        "metrics": metrics,
    }
    show(record, f"{result.summary()} -> {output}", as_json, quiet, measures_table(metrics))
    return 0 if result.feasible else 1


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
        write_problem(output, problem, force)
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
