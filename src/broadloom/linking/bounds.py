"""Certified lower bounds: numbers that no topic-connected overlay can beat, proven, never estimates."""

import math
import time

import numpy as np

from broadloom.checks import check_count, check_number
from broadloom.linking import greedy
from broadloom.linking._ascent import Ascent
from broadloom.linking._chains import pricing_work
from broadloom.linking._given import fitting_weights
from broadloom.model import Interest, Weights

# A proof looks at every pair of subscribers of every topic: beyond this, at the smallest topics only.
MOST_WORK = 5_000_000_000


def lower_bound(
    interest: Interest,
    weights: Weights | None = None,
    *,
    iterations: int = 500,
    seconds: float | None = None,
) -> float:
    """A total weight that no topic-connected overlay can go below.

    The Lagrangian bound: divide each edge's weight over the topics that its ends share, and sum the topics'
    minimum spanning trees. More iterations give a better division. Where the instance is too large to look
    at all pairs of all topics, only the smallest topics count, and the bound is weaker.

    Args:
        interest: who wants what.
        weights: what links cost; None: all links weigh 1, and the bound is on the number of links.
        iterations: how many steps of the ascent to make.
        seconds: make no further step after this time; then the result depends on the machine. The overlay
            to start from and the proof at the end take their time whatever the limit is.

    Raises:
        InputError: weights for another number of nodes, or a limit that is negative.

    Examples:
        >>> interest = Interest.from_lists([[0, 1], [0], [0, 1]])
        >>> round(lower_bound(interest, Weights.uniform(3)), 6)
        2.0
    """
    weights = fitting_weights(interest, weights)
    iterations = check_count(iterations, "iterations")
    deadline = math.inf if seconds is None else time.monotonic() + check_number(seconds, "seconds")
    interest = smallest_topics(interest, MOST_WORK)
    overlay = greedy.grmaw(interest, weights, greedy.GreedyOptions(), seed=0).edges
    ascent = Ascent(interest, weights, overlay)
    ascent.climb_to(iterations, until=lambda: time.monotonic() > deadline)
    return ascent.certify()


def fits(interest: Interest) -> bool:
    """Whether the bound can look at all pairs of all topics."""
    return pricing_work(interest) <= MOST_WORK


def smallest_topics(interest: Interest, most_work: int) -> Interest:
    """The interest in the topics with the fewest subscribers, as many as that much work allows.

    An overlay that connects all topics connects these, so a bound for these is one for all.
    """
    subscribers = np.diff(interest.node_start)
    order = np.argsort(subscribers, kind="stable")
    chosen = np.zeros(interest.topic_count, bool)
    chosen[order[np.cumsum(subscribers[order] ** 2) <= most_work]] = True
    if chosen.all():
        return interest
    kept = chosen[interest.topics]
    start = np.concatenate(([0], np.cumsum(kept)))[interest.topic_start]
    return Interest.from_rows(start, interest.topics[kept], interest.topic_ids, interest.node_ids)
