"""`broadloom migrate`: the move agent, tables of live clients, plans of moves, and the moves themselves."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broadloom.cli.common import Force, Json, Quiet, check_output, keep_apart, progress, show
from broadloom.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from broadloom.agents.moves import Operator
    from broadloom.agents.moves.operator_client import SendRequest
    from broadloom.model import MarketProblem

# Values of heavy modules, which would make --help slow; a test compares them.
PORT = 8780
TOKEN = "BROADLOOM_TOKEN"  # noqa: S105 (the name of an environment variable)

AgentUrl = Annotated[str, typer.Option("--agent", help="The URL of the agent.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help=f"The file with the agent's token; by default the environment variable {TOKEN}."),
]
MOST_REASONS = 10
FleetOption = Annotated[
    Path | None,
    typer.Option(
        "--fleet", help="The fleet file: ask its controller, with the fleet's key instead of a token."
    ),
]
HERE = f"http://127.0.0.1:{PORT}"

app = typer.Typer(
    help="Move live clients to the brokers of a plan, without loss and with their consent.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("agent")
def agent(
    config: Annotated[Path, typer.Argument(help="The configuration file of the agent.")],
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log each step of each move.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run the agent that moves clients until it is interrupted; after a crash it continues where it stopped.

    Example: broadloom migrate agent agent.toml
    """
    import logging

    from broadloom.agents.links import embed_links, watch_clients
    from broadloom.agents.moves import AgentConfig, serving

    level = logging.INFO if verbose else logging.ERROR if quiet else logging.WARNING
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s")
    over = threading.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda *_: over.set())
    with serving(AgentConfig.load(config), hold=embed_links, see=watch_clients) as service:
        record = {"port": service.port, "brokers": list(service.brokers)}
        show(record, f"the agent answers at http://127.0.0.1:{service.port}", as_json, quiet)
        while service.thread.is_alive() and not over.wait(0.2):
            pass
        return 0 if service.thread.is_alive() else 1


@app.command("key")
def key(
    config: Annotated[Path, typer.Argument(help="The configuration file of the agent.")],
    clients: Annotated[list[str], typer.Argument(help="The names of the clients.")],
    as_json: Json = False,
) -> None:
    """Print the keys of clients, which are their secrets: give each to its `MovingClient` only.

    Example: broadloom migrate key agent.toml meter-1
    """
    from broadloom.agents.moves import AgentConfig
    from broadloom.agents.moves.control_messages import check_client

    keys = AgentConfig.load(config).keys
    if keys is None:
        raise InputError(f'{config} has authentication = "broker", so clients need no keys')
    found = {check_client(client): keys.of(client) for client in clients}
    show({"keys": found}, "\n".join(f"{client} {value}" for client, value in found.items()), as_json, False)


@app.command("summarize")
def summarize(
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the tables.")],
    seconds: Annotated[float, typer.Option(help="How long to count, in seconds.")] = 10.0,
    agent: AgentUrl = HERE,
    token_file: TokenFile = None,
    fleet: FleetOption = None,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the broker, interest and traffic (histograms) of each client, as tables for `market`.

    Example: broadloom migrate summarize -o live; broadloom market live -o planned
    """
    from broadloom.agents.moves import live_tables, save_tables
    from broadloom.checks import check_number

    check_output(output, force)
    summary = _operator(agent, token_file, fleet).summarize(check_number(seconds, "seconds", minimum=0.001))
    tables = live_tables(summary.clients, summary.sent, summary.sites, seconds)
    save_tables(output, tables, force)
    count = sum(one.messages for one in summary.sent)
    clients = len(summary.clients)
    record = {"output": str(output), "clients": clients, "messages": count, "left_out": summary.left_out}
    text = f"{clients:,} clients, {count:,} messages in {seconds:g} s -> {output}"
    if not count:
        text += (
            "\nwithout messages, `market` finds no better broker for a client: "
            "wait until the clients publish, and count again with --force, or for longer with --seconds; "
            "messages of ordinary clients count only if their broker has log_type debug"
        )
    if summary.left_out:
        text += f"\n{summary.left_out:,} more messages are left out, because there are too many topics"
    show(record, text, as_json, quiet)


@app.command("plan")
def plan(
    tables: Annotated[Path, typer.Argument(help="The folder of the live tables, with `assignment`.")],
    planned: Annotated[Path, typer.Argument(help="The folder of a plan of `market`.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the moves.")],
    at_once: Annotated[int, typer.Option(help="How many clients can move at the same time.")] = 10,
    core: Annotated[str, typer.Option(help="How traffic crosses the core: mst, pair or tree.")] = "mst",
    headroom: Annotated[
        float, typer.Option(help="Total capacity divided by total demand, if brokers have no capacity.")
    ] = 2.0,
    core_price: Annotated[float, typer.Option(help="The price per unit of distance between brokers.")] = 1.0,
    force: Force = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Compare the present assignment with the plan, and order the moves; exit with 1 if one is impossible.

    Example: broadloom migrate plan live planned -o moves
    """
    import numpy as np

    from broadloom.agents.moves import plan_moves
    from broadloom.model import read_market_problem

    keep_apart(output, tables, planned)
    with progress(quiet):
        problem = read_market_problem(tables, headroom=headroom, core_price=core_price)
        present, goal = (_assignment(folder, problem) for folder in (tables, planned))
        is_idle = problem.demand == 0  # they gain nothing by a move
        found = plan_moves(problem, present, np.where(is_idle, present, goal), at_once, core)
        found.save(output, force)
    show({"output": str(output)} | found.record(), f"{found.summary()} -> {output}", as_json, quiet)
    return 1 if found.blocked else 0


@app.command("run")
def run(
    moves: Annotated[Path, typer.Argument(help="The folder of moves that `migrate plan` wrote.")],
    agent: AgentUrl = HERE,
    token_file: TokenFile = None,
    fleet: FleetOption = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Ask the clients to move, step by step; after Ctrl-C, run it again to continue.

    Exits with 1 if a client did not move, for any reason.

    Example: broadloom migrate run moves
    """
    from broadloom.agents.moves import MovePlan, MoveState, RunProgress, run_moves
    from broadloom.cli.migrate_progress import MoveDisplay

    found, operator = MovePlan.load_from(moves), _operator(agent, token_file, fleet)
    stopped = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: stopped.set())
    last: list[RunProgress] = []
    try:
        with MoveDisplay(quiet or as_json) as display:

            def watch(state: RunProgress) -> None:
                last[:] = [state]
                display.update(state)

            ended = run_moves(found, operator, stopped.is_set, watch=watch)
    finally:
        signal.signal(signal.SIGINT, before)
    moved = ended[MoveState.REDIRECTED]
    reasons = dict(last[0].reasons) if last else {}
    record: dict[str, Any] = {"moves": found.move_count, "moved": moved, "ended": dict(ended)}
    text = f"{moved:,} of {found.move_count:,} clients moved"
    if not found.move_count:
        text = f"no client has to move: {found.summary()}"
    elif moved < found.move_count:
        text += _why_not(reasons, operator)
    show(record | {"reasons": reasons}, text, as_json, quiet, _table(ended))
    return 0 if moved == found.move_count else 1


@app.command("moves")
def moves(
    everything: Annotated[bool, typer.Option("--all", help="List finished moves too.")] = False,
    agent: AgentUrl = HERE,
    token_file: TokenFile = None,
    fleet: FleetOption = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """List the moves in progress, oldest first.

    Example: broadloom migrate moves --all
    """
    from rich.table import Table
    from rich.text import Text

    from broadloom.agents.moves import NEXT, MoveState

    found = _operator(agent, token_file, fleet).moves()
    listed = [one for one in found if everything or MoveState(one["state"]) in NEXT]
    table = Table(box=None, pad_edge=False)
    for name in ("move", "client", "from", "to", "state", "note"):
        table.add_column(name, no_wrap=name == "move")
    for one in listed:
        table.add_row(*(Text(one[name]) for name in ("id", "client", "home", "foreign", "state", "note")))
    text = f"{len(listed):,} moves" if everything else f"{len(listed):,} moves in progress"
    show({"moves": listed}, text, as_json, quiet, table if listed else None)


@app.command("cancel")
def cancel(
    moves: Annotated[list[str], typer.Argument(help="The ids of the moves, as `migrate moves` prints them.")],
    agent: AgentUrl = HERE,
    token_file: TokenFile = None,
    fleet: FleetOption = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Cancel moves: clients stay where they are, unless they have been told to connect elsewhere.

    Example: broadloom migrate cancel 00ff00ff00ff00ff
    """
    operator = _operator(agent, token_file, fleet)
    found: list[dict[str, Any]] = []
    try:
        found.extend(operator.cancel(move) for move in moves)
    finally:  # print the cancelled moves, also if a later one is refused
        show({"moves": found}, f"{len(found):,} moves cancelled", as_json, quiet)


def _why_not(reasons: dict[str, str], operator: Operator) -> str:
    """Why clients did not move: a line per reason, and what is wrong with the agent."""
    from broadloom.agents.moves.move_plans import problems_of

    clients: dict[str, list[str]] = {}
    for client, reason in reasons.items():
        clients.setdefault(reason, []).append(client)
    lines = []
    for reason, names in sorted(clients.items(), key=lambda one: -len(one[1]))[:MOST_REASONS]:
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        lines.append(f"  {', '.join(names[:3])}{more}: {reason}")
    lines += [f"  {problem}" for problem in problems_of(operator.health())[:MOST_REASONS]]
    return "".join(f"\n{line}" for line in lines)


def _table(ended: dict[str, int]) -> Table:
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, count in sorted(ended.items()):
        table.add_row(name.replace("_", " "), f"{count:,}")
    return table


def _operator(url: str, token_file: Path | None, fleet: Path | None) -> Operator:
    from broadloom.agents.moves import Operator
    from broadloom.mqtt.endpoint import read_secret

    if fleet is not None:
        if token_file is not None or url != HERE:
            raise InputError("--fleet excludes --agent and --token-file; leave them out")
        return Operator(HERE, "", send=_controller(fleet))
    token = read_secret(token_file) if token_file else os.environ.get(TOKEN, "")
    if not token:
        raise InputError(f"the token is missing; give --token-file, or set {TOKEN} in the environment")
    return Operator(url, token)


def _controller(path: Path) -> SendRequest:
    """Requests to the API of moves of a fleet's controller."""
    from broadloom.agents.links.agent_service import controller_connection
    from broadloom.agents.links.controller_protocol import MOVES_PATH
    from broadloom.agents.links.stamps import FleetKey
    from broadloom.deployment.fleet_file import Fleet

    fleet = Fleet.load(path)
    connection = controller_connection(fleet, FleetKey(fleet.live.key()), "operator")

    def send(method: str, target: str, body: dict[str, Any] | None, seconds: float) -> tuple[int, Any]:
        return connection.request(method, MOVES_PATH + target, body, wait=seconds)

    return send


def _assignment(folder: Path, problem: MarketProblem) -> Any:
    """The broker of each user of a market, from a table `assignment`."""
    import pyarrow as pa

    from broadloom.storage.tables import indices_in, require_table

    table = require_table(folder, "assignment")
    if not {"user", "broker"} <= set(table.column_names):
        raise InputError(f"{folder}: assignment has no columns user and broker")
    row = indices_in(pa.array(problem.user_ids, pa.string()), table.column("user").combine_chunks())
    for user, index in zip(problem.user_ids, row, strict=True):
        if index < 0:
            raise InputError(
                f"{folder}: assignment has no user {user!r}; summarize and plan the same clients"
            )
    brokers = indices_in(table.column("broker"), pa.array(problem.broker_ids, pa.string()))[row]
    for user, broker in zip(problem.user_ids, brokers, strict=True):
        if broker < 0:
            raise InputError(f"{folder}: user {user!r} is at a broker that the tables do not have")
    return brokers
