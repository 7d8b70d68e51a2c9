"""Change of running NATS brokers: NATS 2.14 and later read their links again, others restart.

An account has one tree of leaf nodes, and NATS cuts a ring for half a minute. So links that go are closed at
all brokers first, and then new links open, at all brokers at the same time. Core NATS keeps nothing for a
link that is away: messages that would cross a moved link in between are lost. If brokers must restart, so are
those for their clients. Where clients have an account of their own, nothing is lost: `nats_switch`.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from broadloom.deployment.apply import NEW, OLD, ApplyStep, DeploymentChange
from broadloom.deployment.broker_api import call_api
from broadloom.deployment.fleet_control import CONNECT_SECONDS, FleetControl, fleet_broker
from broadloom.deployment.fleet_file import Fleet
from broadloom.deployment.rollout import Deployment, nats_steps
from broadloom.deployment.targets import nats_leafnodes
from broadloom.deployment.wiring import Hop, Wiring
from broadloom.errors import InputError

COMMON = "links that stay"  # those that are in both deployments
RELOADS_SINCE = (2, 14)
MOST_BROKERS = 16  # changed at the same time
BANNER_SECONDS = 2.0
RELOAD_PAUSE = 0.005  # short: messages are lost meanwhile


class NatsRestarts(DeploymentChange):
    """A change of NATS brokers that cannot change links while they run."""

    def steps(self, at_once: bool = False) -> list[ApplyStep]:
        """The steps from the old deployment to the new one: batches of restarts that close no ring."""
        return _restart_steps(self.old, self.new, NEW, at_once)

    def back_steps(self, steps: Sequence[ApplyStep], done: int) -> list[ApplyStep]:
        """The steps back: all brokers that have stopped once restart together, with their old links."""
        begun = dict.fromkeys(step.brokers[0] for step in steps[: done + 1] if step.action == "stop")
        links = tuple(link[:2] for link in self.old.wiring.links)
        wait = ApplyStep("wait", self.old.wiring.linked_brokers(), side=OLD, links=links)
        return [*_together(list(begun), OLD), wait] if begun else []


def _restart_steps(old: Deployment, new: Deployment, side: str, at_once: bool) -> list[ApplyStep]:
    """Batches of restarts; brokers that join or leave restart with the first or the last batch."""
    batches = [step["restart"] for step in nats_steps(old, new, at_once)]
    known = {broker for batch in batches for broker in batch}
    linked = {name: one.wiring.linked_brokers() for name, one in (("old", old), ("new", new))}
    joining = [one for one in linked["new"] if one not in old.wiring.brokers and one not in known]
    leaving = [one for one in linked["old"] if one not in new.wiring.brokers and one not in known]
    batches = [batch for batch in (joining, *batches, leaving) if batch]
    steps = [step for batch in batches for step in _together(batch, side)]
    links = tuple(link[:2] for link in new.wiring.links)
    return [*steps, ApplyStep("wait", new.wiring.linked_brokers(), side=side, links=links)] if steps else []


def _together(brokers: Sequence[str], side: str) -> list[ApplyStep]:
    """The steps that restart brokers together; one without links has a file too: NATS must find it."""
    steps = [ApplyStep("stop", (broker,)) for broker in brokers]
    for broker in brokers:
        steps += [ApplyStep("install", (broker,), side=side), ApplyStep("start", (broker,))]
    return steps


def restart_steps(brokers: Iterable[str], side: str, at_once: bool) -> list[ApplyStep]:
    """The steps with which brokers that do not listen for links yet get a file that makes them listen."""
    if at_once:
        raise InputError("--at-once does not apply to NATS that reloads; leave it out")
    steps = []
    for broker in sorted(brokers):
        steps += [
            ApplyStep("stop", (broker,)),
            ApplyStep("install", (broker,), side=side),
            ApplyStep("start", (broker,)),
        ]
    return steps


def unfinished_restarts(steps: Sequence[ApplyStep], done: int, side: str) -> list[ApplyStep]:
    """The steps that start brokers again which were stopped and have not been started."""
    stopped = [step.brokers[0] for step in steps[: done + 1] if step.action == "stop"]
    started = {step.brokers[0] for step in steps[:done] if step.action == "start"}
    back = []
    for broker in stopped:
        if broker not in started:
            back += [ApplyStep("install", (broker,), side=side), ApplyStep("start", (broker,))]
    return back


class NatsReloads(DeploymentChange):
    """A change of NATS brokers that read their links again while they run.

    Attributes:
        not_listening: the brokers that do not listen for links.
    """

    not_listening: frozenset[str] = frozenset()

    def steps(self, at_once: bool = False) -> list[ApplyStep]:
        """The steps from the old deployment to the new one.

        A broker that does not listen for links yet restarts first, without links.
        """
        return [*restart_steps(self.not_listening, COMMON, at_once), *self._steps_to(NEW)]

    def back_steps(self, steps: Sequence[ApplyStep], done: int) -> list[ApplyStep]:
        """The steps back to the old deployment; a broker that has joined goes on listening."""
        back = unfinished_restarts(steps, done, COMMON)
        begun = {(step.action, step.side) for step in steps[: done + 1]}
        touched = begun & {("install", NEW), ("reload", COMMON), ("reload", NEW)}
        return [*back, *(self._steps_to(OLD) if touched else ())]

    def _steps_to(self, side: str) -> list[ApplyStep]:
        """The steps to one of the deployments: close what it does not have, then open what it has."""
        goal, other = (self.new, self.old) if side == NEW else (self.old, self.new)
        common = self.common()
        closing = _owners(other.wiring, common)
        opening = _owners(goal.wiring, common)
        changed = tuple(link[:2] for link in goal.wiring.links if link[:2] not in common)
        altered = {link[:2] for link in other.wiring.links}.intersection(changed)
        steps = [ApplyStep("install", (one,), side=side) for one in opening if one not in closing]
        if closing and (len(closing) > 1 or closing != opening or altered):
            steps.append(ApplyStep("reload", closing, side=COMMON))
        if opening:
            steps.append(ApplyStep("reload", opening, side=side))
        return [*steps, ApplyStep("wait", opening, side=side, links=changed)] if changed else steps

    def common(self) -> set[Hop]:
        """The links of both deployments that have the same address, and the same end as their hub."""
        sides = []
        for one in self:
            ends = {link[:2] for link in one.wiring.links}
            hubs = nats_leafnodes.hub_links(ends)
            sides.append({(end, one.settings.address_of(end[1]), end in hubs) for end in ends})
        return {ends for ends, *_ in sides[0] & sides[1]}


def _owners(wiring: Wiring, common: set[Hop]) -> tuple[str, ...]:
    """The brokers that own links which are not in both deployments."""
    return tuple(sorted({link.owner for link in wiring.links if link[:2] not in common}))


def monitored(fleet: Fleet, name: str, path: str) -> dict[str, Any]:
    """What the monitoring port of a broker says.

    Raises:
        InputError: the fleet file does not name the port.
        UnreachableError: it does not answer.
    """
    found = call_api(fleet_broker(fleet, name), "GET", path)
    return found if isinstance(found, dict) else {}


def can_reload(varz: dict[str, Any]) -> bool:
    """Whether a broker can change its links while it runs."""
    parts = str(varz.get("version", "")).split("-")[0].split(".")
    return tuple(int(part) for part in parts if part.isdigit()) >= RELOADS_SINCE


def listens_for_links(varz: dict[str, Any]) -> bool:
    """Whether a broker has a listener for links."""
    return bool(varz.get("leaf", {}).get("port"))


class NatsControl(FleetControl):
    """Changes the NATS brokers of a fleet, by the commands of its file.

    Args:
        fleet: the fleet.
        change: the change.
        patience: seconds for a broker to stop, to answer, to read its file, or to have its links up.
    """

    _needs: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "stop": ("stop", "start", "install"),
        "install": ("install",),
        "reload": ("reload", "install"),
    }

    def notes(self) -> list[str]:
        """What the operator must know before the change."""
        if isinstance(self._change, NatsReloads):
            text = (
                "NATS keeps nothing for a link that is away: messages that would cross a moved link between "
                "the two reloads are lost"
            )
        else:
            text = (
                "NATS before 2.14 cannot change links while it runs: brokers RESTART, and messages are LOST "
                "that are published meanwhile for their clients, or would cross their links"
            )
        return [text, *self._open_notes()]

    def _open_notes(self) -> list[str]:
        new = self._change.new
        return nats_leafnodes.open_listener_notes(new.wiring, new.settings)

    def _old_texts(self, broker: str) -> list[str]:
        """The files that a broker can have before the change: with passwords, or references to them."""
        wiring, settings, _ = self._change.old
        logins = {name for name, one in settings.brokers.items() if one.login is not None}
        if logins - set(settings.passwords):
            return []  # the passwords are not known, so neither is the file
        if broker not in wiring.linked_brokers():
            return ["", nats_leafnodes.NO_LINKS, *self._listening_files(broker)]
        references = nats_leafnodes.files(wiring, replace(settings, passwords={}))
        by_broker = dict(zip(wiring.brokers, references.values(), strict=True))
        return [self.text_of(broker, OLD), by_broker[broker]]

    def _listening_files(self, broker: str) -> list[str]:
        """The files of a broker that has no links before the change and listens for them."""
        known = next(side for side in self._change if broker in side.wiring.brokers)
        settings = known.settings, replace(known.settings, passwords={})
        return [nats_leafnodes.listening_file(self._change.old.wiring, broker, one) for one in settings]

    def _check_broker(self, name: str) -> list[str]:
        """Check that a broker answers."""
        self._require_answer(name, CONNECT_SECONDS)
        return []

    def take(self, step: ApplyStep) -> None:
        """Take one step."""
        if step.action == "reload":
            self.reload_all(step)
        elif step.action == "wait":
            side = self._change.old if step.side == OLD else self._change.new
            self._wait_for(side.wiring, {end for ends in step.links for end in ends})
        elif step.action == "install":
            self.install(step.brokers[0], step.side)
        else:
            getattr(self, step.action)(step.brokers[0])

    def reload_all(self, step: ApplyStep) -> None:
        """Reload brokers, all at the same time."""
        with ThreadPoolExecutor(MOST_BROKERS) as pool:
            for _ in pool.map(partial(self._reload, step.side), step.brokers):
                pass

    def text_of(self, broker: str, side: str) -> str:
        """The file of a broker."""
        change = self._change
        goal = change.old if side == OLD else change.new
        only = change.common() if isinstance(change, NatsReloads) and side == COMMON else None
        known = next((one for one in (goal, *change) if broker in one.wiring.brokers), goal)
        return nats_leafnodes.listening_file(goal.wiring, broker, known.settings, only)

    def _reload(self, side: str, broker: str) -> None:
        """Write the file of a broker, and have it read its configuration; it says when it has."""
        self.install(broker, side)
        before = self._load_time(broker)
        self._run(broker, "reload", is_done=lambda: False)
        self._until(
            lambda: self._load_time(broker) != before,
            f"broker {broker!r} has not read its configuration again (see its log)",
            pause=RELOAD_PAUSE,
        )

    def _load_time(self, broker: str) -> object:
        return self._ask(broker, "/varz").get("config_load_time")

    def _ask(self, broker: str, path: str) -> dict[str, Any]:
        """What the monitoring port of a broker says."""
        return monitored(self._fleet, broker, path)

    def _wait_for(self, wiring: Wiring, brokers: Iterable[str]) -> None:
        """Wait until brokers have the links that a deployment gives them."""
        for broker in sorted(brokers):
            peers = [end for link in wiring.links if broker in link[:2] for end in link[:2] if end != broker]
            self._until(
                partial(self._has_links, broker, peers),
                f"broker {broker!r} does not have the {len(peers)} links of the plan",
            )

    def _has_links(self, broker: str, peers: Sequence[str]) -> bool:
        """Whether a broker has links with others.

        Leaf nodes of the operator do not count, unless the broker does not say their names (NATS 2.9).
        """
        leafs = self._ask(broker, "/leafz").get("leafs") or []
        names = {leaf["name"] for leaf in leafs if leaf.get("name")}
        if not names:
            return len(leafs) >= len(peers)
        return names.issuperset(self._ask(peer, "/varz").get("server_name") for peer in peers)

    def _require_answer(self, name: str, seconds: float) -> None:
        """Wait until a broker greets a client."""
        address = self._broker(name).host_and_port()

        def answers() -> bool:
            try:
                with socket.create_connection((address.hostname, address.port), BANNER_SECONDS) as opened:
                    return opened.recv(5).startswith(b"INFO")
            except OSError:
                return False

        self._until(answers, f"broker {name!r} does not answer at {address}", seconds)
