"""Exports: native configuration files per broker, checked before they are written, and their comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from broadloom._version import VERSION
from broadloom.deployment.deployment_inputs import Settings
from broadloom.deployment.link_access import check_texts
from broadloom.deployment.loop_checks import check
from broadloom.deployment.removals import (
    REMOVAL_FILE,
    emqx_removal,
    mosquitto_removal,
    nats_removal,
    rabbitmq_removal,
)
from broadloom.deployment.rollout import (
    Deployment,
    RolloutStep,
    changes,
    differing_files,
    mosquitto_steps,
    nats_steps,
    rabbitmq_steps,
)
from broadloom.deployment.targets import (
    emqx_rules,
    mosquitto_bridges,
    nats_leafnodes,
    rabbitmq_federation,
)
from broadloom.deployment.trees import Tree
from broadloom.deployment.wiring import WiredLink, Wiring
from broadloom.errors import InputError
from broadloom.storage import new_folder

RECORD = "deployment.json"
# What an export can contain; a folder with anything else is not replaced.
_ENDINGS = (".conf", ".cfg", ".map", ".json", Path(REMOVAL_FILE).suffix, mosquitto_bridges.ACL_FOLDER)


@dataclass(frozen=True)
class Target:
    """A kind of broker.

    Attributes:
        name: the name in options.
        summary: a description of its files.
        files: creates the file of each broker, by name.
        read_links: reads the links from such files.
        steps: computes the steps from one export to another.
        removal: creates the files that take the links away again, by name.
        live: a sentence on what it can change without a restart.
        advice: settings of brokers that links need and files do not set, each a line of configuration.
        shared: files that are the same for all brokers, by name.
        adapt: the links that this kind of broker needs of a wiring.
    """

    name: str
    summary: str
    files: Callable[[Wiring, Settings], dict[str, str]]
    read_links: Callable[[Mapping[str, str], Wiring], list[WiredLink]]
    steps: Callable[[Deployment, Deployment, bool], list[RolloutStep]]
    removal: Callable[[Wiring, Settings], dict[str, str]]
    live: str
    advice: tuple[str, ...] = ()
    shared: Mapping[str, str] = field(default_factory=dict)
    adapt: Callable[[Wiring], Wiring] = lambda wiring: wiring


def _emqx_steps(old: Deployment, new: Deployment, at_once: bool) -> list[RolloutStep]:
    """All calls that remove, at all brokers, and then all calls that add; nothing restarts."""
    if at_once:
        raise InputError("--at-once does not apply to EMQX, which restarts no broker; leave it out")
    parts = emqx_rules.change(old.wiring, new.wiring, old.settings, new.settings)
    return [{"restart": [], "call": calls} for calls in parts if calls]


TARGETS = (
    Target(
        "mosquitto",
        "one file of bridges per broker",
        mosquitto_bridges.files,
        mosquitto_bridges.read_links,
        mosquitto_steps,
        mosquitto_removal,
        live="mosquitto reads bridges when it starts: the broker that opens a link restarts",
        advice=tuple(line for line, _ in mosquitto_bridges.ADVICE),
        shared={mosquitto_bridges.ACL_FILE: mosquitto_bridges.acl_rules()},
    ),
    Target(
        "rabbitmq",
        "one list of API calls per broker",
        rabbitmq_federation.files,
        rabbitmq_federation.read_links,
        rabbitmq_steps,
        rabbitmq_removal,
        live="RabbitMQ changes everything live, by its HTTP API: nothing restarts",
    ),
    Target(
        "nats",
        "one file of leaf nodes per broker",
        nats_leafnodes.files,
        nats_leafnodes.read_links,
        nats_steps,
        nats_removal,
        live=(
            "NATS reads links again when it reloads (before 2.14: when it restarts), and keeps nothing for a "
            "link that is away"
        ),
        adapt=nats_leafnodes.joined,
    ),
    Target(
        "emqx",
        "one list of API calls per broker",
        emqx_rules.files,
        emqx_rules.read_links,
        _emqx_steps,
        emqx_removal,
        live="EMQX changes everything live, by its REST API; old links go before new ones come",
    ),
)


def target_named(name: str) -> Target:
    """The target with a name.

    Examples:
        >>> target_named("mosquitto").summary
        'one file of bridges per broker'
    """
    for target in TARGETS:
        if target.name == name:
            return target
    raise InputError(f"target {name!r} is unknown; choose {', '.join(target.name for target in TARGETS)}")


def export(wiring: Wiring, target: Target, settings: Settings) -> dict[str, str]:
    """The file of every broker, by name; the links in the files have passed the checks of a wiring.

    Raises:
        InputError: the links would loop, deliver twice or leave out a subscriber, or the target cannot
            have them.
    """
    check_texts(wiring, settings)
    check(wiring)
    files = target.files(wiring, settings)
    check(replace(wiring, links=tuple(target.read_links(files, wiring))))
    return files


def removal(wiring: Wiring, target: Target, settings: Settings) -> dict[str, str]:
    """The files that take the links of an export away again, by name.

    Raises:
        InputError: the links could not have been exported.
    """
    export(wiring, target, settings)
    return target.removal(wiring, settings)


def compare_exports(
    old: Deployment, new: Deployment, target: Target, at_once: bool = False
) -> dict[str, Any]:
    """The changes from one export to another, per broker, with the steps in order; ready for JSON.

    Args:
        old: the running deployment.
        new: the new deployment.
        target: the kind of broker.
        at_once: whether to restart all changing brokers together.

    Examples:
        >>> link, target = WiredLink("a", "b", ("x",), ("x",)), target_named("mosquitto")
        >>> wiring = Wiring(("a", "b"), {"a": ("x",), "b": ("x",)}, {}, (link,))
        >>> old, new = (
        ...     Deployment(wiring, settings, export(wiring, target, settings))
        ...     for settings in (Settings(), Settings("{broker}.example.org"))
        ... )
        >>> compare_exports(old, new, target)["restarts"]
        ['a']
    """
    steps = target.steps(old, new, at_once)
    before = dict.fromkeys(old.wiring.brokers)
    after = dict.fromkeys(new.wiring.brokers)
    addresses = {
        broker: (old.settings.address_of(broker), new.settings.address_of(broker))
        for broker in after
        if broker in before
    }
    return {
        "target": target.name,
        "live": target.live,
        "joining": [broker for broker in after if broker not in before],
        "leaving": [broker for broker in before if broker not in after],
        "moving": {broker: both for broker, both in addresses.items() if both[0] != both[1]},
        "changes": [change.record() for change in changes(old.wiring, new.wiring)],
        "files": differing_files(old, new),
        "restarts": [broker for step in steps for broker in step["restart"]],
        "order": steps,
    }


def save_export(
    folder: Path,
    files: Mapping[str, str],
    record: Mapping[str, Any],
    overwrite: bool = False,
    secret: bool = False,
) -> None:
    """Write the files and their record as a folder, which appears by one atomic rename.

    Args:
        folder: the folder.
        files: the texts of the files, by name; a name can have a folder.
        record: the record.
        overwrite: whether to replace an earlier export.
        secret: whether only the owner can read the files (mode 600, in a folder of mode 700).
    """
    if overwrite and folder.exists() and not (folder / RECORD).exists():
        raise InputError(f"{folder} has no {RECORD}, so it is not an export; choose another folder")
    with new_folder(folder, overwrite, endings=_ENDINGS) as scratch:
        if secret:
            scratch.chmod(0o700)
        for name, text in files.items():
            file = scratch / name
            file.parent.mkdir(exist_ok=True)
            file.touch(0o600 if secret else 0o666)
            file.write_text(text)
        (scratch / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def export_record(
    wiring: Wiring, trees: Sequence[Tree], target: Target, settings: Settings
) -> dict[str, Any]:
    """The record of an export: the links, the trees by the names of brokers, and the settings."""
    names = wiring.brokers

    def named(pairs: Sequence[tuple[int, int]]) -> list[list[str]]:
        return [[names[u], names[v]] for u, v in pairs]

    return {
        "broadloom": VERSION,
        "target": target.name,
        "tls": settings.tls,
        "qos": settings.qos,
        "brokers": list(names),
        "links": [link._asdict() for link in wiring.links],
        "trees": [
            {"filters": list(tree.filters), "links": named(tree.edges), "publishers": named(tree.leaves)}
            for tree in trees
        ],
    }
