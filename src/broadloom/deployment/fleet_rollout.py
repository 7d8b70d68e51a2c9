"""Roll-out of a change to the running brokers of a fleet: mosquitto, RabbitMQ or NATS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from broadloom.deployment.apply import (
    ApplyStep,
    ChangeJournal,
    DeploymentChange,
    access_note,
    apply_change,
    change_counts,
    is_applied,
)
from broadloom.deployment.broker_api import call_api
from broadloom.deployment.exports import Target
from broadloom.deployment.fleet_control import PATIENCE, FleetControl, fleet_broker
from broadloom.deployment.fleet_file import Fleet
from broadloom.deployment.nats_switch import nats_change
from broadloom.deployment.rabbitmq_control import RabbitChange, RabbitControl
from broadloom.deployment.rollout import Deployment
from broadloom.errors import InputError
from broadloom.storage import JournalInUseError

JOURNAL = ".apply"  # suffix of the journal next to the fleet file


def roll_out(
    old: Deployment,
    new: Deployment,
    target: Target,
    fleet: Fleet,
    journal: Path | None = None,
    at_once: bool = False,
    dry_run: bool = False,
    back: bool = False,
    patience: float = PATIENCE,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Change the running brokers of a fleet from one deployment to another; returns counts.

    Args:
        old: the deployment in use.
        new: the new one.
        target: the kind of broker.
        fleet: how to reach, stop and start the brokers.
        journal: the file that records the steps; None: next to the fleet file, or the current folder.
        at_once: whether to restart all changing brokers together.
        dry_run: whether to return the steps that would be taken (`would`) with their `commands`, and take
            none. What can be checked without brokers is checked.
        back: whether to go back to the old deployment, from wherever the change is.
        patience: seconds for a broker to stop, to answer, or to have its links up.
        report: called with each step in words before it is taken.

    Raises:
        InputError: the fleet file lacks a command, or another change is under way.
        UnreachableError: a broker does not stop, start or answer; the same call goes on from there.
        StorageError: the journal cannot be written.
    """
    if target.name == "emqx":
        raise InputError("EMQX brokers cannot be changed by apply; take the steps of: broadloom deploy diff")
    path = journal or Path(fleet.path or "fleet.toml").with_suffix(JOURNAL)
    try:
        record = ChangeJournal(path if path.exists() or not dry_run else None)
    except JournalInUseError as error:
        raise InputError(
            f"another `deploy apply` of this fleet is running, which has {path} open; wait until it has ended"
        ) from error
    control: FleetControl | RabbitControl | None = None
    try:
        plain = DeploymentChange(old, new)
        if is_applied(plain, record, back):
            return change_counts((), 0, record, back) | {"already_applied": True, "notes": []}
        change, control = _change_of(old, new, target.name, fleet, patience, record.steps)
        steps = change.steps(at_once)
        notes = access_note(change, record)
        notes += control.notes() if steps or record.steps else []
        if dry_run:
            if record.digest is None:
                control.check_files(steps)
            planned = _planned(change, steps, record, back)
            return {
                "would": [step.text() for step in planned],
                "commands": [control.commands(step) for step in planned],
                "notes": notes,
            }
        tell = report or (lambda _: None)
        for text in notes:
            tell(text)
        if record.digest is None and not back:
            for text in control.check(steps):
                tell(text)
                notes.append(text)
        return apply_change(change, steps, control, record, back, tell) | {"notes": notes}
    finally:
        if control is not None:
            control.close()
        record.close()


def _change_of(
    old: Deployment, new: Deployment, kind: str, fleet: Fleet, patience: float, begun: Sequence[ApplyStep]
) -> tuple[DeploymentChange, FleetControl | RabbitControl]:
    """The change of brokers of a kind, and what takes its steps."""
    if kind == "rabbitmq":
        live = RabbitChange(old, new)
        return live, RabbitControl(live, partial(_call_broker, fleet), patience)
    if kind == "nats":
        return nats_change(old, new, fleet, patience, begun)
    plain = DeploymentChange(old, new)
    return plain, FleetControl(fleet, plain, patience)


def _call_broker(fleet: Fleet, name: str, method: str, path: str, body: object) -> Any:
    """Call the admin API of a broker of a fleet."""
    return call_api(fleet_broker(fleet, name), method, path, body)


def _planned(
    change: DeploymentChange, steps: Sequence[ApplyStep], journal: ChangeJournal, back: bool
) -> Sequence[ApplyStep]:
    """The steps that a call would take."""
    if back and not journal.is_going_back:
        return change.back_steps(journal.steps, journal.done)
    return (journal.steps or steps)[journal.done :]
