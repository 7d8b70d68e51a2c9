"""Views of the agents of a fleet, as its controller has them: their reports, and who is away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broadloom.agents.links.fleet_state import FleetState
    from broadloom.agents.links.route_orders import AgentReport


@dataclass
class AgentView:
    """What the controller knows of an agent in this reign; facts of one process only rise.

    Attributes:
        report: the latest report.
        seen: when it came.
        down_since: since when its broker is down; None: it is up.
        opened: the highest number of orders of this epoch that it has opened.
        published: the newest version whose marker its broker has.
        closed: the round in which it has closed each change.
    """

    report: AgentReport
    seen: float
    down_since: float | None = None
    opened: int = 0
    published: int = 0
    closed: dict[int, int] | None = None


class AgentViews:
    """Agents that have reported, by broker, and who of the others is waited for.

    Args:
        state: the state of the fleet.
        now: a clock that never goes back, in seconds.
        silence: after how many seconds without a report an agent is away.

    Attributes:
        views: what is known of each agent that has reported.
    """

    def __init__(self, state: FleetState, now: Callable[[], float], silence: float) -> None:
        self.views: dict[str, AgentView] = {}
        self._state = state
        self._now = now
        self._silence = silence
        self._start = now()
        self._stuck: dict[str, float] = {}  # until when an agent that does not open is left alone

    def is_lost(self, broker: str) -> bool:
        """Whether a broker or its agent is known to be away."""
        view = self.views.get(broker)
        seen = self._start if view is None else view.seen
        down = view is not None and view.down_since is not None
        return down or broker in self._state.removed or self._now() - seen > self._silence

    def is_absent(self, broker: str) -> bool:
        """Whether nobody should wait for a broker: it is away, or its agent does not open its hops."""
        return self._stuck.get(broker, 0.0) > self._now() or self.is_lost(broker)

    def is_available(self, broker: str) -> bool:
        """Whether a broker's agent can open hops now."""
        return broker in self.views and not self.is_absent(broker)

    def leave_alone(self, brokers: Iterable[str], seconds: float) -> None:
        """Do not wait for agents that do not open their hops, for a while."""
        self._stuck.update(dict.fromkeys(brokers, self._now() + seconds))

    def away_since(self, broker: str) -> float:
        """Since when a broker is away."""
        view = self.views.get(broker)
        if view is None:
            return self._start
        return view.seen if view.down_since is None else view.down_since
