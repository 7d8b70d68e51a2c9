"""Topic prefixes, user names and user properties that Broadloom reserves at every broker."""

INTERNAL_PREFIX = "$broadloom/"  # probes of links and redirected messages; no client's `#` matches it
CONTROL_ROOT = "broadloom"  # first level of the control topics that move clients
MOVE_AGENT = "broadloom-mover"  # user name and client id of the agent that moves clients
MESSAGE_ID = "broadloom-id"  # the user property that contains a message's id
ROUTE_STAMP = "broadloom-route"  # the user property of messages between brokers: origin and version
