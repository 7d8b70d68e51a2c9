"""A plan of moves: which client goes where, in steps, and what that gains."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from broadloom._version import VERSION
from broadloom.errors import InputError
from broadloom.storage import new_folder

FILE = "moves.json"
REST = "advice", "cost_before", "cost_after", "load", "capacity", "key"


class PlannedMove(NamedTuple):
    """A client that should move.

    Attributes:
        client: who.
        home: where it is.
        to: where it should be.
        gain: by how much that lowers the cost, when its turn comes; below 0 where it makes room for others.
        demand: what it sends and receives, which counts at both brokers while it moves.
    """

    client: str
    home: str
    to: str
    gain: float
    demand: float


@dataclass(frozen=True)
class MovePlan:
    """Moves in steps; those of one step may be made at the same time.

    Attributes:
        steps: the moves.
        blocked: moves for which there is no room.
        advice: what would free them.
        cost_before: what the present assignment costs.
        cost_after: what it costs after all steps.
        load: what each broker carries before.
        capacity: what each broker can carry.
        key: what this plan is called, so that a run of it can be taken up again, and of no other.

    Example:
        >>> import broadloom as bl
        >>> plan = bl.MovePlan(((("meter-1", "rome", "oslo", 2.0, 1.0),),), cost_before=5.0, cost_after=3.0)
        >>> plan.summary()
        '1 moves in 1 steps, cost 5 -> 3'
    """

    steps: tuple[tuple[PlannedMove, ...], ...]
    blocked: tuple[PlannedMove, ...] = ()
    advice: str = ""
    cost_before: float = 0.0
    cost_after: float = 0.0
    load: Mapping[str, float] = field(default_factory=dict)
    capacity: Mapping[str, float] = field(default_factory=dict)
    key: str = field(default_factory=lambda: secrets.token_hex(8), compare=False)

    def __post_init__(self) -> None:
        steps = tuple(tuple(PlannedMove(*move) for move in step) for step in self.steps)
        object.__setattr__(self, "steps", steps)
        object.__setattr__(self, "blocked", tuple(PlannedMove(*move) for move in self.blocked))

    @property
    def move_count(self) -> int:
        """How many moves there are in all steps."""
        return sum(map(len, self.steps))

    def summary(self) -> str:
        """The plan in a sentence."""
        blocked = f"; {len(self.blocked):,} blocked: {self.advice}" if self.blocked else ""
        return (
            f"{self.move_count:,} moves in {len(self.steps):,} steps, "
            f"cost {self.cost_before:.6g} -> {self.cost_after:.6g}{blocked}"
        )

    def record(self) -> dict[str, Any]:
        """The plan as JSON has it."""
        named = {
            "steps": [[move._asdict() for move in step] for step in self.steps],
            "blocked": [move._asdict() for move in self.blocked],
        }
        return {"broadloom": VERSION, "kind": "moves"} | asdict(self) | named

    def save(self, path: str | Path, overwrite: bool = False) -> None:
        """Write the plan as a folder with `moves.json`.

        Raises:
            InputError: there is something at `path` already.
        """
        with new_folder(Path(path), overwrite) as folder:
            (folder / FILE).write_text(json.dumps(self.record(), indent=2) + "\n")

    @classmethod
    def load_from(cls, path: str | Path) -> MovePlan:
        """Read a plan that was saved.

        Raises:
            InputError: it is not there, or no plan of moves.
        """
        place = Path(path) / FILE
        try:
            told = json.loads(place.read_text())
            steps = tuple(tuple(PlannedMove(**move) for move in step) for step in told["steps"])
            blocked = tuple(PlannedMove(**move) for move in told["blocked"])
            rest = {name: told[name] for name in REST}
            if not isinstance(rest["key"], str):
                raise TypeError(f"key is {rest['key']!r:.40}")
        except OSError as error:
            raise InputError(f"{place} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{place} is no plan of moves: {error!r:.80}") from error
        return cls(steps, blocked, **rest)
