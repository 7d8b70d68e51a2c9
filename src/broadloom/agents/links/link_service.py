"""Service of the link agent: following plans, endpoints from settings, and metrics over HTTP."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from broadloom.agents.links.link_agent import LinkAgent
from broadloom.agents.links.plan_sources import PlanSource
from broadloom.agents.links.tree_changes import target_hops
from broadloom.agents.monitoring import CONTENT_TYPE, Family, exposition, labels
from broadloom.checks import check_count
from broadloom.deployment import Fleet, Settings
from broadloom.deployment.targets.mosquitto_bridges import broker_address
from broadloom.errors import InputError
from broadloom.model import Publishers, publishers_among
from broadloom.mqtt.client_session import TASK_FAILED
from broadloom.mqtt.endpoint import Endpoint, login_from_environment, tls_context
from broadloom.mqtt.packets import LAST_ID
from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.live")
POLL_SECONDS = 0.1
AUTHORITY, CERTIFICATE, KEY = "ca.crt", "agent.crt", "agent.key"
HOST = "127.0.0.1"
_HOP_COUNTS = {
    "messages": "forwarded messages",
    "bytes": "bytes of forwarded messages",
    "dropped": "messages of QoS 0 dropped because the far broker was absent or too slow",
    "refused": "messages that the far broker refused",
}


class LinkRun:
    """A link agent that follows a source of plans.

    Args:
        agent: the agent.
        source: the source of plans.
        publishers: where clients publish; None: as each plan says.
        least: trees of least "latency" or "weight".
        slack: as for `plan_trees`.

    Attributes:
        plans: number of plans received.
        refused: whether the last plan could not be followed, so that the links are unchanged.
    """

    def __init__(
        self,
        agent: LinkAgent,
        source: PlanSource,
        publishers: Publishers | None = None,
        least: str = "latency",
        slack: float = 0.1,
    ) -> None:
        self.agent = agent
        self._source = source
        self._publishers = publishers
        self._least = least
        self._slack = slack
        self._stop = asyncio.Event()
        self.plans = 0
        self.refused = False

    def stop(self) -> None:
        """Make `follow` return."""
        self._stop.set()

    async def follow(self) -> None:
        """Hold links, and change them with each new plan, until `stop` is called."""
        while not self._stop.is_set():
            plan = await self._poll()
            if plan is not None:
                await self._follow_plan(plan)
                self.plans += 1
            try:
                await asyncio.wait_for(self._stop.wait(), POLL_SECONDS)
            except TimeoutError:
                continue

    async def _poll(self) -> Plan | None:
        try:
            return await asyncio.to_thread(self._source.poll)
        except (InputError, OSError) as error:
            LOG.error("the next plan cannot be read: %s", error)
            return None

    async def _follow_plan(self, plan: Plan) -> None:
        since = asyncio.get_running_loop().time()
        if self._publishers is not None:
            plan = replace(plan, publishers=publishers_among(self._publishers, plan.interest.node_ids))
        before = {filters: group.target for filters, group in self.agent.groups.items()}
        try:
            wanted = await asyncio.to_thread(target_hops, plan, None, before, self._least, self._slack)
            self.agent.check_addresses(wanted)
            self.refused = False
        except InputError as error:
            self.agent.counts["plans_refused"] += 1
            self.refused = True
            LOG.error("a plan is refused: %s", error)
            if not before:
                raise  # without an earlier plan there are no links to hold
            return
        self.agent.retarget(wanted, since)


async def serve_links(
    run: LinkRun, metrics: int | None = None, ready: Callable[[], None] = lambda: None
) -> None:
    """Run until SIGTERM or SIGINT, then finish the messages in flight and disconnect.

    Args:
        run: the link agent and its source of plans.
        metrics: the port for metrics on loopback; None: no metrics.
        ready: called when the links of the first plan are up.
    """
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        if sys.platform == "win32":
            signal.signal(name, lambda *_: loop.call_soon_threadsafe(run.stop))
        else:
            loop.add_signal_handler(name, run.stop)
    await run_links(run, metrics, ready)


async def run_links(
    run: LinkRun,
    metrics: int | None = None,
    ready: Callable[[], None] = lambda: None,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Run until `run.stop` is called; `started` is called when the agent has started. See `serve_links`."""
    server = None if metrics is None else await serve_metrics(run.agent, metrics)
    await run.agent.start()
    started()
    reporting = asyncio.create_task(_call_when_up(run, ready))
    try:
        await _until_failure(run.follow())
    finally:
        reporting.cancel()
        await run.agent.stop()
        if server is not None:
            server.close()


async def take_down_links(agent: LinkAgent) -> None:
    """Take down all links of an earlier agent, after forwarding the messages in their queues."""
    await agent.start()
    agent.retarget({})
    try:
        await _until_failure(agent.settled())
    finally:
        await agent.stop()


def link_summary(agent: LinkAgent) -> dict[str, Any]:
    """Counts of an agent's work, as JSON values."""
    forwarders = [forwarder for link in agent.links.values() for forwarder in link.forwarders.values()]
    names = ("messages", "bytes", "dropped", "refused")
    spread = {
        f"seconds_p{part}": float(np.percentile(agent.seconds, part)) for part in (50, 99) if agent.seconds
    }
    return (
        {"links": len(agent.links), "groups": len(agent.groups), "changes": agent.counts["changes"]}
        | {name: sum(forwarder.counts[name] for forwarder in forwarders) for name in names}
        | spread
    )


async def _call_when_up(run: LinkRun, ready: Callable[[], None]) -> None:
    while not (run.plans and run.agent.is_up()):
        await asyncio.sleep(POLL_SECONDS)
    ready()


async def _until_failure(work: Coroutine[None, None, None]) -> None:
    """Await some work; raise the error of a task of the agent that fails, or links would stop silently."""
    failed = asyncio.get_running_loop().create_future()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if context["message"] == TASK_FAILED and not failed.done():
            failed.set_exception(context["exception"])

    asyncio.get_running_loop().set_exception_handler(handle)
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({working, failed}, return_when=asyncio.FIRST_COMPLETED)
        await (failed if failed.done() else working)
    finally:
        working.cancel()
        failed.cancel()


def settings_endpoints(settings: Settings, window: int = Endpoint.window) -> Callable[[str], Endpoint]:
    """The endpoints of brokers, from deployment settings.

    With TLS, `ca.crt` in the folder of certificates is trusted, and `agent.crt` and `agent.key` authenticate
    the agent, if they exist; without a folder the system's authorities are trusted.

    Args:
        settings: addresses, TLS, the folder of certificates, and whether to log in.
        window: maximum number of unacknowledged messages per link and direction.

    Raises:
        InputError: a certificate or the login is missing, or the window is out of range.

    Examples:
        >>> settings_endpoints(Settings(address="{broker}.example.org", tls=False))("rome").host
        'rome.example.org'
    """
    _check_window(window)
    tls = _tls_of(settings.certificates) if settings.tls else None
    login = login_from_environment() if settings.credentials else None
    if login is not None and tls is None:
        LOG.warning("the password is sent unencrypted, because TLS is off")

    def endpoint(broker: str) -> Endpoint:
        address = broker_address(settings, broker)
        return Endpoint(address.hostname, address.port, tls, login, window=window)

    return endpoint


def fleet_endpoints(fleet: Fleet, window: int = Endpoint.window) -> Callable[[str], Endpoint]:
    """The endpoints of the brokers of a fleet: each with its own address, TLS files and login.

    Args:
        fleet: the fleet.
        window: maximum number of unacknowledged messages per link and direction.

    Raises:
        InputError: the window is out of range; later, if a broker is not in the fleet or does not speak MQTT,
            or if a secret or a TLS file cannot be used.

    Examples:
        >>> from broadloom.deployment import FleetBroker
        >>> fleet_endpoints(Fleet([FleetBroker("rome", "10.0.0.7:1884", tls=None)]))("rome").port
        1884
    """
    _check_window(window)
    known: dict[str, Endpoint] = {}

    def endpoint(broker: str) -> Endpoint:
        if broker not in known:
            one = fleet.brokers.get(broker)
            if one is None:
                raise InputError(f"{fleet.path or 'the fleet'} has no broker {broker!r}; add it there")
            if one.kind == "nats":
                raise InputError(f"broker {broker!r} is a NATS server; the link agent needs MQTT 5 brokers")
            known[broker] = replace(one.endpoint(), window=window)
            if one.login is not None and one.tls is None:
                LOG.warning("the password of broker %r is sent unencrypted, because TLS is off", broker)
        return known[broker]

    return endpoint


def _check_window(window: int) -> None:
    if check_count(window, "window", minimum=1) > LAST_ID:
        raise InputError(f"window is {window:,}; give a whole number from 1 to {LAST_ID:,}")


def _tls_of(certificates: str | None) -> ssl.SSLContext:
    """The TLS context of a folder of certificates, or of the system's authorities."""
    if certificates is None:
        return tls_context()
    folder = Path(certificates)
    own = folder / CERTIFICATE
    pair = (str(own), str(folder / KEY)) if own.exists() else None
    return tls_context(str(folder / AUTHORITY), pair)


def link_metrics(agent: LinkAgent) -> str:
    """All metrics of an agent in Prometheus' text format."""
    return exposition("broadloom_live", _families(agent))


def _families(agent: LinkAgent) -> Iterator[Family]:
    forwarders = [
        (hop, forwarder)
        for link in agent.links.values()
        for hop, forwarder in sorted(link.forwarders.items())
    ]
    for name, meaning in _HOP_COUNTS.items():
        yield (
            f"{name}_total",
            "counter",
            meaning,
            [(_hop(hop), forwarder.counts[name]) for hop, forwarder in forwarders],
        )
    guarded = [(_hop(hop), agent.guarded[hop]) for hop, _ in forwarders]
    yield "guarded_total", "counter", "messages dropped because another hop carries them", guarded
    yield (
        "in_flight",
        "gauge",
        "messages in flight",
        [(_hop(hop), len(forwarder.in_flight)) for hop, forwarder in forwarders],
    )
    sessions = [session for link in agent.links.values() for session in link.sessions.values()]
    named = [(labels(broker=one.broker, client=one.client), one) for one in sessions]
    yield (
        "up",
        "gauge",
        "whether a session is connected",
        [(text, int(one.up.is_set())) for text, one in named],
    )
    connects = [(text, one.connects) for text, one in named]
    yield "connects_total", "counter", "connections that a session has had", connects
    yield "groups", "gauge", "groups of filters with links", [("", len(agent.groups))]
    moving = sum(not group.settled for group in agent.groups.values())
    yield "moving", "gauge", "groups of filters whose links are being changed", [("", moving)]
    for name, meaning in _COUNTS.items():
        yield f"{name}_total", "counter", meaning, [("", agent.counts[name])]
    durations = sorted(agent.seconds)
    spread = [(labels(quantile=part), _quantile(durations, float(part))) for part in ("0.5", "0.99")]
    yield (
        "change_seconds",
        "gauge",
        "seconds from a new plan until all links are changed",
        spread if durations else [],
    )


_COUNTS = {
    "changes": "completed changes",
    "barriers_given_up": "barriers that did not wait for a broker that was absent or refused probes",
    "probes_refused": "probes that a broker refused, for which changes do not wait",
    "plans_refused": "refused plans",
}


def _quantile(values: list[float], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def _hop(hop: tuple[str, str]) -> str:
    return labels(start=hop[0], end=hop[1])


async def serve_metrics(agent: LinkAgent, port: int) -> asyncio.Server:
    """Serve the metrics over HTTP on loopback.

    Raises:
        InputError: the port is not available.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                request = await reader.readuntil(b"\r\n\r\n")
                good = request.startswith((b"GET /metrics ", b"GET / "))
                body = link_metrics(agent).encode() if good else b"not found; GET /metrics\n"
                status = b"200 OK" if good else b"404 Not Found"
                head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\n" % (status, CONTENT_TYPE.encode())
                writer.write(head + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is gone, or does not send an HTTP request
        finally:
            writer.close()

    try:
        return await asyncio.start_server(answer, HOST, port)
    except OSError as error:
        raise InputError(
            f"metrics cannot listen on {HOST}:{port}: {error.strerror}; give another port"
        ) from error
