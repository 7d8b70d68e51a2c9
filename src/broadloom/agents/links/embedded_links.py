"""Embedded links: a link agent in a thread of the agent that moves clients, and its configuration."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from broadloom.agents.links.link_agent import LinkAgent
from broadloom.agents.links.link_service import LinkRun, run_links
from broadloom.agents.links.plan_sources import PlannedLinks
from broadloom.agents.moves.control_messages import is_client_filter
from broadloom.agents.moves.move_service import AgentConfig, check_names, login_of, part_of, text_of
from broadloom.agents.moves.traffic_summary import Site
from broadloom.checks import check_count, check_number
from broadloom.errors import InputError
from broadloom.model import Interest, Overlay, Weights
from broadloom.mqtt.endpoint import LAST_PORT, PASSWORD_VARIABLE, Address, Endpoint, Login
from broadloom.mqtt.packets import LAST_ID
from broadloom.mqtt.reserved_topics import CONTROL_ROOT
from broadloom.mqtt.topic_filters import FilterIndex
from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.live")
WINDOW, PATIENCE = 500, 10.0
_LINKS = {"plan", "topics", "state", "login", "window", "patience", "metrics"}


class EmbeddedLinks:
    """Holds the links that moving clients need, from `start` to `stop`.

    Args:
        plan: the initial plan of links.
        topics: the filters that links carry; None: the filters of clients.
        endpoint: the endpoint of a broker.
        state: the folder of the link agent's state.
        patience: seconds for which a change waits for an absent broker.
        metrics: the port for metrics on loopback; None: no metrics.

    Attributes:
        links: the interface for the agent that moves clients.
    """

    def __init__(
        self,
        plan: Plan,
        topics: Iterable[str] | None,
        endpoint: Callable[[str], Endpoint],
        state: Path,
        patience: float = 10.0,
        metrics: int | None = None,
    ) -> None:
        self.links = PlannedLinks(plan, self._is_reached, topics)
        self._agent = LinkAgent(endpoint, state, patience)
        self._metrics = metrics
        self._run = LinkRun(self._agent, self.links, plan.publishers)
        self._thread: threading.Thread | None = None
        self._started: Future[asyncio.AbstractEventLoop] = Future()

    def start(self, failed: Callable[[], None] = lambda: None) -> None:
        """Start to hold the links.

        Request the links of all known clients first: links of an earlier run that no client needs are taken
        down.

        Args:
            failed: called if the links fail later.

        Raises:
            InputError: the port for metrics is not available.
        """
        self._thread = threading.Thread(
            target=self._hold, args=(failed,), name="broadloom-links", daemon=True
        )
        self._thread.start()
        self._started.result()

    def down(self) -> list[str]:
        """The brokers with a link that is not up, because they are absent or refuse it."""
        links = list(self._agent.links.values())
        sessions = [session for link in links for session in link.sessions.values()]
        return sorted({session.broker for session in sessions if not session.up.is_set()})

    def stop(self) -> None:
        """Finish the messages in flight, and disconnect; brokers keep the sessions."""
        if not self._started.done() or self._started.exception() is not None:
            asyncio.run(self._agent.stop())
        elif self._thread is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # its event loop has just ended by itself
                self._started.result().call_soon_threadsafe(self._run.stop)
            self._thread.join()

    def _hold(self, failed: Callable[[], None]) -> None:
        async def hold() -> None:
            loop = asyncio.get_running_loop()
            await run_links(self._run, self._metrics, started=lambda: self._started.set_result(loop))

        try:
            asyncio.run(hold())
        except BaseException as error:  # of any kind: the links have stopped
            if not self._started.done():
                self._started.set_exception(error)
                return
            LOG.exception("links have failed")
            failed()

    def _is_reached(self, broker: str, topics: set[str], plan: int) -> bool:
        """Whether links carry topics to and from a broker, and the plan with this number is followed."""
        followed = self._run.plans >= plan and not self._run.refused
        return followed and self._agent.carries(broker, topics)


def embed_links(config: AgentConfig) -> EmbeddedLinks:
    """The links of a configuration, for `serving`.

    Raises:
        InputError: the section `[links]` is wrong, or another process uses the state.
    """
    own = LinkConfig.of(config)
    endpoint = address_endpoints(config.agent_addresses, own.login, own.window)
    return EmbeddedLinks(own.plan, own.topics, endpoint, own.state, own.patience, own.metrics)


def address_endpoints(
    addresses: Mapping[str, Address], login: Login, window: int
) -> Callable[[str], Endpoint]:
    """The endpoints of a link agent at the addresses of the agent that moves clients.

    Examples:
        >>> address_endpoints({"rome": Address("10.0.0.1", 1884)}, Login(), window=500)("rome").port
        1884
    """
    tls = login.tls()

    def endpoint(broker: str) -> Endpoint:
        address = addresses[broker]
        return Endpoint(address.hostname, address.port, tls, login, window=window)

    return endpoint


@dataclass(frozen=True)
class LinkConfig:
    """Section `[links]` of an agent's configuration.

    Attributes:
        plan: the initial links; the topics that it has at a broker stay there.
        topics: the topics or filters that links carry, including those of the plan.
        state: the folder of the link agent's state.
        login: the link agent's login; its TLS files are those of the agent that moves clients, unless it
            names its own.
        window: maximum number of unacknowledged messages per link and direction.
        patience: seconds for which a change waits for an absent broker.
        metrics: the port for metrics on loopback; None: no metrics.
    """

    plan: Plan
    topics: tuple[str, ...]
    state: Path
    login: Login
    window: int = WINDOW
    patience: float = PATIENCE
    metrics: int | None = None

    @classmethod
    def of(cls, config: AgentConfig) -> LinkConfig:
        """Parse the section `[links]` of a configuration.

        Raises:
            InputError: a value is wrong or missing, or a name is unknown.
        """
        section = config.links or {}
        where = f"{config.file} [links]"
        folder = config.file.absolute().parent
        check_names(section, _LINKS, where)
        if not {"plan", "topics"} & set(section):
            raise InputError(f"{where} has neither plan nor topics; give a plan's folder or a list of topics")
        if "plan" in section:
            plan = _load_plan(folder / text_of(section, "plan", ""), config.sites)
        else:
            plan = _plan_without_links(config.sites)
        login = part_of(section, "login", config.file, "links.")
        login_where = f"{config.file} [links.login]"
        return cls(
            plan,
            _topics(section.get("topics", []), plan.interest.topic_ids, where),
            _state_folder(folder / text_of(section, "state", "links"), config.journal, where),
            login_of(login, folder, login_where, PASSWORD_VARIABLE, config.login) if login else config.login,
            _count_up_to(section.get("window", WINDOW), f"{where}: window", LAST_ID),
            check_number(section.get("patience", PATIENCE), f"{where}: patience"),
            _count_up_to(section["metrics"], f"{where}: metrics", LAST_PORT)
            if "metrics" in section
            else None,
        )


def _state_folder(state: Path, journal: Path, where: str) -> Path:
    """The folder of the links' state, which must not be that of the journal."""
    if state.resolve() == journal.resolve():
        raise InputError(f"{where}: state is the folder of the journal; give another folder")
    return state


def _count_up_to(value: object, what: str, most: int) -> int:
    count = check_count(value, what, minimum=1)
    if count > most:
        raise InputError(f"{what} is {count:,}; give a whole number from 1 to {most:,}")
    return count


def _load_plan(folder: Path, sites: Mapping[str, Site]) -> Plan:
    """Load a plan of links between these brokers."""
    plan = Plan.load(folder)
    planned = set(plan.interest.node_ids)
    for names, others, problem in (
        (planned, set(sites), "it has broker {0!r}, but the configuration has no [brokers.{0}]"),
        (set(sites), planned, "it does not have broker {0!r}"),
    ):
        if missing := sorted(names - others):
            raise InputError(
                f"the plan in {folder} has other brokers than the configuration: {problem.format(missing[0])}"
            )
    return plan


def _plan_without_links(sites: Mapping[str, Site]) -> Plan:
    """A plan without links; if brokers have different positions, near brokers will be linked first."""
    places = [site.place for site in sites.values()]
    have_positions = len(set(places)) == len(places) and len({len(place) for place in places}) == 1
    weights = Weights.euclidean(places, list(sites)) if have_positions else Weights.uniform(len(sites))
    interest = Interest.from_lists([[] for _ in sites], node_ids=list(sites))
    return Plan(interest, weights, Overlay(len(sites), np.zeros((0, 2), np.int32)), "none")


def _topics(listed: object, planned: Sequence[str], where: str) -> tuple[str, ...]:
    """The filters that links carry: the planned ones, and listed ones that share no topic with any other."""
    if not isinstance(listed, list) or (not listed and not planned):
        raise InputError(f"{where}: topics is {listed!r:.60}; give a list of topics or filters")
    for text in (*listed, *planned):
        if not is_client_filter(text) or text.startswith("$"):
            raise InputError(
                f"{where}: {text!r:.80} is not an MQTT filter that links carry; "
                f"give one without a leading $ or {CONTROL_ROOT}/"
            )
    known = set(planned)
    named = [text for text in listed if text not in known]
    if len(set(named)) < len(named):
        raise InputError(f"{where}: topics has {max(named, key=named.count)!r:.80} twice; give it once")
    tree = FilterIndex([*planned, *named])
    for text in named:
        if other := next((one for one in tree.meeting(text) if one != text), None):
            raise InputError(
                f"{where}: {text!r:.80} and {other!r:.80} have topics in common; give one filter for both"
            )
    return (*planned, *named)
