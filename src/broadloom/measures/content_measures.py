"""Measures of subscriber assignments (paper 4, section II): bandwidth, delays, loads, broken constraints."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.checks import check_instance
from broadloom.model import AssignmentProblem, ContentFilter, check_assignment, check_filters

# Sums of the same distances in a different order differ by less than this, relatively.
ROUNDING = 1e-9
# Distances are computed in blocks of about this many.
_BLOCK = 4_000_000


def content_metrics(
    problem: AssignmentProblem, broker_of: NDArray[np.int32], filters: Sequence[ContentFilter]
) -> dict[str, Any]:
    """Every measure of an assignment, computed without code of the algorithms.

    `bandwidth` is over all brokers, delays over all subscribers, loads over leaf brokers. `delay_over` is the
    share of subscribers beyond their latency bound. `violated` names the constraints that do not hold:
    "leaf" (assigned to an inner broker), "latency", "nesting", "alpha", "load".

    Examples:
        >>> problem = AssignmentProblem([0], [[1]], [-1], [[2]], [[0]], [[1]])
        >>> one = ((np.array([0.0]), np.array([4.0])),)
        >>> content_metrics(problem, np.array([0], np.int32), [one])["bandwidth"]
        4.0
    """
    check_instance(problem, AssignmentProblem, "the problem", "make one with AssignmentProblem")
    assignment = check_assignment(problem, broker_of)
    boxes = check_filters(problem, filters)
    return metrics_of_tally(problem, boxes, tally(problem, assignment, boxes))


class ContentTally(NamedTuple):
    """Counts and sums over some of the subscribers: loads, delays, delays above the bound, nesting.

    `add_tallies` adds up those of several groups of subscribers.
    """

    load: NDArray[np.int64]
    delay_squares: float
    delay_max: float
    over: int
    inside: bool


def add_tallies(one: ContentTally, other: ContentTally) -> ContentTally:
    """The tally of two groups of subscribers together."""
    return ContentTally(
        one.load + other.load,
        one.delay_squares + other.delay_squares,
        max(one.delay_max, other.delay_max),
        one.over + other.over,
        one.inside and other.inside,
    )


def tally(
    problem: AssignmentProblem, broker_of: NDArray[np.int32], filters: Sequence[ContentFilter]
) -> ContentTally:
    """Loads, delays, and whether each subscription is inside the filter of its broker."""
    delay, over = delays(problem, broker_of)
    return ContentTally(
        np.bincount(broker_of, minlength=problem.broker_count),
        float(np.sum(delay**2)),
        float(delay.max(initial=0.0)),
        int(over.sum()),
        _are_inside(problem, broker_of, filters),
    )


def metrics_of_tally(
    problem: AssignmentProblem, filters: Sequence[ContentFilter], found: ContentTally
) -> dict[str, Any]:
    """As `content_metrics`, from the tally of all subscribers; the subscribers of `problem` are not used."""
    bandwidth = [union_measure(problem, one) for one in filters]
    load, m = found.load[problem.leaves], int(found.load.sum())
    lbf = load_balance_factor(problem, found.load)
    held = {
        "leaf": int(load.sum()) == m,
        "latency": found.over == 0,
        "nesting": found.inside and is_nested(problem, filters),
        "alpha": all(len(one) <= problem.alpha for one in filters),
        "load": lbf <= problem.beta_max * (1 + ROUNDING),
    }
    return {
        "subscribers": m,
        "brokers": problem.broker_count,
        "leaves": len(problem.leaves),
        "bandwidth": float(sum(bandwidth)),
        "leaf_bandwidth": float(sum(bandwidth[leaf] for leaf in problem.leaves)),
        "delay_rms": float(np.sqrt(found.delay_squares / max(m, 1))),
        "delay_max": found.delay_max,
        "delay_over": found.over / max(m, 1),
        "lbf": lbf,
        "load_max": int(load.max(initial=0)),
        "load_std": float(load.std()),
        "rectangles": int(sum(map(len, filters))),
        "feasible": all(held.values()),
        "within_beta": all(held.values()) and lbf <= problem.beta * (1 + ROUNDING),
        "violated": [name for name, holds in held.items() if not holds],
    }


def load_balance_factor(problem: AssignmentProblem, load: NDArray[np.int64]) -> float:
    """The largest ratio of a broker's share of the subscribers to its share of the capacity."""
    busy = load > 0
    if not busy.any():
        return 0.0
    with np.errstate(divide="ignore"):
        return float(np.max(load[busy] / (problem.capacity[busy] * load.sum())))


def delays(
    problem: AssignmentProblem, broker_of: NDArray[np.int32]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The delay of each subscriber (latency / least latency - 1), and whether its latency is above the bound.

    The delay is 0 for the least possible latency, and infinite if that is 0 and the latency is not.
    """
    from scipy.spatial.distance import cdist  # a heavy import

    m, leaves = problem.subscriber_count, problem.leaves
    least = np.empty(m)
    rows = max(1, _BLOCK // max(1, len(leaves)))
    for first in range(0, m, rows):
        position = problem.subscriber_place[first : first + rows]
        hop = cdist(position, problem.broker_place[leaves])
        least[first : first + rows] = (problem.uplink[leaves] + hop).min(axis=1)
    hop = np.linalg.norm(problem.subscriber_place - problem.broker_place[broker_of], axis=1)
    latency = problem.uplink[broker_of] + hop
    with np.errstate(divide="ignore", invalid="ignore"):
        delay = np.where(latency == least, 0.0, latency / least - 1)
    bound = (1 + problem.max_delay) * least
    if problem.max_latency is not None:
        bound = np.where(np.isnan(problem.max_latency), bound, problem.max_latency)
    return delay, latency > bound * (1 + ROUNDING)


def is_nested(problem: AssignmentProblem, filters: Sequence[ContentFilter]) -> bool:
    """Whether each broker's filter is inside the filter of its parent."""
    return all(
        _covered(lo, hi, filters[parent])
        for own, parent in zip(filters, problem.broker_parent, strict=True)
        if parent >= 0
        for lo, hi in own
    )


def _are_inside(
    problem: AssignmentProblem, broker_of: NDArray[np.int32], filters: Sequence[ContentFilter]
) -> bool:
    """Whether each subscription is inside its broker's filter."""
    order = np.argsort(broker_of, kind="stable")
    ends = np.searchsorted(broker_of[order], np.arange(problem.broker_count + 1))
    for broker, own in enumerate(filters):
        mine = order[ends[broker] : ends[broker + 1]]
        for j in mine[_not_in_one(problem.lo[mine], problem.hi[mine], own)]:
            if not _covered(problem.lo[j], problem.hi[j], own):
                return False
    return True


def _not_in_one(lo: NDArray[np.float64], hi: NDArray[np.float64], boxes: ContentFilter) -> NDArray[np.bool_]:
    """For each rectangle, whether no single rectangle of the filter contains it."""
    outside = np.ones(len(lo), bool)
    for low, high in boxes:
        outside &= ~(np.all(low <= lo, axis=1) & np.all(hi <= high, axis=1))
    return outside


def _covered(lo: NDArray[np.float64], hi: NDArray[np.float64], boxes: ContentFilter) -> bool:
    """Whether the union of a filter's rectangles contains a rectangle: all cells of its grid are covered."""
    grid = [
        np.unique(np.clip([lo[a], hi[a], *(side[a] for box in boxes for side in box)], lo[a], hi[a]))
        for a in range(len(lo))
    ]
    covered = np.zeros([max(1, len(line) - 1) for line in grid], bool)
    for low, high in boxes:
        covered[_cells(grid, low, high)] = True
    return bool(covered.all())


def _cells(grid: list[NDArray[np.float64]], lo: NDArray[np.float64], hi: NDArray[np.float64]) -> Any:
    """The cells of a grid that are inside a rectangle; an axis with one grid line has one empty cell."""
    inside = []
    for line, low, high in zip(grid, lo, hi, strict=True):
        left, right = (line, line) if len(line) == 1 else (line[:-1], line[1:])
        inside.append((low <= left) & (right <= high))
    return np.ix_(*inside)


def union_measure(problem: AssignmentProblem, boxes: ContentFilter) -> float:
    """The exact measure of the union of a filter's rectangles under the problem's density.

    The sides of all rectangles (and of the histogram's cells) cut space into a grid; each cell is counted
    once.
    """
    if not boxes:
        return 0.0
    density = problem.density
    grid = []
    for axis in range(problem.dimensions):
        sides = np.array([side[axis] for box in boxes for side in box])
        if density is not None:
            lines = density.edges[axis]
            sides = np.concatenate((sides, lines[(lines > sides.min()) & (lines < sides.max())]))
        grid.append(np.unique(sides))
    if any(len(line) == 1 for line in grid):
        return 0.0
    covered = np.zeros([len(line) - 1 for line in grid], bool)
    for lo, hi in boxes:
        covered[_cells(grid, lo, hi)] = True
    if density is None:
        weight = _outer([np.diff(line) for line in grid])
    else:
        weight = _histogram_weight(density.edges, density.mass, grid)
    return float(np.sum(weight[covered]))


def _histogram_weight(
    edges: tuple[NDArray[np.float64], ...], mass: NDArray[np.float64], grid: list[NDArray[np.float64]]
) -> NDArray[np.float64]:
    """The mass in each cell of a grid that is at least as fine as the histogram."""
    cells, shares = [], []
    for lines, line in zip(edges, grid, strict=True):
        middle = (line[:-1] + line[1:]) / 2
        cell = np.clip(np.searchsorted(lines, middle, side="right") - 1, 0, len(lines) - 2)
        within = (middle >= lines[0]) & (middle <= lines[-1])
        shares.append(within * np.diff(line) / np.diff(lines)[cell])
        cells.append(cell)
    return mass[np.ix_(*cells)] * _outer(shares)


def _outer(factors: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The product of one factor per axis, for all cells."""
    product = np.ones(())
    for factor in factors:
        product = product[..., None] * factor
    return product
