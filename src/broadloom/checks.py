"""Checks of input values; error messages name the first bad entry and count the others."""

import operator
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError

MAX_COUNT = 2**62  # kernels compute with 64-bit integers


def raise_for_first(bad: NDArray[np.bool_], describe: Callable[[int], str], expected: str) -> None:
    """Raise an `InputError` if any entry of `bad` is true: describe the first one and count the others.

    Examples:
        >>> raise_for_first(np.array([False, True, True]), lambda i: f"row {i} is empty", "fill every row")
        Traceback (most recent call last):
        broadloom.errors.InputError: row 1 is empty (and 1 more like it); fill every row
    """
    rows = np.flatnonzero(bad)
    if rows.size:
        raise InputError(f"{describe(int(rows[0]))}{and_more(rows.size - 1)}; {expected}")


def and_more(count: int) -> str:
    """Text for the number of further bad entries, in brackets; empty for 0."""
    return f" (and {count:,} more like it)" if count else ""


def check_count(value: object, name: str, minimum: int = 0) -> int:
    """The value as a Python int, if it is a whole number that is at least `minimum`.

    Examples:
        >>> check_count(2.5, "nodes")
        Traceback (most recent call last):
        broadloom.errors.InputError: nodes is 2.5; give a whole number from 0
    """
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = minimum - 1
    if not minimum <= count <= MAX_COUNT or isinstance(value, bool):
        raise InputError(f"{name} is {value!r:.40}; give a whole number from {minimum}")
    return count


def check_number(value: object, name: str, minimum: float = 0.0, *, finite: bool = True) -> float:
    """The value as a float, if it is a number that is at least `minimum`, and finite if `finite` is true.

    Examples:
        >>> check_number("3", "k", minimum=1)
        Traceback (most recent call last):
        broadloom.errors.InputError: k is '3'; give a number from 1
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    try:
        result = float(value) if is_number else np.nan  # type: ignore[arg-type]
    except OverflowError:
        result = np.nan
    if not result >= minimum or (finite and np.isinf(result)):
        raise InputError(f"{name} is {value!r}; give a number from {minimum:g}")
    return result


def check_flag(value: object, name: str) -> bool:
    """The value as a Python bool, if it is true or false.

    Examples:
        >>> check_flag("no", "thin")
        Traceback (most recent call last):
        broadloom.errors.InputError: thin is 'no'; give true or false
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} is {value!r}; give true or false")
    return bool(value)


def check_ids(ids: Sequence[object], name: str) -> tuple[str, ...]:
    """The ids as strings, if none is missing or empty and none occurs twice."""
    texts = tuple(map(_id_text, ids))
    for row, text in enumerate(texts):
        if not text:
            raise InputError(f"{name} {row} has no id (it is {ids[row]!r}); give each {name} a non-empty id")
    if len(set(texts)) < len(texts):
        raise_for_first(
            repeated(np.array(texts)),
            lambda row: f"{name} id {texts[row]!r} appears twice",
            f"give each {name} a unique id",
        )
    return texts


def _id_text(value: object) -> str:
    """An id as text; the empty string for None and NaN."""
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return ""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    raise InputError(f"an id is {value!r}, a {type(value).__name__}; ids are strings or whole numbers")


def repeated(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """A mask that is true for each entry that equals an earlier one."""
    mask = np.ones(len(values), bool)
    mask[np.unique(values, return_index=True)[1]] = False
    return mask


def same_value(one: object, other: object) -> bool:
    """Whether two values are equal: arrays by shape and entries, lists and tuples item by item, NaN to NaN.

    Examples:
        >>> same_value((np.arange(2), "a"), [np.array([0, 1]), "a"]), same_value(np.arange(2), np.arange(3))
        (True, False)
    """
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        is_float = one.dtype.kind == "f" and other.dtype.kind == "f"
        return np.array_equal(one, other, equal_nan=is_float)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, float) and isinstance(other, float) and one != one:
        return other != other
    return bool(one == other)


def seeded_generator(seed: object) -> np.random.Generator:
    """A random number generator; raises if the seed is not a whole number from 0."""
    return np.random.default_rng(check_count(seed, "seed"))


def lock_array(array: NDArray[np.generic]) -> None:
    """Make an array read-only, so that it cannot change after it was checked."""
    array.flags.writeable = False
