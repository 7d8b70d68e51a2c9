"""Linear relaxation of subscriber assignment (paper 4, section IV-A), from candidate rectangles to rounding.

The steps are FilterGen (a small set of rectangles to build filters from), LPRelax (which share of which
rectangle each broker has), and randomised rounding to preliminary filters.

The solver is PDLP of OR-tools, a first-order method: interior point and simplex take too long on such
programs. OR-tools can be loaded together with SciPy's own HiGHS; the package highspy cannot.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers.content_filters import Corners, extend, holds, is_inside
from broadloom.assignment.subscribers.load_flow import CandidateBrokers
from broadloom.errors import missing_extra
from broadloom.kernels import k_means, kernel, thread_count
from broadloom.model import DensityArrays, measure_of

# The number of pieces into which sums are split, for any number of threads: the same bits everywhere.
SHARDS = 8
# Two intervals of one length overlap by at most this share of it (the paper's eta).
ETA = 0.5
# Lengths double from the least to the whole; below this share of the whole they count as equal.
LEAST_SHARE = 1 / 256
# The most roundings; the last one is completed if none covers the whole sample.
MAX_ROUNDINGS = 20


class ProgramSample(NamedTuple):
    """Subscribers of a linear program, and the limits of the brokers.

    Attributes:
        lo: the lower corners of their rectangles.
        hi: the upper corners.
        may_serve: whether a broker (column) is a candidate of a subscriber (row).
        counts: whether a subscriber counts for the loads.
        limit: the most counted subscribers per broker.
        alpha: the most boxes per broker.
        density: the density of events.
    """

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    may_serve: NDArray[np.bool_]
    counts: NDArray[np.bool_]
    limit: NDArray[np.float64]
    alpha: int
    density: DensityArrays | None


class FractionalFilters(NamedTuple):
    """A fractional solution: box `k` belongs to broker `broker[k]` by the share `share[k]`."""

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    broker: NDArray[np.int64]
    share: NDArray[np.float64]
    value: float
    solved: bool


class PreliminaryFilters(NamedTuple):
    """Preliminary filters, the paper's phi: broker `b` has the boxes from `start[b]` to `start[b + 1]`."""

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    start: NDArray[np.int64]

    def expanded(self, eps: float) -> "PreliminaryFilters":
        """The filters with every box enlarged by `eps`, around its middle."""
        margin = eps * (self.hi - self.lo) / 2
        return PreliminaryFilters(self.lo - margin, self.hi + margin, self.start)


# FilterGen


def candidate_rectangles(
    position: NDArray[np.float64], lo: Corners, hi: Corners, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rectangles around about `count` clusters of subscriptions, and around neighbours of all sizes.

    Every subscription is inside at least one of them; each is the least box around those inside it.
    """
    super_lo, super_hi = _super_subscriptions(position, lo, hi, count, rng)
    sides = [intervals(super_lo[:, axis], super_hi[:, axis]) for axis in range(lo.shape[1])]
    mesh = np.meshgrid(*(np.arange(len(left)) for left, _ in sides), indexing="ij")
    product = [
        np.stack([sides[axis][end][index.ravel()] for axis, index in enumerate(mesh)], axis=1)
        for end in (0, 1)
    ]
    return _distinct_finite(*shrunk(product[0], product[1], lo, hi))


def _super_subscriptions(
    position: NDArray[np.float64], lo: Corners, hi: Corners, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The boxes around clusters of subscribers that are near one another in the network and in interest."""
    if count >= len(lo):
        return lo, hi
    joint = np.hstack((_normalised(position), _normalised((lo + hi) / 2)))
    used, label = np.unique(k_means(joint, count, rng), return_inverse=True)
    super_lo = np.full((len(used), lo.shape[1]), np.inf)
    super_hi = np.full((len(used), lo.shape[1]), -np.inf)
    np.minimum.at(super_lo, label, lo)
    np.maximum.at(super_hi, label, hi)
    return super_lo, super_hi


def _normalised(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points with a total spread of 1, so that network and events weigh the same."""
    spread = np.sqrt(points.var(axis=0).sum())
    return (points - points.mean(axis=0)) / (spread if spread > 0 else 1.0)


def intervals(left: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Intervals of doubling lengths such that each input interval is inside one, and few overlap much."""
    order = np.argsort(left, kind="stable")
    left, right = left[order], right[order]
    whole = max(right.max() - left.min(), np.finfo(np.float64).tiny)
    length = max(float((right - left).min()), whole * LEAST_SHARE)
    found: set[tuple[float, float]] = set()
    while length < 2 * whole:
        length *= 2
        short = right - left <= length / 2
        starts, ends = left[short], right[short]
        i = 0
        while i < len(starts):
            inside = ends[i:][(starts[i:] <= starts[i] + length) & (ends[i:] <= starts[i] + length)]
            found.add((float(starts[i]), float(inside.max())))
            i = int(np.searchsorted(starts, starts[i] + (1 - ETA) * length, side="right"))
    pairs = np.array(sorted(found))
    return pairs[:, 0], pairs[:, 1]


@kernel
def shrunk(
    boxes_lo: Corners, boxes_hi: Corners, lo: Corners, hi: Corners
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each box shrunk to the rectangles inside it; infinite if there are none."""
    tight_lo, tight_hi = np.full(boxes_lo.shape, np.inf), np.full(boxes_hi.shape, -np.inf)
    for k in range(len(boxes_lo)):
        low, high = boxes_lo[k], boxes_hi[k]
        for j in range(len(lo)):
            if holds(low, high, lo, hi, j):
                extend(tight_lo, tight_hi, k, lo[j], hi[j])
    return tight_lo, tight_hi


def _distinct_finite(lo: Corners, hi: Corners) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The finite boxes, sorted, without repeats."""
    d = lo.shape[1]
    boxes = np.hstack((lo, hi))
    boxes = np.unique(boxes[np.isfinite(boxes).all(axis=1)], axis=0)
    return np.ascontiguousarray(boxes[:, :d]), np.ascontiguousarray(boxes[:, d:])


# LPRelax


def relax(
    sample: ProgramSample,
    boxes: tuple[Corners, Corners],
    tolerance: float,
    iterations: int,
    literal: bool = False,
) -> FractionalFilters:
    """The fractional solution over candidate boxes, which are shrunk for each broker to its subscribers.

    Args:
        sample: the subscribers and the limits.
        boxes: candidate rectangles.
        tolerance: the relative accuracy of the solver.
        iterations: its most iterations.
        literal: do not shrink them: all brokers have the same candidates, as printed.
    """
    n = len(sample.limit)
    columns = [_columns_of(sample, boxes, b, literal) for b in range(n)]
    lo, hi, volume = (np.concatenate([column[i] for column in columns]) for i in range(3))
    broker = np.repeat(np.arange(n), [len(column[0]) for column in columns])
    needed = _without_implied(sample)
    inside = _incidence(needed.lo, needed.hi, needed.may_serve, lo, hi, broker)
    scale = float(volume.mean()) if volume.mean() > 0 else 1.0
    program = AssignmentProgram(needed, volume / scale, broker, inside)
    share, solved = program.solve(tolerance, iterations)
    return FractionalFilters(lo, hi, broker, share, float(share @ volume), solved)


def _columns_of(
    sample: ProgramSample, boxes: tuple[Corners, Corners], b: int, literal: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The distinct candidate boxes of one broker, shrunk to its subscribers, and their measures.

    Two boxes that shrink to the same one contain the same subscribers of the broker. So if boxes are not to
    be shrunk, the one of least measure stands for all of them, and the optimum is that over all boxes.
    """
    served = sample.may_serve[:, b]
    small = shrunk(*boxes, sample.lo[served], sample.hi[served])
    if not literal:
        lo, hi = _distinct_finite(*small)
        measures = [measure_of(sample.density, low, high) for low, high in zip(lo, hi, strict=True)]
        return lo, hi, np.array(measures)
    measure = np.array([measure_of(sample.density, low, high) for low, high in zip(*boxes, strict=True)])
    order = np.argsort(measure, kind="stable")
    both = np.hstack(small)[order]
    kept = order[np.isfinite(both).all(axis=1)]
    _, first = np.unique(both[np.isfinite(both).all(axis=1)], axis=0, return_index=True)
    chosen = kept[first]
    return boxes[0][chosen], boxes[1][chosen], measure[chosen]


def _without_implied(sample: ProgramSample) -> ProgramSample:
    """The sample without subscribers that do not count for loads and are covered whenever another one is."""
    served = np.packbits(sample.may_serve, axis=1)
    words = np.pad(served, ((0, 0), (0, -served.shape[1] % 8))).view(np.uint64)
    needed = ~_implied(sample.lo, sample.hi, words, sample.counts)
    return sample._replace(
        lo=sample.lo[needed],
        hi=sample.hi[needed],
        may_serve=sample.may_serve[needed],
        counts=sample.counts[needed],
    )


@kernel
def _implied(
    lo: Corners, hi: Corners, served: NDArray[np.uint64], counts: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Whether another subscriber, not implied itself, has a rectangle around this one, and no more brokers.

    Each box around the other one, of a broker that can serve it, then covers this one, too.
    """
    result = np.zeros(len(lo), np.bool_)
    for j in range(len(lo)):
        low, high = lo[j], hi[j]
        for other in range(len(lo)):
            if counts[j]:
                break
            if other == j or result[other] or not is_inside(low, high, lo, hi, other):
                continue
            fewer = True
            for word in range(served.shape[1]):
                fewer &= served[other, word] & ~served[j, word] == 0
            if fewer:
                result[j] = True
                break
    return result


@kernel(cost=15)
def _incidence(
    lo: Corners,
    hi: Corners,
    may_serve: NDArray[np.bool_],
    boxes_lo: Corners,
    boxes_hi: Corners,
    broker: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Pairs of a subscriber and a box around it, of a broker that can serve it."""
    count = 0
    for k in range(len(broker)):
        low, high = boxes_lo[k], boxes_hi[k]
        for j in range(len(lo)):
            count += may_serve[j, broker[k]] and holds(low, high, lo, hi, j)
    pairs = np.empty((2, count), np.int64)
    count = 0
    for k in range(len(broker)):
        low, high = boxes_lo[k], boxes_hi[k]
        for j in range(len(lo)):
            if may_serve[j, broker[k]] and holds(low, high, lo, hi, j):
                pairs[0, count] = j
                pairs[1, count] = k
                count += 1
    return pairs


class AssignmentProgram:
    """The linear program LPRelax.

    Variables: y, a share per box; then x, a share per counted subscriber and broker that can serve it. Rows,
    by the paper's numbers: C1, the boxes of a broker; C2, the shares of a counted subscriber; C3, the load of
    a broker; C4, a share is at most that of the boxes around it. Subscribers that do not count for loads need
    no x: the shares of the boxes around them must add up to 1. `relax` leaves out those that others imply.
    """

    def __init__(
        self,
        sample: ProgramSample,
        volume: NDArray[np.float64],
        broker: NDArray[np.int64],
        inside: NDArray[np.int64],
    ) -> None:
        from scipy.sparse import coo_array

        n, boxes = len(sample.limit), len(volume)
        counted, plain = np.flatnonzero(sample.counts), np.flatnonzero(~sample.counts)
        x_subscriber, x_broker = np.nonzero(sample.may_serve[counted])
        x_index = np.full((len(sample.lo), n), -1)
        x_index[counted[x_subscriber], x_broker] = np.arange(len(x_subscriber))
        row_of = np.full(len(sample.lo), -1)
        row_of[plain] = np.arange(len(plain))
        row_of[counted] = np.arange(len(counted))
        # The first row of each kind; those of C1 begin at 0.
        cover = n
        share = cover + len(plain)
        load = share + len(counted)
        nest = load + n
        subscriber, box = inside
        is_plain = ~sample.counts[subscriber]
        nest_row = nest + x_index[subscriber[~is_plain], broker[box[~is_plain]]]
        x = boxes + np.arange(len(x_subscriber))
        entries = [
            (broker, np.arange(boxes), 1.0),
            (cover + row_of[subscriber[is_plain]], box[is_plain], 1.0),
            (share + x_subscriber, x, 1.0),
            (load + x_broker, x, 1.0),
            (nest_row, box[~is_plain], 1.0),
            (nest + np.arange(len(x_subscriber)), x, -1.0),
        ]
        rows, columns = (np.concatenate([entry[i] for entry in entries]) for i in (0, 1))
        values = np.concatenate([np.full(len(entry[0]), entry[2]) for entry in entries])
        shape = (nest + len(x_subscriber), boxes + len(x_subscriber))
        self.matrix = coo_array((values, (rows, columns)), shape=shape).tocsc()
        self.lower, self.upper = np.zeros(shape[0]), np.full(shape[0], np.inf)
        self.lower[:n] = -np.inf
        self.upper[:n] = sample.alpha
        self.lower[cover:load] = 1.0
        self.lower[load:nest] = -np.inf
        self.upper[load:nest] = sample.limit
        self.objective = np.concatenate((volume, np.zeros(len(x_subscriber))))
        self.boxes = boxes

    def solve(self, tolerance: float, iterations: int) -> tuple[NDArray[np.float64], bool]:
        """The shares of the boxes, and whether the solver reports them as optimal within the tolerance."""
        pdlp, parameters = _solver(tolerance, iterations)
        program = pdlp.QuadraticProgram()
        program.resize_and_initialize(self.matrix.shape[1], self.matrix.shape[0])
        program.objective_vector = self.objective
        program.constraint_matrix = self.matrix
        program.constraint_lower_bounds = self.lower
        program.constraint_upper_bounds = self.upper
        program.variable_lower_bounds = np.zeros(len(self.objective))
        program.variable_upper_bounds = np.ones(len(self.objective))
        result = pdlp.primal_dual_hybrid_gradient(program, parameters)
        reason = result.solve_log.termination_reason
        solved = "OPTIMAL" in str(reason) or reason == 1
        return np.clip(result.primal_solution[: self.boxes], 0.0, 1.0), solved


def _solver(tolerance: float, iterations: int):  # type: ignore[no-untyped-def]  # OR-tools has no types
    """OR-tools' PDLP and its parameters."""
    try:
        from ortools.pdlp import solvers_pb2
        from ortools.pdlp.python import pdlp
    except ImportError as error:
        raise missing_extra("OR-tools", "lp", "slp1 and slp solve linear programs with it") from error
    parameters = solvers_pb2.PrimalDualHybridGradientParams()
    optimality = parameters.termination_criteria.simple_optimality_criteria
    optimality.eps_optimal_relative = optimality.eps_optimal_absolute = tolerance
    parameters.termination_criteria.iteration_limit = iterations
    parameters.num_threads = min(thread_count(), SHARDS)
    parameters.num_shards = SHARDS
    return pdlp, parameters


# Rounding


def rounded(
    relaxed: FractionalFilters, sample: ProgramSample, exponent: float, rng: np.random.Generator
) -> PreliminaryFilters:
    """Keep each box with the chance `1 - (1 - share) ** exponent`; repeat until the whole sample is covered.

    After `MAX_ROUNDINGS`, the box of the largest share around each uncovered subscriber is kept as well.
    """
    chance = 1 - (1 - relaxed.share) ** exponent
    m = len(sample.lo)
    start = np.concatenate(([0], np.cumsum(sample.may_serve.sum(axis=1)))).astype(np.int64)
    brokers = np.nonzero(sample.may_serve)[1].astype(np.int64)
    candidates = CandidateBrokers(np.arange(m), start, brokers, np.ones(m, np.int64))
    for _ in range(MAX_ROUNDINGS):
        keep = rng.random(len(chance)) < chance
        phi = _kept(relaxed, keep, len(sample.limit))
        if covered(phi, sample.lo, sample.hi, candidates).all():
            return phi
    for j in np.flatnonzero(~covered(phi, sample.lo, sample.hi, candidates)):
        around = sample.may_serve[j, relaxed.broker] & np.all(
            (relaxed.lo <= sample.lo[j]) & (sample.hi[j] <= relaxed.hi), axis=1
        )
        keep[np.flatnonzero(around)[relaxed.share[around].argmax()]] = True
    return _kept(relaxed, keep, len(sample.limit))


def _kept(relaxed: FractionalFilters, keep: NDArray[np.bool_], n: int) -> PreliminaryFilters:
    """The boxes to keep, broker by broker (the order of the program)."""
    count = np.bincount(relaxed.broker[keep], minlength=n)
    return PreliminaryFilters(relaxed.lo[keep], relaxed.hi[keep], np.concatenate(([0], np.cumsum(count))))


@kernel
def covered(
    phi: PreliminaryFilters, lo: Corners, hi: Corners, candidates: CandidateBrokers
) -> NDArray[np.bool_]:
    """Whether each subscriber is inside a box of one of its candidates."""
    result = np.zeros(len(lo), np.bool_)
    for j in range(len(lo)):
        g, low, high = candidates.group[j], lo[j], hi[j]
        for p in range(candidates.start[g], candidates.start[g + 1]):
            b = candidates.brokers[p]
            for k in range(phi.start[b], phi.start[b + 1]):
                if is_inside(low, high, phi.lo, phi.hi, k):
                    result[j] = True
                    break
            if result[j]:
                break
    return result
