"""A link that can be cut: what comes to a port is passed on to another one, and back, until it is cut."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress


class Relay:
    """Passes connections on from a port of its own to a broker's.

    Attributes:
        port: where it listens.
    """

    def __init__(self, host: str, port: int, target: int) -> None:
        self.port = port
        self._host, self._target = host, target
        self._server: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._sockets: list[socket.socket] = []

    def mend(self) -> None:
        """Take connections."""
        self._server = socket.create_server((self._host, self.port))
        self._acceptor = _run(self._accept, self._server)

    def cut(self) -> None:
        """Close all connections, and take no more."""
        if self._server is not None and self._acceptor is not None:
            _shut(self._server)
            self._acceptor.join()
        for one in self._sockets:
            _shut(one)
        self._server, self._acceptor, self._sockets = None, None, []

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                near, _ = server.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((self._host, self._target))
            except OSError:  # the broker is down; it is tried again with the next connection
                near.close()
                continue
            self._sockets += (near, far)
            _run(self._pass_on, near, far)
            _run(self._pass_on, far, near)

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        _shut(source)
        _shut(sink)


def _run(work: Callable[..., None], *arguments: socket.socket) -> threading.Thread:
    thread = threading.Thread(target=work, args=arguments, daemon=True)
    thread.start()
    return thread


def _shut(one: socket.socket) -> None:
    """Wake whoever waits for a socket, and close it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
