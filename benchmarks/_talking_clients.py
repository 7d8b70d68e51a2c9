"""Ordinary clients on paho that publish to a topic and subscribe to it, in one process.

python benchmarks/_talking_clients.py HOST PORT PAUSE BYTES CLIENT:TOPIC ...
"""

import sys
import time

import paho.mqtt.client as paho


def main(host: str, port: int, pause: float, size: int, clients: list[str]) -> None:
    """Connect all clients, and publish a message of each per pause."""
    talking = []
    for text in clients:
        name, topic = text.split(":")
        client = paho.Client(
            paho.CallbackAPIVersion.VERSION2, name, protocol=paho.MQTTv311, clean_session=False
        )
        client.on_connect = lambda own, *_, topic=topic: own.subscribe(topic, 1)
        client.reconnect_delay_set(1, 1)
        client.connect_async(host, port, 30)
        client.loop_start()
        talking.append((client, topic))
    while True:
        began = time.monotonic()
        for client, topic in talking:
            client.publish(topic, b"x" * size, 1)
            time.sleep(pause / len(talking) / 2)
        time.sleep(max(0.0, pause - (time.monotonic() - began)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
