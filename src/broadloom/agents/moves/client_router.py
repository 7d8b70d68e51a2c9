"""Routers in front of brokers: the map from client ids to brokers, in its file and in HAProxy's memory."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from broadloom.deployment.targets.haproxy_router import map_key, map_text, read_map
from broadloom.errors import BroadloomError, StorageError, UnreachableError
from broadloom.mqtt.endpoint import Address
from broadloom.storage import write_file

SECONDS = 5.0
MOST_ANSWER = 64 << 20  # bytes of a map


class HaproxyRouter:
    """The map of one or more HAProxys, from client ids to brokers.

    The file is written before HAProxy is told, so that a router that starts at any moment has the map. A
    change without which a client cannot connect is made in the routers also if the file cannot be written. A
    router that does not answer does not keep changes from the others.

    Args:
        sockets: the runtime sockets, each the path of a Unix socket or `host:port`.
        path: the map file, by the path that the routers' configuration has.

    Examples:
        >>> HaproxyRouter([], None).send({"meter-1": "broker-rome"})
    """

    def __init__(self, sockets: Sequence[str], path: Path | None) -> None:
        self._sockets = tuple(sockets)
        self._path = path
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}  # backends by percent-encoded client id
        self._is_saved = True
        if path is not None and path.exists():
            self._known = read_map(path.read_text())

    def send(self, backends: Mapping[str, str], is_urgent: bool = False) -> None:
        """Change the backends of some clients, in the file and in all routers.

        Args:
            backends: the new backends by client.
            is_urgent: whether routers are told although the file cannot be written; `synchronize` does that
                later.

        Raises:
            UnreachableError: a router does not answer, or refuses; the file and the others have the change.
            StorageError: the file cannot be written; nothing is changed, unless it is urgent.
        """
        changed = {map_key(client): backend for client, backend in backends.items()}
        errors: list[BroadloomError] = []
        with self._lock:
            if not self._is_saved or not changed.items() <= self._known.items():
                try:
                    self._write(self._known | changed)
                except StorageError as error:
                    if not is_urgent:
                        raise
                    errors.append(error)
                self._known |= changed
            errors += self._failures(lambda router: self._tell(router, changed))
        if errors:
            raise errors[0]

    def synchronize(self) -> None:
        """Tell routers what they lack: one that has restarted elsewhere has forgotten changes.

        A file that could not be written is written again.

        Raises:
            UnreachableError: a router does not answer; the file and the others are up to date.
            StorageError: the file cannot be written; the routers are up to date.
        """
        with self._lock:
            errors: list[BroadloomError] = [*self._failures(self._tell_missing)]
            if not self._is_saved:
                try:
                    self._write(self._known)
                except StorageError as error:
                    errors.append(error)
        if errors:
            raise errors[0]

    def _failures(self, work: Callable[[str], None]) -> list[UnreachableError]:
        """Do something at each router; returns the errors of those where it fails."""
        errors = []
        for router in self._sockets:
            try:
                work(router)
            except UnreachableError as error:
                errors.append(error)
        return errors

    def _tell_missing(self, router: str) -> None:
        shown = self._ask(router, f"show map {self._path}")
        has = {row[1]: row[2] for row in map(str.split, shown.splitlines()) if len(row) == 3}
        wrong = {key: value for key, value in self._known.items() if has.get(key) != value}
        if wrong:
            self._tell(router, wrong)

    def _write(self, backends: Mapping[str, str]) -> None:
        self._is_saved = False
        if self._path is not None:
            lines = [f"{key} {backend}" for key, backend in sorted(backends.items())]
            text = map_text({}) + "".join(f"{line}\n" for line in lines)
            write_file(self._path, text.encode(), mode=0o644)  # HAProxy reads it as its own user
        self._is_saved = True

    def _tell(self, router: str, backends: Mapping[str, str]) -> None:
        for key, backend in backends.items():
            answer = self._ask(router, f"set map {self._path} {key} {backend}").strip()
            if answer.startswith("entry not found"):
                answer = self._ask(router, f"add map {self._path} {key} {backend}").strip()
            if answer:
                raise UnreachableError(f"the router at {router} refuses a change of its map: {answer:.120}")

    def _ask(self, router: str, command: str) -> str:
        try:
            with _connected(router) as connection:
                connection.sendall(command.encode() + b"\n")
                parts = []
                size = 0
                while part := connection.recv(65_536):
                    parts.append(part)
                    size += len(part)
                    if size > MOST_ANSWER:
                        raise UnreachableError(f"the router at {router} sends too much")
        except OSError as error:
            if isinstance(error, UnreachableError):
                raise
            reason = error.strerror or error
            raise UnreachableError(f"the router at {router} does not answer: {reason}") from error
        return b"".join(parts).decode(errors="replace")


def _connected(router: str) -> socket.socket:
    if "/" not in router:
        address = Address.parse(router, what="a router's socket")
        return socket.create_connection((address.hostname, address.port), SECONDS)
    if sys.platform == "win32":
        raise UnreachableError(f"the router's socket {router} is a Unix socket; give host:port on Windows")
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(SECONDS)
        connection.connect(router)
    except BaseException:
        connection.close()
        raise
    return connection
