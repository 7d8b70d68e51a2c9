"""`broadloom repair`: check a journal, and keep the records before a damage."""

from pathlib import Path
from typing import Annotated

import typer

from broadloom.cli.common import Json, Quiet, show


def repair(
    journal: Annotated[Path, typer.Argument(help="The file of the journal, as the error names it.")],
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Replace a damaged journal by one with the records before the damage; the damaged file is kept.

    A journal without damage stays as it is. Stop the process that writes it first.

    Example: broadloom repair live/journal.1
    """
    from broadloom.storage import repair_journal

    result = repair_journal(journal)
    copy = None if result.copy is None else str(result.copy)
    show(result._asdict() | {"copy": copy}, f"{journal}: {result.summary()}", as_json, quiet)
