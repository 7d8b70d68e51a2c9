"""Service of the agent that moves clients, and its configuration file."""

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
from broadloom.agents.moves.client_policy import MovePolicy
from broadloom.agents.moves.client_router import HaproxyRouter
from broadloom.agents.moves.control_codes import ClientKeys
from broadloom.agents.moves.control_messages import is_text
from broadloom.agents.moves.move_agent import MoveAgent, Timing
from broadloom.agents.moves.move_registry import ORDINARY, Move, MoveJournal
from broadloom.agents.moves.operator_api import HttpServer, OperatorApi
from broadloom.agents.moves.ordinary_clients import ClientSight, OrdinaryMover
from broadloom.agents.moves.traffic_summary import Site, watch_traffic
from broadloom.checks import check_count, check_names, check_number
from broadloom.deployment.fleet_file import is_loopback
from broadloom.deployment.targets.haproxy_router import FOLDER, MAP_FILE, RELAY_PORT
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import ANONYMOUS, Address, Login, read_secret
from broadloom.mqtt.paho import need_paho
from broadloom.storage import local_path, read_toml

PORT = 8780
_PARTS = {"journal", "port", "token_file", "login", "timing", "brokers", "links", "router", "policy"}
_PARTS |= {"key_file", "authentication"}
AUTHENTICATION = ("key", "broker")  # who authenticates control messages: the fleet's key, or the brokers
_BROKER = {"address", "agent_address", "place", "capacity", "subscriptions"}
_ROUTER = {"sockets", "map", "relay", "certificate", "key"}
log = logging.getLogger("broadloom.agents.moves")

PASSWORD, TOKEN = "BROADLOOM_AGENT_PASSWORD", "BROADLOOM_TOKEN"  # environment variables
KEY = "BROADLOOM_KEY"
_LOGIN = {"user", "password_file", "ca", "certificate", "key", "plain"}


class MoveService(NamedTuple):
    """A running agent: its brokers, the port of its API, its thread, which ends if it fails, and the API."""

    agent: MoveAgent
    brokers: tuple[str, ...]
    port: int
    thread: threading.Thread
    api: OperatorApi


@contextmanager
def serving(
    config: AgentConfig,
    links: ClientLinks | None = None,
    watch: Callable[[Move], None] = lambda _: None,
    hold: Callable[[AgentConfig], HeldLinks] | None = None,
    see: Callable[[AgentConfig], ClientSight] | None = None,
) -> Iterator[MoveService]:
    """Run an agent and its API until the block ends.

    Args:
        config: the configuration.
        links: the links that carry clients' messages; None: those of the configuration's `[links]`, or,
            without that section, links that carry everything to every broker.
        watch: called with each move that has reached a new state.
        hold: creates the links of a configuration with `[links]`: `broadloom.agents.links.embed_links`.
        see: follows the brokers' lists of clients, for a configuration with `[router]`:
            `broadloom.agents.links.watch_clients`.

    Raises:
        InputError: the configuration has links but `hold` is missing, or a port or journal is in use.
        MissingExtraError: paho-mqtt is not installed.
        StorageError: the journal cannot be written.
    """
    need_paho()
    with ExitStack() as stack:  # stops whatever was started, in reverse order
        journal = MoveJournal(config.journal)
        stack.callback(journal.close)
        gateway = MqttGateway(config.agent_addresses, config.login, keys=config.keys)
        stack.callback(gateway.stop)
        held = None if links is not None or config.links is None else _configured_links(config, hold)
        if held is not None:
            links = held.links
            stack.callback(held.stop)
        sight = None
        mover = None
        if config.router is not None:
            if see is None:
                raise InputError(f"{config.file} has [router], but `serving` was called without `see`")
            sight = see(config)
            mover = config.ordinary_mover()
        agent = MoveAgent(
            config.brokers,
            gateway,
            journal,
            links,
            config.timing,
            watch,
            mover,
            sight,
            config.agent_addresses,
            config.keys,
        )
        if sight is not None and mover is not None:
            sight.start()
            stack.callback(sight.stop)
            stack.callback(mover.stop)
            mover.start(agent.registry.ordinary_homes())
        api = OperatorApi(
            agent,
            lambda seconds: summarize(agent, config, seconds, sight),
            list if held is None else held.down,
            list if held is None else held.families,
            sight,
            mover,
        )
        server = HttpServer(api, config.token, config.port)
        stack.callback(server.server_close)
        if held is not None:
            held.start(agent.stop)  # after the agent has requested the links of its clients
        gateway.start(agent.post)
        thread = threading.Thread(target=agent.run, name="broadloom-agent", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(agent.stop)
        server.start()
        stack.callback(server.shutdown)
        yield MoveService(agent, tuple(config.brokers), server.server_port, thread, api)


def _configured_links(config: AgentConfig, hold: Callable[[AgentConfig], HeldLinks] | None) -> HeldLinks:
    if hold is None:
        raise InputError(
            f"{config.file} has [links], but `serving` was called without `hold`; give hold=embed_links"
        )
    return hold(config)


def summarize(
    agent: MoveAgent, config: AgentConfig, seconds: float, sight: ClientSight | None = None
) -> dict[str, Any]:
    """Count the messages that clients send in some seconds, at their brokers.

    The broker's log file says who publishes what (mosquitto: `log_type debug`); the messages of a
    `MovingClient` say it themselves.

    Returns:
        JSON values: `clients` (with broker and filters), `sent` (the messages of each), `left_out` (the
        number of messages that are not in `sent`), and `sites` (the brokers). `live_tables` derives
        histograms and the traffic matrix from them.

    Raises:
        UnreachableError: a broker does not answer, so its clients cannot be counted.
    """
    known = agent.ask(lambda own: dict(own.registry.residents))
    residents = {name: one for name, one in known.items() if one.broker in config.brokers}
    if config.policy is not None and sight is not None:
        for seen in sight.clients():
            if residents.get(seen.client) is None or residents[seen.client].kind == ORDINARY:
                residents[seen.client] = seen.resident(place=config.policy.place_of(seen.client))
    homes = {name: one.broker for name, one in residents.items()}
    ordinary = {name for name, one in residents.items() if one.kind == ORDINARY}
    logs = {name: config.logs_of(name) for name in config.brokers}
    counted = watch_traffic(config.agent_addresses, config.login, seconds, homes.get, ordinary, logs)
    return {
        "clients": [asdict(one) for one in residents.values()],
        "sent": counted.sent,
        "left_out": counted.left_out,
        "sites": {name: [site.place, site.capacity] for name, site in config.sites.items()},
    }


@dataclass(frozen=True)
class AgentConfig:
    """Configuration of an agent.

    Attributes:
        journal: the folder of the journal.
        brokers: the brokers' addresses for clients.
        agent_addresses: the brokers' addresses for the agent. They have another port where the listener of
            clients requires the client id to be the user name.
        sites: the brokers' positions and capacities, for the planner.
        login: the agent's login.
        token: the token of operators.
        port: the port of the HTTP API on loopback.
        timing: the durations of steps.
        links: the section `[links]`; None: other links, such as bridges, carry everything to every broker.
        router: the section `[router]`; None: only clients that take part are moved.
        policy: the operator's consent to move ordinary clients.
        keys: the keys of clients, from the fleet's key; None: brokers authenticate clients.
        subscriptions: per broker, where its sessions are found: the path of `mosquitto.db` or of a log.
        file: the path of the configuration file.
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
    router: RouterConfig | None = None
    policy: MovePolicy | None = None
    keys: ClientKeys | None = None
    subscriptions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    file: Path = Path("agent.toml")

    @classmethod
    def load(cls, path: str | Path) -> AgentConfig:
        """Read a configuration file; passwords and tokens are in other files or the environment.

        Raises:
            InputError: the file is missing or not TOML, or a value in it is wrong or a name unknown.
        """
        file = local_path(path, "the configuration file")
        content = read_toml(file)
        folder = file.absolute().parent
        check_names(content, _PARTS, str(file))
        brokers = part_of(content, "brokers", file)
        if not brokers:
            raise InputError(f"{file} has no brokers; give each as [brokers.NAME] with an address")
        for name in brokers:
            if not is_text(name):
                raise InputError(
                    f"{file}: a broker is {name!r:.40}; give a printable name of 1 to 256 characters"
                )
            check_names(part_of(brokers, name, file, "brokers."), _BROKER, f"{file} [brokers.{name}]")
        return cls(
            journal=folder / text_of(content, "journal", "journal"),
            brokers=_addresses(brokers, "address", file),
            agent_addresses=_addresses(brokers, "agent_address", file),
            sites={name: _site(one, name) for name, one in brokers.items()},
            login=login_of(part_of(content, "login", file), folder),
            token=secret_of(content, "token_file", TOKEN, folder),
            port=check_count(content.get("port", PORT), "port"),
            timing=_timing(part_of(content, "timing", file), str(file)),
            links=part_of(content, "links", file) if "links" in content else None,
            router=_router(content, file) if "router" in content else None,
            policy=_policy(content, file),
            keys=_keys(content, file),
            subscriptions={name: _sources(one, name, folder) for name, one in brokers.items()},
            file=file,
        )

    def logs_of(self, broker: str) -> list[Path]:
        """The log files of a broker among its sources of subscriptions."""
        paths = [Path(one) for one in self.subscriptions.get(broker, ()) if "://" not in one]
        return [path for path in paths if path.suffix != ".db"]

    def ordinary_mover(self) -> OrdinaryMover:
        """The relay and the routers that move ordinary clients.

        Raises:
            InputError: the configuration has no router, or a file of it cannot be used.
        """
        if self.router is None or self.policy is None:
            raise InputError(f"{self.file} has no [router], which ordinary clients need; give one")
        router = HaproxyRouter(self.router.sockets, self.router.map)
        timing = self.timing
        tls = self.router.tls
        return OrdinaryMover(
            self.policy, router, self.login, self.router.relay, tls, timing.ttl, timing.settle, self.token
        )


@dataclass(frozen=True)
class RouterConfig:
    """The section `[router]`.

    Attributes:
        sockets: the runtime sockets of the routers.
        map: the map file.
        relay: where the relay listens.
        tls: certificate file and key file of the relay; None: plain text, on loopback only.
    """

    sockets: tuple[str, ...]
    map: Path
    relay: Address
    tls: tuple[str, str] | None = None


def _router(content: Mapping[str, Any], file: Path) -> RouterConfig:
    section = part_of(content, "router", file)
    where = f"{file} [router]"
    check_names(section, _ROUTER, where)
    folder = file.absolute().parent
    sockets = section.get("sockets")
    if not isinstance(sockets, list) or not sockets or not all(isinstance(one, str) for one in sockets):
        raise InputError(f"{where}: sockets is {sockets!r:.60}; give a list of paths or host:port")
    paths = tuple(one if ":" in one and "/" not in one else str(folder / one) for one in sockets)
    certificate, key = (_path(section, name, folder) for name in ("certificate", "key"))
    if (certificate is None) != (key is None):
        raise InputError(f"{where}: certificate and key belong together; give both")
    relay = Address.parse(text_of(section, "relay", f"127.0.0.1:{RELAY_PORT}"), what=f"{where}: relay")
    if certificate is None and not is_loopback(relay.hostname):
        raise InputError(f"{where}: relay {relay} is not on loopback; give certificate and key")
    tls = (certificate, key) if certificate and key else None
    return RouterConfig(paths, folder / text_of(section, "map", f"{FOLDER}/{MAP_FILE}"), relay, tls)


def _policy(content: Mapping[str, Any], file: Path) -> MovePolicy | None:
    if "router" not in content:
        if "policy" in content:
            raise InputError(f"{file} has a policy, but no [router], which ordinary clients need; give both")
        return None
    if "policy" not in content:
        raise InputError(f"{file} has [router], but no policy; give the path of a policy file")
    return MovePolicy.load(file.absolute().parent / text_of(content, "policy", ""))


def _keys(content: Mapping[str, Any], file: Path) -> ClientKeys | None:
    """The keys of clients, unless the brokers are said to authenticate them."""
    mode = content.get("authentication", AUTHENTICATION[0])
    if mode not in AUTHENTICATION:
        raise InputError(f"{file}: authentication is {mode!r:.40}; give one of {', '.join(AUTHENTICATION)}")
    if mode == "key":
        try:
            return ClientKeys(secret_of(content, "key_file", KEY, file.absolute().parent))
        except InputError as error:
            hint = 'or authentication = "broker" if the rules of brokers can be trusted'
            raise InputError(f"{file}: {error}, {hint}") from error
    if "key_file" in content:
        raise InputError(f'{file} has key_file and authentication = "broker"; give one of them')
    return None


def _sources(section: Mapping[str, Any], name: str, folder: Path) -> tuple[str, ...]:
    found = section.get("subscriptions", [])
    sources = [found] if isinstance(found, str) else found
    if not isinstance(sources, list) or not all(isinstance(one, str) and one for one in sources):
        raise InputError(f"broker {name!r} has subscriptions {found!r:.60}; give a path, or a list of paths")
    return tuple(one if "://" in one else str(folder / one) for one in sources)


def _addresses(brokers: Mapping[str, Any], kind: str, file: Path) -> dict[str, Address]:
    """The address of each broker, `address` where `kind` is missing; no two brokers can have the same."""
    found: dict[str, Address] = {}
    for name, section in brokers.items():
        try:
            address = Address.parse(text_of(section, kind if kind in section else "address", ""))
        except InputError as error:
            raise InputError(f"{file} [brokers.{name}]: {error}") from error
        if other := next((one for one, known in found.items() if known == address), None):
            raise InputError(
                f"{file}: {address} is the {kind} of {other!r} and of {name!r}; give each its own"
            )
        found[name] = address
    return found


def _site(section: Mapping[str, Any], name: str) -> Site:
    place = section.get("place", [0.0, 0.0])
    if not isinstance(place, list) or not place:
        raise InputError(f"broker {name!r} has place {place!r:.40}; give a list of coordinates")
    axes = tuple(check_number(one, f"a coordinate of broker {name!r}", float("-inf")) for one in place)
    capacity = section.get("capacity")
    return Site(axes, None if capacity is None else check_number(capacity, f"capacity of broker {name!r}"))


def _timing(section: Mapping[str, Any], where: str) -> Timing:
    check_names(section, {one.name for one in fields(Timing)}, f"{where} [timing]")
    return Timing(**section)


def part_of(section: Mapping[str, Any], name: str, file: Path, within: str = "") -> Mapping[str, Any]:
    """A section of a section; empty if it is missing."""
    part = section.get(name, {})
    if not isinstance(part, dict):
        raise InputError(f"{file}: {name} is {part!r:.40}; expected a section [{within}{name}]")
    return part


def text_of(section: Mapping[str, Any], name: str, default: str) -> str:
    """The non-empty text with a name in a section."""
    value = section.get(name, default)
    if not isinstance(value, str) or not value:
        raise InputError(f"{name} is {value!r:.80}; give a non-empty text")
    return value


def secret_of(section: Mapping[str, Any], name: str, variable: str, folder: Path) -> str:
    """A secret from the file named in the section, or from the environment."""
    if name in section:
        return read_secret(folder / text_of(section, name, ""))
    if not os.environ.get(variable):
        raise InputError(f"no {name} and no {variable} in the environment; give one of them")
    return os.environ[variable]


def login_of(
    section: Mapping[str, Any],
    folder: Path,
    where: str = "[login]",
    variable: str = PASSWORD,
    like: Login = ANONYMOUS,
) -> Login:
    """The login in a section, with paths relative to a folder; missing TLS files are those of `like`."""
    check_names(section, _LOGIN, where)
    ca, certificate, key = (_path(section, name, folder) for name in ("ca", "certificate", "key"))
    plain = section.get("plain", False)
    if not isinstance(plain, bool) or (plain and ca):
        raise InputError(
            f"{where}: plain is {plain!r:.40}; give true for plain text, without a ca, or leave it out"
        )
    ca = ca or like.ca
    if ca is None and not plain and like is ANONYMOUS:
        ca = ""  # the certificates that the system trusts
    if certificate is None and key is None and like.certificate is not None:
        certificate, key = like.certificate
    if (certificate is None) != (key is None) or (certificate and plain):
        raise InputError(f"{where}: certificate and key belong together, and to TLS; give both")
    login = Login(ca=ca, certificate=(certificate, key) if certificate and key else None)
    try:
        login.tls()  # refuse unusable files before anything starts
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if "password_file" in section and "user" not in section:
        raise InputError(f"{where}: password_file requires a user; give both")
    password = secret_of(section, "password_file", variable, folder) if "user" in section else None
    user = text_of(section, "user", "") if "user" in section else None
    if password and ca is None:
        log.warning("%s: the password is sent unencrypted, because plain is true", where)
    return replace(login, user=user, password=password)


def _path(section: Mapping[str, Any], name: str, folder: Path) -> str | None:
    return str(folder / text_of(section, name, "")) if name in section else None
