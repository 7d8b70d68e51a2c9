"""Plain threads over ranges of independent outputs; kernels release the interpreter's lock."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from broadloom.progress import stage


def thread_count() -> int:
    """The number of threads for kernels: `BROADLOOM_THREADS`, or the number of cores of this process."""
    setting = os.environ.get("BROADLOOM_THREADS", "")
    if setting.isdigit() and int(setting) > 0:
        return int(setting)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def over_ranges(
    count: int, work: Callable[[int, int], object], name: str, chunks_per_thread: int = 8
) -> None:
    """Call `work(first, last)` for ranges that together cover `range(count)`, on all threads.

    The first range is finished before the others start, so that a kernel is compiled once. `name` is shown
    as the name of the stage of work.
    """
    threads = thread_count()
    step = max(1, -(-count // (threads * chunks_per_thread)))
    ranges = [(first, min(first + step, count)) for first in range(0, count, step)]
    if not ranges:
        return
    with stage(name, count) as done, ThreadPoolExecutor(threads) as pool:
        work(*ranges[0])
        for (_, last), _ in zip(ranges[1:], pool.map(lambda part: work(*part), ranges[1:]), strict=True):
            done(last)
