"""`broadloom report`: a page on one plan, or on several side by side."""

from pathlib import Path
from typing import Annotated

import typer

from broadloom.cli.output import Force, Json, Quiet, progress, show
from broadloom.errors import InputError
from broadloom.report.page import html_of, write_page
from broadloom.report.record import TITLE, record_of_folders


def report(
    plans: Annotated[list[Path], typer.Argument(help="The folders of plans, or of runs.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The page to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="The heading of the page.")] = TITLE,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a page that shows a plan: one file that works offline; several plans are compared.

    Example: broadloom report plan -o report.html; broadloom report before after -o change.html
    """
    if output.exists() and not force:
        raise InputError(f"{output} is there already; choose another place or ask with --force")
    with progress(quiet):
        record = record_of_folders(plans, title)
        page = html_of(record)
    write_page(page, output)
    summaries = [f"{plan['name']}: {plan['summary']}" for plan in record["plans"]]
    words = "\n".join([*summaries, f"{len(page.encode()):,} bytes -> {output}"])
    done = {"output": str(output), "bytes": len(page.encode()), "plans": summaries}
    show(done, words, as_json, quiet)
