"""`broadloom deploy export`, `rehearse` and `diff`: from a plan to real brokers."""

from pathlib import Path
from typing import Annotated, Any

import typer

import broadloom as bl
from broadloom.cli.output import Force, Json, Quiet, keep_apart, progress, show
from broadloom.deployment.export import TARGETS, export, record_of, save, target_named
from broadloom.deployment.settings import Settings, places_of
from broadloom.deployment.traffic import Publication, read_publications
from broadloom.deployment.trees import Tree, plan_trees
from broadloom.deployment.wiring import Wiring, wire

PlanFolder = Annotated[Path, typer.Argument(help="The folder of a plan.")]
To = Annotated[str, typer.Option("--to", help=f"One of {', '.join(target.name for target in TARGETS)}.")]
Messages = Annotated[
    Path | None,
    typer.Option(help="The folder of a table of messages: who publishes what; else all who want it may."),
]
Least = Annotated[str, typer.Option(help="Trees of least latency (from publishers) or weight.")]
Slack = Annotated[float, typer.Option(help="How much more a tree may cost to relieve busy links.")]

app = typer.Typer(
    help="Native configuration of real brokers, a rehearsal on this machine, and changes in order.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("export")
def export_plan(
    plan: PlanFolder,
    to: To,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the files.")],
    messages: Messages = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    address: Annotated[
        str, typer.Option(help="Where a broker is: host or host:port, with {broker} for its id.")
    ] = "{broker}",
    tls: Annotated[bool, typer.Option(help="Encrypt links, and prove them by certificates.")] = True,
    certificates: Annotated[
        str | None, typer.Option(help="The folder of certificates on each broker.")
    ] = None,
    credentials: Annotated[
        bool, typer.Option("--credentials", help="Log in with a name and password of the environment.")
    ] = False,
    accounts: Annotated[
        bool, typer.Option("--accounts", help="NATS: use several accounts where trees close a ring.")
    ] = False,
    qos: Annotated[int, typer.Option(help="MQTT: the quality of service of links.")] = 1,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write native configuration: a file a broker, checked against loops, copies and forgotten publishers.

    Example: broadloom deploy export --to mosquitto plan -o conf
    """
    keep_apart(output, plan)
    loaded, target = bl.Plan.load(plan), target_named(to)
    settings = Settings(address, places_of(loaded), tls, certificates, credentials, accounts, qos)
    with progress(quiet):
        trees, wiring, _ = deployed(loaded, messages, least, slack)
        written = export(wiring, target, settings)
        save(output, written, record_of(wiring, trees, target, settings), force)
    record: dict[str, Any] = {"output": str(output), "target": to, "brokers": len(wiring.brokers)}
    record |= {"links": len(wiring.links), "trees": len(trees), "files": sorted(written)}
    words = f"{len(written):,} files for {to}: {len(wiring.links):,} links, {len(trees):,} trees -> {output}"
    show(record, words, as_json, quiet)


def deployed(
    plan: bl.Plan, messages: Path | None, least: str, slack: float
) -> tuple[list[Tree], Wiring, list[Publication]]:
    """The trees of a plan, their links, and who publishes."""
    sent = [] if messages is None else read_publications(messages, plan.interest)
    trees = plan_trees(plan, sent, least, slack)
    return trees, wire(plan, trees, sent), sent
