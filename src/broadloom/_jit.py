"""One place for numba's options: every kernel of the package is compiled by `kernel`."""

import os
from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])

# Distributed workers may switch the on-disk cache off: filling it from many processes has crashed elsewhere.
CACHE = os.environ.get("BROADLOOM_KERNEL_CACHE", "1") != "0"


def kernel(function: F) -> F:
    """Compile `function` at its first call, and keep the machine code on disk for the next process.

    Kernels release the interpreter's lock, so plain threads run them side by side. No fastmath:
    the same input gives the same bits on every machine.
    """
    return cast(F, numba.njit(cache=CACHE, nogil=True, error_model="numpy")(function))


def inner_kernel(function: F) -> F:
    """Compile `function` into the kernels that call it; it neither makes nor returns arrays.

    A call would hand over every array of a tuple, and count a reference to each: more work than a short
    function does itself.
    """
    options = {"cache": CACHE, "nogil": True, "error_model": "numpy"}
    return cast(F, numba.njit(**options, forceinline=True, _nrt=False)(function))
