"""A client session without a broker: answers to its requests."""

import asyncio

import pytest

from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import SUBACK, Connack


class Wire:
    """A connection that keeps what is written."""

    def __init__(self):
        self.packets = []

    def write(self, data):
        """Keep some bytes."""
        self.packets.append(data)

    def is_closing(self):
        """It stays open."""
        return False

    def abort(self):
        """Nothing happens."""


async def subscribed(filters, reasons):
    """Subscribe, and answer with these reasons."""
    session = ClientSession("rome", "me", Endpoint("rome", 1883), SessionHandler())
    wire = Wire()
    session.connection_made(wire)
    session._connack = asyncio.get_running_loop().create_future()
    session._connack.set_result(Connack(False, 0, {}))
    task = asyncio.create_task(session.subscribe(filters, retained=False))
    while not wire.packets:
        await asyncio.sleep(0)
    number = wire.packets[0][2:4]
    session.data_received(bytes((SUBACK, 3 + len(reasons))) + number + b"\0" + bytes(reasons))
    await task


def test_a_refused_filter_is_named_and_the_others_are_accepted():
    asyncio.run(subscribed(["a", "b"], [1, 1]))
    with pytest.raises(BrokerRefusedError, match="'rome' refuses 'b' to 'me'") as found:
        asyncio.run(subscribed(["a", "b", "c"], [1, 0x87, 1]))
    assert found.value.filters == ("b",)
