"""HTTP requests to the admin APIs of brokers: NATS monitoring, RabbitMQ management, EMQX."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from broadloom.deployment.fleet_file import FleetBroker
from broadloom.errors import InputError, UnreachableError
from broadloom.mqtt.endpoint import tls_context

API_SECONDS = 10.0
LARGEST_ANSWER = 256 << 20  # bytes
_ADVICE = {401: "; set api_login", 403: "; the user of api_login lacks the right"}


_APIS = {  # what it is, its usual port, and whether it has a login
    "emqx": ("admin API", 18083, " and api_login"),
    "nats": ("monitoring port", 8222, ""),
    "rabbitmq": ("admin API", 15672, " and api_login"),
}


class ApiStatusError(UnreachableError):
    """An admin API refuses a request.

    Attributes:
        code: the status code of HTTP.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def api_url(broker: FleetBroker) -> str | None:
    """The URL of a broker's admin API, if its `subscriptions` have one."""
    return next((source for source in broker.subscription_sources() if "://" in source), None)


def call_api(broker: FleetBroker, method: str, path: str, body: object = None) -> Any:
    """Call the admin API of a broker; returns the document of the answer, or None.

    Raises:
        InputError: the fleet file does not name the API, or the secret of its login cannot be used.
        ApiStatusError: the API refuses the request.
        UnreachableError: the API does not answer.
    """
    parts = urlsplit(api_url(broker) or "")
    what, port, login = _APIS.get(broker.kind, _APIS["rabbitmq"])
    if not parts.netloc:
        raise InputError(
            f"broker {broker.name!r} has no {what} in the fleet file; give subscriptions = "
            f'"http://{broker.host_and_port().host}:{port}"{login}'
        )
    url = f"{parts.scheme}://{parts.netloc}{path}"
    text, _ = request_from(broker, url, method, body)
    try:
        return json.loads(text) if text else None
    except ValueError as error:
        raise UnreachableError(
            f"{url.partition('?')[0]} does not answer with JSON; is this the address of the {what}?"
        ) from error


def request_from(
    broker: FleetBroker, url: str, method: str = "GET", body: object = None
) -> tuple[bytes, str | None]:
    """As `request`, with the login and the certificates of a broker."""
    login = None
    if broker.api_login is not None:
        login = broker.api_login.user, broker.api_login.password()
    context = None
    if url.startswith("https:"):
        context = tls_context(broker.tls.ca if broker.tls is not None else None)
    return request(url, method, body, login, context)


def request(
    url: str,
    method: str = "GET",
    body: object = None,
    login: tuple[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> tuple[bytes, str | None]:
    """The answer to a request, and its header `Date`.

    Raises:
        ApiStatusError: the API refuses the request.
        UnreachableError: the API does not answer, or with too much.
    """
    where = url.partition("?")[0]
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    asked = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
    if login is not None:
        # Not sent to another host after a redirection.
        pair = base64.b64encode(":".join(login).encode()).decode()
        asked.add_unredirected_header("Authorization", f"Basic {pair}")
    try:
        with urllib.request.urlopen(asked, timeout=API_SECONDS, context=context) as answer:  # noqa: S310
            text = answer.read(LARGEST_ANSWER + 1)
            date = answer.headers.get("Date")
    except urllib.error.HTTPError as error:
        reason = error.code if method == "GET" else f"{method} with {error.code}"
        raise ApiStatusError(f"{where} answers {reason}{_ADVICE.get(error.code, '')}", error.code) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        raise UnreachableError(f"{where} does not answer: {str(why) or type(error).__name__:.100}") from error
    if len(text) > LARGEST_ANSWER:
        raise UnreachableError(
            f"{where} answers with more than {LARGEST_ANSWER >> 20} MiB; save it as a file"
        )
    return text, date
