"""One place for numba's options: every kernel of the package is compiled by `kernel`."""

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

# Distributed workers may switch the on-disk cache off: filling it from many processes has crashed elsewhere.
CACHE = os.environ.get("BROADLOOM_KERNEL_CACHE", "1") != "0"


# Nobody calls a kernel from C, and each way into one takes time to compile.
OPTIONS = {"cache": CACHE, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


def kernel(function: F) -> F:
    """Compile `function` at its first call, and keep the machine code on disk for the next process.

    Kernels release the interpreter's lock, so plain threads run them side by side. No fastmath:
    the same input gives the same bits on every machine.
    """
    return _forgiving(numba.njit(**OPTIONS)(function))


def inner_kernel(function: F) -> F:
    """Compile `function` into the kernels that call it; it neither makes nor returns arrays.

    A call would hand over every array of a tuple, and count a reference to each: more work than a short
    function does itself. Only kernels can call it: called from
    Python it crashes.
    """
    return _forgiving(numba.njit(**OPTIONS, forceinline=True, _nrt=False, no_cpython_wrapper=True)(function))


def compiled_for(kernel: F, *arguments: object) -> F:
    """A kernel's machine code for arguments of these types, for a call that is made over and over.

    It spares the look-up of types, which takes microseconds for a tuple of many arrays. Nothing is checked
    any more: every later argument must be of the very same type.
    """
    code: F = kernel.compile(tuple(map(numba.typeof, arguments)))  # type: ignore[attr-defined]
    return code


def _forgiving(kernel: Any) -> Any:
    """Compile anew where the cache on disk is of another version, and let processes share it.

    Numba looks only at the file that a kernel is in, but kernels of other files are compiled into it; and
    where the types of a version are gone, it fails. It takes several steps to save a kernel, in which another
    process may give the same name to another one.
    """
    file = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if file is not None and hasattr(file, "_load_index"):
        load = file._load_index

        def load_or_nothing() -> Any:
            try:
                return load()
            except Exception:  # unpickling old types fails in as many ways as there are types
                return {}

        file._load_index = load_or_nothing
        file._source_stamp = file._source_stamp, _stamp_of_all()
        file.load, file.save = (_alone(work, file._cache_path) for work in (file.load, file.save))
    return kernel


def _alone(work: Callable[..., Any], folder: str) -> Callable[..., Any]:
    """Do `work` while no other process does so in this folder."""

    def locked(*given: Any) -> Any:
        try:
            handle = os.open(folder, os.O_RDONLY)
        except OSError:  # there is nothing yet
            return work(*given)
        try:
            with suppress(OSError):  # some network disks have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            return work(*given)
        finally:
            with suppress(OSError):  # at once, also if a child of ours has inherited the handle
                fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    return locked


@lru_cache
def _stamp_of_all() -> str:
    """Tells versions of the package apart by what is in its files of kernels."""
    texts = (file.read_bytes() for file in sorted(Path(__file__).parents[1].rglob("*.py")))
    return hashlib.sha256(b"".join(text for text in texts if b"broadloom.kernels" in text)).hexdigest()
