"""Options that the verbs of `broadloom deploy` share, and what they make of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import broadloom as bl
from broadloom.errors import InputError

if TYPE_CHECKING:
    from broadloom.deployment import Deployment, Publication, Settings, Target, Tree, Wiring

# Values of heavy modules, which would make --help slow; a test compares them.
TARGET_NAMES = "mosquitto, rabbitmq, nats, emqx"
RATE = 300.0
PATIENCE = 60.0
NO_PLAN = "none"  # in place of the folder of a plan

To = Annotated[
    str | None,
    typer.Option("--to", help=f"One of {TARGET_NAMES}; by default the fleet's kind."),
]
FleetFile = Annotated[
    Path | None,
    typer.Option("--fleet", help="The fleet file: addresses, TLS, logins and kinds of the brokers."),
]
Messages = Annotated[
    Path | None,
    typer.Option(
        help="The folder of a table of messages: where topics are published; by default as the plan says."
    ),
]
PublisherMode = Annotated[
    str | None,
    typer.Option(
        help="anywhere: any broker can publish any topic; observed: only where messages were seen; "
        "by default as the plan says."
    ),
]
Least = Annotated[str, typer.Option(help="Trees of least latency (from publishers) or of least weight.")]
Slack = Annotated[float, typer.Option(help="The share by which a tree can cost more to relieve busy links.")]
ADDRESS = "{broker}"
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


@dataclass(frozen=True)
class DeployOptions:
    """Options that several verbs share: where the brokers are, and how links authenticate."""

    to: str | None
    fleet: Path | None
    address: str = ADDRESS
    tls: bool = True
    certificates: str | None = None
    credentials: bool = False
    accounts: bool = False
    qos: int = 1

    def __post_init__(self) -> None:
        given = (("--address", self.address != ADDRESS), ("--no-tls", not self.tls))
        for name, is_given in (*given, ("--credentials", self.credentials)):
            if self.fleet is not None and is_given:
                raise InputError(f"{name} and --fleet exclude each other: the fleet file says it per broker")

    def target(self, plan: bl.Plan) -> Target:
        """The target: as named, or the kind of the fleet's brokers."""
        from broadloom.deployment import fleet_target

        return fleet_target(None if self.fleet is None else bl.Fleet.load(self.fleet), plan, self.to)

    def settings(self, plan: bl.Plan, with_secrets: bool = False) -> Settings:
        """The settings of the links of a plan."""
        from broadloom.deployment import Settings, addresses_of, fleet_settings

        if self.fleet is not None:
            fleet = bl.Fleet.load(self.fleet)
            return fleet_settings(fleet, plan, self.certificates, self.accounts, self.qos, with_secrets)
        if with_secrets:
            raise InputError("--with-secrets needs --fleet, which says where the passwords are")
        return Settings(
            self.address,
            addresses_of(plan, self.to),
            self.tls,
            self.certificates,
            self.credentials,
            self.accounts,
            self.qos,
        )

    def notes(self, plan: bl.Plan) -> list[str]:
        """Lines about brokers without an address, and brokers of the fleet that are not in the plan."""
        from broadloom.deployment import address_notes, fleet_notes

        if self.fleet is not None:
            return list(fleet_notes(bl.Fleet.load(self.fleet), plan))
        return list(address_notes(plan, self.address, self.to))


def with_publishers(
    plan: bl.Plan, messages: Path | None, mode: str | None, elsewhere: Sequence[str] = ()
) -> bl.Plan:
    """The plan with the publishers of the options, which win over its own."""
    from broadloom.deployment import replace_publishers

    return replace_publishers(plan, mode, messages, elsewhere)


def deployed(plan: bl.Plan, least: str, slack: float) -> tuple[list[Tree], Wiring, list[Publication]]:
    """The trees of a plan, their wiring, and its publications."""
    from broadloom.deployment import plan_trees, publications_of, wire

    trees = plan_trees(plan, None, least, slack)
    return trees, wire(plan, trees), publications_of(plan)


def both_deployments(
    folders: tuple[Path, Path],
    options: DeployOptions,
    publishers: tuple[Path | None, str | None],
    trees: tuple[str, float],
    with_secrets: bool = False,
) -> tuple[Target, Deployment, Deployment]:
    """The target and the deployments of two plans.

    Args:
        folders: the folders of the plans; `none`, if there is no such folder: no links at all.
        options: where the brokers are, and how links authenticate.
        publishers: the table of messages, and the mode of publishers.
        trees: what trees have least of, and their slack.
        with_secrets: whether the files contain the fleet's passwords.
    """
    from broadloom.deployment import Deployment, export

    is_none = [str(folder) == NO_PLAN and not folder.exists() for folder in folders]
    if all(is_none):
        raise InputError(f"both plans are {NO_PLAN}; give the folder of a plan")
    known = [folder for folder, none in zip(folders, is_none, strict=True) if not none]
    plans = [
        bl.Plan.load(known[0] if none else folder) for folder, none in zip(folders, is_none, strict=True)
    ]
    target = [options.target(plan) for plan in plans][-1]
    everybody = [name for plan in plans for name in plan.interest.node_ids]
    sides = []
    for folder, plan, none in zip(folders, plans, is_none, strict=True):
        settings = options.settings(plan, with_secrets)
        try:
            chosen = with_publishers(plan, *publishers, everybody)
            wiring = target.adapt(deployed(chosen, *trees)[1])
            wiring = replace(wiring, brokers=(), wants={}, publishes={}, links=()) if none else wiring
            files = {} if none else export(wiring, target, settings)
            sides.append(Deployment(wiring, settings, files))
        except InputError as error:
            raise InputError(f"{folder}: {error}") from error
    return target, sides[0], sides[1]
