"""Where the publisher, brokers and subscribers of paper 4's workloads are, and the tree of the brokers."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.kernels import k_means

# Each inner broker of a multi-level network has at most so many below it.
MOST_CHILDREN = 15
NETWORK_AXES, FEEDS, FEED_PLACES, LOCATIONS = 5, 50, 10, 1000
# Asia, North America, Europe: 150, 95 and 230 ms apart, with shares of subscribers and brokers of 4:1:4.
REGION_PLACE = np.array([[150.0, 0.0], [0.0, 0.0], [-71.25, 62.84]])
REGION_CITIES = (40, 10, 40)


class Geography(NamedTuple):
    """Where the publisher, the brokers and the subscribers can be: places with their chance and region."""

    publisher: NDArray[np.float64]
    brokers: NDArray[np.float64]
    places: NDArray[np.float64]
    chance: NDArray[np.float64]
    region: NDArray[np.int64]


def cities(rng: np.random.Generator, n: int) -> Geography:
    """Set 1: cities around three regions, larger and smaller ones; brokers in cities as subscribers are."""
    region = np.repeat(np.arange(3), REGION_CITIES)
    centre = np.zeros((3, NETWORK_AXES))
    centre[:, :2] = REGION_PLACE
    places = centre[region] + rng.normal(0, 14, (len(region), NETWORK_AXES))
    size = np.concatenate([zipf(cities, 0.6) * cities for cities in REGION_CITIES])
    chance = size / size.sum()
    home = places[rng.choice(len(places), n, p=chance)]
    brokers = home + rng.normal(0, 2, home.shape)
    return Geography(centre[1] + rng.normal(0, 2, NETWORK_AXES), brokers, places, chance, region)


def scattered(rng: np.random.Generator, n: int, number: int) -> Geography:
    """Sets 2 and 3: places anywhere, brokers in the middle of them."""
    count = FEEDS * FEED_PLACES if number == 2 else LOCATIONS
    axes = NETWORK_AXES if number == 2 else 2
    places = rng.uniform(0, 100, (count, axes))
    chance = np.full(count, 1 / count)
    if number == 2:
        chance = np.repeat(zipf(FEEDS, 0.5), FEED_PLACES) / FEED_PLACES
    publisher = np.full(axes, 50.0)
    return Geography(publisher, _centres(rng, places, n), places, chance, np.zeros(count, np.int64))


def zipf(count: int, exponent: float) -> NDArray[np.float64]:
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


def broker_tree(
    places: NDArray[np.float64], publisher: NDArray[np.float64], levels: int
) -> NDArray[np.int32]:
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
