"""Live plane: a controller, and site agents that hold the links between running brokers.

The names are loaded at their first use.
"""

from typing import TYPE_CHECKING

from broadloom.lazy_names import lazy_names

if TYPE_CHECKING:
    from broadloom.agents.links.agent_service import AgentOptions, serve_agent
    from broadloom.agents.links.client_watch import ClientWatch, watch_clients
    from broadloom.agents.links.controller_service import ControllerOptions, serve_controller
    from broadloom.agents.links.embedded_links import (
        EmbeddedLinks,
        LinkConfig,
        address_endpoints,
        embed_links,
    )
    from broadloom.agents.links.fleet_controller import FleetController
    from broadloom.agents.links.fleet_planner import FleetPlanner
    from broadloom.agents.links.planned_links import PlannedLinks
    from broadloom.agents.links.planned_trees import target_trees
    from broadloom.agents.links.route_orders import AgentOrders, AgentReport, Route
    from broadloom.agents.links.site_agent import SiteAgent
    from broadloom.agents.links.stamps import FleetKey

__all__ = [
    "AgentOptions",
    "AgentOrders",
    "AgentReport",
    "ClientWatch",
    "ControllerOptions",
    "EmbeddedLinks",
    "FleetController",
    "FleetKey",
    "FleetPlanner",
    "LinkConfig",
    "PlannedLinks",
    "Route",
    "SiteAgent",
    "address_endpoints",
    "embed_links",
    "serve_agent",
    "serve_controller",
    "target_trees",
    "watch_clients",
]

# The module of each name; a test compares it with the imports above.
_MODULES = {
    "AgentOptions": "agent_service",
    "AgentOrders": "route_orders",
    "AgentReport": "route_orders",
    "ClientWatch": "client_watch",
    "ControllerOptions": "controller_service",
    "EmbeddedLinks": "embedded_links",
    "FleetController": "fleet_controller",
    "FleetKey": "stamps",
    "FleetPlanner": "fleet_planner",
    "LinkConfig": "embedded_links",
    "PlannedLinks": "planned_links",
    "Route": "route_orders",
    "SiteAgent": "site_agent",
    "address_endpoints": "embedded_links",
    "embed_links": "embedded_links",
    "serve_agent": "agent_service",
    "serve_controller": "controller_service",
    "target_trees": "planned_trees",
    "watch_clients": "client_watch",
}

__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
