"""Links that follow clients which move: a link agent in a thread, beside the agent that moves them."""

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
from broadloom.deployment.deployment_inputs import LOGIN
from broadloom.errors import InputError
from broadloom.model import Interest, Overlay, Weights
from broadloom.mqtt.endpoint import LAST_PORT, Address, Endpoint, Login
from broadloom.mqtt.reserved_topics import CONTROL_ROOT
from broadloom.mqtt.topic_filters import FilterTree
from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.live")
WINDOW, PATIENCE, LAST_WINDOW = 500, 10.0, 65_535
_, PASSWORD = LOGIN  # where it may be
_LINKS = {"plan", "topics", "state", "login", "window", "patience", "metrics"}


class EmbeddedLinks:
    """Holds the links that moving clients need, from `start` to `stop`.

    Args:
        plan: the links to begin with.
        topics: the filters that links carry; None: whatever clients want.
        door: how to reach a broker.
        state: the folder of what survives a crash.
        patience: how many seconds a change waits for a broker that is away.
        metrics: the port of the numbers on loopback; None: none.

    Attributes:
        links: what the agent that moves clients asks for them.
    """

    def __init__(
        self,
        plan: Plan,
        topics: Iterable[str] | None,
        door: Callable[[str], Endpoint],
        state: Path,
        patience: float = 10.0,
        metrics: int | None = None,
    ) -> None:
        self.links = PlannedLinks(plan, self._is_reached, topics)
        self._agent, self._metrics = LinkAgent(door, state, patience), metrics
        self._run = LinkRun(self._agent, self.links)
        self._thread: threading.Thread | None = None
        self._begun: Future[asyncio.AbstractEventLoop] = Future()

    def start(self, failed: Callable[[], None] = lambda: None) -> None:
        """Begin; what clients need should be asked for before, or links of an earlier run are taken down.

        Args:
            failed: called if links fail later, and end.

        Raises:
            InputError: the port for metrics cannot be had.
        """
        self._thread = threading.Thread(
            target=self._hold, args=(failed,), name="broadloom-links", daemon=True
        )
        self._thread.start()
        self._begun.result()

    def down(self) -> list[str]:
        """The brokers at which a link is not up: they are away, or refuse it."""
        links = list(self._agent.links.values())
        sessions = [session for link in links for session in link.sessions.values()]
        return sorted({session.broker for session in sessions if not session.up.is_set()})

    def stop(self) -> None:
        """Finish what is on its way, and disconnect; brokers keep the sessions."""
        if not self._begun.done() or self._begun.exception() is not None:
            asyncio.run(self._agent.stop())
        elif self._thread is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # its loop has just ended by itself
                self._begun.result().call_soon_threadsafe(self._run.stop)
            self._thread.join()

    def _hold(self, failed: Callable[[], None]) -> None:
        async def hold() -> None:
            loop = asyncio.get_running_loop()
            await run_links(self._run, self._metrics, begun=lambda: self._begun.set_result(loop))

        try:
            asyncio.run(hold())
        except BaseException as error:  # of whatever kind: links stand still
            if not self._begun.done():
                self._begun.set_exception(error)
                return
            LOG.exception("links have failed")
            failed()

    def _is_reached(self, broker: str, topics: set[str], plans: int) -> bool:
        """Whether links carry topics to and from a broker, as so many plans have them."""
        followed = self._run.plans >= plans and not self._run.refused
        return followed and self._agent.carries(broker, topics)


def embed_links(config: AgentConfig) -> EmbeddedLinks:
    """The links of a configuration, for `serving`.

    Raises:
        InputError: something in its section `[links]` is wrong, or another process has the state.
    """
    own = LinkConfig.of(config)
    door = address_endpoints(config.doors, own.login, own.window)
    return EmbeddedLinks(own.plan, own.topics, door, own.state, own.patience, own.metrics)


def address_endpoints(
    addresses: Mapping[str, Address], login: Login, window: int
) -> Callable[[str], Endpoint]:
    """How a link agent reaches brokers where the agent that moves clients does.

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
    """Links that carry some topics, each to the brokers whose clients want it.

    Attributes:
        plan: the links to begin with; what it has at a broker stays there.
        topics: what links carry: topics or filters, those of the plan among them.
        state: the folder of what survives a crash.
        login: that of the link agent; authority and certificate are those of the agent that moves clients,
            unless it names its own.
        window: how many messages may be on their way over a link, each way.
        patience: for how many seconds a change waits for a broker that is away.
        metrics: the port of the numbers on loopback; None: none.
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
        """What the section `[links]` of a configuration says.

        Raises:
            InputError: something is wrong, not known or missing.
        """
        given, place, sites = config.links or {}, config.file, config.sites
        where, folder = f"{place} [links]", place.absolute().parent
        check_names(given, _LINKS, where)
        if not {"plan", "topics"} & set(given):
            raise InputError(f"{where} names nothing to carry; give plan, a plan's folder, or topics, a list")
        plan = _loaded(folder / text_of(given, "plan", ""), sites) if "plan" in given else _unlinked(sites)
        own = part_of(given, "login", place, "links.")
        return cls(
            plan,
            _topics(given.get("topics", []), plan.interest.topic_ids, where),
            _apart(folder / text_of(given, "state", "links"), config.journal, where),
            login_of(own, folder, f"{place} [links.login]", PASSWORD, config.login) if own else config.login,
            _below(given.get("window", WINDOW), f"{where}: window", LAST_WINDOW),
            check_number(given.get("patience", PATIENCE), f"{where}: patience"),
            _below(given["metrics"], f"{where}: metrics", LAST_PORT) if "metrics" in given else None,
        )


def _apart(state: Path, journal: Path, where: str) -> Path:
    if state.resolve() == journal.resolve():
        raise InputError(f"{where}: state is the folder of the journal; give another one")
    return state


def _below(value: object, what: str, most: int) -> int:
    found = check_count(value, what, minimum=1)
    if found > most:
        raise InputError(f"{what} is {found:,}; give a whole number from 1 to {most:,}")
    return found


def _loaded(folder: Path, sites: Mapping[str, Site]) -> Plan:
    """A plan of links between these brokers."""
    plan = Plan.load(folder)
    planned = set(plan.interest.node_ids)
    for names, others, words in (
        (planned, set(sites), "which has no [brokers.{}]"),
        (set(sites), planned, "which is not in it"),
    ):
        if odd := sorted(names - others):
            name = odd[0]
            raise InputError(
                f"the plan in {folder} is not of these brokers: see {name!r}, {words.format(name)}"
            )
    return plan


def _unlinked(sites: Mapping[str, Site]) -> Plan:
    """No links yet; where places tell brokers apart, near ones are linked first."""
    places = [site.place for site in sites.values()]
    told = len(set(places)) == len(places) and len({len(place) for place in places}) == 1
    weights = Weights.euclidean(places, list(sites)) if told else Weights.uniform(len(sites))
    interest = Interest.from_lists([[] for _ in sites], node_ids=list(sites))
    return Plan(interest, weights, Overlay(len(sites), np.zeros((0, 2), np.int32)), "none")


def _topics(given: object, planned: Sequence[str], where: str) -> tuple[str, ...]:
    """What links carry; what is named beside a plan has no topic in common with anything else."""
    if not isinstance(given, list) or (not given and not planned):
        raise InputError(f"{where}: topics is {given!r:.60}; give a list of topics or filters")
    for text in (*given, *planned):
        if not is_client_filter(text) or text.startswith("$"):
            raise InputError(
                f"{where}: {text!r:.80} is no MQTT filter that links carry: none of $ or {CONTROL_ROOT}/"
            )
    known = set(planned)
    named = [text for text in given if text not in known]
    if len(set(named)) < len(named):
        raise InputError(f"{where}: topics has {max(named, key=named.count)!r:.80} twice; name it once")
    tree = FilterTree([*planned, *named])
    for text in named:
        if other := next((one for one in tree.meeting(text) if one != text), None):
            raise InputError(
                f"{where}: {text!r:.80} and {other!r:.80} have topics in common; name one for both"
            )
    return (*planned, *named)
