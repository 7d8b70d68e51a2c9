"""The list of verbs, and the exit codes: 0 done, 1 a check failed, 2 bad input (one line says what)."""

import sys
from typing import Annotated

import typer

from broadloom._version import VERSION
from broadloom.cli import (
    assign,
    deploy,
    devices,
    generate,
    ingest,
    inspect,
    link,
    live,
    maintain,
    market,
    migrate,
    report,
    reproduce,
    run,
)
from broadloom.errors import InputError

Version = Annotated[bool, typer.Option("--version", help="Print the version.")]

INTERRUPTED = 130  # what typer makes of Ctrl-C

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


app.command("generate")(generate.generate)
app.command("devices")(devices.devices)
app.command("ingest")(ingest.ingest)
app.command("subscribers")(assign.subscribers)
app.command("assign")(assign.assign)
app.command("link")(link.link)
app.command("maintain")(maintain.maintain)
app.command("market")(market.market)
app.command("verify")(inspect.verify)
app.command("measure")(inspect.measure)
app.command("report")(report.report)
app.command("run")(run.run)
deploy.app.command("live")(live.live)
app.add_typer(deploy.app, name="deploy")
app.add_typer(migrate.app, name="migrate")
app.command("reproduce")(reproduce.reproduce)
app.command("algorithms")(inspect.algorithms)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    try:
        code = app(arguments, prog_name="broadloom", standalone_mode=False)
    except (InputError, typer.TyperException) as error:
        message = error.format_message() if isinstance(error, typer.TyperException) else str(error)
        print(f"broadloom: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        print(f"broadloom: {error.strerror or error}{where}", file=sys.stderr)
        sys.exit(2)
    if code == INTERRUPTED:
        print("broadloom: interrupted; what was there before is as it was", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)
