"""Re-link in the background: a process of its own, which can be cancelled.

As a program, `python -m broadloom.console.relinking FOLDER`, it re-links the situation in a folder.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from broadloom.console.what_if import Situation, relinked_plan
from broadloom.plans import Plan

RUNNING, DONE, CANCELLED, FAILED = "running", "done", "cancelled", "failed"
RULES = ("cut", "forbidden", "pinned")


class Relinking:
    """The computation of a better overlay of a situation.

    Args:
        situation: the situation; its plan is written to a temporary folder for the process.
        seed: the seed of linking.
    """

    def __init__(self, situation: Situation, seed: int) -> None:
        self.situation = situation
        self.state = RUNNING
        self.plan: Plan | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="broadloom-relink-"))
        situation.plan.save(self._folder / "before")
        rules = {name: sorted(getattr(situation, name)) for name in RULES}
        settings = rules | {"limit": situation.limit, "seed": seed}
        (self._folder / "settings.json").write_text(json.dumps(settings))
        command = [sys.executable, "-m", __name__, str(self._folder)]
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def poll(self) -> str:
        """The state: "running", "done", "cancelled" or "failed"; once it is done, `plan` has the result."""
        if self.state == RUNNING and self._process.poll() is not None:
            made = self._folder / "after"
            if self._process.returncode == 0 and made.exists():
                self.plan = Plan.load(made)
                self.state = DONE
            else:
                self.state = FAILED
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
    settings = json.loads((folder / "settings.json").read_text())
    plan = Plan.load(folder / "before")
    cut, forbidden, pinned = (frozenset(map(tuple, settings[name])) for name in RULES)
    situation = Situation(
        plan, plan.weights, plan.nodes, cut=cut, forbidden=forbidden, pinned=pinned, limit=settings["limit"]
    )
    relinked_plan(situation, settings["seed"]).save(folder / "after")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
