"""Application of a change to running brokers, step by step: each step is journaled, and can be repeated.

The steps are those of `rollout.order`: sessions of new links are opened at the last moment before the brokers
that hold the old links stop. A process that is killed goes on where it was, since every step gives the same
result when it is taken twice. A rollback is a change like any other: from the links that the brokers have by
then to the old ones.

What waits in the session of a link that ends is kept in the journal. What of it has not arrived at a broker
that wants it, once the new links are up, is published there: no message is lost, but these few arrive twice
at brokers that had them already. The same applies to messages that were seen at some broker just before
others stopped: mosquitto forgets what a link had not delivered if it starts without the link.

Rehearsals use the same steps on brokers of their own.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from base64 import b64decode, b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from broadloom.deployment.rollout import Batch, Deployment, LinkSession, order, restarting
from broadloom.deployment.targets.mosquitto_bridges import local_id, remote_id
from broadloom.deployment.wiring import Hop, WiredLink, Wiring
from broadloom.errors import InputError, MissingExtraError, StorageError, UnreachableError
from broadloom.mqtt.paho import HeldMessage
from broadloom.mqtt.topic_filters import FilterIndex
from broadloom.progress import stage
from broadloom.storage import RecordJournal

MOST_SESSIONS = 16  # changed at the same time
ARRIVAL_SECONDS = 5.0  # for messages that wait in the sessions of new links
MOST_RECORDED = 1 << 30  # bytes of recorded messages with which another batch begins
OLD, NEW = "old", "new"

Message = tuple[str, bytes]  # topic and payload, by which messages are compared


_LIVE_TEXTS = {
    "add": "add the {links} of {names}",
    "probe": "wait until a test message has passed each of the {links}",
    "switch": "switch {names} to the {links}",
    "empty": "wait until no message is on the {links} any more",
    "delete": "delete the {links} of {names}",
    "sweep": "delete the remaining queues and exchanges of the {links}",
    "reload": "reload {names} with the {links}",
}


class ApplyStep(NamedTuple):
    """One step of a change.

    Attributes:
        action: "open", "close" or "end" sessions; "stop" a broker, "install" its links or "remove" them,
            "start" it; "wait" until the links of brokers are up; "watch" what arrives of topics whose
            sessions will end, and "return" what waited in them and has not arrived. While brokers run:
            "add" links next to those in use, "probe" them, "switch" to them, "empty" the others, "delete"
            them, and "sweep" what is left of them; or "reload" brokers.
        brokers: the brokers.
        sessions: the sessions.
        side: whose links are installed: those of the "old" or the "new" deployment; or a name of links that
            exist in between.
        links: the owner and the peer of the links to wait for.
    """

    action: str
    brokers: tuple[str, ...]
    sessions: tuple[LinkSession, ...] = ()
    side: str = NEW
    links: tuple[Hop, ...] = ()

    def text(self) -> str:
        """The step in words.

        Examples:
            >>> ApplyStep("stop", ("rome",)).text()
            'stop rome'
            >>> ApplyStep("end", ("rome",), (LinkSession("rome", "r.broadloom-oslo:rome", "oslo"),)).text()
            'end 1 session at rome: r.broadloom-oslo:rome'
        """
        names = ", ".join(self.brokers) or "no broker"
        if self.sessions and self.action != "watch":
            count = f"{len(self.sessions)} session{'s' if len(self.sessions) > 1 else ''}"
            return f"{self.action} {count} at {names}: {', '.join(one.client for one in self.sessions)}"
        if self.action == "return":
            return "publish messages that have not arrived everywhere where they are missing"
        if self.action == "watch":
            return f"record what arrives of the topics whose links at {names} change"
        links = self.side if "links" in self.side else f"{self.side} links"
        if self.action in _LIVE_TEXTS:
            if self.action == "empty" and "unused" in self.side:
                links = "unused links"
            return _LIVE_TEXTS[self.action].format(names=names, links=links)
        if self.action == "install":
            return f"install the {links} of {names}"
        if self.action == "remove":
            return f"remove the links of {names}"
        return (
            f"wait until the links of {names} are up" if self.action == "wait" else f"{self.action} {names}"
        )

    def record(self) -> dict[str, Any]:
        """The step, ready for JSON."""
        sessions = [session._asdict() for session in self.sessions]
        links = [list(link) for link in self.links]
        return {
            "action": self.action,
            "brokers": list(self.brokers),
            "sessions": sessions,
            "side": self.side,
            "links": links,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> ApplyStep:
        """The step of a record."""
        sessions = tuple(
            LinkSession(one["broker"], one["client"], one["owner"], tuple(one["filters"]))
            for one in record["sessions"]
        )
        links = tuple((owner, peer) for owner, peer in record["links"])
        return cls(record["action"], tuple(record["brokers"]), sessions, record["side"], links)


class BrokerControl(Protocol):
    """What the steps of a change do to brokers. Each call returns when it is done, and can be repeated."""

    def stop(self, broker: str) -> None:
        """Stop a broker."""

    def install(self, broker: str, side: str) -> None:
        """Write the links of a broker, those of the old or the new deployment."""

    def remove(self, broker: str) -> None:
        """Remove the links of a broker."""

    def start(self, broker: str) -> None:
        """Start a broker, and wait until it answers."""

    def wait(self, links: Sequence[WiredLink]) -> None:
        """Wait until links are up."""

    def update(self, action: str, session: LinkSession) -> None:
        """Open or close a session."""

    def drain(self, session: LinkSession, keep: Callable[[list[HeldMessage]], None]) -> None:
        """Take all messages that wait in a session, and end it."""

    def watch(self, broker: str, filters: Sequence[str]) -> None:
        """Remember from now on which messages arrive at a broker."""

    def end_watch(self, broker: str) -> None:
        """End the session that watched a broker; it can be one that a killed process has left."""

    def record(self) -> None:
        """Keep what arrives at the watched brokers, until the links of a batch are up."""

    def recorded(self) -> Mapping[str, list[HeldMessage]]:
        """The messages that were kept at each watched broker."""

    def missing(self, broker: str, messages: Sequence[Message], seconds: float) -> list[Message]:
        """Those messages that have not arrived at a broker, and do not arrive in some seconds."""

    def publish(self, broker: str, messages: Sequence[HeldMessage]) -> None:
        """Publish messages at a broker."""


@runtime_checkable
class LiveControl(Protocol):
    """What takes the steps of a change of brokers that run on; each step can be repeated."""

    def take(self, step: ApplyStep) -> None:
        """Take one step."""


def change_steps(batches: Iterable[Batch], having: Collection[str], side: str = NEW) -> Iterator[ApplyStep]:
    """The steps of the batches of a change.

    Args:
        batches: the batches.
        having: the brokers that have links or files afterwards.
        side: whose links are installed.
    """
    for batch in batches:
        if batch.dropped or batch.ended:
            yield ApplyStep("watch", batch.brokers, batch.ended, side)
        pending: list[tuple[str, LinkSession]] = []
        for action, broker, session in batch.actions():
            if session is not None:
                if pending and pending[-1][0] != action:
                    yield _session_step(pending)
                    pending = []
                pending.append((action, session))
                continue
            if pending:
                yield _session_step(pending)
                pending = []
            if action == "start":
                yield ApplyStep("install" if broker in having else "remove", (broker,), side=side)
            yield ApplyStep(action, (broker,))
        if pending:
            yield _session_step(pending)
        restarted = set(batch.brokers)
        touched = tuple(link[:2] for link in batch.links if restarted.intersection(link[:2]))
        yield ApplyStep("wait", batch.brokers, links=touched)


def _session_step(pending: Sequence[tuple[str, LinkSession]]) -> ApplyStep:
    sessions = tuple(session for _, session in pending)
    return ApplyStep(pending[0][0], tuple(dict.fromkeys(one.broker for one in sessions)), sessions)


class DeployedState(NamedTuple):
    """What the journal knows of a deployment, to recognise it: nothing secret.

    Attributes:
        links: a code of the links.
        access: how links reach each broker: its address, TLS files, login and the like.
    """

    links: str
    access: dict[str, dict[str, Any]]

    def differing_access(self, other: DeployedState) -> str:
        """The first broker that links reach in another way, and what differs; empty: none.

        Examples:
            >>> one, other = (DeployedState("", {"rome": {"tls": tls}}) for tls in (None, "ca.crt"))
            >>> one.differing_access(other)
            "tls of broker 'rome'"
        """
        for name, own in self.access.items():
            values = other.access.get(name, own)
            names = [key for key in own if values.get(key) != own[key]]
            if names:
                return f"{', '.join(names)} of broker {name!r}"
        return ""


def deployed_state(side: Deployment) -> DeployedState:
    """What the journal knows of a deployment."""
    settings = side.settings
    access = {}
    for name in side.wiring.brokers:
        own: dict[str, Any] = {"address": settings.address_of(name)}
        own |= {"tls": settings.tls, "certificates": settings.certificates, "login": settings.credentials}
        if (broker := settings.brokers.get(name)) is not None:
            own["tls"] = None if broker.tls is None else asdict(broker.tls)
            own["login"] = None if broker.login is None else asdict(broker.login)  # refers to the password
            own |= {"account": broker.account, "leaf_listen": broker.leaf_listen}
        access[name] = own
    links = [link._asdict() for link in side.wiring.links]
    return DeployedState(_code({"links": links, "qos": settings.qos}), access)


def _code(value: object) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


class DeploymentChange(NamedTuple):
    """A change from one deployment to another.

    Attributes:
        old: the present deployment.
        new: the new one.
    """

    old: Deployment
    new: Deployment

    def states(self) -> list[DeployedState]:
        """Both deployments, as the journal knows them."""
        return [deployed_state(side) for side in self]

    def digest(self) -> str:
        """A code of both deployments: their links, addresses, TLS files and logins, and nothing secret."""
        return _code([state._asdict() for state in self.states()])

    def steps(self, at_once: bool = False) -> list[ApplyStep]:
        """The steps from the old deployment to the new one; `at_once`: all brokers restart together."""
        batches = order(self.old.wiring, self.new.wiring, at_once, restarting(self.old, self.new))
        steps = list(change_steps(batches, self.new.wiring.brokers))
        return [*steps, ApplyStep("return", ())] if any(step.action == "watch" for step in steps) else steps

    def back_steps(self, steps: Sequence[ApplyStep], done: int) -> list[ApplyStep]:
        """The steps back to the old deployment.

        The brokers of an unfinished batch get their old links first, while all of them are down, because the
        old links of some with the new links of others could form a ring. Filters that a link had gained in
        its session at its peer are closed meanwhile: mosquitto would keep them. Then the finished batches are
        undone like any other change. At last the sessions of new links end.

        Args:
            steps: the steps of the change.
            done: how many of them are done; the next one can have begun.
        """
        ends = [number for number, step in enumerate(steps[:done]) if step.action == "wait"]
        first = ends[-1] + 1 if ends else 0
        changed = {broker for step in steps[:first] for broker in _installing(step)}
        broken = sorted(step.brokers[0] for step in steps[first : done + 1] if step.action == "stop")
        old, new = self.old.wiring, self.new.wiring
        links = [link for link in old.links if link.owner not in changed]
        links += [link for link in new.links if link.owner in changed]
        brokers = tuple(dict.fromkeys((*old.brokers, *new.brokers)))
        present = replace(old, brokers=brokers, links=tuple(sorted(links)))
        gained = _gained_filters(steps[first : done + 1], old.links)
        back = [ApplyStep("stop", (broker,)) for broker in broken]
        back += _closing(session for session in gained if session.broker not in broken)
        for broker in reversed(broken):
            back += [
                ApplyStep("install" if broker in old.brokers else "remove", (broker,), side=OLD),
                ApplyStep("start", (broker,)),
                *_closing(session for session in gained if session.broker == broker),
            ]
        touched = tuple(link[:2] for link in present.links if set(broken).intersection(link[:2]))
        back += [ApplyStep("wait", tuple(broken), links=touched)] if broken else []
        batches = order(present, replace(old, brokers=brokers), also=sorted(changed))
        back += change_steps(batches, old.brokers, OLD)
        if left := sorted(_sessions_of(new.links) - _sessions_of(old.links)):
            back.append(ApplyStep("watch", brokers, tuple(left), OLD))
            back.append(ApplyStep("end", tuple(dict.fromkeys(one.broker for one in left)), tuple(left)))
        return [*back, ApplyStep("return", (), side=OLD)]

    def wiring_of(self, step: ApplyStep) -> Wiring:
        """The wiring to which a step leads."""
        return (self.old if step.side == OLD else self.new).wiring

    def watched(self, step: ApplyStep) -> dict[str, list[str]]:
        """What to watch at each broker: its subscriptions that meet topics of links that end or change.

        Also what these links take from it. A message can wait for a link that stays while its owner restarts,
        and arrive when the next link on its way no longer carries it.
        """
        links = {name: link for side in self for link in side.wiring.links for name in ids_of(link)}
        ending = {links[session.client] for session in step.sessions}
        moved: dict[Hop, set[str]] = {}
        carried = [
            {hop: set(texts) for link in side.wiring.links for hop, texts in link.carried()} for side in self
        ]
        owners = {link[:2] for side in self for link in side.wiring.links if link.owner in step.brokers}
        for hop in {hop for owner, peer in owners for hop in ((owner, peer), (peer, owner))}:
            moved[hop] = carried[0].get(hop, set()) ^ carried[1].get(hop, set())
        for link in ending:
            for hop, texts in link.carried():
                moved.setdefault(hop, set()).update(texts)
        index = FilterIndex({text for texts in moved.values() for text in texts})
        found = defaultdict[str, set[str]](set)
        for name, texts in self.wiring_of(step).wants.items():
            found[name].update(text for text in texts if any(index.meeting(text)))
        for (start, _), changed in moved.items():
            found[start].update(changed)
        return {name: sorted(texts) for name, texts in found.items() if texts}

    def links_of(self, step: ApplyStep) -> list[WiredLink]:
        """The links that a step waits for."""
        known = {link[:2]: link for side in self for link in side.wiring.links}
        return [known[ends] for ends in step.links]


def _installing(step: ApplyStep) -> tuple[str, ...]:
    return step.brokers if step.action in ("install", "remove") else ()


def _gained_filters(steps: Iterable[ApplyStep], links: Iterable[WiredLink]) -> list[LinkSession]:
    """The sessions of links in which steps have opened more filters."""
    known = {name for link in links for name in ids_of(link)}
    opened = (session for step in steps if step.action == "open" for session in step.sessions)
    return [session for session in opened if session.client in known]


def _closing(sessions: Iterable[LinkSession]) -> list[ApplyStep]:
    found = tuple(sessions)
    return [_session_step([("close", session) for session in found])] if found else []


def _sessions_of(links: Iterable[WiredLink]) -> set[LinkSession]:
    """The sessions of links, at both of their ends."""
    found = set()
    for link in links:
        at_owner, at_peer = ids_of(link)
        found |= {LinkSession(link.owner, at_owner, link.owner), LinkSession(link.peer, at_peer, link.owner)}
    return found


def ids_of(link: WiredLink) -> tuple[str, str]:
    """The client ids of a link, at its owner and at its peer."""
    return local_id(link), remote_id(link)


class ChangeJournal:
    """Journal of a change: its steps, and how many of them are done.

    Args:
        path: the file; None: in memory, for a rehearsal.

    Attributes:
        digest: the code of the change that is under way; None: none is.
        steps: its steps.
        done: the number of steps done.
        times: when each of them began and ended, in seconds since 1970; empty: not known.
        is_going_back: whether these steps lead back to the old deployment.
        kept: the messages of ended sessions, by the client id of the session.
        seen: the messages that were recorded at each watched broker.
        seen_earlier: those of them that earlier processes recorded.
        returned: how many messages had not arrived everywhere, and were published.
        watched: the brokers at which a session watches what arrives.
        stopped: the brokers that were stopped when the way back began.
        sides: the old and the new deployment of the change that is under way.
        applied: the deployment to which the last complete change has led; None: not known.

    Raises:
        JournalDamageError: the file is damaged.
        InputError: another process has it open.
        StorageError: it cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self._journal = RecordJournal(path, private=True)
        self._lock = threading.Lock()
        if path is not None:
            path.chmod(0o600)  # it can have messages of clients
        self.digest: str | None = None
        self.steps: list[ApplyStep] = []
        self.done = 0
        self.times: dict[int, tuple[float, float]] = {}
        self.is_going_back = False
        self.kept: dict[str, list[HeldMessage]] = {}
        self.seen: dict[str, list[HeldMessage]] = {}
        self.seen_earlier: dict[str, Counter[Message]] = {}
        self._written: Counter[str] = Counter()  # how many of `seen` are of the watches of this process
        self.returned = 0
        self.watched: list[str] = []
        self.stopped: list[str] = []
        self.sides: list[DeployedState] = []
        self.applied: DeployedState | None = None
        for record in self._journal.records():
            self._read(record.kind, record.body)
        self.seen_earlier = {broker: _counts(messages) for broker, messages in self.seen.items()}

    def _read(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind in ("begin", "back"):
            self.is_going_back = kind == "back"
            if kind == "begin":
                self.returned = 0
            self.digest = body["change"]
            self.stopped = body.get("stopped", [])
            self.sides = [DeployedState(**side) for side in body.get("sides", ())]
            self.steps = [ApplyStep.from_record(step) for step in body["steps"]]
            self.done = 0
            self.times = {}
        elif kind == "done":
            self.done = body["steps"]
            if "began" in body:
                self.times[self.done - 1] = (body["began"], body["ended"])
        elif kind == "keep":
            self.kept.setdefault(body["session"], []).extend(_decoded(body["messages"]))
        elif kind == "seen":
            self.seen.setdefault(body["broker"], []).extend(_decoded(body["messages"]))
        elif kind == "watch":
            self.watched = sorted({*self.watched, *body["brokers"]})
        elif kind == "unwatched":
            self.watched = []
            self._written.clear()
        elif kind == "returned":
            self.kept, self.seen, self.seen_earlier = {}, {}, {}
            self.returned += body["messages"]
        elif kind == "end":
            self.digest, self.steps, self.done, self.is_going_back = None, [], 0, False
            self.sides, self.kept, self.seen, self.seen_earlier = [], {}, {}, {}
            self.applied = DeployedState(**body["applied"]) if "applied" in body else None

    def begin(self, change: DeploymentChange, steps: Sequence[ApplyStep], back: bool = False) -> None:
        """A change begins, or the way back."""
        body = {
            "change": change.digest(),
            "steps": [one.record() for one in steps],
            "sides": [state._asdict() for state in change.states()],
            "stopped": stopped_brokers(self.steps[: self.done + 1]) if back else [],
        }
        self._write("back" if back else "begin", body)

    def step_done(self, began: float) -> None:
        """One more step is done.

        Args:
            began: when it began, in seconds since 1970.
        """
        self._write("done", {"steps": self.done + 1, "began": began, "ended": time.time()})

    def seconds_down(self) -> dict[str, float]:
        """For how long each broker was down that has restarted, from its stop command until it answered."""
        found: dict[str, float] = {}
        stopped: dict[str, float] = {}
        for number, step in enumerate(self.steps[: self.done]):
            if number not in self.times:
                continue
            began, ended = self.times[number]
            for broker in step.brokers:
                if step.action == "stop":
                    stopped[broker] = began
                elif step.action == "start" and broker in stopped:
                    found[broker] = found.get(broker, 0.0) + max(ended - stopped.pop(broker), 0.0)
        return found

    def keep(self, session: str, messages: Sequence[HeldMessage]) -> None:
        """Keep messages that waited in a session."""
        self._write("keep", {"session": session, "messages": _encoded(messages)})

    def keep_seen(self, recorded: Mapping[str, Sequence[HeldMessage]]) -> None:
        """Keep what is new of the messages that were recorded at watched brokers."""
        for broker, messages in recorded.items():
            if new := messages[self._written[broker] :]:
                self._write("seen", {"broker": broker, "messages": _encoded(new)})
                self._written[broker] = len(messages)

    def forget_kept(self, published: int) -> None:
        """The kept and the recorded messages have arrived everywhere; some were published again for that."""
        self._write("returned", {"messages": published})

    def watch(self, brokers: Iterable[str]) -> None:
        """Sessions will watch what arrives at brokers."""
        if not set(brokers) <= set(self.watched):
            self._write("watch", {"brokers": sorted(brokers)})

    def unwatched(self) -> None:
        """No session watches any more."""
        if self.watched:
            self._write("unwatched", {})

    def end(self, applied: DeployedState) -> None:
        """The change is complete: the journal no longer has its steps, nor the messages that it kept.

        Args:
            applied: the deployment that the brokers have now.
        """
        body = {"applied": applied._asdict()}
        self._journal.replace([("end", body)])
        self._read("end", body)

    def _write(self, kind: str, body: Mapping[str, Any]) -> None:
        with self._lock:  # several sessions can be emptied at the same time
            self._journal.append(kind, body)
            self._read(kind, body)

    def close(self) -> None:
        """Close the file."""
        self._journal.close()


def _encoded(messages: Iterable[HeldMessage]) -> list[tuple[str, str, bool]]:
    return [(one.topic, b64encode(one.payload).decode(), one.retain) for one in messages]


def _decoded(messages: Iterable[Sequence[Any]]) -> Iterator[HeldMessage]:
    return (HeldMessage(topic, b64decode(payload), *retain) for topic, payload, *retain in messages)


def _counts(messages: Iterable[HeldMessage]) -> Counter[Message]:
    return Counter((one.topic, one.payload) for one in messages)


def _retained(sources: Iterable[Iterable[HeldMessage]]) -> set[Message]:
    """The messages that are to be retained: of each topic the last one, if all sources agree on it.

    Examples:
        >>> on, off = (HeldMessage("lamp", payload, True) for payload in (b"on", b"off"))
        >>> _retained([[on, off, on], [on]])
        {('lamp', b'on')}
    """
    last: set[Message] = set()
    replaced: set[Message] = set()
    for messages in sources:
        found = [(one.topic, one.payload) for one in messages if one.retain]
        newest = dict(found)
        last |= newest.items()
        replaced |= set(found) - newest.items()
    return last - replaced


def apply_change(
    change: DeploymentChange,
    steps: Sequence[ApplyStep],
    control: BrokerControl | LiveControl,
    journal: ChangeJournal,
    back: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Take the steps of a change that are not done yet; returns counts.

    Args:
        change: the change.
        steps: its steps; a change that is under way goes on with those of the journal.
        control: stops, configures and starts brokers, or changes them while they run.
        journal: has the steps that are done.
        back: whether to go back to the old deployment.
        report: called with each step in words before it is taken.

    Raises:
        InputError: another change is under way, or there is nothing to go back from.
        UnreachableError: a broker does not stop, start or answer; the same call goes on from there. This and
            other errors of a step name the step and the brokers that are stopped.
        ChangeInterruptedError: Ctrl-C; it names the same.
    """
    if is_applied(change, journal, back):
        return change_counts((), 0, journal, back) | {"already_applied": True}
    old, new = change.states()
    if not steps and journal.digest is None and old.links == new.links:
        return change_counts((), 0, journal, back)  # no broker was asked, so the journal learns nothing
    begin_change(change, steps, journal, back)
    steps, first = journal.steps, journal.done
    with stage("go back" if back else "apply the change", len(steps)) as done, _named_interrupts(journal):
        for number in range(first, len(steps)):
            text = steps[number].text()
            report(f"{number + 1}/{len(steps)} {text}")
            began = time.time()
            try:
                if isinstance(control, LiveControl):
                    control.take(steps[number])
                else:
                    if number == first:
                        _watch_again(change, control, journal)
                    _take_recorded(steps[number], change, control, journal)
            except _STEP_ERRORS as error:
                raise _step_error(error, number, journal, steps[:number]) from error
            try:
                journal.step_done(began)
            except StorageError as error:
                raise _step_error(error, number, journal, steps[: number + 1]) from error
            done(number + 1)
    if not isinstance(control, LiveControl):
        _end_watches(control, journal)
    down = journal.seconds_down()
    journal.end(deployed_state(change.old if back else change.new))
    return change_counts(steps, first, journal, back) | {"seconds_down": down}


class ChangeInterruptedError(KeyboardInterrupt):
    """A change was interrupted (Ctrl-C); the message says at which step, and how to go on."""


@contextmanager
def _named_interrupts(journal: ChangeJournal) -> Iterator[None]:
    """Have an interruption say the step, the brokers that are stopped, and what to do."""
    try:
        yield
    except KeyboardInterrupt as error:
        steps = journal.steps
        number = min(journal.done, len(steps) - 1)
        begun = steps[: number + 1] if steps[number].action == "stop" else steps[:number]
        where = f"interrupted at step {number + 1} of {len(steps)} ({steps[number].text()})"
        raise ChangeInterruptedError(f"{where}{_what_to_do('', journal, begun)}") from error


_STEP_ERRORS = (InputError, MissingExtraError, StorageError, UnreachableError)


def _step_error(
    error: Exception, number: int, journal: ChangeJournal, taken: Sequence[ApplyStep]
) -> Exception:
    """An error of the same kind that names the step, the brokers that are stopped, and what to do."""
    steps = journal.steps
    kind = next(kind for kind in _STEP_ERRORS if isinstance(error, kind))
    return kind(
        f"step {number + 1} of {len(steps)} ({steps[number].text()}): {error}"
        f"{_what_to_do('mend it and ', journal, taken)}"
    )


def _what_to_do(before: str, journal: ChangeJournal, taken: Sequence[ApplyStep]) -> str:
    """The brokers that are stopped after some steps, and how a change goes on."""
    stopped = ", ".join(stopped_brokers(taken, journal.stopped))
    down = f"; stopped now: {stopped}" if stopped else ""
    way_back = "" if journal.is_going_back else ", or go back with --roll-back"
    return f"{down}; {before}run the same command again{way_back}"


def stopped_brokers(steps: Iterable[ApplyStep], before: Iterable[str] = ()) -> list[str]:
    """The brokers that are stopped after some steps.

    Args:
        steps: the steps that are done.
        before: the brokers that were stopped before them.

    Examples:
        >>> stopped_brokers([ApplyStep("stop", ("rome",)), ApplyStep("start", ("oslo",))], ["oslo"])
        ['rome']
    """
    found = dict.fromkeys(before)
    for step in steps:
        if step.action == "stop":
            found |= dict.fromkeys(step.brokers)
        elif step.action == "start":
            for broker in step.brokers:
                found.pop(broker, None)
    return list(found)


def change_counts(
    steps: Sequence[ApplyStep], first: int, journal: ChangeJournal, back: bool
) -> dict[str, Any]:
    """The counts of a change of which the first steps were done before."""
    return {
        "steps": len(steps),
        "taken": len(steps) - first,
        "restarts": [step.brokers[0] for step in steps if step.action == "start"],
        "returned": journal.returned,
        "seconds_down": {},
        "rolled_back": back,
        "already_applied": False,
    }


def is_applied(change: DeploymentChange, journal: ChangeJournal, back: bool) -> bool:
    """Whether a change is complete already; otherwise it can begin or go on.

    Raises:
        InputError: another change is under way, there is nothing to go back from, or the last change has led
            to other links than the old ones.
    """
    if journal.digest is None:
        if back:
            raise InputError(
                "no change is under way, so there is nothing to roll back; to return from a complete change, "
                "apply the old plan: broadloom deploy apply NEW OLD"
            )
        return _leads_nowhere(change, journal)
    if journal.digest != change.digest():
        pairs = list(zip(change.states(), journal.sides, strict=False))
        if pairs and all(own.links == begun.links for own, begun in pairs):
            what = next(filter(None, (own.differing_access(begun) for own, begun in pairs)), "a broker")
            raise InputError(
                f"the fleet file has changed since this change began ({what}), and the plans have not; undo "
                "that until the change is complete or rolled back"
            )
        raise InputError(
            "another change of this fleet is unfinished; finish it with its own two plans and the same "
            "--messages, --publishers, --least, --slack and --qos, or go back with them and --roll-back"
        )
    if journal.is_going_back and not back:
        raise InputError("the change is being rolled back; continue with --roll-back")
    return False


def _leads_nowhere(change: DeploymentChange, journal: ChangeJournal) -> bool:
    """Whether the last complete change has led to the new deployment, and not to the old one."""
    old, new = change.states()
    if journal.applied is None or journal.applied.links == old.links:
        return False
    if journal.applied == new:
        return True
    if journal.applied.links == new.links:
        what = journal.applied.differing_access(new) or "its brokers"
        raise InputError(
            f"the links of the new plan are applied already, but the fleet file has changed since ({what}); "
            "to take that to the brokers, install the files of `deploy export` by hand"
        )
    raise InputError(
        "the last change of this fleet has led to other links than those of the old plan; give the plan in "
        "use first, with the same --messages, --publishers, --least, --slack and --qos, or remove the "
        "journal (fleet.apply, next to fleet.toml) if links were changed by hand since"
    )


def access_note(change: DeploymentChange, journal: ChangeJournal) -> list[str]:
    """A line if the fleet file has changed since the last complete change."""
    old = deployed_state(change.old)
    if journal.digest is not None or journal.applied is None or journal.applied.links != old.links:
        return []
    what = journal.applied.differing_access(old)
    if not what:
        return []
    return [
        f"the fleet file has changed since the last change ({what}): brokers whose links stay as they are do "
        "not get that; install their files of `deploy export` by hand"
    ]


def begin_change(
    change: DeploymentChange, steps: Sequence[ApplyStep], journal: ChangeJournal, back: bool
) -> None:
    """Write the steps of a change, or those back, to the journal, unless they are there already."""
    if journal.digest is None:
        journal.begin(change, steps)
    elif back and not journal.is_going_back:
        journal.begin(change, change.back_steps(journal.steps, journal.done), back=True)


def _watch_again(change: DeploymentChange, control: BrokerControl, journal: ChangeJournal) -> None:
    """Go on recording what arrives at brokers that run, if the batch that goes on had begun to."""
    taken, following = journal.steps[: journal.done], journal.steps[journal.done]
    begun = next((step for step in reversed(taken) if step.action in ("watch", "wait")), None)
    if begun is None or begun.action == "wait":
        return
    stopped = stopped_brokers(taken, journal.stopped)
    if following.action == "stop":  # it can have stopped already
        stopped += following.brokers
    for broker, filters in change.watched(begun).items():
        if broker not in stopped:
            control.watch(broker, filters)
    control.record()


def _take_recorded(
    step: ApplyStep, change: DeploymentChange, control: BrokerControl, journal: ChangeJournal
) -> None:
    """Take one step, and keep what was recorded meanwhile, also if it fails or is interrupted."""
    try:
        _take(step, change, control, journal)
    except BaseException:
        with suppress(StorageError):  # the first error is the one to report
            journal.keep_seen(control.recorded())
        raise
    journal.keep_seen(control.recorded())


def _take(step: ApplyStep, change: DeploymentChange, control: BrokerControl, journal: ChangeJournal) -> None:
    """Take one step."""
    if step.action == "end":
        _at_once(lambda session: control.drain(session, partial(journal.keep, session.client)), step.sessions)
    elif step.action == "watch":
        _check_recorded(journal)
        watched = change.watched(step)
        journal.watch(watched)
        for broker, filters in watched.items():
            control.watch(broker, filters)
        control.record()
    elif step.action in ("open", "close"):
        _at_once(lambda session: control.update(step.action, session), step.sessions)
    elif step.action == "return":
        journal.forget_kept(_return_messages(change, step, control, journal))
        _end_watches(control, journal)
    elif step.action == "wait":
        control.wait(change.links_of(step))
    elif step.action == "install":
        control.install(step.brokers[0], step.side)
    else:
        getattr(control, step.action)(step.brokers[0])


def _check_recorded(journal: ChangeJournal) -> None:
    """Raise before a batch if a change keeps too many messages; the way back is always free."""
    size = sum(len(one.payload) for messages in journal.seen.values() for one in messages)
    if size > MOST_RECORDED and not journal.is_going_back:
        raise StorageError(
            f"the change has recorded messages of {size:,} bytes, more than {MOST_RECORDED:,}; change fewer "
            "brokers at a time, or when less is published"
        )


def _at_once(work: Callable[[LinkSession], None], sessions: Sequence[LinkSession]) -> None:
    """Do the same to several sessions, at the same time."""
    with ThreadPoolExecutor(MOST_SESSIONS) as pool:
        for _ in pool.map(work, sessions):
            pass


def _end_watches(control: BrokerControl, journal: ChangeJournal) -> None:
    """End all sessions that watch, also those that a killed process has left."""
    for broker in journal.watched:
        control.end_watch(broker)
    journal.unwatched()


def _return_messages(
    change: DeploymentChange, step: ApplyStep, control: BrokerControl, journal: ChangeJournal
) -> int:
    """Publish the messages that some broker lacks, each at such a broker; returns their number.

    These are the kept messages, and those that were seen at some broker before others stopped. All links are
    up by now, so what waits in the sessions of new links arrives.
    """
    wiring = change.wiring_of(step)
    kept: Counter[Message] = Counter()
    for messages in journal.kept.values():
        kept |= _counts(messages)  # several sessions can have had the same message
    journal.keep_seen(control.recorded())
    seen: Counter[Message] = Counter()
    for recorded in journal.seen.values():
        seen |= _counts(recorded)
    retained = _retained([*journal.kept.values(), *journal.seen.values()])
    wanted = defaultdict[str, list[Message]](list)
    for message, count in (kept | seen).items():
        topic = message[0]
        brokers = wiring.wanting(topic)
        if message not in kept:  # a broker that joins does not miss what was published before
            brokers = brokers & change.old.wiring.wanting(topic) & change.new.wiring.wanting(topic)
        for broker in brokers:
            earlier = journal.seen_earlier.get(broker, Counter())[message]
            wanted[broker] += max(count - earlier, 0) * [message]
    end = time.monotonic() + ARRIVAL_SECONDS
    lacking: dict[str, Counter[Message]] = {
        broker: Counter(control.missing(broker, messages, max(0.0, end - time.monotonic())))
        for broker, messages in sorted(wanted.items())
        if messages
    }
    published = 0
    for message in kept | seen:
        count, broker = max(((found[message], name) for name, found in lacking.items()), default=(0, ""))
        if count:
            control.publish(broker, count * [HeldMessage(*message, message in retained)])
            published += count
    return published
