"""MQTT rules and clients: topic filters, endpoints, packets, client sessions."""

from broadloom.mqtt.client_session import BrokerRefusedError, ClientSession, SessionHandler
from broadloom.mqtt.endpoint import Address, Endpoint, Login, login_from_environment, read_secret, tls_context
from broadloom.mqtt.paho import close_sockets, need_paho, update_session
from broadloom.mqtt.topic_filters import (
    FilterIndex,
    common_filter,
    common_topic,
    covers,
    groups,
    is_filter,
    is_valid_filter,
    is_wild,
)

__all__ = [
    "Address",
    "BrokerRefusedError",
    "ClientSession",
    "Endpoint",
    "FilterIndex",
    "Login",
    "SessionHandler",
    "close_sockets",
    "common_filter",
    "common_topic",
    "covers",
    "groups",
    "is_filter",
    "is_valid_filter",
    "is_wild",
    "login_from_environment",
    "need_paho",
    "read_secret",
    "tls_context",
    "update_session",
]
