"""What the agent does, in numbers: Prometheus' text over HTTP on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from broadloom.agents import prometheus as _prometheus
from broadloom.agents.links.agent import Agent
from broadloom.agents.prometheus import KIND, Family, labels
from broadloom.errors import InputError

HOST = "127.0.0.1"
_OF_A_HOP = {
    "messages": "messages carried",
    "bytes": "bytes of messages carried",
    "dropped": "messages of QoS 0 that the far broker did not take in time",
    "refused": "messages that the far broker refused",
}


def exposition(agent: Agent) -> str:
    """All numbers, as Prometheus reads them."""
    return _prometheus.exposition("broadloom_live", _families(agent))


def _families(agent: Agent) -> Iterator[Family]:
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


async def serve_metrics(agent: Agent, port: int) -> asyncio.Server:
    """Answer every GET on loopback with the numbers."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                request = await reader.readuntil(b"\r\n\r\n")
                good = request.startswith((b"GET /metrics ", b"GET / "))
                body = exposition(agent).encode() if good else b"not found; GET /metrics\n"
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
