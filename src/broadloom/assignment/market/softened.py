"""Local search with softened membership: a broker leaves a channel little by little (ours, paper 5's cost).

Plain local search stalls because a broker leaves a channel only when its last reader there goes. Here a
broker with n readers is in a channel to the degree 1 - exp(-n / softness): thin memberships drain user by
user, thick ones grow, and softness falls step by step to 0, the true cost.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.measures.market import Ledger, Traffic, dot

# A change below this share of what the user costs now is rounding, not progress.
LEAST_GAIN = 1e-9


def membership(softness: float, readers: int) -> NDArray[np.float64]:
    """To which degree a broker is in a channel, for 0 to `readers` readers; softness 0: wholly from 1 on.

    Example:
        >>> membership(0, 2).tolist()
        [0.0, 1.0, 1.0]
    """
    count = np.arange(readers + 1, dtype=np.float64)
    return np.minimum(count, 1.0) if softness == 0 else -np.expm1(-count / softness)


class Fields(NamedTuple):
    """What one more reader or sender at a broker would cost, per unit, on a core of pairs.

    Attributes:
        to_readers: what a message from each broker to all readers of a channel costs, (brokers, channels).
        from_senders: what bringing all of a channel's messages to each broker costs, (brokers, channels).
    """

    to_readers: NDArray[np.float64]
    from_senders: NDArray[np.float64]


@kernel
def fields_of(prices: NDArray[np.float64], ledger: Ledger, degree: NDArray[np.float64]) -> Fields:
    """The fields of an assignment under a softness."""
    brokers, channels = ledger.sent.shape
    to_readers, from_senders = np.zeros((brokers, channels)), np.zeros((brokers, channels))
    member = degree[ledger.readers.ravel()].reshape(ledger.readers.shape)
    for b in range(brokers):
        for x in range(brokers):
            to_readers[b] += prices[b, x] * member[x]
            from_senders[b] += prices[b, x] * ledger.sent[x]
    return Fields(to_readers, from_senders)


@kernel
def pair_pass(
    prices: NDArray[np.float64],
    traffic: Traffic,
    ledger: Ledger,
    fields: Fields,
    degree: NDArray[np.float64],
) -> int:
    """Each user moves to the broker with room that lowers the softened cost of pairs most; how many moved.

    The changes are exact for the softened cost. What is left out when a broker is skipped is never below 0,
    so nothing is missed.
    """
    moves, leave = 0, np.empty(traffic.rates.shape[1])
    for user in range(len(ledger.broker_of)):
        home, rates, need = ledger.broker_of[user], traffic.rates[user], traffic.demand[user]
        wanted = traffic.channels[traffic.start[user] : traffic.start[user + 1]]
        leaving = dot(rates, fields.to_readers[home])
        for q in range(len(wanted)):
            readers = ledger.readers[home, wanted[q]]
            leave[q] = degree[readers] - degree[readers - 1]
            leaving += fields.from_senders[home, wanted[q]] * leave[q]
        paid = need * traffic.access[user, home]
        best, to = -LEAST_GAIN * (paid + leaving), -1
        for x in range(len(ledger.load)):
            change = need * traffic.access[user, x] - paid - leaving
            if change >= best or x == home or ledger.load[x] + need > traffic.limit[x]:
                continue
            change += dot(rates, fields.to_readers[x])
            if change >= best:
                continue
            for q in range(len(wanted)):
                t = wanted[q]
                enter = degree[ledger.readers[x, t] + 1] - degree[ledger.readers[x, t]]
                change += fields.from_senders[x, t] * enter - rates[t] * prices[home, x] * (enter + leave[q])
            if change < best:
                best, to = change, x
        if to >= 0:
            pair_move(prices, traffic, ledger, fields, degree, user, to)
            moves += 1
    return moves


@kernel
def pair_move(
    prices: NDArray[np.float64],
    traffic: Traffic,
    ledger: Ledger,
    fields: Fields,
    degree: NDArray[np.float64],
    user: int,
    to: int,
) -> None:
    """Move a user; ledger (but for its prices) and fields are current afterwards."""
    home, rates = ledger.broker_of[user], traffic.rates[user]
    shift = prices[to] - prices[home]
    for b in range(len(shift)):
        fields.from_senders[b] += shift[b] * rates
    for at in range(traffic.start[user], traffic.start[user + 1]):
        t = traffic.channels[at]
        leave = degree[ledger.readers[home, t]] - degree[ledger.readers[home, t] - 1]
        enter = degree[ledger.readers[to, t] + 1] - degree[ledger.readers[to, t]]
        for b in range(len(shift)):
            fields.to_readers[b, t] += enter * prices[b, to] - leave * prices[b, home]
    hand_over(traffic, ledger, user, to)


@kernel
def hand_over(traffic: Traffic, ledger: Ledger, user: int, to: int) -> None:
    """Move a user in the ledger's loads, rates and counts; its prices are not touched."""
    home = ledger.broker_of[user]
    ledger.broker_of[user] = to
    ledger.load[home] -= traffic.demand[user]
    ledger.load[to] += traffic.demand[user]
    ledger.sent[home] -= traffic.rates[user]
    ledger.sent[to] += traffic.rates[user]
    for at in range(traffic.start[user], traffic.start[user + 1]):
        ledger.readers[home, traffic.channels[at]] -= 1
        ledger.readers[to, traffic.channels[at]] += 1


@kernel
def priced_pass(
    traffic: Traffic, ledger: Ledger, tolls: NDArray[np.float64], degree: NDArray[np.float64]
) -> int:
    """As `pair_pass`, for any core: the price of each channel at each broker holds for the whole pass."""
    moves = 0
    for user in range(len(ledger.broker_of)):
        home, rates, need = ledger.broker_of[user], traffic.rates[user], traffic.demand[user]
        wanted = traffic.channels[traffic.start[user] : traffic.start[user + 1]]
        leaving = dot(rates, ledger.price[home])
        for q in range(len(wanted)):
            readers = ledger.readers[home, wanted[q]]
            leaving += tolls[home, wanted[q]] * (degree[readers] - degree[readers - 1])
        paid = need * traffic.access[user, home]
        best, to = -LEAST_GAIN * (paid + leaving), -1
        for x in range(len(ledger.load)):
            change = need * traffic.access[user, x] - paid - leaving
            if change >= best or x == home or ledger.load[x] + need > traffic.limit[x]:
                continue
            change += dot(rates, ledger.price[x])
            for t in wanted:
                change += tolls[x, t] * (degree[ledger.readers[x, t] + 1] - degree[ledger.readers[x, t]])
            if change < best:
                best, to = change, x
        if to >= 0:
            hand_over(traffic, ledger, user, to)
            moves += 1
    return moves
