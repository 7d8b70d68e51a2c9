"""Removal of links: what takes away again what an export made."""

from __future__ import annotations

from broadloom.deployment.deployment_inputs import Settings, safe_name
from broadloom.deployment.rollout import LinkSession, session_command
from broadloom.deployment.targets import emqx_rules, nats_leafnodes, rabbitmq_federation
from broadloom.deployment.targets.api_calls import as_text
from broadloom.deployment.targets.mosquitto_bridges import ACL_FILE, local_id, remote_id
from broadloom.deployment.wiring import Wiring

REMOVAL_FILE = "remove.txt"
_MOSQUITTO = """\
# Removal of the links that broadloom exported. Copy no file of this folder to a broker.
# 1. At each of these brokers, delete the file of links from the folder that include_dir in its mosquitto.conf
#    names (broker-NAME.conf, or the name under which you installed it), and restart mosquitto:
{owners}
# 2. Then end the sessions of the links; otherwise the brokers go on queueing messages for them:
{commands}
# 3. If clients are not moved either, take the rules of {acl} out of each acl_file.
"""
_NATS = """\
# Broker {broker} has no links. Put this file in the place of the one that broadloom exported before, and
# restart nats-server; or delete that file and the lines that include it or refer to it.
"""


def mosquitto_removal(wiring: Wiring, settings: Settings) -> dict[str, str]:
    """A list of what takes the links away again: files to delete, brokers to restart, sessions to end.

    Examples:
        >>> from broadloom.deployment.wiring import WiredLink
        >>> wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ("x",)),))
        >>> print(mosquitto_removal(wiring, Settings(tls=False))["remove.txt"].splitlines()[5])
        broadloom deploy session b:1883 r.broadloom-a:b --end --no-tls
    """
    links = [link for link in wiring.links if link.out or link.into]
    owners = dict.fromkeys(link.owner for link in links)
    sessions = [
        LinkSession(broker, client, link.owner)
        for link in links
        for broker, client in ((link.peer, remote_id(link)), (link.owner, local_id(link)))
    ]
    text = _MOSQUITTO.format(
        owners="\n".join(f"#    {ascii(owner)[1:-1]}" for owner in owners) or "#    (none)",
        commands="\n".join(session_command(one, "end", settings) for one in sessions) or "#    (none)",
        acl=ACL_FILE,
    )
    return {REMOVAL_FILE: text}


def nats_removal(wiring: Wiring, settings: Settings) -> dict[str, str]:
    """A file without leaf nodes for each broker.

    Examples:
        >>> nats_removal(Wiring(("a",), {}, {}, ()), Settings())["broker-a.conf"].splitlines()[0]
        "# Broker 'a' has no links. Put this file in the place of the one that broadloom exported before, and"
    """
    has_accounts = nats_leafnodes.has_client_accounts(wiring.brokers, settings)
    names = nats_leafnodes.NO_LINKS if has_accounts else ""
    return {
        f"broker-{safe_name(broker)}.conf": _NATS.format(broker=ascii(broker)) + names
        for broker in wiring.brokers
    }


def rabbitmq_removal(wiring: Wiring, settings: Settings) -> dict[str, str]:
    """The calls at each broker that delete what the calls of an export made, in order.

    Examples:
        >>> from broadloom.deployment.wiring import WiredLink
        >>> wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ()),))
        >>> rabbitmq_removal(wiring, Settings(tls=False))["broker-a.json"].count("DELETE")
        5
    """
    return {
        f"broker-{safe_name(broker)}.json": as_text(
            rabbitmq_federation.removed(rabbitmq_federation.calls(wiring, broker, settings))
        )
        for broker in wiring.brokers
    }


def emqx_removal(wiring: Wiring, settings: Settings) -> dict[str, str]:
    """The calls at each broker that delete what the calls of an export made, in order.

    Examples:
        >>> from broadloom.deployment.wiring import WiredLink
        >>> wiring = Wiring(("a", "b"), {}, {}, (WiredLink("a", "b", ("x",), ()),))
        >>> print(emqx_removal(wiring, Settings(tls=False))["broker-a.json"])
        [
        {"method": "DELETE", "path": "/api/v5/rules/broadloom-b"},
        {"method": "DELETE", "path": "/api/v5/actions/mqtt:broadloom-b"},
        {"method": "DELETE", "path": "/api/v5/connectors/mqtt:broadloom-b"}
        ]
        <BLANKLINE>
    """
    return {
        f"broker-{safe_name(broker)}.json": as_text(
            map(emqx_rules.undone, reversed(emqx_rules.calls(wiring, broker, settings)))
        )
        for broker in wiring.brokers
    }
