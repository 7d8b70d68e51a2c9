"""Sessions that a mosquitto broker keeps for links that are away: opened, trimmed, ended in their place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadloom.deployment.rehearsal._clients import HOST, TICK
from broadloom.errors import InputError
from broadloom.mqtt.paho import close_sockets, need_paho

if TYPE_CHECKING:
    from paho.mqtt.client import Client

VISIT_SECONDS = 30.0


@dataclass(frozen=True)
class Access:
    """How a broker is reached, beside its port.

    Attributes:
        host: its name or address.
        certificates: the folder of `ca.crt`, `broker.crt` and `broker.key`; None: without TLS.
        login: a name and a password, if it asks for them.
    """

    host: str = HOST
    certificates: Path | None = None
    login: tuple[str, str] | None = None

    def prepare(self, client: Client) -> None:
        """Give a client what it needs to get in."""
        if self.certificates is not None:
            files = [self.certificates / name for name in ("ca.crt", "broker.crt", "broker.key")]
            for file in files:
                if not file.exists():
                    raise InputError(f"there is no {file}, and links prove themselves by it; put it there")
            ca, own, key = map(str, files)
            client.tls_set(ca, own, key)
        if self.login is not None:
            client.username_pw_set(*self.login)


LOOPBACK = Access()


def see_to(
    what: str,
    port: int,
    client_id: str,
    filters: Sequence[str] = (),
    qos: int = 1,
    access: Access = LOOPBACK,
) -> None:
    """Open, close or end the session of a client that is away.

    Args:
        what: "open": keep messages of the filters from now on; "close": keep no more of them, but what waits
            goes on waiting; "end": forget the client, and all that waits for it.
        port: where the broker listens.
        client_id: whose session it is.
        filters: what to open or close.
        qos: of what is opened.
        access: how the broker is reached.

    Raises:
        InputError: the broker cannot be reached, gives no answer, or refuses.
    """
    asks: dict[str, Callable[[Client], object]] = {
        "open": lambda client: client.subscribe([(text, qos) for text in filters]),
        "close": lambda client: client.unsubscribe(list(filters)),
        "end": lambda _: None,  # to connect anew is enough
    }
    _visit(port, client_id, what == "end", asks[what], access)


def _visit(port: int, client_id: str, clean: bool, ask: Callable[[Client], object], access: Access) -> None:
    """Connect in the place of a client, ask for something, and leave when it is answered."""
    paho = need_paho()
    # What waits for the client is not acknowledged, and goes on waiting.
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, clean_session=clean, manual_ack=True)
    client.enable_bridge_mode()  # or the broker would send the link's own messages back to it
    answers: list[list[Any]] = []

    def connected(_client: Client, _data: object, _flags: object, answer: Any, _properties: object) -> None:
        if answer.is_failure or ask(client) is None:
            answers.append([answer])

    client.on_connect = connected
    client.on_subscribe = client.on_unsubscribe = lambda _client, _data, _id, given, _properties: (
        answers.append(list(given))
    )
    where = f"{access.host}:{port}"
    try:
        access.prepare(client)
        client.connect(access.host, port)
        end = time.monotonic() + VISIT_SECONDS
        while not answers and time.monotonic() < end:
            if client.loop(TICK) != paho.MQTT_ERR_SUCCESS:  # the link itself has come between
                client.reconnect()
        client.disconnect()
        client.loop(TICK)
    except OSError as error:
        said = error.strerror or error
        raise InputError(f"cannot open the session {client_id!r} at {where}: {said}; does it run?") from error
    finally:
        close_sockets(client)
    if not answers:
        raise InputError(f"{where} gave no answer to {client_id!r} in {VISIT_SECONDS:g} s; does it run?")
    if refusals := [answer for answer in answers[0] if answer.is_failure]:
        raise InputError(f"{where} refuses the session {client_id!r}: {refusals[0]}; may it log in there?")
