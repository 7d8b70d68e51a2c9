"""Measuring process of the console: records of pages and longest paths; operations never wait for them.

As a program, `python -m broadloom.console.measuring`, it answers requests on its standard input.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from broadloom.errors import BroadloomError, InternalError
from broadloom.kernels import thread_count
from broadloom.plans import Plan

LOW_PRIORITY = 10
# Plans that the process remembers with their measures.
MOST_REMEMBERED = 8
_LENGTH = 8  # bytes of the length before each request and answer


class PathMeasures(NamedTuple):
    """Longest paths of a plan.

    Attributes:
        delay: the longest path of any topic, by weight.
        hops: the longest path of any topic, in hops.
    """

    delay: float
    hops: float


def background_process(module: str, *arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    """Start a module of the console as a process of low priority, which leaves one core to others."""
    environment = os.environ | {"BROADLOOM_THREADS": str(max(1, thread_count() - 1))}
    flags = getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0)  # of Windows
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, env=environment, creationflags=flags, **pipes)  # noqa: S603 (our own)


def begin_background() -> None:
    """Give this process a low priority, where that is possible; Ctrl-C is for the console, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(os, "nice"):
        os.nice(LOW_PRIORITY)


class MeasuringProcess:
    """A process that measures plans; it is started at once, and again if it dies.

    Calls can come from several threads; they are answered one after the other.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._over = False
        self._process = self._started()

    def record(self, plans: Mapping[str, Plan], title: str, unit: str) -> tuple[bytes, list[PathMeasures]]:
        """The record of a page as JSON, and the longest paths of its plans."""
        return self._call("record", plans, title, unit)

    def paths(self, plan: Plan) -> PathMeasures:
        """The longest paths of a plan."""
        return self._call("paths", {"": plan})

    def save(self, plan: Plan, folder: Path) -> None:
        """Write a plan to a folder, with its measures."""
        self._call("save", {"": plan}, folder)

    def close(self) -> None:
        """End the process; calls that wait for it fail."""
        self._over = True
        self._end()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _call(self, name: str, plans: Mapping[str, Plan], *arguments: Any) -> Any:
        request = pickle.dumps((name, {key: pickle.dumps(plan) for key, plan in plans.items()}, arguments))
        with self._lock:
            for _ in range(2):
                if self._over:
                    break
                try:
                    _send(self._process.stdin, request)
                    answer = _received(self._process.stdout)
                except (OSError, ValueError, EOFError):
                    self._end()
                    if not self._over:
                        self._process = self._started()
                    continue
                found, error = pickle.loads(answer)  # noqa: S301 (from our own process)
                if error is not None:
                    raise error
                return found
        raise InternalError("the process that measures plans has ended; start the console again")

    @staticmethod
    def _started() -> subprocess.Popen[bytes]:
        return background_process(__name__, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _send(pipe: BinaryIO | Any, data: bytes) -> None:
    pipe.write(len(data).to_bytes(_LENGTH, "big"))
    pipe.write(data)
    pipe.flush()


def _received(pipe: BinaryIO | Any) -> bytes:
    head = pipe.read(_LENGTH)
    data: bytes = pipe.read(int.from_bytes(head, "big"))
    if len(head) < _LENGTH or len(data) < int.from_bytes(head, "big"):
        raise EOFError
    return data


# In the process.


class _Measurer:
    """Answers requests; it remembers the last plans, whose measures are computed once."""

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, Plan] = OrderedDict()

    def answer(self, name: str, packed: Mapping[str, bytes], arguments: Sequence[Any]) -> Any:
        plans = {key: self._plan(data) for key, data in packed.items()}
        return getattr(self, name)(plans, *arguments)

    def _plan(self, data: bytes) -> Plan:
        digest = hashlib.sha256(data).digest()
        if digest not in self._known:
            self._known[digest] = pickle.loads(data)  # noqa: S301 (from our own process)
        self._known.move_to_end(digest)
        while len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return self._known[digest]

    @staticmethod
    def record(plans: Mapping[str, Plan], title: str, unit: str) -> tuple[bytes, list[PathMeasures]]:
        from broadloom.report import record_of

        made = json.dumps(record_of(plans, title, unit, repairs=False), allow_nan=False)
        return made.encode(), [_paths(plan) for plan in plans.values()]

    @staticmethod
    def paths(plans: Mapping[str, Plan]) -> PathMeasures:
        return _paths(plans[""])

    @staticmethod
    def save(plans: Mapping[str, Plan], folder: Path) -> None:
        plans[""].save(folder, overwrite=True)


def _paths(plan: Plan) -> PathMeasures:
    metrics = plan.metrics()
    return PathMeasures(metrics["weighted_max_diameter"], metrics["max_diameter"])


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    begin_background()
    measurer = _Measurer()
    _warm_up(measurer)
    while True:
        try:
            request = _received(requests)
        except EOFError:
            return
        name, packed, arguments = pickle.loads(request)  # noqa: S301 (from our own process)
        try:
            found, error = measurer.answer(name, packed, arguments), None
        except BroadloomError as refused:
            found, error = None, refused
        _send(answers, pickle.dumps((found, error)))


def _warm_up(measurer: _Measurer) -> None:
    """Load what records need, so that the first one is quick."""
    from broadloom.linking import link
    from broadloom.model import Interest

    measurer.record({"": link(Interest.from_lists([["a"], ["a"]]), algorithm="gm")}, "", "")


if __name__ == "__main__":
    from broadloom.console.measuring import main as answer_requests  # pickled classes have this module's name

    # Only answers go to the standard output: what else writes there, goes to the standard error.
    own = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    answer_requests(sys.stdin.buffer, own)
