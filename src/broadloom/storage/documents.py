"""JSON and TOML documents: plan records and configuration files; writing of single files."""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import sys
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from broadloom.errors import BroadloomError, InputError, error_from_os
from broadloom.storage.locations import RemotePath, as_path, committed

MOST_UNPACKED = 2 << 30  # bytes
_BLOCK = 1 << 20


def _no_plan(folder: Path) -> str:
    """The error message for a folder without `plan.json`."""
    return f"{folder} is not a plan: it has no plan.json; give a folder that link, assign or market wrote"


def read_plan_json(folder: Path) -> dict[str, Any]:
    """The object in the folder's `plan.json`; callers check the entries that they need.

    Raises:
        InputError: the file does not exist, or is damaged.
        StorageError: the file cannot be read.
    """
    folder = committed(folder)
    path = folder / "plan.json"
    try:
        if not path.exists():
            raise InputError(_no_plan(folder))
        record = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(_no_plan(folder)) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    except BroadloomError:
        raise
    except OSError as error:
        raise error_from_os(f"{path} cannot be read", error) from error
    if not isinstance(record, dict):
        raise InputError(f"{path} is not a plan's record; it was not written by broadloom, or is damaged")
    return record


def read_toml(path: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        InputError: the file does not exist, or is not TOML.
        StorageError: the file cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise error_from_os(f"{path} cannot be read", error) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error


def write_file(
    path: str | Path, content: bytes, mode: int | None = None, owner: tuple[int, int] | None = None
) -> None:
    """Write a file by one rename, and the folders above it; a symbolic link keeps pointing to the file.

    Args:
        path: the file.
        content: its bytes.
        mode: its permissions; None: as for any new file.
        owner: its user and group, by number; None: as for any new file, and where files have no owner.

    Raises:
        InputError: `path` is not a path or exists and is not a file, or one of its parents is not a folder.
        StorageError: the file cannot be written.
    """
    location = as_path(path)
    if isinstance(location, RemotePath):
        location.write_bytes(content)
        return
    target = location.resolve()
    if target.exists() and not target.is_file():
        raise InputError(f"{target} exists and is not a file; choose another path")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}.new")
        if mode is not None:
            draft.touch(0o600)
        draft.write_bytes(content)
        if owner is not None and hasattr(os, "chown"):
            os.chown(draft, *owner)
        if mode is not None:
            draft.chmod(mode)
        draft.replace(target)
    except OSError as error:
        raise error_from_os(f"cannot write {target}", error) from error


def to_json_value(value: Any) -> Any:
    """The value in the types of JSON: arrays and tuples become lists, NaN and infinity become None.

    Examples:
        >>> import numpy as np
        >>> to_json_value({"degrees": np.array([1, 2]), "gap": np.inf})
        {'degrees': [1, 2], 'gap': None}
    """
    if isinstance(value, Mapping):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json_value(inner) for inner in value]
    numpy = sys.modules.get("numpy")  # a value can be of NumPy only if it is loaded
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return to_json_value(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def unpack(name: str, data: bytes, most: int = MOST_UNPACKED) -> bytes:
    """The content of a gzip file, unless it is damaged or unpacks to more than a limit.

    Raises:
        InputError: it is damaged, or too large.

    Examples:
        >>> import gzip
        >>> unpack("a.gz", gzip.compress(b"text"))
        b'text'
        >>> unpack("a.gz", gzip.compress(bytes(3000)), most=2000)
        Traceback (most recent call last):
        broadloom.errors.InputError: a.gz unpacks to more than 2,000 bytes; unpack it, and give parts of it
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            size = 0
            while size <= most and (block := file.read(_BLOCK)):  # not kept: a bomb needs no memory
                size += len(block)
            if size <= most:
                file.seek(0)
                return file.read()
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{name} is truncated or damaged ({error})") from error
    raise InputError(f"{name} unpacks to more than {most:,} bytes; unpack it, and give parts of it")
