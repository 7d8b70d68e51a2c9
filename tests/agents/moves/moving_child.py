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
    """Run an agent that kills itself once, just before or just after it journals a move in a state."""
    killed = config.with_suffix(".killed")

    def kill_at(changes: Sequence[Change], moment: str) -> None:
        reached = any(isinstance(change, Move) and change.state == state for change in changes)
        if reached and moment == when and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), KILL)

    class KillingJournal(MoveJournal):
        def append(self, changes: Sequence[Change]) -> None:
            kill_at(changes, "before")
            super().append(changes)
            kill_at(changes, "after")

    sys.modules["broadloom.agents.moves.move_service"].MoveJournal = KillingJournal  # type: ignore[attr-defined]
    with serving(AgentConfig.load(config)) as service:
        service.thread.join()


def policy_for(state: str) -> Policy:
    """The policy that leads to a state: for `staying`, stay for a second first; otherwise accept."""
    ends: list[float] = []

    def answer(request: MoveRequest) -> PolicyAnswer:
        ends.append(time.time() + 1.0)
        return stay_until(ends[0])(request)

    return answer if state == "staying" else accept


def run_client(name: str, brokers: dict[str, str], filters: Sequence[str], folder: Path, state: str) -> None:
    """Run a client that writes each message to a file before it acknowledges it."""
    with (folder / "got").open("ab", buffering=0) as file:

        def write(message: ClientMessage) -> None:
            file.write(message.payload + b"\n")

        identify = lambda _topic, payload, _user: payload.decode()  # noqa: E731
        policy = policy_for(state)
        memory = folder / "home"
        client = MovingClient(name, brokers, "h", write, policy, memory=memory, identify=identify, plain=True)
        client.subscribe(*filters)
        client.start()
        signal.pause()
