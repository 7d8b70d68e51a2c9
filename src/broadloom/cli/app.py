"""List of verbs, and exit codes.

0 done; 1 a check failed; 2 bad input; 3 something outside failed (broker, cluster, disk) and another try can
help. Codes 2 and 3 come with one line on standard error; any other error is a bug and shows a traceback.
"""

import sys
from typing import Annotated

import typer

from broadloom._version import VERSION
from broadloom.cli import (
    assign,
    deploy,
    discover,
    doctor,
    generate,
    ingest,
    init,
    inspect,
    link,
    live,
    maintain,
    migrate,
    repair,
    reproduce,
    run,
    serve,
)
from broadloom.cli import (
    compile as compile_verb,
)
from broadloom.cli.common import INTERRUPTED, say
from broadloom.errors import InputError, MissingExtraError, StorageError, UnreachableError

Version = Annotated[bool, typer.Option("--version", help="Print the version.")]

# Exit codes; 0 is done, 1 a failed check.
BAD_INPUT = 2
OUTSIDE_FAILED = 3  # a broker, a cluster or a disk: worth another try
WRONG_PATH = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)

app = typer.Typer(
    name="broadloom",
    help="Plan, deploy and maintain the overlay of a wide-area publish/subscribe system.",
    epilog="A first run: broadloom generate -o tables; broadloom link tables -o plan; broadloom verify plan",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback()
def _no_verb(context: typer.Context, version: Version = False) -> None:
    if version:
        print(f"broadloom {VERSION}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


app.command("init")(init.init)
app.command("doctor")(doctor.doctor)
app.command("discover")(discover.discover)
app.command("generate")(generate.generate)
app.command("devices")(generate.devices)
app.command("ingest")(ingest.ingest)
app.command("subscribers")(generate.subscribers)
app.command("assign")(assign.assign)
app.command("link")(link.link)
app.command("maintain")(maintain.maintain)
app.command("market")(assign.market)
app.command("verify")(inspect.verify)
app.command("measure")(inspect.measure)
app.command("report")(inspect.report)
app.command("what-if")(serve.what_if)
app.command("serve")(serve.serve)
app.command("run")(run.run)
app.add_typer(deploy.app, name="deploy")
app.command("controller")(live.controller)
app.command("agent")(live.agent)
app.command("status")(live.status)
app.add_typer(migrate.app, name="migrate")
app.command("repair")(repair.repair)
app.command("reproduce")(reproduce.reproduce)
app.command("algorithms")(inspect.algorithms)
app.command("compile")(compile_verb.compile_all)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    if (sys.argv[1:] if arguments is None else arguments) == ["--version"]:  # quick, without typer's work
        print(f"broadloom {VERSION}")
        sys.exit(0)
    try:
        code = app(arguments, prog_name="broadloom", standalone_mode=False)
    except (InputError, MissingExtraError, typer.TyperException) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        _print_error(message)
        sys.exit(BAD_INPUT)
    except (StorageError, UnreachableError) as error:
        _print_error(str(error))
        sys.exit(OUTSIDE_FAILED)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        _print_error(f"{error.strerror or error}{where}")
        sys.exit(BAD_INPUT if isinstance(error, WRONG_PATH) else OUTSIDE_FAILED)
    if code == INTERRUPTED:
        print("broadloom: interrupted; existing outputs are unchanged", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(message: str) -> None:
    """Print an error as one line on standard error."""
    say(f"broadloom: {' '.join(message.split())}", error=True)
