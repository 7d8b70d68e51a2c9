"""Generated interest: topics by popularity, subscription sizes by a law, drawn without replacement."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_count, seeded_generator
from broadloom.errors import InputError
from broadloom.model import Interest
from broadloom.progress import stage

# The papers' short names stand for the long ones.
POPULARITIES = {
    "uniform": "uniform",
    "unif": "uniform",
    "zipf": "zipf",
    "exponential": "exponential",
    "expo": "exponential",
}
SIZE_LAWS = ("uniform", "power")

# How many random numbers are drawn at a time: bounds the memory, never changes the result.
_BLOCK = 4_000_000


def interest(
    nodes: int = 1000,
    topics: int = 200,
    popularity: str = "uniform",
    alpha: float = 2.0,
    rate: float = 5.0,
    sizes: tuple[int, int] = (20, 100),
    size_law: str = "uniform",
    gamma: float = 2.0,
    seed: int = 0,
) -> Interest:
    """Interest of `nodes` nodes in `topics` topics, as papers 1 to 3 generate it.

    Each node draws how many topics it wants, then that many different topics one after the other, each in
    proportion to its popularity among those that are left.

    Args:
        nodes: how many nodes.
        topics: how many topics.
        popularity: "uniform" ("unif"); "zipf": topic i in proportion to (i + 1) ** -alpha; "exponential"
            ("expo"): to exp(-rate * i / topics).
        alpha: the exponent of "zipf".
        rate: the rate of "exponential".
        sizes: the fewest and the most topics a node has; cut to the number of topics.
        size_law: "uniform" over that range, or "power": size s in proportion to s ** -gamma.
        gamma: the exponent of "power".
        seed: the seed of it all.

    Examples:
        >>> interest(nodes=4, topics=10, sizes=(2, 3), seed=1)
        Interest(4 nodes, 10 topics, 11 subscriptions)
    """
    shares = topic_shares(topics, popularity, alpha, rate)
    rng = seeded_generator(seed)
    wanted = draw_sizes(rng, nodes, sizes, size_law, gamma, topics)
    with stage("draw subscriptions", nodes) as done:
        drawn = draw_topics(rng, wanted, shares, done)
    return Interest.from_rows(np.concatenate(([0], np.cumsum(wanted))), drawn, topics)


def topic_shares(topics: int, popularity: str, alpha: float = 2.0, rate: float = 5.0) -> NDArray[np.float64]:
    """The share of each topic in a draw; the shares add up to 1."""
    topics = check_count(topics, "topics")
    if popularity not in POPULARITIES:
        raise InputError(f"no popularity {popularity!r}; there are {', '.join(POPULARITIES)}")
    for name, value in (("alpha", alpha), ("rate", rate)):
        if not np.isfinite(value):
            raise InputError(f"{name} is {value}; give a finite number")
    ranks = np.arange(1, topics + 1, dtype=np.float64)
    kind = POPULARITIES[popularity]
    if kind == "zipf":
        shares = ranks**-alpha
    elif kind == "exponential":
        shares = np.exp(-rate * (ranks - 1) / topics) if topics else ranks
    else:
        shares = np.ones(topics)
    return shares / shares.sum() if topics else shares


def draw_sizes(
    rng: np.random.Generator, nodes: int, sizes: tuple[int, int], size_law: str, gamma: float, topics: int
) -> NDArray[np.int64]:
    """How many topics each node has."""
    nodes = check_count(nodes, "nodes")
    if not (isinstance(sizes, (tuple, list)) and len(sizes) == 2):
        raise InputError(f"subscription sizes are {sizes!r}; give the fewest and the most")
    low, high = (check_count(size, "a subscription size") for size in sizes)
    if low > high:
        raise InputError(f"subscription sizes {low} to {high}; give the fewest, then the most")
    if low > topics:
        raise InputError(f"subscription sizes start at {low}, above the {topics} topics; ask for fewer")
    if size_law not in SIZE_LAWS:
        raise InputError(f"no size law {size_law!r}; there are {', '.join(SIZE_LAWS)}")
    high = min(high, topics)
    if size_law == "uniform":
        return rng.integers(low, high + 1, nodes)
    if low == 0:
        raise InputError("a power law of subscription sizes starts at 1 or more")
    values = np.arange(low, high + 1)
    chance = (values / low) ** -gamma
    if not np.isfinite(chance.sum()):
        raise InputError(f"gamma is {gamma}; give a finite number that leaves every size a chance")
    return rng.choice(values, nodes, p=chance / chance.sum())


def draw_topics(
    rng: np.random.Generator,
    wanted: NDArray[np.int64],
    shares: NDArray[np.float64],
    done: Callable[[float], None] = lambda _: None,
) -> NDArray[np.int32]:
    """The topics of each node, node after node, in ascending order.

    The `k` smallest of independent exponential variables with the topics' shares as rates are `k` successive
    draws without replacement. So a block of rows is one matrix of random numbers and one partial sort.
    """
    topics, most = len(shares), int(wanted.max(initial=0))
    if most == 0:
        return np.empty(0, np.int32)
    rows = max(1, _BLOCK // topics)
    blocks = []
    for first in range(0, len(wanted), rows):
        size = wanted[first : first + rows]
        keys = rng.standard_exponential((len(size), topics)) / shares
        best = np.argpartition(keys, min(most, topics - 1), axis=1)[:, :most]
        order = np.argsort(np.take_along_axis(keys, best, axis=1), axis=1)
        ranked = np.take_along_axis(best, order, axis=1).astype(np.int32)
        ranked[np.arange(most) >= size[:, None]] = topics
        ranked.sort(axis=1)
        blocks.append(ranked[ranked < topics])
        done(first + len(size))
    return np.concatenate(blocks)
