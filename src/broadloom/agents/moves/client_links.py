"""Interface between moving clients and the links that carry their messages."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Protocol

from broadloom.agents.monitoring import Family

log = logging.getLogger("broadloom.agents.moves")


class ClientLinks(Protocol):
    """Links that carry the messages of clients to and from their brokers.

    Control topics (`$broadloom/...`) never cross a link.
    """

    def carry(self, broker: str, filters: Collection[str]) -> None:
        """Start carrying messages of these filters to and from a broker; returns at once, can be repeated."""

    def carried(self, broker: str, filters: Collection[str]) -> bool:
        """Whether links now carry messages of these filters between this broker and all other linked ones.

        Both directions count. Brokers without links do not: what is published there reaches no other broker.
        """

    def release(self, broker: str, filters: Collection[str]) -> None:
        """Stop carrying messages of these filters to and from a broker; returns at once, can be repeated."""


class HeldLinks(Protocol):
    """Links that the agent's own process holds while it runs."""

    @property
    def links(self) -> ClientLinks:
        """The links, as the agent requests and releases them."""

    def start(self, failed: Callable[[], None]) -> None:
        """Start, after the links of known clients were requested; `failed` is called if links fail later."""

    def down(self) -> list[str]:
        """The brokers with a link that is not up; any thread can call this."""

    def families(self) -> list[Family]:
        """Metrics of the links; any thread can call this."""

    def stop(self) -> None:
        """Finish the messages in flight, and stop."""


class LinksEverywhere:
    """Links that carry everything to every broker, as native bridges do.

    They must not carry control topics, which begin with `$`; a bridge of all topics (`topic #`) does not.

    Examples:
        >>> LinksEverywhere().carried("rome", ["a/#"])
        True
    """

    def carry(self, broker: str, filters: Collection[str]) -> None:
        """Nothing to do."""

    def carried(self, broker: str, filters: Collection[str]) -> bool:  # noqa: ARG002
        """Always true."""
        return True

    def release(self, broker: str, filters: Collection[str]) -> None:
        """Nothing to do."""


class LinkClaims:
    """The filters that clients need at each broker, with the number of clients that need them.

    The first client that needs a filter requests links for it; when the last one drops it, they are released.

    Examples:
        >>> claims = LinkClaims(LinksEverywhere())
        >>> claims.hold("rome", "meter-1", ["a/#"])
        >>> claims.at("rome")
        {'a/#'}
        >>> claims.drop("rome", "meter-1")
        >>> claims.at("rome")
        set()
    """

    def __init__(self, links: ClientLinks) -> None:
        self._links = links
        self._held: dict[tuple[str, str], frozenset[str]] = {}
        self._count: Counter[tuple[str, str]] = Counter()

    def hold(self, broker: str, client: str, filters: Collection[str]) -> None:
        """Set the filters that a client needs at a broker."""
        old = self._held.get((broker, client), frozenset())
        new = frozenset(filters)
        self._held[broker, client] = new
        self._count.update((broker, text) for text in new - old)
        if first := sorted(text for text in new - old if self._count[broker, text] == 1):
            self._call(self._links.carry, broker, first)
        self._release(broker, old - new)

    def drop(self, broker: str, client: str) -> None:
        """The client needs no filters at the broker any more."""
        self._release(broker, self._held.pop((broker, client), frozenset()))

    def at(self, broker: str) -> set[str]:
        """The filters that are needed at a broker."""
        return {text for (other, text), count in self._count.items() if other == broker and count}

    def _release(self, broker: str, filters: Collection[str]) -> None:
        self._count.subtract((broker, text) for text in filters)
        if last := sorted(text for text in filters if not self._count[broker, text]):
            self._call(self._links.release, broker, last)
        for text in filters:
            if not self._count[broker, text]:
                del self._count[broker, text]

    def _call(self, method: Callable[[str, Collection[str]], None], broker: str, filters: list[str]) -> None:
        """Call a method of the links; a client's filter that they cannot carry must not stop the agent."""
        try:
            method(broker, filters)
        except Exception:
            log.exception("links of broker %r cannot be changed", broker)
