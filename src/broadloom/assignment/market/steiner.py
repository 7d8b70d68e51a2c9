"""Steiner mixing (paper 5, IV-B): a tree for each publisher and channel, then one broker drawn for each user.

Phase 1 is Algorithm 3 for each channel: publishers that enter the core at the same broker share a tree. From
its entry on a tree takes, again and again, the user of least price to any broker in it, over that broker or
over another one that thereby joins. Phase 2 draws each user's broker in proportion to the traffic that the
trees put on its links, among brokers with room; the nearest with room otherwise. Phase 3 is `core`.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.market.market_options import MarketOptions
from broadloom.assignment.market.room import check_room, largest_first, settled
from broadloom.kernels import kernel
from broadloom.measures.market import Traffic, traffic_of
from broadloom.model import PRICE_TOLERANCE, MarketProblem
from broadloom.plans import MarketResult


def steiner_mixing(problem: MarketProblem, options: MarketOptions, seed: int) -> MarketResult:
    """The three phases."""
    return mixed(problem, options, seed, link_weights(problem))


def mixed(
    problem: MarketProblem, options: MarketOptions, seed: int, weights: NDArray[np.float64]
) -> MarketResult:
    """Phases 2 and 3, from the weights of phase 1."""
    check_room(problem)
    chance = np.random.default_rng(seed).random(problem.user_count)
    drawn = _drawn(traffic_of(problem), weights, largest_first(problem), chance)
    return MarketResult(problem, settled(problem, drawn), options.core)


def link_weights(problem: MarketProblem) -> NDArray[np.float64]:
    """Phase 1: the traffic that all trees put on the link of each user to each broker, (users, brokers)."""
    ways = ways_in(problem.access, problem.core)
    weights = np.zeros(problem.access.shape)
    for rates, wants in zip(problem.rates.T, problem.wants.T, strict=True):
        user, broker, weight = channel_weights(rates, wants, problem.access, *ways)
        weights[user, broker] += weight
    return weights


def channel_weights(
    rates: NDArray[np.float64],
    wants: NDArray[np.bool_],
    access: NDArray[np.float64],
    reach: NDArray[np.float64],
    via: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Phase 1 for one channel alone: what each user sends into it, who wants it, and the ways in.

    Returns:
        The links that its trees use, each once: user, broker, and the traffic.
    """
    senders, readers = np.flatnonzero(rates), np.flatnonzero(wants)
    entry, entering = np.full(len(access), -1), np.zeros(access.shape[1])
    entry[senders] = _entries(senders, readers, access, reach)
    np.add.at(entering, entry[senders], rates[senders])
    near, over = np.ascontiguousarray(reach[readers].T), np.ascontiguousarray(via[readers].T)
    of_readers = _reader_weights(entering, entry[readers], rates[readers], near, over)
    reader, broker = np.nonzero(of_readers)
    others = senders[~wants[senders]]
    return (
        np.concatenate([readers[reader], others]),
        np.concatenate([broker, entry[others]]),
        np.concatenate([of_readers[reader, broker], rates[others]]),
    )


@kernel
def ways_in(
    access: NDArray[np.float64], core: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """From each broker to each user: the price of the cheapest way, and over which broker it goes in.

    The brokers nearest to the user come first. One that is itself reached more cheaply over another is on
    no cheapest way, since core prices keep the triangle inequality up to rounding: most need no look.
    """
    users, brokers = access.shape
    reach, via = np.full((users, brokers), np.inf), np.full((users, brokers), brokers, np.int32)
    farthest = core.max() if brokers else 0.0
    for v in range(users):
        for x in np.argsort(access[v], kind="mergesort"):
            rounding = 2 * PRICE_TOLERANCE * (farthest + access[v, x])
            if reach[v, x] >= access[v, x] - rounding:
                _offer(np.int32(x), access[v, x], core[x], reach[v], via[v])
    return reach, via


@kernel
def _offer(
    x: np.int32, price: float, core: NDArray[np.float64], reach: NDArray[np.float64], via: NDArray[np.int32]
) -> None:
    """Go in over x where that costs less than so far; the first broker among equals."""
    # Without branches the compiler does many brokers at a time.
    for b in range(len(core)):
        total = core[b] + price
        better = (total < reach[b]) | ((total == reach[b]) & (x < via[b]))
        reach[b] = total if better else reach[b]
        via[b] = x if better else via[b]


@kernel
def _reader_weights(
    entering: NDArray[np.float64],
    entry: NDArray[np.int64],
    rates: NDArray[np.float64],
    near: NDArray[np.float64],
    over: NDArray[np.int32],
) -> NDArray[np.float64]:
    """What a channel's trees put on the links of its readers, which may be senders too, (readers, brokers).

    Args:
        entering: what enters the core at each broker.
        entry: where each reader's own messages enter.
        rates: how much it sends itself.
        near: the price of the cheapest way from each broker to each reader, (brokers, readers).
        over: the broker over which it goes in.
    """
    weights = np.zeros((len(entry), len(entering)))
    for sender in np.flatnonzero(rates):
        weights[sender, entry[sender]] = rates[sender]
    for b in np.flatnonzero(entering):
        at = _grown(int(b), near, over)
        for q in range(len(entry)):
            weights[q, at[q]] += entering[b] - (rates[q] if entry[q] == b else 0.0)
    return weights


@kernel
def _entries(
    senders: NDArray[np.int64],
    readers: NDArray[np.int64],
    access: NDArray[np.float64],
    reach: NDArray[np.float64],
) -> NDArray[np.int64]:
    """The broker at which each sender's tree starts: the first on its cheapest way to any other reader."""
    brokers = access.shape[1]
    nearest, second, who = np.full(brokers, np.inf), np.full(brokers, np.inf), np.full(brokers, -1)
    for v in readers:
        for b in range(brokers):
            if reach[v, b] < nearest[b]:
                second[b], nearest[b], who[b] = nearest[b], reach[v, b], v
            elif reach[v, b] < second[b]:
                second[b] = reach[v, b]
    entry = np.zeros(len(senders), np.int64)
    for p in range(len(senders)):
        best = np.inf
        for b in range(brokers):
            price = access[senders[p], b] + (second[b] if who[b] == senders[p] else nearest[b])
            if price < best:
                best, entry[p] = price, b
    return entry


@kernel
def _grown(entry: int, near: NDArray[np.float64], over: NDArray[np.int32]) -> NDArray[np.int32]:
    """Algorithm 3 from one broker: where each reader is attached.

    Readers that attach to brokers in the tree do not change it. So each round looks for the nearest one that
    brings a new broker, attaches all that come before it, then itself.

    Args:
        entry: the broker.
        near: the price of the cheapest way from each broker to each reader, (brokers, readers).
        over: the broker over which it goes in.
    """
    price, at = near[entry].copy(), over[entry].copy()
    inside = np.zeros(len(near), np.bool_)
    inside[entry] = True
    open_ones, left, broker = np.arange(len(price)), len(price), entry
    newcomer, reached = -1, -1.0
    while True:
        last, newcomer, nearest, still = newcomer, -1, np.inf, 0
        for p in range(left):
            q = open_ones[p]
            if price[q] < reached or (price[q] == reached and q <= last):
                continue
            if near[broker, q] < price[q]:
                price[q], at[q] = near[broker, q], over[broker, q]
            if price[q] < nearest and not inside[at[q]]:
                newcomer, nearest = q, price[q]
            open_ones[still] = q
            still += 1
        if newcomer < 0:
            return at
        left, broker, reached = still, at[newcomer], nearest
        inside[broker] = True


@kernel
def _drawn(
    traffic: Traffic, weights: NDArray[np.float64], order: NDArray[np.int64], chance: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Phase 2: users in order, each to a broker with room; -1 where there is none."""
    broker_of, load = np.full(len(order), -1, np.int32), np.zeros(len(traffic.limit))
    for i in order:
        open_ones = np.flatnonzero(load + traffic.demand[i] <= traffic.limit)
        if len(open_ones) == 0:
            continue
        share = np.cumsum(weights[i, open_ones])
        if share[-1] > 0:
            b = open_ones[np.searchsorted(share, chance[i] * share[-1], side="right")]
        else:
            b = open_ones[np.argmin(traffic.access[i, open_ones])]
        broker_of[i] = b
        load[b] += traffic.demand[i]
    return broker_of
