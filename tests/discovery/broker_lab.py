"""Real mosquitto brokers with any configuration, and stand-ins for what mosquitto cannot be."""

import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

from broadloom.deployment.rehearsal.mosquitto_lab import (
    HOST,
    free_ports,
    killed_with_parent,
    listens,
    require_mosquitto,
)

START_SECONDS = 60


class SmallBroker:
    """A mosquitto broker: its folder, its port, and the address for fleet files."""

    def __init__(self, folder, settings, prefix=()):
        self.folder = folder
        self.settings = settings
        self.prefix = prefix
        (self.port,) = free_ports(1)
        self.address = f"{HOST}:{self.port}"
        self.config = folder / "mosquitto.conf"

    @contextmanager
    def running(self):
        """The broker accepts connections within the block."""
        self.folder.mkdir(exist_ok=True)
        user = "root" if os.geteuid() == 0 else "nobody"
        listener = f"listener {self.port} {HOST}\n{self.settings}\n"
        common = f"user {user}\npersistence_location {self.folder}/\nlog_dest stderr\nlog_timestamp true\n"
        self.config.write_text(common + listener)
        with (self.folder / "log").open("wb") as log:
            command = [*self.prefix, require_mosquitto(), "-c", str(self.config)]
            process = subprocess.Popen(
                [*killed_with_parent(), *command], stdout=log, stderr=log, start_new_session=True
            )
        try:
            end = time.monotonic() + START_SECONDS
            while not listens(self.port):
                assert process.poll() is None, (self.folder / "log").read_text()
                assert time.monotonic() < end
                time.sleep(0.01)
            yield self
        finally:
            os.killpg(process.pid, signal.SIGTERM)  # a prefix such as faketime has the broker as its child
            process.wait()


@contextmanager
def small_brokers(folder, **settings):
    """One running broker per keyword, by name; each value is the text of its configuration."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(SmallBroker(folder / name, text).running())
            for name, text in settings.items()
        }


def password_file(folder, **users):
    """A password file of mosquitto."""
    file = folder / "passwords"
    file.touch()
    for user, password in users.items():
        subprocess.run(["mosquitto_passwd", "-b", file, user, password], check=True, capture_output=True)
    file.chmod(0o644)
    return file


def secret(folder, name, password):
    """A file with a password that only its owner can read."""
    file = folder / name
    file.write_text(password)
    file.chmod(0o600)
    return str(file)


@contextmanager
def answering(reply):
    """A server that answers the first bytes of each connection with `reply(bytes)`; None closes it."""
    server = socket.create_server((HOST, 0))

    def serve(connection):
        with connection, suppress(OSError):
            connection.settimeout(10)
            answer = reply(connection.recv(65_536))
            if answer is not None:
                connection.sendall(answer)
                while connection.recv(65_536):
                    pass

    def accept():
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"{HOST}:{server.getsockname()[1]}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
