"""Generated assignment problems: the subscribers of paper 4 (section VI) and the markets of paper 5 (VI-A).

The workload sets of paper 4 are 1 (Google Groups), 2 (RSS) and 3 (grid). The paper's own generator is not
public, so details that the paper does not give are our choice. Most random geographies cannot meet the load
limits of their set at all. So geography and subscribers are drawn from separate random generators, and the
first geography (counted from 0) is taken whose least possible load balance factor is within the set's `beta`.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers import candidates_in_time, least_lbf
from broadloom.checks import MAX_INDEX, check_choice, check_count, check_positive
from broadloom.errors import InputError
from broadloom.kernels import k_means
from broadloom.model import AssignmentProblem, Grid, MarketProblem

# The side of the square of events in sets 1 and 3.
EVENT_SPACE = 10_000.0
# The same for set 2, whose squares have sides of 1.
FEED_SPACE = 1000.0
# A geography is tested with at most this many subscribers.
TRIAL_SUBSCRIBERS = 20_000
MAX_GEOGRAPHIES = 400
# Each inner broker of a multi-level network has at most this many children.
MAX_CHILDREN = 15
NETWORK_AXES, FEEDS, FEED_LOCATIONS, LOCATIONS = 5, 50, 10, 1000
# Asia, North America, Europe: 150, 95 and 230 ms apart, with shares of subscribers and brokers of 4:1:4.
REGION_POSITION = np.array([[150.0, 0.0], [0.0, 0.0], [-71.25, 62.84]])
REGION_CITIES = (40, 10, 40)
# How access prices of a market are drawn.
ACCESS = ("random", "euclidean")

_LEVELS = {"low": 0, "high": 1}
_TOPICS, _CATEGORIES = 2000, 40
_GRID_WIDTHS = np.arange(1, 6) * EVENT_SPACE / 10
# The mean of a generating function over a channel is taken over this many points of it.
_POINTS = 4


class WorkloadLimits(NamedTuple):
    """The load limits and the latency bound of a workload set."""

    beta: float
    beta_max: float
    max_delay: float = 0.3


# One-level networks, section VI "Problem Settings"; multi-level ones, "tight" and "loose" latency.
LIMITS = {1: WorkloadLimits(1.5, 1.8), 2: WorkloadLimits(2.3, 2.5), 3: WorkloadLimits(1.3, 1.5)}
MULTI_LEVEL = {"tight": WorkloadLimits(7.0, 8.0, 0.2), "loose": WorkloadLimits(1.3, 1.5, 1.0)}


def subscribers(
    set: int = 1,  # noqa: A002 (the paper's word, part of the API)
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
            each wanted at 10 locations, as RSS feeds. 3: a 10 x 10 grid of interests, independent of
            locations.
        subscribers: how many subscribers.
        brokers: how many brokers, inner ones included.
        levels: 1: all below the publisher. 2 or more: groups of at most 15 below the broker of the group that
            is nearest to the publisher, and so on.
        interest_skew: set 1: "low" or "high" differences in topics' popularity.
        broad_interests: set 1: "low" or "high" share of very large rectangles.
        latency: the limits of the paper's multi-level runs: "tight" (delay 0.2, load 7 to 8) or "loose" (1.0,
            1.3 to 1.5). None: those of the set, as for one level.
        seed: the seed of the subscribers.
        geography: the seed of the locations; None: the first that can meet the limits.

    Raises:
        InputError: a parameter is out of its range, or no geography can meet the limits.

    Examples:
        >>> subscribers(set=2, subscribers=500, brokers=10)
        AssignmentProblem(500 subscribers, 10 brokers, 2 dimensions)
    """
    words = (interest_skew, broad_interests)
    workload = _SubscriberWorkload(set, subscribers, brokers, levels, words, latency, seed).checked()
    if geography is None:
        return workload.problem(workload.first_geography())
    return workload.problem(check_count(geography, "geography"))


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
    words = (interest_skew, broad_interests)
    workload = _SubscriberWorkload(set, subscribers, brokers, levels, words, latency, seed).checked()
    return workload.first_geography()


class _SubscriberWorkload(NamedTuple):
    """The parameters of a subscriber workload; `words` are interest skew and share of broad interests."""

    number: int
    subscribers: int
    brokers: int
    levels: int
    words: tuple[str, str]
    latency: str | None
    seed: int

    def checked(self) -> "_SubscriberWorkload":
        """The parameters as plain numbers; raises an `InputError` for one out of its range."""
        for name, word in zip(("interest_skew", "broad_interests"), self.words, strict=True):
            check_choice(word, name, _LEVELS)
        number = check_count(self.number, "set")
        if number not in LIMITS:
            raise InputError(f"no workload set {number}; there are {', '.join(map(str, LIMITS))}")
        if self.latency is not None:
            check_choice(self.latency, "latency", MULTI_LEVEL)
        return self._replace(
            number=number,
            subscribers=check_count(self.subscribers, "subscribers", maximum=MAX_INDEX),
            brokers=check_count(self.brokers, "brokers", 1, MAX_INDEX),
            levels=check_count(self.levels, "levels", minimum=1),
            seed=check_count(self.seed, "seed"),
        )

    @property
    def limits(self) -> WorkloadLimits:
        """The limits of the set, or those of the latency setting."""
        return LIMITS[self.number] if self.latency is None else MULTI_LEVEL[self.latency]

    def first_geography(self) -> int:
        """The first geography that can meet the limits; a large problem is tested with fewer subscribers."""
        small = self._replace(subscribers=min(self.subscribers, TRIAL_SUBSCRIBERS))
        beta = self.limits.beta
        for geography in range(MAX_GEOGRAPHIES):
            trial = small.problem(geography)
            if small.subscribers == 0 or least_lbf(trial, candidates_in_time(trial))[0] <= beta:
                return geography
        raise InputError(
            f"none of {MAX_GEOGRAPHIES} geographies lets {self.brokers} brokers meet a load balance factor "
            f"of {beta}; ask for fewer brokers, more subscribers, or choose a geography yourself"
        )

    def problem(self, geography_seed: int) -> AssignmentProblem:
        """The problem on one geography, which is drawn from a separate random generator."""
        geography_rng = np.random.default_rng([self.number, geography_seed])
        rng = np.random.default_rng([self.number, self.seed, 1])
        if self.number == 1:
            geography = _cities(geography_rng, self.brokers)
        else:
            geography = _scattered(geography_rng, self.brokers, self.number)
        if self.number == 1:
            skew, broad = (_LEVELS[word] for word in self.words)
            position, lo, hi = _topical(rng, geography, self.subscribers, skew, broad)
        elif self.number == 2:
            position, lo, hi = _feeds(rng, geography, self.subscribers)
        else:
            position, lo, hi = _grid(rng, geography, self.subscribers)
        return AssignmentProblem(
            geography.publisher,
            geography.brokers,
            _broker_tree(geography.brokers, geography.publisher, self.levels),
            position,
            lo,
            hi,
            max_delay=self.limits.max_delay,
            beta=self.limits.beta,
            beta_max=self.limits.beta_max,
        )


# Subscribers: positions in the network, and rectangles of interest

_Subscribers = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


def _topical(rng: np.random.Generator, geography: "Geography", m: int, skew: int, broad: int) -> _Subscribers:
    """Set 1: rectangles around topics, which lie around categories and are popular in their home region."""
    exponent, broad_share = (0.5, 1.1)[skew], (0.005, 0.05)[broad]
    topic_rng = np.random.default_rng([1, skew, 2])
    category = topic_rng.uniform(0, EVENT_SPACE, (_CATEGORIES, 2))
    middle = category[topic_rng.integers(_CATEGORIES, size=_TOPICS)]
    middle = np.clip(middle + topic_rng.normal(0, 0.03 * EVENT_SPACE, middle.shape), 0, EVENT_SPACE)
    popularity = topic_rng.permutation(_zipf(_TOPICS, exponent))
    home = topic_rng.choice(3, _TOPICS, p=np.array(REGION_CITIES) / sum(REGION_CITIES))
    city = rng.choice(len(geography.locations), m, p=geography.chance)
    topic = np.empty(m, np.int64)
    for region in range(3):
        here = geography.region[city] == region
        liking = popularity * np.where(home == region, 10.0, 1.0)
        topic[here] = rng.choice(_TOPICS, here.sum(), p=liking / liking.sum())
    centre = middle[topic] + rng.normal(0, 0.002 * EVENT_SPACE, (m, 2))
    width = 0.01 * EVENT_SPACE * rng.lognormal(0, 0.4, (m, 2))
    width[rng.random(m) < broad_share] *= rng.uniform(4, 10)
    position = geography.locations[city] + rng.normal(0, 2, (m, NETWORK_AXES))
    lo, hi = np.clip(centre - width / 2, 0, EVENT_SPACE), np.clip(centre + width / 2, 0, EVENT_SPACE)
    return position, lo, hi


def _feeds(rng: np.random.Generator, geography: "Geography", m: int) -> _Subscribers:
    """Set 2: unit squares somewhere in event space, each wanted at some locations that it does not share."""
    corner = np.random.default_rng([2, 2]).uniform(0, FEED_SPACE - 1, (FEEDS, 2))
    location = rng.choice(len(geography.locations), m, p=geography.chance)
    lo = corner[location // FEED_LOCATIONS]
    return geography.locations[location], lo, lo + 1


def _grid(rng: np.random.Generator, geography: "Geography", m: int) -> _Subscribers:
    """Set 3: rectangles of a few widths around the middles of 10 x 10 cells, wanted at any location."""
    rank = np.random.default_rng([3, 2]).permutation(100)
    cell = rng.choice(rank, m, p=_zipf(100, 0.5))
    middle = (np.stack(np.divmod(cell, 10), axis=1) + 0.5) * EVENT_SPACE / 10
    width = rng.choice(_GRID_WIDTHS, (m, 2), p=_zipf(len(_GRID_WIDTHS), 0.5))
    lo, hi = np.clip(middle - width / 2, 0, EVENT_SPACE), np.clip(middle + width / 2, 0, EVENT_SPACE)
    return geography.locations[rng.integers(len(geography.locations), size=m)], lo, hi


def _zipf(count: int, exponent: float) -> NDArray[np.float64]:
    """The shares of ranks 1 to `count`."""
    share = np.arange(1, count + 1) ** -exponent
    return share / share.sum()


# Geography: positions of the publisher and the brokers, and the tree of the brokers


class Geography(NamedTuple):
    """Positions of publisher and brokers; possible locations of subscribers, with their chance and region."""

    publisher: NDArray[np.float64]
    brokers: NDArray[np.float64]
    locations: NDArray[np.float64]
    chance: NDArray[np.float64]
    region: NDArray[np.int64]


def _cities(rng: np.random.Generator, n: int) -> Geography:
    """Set 1: cities of different sizes around three regions; brokers are in cities as subscribers are."""
    region = np.repeat(np.arange(3), REGION_CITIES)
    centre = np.zeros((3, NETWORK_AXES))
    centre[:, :2] = REGION_POSITION
    locations = centre[region] + rng.normal(0, 14, (len(region), NETWORK_AXES))
    size = np.concatenate([_zipf(cities, 0.6) * cities for cities in REGION_CITIES])
    chance = size / size.sum()
    home = locations[rng.choice(len(locations), n, p=chance)]
    brokers = home + rng.normal(0, 2, home.shape)
    return Geography(centre[1] + rng.normal(0, 2, NETWORK_AXES), brokers, locations, chance, region)


def _scattered(rng: np.random.Generator, n: int, number: int) -> Geography:
    """Sets 2 and 3: locations anywhere, brokers in the middle of clusters of them."""
    count = FEEDS * FEED_LOCATIONS if number == 2 else LOCATIONS
    axes = NETWORK_AXES if number == 2 else 2
    locations = rng.uniform(0, 100, (count, axes))
    chance = np.full(count, 1 / count)
    if number == 2:
        chance = np.repeat(_zipf(FEEDS, 0.5), FEED_LOCATIONS) / FEED_LOCATIONS
    publisher = np.full(axes, 50.0)
    return Geography(publisher, _centres(rng, locations, n), locations, chance, np.zeros(count, np.int64))


def _centres(rng: np.random.Generator, locations: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The middles of `count` clusters of locations, with a little noise so that no two are equal."""
    label = k_means(locations, count, rng)
    middle = locations[rng.integers(len(locations), size=count)]
    for cluster in np.unique(label):
        middle[cluster] = locations[label == cluster].mean(axis=0)
    return middle + rng.normal(0, 1e-3, middle.shape)


def _broker_tree(
    positions: NDArray[np.float64], publisher: NDArray[np.float64], levels: int
) -> NDArray[np.int32]:
    """The parent of each broker: in a group of neighbours, the one that is nearest to the publisher."""
    parent = np.full(len(positions), -1, np.int32)
    heads = np.arange(len(positions))
    for _ in range(levels - 1):
        groups = _bisected(positions, heads)
        distance = np.sum((positions - publisher) ** 2, axis=1)
        for group in groups:
            head = group[distance[group].argmin()]
            parent[group[group != head]] = head
        heads = np.array([group[distance[group].argmin()] for group in groups])
    return parent


def _bisected(positions: NDArray[np.float64], group: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Parts of a group, halved across the longest axis until a head has at most `MAX_CHILDREN` children."""
    if len(group) <= MAX_CHILDREN + 1:
        return [group]
    axis = np.ptp(positions[group], axis=0).argmax()
    order = group[np.argsort(positions[group, axis], kind="stable")]
    half = len(group) // 2
    return _bisected(positions, order[:half]) + _bisected(positions, order[half:])


# Markets


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

    Each user sends by a random quadratic function, clipped at 0, and wants an interval. Brokers are points of
    the unit square; the core prices are their distances.

    Args:
        users: how many users.
        brokers: how many brokers.
        channels: how many channels the content space is divided into.
        width: the width of each interval as a share of the content space; None: between two random points.
        seed: the seed of the random generators.
        access: "random": each access price is uniform from 0 to 1, which is not a metric; "euclidean": users
            are points of the same square, and pay the distance.
        ratio: the mean access price divided by the mean core price.
        headroom: the capacity of all brokers together, divided equally, over the demand of all users.

    Example:
        >>> market(users=20, brokers=3, channels=8)
        MarketProblem(20 users, 3 brokers, 8 channels)
    """
    check_choice(access, "access", ACCESS)
    users = check_count(users, "users", maximum=MAX_INDEX)
    brokers = check_count(brokers, "brokers", 1, MAX_INDEX)
    channels = check_count(channels, "channels", 1, MAX_INDEX)
    seed = check_count(seed, "seed")
    if width is not None:
        width = check_positive(width, "width")
        if width > 1:
            raise InputError(f"width is {width}; give a share of the content space, above 0 and at most 1")
    ratio = check_positive(ratio, "ratio")
    headroom = check_positive(headroom, "headroom")
    senders, readers, positions = (np.random.default_rng([seed, stream]) for stream in range(3))
    grid = Grid.over((0.0,), (1.0,), (channels,))
    rates = clipped_quadratics(senders.uniform(-1, 1, (users, 3)), channels)
    lo, hi = _intervals(readers, users, width)
    broker_position, user_position = positions.random((brokers, 2)), positions.random((users, 2))
    core = _distances(broker_position, broker_position)
    if access == "random":
        prices = positions.random((users, brokers))
    else:
        prices = _distances(user_position, broker_position)
    core *= _mean(prices) / (ratio * _mean(core[~np.eye(brokers, dtype=bool)]))
    for array in (rates, prices):
        array.flags.writeable = False
    draft = MarketProblem(rates, grid.touched(lo, hi), prices, core, np.zeros(brokers))
    capacity = headroom * float(draft.demand.sum()) / brokers
    return replace(draft, capacity=np.full(brokers, capacity), close=False)


def clipped_quadratics(terms: NDArray[np.float64], channels: int) -> NDArray[np.float64]:
    """The mean over each channel of `max(0, a + b x + c x^2)`, for each row `(a, b, c)`.

    Example:
        >>> clipped_quadratics(np.array([[-1.0, 2.0, 0.0]]), 2).tolist()
        [[0.0, 0.5]]
    """
    points = (np.arange(channels * _POINTS) + 0.5) / (channels * _POINTS)
    rates = np.zeros((len(terms), channels))
    for point in range(_POINTS):
        x = points[point::_POINTS]
        rates += np.maximum(terms[:, :1] + terms[:, 1:2] * x + terms[:, 2:] * x**2, 0.0)
    return rates / _POINTS


def _intervals(
    rng: np.random.Generator, users: int, width: float | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The ends of each user's interval, as rows of one coordinate."""
    if width is None:
        ends = np.sort(rng.random((users, 2)), axis=1)
        return ends[:, :1], ends[:, 1:]
    lo = rng.random((users, 1)) * (1 - width)
    return lo, lo + width


def _distances(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.hypot(one[:, None, 0] - other[:, 0], one[:, None, 1] - other[:, 1])


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else 1.0
