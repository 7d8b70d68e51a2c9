"""paho-mqtt, the MQTT client library: whether it is there, and what it leaves open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broadloom.errors import InputError

if TYPE_CHECKING:
    from paho.mqtt.client import Client


def need_paho() -> Any:
    """The MQTT client library."""
    try:
        import paho.mqtt.client as paho
    except ImportError as error:
        raise InputError("this needs paho-mqtt; `pip install 'broadloom[deploy]'`") from error
    return paho


def close_sockets(client: Client) -> None:
    """Close what paho closes only when a client is collected: the collector may come to its sockets first."""
    client._reset_sockets()
