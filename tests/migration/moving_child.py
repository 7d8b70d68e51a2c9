"""What runs in processes of their own, to be killed: an agent, and a client that writes what it gets."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from broadloom.migration.client import Message, MovingClient
from broadloom.migration.config import AgentConfig
from broadloom.migration.journal import MoveJournal
from broadloom.migration.move import Move
from broadloom.migration.registry import Change
from broadloom.migration.service import serving

KILL = signal.SIGKILL


def run_agent(config: Path, state: str, when: str) -> None:
    """An agent that kills itself once, just before or just after the journal has a move in a state."""
    once = config.with_suffix(".killed")

    def die_at(changes: Sequence[Change], moment: str) -> None:
        hit = any(isinstance(one, Move) and one.state == state for one in changes)
        if hit and moment == when and not once.exists():
            once.touch()
            os.kill(os.getpid(), KILL)

    class Deadly(MoveJournal):
        def append(self, changes: Sequence[Change]) -> None:
            die_at(changes, "before")
            super().append(changes)
            die_at(changes, "after")

    sys.modules["broadloom.migration.service"].MoveJournal = Deadly  # type: ignore[attr-defined]
    with serving(AgentConfig.load(config)) as service:
        service.thread.join()


def run_client(name: str, brokers: dict[str, str], filters: Sequence[str], folder: Path) -> None:
    """A client that writes each message down before the broker is told that it arrived."""
    with (folder / "got").open("ab", buffering=0) as file:

        def heard(message: Message) -> None:
            file.write(message.payload + b"\n")

        identify = lambda _topic, payload, _user: payload.decode()  # noqa: E731
        client = MovingClient(name, brokers, "h", heard, memory=folder / "home", identify=identify)
        client.subscribe(*filters)
        client.start()
        signal.pause()
