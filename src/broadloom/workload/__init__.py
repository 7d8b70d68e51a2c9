"""Generators of interest, latency, churn and markets, all seeded: `bl.workload.interest(...)`, and so on."""

from broadloom.workload.churn import Event, churn, events_table
from broadloom.workload.latency import KINDS, weights
from broadloom.workload.market import market
from broadloom.workload.regions import REGIONS, Region, region_latency
from broadloom.workload.subscribers import first_geography, subscribers
from broadloom.workload.subscriptions import interest
from broadloom.workload.write import write

__all__ = [
    "KINDS",
    "REGIONS",
    "Event",
    "Region",
    "churn",
    "events_table",
    "first_geography",
    "interest",
    "market",
    "region_latency",
    "subscribers",
    "weights",
    "write",
]
