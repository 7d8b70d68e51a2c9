"""Hypothesis strategies for small markets, with ties, zeros and full brokers."""

import numpy as np
from hypothesis import strategies as st

import broadloom as bl


@st.composite
def markets(draw, users=6, brokers=4, channels=4, headroom=2.0):
    """A market of up to so many users, brokers and channels; `headroom`: total capacity over total demand.

    All numbers are fractions of a power of two, so that sums are exact in any order.
    """
    u, b, c = (draw(st.integers(1, most)) for most in (users, brokers, channels))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rates = rng.integers(0, 4, (u, c)) if draw(st.booleans()) else _fractions(rng, (u, c), 64)
    wants = rng.random((u, c)) < draw(st.sampled_from([0.2, 0.5, 1.0]))
    access = rng.integers(0, 3, (u, b)) if draw(st.booleans()) else _fractions(rng, (u, b), 1024)
    core = _fractions(rng, (b, b), 1024) * draw(st.sampled_from([0.0, 0.25, 4.0]))
    draft = bl.MarketProblem(rates, wants, access, np.maximum(core, core.T), 1.0, close=True)
    largest, total = draft.demand.max(), draft.demand.sum()
    each = max(largest, headroom * total / b)
    each = np.ceil(each * 64) / 64
    return bl.MarketProblem(draft.rates, draft.wants, draft.access, draft.core, each)


def _fractions(rng, shape, parts):
    return rng.integers(0, parts, shape) / parts
