"""One place for every metric. Nothing here is used to build what it measures."""

from broadloom.measures.connectivity import components_per_topic, disconnected_topics, is_topic_connected

__all__ = ["components_per_topic", "disconnected_topics", "is_topic_connected"]
