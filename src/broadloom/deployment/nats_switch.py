"""Change of running NATS brokers, and the one for clients with an account of their own, which loses nothing.

Links are in two accounts of their own. The first has the links in use; during a change, the second has the
new links next to them. The clients' account imports the topics of both, and hands what its clients publish to
one of them. A reload changes which one, for all messages from then on: so each message takes one tree. When
the first account is empty, it gets the new links too, and everything returns to it: what brokers have after a
change is what an export writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from broadloom.deployment.apply import NEW, OLD, ApplyStep, DeploymentChange
from broadloom.deployment.fleet_file import Fleet
from broadloom.deployment.nats_control import (
    COMMON,
    NatsControl,
    NatsReloads,
    NatsRestarts,
    can_reload,
    listens_for_links,
    monitored,
    restart_steps,
    unfinished_restarts,
)
from broadloom.deployment.rollout import Deployment
from broadloom.deployment.targets.nats_leafnodes import (
    FIRST,
    SECOND,
    AccountFault,
    LeafTree,
    account_file,
    has_client_accounts,
    missing_accounts,
    missing_imports,
)
from broadloom.deployment.wiring import Hop
from broadloom.errors import InputError

MOST_SUBSCRIPTIONS = 1_000_000  # of an account, as the monitoring port lists them


class LinkStage(NamedTuple):
    """The links that all brokers have at one time.

    Attributes:
        trees: which deployment's links each account has.
        active: the account that takes what clients publish.
    """

    trees: Mapping[str, str]
    active: str


# In order, and each leads to the next and to the one before without loss. The names complete the sentence
# "reload BROKERS with the ...".
STAGES = {
    OLD: LinkStage({FIRST: OLD}, FIRST),
    "old links and unused new links": LinkStage({FIRST: OLD, SECOND: NEW}, FIRST),
    "new links and unused old links": LinkStage({FIRST: OLD, SECOND: NEW}, SECOND),
    "new links in account 2": LinkStage({SECOND: NEW}, SECOND),
    "new links in account 2 and unused ones in account 1": LinkStage({FIRST: NEW, SECOND: NEW}, SECOND),
    "new links in account 1 and unused ones in account 2": LinkStage({FIRST: NEW, SECOND: NEW}, FIRST),
    NEW: LinkStage({FIRST: NEW}, FIRST),
}


class NatsSwitch(DeploymentChange):
    """A change of NATS brokers that has the old and the new links at the same time.

    Attributes:
        not_listening: the brokers that do not listen for links yet.
    """

    not_listening: frozenset[str] = frozenset()

    def steps(self, at_once: bool = False) -> list[ApplyStep]:
        """The steps from the old deployment to the new one; a broker that does not listen restarts first."""
        steps = restart_steps(self.not_listening, OLD, at_once)
        if self.old.texts() == self.new.texts():
            return steps
        return [*steps, *self._steps_along(list(STAGES))]

    def back_steps(self, steps: Sequence[ApplyStep], done: int) -> list[ApplyStep]:
        """The steps back to the old deployment: the stages in reverse, from the last complete one."""
        begun = [step.side for step in steps[: done + 1] if step.action == "reload"]
        back = unfinished_restarts(steps, done, OLD)
        if begun:
            names = list(STAGES)
            back += self._steps_along(names[names.index(begun[-1]) :: -1])
        return back

    def _steps_along(self, names: Sequence[str]) -> list[ApplyStep]:
        """The steps from the first stage to the last: reload brokers, and wait for links.

        Where there are two trees, wait also until the unused one is empty. Brokers whose file stays are not
        reloaded: during a reload, NATS forgets for some microseconds what an account hands to another.
        """
        steps = []
        for before, name in pairwise(names):
            changed = tuple(one for one in self.brokers() if self.text(one, before) != self.text(one, name))
            steps += [ApplyStep("reload", changed, side=name), ApplyStep("wait", self.brokers(), side=name)]
            if len(STAGES[name].trees) > 1:
                steps.append(ApplyStep("empty", self.brokers(), side=name))
        return steps

    def text(self, broker: str, name: str) -> str:
        """The file of a broker at a stage."""
        known = next(one for one in (self.new, self.old) if broker in one.wiring.brokers)
        stage = STAGES[name]
        trees = {
            account: LeafTree(self.side(side).wiring, self.side(side).settings)
            for account, side in stage.trees.items()
        }
        return account_file(broker, known.settings, trees, stage.active)

    def brokers(self) -> tuple[str, ...]:
        """The brokers with links, before or afterwards."""
        return tuple(dict.fromkeys((*self.old.wiring.linked_brokers(), *self.new.wiring.linked_brokers())))

    def side(self, name: str) -> Deployment:
        """The old or the new deployment."""
        return self.old if name == OLD else self.new


class NatsSwitchControl(NatsControl):
    """Takes the steps of such a change, by the commands of the fleet file."""

    _change: NatsSwitch

    def notes(self) -> list[str]:
        """What the operator must know before the change."""
        return self._open_notes()

    def _check_broker(self, name: str) -> list[str]:
        """Check that a broker answers, and has the accounts of links."""
        found = super()._check_broker(name)
        defined = self._ask(name, "/accountz").get("accounts") or []
        self._require(name, missing_accounts(self._account(name), defined))
        return found

    def _account(self, broker: str) -> str:
        """The account of a broker's clients."""
        return self._broker(broker).account or ""

    @staticmethod
    def _require(broker: str, fault: AccountFault | None) -> None:
        if fault is not None:
            raise InputError(
                f"broker {broker!r}: {fault.found}; add to its block accounts: {fault.lines}; then reload it"
            )

    def take(self, step: ApplyStep) -> None:
        """Take one step."""
        if step.action == "reload":
            self.reload_all(step)
        elif step.action == "wait":
            self._wait_for_stage(STAGES[step.side])
        elif step.action == "empty":
            self._wait_until_empty(STAGES[step.side])
        elif step.action == "install":
            self.install(step.brokers[0], step.side)
        else:
            getattr(self, step.action)(step.brokers[0])

    def text_of(self, broker: str, side: str) -> str:
        """The file of a broker at a stage."""
        return self._change.text(broker, side)

    def _wait_for_stage(self, stage: LinkStage) -> None:
        """Wait until all links are up, no others are, and each broker knows what the others want."""
        for account in (FIRST, SECOND):
            links = self._change.side(stage.trees[account]).wiring.links if account in stage.trees else ()
            for broker in self._change.brokers():
                wanted = sum(broker in link[:2] for link in links)
                self._until(
                    partial(self._has_leafs, broker, account, wanted),
                    f"broker {broker!r} does not have the {wanted} links of the plan in account {account}",
                )
            for tree in _trees([link[:2] for link in links]):
                self._until(
                    partial(self._all_know, sorted(tree), account),
                    f"brokers do not know each other's subscriptions in account {account}",
                )
        if any(self._change.side(name).wiring.links for name in stage.trees.values()):
            for broker in self._change.brokers():
                self._require(broker, self._missing_imports(broker))

    def _missing_imports(self, broker: str) -> AccountFault | None:
        account = self._account(broker)
        detail = self._ask(broker, f"/accountz?acc={account}").get("account_detail") or {}
        return missing_imports(account, detail.get("imports") or [])

    def _has_leafs(self, broker: str, account: str, wanted: int) -> bool:
        return len(self._leafs(broker, account)) == wanted

    def _all_know(self, brokers: Sequence[str], account: str) -> bool:
        """Whether each broker of a tree knows the subscriptions of all others."""
        wanted = {broker: self._local_subjects(broker, account) for broker in brokers}
        for broker in brokers:
            known = {text for leaf in self._leafs(broker, account) for text in leaf["subscriptions_list"]}
            others = set[str]().union(*(texts for name, texts in wanted.items() if name != broker))
            if not others <= known:
                return False
        return True

    def _local_subjects(self, broker: str, account: str) -> set[str]:
        """What the clients of a broker want of an account of links."""
        found = self._ask(broker, f"/subsz?subs=1&acc={account}&limit={MOST_SUBSCRIPTIONS}")
        listed = found.get("subscriptions_list") or []
        return {one["subject"] for one in listed if one.get("account") != account}

    def _wait_until_empty(self, stage: LinkStage) -> None:
        """Wait until no message is on a link of the account that is not used any more."""
        (unused,) = (name for name in stage.trees if name != stage.active)
        before: list[tuple[int, int]] = []

        def is_empty() -> bool:
            leafs = [leaf for broker in self._change.brokers() for leaf in self._leafs(broker, unused)]
            counts = [(leaf["out_msgs"], leaf["in_msgs"]) for leaf in leafs]
            is_same = counts == before
            before[:] = counts
            return is_same and sum(out - into for out, into in counts) == 0

        self._until(is_empty, f"the links of account {unused} are not empty")

    def _leafs(self, broker: str, account: str) -> list[dict[str, Any]]:
        """The links of a broker in an account, with their counts and subscriptions."""
        leafs = self._ask(broker, "/leafz?subs=1").get("leafs") or []
        return [{"subscriptions_list": []} | leaf for leaf in leafs if leaf.get("account") == account]


def _trees(links: Iterable[Hop]) -> list[set[str]]:
    """The brokers of each tree."""
    trees: list[set[str]] = []
    for ends in links:
        joined = [tree for tree in trees if not tree.isdisjoint(ends)]
        trees = [tree for tree in trees if tree not in joined] + [set(ends).union(*joined)]
    return trees


def nats_change(
    old: Deployment, new: Deployment, fleet: Fleet, patience: float, begun: Sequence[ApplyStep]
) -> tuple[DeploymentChange, NatsControl]:
    """The change of NATS brokers, by what all of them can do, and what takes its steps.

    Args:
        old: the deployment in use.
        new: the new one.
        fleet: how to reach, stop, start and reload the brokers.
        patience: seconds for a broker.
        begun: the steps of a change that is under way; then brokers can be down.

    Raises:
        InputError: the fleet file does not name a monitoring port.
        UnreachableError: a broker does not answer there.
    """
    has_accounts = has_client_accounts(
        (*old.wiring.brokers, *new.wiring.brokers),
        replace(new.settings, brokers={**old.settings.brokers, **new.settings.brokers}),
    )
    if begun:
        reloads = any(step.action == "reload" or step.side == COMMON for step in begun)
        found = {}
    else:
        brokers = dict.fromkeys((*old.wiring.linked_brokers(), *new.wiring.linked_brokers()))
        found = {name: monitored(fleet, name, "/varz") for name in brokers}
        reloads = all(can_reload(varz) for varz in found.values())
    not_listening = frozenset(name for name, varz in found.items() if not listens_for_links(varz))
    if not reloads:
        restarts = NatsRestarts(old, new)
        return restarts, NatsControl(fleet, restarts, patience)
    if has_accounts:
        switch = NatsSwitch(old, new)
        switch.not_listening = not_listening
        return switch, NatsSwitchControl(fleet, switch, patience)
    live = NatsReloads(old, new)
    live.not_listening = not_listening
    return live, NatsControl(fleet, live, patience)
