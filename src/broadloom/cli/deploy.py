"""`broadloom deploy`: export, check, rehearse, diff, apply and session."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import broadloom as bl
from broadloom.cli.common import (
    INTERRUPTED,
    Force,
    Json,
    Quiet,
    ended_like_ctrl_c,
    keep_apart,
    progress,
    say,
    show,
)
from broadloom.cli.deploy_options import (
    ADDRESS,
    PATIENCE,
    RATE,
    TARGET_NAMES,
    Accounts,
    Address,
    Certificates,
    Credentials,
    DeployOptions,
    FleetFile,
    Least,
    Messages,
    PublisherMode,
    Qos,
    Slack,
    Tls,
    To,
    both_deployments,
    deployed,
    with_publishers,
)
from broadloom.cli.deploy_texts import apply_text, change_text, comparison_table, rehearsal_text
from broadloom.errors import InputError

if TYPE_CHECKING:
    from broadloom.deployment import Settings, Wiring

PlanFolder = Annotated[Path, typer.Argument(help="The folder of a plan.")]
ROUTER = "haproxy"  # a target of `export` that is not a broker
app = typer.Typer(
    help="Write native configuration of brokers, rehearse it on this machine, and change running brokers.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("export")
def export_plan(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the files.")],
    plan: Annotated[
        Path | None, typer.Argument(help=f"The folder of a plan; not needed with --to {ROUTER}.")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            help=f"One of {TARGET_NAMES}; by default the fleet's kind; or {ROUTER}: a router of clients.",
        ),
    ] = None,
    fleet: FleetFile = None,
    messages: Messages = None,
    publishers: PublisherMode = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    address: Address = ADDRESS,
    tls: Tls = True,
    certificates: Certificates = None,
    credentials: Credentials = False,
    with_secrets: Annotated[
        bool,
        typer.Option("--with-secrets", help="Write the fleet's passwords into files that only you can read."),
    ] = False,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Write the files and calls that remove the links of the plan."),
    ] = False,
    accounts: Accounts = False,
    qos: Qos = 1,
    listen: Annotated[
        str, typer.Option(help=f"{ROUTER}: the port, or host:port, at which routers accept clients.")
    ] = "",
    relay: Annotated[
        str, typer.Option(help=f"{ROUTER}: host:port of the relay of the agent that moves clients.")
    ] = "",
    relay_ca: Annotated[
        str | None, typer.Option(help=f"{ROUTER}: certificates that routers trust at the relay; enables TLS.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write native configuration: one file per broker, checked for loops, duplicates and missing paths.

    With --to haproxy, write routers that send each client to the broker of a map, so that any client can
    be moved: broadloom deploy export --to haproxy --fleet fleet.toml -o routers

    Example: broadloom deploy export plan --fleet fleet.toml -o conf
    """
    from broadloom.deployment import (
        carried_lines,
        carried_record,
        export,
        export_record,
        removal,
        save_export,
    )
    from broadloom.deployment.targets.nats_leafnodes import open_listener_notes

    if to == ROUTER:
        if plan is not None or fleet is None:
            raise InputError(f"--to {ROUTER} takes a fleet and no plan; give --fleet fleet.toml")
        _export_routers(output, fleet, listen, relay, relay_ca, tls, certificates, force, as_json, quiet)
        return
    if plan is None:
        raise InputError("the folder of a plan is missing; give it first")
    if listen or relay or relay_ca:
        raise InputError(f"--listen, --relay and --relay-ca are for --to {ROUTER}; leave them out")
    options = DeployOptions(to, fleet, address, tls, certificates, credentials, accounts, qos)
    if remove and with_secrets:
        raise InputError("--remove writes no passwords; leave --with-secrets out")
    keep_apart(output, plan, *(() if messages is None else (messages,)))
    if plan.resolve() in output.resolve().parents:
        raise InputError(f"{output} is inside of the plan {plan}; choose another output")
    loaded = with_publishers(bl.Plan.load(plan), messages, publishers)
    target = options.target(loaded)
    settings = options.settings(loaded, with_secrets)
    with progress(quiet):
        trees, wiring, _ = deployed(loaded, least, slack)
        wiring = target.adapt(wiring)
        if remove:
            written = removal(wiring, target, settings)
        else:
            written = {**export(wiring, target, settings), **target.shared}
        recorded = export_record(wiring, trees, target, settings) | {"remove": remove}
        save_export(output, written, recorded, force, secret=with_secrets)
        carried, text = carried_record(loaded), list(carried_lines(loaded))
    record: dict[str, Any] = {"output": str(output), "target": target.name, "brokers": len(wiring.brokers)}
    record |= {"links": len(wiring.links), "trees": len(trees), "files": sorted(written), "remove": remove}
    if remove:
        notes = [f"follow {output / name}" for name in written if name.endswith(".txt")]
        first = f"what removes {len(wiring.links):,} links of {target.name} brokers -> {output}"
        show(record | {"notes": notes}, "\n".join([first, *notes]), as_json, quiet)
        return
    notes = [*options.notes(loaded), *_secret_notes(settings, output, with_secrets)]
    if target.name == "nats":
        notes += open_listener_notes(wiring, settings)
    if target.advice:
        notes.append(
            f"the files contain links and no setting of a broker: each {target.name}.conf should have "
            f"{', '.join(target.advice)}; broadloom doctor checks it"
        )
    counts = f"{len(wiring.links):,} links, {len(trees):,} trees"
    lines = [f"{len(written):,} files for {target.name}: {counts} -> {output}", *text, *notes]
    show(record | carried | {"notes": notes}, "\n".join(lines), as_json, quiet)


def _export_routers(
    output: Path,
    fleet: Path,
    listen: str,
    relay: str,
    relay_ca: str | None,
    tls: bool,
    certificates: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    from broadloom.deployment.exports import RECORD, save_export
    from broadloom.deployment.targets.haproxy_router import (
        CERTIFICATE,
        FOLDER,
        RouterSettings,
        files,
        router_record,
    )

    certificate = CERTIFICATE if certificates is None else f"{certificates}/server.pem"
    settings = RouterSettings(
        listen=listen or ("8883" if tls else "1883"),
        certificate=certificate if tls else None,
        relay=relay or RouterSettings.relay,
        relay_ca=relay_ca,
        folder=certificates or FOLDER,
    )
    loaded = bl.Fleet.load(fleet)
    written = files(loaded, settings)
    save_export(output, written, router_record(loaded, settings), force)
    notes = [] if tls else ["clients connect in plain text: their passwords and messages can be read"]
    record = {"output": str(output), "target": ROUTER, "brokers": len(loaded.brokers)}
    record |= {"files": sorted(written), "notes": notes}
    show(
        record,
        "\n".join([f"{len(written):,} files for {ROUTER}, and {RECORD} -> {output}", *notes]),
        as_json,
        quiet,
    )


def _secret_notes(settings: Settings, output: Path, with_secrets: bool) -> list[str]:
    """A line about the passwords in exported files of a fleet."""
    from broadloom.deployment.link_access import password_reference

    names = [name for name, one in settings.brokers.items() if one.login]
    if not names:
        return []
    if with_secrets:
        return [
            f"{output} contains passwords; only you can read it (mode 700): remove it once it is installed"
        ]
    if settings.brokers[names[0]].kind == "nats":
        return ["the files have no passwords: nats-server reads those of $BROADLOOM_... in its environment"]
    return [
        f"the files have no passwords: replace {password_reference(names[0])} and the like, or export again "
        "with --with-secrets"
    ]


@app.command("check")
def check_plan(
    plan: PlanFolder,
    to: To = None,
    fleet: FleetFile = None,
    messages: Messages = None,
    publishers: PublisherMode = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    accounts: Accounts = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Check the links of a plan for loops, duplicates and missing paths, and list what is not carried.

    With a fleet or a target, also check that these brokers can have the links. Exits with 1 on a fault.

    Example: broadloom deploy check plan --fleet fleet.toml
    """
    from broadloom.deployment import carried_lines, carried_record, check, export, publisher_links

    options = DeployOptions(to, fleet, accounts=accounts)
    loaded = with_publishers(bl.Plan.load(plan), messages, publishers)
    target = options.target(loaded) if to or fleet else None
    settings = options.settings(loaded)
    fault = None
    with progress(quiet):
        links = publisher_links(loaded) if loaded.publishers.mode == "anywhere" else None
        carried, text = carried_record(loaded, links), list(carried_lines(loaded, links))
        try:
            trees, wiring, _ = deployed(loaded, least, slack)
            check(wiring)
            if target is not None:
                wiring = target.adapt(wiring)
                export(wiring, target, settings)
        except InputError as error:
            fault = str(error)
    record: dict[str, Any] = {"ok": fault is None, "fault": fault}
    first = f"FAULT: {fault}"
    if fault is None:
        counts = {"brokers": len(wiring.brokers), "links": len(wiring.links), "trees": len(trees)}
        record |= counts
        shown = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        first = f"{shown}: no loops, no duplicates, every subscriber is reached"
    notes = options.notes(loaded) if fleet else []
    show(record | carried | {"notes": notes}, "\n".join([first, *text, *notes]), as_json, quiet)
    return 0 if fault is None else 1


@app.command("rehearse")
def rehearse_plan(
    plan: PlanFolder,
    fleet: FleetFile = None,
    messages: Messages = None,
    publishers: PublisherMode = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    each: Annotated[int, typer.Option(help="Number of messages per topic and broker.")] = 5,
    size: Annotated[int, typer.Option(help="Bytes per message.")] = 100,
    kill: Annotated[
        int, typer.Option(help="Number of brokers to kill, and of links to cut, one by one.")
    ] = 1,
    on: Annotated[
        str | None,
        typer.Option(help="mosquitto (default); or rabbitmq, up to 8 nodes, without kills and comparison."),
    ] = None,
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

    loaded = with_publishers(bl.Plan.load(plan), messages, publishers)
    if on is None:
        on = (
            "mosquitto"
            if fleet is None
            else DeployOptions(None, fleet, ADDRESS, True, None, False).target(loaded).name
        )
    with progress(quiet):
        _, wiring, sent = deployed(loaded, least, slack)
        check(wiring)
        traffic = sample_messages(wiring, check_count(each, "each", minimum=1))
        check_count(size, "size", minimum=20)
        if _is_rabbitmq(on):
            outcome, rows = rehearse_rabbitmq(wiring, traffic, size), []
        else:
            outcome = rehearse(wiring, traffic, size, check_count(kill, "kill"))
            rows = run_alternatives(loaded, (wiring, outcome), sent, traffic, size) if compare else []
    record = outcome.record() | {"comparison": rows}
    show(record, rehearsal_text(record), as_json, quiet, comparison_table(rows))
    return 0 if outcome.ok else 1


def _is_rabbitmq(on: str) -> bool:
    if on not in ("mosquitto", "rabbitmq"):
        raise InputError(f"no rehearsal on {on!r}; choose mosquitto or rabbitmq")
    return on == "rabbitmq"


@app.command("diff")
def diff_plans(
    old: Annotated[
        Path, typer.Argument(help="The folder of the plan in use, or the word none if there are no links.")
    ],
    new: Annotated[
        Path, typer.Argument(help="The folder of the new plan, or the word none to remove all links.")
    ],
    to: To = None,
    fleet: FleetFile = None,
    messages: Messages = None,
    publishers: PublisherMode = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    address: Address = ADDRESS,
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

    Exits with 1 if a rehearsal loses a message, or finds a wrong delivery after the change.

    Example: broadloom deploy diff --to mosquitto plan new-plan --rehearse
    """
    from broadloom.checks import check_number
    from broadloom.deployment import compare_exports

    named = to or (None if fleet else "mosquitto")
    options = DeployOptions(named, fleet, address, tls, certificates, credentials, accounts, qos)
    check_number(rate, "rate", minimum=1)
    with progress(quiet):
        target, before, after = both_deployments((old, new), options, (messages, publishers), (least, slack))
        if rehearse and target.name in ("nats", "emqx"):
            raise InputError(
                f"no rehearsal on {target.name}; choose mosquitto or rabbitmq, or leave --rehearse out"
            )
        record = compare_exports(before, after, target, at_once)
        if rehearse:
            record["rehearsal"] = _rehearse_change(before.wiring, after.wiring, target.name, rate, at_once)
    show(record, change_text(record), as_json, quiet)
    return 1 if _wrong(record.get("rehearsal", {})) else 0


@app.command("apply")
def apply_plan(
    old: Annotated[
        Path, typer.Argument(help="The folder of the plan in use, or the word none if there are no links.")
    ],
    new: Annotated[
        Path, typer.Argument(help="The folder of the new plan, or the word none to remove all links.")
    ],
    fleet: Annotated[
        Path, typer.Option("--fleet", help="The fleet file: how to reach, stop and start the brokers.")
    ] = Path("fleet.toml"),
    journal: Annotated[
        Path | None,
        typer.Option(help="The file that records the steps; by default next to the fleet file."),
    ] = None,
    messages: Messages = None,
    publishers: PublisherMode = None,
    least: Least = "latency",
    slack: Slack = 0.1,
    certificates: Certificates = None,
    qos: Qos = 1,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Restart all changed brokers at the same time.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the steps that would be taken, and take none.")
    ] = False,
    roll_back: Annotated[
        bool, typer.Option("--roll-back", help="Return to the old plan, at any point of the change.")
    ] = False,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait for a broker to stop, to answer, or to link.")
    ] = PATIENCE,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Roll a change out: stop, configure and start the brokers of a fleet, one after the other.

    The commands are those of the fleet file (hooks). Each step is recorded: run the same command again after
    an interruption, and it continues from there.

    Example: broadloom deploy apply plan new-plan --fleet fleet.toml
    """
    from broadloom.checks import check_positive
    from broadloom.deployment import roll_out

    check_positive(patience, "patience")
    options = DeployOptions(None, fleet, certificates=certificates, qos=qos)
    with progress(quiet), ended_like_ctrl_c():
        target, before, after = both_deployments(
            (old, new), options, (messages, publishers), (least, slack), with_secrets=not dry_run
        )
        try:
            record = roll_out(
                before,
                after,
                target,
                bl.Fleet.load(fleet),
                journal,
                at_once=at_once,
                dry_run=dry_run,
                back=roll_back,
                patience=patience,
                report=None if quiet or as_json else _say_if_heard,
            )
        except KeyboardInterrupt as error:
            if not str(error):  # before the first step
                raise
            _say_if_heard(f"broadloom: {error}")
            raise SystemExit(INTERRUPTED) from error
    show(record, apply_text(record), as_json, quiet)


def _say_if_heard(text: str) -> None:
    """Print a line on standard error; a terminal or a pipe that is gone must not end a change."""
    with suppress(OSError):
        say(text, error=True)


def _rehearse_change(old: Wiring, new: Wiring, to: str, rate: float, at_once: bool) -> dict[str, Any]:
    from broadloom.deployment.rehearsal import rehearse_change, rehearse_live_change

    if _is_rabbitmq(to):
        return rehearse_live_change(old, new, rate)
    return rehearse_change(old, new, rate, at_once=at_once)


def _wrong(rehearsal: Mapping[str, Any]) -> bool:
    """Whether a change lost messages or brought unexpected ones, or deliveries were wrong after it."""
    after = rehearsal.get("afterwards", {})
    left = any(after.get(key) for key in ("missing", "duplicates", "unexpected"))
    return left or bool(rehearsal.get("lost") or rehearsal.get("unexpected"))


@app.command("session")
def see_to_session(
    broker: Annotated[
        str,
        typer.Argument(help="The mosquitto broker: host or host:port, or its id in a fleet."),
    ],
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
    fleet: FleetFile = None,
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
    from broadloom.deployment import Settings, fleet_access
    from broadloom.deployment.targets import mosquitto_bridges
    from broadloom.mqtt.paho import update_session

    settings = Settings(
        addresses={broker: broker}, tls=tls, certificates=certificates, credentials=credentials, qos=qos
    )
    DeployOptions(None, fleet, ADDRESS, tls, certificates, credentials)
    address, login = (
        fleet_access(bl.Fleet.load(fleet), broker)
        if fleet is not None
        else (mosquitto_bridges.broker_address(settings, broker), mosquitto_bridges.link_login(settings))
    )
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
