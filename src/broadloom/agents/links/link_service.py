"""A run of the agent: it follows a source of plans until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from broadloom.agents.links.link_agent import LinkAgent
from broadloom.agents.links.plan_sources import PlanSource
from broadloom.agents.links.tree_changes import target_hops
from broadloom.agents.monitoring import KIND, Family, exposition, labels
from broadloom.checks import check_count
from broadloom.deployment.deployment_inputs import Publication, Settings
from broadloom.deployment.targets.mosquitto_bridges import PORT, TLS_PORT
from broadloom.errors import InputError
from broadloom.mqtt.client_session import PART_FAILED
from broadloom.mqtt.endpoint import Address, Endpoint, login_from_environment, tls_context
from broadloom.mqtt.packets import LAST_ID
from broadloom.plans import Plan

LOG = logging.getLogger("broadloom.live")
POLL_SECONDS = 0.1
AUTHORITY, CERTIFICATE, KEY = "ca.crt", "agent.crt", "agent.key"
HOST = "127.0.0.1"
_OF_A_HOP = {
    "messages": "messages carried",
    "bytes": "bytes of messages carried",
    "dropped": "messages of QoS 0 that the far broker did not take in time",
    "refused": "messages that the far broker refused",
}


class PublishedTopic(NamedTuple):
    """A broker, by its id, whose clients publish a topic."""

    broker: str
    topic: str
    rate: float = 0.0


class LinkRun:
    """An agent and what it follows.

    Args:
        agent: the agent.
        source: where plans come from.
        sent: who publishes what.
        least: trees of least "latency" or "weight".
        slack: as for `plan_trees`.

    Attributes:
        plans: how many plans have come.
        refused: whether the last one could not be followed, so that links are as they were.
    """

    def __init__(
        self,
        agent: LinkAgent,
        source: PlanSource,
        sent: Iterable[PublishedTopic] = (),
        least: str = "latency",
        slack: float = 0.1,
    ) -> None:
        self.agent, self._source, self._sent = agent, source, tuple(sent)
        self._least, self._slack = least, slack
        self._stop = asyncio.Event()
        self.plans, self.refused = 0, False

    def stop(self) -> None:
        """Let `follow` end."""
        self._stop.set()

    async def follow(self) -> None:
        """Hold links, and change them with each new plan, until `stop` is called."""
        while not self._stop.is_set():
            plan = await self._poll()
            if plan is not None:
                await self._aim(plan)
                self.plans += 1
            try:
                await asyncio.wait_for(self._stop.wait(), POLL_SECONDS)
            except TimeoutError:
                continue

    async def _poll(self) -> Plan | None:
        try:
            return await asyncio.to_thread(self._source.poll)
        except (InputError, OSError) as error:
            LOG.error("changes cannot be read: %s", error)
            return None

    async def _aim(self, plan: Plan) -> None:
        since = asyncio.get_running_loop().time()
        index = {broker: number for number, broker in enumerate(plan.interest.node_ids)}
        sent = [
            Publication(index[broker], topic, rate) for broker, topic, rate in self._sent if broker in index
        ]
        before = {filters: group.target for filters, group in self.agent.groups.items()}
        try:
            wanted = await asyncio.to_thread(target_hops, plan, sent, before, self._least, self._slack)
            self.agent.check_addresses(wanted)
            self.refused = False
        except InputError as error:
            self.agent.counts["plans_refused"] += 1
            self.refused = True
            LOG.error("a plan is not followed: %s", error)
            if not before:
                raise  # the first one: there is nothing to hold
            return
        self.agent.aim(wanted, since)


async def serve_links(
    run: LinkRun, metrics: int | None = None, ready: Callable[[], None] = lambda: None
) -> None:
    """LinkRun until SIGTERM or SIGINT, then finish what is on its way and disconnect.

    Args:
        run: the agent, and what it follows.
        metrics: the port of the numbers on loopback; None: none.
        ready: called when the links of the first plan are up.
    """
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, run.stop)
    await run_links(run, metrics, ready)


async def run_links(
    run: LinkRun,
    metrics: int | None = None,
    ready: Callable[[], None] = lambda: None,
    begun: Callable[[], None] = lambda: None,
) -> None:
    """As `serve_links`, until the run is told to stop; `begun` is called when all is ready to follow."""
    server = None if metrics is None else await serve_metrics(run.agent, metrics)
    await run.agent.start()
    begun()
    settled = asyncio.create_task(_tell(run, ready))
    try:
        await _while_whole(run.follow())
    finally:
        settled.cancel()
        await run.agent.stop()
        if server is not None:
            server.close()


async def take_down_links(agent: LinkAgent) -> None:
    """Take all links of an earlier agent down, with nothing left in their queues."""
    await agent.start()
    agent.aim({})
    try:
        await _while_whole(agent.settled())
    finally:
        await agent.stop()


def link_summary(agent: LinkAgent) -> dict[str, Any]:
    """What an agent has done."""
    lanes = [lane for link in agent.links.values() for lane in link.lanes.values()]
    names = ("messages", "bytes", "dropped", "refused")
    spread = {
        f"seconds_p{part}": float(np.percentile(agent.seconds, part)) for part in (50, 99) if agent.seconds
    }
    return (
        {"links": len(agent.links), "groups": len(agent.groups), "changes": agent.counts["changes"]}
        | {name: sum(lane.counts[name] for lane in lanes) for name in names}
        | spread
    )


async def _tell(run: LinkRun, ready: Callable[[], None]) -> None:
    while not (run.plans and run.agent.is_up()):
        await asyncio.sleep(POLL_SECONDS)
    ready()


async def _while_whole(work: Coroutine[None, None, None]) -> None:
    """Do something; should a part of the agent die, end with its fault, for links would stand still."""
    died = asyncio.get_running_loop().create_future()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        if context["message"] == PART_FAILED and not died.done():
            died.set_exception(context["exception"])

    asyncio.get_running_loop().set_exception_handler(handle)
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({working, died}, return_when=asyncio.FIRST_COMPLETED)
        await (died if died.done() else working)
    finally:
        working.cancel()
        died.cancel()


def settings_endpoints(settings: Settings, window: int = Endpoint.window) -> Callable[[str], Endpoint]:
    """How to reach each broker.

    With TLS, `ca.crt` in the folder of certificates says whom to trust, and `agent.crt` and `agent.key`, if
    they are there, prove who the agent is; without a folder the system's authorities are trusted.

    Args:
        settings: addresses, whether there is TLS, the folder of certificates, and whether to log in.
        window: how many messages may come unacknowledged over a link each way.

    Raises:
        InputError: a certificate or a login is not there, or the window is none.

    Examples:
        >>> settings_endpoints(Settings(address="{broker}.example.org", tls=False))("rome").host
        'rome.example.org'
    """
    if check_count(window, "window", minimum=1) > LAST_ID:
        raise InputError(f"window is {window:,}; give a whole number from 1 to {LAST_ID:,}")
    tls = _tls_of(settings.certificates) if settings.tls else None
    login = login_from_environment() if settings.credentials else None
    if login is not None and tls is None:
        LOG.warning("without TLS the password goes over the network for all to read")

    def endpoint(broker: str) -> Endpoint:
        host, port = settings.place(broker, TLS_PORT if settings.tls else PORT)
        return Endpoint(Address(host, port).hostname, port, tls, login, window=window)

    return endpoint


def _tls_of(certificates: str | None) -> ssl.SSLContext:
    """The TLS context of a folder of certificates, or of the system's authorities."""
    if certificates is None:
        return tls_context()
    folder = Path(certificates)
    own = folder / CERTIFICATE
    pair = (str(own), str(folder / KEY)) if own.exists() else None
    return tls_context(str(folder / AUTHORITY), pair)


def link_metrics(agent: LinkAgent) -> str:
    """All numbers, as Prometheus reads them."""
    return exposition("broadloom_live", _families(agent))


def _families(agent: LinkAgent) -> Iterator[Family]:
    lanes = [(hop, lane) for link in agent.links.values() for hop, lane in sorted(link.lanes.items())]
    for name, told in _OF_A_HOP.items():
        yield f"{name}_total", "counter", told, [(_hop(hop), lane.counts[name]) for hop, lane in lanes]
    guarded = [(_hop(hop), agent.guarded[hop]) for hop, _ in lanes]
    yield "guarded_total", "counter", "messages that crossed elsewhere during a swap", guarded
    yield (
        "in_flight",
        "gauge",
        "messages on their way",
        [(_hop(hop), len(lane.flight)) for hop, lane in lanes],
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
    for name, told in _COUNTS.items():
        yield f"{name}_total", "counter", told, [("", agent.counts[name])]
    taken = sorted(agent.seconds)
    spread = [(labels(quantile=part), _quantile(taken, float(part))) for part in ("0.5", "0.99")]
    yield "change_seconds", "gauge", "from a change asked for to all links changed", spread if taken else []


_COUNTS = {
    "changes": "changes that are done",
    "barriers_given_up": "changes that went on without a broker that was away",
    "probes_refused": "probes that a broker refused, for which changes do not wait",
    "plans_refused": "plans that could not be followed",
}


def _quantile(taken: list[float], part: float) -> float:
    return taken[min(len(taken) - 1, int(part * len(taken)))] if taken else 0.0


def _hop(hop: tuple[str, str]) -> str:
    return labels(start=hop[0], end=hop[1])


async def serve_metrics(agent: LinkAgent, port: int) -> asyncio.Server:
    """Answer every GET on loopback with the numbers."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                request = await reader.readuntil(b"\r\n\r\n")
                good = request.startswith((b"GET /metrics ", b"GET / "))
                body = link_metrics(agent).encode() if good else b"not found; GET /metrics\n"
                status = b"200 OK" if good else b"404 Not Found"
                head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\n" % (status, KIND.encode())
                writer.write(head + b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(body), body))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone, or asks for something else
        finally:
            writer.close()

    try:
        return await asyncio.start_server(answer, HOST, port)
    except OSError as error:
        raise InputError(f"port {port} of {HOST} for metrics cannot be had: {error.strerror}") from error
