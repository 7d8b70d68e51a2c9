"""Atomic folders, which appear complete or not at all, and the lock of a folder."""

import ctypes
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from broadloom.errors import BroadloomError, InputError, error_from_os
from broadloom.folder_locks import forget_lock, lock_handle, sync_path
from broadloom.storage.locations import RemotePath, as_path, new_remote_folder

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# The access rights that new entries of a folder inherit, as Linux stores them: all rights for everyone.
_INHERITED = "system.posix_acl_default"
_ALL_RIGHTS = struct.pack("<I" + 3 * "HHI", 2, *(part for tag in (1, 4, 32) for part in (tag, 7, 2**32 - 1)))
# Endings of the files that Broadloom writes; a folder with any other file is never replaced.
_OUR_ENDINGS = (".parquet", ".json", ".html")


def lock_folder(folder: Path) -> int:
    """Lock a folder and return its handle; the operating system releases the lock if this process dies.

    Raises:
        InputError: the folder does not exist, or another handle holds the lock.
        StorageError: the folder cannot be opened.
    """
    try:
        return lock_handle(folder)
    except BlockingIOError as error:
        raise InputError(f"{folder} is open already, here or in another process; close it first") from error
    except OSError as error:
        raise error_from_os(f"{folder} cannot be opened", error) from error


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing, for their owner only; others stay as they are.

    Raises:
        OSError: a folder cannot be made.
    """
    for folder in (*reversed(path.parents), path):
        if not folder.is_dir():
            folder.mkdir(mode=0o700, exist_ok=True)


def lock_private_folder(path: Path) -> int:
    """Make a folder for its owner only, if it is missing, and lock it as `lock_folder` does.

    Raises:
        InputError: the path is a file, or another handle holds the lock.
        StorageError: the folder cannot be made or opened.
    """
    try:
        private_folder(path)
    except OSError as error:
        raise error_from_os(f"{path} cannot be created", error) from error
    return lock_folder(path)


@contextmanager
def new_folder(
    path: Path, overwrite: bool = False, endings: tuple[str, ...] = _OUR_ENDINGS
) -> Iterator[Path]:
    """A scratch folder next to `path` that is renamed to `path` when the block ends without an error.

    If the block fails, or the process dies in it, whatever was at `path` stays as it was. A folder is
    replaced only if all its files have one of the `endings`, or are named so. In a remote store a manifest
    commits the folder instead of the rename (`broadloom.storage.locations`).

    Raises:
        InputError: `path` exists and `overwrite` is false, or it is not a folder that Broadloom wrote.
        StorageError: the folder cannot be written.
    """
    target = as_path(path)
    if isinstance(target, RemotePath):
        with new_remote_folder(target, overwrite) as data:
            yield as_path(data)
        return
    path = target.resolve()
    check_replaceable(path, overwrite, endings)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent))
        scratch.chmod(0o777 & ~_umask())
    except OSError as error:
        raise error_from_os(f"cannot write to {path.parent}", error) from error
    try:
        with _locked(scratch):
            yield scratch
            _close(scratch)
            _sync(scratch)
            _move_to(scratch, path)
    except (BroadloomError, ConnectionError):  # a lost connection is not a storage error
        raise
    except OSError as error:
        raise error_from_os(f"cannot write {path}", error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_replaceable(path: Path, overwrite: bool, endings: tuple[str, ...] = _OUR_ENDINGS) -> None:
    """Raise the error of `new_folder` now if it would refuse this `path`; a remote one is not looked at.

    Raises:
        InputError: `path` exists and `overwrite` is false, or it is not a folder that Broadloom wrote.
    """
    where = as_path(path)
    if isinstance(where, RemotePath):
        return
    path = where.resolve()
    if not path.exists():
        return
    if not path.is_dir():
        raise InputError(f"{path} is a file; choose a folder")
    foreign = sorted(
        entry.name for entry in path.iterdir() if entry.suffix not in endings and entry.name not in endings
    )
    if foreign:
        raise InputError(f"{path} holds {foreign[0]!r}, which is not Broadloom's; choose another folder")
    if not overwrite:
        raise InputError(f"{path} exists already; choose another, or replace it (--force, overwrite=True)")


def remove_path(path: Path) -> None:
    """Delete a file or folder, local or remote, if there is one."""
    where = as_path(path)
    if isinstance(where, RemotePath):
        where.remove()
    elif where.is_dir():
        shutil.rmtree(where)
    else:
        where.unlink(missing_ok=True)


@contextmanager
def scratch_folder(parent: Path, name: str) -> Iterator[Path]:
    """A hidden folder for intermediate files, for the block; those of processes that died are removed.

    Args:
        parent: the folder to make it in.
        name: a name for it; it is extended to be unique.
    """
    where = as_path(parent)
    if isinstance(where, RemotePath):
        remote = where / f"_{name}-{os.urandom(8).hex()}"  # Spark and Hadoop ignore what begins with "_"
        try:
            remote.mkdir()
            yield as_path(remote)
        finally:
            remote.remove()
        return
    try:
        where.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(where / name)
        scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", suffix=".new", dir=where))
    except OSError as error:
        raise error_from_os(f"cannot write to {where}", error) from error
    try:
        with _locked(scratch):
            yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def share_folder(folder: Path) -> None:
    """Let processes of all users write below a local folder until it is complete.

    Executors of a cluster often run as another user than the driver, and both move files of the other. The
    entries of the folder inherit the rights where the file system can do this. `new_folder` closes the
    folder again before it appears.
    """
    where = as_path(folder)
    if isinstance(where, RemotePath):
        return
    where.chmod(0o777)
    if hasattr(os, "setxattr"):
        try:
            os.setxattr(where, _INHERITED, _ALL_RIGHTS)
        except OSError:  # no inherited rights in this file system: the users need a common one
            return


def _close(folder: Path) -> None:
    """Give a shared folder, and our own entries in it, the rights of new files again."""
    if sys.platform != "linux":
        return
    if folder.stat().st_mode & 0o777 != 0o777:
        return
    mask = _umask()
    for path in (folder, *folder.rglob("*")):
        if path.stat().st_uid != os.getuid():
            continue
        if path.is_dir():
            with suppress(OSError):  # it has none
                os.removexattr(path, _INHERITED)
        path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on the folder; the operating system releases it if this process dies."""
    handle = lock_handle(folder, wait=True)
    try:
        yield
    finally:
        os.close(handle)
        forget_lock(folder)


def _remove_abandoned(path: Path) -> None:
    """Remove scratch folders of processes that died: those without a lock."""
    for scratch in path.parent.glob(f".{path.name}.*.new"):
        try:
            handle = lock_handle(scratch)
        except (FileNotFoundError, BlockingIOError, PermissionError):
            continue  # another process has just renamed it, or uses it, or it is that of another user
        try:
            shutil.rmtree(scratch, ignore_errors=True)
        finally:
            os.close(handle)
            forget_lock(scratch)


def _umask() -> int:
    """The permission mask of new files; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(folder: Path) -> None:
    """Flush every file of the folder, and the folder's entries, to the disk."""
    for path in (*folder.rglob("*"), folder):
        sync_path(path)


def _move_to(scratch: Path, path: Path) -> None:
    """Move `scratch` to `path`, so that a reader sees the old folder or the new one."""
    if not path.exists():
        scratch.rename(path)
    elif not _exchange(scratch, path):
        old = scratch.with_suffix(".old.new")
        path.rename(old)
        scratch.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths atomically; returns false if the operating system cannot do this."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
