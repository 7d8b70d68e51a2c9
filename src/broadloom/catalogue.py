"""Catalogue of all algorithms, collected from the lists of the stages."""

from dataclasses import fields
from typing import Any

from broadloom import assignment, linking, maintenance


def algorithms(stage: str | None = None) -> list[dict[str, Any]]:
    """One record per algorithm: name, stage, paper, objective, problem, summary, options with defaults.

    Args:
        stage: return only the algorithms of this stage: "link", "assign" or "maintain".

    Examples:
        >>> [row["objective"] for row in algorithms("link") if row["name"] == "gm"]
        ['edges']
    """
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
