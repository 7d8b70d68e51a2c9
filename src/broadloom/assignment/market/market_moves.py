"""Users move one by one to where the total cost falls most (paper 5, IV-C), under any core.

A channel's price at a broker is what the channel costs more with the broker in it than without. Prices tell
which moves look best; those are evaluated exactly, and made only if the cost truly falls.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.market.softened import LEAST_GAIN
from broadloom.kernels import kernel
from broadloom.measures.core_trees import Core, source_prices
from broadloom.measures.market import Ledger, Traffic, change_of_move, dot, move_user
from broadloom.model import MarketProblem

# A change below this share of the cost of all channels is rounding, not progress.
ROUNDING = 1e-13


class Tolls(NamedTuple):
    """The price of each channel at each broker, and how old it is.

    Attributes:
        price: what the channel costs more with the broker in it than without, (brokers, channels).
        seen: the version of the channel that a price is of, (brokers, channels).
        version: how often the channel's members have changed.
    """

    price: NDArray[np.float64]
    seen: NDArray[np.int64]
    version: NDArray[np.int64]


def no_tolls(problem: MarketProblem) -> Tolls:
    """Tolls of which none is known yet."""
    shape = (problem.broker_count, problem.channel_count)
    return Tolls(np.zeros(shape), np.full(shape, -1), np.zeros(shape[1], np.int64))


@kernel
def toll(core: Core, ledger: Ledger, tolls: Tolls, broker: int, channel: int) -> float:
    """A channel's price at a broker, computed anew if the channel has changed since."""
    if tolls.seen[broker, channel] != tolls.version[channel]:
        tolls.price[broker, channel] = toll_now(core, ledger, broker, channel)
        tolls.seen[broker, channel] = tolls.version[channel]
    return tolls.price[broker, channel]


@kernel
def toll_now(core: Core, ledger: Ledger, broker: int, channel: int) -> float:
    """What the channel costs more with the broker in it than without."""
    member = ledger.readers[:, channel] > 0
    inside = member[broker]
    member[broker] = not inside
    out = np.empty(len(member))
    source_prices(core, member, out)
    other = np.sum(ledger.sent[:, channel] * out)
    return ledger.cost[channel] - other if inside else other - ledger.cost[channel]


@kernel
def move_all(
    core: Core,
    traffic: Traffic,
    ledger: Ledger,
    tolls: Tolls,
    order: NDArray[np.int64],
    tries: int,
    margin: float,
) -> int:
    """Users in order: each moves to the best of the `tries` brokers that look best, if the cost falls.

    Only brokers that look better by more than `-margin` are tried. Returns how many users moved.
    """
    moves, rounding = 0, ROUNDING * np.sum(ledger.cost)
    looks, which = np.empty(tries), np.empty(tries, np.int64)
    for user in order:
        found = _shortlist(core, traffic, ledger, tolls, user, margin, looks, which)
        home = ledger.broker_of[user]
        best, to = -LEAST_GAIN * traffic.demand[user] * traffic.access[user, home] - rounding, -1
        for q in range(found):
            change = change_of_move(core, traffic, ledger, user, which[q])
            if change < best or (change == best and which[q] < to):
                best, to = change, which[q]
        if to >= 0:
            for at in range(traffic.start[user], traffic.start[user + 1]):
                t = traffic.channels[at]
                if ledger.readers[home, t] == 1 or ledger.readers[to, t] == 0:
                    tolls.version[t] += 1
            move_user(core, traffic, ledger, user, to)
            moves += 1
    return moves


@kernel
def _shortlist(
    core: Core,
    traffic: Traffic,
    ledger: Ledger,
    tolls: Tolls,
    user: int,
    margin: float,
    looks: NDArray[np.float64],
    which: NDArray[np.int64],
) -> int:
    """The brokers with room that look best, sorted into `looks` and `which`; how many they are."""
    home, rates, need = ledger.broker_of[user], traffic.rates[user], traffic.demand[user]
    leaving = dot(rates, ledger.price[home])
    for at in range(traffic.start[user], traffic.start[user + 1]):
        t = traffic.channels[at]
        if ledger.readers[home, t] == 1:
            leaving += toll(core, ledger, tolls, home, t)
    found = 0
    for x in range(len(ledger.load)):
        if x == home or ledger.load[x] + need > traffic.limit[x]:
            continue
        bar = looks[found - 1] if found == len(looks) else margin
        look = need * (traffic.access[user, x] - traffic.access[user, home]) - leaving
        if look >= bar:
            continue
        look += dot(rates, ledger.price[x])
        for at in range(traffic.start[user], traffic.start[user + 1]):
            t = traffic.channels[at]
            if look < bar and ledger.readers[x, t] == 0:
                look += max(0.0, toll(core, ledger, tolls, x, t))
        if look < bar:
            found = _insert(look, x, looks, which, found)
    return found


@kernel
def _insert(
    look: float, broker: int, looks: NDArray[np.float64], which: NDArray[np.int64], found: int
) -> int:
    """Insert into the sorted list, dropping its last entry if it is full; its new length."""
    at = found if found < len(looks) else found - 1
    while at > 0 and looks[at - 1] > look:
        looks[at], which[at] = looks[at - 1], which[at - 1]
        at -= 1
    looks[at], which[at] = look, broker
    return min(found + 1, len(looks))
