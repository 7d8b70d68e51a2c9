"""Child processes to be killed: an agent, and a client that writes the messages it gets to a file."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from broadloom.agents.moves.control_messages import MoveRequest, Policy, PolicyAnswer, accept, stay_until
from broadloom.agents.moves.move_registry import Change, Move, MoveJournal
from broadloom.agents.moves.move_service import AgentConfig, serving
from broadloom.agents.moves.moving_client import ClientMessage, MovingClient

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

    sys.modules["broadloom.agents.moves.move_service"].MoveJournal = Deadly  # type: ignore[attr-defined]
    with serving(AgentConfig.load(config)) as service:
        service.thread.join()


def policy_for(state: str) -> Policy:
    """One that leads to a state: for `staying`, stay for a second after the first request; then accept."""
    moments: list[float] = []

    def answer(request: MoveRequest) -> PolicyAnswer:
        moments.append(time.time() + 1.0)
        return stay_until(moments[0])(request)

    return answer if state == "staying" else accept


def run_client(name: str, brokers: dict[str, str], filters: Sequence[str], folder: Path, state: str) -> None:
    """A client that writes each message down before the broker is told that it arrived."""
    with (folder / "got").open("ab", buffering=0) as file:

        def heard(message: ClientMessage) -> None:
            file.write(message.payload + b"\n")

        identify = lambda _topic, payload, _user: payload.decode()  # noqa: E731
        policy, memory = policy_for(state), folder / "home"
        client = MovingClient(name, brokers, "h", heard, policy, memory=memory, identify=identify)
        client.subscribe(*filters)
        client.start()
        signal.pause()
