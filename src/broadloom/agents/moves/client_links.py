"""How messages reach the broker that a client moves to: the seam between migration and links."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection
from typing import Protocol

log = logging.getLogger("broadloom.agents.moves")


class ClientLinks(Protocol):
    """Brings brokers what their clients want, and takes away what they publish.

    Control topics (`broadloom/...`) never cross a link.
    """

    def carry(self, broker: str, filters: Collection[str]) -> None:
        """Begin to carry messages of these filters to and from a broker; returns at once, may be repeated."""

    def carried(self, broker: str, filters: Collection[str]) -> bool:
        """Whether what is published from now on reaches this broker from all others, and all from it.

        All but those that links do not reach: what is published there comes to nobody elsewhere.
        """

    def release(self, broker: str, filters: Collection[str]) -> None:
        """No client of this broker wants these filters any more; may be repeated."""


class HeldLinks(Protocol):
    """ClientLinks that the agent's own process holds, as long as the agent works."""

    @property
    def links(self) -> ClientLinks:
        """What to ask for them."""

    def start(self, failed: Callable[[], None]) -> None:
        """Begin, when all that clients need has been asked for; `failed` is called if they end by a fault."""

    def down(self) -> list[str]:
        """The brokers at which a link is not up; may be asked from any thread."""

    def stop(self) -> None:
        """Finish what is on its way, and end."""


class LinksEverywhere:
    """ClientLinks that carry everything to every broker, as native bridges do.

    Everything but control topics: a bridge of all topics (`topic #`) must exclude `broadloom/#`, which
    mosquitto's bridges cannot, so give them the topics that there are, as `topic weather/# both`.

    Examples:
        >>> LinksEverywhere().carried("rome", ["a/#"])
        True
    """

    def carry(self, broker: str, filters: Collection[str]) -> None:
        """Nothing is to be done."""

    def carried(self, broker: str, filters: Collection[str]) -> bool:  # noqa: ARG002
        """It always is."""
        return True

    def release(self, broker: str, filters: Collection[str]) -> None:
        """Nothing is to be done."""


class LinkClaims:
    """Who needs which filters at which broker: links are asked for by the first and released by the last.

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
        """The client needs these filters there, and no others."""
        old, new = self._held.get((broker, client), frozenset()), frozenset(filters)
        self._held[broker, client] = new
        self._count.update((broker, text) for text in new - old)
        if first := sorted(text for text in new - old if self._count[broker, text] == 1):
            self._ask(self._links.carry, broker, first)
        self._let_go(broker, old - new)

    def drop(self, broker: str, client: str) -> None:
        """The client needs nothing there any more."""
        self._let_go(broker, self._held.pop((broker, client), frozenset()))

    def at(self, broker: str) -> set[str]:
        """What is needed at a broker."""
        return {text for (place, text), count in self._count.items() if place == broker and count}

    def _let_go(self, broker: str, filters: Collection[str]) -> None:
        self._count.subtract((broker, text) for text in filters)
        if last := sorted(text for text in filters if not self._count[broker, text]):
            self._ask(self._links.release, broker, last)
        for text in filters:
            if not self._count[broker, text]:
                del self._count[broker, text]

    def _ask(self, call: Callable[[str, Collection[str]], None], broker: str, filters: list[str]) -> None:
        """Ask links for something; no filter of a client that they cannot carry ends the agent."""
        try:
            call(broker, filters)
        except Exception:
            log.exception("links of broker %r cannot be changed", broker)
