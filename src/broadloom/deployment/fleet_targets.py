"""Deployment of a plan to a fleet: the target that fits its brokers, settings, and secrets of links."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from broadloom.checks import and_more
from broadloom.deployment.deployment_inputs import LINK_PORT_KINDS, Settings, addresses_of
from broadloom.deployment.exports import TARGETS, Target, target_named
from broadloom.deployment.fleet_file import LEAF_PORT, Fleet, FleetBroker
from broadloom.deployment.link_access import REFERENCE
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import Address, Login
from broadloom.plans import Plan

FIRST_NAMES = 5
_ANY_ADDRESS = "{broker}"  # the default of --address


def check_fleet(fleet: Fleet, plan: Plan) -> None:
    """Check that a fleet has all brokers of a plan.

    Raises:
        InputError: a broker of the plan is missing in the fleet.
    """
    missing = [name for name in plan.interest.node_ids if name not in fleet.brokers]
    if missing:
        where = fleet.path or "the fleet"
        raise InputError(
            f"{where} has no broker {missing[0]!r}{and_more(len(missing) - 1)}, but the plan has; "
            "add it there, or run discover and link again"
        )


def fleet_notes(fleet: Fleet, plan: Plan) -> Iterator[str]:
    """A line about the brokers of a fleet that a plan does not have, if there are some."""
    known = set(plan.interest.node_ids)
    others = [name for name in fleet.brokers if name not in known]
    if others:
        yield f"no links for {_first_names(others)}: in the fleet, not in the plan"


def address_notes(plan: Plan, pattern: str, to: str | None) -> Iterator[str]:
    """Lines on brokers without an address, and on ports and a pattern of `--address` that are not used."""
    known = addresses_of(plan)
    ported = [address for address in known.values() if to in LINK_PORT_KINDS and _has_port(address)]
    if ported:
        yield (
            f"{len(ported):,} addresses in the plan have a port, such as {ported[0]!r}; that is the port of "
            f"clients, so links use the default port of {to}, or what --fleet says"
        )
    if pattern != _ANY_ADDRESS and known:
        yield f"--address is not used for {len(known):,} of the brokers, whose address is in the plan"
    missing = [name for name in plan.interest.node_ids if name not in known]
    if pattern == _ANY_ADDRESS and missing:
        yield (
            f"{len(missing):,} brokers have no address in the plan, so links use the broker's id as its host "
            f"name, such as {missing[0]!r}; give --fleet, or --address '{{broker}}.example.org'"
        )


def _has_port(address: str) -> bool:
    return Address.parse(address, 1).port == Address.parse(address, 2).port


def fleet_target(fleet: Fleet | None, plan: Plan, to: str | None) -> Target:
    """The target of an export: as named, or the kind of the fleet's brokers.

    Raises:
        InputError: there is neither a name nor a fleet, the brokers of the plan are of several kinds, or of
            another kind than the name.
    """
    if fleet is None:
        if to is None:
            names = ", ".join(target.name for target in TARGETS)
            raise InputError(f"the kind of brokers is missing; give --to ({names}) or --fleet")
        return target_named(to)
    check_fleet(fleet, plan)
    brokers = [fleet.brokers[name] for name in plan.interest.node_ids]
    kinds = dict.fromkeys(broker.kind for broker in brokers)
    if len(kinds) > 1:
        raise InputError(
            f"brokers are of several kinds ({_by_kind(brokers, kinds)}), and native links join brokers of "
            "one kind only; link them live instead: broadloom controller"
        )
    kind = next(iter(kinds), to or TARGETS[0].name)
    if to is not None and to != kind:
        raise InputError(f"--to is {to}, but the brokers of the fleet are {kind}; leave --to out")
    return target_named(kind)


def _by_kind(brokers: Collection[FleetBroker], kinds: Collection[str]) -> str:
    """The names of brokers by their kind."""
    texts = []
    for kind in kinds:
        names = [broker.name for broker in brokers if broker.kind == kind]
        texts.append(f"{kind}: {_first_names(names)}")
    return "; ".join(texts)


def _first_names(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - FIRST_NAMES:,} more" if len(names) > FIRST_NAMES else ""
    return ", ".join(names[:FIRST_NAMES]) + more


def fleet_settings(
    fleet: Fleet,
    plan: Plan,
    certificates: str | None = None,
    accounts: bool = False,
    qos: int = 1,
    with_secrets: bool = False,
) -> Settings:
    """The settings of links between the brokers of a fleet.

    Args:
        fleet: the fleet; each broker has its own address, TLS files and login.
        plan: the plan, whose brokers count.
        certificates: the folder of certificates on each broker; None: the paths in the fleet file.
        accounts: as for `Settings`.
        qos: as for `Settings`.
        with_secrets: whether to read the passwords, for files that contain them.

    Raises:
        InputError: the fleet lacks a broker, or a secret cannot be used.
        StorageError: a secret cannot be read.

    Examples:
        >>> import broadloom as bl
        >>> plan = bl.link(bl.Interest.from_lists([["x"], ["x"]], node_ids=["rome", "oslo"]))
        >>> fleet = bl.Fleet([FleetBroker("rome", "10.0.0.1"), FleetBroker("oslo", "10.0.0.7:8884")])
        >>> fleet_settings(fleet, plan).address_of("rome")
        '10.0.0.1:8883'
    """
    check_fleet(fleet, plan)
    brokers = {name: fleet.brokers[name] for name in plan.interest.node_ids}
    passwords = {}
    if with_secrets:
        for name, broker in brokers.items():
            if broker.login is not None:
                passwords[name] = bridge_secret(broker.login.password(), name)
    return Settings(
        addresses={name: _address(broker) for name, broker in brokers.items()},
        tls=any(broker.tls is not None for broker in brokers.values()),
        certificates=certificates,
        credentials=any(broker.login is not None for broker in brokers.values()),
        accounts=accounts,
        qos=qos,
        brokers=brokers,
        passwords=passwords,
        fleet_file=None if fleet.path is None else str(Path(fleet.path).absolute()),
    )


def fleet_access(fleet: Fleet, broker: str) -> tuple[Address, Login]:
    """The address and the login of a broker of a fleet, with its password.

    Raises:
        InputError: the broker is not in the fleet, or the secret cannot be used.
        StorageError: the secret cannot be read.
    """
    if broker not in fleet.brokers:
        raise InputError(f"{fleet.path or 'the fleet'} has no broker {broker!r}; name one of its brokers")
    one = fleet.brokers[broker]
    return one.host_and_port(), one.mqtt_login()


def _address(broker: FleetBroker) -> str:
    """The address for links; NATS and RabbitMQ have another port for them than for clients."""
    address = broker.host_and_port()
    if broker.leaf_listen is not None:
        port = Address.parse(broker.leaf_listen, LEAF_PORT, "leaf_listen").port
        return str(Address(address.host, port))
    return address.host if broker.kind in LINK_PORT_KINDS else str(address)


def bridge_secret(password: str, broker: str) -> str:
    """A password that brokers read from their configuration as it is.

    Raises:
        InputError: a broker would read another password, or it looks like a reference.

    Examples:
        >>> bridge_secret("a # b", "rome")
        'a # b'
        >>> bridge_secret(" x", "rome")
        Traceback (most recent call last):
        broadloom.errors.InputError: the password of broker 'rome' begins or ends with a space, or has a ...
    """
    if (
        not password
        or password != password.strip()
        or re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", password)
    ):
        raise InputError(
            f"the password of broker {broker!r} begins or ends with a space, or has a line break or another "
            "control character, which a configuration file cannot hold; choose another password"
        )
    if REFERENCE in password:
        raise InputError(
            f"the password of broker {broker!r} contains {REFERENCE}, like the references in exports; choose "
            "another password"
        )
    return password
