"""`broadloom deploy export`, `rehearse`, `diff` and `live`: from a plan to real brokers."""

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import broadloom as bl
from broadloom.cli.output import Force, Json, Quiet, keep_apart, progress, show
from broadloom.deployment import rabbitmq
from broadloom.deployment.check import check
from broadloom.deployment.comparison import compare as run_alternatives
from broadloom.deployment.diff import changes, order
from broadloom.deployment.export import TARGETS, Target, export, record_of, save, target_named
from broadloom.deployment.flow import sample_messages
from broadloom.deployment.linkd.agent import Agent
from broadloom.deployment.linkd.doors import doors
from broadloom.deployment.linkd.serve import Run, Sent, serve, summary, take_down
from broadloom.deployment.linkd.source import Events, Fixed, Versions
from broadloom.deployment.rabbitmq_lab import rehearse_rabbitmq
from broadloom.deployment.rehearsal import Outcome, rehearse
from broadloom.deployment.rewiring import RATE, rehearse_change
from broadloom.deployment.settings import Settings, places_of
from broadloom.deployment.traffic import Publication, read_publications
from broadloom.deployment.trees import Tree, plan_trees
from broadloom.deployment.wiring import Wiring, wire
from broadloom.errors import InputError
from broadloom.model._check import number, whole

PlanFolder = Annotated[Path, typer.Argument(help="The folder of a plan.")]
To = Annotated[str, typer.Option("--to", help=f"One of {', '.join(target.name for target in TARGETS)}.")]
Messages = Annotated[
    Path | None,
    typer.Option(help="The folder of a table of messages: who publishes what; else all who want it may."),
]
Least = Annotated[str, typer.Option(help="Trees of least latency (from publishers) or weight.")]
Slack = Annotated[float, typer.Option(help="How much more a tree may cost to relieve busy links.")]
Address = Annotated[str, typer.Option(help="Where a broker is: host or host:port, with {broker} for its id.")]
Tls = Annotated[bool, typer.Option(help="Encrypt links, and prove them by certificates.")]
Credentials = Annotated[
    bool, typer.Option("--credentials", help="Log in with a name and password of the environment.")
]

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
    address: Address = "{broker}",
    tls: Tls = True,
    certificates: Annotated[
        str | None, typer.Option(help="The folder of certificates on each broker.")
    ] = None,
    credentials: Credentials = False,
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


@app.command("rehearse")
def rehearse_plan(
    plan: PlanFolder,
    messages: Messages = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    each: Annotated[int, typer.Option(help="Messages of each topic from each broker.")] = 5,
    size: Annotated[int, typer.Option(help="Bytes of a message.")] = 100,
    kill: Annotated[int, typer.Option(help="Kill so many brokers, and cut so many links, one by one.")] = 1,
    on: Annotated[
        str, typer.Option(help="mosquitto; or rabbitmq, up to 8 nodes, without kills and comparison.")
    ] = "mosquitto",
    compare: Annotated[
        bool, typer.Option(help="Run the same traffic on a full mesh, one global tree, and a hub.")
    ] = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run the plan on real brokers on this machine, and count; exit with 1 if anything is wrong.

    Example: broadloom deploy rehearse plan --json
    """
    loaded = bl.Plan.load(plan)
    with progress(quiet):
        _, wiring, sent = deployed(loaded, messages, least, slack)
        check(wiring)
        traffic = sample_messages(wiring, whole(each, "each", least=1))
        whole(size, "size", least=20)
        if _is_rabbitmq(on):
            outcome, rows = rehearse_rabbitmq(wiring, traffic, size), []
        else:
            outcome = rehearse(wiring, traffic, size, whole(kill, "kill"))
            rows = run_alternatives(loaded, (wiring, outcome), sent, traffic, size) if compare else []
    show(outcome.record() | {"comparison": rows}, _told(outcome), as_json, quiet, _compared(rows))
    return 0 if outcome.ok else 1


def _is_rabbitmq(on: str) -> bool:
    if on not in ("mosquitto", "rabbitmq"):
        raise InputError(f"no rehearsal on {on!r}; choose mosquitto or rabbitmq")
    return on == "rabbitmq"


def _told(outcome: Outcome) -> str:
    """A rehearsal in words."""
    told = outcome.record()
    as_planned = all(one["messages"] == one["planned"] for one in told["links"])
    lines = [
        f"{told['expected']:,} deliveries expected: {told['missing']:,} missing, {told['duplicates']:,} "
        f"twice, {told['unexpected']:,} unexpected",
        f"{told['uninterested']:,} messages at brokers that do not want them",
        f"{told['messages_on_links']:,} messages on links, {'as' if as_planned else 'NOT as'} planned",
    ]
    return "\n".join([*lines, *map(_failure, told["failures"])])


def _failure(one: dict[str, Any]) -> str:
    return (
        f"{one['killed']} {one['name']} killed: {one['missing_while_down']:,} of {one['expected']:,} "
        f"deliveries held up ({one['predicted']:,} predicted), {one['lost']:,} lost for good, "
        f"{one['duplicates']:,} twice"
    )


def _compared(rows: list[dict[str, Any]]) -> Table | None:
    if not rows:
        return None
    names = ("wiring", "links", "messages_on_links", "bytes_on_links", "mean_delay", "max_delay")
    table = Table(*(name.replace("_", " ") for name in names), box=None, pad_edge=False)
    for row in rows:
        values = (row[name] for name in names)
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in values))
    return table


@app.command("diff")
def diff_plans(
    old: Annotated[Path, typer.Argument(help="The folder of the plan that runs today.")],
    new: Annotated[Path, typer.Argument(help="The folder of the plan that is to run.")],
    to: To = "mosquitto",
    messages: Messages = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Restart all brokers that change together.")
    ] = False,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Make the change on real mosquitto brokers here, under load.")
    ] = False,
    rate: Annotated[float, typer.Option(help="Messages a second of that load.")] = RATE,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Say what changes on which broker, in which order, and which brokers must restart.

    Example: broadloom deploy diff plan new-plan --rehearse
    """
    target = target_named(to)
    with progress(quiet):
        before, after = (deployed(bl.Plan.load(plan), messages, least, slack)[1] for plan in (old, new))
        check(after)
        record: dict[str, Any] = {"target": to, "changes": [one.record() for one in changes(before, after)]}
        record |= _in_order(before, after, target, at_once)
        if rehearse:
            record["rehearsal"] = rehearse_change(
                before, after, number(rate, "rate", least=1), at_once=at_once
            )
    show(record, _change_told(record), as_json, quiet)
    done = record.get("rehearsal", {}).get("afterwards", {})
    return 1 if done.get("missing") or done.get("duplicates") else 0


def _in_order(before: Wiring, after: Wiring, target: Target, at_once: bool) -> dict[str, Any]:
    """The order of a change, and who restarts."""
    if target.live:
        adds, removals = rabbitmq.change(before, after, Settings())
        return {"restarts": [], "order": [{"call": adds}, {"call": removals}] if adds or removals else []}
    batches = order(before, after, at_once)
    restarts = [broker for batch in batches for broker in batch.brokers]
    return {"restarts": restarts, "order": [batch.record() for batch in batches]}


def _change_told(record: dict[str, Any]) -> str:
    """A change in words."""
    lines = [f"{one['broker']}: links {_counted(one)}" for one in record["changes"]]
    lines += [f"step {place}: {_step_told(step)}" for place, step in enumerate(record["order"], 1)]
    if "rehearsal" in record:
        told, after = record["rehearsal"], record["rehearsal"]["afterwards"]
        lines += [
            f"rehearsed: {told['lost']:,} of {told['expected']:,} deliveries lost, {told['doubled']:,} twice",
            f"afterwards: {after['missing']:,} missing, {after['duplicates']:,} twice",
        ]
    return "\n".join(lines) or "nothing changes"


def _counted(change: dict[str, Any]) -> str:
    kinds = ("added", "removed", "changed")
    return ", ".join(f"{len(change[kind])} {kind}" for kind in kinds if change[kind])


def _step_told(step: dict[str, Any]) -> str:
    if "call" in step:
        return f"{sum(map(len, step['call'].values())):,} calls at {len(step['call']):,} brokers, no restart"
    wait = f"; {step['cut']:,} deliveries wait for a later step" if step["cut"] else ""
    return f"restart {', '.join(step['restart'])}{' together' if len(step['restart']) > 1 else ''}{wait}"


@app.command("live")
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
    door = doors(settings, whole(window, "window", least=1))

    async def held() -> Agent:
        agent = Agent(door, state, number(patience, "patience"))
        if down:
            await take_down(agent)
        else:
            run = Run(agent, source, named, least, slack)
            await serve(run, metrics, lambda: logging.info("%d links are up", len(agent.links)))
        return agent

    record = {"state": str(state)} | summary(asyncio.run(held()))
    show(record, f"{record['changes']:,} changes, {record['messages']:,} messages carried", as_json, quiet)


def deployed(
    plan: bl.Plan, messages: Path | None, least: str, slack: float
) -> tuple[list[Tree], Wiring, list[Publication]]:
    """The trees of a plan, their links, and who publishes."""
    sent = [] if messages is None else read_publications(messages, plan.interest)
    trees = plan_trees(plan, sent, least, slack)
    return trees, wire(plan, trees, sent), sent
