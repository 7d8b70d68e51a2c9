"""Fleet file: the brokers that an operator runs, how to reach them, and what links carry (`fleet.toml`).

It refers to secrets (a file that only its owner can read, or an environment variable) and contains none.
"""

from __future__ import annotations

import os
import re
import ssl
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from broadloom.checks import (
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_line,
    check_number,
    check_path,
    check_positive,
    nearest_name,
    ordered_list,
    shown,
)
from broadloom.deployment.fleet_hooks import COMMANDS, FleetHooks
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import Address, Endpoint, Login, read_secret, tls_context
from broadloom.mqtt.topic_filters import is_valid_filter
from broadloom.storage import local_path, read_toml, write_file

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
FLEET_FILE = "fleet.toml"
KINDS = ("mosquitto", "emqx", "nats", "rabbitmq")
PUBLISHERS = ("anywhere", "observed")
EVERYTHING = "#"
ABSENT = ("keep", "drop")
TLS_PORT, PLAIN_PORT, NATS_PORT = 8883, 1883, 4222
LEAF_PORT = 7422  # of leaf nodes of NATS
CONTROLLER_PORT = 8790
LARGEST_WINDOW = 16_384  # half of the messages within which a hop recognises a repetition
_ACCOUNT = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# The names that each section can have.
_SECTIONS = ("defaults", "brokers", "links", "live")
_DEFAULTS = ("kind", "tls", "login", "api_login", "account", "hooks")
_BROKER = (
    "address",
    "kind",
    "tls",
    "login",
    "site",
    "position",
    "capacity",
    "subscriptions",
    "api_login",
    "config",
    "leaf_listen",
    "account",
    "hooks",
)
_LINKS = ("carry", "publishers", "max_degree")
_LIVE = (
    "controller",
    "listen",
    "tls",
    "key_file",
    "key_env",
    "absent",
    "patience",
    "window",
    "hop_bytes",
    "agent_bytes",
)
_TLS = ("ca", "certificate", "key")
_HOOKS = ("path", *COMMANDS, "seconds")
_LOGIN = ("user", "password_file", "password_env")
_SECRETS = ("password", "passwd", "pass", "secret", "token", "password_hash")


@dataclass(frozen=True)
class FleetTls:
    """TLS files of the connections to a broker.

    Attributes:
        ca: the file of trusted certificates; None: the system's.
        certificate: the client's certificate file, if the broker requires one.
        key: the file of its key.
    """

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        for name in _TLS:
            _check_optional_text(getattr(self, name), f"tls.{name}")
        if (self.certificate is None) != (self.key is None):
            raise InputError("tls has one of certificate and key; give both, or neither")


@dataclass(frozen=True)
class FleetLogin:
    """Login at a broker: a user name, and where the password is.

    Attributes:
        user: the user name.
        password_file: a file that only its owner can read, with the password in one line.
        password_env: an environment variable with the password.
    """

    user: str
    password_file: str | None = None
    password_env: str | None = None

    def __post_init__(self) -> None:
        check_line(self.user, "login.user")
        _check_optional_text(self.password_file, "login.password_file")
        if (self.password_file is None) == (self.password_env is None):
            raise InputError("login has no password, or two; give either password_file or password_env")
        if self.password_env is not None:
            _check_variable(self.password_env, "login.password_env")

    def password(self) -> str:
        """Read the password.

        Raises:
            InputError: the file does not exist or others can read it, or the variable is not set.
            StorageError: the file cannot be read.
        """
        if self.password_file is not None:
            return read_secret(self.password_file)
        password = os.environ.get(self.password_env or "")
        if not password:
            raise InputError(f"the environment variable {self.password_env} is not set; set the password")
        return password


@dataclass(frozen=True)
class FleetBroker:
    """Broker of a fleet.

    Attributes:
        name: the broker's id in plans and tables.
        address: `host` or `host:port`, as written.
        kind: mosquitto, emqx, nats or rabbitmq.
        tls: the TLS files; None: connections are plain text.
        login: the login of Broadloom's connections; None: anonymous.
        site: the location, such as a data centre or a cloud region.
        position: latitude and longitude in degrees.
        capacity: messages per second.
        subscriptions: where subscriptions are found: the path of `mosquitto.db` or of a log, or the URL of an
            admin API; or several of them.
        api_login: the login at the admin API.
        config: the path of the broker's configuration file, if it is on this machine.
        leaf_listen: for NATS, `host` or `host:port` where the broker listens for leaf nodes; None: at the
            host of its address.
        account: for NATS, the account of its clients, so that links can have accounts of their own; None:
            links are in the account of clients.
        hooks: how `deploy apply` changes it.
    """

    name: str
    address: str
    kind: str = "mosquitto"
    tls: FleetTls | None = field(default_factory=FleetTls)
    login: FleetLogin | None = None
    site: str | None = None
    position: tuple[float, float] | None = None
    capacity: float | None = None
    subscriptions: str | tuple[str, ...] | None = None
    api_login: FleetLogin | None = None
    config: str | None = None
    leaf_listen: str | None = None
    account: str | None = None
    hooks: FleetHooks = field(default_factory=FleetHooks)

    def __post_init__(self) -> None:
        _check_broker_name(self.name)
        check_choice(self.kind, "kind", KINDS)
        for name, kind in (("tls", FleetTls), ("login", FleetLogin), ("api_login", FleetLogin)):
            if getattr(self, name) is not None:
                check_instance(getattr(self, name), kind, name, f"give a {kind.__name__}, or None")
        Address.parse(self.address, self.default_port, "address")
        if self.site is not None:
            check_line(self.site, "site")
        if self.position is not None:
            object.__setattr__(self, "position", _checked_position(self.position))
        if self.capacity is not None:
            check_positive(self.capacity, "capacity")
        if isinstance(self.subscriptions, list):
            object.__setattr__(self, "subscriptions", tuple(self.subscriptions))
        if self.subscriptions == ():
            raise InputError("subscriptions is empty; give a path or a URL, or leave it out")
        for source in self.subscription_sources():
            _check_source(source)
        _check_optional_text(self.config, "config")
        if self.leaf_listen is not None:
            if self.kind != "nats":
                raise InputError(f"leaf_listen is for nats, but kind is {self.kind}; leave it out")
            Address.parse(self.leaf_listen, LEAF_PORT, "leaf_listen")
        if self.account is not None:
            if self.kind != "nats":
                raise InputError(f"account is for nats, but kind is {self.kind}; leave it out")
            if not isinstance(self.account, str) or not _ACCOUNT.fullmatch(self.account):
                raise InputError(
                    f"account is {shown(self.account)}; give a name of letters, digits, _ and -, such as APP"
                )
        check_instance(self.hooks, FleetHooks, "hooks", "give FleetHooks")

    @property
    def default_port(self) -> int:
        """The port of an address without one."""
        if self.kind == "nats":
            return NATS_PORT
        return PLAIN_PORT if self.tls is None else TLS_PORT

    def subscription_sources(self) -> tuple[str, ...]:
        """The sources of subscriptions, none or more."""
        if self.subscriptions is None:
            return ()
        return self.subscriptions if isinstance(self.subscriptions, tuple) else (self.subscriptions,)

    def host_and_port(self) -> Address:
        """The host and the port."""
        return Address.parse(self.address, self.default_port, f"the address of broker {self.name!r}")

    def leaf_address(self) -> Address:
        """Where it listens for leaf nodes of NATS."""
        if self.leaf_listen is not None:
            return Address.parse(self.leaf_listen, LEAF_PORT, f"leaf_listen of broker {self.name!r}")
        return Address(self.host_and_port().host, LEAF_PORT)

    @property
    def has_open_links(self) -> bool:
        """Whether anyone who can reach its listener for leaf nodes of NATS can link to it.

        Examples:
            >>> FleetBroker("rome", "10.0.0.1", "nats").has_open_links
            True
        """
        has_certificate = self.tls is not None and self.tls.certificate is not None
        return self.kind == "nats" and self.login is None and not has_certificate

    def tls_context(self) -> ssl.SSLContext | None:
        """The TLS context of connections; None: plain text.

        Raises:
            InputError: a file cannot be used for TLS.
        """
        return None if self.tls is None else tls_context(self.tls.ca, self._certificate())

    def mqtt_login(self) -> Login:
        """The login of connections, with the password from its file or variable, and the TLS files.

        An empty `ca` of the result means the system's certificates.

        Raises:
            InputError: the secret cannot be used.
            StorageError: the secret cannot be read.
        """
        ca = None if self.tls is None else self.tls.ca or ""
        if self.login is None:
            return Login(ca=ca, certificate=self._certificate())
        return Login(self.login.user, self.login.password(), ca, self._certificate())

    def endpoint(self) -> Endpoint:
        """The endpoint for MQTT sessions.

        Raises:
            InputError: the secret or a TLS file cannot be used.
            StorageError: the secret cannot be read.
        """
        address = self.host_and_port()
        return Endpoint(address.hostname, address.port, self.tls_context(), self.mqtt_login())

    def _certificate(self) -> tuple[str, str] | None:
        if self.tls is None or self.tls.certificate is None or self.tls.key is None:
            return None
        return self.tls.certificate, self.tls.key


@dataclass(frozen=True)
class FleetLinks:
    """Settings of the links of a fleet: what they carry, and how many there can be.

    Attributes:
        carry: the topic filters to carry; `#`: everything that clients want.
        publishers: "anywhere": any broker can publish any topic; "observed": those that were seen.
        max_degree: the most links that a broker can have; None: no limit.
    """

    carry: tuple[str, ...] = (EVERYTHING,)
    publishers: str = "anywhere"
    max_degree: int | None = None

    def __post_init__(self) -> None:
        carry = tuple(ordered_list(self.carry, "carry"))
        if not carry:
            raise InputError('carry is empty; give topic filters, or leave it out to carry everything ("#")')
        for text in carry:
            if not isinstance(text, str) or not is_valid_filter(text):
                raise InputError(f"carry has {shown(text)}; give MQTT topic filters, such as sensors/#")
            if text.startswith("$"):
                raise InputError(
                    f"carry has {shown(text)}; topics that begin with $ stay at their broker, so leave it out"
                )
        object.__setattr__(self, "carry", carry)
        check_choice(self.publishers, "publishers", PUBLISHERS)
        if self.max_degree is not None:
            check_count(self.max_degree, "max_degree", 1)


@dataclass(frozen=True)
class FleetLive:
    """How agents and the controller hold the links of a fleet while it runs.

    Attributes:
        controller: `host` or `host:port` at which agents reach the controller, as written.
        listen: where the controller listens, if that differs.
        tls: the TLS files of the controller's API: `certificate` and `key` are the controller's, `ca` is what
            agents trust; None: TLS with the system's certificates, except on loopback.
        plain: whether the API is plain text although it is not on loopback.
        key_file: the file with the key of the fleet, which only its owner can read.
        key_env: an environment variable with the key, instead of the file.
        absent: "keep": a broker that is away becomes a leaf of trees that change, and its neighbour keeps
            messages for it; "drop": these trees leave it out after the patience.
        patience: seconds after which a broker that is away is left out, and a step that is not done is given
            up.
        window: the most unfinished messages per hop.
        hop_bytes: the most bytes of unfinished messages per hop.
        agent_bytes: the most bytes of unfinished messages per agent.

    Examples:
        >>> FleetLive("10.0.0.1").uses_tls, FleetLive("127.0.0.1:8790").uses_tls
        (True, False)
    """

    controller: str = f"127.0.0.1:{CONTROLLER_PORT}"
    listen: str | None = None
    tls: FleetTls | None = None
    plain: bool = False
    key_file: str | None = None
    key_env: str | None = None
    absent: str = "keep"
    patience: float = 30.0
    window: int = 500
    hop_bytes: int = 16_000_000
    agent_bytes: int = 128_000_000

    def __post_init__(self) -> None:
        Address.parse(self.controller, CONTROLLER_PORT, "controller")
        if self.listen is not None:
            Address.parse(self.listen, CONTROLLER_PORT, "listen")
        if self.tls is not None:
            check_instance(self.tls, FleetTls, "tls", "give FleetTls, or None")
        if check_flag(self.plain, "plain") and self.tls is not None:
            raise InputError("plain is true, but tls is given; give one of them")
        _check_optional_text(self.key_file, "key_file")
        if self.key_env is not None:
            _check_variable(self.key_env, "key_env")
            if self.key_file is not None:
                raise InputError("key_file and key_env are given; give one of them")
        check_choice(self.absent, "absent", ABSENT)
        check_positive(self.patience, "patience")
        check_count(self.window, "window", 1, LARGEST_WINDOW)
        check_count(self.hop_bytes, "hop_bytes", 1)
        check_count(self.agent_bytes, "agent_bytes", 1)

    def address(self) -> Address:
        """The host and the port at which agents reach the controller."""
        return Address.parse(self.controller, CONTROLLER_PORT, "the address of the controller")

    def listen_address(self) -> Address:
        """The host and the port at which the controller listens."""
        return Address.parse(self.listen or self.controller, CONTROLLER_PORT, "listen")

    @property
    def uses_tls(self) -> bool:
        """Whether connections to the controller are encrypted."""
        if self.plain:
            return False
        return self.tls is not None or not (
            is_loopback(self.address().hostname) and is_loopback(self.listen_address().hostname)
        )

    def client_context(self) -> ssl.SSLContext | None:
        """The TLS context of agents; None: plain text.

        Raises:
            InputError: a file cannot be used for TLS.
        """
        return tls_context(None if self.tls is None else self.tls.ca) if self.uses_tls else None

    def server_files(self) -> tuple[str, str] | None:
        """The certificate file and the key file of the controller; None: plain text.

        Raises:
            InputError: it needs them, and the fleet file does not name them.
        """
        if not self.uses_tls:
            return None
        if self.tls is None or self.tls.certificate is None or self.tls.key is None:
            raise InputError(
                f"the controller at {self.controller} needs a certificate; give [live] tls = "
                '{ ca = "ca.crt", certificate = "controller.crt", key = "controller.key" }, '
                "or tls = false for plain text"
            )
        return self.tls.certificate, self.tls.key

    def key(self) -> str:
        """Read the key of the fleet.

        Raises:
            InputError: the fleet file names no key; the file does not exist or others can read it, or the
                variable is not set.
            StorageError: the file cannot be read.
        """
        if self.key_file is not None:
            return read_secret(self.key_file)
        if self.key_env is None:
            raise InputError(
                'the fleet has no key; write one with "broadloom init --key-file", or give [live] key_file = '
                '"secrets/fleet.key"'
            )
        key = os.environ.get(self.key_env)
        if not key:
            raise InputError(f"the environment variable {self.key_env} is not set; set the key of the fleet")
        return key


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, and no other machine can reach it.

    Examples:
        >>> is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Fleet:
    """Brokers that an operator runs, and what the links between them carry: the content of `fleet.toml`.

    Args:
        brokers: the brokers.
        links: what links carry.
        path: the file that it was read from.
        live: how agents and the controller hold the links.

    Attributes:
        brokers: the brokers by their names, in the order of the file.
        links: what links carry.
        live: how agents and the controller hold the links.
        path: the file that it was read from; None: made in Python.

    Raises:
        InputError: there is no broker, or two have the same name or address.

    Examples:
        >>> import broadloom as bl
        >>> from broadloom.deployment import FleetBroker
        >>> fleet = bl.Fleet([FleetBroker("rome", "mqtt.example.org"), FleetBroker("oslo", "10.0.0.7:1884")])
        >>> fleet.brokers["rome"].host_and_port()
        Address(host='mqtt.example.org', port=8883)
        >>> fleet
        Fleet(brokers=['rome', 'oslo'])
    """

    def __init__(
        self,
        brokers: Iterable[FleetBroker],
        links: FleetLinks | None = None,
        path: str | Path | None = None,
        live: FleetLive | None = None,
    ) -> None:
        by_name: dict[str, FleetBroker] = {}
        by_address: dict[Address, str] = {}
        for broker in ordered_list(brokers, "brokers"):
            check_instance(broker, FleetBroker, "a broker", "give a FleetBroker")
            if broker.name in by_name:
                raise InputError(f"broker {broker.name!r} appears twice; give each broker a unique name")
            by_name[broker.name] = broker
            address = broker.host_and_port()
            other = by_address.setdefault(address._replace(host=address.host.lower()), broker.name)
            if other != broker.name:
                raise InputError(
                    f"brokers {other!r} and {broker.name!r} have the same address {address}; list each once"
                )
        if not by_name:
            raise InputError("the fleet has no brokers; give at least one, with its address")
        if links is not None:
            check_instance(links, FleetLinks, "links", "give FleetLinks, or None")
        if live is not None:
            check_instance(live, FleetLive, "live", "give FleetLive, or None")
        self.brokers: Mapping[str, FleetBroker] = MappingProxyType(by_name)
        self.links = links or FleetLinks()
        self.live = live or FleetLive()
        self.path = None if path is None else check_path(path)

    def __reduce__(self) -> tuple[type[Fleet], tuple[object, ...]]:  # a locked mapping cannot be pickled
        return Fleet, (list(self.brokers.values()), self.links, self.path, self.live)

    @classmethod
    def load(cls, path: str | Path = FLEET_FILE) -> Fleet:
        """Read a fleet file; relative paths in it start at its folder.

        Raises:
            InputError: the file is missing, is not TOML, or has an unknown name or a wrong value.
            StorageError: the file cannot be read.

        Examples:
            >>> import tempfile
            >>> import broadloom as bl
            >>> file = Path(tempfile.mkdtemp()) / "fleet.toml"
            >>> _ = file.write_text('brokers.rome = { address = "10.0.0.7", tls = false }')
            >>> bl.Fleet.load(file).nodes_table().to_pylist()
            [{'node': 'rome', 'kind': 'mosquitto', 'address': '10.0.0.7:1883'}]
        """
        file = local_path(path, "the fleet file")
        if not file.exists():
            raise InputError(f"{file} does not exist; write it with: broadloom init")
        return _FleetReader(file).fleet()

    def save(self, path: str | Path = FLEET_FILE, overwrite: bool = False) -> None:
        """Write the fleet file; paths below its folder are written relative to it.

        Raises:
            InputError: the file exists and `overwrite` is false, or `path` is not a path.
            StorageError: the file cannot be written.

        Examples:
            >>> import tempfile
            >>> import broadloom as bl
            >>> from broadloom.deployment import FleetBroker
            >>> file = Path(tempfile.mkdtemp()) / "fleet.toml"
            >>> fleet = bl.Fleet([FleetBroker("rome", "10.0.0.7")])
            >>> fleet.save(file)
            >>> bl.Fleet.load(file) == fleet
            True
        """
        from broadloom.deployment.fleet_text import fleet_text

        file = local_path(path, "the fleet file")
        if not check_flag(overwrite, "overwrite") and file.exists():
            raise InputError(f"{file} exists; choose another path, or overwrite it")
        write_file(file, fleet_text(self, file.absolute().parent).encode())

    def joined(self, name: str, address: str) -> FleetBroker:
        """A broker that is not in the file: its kind, TLS files and login are those that most brokers have.

        Raises:
            InputError: the name or the address is malformed.

        Examples:
            >>> fleet = Fleet([FleetBroker("rome", "10.0.0.7", tls=None)])
            >>> fleet.joined("oslo", "10.0.0.8").host_and_port()
            Address(host='10.0.0.8', port=1883)
        """
        brokers = list(self.brokers.values())
        shared = {key: most_common(brokers, key) for key in ("kind", "tls", "login")}
        return FleetBroker(name, address, **shared)

    def nodes_table(self) -> pa.Table:
        """The table `nodes`: node, kind, address, and site, lat, lon and capacity where they are known.

        Examples:
            >>> import broadloom as bl
            >>> from broadloom.deployment import FleetBroker
            >>> bl.Fleet([FleetBroker("rome", "10.0.0.7", site="eu-south-1")]).nodes_table().column_names
            ['node', 'kind', 'address', 'site']
        """
        import pyarrow as pa

        brokers = list(self.brokers.values())
        columns: dict[str, list[Any]] = {
            "node": [broker.name for broker in brokers],
            "kind": [broker.kind for broker in brokers],
            "address": [str(broker.host_and_port()) for broker in brokers],
            "site": [broker.site for broker in brokers],
            "lat": [broker.position and broker.position[0] for broker in brokers],
            "lon": [broker.position and broker.position[1] for broker in brokers],
            "capacity": [None if broker.capacity is None else float(broker.capacity) for broker in brokers],
        }
        return pa.table(
            {name: column for name, column in columns.items() if any(v is not None for v in column)}
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fleet):
            return NotImplemented
        same_brokers = list(self.brokers.items()) == list(other.brokers.items())
        return same_brokers and (self.links, self.live) == (other.links, other.live)

    def __hash__(self) -> int:
        return hash((tuple(self.brokers.items()), self.links, self.live))

    def __repr__(self) -> str:
        return f"Fleet(brokers={shown(list(self.brokers))})"


class _FleetReader:
    """Reader of one fleet file; its errors name the file, the section and the field."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._folder = file.absolute().parent

    def fleet(self) -> Fleet:
        content = read_toml(self._file)
        self._check_names(content, _SECTIONS, "")
        defaults = self._table(content.get("defaults", {}), "[defaults]")
        self._check_names(defaults, _DEFAULTS, "[defaults]")
        shared = self._values(defaults, "[defaults]")
        self._made(lambda: FleetHooks(**shared.get("hooks", {})), "[defaults]")
        if "kind" in shared:
            self._made(lambda: check_choice(shared["kind"], "kind", KINDS), "[defaults]")
        brokers = self._table(content.get("brokers", {}), "[brokers]")
        if not brokers:
            raise InputError(f"{self._file} has no brokers; add a section [brokers.NAME] with an address")
        listed = [self._broker(name, section, shared) for name, section in brokers.items()]
        section = self._table(content.get("links", {}), "[links]")
        self._check_names(section, _LINKS, "[links]")
        links = self._made(lambda: FleetLinks(**section), "[links]")
        return self._made(lambda: Fleet(listed, links, self._file, self._live(content)), "")

    def _live(self, content: Mapping[str, Any]) -> FleetLive:
        section = self._table(content.get("live", {}), "[live]")
        self._check_names(section, _LIVE, "[live]")
        values = self._paths(section, ("key_file",))
        if "tls" in values:
            values["tls"] = self._tls(values["tls"], "[live]")
            values["plain"] = values["tls"] is None
        return self._made(lambda: FleetLive(**values), "[live]")

    def _broker(self, name: str, section: Any, shared: Mapping[str, Any]) -> FleetBroker:
        where = f"[brokers.{name}]" if name.isprintable() else "[brokers]"
        self._made(lambda: _check_broker_name(name), "[brokers]")
        known = self._table(section, where)
        self._check_names(known, _BROKER, where)
        if "address" not in known:
            raise InputError(f'{self._file} {where} has no address; give address = "host:port"')
        own = self._values(known, where)
        values = {**shared, **own}
        hooks = _joined_hooks(shared.get("hooks", {}), own.get("hooks", {}))
        values["hooks"] = self._made(lambda: FleetHooks(**hooks), where)
        return self._made(lambda: FleetBroker(name, **values), where)

    def _values(self, section: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The values of a section: TLS and logins as objects, paths from the folder of the file."""
        values = dict(section)
        if "tls" in values:
            values["tls"] = self._tls(values["tls"], where)
        for name in ("login", "api_login"):
            if name in values:
                values[name] = self._login(values[name], name, where)
        if "hooks" in values:
            hooks = self._table(values["hooks"], f"{where} hooks")
            self._check_names(hooks, _HOOKS, f"{where} hooks")
            values["hooks"] = self._paths(hooks, ("path",))
        for name in ("subscriptions", "config"):
            if isinstance(values.get(name), str):
                values[name] = self._resolved(values[name])
        if isinstance(values.get("subscriptions"), list):
            sources = values["subscriptions"]
            values["subscriptions"] = [
                self._resolved(one) if isinstance(one, str) else one for one in sources
            ]
        return values

    def _tls(self, value: Any, where: str) -> FleetTls | None:
        if isinstance(value, bool):
            return FleetTls() if value else None
        if not isinstance(value, dict):
            raise InputError(
                f"{self._file} {where}: tls is {shown(value)}; give true, false, or a table such as "
                '{ ca = "ca.crt" }'
            )
        self._check_names(value, _TLS, f"{where} tls")
        return self._made(lambda: FleetTls(**self._paths(value, _TLS)), where)

    def _login(self, value: Any, name: str, where: str) -> FleetLogin | None:
        if value is False:
            return None
        place = f"{where} {name}"
        if not isinstance(value, dict):  # the error must not repeat what can be a password
            raise InputError(
                f"{self._file} {place} is not a table; give false (anonymous), or a table such as "
                '{ user = "broadloom", password_file = "secrets/broadloom" }'
            )
        self._check_names(value, _LOGIN, place)
        if "user" not in value:
            raise InputError(f'{self._file} {place} has no user; give user = "..."')
        paths = self._paths(value, ("password_file",))
        return self._made(lambda: FleetLogin(**paths), where)

    def _paths(self, value: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
        resolved = {name: self._resolved(value[name]) for name in names if isinstance(value.get(name), str)}
        return {**value, **resolved}

    def _resolved(self, text: str) -> str:
        """A path that starts at the folder of the file; URLs and empty texts stay as they are."""
        if not text or "://" in text:
            return text
        return str(self._folder / Path(text).expanduser())

    def _table(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise InputError(f"{self._file} {where} is not a section; write {where} and its values below it")
        return value

    def _check_names(self, section: Mapping[str, Any], known: Iterable[str], where: str) -> None:
        place = f"{self._file} {where}".rstrip()
        for name in section:
            if name in known:
                continue
            if name.lower() in _SECRETS:
                raise InputError(
                    f"{place} has a {name}; secrets do not belong in this file: write it to a file that only "
                    "you can read and give password_file, or give the name of a variable as password_env"
                )
            hint = nearest_name(name, known)
            raise InputError(f"{place}: unknown name {shown(name)}{hint}; there are {', '.join(known)}")

    def _made(self, make: Callable[[], T], where: str) -> T:
        """What a function returns; its errors name the file and the section."""
        try:
            return make()
        except InputError as error:
            raise InputError(f"{self._file} {where}".rstrip() + f": {error}") from error


def _joined_hooks(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The hooks of a broker: a path of its own replaces the default commands for its file, and the reverse.

    Examples:
        >>> _joined_hooks({"install": "scp {file} {host}:", "stop": "halt"}, {"path": "links.conf"})
        {'stop': 'halt', 'path': 'links.conf'}
    """
    dropped = set()
    if "path" in own:
        dropped = {"install", "remove"}
    elif "install" in own:
        dropped = {"path"}
    return {**{name: value for name, value in defaults.items() if name not in dropped}, **own}


def most_common(brokers: Iterable[FleetBroker], name: str) -> Any:
    """The value of a field that most brokers have; of several, the one that comes first."""
    return Counter(getattr(broker, name) for broker in brokers).most_common(1)[0][0]


def _check_broker_name(name: object) -> None:
    """Raise unless a name can be a broker's id: a text of one line, without spaces at its ends."""
    check_line(name, "a broker's name")


def _check_optional_text(value: object, name: str) -> None:
    """Raise unless a value is None or can name a file."""
    if value is not None and (not isinstance(value, str) or not value.isprintable() or not value):
        raise InputError(f"{name} is {shown(value)}; give the path of a file")


def _check_variable(value: object, name: str) -> None:
    """Raise unless a value can name an environment variable; the error does not repeat a possible secret."""
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", value):
        raise InputError(f"{name} is not the name of an environment variable; give its name")


def _check_source(value: object) -> None:
    """Raise unless a value is a path or the URL of an admin API, without a login."""
    _check_optional_text(value, "subscriptions")
    text = str(value)
    if "://" not in text:
        return
    expected = "give a path, or a URL such as http://host:8222"
    try:
        parts = urlsplit(text)
        has_login = "@" in parts.netloc
        is_good = parts.scheme in ("http", "https") and parts.port != 0
        if is_good and not has_login:
            Address.parse(parts.netloc, PLAIN_PORT, "subscriptions")
    except ValueError:
        has_login, is_good = "@" in text, False
    if has_login:  # the error must not repeat what can be a password
        raise InputError("subscriptions contains a login; give it as api_login")
    if not is_good:
        raise InputError(f"subscriptions is {shown(text)}; {expected}")


def _checked_position(value: object) -> tuple[float, float]:
    """Latitude and longitude."""
    pair = ordered_list(value, "position")
    if len(pair) != 2:
        raise InputError(f"position is {shown(value)}; give latitude and longitude, such as [41.9, 12.5]")
    latitude = check_number(pair[0], "the latitude in position", -90, 90)
    return latitude, check_number(pair[1], "the longitude in position", -180, 180)
