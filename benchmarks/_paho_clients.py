"""Ordinary clients on paho, in one process: persistent sessions at QoS 1, MQTT 3.1.1 and 5.

    python benchmarks/_paho_clients.py HOST PORT FILE CLIENT:VERSION:TOPIC ...

Each message becomes a line `client payload` in FILE before it is acknowledged. With CA in the environment,
connections have TLS.
"""

import os
import signal
import sys

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


def main(host: str, port: int, path: str, clients: list[str]) -> None:
    """Connect all clients, and run until the process is ended."""
    out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for text in clients:
        name, version, topic = text.split(":")
        start(host, port, name, int(version), topic, out)
    signal.pause()


def start(host: str, port: int, name: str, version: int, topic: str, out: int) -> None:
    """Connect a client in a thread of its own."""
    protocol = paho.MQTTv5 if version == 5 else paho.MQTTv311
    clean = {} if version == 5 else {"clean_session": False}
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, name, protocol=protocol, **clean)
    client.on_connect = lambda own, *_: own.subscribe(topic, 1)
    client.on_message = lambda _c, _d, message: os.write(out, f"{name} {message.payload.decode()}\n".encode())
    arguments = {}
    if version == 5:
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        arguments = {"clean_start": False, "properties": properties}
    if "CA" in os.environ:
        client.tls_set(os.environ["CA"])
    client.connect_async(host, port, 30, **arguments)
    client.loop_start()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
