"""Control of the running mosquitto brokers of a fleet: the operator's commands, and MQTT."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from broadloom.deployment.apply import NEW, OLD, ApplyStep, DeploymentChange, Message
from broadloom.deployment.broker_rights import LINK_STATES, try_rights
from broadloom.deployment.deployment_inputs import link_name
from broadloom.deployment.fleet_file import Fleet, FleetBroker
from broadloom.deployment.fleet_hooks import COMMANDS
from broadloom.deployment.fleet_targets import fleet_access
from broadloom.deployment.rollout import LinkSession, without_comments
from broadloom.deployment.targets.mosquitto_bridges import remote_id
from broadloom.deployment.wiring import WiredLink
from broadloom.errors import InputError, StorageError, UnreachableError, error_from_os
from broadloom.mqtt.paho import (
    ArrivalWitness,
    HeldMessage,
    close_sockets,
    connect,
    drain_session,
    loop_until,
    new_client,
    publish_messages,
    request_once,
    update_session,
)
from broadloom.storage import write_file

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

PATIENCE = 60.0  # seconds for a broker to stop, to answer, or to have its links up
PAUSE = 0.05
CONNECT_SECONDS = 2.0
FILE_MODE = 0o640  # of a new file: it can have passwords
MOST_BROKERS = 16  # asked at the same time
MOST_RULES = 5  # that an error names
STATE = "$SYS/broker/connection/{}/state"
_FAILED = 0x80


def fleet_broker(fleet: Fleet, name: str) -> FleetBroker:
    """A broker of a fleet.

    Raises:
        InputError: the fleet does not have it.
    """
    if name not in fleet.brokers:
        raise InputError(f"{fleet.path or 'the fleet'} has no broker {name!r}; add it there")
    return fleet.brokers[name]


def watch_name(broker: str) -> str:
    """The client id of the session that watches what arrives at a broker during a change."""
    return f"broadloom-apply-watch-{broker}"


class FleetControl:
    """Changes the brokers of a fleet, by the commands of its file.

    Args:
        fleet: the fleet.
        change: the change, whose files are installed.
        patience: seconds for a broker to stop, to answer, or to have its links up.

    Attributes:
        transit: seconds within which a message arrives everywhere, if nothing changes.
    """

    transit = 0.5
    # The commands that a broker needs if a change or its rollback has a step; a path replaces the last two.
    _needs: ClassVar[Mapping[str, tuple[str, ...]]] = {"stop": ("stop", "start", "install", "remove")}

    def __init__(self, fleet: Fleet, change: DeploymentChange, patience: float = PATIENCE) -> None:
        self._fleet = fleet
        self._change = change
        self._patience = patience
        self._texts = {OLD: change.old.texts(), NEW: change.new.texts()}
        self._qos = change.new.settings.qos
        self._witnesses: dict[str, ArrivalWitness] = {}

    def check(self, steps: Sequence[ApplyStep]) -> list[str]:
        """Check before a change that brokers have what its steps need, and that all of them answer.

        Returns:
            What the operator must know before the change.

        Raises:
            InputError: a command is missing, a file is not that of the old deployment, or a login lacks a
                right.
            MissingExtraError: the program of a command is not found.
            StorageError: a file cannot be written.
            UnreachableError: a broker does not answer.
        """
        self.check_files(steps)
        with ThreadPoolExecutor(MOST_BROKERS) as pool:
            return [text for found in pool.map(self._check_broker, self._asked(steps)) for text in found]

    def _check_broker(self, name: str) -> list[str]:
        """Check that a broker answers, and that its login has the rights that a change needs.

        Returns:
            A line for each link of it that the change removes, and that is down.
        """
        self._require_answer(name, CONNECT_SECONDS)
        broker = self._broker(name)
        sides = [side.wiring.links for side in self._change]
        filters = {text for links in sides for link in links if name in link[:2] for text in link.filters()}
        owned = [link for link in sides[0] if link.owner == name and (link.out or link.into)]
        rights = try_rights(broker, filters)
        if rights.lacking:
            user = "anonymous clients" if broker.login is None else f"user {broker.login.user!r}"
            rules = ", ".join(rights.lacking[:MOST_RULES])
            more = f" and {len(rights.lacking) - MOST_RULES} more" if len(rights.lacking) > MOST_RULES else ""
            raise InputError(
                f"broker {name!r} denies {user} what a change needs; give these rights, in its acl_file for "
                f"instance: {rules}{more}"
            )
        if owned and not rights.states:
            raise InputError(
                f"broker {name!r} shows no link, and the old plan has {len(owned)} that it opens; give the "
                f"plan in use first, or give its login the right: topic read {LINK_STATES}"
            )
        known = {STATE.format(remote_id(link)) for link in owned}
        if unknown := _links_up(name, rights.states) - known:
            example = min(unknown).split("/")[3].removeprefix("r.")
            raise InputError(
                f"broker {name!r} has links up that the old plan lacks, {len(unknown):,} in number, such as "
                f"{example}; give the plan in use first"
            )
        kept = {link[:2] for link in sides[1]}
        down = [one for one in owned if rights.states.get(STATE.format(remote_id(one))) != b"1"]
        return [
            f"the link of {link.owner!r} to {link.peer!r} is down, and the change removes it: messages that "
            f"wait for it at {link.owner!r} are lost"
            for link in down
            if link[:2] not in kept
        ]

    def check_files(self, steps: Sequence[ApplyStep]) -> None:
        """The part of `check` that needs no network: the commands, and the files on this machine."""
        needed = defaultdict[str, set[str]](set)
        for step in steps:
            for name in step.brokers:
                needed[name].update(self._needs.get(step.action, ()))
        for name, commands in needed.items():
            if commands:
                self._check_commands(self._broker(name), commands)
        self._check_paths(name for name, commands in needed.items() if commands)
        if steps:
            for name in dict.fromkeys(name for texts in self._texts.values() for name in texts):
                self._check_old_file(self._broker(name))

    def _check_paths(self, names: Iterable[str]) -> None:
        """Raise if two brokers have the same file: one would get the links of the other."""
        owners: dict[Path, str] = {}
        for name in names:
            path = self._broker(name).hooks.path
            if path is not None and (other := owners.setdefault(Path(path).resolve(), name)) != name:
                raise InputError(
                    f"brokers {other!r} and {name!r} have the same hooks.path {path} in "
                    f"{self._fleet.path or 'the fleet'}; give each its own, or an install command"
                )

    def _check_commands(self, broker: FleetBroker, commands: Collection[str]) -> None:
        hooks = broker.hooks
        if hooks.path is not None:
            commands = set(commands) - {"install", "remove"}
            check_writable(Path(hooks.path))
        missing = [one for one in COMMANDS if one in commands and getattr(hooks, one) is None]
        if missing:
            names = [one for one in COMMANDS if one in commands and one not in ("install", "remove")]
            example = ", ".join(f'{one} = "..."' for one in ("path", *names))
            raise InputError(
                f"broker {broker.name!r} has no {missing[0]} command in {self._fleet.path or 'the fleet'}; "
                f"give hooks = {{ {example} }}"
            )
        for one in commands:
            hooks.check(one, self._values(broker, _temporary_file()))

    def _check_old_file(self, broker: FleetBroker) -> None:
        """Raise if the file of a broker on this machine is not that of the old deployment."""
        path = broker.hooks.path
        expected = self._old_texts(broker.name)
        if path is None or not expected:
            return
        try:
            text = Path(path).read_text(errors="replace") if Path(path).exists() else ""
        except OSError as error:
            raise error_from_os(f"cannot read {path}", error) from error
        found = _setting_lines(text)
        if all(found != _setting_lines(one) for one in expected):
            known = _setting_lines(expected[0])
            if known and not Path(path).exists():
                raise InputError(
                    f"{path} of broker {broker.name!r} does not exist, and the old plan has links there; "
                    "give the plan in use first, or move the broker's file of `deploy export` to this path"
                )
            gone, other = Counter(known) - Counter(found), Counter(found) - Counter(known)
            raise InputError(
                f"{path} of broker {broker.name!r} is not the file of the old plan: {gone.total():,} of its "
                f"{len(known):,} lines are missing, {other.total():,} others are there; give the plan in use "
                "first, or install the file of `deploy export` of the old plan and restart the broker"
            )

    def _old_texts(self, broker: str) -> list[str]:
        """The files that a broker can have before the change, which mean the same; empty: not known."""
        return [self._texts[OLD].get(broker, "")]

    def _asked(self, steps: Sequence[ApplyStep]) -> list[str]:
        """The brokers that take part in steps."""
        names: dict[str, None] = {}
        for step in steps:
            names |= dict.fromkeys(step.brokers)
            names |= dict.fromkeys(session.broker for session in step.sessions)
            names |= dict.fromkeys(end for link in step.links for end in link)
            if step.action == "watch":
                names |= dict.fromkeys(self._change.watched(step))
        return list(names)

    def commands(self, step: ApplyStep) -> list[str]:
        """The commands that a step runs, and the files that it writes or deletes."""
        found = []
        actions = ("install", "reload") if step.action == "reload" else (step.action,)
        for broker in map(self._broker, step.brokers):
            for action in (one for one in actions if one in COMMANDS):
                if action in ("install", "remove") and broker.hooks.path is not None:
                    found.append(f"{'write' if action == 'install' else 'delete'} {broker.hooks.path}")
                else:
                    found.append(broker.hooks.shown(action, self._values(broker, _temporary_file())))
        return found

    # BrokerControl.

    def stop(self, broker: str) -> None:
        """Stop a broker."""
        self._run(broker, "stop", is_done=lambda: not self._listens(broker))
        self._until(lambda: not self._listens(broker), f"broker {broker!r} does not stop by its stop command")

    def start(self, broker: str) -> None:
        """Start a broker, and wait until it answers.

        One that runs already was started by hand, or by a process that was killed: it can have read the file
        of before, so it stops first.
        """
        if self._listens(broker):
            self.stop(broker)
        self._expect_duplicates()
        self._run(broker, "start", is_done=lambda: self._listens(broker))
        self._require_answer(broker, self._patience)

    def install(self, broker: str, side: str) -> None:
        """Write the links of a broker, those of the old or the new deployment."""
        text = self.text_of(broker, side)
        one = self._broker(broker)
        if one.hooks.path is not None:
            _write_private(Path(one.hooks.path), text)
            return
        with tempfile.TemporaryDirectory(prefix="broadloom-apply-") as folder:
            file = Path(folder) / "broadloom.conf"
            _write_private(file, text)
            one.hooks.run("install", self._values(one, str(file)))

    def text_of(self, broker: str, side: str) -> str:
        """The file with the links of a broker."""
        return self._texts[side][broker]

    def notes(self) -> list[str]:
        """What the operator must know before the change."""
        return []

    def remove(self, broker: str) -> None:
        """Remove the links of a broker."""
        one = self._broker(broker)
        if one.hooks.path is None:
            one.hooks.run("remove", self._values(one, ""))
            return
        try:
            Path(one.hooks.path).unlink(missing_ok=True)
        except OSError as error:
            raise error_from_os(f"cannot remove {one.hooks.path}", error) from error

    def wait(self, links: Sequence[WiredLink]) -> None:
        """Wait until links are up, as their owners say below `$SYS/broker/connection`."""
        owned = defaultdict[str, list[WiredLink]](list)
        for link in links:
            if link.out or link.into:
                owned[link.owner].append(link)
        for owner, own in owned.items():
            self._wait_at(owner, own)
        self._stop_recording()

    def update(self, action: str, session: LinkSession) -> None:
        """Open or close a session."""
        address, login = fleet_access(self._fleet, session.broker)
        update_session(action, address, session.client, session.filters, self._qos, login)

    def drain(self, session: LinkSession, keep: Callable[[list[HeldMessage]], None]) -> None:
        """Take all messages that wait in a session, and end it."""
        address, login = fleet_access(self._fleet, session.broker)
        drain_session(address, session.client, login, keep)

    def watch(self, broker: str, filters: Sequence[str]) -> None:
        """Remember from now on which messages arrive at a broker."""
        if broker not in self._witnesses:
            address, login = fleet_access(self._fleet, broker)
            self._witnesses[broker] = ArrivalWitness(address, watch_name(broker), login)
        self._witnesses[broker].watch(filters)

    def end_watch(self, broker: str) -> None:
        """End the session that watched a broker; it can be one that a killed process has left."""
        if broker in self._witnesses:
            self._witnesses.pop(broker).close()
        address, login = fleet_access(self._fleet, broker)
        code, reason = request_once(address, watch_name(broker), login, lambda _: None, clean=True)
        if code is None or code >= _FAILED:
            raise UnreachableError(f"cannot end the session {watch_name(broker)!r} at {address}: {reason}")

    def record(self) -> None:
        """Keep what arrives at the watched brokers, until the links of a batch are up.

        Before it begins, what was under way when the watch began has passed; and before it returns, what
        was under way when it began.
        """
        time.sleep(self.transit)
        for witness in self._witnesses.values():
            witness.is_recording, witness.is_doubtful = True, False
        time.sleep(self.transit)

    def _expect_duplicates(self) -> None:
        """From the first start of a batch on, links send again what was not acknowledged."""
        for witness in self._witnesses.values():
            witness.is_doubtful = True

    def _stop_recording(self) -> None:
        """Keep nothing from now on; what brokers had received before they stopped has come by then."""
        recording = [witness for witness in self._witnesses.values() if witness.is_recording]
        for witness in recording:
            witness.catch_up()
        for witness in recording:
            witness.is_recording = False

    def recorded(self) -> dict[str, list[HeldMessage]]:
        """The messages that were kept at each watched broker."""
        return {broker: witness.recorded() for broker, witness in self._witnesses.items()}

    def missing(self, broker: str, messages: Sequence[Message], seconds: float) -> list[Message]:
        """Those messages that have not arrived at a broker, and do not arrive in some seconds."""
        witness = self._witnesses.get(broker)  # none: a killed process watched, and forgot what it saw
        return list(messages) if witness is None else witness.missing(messages, seconds)

    def publish(self, broker: str, messages: Sequence[HeldMessage]) -> None:
        """Publish messages at a broker; it does not retain one that another has replaced since."""
        witnesses = self._witnesses.values()
        checked = [
            one._replace(retain=one.retain and not any(witness.has_replaced(one) for witness in witnesses))
            for one in messages
        ]
        publish_messages(*fleet_access(self._fleet, broker), checked)

    def close(self) -> None:
        """End the sessions that watched what arrives."""
        for witness in self._witnesses.values():
            witness.close()
        self._witnesses.clear()

    # Details.

    def _broker(self, name: str) -> FleetBroker:
        return fleet_broker(self._fleet, name)

    @staticmethod
    def _values(broker: FleetBroker, file: str) -> Mapping[str, str]:
        address = broker.host_and_port()
        host = {"host": address.hostname, "uri_host": address.host}
        return {"broker": broker.name, **host, "port": str(address.port), "file": file}

    def _run(self, name: str, command: str, is_done: Callable[[], bool]) -> None:
        """Run a command; one that fails is no fault if its work is done, by an earlier process perhaps."""
        broker = self._broker(name)
        try:
            broker.hooks.run(command, self._values(broker, ""))
        except UnreachableError:
            if not is_done():
                raise

    def _listens(self, name: str) -> bool:
        address = self._broker(name).host_and_port()
        try:
            socket.create_connection((address.hostname, address.port), CONNECT_SECONDS).close()
        except OSError:
            return False
        return True

    def _require_answer(self, name: str, seconds: float) -> None:
        address, login = fleet_access(self._fleet, name)
        reason = ""

        def answers() -> bool:
            nonlocal reason
            code, reason = request_once(address, f"broadloom-apply-{name}", login, lambda _: None, clean=True)
            return code is not None and code < _FAILED

        self._until(answers, f"broker {name!r} does not answer at {address}", seconds, lambda: reason)

    def _until(
        self,
        condition: Callable[[], bool],
        what: str,
        seconds: float | None = None,
        reason: Callable[[], str] = str,
        pause: float = PAUSE,
    ) -> None:
        """Wait for a condition."""
        patience = self._patience if seconds is None else seconds
        end = time.monotonic() + patience
        while not condition():
            if time.monotonic() > end:
                why = f" ({reason()})" if reason() else ""
                raise UnreachableError(f"{what}{why} within {patience:g} s")
            time.sleep(pause)

    def _wait_at(self, owner: str, links: Sequence[WiredLink]) -> None:
        """Wait until the links of one broker are up."""
        missing = {STATE.format(remote_id(link)): link for link in links}
        is_told = False
        address, login = fleet_access(self._fleet, owner)
        client = new_client(f"broadloom-apply-{owner}", login)

        def on_connect(client: Client, _data: object, _flags: object, _code: object, _p: object) -> None:
            client.subscribe([(topic, 0) for topic in missing])

        def on_message(_client: Client, _data: object, message: MQTTMessage) -> None:
            nonlocal is_told
            is_told = True
            if message.payload == b"1":
                missing.pop(message.topic, None)

        client.on_connect = on_connect
        client.on_message = on_message
        end = time.monotonic() + self._patience
        while missing and time.monotonic() < end:
            try:
                connect(client, address, clean=True, seconds=0)
                loop_until(client, lambda: not missing, end - time.monotonic())
            except OSError as error:
                if time.monotonic() > end:
                    raise UnreachableError(f"{address}: {error.strerror or error}") from error
            finally:
                close_sockets(client)
            if missing:  # the connection is lost
                time.sleep(PAUSE)
        if missing:
            link = next(iter(missing.values()))
            right = "" if is_told else f", and whether the login of {link.owner!r} can read {LINK_STATES}"
            raise UnreachableError(
                f"the link of {link.owner!r} to {link.peer!r} is not up after {self._patience:g} s; see the "
                f"log of {link.owner!r}{right}"
            )


def _temporary_file() -> str:
    """A path such as an install command gets."""
    return str(Path(tempfile.gettempdir()) / "broadloom-apply-file" / "broadloom.conf")


def _links_up(broker: str, states: Mapping[str, bytes]) -> set[str]:
    """The topics of the links that a broker opens and that are up."""
    prefix = STATE.split("{")[0] + f"r.{link_name(broker, '')}"
    return {topic for topic, state in states.items() if topic.startswith(prefix) and state == b"1"}


def _setting_lines(text: str) -> list[str]:
    """The lines of a file that mean something, but for passwords, which change by themselves."""
    lines = (line.strip() for line in without_comments(text))
    return [line for line in lines if line and not line.startswith("remote_password ")]


def check_writable(path: Path) -> None:
    """Check that a file can be written, and keeps its owner.

    Raises:
        InputError: it exists and is not a file, or one of its parents is not a folder.
        StorageError: there is no right to write it.
    """
    target = path.resolve()
    try:
        if target.exists() and not target.is_file():
            raise InputError(f"{path} exists and is not a file; choose another path")
        folder = next(one for one in target.parents if one.exists())
        if not folder.is_dir():
            raise InputError(f"cannot write {path}: {folder} is not a folder; choose another path")
        user = os.geteuid() if hasattr(os, "geteuid") else 0
        is_foreign = user != 0 and target.exists() and target.stat().st_uid != user
    except OSError as error:
        raise error_from_os(f"cannot write {path}", error) from error
    remedy = "run this as a user who can, or give install and remove commands instead of path"
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError(f"cannot write {path}: no right to write in {folder}; {remedy}")
    if is_foreign:
        raise StorageError(f"cannot write {path}: it belongs to another user, and must stay so; {remedy}")


def _write_private(path: Path, text: str) -> None:
    """Write a file that can have passwords: others cannot read it, unless they could read the one before.

    It has the owner and the group of the one before; a new file has the group of its folder, if the user can
    give it that.
    """
    try:
        before = path.stat() if path.exists() else None
        folder = path.parent.stat() if path.parent.exists() else None
    except OSError as error:
        raise error_from_os(f"cannot write {path}", error) from error
    if before is not None:
        write_file(path, text.encode(), before.st_mode & 0o777, (before.st_uid, before.st_gid))
        return
    owner = None
    if sys.platform != "win32" and folder is not None:
        user = os.geteuid()
        can_give = user == 0 or folder.st_gid in (os.getegid(), *os.getgroups())
        owner = (user, folder.st_gid) if can_give else None
    write_file(path, text.encode(), FILE_MODE, owner)
