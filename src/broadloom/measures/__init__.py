"""One place for every metric. Nothing here is used to build what it measures."""

from broadloom.measures.connectivity import components_per_topic, disconnected_topics, is_topic_connected
from broadloom.measures.content import content_metrics
from broadloom.measures.diameter import topic_diameters
from broadloom.measures.market import MarketCost, MovingCost, market_cost, market_flows, market_metrics
from broadloom.measures.routing import link_loads, routing_costs
from broadloom.measures.summary import metrics
from broadloom.measures.weak_points import WeakPoints, weak_points

__all__ = [
    "MarketCost",
    "MovingCost",
    "WeakPoints",
    "components_per_topic",
    "content_metrics",
    "disconnected_topics",
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
