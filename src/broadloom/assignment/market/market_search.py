"""Default algorithm for markets: local search with smoothed membership, then exact descent (ours).

Plain local search stalls because a broker leaves a channel only when its last reader there moves away. Here a
broker with n readers is in a channel to the degree 1 - exp(-n / smoothing): small memberships shrink user by
user, large ones grow, and smoothing falls step by step to 0, the true cost.

From greedy packing, this is done under the cost of pairs, which leaves few brokers in each channel; under
another core it continues with that core's own channel prices. Then channel prices are lowered and raised in
turn: with low prices users spread out, with high prices they gather, and each time the prices return to the
true ones the search ends in another assignment. The best one is kept. Finally, users move one by one while
the exact cost falls, from the best assignment and from greedy packing, so that the result is never worse than
either; in a small market from random assignments as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.market.cost_ledger import (
    MST,
    Core,
    CostLedger,
    UserTraffic,
    assignment_cost,
    core_of,
    count_traffic,
    dot,
    open_ledger,
    reassign,
    source_prices,
    spanning_tree,
    traffic_of,
)
from broadloom.assignment.market.market_optimum import lower_bound
from broadloom.assignment.market.migration import LEAST_GAIN, MoveSearch, move_users, unknown_prices
from broadloom.assignment.market.packing import MarketOptions, greedy_assignment, largest_first, random
from broadloom.checks import check_count
from broadloom.errors import InputError
from broadloom.kernels import kernel, sum_in_order
from broadloom.model import MarketProblem
from broadloom.plans import MarketResult
from broadloom.progress import stage

# Steps of a schedule: the smoothing of membership, and the factor on channel prices.
Schedule = tuple[tuple[float, float], ...]

FIRST_BY_PAIRS: Schedule = ((32, 1), (16, 1), (8, 1), (4, 1), (2, 1), (1, 1), (0.5, 1), (0.25, 1))
FIRST_BY_PRICES: Schedule = ((4, 2), (4, 2), (2, 1.6), (2, 1.6), (1, 1.3), (1, 1.3), (0.5, 1), (0.5, 1))
LOW_PRICES: Schedule = ((2, 0.6), (1, 0.7), (0.5, 0.85), (0.25, 1))
HIGH_PRICES: Schedule = ((2, 2), (1, 1.5), (0.5, 1.2), (0.25, 1))

# Descent by pairs: a step ends early when fewer users than this move in a pass. The last step, with true
# membership, has this many passes.
FEW_MOVES = 10
LAST_PASSES = 12
# Exact descent: passes over all users, and the number of brokers that are evaluated for each.
EXACT_PASSES = 4
EXACT_TRIES = 4
# The work for trees grows with the square of the number of brokers: with many brokers, only the users with
# the most traffic move.
EXACT_WORK = 2_000_000_000
# Random starts: at most this many, and this much work (users x brokers x channels) for all of them.
MOST_STARTS = 20
START_WORK = 2_000_000
# Price cycles end early after this many in a row that gain less than this share.
IDLE_CYCLES = 6
LEAST_PROGRESS = 1e-4


@dataclass(frozen=True)
class MarketSearchOptions(MarketOptions):
    """Options of the default search.

    Attributes:
        core: as for every algorithm; the search lowers the cost under this core.
        breaths: how often channel prices are lowered or raised and brought back; 0: only the first descent.
        bound: the number of steps that raise the lower bound; 0: the cheapest access of each user alone.
    """

    breaths: int = 24
    bound: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("breaths", "bound"):
            check_count(getattr(self, name), name)


def broadloom(problem: MarketProblem, options: MarketSearchOptions, seed: int) -> MarketResult:
    """The cheapest assignment of the search and of exact descents, with a proven lower bound."""
    greedy = greedy_assignment(problem)
    search = MarketSearch(problem, options.core)
    best = search.cheapest(greedy, *search.price_cycles(greedy, options.breaths))
    best = search.cheapest(*map(search.descend, (best, greedy, *_random_starts(problem, seed))))
    bound = lower_bound(problem, best, options.core, options.bound)
    return MarketResult(problem, best, options.core, lower_bound=bound)


def _random_starts(problem: MarketProblem, seed: int) -> Iterator[NDArray[np.int32]]:
    """Random assignments, fewer for larger markets; they end at the first one where the users do not fit."""
    size = problem.user_count * problem.broker_count * problem.channel_count
    for draw in range(min(MOST_STARTS, START_WORK // max(1, size))):
        try:
            yield random(problem, MarketOptions(), seed + draw).broker_of
        except InputError:
            return


class MarketSearch:
    """The steps of the search on one market under one core."""

    def __init__(self, problem: MarketProblem, core: str) -> None:
        self._problem = problem
        self._core = core
        self._traffic = traffic_of(problem)
        self._most_readers = int(problem.wants.sum(axis=0).max(initial=0)) + 1

    def cost(self, broker_of: NDArray[np.int32]) -> float:
        """The cost of an assignment under the core."""
        return assignment_cost(self._problem, broker_of, self._core)

    def cheapest(self, *assignments: NDArray[np.int32]) -> NDArray[np.int32]:
        """The cheapest of the assignments, the first among equals."""
        return min(assignments, key=self.cost)

    def price_cycles(self, start: NDArray[np.int32], cycles: int) -> Iterator[NDArray[np.int32]]:
        """The assignment after the first descent, and after each cycle of low or high channel prices."""
        current = self.descend_by_pairs(start, FIRST_BY_PAIRS, 3)
        if self._core != "pair":
            current = self.descend_by_prices(current, FIRST_BY_PRICES)
        yield current
        best = self.cost(current)
        idle = 0
        with stage("search", cycles) as done:
            for cycle in range(cycles):
                schedule = HIGH_PRICES if cycle % 2 else LOW_PRICES
                if self._core == "pair":
                    current = self.descend_by_pairs(current, schedule, 2)
                else:
                    current = self.descend_by_prices(current, schedule)
                yield current
                done(cycle + 1)
                cost = self.cost(current)
                idle = 0 if cost < best * (1 - LEAST_PROGRESS) else idle + 1
                best = min(best, cost)
                if idle == IDLE_CYCLES:
                    return

    def descend_by_pairs(
        self, broker_of: NDArray[np.int32], schedule: Schedule, passes: int
    ) -> NDArray[np.int32]:
        """Descent under the smoothed cost of pairs, at last under the true one."""
        problem, traffic = self._problem, self._traffic
        ledger = open_ledger(problem, broker_of, core_of(problem, "pair"))
        for smoothing, price_factor in (*schedule, (0, 1)):
            count_traffic(traffic, ledger)
            smoothed = smoothed_market(
                problem.core * price_factor, ledger, membership(smoothing, self._most_readers)
            )
            for _ in range(passes if smoothing else LAST_PASSES):
                if pair_pass(smoothed, traffic, ledger) < FEW_MOVES:
                    break
        return ledger.broker_of

    def descend_by_prices(self, broker_of: NDArray[np.int32], schedule: Schedule) -> NDArray[np.int32]:
        """Descent under smoothed channel prices, which are computed again for each step."""
        core = core_of(self._problem, self._core)
        for smoothing, price_factor in schedule:
            ledger = open_ledger(self._problem, broker_of, core)
            prices = price_factor * approximate_channel_prices(core, ledger)
            priced_pass(self._traffic, ledger, prices, membership(smoothing, self._most_readers))
            broker_of = ledger.broker_of
        return broker_of

    def descend(self, broker_of: NDArray[np.int32]) -> NDArray[np.int32]:
        """Users move one by one while the exact cost falls."""
        problem = self._problem
        core = core_of(problem, self._core)
        ledger = open_ledger(problem, broker_of, core)
        moves = MoveSearch(core, self._traffic, ledger, unknown_prices(problem))
        tries = min(EXACT_TRIES, max(1, problem.broker_count))
        most = EXACT_WORK // (8 * problem.broker_count**2 + 1)
        order = np.arange(problem.user_count)
        if most < problem.user_count:
            order = largest_first(problem)[:most]
        for _ in range(EXACT_PASSES):
            if move_users(moves, order, tries, 0.0) == 0:
                break
        return ledger.broker_of


def membership(smoothing: float, readers: int) -> NDArray[np.float64]:
    """The degree to which a broker is in a channel, for 0 to `readers` readers; smoothing 0: 1 from 1 on.

    Example:
        >>> membership(0, 2).tolist()
        [0.0, 1.0, 1.0]
    """
    count = np.arange(readers + 1, dtype=np.float64)
    return np.minimum(count, 1.0) if smoothing == 0 else -np.expm1(-count / smoothing)


class SmoothedMarket(NamedTuple):
    """The smoothed cost of pairs: the marginal cost of one more reader or sender at a broker, per unit.

    Attributes:
        prices: the price of the link between each two brokers.
        degree: the degree of membership by the number of readers.
        to_readers: the cost of a message from each broker to all readers of a channel, (brokers, channels).
        from_senders: the cost of bringing all of a channel's messages to each broker, (brokers, channels).
    """

    prices: NDArray[np.float64]
    degree: NDArray[np.float64]
    to_readers: NDArray[np.float64]
    from_senders: NDArray[np.float64]


@kernel
def smoothed_market(
    prices: NDArray[np.float64], ledger: CostLedger, degree: NDArray[np.float64]
) -> SmoothedMarket:
    """The marginal costs of an assignment."""
    brokers, channels = ledger.sent.shape
    to_readers, from_senders = np.zeros((brokers, channels)), np.zeros((brokers, channels))
    member = degree[ledger.readers.ravel()].reshape(ledger.readers.shape)
    for b in range(brokers):
        for x in range(brokers):
            to_readers[b] += prices[b, x] * member[x]
            from_senders[b] += prices[b, x] * ledger.sent[x]
    return SmoothedMarket(prices, degree, to_readers, from_senders)


@kernel
def pair_pass(smoothed: SmoothedMarket, traffic: UserTraffic, ledger: CostLedger) -> int:
    """Each user moves to the broker with enough spare capacity that lowers the smoothed cost of pairs most.

    The changes are exact for the smoothed cost. The terms that are left out when a broker is skipped are
    never below 0, so no better broker is missed. Returns the number of users that moved.
    """
    prices, degree, to_readers, from_senders = smoothed
    moves = 0
    leave = np.empty(traffic.rates.shape[1])
    for user in range(len(ledger.broker_of)):
        home, rates, need = ledger.broker_of[user], traffic.rates[user], traffic.demand[user]
        wanted = traffic.channels[traffic.start[user] : traffic.start[user + 1]]
        leaving = dot(rates, to_readers[home])
        for q in range(len(wanted)):
            readers = ledger.readers[home, wanted[q]]
            leave[q] = degree[readers] - degree[readers - 1]
            leaving += from_senders[home, wanted[q]] * leave[q]
        paid = need * traffic.access[user, home]
        best = -LEAST_GAIN * (paid + leaving)
        to = -1
        for x in range(len(ledger.load)):
            change = need * traffic.access[user, x] - paid - leaving
            if change >= best or x == home or ledger.load[x] + need > traffic.limit[x]:
                continue
            change += dot(rates, to_readers[x])
            if change >= best:
                continue
            for q in range(len(wanted)):
                t = wanted[q]
                enter = degree[ledger.readers[x, t] + 1] - degree[ledger.readers[x, t]]
                change += from_senders[x, t] * enter - rates[t] * prices[home, x] * (enter + leave[q])
            if change < best:
                best, to = change, x
        if to >= 0:
            _move_by_pairs(smoothed, traffic, ledger, user, to)
            moves += 1
    return moves


@kernel
def _move_by_pairs(
    smoothed: SmoothedMarket, traffic: UserTraffic, ledger: CostLedger, user: int, to: int
) -> None:
    """Move a user; update the marginal costs, and the ledger except its prices."""
    prices, degree = smoothed.prices, smoothed.degree
    home, rates = ledger.broker_of[user], traffic.rates[user]
    shift = prices[to] - prices[home]
    for b in range(len(shift)):
        smoothed.from_senders[b] += shift[b] * rates
    for at in range(traffic.start[user], traffic.start[user + 1]):
        t = traffic.channels[at]
        leave = degree[ledger.readers[home, t]] - degree[ledger.readers[home, t] - 1]
        enter = degree[ledger.readers[to, t] + 1] - degree[ledger.readers[to, t]]
        for b in range(len(shift)):
            smoothed.to_readers[b, t] += enter * prices[b, to] - leave * prices[b, home]
    reassign(traffic, ledger, user, to)


@kernel
def priced_pass(
    traffic: UserTraffic, ledger: CostLedger, channel_prices: NDArray[np.float64], degree: NDArray[np.float64]
) -> int:
    """As `pair_pass`, for any core: channel prices are constant during the pass."""
    moves = 0
    for user in range(len(ledger.broker_of)):
        home, rates, need = ledger.broker_of[user], traffic.rates[user], traffic.demand[user]
        wanted = traffic.channels[traffic.start[user] : traffic.start[user + 1]]
        leaving = dot(rates, ledger.message_price[home])
        for q in range(len(wanted)):
            readers = ledger.readers[home, wanted[q]]
            leaving += channel_prices[home, wanted[q]] * (degree[readers] - degree[readers - 1])
        paid = need * traffic.access[user, home]
        best = -LEAST_GAIN * (paid + leaving)
        to = -1
        for x in range(len(ledger.load)):
            change = need * traffic.access[user, x] - paid - leaving
            if change >= best or x == home or ledger.load[x] + need > traffic.limit[x]:
                continue
            change += dot(rates, ledger.message_price[x])
            for t in wanted:
                readers = ledger.readers[x, t]
                change += channel_prices[x, t] * (degree[readers + 1] - degree[readers])
            if change < best:
                best, to = change, x
        if to >= 0:
            reassign(traffic, ledger, user, to)
            moves += 1
    return moves


@kernel
def approximate_channel_prices(core: Core, ledger: CostLedger) -> NDArray[np.float64]:
    """The price of each channel at each broker, (brokers, channels), from a ledger with current prices.

    All messages of a channel pay for a broker in its tree. So the price is the channel's rate times the
    difference of the tree's price with and without the broker, at least 0. The few sources outside of the
    tree are left out: the search only needs a direction, and an exact descent follows.
    """
    brokers, channels = ledger.sent.shape
    prices = np.zeros((brokers, channels))
    for t in range(channels):
        member = ledger.readers[:, t] > 0
        inside = np.flatnonzero(member)
        if len(inside) == 0:
            continue
        rate = sum_in_order(ledger.sent[:, t])
        tree = ledger.message_price[inside[0], t]
        saved = _savings(core, member, inside, tree)
        for q in range(len(inside)):
            prices[inside[q], t] = max(0.0, rate * saved[q])
        for b in range(brokers):
            if not member[b]:
                prices[b, t] = max(0.0, rate * (ledger.message_price[b, t] - tree))
    return prices


@kernel
def _savings(
    core: Core, member: NDArray[np.bool_], inside: NDArray[np.int64], tree: float
) -> NDArray[np.float64]:
    """The difference of the price of the members' tree with and without each of them."""
    saved, out = np.zeros(len(inside)), np.empty(len(member))
    if core.kind == MST:
        _savings_in_spanning_tree(core.prices, member, out)
        return out[inside]
    for q in range(len(inside) if len(inside) > 1 else 0):
        member[inside[q]] = False
        source_prices(core, member, out)
        saved[q] = tree - out[inside[0] if q > 0 else inside[-1]]
        member[inside[q]] = True
    return saved


@kernel
def _savings_in_spanning_tree(
    prices: NDArray[np.float64], member: NDArray[np.bool_], saved: NDArray[np.float64]
) -> None:
    """For each member: the price of its links, minus the price of joining their other ends without it.

    Exact for members with one or two links. The ends of three or more are joined among themselves, which can
    cost a little more than necessary.
    """
    order, parent, edge = spanning_tree(prices, member)
    count = len(order)
    degree, links = np.zeros(count, np.int64), np.zeros(count)
    for q in range(1, count):
        for end in (q, parent[q]):
            degree[end] += 1
            links[end] += edge[q]
    near, below = np.zeros(len(member), np.bool_), np.zeros(count, np.bool_)
    for q in range(count):
        saved[order[q]] = links[q]
        if degree[q] == 2 and q > 0:
            child = q + 1
            while parent[child] != q:
                child += 1
            saved[order[q]] -= _cheapest_across(prices, order, parent, q, child, below)
        elif degree[q] >= 2:
            near[:] = False
            for p in range(1, count):
                if parent[p] == q:
                    near[order[p]] = True
            if q > 0:
                near[order[parent[q]]] = True
            saved[order[q]] -= sum_in_order(spanning_tree(prices, near)[2])


@kernel
def _cheapest_across(
    prices: NDArray[np.float64],
    order: NDArray[np.int64],
    parent: NDArray[np.int64],
    removed: int,
    child: int,
    below: NDArray[np.bool_],
) -> float:
    """The cheapest link between the child's branch and the remaining tree, without the removed member."""
    below[:] = False
    below[child] = True
    for q in range(child + 1, len(order)):
        below[q] = below[parent[q]]
    best = np.inf
    for q in range(child, len(order)):
        if below[q]:
            for p in range(len(order)):
                if not below[p] and p != removed:
                    best = min(best, prices[order[q], order[p]])
    return best
