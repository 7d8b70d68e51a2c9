"""A cost that no assignment of a market can beat (ours): facility location under the cost, by its dual.

A broker in a channel costs at least a fixed price, whatever the others do. Under trees each broker of the
channel but the source pays the link to its parent, which costs no less than its nearest neighbour. Under
pairs sum over x in S of D[b, x] >= sum over x in S of s[x] + sum over x of min(0, D[b, x] - s[x]), for any s.
What depends on the source alone goes to the users there. The rest is a facility location problem without
capacities: each user pays at its broker, each broker and channel is opened at its price. Any split of the
prices among the users gives a bound, sum over users of the cheapest broker with its shares; steps of an
exponentiated subgradient improve the split.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import kernel
from broadloom.measures.market import core_named, open_ledger
from broadloom.model import MarketProblem
from broadloom.progress import stage

# At most so many shares are kept: for each channel that a user wants, one at each of its nearest brokers.
MOST_SHARES = 4_000_000

# Rounding may add up to this share: shares are cut by it before they count, and so is the bound itself.
SAFETY = 1e-9

# How softly users choose, as a share of how far their two cheapest brokers are apart; how far shares move.
WARMTH = 0.5
STEP = 2.0

# Under pairs: s as shares of the mean price from the senders found, of which the best is taken.
PAIR_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)
PAIR_TRIAL = 5


def lower_bound(problem: MarketProblem, found: NDArray[np.int32], core: str, steps: int) -> float:
    """A proven bound on the cost under a core; `found` is a good assignment, which tells where to look."""
    if not problem.user_count:
        return 0.0
    access = problem.demand[:, None] * problem.access
    alone = float(access.min(axis=1).sum()) * (1 - SAFETY)
    if steps == 0:
        return alone
    if core != "pair":
        nearest = _nearest(problem.core)
        opening = problem.rates.sum(axis=0) * nearest[:, None]
        paid = access - problem.sent[:, None] * nearest
        return max(alone, _facility_bound(problem, paid, opening, steps))
    ledger = open_ledger(problem, found, core_named(problem, core))
    trials = [_pair_relaxation(problem, access, ledger.sent, share) for share in PAIR_SHARES]
    values = [_facility_bound(problem, *trial, PAIR_TRIAL) for trial in trials]
    best = trials[int(np.argmax(values))]
    return max(alone, *values, _facility_bound(problem, *best, steps))


def _nearest(prices: NDArray[np.float64]) -> NDArray[np.float64]:
    """The price of each broker's cheapest link; 0 where it is alone."""
    others = prices + np.diag(np.full(len(prices), np.inf))
    nearest = others.min(axis=1, initial=np.inf)
    return np.where(np.isfinite(nearest), nearest, 0.0)


def _pair_relaxation(
    problem: MarketProblem, access: NDArray[np.float64], sent: NDArray[np.float64], share: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What each user pays at each broker, and what each broker pays for each channel, under pairs."""
    total = sent.sum(axis=0)
    mean = (problem.core @ sent) / np.where(total > 0, total, 1.0)
    price = share * mean
    back = np.zeros_like(sent)
    for b, row in enumerate(problem.core):
        back[b] = np.minimum(0.0, row[:, None] - price).sum(axis=0)
    return access + problem.rates @ back.T, total * price


def _facility_bound(
    problem: MarketProblem, paid: NDArray[np.float64], opening: NDArray[np.float64], steps: int
) -> float:
    """The bound of facility location: `paid` by users at brokers, `opening` a broker and channel."""
    start, channels = problem.wanted
    brokers = problem.broker_count
    kept = max(1, min(brokers, MOST_SHARES // max(1, len(channels))))
    near = np.argpartition(paid, kept - 1, axis=1)[:, :kept].astype(np.int32)
    here = np.take_along_axis(paid, near, axis=1)
    elsewhere = np.full(len(paid), np.inf)
    if kept < brokers:
        rest = paid.copy()
        np.put_along_axis(rest, near, np.inf, axis=1)
        elsewhere = rest.min(axis=1)
    with stage("bound", steps) as done:
        shares = _even_shares(near, start, channels, opening)
        best = -np.inf
        for step in range(steps):
            value, chosen = _value(here, elsewhere, start, shares)
            best = max(best, value)
            _shift(near, start, channels, opening, chosen, STEP / np.sqrt(1 + step / 10), shares)
            done(step + 1)
        best = max(best, _value(here, elsewhere, start, shares)[0])
    return float(best - SAFETY * (np.abs(here).max(axis=1).sum() + opening.sum()))


@kernel
def _even_shares(
    near: NDArray[np.int32],
    start: NDArray[np.int64],
    channels: NDArray[np.int32],
    opening: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Each price split evenly among the users that keep a share of it."""
    shares = np.ones((len(channels), near.shape[1]))
    _normalise(near, start, channels, opening, shares)
    return shares


@kernel
def _normalise(
    near: NDArray[np.int32],
    start: NDArray[np.int64],
    channels: NDArray[np.int32],
    opening: NDArray[np.float64],
    shares: NDArray[np.float64],
) -> None:
    """Scale shares so that those of one broker and channel add up to its price, and a hair less."""
    total = np.zeros(opening.shape)
    for i in range(len(near)):
        for at in range(start[i], start[i + 1]):
            for q in range(near.shape[1]):
                total[near[i, q], channels[at]] += shares[at, q]
    for i in range(len(near)):
        for at in range(start[i], start[i + 1]):
            for q in range(near.shape[1]):
                b, t = near[i, q], channels[at]
                shares[at, q] *= (1 - SAFETY) * opening[b, t] / total[b, t]


@kernel
def _value(
    here: NDArray[np.float64],
    elsewhere: NDArray[np.float64],
    start: NDArray[np.int64],
    shares: NDArray[np.float64],
) -> tuple[float, NDArray[np.float64]]:
    """The bound of a split, and how much each user leans to each broker: a soft choice of the cheapest."""
    users, kept = here.shape
    chosen, cost = np.zeros((users, kept)), here.copy()
    total = apart = 0.0
    for i in range(users):
        for at in range(start[i], start[i + 1]):
            cost[i] += shares[at]
        lowest = second = np.inf
        for one in cost[i]:
            second = min(second, max(one, lowest))
            lowest = min(lowest, one)
        total += min(lowest, elsewhere[i])
        apart += second - lowest if kept > 1 else 0.0
    warmth = max(apart / users, 1e-300) * WARMTH
    for i in range(users):
        low = min(cost[i].min(), elsewhere[i])
        weight = np.exp(-(cost[i] - low) / warmth)
        chosen[i] = weight / (weight.sum() + np.exp(-(elsewhere[i] - low) / warmth))
    return total, chosen


@kernel
def _shift(
    near: NDArray[np.int32],
    start: NDArray[np.int64],
    channels: NDArray[np.int32],
    opening: NDArray[np.float64],
    chosen: NDArray[np.float64],
    step: float,
    shares: NDArray[np.float64],
) -> None:
    """Move shares towards the users that lean to the broker: where they count."""
    for i in range(len(near)):
        grow = np.exp(step * chosen[i])
        for at in range(start[i], start[i + 1]):
            shares[at] = shares[at] * grow + 1e-300
    _normalise(near, start, channels, opening, shares)
