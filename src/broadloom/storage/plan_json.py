"""The `plan.json` of any plan's folder: one way to read it, and to say why it cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from broadloom.errors import InputError


def read_plan_json(folder: Path) -> dict[str, Any]:
    """What is in the folder's `plan.json`; what it has to hold is for its readers to check.

    Raises:
        InputError: there is none, or it is damaged.
    """
    place = folder / "plan.json"
    try:
        record = json.loads(place.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{folder} is not a plan: it has no plan.json") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{place} cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise InputError(f"{place} is not a plan's record; it was not written by broadloom, or is damaged")
    return record
