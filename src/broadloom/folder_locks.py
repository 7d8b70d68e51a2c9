"""Locks of folders, and flushing of files and folders to the disk, on POSIX systems and on Windows.

POSIX systems lock the folder itself. Windows cannot open a folder, so the lock is on a file next to it, named
`.<folder>.lock`. In both cases the operating system releases the lock if the process dies.
"""

import errno
import os
import sys
from pathlib import Path

BINARY = getattr(os, "O_BINARY", 0)  # on Windows, `os.open` translates line ends without it

if sys.platform == "win32":
    import msvcrt

    def lock_handle(folder: Path, wait: bool = False) -> int:
        """Lock a folder and return a handle; `os.close` of the handle releases the lock.

        Raises:
            BlockingIOError: another handle holds the lock, and `wait` is false.
            OSError: the folder cannot be opened.
        """
        if not folder.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
        handle = os.open(_lock_file(folder), os.O_RDWR | os.O_CREAT | BINARY)
        while True:
            try:
                msvcrt.locking(handle, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
            except OSError as error:
                if wait:  # it gives up after ten seconds
                    continue
                os.close(handle)
                raise BlockingIOError(errno.EWOULDBLOCK, "the lock is held", str(folder)) from error
            return handle

    def unlock_handle(handle: int) -> None:
        """Release a lock and close its handle."""
        os.close(handle)

    def forget_lock(folder: Path) -> None:
        """Remove what the lock of a folder, now released, left on the disk."""
        _lock_file(folder).unlink(missing_ok=True)

    def sync_path(path: Path) -> None:
        """Flush a file to the disk; Windows does this for the entries of a folder itself."""
        if path.is_dir():
            return
        handle = os.open(path, os.O_RDWR | BINARY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _lock_file(folder: Path) -> Path:
        return folder.parent / f".{folder.name}.lock"

else:
    import fcntl

    def lock_handle(folder: Path, wait: bool = False) -> int:
        """Lock a folder and return a handle; `os.close` of the handle releases the lock.

        Raises:
            BlockingIOError: another handle holds the lock, and `wait` is false.
            OSError: the folder cannot be opened.
        """
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            os.close(handle)
            raise
        return handle

    def unlock_handle(handle: int) -> None:
        """Release a lock and close its handle, even if a forked process has inherited it."""
        fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)

    def forget_lock(folder: Path) -> None:
        """Remove what the lock of a folder, now released, left on the disk: nothing."""

    def sync_path(path: Path) -> None:
        """Flush a file, or the entries of a folder, to the disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
