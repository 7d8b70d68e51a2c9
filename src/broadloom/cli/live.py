"""`broadloom controller`, `agent` and `status`: the live plane of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broadloom.cli.common import Json, Quiet, Seed, show
from broadloom.errors import InputError

if TYPE_CHECKING:
    from broadloom.agents.links.controller_client import ControllerConnection
    from broadloom.agents.links.controller_service import ControllerOptions, ControllerService
    from broadloom.deployment import Fleet

WATCH_SECONDS = 2.0

FleetFile = Annotated[Path, typer.Argument(help="The fleet file.")]
State = Annotated[Path, typer.Option("--state", help="The folder of the state, which survives a crash.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]
FLEET = Path("fleet.toml")
STATE = Path("state")


def controller(
    fleet: FleetFile = FLEET,
    state: State = STATE,
    with_agents: Annotated[
        bool, typer.Option("--with-agents", help="Run the agents of all brokers in this process.")
    ] = False,
    plan: Annotated[
        Path | None,
        typer.Option(help="A plan to begin with; by default subscriptions decide the links."),
    ] = None,
    events: Annotated[
        Path | None, typer.Option(help="A growing file of events, as for `broadloom maintain`.")
    ] = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Adopt the agents of another controller, with their links.")
    ] = False,
    propose: Annotated[
        float | None,
        typer.Option(help="Look for a better plan in the background, at this interval in seconds."),
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Move to a better plan as soon as one is found; needs --propose.")
    ] = False,
    moves: Annotated[
        Path | None, typer.Option(help="Move clients too: the configuration file of `migrate agent`.")
    ] = None,
    down: Annotated[
        bool,
        typer.Option("--down", help="End all links, and exit; stop the running controller first."),
    ] = False,
    seed: Seed = 0,
    verbose: Verbose = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Run the controller, which decides the links between brokers and tells their agents.

    It runs until it is interrupted; messages flow while it is away. With --down it exits with 1 if
    brokers still have sessions of links.

    Example: broadloom controller fleet.toml --state state --with-agents
    """
    import asyncio

    from broadloom.agents.links.agent_service import set_up_log
    from broadloom.agents.links.controller_service import ControllerOptions, serve_controller
    from broadloom.checks import check_positive
    from broadloom.deployment.fleet_file import Fleet
    from broadloom.storage import local_path

    if adopt and propose is None:
        raise InputError("--adopt needs --propose; give the seconds between two searches for a better plan")
    if propose is not None:
        check_positive(propose, "--propose")
    if down:
        for option, value in (("--events", events), ("--propose", propose), ("--moves", moves)):
            if value is not None:
                raise InputError(f"--down ends all links and follows nothing; leave out {option}")
    set_up_log(quiet, verbose)
    options = ControllerOptions(
        Fleet.load(fleet),
        local_path(state, "--state"),
        with_agents,
        _loaded(plan),
        events,
        take_over,
        propose,
        adopt,
        seed,
        _mover(moves),
    )
    if down:
        return _take_down(options, as_json, quiet)

    def ready(service: ControllerService) -> None:
        live = options.fleet.live
        scheme = "https" if live.uses_tls else "http"
        address = f"{scheme}://{live.listen_address()}"
        record = {
            "address": address,
            "epoch": list(service.controller.epoch),
            "brokers": len(options.fleet.brokers),
        }
        show(record, f"the controller answers at {address}", as_json, quiet)

    asyncio.run(serve_controller(options, ready))
    return 0


def agent(
    fleet: FleetFile = FLEET,
    broker: Annotated[
        str, typer.Option(help="The broker of this agent, by its name in the fleet file.")
    ] = "",
    address: Annotated[
        str | None,
        typer.Option(
            help="The address of a broker that has joined and is not in the fleet file: host[:port]."
        ),
    ] = None,
    state: State = STATE,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Replace another agent, whose state is lost.")
    ] = False,
    verbose: Verbose = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the agent of one broker, which forwards its messages to the neighbours.

    It runs until it is interrupted, also while the controller is away. Run one agent per broker, next to it.

    Example: broadloom agent fleet.toml --broker rome --state state
    """
    import asyncio

    from broadloom.agents.links.agent_service import AgentOptions, agent_folder, serve_agent, set_up_log
    from broadloom.deployment.fleet_file import Fleet
    from broadloom.storage import local_path

    loaded = Fleet.load(fleet)
    if not broker:
        raise InputError(f"no broker is given; give --broker, one of {', '.join(list(loaded.brokers)[:20])}")
    set_up_log(quiet, verbose)
    folder = agent_folder(local_path(state, "--state"), broker)
    options = AgentOptions(loaded, broker, folder, take_over, address=address)

    def ready() -> None:
        record = {"broker": broker, "controller": str(loaded.live.address())}
        show(record, f"the agent of {broker} runs; its controller is {loaded.live.address()}", as_json, quiet)

    asyncio.run(serve_agent(options, ready))


def status(
    fleet: FleetFile = FLEET,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every two seconds, until Ctrl-C.")
    ] = False,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Tell the controller to move to the plan that it proposes.")
    ] = False,
    token: Annotated[
        bool, typer.Option("--token", help="Print the token with which others can read status and metrics.")
    ] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Show the brokers, agents and links of a running fleet; exit with 1 if one of them is down.

    Example: broadloom status fleet.toml --watch
    """
    import time

    from broadloom.agents.links.controller_client import ControllerRefusedError
    from broadloom.agents.links.controller_protocol import PROPOSAL_PATH, ProtocolCodes
    from broadloom.agents.links.stamps import FleetKey
    from broadloom.deployment.fleet_file import Fleet
    from broadloom.errors import UnreachableError

    loaded = Fleet.load(fleet)
    if token:
        value = ProtocolCodes(FleetKey(loaded.live.key())).read_token()
        show({"token": value}, value, as_json, quiet)
        return 0
    connection = _connection(loaded)
    try:
        if adopt:
            answer = _asked(connection, "POST", PROPOSAL_PATH)
            show(answer, str(answer["note"]), as_json, quiet)
            return 0 if answer["adopted"] else 1
        while True:
            try:
                code = _show_status(connection, watch, as_json, quiet)
                if not watch:
                    return code
            except ControllerRefusedError:
                raise
            except UnreachableError as error:
                if not watch:
                    raise
                _clear(as_json, quiet)
                show({"problem": str(error)}, f"{error}; trying again", as_json, quiet)
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        if adopt or not watch:
            raise
        return 0
    finally:
        connection.close()


def _show_status(connection: ControllerConnection, clear: bool, as_json: bool, quiet: bool) -> int:
    from broadloom.agents.links.controller_protocol import STATUS_PATH
    from broadloom.agents.links.live_status import is_healthy, status_text

    found = _asked(connection, "GET", STATUS_PATH)
    if clear:
        _clear(as_json, quiet)
    show(found, status_text(found), as_json, quiet)
    return 0 if is_healthy(found) else 1


def _clear(as_json: bool, quiet: bool) -> None:
    """Clear the terminal before what replaces its content."""
    import sys

    if not as_json and not quiet and sys.stdout.isatty():
        print("\x1b[H\x1b[2J", end="")


def _connection(fleet: Fleet) -> ControllerConnection:
    from broadloom.agents.links.agent_service import controller_connection
    from broadloom.agents.links.stamps import FleetKey

    return controller_connection(fleet, FleetKey(fleet.live.key()), "operator")


def _asked(connection: ControllerConnection, method: str, target: str) -> dict[str, Any]:
    """The answer of the controller."""
    from broadloom.errors import UnreachableError

    code, answer = connection.request(method, target)
    if code != 200 or not isinstance(answer, dict):
        raise UnreachableError(f"the controller answers with status {code}")
    return answer


def _loaded(plan: Path | None) -> Any:
    if plan is None:
        return None
    from broadloom.plans import Plan

    return Plan.load(plan)


def _mover(config: Path | None) -> Any:
    """The configuration of the agent that moves clients, if there is one."""
    if config is None:
        return None
    from broadloom.agents.moves import AgentConfig
    from broadloom.mqtt.paho import need_paho

    need_paho()
    return AgentConfig.load(config)


def _take_down(options: ControllerOptions, as_json: bool, quiet: bool) -> int:
    import asyncio

    from broadloom.agents.links.controller_service import take_down_fleet

    left = asyncio.run(take_down_fleet(options))
    lines = [f"{one.broker} {one.client}: {one.reason}".replace(" :", ":") for one in left]
    text = "\n".join(["these sessions are left:", *lines]) if left else "all links are down"
    show({"left": [one._asdict() for one in left]}, text, as_json, quiet)
    return 1 if left else 0
