"""`broadloom compile`: compile all kernels before their first use."""

import broadloom as bl
from broadloom.cli.common import Json, Quiet, progress, show


def compile_all(as_json: Json = False, quiet: Quiet = False) -> None:
    """Compile the kernels for this machine, once, so that no later command waits for the compiler.

    Example: broadloom compile
    """
    with progress(quiet):
        result = bl.compile_kernels()
    record = {"compiled": result.compiled, "folder": str(result.folder)}
    text = f"{result.compiled:,} kernels compiled; the others were there already -> {result.folder}"
    show(record, text, as_json, quiet)
