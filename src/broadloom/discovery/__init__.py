"""Discovery of a running fleet: checks of its brokers, and its subscriptions, publishers and latencies."""

from broadloom.discovery.broker_findings import BrokerFindings
from broadloom.discovery.fleet_discovery import Discovery, discover

__all__ = ["BrokerFindings", "Discovery", "discover"]
