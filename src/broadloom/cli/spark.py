"""The options of verbs that run on Spark."""

from typing import Annotated

import typer

Master = Annotated[
    str | None, typer.Option(help="A cluster: spark://host:7077, yarn, k8s://...; default: this machine.")
]
Remote = Annotated[str | None, typer.Option(help="A Spark Connect server: sc://host:15002.")]
Conf = Annotated[list[str] | None, typer.Option(help="A setting of Spark, as spark.name=value; repeatable.")]
