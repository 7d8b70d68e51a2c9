"""Description of an algorithm: name, paper, objective and options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from broadloom.checks import nearest_name, shown
from broadloom.errors import InputError


@dataclass(frozen=True)
class NoOptions:
    """Options of an algorithm without options."""


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of a stage.

    Attributes:
        name: the name that users type; it is that of the paper.
        stage: the stage that runs it: "link", "assign" or "maintain".
        paper: its paper and section.
        objective: the measure that it minimises.
        summary: how it works, in one line.
        run: the function that runs it; its arguments depend on the stage.
        options: a frozen dataclass of its options, with defaults and checks.
        problem: the type of problem that it solves, if the stage has several.
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

    def with_options(self, options: Mapping[str, Any], others: Iterable[Algorithm] = ()) -> Any:
        """An instance of the options dataclass with these options; the others have their defaults.

        Raises:
            InputError: an option is unknown (the message names the nearest known one, and other algorithms
                that have it), or its value is wrong.
        """
        known = self.option_names
        for name in options:
            if name not in known:
                listed = f"it has {', '.join(known)}" if known else "it has no options"
                owners = ", ".join(other.name for other in others if name in other.option_names)
                elsewhere = f"; {name} is an option of {owners}" if owners else ""
                raise InputError(
                    f"{self.name} has no option {name!r}{nearest_name(name, known)}; {listed}{elsewhere}"
                )
        return self.options(**{name: _plain_scalar(value) for name, value in options.items()})


def _plain_scalar(value: Any) -> Any:
    """A NumPy scalar or an array without axes as a Python value; other values as they are."""
    return value.item() if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 else value


def find_algorithm(name: str, algorithms: Iterable[Algorithm]) -> Algorithm:
    """The algorithm with this name.

    Raises:
        InputError: the name is unknown; the message suggests the nearest known one.
    """
    if not isinstance(name, str):
        raise InputError(f"the algorithm is {shown(name)}; give its name")
    by_name = {algorithm.name: algorithm for algorithm in algorithms}
    if name not in by_name:
        raise InputError(
            f"no algorithm {name!r}{nearest_name(name, by_name)}; there are {', '.join(by_name)}"
        )
    return by_name[name]
