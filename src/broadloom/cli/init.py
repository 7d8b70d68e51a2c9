"""`broadloom init`: writes the fleet file from options, or from questions on a terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broadloom.cli.common import Force, Json, Quiet, say, show
from broadloom.errors import InputError

if TYPE_CHECKING:
    from broadloom.deployment import Fleet
    from broadloom.deployment.fleet_init import FleetOptions

Texts = list[str] | None
ONE = "for all brokers, or NAME=... for one; repeatable"


def init(
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path("fleet.toml"),
    broker: Annotated[Texts, typer.Option(help="NAME=HOST:PORT, or NAME=HOST; repeatable.")] = None,
    kind: Annotated[Texts, typer.Option(help=f"mosquitto, emqx, nats or rabbitmq {ONE}.")] = None,
    tls: Annotated[Texts, typer.Option(help=f"no, system, or the file of a CA {ONE}.")] = None,
    ca: Annotated[str | None, typer.Option(help="The file of a CA; the same as --tls FILE.")] = None,
    no_tls: Annotated[bool, typer.Option("--no-tls", help="Plain text; the same as --tls no.")] = False,
    login: Annotated[
        Texts, typer.Option(help=f"USER:PASSWORD_FILE, USER:env:VARIABLE or anonymous {ONE}.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="The user name at all brokers.")] = None,
    password_file: Annotated[str | None, typer.Option(help="The file with the password of --user.")] = None,
    password_env: Annotated[
        str | None, typer.Option(help="The variable with the password of --user.")
    ] = None,
    api_login: Annotated[Texts, typer.Option(help="As --login, for admin APIs.")] = None,
    site: Annotated[Texts, typer.Option(help="NAME=SITE; repeatable.")] = None,
    position: Annotated[Texts, typer.Option(help="NAME=LATITUDE,LONGITUDE; repeatable.")] = None,
    capacity: Annotated[Texts, typer.Option(help="NAME=MESSAGES_PER_SECOND; repeatable.")] = None,
    subscriptions: Annotated[
        Texts,
        typer.Option(help="NAME=PATH of mosquitto.db or a log, or NAME=URL of an admin API; repeatable."),
    ] = None,
    config: Annotated[
        Texts, typer.Option(help="NAME=PATH of the broker's mosquitto.conf; repeatable.")
    ] = None,
    leaf_listen: Annotated[
        Texts,
        typer.Option(help="NAME=HOST or NAME=HOST:PORT where a NATS broker listens for links; repeatable."),
    ] = None,
    account: Annotated[
        Texts,
        typer.Option(help=f"The account of NATS clients (links then have accounts of their own) {ONE}."),
    ] = None,
    carry: Annotated[
        Texts, typer.Option(help="A topic filter that links carry; repeatable. Default: all.")
    ] = None,
    publishers: Annotated[str, typer.Option(help="anywhere, or observed.")] = "anywhere",
    max_degree: Annotated[int | None, typer.Option(help="The most links per broker.")] = None,
    controller: Annotated[
        str | None, typer.Option(help="HOST or HOST:PORT at which agents reach the controller.")
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="Write a new key of the fleet to this file, for agents and controller."),
    ] = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the fleet file, which says how to reach each broker; without --broker, ask for them.

    Example: broadloom init --broker rome=10.0.0.1 --broker oslo=10.0.0.7:1884 --no-tls
    """
    from broadloom.deployment.fleet_file import FleetLinks
    from broadloom.deployment.fleet_init import FleetOptions, fields_for_all, save_passwords, with_live

    if output.exists() and not force:
        raise InputError(f"{output} exists; give --force to replace it, or -o for another file")
    options = FleetOptions(
        broker or [],
        kinds=kind or [],
        tls=tls or [],
        logins=login or [],
        api_logins=api_login or [],
        sites=site or [],
        positions=position or [],
        capacities=capacity or [],
        subscriptions=subscriptions or [],
        configs=config or [],
        leaf_listens=leaf_listen or [],
        accounts=account or [],
        links=FleetLinks(tuple(carry) if carry else ("#",), publishers, max_degree),
        for_all=fields_for_all(ca, no_tls, user, password_file, password_env),
    )
    passwords: dict[Path, str] = {}
    if broker:
        fleet = options.fleet()
    elif options.needs_brokers:
        raise InputError("no --broker is given, but options about brokers; give --broker NAME=HOST:PORT")
    else:
        fleet, passwords = _asked(output, options)
    fleet = with_live(fleet, controller, key_file)
    if key_file is not None:
        _write_key(key_file)
    save_passwords(passwords)
    fleet.save(output, overwrite=force)
    record = {"output": str(output), "brokers": list(fleet.brokers)}
    written = "".join(f"\n{file}: a password that only you can read" for file in passwords)
    if key_file is not None:
        written += f"\n{key_file}: the key of the fleet; copy it to each machine with an agent"
    text = f"{output}: {len(fleet.brokers)} brokers{written}\nnext: broadloom doctor {output}"
    show(record | {"secrets": [str(file) for file in passwords]}, text, as_json, quiet)


def _write_key(file: Path) -> None:
    from broadloom.agents.links.stamps import FleetKey

    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    FleetKey.write(file)


def _asked(output: Path, options: FleetOptions) -> tuple[Fleet, dict[Path, str]]:
    """The fleet and the passwords from questions, which go to standard error."""
    from getpass import getpass

    from broadloom.checks import visible_text
    from broadloom.deployment.fleet_init import FleetQuestions

    if not sys.stdin.isatty():
        raise InputError("standard input is not a terminal; give the brokers as --broker NAME=HOST:PORT")

    def ask(question: str) -> str:
        print(visible_text(question), end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:  # the end of the input
            raise InputError("the input ended before the last answer; nothing is written")
        return line.strip()

    def ask_secret(question: str) -> str:
        try:
            return getpass(visible_text(question), sys.stderr)
        except EOFError:
            raise InputError("the input ended before the last answer; nothing is written") from None

    def tell(line: str) -> None:
        say(line, error=True)

    questions = FleetQuestions(ask, ask_secret, tell, output.absolute().parent)
    return questions.fleet(options.links), questions.passwords
