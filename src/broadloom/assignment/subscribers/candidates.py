"""Candidate filters (paper 4, section IV-A.3, FilterGen): a small set of rectangles to build filters from."""

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._boxes import extend, holds
from broadloom.kernels import k_means, kernel

# Two intervals of one length overlap by at most this share of it.
ETA = 0.5
# Lengths double from the least to the whole; below this share of the whole they are all alike.
LEAST_SHARE = 1 / 256


def candidate_rectangles(
    place: NDArray[np.float64],
    lo: NDArray[np.float64],
    hi: NDArray[np.float64],
    count: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rectangles around about `count` clusters of subscriptions, and around neighbours of all sizes.

    Every subscription is inside one of them at least; each is the least box around those inside it.
    """
    super_lo, super_hi = super_subscriptions(place, lo, hi, count, rng)
    sides = [intervals(super_lo[:, axis], super_hi[:, axis]) for axis in range(lo.shape[1])]
    mesh = np.meshgrid(*(np.arange(len(left)) for left, _ in sides), indexing="ij")
    product = [
        np.stack([sides[axis][end][index.ravel()] for axis, index in enumerate(mesh)], axis=1)
        for end in (0, 1)
    ]
    boxes = np.hstack(shrunk(product[0], product[1], lo, hi))
    boxes = np.unique(boxes[np.isfinite(boxes).all(axis=1)], axis=0)
    d = lo.shape[1]
    return np.ascontiguousarray(boxes[:, :d]), np.ascontiguousarray(boxes[:, d:])


def super_subscriptions(
    place: NDArray[np.float64],
    lo: NDArray[np.float64],
    hi: NDArray[np.float64],
    count: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The boxes around clusters of subscribers that are near one another in the network and in interest."""
    if count >= len(lo):
        return lo, hi
    joint = np.hstack((_normal(place), _normal((lo + hi) / 2)))
    used, label = np.unique(k_means(joint, count, rng), return_inverse=True)
    super_lo, super_hi = (
        np.full((len(used), lo.shape[1]), np.inf),
        np.full((len(used), lo.shape[1]), -np.inf),
    )
    np.minimum.at(super_lo, label, lo)
    np.maximum.at(super_hi, label, hi)
    return super_lo, super_hi


def _normal(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points with a total spread of 1, so that network and events weigh the same."""
    spread = np.sqrt(points.var(axis=0).sum())
    return (points - points.mean(axis=0)) / (spread if spread > 0 else 1.0)


def intervals(left: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """Intervals of doubling lengths so that each one given is inside some, and few overlap much."""
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
    boxes_lo: NDArray[np.float64],
    boxes_hi: NDArray[np.float64],
    lo: NDArray[np.float64],
    hi: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each box as the least one around the rectangles inside it; infinite where there are none."""
    tight_lo, tight_hi = np.full(boxes_lo.shape, np.inf), np.full(boxes_hi.shape, -np.inf)
    for k in range(len(boxes_lo)):
        low, high = boxes_lo[k], boxes_hi[k]
        for j in range(len(lo)):
            if holds(low, high, lo, hi, j):
                extend(tight_lo, tight_hi, k, lo[j], hi[j])
    return tight_lo, tight_hi
