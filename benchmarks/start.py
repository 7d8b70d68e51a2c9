"""Start: CPU seconds of an import, of verbs on five brokers, and of the first plan after an installation.

    BROADLOOM_BEFORE=/path/to/an/earlier/src python benchmarks/start.py

Each number is the CPU time of a whole process, the least of three rounds. "cold" means that no kernel has
been compiled on the machine, "warm" that `broadloom compile`, or an earlier run, has done so. With
`BROADLOOM_BEFORE`, the source folder of an earlier version is measured in turn with this one.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import HERE, Section, run

NOW = HERE.parent / "src"
BEFORE = os.environ.get("BROADLOOM_BEFORE")
FIRST_LINK = """
import broadloom as bl
size = {{"nodes": {nodes}, "topics": {topics}, "sizes": {sizes}}}
interest = bl.workload.interest(popularity="zipf", alpha=1.0, seed=0, **size)
weights = bl.workload.weights(nodes={nodes}, kind="regions", seed=0)
plan = bl.link(interest, weights)
plan.metrics()
"""
SIZES = ((40, 20, (1, 10)), (100, 200, (5, 30)), (200, 500, (20, 100)))


def cpu_seconds(source: Path, arguments: list[str], folder: Path) -> float:
    """CPU seconds of a Python process with Broadloom from a source folder; kernels are kept in the folder."""
    environment = os.environ | {"PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(folder / "kernels")}
    environment["BROADLOOM_KERNELS"] = "auto"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def versions() -> dict[str, Path]:
    """The source folders to compare, by the names of the columns."""
    return ({"before CPU s": Path(BEFORE)} if BEFORE else {}) | {"CPU s": NOW}


def measured(what: str, arguments: list[str], rounds: int, warm: bool) -> dict[str, Any]:
    """A row: the least CPU seconds of each version, which take turns."""
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        for round_ in range(rounds + warm):
            for column, source in versions().items():
                folder = Path(name) / (column if warm else f"{column} {round_}")
                folder.mkdir(exist_ok=True)
                if not (folder / "plan").exists() and {"plan", "tables"} & set(arguments):
                    prepare(folder)
                seconds = cpu_seconds(source, arguments, folder)
                if round_ or not warm:
                    best[column] = min(seconds, best.get(column, seconds))
    row: dict[str, Any] = {"what": what} | best
    return row | ({"before / now": best["before CPU s"] / best["CPU s"]} if BEFORE else {})


def prepare(folder: Path) -> None:
    """Write the tables and a plan of five brokers."""
    import broadloom as bl

    interest = bl.Interest.from_lists([["a", "b"], ["b"], ["a"], ["c", "a"], ["c"]])
    weights = bl.workload.weights(nodes=5, kind="planar", seed=0)
    bl.workload.write(folder / "tables", interest, weights)
    bl.link(interest, weights).save(folder / "plan")


def start(quick: bool) -> Section:
    """Imports, help, and verbs on five brokers."""
    section = Section("CPU seconds to start")
    rounds = 1 if quick else 3
    cli = ["-m", "broadloom.cli"]
    link = [*cli, "link", "tables", "-o", "new", "--force", "--quiet"]
    section.rows = [
        measured("import broadloom", ["-c", "import broadloom"], rounds, warm=True),
        measured("broadloom --version", [*cli, "--version"], rounds, warm=True),
        measured("broadloom --help", [*cli, "--help"], rounds, warm=True),
        measured("link of five brokers, cold", link, 1, warm=False),
        measured("link of five brokers, warm", link, rounds, warm=True),
        measured("verify of five brokers, warm", [*cli, "verify", "plan"], rounds, warm=True),
        measured("report on five brokers, warm", [*cli, "report", "plan", "--force"], rounds, warm=True),
    ]
    seconds = {row["what"]: row["CPU s"] for row in section.rows}
    for what, most in (("import broadloom", 0.2), ("broadloom --version", 0.2), ("broadloom --help", 0.2)):
        section.claim(f"CPU s of {what}", seconds[what], at_most=most)
    for what in ("link of five brokers, cold", "link of five brokers, warm", "verify of five brokers, warm"):
        section.claim(f"CPU s of {what}", seconds[what], at_most=1)
    return section


def first(quick: bool) -> Section:
    """The first plan, with its measures, on a machine that has compiled nothing yet; and a later one."""
    section = Section("CPU seconds of the first plan after an installation")
    for nodes, topics, sizes in SIZES[:1] if quick else SIZES:
        code = FIRST_LINK.format(nodes=nodes, topics=topics, sizes=sizes)
        for warm in (False, True):
            row = measured("warm" if warm else "cold", ["-c", code], 1, warm)
            section.rows.append({"nodes": nodes, "topics": topics, "kernels": row.pop("what")} | row)
    for row in section.rows:
        if row["kernels"] == "cold" and row["nodes"] <= 100:
            text = f"CPU s of the first plan of {row['nodes']} brokers and {row['topics']} topics"
            section.claim(text, row["CPU s"], at_most=10)
    return section


if __name__ == "__main__":
    run("start", {"start": start, "first": first})
