"""Deployment of a plan to real brokers: trees, links, native configuration, and the rollout of changes."""

from broadloom.deployment.deployment_inputs import (
    LinkRequests,
    Publication,
    Settings,
    addresses_of,
    link_name,
    publications,
    publications_of,
    read_link_requests,
    read_publications,
    safe_name,
)
from broadloom.deployment.exports import (
    TARGETS,
    Target,
    compare_exports,
    export,
    export_record,
    save_export,
    target_named,
)
from broadloom.deployment.fleet_file import (
    FLEET_FILE,
    Fleet,
    FleetBroker,
    FleetLinks,
    FleetLogin,
    FleetTls,
)
from broadloom.deployment.loop_checks import check
from broadloom.deployment.publisher_links import (
    PublisherLinks,
    carried_lines,
    carried_record,
    filter_groups,
    publisher_links,
)
from broadloom.deployment.rollout import Batch, Deployment, changes, order
from broadloom.deployment.trees import Tree, mode_of, plan_trees
from broadloom.deployment.wiring import Hop, SampleMessage, WiredLink, Wiring, sample_messages, widest, wire

__all__ = [
    "FLEET_FILE",
    "TARGETS",
    "Batch",
    "Deployment",
    "Fleet",
    "FleetBroker",
    "FleetLinks",
    "FleetLogin",
    "FleetTls",
    "Hop",
    "LinkRequests",
    "Publication",
    "PublisherLinks",
    "SampleMessage",
    "Settings",
    "Target",
    "Tree",
    "WiredLink",
    "Wiring",
    "addresses_of",
    "carried_lines",
    "carried_record",
    "changes",
    "check",
    "compare_exports",
    "export",
    "export_record",
    "filter_groups",
    "link_name",
    "mode_of",
    "order",
    "plan_trees",
    "publications",
    "publications_of",
    "publisher_links",
    "read_link_requests",
    "read_publications",
    "safe_name",
    "sample_messages",
    "save_export",
    "target_named",
    "widest",
    "wire",
]
