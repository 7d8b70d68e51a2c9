"""Stand-in sessions: an absent link's session at a mosquitto broker, opened, trimmed or ended in its name."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from broadloom.errors import InputError, UnreachableError
from broadloom.mqtt.paho import close_sockets, need_paho

if TYPE_CHECKING:
    from paho.mqtt.client import Client

ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class BrokerAccess:
    """Host, certificates and login of a broker; the port is separate.

    Attributes:
        host: its name or address.
        certificates: the folder of `ca.crt`, `broker.crt` and `broker.key`; None: no TLS.
        login: user name and password, if the broker requires them.
    """

    host: str = "127.0.0.1"
    certificates: Path | None = None
    login: tuple[str, str] | None = None

    def prepare(self, client: Client) -> None:
        """Configure TLS and login of a client."""
        if self.certificates is not None:
            files = [self.certificates / name for name in ("ca.crt", "broker.crt", "broker.key")]
            for file in files:
                if not file.exists():
                    raise InputError(
                        f"{file} does not exist, and links authenticate with it; create it, or give another "
                        "folder of certificates"
                    )
            ca, certificate, key = map(str, files)
            try:
                client.tls_set(ca, certificate, key)
            except OSError as error:  # an SSLError, too
                raise InputError(
                    f"the certificates in {self.certificates} cannot be used for TLS: "
                    f"{error.strerror or error}"
                ) from error
        if self.login is not None:
            client.username_pw_set(*self.login)


LOOPBACK = BrokerAccess()


def update_session(
    action: str,
    port: int,
    client_id: str,
    filters: Sequence[str] = (),
    qos: int = 1,
    access: BrokerAccess = LOOPBACK,
) -> None:
    """Open, close or end the session of an absent client.

    Args:
        action: "open": queue messages of the filters from now on; "close": queue no more of them, but keep
            what is queued; "end": delete the session with its queue.
        port: the broker's port.
        client_id: the client whose session it is.
        filters: the topic filters to open or close.
        qos: the quality of service of opened filters.
        access: how to reach the broker.

    Raises:
        InputError: a certificate is missing, or the broker refuses the client or a filter.
        UnreachableError: the broker cannot be reached or does not answer.
    """
    requests: dict[str, Callable[[Client], object]] = {
        "open": lambda client: client.subscribe([(text, qos) for text in filters]),
        "close": lambda client: client.unsubscribe(list(filters)),
        "end": lambda _: None,  # connecting with a clean session is enough
    }
    _connect_as(client_id, port, action == "end", requests[action], access)


def _connect_as(
    client_id: str, port: int, clean: bool, request: Callable[[Client], object], access: BrokerAccess
) -> None:
    """Connect under a client's id, send a request, and disconnect when it is answered."""
    paho = need_paho()
    # Queued messages are not acknowledged, so they stay in the queue.
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id, clean_session=clean, manual_ack=True)
    client.enable_bridge_mode()  # otherwise the broker would send the link's own messages back to it
    answers: list[list[Any]] = []

    def on_connect(_client: Client, _data: object, _flags: object, code: Any, _properties: object) -> None:
        if code.is_failure or request(client) is None:
            answers.append([code])

    client.on_connect = on_connect
    client.on_subscribe = client.on_unsubscribe = lambda _client, _data, _id, codes, _properties: (
        answers.append(list(codes))
    )
    address = f"{access.host}:{port}"
    try:
        access.prepare(client)
        client.connect(access.host, port)
        end = time.monotonic() + ANSWER_SECONDS
        while not answers and time.monotonic() < end:
            if client.loop(POLL_SECONDS) != paho.MQTT_ERR_SUCCESS:  # the link itself took over its session
                client.reconnect()
        client.disconnect()
        client.loop(POLL_SECONDS)
    except OSError as error:
        raise UnreachableError(
            f"cannot open the session {client_id!r} at {address}: {error.strerror or error}; is the broker "
            "running?"
        ) from error
    finally:
        close_sockets(client)
    if not answers:
        raise UnreachableError(
            f"{address} did not answer {client_id!r} within {ANSWER_SECONDS:g} s; is the broker running?"
        )
    if refusals := [code for code in answers[0] if code.is_failure]:
        raise InputError(
            f"{address} refused the session {client_id!r}: {refusals[0]}; check its login and access rules"
        )
