"""Options that verbs share, and the output of results: text and tables, or one JSON object."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broadloom.errors import InputError
from broadloom.progress import Silent, watched_by

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from broadloom.pipeline import SparkEngine

INTERRUPTED = 130  # typer's code for Ctrl-C
PIPE_CLOSED = 141  # the shell's code for a program that was ended by SIGPIPE

Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output, and nothing else there.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Seed = Annotated[int, typer.Option(help="The seed of random choices: the same seed gives the same output.")]


def say(text: str, error: bool = False) -> None:
    """Print a line, with control characters escaped: names and topics can come from anywhere."""
    from broadloom.checks import visible_text

    print(visible_text(text), file=sys.stderr if error else sys.stdout)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt the work as Ctrl-C does, so that it can record where it stopped.

    A signal that is ignored, as under nohup, stays ignored.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    names = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {one: signal.getsignal(one) for one in names if signal.getsignal(one) != signal.SIG_IGN}
    for one in before:
        signal.signal(one, interrupt)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def show(
    record: Mapping[str, Any], text: str, as_json: bool, quiet: bool, table: RenderableType | None = None
) -> None:
    """Print a result: the record as JSON, or the text and the table."""
    from rich.console import Console

    from broadloom.checks import visible_text
    from broadloom.storage import to_json_value

    try:
        if as_json:
            print(json.dumps(to_json_value(record)))
        elif not quiet:
            # Without colours, so that every escape sequence comes from an input, and is made visible.
            console = Console(highlight=False, soft_wrap=True, color_system=None)
            with console.capture() as printed:  # rich would end the program at a closed pipe
                console.print(text, markup=False)
                if table is not None:
                    console.print(table)
            print(visible_text(printed.get()), end="")
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe; the rest of the buffer must not fail again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(PIPE_CLOSED) from None


def keep_apart(output: Path, *inputs: Path) -> None:
    """Refuse an output that would replace one of its inputs."""
    from broadloom.storage import as_path

    for path in inputs:
        if as_path(path).resolve() == as_path(output).resolve():
            raise InputError(f"the output {as_path(output)} is also the input; choose another output")


def check_output(output: Path, force: bool, *inputs: Path) -> None:
    """Refuse a folder that cannot be written, before the work begins."""
    from broadloom.storage import check_replaceable

    keep_apart(output, *inputs)
    check_replaceable(output, force)


def measures_table(metrics: Mapping[str, Any]) -> Table:
    """A table of measures with two columns."""
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in metrics.items():
        shown = (
            f"{value:,.4g}"
            if isinstance(value, float)
            else f"{value:,}"
            if type(value) is int
            else str(value)
        )
        table.add_row(name.replace("_", " "), shown)
    return table


@contextmanager
def progress(quiet: bool) -> Iterator[None]:
    """Draw one bar per stage of the work in the block, if standard error is a terminal."""
    if quiet or not sys.stderr.isatty():
        with watched_by(Silent()):
            yield
        return
    with _bars() as bars, watched_by(_Bars(bars)):
        yield


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    return Progress(*columns, *times, console=Console(stderr=True), transient=True)


class _Bars:
    """Progress watcher that draws one bar per stage; bars of inner stages are below."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._open: list[TaskID] = []

    def start(self, stage: str, total: float | None) -> None:
        self._open.append(self._bars.add_task(stage, total=total))

    def done(self, amount: float) -> None:
        self._bars.update(self._open[-1], completed=amount)

    def end(self) -> None:
        self._bars.remove_task(self._open.pop())


Master = Annotated[
    str | None, typer.Option(help="The Spark master: spark://host:7077, yarn, k8s://..., or local[N].")
]
Remote = Annotated[str | None, typer.Option(help="A Spark Connect server: sc://host:15002.")]
Conf = Annotated[list[str] | None, typer.Option(help="A setting of Spark, as spark.name=value; repeatable.")]


Ui = Annotated[bool, typer.Option("--ui", help="Turn Spark's web page on, and print its address.")]
UI_SETTING = "spark.ui.enabled=true"


def engine_of(
    master: str | None, remote: str | None, conf: list[str] | None, ui: bool = False
) -> SparkEngine:
    """The Spark settings of the options, after a check that Spark is installed."""
    from broadloom.pipeline import SparkEngine, need_spark, parse_conf

    need_spark()
    return SparkEngine(master, remote, parse_conf([*(conf or []), *([UI_SETTING] if ui else [])]))


def engine_if_asked(master: str | None, remote: str | None, conf: list[str] | None) -> SparkEngine | None:
    """As `engine_of`; None if no option asks for Spark."""
    return engine_of(master, remote, conf) if master or remote or conf else None


def parse_options(texts: list[str]) -> dict[str, Any]:
    """Options of an algorithm from texts like `k=2`; a value is JSON if possible, `inf`, or text."""
    parsed: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"option {text!r} is not of the form name=value")
        try:
            parsed[name.replace("-", "_")] = json.loads(value)
        except json.JSONDecodeError:
            parsed[name.replace("-", "_")] = math.inf if value == "inf" else value
    return parsed
