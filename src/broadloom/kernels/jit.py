"""Numba options and on-disk cache: every kernel of the package is compiled by `kernel` or `inner_kernel`.

This is the only module that uses private parts of numba (`CACHE_PARTS`, `OPTIONS`, `INNER_OPTIONS`);
tests/test_kernels.py fails if a new version of numba does not have them.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., object])

# Distributed workers can switch the on-disk cache off: other projects have seen crashes of processes that
# filled one cache at the same time.
CACHE = os.environ.get("BROADLOOM_KERNEL_CACHE", "1") != "0"

# No kernel is called from C, and each wrapper takes time to compile.
OPTIONS = {"cache": CACHE, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
INNER_OPTIONS = {"forceinline": True, "_nrt": False, "no_cpython_wrapper": True}

# The private attributes of numba's cache file that `_share_cache` uses.
CACHE_PARTS = ("_load_index", "_source_stamp", "_cache_path", "load", "save")


def kernel(function: F) -> F:
    """Compile `function` at its first call, and keep the machine code on disk for the next process.

    Kernels release the interpreter's lock, so plain threads run them in parallel. No fastmath: the same
    input gives the same bits on every machine.
    """
    return _share_cache(numba.njit(**OPTIONS)(function))


def inner_kernel(function: F) -> F:
    """Compile `function` into the kernels that call it; it must neither create nor return arrays.

    A real call would pass every array of a tuple and count a reference to each, which takes longer than a
    short function itself. Only kernels can call it; a call from Python crashes.
    """
    return _share_cache(numba.njit(**OPTIONS, **INNER_OPTIONS)(function))


def compiled_for(kernel: F, *arguments: object) -> F:
    """The machine code of a kernel for arguments of these types, for a call that is repeated very often.

    It saves the look-up of types, which takes microseconds for a tuple of many arrays. Calls do not check the
    types: the arguments must have exactly the types of `arguments`.
    """
    code: F = kernel.compile(tuple(map(numba.typeof, arguments)))  # type: ignore[attr-defined]
    return code


def cache_file_of(kernel: Any) -> Any:
    """Numba's object for a kernel's files on disk, or None if the kernel is not cached."""
    return getattr(getattr(kernel, "_cache", None), "_cache_file", None)


def _share_cache(kernel: Any) -> Any:
    """Make a kernel's cache on disk safe across versions of the package and between processes.

    Numba checks only the file that defines a kernel, but kernels of other files are compiled into it; so the
    stamp of all kernel files is added. Numba fails on cached types that no longer exist; so an unreadable
    index counts as empty. Numba saves a kernel in several steps, between which another process can use the
    same file name; so loading and saving hold a lock.
    """
    file = cache_file_of(kernel)
    if file is None or not all(hasattr(file, part) for part in CACHE_PARTS):
        return kernel
    load_index = file._load_index

    def load_index_or_nothing() -> Any:
        try:
            return load_index()
        except Exception:  # unpickling of types that no longer exist fails in many ways
            return {}

    file._load_index = load_index_or_nothing
    file._source_stamp = file._source_stamp, _stamp_of_kernel_files()
    file.load = _with_lock(file.load, file._cache_path)
    file.save = _with_lock(file.save, file._cache_path)
    return kernel


def _with_lock(function: Callable[..., Any], folder: str) -> Callable[..., Any]:
    """The function, run while no other process runs it on the same folder."""

    def locked(*arguments: Any) -> Any:
        try:
            handle = os.open(folder, os.O_RDONLY)
        except OSError:  # the folder does not exist yet
            return function(*arguments)
        try:
            with suppress(OSError):  # some network disks have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            return function(*arguments)
        finally:
            with suppress(OSError):  # closing is not enough if a child process has inherited the handle
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    return locked


@lru_cache
def _stamp_of_kernel_files() -> str:
    """A hash of all files of the package that use `broadloom.kernels`."""
    texts = (file.read_bytes() for file in sorted(Path(__file__).parents[1].rglob("*.py")))
    return hashlib.sha256(b"".join(text for text in texts if b"broadloom.kernels" in text)).hexdigest()
