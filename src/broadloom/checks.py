"""Checks of input values; error messages name the first bad entry and count the others.

A value is used as it is meant, or refused by an `InputError`; the arrays of a caller are never changed.
NumPy is loaded by the checks of arrays alone: programs that check texts and numbers start without it.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from broadloom.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_COUNT = 2**62  # kernels compute with 64-bit integers
MAX_INDEX = 2**31 - 1  # nodes, topics, brokers, ... have 32-bit indices
MAX_CELLS = 2**28  # of a table or grid that is made in memory
LONGEST_NAME = 80  # of a name that is shown as it is
# Control characters, line separators, and marks that change the direction of text: they end a line of a file,
# command a terminal, or show a reader another text than the one that is there.
CONTROL_CHARACTERS = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"

T = TypeVar("T")
A = TypeVar("A", bound="NDArray[Any]")


def shown(value: object) -> str:
    """A value as a short text of one line, for error messages.

    Examples:
        >>> import numpy as np
        >>> shown(np.zeros((2, 2)))
        'array([[0., 0.], [0., 0.]])'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def plain_name(text: str) -> str:
    r"""A name as it is; with quotes and escapes, or cut, if a terminal could not show it well.

    Examples:
        >>> plain_name("a/+"), plain_name("a\x1b[2J")
        ('a/+', "'a\\x1b[2J'")
    """
    return text if text.isprintable() and len(text) <= LONGEST_NAME else shown(text)


def has_control_characters(text: str) -> bool:
    r"""Whether a text has a character that ends a line, commands a terminal, or turns text around.

    Examples:
        >>> [has_control_characters(text) for text in ("größe/+", "a\nb", "a\x9b2J")]
        [False, True, True]
    """
    return not text.isprintable() and re.search(CONTROL_CHARACTERS, text) is not None


def visible_text(text: str) -> str:
    r"""A text for a terminal: control characters are escaped; line breaks and tabs between words stay.

    Examples:
        >>> visible_text("a\x1b]0;title\x07b\nc")
        'a\\x1b]0;title\\x07b\nc'
    """
    return re.sub(CONTROL_CHARACTERS, lambda char: char[0] if char[0] in "\n\t" else _escaped(char[0]), text)


def _escaped(char: str) -> str:
    return ascii(char)[1:-1]


def raise_for_first(bad: NDArray[np.bool_], describe: Callable[[int], str], expected: str) -> None:
    """Raise an `InputError` if any entry of `bad` is true: describe the first one and count the others.

    Examples:
        >>> import numpy as np
        >>> raise_for_first(np.array([False, True, True]), lambda i: f"row {i} is empty", "fill every row")
        Traceback (most recent call last):
        broadloom.errors.InputError: row 1 is empty (and 1 more like it); fill every row
    """
    import numpy as np

    rows = np.flatnonzero(bad)
    if rows.size:
        raise InputError(f"{describe(int(rows[0]))}{and_more(rows.size - 1)}; {expected}")


def and_more(count: int) -> str:
    """Text for the number of further bad entries, in brackets; empty for 0."""
    return f" (and {count:,} more like it)" if count else ""


def check_count(value: object, name: str, minimum: int = 0, maximum: int = MAX_COUNT) -> int:
    """The value as a Python int, if it is a whole number from `minimum` to `maximum`.

    Examples:
        >>> check_count(2.5, "nodes")
        Traceback (most recent call last):
        broadloom.errors.InputError: nodes is 2.5; give a whole number from 0
    """
    try:
        count = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        count = minimum - 1
    if not minimum <= count <= maximum or isinstance(value, bool):
        limit = "" if maximum == MAX_COUNT else f" to {maximum}"
        raise InputError(f"{name} is {shown(value)}; give a whole number from {minimum}{limit}")
    return count


def check_number(
    value: object, name: str, minimum: float = 0.0, maximum: float = math.inf, *, finite: bool = True
) -> float:
    """The value as a float, if it is a number from `minimum` to `maximum`, and finite if `finite` is true.

    Examples:
        >>> check_number("3", "k", minimum=1)
        Traceback (most recent call last):
        broadloom.errors.InputError: k is '3'; give a number from 1
    """
    is_number = isinstance(value, (int, float)) or _is_numpy(value, "integer", "floating")
    try:
        result = float(value) if is_number and not isinstance(value, bool) else math.nan  # type: ignore[arg-type]
    except OverflowError:
        result = math.nan
    if not minimum <= result <= maximum or (finite and math.isinf(result)):
        if minimum == -math.inf:
            expected = "a finite number"
        else:
            expected = f"a number from {minimum:g}" + ("" if maximum == math.inf else f" to {maximum:g}")
        raise InputError(f"{name} is {shown(value)}; give {expected}")
    return result


def check_positive(value: object, name: str) -> float:
    """The value as a float, if it is a finite number above 0.

    Examples:
        >>> check_positive(0, "mean")
        Traceback (most recent call last):
        broadloom.errors.InputError: mean is 0; give a finite number above 0
    """
    try:
        result = check_number(value, name)
    except InputError:
        result = 0.0
    if result == 0:
        raise InputError(f"{name} is {shown(value)}; give a finite number above 0")
    return result


def check_flag(value: object, name: str) -> bool:
    """The value as a Python bool, if it is true or false.

    Examples:
        >>> check_flag("no", "thin")
        Traceback (most recent call last):
        broadloom.errors.InputError: thin is 'no'; give true or false
    """
    if not isinstance(value, bool) and not _is_numpy(value, "bool_"):
        raise InputError(f"{name} is {shown(value)}; give true or false")
    return bool(value)


def check_choice(value: object, name: str, choices: Iterable[str]) -> str:
    """The value, if it is one of the choices.

    Examples:
        >>> check_choice(["mst"], "core", ("mst", "pair"))
        Traceback (most recent call last):
        broadloom.errors.InputError: core is ['mst']; give one of mst, pair
    """
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name} is {shown(value)}; give one of {', '.join(known)}")
    return value


def check_instance(value: object, kind: type[T], name: str, advice: str) -> T:
    """The value, if it is of this class; the advice says how to make one.

    Examples:
        >>> check_instance([[0]], dict, "the table", "give a dict")
        Traceback (most recent call last):
        broadloom.errors.InputError: the table is a list; give a dict
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} is a {type(value).__name__}; {advice}")
    return value


def check_path(value: object, name: str = "the path") -> Path:
    """The value as a path, if it is a text or a path that a file system can have.

    Examples:
        >>> check_path(3)
        Traceback (most recent call last):
        broadloom.errors.InputError: the path is 3; give a text or a pathlib.Path
    """
    if not isinstance(value, (str, Path)) or not is_text(str(value)) or "\0" in str(value):
        raise InputError(f"{name} is {shown(value)}; give a text or a pathlib.Path")
    return Path(value)


def check_names(section: Mapping[str, object], known: Iterable[str], where: str) -> None:
    """Refuse unknown names in a section of a file.

    Examples:
        >>> check_names({"colour": 1}, {"size", "color"}, "a.toml")
        Traceback (most recent call last):
        broadloom.errors.InputError: a.toml: 'colour' is unknown; there are color, size
    """
    names = sorted(known)
    for name in section:
        if name not in names:
            raise InputError(f"{where}: {name!r} is unknown; there are {', '.join(names)}")


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a non-empty string that can be encoded.

    Examples:
        >>> is_text("news"), is_text(""), is_text(3), is_text(chr(0xD800))
        (True, False, False, False)
    """
    if not isinstance(value, str) or not value:
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def check_line(value: object, name: str) -> str:
    r"""The value, if it is a text of one line that can be shown, without spaces at its ends.

    Examples:
        >>> check_line("rome\nstop", "a broker's name")
        Traceback (most recent call last):
        broadloom.errors.InputError: a broker's name is 'rome\nstop'; give a text without line breaks, and ...
    """
    text = check_text(value, name)
    if not text.isprintable() or text != text.strip():
        raise InputError(
            f"{name} is {shown(text)}; give a text without line breaks, and no spaces at its ends"
        )
    return text


def check_text(value: object, name: str) -> str:
    """The value, if it is a non-empty string that can be encoded.

    Examples:
        >>> check_text(b"rome", "home")
        Traceback (most recent call last):
        broadloom.errors.InputError: home is b'rome'; give a text
    """
    if not is_text(value):
        raise InputError(f"{name} is {shown(value)}; give a text")
    return value


def check_ids(ids: object, name: str) -> tuple[str, ...]:
    """The ids as strings, if none is missing or empty and none occurs twice."""
    listed = ordered_list(ids, f"{name} ids")
    texts = tuple(map(_id_text, listed))
    for row, text in enumerate(texts):
        if not text:
            was = repr(listed[row])
            raise InputError(f"{name} {row} has no id (it is {was}); give each {name} a non-empty id")
        if name == "node" and has_control_characters(text):  # topics of clients are checked by each use
            raise InputError(
                f"node id {shown(text)} has a line break or another control character; give each node an id "
                "without them"
            )
    if len(set(texts)) < len(texts):
        first: dict[str, int] = {}
        import numpy as np

        bad = np.array([first.setdefault(text, row) != row for row, text in enumerate(texts)])
        raise_for_first(
            bad, lambda row: f"{name} id {shown(texts[row])} appears twice", f"give each {name} a unique id"
        )
    return texts


def _id_text(value: object) -> str:
    """An id as text; the empty string for None and NaN."""
    if isinstance(value, str):
        if not (value.isascii() or is_text(value)):
            raise InputError(f"an id is {shown(value)}, which is not valid Unicode; give other text")
        return str.__str__(value)
    if value is None or ((isinstance(value, float) or _is_numpy(value, "floating")) and value != value):
        return ""
    is_whole = isinstance(value, int) or _is_numpy(value, "integer")
    if is_whole and not isinstance(value, bool):
        return str(int(value))  # type: ignore[call-overload]
    raise InputError(
        f"an id is {shown(value)}, a {type(value).__name__}; ids are strings or whole numbers, so convert it"
    )


def can_iterate(value: object) -> bool:
    """Whether a value can be iterated; an array without dimensions is an Iterable that cannot.

    Examples:
        >>> can_iterate([1]), can_iterate(1)
        (True, False)
    """
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def ordered_list(values: object, name: str) -> list[Any]:
    """The values of a list, array, Arrow column or iterator, in order.

    Raises:
        InputError: a text, a set or a mapping, whose entries have no order; masked entries; a number; or an
            array that has not one axis.

    Examples:
        >>> ordered_list("abc", "node ids")
        Traceback (most recent call last):
        broadloom.errors.InputError: node ids are 'abc'; give a list
    """
    if isinstance(values, (list, tuple)):
        return list(values)
    if _is_numpy(values, "ndarray"):
        return _listed(values, name)  # type: ignore[arg-type]
    if isinstance(values, (str, bytes, bytearray, Set, Mapping)) or not isinstance(values, Iterable):
        raise InputError(f"{name} are {shown(values)}; give a list")
    to_list = getattr(values, "to_pylist", None)  # an Arrow column
    return list(values) if to_list is None else list(to_list())


def _listed(values: NDArray[Any], name: str) -> list[Any]:
    if values.ndim != 1:
        raise InputError(f"{name} are an array of shape {values.shape}; give a list")
    _refuse_masked(values, name)
    return list(values)


def _is_numpy(value: object, *names: str) -> bool:
    """Whether a value is of one of these classes of NumPy, which need not be loaded for this."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, tuple(getattr(numpy, name) for name in names))


def plain_array(values: object, name: str) -> NDArray[Any]:
    """The values as a NumPy array: the caller's own one, if it is one, so do not write to it.

    Raises:
        InputError: masked entries, rows of different lengths, or values that are not an array.
    """
    import numpy as np

    if isinstance(values, np.ndarray):
        _refuse_masked(values, name)
        return np.asarray(values)
    if isinstance(values, (list, tuple)) and any(isinstance(row, np.ma.MaskedArray) for row in values):
        for row in values:
            _refuse_masked(row, name)
    if isinstance(values, (str, bytes, Set, Mapping)):
        raise InputError(f"{name} are {shown(values)}; give an array of numbers")
    try:
        return np.asarray(values)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise InputError(f"{name} are {shown(values)}; give an array of numbers") from error
        raise InputError(f"{name} have rows of different lengths; give the same number in each") from error
    except (TypeError, OverflowError, RuntimeError) as error:
        raise InputError(f"{name} are {shown(values)}; give an array of numbers") from error


def _refuse_masked(values: object, name: str) -> None:
    """Raise if values have masked entries, which NumPy would silently unmask."""
    import numpy as np

    if isinstance(values, np.ma.MaskedArray) and (count := int(np.sum(np.ma.getmaskarray(values)))):
        raise InputError(f"{name} have {count:,} masked entries; fill them or leave them out")


def number_array(values: object, name: str) -> NDArray[np.float64]:
    """A new array of doubles; None becomes NaN, for callers to refuse.

    Raises:
        InputError: something is not a number: text, complex numbers, times, ...

    Examples:
        >>> number_array(["3", "4"], "rates")
        Traceback (most recent call last):
        broadloom.errors.InputError: rates are text; give numbers
    """
    import numpy as np

    array = plain_array(values, name)
    is_object = array.dtype.kind == "O"
    if array.dtype.kind not in "biufO" or (is_object and _has_text(array)):
        raise InputError(f"{name} are {'text' if is_object else _kind_of(array)}; give numbers")
    try:
        with np.errstate(over="ignore"):  # infinity, for callers to refuse
            return np.array(array, np.float64, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} are {shown(values)}; give an array of numbers") from error


def _kind_of(array: NDArray[Any]) -> str:
    """The kind of an array's entries, in words where its dtype is not a number."""
    words = {"U": "text", "S": "bytes", "O": "of several types", "b": "truth values", "M": "times"}
    return words.get(array.dtype.kind, str(array.dtype))


def _has_text(array: NDArray[Any]) -> bool:
    return any(isinstance(value, (str, bytes)) for value in array.flat)


def integer_array(values: object, name: str) -> NDArray[np.int64]:
    """The values as 64-bit integers; not always a copy, so do not write to it.

    Raises:
        InputError: values are not whole numbers (truth values and floats are not), or beyond 64 bits.

    Examples:
        >>> integer_array([0.0, 1.0], "nodes")
        Traceback (most recent call last):
        broadloom.errors.InputError: nodes are float64; give whole numbers
    """
    import numpy as np

    array = plain_array(values, name)
    if array.size == 0 and array.ndim > 0:
        return np.empty(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(f"{name} are {_kind_of(array)}; give whole numbers")
    if array.dtype.kind == "u" and array.max() > np.iinfo(np.int64).max:
        raise InputError(f"{name} are up to {array.max()}; give whole numbers of at most 64 bits")
    return array.astype(np.int64, copy=False)


def index_array(values: object, count: int, kind: str) -> NDArray[np.int64]:
    """Indices of `count` things, as a list of them or as a mask of `count` truth values.

    Raises:
        InputError: not one axis, not whole numbers, a thing that does not exist, or a mask of another length.

    Examples:
        >>> index_array([True, False, True], 3, "node").tolist()
        [0, 2]
        >>> index_array([-1], 3, "node")
        Traceback (most recent call last):
        broadloom.errors.InputError: node -1 does not exist; nodes are 0 to 2
    """
    import numpy as np

    array = plain_array(values, f"{kind}s")
    if array.ndim != 1:
        raise InputError(f"{kind}s have shape {array.shape}; give a list of {kind}s")
    if array.dtype.kind == "b":
        if len(array) != count:
            raise InputError(
                f"the mask has {len(array):,} entries for {count:,} {kind}s; give one entry per {kind}"
            )
        return np.flatnonzero(array)
    indices = integer_array(array, f"{kind}s")
    check_range(indices, count, kind)
    return indices


def check_range(indices: NDArray[np.int64], count: int, kind: str) -> None:
    """Raise if an index is not from 0 to `count - 1`."""
    raise_for_first(
        (indices < 0) | (indices >= count),
        lambda i: f"{kind} {indices[i]} does not exist",
        f"{kind}s are 0 to {count - 1}" if count else f"there are no {kind}s",
    )


def check_index(value: object, count: int, kind: str) -> int:
    """The value as an index of one of `count` things."""
    index = check_count(value, kind)
    if index >= count:
        known = f"{kind}s are 0 to {count - 1}" if count else f"there are no {kind}s"
        raise InputError(f"{kind} {index} does not exist; {known}")
    return index


def repeated(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """A mask that is true for each entry that equals an earlier one."""
    import numpy as np

    mask = np.ones(len(values), bool)
    mask[np.unique(values, return_index=True)[1]] = False
    return mask


def same_value(one: object, other: object) -> bool:
    """Whether two values are equal: arrays by shape and entries, lists and tuples item by item, NaN to NaN.

    Examples:
        >>> import numpy as np
        >>> same_value((np.arange(2), "a"), [np.array([0, 1]), "a"]), same_value(np.arange(2), np.arange(3))
        (True, False)
    """
    import numpy as np

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
    import numpy as np

    return np.random.default_rng(check_count(seed, "seed"))


def lock_array(array: NDArray[Any]) -> None:
    """Make an array of our own read-only; `frozen_array` is for arrays of callers."""
    array.flags.writeable = False


def frozen_array(array: A) -> A:
    """A read-only array of these values: the array itself if nobody can write to it, otherwise a copy.

    Examples:
        >>> import numpy as np
        >>> own = np.zeros(2)
        >>> frozen_array(own).flags.writeable, own.flags.writeable
        (False, True)
    """
    import numpy as np

    owner: Any = array
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    if owner is None and type(array) is np.ndarray:
        return array
    copy = np.array(array)
    lock_array(copy)
    return copy  # type: ignore[return-value]


def lock_arrays(values: Iterable[object]) -> None:
    """Make all arrays of our own among these values, and in tuples among them, read-only."""
    import numpy as np

    for value in values:
        if isinstance(value, np.ndarray):
            lock_array(value)
        elif isinstance(value, tuple):
            lock_arrays(value)


def restore_frozen(instance: object, state: Mapping[str, object]) -> None:
    """Set the state of a copied or unpickled value, whose arrays are writeable again, and lock them."""
    vars(instance).update(state)
    lock_arrays(state.values())


def nearest_name(name: str, names: Iterable[str]) -> str:
    """A hint at the known name that is most similar, for error messages; empty if none is.

    Examples:
        >>> nearest_name("grmav", ["gm", "grmaw"])
        " (did you mean 'grmaw'?)"
    """
    import difflib

    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
