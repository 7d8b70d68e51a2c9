"""Kills a process that maintains an overlay, at random times, over and over, and counts what got lost.

    python benchmarks/_kills.py FOLDER TIMES SEED

Each time a child loads the overlay and goes on with the events, telling of each change that is acknowledged;
it is killed without warning, while it loads, changes or saves. One that was told of and is not there when the
next child loads is lost. In the end the overlay must be that of a run which nobody killed.
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
AT_LEAST = 2  # changes that a child at work makes before it is killed, however slow the disk is


def main(folder: str, times: int, seed: int) -> None:
    """Kill, count, compare, and print one JSON object."""
    interest = bl.workload.interest(nodes=60, topics=20, sizes=(2, 6), seed=seed)
    events = bl.workload.churn(interest, rounds=ROUNDS, change=0.2, seed=seed)
    place, rng = Path(folder) / "live", random.Random(seed)
    live = bl.maintain(interest)
    live.save(place)
    live.apply(events[:20])  # compiles all kernels before the first fork
    live.close()
    found = {"kills": times, "lost": 0, "twice": 0, "while_loading": 0}
    told = 20
    for _ in range(times):
        at_work = rng.random() < 0.75  # otherwise it may be killed while it loads
        loaded, last = killed(place, events, rng.random() * (0.04 if at_work else 0.2), at_work)
        found["while_loading"] += loaded is None
        if loaded is not None:
            found["lost"] += max(0, told - loaded)
            found["twice"] += max(0, loaded - told - 1)  # one may have been on its way when it was killed
            told = last
    with bl.Live.load(place) as live:
        done = changes_of(live)
        found["lost"] += max(0, told - done)
        plain = bl.maintain(interest)
        plain.apply(events[:done])
        same = live.edges.tolist() == plain.edges.tolist() and live.counts == plain.counts
    print(json.dumps(found | {"changes": done, "same_as_without_kills": same}))


def killed(place: Path, events: tuple, seconds: float, at_work: bool) -> tuple[int | None, int]:
    """How many changes a child found when it had loaded (None: it had not), and of how many it told.

    It is killed so many seconds after it started or, `at_work`, after it had loaded and made a few changes.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        go_on(place, events, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        lines = [pipe.readline() for _ in range(1 + AT_LEAST)] if at_work else []
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        numbers = [int(line) for line in (*lines, *pipe) if line]
    return (numbers[0], numbers[-1]) if numbers else (None, 0)


def go_on(place: Path, events: tuple, writing: int) -> None:
    """Load the overlay and go on, one line a change that is acknowledged, until somebody kills us."""
    live = bl.Live.load(place)
    done = changes_of(live)
    os.write(writing, f"{done}\n".encode())
    for number, event in enumerate(events[done:], start=done + 1):
        live.apply([event])
        os.write(writing, f"{number}\n".encode())
        if number % SAVE_EVERY == 0:
            live.save()
    os.close(writing)  # there is nothing left to wait for
    select.select([], [], [])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
