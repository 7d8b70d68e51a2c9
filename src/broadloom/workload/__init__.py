"""Seeded generators of interest, link weights, churn, subscribers and markets."""

from broadloom.model import REGIONS, Region, region_latency
from broadloom.workload.assignment_workload import first_geography, market, subscribers
from broadloom.workload.device_logs import devices
from broadloom.workload.interest_workload import ChurnEvent, churn, events_table, interest, write
from broadloom.workload.link_weights import mean_weight, read_matrix, weights, weights_or_none

Event = ChurnEvent  # an older name, kept for callers

__all__ = [
    "REGIONS",
    "ChurnEvent",
    "Event",
    "Region",
    "churn",
    "devices",
    "events_table",
    "first_geography",
    "interest",
    "market",
    "mean_weight",
    "read_matrix",
    "region_latency",
    "subscribers",
    "weights",
    "weights_or_none",
    "write",
]
