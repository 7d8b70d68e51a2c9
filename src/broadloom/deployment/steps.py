"""From one export to another: which files differ, who restarts, and what an operator does, in order.

What a broker can change while it runs, as tried on real ones: RabbitMQ everything, by its HTTP API; mosquitto
no bridge, so that the broker that owns a link restarts, and sessions queue meanwhile; NATS no leaf link, and
it keeps nothing for a link that is away.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import unified_diff
from typing import Any, NamedTuple

from broadloom.deployment.diff import Batch, Session, order
from broadloom.deployment.settings import Settings
from broadloom.deployment.targets import nats, rabbitmq
from broadloom.deployment.targets.mosquitto import PORT, TLS_PORT
from broadloom.deployment.wiring import Wiring
from broadloom.errors import InputError

Step = dict[str, Any]


class Deployment(NamedTuple):
    """An export, and what it is made of.

    Attributes:
        wiring: how brokers are linked.
        settings: where they are, and how links prove themselves.
        files: the file of each broker, by name, in the order of the brokers.
    """

    wiring: Wiring
    settings: Settings
    files: dict[str, str]

    def texts(self) -> dict[str, str]:
        """The text of each broker's file, by broker."""
        return dict(zip(self.wiring.brokers, self.files.values(), strict=True))


def differing_files(old: Deployment, new: Deployment) -> list[dict[str, Any]]:
    """The files that are not the same, with the lines that go and come."""
    found = []
    names = {
        name: broker for one in (old, new) for broker, name in zip(one.wiring.brokers, one.files, strict=True)
    }
    for name, broker in sorted(names.items()):
        before, after = (one.files.get(name) for one in (old, new))
        if before != after:
            lines = unified_diff((before or "").splitlines(), (after or "").splitlines(), n=0, lineterm="")
            change = "new" if before is None else "gone" if after is None else "changed"
            kept = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
            found.append({"broker": broker, "file": name, "change": change, "lines": kept})
    return found


def restarting(old: Deployment, new: Deployment) -> list[str]:
    """The brokers of both that must read their file anew: more than comments differs in it.

    Examples:
        >>> both = Wiring(("a", "b"), {}, {}, ())
        >>> one = Deployment(both, Settings(), {"a": "address b:1", "b": "# found by a"})
        >>> two = Deployment(both, Settings(), {"a": "address b:2", "b": "# forgotten by a"})
        >>> restarting(one, two)
        ['a']
    """
    before, after = old.texts(), new.texts()
    return [
        broker
        for broker in new.wiring.brokers
        if broker in before and _said(before[broker]) != _said(after[broker])
    ]


def _said(text: str) -> list[str]:
    """The lines of a file without comments."""
    return [line.split("  # ")[0] for line in text.splitlines() if not line.startswith("#")]


def mosquitto_steps(old: Deployment, new: Deployment, at_once: bool) -> list[Step]:
    """Batches of brokers that restart, with the commands that keep what is published meanwhile."""
    batches = order(old.wiring, new.wiring, at_once, restarting(old, new))
    return [batch.record() | {"commands": list(_commands(batch, old, new))} for batch in batches]


def _commands(batch: Batch, old: Deployment, new: Deployment) -> Iterator[str]:
    """What an operator runs for a batch, a line each; what is up to the broker's own machine as a comment."""
    file_of = dict(zip(new.wiring.brokers, new.files, strict=True))
    for what, broker, session in batch.acts():
        if session is not None:
            there = new if broker in file_of else old
            yield session_command(session, what, there.settings)
        elif what == "start":
            yield f"# start {broker} " + (f"with {file_of[broker]}" if broker in file_of else "without links")
        else:
            yield f"# stop {broker}"


def session_command(session: Session, how: str, settings: Settings) -> str:
    """The command that opens, closes or ends a session at a mosquitto broker.

    Examples:
        >>> session_command(Session("b", "r.broadloom-a:b", "a", ("x",)), "open", Settings(tls=False))
        'broadloom deploy session b:1883 r.broadloom-a:b --open=x --no-tls'
    """
    host, port = settings.place(session.broker, TLS_PORT if settings.tls else PORT)
    words = ["broadloom", "deploy", "session", f"{host}:{port}", session.client]
    words += ["--end"] if how == "end" else [f"--{how}={text}" for text in session.filters]
    words += [] if settings.tls else ["--no-tls"]
    words += ["--certificates", settings.certificates] if settings.tls and settings.certificates else []
    words += ["--credentials"] if settings.credentials else []
    words += ["--qos", str(settings.qos)] if how == "open" and settings.qos != 1 else []
    return shlex.join(words)


def rabbitmq_steps(old: Deployment, new: Deployment, at_once: bool) -> list[Step]:
    """All calls that add, at all brokers, and then all that remove; nothing restarts."""
    if at_once:
        raise InputError("RabbitMQ restarts no broker, so none can be restarted at once; leave it out")
    parts = rabbitmq.change(old.wiring, new.wiring, old.settings, new.settings)
    return [{"restart": [], "call": calls} for calls in parts if calls]


def nats_steps(old: Deployment, new: Deployment, at_once: bool) -> list[Step]:
    """Batches of brokers that restart, so that no account closes a ring; nothing is kept meanwhile.

    Those that others are to find come first, those that nobody looks for any more last. Where topics change
    accounts everybody restarts together.
    """
    everybody = restarting(old, new)
    moved = nats.moved_topics(old.wiring, new.wiring)
    if at_once or moved:
        return [{"restart": everybody, "accounts": moved}] if everybody or moved else []
    batches = [batch.brokers for batch in order(_by_account(old.wiring), _by_account(new.wiring))]
    linking = {broker for brokers in batches for broker in brokers}
    found = {link.peer for link in new.wiring.links}
    rest = [broker for broker in everybody if broker not in linking]
    first, last = ([broker for broker in rest if (broker in found) is early] for early in (True, False))
    return [{"restart": list(brokers), "accounts": {}} for brokers in (first, *batches, last) if brokers]


def _by_account(wiring: Wiring) -> Wiring:
    """The wiring as NATS sees it: a link carries accounts, both ways, and not topics."""
    account_of = nats.account_of(wiring)

    def accounts(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(sorted({account_of[text] for text in texts if text in account_of}))

    carried = [(link, accounts(link.out + link.into)) for link in wiring.links]
    links = tuple(link._replace(out=both, into=both) for link, both in carried)
    wants = {broker: accounts(texts) for broker, texts in wiring.wants.items()}
    return replace(wiring, wants=wants, publishes={}, links=links)
