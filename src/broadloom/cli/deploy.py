"""`broadloom deploy export`, `rehearse`, `diff` and `session`: from a plan to real brokers."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import broadloom as bl
from broadloom.checks import check_count, check_number
from broadloom.cli.deploy_words import change_told, compared, rehearsal_told
from broadloom.cli.output import Force, Json, Quiet, keep_apart, progress, show
from broadloom.deployment.deployment_inputs import LOGIN, Publication, Settings, places_of, read_publications
from broadloom.deployment.exports import TARGETS, compare_exports, export, record_of, save, target_named
from broadloom.deployment.loop_checks import check
from broadloom.deployment.rehearsal.rehearsals import (
    RATE,
    rehearse,
    rehearse_change,
    rehearse_live_change,
    rehearse_rabbitmq,
)
from broadloom.deployment.rehearsal.rehearsals import compare as run_alternatives
from broadloom.deployment.rollout import Deployment
from broadloom.deployment.targets import mosquitto_bridges
from broadloom.deployment.trees import Tree, plan_trees
from broadloom.deployment.wiring import Wiring, sample_messages, wire
from broadloom.errors import InputError
from broadloom.mqtt.stand_in_sessions import BrokerAccess, update_session

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
Certificates = Annotated[str | None, typer.Option(help="The folder of certificates on each broker.")]
Credentials = Annotated[
    bool, typer.Option("--credentials", help="Log in with a name and password of the environment.")
]
Accounts = Annotated[
    bool, typer.Option("--accounts", help="NATS: use several accounts where trees close a ring.")
]
Qos = Annotated[int, typer.Option(help="MQTT: the quality of service of links.")]

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
    certificates: Certificates = None,
    credentials: Credentials = False,
    accounts: Accounts = False,
    qos: Qos = 1,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write native configuration: a file a broker, checked against loops, copies and forgotten publishers.

    Example: broadloom deploy export --to mosquitto plan -o conf
    """
    keep_apart(output, plan, *(() if messages is None else (messages,)))
    if plan.resolve() in output.resolve().parents:
        raise InputError(f"{output} is inside of the plan {plan}; choose a place beside it")
    loaded, target = bl.Plan.load(plan), target_named(to)
    settings = Settings(address, places_of(loaded), tls, certificates, credentials, accounts, qos)
    with progress(quiet):
        trees, wiring, _ = deployed(loaded, messages, least, slack)
        written = {**export(wiring, target, settings), **target.shared}
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
        traffic = sample_messages(wiring, check_count(each, "each", minimum=1))
        check_count(size, "size", minimum=20)
        if _is_rabbitmq(on):
            outcome, rows = rehearse_rabbitmq(wiring, traffic, size), []
        else:
            outcome = rehearse(wiring, traffic, size, check_count(kill, "kill"))
            rows = run_alternatives(loaded, (wiring, outcome), sent, traffic, size) if compare else []
    record = outcome.record() | {"comparison": rows}
    show(record, rehearsal_told(record), as_json, quiet, compared(rows))
    return 0 if outcome.ok else 1


def _is_rabbitmq(on: str) -> bool:
    if on not in ("mosquitto", "rabbitmq"):
        raise InputError(f"no rehearsal on {on!r}; choose mosquitto or rabbitmq")
    return on == "rabbitmq"


@app.command("diff")
def diff_plans(
    old: Annotated[Path, typer.Argument(help="The folder of the plan that runs today.")],
    new: Annotated[Path, typer.Argument(help="The folder of the plan that is to run.")],
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
        bool, typer.Option("--at-once", help="Restart all brokers that change together.")
    ] = False,
    rehearse: Annotated[
        bool,
        typer.Option("--rehearse", help="Make the change on real brokers here, under load; not on nats."),
    ] = False,
    rate: Annotated[float, typer.Option(help="Messages a second of that load.")] = RATE,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compare the exports of two plans: what changes at which broker, in which order, and who must restart.

    Exits with 1 if a rehearsal finds anything wrong once the change is through.

    Example: broadloom deploy diff --to mosquitto plan new-plan --rehearse
    """
    target, plans = target_named(to), [bl.Plan.load(folder) for folder in (old, new)]
    if rehearse and to == "nats":
        raise InputError("no rehearsal on nats; choose mosquitto or rabbitmq, or leave --rehearse out")
    check_number(rate, "rate", minimum=1)
    everybody = [name for plan in plans for name in plan.interest.node_ids]
    with progress(quiet):
        sides = []
        for folder, plan in zip((old, new), plans, strict=True):
            settings = Settings(address, places_of(plan), tls, certificates, credentials, accounts, qos)
            try:
                _, wiring, _ = deployed(plan, messages, least, slack, everybody)
                sides.append(Deployment(wiring, settings, export(wiring, target, settings)))
            except InputError as error:
                raise InputError(f"{folder}: {error}") from error
        before, after = sides
        record = compare_exports(before, after, target, at_once)
        if rehearse:
            record["rehearsal"] = _rehearsed(before.wiring, after.wiring, to, rate, at_once)
    show(record, change_told(record), as_json, quiet)
    return 1 if _wrong(record.get("rehearsal", {})) else 0


def _rehearsed(old: Wiring, new: Wiring, to: str, rate: float, at_once: bool) -> dict[str, Any]:
    if _is_rabbitmq(to):
        return rehearse_live_change(old, new, rate)
    return rehearse_change(old, new, rate, at_once=at_once)


def _wrong(rehearsal: Mapping[str, Any]) -> bool:
    """Whether a change left anything wrong, or brought somebody what nobody sent to him."""
    after = rehearsal.get("afterwards", {})
    left = any(after.get(key) for key in ("missing", "duplicates", "unexpected"))
    return left or bool(rehearsal.get("unexpected"))


@app.command("session")
def see_to_session(
    broker: Annotated[str, typer.Argument(help="Where the mosquitto broker is: host or host:port.")],
    client: Annotated[str, typer.Argument(help="The client id of the link, as `diff` names it.")],
    opened: Annotated[
        list[str] | None, typer.Option("--open", help="A filter to queue messages of from now on.")
    ] = None,
    closed: Annotated[
        list[str] | None, typer.Option("--close", help="A filter to unsubscribe from; what waits stays.")
    ] = None,
    end: Annotated[bool, typer.Option("--end", help="Forget the session and all that waits in it.")] = False,
    tls: Tls = True,
    certificates: Certificates = None,
    credentials: Credentials = False,
    qos: Qos = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Open, trim or end the session of a link at a mosquitto broker while the link is away, as `diff` asks.

    Example: broadloom deploy session rome:8883 r.broadloom-oslo:rome --open=t/1 --open=t/2
    """
    settings = Settings(places={broker: broker}, tls=tls, certificates=certificates, qos=qos)
    host, port = settings.place(broker, mosquitto_bridges.TLS_PORT if tls else mosquitto_bridges.PORT)
    folder = Path(certificates or mosquitto_bridges.CERTIFICATES) if tls else None
    access = BrokerAccess(host.strip("[]"), folder, _login() if credentials else None)
    if end == bool(opened or closed):
        raise InputError("give filters to --open or to --close, or --end the session")
    for what, filters in (("open", opened), ("close", closed), ("end", [""] if end else [])):
        if filters:
            update_session(what, port, client, filters, qos, access)
    record = {
        "broker": broker,
        "client": client,
        "opened": opened or [],
        "closed": closed or [],
        "ended": end,
    }
    show(record, f"{client} at {broker}: {'ended' if end else 'done'}", as_json, quiet)


def _login() -> tuple[str, str]:
    """The name and the password of the environment."""
    missing = [name for name in LOGIN if name not in os.environ]
    if missing:
        raise InputError(f"--credentials without {missing[0]} in the environment; set it")
    return os.environ[LOGIN[0]], os.environ[LOGIN[1]]


def deployed(
    plan: bl.Plan, messages: Path | None, least: str, slack: float, elsewhere: Sequence[str] = ()
) -> tuple[list[Tree], Wiring, list[Publication]]:
    """The trees of a plan, their links, and who publishes, but for brokers of another plan."""
    sent = [] if messages is None else read_publications(messages, plan.interest, elsewhere)
    trees = plan_trees(plan, sent, least, slack)
    return trees, wire(plan, trees, sent), sent
