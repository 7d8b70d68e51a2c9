"""Plain threads over ranges of independent outputs; kernels release the interpreter's lock."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def thread_count() -> int:
    """How many threads kernels may use: `BROADLOOM_THREADS`, or as many as this process has cores."""
    asked = os.environ.get("BROADLOOM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else len(os.sched_getaffinity(0))


def over_ranges(count: int, work: Callable[[int, int], object], chunks_per_thread: int = 8) -> None:
    """Call `work(first, last)` on ranges that together cover `range(count)`, on all threads.

    The first range is done before the others start, so that a kernel is compiled once.
    """
    threads = thread_count()
    step = max(1, -(-count // (threads * chunks_per_thread)))
    ranges = [(first, min(first + step, count)) for first in range(0, count, step)]
    if not ranges:
        return
    work(*ranges[0])
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda bounds: work(*bounds), ranges[1:]))
