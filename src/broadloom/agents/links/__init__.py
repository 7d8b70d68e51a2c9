"""Link agent, which holds the links of a plan between running brokers and changes them live.

The names are loaded at their first use.
"""

from typing import TYPE_CHECKING

from broadloom.lazy_names import lazy_names

if TYPE_CHECKING:
    from broadloom.agents.links.embedded_links import (
        EmbeddedLinks,
        LinkConfig,
        address_endpoints,
        embed_links,
    )
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

# The module of each name; a test compares it with the imports above.
_MODULES = {
    "AddressedPlans": "plan_sources",
    "EmbeddedLinks": "embedded_links",
    "EventFile": "plan_sources",
    "FixedPlan": "plan_sources",
    "LinkAgent": "link_agent",
    "LinkConfig": "embedded_links",
    "LinkRun": "link_service",
    "PlanSource": "plan_sources",
    "PlanVersions": "plan_sources",
    "PlannedLinks": "plan_sources",
    "Step": "tree_changes",
    "address_endpoints": "embedded_links",
    "edges": "tree_changes",
    "embed_links": "embedded_links",
    "fleet_endpoints": "link_service",
    "link_metrics": "link_service",
    "link_summary": "link_service",
    "next_step": "tree_changes",
    "serve_links": "link_service",
    "settings_endpoints": "link_service",
    "take_down_links": "link_service",
    "target_hops": "tree_changes",
}

__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
