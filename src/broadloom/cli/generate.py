"""`broadloom generate`, `devices` and `subscribers`: made-up inputs."""

from pathlib import Path
from typing import Annotated

import typer

import broadloom as bl
from broadloom.cli.common import Force, Json, Quiet, Seed, progress, show


def generate(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the tables.")],
    nodes: Annotated[
        int | None, typer.Option(help="Number of brokers; by default 1000, or the size of the matrix.")
    ] = None,
    topics: Annotated[int, typer.Option(help="Number of topics.")] = 200,
    popularity: Annotated[
        str, typer.Option(help="Topic popularity: uniform, zipf or exponential.")
    ] = "uniform",
    alpha: Annotated[float, typer.Option(help="The exponent of zipf.")] = 2.0,
    rate: Annotated[float, typer.Option(help="The rate of exponential.")] = 5.0,
    sizes: Annotated[
        tuple[int, int], typer.Option(help="Minimum and maximum number of topics per broker.")
    ] = (
        20,
        100,
    ),
    size_law: Annotated[
        str, typer.Option(help="Distribution of these numbers: uniform or power.")
    ] = "uniform",
    gamma: Annotated[float, typer.Option(help="The exponent of the power law.")] = 2.0,
    weights: Annotated[
        str,
        typer.Option(help="Link weights: planar, sites, regions, none, or a latency matrix (.npz, .csv)."),
    ] = "regions",
    mean: Annotated[float | None, typer.Option(help="Scale planar or matrix weights to this mean.")] = None,
    site_size: Annotated[
        int | None, typer.Option(help="Brokers per site, for sites; by default 100.")
    ] = None,
    missing: Annotated[
        str | None, typer.Option(help="Missing pairs of a matrix: refuse, or path (fill by shortest paths).")
    ] = None,
    floor: Annotated[float | None, typer.Option(help="Raise smaller weights of a matrix to this.")] = None,
    churn: Annotated[int, typer.Option(help="Number of churn events to write.")] = 0,
    join: Annotated[float, typer.Option(help="Probability that an event is a join, not a leave.")] = 0.5,
    change: Annotated[float, typer.Option(help="Probability that an event changes a subscription.")] = 0.0,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate a workload: the topics and positions of brokers, and the weights of links.

    Example: broadloom generate --nodes 1000 --topics 200 --popularity zipf --alpha 2 --sizes 20 100 -o tables
    """
    options = {"site_size": site_size, "missing": missing, "floor": floor}
    with progress(quiet):
        made = bl.workload.weights_or_none(nodes, weights, mean, seed, options)
        count = nodes if made is None else made.node_count
        interest = bl.workload.interest(
            1000 if count is None else count, topics, popularity, alpha, rate, sizes, size_law, gamma, seed
        )
        events = bl.workload.churn(interest, churn, join, change, seed) if churn else ()
        bl.workload.write(output, interest, made, events, weights == "regions", force)
    record = {
        "output": str(output),
        "nodes": interest.node_count,
        "topics": interest.topic_count,
        "subscriptions": interest.subscription_count,
        "weights": weights,
        "events": len(events),
        "seed": seed,
    }
    text = (
        f"{interest.node_count:,} brokers, {interest.topic_count:,} topics, "
        f"{interest.subscription_count:,} subscriptions -> {output}"
    )
    show(record, text, as_json, quiet)


def devices(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the files.")],
    brokers: Annotated[int, typer.Option(help="Number of brokers, in cloud regions.")] = 200,
    subscriptions: Annotated[int, typer.Option(help="Number of rows of device subscriptions.")] = 500_000,
    wild: Annotated[float, typer.Option(help="Share of topic filters with a wildcard.")] = 0.02,
    bad: Annotated[float, typer.Option(help="Share of rows with a fault.")] = 0.01,
    repeated: Annotated[float, typer.Option(help="Share of rows that repeat the row before.")] = 0.002,
    subscribers: Annotated[int, typer.Option(help="Number of subscribers to be assigned.")] = 0,
    seed: Seed = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate raw inputs: device subscriptions with wildcards and bad rows, brokers, topics, pings.

    Example: broadloom devices -o raw; broadloom ingest raw -o tables
    """
    planted = bl.workload.devices(output, brokers, subscriptions, wild, bad, repeated, seed, subscribers)
    faults = sum(planted.values()) - planted["repeated"]
    text = (
        f"{subscriptions:,} device subscriptions at {brokers:,} brokers, {faults:,} of them bad -> {output}"
    )
    record = {"output": str(output), "brokers": brokers, "subscriptions": subscriptions}
    record |= {"subscribers": subscribers, "planted": planted}
    show(record, text, as_json, quiet)


def subscribers(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the tables.")],
    number: Annotated[int, typer.Option("--set", help="Paper 4's workload set: 1, 2 or 3.")] = 1,
    subscribers: Annotated[int, typer.Option(help="Number of subscribers.")] = 100_000,
    brokers: Annotated[int, typer.Option(help="Number of brokers.")] = 100,
    levels: Annotated[int, typer.Option(help="Number of levels of brokers below the publisher.")] = 1,
    interest_skew: Annotated[str, typer.Option(help="Set 1: low or high.")] = "high",
    broad_interests: Annotated[str, typer.Option(help="Set 1: low or high.")] = "low",
    latency: Annotated[
        str | None, typer.Option(help="Limits of the multi-level runs: tight or loose.")
    ] = None,
    geography: Annotated[
        int | None,
        typer.Option(help="Seed of the positions; by default the first whose limits can be met."),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Generate subscribers with positions and interests, and brokers to serve them.

    Example: broadloom subscribers --set 1 -o tables; broadloom assign tables -o plan
    """
    from broadloom.model.assignment_problem import write_assignment_problem

    arguments = (number, subscribers, brokers, levels, interest_skew, broad_interests, latency, seed)
    with progress(quiet):
        if geography is None:
            geography = bl.workload.first_geography(*arguments)
        problem = bl.workload.subscribers(*arguments, geography)
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
    text = (
        f"set {number}: {problem.subscriber_count:,} subscribers, {problem.broker_count:,} brokers, "
        f"geography {geography} -> {output}"
    )
    show(record, text, as_json, quiet)
