"""Crash test of maintenance: kill a process at random times, and count lost and repeated changes.

    python benchmarks/_kills.py FOLDER TIMES SEED

Each time, a child process loads the overlay, continues with the events, and reports each acknowledged change.
It is killed with SIGKILL while it loads, changes or saves. A change is lost if it was reported but the next
child does not load it. In the end the overlay must equal that of a run without kills.
"""

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import broadloom as bl
from broadloom.maintenance import changes_of

ROUNDS = 5000
SAVE_EVERY = 40
MIN_CHANGES = 2  # changes that a child makes before it is killed at work, even on a slow disk


def main(folder: str, times: int, seed: int) -> None:
    """Kill `times` children, compare the overlay with a run without kills, and print one JSON object."""
    interest = bl.workload.interest(nodes=60, topics=20, sizes=(2, 6), seed=seed)
    events = bl.workload.churn(interest, rounds=ROUNDS, change=0.2, seed=seed)
    path = Path(folder) / "live"
    rng = random.Random(seed)
    live = bl.maintain(interest)
    live.save(path)
    live.apply(events[:20])  # compiles all kernels before the first fork
    live.close()
    counts = {"kills": times, "lost": 0, "twice": 0, "while_loading": 0}
    acknowledged = 20
    for _ in range(times):
        at_work = rng.random() < 0.75  # otherwise it can be killed while it loads
        loaded, last = run_and_kill(path, events, rng.random() * (0.04 if at_work else 0.2), at_work)
        counts["while_loading"] += loaded is None
        if loaded is not None:
            counts["lost"] += max(0, acknowledged - loaded)
            # The kill can come between a change and its report, so one more than acknowledged is correct.
            counts["twice"] += max(0, loaded - acknowledged - 1)
            acknowledged = last
    with bl.Live.load(path) as live:
        done = changes_of(live)
        counts["lost"] += max(0, acknowledged - done)
        undisturbed = bl.maintain(interest)
        undisturbed.apply(events[:done])
        same_edges = live.edges.tolist() == undisturbed.edges.tolist()
        same = same_edges and live.counts == undisturbed.counts
    print(json.dumps(counts | {"changes": done, "same_as_without_kills": same}))


def run_and_kill(path: Path, events: tuple, seconds: float, at_work: bool) -> tuple[int | None, int]:
    """Start a child, kill it, and return the number of changes that it loaded and the last that it reported.

    The first number is None if the child was killed before it had loaded. The kill comes `seconds` after the
    start or, if `at_work`, `seconds` after the child has loaded and made a few changes.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        apply_events(path, events, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = [pipe.readline() for _ in range(1 + MIN_CHANGES)] if at_work else []
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        numbers = [int(line) for line in (*lines, *pipe) if line]
    return (numbers[0], numbers[-1]) if numbers else (None, 0)


def apply_events(path: Path, events: tuple, writing: int) -> None:
    """Load the overlay and apply further events, with one line per acknowledged change, until killed."""
    live = bl.Live.load(path)
    done = changes_of(live)
    os.write(writing, f"{done}\n".encode())
    for number, event in enumerate(events[done:], start=done + 1):
        live.apply([event])
        os.write(writing, f"{number}\n".encode())
        if number % SAVE_EVERY == 0:
            live.save()
    os.close(writing)  # all events are applied; wait for the kill
    select.select([], [], [])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
