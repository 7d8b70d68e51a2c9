"""An agent as a service: journal, brokers, links, HTTP API, all from one configuration."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from broadloom.agents.moves.broker_sessions import MqttGateway
from broadloom.agents.moves.client_links import ClientLinks, HeldLinks
from broadloom.agents.moves.control_messages import is_text
from broadloom.agents.moves.move_agent import MoveAgent, Timing
from broadloom.agents.moves.move_registry import Move, MoveJournal
from broadloom.agents.moves.operator_api import HttpServer, OperatorApi
from broadloom.agents.moves.traffic_summary import Site, watch_traffic
from broadloom.checks import check_count, check_number
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import Address, Login, read_secret
from broadloom.mqtt.paho import need_paho
from broadloom.storage import read_toml

PORT = 8780
_PARTS = {"journal", "port", "token_file", "login", "timing", "brokers", "links"}
_BROKER = {"address", "agent_address", "place", "capacity"}
log = logging.getLogger("broadloom.agents.moves")

PASSWORD, TOKEN = "BROADLOOM_AGENT_PASSWORD", "BROADLOOM_TOKEN"  # where they may be
_NOBODY = Login()
_LOGIN = {"user", "password_file", "ca", "certificate", "key"}


class MoveService(NamedTuple):
    """An agent, its brokers, the port of its API, and the thread that it works in, which ends if it fails."""

    agent: MoveAgent
    brokers: tuple[str, ...]
    port: int
    thread: threading.Thread


@contextmanager
def serving(
    config: AgentConfig,
    links: ClientLinks | None = None,
    watch: Callable[[Move], None] = lambda _: None,
    hold: Callable[[AgentConfig], HeldLinks] | None = None,
) -> Iterator[MoveService]:
    """An agent at work, and its API, until the block ends.

    Args:
        config: what it works with.
        links: what brings messages to the broker that a client moves to; None: those of the configuration,
            and if it has none, everything goes everywhere.
        watch: called with each move that has come into a new state.
        hold: makes the links of a configuration that has some: `deployment.linkd.beside.links_beside`.

    Raises:
        InputError: the configuration has links, and nobody holds them; or a port or a journal is taken.
    """
    need_paho()
    with ExitStack() as stack:  # what has begun is ended, however far it came
        journal = MoveJournal(config.journal)
        stack.callback(journal.close)
        wire = MqttGateway(config.agent_addresses, config.login)
        stack.callback(wire.stop)
        held = None if links is not None or config.links is None else _held(config, hold)
        if held is not None:
            links = held.links
            stack.callback(held.stop)
        agent = MoveAgent(config.brokers, wire, journal, links, config.timing, watch)
        down = list if held is None else held.down
        server = _listening(
            OperatorApi(agent, lambda seconds: summarize(agent, config, seconds), down), config
        )
        stack.callback(server.server_close)
        if held is not None:
            held.start(agent.stop)  # the agent has asked for all that its clients need
        wire.start(agent.heard)
        thread = threading.Thread(target=agent.run, name="broadloom-agent", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(agent.stop)
        server.start()
        stack.callback(server.shutdown)
        yield MoveService(agent, tuple(config.brokers), server.server_port, thread)


def _held(config: AgentConfig, hold: Callable[[AgentConfig], HeldLinks] | None) -> HeldLinks:
    if hold is None:
        raise InputError(f"{config.file} has [links], and nobody holds them; give `serving` a hold")
    return hold(config)


def _listening(api: OperatorApi, config: AgentConfig) -> HttpServer:
    try:
        return HttpServer(api, config.token, config.port)
    except (OSError, OverflowError) as error:
        words = getattr(error, "strerror", None) or "no port"
        raise InputError(f"the agent cannot listen at port {config.port}: {words}") from error


def summarize(agent: MoveAgent, config: AgentConfig, seconds: float) -> dict[str, Any]:
    """Count for some seconds what clients send, at their brokers.

    Returns:
        As JSON has it: `clients` (who is where and wants what), `sent` (what each of them published), and
        `sites` (where brokers are). `live_tables` makes histograms and the traffic matrix of it.

    Raises:
        AwayError: a broker does not answer, so that its clients cannot be counted.
    """
    known = agent.ask(lambda own: dict(own.registry.residents))
    residents = {name: one for name, one in known.items() if one.broker in config.brokers}
    homes = {name: one.broker for name, one in residents.items()}
    sent = watch_traffic(config.agent_addresses, config.login, seconds, homes.get)
    return {
        "clients": [asdict(one) for one in residents.values()],
        "sent": sent,
        "sites": {name: [site.place, site.capacity] for name, site in config.sites.items()},
    }


@dataclass(frozen=True)
class AgentConfig:
    """What an agent works with.

    Attributes:
        journal: the folder of what survives its crash.
        brokers: where clients reach the brokers.
        agent_addresses: where the agent reaches them; another port, where clients' ports tie client ids to
            user names.
        sites: what the planner knows of the brokers.
        login: the agent's.
        token: what operators must show.
        port: of the HTTP API, on loopback.
        timing: how long things may take.
        links: what it says of links that the agent holds; None: others do, and everything goes everywhere.
        file: where all this was read.
    """

    journal: Path
    brokers: Mapping[str, Address]
    agent_addresses: Mapping[str, Address]
    sites: Mapping[str, Site]
    login: Login
    token: str = field(repr=False)
    port: int = PORT
    timing: Timing = field(default_factory=Timing)
    links: Mapping[str, Any] | None = None
    file: Path = Path("agent.toml")

    @classmethod
    def load(cls, path: str | Path) -> AgentConfig:
        """Read a configuration file; passwords and tokens are in files of their own or the environment.

        Raises:
            InputError: it cannot be read, is not TOML, or has something that is wrong or not known.
        """
        place = Path(path)
        given = read_toml(place)
        folder = place.absolute().parent
        check_names(given, _PARTS, str(place))
        brokers = part_of(given, "brokers", place)
        if not brokers:
            raise InputError(f"{place} has no brokers; give each as [brokers.NAME] with an address")
        for name in brokers:
            if not is_text(name):
                raise InputError(
                    f"{place}: a broker is {name!r:.40}; give a printable name of 1 to 256 characters"
                )
            check_names(part_of(brokers, name, place, "brokers."), _BROKER, f"{place} [brokers.{name}]")
        return cls(
            journal=folder / text_of(given, "journal", "journal"),
            brokers=_addresses(brokers, "address", place),
            agent_addresses=_addresses(brokers, "agent_address", place),
            sites={name: _site(one, name) for name, one in brokers.items()},
            login=login_of(part_of(given, "login", place), folder),
            token=secret_of(given, "token_file", TOKEN, folder),
            port=check_count(given.get("port", PORT), "port"),
            timing=_timing(part_of(given, "timing", place), str(place)),
            links=part_of(given, "links", place) if "links" in given else None,
            file=place,
        )


def _addresses(brokers: Mapping[str, Any], kind: str, place: Path) -> dict[str, Address]:
    """Where brokers are, each at a place of its own; by their address if this kind is not given."""
    found: dict[str, Address] = {}
    for name, given in brokers.items():
        try:
            address = Address.parse(text_of(given, kind if kind in given else "address", ""))
        except InputError as error:
            raise InputError(f"{place} [brokers.{name}]: {error}") from error
        if other := next((one for one, known in found.items() if known == address), None):
            raise InputError(
                f"{place}: {address} is the {kind} of {other!r} and of {name!r}; give each its own"
            )
        found[name] = address
    return found


def _site(given: Mapping[str, Any], name: str) -> Site:
    place = given.get("place", [0.0, 0.0])
    if not isinstance(place, list) or not place:
        raise InputError(f"broker {name!r} has place {place!r:.40}; give a list of coordinates")
    axes = tuple(check_number(one, f"a coordinate of broker {name!r}", float("-inf")) for one in place)
    capacity = given.get("capacity")
    return Site(axes, None if capacity is None else check_number(capacity, f"capacity of broker {name!r}"))


def _timing(given: Mapping[str, Any], where: str) -> Timing:
    check_names(given, {one.name for one in fields(Timing)}, f"{where} [timing]")
    return Timing(**given)


def check_names(given: Mapping[str, Any], known: set[str], where: str) -> None:
    """Refuse names that are not known."""
    for name in given:
        if name not in known:
            raise InputError(f"{where}: {name!r} is not known; there are {', '.join(sorted(known))}")


def part_of(given: Mapping[str, Any], name: str, place: Path, within: str = "") -> Mapping[str, Any]:
    """A section, perhaps within another one, empty if it is not there."""
    part = given.get(name, {})
    if not isinstance(part, dict):
        raise InputError(f"{place}: {name} is {part!r:.40}; expected a section [{within}{name}]")
    return part


def text_of(given: Mapping[str, Any], name: str, default: str) -> str:
    """A text that is not empty."""
    value = given.get(name, default)
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} is {value!r:.80}; give a text")
    return value


def secret_of(given: Mapping[str, Any], name: str, variable: str, folder: Path) -> str:
    """A secret from the file that is named, else from the environment."""
    if name in given:
        return read_secret(folder / text_of(given, name, ""))
    if not os.environ.get(variable):
        raise InputError(f"no {name} and no {variable} in the environment; give one of them")
    return os.environ[variable]


def login_of(
    given: Mapping[str, Any],
    folder: Path,
    where: str = "[login]",
    variable: str = PASSWORD,
    like: Login = _NOBODY,
) -> Login:
    """A login, with the TLS of another one where it names none; files are named from a folder."""
    check_names(given, _LOGIN, where)
    ca, certificate, key = (_file(given, name, folder) for name in ("ca", "certificate", "key"))
    ca = ca or like.ca
    if certificate is None and key is None and like.certificate is not None:
        certificate, key = like.certificate
    if (certificate is None) != (key is None) or (certificate and not ca):
        raise InputError(f"{where}: certificate and key go together, and with ca")
    login = Login(ca=ca, certificate=(certificate, key) if certificate and key else None)
    try:
        login.tls()  # refuse unusable files before anything starts
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if "password_file" in given and "user" not in given:
        raise InputError(f"{where}: password_file goes with a user; give both")
    password = secret_of(given, "password_file", variable, folder) if "user" in given else None
    user = text_of(given, "user", "") if "user" in given else None
    if password and not ca:
        log.warning(
            "%s: without ca, and TLS by it, the password goes over the network for all to read", where
        )
    return replace(login, user=user, password=password)


def _file(given: Mapping[str, Any], name: str, folder: Path) -> str | None:
    return str(folder / text_of(given, name, "")) if name in given else None
