"""An agent that moves clients, and kills itself or holds all moves once, when a move has reached a state.

    python tests/agents/moves/killed_mover.py CONFIG STATE MOMENT

The state is that of `MoveState`, or `leaving`: the client is being disconnected from home. The moment is
`before` or `after`: it kills itself before or after the state is in the journal; or `hold`: moves that have
reached the state stay in it until the file CONFIG with suffix `.released` exists. The file with suffix
`.killed` tells that it has killed itself.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from broadloom.agents.links.client_watch import watch_clients
from broadloom.agents.moves import move_agent, move_service
from broadloom.agents.moves.move_registry import LEAVING, Change, Move, MoveJournal
from broadloom.agents.moves.ordinary_steps import OrdinarySteps


def main(config: Path, state: str, moment: str) -> None:
    """Run the agent."""
    killed = config.with_suffix(".killed")
    released = config.with_suffix(".released")

    def kill_at(changes: Sequence[Change], now: str) -> None:
        reached = any(isinstance(one, Move) and state_of(one) == state for one in changes)
        if reached and now == moment and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    class KillingJournal(MoveJournal):
        def append(self, changes: Sequence[Change]) -> None:
            kill_at(changes, "before")
            super().append(changes)
            kill_at(changes, "after")

    class HeldSteps(OrdinarySteps):
        held: ClassVar[list[tuple[str, str, str]]] = []  # reports of the relay

        def is_held(self, move: Move) -> bool:
            return moment == "hold" and state_of(move) == state and not released.exists()

        def advance(self, move: Move, waited: float, now: float) -> None:
            if self.is_held(move):
                return
            if self.held:
                super()._on_report(*self.held.pop(0))
            else:
                super().advance(move, waited, now)

        def _on_report(self, move_id: str, event: str, note: str) -> None:
            if self.held or self.is_held(self._registry.moves[move_id]):
                self.held.append((move_id, event, note))
            else:
                super()._on_report(move_id, event, note)

    move_service.MoveJournal = KillingJournal  # type: ignore[misc]
    move_agent.OrdinarySteps = HeldSteps  # type: ignore[misc]
    with move_service.serving(move_service.AgentConfig.load(config), see=watch_clients) as service:
        service.thread.join()


def state_of(move: Move) -> str:
    """The state, with the moment in which a client is sent away as one of its own."""
    return "leaving" if move.note == LEAVING else str(move.state)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
