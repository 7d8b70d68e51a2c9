"""Control of the running mosquitto brokers of a fleet: the operator's commands, and MQTT."""

from __future__ import annotations

import socket
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from broadloom.deployment.apply import NEW, OLD, ApplyStep, DeploymentChange, Message
from broadloom.deployment.fleet_file import Fleet, FleetBroker
from broadloom.deployment.fleet_targets import fleet_access
from broadloom.deployment.rollout import LinkSession
from broadloom.deployment.targets.mosquitto_bridges import remote_id
from broadloom.deployment.wiring import WiredLink
from broadloom.errors import InputError, UnreachableError, error_from_os
from broadloom.mqtt.paho import (
    ArrivalWitness,
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

    def __init__(self, fleet: Fleet, change: DeploymentChange, patience: float = PATIENCE) -> None:
        self._fleet = fleet
        self._patience = patience
        self._texts = {OLD: change.old.texts(), NEW: change.new.texts()}
        self._qos = change.new.settings.qos
        self._witnesses: dict[str, ArrivalWitness] = {}

    def check(self, steps: Sequence[ApplyStep]) -> None:
        """Check that each broker that restarts has the commands that it needs, and answers.

        Raises:
            InputError: a command is missing.
            UnreachableError: a broker does not answer.
        """
        brokers = [step.brokers[0] for step in steps if step.action == "stop"]
        for name in brokers:
            broker = self._broker(name)
            hooks = broker.hooks
            missing = [one for one in ("stop", "start") if getattr(hooks, one) is None]
            if hooks.path is None:
                missing += [one for one in ("install", "remove") if getattr(hooks, one) is None]
            if missing:
                raise InputError(
                    f"broker {name!r} has no {missing[0]} command in {self._fleet.path or 'the fleet'}; give "
                    f'hooks = {{ path = "...", stop = "...", start = "..." }}'
                )
            for one in ("install", "remove", "stop", "start"):
                hooks.shown(one, self._values(broker, "links.conf"))
        for name in brokers:
            self._require_answer(name, CONNECT_SECONDS)

    # BrokerControl.

    def stop(self, broker: str) -> None:
        """Stop a broker."""
        self._run(broker, "stop", is_done=lambda: not self._listens(broker))
        self._until(
            lambda: not self._listens(broker), f"broker {broker!r} still answers after its stop command"
        )

    def start(self, broker: str) -> None:
        """Start a broker, and wait until it answers."""
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

    def drain(self, session: LinkSession, keep: Callable[[list[Message]], None]) -> None:
        """Take all messages that wait in a session, and end it."""
        address, login = fleet_access(self._fleet, session.broker)
        drain_session(address, session.client, login, keep)

    def watch(self, broker: str, filters: Sequence[str]) -> None:
        """Remember from now on which messages arrive at a broker."""
        if broker not in self._witnesses:
            address, login = fleet_access(self._fleet, broker)
            self._witnesses[broker] = ArrivalWitness(address, f"broadloom-watch-{broker}", login)
        self._witnesses[broker].watch(filters)

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

    def recorded(self) -> list[list[Message]]:
        """The messages that were kept at each watched broker."""
        return [witness.recorded() for witness in self._witnesses.values()]

    def missing(self, broker: str, messages: Sequence[Message], seconds: float) -> list[Message]:
        """Those messages that have not arrived at a broker, and do not arrive in some seconds."""
        witness = self._witnesses.get(broker)  # none: a killed process watched, and forgot what it saw
        return list(messages) if witness is None else witness.missing(messages, seconds)

    def publish(self, broker: str, messages: Sequence[Message]) -> None:
        """Publish messages at a broker."""
        publish_messages(*fleet_access(self._fleet, broker), messages)

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
        return {"broker": broker.name, "host": address.hostname, "port": str(address.port), "file": file}

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
                raise UnreachableError(f"{what}{why}, {patience:g} s long")
            time.sleep(pause)

    def _wait_at(self, owner: str, links: Sequence[WiredLink]) -> None:
        """Wait until the links of one broker are up."""
        missing = {STATE.format(remote_id(link)): link for link in links}
        address, login = fleet_access(self._fleet, owner)
        client = new_client(f"broadloom-apply-{owner}", login)

        def on_connect(client: Client, _data: object, _flags: object, _code: object, _p: object) -> None:
            client.subscribe([(topic, 0) for topic in missing])

        def on_message(_client: Client, _data: object, message: MQTTMessage) -> None:
            if message.payload == b"1":
                missing.pop(message.topic, None)

        client.on_connect = on_connect
        client.on_message = on_message
        try:
            connect(client, address, clean=True, seconds=0)
            loop_until(client, lambda: not missing, self._patience)
        except OSError as error:
            raise UnreachableError(f"{address}: {error.strerror or error}") from error
        finally:
            close_sockets(client)
        if missing:
            link = next(iter(missing.values()))
            raise UnreachableError(
                f"the link of {link.owner!r} to {link.peer!r} is not up after {self._patience:g} s; see the "
                f"log of {link.owner!r}"
            )


def _write_private(path: Path, text: str) -> None:
    """Write a file that can have passwords: others cannot read it, unless they could read the one before."""
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else FILE_MODE
    except OSError as error:
        raise error_from_os(f"cannot write {path}", error) from error
    write_file(path, text.encode(), mode)
