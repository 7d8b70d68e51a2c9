"""Deployment of a plan to real brokers: trees, links, native configuration, and the rollout of changes.

The names are loaded at their first use.
"""

from typing import TYPE_CHECKING

from broadloom.lazy_names import lazy_names

if TYPE_CHECKING:
    from broadloom.deployment.broker_api import api_url, call_api, request_from
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
        replace_publishers,
        safe_name,
    )
    from broadloom.deployment.exports import (
        TARGETS,
        Target,
        compare_exports,
        export,
        export_record,
        removal,
        save_export,
        target_named,
    )
    from broadloom.deployment.fleet_file import (
        FLEET_FILE,
        Fleet,
        FleetBroker,
        FleetLinks,
        FleetLive,
        FleetLogin,
        FleetTls,
    )
    from broadloom.deployment.fleet_hooks import FleetHooks
    from broadloom.deployment.fleet_rollout import roll_out
    from broadloom.deployment.fleet_targets import (
        address_notes,
        bridge_secret,
        check_fleet,
        fleet_access,
        fleet_notes,
        fleet_settings,
        fleet_target,
    )
    from broadloom.deployment.loop_checks import check
    from broadloom.deployment.one_way_links import (
        PublisherLinks,
        carried_lines,
        carried_record,
        filter_groups,
        publisher_links,
    )
    from broadloom.deployment.rollout import Batch, Deployment, changes, order
    from broadloom.deployment.trees import Tree, mode_of, plan_trees
    from broadloom.deployment.wiring import (
        Hop,
        SampleMessage,
        WiredLink,
        Wiring,
        sample_messages,
        widest,
        wire,
    )

__all__ = [
    "FLEET_FILE",
    "TARGETS",
    "Batch",
    "Deployment",
    "Fleet",
    "FleetBroker",
    "FleetHooks",
    "FleetLinks",
    "FleetLive",
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
    "address_notes",
    "addresses_of",
    "api_url",
    "bridge_secret",
    "call_api",
    "carried_lines",
    "carried_record",
    "changes",
    "check",
    "check_fleet",
    "compare_exports",
    "export",
    "export_record",
    "filter_groups",
    "fleet_access",
    "fleet_notes",
    "fleet_settings",
    "fleet_target",
    "link_name",
    "mode_of",
    "order",
    "plan_trees",
    "publications",
    "publications_of",
    "publisher_links",
    "read_link_requests",
    "read_publications",
    "removal",
    "replace_publishers",
    "request_from",
    "roll_out",
    "safe_name",
    "sample_messages",
    "save_export",
    "target_named",
    "widest",
    "wire",
]

# The module of each name; a test compares it with the imports above.
_MODULES = {
    "Batch": "rollout",
    "Deployment": "rollout",
    "FLEET_FILE": "fleet_file",
    "Fleet": "fleet_file",
    "FleetBroker": "fleet_file",
    "FleetHooks": "fleet_hooks",
    "FleetLinks": "fleet_file",
    "FleetLive": "fleet_file",
    "FleetLogin": "fleet_file",
    "FleetTls": "fleet_file",
    "Hop": "wiring",
    "LinkRequests": "deployment_inputs",
    "Publication": "deployment_inputs",
    "PublisherLinks": "one_way_links",
    "SampleMessage": "wiring",
    "Settings": "deployment_inputs",
    "TARGETS": "exports",
    "Target": "exports",
    "Tree": "trees",
    "WiredLink": "wiring",
    "Wiring": "wiring",
    "address_notes": "fleet_targets",
    "addresses_of": "deployment_inputs",
    "api_url": "broker_api",
    "bridge_secret": "fleet_targets",
    "call_api": "broker_api",
    "carried_lines": "one_way_links",
    "carried_record": "one_way_links",
    "changes": "rollout",
    "check": "loop_checks",
    "check_fleet": "fleet_targets",
    "compare_exports": "exports",
    "export": "exports",
    "export_record": "exports",
    "filter_groups": "one_way_links",
    "fleet_access": "fleet_targets",
    "fleet_notes": "fleet_targets",
    "fleet_settings": "fleet_targets",
    "fleet_target": "fleet_targets",
    "link_name": "deployment_inputs",
    "mode_of": "trees",
    "order": "rollout",
    "plan_trees": "trees",
    "publications": "deployment_inputs",
    "publications_of": "deployment_inputs",
    "publisher_links": "one_way_links",
    "read_link_requests": "deployment_inputs",
    "read_publications": "deployment_inputs",
    "removal": "exports",
    "replace_publishers": "deployment_inputs",
    "request_from": "broker_api",
    "roll_out": "fleet_rollout",
    "safe_name": "deployment_inputs",
    "sample_messages": "wiring",
    "save_export": "exports",
    "target_named": "exports",
    "widest": "wiring",
    "wire": "wiring",
}

__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
