"""Proven lower bound on bandwidth (ours): the number of brokers that each event must reach.

Event space is cut into cells. A subscriber that wants all of a cell must be at a broker whose filter holds
the whole cell. That takes enough brokers for all such subscribers, and at least one per zone: zones are
disjoint sets of brokers that some of the subscribers cannot leave because of their latency bound. Summed over
cells, this holds for every assignment within `beta_max`, for filters of any number of rectangles.
"""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers.load_flow import CandidateBrokers, load_limits, max_flow
from broadloom.kernels import kernel
from broadloom.model import AssignmentProblem, DensityArrays, measure_of

# The approximate number of cells.
CELLS = 40_000
# The number of choices of zones that are tried; in each cell the best one counts.
FAMILIES = 6
# With more axes, a grid of that many cells has two or three lines per axis, too few for a useful bound.
MAX_AXES = 6


def lower_bound(problem: AssignmentProblem, candidates: CandidateBrokers) -> float | None:
    """The bound for assignments within the limits of latency and load.

    None if no assignment meets them, or above six dimensions.
    """
    limit = load_limits(problem, problem.beta_max)
    if problem.subscriber_count == 0:
        return 0.0
    if problem.dimensions > MAX_AXES or max_flow(candidates, limit)[1] > 0:
        return None
    lines = _lines(problem)
    most = np.zeros(_shape(lines), np.int64)
    rng = np.random.default_rng(0)
    for family in range(FAMILIES):
        zones, zone_of = _zones(candidates, len(limit), rng, whole=family == 0)
        needed = np.zeros_like(most)
        wanted = _wanted(problem, lines, zone_of[candidates.group], len(zones))
        for zone, count in zip(zones, wanted, strict=True):
            needed += _brokers_for(count, limit[zone])
        most = np.maximum(most, needed)
    # An event that enters a leaf has entered all brokers above it.
    above = np.where(most > 0, _least_depth(problem), 0)
    return float(np.sum((most + above) * _cell_measures(problem, lines)))


def _shape(lines: list[NDArray[np.float64]]) -> tuple[int, ...]:
    return tuple(len(line) - 1 for line in lines)


def _lines(problem: AssignmentProblem) -> list[NDArray[np.float64]]:
    """The grid's lines on each axis, through sides of subscriptions, denser where there are more."""
    count = max(2, round(CELLS ** (1 / problem.dimensions)) + 1)
    lines = []
    for axis in range(problem.dimensions):
        sides = np.concatenate((problem.lo[:, axis], problem.hi[:, axis]))
        lines.append(np.unique(np.quantile(sides, np.linspace(0, 1, count), method="nearest")))
    return lines


def _zones(
    candidates: CandidateBrokers, n: int, rng: np.random.Generator, whole: bool
) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
    """Disjoint sets of brokers, and the zone that each group cannot leave (-1: it is in no zone).

    If `whole`, all brokers are one zone; otherwise zones are the candidates of groups, preferably small ones.
    """
    if whole:
        return [np.arange(n)], np.zeros(len(candidates.size), np.int64)
    zone_of_broker = np.full(n, -1)
    zones: list[NDArray[np.int64]] = []
    for g in np.argsort(np.diff(candidates.start) * rng.uniform(0.5, 1.5, len(candidates.size))):
        brokers = candidates.brokers[candidates.start[g] : candidates.start[g + 1]]
        if candidates.size[g] and np.all(zone_of_broker[brokers] < 0):
            zone_of_broker[brokers] = len(zones)
            zones.append(brokers)
    zone = zone_of_broker[candidates.brokers]
    low, high = (extreme.reduceat(zone, candidates.start[:-1]) for extreme in (np.minimum, np.maximum))
    return zones, np.where(low == high, low, -1)


def _wanted(
    problem: AssignmentProblem, lines: list[NDArray[np.float64]], zone: NDArray[np.int64], zones: int
) -> NDArray[np.int64]:
    """How many subscribers per zone want all of a cell: changes at the corners of rectangles, summed up."""
    known = np.flatnonzero(zone >= 0)
    shape = (zones, *(cells + 1 for cells in _shape(lines)))
    first = [np.searchsorted(line, problem.lo[known, a], "left") for a, line in enumerate(lines)]
    last = [np.searchsorted(line, problem.hi[known, a], "right") - 1 for a, line in enumerate(lines)]
    some = np.all([low < high for low, high in zip(first, last, strict=True)], axis=0)
    change = np.zeros(int(np.prod(shape)))
    for corner in range(1 << len(lines)):
        ends = [(last if corner >> a & 1 else first)[a][some] for a in range(len(lines))]
        flat = np.ravel_multi_index((zone[known][some], *ends), shape)
        change += (-1) ** corner.bit_count() * np.bincount(flat, minlength=len(change))
    count = change.reshape(shape)
    for axis in range(len(lines)):
        count = count.cumsum(axis=axis + 1)
    return count[(slice(None), *(slice(-1) for _ in lines))].astype(np.int64)


def _brokers_for(count: NDArray[np.int64], limit: NDArray[np.int64]) -> NDArray[np.int64]:
    """The least number of brokers that can hold `count` subscribers, the largest first; 0 for 0."""
    total = np.cumsum(np.sort(limit)[::-1])
    return np.where(count > 0, np.minimum(np.searchsorted(total, count) + 1, len(total)), 0)


def _least_depth(problem: AssignmentProblem) -> int:
    """The least number of brokers above a leaf."""
    depth = np.zeros(problem.broker_count, np.int64)
    for broker in problem.top_down:
        parent = problem.broker_parent[broker]
        depth[broker] = 0 if parent < 0 else depth[parent] + 1
    return int(depth[problem.leaves].min())


def _cell_measures(problem: AssignmentProblem, lines: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The measure of each cell of the grid."""
    corners = [
        np.stack([c.ravel() for c in np.meshgrid(*side, indexing="ij")], axis=1)
        for side in ([line[:-1] for line in lines], [line[1:] for line in lines])
    ]
    return _measures(problem.density_arrays, *corners).reshape(_shape(lines))


@kernel
def _measures(
    density: DensityArrays | None, lo: NDArray[np.float64], hi: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The measure of each of many rectangles."""
    result = np.empty(len(lo))
    for i in range(len(lo)):
        result[i] = measure_of(density, lo[i], hi[i])
    return result
