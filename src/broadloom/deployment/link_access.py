"""Access of links to brokers: TLS files, user and password; and the check of all texts in an export."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broadloom.checks import has_control_characters, shown
from broadloom.deployment.deployment_inputs import Settings, variable_name
from broadloom.deployment.wiring import Wiring
from broadloom.errors import InputError
from broadloom.mqtt.endpoint import PASSWORD_VARIABLE, USER_VARIABLE, Address

CERTIFICATE_FILES = ("ca.crt", "broker.crt", "broker.key")
SYSTEM_CERTIFICATES = "/etc/ssl/certs"
SYSTEM_CA_FILE = f"{SYSTEM_CERTIFICATES}/ca-certificates.crt"
# The start of the texts for which an operator puts a secret. No other text in an export contains it, and
# neither a shell nor a template engine gives it a meaning.
REFERENCE = "__BROADLOOM_"


class LinkAccess(NamedTuple):
    """How a link connects to a broker.

    Attributes:
        tls: whether it is encrypted.
        ca: the file of trusted certificates, on the machine that opens the link; None: the system's.
        certificate: the file of its own certificate; None: it has none.
        key: the file of its key.
        user: the user name; None: it does not log in.
        password: the password, or a reference to it.
        has_secret: whether the password is the real one.
    """

    tls: bool = False
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    user: str | None = None
    password: str | None = None
    has_secret: bool = False


def link_access(settings: Settings, broker: str, folder: str) -> LinkAccess:
    """How links connect to a broker: as the fleet file says, or by the certificates in a folder.

    Args:
        settings: the settings of links.
        broker: the broker to which they connect.
        folder: the default folder of certificates.

    Examples:
        >>> link_access(Settings(credentials=True), "rome", "/etc/certs")[1:3]
        ('/etc/certs/ca.crt', '/etc/certs/broker.crt')
    """
    ca, certificate, key = (f"{settings.certificates or folder}/{name}" for name in CERTIFICATE_FILES)
    own = settings.brokers.get(broker)
    if own is None:
        user, password = f"__{USER_VARIABLE}__", f"__{PASSWORD_VARIABLE}__"
        access = LinkAccess(True, ca, certificate, key) if settings.tls else LinkAccess()
        return access._replace(user=user, password=password) if settings.credentials else access
    access = LinkAccess()
    if own.tls is not None and settings.certificates is None:
        access = LinkAccess(True, own.tls.ca, own.tls.certificate, own.tls.key)
    elif own.tls is not None:
        mine = (certificate, key) if own.tls.certificate is not None else (None, None)
        access = LinkAccess(True, None if own.tls.ca is None else ca, *mine)
    if own.login is None:
        return access
    secret = settings.passwords.get(broker)
    password = password_reference(broker) if secret is None else secret
    return access._replace(user=own.login.user, password=password, has_secret=secret is not None)


def password_reference(broker: str) -> str:
    """The text in exported files for which the password of a broker has to be put.

    Examples:
        >>> password_reference("eu-1")
        '__BROADLOOM_PASSWORD_eu_2D_1__'
    """
    return f"__{PASSWORD_VARIABLE}_{variable_name(broker)}__"


def uri_address(address: Address) -> str:
    """An address for a URI: the host in ASCII.

    Raises:
        InputError: an IPv6 address with a zone, which a URI would change.

    Examples:
        >>> uri_address(Address("müller.de", 80))
        'xn--mller-kva.de:80'
    """
    if "%" in address.host:
        raise InputError(f"address {address} has a zone, which links cannot have; give another address")
    host = address.host if address.host.isascii() else address.host.encode("idna").decode()
    return f"{host}:{address.port}"


def check_texts(wiring: Wiring, settings: Settings) -> None:
    """Check every text that an export contains: no control characters, and nothing like a reference.

    Raises:
        InputError: a broker's id, an address, a topic filter, a user name or a path cannot be exported.
    """
    for name, text in _texts(wiring, settings):
        if has_control_characters(text):
            raise InputError(f"{name} {shown(text)} has a line break or another control character; rename it")
        if REFERENCE in text:
            raise InputError(
                f"{name} {shown(text)} contains {REFERENCE}, which exports use for passwords; rename it"
            )


def _texts(wiring: Wiring, settings: Settings) -> Iterator[tuple[str, str]]:
    for broker in wiring.brokers:
        yield "broker", broker
    for text in sorted({text for link in wiring.links for text in link.out + link.into}):
        yield "topic filter", text
    for broker in {end: None for link in wiring.links for end in link[:2]}:
        yield "the address", settings.address_of(broker)
        if broker in settings.brokers:
            one = settings.brokers[broker]
            yield from (("the path", path) for path in link_access(settings, broker, "")[1:4] if path)
            if one.login is not None:
                yield "the user", one.login.user
            if one.leaf_listen is not None:
                yield "leaf_listen", one.leaf_listen
    if settings.certificates is not None:
        yield "the folder", settings.certificates
