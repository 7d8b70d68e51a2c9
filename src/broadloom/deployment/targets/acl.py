"""Mosquitto: who may use the control topics of the agents, to be put into each broker's own `acl_file`."""

from broadloom.mqtt.reserved_topics import AGENT, OWN, ROOT

FILE = "migration-acl.conf"
LINK_AGENT = "broadloom-links"

_RULES = """\
# Who may use the control topics by which clients are moved; written by broadloom.
# Put these lines at the end of each broker's acl_file. Clients log in by their own names:
# their listener has `use_username_as_clientid true`, and the agent has a listener of its own without it.
user {agent}
topic readwrite {root}/#
topic readwrite {own}to/#
topic read #

# The link agent carries all topics but those, and probes of its own, which no `#` of anybody else's matches.
user {links}
topic readwrite #
topic readwrite {own}#
topic deny {root}/#
topic deny {own}to/#

# A client speaks for itself only, and hears only what is said to it.
pattern write {root}/from/%u/+
pattern read {root}/to/%u/+
pattern read {own}to/%u/+
"""


def rules(agent: str = AGENT, links: str = LINK_AGENT) -> str:
    """The rules, for agents that log in by these names.

    Args:
        agent: the one that moves clients.
        links: the one that holds links.

    Examples:
        >>> print(rules("mover").splitlines()[3])
        user mover
        >>> "topic readwrite $broadloom/#" in rules()
        True
    """
    return _RULES.format(agent=agent, links=links, own=OWN, root=ROOT)
