"""Change of running RabbitMQ brokers by their HTTP API: no restart, no message lost, none doubled.

The new deployment is added next to the old one. Once a mark has passed each new link, each broker switches by
one call: from then on, what its clients publish takes the new trees. What is under way on the old trees
arrives on them. Marks show that they are empty: a mark passes a link after all messages that were on it
before. A message crosses at most as many links as the longest path of a tree has, so after that many rounds
of marks on all links, nothing is left. Then the old deployment is deleted.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from broadloom.deployment.apply import NEW, OLD, ApplyStep, DeploymentChange
from broadloom.deployment.broker_api import ApiStatusError
from broadloom.deployment.rollout import Deployment
from broadloom.deployment.targets import rabbitmq_federation as federation
from broadloom.deployment.targets.api_calls import Call
from broadloom.deployment.wiring import Hop, WiredLink, Wiring
from broadloom.errors import InputError, UnreachableError
from broadloom.mqtt.topic_filters import groups

T = TypeVar("T")
ApiCall = Callable[[str, str, str, object], Any]  # broker, method, path, body

SETTLE_SECONDS = 1.0  # after a switch, until no connection still hands a message to the old trees
REPEAT_SECONDS = 1.0  # between marks on a link that is not up yet
PAUSE = 0.05
MOST_BROKERS = 16  # called at the same time
MOST_MARKS = 1000  # read by one call
_NOT_FOUND = 404


class RabbitChange(DeploymentChange):
    """A change of RabbitMQ brokers."""

    def steps(self, at_once: bool = False) -> list[ApplyStep]:
        """The steps from the old deployment to the new one."""
        if at_once:
            raise InputError("--at-once does not apply to RabbitMQ, which restarts no broker; leave it out")
        if _version(self.old) == _version(self.new):  # logins at most
            adds, *_ = federation.change(*self._wirings(), self.old.settings, self.new.settings)
            return [ApplyStep("add", (broker,)) for broker in adds]
        return self._steps_to(NEW)

    def back_steps(self, steps: Sequence[ApplyStep], done: int) -> list[ApplyStep]:
        """The steps back to the old deployment; those of a change that had not switched yet only delete."""
        if any(step.action == "switch" for step in steps[: done + 1]):
            return self._steps_to(OLD)
        if _version(self.old) == _version(self.new):
            return [step._replace(side=OLD) for step in steps]
        return self._deletions(NEW)

    def _steps_to(self, side: str) -> list[ApplyStep]:
        """The steps to one of the deployments, from any state between them."""
        other = OLD if side == NEW else NEW
        own = self._side(side).wiring.linked_brokers()
        both = tuple(dict.fromkeys((*own, *self._side(other).wiring.linked_brokers())))
        steps = [ApplyStep("add", (broker,), side=side) for broker in own]
        steps += [ApplyStep("probe", own, side=side)] if own else []
        steps += [ApplyStep("switch", (broker,), side=side) for broker in both]
        return [
            *steps,
            ApplyStep("empty", self._side(other).wiring.linked_brokers(), side=other),
            *self._deletions(other),
        ]

    def _deletions(self, side: str) -> list[ApplyStep]:
        brokers = self._side(side).wiring.linked_brokers()
        steps = [ApplyStep("delete", (broker,), side=side) for broker in brokers]
        return [*steps, ApplyStep("sweep", brokers, side=side)] if brokers else []

    def _side(self, side: str) -> Deployment:
        return self.old if side == OLD else self.new

    def _wirings(self) -> tuple[Wiring, Wiring]:
        return self.old.wiring, self.new.wiring


class RabbitControl:
    """Changes RabbitMQ brokers by their HTTP API.

    Args:
        change: the change.
        call: calls the API of a broker.
        patience: seconds for a mark to pass a link.
    """

    def __init__(self, change: RabbitChange, call: ApiCall, patience: float) -> None:
        self._sides = {OLD: change.old, NEW: change.new}
        self._call = call
        self._patience = patience

    def check(self, steps: Sequence[ApplyStep]) -> list[str]:
        """Check before a change that all its brokers answer, and use the old deployment.

        Returns:
            What the operator must know before the change: nothing.

        Raises:
            InputError: a plugin is missing, names are not unique, or a broker uses another deployment.
            UnreachableError: a broker does not answer.
        """
        brokers = tuple(dict.fromkeys(name for step in steps for name in step.brokers))
        overviews = dict(
            zip(brokers, self._at_each(lambda one: self._get(one, "/api/overview"), brokers), strict=True)
        )
        names = Counter(str(overview.get("cluster_name")) for overview in overviews.values())
        for broker, overview in overviews.items():
            types = {one.get("name") for one in overview.get("exchange_types", ())}
            if federation.FRESH_ONLY not in types:
                raise InputError(
                    f"broker {broker!r} lacks a plugin; run there: "
                    "rabbitmq-plugins enable rabbitmq_federation"
                )
            if names[str(overview.get("cluster_name"))] > 1:
                raise InputError(
                    f"broker {broker!r} has the cluster name {overview.get('cluster_name')!r}, as another "
                    "broker has; run there: rabbitmqctl set_cluster_name NAME"
                )
            self._check_use(broker)
        return []

    def _check_use(self, broker: str) -> None:
        old = self._sides[OLD]
        path = f"/api/policies/%2F/{federation.SWITCH}"
        policy = self._get(broker, path, missing={"definition": {}})
        used = policy["definition"].get("alternate-exchange")
        expected = f"broadloom.{_version(old)}.tree" if broker in old.wiring.linked_brokers() else None
        if used != expected:
            raise InputError(
                f"broker {broker!r} publishes to {used or 'no links'}, and the old plan has "
                f"{expected or 'no links'} there; give the plan in use, or make the calls of its export first"
            )

    def check_files(self, steps: Sequence[ApplyStep]) -> None:
        """The part of `check` that needs no network: there is none."""

    def commands(self, step: ApplyStep) -> list[str]:
        """The calls of a step, without their bodies; those of marks are not known before."""
        return [f"{call['method']} {call['path']}" for call in self._calls(step)]

    def take(self, step: ApplyStep) -> None:
        """Take one step."""
        side = self._sides[step.side]
        if step.action == "probe":
            self._pass_marks(side, "is not up")
        elif step.action == "empty":
            time.sleep(SETTLE_SECONDS)
            for _ in range(longest_path(side.wiring)):
                self._pass_marks(side, "still has messages")
        elif step.action == "sweep":
            self._at_each(partial(self._sweep, _version(side)), step.brokers)
        else:
            self._make(step.brokers[0], self._calls(step))

    def _calls(self, step: ApplyStep) -> list[Call]:
        """The calls that a step makes at its broker."""
        wiring, settings = self._sides[step.side].wiring, self._sides[step.side].settings
        if step.action == "add":
            made = federation.version_calls(wiring, step.brokers[0], settings)
            return [*made, *federation.entry_calls()]
        if step.action == "switch":
            use = federation.switch_call(wiring, settings)
            return [use] if step.brokers[0] in wiring.linked_brokers() else list(federation.removed([use]))
        if step.action == "delete":
            other = self._sides[NEW if step.side == OLD else OLD].wiring
            made = federation.version_calls(wiring, step.brokers[0], settings)
            entry = [] if step.brokers[0] in other.linked_brokers() else federation.entry_calls()
            return list(federation.removed([*made, *entry]))
        return []

    def _make(self, broker: str, calls: Iterable[Call]) -> None:
        """Make calls; what is to be deleted can be gone already."""
        for call in calls:
            try:
                self._call(broker, call["method"], call["path"], call.get("body"))
            except ApiStatusError as error:
                if call["method"] != "DELETE" or error.code != _NOT_FOUND:
                    raise UnreachableError(f"broker {broker!r}: {error}") from error

    def _get(self, broker: str, path: str, missing: Any = None) -> Any:
        try:
            return self._call(broker, "GET", path, None)
        except ApiStatusError as error:
            if missing is not None and error.code == _NOT_FOUND:
                return missing
            raise UnreachableError(f"broker {broker!r}: {error}") from error

    def _pass_marks(self, side: Deployment, problem: str) -> None:
        """Send a mark over each hop, and wait until all have arrived."""
        code = _version(side)
        run = secrets.token_hex(4)
        hops = {
            f"{run} {number}": (hop, federation.exchange(link, code))
            for number, (hop, link) in enumerate(_hops(side.wiring))
        }
        starts = defaultdict[str, list[str]](list)
        ends = defaultdict[str, list[str]](list)
        for text, ((start, end), _) in hops.items():
            starts[start].append(text)
            ends[end].append(text)
        missing = set(hops)
        limit = time.monotonic() + self._patience
        again = 0.0
        while missing:
            if time.monotonic() >= again:
                left = {start: [text for text in texts if text in missing] for start, texts in starts.items()}
                self._at_each(partial(self._send_marks, left, hops), list(left))
                again = time.monotonic() + REPEAT_SECONDS
            waiting = [broker for broker, texts in ends.items() if missing.intersection(texts)]
            arrived = self._at_each(partial(self._read_marks, code), waiting)
            for broker, found in zip(waiting, arrived, strict=True):
                missing -= found.intersection(ends[broker])  # a mark also arrives where it was sent
            if missing and time.monotonic() > limit:
                start, end = hops[min(missing)][0]
                raise UnreachableError(
                    f"the link from {start!r} to {end!r} {problem} after {self._patience:g} s; see the log "
                    f"of {end!r}"
                )
            if missing:
                time.sleep(PAUSE)

    def _send_marks(
        self, marks: Mapping[str, Sequence[str]], hops: Mapping[str, tuple[Hop, str]], broker: str
    ) -> None:
        for text in marks[broker]:
            body = {
                "properties": {"headers": {federation.MARK: "1"}, "delivery_mode": 2},
                "routing_key": "",
                "payload": text,
                "payload_encoding": "string",
            }
            path = f"/api/exchanges/%2F/{quote(hops[text][1], safe='')}/publish"
            self._make(broker, [{"method": "POST", "path": path, "body": body}])

    def _read_marks(self, code: str, broker: str) -> set[str]:
        """The marks that have arrived at a broker."""
        body = {"count": MOST_MARKS, "ackmode": "ack_requeue_false", "encoding": "auto"}
        path = f"/api/queues/%2F/broadloom.{code}.marks/get"
        try:
            found = self._call(broker, "POST", path, body)
        except ApiStatusError as error:
            raise UnreachableError(f"broker {broker!r}: {error}") from error
        return {one["payload"] for one in found}

    def _sweep(self, code: str, broker: str) -> None:
        """Delete what federation made for links and has not deleted."""
        for kind in ("queues", "exchanges"):
            for one in self._get(broker, f"/api/{kind}/%2F?columns=name"):
                if f"broadloom.{code}." in one["name"]:
                    self._make(
                        broker,
                        [{"method": "DELETE", "path": f"/api/{kind}/%2F/{quote(one['name'], safe='')}"}],
                    )

    def notes(self) -> list[str]:
        """What the operator must know before the change."""
        return []

    def close(self) -> None:
        """Nothing stays open."""

    @staticmethod
    def _at_each(work: Callable[[str], T], brokers: Sequence[str]) -> list[T]:
        """Do the same at several brokers, at the same time."""
        with ThreadPoolExecutor(MOST_BROKERS) as pool:
            return list(pool.map(work, brokers))


def _version(side: Deployment) -> str:
    return federation.version(side.wiring, side.settings)


def _hops(wiring: Wiring) -> list[tuple[Hop, WiredLink]]:
    """The hops that carry something, with their links."""
    return [(hop, link) for link in wiring.links for hop, texts in link.carried() if texts]


def longest_path(wiring: Wiring) -> int:
    """The most links on a path of a tree.

    Examples:
        >>> links = WiredLink("a", "b", ("x",), ("x",)), WiredLink("b", "c", ("x",), ("x",))
        >>> longest_path(Wiring(("a", "b", "c"), dict.fromkeys("abc", ("x",)), {}, links))
        2
    """
    group_of = groups(sorted({text for link in wiring.links for text in link.filters()}))
    trees = defaultdict[str, dict[str, set[str]]](lambda: defaultdict(set))
    for link in wiring.links:
        for name in {group_of[text] for text in link.filters()}:
            trees[name][link.owner].add(link.peer)
            trees[name][link.peer].add(link.owner)
    return max((_depth(tree, start) for tree in trees.values() for start in tree), default=0)


def _depth(tree: Mapping[str, set[str]], start: str) -> int:
    """The number of links to the farthest broker."""
    seen = {start: 0}
    queue = [start]
    for broker in queue:
        for other in tree[broker]:
            if other not in seen:
                seen[other] = seen[broker] + 1
                queue.append(other)
    return max(seen.values())
