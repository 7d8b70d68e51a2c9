"""Moves over links that follow the clients: a broker gets a topic when a client arrives that needs it."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from moving import LIMIT, QUICK, Counted, addresses, agent_of, is_over, known, unlinked, wait_for

import broadloom as bl
from broadloom.agents.links.embedded_links import EmbeddedLinks, address_endpoints
from broadloom.agents.moves.moving_client import MovingClient
from broadloom.mqtt.endpoint import Login

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]


@contextmanager
def links_of(brokers, folder):
    """A link agent at work in a thread of its own, between brokers that nothing else links."""
    names = list(brokers.ports)
    nothing = bl.link(bl.Interest.from_lists([[] for _ in names], node_ids=names), algorithm="gm")
    beside = EmbeddedLinks(nothing, None, address_endpoints(addresses(brokers), Login(), 500), folder)
    beside.start()
    try:
        yield beside.links
    finally:
        beside.stop()


def test_links_follow_a_reader_and_a_writer(tmp_path):
    """The reader moves to a broker that never had its topic, then the writer does: 0 lost, 0 doubled."""
    counted, over = Counted(), threading.Event()
    (tmp_path / "links").mkdir()
    with (
        unlinked("hfg") as brokers,
        links_of(brokers, tmp_path / "links") as links,
        agent_of(addresses(brokers), tmp_path / "journal", QUICK, links=links) as agent,
        MovingClient("reader", known(brokers), "h", counted.ear("reader")) as reader,
        MovingClient("writer", known(brokers), "g") as writer,
    ):
        reader.subscribe("t/1")
        writer.publish("t/1", b"the first one, before there are links")
        assert wait_for(lambda: {"reader", "writer"} <= set(agent.registry.residents))
        assert wait_for(lambda: links.carried("h", ["t/1"]) and links.carried("g", ["t/1"]))

        def load():
            while not over.wait(0.005):
                counted.send(writer, "t/1")

        publishing = threading.Thread(target=load, daemon=True)
        publishing.start()
        for client, to in (("reader", "f"), ("writer", "h")):
            enough = len(counted.sent) + 60
            assert wait_for(lambda: len(counted.sent) > enough)  # noqa: B023
            agent.ask(lambda own, client=client, to=to: own.request_to_move(client, to))
            assert wait_for(lambda: is_over(agent)), agent.registry
        over.set()
        publishing.join()
        assert writer.wait_until_confirmed(LIMIT)
        wait_for(lambda: counted.faults({"reader": {"t/1"}})[1] == 0)
        assert (reader.home, writer.home) == ("f", "h")
        assert counted.faults({"reader": {"t/1"}})[1:] == (0, 0)
        assert len(counted.sent) > 100
        assert not links.carried("g", ["t/1"])  # nobody there needs it any more
