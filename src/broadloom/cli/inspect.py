"""`broadloom verify`, `measure` and `algorithms`: look at plans, and at what there is to make them with."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

import broadloom as bl
from broadloom.cli.output import Json, Quiet, measures_table, progress, show
from broadloom.measures import disconnected_topics
from broadloom.model.assigned import is_assignment

PlanFolder = Annotated[Path, typer.Argument(help="The folder of a plan.")]


def verify(plan: PlanFolder, as_json: Json = False, quiet: Quiet = False) -> int:
    """Check a plan: every topic connected, or every limit of an assignment kept; exit with 1 if not.

    Example: broadloom verify plan
    """
    if is_assignment(plan):
        result = bl.AssignmentResult.load(plan)
        show({"feasible": result.feasible} | result.metrics(), result.summary(), as_json, quiet)
        return 0 if result.feasible else 1
    loaded = bl.Plan.load(plan)
    broken = disconnected_topics(loaded.interest, loaded.overlay)
    names = [loaded.interest.topic_ids[topic] for topic in broken]
    record = {"topic_connected": not names, "topics": loaded.interest.topic_count, "disconnected": names}
    if names:
        few = ", ".join(names[:5])
        words = f"{len(names):,} of {loaded.interest.topic_count:,} topics are not connected: {few}"
    else:
        words = f"every one of {loaded.interest.topic_count:,} topics is connected"
    show(record, words, as_json, quiet)
    return 1 if names else 0


def measure(plan: PlanFolder, as_json: Json = False, quiet: Quiet = False) -> None:
    """Measure a plan: degrees, weights, diameters, routing cost; or bandwidth, delays and loads.

    Example: broadloom measure plan --json
    """
    loaded = bl.AssignmentResult.load(plan) if is_assignment(plan) else bl.Plan.load(plan)
    with progress(quiet):
        metrics = loaded.metrics()
    record = metrics | {"lower_bound": loaded.lower_bound, "gap": loaded.gap}
    show(record, loaded.summary(), as_json, quiet, measures_table(metrics))


def algorithms(as_json: Json = False, quiet: Quiet = False) -> None:
    """List the algorithms: name, stage, paper, objective, options.

    Example: broadloom algorithms
    """
    rows = bl.algorithms()
    table = Table("name", "stage", "paper", "objective", "rule", "options", box=None, pad_edge=False)
    for row in rows:
        options = ", ".join(f"{name}={value!r}" for name, value in row["options"].items())
        table.add_row(row["name"], row["stage"], row["paper"], row["objective"], row["summary"], options)
    show({"algorithms": rows}, f"{len(rows)} algorithms", as_json, quiet, table)
