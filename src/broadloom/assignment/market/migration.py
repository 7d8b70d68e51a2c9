"""Migration (paper 5, IV-C): users move one by one, most traffic first, while the total cost falls.

In rounds: each user, the most traffic first, moves to its best broker with enough spare capacity if that is
cheaper. Migration ends when no user moves in a round. A channel's price at a broker is the extra cost of the
channel if the broker is in it. These prices select the brokers that are promising for a user; the
change of the cost is computed exactly for those, and the user moves only if the cost falls.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.assignment.market.cost_ledger import (
    Core,
    CostLedger,
    UserTraffic,
    change_of_move,
    core_of,
    dot,
    move_user,
    open_ledger,
    source_prices,
    traffic_of,
)
from broadloom.assignment.market.packing import (
    MarketOptions,
    check_capacities,
    greedy_packing,
    largest_first,
    random,
)
from broadloom.assignment.market.steiner_mixing import steiner_mixing
from broadloom.checks import check_count
from broadloom.errors import InputError
from broadloom.kernels import kernel, sum_in_order
from broadloom.model import MarketProblem
from broadloom.plans import MarketResult
from broadloom.progress import stage

STARTS = {"random": random, "greedy-packing": greedy_packing, "steiner-mixing": steiner_mixing}

# A change below this share of the user's current cost is rounding, not progress.
LEAST_GAIN = 1e-9
# So is a change below this share of the cost of all channels.
ROUNDING = 1e-13


@dataclass(frozen=True)
class MigrationOptions(MarketOptions):
    """Options of migration.

    Attributes:
        core: as for every algorithm.
        start: the first assignment: the name of an algorithm, or the broker of each user (for example of the
            plan that runs today).
        tries: the number of brokers that are evaluated exactly for each user.
        rounds: stop after this many rounds even if users still move.
    """

    start: Any = "steiner-mixing"
    tries: int = 4
    rounds: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.start, str) and self.start not in STARTS:
            raise InputError(
                f"no start {self.start!r}; give one of {', '.join(STARTS)}, or the broker of each user"
            )
        for name in ("tries", "rounds"):
            check_count(getattr(self, name), name, minimum=1)


def migration(problem: MarketProblem, options: MigrationOptions, seed: int) -> MarketResult:
    """Move users until no user gains.

    Reference: Zhao and Wu, SECON 2011 (paper 5), section IV-C.
    """
    check_capacities(problem)
    core = core_of(problem, options.core)
    ledger = open_ledger(problem, _start(problem, options, seed), core)
    search = MoveSearch(core, traffic_of(problem), ledger, unknown_prices(problem))
    order = largest_first(problem)
    tries = min(options.tries, max(1, problem.broker_count))
    moved: list[int] = []
    with stage("migrate", options.rounds) as done:
        while len(moved) < options.rounds:
            # Rates have changed in every channel since the last round, so every price is computed again.
            search.prices.version[:] += 1
            moved.append(int(move_users(search, order, tries, np.inf)))
            done(len(moved))
            if moved[-1] == 0:
                break
    notes = {"moves": sum(moved), "rounds": len(moved), "settled": not moved or moved[-1] == 0}
    return MarketResult(problem, ledger.broker_of, options.core, notes=notes)


def _start(problem: MarketProblem, options: MigrationOptions, seed: int) -> ArrayLike:
    """The first assignment, after a check that no broker is overloaded."""
    if isinstance(options.start, str):
        return STARTS[options.start](problem, MarketOptions(options.core), seed).broker_of
    start = MarketResult(problem, options.start, options.core)
    if not start.feasible:
        over = start.metrics()["overload"]
        raise InputError(f"the start overloads a broker by {over:.6g}; start from one within the capacities")
    return start.broker_of


class ChannelPrices(NamedTuple):
    """The price of each channel at each broker, and the version of the channel that it was computed for.

    Attributes:
        price: the extra cost of the channel if the broker is in it, (brokers, channels).
        seen: the version of the channel for which the price was computed, (brokers, channels).
        version: how often the channel's members have changed.
    """

    price: NDArray[np.float64]
    seen: NDArray[np.int64]
    version: NDArray[np.int64]


class MoveSearch(NamedTuple):
    """Core, traffic, ledger and channel prices: the arguments of the kernels that find and make moves."""

    core: Core
    traffic: UserTraffic
    ledger: CostLedger
    prices: ChannelPrices


def unknown_prices(problem: MarketProblem) -> ChannelPrices:
    """Channel prices, all still to be computed."""
    shape = (problem.broker_count, problem.channel_count)
    return ChannelPrices(np.zeros(shape), np.full(shape, -1), np.zeros(shape[1], np.int64))


@kernel(cost=8)
def move_users(search: MoveSearch, order: NDArray[np.int64], tries: int, margin: float) -> int:
    """Users in order: each moves to the best of its `tries` most promising brokers, if the cost falls.

    Only brokers with an estimated change below `margin` are tried. Returns the number of users that moved.
    """
    traffic, ledger = search.traffic, search.ledger
    moves = 0
    rounding = ROUNDING * sum_in_order(ledger.cost)
    estimates, brokers = np.empty(tries), np.empty(tries, np.int64)
    for user in order:
        found = _shortlist(search, user, margin, estimates, brokers)
        home = ledger.broker_of[user]
        best = -LEAST_GAIN * traffic.demand[user] * traffic.access[user, home] - rounding
        to = -1
        for q in range(found):
            change = change_of_move(search.core, traffic, ledger, user, brokers[q])
            if change < best or (change == best and brokers[q] < to):
                best, to = change, brokers[q]
        if to >= 0:
            for at in range(traffic.start[user], traffic.start[user + 1]):
                t = traffic.channels[at]
                if ledger.readers[home, t] == 1 or ledger.readers[to, t] == 0:
                    search.prices.version[t] += 1
            move_user(search.core, traffic, ledger, user, to)
            moves += 1
    return moves


@kernel
def _shortlist(
    search: MoveSearch,
    user: int,
    margin: float,
    estimates: NDArray[np.float64],
    brokers: NDArray[np.int64],
) -> int:
    """The most promising brokers with enough spare capacity, sorted by the estimated change.

    They go into `estimates` and `brokers`; returns their number.
    """
    traffic, ledger = search.traffic, search.ledger
    home, rates, need = ledger.broker_of[user], traffic.rates[user], traffic.demand[user]
    leaving = dot(rates, ledger.message_price[home])
    for at in range(traffic.start[user], traffic.start[user + 1]):
        t = traffic.channels[at]
        if ledger.readers[home, t] == 1:
            leaving += _current_price(search, home, t)
    found = 0
    for x in range(len(ledger.load)):
        if x == home or ledger.load[x] + need > traffic.limit[x]:
            continue
        bar = estimates[found - 1] if found == len(estimates) else margin
        estimate = need * (traffic.access[user, x] - traffic.access[user, home]) - leaving
        if estimate >= bar:
            continue
        estimate += dot(rates, ledger.message_price[x])
        for at in range(traffic.start[user], traffic.start[user + 1]):
            t = traffic.channels[at]
            if estimate < bar and ledger.readers[x, t] == 0:
                estimate += max(0.0, _current_price(search, x, t))
        if estimate < bar:
            found = _insert(estimate, x, estimates, brokers, found)
    return found


@kernel
def _insert(
    estimate: float, broker: int, estimates: NDArray[np.float64], brokers: NDArray[np.int64], found: int
) -> int:
    """Insert into the sorted list, dropping its last entry if it is full; its new length."""
    at = found if found < len(estimates) else found - 1
    while at > 0 and estimates[at - 1] > estimate:
        estimates[at], brokers[at] = estimates[at - 1], brokers[at - 1]
        at -= 1
    estimates[at], brokers[at] = estimate, broker
    return min(found + 1, len(estimates))


@kernel
def _current_price(search: MoveSearch, broker: int, channel: int) -> float:
    """A channel's price at a broker, computed again if the channel has changed since."""
    prices = search.prices
    if prices.seen[broker, channel] != prices.version[channel]:
        prices.price[broker, channel] = exact_channel_price(search.core, search.ledger, broker, channel)
        prices.seen[broker, channel] = prices.version[channel]
    return prices.price[broker, channel]


@kernel
def exact_channel_price(core: Core, ledger: CostLedger, broker: int, channel: int) -> float:
    """The cost of the channel with the broker in it, minus the cost without."""
    member = ledger.readers[:, channel] > 0
    inside = member[broker]
    member[broker] = not inside
    out = np.empty(len(member))
    source_prices(core, member, out)
    other = sum_in_order(ledger.sent[:, channel] * out)
    return ledger.cost[channel] - other if inside else other - ledger.cost[channel]
