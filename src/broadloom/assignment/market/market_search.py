"""The default for markets: softened local search that breathes, then exact descent (ours, on paper 5's cost).

From greedy packing, membership in channels is softened and hardened again under the cost of pairs, which
leaves few brokers in each channel. Under another core the same goes on with that core's own prices. Then the
search breathes: with prices of channels too low users spread out, with prices too high they gather, and each
time the prices come back to the true ones it ends elsewhere; the best is kept. At last users move one by one
while the exact cost falls, from the best and from greedy packing, so that it is never worse than either;
in a small market from random assignments as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.market.market_bound import lower_bound
from broadloom.assignment.market.market_moves import move_all, no_tolls
from broadloom.assignment.market.market_options import MarketOptions
from broadloom.assignment.market.packing import packed, random
from broadloom.assignment.market.room import largest_first
from broadloom.assignment.market.softened import fields_of, membership, pair_pass, priced_pass
from broadloom.assignment.market.tolls import rough_tolls
from broadloom.errors import InputError
from broadloom.measures.market import (
    Traffic,
    core_named,
    count_traffic,
    market_cost,
    open_ledger,
    traffic_of,
)
from broadloom.model import MarketProblem
from broadloom.plans import MarketResult
from broadloom.progress import stage

# Steps of a schedule: the softness of membership, and the factor on the prices of channels.
Schedule = tuple[tuple[float, float], ...]

OPENING: Schedule = ((32, 1), (16, 1), (8, 1), (4, 1), (2, 1), (1, 1), (0.5, 1), (0.25, 1))
TURNING: Schedule = ((4, 2), (4, 2), (2, 1.6), (2, 1.6), (1, 1.3), (1, 1.3), (0.5, 1), (0.5, 1))
LOOSE: Schedule = ((2, 0.6), (1, 0.7), (0.5, 0.85), (0.25, 1))
TIGHT: Schedule = ((2, 2), (1, 1.5), (0.5, 1.2), (0.25, 1))

# Passes of pairs: a step ends early when so few users move; the last step, of true membership, is longer.
FEW_MOVES = 10
LAST_PASSES = 12
# Exact descent: passes over all users, and how many brokers are evaluated for each.
EXACT_PASSES = 4
EXACT_TRIES = 4
# Trees take the square of the brokers: with many of them, only the users with the most traffic move.
EXACT_WORK = 2_000_000_000
# Random starts: at most so many, and so much work (users x brokers x channels) for all of them.
MOST_STARTS = 20
START_WORK = 2_000_000
# Breathing ends early when so many breaths in a row gain less than this share.
IDLE_BREATHS = 6
LEAST_PROGRESS = 1e-4


@dataclass(frozen=True)
class SearchOptions(MarketOptions):
    """What the default search is told.

    Attributes:
        core: as for every algorithm; it counts here, the search lowers the cost under this one.
        breaths: how often prices are lowered or raised and brought back; 0: only the first descent.
        bound: how many steps the lower bound is raised; 0: the cheapest access of each user alone.
    """

    breaths: int = 24
    bound: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("breaths", "bound"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; give 0 or more")


def broadloom(problem: MarketProblem, options: SearchOptions, seed: int) -> MarketResult:
    """Search, descend, and prove how far at most the cost is from the best possible."""
    greedy = packed(problem)
    search = _Search(problem, options.core)
    best = search.better(greedy, *search.breathing(greedy, options.breaths))
    best = search.better(*map(search.descended, (best, greedy, *_random_starts(problem, seed))))
    bound = lower_bound(problem, best, options.core, options.bound)
    return MarketResult(problem, best, options.core, lower_bound=bound)


def _random_starts(problem: MarketProblem, seed: int) -> Iterator[NDArray[np.int32]]:
    """Random assignments, fewer the larger the market is; none where chance finds no room for all."""
    size = problem.user_count * problem.broker_count * problem.channel_count
    for draw in range(min(MOST_STARTS, START_WORK // max(1, size))):
        try:
            yield random(problem, MarketOptions(), seed + draw).broker_of
        except InputError:
            return


class _Search:
    """The steps of the search on one market under one core."""

    def __init__(self, problem: MarketProblem, core: str) -> None:
        self._problem, self._name = problem, core
        self._traffic: Traffic = traffic_of(problem)
        self._readers = int(problem.wants.sum(axis=0).max(initial=0)) + 1

    def cost(self, broker_of: NDArray[np.int32]) -> float:
        """What an assignment costs under the core."""
        return market_cost(self._problem, broker_of, self._name).total

    def better(self, *found: NDArray[np.int32]) -> NDArray[np.int32]:
        """The cheapest of the assignments, the first among equals."""
        return min(found, key=self.cost)

    def breathing(self, start: NDArray[np.int32], breaths: int) -> Iterator[NDArray[np.int32]]:
        """Assignments, one after each breath."""
        now = self._by_pairs(start, OPENING, 3)
        now = now if self._name == "pair" else self._by_prices(now, TURNING)
        yield now
        best, idle = self.cost(now), 0
        with stage("search", breaths) as done:
            for breath in range(breaths):
                schedule = TIGHT if breath % 2 else LOOSE
                now = (
                    self._by_pairs(now, schedule, 2)
                    if self._name == "pair"
                    else self._by_prices(now, schedule)
                )
                yield now
                done(breath + 1)
                cost = self.cost(now)
                idle = 0 if cost < best * (1 - LEAST_PROGRESS) else idle + 1
                best = min(best, cost)
                if idle == IDLE_BREATHS:
                    return

    def _by_pairs(self, broker_of: NDArray[np.int32], schedule: Schedule, passes: int) -> NDArray[np.int32]:
        """Softened descent under the cost of pairs, at last under the true one."""
        problem, traffic = self._problem, self._traffic
        ledger = open_ledger(problem, broker_of, core_named(problem, "pair"))
        for softness, dearness in (*schedule, (0, 1)):
            degree, prices = membership(softness, self._readers), problem.core * dearness
            count_traffic(traffic, ledger)
            fields = fields_of(prices, ledger, degree)
            for _ in range(passes if softness else LAST_PASSES):
                if pair_pass(prices, traffic, ledger, fields, degree) < FEW_MOVES:
                    break
        return ledger.broker_of

    def _by_prices(self, broker_of: NDArray[np.int32], schedule: Schedule) -> NDArray[np.int32]:
        """Softened descent under the prices of channels, which are computed anew for each step."""
        core = core_named(self._problem, self._name)
        for softness, dearness in schedule:
            ledger = open_ledger(self._problem, broker_of, core)
            tolls = dearness * rough_tolls(core, ledger)
            priced_pass(self._traffic, ledger, tolls, membership(softness, self._readers))
            broker_of = ledger.broker_of
        return broker_of

    def descended(self, broker_of: NDArray[np.int32]) -> NDArray[np.int32]:
        """Users move one by one while the exact cost falls."""
        problem, core = self._problem, core_named(self._problem, self._name)
        ledger, tolls = open_ledger(problem, broker_of, core), no_tolls(problem)
        order, tries = np.arange(problem.user_count), min(EXACT_TRIES, max(1, problem.broker_count))
        most = EXACT_WORK // (8 * problem.broker_count**2 + 1)
        order = order if most >= problem.user_count else largest_first(problem)[:most]
        for _ in range(EXACT_PASSES):
            if move_all(core, self._traffic, ledger, tolls, order, tries, 0.0) == 0:
                break
        return ledger.broker_of
