"""Metrics of overlays, assignments and markets, without code of the algorithms."""

from broadloom.measures.connectivity import (
    components_per_topic,
    disconnected_topics,
    filters_text,
    is_topic_connected,
)
from broadloom.measures.content_measures import content_metrics
from broadloom.measures.market_measures import MarketCost, market_cost, market_flows, market_metrics
from broadloom.measures.overlay_measures import link_loads, metrics, routing_costs
from broadloom.measures.sub_overlays import WeakPoints, topic_diameters, weak_points

__all__ = [
    "MarketCost",
    "WeakPoints",
    "components_per_topic",
    "content_metrics",
    "disconnected_topics",
    "filters_text",
    "is_topic_connected",
    "link_loads",
    "market_cost",
    "market_flows",
    "market_metrics",
    "metrics",
    "routing_costs",
    "topic_diameters",
    "weak_points",
]
