"""Common parts of benchmarks: instances, measured runs in separate processes, claims, result files."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import broadloom as bl
from broadloom._version import VERSION

os.environ.setdefault("BROADLOOM_KERNELS", "compiled")  # a first tiny run compiles what is then measured

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SHARED = HERE.parents[1] / "shared"
DATA = Path(os.environ.get("BROADLOOM_DATA", SHARED / "data"))

# Files of measured latencies, by the name that instances use.
LATENCY = {
    "ripe": "latency_ripe_atlas631_2023-07-02.npz",
    "wonder": "latency_wondernetwork_2020-07-19.npz",
}
# The data has zeros between nodes in one city; they are raised to this.
FLOOR_MS = 0.5


@dataclass(frozen=True)
class Instance:
    """Parameters of a generated interest and weights."""

    nodes: int
    topics: int
    popularity: str = "unif"
    weights: str = "planar"
    sizes: tuple[int, int] = (20, 100)
    seed: int = 0

    def build(self) -> tuple[bl.Interest, bl.Weights]:
        """Generate the interest and the weights."""
        interest = bl.workload.interest(
            nodes=self.nodes,
            topics=self.topics,
            popularity=self.popularity,
            alpha=2.0,
            rate=5.0,
            sizes=tuple(self.sizes),
            seed=self.seed,
        )
        return interest, self._weights()

    def _weights(self) -> bl.Weights:
        if self.weights == "uniform":
            return bl.Weights.uniform(self.nodes)
        if self.weights in LATENCY:
            path = DATA / LATENCY[self.weights]
            return bl.workload.weights(self.nodes, path, seed=self.seed, missing="path", floor=FLOOR_MS)
        mean = 1.0 if self.weights == "planar" else None
        return bl.workload.weights(self.nodes, self.weights, mean=mean, seed=self.seed)

    def row(self) -> dict[str, Any]:
        """The columns of a table that describe the instance."""
        return {
            "nodes": self.nodes,
            "topics": self.topics,
            "popularity": self.popularity,
            "weights": self.weights,
        }


@dataclass(frozen=True)
class Task:
    """Work to time on an instance; `what` names a function of `_tasks.py`."""

    what: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def link(algorithm: str, **options: Any) -> Task:
    """The task of linking with an algorithm."""
    return Task("link", {"algorithm": algorithm, **options})


def measure(
    instance: Instance, tasks: Iterable[Task], rounds: int = 3, threads: int | None = None
) -> list[dict[str, Any]]:
    """Run the tasks on the instance, one after the other, `rounds` times, in a fresh process.

    The result of each task is what it returns, the least CPU and wall seconds of its rounds, and the peak
    memory of the process while it ran. A first run on a tiny instance, not timed, compiles the kernels.
    """
    work = {"instance": asdict(instance), "tasks": [asdict(task) for task in tasks], "rounds": rounds}
    environment = dict(os.environ, **({} if threads is None else {"BROADLOOM_THREADS": str(threads)}))
    done = subprocess.run(
        [sys.executable, HERE / "_worker.py"],
        input=json.dumps(work),
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode:
        raise RuntimeError(f"{instance}: {done.stderr}")
    return json.loads(done.stdout)


@dataclass
class Section:
    """Results of a part of a benchmark: rows of a table, claims that hold or not, and notes."""

    title: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def claim(
        self, text: str, measured: float, at_most: float | None = None, at_least: float | None = None
    ) -> None:
        """Compare a measured number with its limit."""
        holds = (at_most is None or measured <= at_most) and (at_least is None or measured >= at_least)
        limit = f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"
        self.claims.append({"claim": text, "asked": limit, "measured": measured, "holds": bool(holds)})


Sections = Mapping[str, Callable[[bool], Section]]


def run(name: str, sections: Sections) -> None:
    """The command line of a benchmark: run the requested sections, print and store their results."""
    parser = argparse.ArgumentParser(
        description=f"The {name} benchmark; results go to {RESULTS / name}.json."
    )
    parser.add_argument("--only", default=",".join(sections), help=f"of {', '.join(sections)}")
    parser.add_argument("--quick", action="store_true", help="small instances, one round; nothing is stored")
    options = parser.parse_args()
    unknown = set(options.only.split(",")) - set(sections)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(sections)}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    for part in options.only.split(","):
        section = sections[part](options.quick)
        if options.quick:
            section.claims.clear()  # claims are about the real instances
        else:
            keep(name, part, section)
        show(console, section)


def show(console: Console, section: Section) -> None:
    """Print a section's table and its claims."""
    for title, rows in ((section.title, section.rows), ("Claims", section.claims)):
        if rows:
            table = Table(*columns(rows), title=title)
            for row in rows:
                table.add_row(*(cell(row.get(column)) for column in columns(rows)))
            console.print(table)


def keep(name: str, part: str, section: Section) -> None:
    """Store a section in the result file; other sections stay."""
    path = RESULTS / f"{name}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    record[part] = asdict(section) | {"made_with": made_with()}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")


def kept(name: str, part: str) -> list[dict[str, Any]]:
    """The rows of a section in the result file; empty if it was never run."""
    path = RESULTS / f"{name}.json"
    record = json.loads(path.read_text()) if path.exists() else {}
    return record.get(part, {"rows": []})["rows"]


def made_with() -> dict[str, Any]:
    """The versions and the number of cores, on which results depend."""
    return {name: version(name) for name in ("numba", "numpy", "scipy")} | {
        "broadloom": VERSION,
        "python": sys.version.split()[0],
        "cores": len(os.sched_getaffinity(0)),
    }


def columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The columns of all rows, in the order of their first appearance."""
    return list(dict.fromkeys(column for row in rows for column in row))


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
