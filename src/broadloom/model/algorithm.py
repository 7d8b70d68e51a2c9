"""What an algorithm is to its users: a name, where it comes from, what it aims at, and its options."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from broadloom.errors import InputError


@dataclass(frozen=True)
class NoOptions:
    """The options of an algorithm that has none."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of a stage.

    Attributes:
        name: as users ask for it, and as its paper names it.
        stage: the verb that runs it: "link" or "assign".
        paper: the paper and section it is from.
        objective: what it makes small.
        summary: its rule in one line.
        run: the function that does it; each stage says with which arguments.
        options: a frozen dataclass that holds its options, with defaults, and checks them.
        problem: the type of problem that it solves, where a stage has several.
    """

    name: str
    stage: str
    paper: str
    objective: str
    summary: str
    run: Callable[..., Any]
    options: type = NoOptions
    problem: type | None = None

    @property
    def option_names(self) -> list[str]:
        """The names of its options."""
        return [field.name for field in fields(self.options)]

    def with_options(self, given: Mapping[str, Any], others: Iterable[Algorithm] = ()) -> Any:
        """The options as its dataclass, after checking that each one exists.

        Raises:
            InputError: an option is unknown (the nearest real one is named, and which of the other algorithms
                have it), or its value is wrong.
        """
        known = self.option_names
        for name in given:
            if name not in known:
                have = f"it has {', '.join(known)}" if known else "it has none"
                owners = ", ".join(other.name for other in others if name in other.option_names)
                elsewhere = f"; {name} is an option of {owners}" if owners else ""
                raise InputError(
                    f"{self.name} has no option {name!r}{_nearest(name, known)}; {have}{elsewhere}"
                )
        return self.options(**given)


def find_algorithm(name: str, algorithms: Iterable[Algorithm]) -> Algorithm:
    """The algorithm of that name.

    Raises:
        InputError: there is none; the nearest real name is suggested.
    """
    if not isinstance(name, str):
        raise InputError(f"the algorithm is {name!r}; give its name")
    by_name = {algorithm.name: algorithm for algorithm in algorithms}
    if name not in by_name:
        raise InputError(f"no algorithm {name!r}{_nearest(name, by_name)}; there are {', '.join(by_name)}")
    return by_name[name]


def _nearest(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
