"""`broadloom compile`: compile all kernels before their first use, and archive the classes of Spark."""

import broadloom as bl
from broadloom.cli.common import Json, Quiet, progress, show
from broadloom.progress import stage


def compile_all(as_json: Json = False, quiet: Quiet = False) -> None:
    """Compile the kernels for this machine, once, so that no later command waits for the compiler.

    If Spark is installed, this also archives the classes that it loads (190 MB), so that it starts faster.

    Example: broadloom compile
    """
    from broadloom.pipeline.class_archive import make_archive

    with progress(quiet):
        result = bl.compile_kernels()
        with stage("classes of Spark"):
            classes = make_archive()
    record = {
        "compiled": result.compiled,
        "folder": str(result.folder),
        "classes": None if classes is None else str(classes),
    }
    text = f"{result.compiled:,} kernels compiled; the others were there already -> {result.folder}"
    if classes is not None:
        text += f"\nclasses of Spark -> {classes}"
    show(record, text, as_json, quiet)
