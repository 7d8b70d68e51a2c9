"""Attempts to inject: hostile texts in each field of a fleet of two brokers, for each target."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import parse_qs, unquote, urlsplit

from broadloom import Fleet, InputError, Interest
from broadloom.deployment import (
    Deployment,
    FleetBroker,
    FleetLogin,
    FleetTls,
    WiredLink,
    Wiring,
    bridge_secret,
    export,
    fleet_settings,
)
from broadloom.deployment.rehearsal.mosquitto_lab import HOST
from emqx_checks import sql_tokens

HOSTILE = (
    *("\n", "\r", "\r\n", "\0", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\u202e", "\x7f"),
    *("\x1b[2J", "\x1b]0;owned\x07", "\x9b31m", "\nallow_anonymous true", "\nlistener 1 0.0.0.0"),
    *("\nconnection evil", " out 0\ntopic # both 0", " both 0", "# comment", "#", " #", "//", "/*"),
    *("${BROADLOOM_PASSWORD_b}", "$BROADLOOM_PASSWORD", "__BROADLOOM_PASSWORD_b__", "${HOME}", "$HOME", "$"),
    *("$(id)", "`id`", ";id", "&&id", "|id", ">x", "<x", "&", "!", "*", "~", "{", "}", "{}", "[", "]", "()"),
    *('"', "'", "\\", '\\"', '" }', '", listen: "0.0.0.0:7422', "' OR '1'='1", '" WHERE true --', "\\n"),
    *('", "#', '"; DROP', '"}, {"method": "DELETE", "path": "/api/vhosts/%2F"', "--", ")", "include 'x'"),
    *(
        "?verify=verify_none",
        "&verify=verify_none",
        "@evil",
        ":evil@x",
        "/..",
        "../../etc/passwd",
        "%2F",
        "%",
    ),
    *(
        "%0aallow_anonymous true",
        "evil:1#",
        "{broker}",
        "${topic}",
        "${payload}",
        "$events/x",
        "a b",
        " ",
        "é",
    ),
)
FIELDS = (
    "id",
    "topic",
    "address",
    "host",
    "user",
    "password",
    "ca",
    "certificate",
    "key",
    "folder",
    "pattern",
    "leaf_listen",
)
PATHS = {"ca": "/pki/{}", "certificate": "/pki/c{}", "key": "/pki/k{}"}
HARMLESS = {"address": "10.0.0.9"}  # instead of "zz"


def exported(target, field, text, number=0, account=None):
    """The deployment of a fleet of two brokers with a text in one field, and an account of NATS clients."""
    here, there = f"a{number}", f"b{text}" if field == "id" else "b"
    topic = f"t/{text}" if field == "topic" else "t/x"
    address = {"address": text, "host": f"h{text}"}.get(field, f"{HOST}:1")
    login = FleetLogin(f"u{text}" if field == "user" else "links", password_env="UNUSED")
    files = {"ca": "/pki/ca.crt", "certificate": "/pki/me.crt", "key": "/pki/me.key"}
    tls = FleetTls(**files | ({field: PATHS[field].format(text)} if field in PATHS else {}))
    listen = f"10.0.0.1{text}" if field == "leaf_listen" else "10.0.0.1:7500"
    fleet = Fleet(
        [
            FleetBroker(here, "10.0.0.3", target.name, tls=None, account=account),
            FleetBroker(
                there,
                address,
                target.name,
                tls=tls,
                login=login,
                leaf_listen=listen if target.name == "nats" else None,
                account=account,
            ),
        ]
    )
    interest = Interest.from_lists([[topic], [topic]], node_ids=[here, there])
    chosen = fleet_settings(
        fleet, SimpleNamespace(interest=interest), f"/certs/{text}" if field == "folder" else None
    )
    password = bridge_secret(f"p{text}" if field == "password" else "secret", there)
    chosen = replace(chosen, passwords={there: password})
    if field == "pattern":  # --address, without addresses of a fleet
        chosen = replace(chosen, addresses={}, address="{broker}" + text)
    link = WiredLink(here, there, (topic,), (topic,))
    wiring = Wiring((here, there), {here: (topic,), there: (topic,)}, {}, (link,))
    return Deployment(wiring, chosen, export(wiring, target, chosen))


def exported_or_refused(*arguments, account=None):
    """The deployment, or None if it is refused by an error of one line."""
    try:
        return exported(*arguments, account=account)
    except InputError as refused:
        message = str(refused)
    assert message.isprintable()
    return None


def attempts(target):
    """All hostile texts in all fields."""
    for field in FIELDS:
        if field != "leaf_listen" or target.name == "nats":
            for text in HOSTILE:
                yield field, text


def accepted(target, account=None):
    """What is not refused: the field, the text, and the deployment."""
    for number, (field, text) in enumerate(attempts(target)):
        deployment = exported_or_refused(target, field, text, number, account=account)
        if deployment is not None:
            yield field, text, deployment


# The structure of a file, and the values in it.


def mosquitto_parts(text):
    """The options, as mosquitto reads them: a line is an option and the rest of the line."""
    shape, values = [], []
    for line in re.split("\n", text):
        if line and not line.startswith("#"):
            option, _, value = line.partition(" ")
            words = value.split(" ") if option == "topic" else [value]
            shape.append((option, len(words), words[1:]))
            values += [words[0].strip()]
    return shape, values


def nats_parts(text):
    """The tokens of NATS's configuration: kinds of tokens, and the strings."""
    shape, values = [], []
    for token in re.finditer(r'"((?:[^"\\\n]|\\.)*)"|#[^\n]*|\$?\w+|[{}\[\]:,]|\s+|(.)', text):
        assert token[2] is None, f"{token[2]!r} in {text}"
        if token[1] is not None:
            shape.append("string")
            values.append(re.sub(r"\\(.)", r"\1", token[1]))
        elif not token[0].isspace() and not token[0].startswith("#"):
            shape.append("variable" if token[0].startswith("$") else token[0])
    urls = [urlsplit(value) for value in values if "://" in value]
    values += [unquote(part or "") for url in urls for part in (url.username, url.password)]
    return [*shape, *(url.scheme for url in urls)], values


def json_parts(text):
    """The calls: methods, fields and fixed texts, and the values."""
    values = []

    def shape(value, key=""):
        if isinstance(value, dict):
            return {name: shape(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [shape(one, key) for one in value]
        if key == "uri":
            uri = urlsplit(value)
            query = parse_qs(uri.query, strict_parsing=uri.scheme == "amqps")
            values.extend([uri.hostname, unquote(uri.username or ""), unquote(uri.password or "")])
            values.extend(
                one for name in ("cacertfile", "certfile", "keyfile") for one in query.get(name, ())
            )
            assert uri.scheme == "amqp" or query["verify"] == ["verify_peer"]
            return uri.scheme, uri.port, uri.path, uri.fragment, sorted(query)
        if key == "sql":
            tokens = sql_tokens(value)
            values.extend(one[1:-1] for one in tokens if one.startswith('"'))
            return [one for one in tokens if one[0] not in "\"'"]
        if isinstance(value, str):
            values.append(value)
            return value.count("/") if key == "path" else "text"
        return value

    return shape(json.loads(text)), values


PARTS = {"mosquitto": mosquitto_parts, "nats": nats_parts, "rabbitmq": json_parts, "emqx": json_parts}
