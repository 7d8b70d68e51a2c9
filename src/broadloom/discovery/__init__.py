"""Discovery of a running fleet: checks of its brokers, and its subscriptions, publishers and latencies."""

from broadloom.discovery.fleet_discovery import Discovery, discover

__all__ = ["Discovery", "discover"]
