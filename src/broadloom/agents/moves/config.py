"""The file that says what an agent works with: brokers, login, journal, port, links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from broadloom.agents.moves._given import TOKEN, check_names, login_of, part_of, secret_of, text_of
from broadloom.agents.moves.address import Address, Login
from broadloom.agents.moves.agent import Timing
from broadloom.agents.moves.control import is_text
from broadloom.agents.moves.summary import Site
from broadloom.checks import check_count, check_number
from broadloom.errors import InputError
from broadloom.storage import read_toml

PORT = 8780
_PARTS = {"journal", "port", "token_file", "login", "timing", "brokers", "links"}
_BROKER = {"address", "agent_address", "place", "capacity"}


@dataclass(frozen=True)
class AgentConfig:
    """What an agent works with.

    Attributes:
        journal: the folder of what survives its crash.
        brokers: where clients reach the brokers.
        doors: where the agent does; another port, where clients' ports tie client ids to user names.
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
    doors: Mapping[str, Address]
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
            doors=_addresses(brokers, "agent_address", place),
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
            address = Address.of(text_of(given, kind if kind in given else "address", ""))
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
