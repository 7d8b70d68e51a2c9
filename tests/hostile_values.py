"""Hostile values by kind of argument: those to refuse, and those that mean the same as a clean value."""

from __future__ import annotations

import datetime
import decimal
import fractions
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

SURROGATE = "\ud800"
UUID = uuid.UUID("2ec387e5-ffc3-46d9-bb0f-cd33f3b1d134")
DAY = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
HUGE = (2**31, 2**63, 2**70, -(2**70))

# Values that no argument takes for an object, an array, a number or a text.
NONSENSE: tuple[Any, ...] = (
    object(),
    1j,
    b"bytes",
    UUID,
    DAY,
    float("nan"),
    {"a": 1},
    frozenset({0, 1}),
    np.ma.masked,
    np.datetime64("2026-01-02"),
    SURROGATE,
    lambda: None,
    pa.table({"a": [1]}),
    Ellipsis,
)


@dataclass(frozen=True)
class Argument:
    """An argument of a public callable.

    Attributes:
        clean: makes a fresh clean value.
        wrong: the values that must be refused, for a clean value.
        same: the values that must be refused or mean the same, for a clean value.
        optional: whether None is a clean value too.
    """

    clean: Callable[[], Any]
    wrong: Callable[[Any], Sequence[Any]]
    same: Callable[[Any], Sequence[Any]] = lambda _: ()
    optional: bool = False

    def all_wrong(self) -> list[Any]:
        """All values that must be refused."""
        return [*self.wrong(self.clean()), *(() if self.optional else (None,))]

    def all_same(self) -> list[Any]:
        """All values that must be refused or mean the same as the clean one."""
        return list(self.same(self.clean()))


def count(value: int, minimum: int = 0, below: int | None = None, optional: bool = False) -> Argument:
    """A whole number from `minimum`; with `below`, an index."""
    wrong = [
        minimum - 1,
        value + 0.5,
        float(value),
        np.float64(value),
        np.inf,
        str(value),
        str(value).encode(),
    ]
    wrong += [True, np.True_, [value], np.array([value]), decimal.Decimal(value), fractions.Fraction(1, 3)]
    wrong += [2**63, 2**70, -(2**70), np.datetime64("2026"), *NONSENSE]
    if below is not None:
        wrong += [below, 2**31]
    same = [np.int64(value), np.int8(value), np.uint64(value), np.array(value), np.array(value, ">i4")]
    return Argument(lambda: value, lambda _: wrong, lambda _: same, optional)


def number(
    value: float, minimum: float | None = 0.0, above: bool = False, optional: bool = False
) -> Argument:
    """A number from `minimum` (or above it); None: any finite number."""
    wrong = [np.nan, str(value), str(value).encode(), True, [value], np.array([value]), *NONSENSE]
    wrong += [decimal.Decimal(1), 10**400]
    if minimum is not None:
        wrong += [minimum - 1, -np.inf] + ([minimum] if above else [])
    same = [np.float64(value), np.array(value, np.float64)[()]]
    if value == int(value):
        same += [int(value), np.int32(value), np.float32(value)]
    return Argument(lambda: value, lambda _: wrong, lambda _: same, optional)


def flag(value: bool) -> Argument:
    """True or false."""
    wrong = ["no", "false", "yes", "", 0, 1, 0.0, [], [True], np.array([True]), np.array(1), *NONSENSE]
    return Argument(lambda: value, lambda _: wrong, lambda _: [np.bool_(value)])


def choice(value: str, optional: bool = False) -> Argument:
    """One of some words."""
    wrong = ["typo", "", 3, [value], (value,), np.array([value]), value.encode(), f"{value}\0", *NONSENSE]
    return Argument(lambda: value, lambda _: wrong, lambda _: [np.str_(value)], optional)


def text(value: str, optional: bool = False) -> Argument:
    """A name."""
    wrong = ["", 3, [value], np.array([value]), value.encode(), f"{value}{SURROGATE}", *NONSENSE]
    return Argument(lambda: value, lambda _: wrong, lambda _: [np.str_(value)], optional)


def path(make: Callable[[], Any], optional: bool = False) -> Argument:
    """A path."""
    wrong = ["", 3, [], b"folder", "a\0b", f"a{SURROGATE}", np.array(["a"]), *NONSENSE]
    return Argument(make, lambda _: wrong, lambda _: (), optional)


def thing(make: Callable[[], Any], *others: Any, optional: bool = False) -> Argument:
    """An object of a public class; `others` are of other classes."""
    wrong = [3, "x", [], [[0, 1]], np.zeros(2), *others, *NONSENSE]
    return Argument(make, lambda _: wrong, optional=optional)


def function(make: Callable[[], Any]) -> Argument:
    """A function."""
    return Argument(make, lambda _: [3, "x", [], np.zeros(2), *NONSENSE[:-3]])


def mapping(make: Callable[[], Mapping[str, Any]]) -> Argument:
    """A dict."""
    return Argument(make, lambda _: [3, "x", [], [("a", 1)], {"a"}, np.zeros(2), object(), b"a"])


def _layouts(array: np.ndarray) -> Iterator[Any]:
    """The same array in other forms: lists, byte order, strides, read-only, nothing masked, objects."""
    yield array.tolist()
    yield tuple(array.tolist())
    yield np.asfortranarray(array)
    yield array.astype(array.dtype.newbyteorder(">"))
    spaced = np.repeat(array, 2, axis=0)
    yield spaced[::2]
    locked = array.copy()
    locked.flags.writeable = False
    yield locked
    view = array.copy().view()
    view.flags.writeable = False
    yield view
    yield np.ma.array(array, mask=False)
    yield array.astype(object)
    if array.ndim == 2:
        yield list(array)
        yield [tuple(row) for row in array.tolist()]


def _no_arrays(array: np.ndarray) -> list[Any]:
    """Values that are not an array of this shape, or hide entries."""
    hidden = np.ma.array(array.copy(), mask=False)
    if hidden.size:
        hidden[(0,) * hidden.ndim] = np.ma.masked
    values = array.tolist()
    wrong = [hidden, array[None], array.astype(complex), array.astype(str), array.astype("S8")]
    wrong += ["x", 3j, object(), {"a": 1}, {1, 2}, (row for row in values), lambda: values, UUID, SURROGATE]
    wrong += [[[0], [0, 1]], [[[[0]]]], array.astype("M8[s]"), [*values, None], [*values, "3"], [*values, []]]
    wrong += [np.array([*values, object()], object), [hidden, hidden], pa.table({"a": ["x"]}), b"0000"]
    return wrong


def numbers(
    values: Any, minimum: float | None = None, nan: bool = False, inf: bool = False, optional: bool = False
) -> Argument:
    """An array of numbers, from `minimum`; NaN or infinite entries are allowed if `nan` or `inf`."""
    clean = np.array(values, np.float64)

    def wrong(array: np.ndarray) -> list[Any]:
        found = _no_arrays(array)
        if nan:  # None is NaN
            found = [v for v in found if not (isinstance(v, list) and any(entry is None for entry in v))]
        else:
            found.append(np.full_like(array, np.nan))
        if not inf:
            found += [
                np.full_like(array, np.inf),
                np.full(array.shape, "1e4000", object).astype(np.longdouble),
            ]
        if minimum is not None:
            found.append(np.full_like(array, minimum - 1))
        return found

    def same(array: np.ndarray) -> list[Any]:
        return [*_layouts(array), array.astype(np.longdouble)]

    return Argument(clean.copy, wrong, same, optional)


def indices(
    values: Sequence[int], below: int, mask: bool = False, repeats: bool = False, least: int = 0
) -> Argument:
    """A list of indices from `least` to below `below`; with `mask`, truth values can choose them."""
    clean = np.array(values, np.int64)

    def wrong(array: np.ndarray) -> list[Any]:
        found = [*_no_arrays(array), array.astype(float), [*array.tolist(), 0.0], 0, np.array(0)]
        found += [np.full_like(array, least - 1), np.full_like(array, below), [2**31] * len(array)]
        found += [
            [2**63] * len(array),
            [2**70] * len(array),
            [-(2**70)] * len(array),
            np.full(len(array), np.nan),
        ]
        found += [np.full(len(array), 2**64 - 1, np.uint64), [True] * (below + 1)]
        if not mask:
            found += [np.ones(len(array), bool), [True] * len(array)]
        if not repeats:
            found.append(np.concatenate([array, array[:1]]))
        return found

    def same(array: np.ndarray) -> list[Any]:
        forms = [*_layouts(array), array.astype(np.int8), array.astype("<u2") if least == 0 else array]
        if mask and sorted(values) == list(values):
            chosen = np.isin(np.arange(below), array)
            forms += [chosen, chosen.tolist(), np.ma.array(chosen, mask=False)]
        return forms

    return Argument(clean.copy, wrong, same)


def integers(values: Any, least: int | None = None) -> Argument:
    """An array of whole numbers, from `least`."""
    clean = np.array(values, np.int64)

    def wrong(array: np.ndarray) -> list[Any]:
        found = [*_no_arrays(array), array.astype(float), array.astype(bool)]
        if least is not None:
            found.append(np.full_like(array, least - 1))
        return [*found, np.full(array.shape, 2**70, object), np.full(array.shape, 2**63, np.uint64), 0, 1.5]

    return Argument(clean.copy, wrong, lambda array: [*_layouts(array), array.astype(np.int16)])


def edges(values: Sequence[tuple[int, int]], nodes: int, optional: bool = False) -> Argument:
    """Pairs of node indices."""
    clean = np.array(values, np.int64)

    def wrong(array: np.ndarray) -> list[Any]:
        pairs = [tuple(pair) for pair in array.tolist()]
        found = [*_no_arrays(array), array.astype(float), array.astype(bool), array[0], array[:, :1], 0, [[]]]
        found += [[*pairs, pairs[0]], [*pairs, pairs[0][::-1]], [*pairs, (0, 0)], [*pairs, (0, nodes)]]
        found += [[*pairs, (-1, 0)], [*pairs, (0, 2**31)], [(0, 2**63)], [(0, 2**70)], [(0, 1.5)], set(pairs)]
        found += [np.hstack([array, array]), [(0, float("nan"))], np.empty((0, 3)), np.empty((2, 0))]
        return found

    def same(array: np.ndarray) -> list[Any]:
        return [
            *_layouts(array),
            array[:, ::-1],
            array.astype(np.uint8),
            [tuple(pair) for pair in array.tolist()],
        ]

    return Argument(clean.copy, wrong, same, optional)


def ordered(argument: Argument) -> Argument:
    """An argument that can be an iterator too, because only the order of its entries counts."""

    def wrong(clean: Any) -> list[Any]:
        return [value for value in argument.wrong(clean) if not isinstance(value, Iterator)]

    return Argument(
        argument.clean, wrong, lambda clean: [*argument.same(clean), iter(clean)], argument.optional
    )


def ids(values: Sequence[str], optional: bool = False, repeats: bool = False, more: bool = False) -> Argument:
    """Unique texts, in order; they can occur twice if `repeats`, and there can be more of them if `more`."""
    rest = values[1:]

    def wrong(_: object) -> list[Any]:
        entries = [
            UUID,
            DAY,
            DAY.date(),
            decimal.Decimal(1),
            1.5,
            b"a",
            True,
            "",
            None,
            SURROGATE,
            float("nan"),
        ]
        entries += [["a"], object(), np.datetime64("2026-01-02"), np.ma.masked, f"a{SURROGATE}", 1j, {}]
        if rest and not repeats:
            entries.append(rest[0])
        found = [[entry, *rest] for entry in entries]
        if not more:
            found.append([*values, "one more"])
        found += [
            set(values),
            dict.fromkeys(values),
            "".join(values),
            b"".join(map(str.encode, values)),
        ]
        found += [3, object(), np.array([list(values)]), np.array(values[0]), SURROGATE, [list(values)]]
        found += [np.ma.array(list(values), mask=[True] + [False] * len(rest))]
        found += [np.array(["2026-01-02"] * len(values), "M8[ns]"), np.arange(len(values)) + 0.5]
        return found

    def same(_: object) -> list[Any]:
        return [
            list(values),
            tuple(values),
            np.array(values),
            np.array(values, object),
            iter(values),
            pa.array(values),
        ]

    return Argument(lambda: list(values), wrong, same, optional)


def plain(value: Any) -> Any:
    """A value in plain Python types, for the comparison of results; other objects as they are."""
    if isinstance(value, np.ma.MaskedArray):
        return value.tolist()
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if type(value) in (list, tuple):
        return [plain(entry) for entry in value]
    return value
