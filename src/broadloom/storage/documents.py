"""JSON and TOML documents."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

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


def to_json_value(value: Any) -> Any:
    """A value as JSON has it: no NumPy, no NaN, no infinity, no tuple.

    Examples:
        >>> plain({"degrees": np.array([1, 2]), "gap": np.inf})
        {'degrees': [1, 2], 'gap': None}
    """
    if isinstance(value, Mapping):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(inner) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return to_json_value(value.tolist())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def read_toml(place: Path) -> dict[str, Any]:
    """What a file says.

    Raises:
        InputError: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(place.read_text())
    except OSError as error:
        raise InputError(f"{place} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{place} is not TOML: {error}") from error
