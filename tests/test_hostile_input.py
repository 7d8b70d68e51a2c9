"""Every public callable with hostile values: the result is right, or an error of ours refuses the input.

The arguments of the caller stay as they were, and writeable; what is made from them is independent of them.
"""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import broadloom as bl
import hostile_values as hv
from public_calls import CALLS, RECORDS, live, parameters_of, public_callables

NAMES = sorted(CALLS)


@pytest.fixture(autouse=True, scope="module")
def elsewhere(tmp_path_factory):
    """A drawn text can be the path of a file: write it into a folder of its own."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("hostile"))
    yield
    os.chdir(before)


def facts(value: Any) -> Any:
    """A result as texts in lists, so that two results can be compared exactly."""
    if isinstance(value, np.ndarray):
        return [value.dtype.kind, str(value.shape), repr(value.tolist())]
    if isinstance(value, bl.Live):
        return [
            facts(value.nodes),
            facts(value.edges),
            facts(value.interest),
            facts(value.site_ids),
            value.seed,
        ]
    if isinstance(value, bl.MovingClient):
        return [value.name, value.home, repr(value._addresses), repr(value._place)]
    if isinstance(value, bl.Change):
        return [value.kind, value.node, facts(value.added), facts(value.removed), facts(value.shadow)]
    if isinstance(value, bl.MovePlan):
        return repr({name: entry for name, entry in value.record().items() if name != "key"})
    if isinstance(value, pa.Table):
        return repr(value.to_pydict())
    if isinstance(value, (list, tuple)):
        return [facts(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): facts(entry) for key, entry in value.items()}
    if type(value).__module__.startswith("broadloom") and hasattr(value, "__dataclass_fields__"):
        fields = value.__dataclass_fields__
        return {name: facts(getattr(value, name)) for name in fields if hasattr(value, name)}
    if hasattr(value, "items"):
        return facts(dict(value))
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float, np.generic)) and not isinstance(value, (bool, np.bool_)):
        return (
            repr(int(value))
            if value == value and abs(value) < np.inf and value == int(value)
            else repr(float(value))
        )
    return repr(value)


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """All arrays of an argument."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from arrays_in(entry)


def snapshot(arguments: dict[str, Any]) -> list[Any]:
    """What a call must not change: the entries and the flags of arrays, and the contents of other values."""
    values = [value for name, value in arguments.items() if name != "ax"]  # `plot` draws on it
    arrays = [(array.tolist(), array.flags.writeable) for array in arrays_in(values)]
    return [repr(arrays), repr(values)]


def attempt(run: Callable[..., Any], arguments: dict[str, Any]) -> tuple[bool, Any]:
    """Whether a call is accepted, and its result or its error, which is one line."""
    refused: bl.BroadloomError | None = None
    try:
        result = run(**arguments)
    except bl.BroadloomError as error:
        refused = error
    if refused is None:
        return True, result
    message = str(refused)
    assert not isinstance(refused, bl.InternalError), message
    assert 0 < len(message) < 1000, message
    assert "\n" not in message, message
    return False, refused


def outcome(name: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
    """Whether a call is accepted, and its result or its error; any other error fails the test."""
    before = snapshot(arguments)
    accepted, result = attempt(CALLS[name].run, arguments)
    assert snapshot(arguments) == before, f"{name} changes its arguments"
    return accepted, result


def test_every_public_callable_is_in_the_registry():
    """A new public callable, or a new parameter, needs an entry here."""
    found = {name: parameters_of(function) for name, function in public_callables()}
    known = {name: list(call.arguments) for name, call in CALLS.items()}
    for name in RECORDS:
        known[name] = found[name]
    assert {name: sorted(names) for name, names in found.items()} == {
        name: sorted(names) for name, names in known.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_clean_arguments_are_accepted(name):
    """Each entry of the registry is a call that works, twice with the same result."""
    accepted, result = outcome(name, CALLS[name].clean())
    assert accepted, result
    again = outcome(name, CALLS[name].clean())[1]
    assert facts(result) == facts(again)
    for parameter, argument in CALLS[name].arguments.items():
        if argument.optional:
            accepted, result = outcome(name, CALLS[name].clean() | {parameter: None})
            assert accepted, f"{parameter}=None: {result}"


@pytest.mark.parametrize("name", NAMES)
def test_wrong_values_are_refused(name):
    """Each wrong value of each argument is refused by one line."""
    call = CALLS[name]
    faults = []
    for parameter, argument in call.arguments.items():
        for value in argument.all_wrong():
            arguments = call.clean() | {parameter: value}
            try:
                accepted, result = outcome(name, arguments)
            except Exception as error:
                faults.append(f"{parameter}={value!r:.80} raises {error!r:.200}")
            else:
                faults += [f"{parameter}={value!r:.80} is accepted as {facts(result)!r:.200}"] * accepted
    assert not faults


@pytest.mark.parametrize("name", NAMES)
def test_other_forms_of_a_clean_value_mean_the_same(name):
    """Lists, other byte orders, strides, read-only arrays, ...: the same result, or refused."""
    call = CALLS[name]
    expected = facts(outcome(name, call.clean())[1])
    for parameter, argument in call.arguments.items():
        for value in argument.all_same():
            accepted, result = outcome(name, call.clean() | {parameter: value})
            if accepted:
                assert facts(result) == expected, f"{name}: {parameter}={value!r:.80}"


@pytest.mark.parametrize("name", NAMES)
def test_results_do_not_change_with_the_arguments(name):
    """What is made from arrays, lists and dicts is independent of them."""
    call = CALLS[name]
    arguments = call.clean()
    accepted, result = outcome(name, arguments)
    assert accepted, result
    before = copy.deepcopy(facts(result))
    for array in arrays_in(list(arguments.values())):
        if array.flags.writeable:
            array[...] = 0
    for value in arguments.values():
        if isinstance(value, (list, dict)):
            value.clear()
    assert facts(result) == before


INTEGERS = st.one_of(st.integers(-3, 6), st.integers(), st.sampled_from(hv.HUGE))
NUMBERS = st.one_of(INTEGERS, st.floats(), st.booleans(), st.complex_numbers(), st.fractions(), st.decimals())
TEXTS = st.one_of(
    st.text(max_size=4), st.text(st.characters(categories=["Cs", "Cc"]), max_size=3), st.binary(max_size=3)
)
TIMES = st.one_of(st.datetimes(), st.dates(), st.uuids(), st.timedeltas())
ARRAYS = hnp.arrays(
    st.one_of(hnp.scalar_dtypes(), st.just(np.dtype(np.int64)), st.just(np.dtype(np.float64))),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
SCALARS = st.one_of(st.none(), NUMBERS, TEXTS, TIMES, st.sampled_from(hv.NONSENSE))
VALUES = st.one_of(
    SCALARS,
    ARRAYS,
    ARRAYS.map(lambda array: np.ma.array(array, mask=True)),
    st.lists(SCALARS, max_size=4),
    st.lists(st.lists(NUMBERS, max_size=3), max_size=4),
    st.dictionaries(TEXTS, SCALARS, max_size=2),
    st.sets(st.integers(0, 3), max_size=3),
    st.lists(NUMBERS, max_size=3).map(iter),
)
# Arguments that set how much work is done: a drawn number could be accepted, and take years.
WORK = {
    "rounds",
    "iterations",
    "subscriptions",
    "subscribers",
    "users",
    "brokers",
    "channels",
    "nodes",
    "topics",
}
WORK |= {
    "samples",
    "bins",
    "seconds",
    "node_count",
    "levels",
    "coverage",
    "cells",
    "topic_ids",
    "patience",
    "set",
}


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=12)
def test_any_values_give_a_right_result_or_an_error_of_ours(name, data):
    """Whatever is accepted gives the same result as the same values in plain Python types."""
    call = CALLS[name]
    arguments = call.clean()
    harmless = True
    for parameter, argument in call.arguments.items():
        listed = [*argument.all_wrong(), *argument.all_same()]
        kinds = [st.just("clean"), st.just("clean"), st.just("listed"), st.just("drawn")]
        kind = data.draw(st.one_of(kinds), label=parameter)
        if kind == "listed" and listed:
            arguments[parameter] = listed[data.draw(st.integers(0, len(listed) - 1))]
        elif kind == "drawn":
            drawn = data.draw(VALUES)
            if not (parameter in WORK and isinstance(drawn, (int, float)) and drawn > 0):
                arguments[parameter] = drawn
        harmless = harmless and not hasattr(arguments[parameter], "__next__")
    same = {parameter: hv.plain(value) for parameter, value in arguments.items()}
    accepted, result = outcome(name, arguments)
    if accepted and harmless and not any(parameter in ("path", "folder") for parameter in arguments):
        plainly, expected = outcome(name, same)
        if plainly:
            assert facts(result) == facts(expected)


HOSTILE_OPTIONS = (
    "x",
    None,
    float("nan"),
    -1,
    True,
    1j,
    object(),
    [1],
    {},
    b"x",
    np.array([1, 2]),
    hv.SURROGATE,
    hv.UUID,
)


@pytest.mark.parametrize("entry", bl.algorithms(), ids=lambda entry: f"{entry['name']}-{entry['problem']}")
def test_hostile_options_are_refused_or_work(entry):
    """Each option of each algorithm, and an unknown one, with hostile values."""
    from public_calls import INTEREST, MARKET, PROBLEM, WEIGHTS

    def run(**options: Any) -> None:
        if entry["stage"] == "link":
            bl.link(INTEREST, WEIGHTS, entry["name"], **options)
        elif entry["stage"] == "assign":
            bl.assign(MARKET if entry["problem"] == "MarketProblem" else PROBLEM, entry["name"], **options)
        else:
            bl.maintain(INTEREST, method=entry["name"], **options)

    if entry["stage"] != "maintain":
        with pytest.raises(bl.InputError, match="no_such_option"):
            run(no_such_option=1)
    for option in entry["options"]:
        for value in HOSTILE_OPTIONS:
            attempt(run, {option: value})


def _public_objects() -> dict[str, Any]:
    """One object of each public class, made by the registry."""
    made = {
        name: CALLS[name].run(**CALLS[name].clean())
        for name in NAMES
        if name[0].isupper() and "." not in name
    }
    del made["MovingClient"]  # it has threads and locks, and is refused as any such object
    made["Live"] = live()
    made["Live after a join"] = live()
    made["Live after a join"].join([0, 1])
    return made


@pytest.mark.parametrize("make", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_copies_of_public_objects_are_equal_and_locked(make):
    """A pickle or a copy of each public object has the same facts, and its arrays are as read-only."""
    for name, value in _public_objects().items():
        other = make(value)
        if make is pickle.dumps:
            other = pickle.loads(other)
        assert type(other) is type(value), name
        assert facts(other) == facts(value), name
        for field in getattr(value, "__dataclass_fields__", ()):
            mine, its = getattr(value, field, None), getattr(other, field, None)
            flags = [array.flags.writeable for array in arrays_in(mine)]
            assert [array.flags.writeable for array in arrays_in(its)] == flags, (name, field)
