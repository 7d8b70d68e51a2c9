"""Preliminary filters from a sample (paper 4, Algorithm 1): iterative reweighted sampling around the LP."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from broadloom.assignment.subscribers._boxes import is_inside
from broadloom.assignment.subscribers.candidates import candidate_rectangles
from broadloom.assignment.subscribers.flow import max_flow
from broadloom.assignment.subscribers.lp import Relaxed, Sample, relax
from broadloom.assignment.subscribers.reach import Reach, take
from broadloom.checks import check_count, check_flag, check_number
from broadloom.kernels import kernel
from broadloom.model import DensityArrays
from broadloom.progress import stage

# Draws of a load sample before its limits are raised, and roundings before the best so far is taken.
MOST_DRAWS, MOST_ROUNDINGS = 20, 20
# The paper's sizes: `g` at the start, and subscribers a broker that are sampled for loads.
LITERAL_SIZE, LITERAL_LOADS = 4, 10
# Linear programs until the best filters so far are taken: one is enough for ours, which mends the rest.
MOST_PROGRAMS, MOST_LITERAL = 1, 100
# Parts of a subscriber that may go to different brokers, as in a linear program.
PARTS = 1000


@dataclass(frozen=True)
class SlpOptions:
    """Options of slp1 and slp.

    Attributes:
        literal: run as printed: `g` from 4, samples of `10 |B|` for loads, linear programs until the filters
            cover everybody, and a max-flow that is blind to bandwidth. Its result is seldom feasible.
        passes: the most linear programs before the best filters so far are taken; None: 1, and 100 if
            literal. The paper has no limit.
        eps: how much filters are expanded before a sample counts as a certificate; the paper does not say.
        size: the paper's `g` at the start, from which samples of `10 g ln g` are drawn.
        load_sample: so many subscribers a broker are sampled for loads.
        tolerance: the relative accuracy of the linear program; its value is no better than that.
        iterations: the most iterations of its solver.
    """

    literal: bool = False
    passes: int | None = None
    eps: float = 0.2
    size: int = 64
    load_sample: int = 20
    tolerance: float = 1e-3
    iterations: int = 20_000

    def __post_init__(self) -> None:
        check_flag(self.literal, "option literal")
        for name, least in (("passes", 1), ("size", 2), ("load_sample", 1), ("iterations", 1)):
            if getattr(self, name) is not None or name != "passes":
                check_count(getattr(self, name), f"option {name}", least)
        for name, floor in (("eps", 0.0), ("tolerance", 1e-12)):
            check_number(getattr(self, name), f"option {name}", floor)

    @property
    def most_programs(self) -> int:
        """How many linear programs there may be."""
        return self.passes or (MOST_LITERAL if self.literal else MOST_PROGRAMS)


class View(NamedTuple):
    """One level of a problem: subscribers, the brokers among whom they are divided, and the room of each."""

    place: NDArray[np.float64]
    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    reach: Reach
    limit: NDArray[np.float64]
    density: DensityArrays | None
    alpha: int


class Phi(NamedTuple):
    """Preliminary filters: the boxes of broker `b` are those from `start[b]` to `start[b + 1]`."""

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    start: NDArray[np.int64]

    def expanded(self, eps: float) -> "Phi":
        """Every box a little larger, around its middle."""
        margin = eps * (self.hi - self.lo) / 2
        return Phi(self.lo - margin, self.hi + margin, self.start)


class Guess(NamedTuple):
    """What sampling has found: the fractional solution, filters rounded from it, how many are outside them.

    `sparing` are filters rounded with an exponent of 1, so that few boxes are kept. `passes` is how many
    linear programs there were.
    """

    relaxed: Relaxed
    phi: Phi
    sparing: Phi
    sampled: int
    outside: int
    passes: int


def filter_assign(view: View, options: SlpOptions, rng: np.random.Generator) -> Guess:
    """Sample, relax and round until all subscribers are inside the expanded filters, or programs run out.

    The filters that leave the fewest outside are kept. The sizes of samples double after as many valid
    iterations as a certificate of that size could need.
    """
    m, g, done = len(view.lo), LITERAL_SIZE if options.literal else options.size, 0
    best: Guess | None = None
    with stage("linear programs", options.most_programs) as report:
        while best is None or g <= m:
            weight, valid = np.ones(m), 0
            while valid < max(1.0, 4 * g * np.log(max(m / g, 1.0))):
                guess, phi = _iteration(view, weight, g, options, rng)
                done += 1
                report(done)
                if best is None or guess.outside < best.outside:
                    best = guess
                if guess.outside == 0 or done == options.most_programs:
                    return best._replace(passes=done)
                valid += reweigh(weight, ~covered(phi, view.lo, view.hi, view.reach), options.eps)
            g *= 2
    return best._replace(passes=done)


def _iteration(
    view: View, weight: NDArray[np.float64], g: int, options: SlpOptions, rng: np.random.Generator
) -> tuple[Guess, Phi]:
    """One sample and its linear program: expanded filters, and those as they were rounded."""
    sample, who = _draw(view, weight, g, options, rng)
    boxes = candidate_rectangles(view.place[who], sample.lo, sample.hi, 5 * len(view.limit), rng)
    room = view.limit * sample.counts.sum() / len(view.lo)
    relaxed = relax(view.density, sample, boxes, room, view.alpha, options.tolerance, options.iterations)
    phi, sparing = (
        rounded(relaxed, sample, exponent, len(view.limit), rng) for exponent in (2 * np.log(len(who)), 1.0)
    )
    outside = ~covered(phi.expanded(options.eps), view.lo, view.hi, view.reach)
    return Guess(relaxed, phi.expanded(options.eps), sparing, len(who), int(outside.sum()), 1), phi


def reweigh(weight: NDArray[np.float64], missed: NDArray[np.bool_], eps: float) -> bool:
    """Double the weight of those who were missed if it is a small share: then an iteration is valid.

    Examples:
        >>> weight = np.ones(4)
        >>> reweigh(weight, np.array([True, False, False, False]), eps=0.3), weight.tolist()
        (True, [2.0, 1.0, 1.0, 1.0])
        >>> reweigh(weight, np.array([True, False, False, False]), eps=0.3), weight.tolist()
        (False, [2.0, 1.0, 1.0, 1.0])
    """
    valid = bool(weight[missed].sum() <= eps * weight.sum())
    if valid:
        weight[missed] *= 2
    return valid


def _draw(
    view: View, weight: NDArray[np.float64], g: int, options: SlpOptions, rng: np.random.Generator
) -> tuple[Sample, NDArray[np.int64]]:
    """A sample by weight for coverage, and a uniform one for loads that can be met by itself."""
    m, n = len(view.lo), len(view.limit)
    cover = rng.choice(m, min(m, int(10 * g * np.log(g))), replace=False, p=weight / weight.sum())
    loads = (_literal_loads if options.literal else _loads)(view, options, rng)
    who = np.unique(np.concatenate((cover, loads)))
    sample = Sample(view.lo[who], view.hi[who], may_serve(view.reach, who, n), np.isin(who, loads))
    return sample, who


def _loads(view: View, options: SlpOptions, rng: np.random.Generator) -> NDArray[np.int64]:
    """A sample that fits within its share of the limits, which are raised if hardly any does."""
    m, slack = len(view.lo), 1.0
    count = min(m, options.load_sample * len(view.limit))
    for draw in range(1, 10 * MOST_DRAWS):
        loads = rng.choice(m, count, replace=False)
        room = np.floor(slack * view.limit * count / m + 1e-9).astype(np.int64)
        if max_flow(take(view.reach, loads), room)[1] == 0:
            break
        if draw % MOST_DRAWS == 0:
            slack *= 1.1
    return loads


def _literal_loads(view: View, options: SlpOptions, rng: np.random.Generator) -> NDArray[np.int64]:  # noqa: ARG001
    """A sample as printed: drawn anew, up to ln |S| times, while its linear program has no solution.

    It has one if and only if the sample, cut into parts, fits within its share of the limits.
    """
    m = len(view.lo)
    count = min(m, LITERAL_LOADS * len(view.limit))
    room = np.floor(PARTS * view.limit * count / m).astype(np.int64)
    for _ in range(int(np.log(m)) + 1):
        loads = rng.choice(m, count, replace=False)
        reach = take(view.reach, loads)
        if max_flow(reach._replace(size=PARTS * reach.size), room)[1] == 0:
            break
    return loads


def may_serve(reach: Reach, who: NDArray[np.int64], n: int) -> NDArray[np.bool_]:
    """Which brokers may serve each of some subscribers, as a matrix."""
    by_group = np.zeros((len(reach.size), n), bool)
    by_group[np.repeat(np.arange(len(reach.size)), np.diff(reach.start)), reach.brokers] = True
    return by_group[reach.group[who]]


def rounded(relaxed: Relaxed, sample: Sample, exponent: float, n: int, rng: np.random.Generator) -> Phi:
    """Keep each box with the chance `1 - (1 - share) ** exponent`, again until all of the sample are inside.

    After too many times, the largest share around each one left out is kept as well.
    """
    chance = 1 - (1 - relaxed.share) ** exponent
    group = Reach(np.arange(len(sample.lo)), *_rows(sample.may), np.ones(len(sample.lo), np.int64))
    for _ in range(MOST_ROUNDINGS):
        keep = rng.random(len(chance)) < chance
        phi = _phi(relaxed, keep, n)
        if covered(phi, sample.lo, sample.hi, group).all():
            return phi
    for j in np.flatnonzero(~covered(phi, sample.lo, sample.hi, group)):
        around = sample.may[j, relaxed.broker] & np.all(
            (relaxed.lo <= sample.lo[j]) & (sample.hi[j] <= relaxed.hi), axis=1
        )
        keep[np.flatnonzero(around)[relaxed.share[around].argmax()]] = True
    return _phi(relaxed, keep, n)


def _rows(may: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A matrix of who may serve as compressed rows."""
    start = np.concatenate(([0], np.cumsum(may.sum(axis=1))))
    return start.astype(np.int64), np.nonzero(may)[1].astype(np.int64)


def _phi(relaxed: Relaxed, keep: NDArray[np.bool_], n: int) -> Phi:
    """The boxes that are kept, broker after broker (as they are in the program)."""
    count = np.bincount(relaxed.broker[keep], minlength=n)
    return Phi(relaxed.lo[keep], relaxed.hi[keep], np.concatenate(([0], np.cumsum(count))))


@kernel
def covered(phi: Phi, lo: NDArray[np.float64], hi: NDArray[np.float64], reach: Reach) -> NDArray[np.bool_]:
    """Which subscribers are inside a box of a broker that may serve them; each one on its own."""
    result = np.zeros(len(lo), np.bool_)
    for j in range(len(lo)):
        g, low, high = reach.group[j], lo[j], hi[j]
        for p in range(reach.start[g], reach.start[g + 1]):
            b = reach.brokers[p]
            for k in range(phi.start[b], phi.start[b + 1]):
                if is_inside(low, high, phi.lo, phi.hi, k):
                    result[j] = True
                    break
            if result[j]:
                break
    return result
