"""Steiner mixing (paper 5, IV-B): one tree per channel, then one broker drawn for each user.

Phase 1 is Algorithm 3 for each channel. From its entry on, a tree repeatedly adds the user with the cheapest
path from any broker in the tree. The last broker of the path joins the tree. By default a channel has one
tree with all its publishers and readers, which starts at the publisher with the highest rate: the paper says
that a user has at most one broker per channel. With `trees="publisher"` each publisher has a tree in each
channel, as the description of phase 1 says; publishers that enter the core at the same broker share one.
Phase 2 draws each user's broker in proportion to the traffic that the trees put on its links, among the
brokers with enough spare capacity; a user without such traffic gets the nearest of them.
Phase 3 is the option `core`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.market.cost_ledger import UserTraffic, traffic_of
from broadloom.assignment.market.packing import (
    MarketOptions,
    check_capacities,
    complete_assignment,
    largest_first,
)
from broadloom.checks import check_choice
from broadloom.kernels import kernel
from broadloom.model import PRICE_TOLERANCE, MarketProblem
from broadloom.plans import MarketResult

TREES = ("channel", "publisher")
ChannelLinks = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


@dataclass(frozen=True)
class MixingOptions(MarketOptions):
    """Options of steiner-mixing.

    Attributes:
        core: as for every algorithm.
        trees: "channel": one tree per channel; "publisher": one tree per publisher and channel.
    """

    trees: str = "channel"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.trees, "trees", TREES)


def steiner_mixing(problem: MarketProblem, options: MarketOptions, seed: int) -> MarketResult:
    """The assignment after all three phases.

    Reference: Zhao and Wu, SECON 2011 (paper 5), section IV-B and Algorithm 3.
    """
    trees = options.trees if isinstance(options, MixingOptions) else TREES[0]
    return draw_brokers(problem, options, seed, access_weights(problem, trees))


def draw_brokers(
    problem: MarketProblem, options: MarketOptions, seed: int, weights: NDArray[np.float64]
) -> MarketResult:
    """The assignment of phases 2 and 3, from the weights of phase 1."""
    check_capacities(problem)
    chance = np.random.default_rng(seed).random(problem.user_count)
    drawn = _draw(traffic_of(problem), weights, largest_first(problem), chance)
    return MarketResult(problem, complete_assignment(problem, drawn), options.core)


def access_weights(problem: MarketProblem, trees: str = "channel") -> NDArray[np.float64]:
    """Phase 1: the traffic that all trees put on the link of each user to each broker, (users, brokers)."""
    paths = cheapest_paths(problem.access, problem.core)
    weights = np.zeros(problem.access.shape)
    for rates, wants in zip(problem.rates.T, problem.wants.T, strict=True):
        user, broker, weight = channel_weights(rates, wants, problem.access, *paths, trees)
        weights[user, broker] += weight
    return weights


def channel_weights(
    rates: NDArray[np.float64],
    wants: NDArray[np.bool_],
    access: NDArray[np.float64],
    path_price: NDArray[np.float64],
    last_broker: NDArray[np.int32],
    trees: str = "channel",
) -> ChannelLinks:
    """Phase 1 for one channel: the rate of each user, whether it wants the channel, and the cheapest paths.

    Returns:
        The links that the channel's trees use, each once: user, broker, and the traffic.
    """
    if trees == "channel":
        return _one_tree(rates, wants, access, path_price, last_broker)
    senders, readers = np.flatnonzero(rates), np.flatnonzero(wants)
    entry, entering = np.full(len(access), -1), np.zeros(access.shape[1])
    entry[senders] = _entry_brokers(senders, readers, access, path_price)
    np.add.at(entering, entry[senders], rates[senders])
    near, over = np.ascontiguousarray(path_price[readers].T), np.ascontiguousarray(last_broker[readers].T)
    of_readers = _reader_weights(entering, entry[readers], rates[readers], near, over)
    reader, broker = np.nonzero(of_readers)
    others = senders[~wants[senders]]
    return (
        np.concatenate([readers[reader], others]),
        np.concatenate([broker, entry[others]]),
        np.concatenate([of_readers[reader, broker], rates[others]]),
    )


def _one_tree(
    rates: NDArray[np.float64],
    wants: NDArray[np.bool_],
    access: NDArray[np.float64],
    path_price: NDArray[np.float64],
    last_broker: NDArray[np.int32],
) -> ChannelLinks:
    """One tree over all publishers and readers of a channel, from the publisher with the highest rate."""
    senders, readers = np.flatnonzero(rates), np.flatnonzero(wants)
    if len(senders) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    first = int(senders[rates[senders].argmax()])
    entry = int(_entry_brokers(np.array([first]), readers, access, path_price)[0])
    others = np.flatnonzero((rates > 0) | wants)
    others = others[others != first]
    near, over = (np.ascontiguousarray(array[others].T) for array in (path_price, last_broker))
    members = np.append(others, first)
    brokers = np.append(_grow_tree(entry, near, over).astype(np.int64), entry)
    received = np.where(wants[members], rates.sum() - rates[members], 0.0)
    return members, brokers, rates[members] + received


@kernel
def cheapest_paths(
    access: NDArray[np.float64], core: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """The cheapest path from each broker to each user: its price, and its last broker, (users, brokers).

    The brokers nearest to the user come first. A broker to which the user has a cheaper path over another one
    is the last broker of no cheapest path, since core prices keep the triangle inequality up to rounding. So
    most brokers are skipped.
    """
    users, brokers = access.shape
    path_price = np.full((users, brokers), np.inf)
    last_broker = np.full((users, brokers), brokers, np.int32)
    farthest = core.max() if brokers else 0.0
    for v in range(users):
        for x in np.argsort(access[v], kind="mergesort"):
            rounding = 2 * PRICE_TOLERANCE * (farthest + access[v, x])
            if path_price[v, x] >= access[v, x] - rounding:
                _offer_last_broker(np.int32(x), access[v, x], core[x], path_price[v], last_broker[v])
    return path_price, last_broker


@kernel
def _offer_last_broker(
    x: np.int32,
    price: float,
    core: NDArray[np.float64],
    path_price: NDArray[np.float64],
    last_broker: NDArray[np.int32],
) -> None:
    """Take the path over x from each broker where it is cheaper; the first broker among equals."""
    # Without branches the compiler does many brokers at a time.
    for b in range(len(core)):
        total = core[b] + price
        better = (total < path_price[b]) | ((total == path_price[b]) & (x < last_broker[b]))
        path_price[b] = total if better else path_price[b]
        last_broker[b] = x if better else last_broker[b]


@kernel
def _reader_weights(
    entering: NDArray[np.float64],
    entry: NDArray[np.int64],
    rates: NDArray[np.float64],
    near: NDArray[np.float64],
    over: NDArray[np.int32],
) -> NDArray[np.float64]:
    """The traffic of a channel's trees on the links of its readers, (readers, brokers).

    Args:
        entering: the rate that enters the core at each broker.
        entry: the broker where each reader's own messages enter.
        rates: the rate that each reader sends itself.
        near: the price of the cheapest path from each broker to each reader, (brokers, readers).
        over: the last broker of that path.
    """
    weights = np.zeros((len(entry), len(entering)))
    for sender in np.flatnonzero(rates):
        weights[sender, entry[sender]] = rates[sender]
    for b in np.flatnonzero(entering):
        at = _grow_tree(int(b), near, over)
        for q in range(len(entry)):
            weights[q, at[q]] += entering[b] - (rates[q] if entry[q] == b else 0.0)
    return weights


@kernel
def _entry_brokers(
    senders: NDArray[np.int64],
    readers: NDArray[np.int64],
    access: NDArray[np.float64],
    path_price: NDArray[np.float64],
) -> NDArray[np.int64]:
    """The broker at which each sender's tree starts: the first on its cheapest path to any other reader."""
    brokers = access.shape[1]
    nearest, second = np.full(brokers, np.inf), np.full(brokers, np.inf)
    nearest_reader = np.full(brokers, -1)
    for v in readers:
        for b in range(brokers):
            if path_price[v, b] < nearest[b]:
                second[b] = nearest[b]
                nearest[b] = path_price[v, b]
                nearest_reader[b] = v
            elif path_price[v, b] < second[b]:
                second[b] = path_price[v, b]
    entry = np.zeros(len(senders), np.int64)
    for p in range(len(senders)):
        best = np.inf
        for b in range(brokers):
            to_reader = second[b] if nearest_reader[b] == senders[p] else nearest[b]
            price = access[senders[p], b] + to_reader
            if price < best:
                best = price
                entry[p] = b
    return entry


@kernel
def _grow_tree(entry: int, near: NDArray[np.float64], over: NDArray[np.int32]) -> NDArray[np.int32]:
    """Algorithm 3 from one broker: the broker to which each reader is attached.

    Readers that attach to brokers in the tree do not change it. So each round finds the nearest reader that
    brings a new broker, and attaches all readers that come before it, then that reader.

    Args:
        entry: the broker.
        near: the price of the cheapest path from each broker to each reader, (brokers, readers).
        over: the last broker of that path.
    """
    price, at = near[entry].copy(), over[entry].copy()
    inside = np.zeros(len(near), np.bool_)
    inside[entry] = True
    waiting, remaining, broker = np.arange(len(price)), len(price), entry
    newcomer, reached = -1, -1.0
    while True:
        last, newcomer, nearest, kept = newcomer, -1, np.inf, 0
        for p in range(remaining):
            q = waiting[p]
            if price[q] < reached or (price[q] == reached and q <= last):
                continue
            if near[broker, q] < price[q]:
                price[q], at[q] = near[broker, q], over[broker, q]
            if price[q] < nearest and not inside[at[q]]:
                newcomer, nearest = q, price[q]
            waiting[kept] = q
            kept += 1
        if newcomer < 0:
            return at
        remaining, broker, reached = kept, at[newcomer], nearest
        inside[broker] = True


@kernel
def _draw(
    traffic: UserTraffic, weights: NDArray[np.float64], order: NDArray[np.int64], chance: NDArray[np.float64]
) -> NDArray[np.int32]:
    """Phase 2: users in order, each to a broker with enough spare capacity; -1 without one."""
    broker_of = np.full(len(order), -1, np.int32)
    load = np.zeros(len(traffic.limit))
    for i in order:
        candidates = np.flatnonzero(load + traffic.demand[i] <= traffic.limit)
        if len(candidates) == 0:
            continue
        share = np.cumsum(weights[i, candidates])
        if share[-1] > 0:
            b = candidates[np.searchsorted(share, chance[i] * share[-1], side="right")]
        else:
            b = candidates[np.argmin(traffic.access[i, candidates])]
        broker_of[i] = b
        load[b] += traffic.demand[i]
    return broker_of
