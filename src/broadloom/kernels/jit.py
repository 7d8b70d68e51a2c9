"""Kernels: functions that run as plain Python on small inputs and are compiled by numba for all others.

Numba takes half a second to import and up to a second to compile one kernel, while plain Python plans five
brokers in milliseconds. So a call with small arrays runs the function as it is, and numba is imported when
the first larger call comes, or when the small calls of the process have taken too long together
(`PlainLimits`). Both give the same result; tests compare them.
"""

import functools
import hashlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, overload

import numpy as np

from broadloom.errors import InputError, StorageError
from broadloom.folder_locks import lock_handle, unlock_handle
from broadloom.progress import notice, stage

F = TypeVar("F", bound=Callable[..., object])

# auto; compiled: never run a kernel as plain Python; plain: never compile, to debug a kernel.
MODES = ("auto", "compiled", "plain")
MODE = os.environ.get("BROADLOOM_KERNELS") or "auto"
if MODE not in MODES:
    raise InputError(f"BROADLOOM_KERNELS is {MODE!r}; set it to {', '.join(MODES[:-1])} or {MODES[-1]}")

PACKAGE = Path(__file__).parents[1]

# Whether machine code is kept on disk for the next process. Workers of a cluster can switch it off.
CACHE = os.environ.get("BROADLOOM_KERNEL_CACHE", "1") != "0"


class PlainLimits(NamedTuple):
    """The most work of a call that runs as plain Python, and the most seconds of all such calls.

    Work is counted in array elements.
    """

    work: int
    seconds: float


# Loading the kernels of a stage from disk takes about a second; compiling them takes half a minute. The cold
# limits hold until a process loads numba; then it compiles the rest too, for the next process.
WARM_LIMITS = PlainLimits(20_000, 0.5)
COLD_LIMITS = PlainLimits(150_000, 5.0)

# No kernel is called from C, and each wrapper takes time to compile.
OPTIONS = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}
INNER_OPTIONS = {"forceinline": True, "_nrt": False, "no_cpython_wrapper": True}

# Events of numba: a thread waits for or holds its lock; a function is compiled (not loaded from disk).
LOCK = "numba:compiler_lock"
COMPILE = "numba:compile"

NOTICE = (
    "Broadloom compiles the kernels that this needs, once; it can take a minute."
    " `broadloom compile` compiles all of them beforehand."
)


@overload
def kernel(function: F) -> F: ...
@overload
def kernel(*, cost: int | Callable[..., float]) -> Callable[[F], F]: ...
def kernel(function: Any = None, *, cost: int | Callable[..., float] = 1) -> Any:
    """Run `function` as plain Python on small inputs, and compile it at its first call with a larger one.

    Kernels release the interpreter's lock, so plain threads run them in parallel. No fastmath: the same
    input gives the same bits on every machine. `cost` is the work per array element; 1 is about 10
    microseconds of plain Python. If the work grows faster than the arrays, `cost` is a function that gives
    the work of a call from its arguments.
    """
    if function is None:
        return functools.partial(Kernel, cost=cost)
    return Kernel(function)


@overload
def inner_kernel(function: F) -> F: ...
@overload
def inner_kernel(*, plain: Callable[..., object]) -> Callable[[F], F]: ...
def inner_kernel(function: Any = None, *, plain: Any = None) -> Any:
    """Compile `function` into the kernels that call it; it must neither create nor return arrays.

    A real call would pass every array of a tuple and count a reference to each, which takes longer than a
    short function itself. `plain` is a faster function for plain Python with the same result.
    """
    if function is None:
        return functools.partial(InnerKernel, plain=plain)
    return InnerKernel(function)


class InnerKernel:
    """A function that is compiled into other kernels; a call from Python runs it as plain Python."""

    options: Mapping[str, object] = OPTIONS | INNER_OPTIONS

    def __init__(self, function: Callable[..., Any], plain: Callable[..., Any] | None = None) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self._plain = plain or function
        self._dispatcher: Any = None

    def __call__(self, *arguments: Any) -> Any:
        """Run the function as plain Python."""
        return self._plain(*arguments)

    def __reduce__(self) -> str:
        return self.function.__qualname__  # pickled by name, as functions are

    @property
    def dispatcher(self) -> Any:
        """Numba's object for the function, made at the first use."""
        if self._dispatcher is None:
            self._dispatcher = _njit(self.function, self.options)
        return self._dispatcher


class Kernel(InnerKernel):
    """A function that chooses between plain Python and compiled code at each call, until it is compiled."""

    options = OPTIONS

    def __init__(self, function: Callable[..., Any], cost: int | Callable[..., float] = 1) -> None:
        super().__init__(function)
        self.is_compiled = False
        self._cost = cost

    def __call__(self, *arguments: Any) -> Any:
        """Run the function, compiled or as plain Python."""
        if self.is_compiled and MODE != "plain":
            return self.dispatcher(*arguments)
        if _thread.runs_plain_python:
            return self.function(*arguments)
        if self._is_small(arguments):
            return _run_plain_python(self.function, arguments)
        self.is_compiled = True
        return self.dispatcher(*arguments)

    def _is_small(self, arguments: tuple[Any, ...]) -> bool:
        """Whether a call with these arguments runs as plain Python."""
        if _compiling_blocks or MODE == "compiled":
            return False
        if MODE == "plain":
            return True
        work = self._cost(*arguments) if callable(self._cost) else _elements(arguments) * self._cost
        if work <= WARM_LIMITS.work and _plain_seconds <= WARM_LIMITS.seconds:
            return True
        name = f"{self.function.__module__.rpartition('.')[2]}.{self.function.__qualname__}"
        limits = WARM_LIMITS if numba_is_loaded() or name in _kernels_on_disk() else COLD_LIMITS
        return work <= limits.work and _plain_seconds <= limits.seconds


class _ThreadState(threading.local):
    """Whether this thread is inside of a kernel that runs as plain Python."""

    runs_plain_python = False


_thread = _ThreadState()
_plain_seconds = 0.0  # the time that kernels have run as plain Python in this process
_compiling_blocks = 0  # blocks of `always_compiled` that run now
_temporary: tempfile.TemporaryDirectory[str] | None = None  # holds the cache if nothing else can be written


def _elements(arguments: tuple[Any, ...]) -> int:
    """The number of array elements in arguments; tuples of arrays count too."""
    total = 0
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            total += argument.size
        elif isinstance(argument, tuple):
            total += _elements(argument)
    return total


def _run_plain_python(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Call a function as plain Python; kernels that it calls run as plain Python too."""
    global _plain_seconds
    start = time.thread_time()
    try:
        _thread.runs_plain_python = True
        with np.errstate(all="ignore"):  # compiled code does not warn of an overflow either
            return function(*arguments)
    finally:
        _thread.runs_plain_python = False
        _plain_seconds += time.thread_time() - start


@contextmanager
def always_compiled() -> Iterator[None]:
    """Compile, or load from disk, every kernel that the block calls."""
    global _compiling_blocks
    with _setting_up:
        _compiling_blocks += 1
    try:
        yield
    finally:
        with _setting_up:
            _compiling_blocks -= 1


def compiled_count() -> int:
    """The number of kernels that this process has compiled; those that it loaded from disk do not count."""
    return _Compilation.count


def folder_of_kernels() -> Path:
    """The folder that keeps compiled kernels.

    Raises:
        InputError: BROADLOOM_KERNEL_CACHE=0 is set, so that no compiled kernels are kept.
        StorageError: no folder can be written.
    """
    if not CACHE:
        raise InputError("BROADLOOM_KERNEL_CACHE is 0, so kernels are not kept; set it to 1, or remove it")
    folder = _cache_folder()
    if folder is None or _temporary is not None:
        tried = " and ".join(map(str, _cache_parents()))
        raise StorageError(f"{tried} cannot be written; set NUMBA_CACHE_DIR to a folder for compiled kernels")
    return folder


def numba_is_loaded() -> bool:
    """Whether a kernel of this process has been compiled or loaded from disk."""
    return "numba" in sys.modules


def compiled_for(kernel: F, *arguments: object) -> F:
    """The kernel, for a call that is repeated very often with arguments of exactly these types.

    If the kernel is compiled, this is its machine code for these types; it saves the lookup of types, which
    takes microseconds for a tuple of many arrays. Calls do not check the types.
    """
    chosen = cast(Kernel, kernel)
    if not chosen.is_compiled:
        return kernel
    code: F = chosen.dispatcher.compile(tuple(map(_numba().typeof, arguments)))
    return code


@cache
def _numba() -> Any:
    """The module numba; imported late, since that takes half a second."""
    import numba
    from numba.core import event
    from numba.extending import typeof_impl

    @typeof_impl.register(InnerKernel)  # type: ignore[untyped-decorator]
    def type_of_kernel(kernel: InnerKernel, context: Any) -> Any:
        return typeof_impl(kernel.dispatcher, context)

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            if event.kind == LOCK:
                _compilation.lock_requested()
            elif event.data["dispatcher"].py_func in _functions:
                _compilation.start()

        def on_end(self, event: Any) -> None:
            if event.kind == LOCK:
                _compilation.lock_released()
            elif event.data["dispatcher"].py_func in _functions:
                _compilation.end()

    for kind in (LOCK, COMPILE):
        event.register(kind, Listener())
    return numba


class _Compilation(threading.local):
    """Compilation of a kernel by this thread: its progress, and a lock while its machine code is saved.

    Numba saves a kernel right after its compilation, in two steps; between them another process could use the
    same file name.
    """

    count = 0  # of this process

    def __init__(self) -> None:
        self.depth = 0  # of numba's lock
        self.shown: ExitStack | None = None
        self.saving: ExitStack | None = None
        self.saving_depth = 0

    def lock_requested(self) -> None:
        """Called before this thread waits for numba's lock."""
        self.depth += 1

    def start(self) -> None:
        """Called when the compilation of a kernel starts."""
        if self.shown is None:
            _Compilation.count += 1
            if _Compilation.count == 1:
                notice(NOTICE)
            self.shown = ExitStack()
            self.shown.enter_context(stage(f"compiling kernels, once ({_Compilation.count} so far)"))

    def end(self) -> None:
        """Called when a kernel has been compiled, before it is saved."""
        if self.saving is None:
            self.saving = ExitStack()
            self.saving.enter_context(_locked(_cache_folder()))
            self.saving_depth = self.depth

    def lock_released(self) -> None:
        """Called after this thread has released numba's lock."""
        self.depth -= 1
        if self.saving is not None and self.depth < self.saving_depth:
            self.saving.close()
            self.saving = None
        if self.shown is not None and self.depth == 0:
            self.shown.close()
            self.shown = None


_compilation = _Compilation()
_setting_up = threading.Lock()  # held while numba is imported and its settings are changed
_functions: set[Callable[..., Any]] = set()  # those of kernels; numba compiles others too


def _njit(function: Callable[..., Any], options: Mapping[str, object]) -> Any:
    """Numba's object for a function; its machine code is kept in `_cache_folder`."""
    with _setting_up:
        numba = _numba()
        folder = _cache_folder()
        _functions.add(function)
        if folder is None:
            return numba.njit(**options)(function)
        setting = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)
        try:
            return numba.njit(cache=True, **options)(function)
        finally:
            numba.config.CACHE_DIR = setting


@cache
def _cache_folder() -> Path | None:
    """The folder for the machine code of this version of the package; None if nothing can be written.

    Numba checks only the file that defines a kernel, but kernels of other files are compiled into it. So the
    folder's name has a hash of all files with kernels. Folders of earlier versions are removed. Numba reads
    only folders that it can write, so one that another user has filled is copied.
    """
    global _temporary
    if not CACHE:
        return None
    owner = hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:8]
    version = f"kernels-{owner}-{_stamp_of_kernel_files()}"
    processor = os.environ.get("NUMBA_CPU_NAME", "host")
    name = f"{version}-{sys.implementation.cache_tag}-{processor}"
    filled: Path | None = None  # a folder that can only be read
    for parent in _cache_parents():
        folder = parent / name
        try:
            if not folder.exists():
                _make_folder(folder, filled)
                for earlier in parent.glob(f"kernels-{owner}-*"):
                    if not earlier.name.startswith(version):
                        shutil.rmtree(earlier, ignore_errors=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
        filled = filled or folder
    if filled is None:
        return None
    _temporary = tempfile.TemporaryDirectory(prefix="broadloom-")
    folder = Path(_temporary.name, name)
    _make_folder(folder, filled)
    return folder


def _make_folder(folder: Path, source: Path | None) -> None:
    """Create a folder for kernels, with those of another folder if there is one; it appears as a whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if source is None:
        folder.mkdir(exist_ok=True)
        return
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".kernels-") as scratch:
        copy = shutil.copytree(source, Path(scratch, "copy"))
        with suppress(FileExistsError):  # another process was quicker
            copy.rename(folder)


@cache
def _kernels_on_disk() -> frozenset[str]:
    """The names of the kernels whose machine code was on disk when this process first asked."""
    folder = _cache_folder()
    files = () if folder is None else folder.rglob("*.nbi")  # like module.function-12.py311.nbi
    return frozenset(file.name.rpartition("-")[0] for file in files)


def _cache_parents() -> Iterator[Path]:
    """The folders that can hold the cache, best first."""
    setting = os.environ.get("NUMBA_CACHE_DIR")
    if setting:
        yield Path(setting)
        return
    yield PACKAGE / "__pycache__"
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with suppress(RuntimeError):  # a user without a home
        yield Path(base).expanduser() / "broadloom"


def _stamp_of_kernel_files() -> str:
    """A hash of all files of the package that use `broadloom.kernels`."""
    texts = (file.read_bytes() for file in sorted(PACKAGE.rglob("*.py")))
    kernels = b"".join(text for text in texts if b"broadloom.kernels" in text)
    return hashlib.sha256(kernels).hexdigest()[:16]


@contextmanager
def _locked(folder: Path | None) -> Iterator[None]:
    """Run the block while no other process runs one on the same folder."""
    handle = None
    if folder is not None:
        with suppress(OSError):  # some network disks have no locks
            handle = lock_handle(folder, wait=True)
    try:
        yield
    finally:
        if handle is not None:
            unlock_handle(handle)
