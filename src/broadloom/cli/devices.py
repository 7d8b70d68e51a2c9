"""`broadloom devices`: raw inputs as operators have them, faults included, to try the pipeline on."""

from pathlib import Path
from typing import Annotated

import typer

from broadloom import workload
from broadloom.cli.output import Json, Quiet, Seed, show


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
