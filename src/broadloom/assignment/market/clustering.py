"""Two-stage clustering (paper 5, Algorithm 2): users with much traffic between them share a broker.

The printed argmin of the bandwidth-to-cost ratio contradicts the text, which maximises it, and is worse than
random; we maximise. The price between two users is that of the way over the broker.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.market.market_options import MarketOptions
from broadloom.assignment.market.room import check_room, settled
from broadloom.kernels import kernel
from broadloom.measures.market import Traffic, dot, traffic_of
from broadloom.model import MarketProblem
from broadloom.plans import MarketResult


def clustering(problem: MarketProblem, options: MarketOptions, seed: int) -> MarketResult:  # noqa: ARG001
    """To each broker the two users of the highest ratio, then each user to the broker of its highest one."""
    check_room(problem)
    traffic = traffic_of(problem)
    return MarketResult(problem, settled(problem, _joined(traffic, _seeds(traffic))), options.core)


@kernel
def _ratio(bandwidth: float, price: float) -> float:
    """Bandwidth to cost: 0 without traffic, infinite where traffic is free."""
    if bandwidth == 0:
        return 0.0
    return bandwidth / price if price > 0 else np.inf


@kernel
def _between(traffic: Traffic, i: int, j: int) -> float:
    """The traffic between two users, both ways."""
    total = 0.0
    for at in range(traffic.start[j], traffic.start[j + 1]):
        total += traffic.rates[i, traffic.channels[at]]
    for at in range(traffic.start[i], traffic.start[i + 1]):
        total += traffic.rates[j, traffic.channels[at]]
    return total


@kernel
def _most(traffic: Traffic) -> NDArray[np.float64]:
    """For each user at least what it can exchange with anybody.

    It sends its highest rate into the most channels that one wants, and gets the highest rate of all.
    """
    users = len(traffic.demand)
    widest, highest = 0, 0.0
    for i in range(users):
        widest = max(widest, traffic.start[i + 1] - traffic.start[i])
        for rate in traffic.rates[i]:
            highest = max(highest, rate)
    most = np.zeros(users)
    for i in range(users):
        for rate in traffic.rates[i]:
            most[i] = max(most[i], rate)
        most[i] = most[i] * widest + (traffic.start[i + 1] - traffic.start[i]) * highest
    return most


@kernel
def _seeds(traffic: Traffic) -> NDArray[np.int32]:
    """Brokers in order: each gets the pair of free users with the highest ratio that it can carry.

    Users are tried by price, so that the search ends as soon as no dearer one can reach the best ratio.
    """
    users, brokers = len(traffic.demand), len(traffic.limit)
    broker_of, most = np.full(users, -1, np.int32), _most(traffic)
    bound = most.max() if users else 0.0
    for b in range(brokers):
        price = traffic.access[:, b].copy()
        order = np.argsort(price, kind="mergesort")
        best, one, other = -1.0, -1, -1
        for q in range(users):
            j = order[q]
            if best >= 0 and _ratio(bound, price[j] + price[order[0]]) < best:
                break
            if broker_of[j] >= 0:
                continue
            for p in range(q):
                i = order[p]
                if _ratio(most[j], price[i] + price[j]) < best:
                    break
                if broker_of[i] >= 0 or traffic.demand[i] + traffic.demand[j] > traffic.limit[b]:
                    continue
                ratio, first, last = (
                    _ratio(_between(traffic, i, j), price[i] + price[j]),
                    min(i, j),
                    max(i, j),
                )
                if ratio > best or (ratio == best and (first, last) < (one, other)):
                    best, one, other = ratio, first, last
        if one >= 0:
            broker_of[one] = broker_of[other] = b
    return broker_of


@kernel
def _joined(traffic: Traffic, broker_of: NDArray[np.int32]) -> NDArray[np.int32]:
    """Users in order, each to the broker with room that has the highest ratio; -1 where there is no room."""
    brokers, channels = len(traffic.limit), traffic.rates.shape[1]
    load, sent, readers = np.zeros(brokers), np.zeros((brokers, channels)), np.zeros((brokers, channels))
    seeds = np.flatnonzero(broker_of >= 0)
    for i in seeds:
        _enter(traffic, int(i), broker_of[i], load, sent, readers)
    for i in np.flatnonzero(broker_of < 0):
        best = -1.0
        for b in range(brokers):
            if load[b] + traffic.demand[i] > traffic.limit[b]:
                continue
            bandwidth = dot(traffic.rates[i], readers[b])
            for at in range(traffic.start[i], traffic.start[i + 1]):
                bandwidth += sent[b, traffic.channels[at]]
            ratio = _ratio(bandwidth, traffic.access[i, b])
            if ratio > best:
                best, broker_of[i] = ratio, b
        if broker_of[i] >= 0:
            _enter(traffic, int(i), broker_of[i], load, sent, readers)
    return broker_of


@kernel
def _enter(
    traffic: Traffic,
    user: int,
    broker: int,
    load: NDArray[np.float64],
    sent: NDArray[np.float64],
    readers: NDArray[np.float64],
) -> None:
    """Count a user's traffic at its broker."""
    load[broker] += traffic.demand[user]
    sent[broker] += traffic.rates[user]
    for at in range(traffic.start[user], traffic.start[user + 1]):
        readers[broker, traffic.channels[at]] += 1
