"""A client session without a broker: answers to its requests."""

import asyncio
import socket

import pytest

from broadloom.mqtt import client_session
from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession, SessionHandler, stop_sessions
from broadloom.mqtt.endpoint import Endpoint
from broadloom.mqtt.packets import CONNACK, PINGRESP, PUBLISH, SUBACK, Connack


class Wire:
    """A connection that keeps what is written."""

    def __init__(self):
        self.packets = []
        self.is_aborted = False

    def write(self, data):
        """Keep some bytes."""
        self.packets.append(data)

    def is_closing(self):
        """It stays open."""
        return False

    def close(self):
        """Nothing: the other end does not answer."""

    def abort(self):
        """Only noted."""
        self.is_aborted = True


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


@pytest.mark.parametrize("largest", [None, 1_000])
def test_a_connection_on_which_a_packet_never_ends_is_given_up(largest, monkeypatch):
    """A wrong length makes all that follows part of one packet: answers to pings arrive, but unseen."""
    now = [100.0]

    async def scenario():
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
        session = ClientSession("rome", "me", Endpoint("rome", 1883), SessionHandler(), largest=largest)
        wire = Wire()
        session.connection_made(wire)
        session._connack = asyncio.get_running_loop().create_future()
        session._connack.set_result(Connack(False, 0, {}))
        answer = bytes((PINGRESP, 0))
        for _ in range(10):
            session.data_received(answer)
            session._ping(wire)
            now[0] += 7
        assert not wire.is_aborted
        session.data_received(bytes((PUBLISH, 0xFF, 0xFF, 0xFF, 0x7F)))
        assert wire.is_aborted == (largest is not None)
        for _ in range(5):
            session.data_received(answer)
            session._ping(wire)
            now[0] += 7
        assert wire.is_aborted

    asyncio.run(scenario())


def test_a_large_packet_that_comes_slowly_is_not_given_up(monkeypatch):
    now = [100.0]

    async def scenario():
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
        session = ClientSession("rome", "me", Endpoint("rome", 1883), SessionHandler())
        wire = Wire()
        session.connection_made(wire)
        session._connack = asyncio.get_running_loop().create_future()
        session._connack.set_result(Connack(False, 0, {}))
        session.data_received(bytes((PUBLISH, 0xFF, 0xFF, 0xFF, 0x7F)))
        for _ in range(20):
            session.data_received(bytes(100_000))
            session._ping(wire)
            now[0] += 20
        assert not wire.is_aborted

    asyncio.run(scenario())


@pytest.mark.parametrize("steps", range(1, 6))
def test_a_connection_ends_although_stopping_its_session_is_cancelled(steps):
    """`steps` are those of the event loop between the begin of stopping and the cancellation."""

    async def scenario():
        session = ClientSession("rome", "me", Endpoint("rome", 1883), SessionHandler())
        wire = Wire()
        session.connection_made(wire)
        session.up.set()
        session._task = asyncio.create_task(asyncio.sleep(3600))
        stopping = asyncio.create_task(stop_sessions(session))
        for _ in range(steps):
            await asyncio.sleep(0)
        stopping.cancel()
        await asyncio.gather(stopping, session._task, return_exceptions=True)
        assert stopping.cancelled()
        assert wire.is_aborted
        assert session._task.cancelled()

    asyncio.run(asyncio.wait_for(scenario(), 10))


def test_an_answer_to_a_session_that_stops_is_no_error_of_the_broker(caplog):
    """It arrives after the session has stopped to wait for it."""

    async def scenario():
        session = ClientSession("rome", "me", Endpoint("rome", 1883), SessionHandler())
        session.connection_made(Wire())
        session._connack = asyncio.get_running_loop().create_future()
        session._connack.cancel()
        session.data_received(bytes((CONNACK, 3, 0, 0, 0)))

    asyncio.run(scenario())
    assert not caplog.messages


async def refused():
    """The reason why a session cannot connect to a port at which nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = Endpoint("127.0.0.1", unused.getsockname()[1])
        session = ClientSession("rome", "me", endpoint, SessionHandler())
        session.start()
        while session.last_error is None:
            await asyncio.sleep(0.005)
        await session.stop()
    return session.last_error


def test_a_refused_connection_has_a_short_reason():
    assert asyncio.run(refused()) == "Connection refused"


def test_after_connections_that_end_at_once_the_waits_grow(monkeypatch, caplog):
    """Somebody with the same client id, to whom the broker gives the session without a reason."""
    waits = []

    class LosingSession(ClientSession):
        """A session whose connections end at once."""

        async def _connect(self):
            self._closed.set()

    async def scenario():
        session = LosingSession("rome", "me", Endpoint("rome", 1883), SessionHandler())

        async def sleep(seconds):
            waits.append(seconds)
            session.is_taken_over = len(waits) == 12

        monkeypatch.setattr(client_session.asyncio, "sleep", sleep)
        monkeypatch.setattr(client_session.random, "uniform", lambda *_: 1.0)
        await session._run()

    asyncio.run(scenario())
    assert waits == [0.1] * 4 + [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert [record.getMessage() for record in caplog.records] == [
        "broker 'rome', client 'me': 5 connections in a row ended within 2 s; does another client use this "
        "client id?"
    ]
