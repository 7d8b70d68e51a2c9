"""Checks of a running fleet before its links are planned: `doctor()` and `broadloom doctor`."""

from __future__ import annotations

import asyncio
import contextvars
import re
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from broadloom.checks import check_flag, check_path
from broadloom.deployment import Fleet, FleetBroker, api_url
from broadloom.discovery.admin_apis import ApiFacts, read_api
from broadloom.discovery.broker_probes import GOOD_QUEUE, MqttProbe
from broadloom.discovery.doctor_report import ADVICE, MUST_CHANGE, NOT_SEEN, OK, DoctorReport, Finding
from broadloom.discovery.existing_links import (
    ExistingLink,
    link_findings,
    links_of_client_ids,
    without_repeats,
)
from broadloom.discovery.mosquitto_config import MosquittoConfig, read_mosquitto_config
from broadloom.discovery.nats_probe import NatsProbe
from broadloom.errors import BroadloomError
from broadloom.mqtt.endpoint import Address
from broadloom.progress import stage

RESOLVE_SECONDS = 3.0
AT_ONCE = 64  # brokers; each takes a few sockets
DATABASE_MAGIC = b"\x00\xb5\x00mosquitto db"
AUTOSAVE_SECONDS = 1_800  # Mosquitto's default
LONGEST_AUTOSAVE = 300
LEAST_INFLIGHT = 20  # Mosquitto's default
LOG_WAIT_SECONDS = 1.0
_SEE_BRIDGES = 'topic read $SYS/# in acl_file, or config = "...mosquitto.conf" in fleet.toml'
_SEE_API = 'subscriptions = "http://..." in fleet.toml: the admin API'
_Places = frozenset[tuple[str, int]]


def doctor(fleet: Fleet | str | Path, deliver: bool = False) -> DoctorReport:
    """Check the brokers of a fleet: connect to each, and report what was found and which settings to change.

    The checks: reachability, TLS, login, MQTT 5, rights (tried, not guessed), limits, queue, clock,
    persistence, and existing bridges. They change nothing, and no client sees a message, unless `deliver`.

    Args:
        fleet: the fleet, or the path of its file.
        deliver: whether to send one real message per filter that links carry, to try the right to read;
            clients that subscribe to all topics see it.

    Raises:
        InputError: `fleet` is not a fleet, or its file is wrong.
        StorageError: the file cannot be read.

    Examples:
        >>> import broadloom as bl
        >>> from broadloom.deployment import FleetBroker
        >>> report = bl.doctor(bl.Fleet([FleetBroker("rome", "127.0.0.1:1", tls=None)]))
        >>> [(one.check, one.verdict) for one in report.findings if one.broker == "rome"]
        [('reach', 'must change')]
    """
    known = fleet if isinstance(fleet, Fleet) else Fleet.load(check_path(fleet, "fleet"))
    check_flag(deliver, "deliver")
    return _run(lambda: _examine(known, deliver))


def _run(work: Callable[[], Coroutine[Any, Any, DoctorReport]]) -> DoctorReport:
    """Run a coroutine to its end, in a thread of its own if this one has an event loop, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work())
    context = contextvars.copy_context()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(context.run, lambda: asyncio.run(work())).result()


@dataclass
class _BrokerFacts:
    """What was found out about one broker.

    Attributes:
        findings: the findings.
        seen: the client ids of its bridges; None: they cannot be seen.
        config: its configuration file, if the fleet names it.
        api: what its admin API says.
        places: the addresses that its name stands for.
        is_up: whether a login succeeded.
        is_mosquitto: whether its kind is mosquitto.
    """

    is_mosquitto: bool
    findings: list[Finding] = field(default_factory=list)
    seen: list[str] | None = None
    config: MosquittoConfig | None = None
    api: ApiFacts = field(default_factory=ApiFacts)
    places: _Places = frozenset()
    is_up: bool = False


async def _examine(fleet: Fleet, deliver: bool) -> DoctorReport:
    """Check all brokers at the same time, then the fleet."""
    with stage("brokers", len(fleet.brokers)) as done:
        count = 0
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(broker: FleetBroker) -> _BrokerFacts:
            nonlocal count
            async with turn:
                found = await _examine_broker(broker, fleet.links.carry, deliver)
            count += 1
            done(count)
            return found

        facts = await asyncio.gather(*map(one, fleet.brokers.values()))
    by_name = dict(zip(fleet.brokers, facts, strict=True))
    findings = [finding for one in facts for finding in one.findings]
    return DoctorReport(findings + await _examine_links(by_name))


async def _examine_broker(broker: FleetBroker, carry: tuple[str, ...], deliver: bool) -> _BrokerFacts:
    facts = _BrokerFacts(broker.kind == "mosquitto", places=await _resolve(broker.host_and_port()))
    if broker.kind == "nats":
        nats = NatsProbe(broker, carry, deliver)
        await nats.run()
        facts.findings += nats.findings
        facts.is_up = nats.is_up
    else:
        probe = MqttProbe(broker, carry, deliver)
        await probe.run()
        facts.seen = probe.bridges
        facts.is_up = probe.is_up
        if broker.kind == "mosquitto":
            await asyncio.to_thread(_read_mosquitto, broker, facts, probe)
        facts.findings = probe.findings
    if api_url(broker) is not None and broker.kind != "mosquitto":
        facts.api = await read_api(broker)
        facts.findings += facts.api.findings
        facts.places |= {(host, port) for host, _ in facts.places for port in facts.api.ports}
    elif broker.kind != "mosquitto":
        setting = 'subscriptions = "http://..." in fleet.toml'
        facts.findings.append(
            Finding(
                broker.name, "api", ADVICE, "the fleet file does not name the broker's admin API", setting
            )
        )
    if facts.is_up and not any(one.check == "clock" for one in facts.findings):
        _judge_other_clock(broker, facts)
    return facts


def _judge_other_clock(broker: FleetBroker, facts: _BrokerFacts) -> None:
    """Compare the clocks by the admin API, or say that the clock cannot be seen."""
    if facts.api.skew is not None:
        judge = MqttProbe(broker, (), deliver=False)
        judge.judge_clock(facts.api.skew, "its admin API")
        facts.findings += judge.findings
        return
    setting = (
        "log_dest topic in mosquitto.conf" if broker.kind == "mosquitto" else "subscriptions in fleet.toml"
    )
    facts.findings.append(Finding(broker.name, "clock", NOT_SEEN, "the clock cannot be seen", setting))


# Files of Mosquitto on this machine.


def _read_mosquitto(broker: FleetBroker, facts: _BrokerFacts, probe: MqttProbe) -> None:
    """Look at the files that the fleet file names: configuration, persistence file, log."""
    logs: list[Path] = []
    if broker.config is not None:
        try:
            facts.config = read_mosquitto_config(broker.config)
        except BroadloomError as error:
            probe.add("config", MUST_CHANGE, str(error), "config in fleet.toml")
    if facts.config is not None:
        logs += _judge_config(facts.config, probe)
    elif broker.subscriptions is None and probe.is_up:
        setting = 'config = "/etc/mosquitto/mosquitto.conf" in fleet.toml, if it is on this machine'
        probe.add("persistence", NOT_SEEN, "persistence cannot be seen", setting)
    for source in broker.subscription_sources():
        if "://" in source:
            found = f"mosquitto has no admin API, but subscriptions is {source}"
            probe.add("subscriptions", MUST_CHANGE, found, "the path of mosquitto.db or a log in fleet.toml")
        else:
            logs += _judge_source(Path(source), probe, facts.config)
    if broker.subscriptions is None and probe.is_up:
        setting = 'subscriptions = "/var/log/mosquitto/mosquitto.log" in fleet.toml, or mosquitto.db, or both'
        found = "discover and agents cannot see subscriptions from before their start"
        if probe.hides_subscriptions:
            lines = "log_dest topic, log_type subscribe, log_type unsubscribe, log_type notice"
            setting = f"{setting}; or {lines}, a line each, in mosquitto.conf"
            found = "discover and agents cannot see subscriptions"
        probe.add("subscriptions", ADVICE, found, setting)
    if probe.is_up and logs and not any(one.check == "clock" for one in probe.findings):
        end = time.monotonic() + LOG_WAIT_SECONDS  # the broker can write its log with a delay
        while not any(probe.read_clock_from_log(log) for log in logs) and time.monotonic() < end:
            time.sleep(0.05)


def _judge_config(config: MosquittoConfig, probe: MqttProbe) -> list[Path]:
    """Judge the settings in mosquitto.conf; returns its log files."""
    where = f"in {config.path}"
    _judge_persistence(config, probe)
    expiry = config.last("persistent_client_expiration", "")
    if expiry[:-1].isdecimal() and expiry.endswith("h") and int(expiry[:-1]) < 24:
        found = f"sessions of absent clients end after {expiry}; links ask for a day"
        probe.add("session expiry", ADVICE, found, f"persistent_client_expiration 14d {where}")
    limit = config.last("max_queued_messages", "1000")
    if (
        limit.isdecimal()
        and 0 < int(limit) < 1_000
        and not any(one.check == "queue" for one in probe.findings)
    ):
        found = f"only {limit} messages are kept for an absent client or link"
        probe.add("queue", MUST_CHANGE, found, f"{GOOD_QUEUE} {where}")
    unfinished = config.last("max_inflight_messages", str(LEAST_INFLIGHT))
    if unfinished.isdecimal() and 0 < int(unfinished) < LEAST_INFLIGHT:
        found = f"a link has at most {unfinished} unfinished messages, so it is slow over long distances"
        probe.add("limits", ADVICE, found, f"max_inflight_messages 200 {where}")
    if config.last("allow_duplicate_messages", _duplicates_by_default(probe.version)) == "true":
        found = "a link whose topic filters overlap brings a message once per filter"
        probe.add("limits", ADVICE, found, f"allow_duplicate_messages false {where}")
    is_known = any(one.check == "login" and one.verdict == ADVICE for one in probe.findings)
    if config.last("allow_anonymous", "false") == "true" and not is_known:
        probe.add("anonymous", ADVICE, "allow_anonymous is true", f"allow_anonymous false {where}")
    # Mosquitto reads only the first type of a line.
    kinds = {value.partition(" ")[0] for value in config.options.get("log_type", [])}
    if not ({"subscribe", "unsubscribe", "notice"} <= kinds or "all" in kinds):
        found = "subscriptions are not logged, so discover cannot read them there"
        lacking = ["notice", "subscribe", "unsubscribe"]
        if not kinds:  # the first log_type replaces the default ones
            lacking = ["error", "warning", "information", *lacking]
        lines = ", ".join(f"log_type {kind}" for kind in lacking if kind not in kinds)
        setting = f"{lines}, a line each, {where}"
        probe.add("log", ADVICE, found, setting)
    files = [value.removeprefix("file").strip() for value in config.options.get("log_dest", [])]
    return [Path(file) for file in files if file.startswith("/")]


def _duplicates_by_default(version: str) -> str:
    """The default of `allow_duplicate_messages`: Mosquitto 2.1 has changed it.

    Examples:
        >>> [_duplicates_by_default(f"mosquitto version {one}") for one in ("2.0.11", "2.1.2", "10.0")]
        ['false', 'true', 'true']
    """
    found = re.search(r"(\d+)\.(\d+)", version)
    return "true" if found and (int(found[1]), int(found[2])) >= (2, 1) else "false"


def _judge_persistence(config: MosquittoConfig, probe: MqttProbe) -> None:
    """Judge what a restart or a crash of the broker keeps of what waits for clients and links."""
    where = f"in {config.path}"
    if config.last("persistence", "false") != "true":
        found = "sessions and queues are lost at a restart, with what waits for links"
        probe.add("persistence", ADVICE, found, f"persistence true {where}")
        return
    interval = config.last("autosave_interval", str(AUTOSAVE_SECONDS))
    seconds = int(interval) if interval.isdecimal() else AUTOSAVE_SECONDS
    on_changes = config.last("autosave_on_changes", "false") == "true"
    if on_changes or 0 < seconds <= LONGEST_AUTOSAVE:
        each = f"{seconds:,} changes" if on_changes else f"{seconds:,} s"
        probe.add("persistence", OK, f"sessions and queues are saved every {each}")
        return
    often = f"every {seconds:,} s" if seconds else "when it stops"
    found = f"sessions and queues are saved {often}: a crash loses what waited for links since then"
    probe.add("persistence", ADVICE, found, f"autosave_interval 60 {where}")


def _judge_source(path: Path, probe: MqttProbe, config: MosquittoConfig | None) -> list[Path]:
    """Judge the file of subscriptions; returns it if it is a log."""
    try:
        with path.open("rb") as file:
            head = file.read(len(DATABASE_MAGIC))
        age = max(time.time() - path.stat().st_mtime, 0)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        setting = "subscriptions in fleet.toml, or the right to read the file"
        if isinstance(error, FileNotFoundError):
            setting = (
                "persistence true in mosquitto.conf (kill -USR1 saves at once), or another file in fleet.toml"
            )
        probe.add("subscriptions", MUST_CHANGE, f"{path} cannot be read: {reason}", setting)
        return []
    if not head.startswith(DATABASE_MAGIC):
        probe.add("subscriptions", OK, f"{path} is a log")
        return [path]
    found = f"{path} was saved {age:,.0f} s ago"
    interval = config.last("autosave_interval", str(AUTOSAVE_SECONDS)) if config else str(AUTOSAVE_SECONDS)
    limit = int(interval) if interval.isdecimal() and int(interval) else AUTOSAVE_SECONDS
    if age > 2 * limit:
        probe.add(
            "subscriptions",
            ADVICE,
            f"{found}, and can be out of date",
            "autosave_interval 60 in mosquitto.conf",
        )
    else:
        probe.add("subscriptions", OK, found)
    return []


# Links that exist already.


async def _examine_links(facts: dict[str, _BrokerFacts]) -> list[Finding]:
    """Find the links between brokers from all sources."""
    configured = [
        link for broker, one in facts.items() for link in await _configured_links(broker, one, facts)
    ]
    seen = links_of_client_ids({broker: one.seen for broker, one in facts.items() if one.seen is not None})
    links = without_repeats(seen, configured) + await _api_links(facts)
    unseen = {
        broker: _SEE_BRIDGES if one.is_mosquitto else _SEE_API
        for broker, one in facts.items()
        if one.is_up and one.seen is None and one.config is None and not one.api.answered
    }
    return link_findings(links, unseen) if any(one.is_up for one in facts.values()) or links else []


async def _api_links(facts: dict[str, _BrokerFacts]) -> list[ExistingLink]:
    """The links in admin APIs, each once although both ends can report it."""
    pairs: dict[tuple[frozenset[str], str], ExistingLink] = {}
    unknown: list[ExistingLink] = []
    for broker, one in facts.items():
        for entry in one.api.links:
            peer = await _peer(entry.peer, broker, facts, entry.any_port)
            if peer is None:
                unknown.append(entry.link)
            else:
                pairs.setdefault(
                    (frozenset((broker, peer)), entry.link.source), replace(entry.link, peer=peer)
                )
    for link in pairs.values():  # the end that accepts a link sees only a port that changes
        other = next((one for one in unknown if one.broker == link.peer and one.source == link.source), None)
        if other is not None:
            unknown.remove(other)
    return [*pairs.values(), *unknown]


async def _configured_links(
    broker: str, own: _BrokerFacts, facts: dict[str, _BrokerFacts]
) -> list[ExistingLink]:
    """The bridges in a broker's configuration file."""
    links = []
    for bridge in own.config.bridges if own.config is not None else ():
        peers = [await _peer(address, broker, facts) for address in bridge.addresses]
        peer = next((name for name in peers if name is not None), None)
        remedy = f"remove `connection {bridge.name}` from {bridge.file}"
        name = bridge.client or bridge.name
        links.append(ExistingLink(name, broker, peer, bridge.file, remedy, tuple(bridge.filters)))
    return links


async def _peer(
    peer: str | Address, broker: str, facts: dict[str, _BrokerFacts], any_port: bool = False
) -> str | None:
    """The broker of the fleet that a name or an address stands for; None: none, or several.

    Args:
        peer: the name or the address.
        broker: the broker that names it.
        facts: what is known about all brokers.
        any_port: whether the port can be that of another protocol on the same machine.
    """
    others = {name: one for name, one in facts.items() if name != broker}
    if isinstance(peer, str):
        return next((name for name, one in others.items() if peer and peer in one.api.names), None)
    places = await _resolve(peer)
    same = [name for name, one in others.items() if one.places & places]
    if not same and any_port:
        hosts = {host for host, _ in places}
        same = [name for name, one in others.items() if hosts & {host for host, _ in one.places}]
    return same[0] if len(same) == 1 else None


async def _resolve(address: Address) -> _Places:
    """The IP addresses and ports of an address; empty if its name cannot be resolved."""
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(address.hostname, address.port)
    except (OSError, TimeoutError, UnicodeError):
        return frozenset()
    return frozenset((str(entry[4][0]), int(entry[4][1])) for entry in found)
