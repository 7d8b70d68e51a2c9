"""`broadloom verify`, `measure`, `report` and `algorithms`: checks, measures and pages of plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import broadloom as bl
from broadloom.cli.common import (
    Conf,
    Force,
    Json,
    Master,
    Quiet,
    Remote,
    engine_if_asked,
    measures_table,
    progress,
    show,
)
from broadloom.errors import InputError

if TYPE_CHECKING:
    from broadloom.pipeline import SparkEngine

TITLE = "Broadloom: the plan"  # as in broadloom.report, which is slow to load; a test compares them
PlanFolder = Annotated[Path, typer.Argument(help="The folder of a plan.")]


def verify(
    plan: PlanFolder,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Check a plan: connected topics, or the limits of an assignment or market; exit with 1 if it is wrong.

    With --master, --remote or --conf, Spark checks the topics one by one, for plans that are too large for
    one machine.

    Example: broadloom verify plan
    """
    from broadloom.measures import disconnected_topics, filters_text
    from broadloom.plans import is_assignment, is_market

    engine = engine_if_asked(master, remote, conf)
    if engine is not None:
        return _verify_on_spark(plan, engine, as_json, quiet)
    if is_assignment(plan):
        result = bl.AssignmentResult.load(plan)
        show({"feasible": result.feasible} | result.metrics(), result.summary(), as_json, quiet)
        return 0 if result.feasible else 1
    if is_market(plan):
        return _verify_market(plan, as_json, quiet)
    loaded = bl.Plan.load(plan)
    interest = loaded.interest.grouped()
    filters = loaded.interest.filter_count
    names = [interest.topic_ids[topic] for topic in disconnected_topics(interest, loaded.overlay)]
    record: dict[str, Any] = {"topic_connected": not names, "topics": interest.topic_count}
    record |= {"topic_filters": filters} if filters else {}
    record |= {"disconnected": names}
    topics = f"{interest.topic_count:,} topics{filters_text(filters)}"
    text = f"every one of {topics} is connected"
    if names:
        text = f"{len(names):,} of {topics} are not connected: {', '.join(names[:5])}"
    record |= {"not_carried": loaded.not_carried.record()}
    show(record, "\n".join([text, *loaded.not_carried.lines()]), as_json, quiet)
    return 1 if names else 0


def _verify_market(plan: Path, as_json: bool, quiet: bool) -> int:
    from broadloom.plans import overloaded_brokers

    over = overloaded_brokers(plan)
    text = (
        f"{len(over):,} brokers are overloaded: {', '.join(over[:5])}" if over else "no broker is overloaded"
    )
    show({"feasible": not over, "overloaded": over}, text, as_json, quiet)
    return 1 if over else 0


def _verify_on_spark(plan: Path, engine: SparkEngine, as_json: bool, quiet: bool) -> int:
    from broadloom.pipeline import verify_on_spark
    from broadloom.plans import saved_not_carried

    _refuse_assignment(plan)
    not_carried = saved_not_carried(plan)
    with progress(quiet):
        verdict = verify_on_spark(plan, engine)
    filters = {"topic_filters": verdict.filters} if verdict.filters else {}
    record = {
        "topic_connected": verdict.disconnected == 0,
        "topics": verdict.topics,
        **filters,
        "disconnected": list(verdict.examples),
        "bad_edges": verdict.bad_edges,
        "not_carried": not_carried.record(),
    }
    show(record, "\n".join([verdict.summary(), *not_carried.lines()]), as_json, quiet)
    return 0 if verdict.good else 1


def measure(
    plan: PlanFolder,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a plan: degrees, weights, diameters, routing cost; or bandwidth, delays and loads.

    With --master, --remote or --conf, Spark measures nodes and topics: everything except routing cost.

    Example: broadloom measure plan --json
    """
    from broadloom.plans import is_assignment, is_market, saved_market_metrics

    engine = engine_if_asked(master, remote, conf)
    if engine is not None:
        _measure_on_spark(plan, engine, as_json, quiet)
        return
    if is_market(plan):
        metrics = saved_market_metrics(plan)
        show(metrics, f"a market of {metrics['users']:,} users", as_json, quiet, measures_table(metrics))
        return
    loaded = bl.AssignmentResult.load(plan) if is_assignment(plan) else bl.Plan.load(plan)
    with progress(quiet):
        metrics = loaded.metrics()
    record = metrics | {"lower_bound": loaded.lower_bound, "gap": loaded.gap}
    show(record, loaded.summary(), as_json, quiet, measures_table(metrics))


def _measure_on_spark(plan: Path, engine: SparkEngine, as_json: bool, quiet: bool) -> None:
    from broadloom.pipeline import measure_on_spark
    from broadloom.plans import read_link_record

    _refuse_assignment(plan)
    record = read_link_record(plan)
    with progress(quiet):
        metrics = measure_on_spark(plan, engine)
    text = f"{record['algorithm']}: {metrics['nodes']:,} nodes, {metrics['edges']:,} links"
    bound = {"lower_bound": record["lower_bound"], "gap": record.get("gap")}
    show(metrics | bound, text, as_json, quiet, measures_table(metrics))


def _refuse_assignment(plan: Path) -> None:
    from broadloom.plans import is_assignment, is_market
    from broadloom.storage import as_path

    if is_assignment(plan) or is_market(plan):
        raise InputError(
            f"{as_path(plan)} is an assignment, which is inspected without Spark; "
            "leave out the options of Spark"
        )


def algorithms(
    stage: Annotated[
        str | None, typer.Argument(help="Only this stage: link, assign or maintain.", show_default=False)
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the algorithms: name, stage, problem, paper, objective, options.

    Example: broadloom algorithms link
    """
    from rich.table import Table

    rows = bl.algorithms(stage)
    table = Table(
        "name", "stage", "problem", "paper", "objective", "rule", "options", box=None, pad_edge=False
    )
    for column in table.columns:
        column.overflow = "fold"
        column.no_wrap = column.header == "options"
    for row in rows:
        options = "\n".join(f"{name}={value!r}" for name, value in row["options"].items())
        columns = ("name", "stage", "problem", "paper", "objective", "summary")
        table.add_row(*(row[name] or "" for name in columns), options)
    show({"algorithms": rows}, f"{len(rows)} algorithms", as_json, quiet, table)


def report(
    plans: Annotated[list[Path], typer.Argument(help="The folders of plans, or of runs.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The heading of the page.")] = TITLE,
    unit: Annotated[str, typer.Option(help="The unit of the weights, such as ms.")] = "",
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a page about a plan: one file that works offline; several plans are compared.

    Example: broadloom report plan -o report.html; broadloom report before after -o change.html
    """
    from broadloom.report import html_of, record_of_folders, write_page
    from broadloom.storage import as_path, is_remote, local_folders

    output = as_path(output)
    if output.exists() and not force:
        raise InputError(f"{output} exists already; choose another output, or replace it with --force")
    with progress(quiet), local_folders(plans, ("plan", "assign", "ingest")) as folders:
        record = record_of_folders(folders, title, unit, dated=not any(map(is_remote, plans)))
        page = html_of(record)
    write_page(page, output)
    summaries = [f"{plan['name']}: {plan['summary']}" for plan in record["plans"]]
    text = "\n".join([*summaries, f"{len(page.encode()):,} bytes -> {output}"])
    done = {"output": str(output), "bytes": len(page.encode()), "plans": summaries}
    show(done, text, as_json, quiet)
