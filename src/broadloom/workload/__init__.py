"""Generators of interest, latency, churn and markets, all seeded: `bl.workload.interest(...)`, and so on."""

from broadloom.workload.churn import Event, churn, events_table
from broadloom.workload.devices import devices
from broadloom.workload.latency import weights, weights_or_none
from broadloom.workload.markets import market
from broadloom.workload.regions import REGIONS, Region, region_latency
from broadloom.workload.subscribers import first_geography, subscribers
from broadloom.workload.subscriptions import interest
from broadloom.workload.write import write

__all__ = [
    "REGIONS",
    "Event",
    "Region",
    "churn",
    "devices",
    "events_table",
    "first_geography",
    "interest",
    "market",
    "region_latency",
    "subscribers",
    "weights",
    "weights_or_none",
    "write",
]
