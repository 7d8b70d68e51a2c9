"""Random assignment, greedy packing and clustering (paper 5, Algorithms 1 and 2), within capacities.

Clustering: the printed argmin of the bandwidth-to-cost ratio contradicts the text, which maximises it, and is
worse than random; we maximise. The price between two users is that of the path over the broker.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.market.cost_ledger import UserTraffic, dot, traffic_of
from broadloom.checks import raise_for_first
from broadloom.errors import InputError
from broadloom.kernels import kernel
from broadloom.model import MarketProblem, check_core
from broadloom.plans import MarketResult


@dataclass(frozen=True)
class MarketOptions:
    """Options of every algorithm for markets.

    Attributes:
        core: how traffic crosses the core: "mst", "pair" or "tree"; see `broadloom.measures.market_cost`.
    """

    core: str = "mst"

    def __post_init__(self) -> None:
        check_core(self.core)


def random(problem: MarketProblem, options: MarketOptions, seed: int) -> MarketResult:
    """Each user, in order, to a uniformly random broker with enough spare capacity.

    Reference: Zhao and Wu, SECON 2011 (paper 5), section VI-B.
    """
    check_capacities(problem)
    chance = np.random.default_rng(seed).random(problem.user_count)
    drawn = _pack_at_random(traffic_of(problem), chance)
    return MarketResult(problem, complete_assignment(problem, drawn), options.core)


def greedy_packing(problem: MarketProblem, options: MarketOptions, seed: int) -> MarketResult:  # noqa: ARG001
    """Each user, largest demand first, to the cheapest broker with enough spare capacity.

    Reference: Zhao and Wu, SECON 2011 (paper 5), Alg. 1.
    """
    return MarketResult(problem, greedy_assignment(problem), options.core)


def greedy_assignment(problem: MarketProblem) -> NDArray[np.int32]:
    """The assignment of greedy packing."""
    check_capacities(problem)
    packed = _pack_cheapest(traffic_of(problem), largest_first(problem))
    return complete_assignment(problem, packed)


def clustering(problem: MarketProblem, options: MarketOptions, seed: int) -> MarketResult:  # noqa: ARG001
    """Each broker gets the two users of the highest ratio; each other user, the broker of highest ratio.

    Reference: Zhao and Wu, SECON 2011 (paper 5), Alg. 2.
    """
    check_capacities(problem)
    traffic = traffic_of(problem)
    clustered = _join_clusters(traffic, _seed_pairs(traffic))
    return MarketResult(problem, complete_assignment(problem, clustered), options.core)


def largest_first(problem: MarketProblem) -> NDArray[np.int64]:
    """The users by demand, the largest first, the smallest index among equals."""
    return np.argsort(-problem.demand, kind="stable")


def check_capacities(problem: MarketProblem) -> None:
    """Refuse a market where the users cannot fit: a user above every capacity, or too much total demand.

    Raises:
        InputError: it names the user, or says how much capacity is missing.
    """
    largest = float(problem.capacity.max(initial=0.0))
    raise_for_first(
        problem.demand > problem.limit.max(initial=0.0),
        lambda i: (
            f"user {problem.user_ids[i]!r} needs {problem.demand[i]:.6g}, {problem.demand[i] - largest:.6g} "
            "more than any broker carries"
        ),
        "raise a capacity",
    )
    needed, available = float(problem.demand.sum()), float(problem.capacity.sum())
    if needed > float(problem.limit.sum()):
        raise InputError(
            f"users need {needed:.6g} in all but brokers carry {available:.6g}, "
            f"{needed - available:.6g} too little; raise capacities or add brokers"
        )


def complete_assignment(problem: MarketProblem, broker_of: NDArray[np.int32]) -> NDArray[np.int32]:
    """The assignment with a broker for each user that is still unassigned (-1).

    Each of them goes to the cheapest broker with enough spare capacity, or to one that another user leaves
    for a third broker. If that fails, all users are packed again, largest first, by best fit.

    Raises:
        InputError: a user does not fit even so; it says how much capacity is missing.
    """
    if np.all(broker_of >= 0):
        return broker_of
    traffic = traffic_of(problem)
    order = largest_first(problem)
    if _place_unassigned(traffic, order, broker_of) < 0:
        return broker_of
    packed, spare, left_out = _best_fit(traffic, order)
    if left_out >= 0:
        need = problem.demand[left_out]
        raise InputError(
            f"user {problem.user_ids[left_out]!r} does not fit: it needs {need:.6g}, the largest spare "
            f"capacity is {spare:.6g}, {need - spare:.6g} too little; raise capacities or add brokers"
        )
    return packed


@kernel
def _pack_at_random(traffic: UserTraffic, chance: NDArray[np.float64]) -> NDArray[np.int32]:
    """User i to a random broker with enough spare capacity, by `chance[i]` from 0 to 1; -1 without one."""
    broker_of = np.full(len(chance), -1, np.int32)
    load = np.zeros(len(traffic.limit))
    for i in range(len(chance)):
        candidates = np.flatnonzero(load + traffic.demand[i] <= traffic.limit)
        if len(candidates):
            b = candidates[int(chance[i] * len(candidates))]
            broker_of[i] = b
            load[b] += traffic.demand[i]
    return broker_of


@kernel
def _pack_cheapest(traffic: UserTraffic, order: NDArray[np.int64]) -> NDArray[np.int32]:
    """Users in order, each to the cheapest broker with enough spare capacity; -1 without one."""
    broker_of = np.full(len(order), -1, np.int32)
    load = np.zeros(len(traffic.limit))
    for i in order:
        for b in range(len(load)):
            if load[b] + traffic.demand[i] <= traffic.limit[b] and (
                broker_of[i] < 0 or traffic.access[i, b] < traffic.access[i, broker_of[i]]
            ):
                broker_of[i] = b
        if broker_of[i] >= 0:
            load[broker_of[i]] += traffic.demand[i]
    return broker_of


@kernel
def _seed_pairs(traffic: UserTraffic) -> NDArray[np.int32]:
    """Brokers in order: each gets the pair of unassigned users with the highest ratio that it can carry.

    Users are tried by price. The search ends as soon as no dearer user can have the highest ratio.
    """
    users, brokers = len(traffic.demand), len(traffic.limit)
    broker_of = np.full(users, -1, np.int32)
    most = _most_exchanged(traffic)
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
                ratio = _ratio(_traffic_between(traffic, i, j), price[i] + price[j])
                first, last = min(i, j), max(i, j)
                if ratio > best or (ratio == best and (first, last) < (one, other)):
                    best, one, other = ratio, first, last
        if one >= 0:
            broker_of[one] = broker_of[other] = b
    return broker_of


@kernel
def _join_clusters(traffic: UserTraffic, broker_of: NDArray[np.int32]) -> NDArray[np.int32]:
    """Users in order, each to the broker of the highest ratio with enough spare capacity; -1 without one."""
    brokers, channels = len(traffic.limit), traffic.rates.shape[1]
    load, sent, readers = np.zeros(brokers), np.zeros((brokers, channels)), np.zeros((brokers, channels))
    seeds = np.flatnonzero(broker_of >= 0)
    for i in seeds:
        _count_user(traffic, int(i), broker_of[i], load, sent, readers)
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
            _count_user(traffic, int(i), broker_of[i], load, sent, readers)
    return broker_of


@kernel
def _ratio(bandwidth: float, price: float) -> float:
    """Bandwidth to cost: 0 without traffic, infinite where traffic is free."""
    if bandwidth == 0:
        return 0.0
    return bandwidth / price if price > 0 else np.inf


@kernel
def _traffic_between(traffic: UserTraffic, i: int, j: int) -> float:
    """The rate between two users, both directions together."""
    total = 0.0
    for at in range(traffic.start[j], traffic.start[j + 1]):
        total += traffic.rates[i, traffic.channels[at]]
    for at in range(traffic.start[i], traffic.start[i + 1]):
        total += traffic.rates[j, traffic.channels[at]]
    return total


@kernel
def _most_exchanged(traffic: UserTraffic) -> NDArray[np.float64]:
    """An upper bound on what each user exchanges with any other one.

    It sends its highest rate into the largest number of channels that a user wants, and gets the highest
    rate of all users in each channel that it wants.
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
def _count_user(
    traffic: UserTraffic,
    user: int,
    broker: int,
    load: NDArray[np.float64],
    sent: NDArray[np.float64],
    readers: NDArray[np.float64],
) -> None:
    """Add a user's traffic to its broker."""
    load[broker] += traffic.demand[user]
    sent[broker] += traffic.rates[user]
    for at in range(traffic.start[user], traffic.start[user + 1]):
        readers[broker, traffic.channels[at]] += 1


@kernel
def _place_unassigned(traffic: UserTraffic, order: NDArray[np.int64], broker_of: NDArray[np.int32]) -> int:
    """Assign the unassigned users at the least access cost, moving at most one other user for each.

    Returns the first user that does not fit, or -1.
    """
    load = np.zeros(len(traffic.limit))
    for i in order:
        if broker_of[i] >= 0:
            load[broker_of[i]] += traffic.demand[i]
    for i in order:
        if broker_of[i] >= 0:
            continue
        to, other, other_to = _cheapest_insertion(traffic, broker_of, load, i)
        if to < 0:
            return i
        if other >= 0:
            broker_of[other] = other_to
            load[to] -= traffic.demand[other]
            load[other_to] += traffic.demand[other]
        broker_of[i] = to
        load[to] += traffic.demand[i]
    return -1


@kernel
def _cheapest_insertion(
    traffic: UserTraffic, broker_of: NDArray[np.int32], load: NDArray[np.float64], user: int
) -> tuple[int, int, int]:
    """A broker for the user (-1: it fits nowhere), the user that leaves it (-1: none), and its new broker."""
    need, best, insertion = traffic.demand[user], np.inf, (-1, -1, -1)
    for b in range(len(load)):
        if load[b] + need <= traffic.limit[b] and need * traffic.access[user, b] < best:
            best, insertion = need * traffic.access[user, b], (b, -1, -1)
    if insertion[0] >= 0:
        return insertion
    for other in range(len(broker_of)):
        b, size = broker_of[other], traffic.demand[other]
        if b < 0 or load[b] - size + need > traffic.limit[b]:
            continue
        for x in range(len(load)):
            cost = need * traffic.access[user, b] + size * (
                traffic.access[other, x] - traffic.access[other, b]
            )
            if x != b and load[x] + size <= traffic.limit[x] and cost < best:
                best, insertion = cost, (b, other, x)
    return insertion


@kernel
def _best_fit(traffic: UserTraffic, order: NDArray[np.int64]) -> tuple[NDArray[np.int32], float, int]:
    """Users in order, each to the fullest broker where it fits.

    Returns the assignment, the largest spare capacity, and the first user that does not fit, or -1.
    """
    broker_of = np.full(len(order), -1, np.int32)
    spare = traffic.limit.copy()
    for i in order:
        for b in range(len(spare)):
            if traffic.demand[i] <= spare[b] and (broker_of[i] < 0 or spare[b] < spare[broker_of[i]]):
                broker_of[i] = b
        if broker_of[i] < 0:
            return broker_of, spare.max(), i
        spare[broker_of[i]] -= traffic.demand[i]
    return broker_of, 0.0, -1
