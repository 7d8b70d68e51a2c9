"""Catalogue of all algorithms, collected from the lists of the stages."""

from dataclasses import fields
from typing import Any

from broadloom import assignment, linking, maintenance
from broadloom.checks import shown
from broadloom.errors import InputError
from broadloom.model import nearest_name

STAGES = ("link", "assign", "maintain")


def algorithms(stage: str | None = None) -> list[dict[str, Any]]:
    """One record per algorithm: name, stage, paper, objective, problem, summary, options with defaults.

    Args:
        stage: return only the algorithms of this stage: "link", "assign" or "maintain".

    Raises:
        InputError: there is no such stage; the message suggests the nearest one.

    Examples:
        >>> [row["objective"] for row in algorithms("link") if row["name"] == "gm"]
        ['edges']
    """
    if not (stage is None or isinstance(stage, str)):
        raise InputError(f"the stage is {shown(stage)}; give one of {', '.join(STAGES)}")
    if not (stage is None or stage in STAGES):
        raise InputError(f"no stage {stage!r}{nearest_name(stage, STAGES)}; there are {', '.join(STAGES)}")
    return [
        {
            "name": algorithm.name,
            "stage": algorithm.stage,
            "paper": algorithm.paper,
            "objective": algorithm.objective,
            "problem": None if algorithm.problem is None else algorithm.problem.__name__,
            "summary": algorithm.summary,
            "options": {field.name: field.default for field in fields(algorithm.options)},
        }
        for algorithm in (*linking.ALGORITHMS, *assignment.ALGORITHMS, *maintenance.METHODS)
        if stage in (None, algorithm.stage)
    ]
