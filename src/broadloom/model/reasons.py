"""Why a row is in quarantine: the words, in one place."""

NOT_UTF8 = "not UTF-8"
BLANK = "blank line"
FIELDS = "wrong number of fields"
QUOTE = "quotes do not match"
NOT_JSON = "not a JSON object"
CUT = "cut in the middle"
NO_LIST = "not the document that was expected"
UNSUBSCRIBED = "unsubscribed later"
ENDED = "session ended later"
OWN = "our own link"
REPLY = "inbox of a reply"
INTERNAL = "topic of the broker itself"
BETWEEN_EXCHANGES = "binding between exchanges"
NO_TOPIC_EXCHANGE = "not bound to a topic exchange"
NOT_LISTED = "subscriptions are counted and not listed: ask for connz?subs=detail"
BAD_FILTER = "not a topic filter"
BAD_TOPIC = "not a topic"
UNKNOWN_NODE = "unknown node"
UNKNOWN_TOPIC = "unknown topic"
NOT_POSITIVE = "rtt_ms is not above 0"
SAME_ENDS = "src and dst are the same"


def missing(column: str) -> str:
    """The reason for a row without a value that it needs."""
    return f"no {column}"


def conflict(key: str) -> str:
    """The reason for a row that says something else than the one that is kept of its key."""
    return f"another row has this {key}"


def not_a(column: str, kind: str) -> str:
    """The reason for a value of another type."""
    return f"{column} is not a {kind}"
