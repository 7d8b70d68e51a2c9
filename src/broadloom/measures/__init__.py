"""One place for every metric. Nothing here is used to build what it measures."""

from broadloom.measures.connectivity import components_per_topic, disconnected_topics, is_topic_connected
from broadloom.measures.content import content_metrics
from broadloom.measures.diameter import topic_diameters
from broadloom.measures.routing import routing_costs
from broadloom.measures.summary import metrics

__all__ = [
    "components_per_topic",
    "content_metrics",
    "disconnected_topics",
    "is_topic_connected",
    "metrics",
    "routing_costs",
    "topic_diameters",
]
