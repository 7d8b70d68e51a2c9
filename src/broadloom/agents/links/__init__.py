"""Link agent, which holds the links of a plan between running brokers and changes them live."""

from broadloom.agents.links.embedded_links import EmbeddedLinks, LinkConfig, address_endpoints, embed_links
from broadloom.agents.links.link_agent import LinkAgent
from broadloom.agents.links.link_service import (
    LinkRun,
    fleet_endpoints,
    link_metrics,
    link_summary,
    serve_links,
    settings_endpoints,
    take_down_links,
)
from broadloom.agents.links.plan_sources import (
    AddressedPlans,
    EventFile,
    FixedPlan,
    PlannedLinks,
    PlanSource,
    PlanVersions,
)
from broadloom.agents.links.tree_changes import Step, edges, next_step, target_hops

__all__ = [
    "AddressedPlans",
    "EmbeddedLinks",
    "EventFile",
    "FixedPlan",
    "LinkAgent",
    "LinkConfig",
    "LinkRun",
    "PlanSource",
    "PlanVersions",
    "PlannedLinks",
    "Step",
    "address_endpoints",
    "edges",
    "embed_links",
    "fleet_endpoints",
    "link_metrics",
    "link_summary",
    "next_step",
    "serve_links",
    "settings_endpoints",
    "take_down_links",
    "target_hops",
]
