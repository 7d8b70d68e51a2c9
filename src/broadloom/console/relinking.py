"""Re-link in the background: a process of its own, which can be cancelled.

As a program, `python -m broadloom.console.relinking FOLDER`, it re-links the situation in a folder.
"""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from broadloom.console.measuring import background_process, begin_background
from broadloom.console.what_if import Situation, relinked_plan
from broadloom.errors import BroadloomError
from broadloom.plans import Plan

RUNNING, DONE, CANCELLED, FAILED = "running", "done", "cancelled", "failed"
_QUESTION, _ANSWER = "situation.pickle", "plan.pickle"


class Relinking:
    """The computation of a better overlay of a situation.

    Args:
        situation: the situation; it is written to a temporary folder for the process.
        seed: the seed of linking.

    Attributes:
        state: "running", "done", "cancelled" or "failed", since the last `poll`.
        plan: the result, once it is done.
        error: why it failed.
    """

    def __init__(self, situation: Situation, seed: int) -> None:
        self.situation = situation
        self.state = RUNNING
        self.plan: Plan | None = None
        self.error = ""
        self._folder = Path(tempfile.mkdtemp(prefix="broadloom-relink-"))
        question = pickle.dumps((replace(situation, operations=(), effect=None), seed))
        (self._folder / _QUESTION).write_bytes(question)
        self._process = background_process(
            __name__, str(self._folder), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    def poll(self) -> str:
        """The state: "running", "done", "cancelled" or "failed"; once it is done, `plan` has the result."""
        if self.state == RUNNING and self._process.poll() is not None:
            made = self._folder / _ANSWER
            self.state = FAILED
            self.error = "the process has ended; try again"
            if self._process.returncode == 0 and made.exists():
                self.plan, self.error = pickle.loads(made.read_bytes())  # noqa: S301 (of our own process)
                self.state = DONE if self.plan is not None else FAILED
            shutil.rmtree(self._folder, ignore_errors=True)
        return self.state

    def cancel(self) -> None:
        """Stop the process; its result is lost."""
        if self.poll() == RUNNING:
            self._process.kill()
            self._process.wait()
            self.state = CANCELLED
            shutil.rmtree(self._folder, ignore_errors=True)


def main(folder: Path) -> None:
    """Compute the re-link of the situation in a folder, and write its plan there."""
    begin_background()
    situation, seed = pickle.loads((folder / _QUESTION).read_bytes())  # noqa: S301 (of our own process)
    plan: Plan | None = None
    error = ""
    try:
        plan = relinked_plan(situation, seed)
    except BroadloomError as refused:
        error = str(refused)
    part = folder / "part"
    part.write_bytes(pickle.dumps((plan, error)))
    part.rename(folder / _ANSWER)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
