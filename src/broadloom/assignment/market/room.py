"""Capacities: whether all users can fit at all, and how to make room for those that were left out."""

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import raise_for_first
from broadloom.errors import InputError
from broadloom.kernels import kernel
from broadloom.measures.market import Traffic, traffic_of
from broadloom.model import MarketProblem


def largest_first(problem: MarketProblem) -> NDArray[np.int64]:
    """The users in order of demand, the largest first, the smallest index among equals."""
    return np.argsort(-problem.demand, kind="stable")


def check_room(problem: MarketProblem) -> None:
    """Refuse a market whose users cannot fit: one that no broker can carry, or too much demand in all.

    Raises:
        InputError: it says which user, and by how much.
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
    needed, there = float(problem.demand.sum()), float(problem.capacity.sum())
    if needed > float(problem.limit.sum()):
        raise InputError(
            f"users need {needed:.6g} in all but brokers carry {there:.6g}, {needed - there:.6g} too little; "
            "raise capacities or add brokers"
        )


def settled(problem: MarketProblem, broker_of: NDArray[np.int32]) -> NDArray[np.int32]:
    """The assignment with a broker for those who have none yet (-1).

    Each of them goes to the cheapest broker with room, or to one where another user makes room by moving on.
    If that does not do, all are packed anew, largest first, each to the broker that it fills best.

    Raises:
        InputError: some user finds no room even so; it says by how much.
    """
    if np.all(broker_of >= 0):
        return broker_of
    traffic = traffic_of(problem)
    order = largest_first(problem)
    if _make_room(traffic, order, broker_of) < 0:
        return broker_of
    packed, room, left_out = _best_fit(traffic, order)
    if left_out >= 0:
        need = problem.demand[left_out]
        raise InputError(
            f"no room for user {problem.user_ids[left_out]!r}: it needs {need:.6g}, the most that a broker "
            f"has left is {room:.6g}, {need - room:.6g} too little; raise capacities or add brokers"
        )
    return packed


@kernel
def _make_room(traffic: Traffic, order: NDArray[np.int64], broker_of: NDArray[np.int32]) -> int:
    """Place those without a broker at the least access cost, moving at most one other each; who is left."""
    load = np.zeros(len(traffic.limit))
    for i in order:
        if broker_of[i] >= 0:
            load[broker_of[i]] += traffic.demand[i]
    for i in order:
        if broker_of[i] >= 0:
            continue
        to, other, other_to = _cheapest_place(traffic, broker_of, load, i)
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
def _cheapest_place(
    traffic: Traffic, broker_of: NDArray[np.int32], load: NDArray[np.float64], user: int
) -> tuple[int, int, int]:
    """A broker for the user (-1: none has room), who has to leave it (-1: nobody), and where to."""
    need, best, place = traffic.demand[user], np.inf, (-1, -1, -1)
    for b in range(len(load)):
        if load[b] + need <= traffic.limit[b] and need * traffic.access[user, b] < best:
            best, place = need * traffic.access[user, b], (b, -1, -1)
    if place[0] >= 0:
        return place
    for other in range(len(broker_of)):
        b, size = broker_of[other], traffic.demand[other]
        if b < 0 or load[b] - size + need > traffic.limit[b]:
            continue
        for x in range(len(load)):
            cost = need * traffic.access[user, b] + size * (
                traffic.access[other, x] - traffic.access[other, b]
            )
            if x != b and load[x] + size <= traffic.limit[x] and cost < best:
                best, place = cost, (b, other, x)
    return place


@kernel
def _best_fit(traffic: Traffic, order: NDArray[np.int64]) -> tuple[NDArray[np.int32], float, int]:
    """Users in order, each to the broker that it fills best; the most room left, and who found none or -1."""
    broker_of, room = np.full(len(order), -1, np.int32), traffic.limit.copy()
    for i in order:
        for b in range(len(room)):
            if traffic.demand[i] <= room[b] and (broker_of[i] < 0 or room[b] < room[broker_of[i]]):
                broker_of[i] = b
        if broker_of[i] < 0:
            return broker_of, room.max(), i
        room[broker_of[i]] -= traffic.demand[i]
    return broker_of, 0.0, -1
