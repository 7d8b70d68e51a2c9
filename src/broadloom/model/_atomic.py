"""Files and folders that appear whole or not at all."""

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broadloom.errors import InputError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextmanager
def new_folder(path: Path, overwrite: bool = False) -> Iterator[Path]:
    """A scratch folder beside `path` that takes its place, by one rename, when the block ends well.

    If the block fails, or the process dies in it, what was at `path` is as it was.

    Raises:
        InputError: `path` is there already and `overwrite` is false, or it cannot be written.
    """
    path = path.absolute()
    if path.exists() and not overwrite:
        raise InputError(f"{path} is there already; choose another place or ask for it to be overwritten")
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        scratch.mkdir()
    except OSError as error:
        raise InputError(f"cannot write to {path.parent}: {error.strerror}") from error
    try:
        yield scratch
        _sync(scratch)
        _put(scratch, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _sweep(path: Path) -> None:
    """Remove what processes that died have left."""
    for left in path.parent.glob(f".{path.name}.*.new"):
        owner = left.name.split(".")[-2]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(left, ignore_errors=True)


def _sync(folder: Path) -> None:
    """Bring every file of the folder, and its entries, to the disk before the rename."""
    for place in (*folder.rglob("*"), folder):
        handle = os.open(place, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _put(scratch: Path, path: Path) -> None:
    """Rename, or exchange the two folders if there is one at `path`: a reader sees the old or the new one."""
    if not path.exists():
        scratch.rename(path)
    elif not _exchange(scratch, path):
        old = scratch.with_suffix(".old")
        path.rename(old)
        scratch.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one step; false where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
