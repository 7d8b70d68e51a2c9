"""Making of a fleet file: from options like `rome=host:port`, or from questions on a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from broadloom.deployment.deployment_inputs import safe_name
from broadloom.deployment.fleet_file import Fleet, FleetBroker, FleetLinks, FleetLogin, FleetTls
from broadloom.errors import InputError, error_from_os
from broadloom.model import nearest_name

T = TypeVar("T")
PLAIN, SYSTEM, ANONYMOUS = "no", "system", "anonymous"
ENVIRONMENT = "env:"  # before the name of a variable, in place of a password file
SECRETS = "secrets"  # folder of password files, next to the fleet file


@dataclass(frozen=True)
class FleetOptions:
    """Options of `broadloom init`; a text is `VALUE` for all brokers, or `NAME=VALUE` for one.

    Attributes:
        brokers: `NAME=ADDRESS`, one per broker.
        kinds: mosquitto, emqx, nats, rabbitmq.
        tls: `no`, `system`, or the file of a CA.
        logins: `USER:PASSWORD_FILE`, `USER:env:VARIABLE`, or `anonymous`.
        api_logins: the same for admin APIs.
        accounts: for NATS, the account of clients.
        sites, positions, capacities, subscriptions, configs, leaf_listens: `NAME=VALUE` only.
        links: what links carry.
        for_all: values of fields of all brokers, unless an option gives one for a broker.
    """

    brokers: Iterable[str]
    kinds: Iterable[str] = ()
    tls: Iterable[str] = ()
    logins: Iterable[str] = ()
    api_logins: Iterable[str] = ()
    sites: Iterable[str] = ()
    positions: Iterable[str] = ()
    capacities: Iterable[str] = ()
    subscriptions: Iterable[str] = ()
    configs: Iterable[str] = ()
    leaf_listens: Iterable[str] = ()
    accounts: Iterable[str] = ()
    links: FleetLinks = field(default_factory=FleetLinks)
    for_all: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs_brokers(self) -> bool:
        """Whether an option is about brokers, which must then be given too."""
        about: tuple[Iterable[Any], ...] = (self.kinds, self.tls, self.logins, self.api_logins, self.sites)
        about += (self.positions, self.capacities, self.subscriptions, self.configs, self.leaf_listens)
        about += (self.accounts,)
        return any(map(list, (*about, self.for_all)))

    def fleet(self) -> Fleet:
        """The fleet.

        Raises:
            InputError: an option is wrong; the message names it.

        Examples:
            >>> options = FleetOptions(["rome=10.0.0.1", "oslo=10.0.0.7"], tls=["no", "oslo=ca.crt"])
            >>> [broker.host_and_port().port for broker in options.fleet().brokers.values()]
            [1883, 8883]
        """
        addresses: dict[str, str] = {}
        for text in self.brokers:
            name, equals, address = text.partition("=")
            if not (name and equals and address):
                was = "contains a login" if "@" in text else f"is {text!r:.80}"  # which is not repeated
                raise InputError(f"--broker {was}; give NAME=HOST or NAME=HOST:PORT")
            if name in addresses:
                raise InputError(f"--broker names {name!r} twice; give each broker a unique name")
            addresses[name] = address
        fields: dict[str, Mapping[str, Any]] = {
            "kind": _by_broker("--kind", self.kinds, addresses, str),
            "tls": _by_broker("--tls", self.tls, addresses, parse_tls),
            "login": _by_broker("--login", self.logins, addresses, parse_login),
            "api_login": _by_broker("--api-login", self.api_logins, addresses, parse_login),
            "site": _by_broker("--site", self.sites, addresses, str, shared=False),
            "position": _by_broker("--position", self.positions, addresses, _position, shared=False),
            "capacity": _by_broker("--capacity", self.capacities, addresses, _number, shared=False),
            "subscriptions": self._sources(addresses),
            "config": _by_broker("--config", self.configs, addresses, absolute, shared=False),
            "leaf_listen": _by_broker("--leaf-listen", self.leaf_listens, addresses, str, shared=False),
            "account": _by_broker("--account", self.accounts, addresses, str),
        }
        brokers = []
        for name, address in addresses.items():
            values = dict(self.for_all)
            values |= {key: given[name] for key, given in fields.items() if name in given}
            brokers.append(_named(f"broker {name!r}", lambda: FleetBroker(name, address, **values)))  # noqa: B023
        return Fleet(brokers, self.links)

    def _sources(self, names: Iterable[str]) -> dict[str, str | tuple[str, ...]]:
        """The sources of subscriptions of each broker, one or several."""
        listed: dict[str, tuple[str, ...]] = {}
        for text in self.subscriptions:
            found = _by_broker("--subscriptions", [text], names, parse_source, shared=False)
            for name, source in found.items():
                listed[name] = (*listed.get(name, ()), source)
        return {name: sources if len(sources) > 1 else sources[0] for name, sources in listed.items()}


def fields_for_all(
    ca: str | None, no_tls: bool, user: str | None, password_file: str | None, password_env: str | None
) -> dict[str, Any]:
    """TLS and login of all brokers, as far as they are given.

    Raises:
        InputError: options contradict each other, or a login is not complete.
    """
    fields: dict[str, Any] = {}
    if ca and no_tls:
        raise InputError(
            "--ca and --no-tls contradict each other; give one, or --tls NAME=... for one broker"
        )
    if ca or no_tls:
        fields["tls"] = FleetTls(absolute(ca)) if ca else None
    if user is None and (password_file or password_env):
        raise InputError("a password is given without --user; give --user, too")
    if user is not None:
        file = absolute(password_file) if password_file else None
        fields["login"] = _named("--user", lambda: FleetLogin(user, file, password_env))
    return fields


def _by_broker(
    option: str, texts: Iterable[str], names: Iterable[str], parse: Callable[[str], T], shared: bool = True
) -> dict[str, T]:
    """The value of an option for each broker; one with a broker's name replaces the one for all."""
    known = list(names)
    values: dict[str, T] = {}
    own: dict[str, T] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals and shared:
            if values:
                raise InputError(f"{option} is given twice for all brokers; give NAME=VALUE for one of them")
            parsed = _named(option, lambda: parse(text))  # noqa: B023
            values = dict.fromkeys(known, parsed)
            continue
        if not equals:
            raise InputError(f"{option} is {text!r:.80}; give NAME=VALUE with the name of a broker")
        if name not in known:
            unknown = "an unknown broker" if ":" in name else f"broker {name!r:.80}"  # not part of a login
            hint = nearest_name(name, known)
            raise InputError(f"{option} names {unknown}{hint}; there are {', '.join(known)}")
        if name in own:
            raise InputError(f"{option} is given twice for broker {name!r}; give it once")
        own[name] = _named(option, lambda: parse(value))  # noqa: B023
    return values | own


def _named(name: str, make: Callable[[], T]) -> T:
    """What a function returns; its errors begin with a name."""
    try:
        return make()
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def parse_tls(text: str) -> FleetTls | None:
    """TLS from `no`, `system`, or the file of a CA."""
    if text == PLAIN:
        return None
    return FleetTls() if text == SYSTEM else FleetTls(absolute(text))


def parse_login(text: str) -> FleetLogin | None:
    """A login from `USER:PASSWORD_FILE`, `USER:env:VARIABLE`, or `anonymous`."""
    if text == ANONYMOUS:
        return None
    user, colon, secret = text.partition(":")
    if not (user and colon and secret):  # the error must not repeat what can be a password
        raise InputError("a login has another form; give USER:PASSWORD_FILE, USER:env:VARIABLE, or anonymous")
    if secret.startswith(ENVIRONMENT):
        return FleetLogin(user, password_env=secret.removeprefix(ENVIRONMENT))
    return FleetLogin(user, absolute(secret))


def parse_source(text: str) -> str:
    """A source of subscriptions: a URL as it is, or a path."""
    return text if "://" in text else absolute(text)


def absolute(text: str) -> str:
    """A path from the present folder."""
    return str(Path(text).expanduser().absolute()) if text else text


def _position(text: str) -> tuple[float, ...]:
    return tuple(_number(part) for part in text.split(","))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{text!r:.40} is not a number") from None


# Questions.


class FleetQuestions:
    """Questions about the brokers of a fleet, one by one; nothing is written before the last answer.

    Args:
        ask: shows a question and returns the answer.
        ask_secret: the same, without showing the answer.
        tell: shows a line.
        folder: the folder of the fleet file.

    Attributes:
        passwords: the passwords that were typed, by the file that will have them.
    """

    def __init__(
        self,
        ask: Callable[[str], str],
        ask_secret: Callable[[str], str],
        tell: Callable[[str], None],
        folder: Path,
    ) -> None:
        self._ask = ask
        self._ask_secret = ask_secret
        self._tell = tell
        self._folder = folder
        self.passwords: dict[Path, str] = {}

    def fleet(self, links: FleetLinks | None = None) -> Fleet:
        """Ask for brokers until a name is left empty."""
        brokers: list[FleetBroker] = []
        self._tell("The brokers of the fleet, one by one. An empty answer takes the value in brackets.")
        while True:
            name = self._ask(f"Name of the {'next broker (empty: no more)' if brokers else 'first broker'}: ")
            if not name and brokers:
                return Fleet(brokers, links)
            if not name:
                continue
            try:
                last = brokers[-1] if brokers else FleetBroker("none", "none")
                broker = self._broker(name, last)
                Fleet([*brokers, broker])
            except InputError as error:
                self._tell(f"{error}")
                continue
            brokers.append(broker)

    def _broker(self, name: str, last: FleetBroker) -> FleetBroker:
        """Ask about one broker; the answers for the one before are the defaults."""
        broker = self._valid("Address (host or host:port): ", lambda text: FleetBroker(name, text))
        broker = self._valid(
            f"Kind: mosquitto, emqx, nats or rabbitmq [{last.kind}]: ",
            lambda text: replace(broker, kind=text or last.kind),
        )
        known = PLAIN if last.tls is None else last.tls.ca or SYSTEM
        broker = self._valid(
            f"TLS: no, system (its certificates), or the file of a CA [{known}]: ",
            lambda text: replace(broker, tls=parse_tls(text or known)),
        )
        broker = replace(broker, login=self._login(name, last.login))
        return self._valid(
            "Subscriptions: the path of mosquitto.db or of a log, or the URL of an admin API (optional): ",
            lambda text: replace(broker, subscriptions=parse_source(text) if text else None),
        )

    def _login(self, name: str, last: FleetLogin | None) -> FleetLogin | None:
        known = last.user if last is not None else ANONYMOUS
        user = self._ask(f"User name [{known}]: ") or known
        if user == ANONYMOUS:
            return None
        same = last is not None and user == last.user
        hint = " (empty: as for the last broker)" if same else ""
        while not (password := self._ask_secret(f"Password{hint}: ")):
            if same:
                return last
            self._tell("the password is empty")
        file = self._free_file(name)
        login = FleetLogin(user, str(file))
        self.passwords[file] = password
        return login

    def _free_file(self, name: str) -> Path:
        """A file for a password that does not exist yet."""
        stem = safe_name(name)
        number = 1
        file = self._folder / SECRETS / stem
        while file.exists() or file in self.passwords:
            number += 1
            file = file.with_name(f"{stem}-{number}")
        return file

    def _valid(self, question: str, make: Callable[[str], T]) -> T:
        """What a function makes of the answer; it is asked again until it is right."""
        while True:
            try:
                return make(self._ask(question))
            except InputError as error:
                self._tell(str(error))


def with_live(fleet: Fleet, controller: str | None, key_file: Path | None) -> Fleet:
    """A fleet with the address of its controller and the file of its key, as far as they are given.

    Raises:
        InputError: the address is malformed.
    """
    live = fleet.live if controller is None else replace(fleet.live, controller=controller)
    if key_file is not None:
        live = replace(live, key_file=absolute(str(key_file)))
    return Fleet(fleet.brokers.values(), fleet.links, fleet.path, live)


def save_passwords(passwords: Mapping[Path, str]) -> None:
    """Write each password to its new file, which only its owner can read.

    Raises:
        InputError: a file exists.
        StorageError: a file cannot be written.
    """
    for file, password in passwords.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as stream:
                stream.write(f"{password}\n")
        except OSError as error:
            raise error_from_os(f"cannot write {file}", error) from error
