"""Native configuration for real brokers, checked before it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from broadloom._version import VERSION
from broadloom.deployment.deployment_inputs import Settings
from broadloom.deployment.loop_checks import check
from broadloom.deployment.rollout import (
    Deployment,
    Step,
    changes,
    differing_files,
    mosquitto_steps,
    nats_steps,
    rabbitmq_steps,
)
from broadloom.deployment.targets import mosquitto_bridges, nats_leafnodes, rabbitmq_federation
from broadloom.deployment.trees import Tree
from broadloom.deployment.wiring import WiredLink, Wiring
from broadloom.errors import InputError
from broadloom.storage import new_folder

RECORD = "deployment.json"


@dataclass(frozen=True)
class Target:
    """A kind of broker.

    Attributes:
        name: as users ask for it.
        summary: what is written for it.
        files: the file of each broker, by name.
        read_links: the links that such files say.
        steps: how one export becomes another.
        live: what it can change while it runs, in words.
        shared: files that are the same for all brokers, by name.
    """

    name: str
    summary: str
    files: Callable[[Wiring, Settings], dict[str, str]]
    read_links: Callable[[Mapping[str, str], Wiring], list[WiredLink]]
    steps: Callable[[Deployment, Deployment, bool], list[Step]]
    live: str
    shared: Mapping[str, str] = field(default_factory=dict)


TARGETS = (
    Target(
        "mosquitto",
        "a file of bridges a broker",
        mosquitto_bridges.files,
        mosquitto_bridges.read_links,
        mosquitto_steps,
        live="mosquitto reads bridges when it starts: the broker that opens a link restarts",
        shared={mosquitto_bridges.ACL_FILE: mosquitto_bridges.acl_rules()},
    ),
    Target(
        "rabbitmq",
        "a list of API calls a broker",
        rabbitmq_federation.files,
        rabbitmq_federation.read_links,
        rabbitmq_steps,
        live="RabbitMQ changes everything live, by its HTTP API: nothing restarts",
    ),
    Target(
        "nats",
        "a file of leaf nodes a broker",
        nats_leafnodes.files,
        nats_leafnodes.read_links,
        nats_steps,
        live="NATS reads leaf nodes when it starts, and keeps nothing for a link that is away",
    ),
)


def target_named(name: str) -> Target:
    """The target of a name.

    Examples:
        >>> target_named("mosquitto").summary
        'a file of bridges a broker'
    """
    for target in TARGETS:
        if target.name == name:
            return target
    raise InputError(f"no target {name!r}; there are {', '.join(target.name for target in TARGETS)}")


def export(wiring: Wiring, target: Target, settings: Settings) -> dict[str, str]:
    """The files of every broker, after a check of the links that they say.

    Raises:
        InputError: the links would loop, send twice or leave a publisher out; or the target cannot have them.
    """
    check(wiring)
    written = target.files(wiring, settings)
    check(replace(wiring, links=tuple(target.read_links(written, wiring))))
    return written


def compare_exports(
    old: Deployment, new: Deployment, target: Target, at_once: bool = False
) -> dict[str, Any]:
    """What changes from one export to another, at which broker, and in which order, as JSON has it.

    Args:
        old: what runs today.
        new: what is to run.
        target: the kind of broker.
        at_once: restart all brokers that change together.

    Examples:
        >>> link, target = WiredLink("a", "b", ("x",), ("x",)), target_named("mosquitto")
        >>> wiring = Wiring(("a", "b"), {"a": ("x",), "b": ("x",)}, {}, (link,))
        >>> old, new = (
        ...     Deployment(wiring, places, export(wiring, target, places))
        ...     for places in (Settings(), Settings("{broker}.example.org"))
        ... )
        >>> compare_exports(old, new, target)["restarts"]
        ['a']
    """
    steps = target.steps(old, new, at_once)
    before, after = (dict.fromkeys(side.wiring.brokers) for side in (old, new))
    places = {
        broker: (old.settings.address_of(broker), new.settings.address_of(broker))
        for broker in after
        if broker in before
    }
    return {
        "target": target.name,
        "live": target.live,
        "joining": [broker for broker in after if broker not in before],
        "leaving": [broker for broker in before if broker not in after],
        "moving": {broker: (here, there) for broker, (here, there) in places.items() if here != there},
        "changes": [one.record() for one in changes(old.wiring, new.wiring)],
        "files": differing_files(old, new),
        "restarts": [broker for step in steps for broker in step["restart"]],
        "order": steps,
    }


def save(
    folder: Path, written: Mapping[str, str], record: Mapping[str, Any], overwrite: bool = False
) -> None:
    """Write the files and their record as a folder that appears at its place by one rename."""
    if overwrite and folder.exists() and not (folder / RECORD).exists():
        raise InputError(f"{folder} has no {RECORD}, so it is not an export; choose another place")
    with new_folder(folder, overwrite, endings=(".conf", ".json")) as scratch:
        for name, text in written.items():
            (scratch / name).write_text(text)
        (scratch / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n")


def record_of(wiring: Wiring, trees: Sequence[Tree], target: Target, settings: Settings) -> dict[str, Any]:
    """What an export is made of: the trees, by the names of brokers, and how they were written."""
    names = wiring.brokers

    def named(pairs: Sequence[tuple[int, int]]) -> list[list[str]]:
        return [[names[u], names[v]] for u, v in pairs]

    return {
        "broadloom": VERSION,
        "target": target.name,
        "tls": settings.tls,
        "qos": settings.qos,
        "brokers": list(names),
        "trees": [
            {"filters": list(tree.filters), "links": named(tree.edges), "publishers": named(tree.leaves)}
            for tree in trees
        ],
    }
