"""From the assignment that runs to the one that is planned: which moves, in which order (paper 5, IV-C).

Moves are made in steps. In each step the moves of the most gain go first, as many as fit: a client counts at
both brokers while it moves, so no capacity is exceeded on the way. Where clients wait for each other's room
in a ring, one is parked at a broker with room to spare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.agents.moves.moveplan import MovePlan, PlannedMove
from broadloom.checks import check_count
from broadloom.errors import InputError
from broadloom.measures.market import MovingCost
from broadloom.model import MarketProblem
from broadloom.plans import MarketResult
from broadloom.progress import stage


def plan_moves(
    problem: MarketProblem, present: ArrayLike, planned: ArrayLike, at_once: int = 10, core: str = "mst"
) -> MovePlan:
    """Order the moves from one assignment to another.

    Args:
        problem: who sends and wants what, what links cost, and what brokers carry.
        present: the broker of each user now.
        planned: the broker that each user should have.
        at_once: how many users may move at the same time.
        core: how traffic crosses the core, which decides what a move gains.

    Returns:
        The moves in steps. Where not all fit, `blocked` has the rest, and `advice` says what would free them.

    Raises:
        InputError: an assignment of another size, an unknown broker, or a plan that overloads a broker.

    Examples:
        >>> import broadloom as bl
        >>> market = bl.MarketProblem([[3], [0]], [[0], [1]], [[1, 2], [2, 1]], [[0, 1], [1, 0]], capacity=9)
        >>> plan = bl.plan_moves(market, present=[0, 1], planned=[0, 0])
        >>> [(move.client, move.to) for move in plan.steps[0]]
        [('1', '0')]
    """
    check_count(at_once, "at_once", minimum=1)
    start, goal = (MarketResult(problem, np.asarray(given, np.int32), core) for given in (present, planned))
    if not goal.feasible:
        over = goal.metrics()["overload"]
        raise InputError(f"the plan overloads a broker by {over:.6g}; plan within the capacities")
    order = _Order(problem, start.broker_of, goal.broker_of, MovingCost(problem, start.broker_of, core))
    with stage("order moves", len(order.left)) as done:
        total = len(order.left)
        while order.left and (order.step(at_once) or order.park()):
            done(total - len(order.left))
    return order.plan(start.cost)


@dataclass
class _Order:
    """An order in the making.

    Attributes:
        problem: the market.
        at: the broker of each user after the steps so far.
        goal: the broker that each user should have.
        cost: what the assignment costs after the steps so far.
    """

    problem: MarketProblem
    at: NDArray[np.int32]
    goal: NDArray[np.int32]
    cost: MovingCost

    def __post_init__(self) -> None:
        self.at = self.at.copy()
        self.left = [int(user) for user in np.flatnonzero(self.at != self.goal)]
        count = self.problem.broker_count
        self.load: NDArray[np.float64] = np.bincount(self.at, self.problem.demand, count).astype(np.float64)
        self.steps: list[tuple[PlannedMove, ...]] = []
        self._parked: set[int] = set()
        self._first_load = self.load.copy()

    def step(self, at_once: int) -> bool:
        """Add a step: the moves of the most gain that fit together; false if none does."""
        gains = {user: -self.cost.change(user, int(self.goal[user])) for user in self.left}
        chosen: list[PlannedMove] = []
        coming = self.load.copy()
        for user in sorted(self.left, key=lambda one: (-gains[one], one)):
            if len(chosen) == at_once:
                break
            if self._fits(user, int(self.goal[user]), coming):
                chosen.append(self._planned(user, int(self.goal[user]), gains[user]))
                coming[self.goal[user]] += self.problem.demand[user]
        self._make(chosen)
        return bool(chosen)

    def park(self) -> bool:
        """Add a step that parks one user elsewhere, so that others can move; false if nobody can be."""
        least = {int(self.goal[user]): np.inf for user in self.left}  # demand that waits to come to a broker
        for user in self.left:
            least[self.goal[user]] = min(least[self.goal[user]], self.problem.demand[user])
        ranked = [
            ((not self._frees(user, least[self.at[user]]), self.cost.change(user, spare)), user, spare)
            for user in self.left
            if user not in self._parked and self.at[user] in least
            for spare in range(self.problem.broker_count)
            if spare not in (self.at[user], self.goal[user]) and self._fits(user, spare, self.load)
        ]
        if not ranked:
            return False
        (_, change), user, spare = min(ranked)
        self._parked.add(user)
        self._make([self._planned(user, spare, -change)])
        return True

    def _frees(self, user: int, waiting: float) -> bool:
        """Whether a user's going lets another one in at once."""
        home = self.at[user]
        return bool(self.load[home] - self.problem.demand[user] + waiting <= self.problem.limit[home])

    def _fits(self, user: int, broker: int, load: NDArray[np.float64]) -> bool:
        return bool(load[broker] + self.problem.demand[user] <= self.problem.limit[broker])

    def _planned(self, user: int, to: int, gain: float) -> PlannedMove:
        brokers = self.problem.broker_ids
        return PlannedMove(
            self.problem.user_ids[user],
            brokers[self.at[user]],
            brokers[to],
            gain,
            float(self.problem.demand[user]),
        )

    def _make(self, moves: list[PlannedMove]) -> None:
        """Take a step."""
        if not moves:
            return
        self.steps.append(tuple(moves))
        user_of = {self.problem.user_ids[user]: user for user in self.left}
        broker_of = {name: place for place, name in enumerate(self.problem.broker_ids)}
        for move in moves:
            user, to = user_of[move.client], broker_of[move.to]
            self.load[self.at[user]] -= self.problem.demand[user]
            self.load[to] += self.problem.demand[user]
            self.cost.move(user, to)
            self.at[user] = to
        self.left = [user for user in self.left if self.at[user] != self.goal[user]]

    def plan(self, cost_before: float) -> MovePlan:
        """What has come of it."""
        brokers = self.problem.broker_ids
        blocked = [self._planned(user, int(self.goal[user]), 0.0) for user in self.left]
        return MovePlan(
            steps=tuple(self.steps),
            blocked=tuple(blocked),
            advice=self._advice(),
            cost_before=cost_before,
            cost_after=self.cost.cost.total,
            load=dict(zip(brokers, self._first_load.tolist(), strict=True)),
            capacity=dict(zip(brokers, self.problem.capacity.tolist(), strict=True)),
        )

    def _advice(self) -> str:
        """The least that would let one of those who are blocked move."""
        if not self.left:
            return ""
        short = {
            user: self.load[self.goal[user]] + self.problem.demand[user] - self.problem.limit[self.goal[user]]
            for user in self.left
        }
        user = min(self.left, key=lambda one: (short[one], one))
        name, broker = self.problem.user_ids[user], self.problem.broker_ids[self.goal[user]]
        return (
            f"{len(self.left):,} users wait for each other's room; {short[user]:.6g} more capacity at "
            f"{broker!r}, or {self.problem.demand[user]:.6g} at a spare broker, would let {name!r} move"
        )
