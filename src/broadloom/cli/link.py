"""`broadloom link`: links between brokers, as a verified plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from broadloom.model import LinkProblem
    from broadloom.pipeline import SparkEngine


def link(
    tables: Annotated[Path, typer.Argument(help="The folder of canonical tables.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the plan.")],
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm",
            "-a",
            help="See `broadloom algorithms`; by default broadloom, or gm without weights.",
        ),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", help="An option of the algorithm, as name=value.")
    ] = None,
    improve: Annotated[
        bool, typer.Option("--improve", help="Improve the overlay by removing and exchanging links.")
    ] = False,
    previous: Annotated[
        Path | None, typer.Option(help="The plan in use: start from it, and list the changes.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Source of the weights: auto, latency, coordinates, sites or uniform.")
    ] = "auto",
    missing: Annotated[
        str | None, typer.Option(help="Missing latencies: refuse, or path (fill by shortest paths).")
    ] = None,
    floor: Annotated[float | None, typer.Option(help="Raise smaller latencies to this value.")] = None,
    inner: Annotated[
        float | None, typer.Option(help="The weight inside a site, for sites; by default 1.")
    ] = None,
    outer: Annotated[
        float | None, typer.Option(help="The weight between sites, for sites; by default 10.")
    ] = None,
    publishers: Annotated[
        str | None,
        typer.Option(
            help="anywhere: any broker can publish any topic (default); "
            "observed: only where messages were seen."
        ),
    ] = None,
    seed: Seed = 0,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose the links between brokers so that every topic stays connected at the least cost.

    With --master, --remote or --conf, dcmaw divides the work on Spark; the plan is the same.

    Example: broadloom link tables --algorithm gm -o plan
    """
    from broadloom.deployment import carried_lines, carried_record, read_link_requests
    from broadloom.linking import finish
    from broadloom.model import NotCarried, read_link_problem
    from broadloom.storage import as_path

    output = as_path(output)
    check_output(output, force, tables)
    today = None if previous is None else bl.Plan.load(previous)
    record: dict[str, Any] = {"output": str(output)}
    with progress(quiet):
        problem = read_link_problem(tables, weights, missing, floor, inner, outer)
        requests = read_link_requests(tables, problem.interest, publishers)
        uniform = problem.weights.is_uniform
        algorithm, options = requests.options_for(algorithm, uniform, parse_options(option or []))
        engine = engine_if_asked(master, remote, conf)
        if engine is not None:
            plan = _on_spark(problem, algorithm, seed, options, engine, output)
            plan = finish(plan, improve, today)
        else:
            plan = bl.link(problem.interest, problem.weights, algorithm, seed, improve, today, **options)
        plan = replace(
            plan,
            nodes=problem.nodes,
            publishers=requests.publishers,
            not_carried=NotCarried(problem.not_carried),
        )
        plan.save(output, overwrite=force)
        metrics = plan.metrics()
        carried = list(carried_lines(plan))
        record |= carried_record(plan)
    record |= {
        "algorithm": plan.algorithm,
        "lower_bound": plan.lower_bound,
        "gap": plan.gap,
        "notes": dict(plan.notes),
        "metrics": metrics,
    }
    show(
        record,
        "\n".join([f"{plan.summary()}{_method(plan)}{_changes(plan)} -> {output}", *carried]),
        as_json,
        quiet,
        measures_table(metrics),
    )


def _method(plan: bl.Plan) -> str:
    """The method that replaced the requested one, and the reason."""
    return f", by {plan.notes['method']} ({plan.notes['why']})" if "why" in plan.notes else ""


def _changes(plan: bl.Plan) -> str:
    """The numbers of links to add to those of the previous plan, and to remove."""
    changes = plan.notes.get("changes")
    return (
        f", {len(changes['added']):,} links to add, {len(changes['removed']):,} to remove" if changes else ""
    )


def _on_spark(
    problem: LinkProblem,
    algorithm: str | None,
    seed: int,
    options: dict[str, Any],
    engine: SparkEngine,
    output: Path,
) -> bl.Plan:
    """The plan of dcmaw on Spark; intermediate files are next to the output."""
    if algorithm not in (None, "dcmaw"):
        raise InputError(f"{algorithm} does not run on Spark; choose --algorithm dcmaw, or no master")
    from broadloom.pipeline import link_on_spark
    from broadloom.storage import as_path

    scratch = as_path(output).absolute().parent
    return link_on_spark(problem.interest, problem.weights, seed, engine, scratch=scratch, **options)
