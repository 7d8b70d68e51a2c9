"""The private parts of paho-mqtt that Broadloom relies on."""

import socket

import pytest

from broadloom.mqtt.endpoint import Login
from broadloom.mqtt.paho import PACKET_ID_IN_USE, close_sockets, new_client

pytest.importorskip("paho.mqtt.client")


def test_closing_the_sockets_of_a_client_closes_those_that_paho_keeps():
    """Fails when paho renames `_reset_sockets` or the sockets that it closes: see `mqtt/paho.py`."""
    client = new_client("client", Login())
    pair = socket.socketpair()
    client._sockpairR, client._sockpairW = pair
    close_sockets(client)
    assert [end.fileno() for end in pair] == [-1, -1]


def test_a_packet_id_in_use_is_reported_as_a_full_queue():
    """A message whose packet id is still unacknowledged is refused with `PACKET_ID_IN_USE`."""
    client = new_client("client", Login())
    first = client.publish("x", b"", 1)
    client._last_mid = first.mid - 1
    assert client.publish("x", b"", 1).rc == PACKET_ID_IN_USE
    assert client.publish("x", b"", 1).rc != PACKET_ID_IN_USE
