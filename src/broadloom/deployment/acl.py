"""Mosquitto: who may use the control topics of migration, to be put into each broker's own `acl_file`."""

from broadloom.migration.control import AGENT, ROOT

FILE = "migration-acl.conf"

_RULES = """\
# Who may use the control topics by which clients are moved; written by broadloom.
# Put these lines at the end of each broker's acl_file. Clients log in by their own names:
# their listener has `use_username_as_clientid true`, and the agent has a listener of its own without it.
user {agent}
topic readwrite {root}/#
topic read #

# A client speaks for itself only, and hears only what is said to it.
pattern write {root}/from/%u/+
pattern read {root}/to/%u/+
"""


def rules(agent: str = AGENT) -> str:
    """The rules, for an agent that logs in by this name.

    Examples:
        >>> print(rules("mover").splitlines()[3])
        user mover
    """
    return _RULES.format(agent=agent, root=ROOT)
