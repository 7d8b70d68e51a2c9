"""Subscriber assignment problem (paper 4, section II), and its canonical tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from broadloom.checks import (
    check_count,
    check_ids,
    check_number,
    check_range,
    frozen_array,
    index_array,
    integer_array,
    lock_array,
    number_array,
    ordered_list,
    plain_array,
    raise_for_first,
    restore_frozen,
    same_value,
    shown,
)
from broadloom.errors import InputError
from broadloom.model.density import Density, DensityArrays, density_from_table, density_table
from broadloom.notebook import html_summary
from broadloom.storage import as_path, committed, new_folder

if TYPE_CHECKING:
    import pyarrow as pa

# More rectangles per filter would make exact volumes of unions slow; the paper uses 3.
MAX_RECTANGLES = 16
# Capacities whose sum differs from 1 by less than this count as shares and are not divided.
ROUNDING = 1e-9
# Sums of larger measures and squared distances could overflow.
MAX_MEASURE = 1e300


# A content filter: rectangles (lo, hi); a broker forwards the events in their union.
ContentFilter = tuple[tuple[NDArray[np.float64], NDArray[np.float64]], ...]


@dataclass(frozen=True, eq=False)
class AssignmentProblem:
    """A publisher, a tree of brokers, and subscribers to be assigned to the tree's leaves.

    Brokers and subscribers are points of network space, where distance is latency; a subscription is a
    rectangle of event space. Arrays (or lists) are copied, checked and made read-only.

    Args:
        publisher: the position of the root (k,).
        broker_place: the positions of the brokers (n, k).
        broker_parent: the parent of each broker, -1 for children of the publisher. Brokers without children
            are the leaves, which serve subscribers.
        subscriber_place: the positions of the subscribers (m, k).
        lo: the lower corners of the subscriptions (m, d).
        hi: the upper corners.
        max_delay: the share by which a subscriber's latency can exceed the least possible one.
        max_latency: an absolute bound in place of `max_delay`: one number, or one per subscriber; NaN:
            `max_delay` applies.
        alpha: the maximum number of rectangles per filter.
        beta: the desired load balance factor: the largest share of subscribers over the share of capacity.
        beta_max: the largest allowed load balance factor.
        capacity: the capacity of each broker, in any unit; only leaves count. None: all are equal.
        density: the distribution of events; None: uniform.
        broker_ids: the ids of the brokers; their indices by default.
        subscriber_ids: the ids of the subscribers; their indices by default.

    Raises:
        InputError: shapes that do not match, numbers that are not finite, an unknown parent, ...

    Examples:
        >>> problem = AssignmentProblem([0], [[1], [2]], [-1, -1], [[3], [0]], [[0], [5]], [[1], [7]])
        >>> problem
        AssignmentProblem(2 subscribers, 2 brokers, 1 dimensions)
    """

    publisher: NDArray[np.float64]
    broker_place: NDArray[np.float64]
    broker_parent: NDArray[np.int32]
    subscriber_place: NDArray[np.float64]
    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    max_delay: float = 0.3
    max_latency: NDArray[np.float64] | None = None
    alpha: int = 3
    beta: float = 1.5
    beta_max: float = 1.8
    capacity: NDArray[np.float64] = None  # type: ignore[assignment]  # None only as an argument
    density: Density | None = None
    broker_ids: tuple[str, ...] | None = None
    subscriber_ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        self._set(publisher=_numbers(self.publisher, "publisher", 1))
        k = len(self.publisher)
        self._set(lo=_numbers(self.lo, "lo", 2))
        d = self.lo.shape[1] if self.lo.size else None
        self._set(broker_place=_numbers(self.broker_place, "broker_place", 2, k))
        self._set(broker_parent=_tree(self.broker_parent, len(self.broker_place)))
        self._set(subscriber_place=_numbers(self.subscriber_place, "subscriber_place", 2, k))
        self._set(hi=_numbers(self.hi, "hi", 2, d))
        n, m = len(self.broker_place), len(self.subscriber_place)
        _check_rectangles(self.lo, self.hi, m)
        self._set(beta=check_number(self.beta, "beta", minimum=1))
        self._set(
            max_delay=check_number(self.max_delay, "max_delay"),
            max_latency=_latency_bounds(self.max_latency, m),
            alpha=_rectangle_count(self.alpha),
            beta_max=check_number(self.beta_max, "beta_max", minimum=self.beta),
            capacity=_shares(self.capacity, self.is_leaf),
            broker_ids=_checked_ids(self.broker_ids, n, "broker"),
            subscriber_ids=_checked_ids(self.subscriber_ids, m, "subscriber"),
        )
        _check_density(self.density, self.dimensions if m else None)
        self._check_sizes()

    def _set(self, **values: Any) -> None:
        """Replace arguments by their checked values."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_sizes(self) -> None:
        """Raise if distances or volumes would overflow."""
        positions = np.vstack((self.publisher[None], self.broker_place, self.subscriber_place))
        with np.errstate(over="ignore"):
            if not np.sum(np.ptp(positions, axis=0) ** 2) <= MAX_MEASURE:
                raise InputError(
                    "positions are so far apart that distances overflow; give smaller coordinates"
                )
            if self.density is None and self.subscriber_count:
                sides = np.maximum(self.hi.max(axis=0) - self.lo.min(axis=0), 1.0)
                if not np.prod(sides) * self.broker_count * self.alpha <= MAX_MEASURE:
                    raise InputError(
                        "rectangles are so large that volumes overflow; give smaller coordinates"
                    )

    @property
    def subscriber_count(self) -> int:
        """The number of subscribers."""
        return len(self.lo)

    @property
    def broker_count(self) -> int:
        """The number of brokers, including inner ones."""
        return len(self.broker_parent)

    @property
    def dimensions(self) -> int:
        """The number of axes of the event space."""
        return self.lo.shape[1]

    @cached_property
    def is_leaf(self) -> NDArray[np.bool_]:
        """Whether each broker is a leaf: a broker without children, which serves subscribers."""
        above = self.broker_parent[self.broker_parent >= 0]
        return np.bincount(above, minlength=self.broker_count) == 0

    @cached_property
    def leaves(self) -> NDArray[np.int32]:
        """The leaf brokers, ascending."""
        return np.flatnonzero(self.is_leaf).astype(np.int32)

    @property
    def is_one_level(self) -> bool:
        """Whether all brokers are children of the publisher."""
        return bool(np.all(self.broker_parent < 0))

    @cached_property
    def top_down(self) -> NDArray[np.int32]:
        """All brokers, each after its parent."""
        return np.argsort(_depths(self.broker_parent), kind="stable").astype(np.int32)

    @cached_property
    def uplink(self) -> NDArray[np.float64]:
        """The latency from the publisher down the tree to each broker."""
        result = np.zeros(self.broker_count)
        for broker in self.top_down:
            parent = self.broker_parent[broker]
            above = self.publisher if parent < 0 else self.broker_place[parent]
            hop = float(np.sqrt(np.sum((self.broker_place[broker] - above) ** 2)))
            result[broker] = hop + (0.0 if parent < 0 else result[parent])
        lock_array(result)
        return result

    @cached_property
    def density_arrays(self) -> DensityArrays | None:
        """The arrays of the density, for kernels; None if it is uniform."""
        return None if self.density is None else self.density.arrays()

    def replace(self, **changes: Any) -> AssignmentProblem:
        """The same problem with some values changed, checked again.

        Examples:
            >>> problem = AssignmentProblem([0], [[1]], [-1], [[2]], [[0]], [[1]])
            >>> problem.replace(alpha=1).alpha
            1
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        unknown = [name for name in changes if name not in values]
        if unknown:
            raise InputError(f"a problem has no {shown(unknown[0])}; it has {', '.join(values)}")
        return AssignmentProblem(**values | changes)

    def subset(self, subscribers: ArrayLike) -> AssignmentProblem:
        """The problem of some of the subscribers, in this order, with the same brokers.

        Args:
            subscribers: indices of subscribers; or a mask: one truth value per subscriber. An index can occur
                several times if subscribers have no ids.

        Raises:
            InputError: a subscriber does not exist, or a mask has another length.
        """
        chosen = index_array(subscribers, self.subscriber_count, "subscriber")
        bounds = None if self.max_latency is None else self.max_latency[chosen]
        ids = None if self.subscriber_ids is None else [self.subscriber_ids[j] for j in chosen]
        return self.replace(
            subscriber_place=self.subscriber_place[chosen],
            lo=self.lo[chosen],
            hi=self.hi[chosen],
            max_latency=bounds,
            subscriber_ids=ids,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AssignmentProblem):
            return NotImplemented
        names = [field.name for field in fields(self) if not field.name.endswith("_ids")]
        if not self.subscriber_count and not other.subscriber_count:
            names = [name for name in names if name not in ("lo", "hi")]  # only their shapes could differ
        same = all(same_value(getattr(self, name), getattr(other, name)) for name in names)
        return same and self._all_ids() == other._all_ids()

    def __hash__(self) -> int:
        return hash((self.subscriber_count, self.broker_count, self.alpha, self.beta, self.beta_max))

    def _all_ids(self) -> list[tuple[str, ...]]:
        """The ids of brokers and subscribers; their indices if they have none."""
        pairs = ((self.broker_ids, self.broker_count), (self.subscriber_ids, self.subscriber_count))
        return [tuple(map(str, range(count))) if ids is None else ids for ids, count in pairs]

    def _repr_html_(self) -> str:
        counts: dict[str, object] = {
            "subscribers": self.subscriber_count,
            "brokers": self.broker_count,
            "leaves": len(self.leaves),
            "dimensions": self.dimensions,
        }
        limits = {"rectangles per filter": self.alpha, "beta": self.beta, "beta_max": self.beta_max}
        return html_summary("AssignmentProblem", counts | limits)

    def __setstate__(self, state: dict[str, Any]) -> None:
        restore_frozen(self, state)

    def __repr__(self) -> str:
        return (
            f"AssignmentProblem({self.subscriber_count:,} subscribers, {self.broker_count:,} brokers, "
            f"{self.dimensions} dimensions)"
        )


def _numbers(values: ArrayLike, name: str, axes: int, width: int | None = None) -> NDArray[np.float64]:
    """A read-only copy as doubles; raises if the shape is wrong or a number is not finite."""
    array = number_array(values, name)
    if axes == 2 and array.shape == (0,):
        array = array.reshape(0, width or 0)
    elif axes == 2 and array.ndim == 2 and len(array) == 0 and width is not None:
        array = array.reshape(0, width)
    if array.ndim != axes or (width is not None and array.shape[-1] != width):
        expected = f"({'rows, ' if axes == 2 else ''}{'k' if width is None else width})"
        raise InputError(f"{name} has shape {array.shape}; expected {expected}")
    raise_for_first(
        np.any(~np.isfinite(np.atleast_2d(array.T)), axis=0),
        lambda row: f"{name} {row} is {array[row].tolist()}",
        "give finite numbers",
    )
    lock_array(array)
    return array


def _tree(parents: ArrayLike, n: int) -> NDArray[np.int32]:
    """The parents as int32, if each is a broker or -1 and there is no cycle."""
    array = plain_array(parents, "parents")
    if array.shape != (n,):
        raise InputError(f"{n:,} brokers but parents of shape {array.shape}; give one parent per broker")
    if n == 0:
        raise InputError("there are no brokers; give at least one")
    if not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"parents are {array.dtype}; give broker indices, or -1 below the publisher")
    array = integer_array(array, "parents")
    raise_for_first(
        (array < -1) | (array >= n),
        lambda b: f"broker {b} has parent {array[b]}",
        f"parents are brokers 0 to {n - 1}, or -1 below the publisher",
    )
    tree = array.astype(np.int32)
    raise_for_first(
        _depths(tree) < 0,
        lambda b: f"broker {b} is its own ancestor: the parents form a cycle",
        "every broker descends from the publisher",
    )
    lock_array(tree)
    return tree


def _depths(parent: NDArray[np.int32]) -> NDArray[np.int64]:
    """The number of ancestors of each broker; -1 for brokers on or below a cycle."""
    above = parent.astype(np.int64)
    depth = np.zeros(len(parent), np.int64)
    for _ in range(len(parent)):
        unfinished = above >= 0
        if not unfinished.any():
            return depth
        depth[unfinished] += 1
        above[unfinished] = parent[above[unfinished]]
    return np.where(above >= 0, -1, depth)


def _check_rectangles(lo: NDArray[np.float64], hi: NDArray[np.float64], m: int) -> None:
    if len(lo) != m or len(hi) != m:
        raise InputError(
            f"{m:,} subscribers but {len(lo):,} lower and {len(hi):,} upper corners; "
            "give one of each per subscriber"
        )
    if lo.shape[1] == 0 and m:
        raise InputError("rectangles have no dimensions; give at least one")
    raise_for_first(
        np.any(lo > hi, axis=1),
        lambda j: f"subscriber {j} wants {lo[j].tolist()} to {hi[j].tolist()}",
        "lo is at most hi on every axis",
    )


def _check_density(density: object, dimensions: int | None) -> None:
    if density is None:
        return
    if not isinstance(density, Density):
        raise InputError(f"density is a {type(density).__name__}; give a broadloom.Density, or None")
    if dimensions is not None and density.dimensions != dimensions:
        raise InputError(
            f"events have {dimensions} dimensions, their density {density.dimensions}; give the same number"
        )


def _rectangle_count(alpha: float) -> int:
    """The number of rectangles as an int; tables hold it as a double."""
    count = check_count(
        int(alpha) if isinstance(alpha, float) and alpha.is_integer() else alpha, "alpha", minimum=1
    )
    if count > MAX_RECTANGLES:
        raise InputError(f"alpha is {alpha}; give a whole number from 1 to {MAX_RECTANGLES}")
    return count


def _latency_bounds(values: ArrayLike | None, m: int) -> NDArray[np.float64] | None:
    """One bound per subscriber; NaN where `max_delay` applies."""
    if values is None:
        return None
    array = number_array(values, "max_latency")
    if array.ndim == 0:
        array = np.full(m, array)
    if array.shape != (m,):
        raise InputError(
            f"{m:,} subscribers but max_latency has shape {array.shape}; give one per subscriber"
        )
    raise_for_first(
        array < 0, lambda j: f"max_latency of subscriber {j} is {array[j]}", "give numbers from 0"
    )
    lock_array(array)
    return array


def _shares(capacity: ArrayLike | None, is_leaf: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The share of the whole capacity of each leaf, 0 for inner brokers."""
    array = np.ones(len(is_leaf)) if capacity is None else number_array(capacity, "capacity")
    if array.shape != is_leaf.shape:
        raise InputError(
            f"{len(is_leaf):,} brokers but capacity has shape {array.shape}; give one per broker"
        )
    array[~is_leaf] = 0.0
    raise_for_first(
        ~np.isfinite(array) | (is_leaf & (array <= 0)),
        lambda b: f"the capacity of broker {b} is {array[b]}",
        "give finite numbers above 0",
    )
    with np.errstate(over="ignore"):
        total = array.sum()
    if not np.isfinite(total):
        raise InputError("the sum of the capacities overflows; give smaller numbers")
    if abs(total - 1) > ROUNDING:  # a division would change the last bits of shares
        array /= total
    lock_array(array)
    return array


def _checked_ids(ids: Sequence[object] | None, count: int, kind: str) -> tuple[str, ...] | None:
    if ids is None:
        return None
    listed = ordered_list(ids, f"{kind} ids")
    if len(listed) != count:
        raise InputError(f"{count:,} {kind}s but {len(listed):,} {kind} ids; give one id per {kind}")
    return check_ids(listed, kind)


def check_assignment(problem: AssignmentProblem, broker_of: ArrayLike) -> NDArray[np.int32]:
    """An assignment as a read-only array of int32, if it has one broker of the problem per subscriber."""
    if type(broker_of) is np.ndarray and broker_of.dtype == np.int32:
        array = frozen_array(broker_of)
    else:
        array = frozen_array(integer_array(broker_of, "brokers of subscribers"))
    if array.shape != (problem.subscriber_count,):
        raise InputError(
            f"{problem.subscriber_count:,} subscribers but an assignment of shape {array.shape}; "
            "give one broker per subscriber"
        )
    check_range(array, problem.broker_count, "broker")
    return frozen_array(array.astype(np.int32, copy=False))


def check_filters(problem: AssignmentProblem, filters: object) -> tuple[ContentFilter, ...]:
    """Filters with read-only corners, if there is one per broker, and each is a list of rectangles."""
    listed = ordered_list(filters, "filters")
    if len(listed) != problem.broker_count:
        raise InputError(
            f"{problem.broker_count:,} brokers but {len(listed):,} filters; give one filter per broker"
        )
    return tuple(_rectangles(problem, broker, boxes) for broker, boxes in enumerate(listed))


def _rectangles(problem: AssignmentProblem, broker: int, boxes: object) -> ContentFilter:
    """The rectangles of a broker's filter."""
    rectangles = []
    for box in list(boxes) if isinstance(boxes, np.ndarray) else ordered_list(boxes, f"filter {broker}"):
        corners = list(box) if isinstance(box, (tuple, list, np.ndarray)) else []
        sides = [_corner(corner, broker) for corner in corners]
        if len(sides) != 2 or any(side.shape != (problem.dimensions,) for side in sides):
            raise InputError(
                f"a rectangle of broker {broker} is {shown(box)}; give (lo, hi), each of "
                f"{problem.dimensions} numbers"
            )
        lo, hi = sides
        if not ((lo <= hi) & np.isfinite(lo) & np.isfinite(hi)).all():
            raise InputError(
                f"a rectangle of broker {broker} goes from {lo.tolist()} to {hi.tolist()}; "
                "give finite numbers, lo at most hi"
            )
        rectangles.append((lo, hi))
    return tuple(rectangles)


def _corner(corner: object, broker: int) -> NDArray[np.float64]:
    if type(corner) is np.ndarray and corner.dtype == np.float64:
        return frozen_array(corner)
    return frozen_array(number_array(corner, f"corners of broker {broker}"))


ASSIGNMENT_LIMITS = ("max_delay", "alpha", "beta", "beta_max")


def read_assignment_problem(
    folder: str | Path, subscribers: pa.Table | None = None, **limits: float | None
) -> AssignmentProblem:
    """The problem in a folder of tables.

    Args:
        folder: holds `publisher` (one row: its position, and optionally limits), `brokers`, `subscribers`,
            and `density` unless events are uniform.
        subscribers: some of the subscribers, instead of the whole table.
        **limits: max_delay, alpha, beta, beta_max, instead of those in the table.

    Raises:
        InputError: a table or column is missing, or something in it is wrong.
    """
    from broadloom.storage.tables import list_matrix, read_table, require_table

    path = committed(folder)
    publisher = require_table(path, "publisher")
    brokers = require_table(path, "brokers")
    if subscribers is None:
        subscribers = require_table(path, "subscribers")
    if publisher.num_rows != 1:
        raise InputError(f"{path}: table publisher has {publisher.num_rows} rows; expected one")
    changed = {name: value for name, value in limits.items() if value is not None}
    stored = {
        name: publisher[name][0].as_py() for name in ASSIGNMENT_LIMITS if name in publisher.column_names
    }
    chosen: dict[str, Any] = {name: value for name, value in (stored | changed).items() if value is not None}
    bounds = subscribers["max_latency"].to_numpy() if "max_latency" in subscribers.column_names else None
    shares = brokers["capacity"].to_numpy() if "capacity" in brokers.column_names else None
    return AssignmentProblem(
        list_matrix(publisher, "publisher", "place")[0],
        list_matrix(brokers, "brokers", "place"),
        _parents(brokers),
        list_matrix(subscribers, "subscribers", "place"),
        list_matrix(subscribers, "subscribers", "lo"),
        list_matrix(subscribers, "subscribers", "hi"),
        max_latency=bounds,
        capacity=shares,  # type: ignore[arg-type]
        density=density_from_table(read_table(path, "density")),
        broker_ids=tuple(brokers["broker"].to_pylist()),
        subscriber_ids=tuple(subscribers["subscriber"].to_pylist()),
        **chosen,
    )


def write_assignment_problem(folder: str | Path, problem: AssignmentProblem, overwrite: bool = False) -> None:
    """Write a problem as one atomic folder of tables."""
    from broadloom.storage.tables import write_table

    with new_folder(as_path(folder), overwrite) as scratch:
        for name, table in assignment_tables(problem).items():
            write_table(scratch, name, table)


def assignment_tables(problem: AssignmentProblem) -> dict[str, pa.Table]:
    """The tables of a problem."""
    import pyarrow as pa

    from broadloom.storage.tables import list_column

    brokers = pa.array(problem.broker_ids or map(str, range(problem.broker_count)), pa.string())
    subscriber_ids = pa.array(
        problem.subscriber_ids or map(str, range(problem.subscriber_count)), pa.string()
    )
    parent = pa.array(problem.broker_parent, mask=problem.broker_parent < 0)
    subscribers = {
        "subscriber": subscriber_ids,
        "place": list_column(problem.subscriber_place),
        "lo": list_column(problem.lo),
        "hi": list_column(problem.hi),
    }
    if problem.max_latency is not None:
        subscribers["max_latency"] = pa.array(problem.max_latency, mask=np.isnan(problem.max_latency))
    density = {} if problem.density is None else {"density": density_table(problem.density)}
    return {
        "publisher": pa.table(
            {"place": list_column([problem.publisher])}
            | {name: [float(getattr(problem, name))] for name in ASSIGNMENT_LIMITS}
        ),
        "brokers": pa.table(
            {
                "broker": brokers,
                "parent": brokers.take(parent),
                "place": list_column(problem.broker_place),
                "capacity": problem.capacity,
            }
        ),
        "subscribers": pa.table(subscribers),
        **density,
    }


def _parents(brokers: pa.Table) -> NDArray[np.int32]:
    """The index of each broker's parent, -1 for children of the publisher."""
    import pyarrow.compute as pc

    if "parent" not in brokers.column_names:
        return np.full(brokers.num_rows, -1, np.int32)
    parent = brokers["parent"].combine_chunks()
    found = np.asarray(pc.fill_null(pc.index_in(parent, brokers["broker"].combine_chunks()), -1))
    missing = np.asarray(pc.fill_null(pc.equal(parent, ""), True))
    raise_for_first(
        (found < 0) & ~missing,
        lambda row: f"table brokers row {row}: parent {parent[row].as_py()!r} is unknown",
        "name a broker, or leave it empty for a child of the publisher",
    )
    return np.where(missing, -1, found).astype(np.int32)
