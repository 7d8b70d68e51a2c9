"""Live moves on real mosquitto brokers under load: nothing lost, nothing doubled, nobody forced."""

from __future__ import annotations

import multiprocessing
import threading
import time

import pytest
from moving import (
    QUICK,
    Counted,
    addresses,
    agent_of,
    has_session,
    is_over,
    known,
    linked,
    payload_id,
    states,
    wait_for,
    write_config,
)
from moving_child import run_agent

from broadloom import InputError
from broadloom.migration.address import Address
from broadloom.migration.agent import Timing
from broadloom.migration.client import MovingClient
from broadloom.migration.move import State
from broadloom.migration.operator import Operator
from broadloom.migration.policy import accept, decline, stay_until

pytestmark = [pytest.mark.needs("mosquitto"), pytest.mark.xdist_group("mosquitto")]

processes = multiprocessing.get_context("forkserver")


def test_twenty_clients_under_load(tmp_path):
    """18 accept and 2 decline, one is offline for two seconds, the agent is killed once: 0 lost, 0 doubled."""
    counted, wants, over = Counted(), {}, threading.Event()
    with linked("hf") as brokers:
        config, port = write_config(tmp_path, brokers, QUICK)
        operator = Operator(f"http://127.0.0.1:{port}", "token", patience=20)
        first, second = (
            processes.Process(target=run_agent, args=(config, "connected", "after"), daemon=True)
            for _ in range(2)
        )
        first.start()
        clients = []
        for number in range(20):
            policy, name = (decline if number in (3, 7) else accept), f"c{number}"
            client = MovingClient(name, known(brokers), "h", counted.ear(name), policy, identify=payload_id)
            wants[name] = {f"t/{number % 10}", f"t/{(3 * number + 1) % 10}"}
            client.subscribe(*wants[name])
            client.start()
            clients.append(client)
        assert all(client.wait_until_ready() for client in clients)
        assert wait_for(lambda: len(operator.clients()) == 20)

        def load() -> None:
            while not over.wait(1 / 300):
                number = len(counted.sent)
                counted.send(clients[number % 20], f"t/{number % 10}")

        publishing = threading.Thread(target=load)
        publishing.start()
        clients[5].stop()  # offline: the application publishes on, and its broker collects
        for client in clients:
            operator.request_to_move(client.name, "f", client.name)
        assert wait_for(lambda: not first.is_alive())
        second.start()
        time.sleep(2)
        clients[5].start()
        assert wait_for(lambda: settled(operator), 25), operator.moves()
        over.set()
        publishing.join()
        assert all(client.wait_until_confirmed() for client in clients)
        wait_for(lambda: counted.faults(wants)[1] == 0, 5)
        expected, lost, doubled = counted.faults(wants)
        homes = {one["client"]: one["broker"] for one in operator.clients()}
        moves = operator.health()["moves"]
        for client in clients:
            client.stop()
        second.kill()
        second.join()
    assert (lost, doubled) == (0, 0)
    assert expected > 2_000
    assert moves == {"redirected": 18, "declined": 2}
    assert homes == {client.name: client.home for client in clients}
    assert sorted(name for name, home in homes.items() if home == "h") == ["c3", "c7"]


def settled(operator: Operator) -> bool:
    health = operator.health()
    return not health["strays"] and not set(health["moves"]) & {
        "requested",
        "accepted",
        "replicated",
        "connected",
    }
