"""Configuration files: TOML, or one line that says why not."""

import tomllib
from pathlib import Path
from typing import Any

from broadloom.errors import InputError


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
