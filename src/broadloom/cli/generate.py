"""`broadloom generate`, `devices` and `subscribers`: made-up inputs."""

from pathlib import Path
from typing import Annotated

import typer

from broadloom import workload
from broadloom.cli.common import Force, Json, Quiet, Seed, progress, show
from broadloom.model.assignment_problem import write_assignment_problem


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


def devices(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the files.")],
    brokers: Annotated[int, typer.Option(help="How many brokers, in the clouds' regions.")] = 200,
    subscriptions: Annotated[int, typer.Option(help="How many rows of device subscriptions.")] = 500_000,
    wild: Annotated[float, typer.Option(help="The share of filters with a wildcard.")] = 0.02,
    bad: Annotated[float, typer.Option(help="The share of rows with a fault.")] = 0.01,
    repeated: Annotated[float, typer.Option(help="The share of rows that repeat the one before.")] = 0.002,
    subscribers: Annotated[int, typer.Option(help="How many subscribers are to be assigned.")] = 0,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate raw inputs: device subscriptions with wildcards and bad rows, brokers, topics, pings.

    Example: broadloom devices -o raw; broadloom ingest raw -o tables
    """
    planted = workload.devices(output, brokers, subscriptions, wild, bad, repeated, seed, subscribers)
    faults = sum(planted.values()) - planted["repeated"]
    words = (
        f"{subscriptions:,} device subscriptions at {brokers:,} brokers, {faults:,} of them bad -> {output}"
    )
    record = {"output": str(output), "brokers": brokers, "subscriptions": subscriptions}
    record |= {"subscribers": subscribers, "planted": planted}
    show(record, words, as_json, quiet)


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
