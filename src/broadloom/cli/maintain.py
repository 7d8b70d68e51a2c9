"""`broadloom maintain`: events from a file or a stream, applied to an overlay that stays topic-connected."""

from __future__ import annotations

import json
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
    Seed,
    Ui,
    engine_of,
    keep_apart,
    progress,
    show,
)
from broadloom.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

FIRST_NAMES = 10  # names of brokers that are printed


def maintain(
    events: Annotated[
        str, typer.Option(help="A file or folder of events; with --stream a folder to watch, or kafka://...")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the plan and the rounds.")],
    tables: Annotated[
        Path | None, typer.Argument(help="The folder of canonical tables; not needed with --plan.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option("--algorithm", "-a", help="shadow (the default) or naive.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="An older name of --algorithm.", hidden=True)] = None,
    rho: Annotated[
        float, typer.Option(help="How many times worse than the best a link can be, to keep degrees low.")
    ] = 3,
    coverage: Annotated[int, typer.Option(help="For shadow: the number of backups per topic.")] = 3,
    backups: Annotated[str, typer.Option(help="For shadow: primal-dual or greedy.")] = "primal-dual",
    weights: Annotated[
        str | None,
        typer.Option(
            help="Source of the weights: plan (the default with --plan), auto (the default without it: the "
            "first that the tables have), latency, coordinates, sites or uniform."
        ),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(help="Start from this plan: its brokers with their addresses, its weights, its links."),
    ] = None,
    fresh_every: Annotated[
        int, typer.Option(help="Compare with a fresh build after every N events; 0: never.")
    ] = 0,
    rebaseline: Annotated[
        bool,
        typer.Option(
            "--rebaseline",
            help="With --fresh-every: rebuild the overlay with few changes if it is much worse than a fresh "
            "build.",
        ),
    ] = False,
    stream: Annotated[bool, typer.Option("--stream", help="Watch for events, on Spark.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Stream the present events, then stop.")] = False,
    seed: Seed = 0,
    order: Annotated[
        str | None,
        typer.Option(
            help="For a stream: seq: all events are in one order (the default for files); "
            "node: only the events of each broker are (the default for Kafka)."
        ),
    ] = None,
    messages_at_a_time: Annotated[
        int | None, typer.Option(help="For Kafka: the largest number of messages per batch.")
    ] = None,
    kafka_config: Annotated[
        Path | None,
        typer.Option(help="For Kafka: the file of the client's settings (security.protocol=... and so on)."),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    ui: Ui = False,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Apply events to an overlay one by one; every topic stays connected, and few links change.

    Example: broadloom maintain --plan plan --events events.jsonl -o out
    """
    from broadloom.checks import check_count
    from broadloom.kernels import numba_is_loaded
    from broadloom.maintenance import (
        EventFeed,
        RoundLog,
        brokers_without_address,
        load_kernels,
        maintain_folders,
        one_algorithm,
        read_events,
        write_state,
    )
    from broadloom.storage import check_replaceable, new_folder
    from broadloom.storage.tables import write_table

    keep_apart(output, *(path for path in (tables, plan) if path is not None))
    if not stream:
        check_replaceable(output, force)
    check_count(fresh_every, "fresh-every")
    unread = _unread_requests(tables) if plan is None else {}
    of_stream = {"order": order, "messages-at-a-time": messages_at_a_time, "kafka-config": kafka_config}
    _refuse_unused(stream, once=once, master=master, conf=conf, ui=ui, **of_stream)
    if rebaseline and not fresh_every:
        raise InputError(
            "--rebaseline works together with --fresh-every; give, for example, --fresh-every 50"
        )
    with progress(quiet):
        chosen = one_algorithm(algorithm, method)
        options = {"algorithm": chosen, "rho": rho, "coverage": coverage, "backups": backups, "seed": seed}

        def start() -> bl.Live:
            return maintain_folders(tables, plan, weights, **options)

        if stream:
            checks: dict[str, Any] = {"fresh_every": fresh_every, "rebaseline": rebaseline, "order": order}
            if messages_at_a_time is not None:
                checks["messages_at_a_time"] = messages_at_a_time
            if kafka_config is not None:
                from broadloom.pipeline.stream import read_kafka_config

                checks["kafka"] = read_kafka_config(kafka_config)
            engine = engine_of(master, None, conf or [], ui)
            record = _streamed(start, events, output, engine, once=once, **checks)
            counts = f"{record['applied']:,} events applied, {record['quarantined']:,} in quarantine"
            text = f"{counts}, batches: {record['batches']:,} -> {output}"
            show(record | unread, "\n".join([text, *_unreachable(record), *unread.values()]), as_json, quiet)
            return
        rounds, feed = RoundLog(), EventFeed(start())
        if numba_is_loaded():
            load_kernels()  # otherwise the first rounds would be slow
        rounds.run(feed, read_events(_location(events)), fresh_every, rebaseline)
        record = {"output": str(output)} | rounds.summary() | {"metrics": feed.live.metrics()}
        made = feed.live.plan()
        if without := brokers_without_address(made):
            record["brokers_without_address"] = without
        if made.not_carried:
            record["not_carried"] = made.not_carried.record()
        with new_folder(output, overwrite=force) as folder:
            write_state(folder, feed.live)
            for name, table in rounds.tables().items():
                write_table(folder, name, table)
            (folder / "maintain.json").write_text(json.dumps(record, indent=2) + "\n")
    text = "\n".join([_words(record, rounds.applied, output), *made.not_carried.lines(), *unread.values()])
    show(record | unread, text, as_json, quiet, _table(record))


def _unread_requests(tables: Path | None) -> dict[str, str]:
    """A note if the tables say who publishes, which only a plan brings into maintenance."""
    names = ("links.json", "publications.parquet", "publications.csv")
    if tables is None or not any((tables / name).exists() for name in names):
        return {}
    text = (
        "WARNING: without --plan, links.json and publications are not read: any broker can publish any topic"
    )
    return {"note": f"{text}, and max_degree is not kept; link the tables first, and give --plan"}


def _refuse_unused(stream: bool, **options: object) -> None:
    """Refuse options of a stream without --stream."""
    used = [name for name, value in options.items() if value]
    if used and not stream:
        raise InputError(f"--{used[0]} is for a stream; add --stream, or leave it out")


def _streamed(*arguments: Any, **options: Any) -> dict[str, Any]:
    """Apply a stream of events on Spark."""
    from broadloom.pipeline import (
        maintain_on_spark,
    )  # imported here, so that a file of events does not load Spark

    return maintain_on_spark(*arguments, **options)


def _location(events: str) -> Path:
    """The file or folder of events; a remote folder that Broadloom wrote as its manifest lists it."""
    from broadloom.storage import as_path, committed, is_committed, is_remote

    path = as_path(events)
    return committed(path) if is_remote(path) and is_committed(path) else path


def _words(record: dict[str, Any], applied: int, output: Path) -> str:
    """The summary as text."""
    refused = record["quarantined"]
    lines = [f"{applied:,} events applied, {sum(refused.values()):,} in quarantine -> {output}"]
    lines += [f"  in quarantine: {count:,} {reason}" for reason, count in refused.items()]
    if above := record.get("against_fresh"):
        lines.append(
            f"above a fresh build, mean of {above['rounds']:,} rounds (at the last one): "
            f"maximum degree {above['max_degree_above']:.2f} ({above['last_max_degree_above']}), "
            f"mean degree {above['mean_degree_above']:.2f} ({above['last_mean_degree_above']:.2f})"
        )
    return "\n".join(lines + _unreachable(record))


def _unreachable(record: dict[str, Any]) -> list[str]:
    """A line about the brokers without an address, if others have one."""
    names = record.get("brokers_without_address", [])
    more = f", and {len(names) - FIRST_NAMES:,} more" if len(names) > FIRST_NAMES else ""
    text = f"{len(names):,} brokers without an address: {', '.join(names[:FIRST_NAMES])}{more}"
    return [f"WARNING: {text}; give the field address in their join, or the column address"] if names else []


def _table(record: dict[str, Any]) -> Table:
    """A table of the rounds, with one row per kind of event."""
    from rich.table import Column, Table

    from broadloom.maintenance import OF_EVENTS, REBASELINE

    kinds = [kind for kind in (*OF_EVENTS, REBASELINE) if kind in record]
    columns = list(record[kinds[0]]) if kinds else []
    first = Column(min_width=max(map(len, kinds), default=0))
    table = Table(first, *(name.replace("_", " ") for name in columns), box=None, pad_edge=False)
    for kind in kinds:
        table.add_row(kind, *(_short(record[kind][name]) for name in columns))
    return table


def _short(value: float) -> str:
    """A count in full, another number with three digits: all columns fit on a terminal."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}"
