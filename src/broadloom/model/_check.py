"""Words for what is wrong with an input: the first offender, and how many more there are."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from broadloom.errors import InputError


def refuse(bad: NDArray[np.bool_], describe: Callable[[int], str], expected: str) -> None:
    """Raise if any entry of `bad` is true, describing the first one and counting the rest.

    Example:
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


def text_ids(ids: Sequence[object], what: str) -> tuple[str, ...]:
    """Ids as strings: each one given, not empty, and none twice."""
    texts = tuple(map(_text, ids))
    for row, text in enumerate(texts):
        if not text:
            raise InputError(f"{what} {row} has no id (it is {ids[row]!r}); give each {what} a non-empty id")
    if len(set(texts)) < len(texts):
        first, count = _repeated(texts)
        raise InputError(
            f"{what} id {first!r} appears twice{more(count - 1)}; give each {what} an id of its own"
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


def _repeated(texts: Sequence[str]) -> tuple[str, int]:
    """The first id that was there before, and how many rows repeat an earlier one."""
    seen: set[str] = set()
    repeats = []
    for text in texts:
        if text in seen:
            repeats.append(text)
        seen.add(text)
    return repeats[0], len(repeats)


def read_only(array: NDArray[np.generic]) -> None:
    """Lock an array, so that what was checked once stays true."""
    array.flags.writeable = False
