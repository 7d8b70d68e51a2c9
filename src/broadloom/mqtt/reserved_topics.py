"""Topics and client names that Broadloom keeps for itself on every broker."""

OWN = "$broadloom/"  # probes of links; no `#` of a client matches it
ROOT = "broadloom"  # the first level of the control topics by which clients are moved
AGENT = "broadloom-mover"  # the login of the agent that moves clients
