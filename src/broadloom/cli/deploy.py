"""`broadloom deploy`: export, rehearse, diff, session and live."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import broadloom as bl
from broadloom.cli.common import Force, Json, Quiet, keep_apart, progress, show
from broadloom.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from broadloom.agents.links import LinkAgent
    from broadloom.deployment import Publication, Tree, Wiring

PlanFolder = Annotated[Path, typer.Argument(help="The folder of a plan.")]
# Values of heavy modules, which would make --help slow; a test compares them.
TARGET_NAMES = "mosquitto, rabbitmq, nats"
RATE = 300.0

To = Annotated[str, typer.Option("--to", help=f"One of {TARGET_NAMES}.")]
Messages = Annotated[
    Path | None,
    typer.Option(
        help="The folder of a table of messages: the publishers of each topic; by default all that want it."
    ),
]
Least = Annotated[str, typer.Option(help="Trees of least latency (from publishers) or of least weight.")]
Slack = Annotated[float, typer.Option(help="By which share a tree can cost more to relieve busy links.")]
Address = Annotated[
    str, typer.Option(help="The address of a broker: host or host:port, with {broker} for its id.")
]
Tls = Annotated[bool, typer.Option(help="Encrypt links, and authenticate them by certificates.")]
Certificates = Annotated[str | None, typer.Option(help="The folder of certificates on each broker.")]
Credentials = Annotated[
    bool, typer.Option("--credentials", help="Log in with a name and a password from the environment.")
]
Accounts = Annotated[
    bool, typer.Option("--accounts", help="NATS: use several accounts if trees form a ring.")
]
Qos = Annotated[int, typer.Option(help="MQTT: the quality of service of links.")]

app = typer.Typer(
    help="Write native configuration of brokers, rehearse it on this machine, and order changes.",
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
    certificates: Certificates = None,
    credentials: Credentials = False,
    accounts: Accounts = False,
    qos: Qos = 1,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write native configuration: one file per broker, checked for loops, duplicates and lost publishers.

    Example: broadloom deploy export --to mosquitto plan -o conf
    """
    from broadloom.deployment import Settings, addresses_of, export, export_record, save_export, target_named

    keep_apart(output, plan, *(() if messages is None else (messages,)))
    if plan.resolve() in output.resolve().parents:
        raise InputError(f"{output} is inside of the plan {plan}; choose another output")
    loaded, target = bl.Plan.load(plan), target_named(to)
    settings = Settings(address, addresses_of(loaded), tls, certificates, credentials, accounts, qos)
    with progress(quiet):
        trees, wiring, _ = deployed(loaded, messages, least, slack)
        written = {**export(wiring, target, settings), **target.shared}
        save_export(output, written, export_record(wiring, trees, target, settings), force)
    record: dict[str, Any] = {"output": str(output), "target": to, "brokers": len(wiring.brokers)}
    record |= {"links": len(wiring.links), "trees": len(trees), "files": sorted(written)}
    text = f"{len(written):,} files for {to}: {len(wiring.links):,} links, {len(trees):,} trees -> {output}"
    show(record, text, as_json, quiet)


@app.command("rehearse")
def rehearse_plan(
    plan: PlanFolder,
    messages: Messages = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    each: Annotated[int, typer.Option(help="Number of messages per topic and broker.")] = 5,
    size: Annotated[int, typer.Option(help="Bytes per message.")] = 100,
    kill: Annotated[
        int, typer.Option(help="Number of brokers to kill, and of links to cut, one by one.")
    ] = 1,
    on: Annotated[
        str, typer.Option(help="mosquitto; or rabbitmq, up to 8 nodes, without kills and comparison.")
    ] = "mosquitto",
    compare: Annotated[
        bool, typer.Option(help="Run the same traffic on a full mesh, one global tree, and a hub.")
    ] = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run the plan on real brokers on this machine, and count deliveries; exit with 1 if one is wrong.

    Example: broadloom deploy rehearse plan --json
    """
    from broadloom.checks import check_count
    from broadloom.deployment import check, sample_messages
    from broadloom.deployment.rehearsal import compare as run_alternatives
    from broadloom.deployment.rehearsal import rehearse, rehearse_rabbitmq

    loaded = bl.Plan.load(plan)
    with progress(quiet):
        _, wiring, sent = deployed(loaded, messages, least, slack)
        check(wiring)
        traffic = sample_messages(wiring, check_count(each, "each", minimum=1))
        check_count(size, "size", minimum=20)
        if _is_rabbitmq(on):
            outcome, rows = rehearse_rabbitmq(wiring, traffic, size), []
        else:
            outcome = rehearse(wiring, traffic, size, check_count(kill, "kill"))
            rows = run_alternatives(loaded, (wiring, outcome), sent, traffic, size) if compare else []
    record = outcome.record() | {"comparison": rows}
    show(record, _rehearsal_text(record), as_json, quiet, _comparison_table(rows))
    return 0 if outcome.ok else 1


def _is_rabbitmq(on: str) -> bool:
    if on not in ("mosquitto", "rabbitmq"):
        raise InputError(f"no rehearsal on {on!r}; choose mosquitto or rabbitmq")
    return on == "rabbitmq"


@app.command("diff")
def diff_plans(
    old: Annotated[Path, typer.Argument(help="The folder of the plan in use.")],
    new: Annotated[Path, typer.Argument(help="The folder of the new plan.")],
    to: To = "mosquitto",
    messages: Messages = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    address: Address = "{broker}",
    tls: Tls = True,
    certificates: Certificates = None,
    credentials: Credentials = False,
    accounts: Accounts = False,
    qos: Qos = 1,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Restart all changed brokers at the same time.")
    ] = False,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse", help="Try the change on real brokers on this machine, under load; not for nats."
        ),
    ] = False,
    rate: Annotated[float, typer.Option(help="Messages per second of that load.")] = RATE,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compare the exports of two plans: the changes per broker, their order, and the restarts.

    Exits with 1 if a rehearsal finds a wrong delivery after the change.

    Example: broadloom deploy diff --to mosquitto plan new-plan --rehearse
    """
    from broadloom.checks import check_number
    from broadloom.deployment import Deployment, Settings, addresses_of, compare_exports, export, target_named

    target, plans = target_named(to), [bl.Plan.load(folder) for folder in (old, new)]
    if rehearse and to == "nats":
        raise InputError("no rehearsal on nats; choose mosquitto or rabbitmq, or leave --rehearse out")
    check_number(rate, "rate", minimum=1)
    everybody = [name for plan in plans for name in plan.interest.node_ids]
    with progress(quiet):
        sides = []
        for folder, plan in zip((old, new), plans, strict=True):
            settings = Settings(address, addresses_of(plan), tls, certificates, credentials, accounts, qos)
            try:
                _, wiring, _ = deployed(plan, messages, least, slack, everybody)
                sides.append(Deployment(wiring, settings, export(wiring, target, settings)))
            except InputError as error:
                raise InputError(f"{folder}: {error}") from error
        before, after = sides
        record = compare_exports(before, after, target, at_once)
        if rehearse:
            record["rehearsal"] = _rehearse_change(before.wiring, after.wiring, to, rate, at_once)
    show(record, _change_text(record), as_json, quiet)
    return 1 if _wrong(record.get("rehearsal", {})) else 0


def _rehearse_change(old: Wiring, new: Wiring, to: str, rate: float, at_once: bool) -> dict[str, Any]:
    from broadloom.deployment.rehearsal import rehearse_change, rehearse_live_change

    if _is_rabbitmq(to):
        return rehearse_live_change(old, new, rate)
    return rehearse_change(old, new, rate, at_once=at_once)


def _wrong(rehearsal: Mapping[str, Any]) -> bool:
    """Whether deliveries were wrong after a change, or unexpected during it."""
    after = rehearsal.get("afterwards", {})
    left = any(after.get(key) for key in ("missing", "duplicates", "unexpected"))
    return left or bool(rehearsal.get("unexpected"))


@app.command("session")
def see_to_session(
    broker: Annotated[str, typer.Argument(help="The address of the mosquitto broker: host or host:port.")],
    client: Annotated[str, typer.Argument(help="The client id of the link, as `diff` names it.")],
    opened: Annotated[
        list[str] | None,
        typer.Option("--open", help="A topic filter to subscribe to, so that its messages are queued."),
    ] = None,
    closed: Annotated[
        list[str] | None,
        typer.Option("--close", help="A topic filter to unsubscribe from; queued messages stay."),
    ] = None,
    end: Annotated[
        bool, typer.Option("--end", help="End the session, and drop its queued messages.")
    ] = False,
    tls: Tls = True,
    certificates: Certificates = None,
    credentials: Credentials = False,
    qos: Qos = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Open, trim or end the session of a link at a mosquitto broker while the link is down, as `diff` says.

    Example: broadloom deploy session rome:8883 r.broadloom-oslo:rome --open=t/1 --open=t/2
    """
    from broadloom.deployment import Settings
    from broadloom.deployment.targets import mosquitto_bridges
    from broadloom.mqtt.paho import update_session

    settings = Settings(
        addresses={broker: broker}, tls=tls, certificates=certificates, credentials=credentials, qos=qos
    )
    address = mosquitto_bridges.broker_address(settings, broker)
    login = mosquitto_bridges.link_login(settings)
    if end == bool(opened or closed):
        raise InputError("give filters to --open or to --close, or --end the session")
    for what, filters in (("open", opened), ("close", closed), ("end", [""] if end else [])):
        if filters:
            update_session(what, address, client, filters, qos, login)
    record = {
        "broker": broker,
        "client": client,
        "opened": opened or [],
        "closed": closed or [],
        "ended": end,
    }
    show(record, f"{client} at {broker}: {'ended' if end else 'done'}", as_json, quiet)


def deployed(
    plan: bl.Plan, messages: Path | None, least: str, slack: float, elsewhere: Sequence[str] = ()
) -> tuple[list[Tree], Wiring, list[Publication]]:
    """The trees of a plan, their wiring, and its publications."""
    from broadloom.deployment import plan_trees, read_publications, wire

    sent = [] if messages is None else read_publications(messages, plan.interest, elsewhere)
    trees = plan_trees(plan, sent, least, slack)
    return trees, wire(plan, trees, sent), sent


@app.command("live")
def live(
    plan: PlanFolder,
    state: Annotated[
        Path, typer.Option(help="The folder of the agent's state, which it needs after a restart.")
    ],
    events: Annotated[
        Path | None, typer.Option(help="A growing file of events (JSON lines); each event changes the links.")
    ] = None,
    follow: Annotated[
        Path | None,
        typer.Option(help="The output of `broadloom maintain --stream`: follow its versions."),
    ] = None,
    messages: Messages = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    address: Address = "{broker}",
    tls: Tls = True,
    certificates: Annotated[
        str | None,
        typer.Option(help="The folder of ca.crt, agent.crt and agent.key; by default those of the system."),
    ] = None,
    credentials: Credentials = False,
    window: Annotated[
        int, typer.Option(help="Maximum number of messages in flight per direction of a link.")
    ] = 500,
    patience: Annotated[
        float, typer.Option(help="Seconds that a change waits for an unreachable broker.")
    ] = 10,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="With a new --state: drop messages that brokers have queued for an earlier agent."
        ),
    ] = False,
    metrics: Annotated[
        int | None, typer.Option(help="A port on loopback for Prometheus; off by default.")
    ] = None,
    down: Annotated[bool, typer.Option("--down", help="Remove all links, and exit.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Hold the links of a plan between running MQTT 5 brokers, and change them live, without loss.

    Example: broadloom deploy live plan --state live --events events.jsonl --address '{broker}.example.org'
    """
    import asyncio
    import logging

    from broadloom.agents.links import (
        AddressedPlans,
        EventFile,
        FixedPlan,
        LinkAgent,
        LinkRun,
        PlanVersions,
        link_summary,
        serve_links,
        settings_endpoints,
        take_down_links,
    )
    from broadloom.checks import check_number
    from broadloom.deployment import Settings, addresses_of, read_publications
    from broadloom.model import PublishedTopic
    from broadloom.mqtt.endpoint import LAST_PORT

    if events is not None and follow is not None:
        raise InputError("changes come from --events or from --follow; give one of them")
    loaded = bl.Plan.load(plan)
    addresses = addresses_of(loaded)
    settings = Settings(address, addresses, tls, certificates, credentials)
    sent = [] if messages is None else read_publications(messages, loaded.interest)
    named = [PublishedTopic(loaded.interest.node_ids[one.broker], one.topic, one.rate) for one in sent]
    source = (
        EventFile(loaded, events) if events else PlanVersions(follow, loaded) if follow else FixedPlan(loaded)
    )
    logging.basicConfig(level=logging.ERROR if quiet else logging.INFO, format="broadloom: %(message)s")
    endpoint = settings_endpoints(settings, window)
    for broker in loaded.interest.node_ids:
        endpoint(broker)  # a malformed address is refused now, not when a link needs it
    if metrics is not None and not 0 < metrics <= LAST_PORT:
        raise InputError(f"metrics is {metrics}; give a port from 1 to {LAST_PORT}")

    async def held() -> LinkAgent:
        agent = LinkAgent(endpoint, state, check_number(patience, "patience"), fresh)
        if down:
            await take_down_links(agent)
        else:
            run = LinkRun(agent, AddressedPlans(source, addresses), named, least, slack)
            await serve_links(run, metrics, lambda: logging.info("%d links are up", len(agent.links)))
        return agent

    record = {"state": str(state)} | link_summary(asyncio.run(held()))
    show(record, f"{record['changes']:,} changes, {record['messages']:,} messages carried", as_json, quiet)


Record = Mapping[str, Any]

MAX_FILTERS = 5  # topic filters per link that are printed


def _rehearsal_text(record: Record) -> str:
    """The text about a rehearsal."""
    as_planned = all(one["messages"] == one["planned"] for one in record["links"])
    lines = [
        f"{record['expected']:,} deliveries expected: {record['missing']:,} missing, "
        f"{record['duplicates']:,} twice, {record['unexpected']:,} unexpected",
        f"{record['uninterested']:,} messages at brokers that do not want them",
        f"{record['messages_on_links']:,} messages on links, {'as' if as_planned else 'NOT as'} planned",
    ]
    return "\n".join([*lines, *map(_failure, record["failures"])])


def _failure(one: Record) -> str:
    return (
        f"{one['killed']} {one['name']} killed: {one['missing_while_down']:,} of {one['expected']:,} "
        f"deliveries held up ({one['predicted']:,} predicted), {one['lost']:,} lost for good, "
        f"{one['duplicates']:,} twice"
    )


def _comparison_table(rows: Sequence[Record]) -> Table | None:
    """A table that compares the plan with common wirings."""
    from rich.table import Table

    if not rows:
        return None
    names = ["wiring", "links", "messages_on_links", "bytes_on_links"]
    names += ["mean_hops", "max_hops", "mean_delay", "max_delay"]
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name.replace("_", " "), no_wrap=name == "wiring")
    for row in rows:
        values = (row[name] for name in names)
        table.add_row(*(f"{value:,.4g}" if isinstance(value, float) else str(value) for value in values))
    return table


def _change_text(record: Record) -> str:
    """The text about a change: differences, steps with their commands, and the rehearsal."""
    if not record["files"] and not record["order"]:
        return "\n".join(["nothing changes", *_rehearsal_lines(record)])
    lines = [record["live"], *_broker_lines(record), *_link_lines(record["changes"])]
    for number, step in enumerate(record["order"], 1):
        lines += [f"step {number}: {_step_text(step)}", *(f"  {line}" for line in _command_lines(step))]
    return "\n".join([*lines, *_rehearsal_lines(record)])


def _broker_lines(record: Record) -> Iterator[str]:
    without = ", without links," if record["target"] == "mosquitto" else ""
    for broker in record["joining"]:
        yield f"{broker}: a new broker; it runs{without} before the first step"
    for broker in record["leaving"]:
        yield f"{broker}: leaves; it runs until the last step is done"
    for broker, (old, new) in record["moving"].items():
        yield f"{broker}: moves from {old} to {new}"


def _link_lines(changes: Iterable[Record]) -> Iterator[str]:
    for one in changes:
        for link in one["added"]:
            yield f"{one['broker']}: new link to {link['peer']}{_carried(link)}"
        for link in one["removed"]:
            yield f"{one['broker']}: no more link to {link['peer']}"
        for both in one["changed"]:
            old, new = both["from"], both["to"]
            parts = (_carried(_beyond(new, old), ", more"), _carried(_beyond(old, new), ", no more"))
            yield f"{one['broker']}: link to {new['peer']}{''.join(parts)}"


def _beyond(link: Record, other: Record) -> Record:
    """The topic filters that one link carries and the other does not."""
    return {direction: sorted(set(link[direction]) - set(other[direction])) for direction in ("out", "into")}


def _carried(link: Record, start: str = ",") -> str:
    """The topic filters of a link by direction; the empty string if there are none."""
    out, into = link["out"], link["into"]
    if not out and not into:
        return ""
    if out == into:
        return f"{start} both ways: {_few(out)}"
    parts = [f"{direction}: {_few(texts)}" for direction, texts in (("out", out), ("in", into)) if texts]
    return f"{start} {'; '.join(parts)}"


def _few(texts: Sequence[str]) -> str:
    shown = ", ".join(texts[:MAX_FILTERS])
    return f"{shown} and {len(texts) - MAX_FILTERS:,} more" if len(texts) > MAX_FILTERS else shown


def _step_text(step: Record) -> str:
    if "call" in step:
        return f"{sum(map(len, step['call'].values())):,} calls at {len(step['call']):,} brokers, no restart"
    together = " together" if len(step["restart"]) > 1 else ""
    wait = f"; {step['cut']:,} deliveries wait for a later step" if step.get("cut") else ""
    moved = (
        f"; clients of {text} log in to {new}, not {old}"
        for text, (old, new) in step.get("accounts", {}).items()
    )
    restart = f"restart {', '.join(step['restart'])}" if step["restart"] else "no restart"
    return f"{restart}{together}{wait}{''.join(moved)}"


def _command_lines(step: Record) -> Iterator[str]:
    yield from step.get("commands", ())
    for broker, calls in step.get("call", {}).items():
        for call in calls:
            body = f" {json.dumps(call['body'], sort_keys=True)}" if "body" in call else ""
            yield f"{broker}: {call['method']} {call['path']}{body}"


def _rehearsal_lines(record: Record) -> Iterator[str]:
    if "rehearsal" in record:
        rehearsal = record["rehearsal"]
        after = rehearsal["afterwards"]
        yield (
            f"rehearsed: {rehearsal['lost']:,} of {rehearsal['expected']:,} deliveries lost, "
            f"{rehearsal['doubled']:,} twice, {rehearsal['unexpected']:,} unexpected"
        )
        yield (
            f"afterwards: {after['missing']:,} missing, {after['duplicates']:,} twice, "
            f"{after['unexpected']:,} unexpected"
        )
