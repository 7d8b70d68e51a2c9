"""Authentication of control messages: a key per client, derived from the key of the fleet.

Each control message is sealed with a code that covers its topic, and so its client, its call and its
direction. Its number is higher than those before, so it cannot be used twice. Broker rules are the second
line.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from hmac import compare_digest
from typing import Any

from broadloom.errors import InputError

SHORTEST_SECRET = 16  # characters
_CODE_BYTES = 16
_PERSON, _CONTENT = b"broadloom:move", b"broadloom:content"[:16]  # so that no code replaces another


class ClientKeys:
    """Keys of all clients.

    Args:
        secret: the key of the fleet, of at least 16 characters.

    Raises:
        InputError: the secret is too short.

    Examples:
        >>> keys = ClientKeys("an example, not a secret")
        >>> sealed = seal(keys.of("meter-1"), "$broadloom/from/meter-1/register", b"{}")
        >>> unseal(keys.of("meter-1"), "$broadloom/from/meter-1/register", sealed)
        b'{}'
        >>> unseal(keys.of("meter-2"), "$broadloom/from/meter-1/register", sealed)
        Traceback (most recent call last):
        broadloom.errors.InputError: unsigned: the code of a message on '$broadloom/from/meter-1/register' ...
    """

    def __init__(self, secret: str) -> None:
        if len(secret) < SHORTEST_SECRET:
            raise InputError(
                f"the key of the fleet has {len(secret)} characters; give at least {SHORTEST_SECRET}"
            )
        self._master = blake2b(secret.encode(), person=_PERSON).digest()

    def of(self, client: str) -> str:
        """The key of a client, as hexadecimal digits; it is the client's secret."""
        return blake2b(client.encode(), key=self._master, digest_size=32, person=_PERSON).hexdigest()


def seal(key: str, topic: str, body: bytes) -> bytes:
    """A message with its code, as one JSON object."""
    text = body.decode()
    return json.dumps({"body": text, "code": _code(key, topic, text)}, separators=(",", ":")).encode()


def unseal(key: str, topic: str, payload: bytes) -> bytes:
    """The body of a sealed message.

    Raises:
        InputError: it is not sealed with this key for this topic.
    """
    try:
        fields: Any = json.loads(payload)
        body, code = fields["body"], fields["code"]
        is_right = compare_digest(_code(key, topic, body).encode(), code.encode(errors="replace"))
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        is_right = False
    if not is_right:
        raise InputError(f"unsigned: the code of a message on {topic!r:.80} is wrong or missing")
    encoded: bytes = body.encode()
    return encoded


def content_code(key: str, topic: str, payload: bytes, message_id: str) -> str:
    """The code of a redirected message, by which its client knows that the agent has forwarded it.

    It covers the message's id, so that a copy with another id, which would be new, is not a message. A mark
    has an empty topic, and itself as the payload.

    Examples:
        >>> content_code("00" * 32, "a", b"1", "x:1") == content_code("00" * 32, "a", b"1", "x:2")
        False
    """
    parts = b"".join(b"%d:%b" % (len(one.encode()), one.encode()) for one in (topic, message_id))
    return blake2b(
        parts + payload, key=bytes.fromhex(key), digest_size=_CODE_BYTES, person=_CONTENT
    ).hexdigest()


def is_content_code(key: str, topic: str, payload: bytes, message_id: str, code: str) -> bool:
    """Whether a code is that of a redirected message."""
    expected = content_code(key, topic, payload, message_id)
    return compare_digest(expected.encode(), code.encode(errors="replace"))


def check_key(key: object) -> str:
    """Check the key of a client.

    Examples:
        >>> check_key("00ff")
        Traceback (most recent call last):
        broadloom.errors.InputError: the key is not 64 hexadecimal digits; `broadloom migrate key` prints it
    """
    if not isinstance(key, str) or len(key) != 64 or set(key) - set("0123456789abcdef"):
        raise InputError("the key is not 64 hexadecimal digits; `broadloom migrate key` prints it")
    return key


def _code(key: str, topic: str, body: str) -> str:
    data = f"{len(topic.encode())}:{topic}{body}".encode()
    return blake2b(data, key=bytes.fromhex(key), digest_size=_CODE_BYTES, person=_PERSON).hexdigest()
