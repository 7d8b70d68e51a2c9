"""An agent that moves clients and kills itself once, when a move has reached a state.

    python tests/agents/moves/killed_mover.py CONFIG STATE BEFORE

The state is that of `MoveState`, or `leaving`: the client is being disconnected from home. BEFORE is 1 if it
is killed before the state is in the journal, otherwise 0. A file next to CONFIG tells that it was killed.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from broadloom.agents.links.client_watch import watch_clients
from broadloom.agents.moves import move_service
from broadloom.agents.moves.move_registry import Change, Move, MoveJournal
from broadloom.agents.moves.ordinary_steps import LEAVING


def main(config: Path, state: str, before: bool) -> None:
    """Run the agent."""
    killed = config.with_suffix(".killed")

    def kill_at(changes: Sequence[Change], is_before: bool) -> None:
        reached = any(isinstance(one, Move) and state_of(one) == state for one in changes)
        if reached and is_before == before and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    class KillingJournal(MoveJournal):
        def append(self, changes: Sequence[Change]) -> None:
            kill_at(changes, True)
            super().append(changes)
            kill_at(changes, False)

    move_service.MoveJournal = KillingJournal  # type: ignore[misc]
    with move_service.serving(move_service.AgentConfig.load(config), see=watch_clients) as service:
        service.thread.join()


def state_of(move: Move) -> str:
    """The state, with the moment in which a client is sent away as one of its own."""
    return "leaving" if move.note == LEAVING else str(move.state)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "1")
