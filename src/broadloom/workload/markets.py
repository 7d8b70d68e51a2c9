"""Generated markets as paper 5 simulates them (VI-A): clipped quadratics, intervals, equal brokers."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.model import Grid, MarketProblem

ACCESS = ("random", "euclidean")

# The mean of a generating function over a channel is over this many points of it.
_POINTS = 4


def market(
    users: int = 10_000,
    brokers: int = 100,
    channels: int = 128,
    width: float | None = 0.01,
    seed: int = 0,
    access: str = "random",
    ratio: float = 1.0,
    headroom: float = 2.0,
) -> MarketProblem:
    """A market over a content space of one dimension, as paper 5 generates it.

    Each user sends by a random quadratic function, cut off below 0, and wants an interval. Brokers are points
    of the unit square, the core prices their distances.

    Args:
        users: how many users.
        brokers: how many brokers.
        channels: into how many channels the content space is cut.
        width: the width of each interval as a share of the content space; None: between two random points.
        seed: the seed of it all.
        access: "random": each access price is uniform from 0 to 1, which is no metric; "euclidean": users are
            points of the same square, and pay the distance.
        ratio: the mean access price divided by the mean core price.
        headroom: the capacity of all brokers together, which have equal ones, over the demand of all users.

    Example:
        >>> market(users=20, brokers=3, channels=8)
        MarketProblem(20 users, 3 brokers, 8 channels)
    """
    if access not in ACCESS:
        raise InputError(f"no access {access!r}; there are {', '.join(ACCESS)}")
    if users < 0 or brokers < 1 or channels < 1:
        raise InputError(f"{users} users, {brokers} brokers, {channels} channels; give 0, 1 and 1 or more")
    if width is not None and not 0 < width <= 1:
        raise InputError(f"intervals of width {width}; give a share of the space above 0, at most 1")
    if not (np.isfinite(ratio) and ratio > 0 and np.isfinite(headroom) and headroom > 0):
        raise InputError(f"ratio {ratio} and headroom {headroom}; give finite numbers above 0")
    senders, readers, places = (np.random.default_rng([seed, stream]) for stream in range(3))
    grid = Grid.over((0.0,), (1.0,), (channels,))
    rates = clipped_quadratics(senders.uniform(-1, 1, (users, 3)), channels)
    lo, hi = _intervals(readers, users, width)
    broker_at, user_at = places.random((brokers, 2)), places.random((users, 2))
    core = _distances(broker_at, broker_at)
    prices = places.random((users, brokers)) if access == "random" else _distances(user_at, broker_at)
    core *= _mean(prices) / (ratio * _mean(core[~np.eye(brokers, dtype=bool)]))
    for array in (rates, prices):
        array.flags.writeable = False
    draft = MarketProblem(rates, grid.touched(lo, hi), prices, core, np.zeros(brokers))
    each = headroom * float(draft.demand.sum()) / brokers
    return replace(draft, capacity=np.full(brokers, each), close=False)


def clipped_quadratics(terms: NDArray[np.float64], channels: int) -> NDArray[np.float64]:
    """The mean over each channel of `a + b x + c x^2` where that is above 0, for each row `(a, b, c)`.

    Example:
        >>> clipped_quadratics(np.array([[-1.0, 2.0, 0.0]]), 2).tolist()
        [[0.0, 0.5]]
    """
    at = (np.arange(channels * _POINTS) + 0.5) / (channels * _POINTS)
    rates = np.zeros((len(terms), channels))
    for point in range(_POINTS):
        x = at[point::_POINTS]
        rates += np.maximum(terms[:, :1] + terms[:, 1:2] * x + terms[:, 2:] * x**2, 0.0)
    return rates / _POINTS


def _intervals(
    rng: np.random.Generator, users: int, width: float | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Where each user's interval starts and ends, a row of one coordinate each."""
    if width is None:
        ends = np.sort(rng.random((users, 2)), axis=1)
        return ends[:, :1], ends[:, 1:]
    lo = rng.random((users, 1)) * (1 - width)
    return lo, lo + width


def _distances(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.hypot(one[:, None, 0] - other[:, 0], one[:, None, 1] - other[:, 1])


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else 1.0
