"""Subscribers and brokers of paper 4, section VI: workload sets 1 (Google Groups), 2 (RSS) and 3 (grid).

The paper's own generator is described elsewhere and is not public; what it leaves open is chosen here. Most
random geographies cannot meet the load limits of their set at all. So geography and subscribers are drawn
from separate streams, and the first geography (counted from 0) is taken whose least possible load balance
factor is within the set's `beta`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError
from broadloom.model import AssignmentProblem
from broadloom.workload.geography import (
    FEED_PLACES,
    FEEDS,
    NETWORK_AXES,
    REGION_CITIES,
    Geography,
    broker_tree,
    cities,
    scattered,
    zipf,
)

# The side of the square that events fall into, for sets 1 and 3.
EVENT_SPACE = 10_000.0
# And for set 2, whose squares have sides of 1.
FEED_SPACE = 1000.0
# Sizes of a geography are judged with so many subscribers at most.
TRIAL_SUBSCRIBERS = 20_000
MOST_GEOGRAPHIES = 400


class _Limits(NamedTuple):
    """The load limits and the latency bound of a set."""

    beta: float
    beta_max: float
    max_delay: float = 0.3


# One-level networks, section VI "Problem Settings"; multi-level ones, "tight" and "loose" latency.
LIMITS = {1: _Limits(1.5, 1.8), 2: _Limits(2.3, 2.5), 3: _Limits(1.3, 1.5)}
MULTI_LEVEL = {"tight": _Limits(7.0, 8.0, 0.2), "loose": _Limits(1.3, 1.5, 1.0)}

_LEVELS = {"low": 0, "high": 1}
_TOPICS, _CATEGORIES = 2000, 40
_GRID_WIDTHS = np.arange(1, 6) * EVENT_SPACE / 10


class _Asked(NamedTuple):
    """What was asked for."""

    set: int
    subscribers: int
    brokers: int
    levels: int
    skew_and_broad: tuple[int, int]
    limits: _Limits
    seed: int


def subscribers(
    set: int = 1,  # noqa: A002 (the paper's word, and a promise of the API)
    subscribers: int = 100_000,
    brokers: int = 100,
    levels: int = 1,
    interest_skew: str = "high",
    broad_interests: str = "low",
    latency: str | None = None,
    seed: int = 0,
    geography: int | None = None,
) -> AssignmentProblem:
    """A subscriber assignment problem of one of the paper's workload sets.

    Args:
        set: 1: interests around topics that are popular in some region, as on Google Groups. 2: 50 interests,
            each wanted at 10 places, as RSS feeds. 3: a 10 x 10 grid of interests, independent of places.
        subscribers: how many.
        brokers: how many, inner ones among them.
        levels: 1: all below the publisher. 2 or more: groups of at most 15 below the broker of the group that
            is nearest to the publisher, and so on.
        interest_skew: set 1: "low" or "high" differences in topics' popularity.
        broad_interests: set 1: "low" or "high" share of very large rectangles.
        latency: the limits of the paper's multi-level runs: "tight" (delay 0.2, load 7 to 8) or "loose" (1.0,
            1.3 to 1.5). None: those of the set, as for one level.
        seed: the seed of the subscribers.
        geography: the seed of the places; None: the first that can meet the limits.

    Raises:
        InputError: an unknown set or word, or no geography can meet the limits.

    Examples:
        >>> subscribers(set=2, subscribers=500, brokers=10)
        AssignmentProblem(500 subscribers, 10 brokers, 2 dimensions)
    """
    asked = _asked(set, subscribers, brokers, levels, interest_skew, broad_interests, latency, seed)
    if geography is None:
        geography = _first(asked)
    return _problem(asked, geography)


def first_geography(
    set: int = 1,  # noqa: A002
    subscribers: int = 100_000,
    brokers: int = 100,
    levels: int = 1,
    interest_skew: str = "high",
    broad_interests: str = "low",
    latency: str | None = None,
    seed: int = 0,
) -> int:
    """The first geography, counted from 0, whose least possible load balance factor is within `beta`.

    Example:
        >>> first_geography(set=2, subscribers=500, brokers=10)
        0
    """
    return _first(_asked(set, subscribers, brokers, levels, interest_skew, broad_interests, latency, seed))


def _asked(
    number: int, m: int, n: int, levels: int, skew: str, broad: str, latency: str | None, seed: int
) -> _Asked:
    """What was asked for, checked."""
    for word, value in (("interest_skew", skew), ("broad_interests", broad)):
        if value not in _LEVELS:
            raise InputError(f"{word} is {value!r}; give low or high")
    if m < 0 or n < 1 or levels < 1:
        raise InputError(f"{m} subscribers, {n} brokers, {levels} levels; give at least 0, 1 and 1")
    return _Asked(number, m, n, levels, (_LEVELS[skew], _LEVELS[broad]), _limits_of(number, latency), seed)


def _first(asked: _Asked) -> int:
    """The first geography that can meet the limits; a large problem is judged by a sample of itself."""
    from broadloom.assignment.subscribers.flow import (
        least_lbf,  # a stage, which stands on the model as this does
    )
    from broadloom.assignment.subscribers.reach import reach_of

    few = asked._replace(subscribers=min(asked.subscribers, TRIAL_SUBSCRIBERS))
    for geography in range(MOST_GEOGRAPHIES):
        trial = _problem(few, geography)
        if few.subscribers == 0 or least_lbf(trial, reach_of(trial))[0] <= asked.limits.beta:
            return geography
    raise InputError(
        f"none of {MOST_GEOGRAPHIES} geographies lets {asked.brokers} brokers meet a load balance factor of "
        f"{asked.limits.beta}; ask for fewer brokers, more subscribers, or choose a geography yourself"
    )


def _limits_of(number: int, latency: str | None) -> _Limits:
    if number not in LIMITS:
        raise InputError(f"no workload set {number}; there are {', '.join(map(str, LIMITS))}")
    if latency is None:
        return LIMITS[number]
    if latency not in MULTI_LEVEL:
        raise InputError(f"no latency setting {latency!r}; there are {', '.join(MULTI_LEVEL)}")
    return MULTI_LEVEL[latency]


def _problem(asked: _Asked, geography: int) -> AssignmentProblem:
    """The problem on one geography, whose stream of chance is apart from the subscribers'."""
    number, m, n, levels, levels_of, limits, seed = asked
    places = np.random.default_rng([number, geography])
    rng = np.random.default_rng([number, seed, 1])
    where = cities(places, n) if number == 1 else scattered(places, n, number)
    draw = {1: _topical, 2: _feeds, 3: _grid}[number]
    place, lo, hi = draw(rng, where, m, levels_of)
    return AssignmentProblem(
        where.publisher,
        where.brokers,
        broker_tree(where.brokers, where.publisher, levels),
        place,
        lo,
        hi,
        max_delay=limits.max_delay,
        beta=limits.beta,
        beta_max=limits.beta_max,
    )


def _topical(
    rng: np.random.Generator, where: Geography, m: int, levels_of: tuple[int, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Set 1: rectangles around topics, which lie around categories and are popular in their home region."""
    skew, broad = (0.5, 1.1)[levels_of[0]], (0.005, 0.05)[levels_of[1]]
    topic_rng = np.random.default_rng([1, levels_of[0], 2])
    category = topic_rng.uniform(0, EVENT_SPACE, (_CATEGORIES, 2))
    middle = category[topic_rng.integers(_CATEGORIES, size=_TOPICS)]
    middle = np.clip(middle + topic_rng.normal(0, 0.03 * EVENT_SPACE, middle.shape), 0, EVENT_SPACE)
    popular = topic_rng.permutation(zipf(_TOPICS, skew))
    home = topic_rng.choice(3, _TOPICS, p=np.array(REGION_CITIES) / sum(REGION_CITIES))
    city = rng.choice(len(where.places), m, p=where.chance)
    topic = np.empty(m, np.int64)
    for region in range(3):
        here = where.region[city] == region
        liking = popular * np.where(home == region, 10.0, 1.0)
        topic[here] = rng.choice(_TOPICS, here.sum(), p=liking / liking.sum())
    centre = middle[topic] + rng.normal(0, 0.002 * EVENT_SPACE, (m, 2))
    width = 0.01 * EVENT_SPACE * rng.lognormal(0, 0.4, (m, 2))
    width[rng.random(m) < broad] *= rng.uniform(4, 10)
    place = where.places[city] + rng.normal(0, 2, (m, NETWORK_AXES))
    lo, hi = np.clip(centre - width / 2, 0, EVENT_SPACE), np.clip(centre + width / 2, 0, EVENT_SPACE)
    return place, lo, hi


def _feeds(
    rng: np.random.Generator,
    where: Geography,
    m: int,
    levels_of: tuple[int, int],  # noqa: ARG001
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Set 2: unit squares somewhere in event space, each wanted at its own few places."""
    corner = np.random.default_rng([2, 2]).uniform(0, FEED_SPACE - 1, (FEEDS, 2))
    at = rng.choice(len(where.places), m, p=where.chance)
    lo = corner[at // FEED_PLACES]
    return where.places[at], lo, lo + 1


def _grid(
    rng: np.random.Generator,
    where: Geography,
    m: int,
    levels_of: tuple[int, int],  # noqa: ARG001
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Set 3: rectangles of a few widths around the middles of 10 x 10 cells, wanted anywhere."""
    rank = np.random.default_rng([3, 2]).permutation(100)
    cell = rng.choice(rank, m, p=zipf(100, 0.5))
    middle = (np.stack(np.divmod(cell, 10), axis=1) + 0.5) * EVENT_SPACE / 10
    width = rng.choice(_GRID_WIDTHS, (m, 2), p=zipf(len(_GRID_WIDTHS), 0.5))
    lo, hi = np.clip(middle - width / 2, 0, EVENT_SPACE), np.clip(middle + width / 2, 0, EVENT_SPACE)
    return where.places[rng.integers(len(where.places), size=m)], lo, hi
