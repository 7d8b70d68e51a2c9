"""Checks of EMQX definitions without EMQX: the fields that its REST API documents, and what its rules do.

The fields, their types and the limits of names are those of EMQX 5.8 (connectors, actions and rules of the
type `mqtt`). The tokens of rules follow its SQL: names in double quotes, texts in single quotes. `EmqxFleet`
computes what brokers with such definitions deliver.
"""

import re
from collections import deque

from naive_ingest import matches

NAME = re.compile(r"[0-9a-zA-Z][-0-9a-zA-Z_]*")
DURATION = re.compile(r"infinity|\d+(ms|s|m|h|d)")
QOS = (0, 1, 2)


def _text(value):
    return isinstance(value, str) and value != ""


def _name(value):
    return _text(value) and NAME.fullmatch(value) is not None and len(value) < 255


def _server(value):
    host, _, port = str(value).rpartition(":")
    return re.fullmatch(r"[A-Za-z0-9._-]+|\[[0-9a-fA-F:.]+\]", host) and 0 < int(port) <= 65_535


SSL = {
    "enable": lambda value: isinstance(value, bool),
    "verify": ("verify_peer", "verify_none"),
    "cacertfile": _text,
    "certfile": _text,
    "keyfile": _text,
    "server_name_indication": _text,
}
CONNECTOR = {
    "type": ("mqtt",),
    "name": _name,
    "server": _server,
    "clientid_prefix": lambda value: _text(value) and len(value) <= 19,
    "proto_ver": ("v3", "v4", "v5"),
    "pool_size": lambda value: type(value) is int and value > 0,
    "username": _text,
    "password": _text,
    "ssl": SSL,
}
PARAMETERS = {
    "topic": _text,
    "payload": _text,
    "qos": lambda value: value in QOS or value == "${qos}",
    "retain": lambda value: isinstance(value, bool) or value == "${flags.retain}",
}
ACTION = {
    "type": ("mqtt",),
    "name": _name,
    "connector": _name,
    "parameters": PARAMETERS,
    "resource_opts": {"request_ttl": lambda value: DURATION.fullmatch(value)},
}
RULE = {
    "id": _name,
    "name": _text,
    "sql": lambda value: bool(rule_of(value)),
    "actions": lambda value: all(re.fullmatch(rf"mqtt:{NAME.pattern}", one) for one in value),
}
KINDS = {
    "/api/v5/connectors": (CONNECTOR, {"type", "name", "server", "ssl"}),
    "/api/v5/actions": (ACTION, {"type", "name", "connector", "parameters"}),
    "/api/v5/rules": (RULE, {"id", "sql", "actions"}),
}


def check_calls(calls):
    """Fail unless every call makes an object of documented fields, after those that it refers to."""
    known = set()
    for call in calls:
        assert call["method"] == "POST"
        fields, required = KINDS[call["path"]]
        body = call["body"]
        assert required <= set(body)
        _check_fields(body, fields)
        if "connector" in body:
            assert ("connectors", body["connector"]) in known
        for action in body.get("actions", ()):
            assert ("actions", action.removeprefix("mqtt:")) in known
        made = (call["path"].rpartition("/")[2], body.get("id") or body["name"])
        assert made not in known
        known.add(made)


def _check_fields(body, fields):
    for name, value in body.items():
        assert name in fields, f"{name} is not a field"
        rule = fields[name]
        if isinstance(rule, dict):
            _check_fields(value, rule)
        else:
            assert value in rule if isinstance(rule, tuple) else rule(value), (name, value)


def sql_tokens(text):
    """The tokens of a rule."""
    pattern = r"""\s+|("(?:[^"]|"")*"|'(?:[^']|'')*'|<>|[A-Za-z]\w*|\d+|[*(),])|(.)"""
    tokens = []
    for token in re.finditer(pattern, text):
        assert token[2] is None, f"{token[2]!r} in {text}"
        tokens += [token[1]] if token[1] else []
    return tokens


def rule_of(text):
    """The topic filters of a rule, and the start of the client ids that it leaves out."""
    tokens = sql_tokens(text)
    assert tokens[:3] == ["SELECT", "*", "FROM"]
    where = tokens.index("WHERE")
    assert tokens[4:where:2] == [","] * len(tokens[4:where:2])
    filters = [token[1:-1] for token in tokens[3:where:2]]
    assert tokens[where + 1 : where + 9] == ["substr", "(", "str", "(", "clientid", ")", ",", "0"]
    comma, size, close, differs, start = tokens[where + 9 :]
    assert (comma, close, differs) == (",", ")", "<>")
    assert int(size) == len(start) - 2
    return filters, start[1:-1]


class EmqxFleet:
    """What brokers with these definitions do: a message goes to each connector whose rule selects it.

    Args:
        files: the calls of each broker.
        brokers: the broker of each server, as connectors name it.
    """

    def __init__(self, files, brokers):
        self.hops = {}
        for broker, calls in files.items():
            made = {
                (call["path"].rpartition("/")[2], call["body"].get("id") or call["body"]["name"]): call
                for call in calls
            }
            for (kind, _), call in made.items():
                if kind == "rules":
                    (action,) = call["body"]["actions"]
                    body = made["actions", action.removeprefix("mqtt:")]["body"]
                    connector = made["connectors", body["connector"]]["body"]
                    self.hops.setdefault(broker, []).append((*rule_of(call["body"]["sql"]), connector))
        self.brokers = brokers

    def deliveries(self, broker, topic, limit=10_000):
        """The brokers at which a message of a client appears, each time that it does."""
        seen = []
        queue = deque([(broker, "client-1")])
        while queue:
            here, client = queue.popleft()
            seen.append(here)
            assert len(seen) < limit, "a message loops"
            for filters, start, connector in self.hops.get(here, ()):
                if any(matches(text, topic) for text in filters) and client[: len(start)] != start:
                    sender = f"{connector['clientid_prefix']}0a1b"
                    queue.append((self.brokers[connector["server"]], sender))
        return seen
