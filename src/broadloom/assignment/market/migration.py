"""Migration (paper 5, IV-C): brokers redirect users, those with the most traffic first, while the cost falls.

In rounds: each user, the most traffic first, moves to its best broker with room if that is cheaper. It is
over when a round moves nobody. Under a core of trees the best is sought exactly among the brokers that look
best by the channels' prices.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from broadloom.assignment.market import packing, steiner
from broadloom.assignment.market.market_moves import move_all, no_tolls
from broadloom.assignment.market.market_options import MarketOptions
from broadloom.assignment.market.room import check_room, largest_first
from broadloom.errors import InputError
from broadloom.measures.market import core_named, open_ledger, traffic_of
from broadloom.model import MarketProblem
from broadloom.plans import MarketResult
from broadloom.progress import stage

STARTS = {
    "random": packing.random,
    "greedy-packing": packing.greedy_packing,
    "steiner-mixing": steiner.steiner_mixing,
}


@dataclass(frozen=True)
class MigrationOptions(MarketOptions):
    """What migration is told.

    Attributes:
        core: as for every algorithm.
        start: where users are at first: the name of an algorithm, or the broker of each user (as a plan that
            runs today has it).
        tries: how many brokers are evaluated exactly for each user.
        rounds: stop after so many rounds even if users still move.
    """

    start: Any = "steiner-mixing"
    tries: int = 4
    rounds: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.start, str) and self.start not in STARTS:
            raise InputError(
                f"no start {self.start!r}; there are {', '.join(STARTS)}, or a broker for each user"
            )
        for name in ("tries", "rounds"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; give 1 or more")


def migration(problem: MarketProblem, options: MigrationOptions, seed: int) -> MarketResult:
    """Move users until nobody gains."""
    check_room(problem)
    core, traffic = core_named(problem, options.core), traffic_of(problem)
    ledger, tolls = open_ledger(problem, _start(problem, options, seed), core), no_tolls(problem)
    order, tries = largest_first(problem), min(options.tries, max(1, problem.broker_count))
    moved: list[int] = []
    with stage("migrate", options.rounds) as done:
        while len(moved) < options.rounds:
            # Rates have changed in every channel since the last round, so every price is computed anew.
            tolls.version[:] += 1
            moved.append(int(move_all(core, traffic, ledger, tolls, order, tries, np.inf)))
            done(len(moved))
            if moved[-1] == 0:
                break
    notes = {"moves": sum(moved), "rounds": len(moved), "settled": not moved or moved[-1] == 0}
    return MarketResult(problem, ledger.broker_of, options.core, notes=notes)


def _start(problem: MarketProblem, options: MigrationOptions, seed: int) -> ArrayLike:
    """Where users are at first, after checking that no broker is overloaded."""
    if isinstance(options.start, str):
        return STARTS[options.start](problem, MarketOptions(options.core), seed).broker_of
    given = MarketResult(problem, options.start, options.core)
    if not given.feasible:
        over = given.metrics()["overload"]
        raise InputError(f"the start overloads a broker by {over:.6g}; start from one within the capacities")
    return given.broker_of
