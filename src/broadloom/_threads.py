"""How many threads the kernels may use. Results never depend on it."""

import os


def thread_count() -> int:
    """The processors this process may run on, or what BROADLOOM_THREADS says.

    Example:
        >>> thread_count() >= 1
        True
    """
    asked = os.environ.get("BROADLOOM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
