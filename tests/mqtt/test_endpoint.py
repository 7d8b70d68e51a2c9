"""Tests of how a server ends."""

import asyncio
import gc
import socket

import pytest

from broadloom.mqtt.endpoint import abort_connection, close_server


@pytest.mark.parametrize("steps", range(8))
def test_a_server_that_closes_leaks_no_connection_at_any_step_of_accepting_it(steps):
    """`steps` are those of the event loop between connecting and closing; pytest fails if a socket leaks."""
    served = []

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        writer.write(b"served")
        writer.close()

    async def check() -> bytes:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname(), 10.0) as client:
            for _ in range(steps):
                await asyncio.sleep(0)
            await close_server(server)
            assert not server.is_serving()
            for writer in served:
                await writer.wait_closed()
            try:
                return client.recv(10)
            except ConnectionResetError:  # it was not accepted
                return b""

    assert asyncio.run(check()) == (b"served" if served else b"")
    assert bool(served) == (steps > 1)
    gc.collect()


def test_a_closing_connection_with_tls_can_be_aborted_in_every_python():
    """As in Python 3.11.2: `close` of a transport with TLS takes away what `abort` uses."""

    class ClosingTransport(asyncio.WriteTransport):
        aborted = 0
        protocol = None

        def abort(self):
            self.aborted += 1
            self.protocol._abort()

    transport = ClosingTransport()
    abort_connection(transport)
    assert transport.aborted == 1
