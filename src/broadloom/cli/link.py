"""`broadloom link`: from tables to a verified plan."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import broadloom as bl
from broadloom.cli.output import Force, Json, Quiet, Seed, keep_apart, measures_table, progress, show
from broadloom.errors import InputError
from broadloom.model.instance import read_instance


def link(
    tables: Annotated[Path, typer.Argument(help="The folder of canonical tables.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the plan.")],
    algorithm: Annotated[str, typer.Option("--algorithm", "-a", help="See `broadloom algorithms`.")] = "gm",
    option: Annotated[
        list[str] | None, typer.Option("--option", "-O", help="An option of the algorithm, as name=value.")
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Where weights come from: auto, latency, coordinates, sites or uniform.")
    ] = "auto",
    missing: Annotated[str | None, typer.Option(help="Missing latencies: refuse, or path.")] = None,
    floor: Annotated[float | None, typer.Option(help="Raise smaller latencies to this.")] = None,
    inner: Annotated[float | None, typer.Option(help="The weight inside a site, for sites (1).")] = None,
    outer: Annotated[float | None, typer.Option(help="The weight between sites, for sites (10).")] = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose the links between brokers so that every topic stays connected at the least cost.

    Example: broadloom link tables --algorithm gm -o plan
    """
    keep_apart(output, tables)
    with progress(quiet):
        given = read_instance(tables, weights, missing, floor, inner, outer)
        plan = bl.link(given.interest, given.weights, algorithm, seed, **parse_options(option or []))
        plan = replace(plan, nodes=given.nodes)
        plan.save(output, overwrite=force)
        metrics = plan.metrics()
    record = {
        "output": str(output),
        "algorithm": plan.algorithm,
        "lower_bound": plan.lower_bound,
        "gap": plan.gap,
    }
    show(
        record | {"metrics": metrics},
        f"{plan.summary()} -> {output}",
        as_json,
        quiet,
        measures_table(metrics),
    )


def parse_options(given: list[str]) -> dict[str, Any]:
    """Options of an algorithm from words like `k=2`; values are JSON where they can be, else text."""
    parsed: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"option {text!r} is not of the form name=value")
        try:
            parsed[name.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            parsed[name.replace("-", "_")] = value
    return parsed
