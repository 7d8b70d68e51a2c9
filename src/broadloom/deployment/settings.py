"""Where brokers are, and how links prove who they are: by references to secrets, never by secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from broadloom.checks import check_count, check_flag
from broadloom.errors import InputError
from broadloom.plans.plan import Plan

LAST_PORT = 65_535
# Where links find the name and the password that they log in with.
LOGIN = ("BROADLOOM_USER", "BROADLOOM_PASSWORD")


@dataclass(frozen=True)
class Settings:
    """What an export needs to know beside the links.

    Attributes:
        address: where a broker is, `host` or `host:port`, with `{broker}` for its id.
        places: the addresses of brokers that are elsewhere.
        tls: whether links are encrypted, and prove themselves by certificates.
        certificates: the folder of certificates on each broker; None: the target's own.
        credentials: whether links also log in, with a name and password from the environment.
        accounts: for NATS, whether trees that close a ring together may have several accounts.
        qos: for MQTT, 0, 1 or 2.

    Examples:
        >>> Settings(address="{broker}.example.org:1884").place("rome", 1883)
        ('rome.example.org', 1884)
    """

    address: str = "{broker}"
    places: Mapping[str, str] = field(default_factory=dict)
    tls: bool = True
    certificates: str | None = None
    credentials: bool = False
    accounts: bool = False
    qos: int = 1

    def __post_init__(self) -> None:
        if "{broker}" not in self.address:
            raise InputError(
                f"address {self.address!r} is the same for all; put {{broker}} where the id goes"
            )
        if any(not char.isprintable() or char in "\"'" for char in self.certificates or ""):
            raise InputError(
                f"certificates is {self.certificates!r}; give a folder without quotes or line breaks"
            )
        for flag in ("tls", "credentials", "accounts"):
            check_flag(getattr(self, flag), flag)
        if check_count(self.qos, "qos") > 2:
            raise InputError(f"qos is {self.qos}; give 0, 1 or 2")

    def address_of(self, broker: str) -> str:
        """Where a broker is, as it was given."""
        address = self.places.get(broker, self.address.replace("{broker}", broker))
        if "@" in address:  # and do not repeat what may be a password
            raise InputError(f"the address of broker {broker!r} holds a login; give host or host:port alone")
        return address

    def place(self, broker: str, port: int) -> tuple[str, int]:
        """The host and the port of a broker, which has the given port if nothing else is said."""
        address = self.address_of(broker)
        host, colon, given = address.rpartition(":")
        if not colon or "]" in given:  # no port, perhaps an IPv6 address in brackets
            host, given = address, str(port)
        odd = any(char.isspace() or not char.isprintable() or char in "\"'/" for char in host)
        if (
            not host
            or odd
            or not _is_encodable(host)
            or not (given.isdecimal() and 0 < int(given) <= LAST_PORT)
        ):
            raise InputError(f"the address of broker {broker!r} is {address!r}; give host or host:port")
        return host, int(given)


def _is_encodable(host: str) -> bool:
    """Whether a host's labels are such that it can be looked up."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def places_of(plan: Plan) -> dict[str, str]:
    """The addresses in the plan's nodes table, if it has a column `address`."""
    if plan.nodes is None or "address" not in plan.nodes.column_names:
        return {}
    found = zip(plan.interest.node_ids, plan.nodes.column("address").to_pylist(), strict=True)
    return {broker: str(address) for broker, address in found if address}


def safe(broker: str) -> str:
    """A broker's id as a part of names: letters, digits and `_.-~`, the rest as `%` and its code.

    Examples:
        >>> safe("eu/1")
        'eu%2F1'
    """
    return quote(broker, safe="")


def link_name(one: str, other: str) -> str:
    """The name of the link of two brokers; no other pair has it.

    Examples:
        >>> link_name("a", "b:c")
        'broadloom-a:b%3Ac'
    """
    return f"broadloom-{safe(one)}:{safe(other)}"
