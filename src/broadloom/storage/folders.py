"""Folders that appear whole or not at all."""

import ctypes
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broadloom.errors import InputError

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# What Broadloom writes: a folder that holds anything else is somebody's, and is never replaced.
_OURS = (".parquet", ".json", ".html")


@contextmanager
def new_folder(path: Path, overwrite: bool = False, endings: tuple[str, ...] = _OURS) -> Iterator[Path]:
    """A scratch folder beside `path` that takes its place, by one rename, when the block ends well.

    If the block fails, or the process dies in it, what was at `path` is as it was. Only a folder whose files
    have no other endings than these is ever replaced.

    Raises:
        InputError: `path` is there already and `overwrite` is false, or it is not a folder that Broadloom
            wrote, or it cannot be written.
    """
    path = path.resolve()
    _check_place(path, overwrite, endings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path)
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent))
        scratch.chmod(0o777 & ~_umask())
    except OSError as error:
        raise InputError(f"cannot write to {path.parent}: {error.strerror}") from error
    try:
        with _locked(scratch):
            yield scratch
            _sync(scratch)
            _put(scratch, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_place(path: Path, overwrite: bool, endings: tuple[str, ...]) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path} is a file; choose a folder")
    foreign = sorted(entry.name for entry in path.iterdir() if entry.suffix not in endings)
    if foreign:
        raise InputError(f"{path} holds {foreign[0]!r}, which is not Broadloom's; choose another place")
    if not overwrite:
        raise InputError(f"{path} is there already; choose another place or ask for it to be overwritten")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder, which the system lets go of if this process dies."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _sweep(path: Path) -> None:
    """Remove scratch folders that nobody holds a lock on: their processes died."""
    for left in path.parent.glob(f".{path.name}.*.new"):
        try:
            handle = os.open(left, os.O_RDONLY)
        except FileNotFoundError:  # somebody else has just put it at its place
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(handle)


def _umask() -> int:
    """The mask of new files, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
        old = scratch.with_suffix(".old.new")
        path.rename(old)
        scratch.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one step; false where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
