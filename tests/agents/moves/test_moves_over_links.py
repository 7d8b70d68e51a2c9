"""Moves over links that follow the clients: a broker gets a topic when a client arrives that needs it."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
from moving import (
    LIMIT,
    QUICK,
    TrafficCounter,
    addresses,
    all_moves_over,
    client_addresses,
    running_agent,
    unlinked_brokers,
    wait_for,
)

import broadloom as bl
from broadloom.agents.links.embedded_links import EmbeddedLinks, address_endpoints
from broadloom.agents.moves.moving_client import MovingClient
from broadloom.mqtt.endpoint import Login

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("moves")]


@contextmanager
def links_of(brokers, folder):
    """Embedded links between brokers without other links."""
    names = list(brokers.ports)
    empty = bl.link(bl.Interest.from_lists([[] for _ in names], node_ids=names), algorithm="gm")
    embedded = EmbeddedLinks(empty, None, address_endpoints(addresses(brokers), Login(), 500), folder)
    embedded.start()
    try:
        yield embedded.links
    finally:
        embedded.stop()


def test_links_follow_clients_that_move_without_lost_or_duplicated_messages(tmp_path):
    """The reader moves to a broker that never had its topic, then the writer moves."""
    traffic, over = TrafficCounter(), threading.Event()
    (tmp_path / "links").mkdir()
    with (
        unlinked_brokers("hfg") as brokers,
        links_of(brokers, tmp_path / "links") as links,
        running_agent(addresses(brokers), tmp_path / "journal", QUICK, links=links) as agent,
        MovingClient(
            "reader", client_addresses(brokers), "h", traffic.callback("reader"), plain=True
        ) as reader,
        MovingClient("writer", client_addresses(brokers), "g", plain=True) as writer,
    ):
        reader.subscribe("t/1")
        writer.publish("t/1", b"before the links are up")
        assert wait_for(lambda: {"reader", "writer"} <= set(agent.registry.residents))
        assert wait_for(lambda: links.carried("h", ["t/1"]) and links.carried("g", ["t/1"]))

        def load():
            while not over.wait(0.005):
                traffic.send(writer, "t/1")

        publishing = threading.Thread(target=load, daemon=True)
        publishing.start()
        for client, to in (("reader", "f"), ("writer", "h")):
            enough = len(traffic.sent) + 60
            assert wait_for(lambda: len(traffic.sent) > enough)  # noqa: B023
            agent.ask(lambda own, client=client, to=to: own.request_to_move(client, to))
            assert wait_for(lambda: all_moves_over(agent)), agent.registry
        over.set()
        publishing.join()
        assert writer.wait_until_confirmed(LIMIT)
        wait_for(lambda: traffic.counts({"reader": {"t/1"}})[1] == 0)
        assert (reader.home, writer.home) == ("f", "h")
        assert traffic.counts({"reader": {"t/1"}})[1:] == (0, 0)
        assert len(traffic.sent) > 100
        assert not links.carried("g", ["t/1"])  # it has no client there any more
