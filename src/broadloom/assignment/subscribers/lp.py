"""The linear relaxation of subscriber assignment (paper 4, section IV-A.1, LPRelax), by a first-order solver.

The solver is PDLP of OR-tools: interior point and simplex take too long on such programs, and OR-tools can
be loaded beside SciPy's own HiGHS, while the package highspy cannot be loaded beside OR-tools.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from broadloom.assignment.subscribers._boxes import holds
from broadloom.assignment.subscribers.candidates import shrunk
from broadloom.errors import InputError
from broadloom.kernels import kernel, thread_count
from broadloom.model import DensityArrays, measure_of

# The number of pieces into which sums are split, whatever the number of threads: the same bits everywhere.
SHARDS = 8


class Sample(NamedTuple):
    """Subscribers of a linear program: rectangles, who may serve them, and for whom loads count."""

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    may: NDArray[np.bool_]
    counts: NDArray[np.bool_]


class Relaxed(NamedTuple):
    """A fractional filter assignment: box `k` belongs to broker `broker[k]` by the share `share[k]`."""

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    broker: NDArray[np.int64]
    share: NDArray[np.float64]
    value: float
    solved: bool


def relax(
    density: DensityArrays | None,
    sample: Sample,
    boxes: tuple[NDArray[np.float64], NDArray[np.float64]],
    limit: NDArray[np.float64],
    alpha: int,
    tolerance: float,
    iterations: int,
) -> Relaxed:
    """The fractional solution over candidate boxes, which shrink for each broker to whom it may serve.

    Args:
        density: how often events fall where.
        sample: the subscribers.
        boxes: candidate rectangles.
        limit: how many of those for whom loads count each broker may serve.
        alpha: the most boxes a broker.
        tolerance: the relative accuracy of the solver.
        iterations: its most iterations.
    """
    parts = [_columns_of(density, sample, boxes, b) for b in range(len(limit))]
    lo, hi, volume = (np.concatenate([part[i] for part in parts]) for i in range(3))
    broker = np.repeat(np.arange(len(limit)), [len(part[0]) for part in parts])
    inside = _incidence(sample.lo, sample.hi, sample.may, lo, hi, broker)
    scale = float(volume.mean()) if volume.mean() > 0 else 1.0
    program = _Program(sample, limit, alpha, volume / scale, broker, inside)
    share, solved = program.solve(tolerance, iterations)
    return Relaxed(lo, hi, broker, share, float(share @ volume), solved)


def _columns_of(
    density: DensityArrays | None,
    sample: Sample,
    boxes: tuple[NDArray[np.float64], NDArray[np.float64]],
    b: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The candidate boxes of one broker, each shrunk to those whom it may serve, without repeats."""
    mine, d = sample.may[:, b], sample.lo.shape[1]
    tight = np.hstack(shrunk(*boxes, sample.lo[mine], sample.hi[mine]))
    tight = np.unique(tight[np.isfinite(tight).all(axis=1)], axis=0)
    lo, hi = np.ascontiguousarray(tight[:, :d]), np.ascontiguousarray(tight[:, d:])
    return lo, hi, np.array([measure_of(density, low, high) for low, high in zip(lo, hi, strict=True)])


@kernel
def _incidence(
    lo: NDArray[np.float64],
    hi: NDArray[np.float64],
    may: NDArray[np.bool_],
    boxes_lo: NDArray[np.float64],
    boxes_hi: NDArray[np.float64],
    broker: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Pairs of a subscriber and a box that it is inside, of a broker that may serve it."""
    count = 0
    for k in range(len(broker)):
        low, high = boxes_lo[k], boxes_hi[k]
        for j in range(len(lo)):
            count += may[j, broker[k]] and holds(low, high, lo, hi, j)
    pairs = np.empty((2, count), np.int64)
    count = 0
    for k in range(len(broker)):
        low, high = boxes_lo[k], boxes_hi[k]
        for j in range(len(lo)):
            if may[j, broker[k]] and holds(low, high, lo, hi, j):
                pairs[0, count], pairs[1, count] = j, k
                count += 1
    return pairs


class _Program:
    """Variables: y (a share a box), then x (a share a counted subscriber and broker that may serve it).

    Rows, by the paper's numbers: C1 a broker's boxes; C2 a counted subscriber's shares; C3 a broker's load;
    C4 a share is at most that of the boxes around it. Subscribers for whom loads do not count need no x:
    the boxes around them must sum to 1.
    """

    def __init__(
        self,
        sample: Sample,
        limit: NDArray[np.float64],
        alpha: int,
        volume: NDArray[np.float64],
        broker: NDArray[np.int64],
        inside: NDArray[np.int64],
    ) -> None:
        n, boxes = len(limit), len(volume)
        counted, plain = np.flatnonzero(sample.counts), np.flatnonzero(~sample.counts)
        x_who, x_broker = np.nonzero(sample.may[counted])
        x_index = np.full((len(sample.lo), n), -1)
        x_index[counted[x_who], x_broker] = np.arange(len(x_who))
        row_of = np.full(len(sample.lo), -1)
        row_of[plain], row_of[counted] = np.arange(len(plain)), np.arange(len(counted))
        cover, share = n, n + len(plain)
        load, nest = share + len(counted), share + len(counted) + n
        who, box = inside
        is_plain = ~sample.counts[who]
        nest_row = nest + x_index[who[~is_plain], broker[box[~is_plain]]]
        x = boxes + np.arange(len(x_who))
        entries = [
            (broker, np.arange(boxes), 1.0),
            (cover + row_of[who[is_plain]], box[is_plain], 1.0),
            (share + x_who, x, 1.0),
            (load + x_broker, x, 1.0),
            (nest_row, box[~is_plain], 1.0),
            (nest + np.arange(len(x_who)), x, -1.0),
        ]
        rows, columns = (np.concatenate([entry[i] for entry in entries]) for i in (0, 1))
        values = np.concatenate([np.full(len(entry[0]), entry[2]) for entry in entries])
        shape = (nest + len(x_who), boxes + len(x_who))
        self.matrix = coo_array((values, (rows, columns)), shape=shape).tocsc()
        self.lower, self.upper = np.zeros(shape[0]), np.full(shape[0], np.inf)
        self.lower[:n], self.upper[:n] = -np.inf, alpha
        self.lower[cover:load] = 1.0
        self.lower[load:nest], self.upper[load:nest] = -np.inf, limit
        self.objective = np.concatenate((volume, np.zeros(len(x_who))))
        self.boxes = boxes

    def solve(self, tolerance: float, iterations: int) -> tuple[NDArray[np.float64], bool]:
        """The boxes' shares, and whether the solver says that they are optimal within the tolerance."""
        pdlp, parameters = _solver(tolerance, iterations)
        program = pdlp.QuadraticProgram()
        program.resize_and_initialize(self.matrix.shape[1], self.matrix.shape[0])
        program.objective_vector = self.objective
        program.constraint_matrix = self.matrix
        program.constraint_lower_bounds, program.constraint_upper_bounds = self.lower, self.upper
        program.variable_lower_bounds = np.zeros(len(self.objective))
        program.variable_upper_bounds = np.ones(len(self.objective))
        result = pdlp.primal_dual_hybrid_gradient(program, parameters)
        solved = "OPTIMAL" in str(result.solve_log.termination_reason) or (
            result.solve_log.termination_reason == 1
        )
        return np.clip(result.primal_solution[: self.boxes], 0.0, 1.0), solved


def _solver(tolerance: float, iterations: int):  # type: ignore[no-untyped-def]  # OR-tools has no types
    """OR-tools' PDLP and its parameters."""
    try:
        from ortools.pdlp import solvers_pb2
        from ortools.pdlp.python import pdlp
    except ImportError as error:
        raise InputError(
            "slp1 and slp solve linear programs with OR-tools, which is not here; "
            "install it with: pip install 'broadloom[lp]'"
        ) from error
    parameters = solvers_pb2.PrimalDualHybridGradientParams()
    optimality = parameters.termination_criteria.simple_optimality_criteria
    optimality.eps_optimal_relative = optimality.eps_optimal_absolute = tolerance
    parameters.termination_criteria.iteration_limit = iterations
    parameters.num_threads = min(thread_count(), SHARDS)
    parameters.num_shards = SHARDS
    return pdlp, parameters
