"""Display of a run of moves on a terminal: who moves, who waits, and how long."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

    from broadloom.agents.moves import RunProgress

MOST_ROWS = 15
MOST_PROBLEMS = 5


class MoveDisplay:
    """Table on standard error that follows a run; it shows nothing in a pipe.

    Args:
        quiet: whether to show nothing.
    """

    def __init__(self, quiet: bool) -> None:
        self._live: Any = None
        self._is_shown = not quiet and sys.stderr.isatty()

    def __enter__(self) -> MoveDisplay:
        if self._is_shown:
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, state: RunProgress) -> None:
        """Show a state."""
        if self._live is not None:
            self._live.update(progress_view(state))


def progress_view(state: RunProgress) -> Group:
    """A state of a run: a line of counts, the agent's problems, and a table of the moves that have begun."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(state.ended.items()))
    step = f"step {state.step:,} of {state.steps:,}"
    done = f"{sum(state.ended.values()):,} of {state.total:,} moves ended"
    line = f"{step}: {done}{f' ({counts})' if counts else ''}, {len(state.running):,} under way"
    table = Table(box=None, pad_edge=False)
    for name in ("client", "from", "to", "state", "seconds", "waits for"):
        table.add_column(name, justify="right" if name == "seconds" else "left")
    for one in sorted(state.running, key=lambda move: -move.seconds)[:MOST_ROWS]:
        move = one.move
        values = (move.client, move.home, move.to, one.state, f"{one.seconds:.0f}", one.note)
        table.add_row(*(Text(value) for value in values))
    if len(state.running) > MOST_ROWS:
        table.add_row(Text(f"and {len(state.running) - MOST_ROWS:,} more"))
    problems = [Text(problem) for problem in state.problems[:MOST_PROBLEMS]]
    if len(state.problems) > MOST_PROBLEMS:
        problems.append(Text(f"and {len(state.problems) - MOST_PROBLEMS:,} more problems"))
    return Group(Text(line), *problems, table)
