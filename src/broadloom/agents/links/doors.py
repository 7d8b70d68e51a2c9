"""How the agent reaches brokers: addresses, TLS and logins, by references to secrets, never by secrets."""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path

from broadloom.agents.links.session import Door
from broadloom.agents.moves.address import read_secret
from broadloom.checks import check_count
from broadloom.deployment.deployment_inputs import LOGIN, Settings
from broadloom.deployment.targets.mosquitto_bridges import PORT, TLS_PORT
from broadloom.errors import InputError
from broadloom.mqtt.packets import LAST_ID, Login

LOG = logging.getLogger("broadloom.live")
(USER, PASSWORD), PASSWORD_FILE = LOGIN, "BROADLOOM_PASSWORD_FILE"
AUTHORITY, CERTIFICATE, KEY = "ca.crt", "agent.crt", "agent.key"


def doors(settings: Settings, window: int = Door.window) -> Callable[[str], Door]:
    """How to reach each broker.

    With TLS, `ca.crt` in the folder of certificates says whom to trust, and `agent.crt` and `agent.key`, if
    they are there, prove who the agent is; without a folder the system's authorities are trusted.

    Args:
        settings: addresses, whether there is TLS, the folder of certificates, and whether to log in.
        window: how many messages may come unacknowledged over a link each way.

    Raises:
        InputError: a certificate or a login is not there, or the window is none.

    Examples:
        >>> doors(Settings(address="{broker}.example.org", tls=False))("rome").host
        'rome.example.org'
    """
    if check_count(window, "window", minimum=1) > LAST_ID:
        raise InputError(f"window is {window:,}; give a whole number from 1 to {LAST_ID:,}")
    context = _context(settings.certificates) if settings.tls else None
    login = _login() if settings.credentials else None
    if login is not None and context is None:
        LOG.warning("without TLS the password goes over the network for all to read")

    def door(broker: str) -> Door:
        host, port = settings.place(broker, TLS_PORT if settings.tls else PORT)
        return Door(host.strip("[]"), port, context, login, window=window)

    return door


def _context(certificates: str | None) -> ssl.SSLContext:
    if certificates is None:
        return ssl.create_default_context()
    folder = Path(certificates)
    try:
        context = ssl.create_default_context(cafile=str(folder / AUTHORITY))
        if (folder / CERTIFICATE).exists():
            context.load_cert_chain(folder / CERTIFICATE, folder / KEY)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"the certificates of {folder} cannot be read: {error}") from error
    return context


def _login() -> Login:
    """The name and the password, from the environment or from a file that it names."""
    user, password, place = (os.environ.get(name) for name in (USER, PASSWORD, PASSWORD_FILE))
    if not password and place:
        password = read_secret(place)
    if not user or not password:
        raise InputError(f"a login is asked for; set {USER}, and {PASSWORD} or {PASSWORD_FILE}")
    return Login(user, password)
