"""Event density: the measure of filters (paper 4, section II), and its canonical table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import (
    MAX_CELLS,
    check_count,
    lock_array,
    number_array,
    ordered_list,
    raise_for_first,
    repeated,
    restore_frozen,
    same_value,
)
from broadloom.errors import InputError
from broadloom.kernels import kernel

if TYPE_CHECKING:
    import pyarrow as pa


class DensityArrays(NamedTuple):
    """The arrays of a histogram, for kernels; these pass them (or None, if uniform) to `measure_of`.

    `edges` has the grid lines of all axes, and `edge_start` the start of each axis in it. `cumulative` is the
    mass below each corner of the grid, flattened.
    """

    edges: NDArray[np.float64]
    edge_start: NDArray[np.int64]
    cumulative: NDArray[np.float64]


@kernel
def measure_of(density: DensityArrays | None, lo: NDArray[np.float64], hi: NDArray[np.float64]) -> float:
    """The measure of a rectangle: its volume if the density is uniform, otherwise the mass of its events."""
    if density is None:
        volume = 1.0
        for axis in range(len(lo)):
            volume *= hi[axis] - lo[axis]
        return volume
    total = 0.0
    for corner in range(1 << len(lo)):
        total += _mass_below(density, lo, hi, corner)
    return max(total, 0.0)


@kernel
def _mass_below(
    density: DensityArrays, lo: NDArray[np.float64], hi: NDArray[np.float64], corner: int
) -> float:
    """The mass below a corner of a rectangle (bit set: upper side), signed for inclusion and exclusion.

    Inside a cell the mass grows linearly with each coordinate, so it is interpolated between the corners of
    the cell; the bits of `near` choose the corner.
    """
    d = len(lo)
    total = 0.0
    sign = 1.0
    for axis in range(d):
        if not corner >> axis & 1:
            sign = -sign
    for near in range(1 << d):
        share = sign
        index = 0
        for axis in range(d):
            first, last = density.edge_start[axis], density.edge_start[axis + 1]
            at = hi[axis] if corner >> axis & 1 else lo[axis]
            at = min(max(at, density.edges[first]), density.edges[last - 1])
            cell = np.searchsorted(density.edges[first:last], at, side="right") - 1
            cell = min(cell, last - first - 2)
            left, right = density.edges[first + cell], density.edges[first + cell + 1]
            part = (at - left) / (right - left)
            upper = near >> axis & 1
            share *= part if upper else 1.0 - part
            index = index * (last - first) + cell + upper
        if share != 0.0:
            total += share * density.cumulative[index]
    return total


@dataclass(frozen=True, eq=False)
class Density:
    """Histogram of events: constant in each cell of a grid, zero outside of it.

    Attributes:
        edges: the grid's lines on each axis, ascending.
        mass: the mass of events in each cell; the array has one axis per axis of event space.

    Examples:
        >>> density = Density([[0, 1, 2]], [3.0, 1.0])
        >>> density.measure([0.5], [2.0])
        2.5
    """

    edges: tuple[NDArray[np.float64], ...]
    mass: NDArray[np.float64]

    def __init__(self, edges: Sequence[ArrayLike], mass: ArrayLike) -> None:
        axes = list(edges) if isinstance(edges, np.ndarray) and edges.ndim else edges
        lines = tuple(
            number_array(line, f"edges of axis {axis} of the density")
            for axis, line in enumerate(ordered_list(axes, "the density's edges"))
        )
        weights = number_array(mass, "the density's mass")
        for axis, line in enumerate(lines):
            if (
                line.ndim != 1
                or len(line) < 2
                or not np.isfinite(line).all()
                or (line[1:] <= line[:-1]).any()
            ):
                raise InputError(f"edges of axis {axis} of the density are not two or more ascending numbers")
        cells = tuple(len(line) - 1 for line in lines)
        if not cells or weights.shape != cells:
            raise InputError(f"the density's mass has shape {weights.shape}, its edges make {cells} cells")
        if not np.isfinite(weights).all() or (weights < 0).any():
            raise InputError("the density's mass has a negative or missing entry; give numbers from 0")
        with np.errstate(over="ignore"):
            if not np.isfinite([weights.sum(), *(np.ptp(line) for line in lines)]).all():
                raise InputError("the density's mass or grid overflows; give smaller numbers")
        for array in (*lines, weights):
            lock_array(array)
        object.__setattr__(self, "edges", lines)
        object.__setattr__(self, "mass", weights)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Density):
            return NotImplemented
        return same_value((self.edges, self.mass), (other.edges, other.mass))

    def __hash__(self) -> int:
        return hash(self.mass.shape)

    @classmethod
    def from_events(cls, points: ArrayLike, bins: int = 32) -> Density:
        """The histogram of a sample of events, with `bins` cells per axis and total mass 1.

        Examples:
            >>> Density.from_events([[0.0], [1.0], [1.0], [4.0]], bins=2).mass.tolist()
            [0.75, 0.25]
        """
        sample = number_array(points, "events")
        if sample.ndim != 2 or not sample.size or not np.isfinite(sample).all():
            raise InputError(f"events have shape {sample.shape}; give rows of finite coordinates")
        bins = check_count(bins, "bins", minimum=1)
        if bins ** sample.shape[1] > MAX_CELLS:
            raise InputError(f"{bins} bins on {sample.shape[1]} axes are too many for memory; give fewer")
        with np.errstate(over="ignore", invalid="ignore"):
            span = np.ptp(sample, axis=0)
        if not np.isfinite(span).all():
            raise InputError("events are so far apart that distances overflow; give smaller coordinates")
        counts, edges = np.histogramdd(sample, bins=bins)
        return cls(edges, counts / len(sample))

    @property
    def dimensions(self) -> int:
        """The number of axes of the event space."""
        return len(self.edges)

    def arrays(self) -> DensityArrays:
        """The arrays of the density, for kernels."""
        cumulative = np.pad(self.mass, [(1, 0)] * self.dimensions)
        for axis in range(self.dimensions):
            cumulative = cumulative.cumsum(axis=axis)
        start = np.concatenate(([0], np.cumsum([len(line) for line in self.edges])))
        return DensityArrays(np.concatenate(self.edges), start.astype(np.int64), cumulative.ravel())

    def measure(self, lo: ArrayLike, hi: ArrayLike) -> float:
        """The mass of the events inside a rectangle.

        Raises:
            InputError: a corner has another number of coordinates, a NaN, or is above the other on an axis.
        """
        low, high = (number_array(corner, "corners") for corner in (lo, hi))
        if low.shape != (self.dimensions,) or high.shape != (self.dimensions,) or not (low <= high).all():
            raise InputError(
                f"a rectangle goes from {low.tolist()} to {high.tolist()}; give two corners of "
                f"{self.dimensions} numbers, the lower one first"
            )
        return float(measure_of(self.arrays(), low, high))

    def __setstate__(self, state: dict[str, object]) -> None:
        restore_frozen(self, state)

    def __repr__(self) -> str:
        return f"Density({' x '.join(map(str, self.mass.shape))} cells)"


def density_table(density: Density) -> pa.Table:
    """The canonical table of a density, with one row per cell."""
    import pyarrow as pa

    from broadloom.storage.tables import list_column

    corners = [
        np.stack([side.ravel() for side in np.meshgrid(*sides, indexing="ij")], axis=1)
        for sides in ([line[:-1] for line in density.edges], [line[1:] for line in density.edges])
    ]
    lo, hi = map(list_column, corners)
    return pa.table({"lo": lo, "hi": hi, "mass": density.mass.ravel()})


def density_from_table(table: pa.Table | None) -> Density | None:
    """The density in a table of cells; cells without a row have no events. None for an empty table."""
    from broadloom.storage.tables import list_matrix

    if table is None or table.num_rows == 0:
        return None
    lo, hi = (list_matrix(table, "density", side) for side in ("lo", "hi"))
    if lo.shape != hi.shape:
        raise InputError("table density: lo and hi differ in length; give one number per axis")
    edges = [np.unique(np.concatenate((low, high))) for low, high in zip(lo.T, hi.T, strict=True)]
    cell = [np.searchsorted(line, low) for line, low in zip(edges, lo.T, strict=True)]
    is_cell = [
        line[np.minimum(at + 1, len(line) - 1)] == high
        for line, at, high in zip(edges, cell, hi.T, strict=True)
    ]
    raise_for_first(
        ~np.all(is_cell, axis=0) | np.any(lo >= hi, axis=1),
        lambda row: (
            f"table density row {row}: {lo[row].tolist()} to {hi[row].tolist()} is not one cell of the grid"
        ),
        "give cells of one grid, whose lines cross the whole space",
    )
    shape = tuple(len(line) - 1 for line in edges)
    flat = np.ravel_multi_index(cell, shape)
    raise_for_first(
        repeated(flat),
        lambda row: f"table density row {row}: {lo[row].tolist()} to {hi[row].tolist()} appears twice",
        "give each cell once",
    )
    mass = np.zeros(shape)
    mass.ravel()[flat] = table["mass"].to_numpy()
    return Density(edges, mass)
