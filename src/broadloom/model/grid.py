"""Sub-channeling: the content space cut into cells, each of them a channel (paper 5, IV-A)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import check_count, raise_for_first
from broadloom.errors import InputError

Density = Callable[[NDArray[np.float64]], ArrayLike]


@dataclass(frozen=True)
class Grid:
    """A box of the content space cut into equal cells; channels count them, the last axis fastest.

    A cell holds its lower border, not its upper one, except that the box's own upper border is inside.

    Attributes:
        lo: the lower border of the box on each axis.
        hi: the upper border.
        cells: how many cells each axis has.

    Example:
        >>> grid = Grid.over([0], [1], [4])
        >>> grid.touched([[0.2]], [[0.5]]).tolist()
        [[True, True, False, False]]
        >>> grid.channel_of([[0.5], [1.0], [1.5]]).tolist()
        [2, 3, -1]
    """

    lo: tuple[float, ...]
    hi: tuple[float, ...]
    cells: tuple[int, ...]

    @classmethod
    def over(cls, lo: Sequence[float], hi: Sequence[float], cells: Sequence[int]) -> Grid:
        """A grid over a box.

        Raises:
            InputError: as many borders and numbers of cells are needed as there are axes, each border is a
                finite number, the upper above the lower, and each axis has at least one cell.
        """
        if not len(lo) == len(hi) == len(cells) or not len(lo):
            raise InputError(f"borders {lo}, {hi} and cells {cells}; give one of each for each axis")
        for axis, (low, high, count) in enumerate(zip(lo, hi, cells, strict=True)):
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise InputError(f"axis {axis} goes from {low} to {high}; give finite numbers that ascend")
            check_count(count, f"the number of cells of axis {axis}", minimum=1)
        return cls(tuple(map(float, lo)), tuple(map(float, hi)), tuple(map(int, cells)))

    @classmethod
    def covering(cls, points: NDArray[np.float64], channels: int) -> Grid:
        """A grid of about so many cells, as many on each axis, over the box of all points that have no NaN.

        Examples:
            >>> Grid.covering(np.array([[0.0, 5.0], [8.0, 5.0]]), 16)
            Grid(lo=(0.0, 5.0), hi=(8.0, 6.0), cells=(4, 4))
        """
        known = points[~np.isnan(points).any(axis=1)]
        low, high = known.min(axis=0, initial=np.inf), known.max(axis=0, initial=-np.inf)
        low, high = np.where(np.isfinite(low), low, 0.0), np.where(np.isfinite(high), high, 1.0)
        high = np.where(high > low, high, low + 1.0)
        each = max(1, round(channels ** (1 / len(low))))
        return cls.over(low.tolist(), high.tolist(), [each] * len(low))

    @property
    def channel_count(self) -> int:
        """How many cells there are in all."""
        return int(np.prod(self.cells))

    def channel_of(self, points: ArrayLike) -> NDArray[np.int64]:
        """The channel of each point, a row of coordinates each; -1 outside the box, or where one is NaN."""
        rows = self._rows(points, "points")
        inside = np.all((rows >= self.lo) & (rows <= self.hi), axis=1)
        cell = np.minimum(
            np.floor(self._scaled(np.where(inside[:, None], rows, self.lo))), np.array(self.cells) - 1
        )
        channel = np.ravel_multi_index(tuple(cell.astype(np.int64).T), self.cells)
        return np.where(inside, channel, -1)

    def touched(self, lo: ArrayLike, hi: ArrayLike) -> NDArray[np.bool_]:
        """Which channels each rectangle from `lo` to `hi` touches: the fewest cells that cover it.

        A rectangle with NaN borders, or one outside the box, touches none.

        Raises:
            InputError: a lower border is above the upper one.
        """
        low, high = self._rows(lo, "lower borders"), self._rows(hi, "upper borders")
        if len(low) != len(high):
            raise InputError(f"{len(low):,} lower but {len(high):,} upper borders; give as many")
        raise_for_first(
            np.any(low > high, axis=1),
            lambda i: f"rectangle {i} goes from {low[i].tolist()} to {high[i].tolist()}",
            "give the lower borders first",
        )
        touched = np.ones((len(low), 1), bool)
        for axis, count in enumerate(self.cells):
            first = np.floor(self._scaled(low)[:, axis])
            last = np.maximum(np.ceil(self._scaled(high)[:, axis]) - 1, first)
            first = np.where(low[:, axis] == self.hi[axis], count - 1, first)
            cell = np.arange(count)
            along = (cell >= first[:, None]) & (cell <= last[:, None])
            touched = (touched[:, :, None] & along[:, None, :]).reshape(len(low), touched.shape[1] * count)
        return touched

    def rates(self, densities: Sequence[Density], samples: int = 8) -> NDArray[np.float64]:
        """What each user sends into each channel, from functions: the mean of the density over the cell.

        Args:
            densities: a function for each user, of points, a row of coordinates each, to the rate there.
            samples: at how many points along each axis of a cell the function is asked.

        Raises:
            InputError: a function gives something else than a finite number from 0 for each point.

        Example:
            >>> Grid.over([0], [1], [2]).rates([lambda at: np.maximum(2 * at[:, 0] - 1, 0)]).tolist()
            [[0.0, 0.5]]
        """
        fine = [count * check_count(samples, "samples", minimum=1) for count in self.cells]
        axes = [
            low + (high - low) * (np.arange(count) + 0.5) / count
            for low, high, count in zip(self.lo, self.hi, fine, strict=True)
        ]
        points = np.stack([one.ravel() for one in np.meshgrid(*axes, indexing="ij")], axis=1)
        rates = np.zeros((len(densities), self.channel_count))
        channel = self.channel_of(points)
        for user, density in enumerate(densities):
            values = np.asarray(density(points), np.float64)
            if values.shape != (len(points),) or not (np.isfinite(values) & (values >= 0)).all():
                raise InputError(f"the density of user {user} is not a finite number from 0 at each point")
            rates[user] = np.bincount(channel, values, minlength=self.channel_count)
        return rates / samples ** len(self.cells)

    def _scaled(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Coordinates in cells from the lower border."""
        lo, hi = np.array(self.lo), np.array(self.hi)
        return (rows - lo) / (hi - lo) * self.cells

    def _rows(self, given: ArrayLike, what: str) -> NDArray[np.float64]:
        rows = np.asarray(given, np.float64)
        if rows.ndim != 2 or rows.shape[1] != len(self.lo):
            raise InputError(f"{what} have shape {rows.shape}; expected ({what.split()[-1]}, {len(self.lo)})")
        return rows
