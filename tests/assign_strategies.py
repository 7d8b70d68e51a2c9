"""Hypothesis strategy for small subscriber assignment problems, on whole numbers so that sums are exact."""

import numpy as np
from hypothesis import strategies as st

import broadloom as bl


@st.composite
def problems(draw, levels=1, most=25, dimensions=None):
    """A problem of a few brokers; with levels above 1, a random tree."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, m = draw(st.integers(1, 6)), draw(st.integers(0, most))
    d = dimensions or draw(st.integers(1, 3))
    lo = rng.integers(0, 20, (m, d)).astype(float)
    parent = np.full(n, -1)
    if levels > 1:
        parent = np.array([rng.integers(-1, b) if b else -1 for b in range(n)])
    density = None
    if draw(st.booleans()):
        lines = [np.arange(0, 33, 8.0)] * d
        density = bl.Density(lines, rng.integers(0, 5, (4,) * d))
    return bl.AssignmentProblem(
        rng.integers(0, 10, 2),
        rng.integers(0, 10, (n, 2)),
        parent,
        rng.integers(0, 10, (m, 2)),
        lo,
        lo + rng.integers(0, 8, (m, d)),
        max_delay=draw(st.sampled_from([0.0, 0.3, 2.0])),
        alpha=draw(st.integers(1, 4)),
        beta=draw(st.sampled_from([1.0, 1.5])),
        beta_max=draw(st.sampled_from([1.5, 3.0])),
        capacity=rng.integers(1, 4, n),
        density=density,
    )
