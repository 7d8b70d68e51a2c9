"""Make the moves of a plan, step by step, by an agent; it can be stopped and taken up again."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from broadloom.agents.moves.move import NEXT, State
from broadloom.agents.moves.moveplan import MovePlan, PlannedMove
from broadloom.errors import InputError
from broadloom.model import LOAD_TOLERANCE
from broadloom.progress import stage

log = logging.getLogger("broadloom.agents.moves")

POLL_SECONDS = 0.2


class RefusedError(InputError):
    """The agent does not begin a move, and says why."""


class Mover(Protocol):
    """Who makes moves: an `Operator`, or whatever a test has."""

    def request_to_move(self, client: str, to: str, key: str = "") -> dict[str, Any]:
        """Ask a client to move; the same move if the key is known."""

    def move(self, move: str) -> dict[str, Any]:
        """How far a move is."""


def run_moves(
    plan: MovePlan,
    mover: Mover,
    stop: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
) -> Counter[str]:
    """Ask the clients of each step to move, and wait until they have, or will not.

    A client that declines keeps its room, so each move is checked again before it is asked for: what no
    longer fits is left out. One that stays until later is not waited for; the agent asks it then. Each move
    has a key of the plan, so that a run that was stopped, or died, is taken up where it was by running it
    again.

    Args:
        plan: the moves.
        mover: who makes them.
        stop: asked now and then; when it says so, no more moves begin, and those under way are the agent's.
        sleep: how to wait.

    Returns:
        How many moves ended how: the names of states, `no_room` (others did not go), `refused` (by the
        agent), and, when stopped, `under_way` and `not_begun`.

    Examples:
        >>> import broadloom as bl
        >>> class Willing:
        ...     def request_to_move(self, client, to, key=""): return {"id": client}
        ...     def move(self, move): return {"state": "redirected"}
        >>> plan = bl.MovePlan(((("meter-1", "rome", "oslo", 2.0, 1.0),),))
        >>> dict(bl.run_moves(plan, Willing()))
        {'redirected': 1}
    """
    run = _Run(plan, mover, stop, sleep)
    with stage("move clients", plan.move_count) as done:
        for number, step in enumerate(plan.steps):
            run.step(number, step, done)
    return run.ended


class _Run:
    """A run under way: what brokers carry now, and who did not go along."""

    def __init__(
        self, plan: MovePlan, mover: Mover, stop: Callable[[], bool], sleep: Callable[[float], None]
    ) -> None:
        self._plan, self._mover, self._stop, self._sleep = plan, mover, stop, sleep
        self._load = dict(plan.load)
        self._strayed: set[str] = set()  # clients that are not where the plan has them
        self.ended: Counter[str] = Counter()

    def step(self, number: int, moves: Sequence[PlannedMove], done: Callable[[float], None]) -> None:
        """Make the moves of one step."""
        under_way: dict[str, PlannedMove] = {}
        for move in moves:
            if self._stop():
                self.ended["not_begun"] += 1
            elif move.client in self._strayed or not self._fits(move):
                self._end(move, "no_room")
            else:
                self._begin(move, f"{self._plan.key}:{number}:{move.client}", under_way)
        while under_way:
            for asked in list(under_way):
                state = self._mover.move(asked)["state"]
                if State(state) not in NEXT or state == State.STAYING:
                    move = under_way.pop(asked)
                    if state != State.STAYING:  # it may still come, and keeps its room at both
                        self._carry(move.home if state == State.REDIRECTED else move.to, -move.demand)
                    self._end(move, state)
            done(self.ended.total())
            if self._stop():
                self.ended["under_way"] += len(under_way)
                return
            if under_way:
                self._sleep(POLL_SECONDS)

    def _begin(self, move: PlannedMove, key: str, under_way: dict[str, PlannedMove]) -> None:
        try:
            under_way[self._mover.request_to_move(move.client, move.to, key)["id"]] = move
            self._carry(move.to, move.demand)  # at both brokers, while it moves
        except RefusedError as error:
            log.warning("%s does not move: %s", move.client, error)
            self._end(move, "refused")

    def _end(self, move: PlannedMove, how: str) -> None:
        self.ended[how] += 1
        if how != State.REDIRECTED:
            self._strayed.add(move.client)

    def _fits(self, move: PlannedMove) -> bool:
        room = self._plan.capacity.get(move.to, math.inf) * (1 + LOAD_TOLERANCE)
        return self._load.get(move.to, 0.0) + move.demand <= room

    def _carry(self, broker: str, demand: float) -> None:
        self._load[broker] = self._load.get(broker, 0.0) + demand
