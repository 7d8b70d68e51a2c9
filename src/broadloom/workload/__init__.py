"""Generators of interest, latency and churn, all seeded: `bl.workload.interest(...)` and its like."""

from broadloom.workload.churn import Event, churn, events_table
from broadloom.workload.latency import weights, weights_or_none
from broadloom.workload.regions import REGIONS, Region, region_latency
from broadloom.workload.subscriptions import interest
from broadloom.workload.write import write

__all__ = [
    "REGIONS",
    "Event",
    "Region",
    "churn",
    "events_table",
    "interest",
    "region_latency",
    "weights",
    "weights_or_none",
    "write",
]
