"""`broadloom generate`: canonical tables of a made-up workload."""

from pathlib import Path
from typing import Annotated

import typer

from broadloom import workload
from broadloom.cli.output import Force, Json, Quiet, Seed, progress, show


def generate(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the tables.")],
    nodes: Annotated[int | None, typer.Option(help="How many brokers; 1000, or all of a matrix.")] = None,
    topics: Annotated[int, typer.Option(help="How many topics.")] = 200,
    popularity: Annotated[
        str, typer.Option(help="Topic popularity: uniform, zipf or exponential.")
    ] = "uniform",
    alpha: Annotated[float, typer.Option(help="The exponent of zipf.")] = 2.0,
    rate: Annotated[float, typer.Option(help="The rate of exponential.")] = 5.0,
    sizes: Annotated[tuple[int, int], typer.Option(help="The fewest and the most topics of a broker.")] = (
        20,
        100,
    ),
    size_law: Annotated[str, typer.Option(help="Sizes between them: uniform or power.")] = "uniform",
    gamma: Annotated[float, typer.Option(help="The exponent of the power law of sizes.")] = 2.0,
    weights: Annotated[
        str,
        typer.Option(help="Link weights: planar, sites, regions, none, or a latency matrix (.npz, .csv)."),
    ] = "regions",
    mean: Annotated[float | None, typer.Option(help="Scale planar or matrix weights to this mean.")] = None,
    site_size: Annotated[int | None, typer.Option(help="Brokers a site, for sites (100).")] = None,
    missing: Annotated[str | None, typer.Option(help="Missing pairs of a matrix: refuse, or path.")] = None,
    floor: Annotated[float | None, typer.Option(help="Raise smaller weights of a matrix to this.")] = None,
    churn: Annotated[int, typer.Option(help="Also write so many events of churn.")] = 0,
    join: Annotated[float, typer.Option(help="The chance that an event is a join, not a leave.")] = 0.5,
    change: Annotated[float, typer.Option(help="The chance that an event changes a subscription.")] = 0.0,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate a workload: who wants what, where the brokers are, what links cost.

    Example: broadloom generate --nodes 1000 --topics 200 --popularity zipf --alpha 2 --sizes 20 100 -o tables
    """
    given = {"site_size": site_size, "missing": missing, "floor": floor}
    with progress(quiet):
        made = workload.weights_or_none(nodes, weights, mean, seed, given)
        count = nodes if made is None else made.node_count
        interest = workload.interest(
            1000 if count is None else count, topics, popularity, alpha, rate, sizes, size_law, gamma, seed
        )
        events = workload.churn(interest, churn, join, change, seed) if churn else ()
        workload.write(output, interest, made, events, weights == "regions", force)
    record = {
        "output": str(output),
        "nodes": interest.node_count,
        "topics": interest.topic_count,
        "subscriptions": interest.subscription_count,
        "weights": weights,
        "events": len(events),
        "seed": seed,
    }
    words = (
        f"{interest.node_count:,} brokers, {interest.topic_count:,} topics, "
        f"{interest.subscription_count:,} subscriptions -> {output}"
    )
    show(record, words, as_json, quiet)
