"""Users to brokers with room: at random, and by two-stage greedy packing (paper 5, Algorithm 1)."""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.market.market_options import MarketOptions
from broadloom.assignment.market.room import check_room, largest_first, settled
from broadloom.kernels import kernel
from broadloom.measures.market import Traffic, traffic_of
from broadloom.model import MarketProblem
from broadloom.plans import MarketResult


def random(problem: MarketProblem, options: MarketOptions, seed: int) -> MarketResult:
    """Each user, in order, to a uniformly random broker with room."""
    check_room(problem)
    chance = np.random.default_rng(seed).random(problem.user_count)
    return MarketResult(problem, settled(problem, _at_random(traffic_of(problem), chance)), options.core)


def greedy_packing(problem: MarketProblem, options: MarketOptions, seed: int) -> MarketResult:  # noqa: ARG001
    """Each user, largest demand first, to the cheapest broker with room."""
    return MarketResult(problem, packed(problem), options.core)


def packed(problem: MarketProblem) -> NDArray[np.int32]:
    """The assignment of greedy packing."""
    check_room(problem)
    return settled(problem, _cheapest(traffic_of(problem), largest_first(problem)))


@kernel
def _at_random(traffic: Traffic, chance: NDArray[np.float64]) -> NDArray[np.int32]:
    """User i to the broker at the share `chance[i]` of those with room; -1 where there is none."""
    broker_of, load = np.full(len(chance), -1, np.int32), np.zeros(len(traffic.limit))
    for i in range(len(chance)):
        open_ones = np.flatnonzero(load + traffic.demand[i] <= traffic.limit)
        if len(open_ones):
            b = open_ones[int(chance[i] * len(open_ones))]
            broker_of[i] = b
            load[b] += traffic.demand[i]
    return broker_of


@kernel
def _cheapest(traffic: Traffic, order: NDArray[np.int64]) -> NDArray[np.int32]:
    """Users in order, each to the cheapest broker with room; -1 where there is none."""
    broker_of, load = np.full(len(order), -1, np.int32), np.zeros(len(traffic.limit))
    for i in order:
        for b in range(len(load)):
            if load[b] + traffic.demand[i] <= traffic.limit[b] and (
                broker_of[i] < 0 or traffic.access[i, b] < traffic.access[i, broker_of[i]]
            ):
                broker_of[i] = b
        if broker_of[i] >= 0:
            load[broker_of[i]] += traffic.demand[i]
    return broker_of
