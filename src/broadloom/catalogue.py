"""Every algorithm that there is, from the stages' own lists."""

from dataclasses import fields
from typing import Any

from broadloom import linking


def algorithms(stage: str | None = None) -> list[dict[str, Any]]:
    """Every algorithm: name, stage, paper, objective, summary, and its options with their defaults.

    Args:
        stage: only those of this stage, such as "link".

    Example:
        >>> [row["objective"] for row in algorithms("link") if row["name"] == "gm"]
        ['edges']
    """
    return [
        {
            "name": algorithm.name,
            "stage": algorithm.stage,
            "paper": algorithm.paper,
            "objective": algorithm.objective,
            "summary": algorithm.summary,
            "options": {field.name: field.default for field in fields(algorithm.options)},
        }
        for algorithm in linking.ALGORITHMS
        if stage in (None, algorithm.stage)
    ]
