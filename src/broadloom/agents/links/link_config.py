"""What an agent's configuration says of links: which it holds between brokers, and what they carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from broadloom.agents.moves._given import check_names, login_of, part_of, text_of
from broadloom.agents.moves.address import LAST_PORT, Login
from broadloom.agents.moves.config import AgentConfig
from broadloom.agents.moves.control import is_filter
from broadloom.agents.moves.summary import Site
from broadloom.checks import check_count, check_number
from broadloom.deployment.deployment_inputs import LOGIN
from broadloom.errors import InputError
from broadloom.model import Interest, Overlay, Weights
from broadloom.mqtt.reserved_topics import ROOT
from broadloom.mqtt.topic_filters import FilterTree
from broadloom.plans import Plan

WINDOW, PATIENCE, LAST_WINDOW = 500, 10.0, 65_535
_, PASSWORD = LOGIN  # where it may be
_LINKS = {"plan", "topics", "state", "login", "window", "patience", "metrics"}


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
        if not is_filter(text) or text.startswith("$"):
            raise InputError(
                f"{where}: {text!r:.80} is no MQTT filter that links carry: none of $ or {ROOT}/"
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
