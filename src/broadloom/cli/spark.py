"""The options of verbs that run on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from broadloom.pipeline.session import Engine

Master = Annotated[
    str | None, typer.Option(help="Where Spark runs: spark://host:7077, yarn, k8s://..., or here, local[N].")
]
Remote = Annotated[str | None, typer.Option(help="A Spark Connect server: sc://host:15002.")]
Conf = Annotated[list[str] | None, typer.Option(help="A setting of Spark, as spark.name=value; repeatable.")]


def engine_of(master: str | None, remote: str | None, conf: list[str] | None) -> Engine:
    """Where Spark runs, after a look that it is installed."""
    from broadloom.pipeline.session import Engine, need_spark, parse_conf

    need_spark()
    return Engine(master, remote, parse_conf(conf or []))


def engine_if_asked(master: str | None, remote: str | None, conf: list[str] | None) -> Engine | None:
    """As `engine_of`; None for a verb that needs no Spark and was told nothing of it."""
    return engine_of(master, remote, conf) if master or remote or conf else None
