"""`broadloom deploy live`: links between running brokers, changed as plans change."""

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

import broadloom as bl
from broadloom.agents.links.agent import Agent
from broadloom.agents.links.doors import doors
from broadloom.agents.links.serve import Run, Sent, serve, summary, take_down
from broadloom.agents.links.source import Events, Fixed, Versions
from broadloom.checks import check_number
from broadloom.cli.deploy import Address, Credentials, Least, Messages, PlanFolder, Slack, Tls
from broadloom.cli.output import Json, Quiet, show
from broadloom.deployment.deployment_inputs import LAST_PORT, Settings, places_of, read_publications
from broadloom.errors import InputError


def live(
    plan: PlanFolder,
    state: Annotated[Path, typer.Option(help="The folder for what a new agent must know after a crash.")],
    events: Annotated[
        Path | None, typer.Option(help="A file of events (JSON lines) that grows; each changes the links.")
    ] = None,
    follow: Annotated[
        Path | None,
        typer.Option(help="The output of `broadloom maintain --stream`, whose versions to follow."),
    ] = None,
    messages: Messages = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    address: Address = "{broker}",
    tls: Tls = True,
    certificates: Annotated[
        str | None, typer.Option(help="The folder of ca.crt, agent.crt and agent.key; else the system's.")
    ] = None,
    credentials: Credentials = False,
    window: Annotated[int, typer.Option(help="Messages on their way over a link, each way, at most.")] = 500,
    patience: Annotated[
        float, typer.Option(help="Seconds that a change waits for a broker that is away.")
    ] = 10,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="With a new --state: throw away what waits in brokers for an earlier agent."
        ),
    ] = False,
    metrics: Annotated[
        int | None, typer.Option(help="A port on loopback for Prometheus; none by default.")
    ] = None,
    down: Annotated[bool, typer.Option("--down", help="Take all links down, and end.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hold the links of a plan between running MQTT 5 brokers, and change them live; nothing is lost.

    Example: broadloom deploy live plan --state live --events events.jsonl --address '{broker}.example.org'
    """
    if events is not None and follow is not None:
        raise InputError("changes come from --events or from --follow; give one of them")
    loaded = bl.Plan.load(plan)
    settings = Settings(address, places_of(loaded), tls, certificates, credentials)
    sent = [] if messages is None else read_publications(messages, loaded.interest)
    named = [Sent(loaded.interest.node_ids[one.broker], one.topic, one.rate) for one in sent]
    source = Events(loaded, events) if events else Versions(follow, loaded) if follow else Fixed(loaded)
    logging.basicConfig(level=logging.ERROR if quiet else logging.INFO, format="broadloom: %(message)s")
    door = doors(settings, window)
    for broker in loaded.interest.node_ids:
        door(broker)  # an address that is none is told now, and not when a link needs it
    if metrics is not None and not 0 < metrics <= LAST_PORT:
        raise InputError(f"metrics is {metrics}; give a port from 1 to {LAST_PORT}")

    async def held() -> Agent:
        agent = Agent(door, state, check_number(patience, "patience"), fresh)
        if down:
            await take_down(agent)
        else:
            run = Run(agent, source, named, least, slack)
            await serve(run, metrics, lambda: logging.info("%d links are up", len(agent.links)))
        return agent

    record = {"state": str(state)} | summary(asyncio.run(held()))
    show(record, f"{record['changes']:,} changes, {record['messages']:,} messages carried", as_json, quiet)
