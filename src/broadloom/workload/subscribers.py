"""Subscribers and brokers of paper 4, section VI: workload sets 1 (Google Groups), 2 (RSS) and 3 (grid).

The paper's own generator is described elsewhere and is not public; what it leaves open is chosen here. Most
random geographies cannot meet the load limits of their set at all. So geography and subscribers are drawn
from separate streams, and the first geography (counted from 0) is taken whose least possible load balance
factor is within the set's `beta`.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom._kmeans import k_means
from broadloom.errors import InputError
from broadloom.model import AssignmentProblem

# The side of the square that events fall into, for sets 1 and 3.
EVENT_SPACE = 10_000.0
# And for set 2, whose squares have sides of 1.
FEED_SPACE = 1000.0
# Sizes of a geography are judged with so many subscribers at most.
TRIAL_SUBSCRIBERS = 20_000
MOST_GEOGRAPHIES = 400
# Each inner broker of a multi-level network has at most so many below it.
MOST_CHILDREN = 15


class _Limits(NamedTuple):
    """The load limits and the latency bound of a set."""

    beta: float
    beta_max: float
    max_delay: float = 0.3


# One-level networks, section VI "Problem Settings"; multi-level ones, "tight" and "loose" latency.
LIMITS = {1: _Limits(1.5, 1.8), 2: _Limits(2.3, 2.5), 3: _Limits(1.3, 1.5)}
MULTI_LEVEL = {"tight": _Limits(7.0, 8.0, 0.2), "loose": _Limits(1.3, 1.5, 1.0)}

_LEVELS = {"low": 0, "high": 1}
# Asia, North America, Europe: 150, 95 and 230 ms apart, with shares of subscribers and brokers of 4:1:4.
_REGION_PLACE = np.array([[150.0, 0.0], [0.0, 0.0], [-71.25, 62.84]])
_REGION_CITIES = (40, 10, 40)
_NETWORK_AXES, _TOPICS, _CATEGORIES, _FEEDS, _FEED_PLACES, _LOCATIONS = 5, 2000, 40, 50, 10, 1000
_GRID_WIDTHS = np.arange(1, 6) * EVENT_SPACE / 10


class Geography(NamedTuple):
    """Where the publisher, the brokers and the subscribers can be: places with their chance and region."""

    publisher: NDArray[np.float64]
    brokers: NDArray[np.float64]
    places: NDArray[np.float64]
    chance: NDArray[np.float64]
    region: NDArray[np.int64]


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
    limits = _limits_of(set, latency)
    for word, value in (("interest_skew", interest_skew), ("broad_interests", broad_interests)):
        if value not in _LEVELS:
            raise InputError(f"{word} is {value!r}; give low or high")
    if subscribers < 0 or brokers < 1 or levels < 1:
        raise InputError(
            f"{subscribers} subscribers, {brokers} brokers, {levels} levels; give 0, 1 and 1 or more"
        )
    levels_of = (_LEVELS[interest_skew], _LEVELS[broad_interests])
    if geography is None:
        geography = first_geography(set, subscribers, brokers, levels, levels_of, limits, seed)
    return _problem(set, subscribers, brokers, levels, levels_of, limits, seed, geography)


def first_geography(
    set: int,  # noqa: A002
    subscribers: int,
    brokers: int,
    levels: int,
    levels_of: tuple[int, int],
    limits: _Limits,
    seed: int,
) -> int:
    """The first geography whose least possible load balance factor is within `beta`."""
    from broadloom.assignment.flow import least_lbf  # a stage, which stands on the model as this does
    from broadloom.assignment.reach import reach_of

    few = min(subscribers, TRIAL_SUBSCRIBERS)
    for geography in range(MOST_GEOGRAPHIES):
        trial = _problem(set, few, brokers, levels, levels_of, limits, seed, geography)
        # A small sample of many subscribers is a little less balanced than all of them.
        if few == 0 or least_lbf(trial, reach_of(trial))[0] <= limits.beta:
            return geography
    raise InputError(
        f"none of {MOST_GEOGRAPHIES} geographies lets {brokers} brokers meet a load balance factor of "
        f"{limits.beta}; ask for fewer brokers, more subscribers, or choose a geography yourself"
    )


def _limits_of(number: int, latency: str | None) -> _Limits:
    if number not in LIMITS:
        raise InputError(f"no workload set {number}; there are {', '.join(map(str, LIMITS))}")
    if latency is None:
        return LIMITS[number]
    if latency not in MULTI_LEVEL:
        raise InputError(f"no latency setting {latency!r}; there are {', '.join(MULTI_LEVEL)}")
    return MULTI_LEVEL[latency]


def _problem(
    number: int,
    m: int,
    n: int,
    levels: int,
    levels_of: tuple[int, int],
    limits: _Limits,
    seed: int,
    geography: int,
) -> AssignmentProblem:
    """The problem on one geography, whose stream of chance is apart from the subscribers'."""
    places = np.random.default_rng([number, geography])
    rng = np.random.default_rng([number, seed, 1])
    where = _cities(places, n) if number == 1 else _scattered(places, n, number)
    draw = {1: _topical, 2: _feeds, 3: _grid}[number]
    place, lo, hi = draw(rng, where, m, levels_of)
    return AssignmentProblem(
        where.publisher,
        where.brokers,
        _tree(where.brokers, where.publisher, levels),
        place,
        lo,
        hi,
        max_delay=limits.max_delay,
        beta=limits.beta,
        beta_max=limits.beta_max,
    )


def _cities(rng: np.random.Generator, n: int) -> Geography:
    """Set 1: cities around three regions, larger and smaller ones; brokers in cities as subscribers are."""
    region = np.repeat(np.arange(3), _REGION_CITIES)
    centre = np.zeros((3, _NETWORK_AXES))
    centre[:, :2] = _REGION_PLACE
    places = centre[region] + rng.normal(0, 14, (len(region), _NETWORK_AXES))
    size = np.concatenate([_zipf(cities, 0.6) * cities for cities in _REGION_CITIES])
    chance = size / size.sum()
    home = places[rng.choice(len(places), n, p=chance)]
    brokers = home + rng.normal(0, 2, home.shape)
    return Geography(centre[1] + rng.normal(0, 2, _NETWORK_AXES), brokers, places, chance, region)


def _scattered(rng: np.random.Generator, n: int, number: int) -> Geography:
    """Sets 2 and 3: places anywhere, brokers in the middle of them."""
    count = _FEEDS * _FEED_PLACES if number == 2 else _LOCATIONS
    places = rng.uniform(0, 100, (count, 2))
    chance = np.full(count, 1 / count)
    if number == 2:
        chance = np.repeat(_zipf(_FEEDS, 0.5), _FEED_PLACES) / _FEED_PLACES
    publisher = np.full(2, 50.0)
    return Geography(publisher, _centres(rng, places, n), places, chance, np.zeros(count, np.int64))


def _topical(
    rng: np.random.Generator, where: Geography, m: int, levels_of: tuple[int, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Set 1: rectangles around topics, which lie around categories and are popular in their home region."""
    skew, broad = (0.5, 1.1)[levels_of[0]], (0.005, 0.05)[levels_of[1]]
    topic_rng = np.random.default_rng([1, levels_of[0], 2])
    category = topic_rng.uniform(0, EVENT_SPACE, (_CATEGORIES, 2))
    middle = category[topic_rng.integers(_CATEGORIES, size=_TOPICS)]
    middle = np.clip(middle + topic_rng.normal(0, 0.03 * EVENT_SPACE, middle.shape), 0, EVENT_SPACE)
    popular = topic_rng.permutation(_zipf(_TOPICS, skew))
    home = topic_rng.choice(3, _TOPICS, p=np.array(_REGION_CITIES) / sum(_REGION_CITIES))
    city = rng.choice(len(where.places), m, p=where.chance)
    topic = np.empty(m, np.int64)
    for region in range(3):
        here = where.region[city] == region
        liking = popular * np.where(home == region, 10.0, 1.0)
        topic[here] = rng.choice(_TOPICS, here.sum(), p=liking / liking.sum())
    centre = middle[topic] + rng.normal(0, 0.002 * EVENT_SPACE, (m, 2))
    width = 0.01 * EVENT_SPACE * rng.lognormal(0, 0.4, (m, 2))
    width[rng.random(m) < broad] *= rng.uniform(4, 10)
    place = where.places[city] + rng.normal(0, 2, (m, _NETWORK_AXES))
    lo, hi = np.clip(centre - width / 2, 0, EVENT_SPACE), np.clip(centre + width / 2, 0, EVENT_SPACE)
    return place, lo, hi


def _feeds(
    rng: np.random.Generator,
    where: Geography,
    m: int,
    levels_of: tuple[int, int],  # noqa: ARG001
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Set 2: unit squares somewhere in event space, each wanted at its own few places."""
    corner = np.random.default_rng([2, 2]).uniform(0, FEED_SPACE - 1, (_FEEDS, 2))
    at = rng.choice(len(where.places), m, p=where.chance)
    lo = corner[at // _FEED_PLACES]
    return where.places[at], lo, lo + 1


def _grid(
    rng: np.random.Generator,
    where: Geography,
    m: int,
    levels_of: tuple[int, int],  # noqa: ARG001
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Set 3: rectangles of a few widths around the middles of 10 x 10 cells, wanted anywhere."""
    rank = np.random.default_rng([3, 2]).permutation(100)
    cell = rng.choice(rank, m, p=_zipf(100, 0.5))
    middle = (np.stack(np.divmod(cell, 10), axis=1) + 0.5) * EVENT_SPACE / 10
    width = rng.choice(_GRID_WIDTHS, (m, 2), p=_zipf(len(_GRID_WIDTHS), 0.5))
    lo, hi = np.clip(middle - width / 2, 0, EVENT_SPACE), np.clip(middle + width / 2, 0, EVENT_SPACE)
    return where.places[rng.integers(len(where.places), size=m)], lo, hi


def _zipf(count: int, exponent: float) -> NDArray[np.float64]:
    """The shares of ranks 1 to `count`."""
    share = np.arange(1, count + 1) ** -exponent
    return share / share.sum()


def _centres(rng: np.random.Generator, places: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The middles of `count` clusters of places, a little apart from one another."""
    label = k_means(places, count, rng)
    middle = places[rng.integers(len(places), size=count)]
    for cluster in np.unique(label):
        middle[cluster] = places[label == cluster].mean(axis=0)
    return middle + rng.normal(0, 1e-3, middle.shape)


def _tree(places: NDArray[np.float64], publisher: NDArray[np.float64], levels: int) -> NDArray[np.int32]:
    """The parent of each broker: near ones hang below that of them which is nearest to the publisher."""
    parent = np.full(len(places), -1, np.int32)
    heads = np.arange(len(places))
    for _ in range(levels - 1):
        groups = _bisected(places, heads)
        distance = np.sum((places - publisher) ** 2, axis=1)
        for group in groups:
            head = group[distance[group].argmin()]
            parent[group[group != head]] = head
        heads = np.array([group[distance[group].argmin()] for group in groups])
    return parent


def _bisected(places: NDArray[np.float64], group: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Cut a group in halves across its longest axis until a head and its children fit the limit."""
    if len(group) <= MOST_CHILDREN + 1:
        return [group]
    axis = np.ptp(places[group], axis=0).argmax()
    order = group[np.argsort(places[group, axis], kind="stable")]
    half = len(group) // 2
    return _bisected(places, order[:half]) + _bisected(places, order[half:])
