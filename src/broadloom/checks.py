"""Words for what is wrong with an input: the first offender, and how many more there are."""

import operator
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError

MOST = 2**62  # of any count: kernels have 64 bits


def refuse(bad: NDArray[np.bool_], describe: Callable[[int], str], expected: str) -> None:
    """Raise if any entry of `bad` is true, describing the first one and counting the rest.

    Examples:
        >>> refuse(np.array([False, True, True]), lambda i: f"row {i} is empty", "give each row a value")
        Traceback (most recent call last):
        broadloom.errors.InputError: row 1 is empty (and 1 more like it); give each row a value
    """
    offenders = np.flatnonzero(bad)
    if offenders.size:
        raise InputError(f"{describe(int(offenders[0]))}{more(offenders.size - 1)}; {expected}")


def more(count: int) -> str:
    """How many further offenders there are, in brackets, or nothing."""
    return f" (and {count:,} more like it)" if count else ""


def whole(value: object, what: str, least: int = 0) -> int:
    """A count as a Python int.

    Examples:
        >>> whole(2.5, "nodes")
        Traceback (most recent call last):
        broadloom.errors.InputError: nodes is 2.5; give a whole number from 0
    """
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if not least <= number <= MOST or isinstance(value, bool):
        raise InputError(f"{what} is {value!r:.40}; give a whole number from {least}")
    return number


def number(value: object, what: str, least: float = 0.0, *, finite: bool = True) -> float:
    """A number that is at least so much, and finite unless told otherwise.

    Examples:
        >>> number("3", "k", least=1)
        Traceback (most recent call last):
        broadloom.errors.InputError: k is '3'; give a number from 1
    """
    plain = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    try:
        result = float(value) if plain else np.nan  # type: ignore[arg-type]
    except OverflowError:
        result = np.nan
    if not result >= least or (finite and np.isinf(result)):
        raise InputError(f"{what} is {value!r}; give a number from {least:g}")
    return result


def yes_or_no(value: object, what: str) -> bool:
    """A flag, and nothing that only looks like one.

    Examples:
        >>> yes_or_no("no", "thin")
        Traceback (most recent call last):
        broadloom.errors.InputError: thin is 'no'; give true or false
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{what} is {value!r}; give true or false")
    return bool(value)


def generator(seed: object) -> np.random.Generator:
    """The one source of chance of a seed."""
    return np.random.default_rng(whole(seed, "seed"))


def repeats(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Which entries were there before."""
    later = np.ones(len(values), bool)
    later[np.unique(values, return_index=True)[1]] = False
    return later


def text_ids(ids: Sequence[object], what: str) -> tuple[str, ...]:
    """Ids as strings: each one given, not empty, and none twice."""
    texts = tuple(map(_text, ids))
    for row, text in enumerate(texts):
        if not text:
            raise InputError(f"{what} {row} has no id (it is {ids[row]!r}); give each {what} a non-empty id")
    if len(set(texts)) < len(texts):
        refuse(
            repeats(np.array(texts)),
            lambda row: f"{what} id {texts[row]!r} appears twice",
            f"give each {what} an id of its own",
        )
    return texts


def _text(value: object) -> str:
    """An id as text; empty for a missing one, NaN among them."""
    if isinstance(value, str):
        return value
    if value is None or value != value:
        return ""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    raise InputError(f"an id is {value!r}, a {type(value).__name__}; ids are strings or whole numbers")


def read_only(array: NDArray[np.generic]) -> None:
    """Lock an array, so that what was checked once stays true."""
    array.flags.writeable = False
