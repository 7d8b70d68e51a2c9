"""Plans of moves: the order of moves from one assignment to another, and their execution (paper 5, IV-C).

Moves are made in steps. Each step has the moves of the highest gain that fit together: a client counts at
both brokers while it moves, so no capacity is ever exceeded. Where clients wait for each other's capacity in
a ring, one of them is parked at a broker with spare capacity.
"""

from __future__ import annotations

import json
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom._version import VERSION
from broadloom.agents.moves.move_registry import COMING, NEXT, MoveState
from broadloom.assignment.market import MovingCost
from broadloom.checks import (
    check_count,
    check_flag,
    check_instance,
    check_number,
    check_path,
    check_text,
    ordered_list,
    shown,
)
from broadloom.errors import InputError, StorageError
from broadloom.model import LOAD_TOLERANCE, MarketProblem
from broadloom.plans import MarketResult
from broadloom.progress import stage
from broadloom.storage import committed, new_folder

FILE = "moves.json"
OTHER_FIELDS = "advice", "cost_before", "cost_after", "load", "capacity", "key"
log = logging.getLogger("broadloom.agents.moves")

POLL_SECONDS = 0.2
ABSENT = "absent"  # an outcome
ABSENT_SECONDS = 30.0  # after which a run does not wait for a client that has to connect
PROBLEM_SECONDS = 2.0  # between two questions to the agent for its problems


def plan_moves(
    problem: MarketProblem, present: ArrayLike, planned: ArrayLike, at_once: int = 10, core: str = "mst"
) -> MovePlan:
    """Order the moves from one assignment to another.

    Args:
        problem: the market.
        present: the broker of each user now.
        planned: the broker that each user should have.
        at_once: number of users that can move at the same time.
        core: how traffic crosses the core, which determines the gain of a move.

    Returns:
        The moves in steps. Where not all fit, `blocked` has the remaining ones, and `advice` says what would
        unblock them.

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
    start, goal = (MarketResult(problem, brokers, core) for brokers in (present, planned))  # type: ignore[arg-type]
    if not goal.feasible:
        over = goal.metrics()["overload"]
        raise InputError(f"the plan overloads a broker by {over:.6g}; plan within the capacities")
    order = _MoveOrder(problem, start.broker_of, goal.broker_of, MovingCost(problem, start.broker_of, core))
    with stage("order moves", len(order.remaining)) as done:
        total = len(order.remaining)
        while order.remaining and (order.step(at_once) or order.park()):
            done(total - len(order.remaining))
    return order.plan(start.cost)


@dataclass
class _MoveOrder:
    """Order of moves under construction.

    Attributes:
        problem: the market.
        broker_of: the broker of each user after the steps so far.
        goal: the broker that each user should have.
        cost: the cost of the assignment after the steps so far.
    """

    problem: MarketProblem
    broker_of: NDArray[np.int32]
    goal: NDArray[np.int32]
    cost: MovingCost

    def __post_init__(self) -> None:
        self.broker_of = self.broker_of.copy()
        self.remaining = [int(user) for user in np.flatnonzero(self.broker_of != self.goal)]
        count = self.problem.broker_count
        self.load: NDArray[np.float64] = np.bincount(self.broker_of, self.problem.demand, count).astype(
            np.float64
        )
        self.steps: list[tuple[PlannedMove, ...]] = []
        self._parked: set[int] = set()
        self._first_load = self.load.copy()

    def step(self, at_once: int) -> bool:
        """Add a step of the moves with the highest gain that fit together; false if no move fits."""
        gains = {user: -self.cost.change(user, int(self.goal[user])) for user in self.remaining}
        chosen: list[PlannedMove] = []
        load = self.load.copy()  # while the moves of this step are made
        for user in sorted(self.remaining, key=lambda one: (-gains[one], one)):
            if len(chosen) == at_once:
                break
            if self._fits(user, int(self.goal[user]), load):
                chosen.append(self._planned(user, int(self.goal[user]), gains[user]))
                load[self.goal[user]] += self.problem.demand[user]
        self._append_step(chosen)
        return bool(chosen)

    def park(self) -> bool:
        """Add a step that parks one user elsewhere, so that others can move; false if that is impossible."""
        # Per broker, the smallest demand that waits for its capacity.
        least = {int(self.goal[user]): np.inf for user in self.remaining}
        for user in self.remaining:
            least[self.goal[user]] = min(least[self.goal[user]], self.problem.demand[user])
        ranked = [
            ((not self._frees(user, least[self.broker_of[user]]), self.cost.change(user, spare)), user, spare)
            for user in self.remaining
            if user not in self._parked and self.broker_of[user] in least
            for spare in range(self.problem.broker_count)
            if spare not in (self.broker_of[user], self.goal[user]) and self._fits(user, spare, self.load)
        ]
        if not ranked:
            return False
        (_, change), user, spare = min(ranked)
        self._parked.add(user)
        self._append_step([self._planned(user, spare, -change)])
        return True

    def _frees(self, user: int, waiting: float) -> bool:
        """Whether another user fits as soon as this one has left."""
        home = self.broker_of[user]
        return bool(self.load[home] - self.problem.demand[user] + waiting <= self.problem.limit[home])

    def _fits(self, user: int, broker: int, load: NDArray[np.float64]) -> bool:
        return bool(load[broker] + self.problem.demand[user] <= self.problem.limit[broker])

    def _planned(self, user: int, to: int, gain: float) -> PlannedMove:
        brokers = self.problem.broker_ids
        return PlannedMove(
            self.problem.user_ids[user],
            brokers[self.broker_of[user]],
            brokers[to],
            gain,
            float(self.problem.demand[user]),
        )

    def _append_step(self, moves: list[PlannedMove]) -> None:
        """Append a step, and update loads and costs."""
        if not moves:
            return
        self.steps.append(tuple(moves))
        user_of = {self.problem.user_ids[user]: user for user in self.remaining}
        index_of = {name: index for index, name in enumerate(self.problem.broker_ids)}
        for move in moves:
            user, to = user_of[move.client], index_of[move.to]
            self.load[self.broker_of[user]] -= self.problem.demand[user]
            self.load[to] += self.problem.demand[user]
            self.cost.move(user, to)
            self.broker_of[user] = to
        self.remaining = [user for user in self.remaining if self.broker_of[user] != self.goal[user]]

    def plan(self, cost_before: float) -> MovePlan:
        """The resulting plan."""
        brokers = self.problem.broker_ids
        blocked = [self._planned(user, int(self.goal[user]), 0.0) for user in self.remaining]
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
        """The smallest change that would let a blocked user move."""
        if not self.remaining:
            return ""
        shortage = {
            user: self.load[self.goal[user]] + self.problem.demand[user] - self.problem.limit[self.goal[user]]
            for user in self.remaining
        }
        user = min(self.remaining, key=lambda one: (shortage[one], one))
        name, broker = self.problem.user_ids[user], self.problem.broker_ids[self.goal[user]]
        return (
            f"{len(self.remaining):,} users wait for each other's capacity; "
            f"{shortage[user]:.6g} more capacity at {broker!r}, "
            f"or {self.problem.demand[user]:.6g} at a spare broker, would let {name!r} move"
        )


class PlannedMove(NamedTuple):
    """Planned move of a client.

    Attributes:
        client: the client's name.
        home: its present broker.
        to: its planned broker.
        gain: the decrease of the cost at its turn; below 0 where it frees capacity for others.
        demand: the traffic that it sends and receives, which counts at both brokers while it moves.
    """

    client: str
    home: str
    to: str
    gain: float
    demand: float


def _planned_moves(moves: object, name: str) -> tuple[PlannedMove, ...]:
    """Moves, each from five values: three names and two numbers."""
    planned = []
    for move in ordered_list(moves, name):
        values = list(move) if isinstance(move, (tuple, list)) else []
        if len(values) != len(PlannedMove._fields):
            raise InputError(f"a move is {shown(move)}; give ({', '.join(PlannedMove._fields)})")
        client, home, to, gain, demand = values
        planned.append(
            PlannedMove(
                check_text(client, "client"),
                check_text(home, "home"),
                check_text(to, "to"),
                check_number(gain, "gain", -math.inf),
                check_number(demand, "demand"),
            )
        )
    return tuple(planned)


@dataclass(frozen=True)
class MovePlan:
    """Moves in steps; those of one step can be made at the same time.

    Attributes:
        steps: the moves.
        blocked: moves that do not fit.
        advice: how to unblock them.
        cost_before: the cost of the present assignment.
        cost_after: the cost after all steps.
        load: the present load of each broker.
        capacity: the capacity of each broker.
        key: the random id of the plan, by which a run of it is resumed.

    Example:
        >>> import broadloom as bl
        >>> plan = bl.MovePlan(((("meter-1", "rome", "oslo", 2.0, 1.0),),), cost_before=5.0, cost_after=3.0)
        >>> plan.summary()
        '1 move in 1 step, cost 5 -> 3'
    """

    steps: tuple[tuple[PlannedMove, ...], ...]
    blocked: tuple[PlannedMove, ...] = ()
    advice: str = ""
    cost_before: float = 0.0
    cost_after: float = 0.0
    load: Mapping[str, float] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)
    key: str = field(default_factory=lambda: secrets.token_hex(8), compare=False)

    def __post_init__(self) -> None:
        steps = tuple(_planned_moves(step, "a step") for step in ordered_list(self.steps, "the steps"))
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "blocked", _planned_moves(self.blocked, "blocked"))
        check_instance(self.advice, str, "advice", "give a text")
        check_instance(self.key, str, "key", "give a text")
        for name in ("cost_before", "cost_after"):
            object.__setattr__(self, name, check_number(getattr(self, name), name))
        for name in ("load", "capacity"):
            given = check_instance(getattr(self, name), Mapping, name, "give a dict")  # type: ignore[type-abstract]
            values = {
                check_text(broker, f"a broker of {name}"): check_number(
                    value, f"{name} of {shown(broker)}", -math.inf
                )
                for broker, value in given.items()
            }
            object.__setattr__(self, name, values)

    @property
    def move_count(self) -> int:
        """Number of moves in all steps."""
        return sum(map(len, self.steps))

    def summary(self) -> str:
        """The plan in one sentence."""
        blocked = f"; {len(self.blocked):,} blocked: {self.advice}" if self.blocked else ""
        return (
            f"{self.move_count:,} move{'' if self.move_count == 1 else 's'} "
            f"in {len(self.steps):,} step{'' if len(self.steps) == 1 else 's'}, "
            f"cost {self.cost_before:.6g} -> {self.cost_after:.6g}{blocked}"
        )

    def record(self) -> dict[str, Any]:
        """The plan as JSON values."""
        named = {
            "steps": [[move._asdict() for move in step] for step in self.steps],
            "blocked": [move._asdict() for move in self.blocked],
        }
        return {"broadloom": VERSION, "kind": "moves"} | asdict(self) | named

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the plan as a folder with `moves.json`.

        Raises:
            InputError: `path` exists already.
        """
        with new_folder(check_path(path), check_flag(overwrite, "overwrite")) as folder:
            (folder / FILE).write_text(json.dumps(self.record(), indent=2) + "\n")

    @classmethod
    def load_from(cls, path: str | Path) -> MovePlan:
        """Read a saved plan.

        Raises:
            InputError: it does not exist, or is not a plan of moves.
            StorageError: it cannot be read.
        """
        file = committed(path) / FILE
        try:
            content = json.loads(file.read_text())
            steps = tuple(tuple(PlannedMove(**move) for move in step) for step in content["steps"])
            blocked = tuple(PlannedMove(**move) for move in content["blocked"])
            others = {name: content[name] for name in OTHER_FIELDS}
            if not isinstance(others["key"], str):
                raise TypeError(f"key is {others['key']!r:.40}")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise InputError(f"{file} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise StorageError(f"{file} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{file} is not a plan of moves: {error!r:.80}") from error
        return cls(steps, blocked, **others)


class MoveRefusedError(InputError):
    """The agent refuses a move; the message has its reason."""


class Mover(Protocol):
    """Executes moves: an `Operator`, or a test double.

    If it has a method `health`, as an `Operator` does, the run reports the problems that it returns.
    """

    def request_to_move(self, client: str, to: str, key: str = "") -> dict[str, Any]:
        """Request a move; returns the move. The same key returns the same move."""

    def move(self, move: str) -> dict[str, Any]:
        """The move with an id, including its state."""


def run_moves(
    plan: MovePlan,
    mover: Mover,
    stop: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], None] = time.sleep,
    watch: Callable[[RunProgress], None] = lambda _: None,
) -> Counter[str]:
    """Execute a plan: request the moves of each step, and wait until they have ended.

    A client that declines still counts at its broker, so each move is checked again before it is requested:
    moves that no longer fit are left out. The run does not wait for a client that stays until later, nor for
    one that is absent; the agent moves it then. Each move has a key of the plan, so a run that was stopped or
    killed continues when it is started again.

    Args:
        plan: the moves.
        mover: executes them.
        stop: called regularly; when it returns true, no more moves are requested, and the agent continues the
            active ones.
        sleep: waits for some seconds.
        watch: called regularly with the state of the run: which clients move, which wait, and why.

    Returns:
        The number of moves by outcome: the names of states, `no_room` (the capacity is still taken, because
        others did not move), `refused` (by the agent), `absent` (the client moves when it comes), and, when
        stopped, `under_way` and `not_begun`.

    Examples:
        >>> import broadloom as bl
        >>> class Willing:
        ...     def request_to_move(self, client, to, key=""): return {"id": client}
        ...     def move(self, move): return {"state": "redirected"}
        >>> plan = bl.MovePlan(((("meter-1", "rome", "oslo", 2.0, 1.0),),))
        >>> dict(bl.run_moves(plan, Willing()))
        {'redirected': 1}
    """
    check_instance(plan, MovePlan, "the plan", "give what bl.plan_moves or MovePlan.load_from returns")
    for name, function in (
        ("mover.request_to_move", getattr(mover, "request_to_move", None)),
        ("mover.move", getattr(mover, "move", None)),
        ("stop", stop),
        ("sleep", sleep),
        ("watch", watch),
    ):
        if not callable(function):
            raise InputError(f"{name} is {shown(function)}; give a function")
    run = _PlanRun(plan, mover, stop, sleep, watch)
    with stage("move clients", plan.move_count) as done:
        for number, step in enumerate(plan.steps):
            run.step(number, step, done)
    return run.ended


class RunningMove(NamedTuple):
    """A move that has begun.

    Attributes:
        move: the planned move.
        state: its state.
        note: what it waits for.
        seconds: the seconds since it began.
    """

    move: PlannedMove
    state: str
    note: str
    seconds: float


@dataclass(frozen=True)
class RunProgress:
    """State of a run of a plan.

    Attributes:
        step: the number of the present step, from 1 on.
        steps: the number of steps.
        total: the number of moves.
        ended: the number of ended moves by outcome.
        running: the moves that have begun and have not ended.
        reasons: why clients did not move, by client.
        problems: what is wrong with the agent now, such as a full disk or a link that is down.
    """

    step: int
    steps: int
    total: int
    ended: Mapping[str, int]
    running: tuple[RunningMove, ...]
    reasons: Mapping[str, str]
    problems: tuple[str, ...] = ()


def problems_of(health: Mapping[str, Any]) -> tuple[str, ...]:
    """What is wrong with an agent, a line per problem.

    Examples:
        >>> problems_of({"problems": ["the disk is full"], "links_down": ["rome"]})
        ('the disk is full', "a link of broker 'rome' is down")
    """
    down = (f"a link of broker {broker!r} is down" for broker in health.get("links_down", ()))
    return (*health["problems"], *down)


class _PlanRun:
    """State of a run: the load of brokers, and the clients that did not move."""

    def __init__(
        self,
        plan: MovePlan,
        mover: Mover,
        stop: Callable[[], bool],
        sleep: Callable[[float], None],
        watch: Callable[[RunProgress], None],
    ) -> None:
        self._plan, self._mover, self._stop, self._sleep = plan, mover, stop, sleep
        self._watch = watch
        self._reasons: dict[str, str] = {}
        self._begun: dict[str, float] = {}  # by id of the move
        self._awaited: dict[str, float] = {}  # since when its client has to connect
        self._problems: tuple[str, ...] = ()
        self._next_question = 0.0  # for problems, by the monotonic clock
        self._load = dict(plan.load)
        self._not_moved: set[str] = set()  # clients that are not at the broker that the plan assumes
        self.ended: Counter[str] = Counter()

    def step(self, number: int, moves: Sequence[PlannedMove], done: Callable[[float], None]) -> None:
        """Execute the moves of one step."""
        under_way: dict[str, PlannedMove] = {}
        for move in moves:
            if self._stop():
                self.ended["not_begun"] += 1
            elif move.client in self._not_moved or not self._fits(move):
                self._end(move, "no_room", f"no spare capacity at {move.to!r}")
            else:
                self._begin(move, f"{self._plan.key}:{number}:{move.client}", under_way)
        while under_way:
            running = []
            for move_id in list(under_way):
                found = self._mover.move(move_id)
                state, note = found["state"], found.get("note", "")
                seconds = time.monotonic() - self._begun[move_id]
                running.append(RunningMove(under_way[move_id], state, note, seconds))
                is_over = MoveState(state) not in NEXT
                is_absent = self._is_absent(move_id, note)
                if is_over or is_absent or state == MoveState.STAYING:
                    move = under_way.pop(move_id)
                    if is_over:  # otherwise it can still move, and counts at both brokers
                        self._add_load(move.home if state == MoveState.REDIRECTED else move.to, -move.demand)
                    if is_absent and state == MoveState.CONNECTED:
                        note += f"; it belongs to {move.to!r} now, and gets there what waits at {move.home!r}"
                    self._end(move, ABSENT if is_absent else state, note)
                    running.pop()
            done(self.ended.total())
            self._ask_for_problems()
            self._tell(number, running)
            if self._stop():
                self.ended["under_way"] += len(under_way)
                return
            if under_way:
                self._sleep(POLL_SECONDS)
        self._tell(number, ())

    def _is_absent(self, move_id: str, note: str) -> bool:
        """Whether a client that has to connect, to move or to get what waits at home, is absent for long."""
        if note != COMING:
            self._awaited.pop(move_id, None)
            return False
        return time.monotonic() - self._awaited.setdefault(move_id, time.monotonic()) >= ABSENT_SECONDS

    def _ask_for_problems(self) -> None:
        """Learn what is wrong with the agent, which can be why nothing moves."""
        health = getattr(self._mover, "health", None)
        if callable(health) and time.monotonic() >= self._next_question:
            self._problems = problems_of(health())
            self._next_question = time.monotonic() + PROBLEM_SECONDS

    def _begin(self, move: PlannedMove, key: str, under_way: dict[str, PlannedMove]) -> None:
        try:
            move_id = self._mover.request_to_move(move.client, move.to, key)["id"]
            under_way[move_id] = move
            self._begun[move_id] = time.monotonic()
            self._add_load(move.to, move.demand)  # at both brokers, while it moves
        except MoveRefusedError as error:
            log.warning("%s does not move: %s", move.client, error)
            self._end(move, "refused", str(error))

    def _end(self, move: PlannedMove, outcome: str, reason: str = "") -> None:
        self.ended[outcome] += 1
        if outcome != MoveState.REDIRECTED:
            self._not_moved.add(move.client)
            self._reasons[move.client] = f"{outcome.replace('_', ' ')}: {reason}" if reason else outcome

    def _tell(self, step: int, running: Sequence[RunningMove]) -> None:
        plan = self._plan
        progress = RunProgress(
            step + 1,
            len(plan.steps),
            plan.move_count,
            dict(self.ended),
            tuple(running),
            dict(self._reasons),
            self._problems,
        )
        self._watch(progress)

    def _fits(self, move: PlannedMove) -> bool:
        limit = self._plan.capacity.get(move.to, math.inf) * (1 + LOAD_TOLERANCE)
        return self._load.get(move.to, 0.0) + move.demand <= limit

    def _add_load(self, broker: str, demand: float) -> None:
        self._load[broker] = self._load.get(broker, 0.0) + demand
